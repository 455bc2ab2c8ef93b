"""DiLoCo and FedAdamW: AdamW on clients.

DiLoCo: Douillard, Feng, Rusu, Chhaparia, Donchev, Kuncoro, Ranzato, Szlam, Shen, 2023 (arXiv:2311.08105), Algorithm 1.
FedAdamW: Liu, Shang, Liu, Tian, Liu, Liu, Zhu, Lin, 2025 (arXiv:2510.27486), Algorithm 2.  (Our reading of both.)

    m  <- beta1 m + (1 - beta1) g_i(y),     v <- beta2 v + (1 - beta2) g_i(y)^2
    y  <- y - eta_l [ mh / (sqrt(vh) + eps) + lambda y + alpha Delta ]           K times from y = x     (DiLoCo: alpha = 0)

    DiLoCo     m, v are kept by the client, who never sends them;  mh = m / (1 - beta1^k), vh = v / (1 - beta2^k), k steps
               of the client so far.  Nesterov's momentum on the server, D = mean_i (x - y_i):
               u <- mu u + D,   x <- x - eta (D + mu u)
    FedAdamW   m = 0 in every visit, v = vbar from the server;  mh = m / (1 - beta1^k), vh = v / (1 - beta2^t), k steps of
               the visit, t of the run so far
               Delta <- mean_i (x - y_i) / (eta_l K),   x <- mean_i y_i,   vbar <- mean_i vbar_i

vbar_i holds the mean of v in each of `blocks` parts of the vector, so that a few numbers travel in place of a vector.  The
paper's blocks follow the architecture; a method sees a flat vector, and ours are parts of it of equal length.  lambda y
is printed with a minus, with which weights would grow.
"""

import torch

from undrift.algorithms.fedavg import Down, Up, send_model
from undrift.core import Cohort, Col, Vec, Work, algorithm, hyper, record
from undrift.core.optimiser import bias_correction


@record
class DiLoCoServer:
    x: Vec
    u: Vec


@record
class DiLoCoClient:
    m: Vec
    v: Vec
    k: Col


@algorithm("diloco", "Douillard et al. 2023", reading=True)
class DiLoCo:
    """AdamW on clients for many steps, Nesterov's momentum on the server."""

    eta: float = hyper(default=0.7, within="[0, inf)")
    mu: float = hyper(default=0.9, within="[0, 1)")
    beta1: float = hyper(default=0.9, within="[0, 1)")
    beta2: float = hyper(default=0.999, within="[0, 1)")
    eps: float = hyper(default=1e-8, within="(0, inf)")
    decay: float = hyper(default=0.1, within="[0, inf)")

    send = send_model

    def server(self, x: Vec) -> DiLoCoServer:
        return DiLoCoServer(x, u=0 * x)

    def client(self, x: Vec) -> DiLoCoClient:
        return DiLoCoClient(m=0 * x, v=0 * x, k=0 * x[:1])

    def local(self, down: Down, client: DiLoCoClient, work: Work) -> tuple[Up, DiLoCoClient]:
        def step(y: Vec, m: Vec, v: Vec, k: Col) -> tuple[Vec, Vec, Vec, Col]:
            g, k = work.grad(y), k + 1
            m = self.beta1 * m + (1 - self.beta1) * g
            v = self.beta2 * v + (1 - self.beta2) * g * g
            mh, vh = m / bias_correction(self.beta1, k), v / bias_correction(self.beta2, k)
            return y - work.lr * (mh / (vh.sqrt() + self.eps) + self.decay * y), m, v, k

        y, m, v, k = work.loop(step, down.x, client.m, client.v, client.k)
        return Up(down.x - y), DiLoCoClient(m, v, k)

    def update(self, server: DiLoCoServer, mean: Up, cohort: Cohort) -> DiLoCoServer:
        u = self.mu * server.u + mean.delta
        return DiLoCoServer(server.x - self.eta * (mean.delta + self.mu * u), u)


@record
class Moments:
    x: Vec
    d: Vec  # Delta
    v: tuple[Col, ...]  # vbar, a number a block
    t: Col


@record
class MomentsUp:
    delta: Vec
    v: tuple[Col, ...]


def spread(means: tuple[Col, ...], like: Vec) -> Vec:
    """The vector with these numbers in its blocks."""
    parts = like.tensor_split(len(means), dim=-1)
    return torch.cat([mean.expand_as(part) for mean, part in zip(means, parts, strict=True)], dim=-1)


@algorithm("fedadamw", "Liu et al. 2025", divides_by_lr=True, reading=True)
class FedAdamW:
    """AdamW on clients that start from the common second moment, and are drawn along the last common step."""

    alpha: float = hyper(default=0.5, within="[0, inf)")
    beta1: float = hyper(default=0.9, within="[0, 1)")
    beta2: float = hyper(default=0.999, within="[0, 1)")
    eps: float = hyper(default=1e-8, within="(0, inf)")
    decay: float = hyper(default=0.01, within="[0, inf)")
    blocks: int = hyper(default=16, within="[1, inf)")

    def server(self, x: Vec) -> Moments:
        blocks = min(int(self.blocks), x.shape[-1])
        return Moments(x, d=0 * x, v=(0 * x[..., :1],) * blocks, t=0 * x[..., :1])

    def client(self, x: Vec) -> None:
        return None

    def send(self, server: Moments) -> Moments:
        return server

    def local(self, down: Moments, client: None, work: Work) -> tuple[MomentsUp, None]:
        def step(y: Vec, m: Vec, v: Vec, k: Col) -> tuple[Vec, Vec, Vec, Col]:
            g, k = work.grad(y), k + 1
            m = self.beta1 * m + (1 - self.beta1) * g
            v = self.beta2 * v + (1 - self.beta2) * g * g
            mh, vh = m / bias_correction(self.beta1, k), v / bias_correction(self.beta2, down.t + k)
            return y - work.lr * (mh / (vh.sqrt() + self.eps) + self.decay * y + self.alpha * down.d), m, v, k

        y, _, v, _ = work.loop(step, down.x, 0 * down.x, spread(down.v, down.x), work.zero)
        blocks = v.tensor_split(len(down.v), dim=-1)
        return MomentsUp(down.x - y, tuple(block.mean(-1, keepdim=True) for block in blocks)), None

    def update(self, server: Moments, mean: MomentsUp, cohort: Cohort) -> Moments:
        d = mean.delta / (cohort.lr * cohort.K)
        return Moments(server.x - mean.delta, d, mean.v, server.t + cohort.K)
