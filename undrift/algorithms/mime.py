"""Mime, MimeLite and MimeLiteMVR: a centralised optimiser's state, frozen during local steps.

Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich, Suresh, NeurIPS 2021.  (Our reading, confirmed with fedjax.)

    c   = mean_i grad f_i(x)                                    full local gradients
    g   = grad F_i(y; xi) - grad F_i(x; xi) + c                 Mime, same minibatch;   MimeLite: grad F_i(y; xi)
    y  <- y - eta U(g; s)                                       K times from y = x, s frozen
    x  <- x - server_lr mean_i (x - y_i),      s <- V(c; s)

    sgd    U = g
    sgdm   U = (1 - beta) g + beta m;                           m <- beta m + (1 - beta) c
    adam   U = mh / (sqrt(vh) + eps),  mh = (beta m + (1 - beta) g) / (1 - beta^t),
                                       vh = (beta2 v + (1 - beta2) g^2) / (1 - beta2^t);    m, v <- with c in place of g

    MimeLiteMVR, momentum with variance reduction (STORM) as the optimiser, its state s = (m, x-), x- the model a round ago:
    y  <- y - eta [ grad F_i(y; xi) + (1 - a)(m - grad F_i(x-; xi)) ],      m <- c(x) + (1 - a)(m - c(x-))

MimeLiteMVR is in Cheng et al.'s Table 2 by its rate alone: this is U and V of STORM put into MimeLite, with full gradients
c in m ("noiseless" there), two of them a visit.  m starts as grad f(x0), in an initialisation round with all clients.
Mime needs c before its local steps: two exchanges a round with the same clients.  MimeLite sends it with its result.
Momentum is dampened, as in the paper; PyTorch's undampened form is the same with eta / (1 - beta).
"""

from typing import Any

from undrift.algorithms.fedavg import stateless
from undrift.core import Cohort, Exchange, Vec, Work, algorithm, hyper, record, usual

KARIMIREDDY = "Karimireddy et al. 2021"


@record
class Server:
    x: Vec
    m: Vec | None
    v: Vec | None
    c: Vec | None


@record
class Model:
    x: Vec


@record
class Down:
    x: Vec
    m: Vec | None
    v: Vec | None
    c: Vec | None


@record
class Gradient:
    c: Vec


@record
class Up:
    delta: Vec


@record
class LiteUp:
    delta: Vec
    c: Vec


def start(self: Any, x: Vec) -> Server:
    m = None if self.opt == "sgd" else 0 * x
    return Server(x, m, v=0 * x if self.opt == "adam" else None, c=None)


def filled(c: Vec | None) -> Vec:
    assert c is not None, "the round's first exchange has not taken place"
    return c


def U(self: "Mime | MimeLite", g: Vec, down: Any, t: int) -> Vec:
    """The optimiser's direction with its state frozen."""
    if self.opt == "sgd":
        return g
    m = (1 - self.beta) * g + self.beta * down.m
    if self.opt == "sgdm":
        return m
    v = (1 - self.beta2) * g**2 + self.beta2 * down.v
    return m / (1 - self.beta**t) / ((v / (1 - self.beta2**t)) ** 0.5 + self.eps)


def V(self: "Mime | MimeLite", server: Server, c: Vec) -> tuple[Vec | None, Vec | None]:
    """The optimiser's state after a round."""
    m, v = server.m, server.v
    if m is not None:
        m = self.beta * m + (1 - self.beta) * c
    if v is not None:
        v = self.beta2 * v + (1 - self.beta2) * c**2
    return m, v


@algorithm("mime", KARIMIREDDY, reading=True)
class Mime:
    """Local steps that imitate the centralised optimiser, corrected as in SVRG."""

    opt: str = hyper(default="sgd", among=("sgd", "sgdm", "adam"))
    beta: float = hyper(default=0.9, within="[0, 1)")
    beta2: float = hyper(default=0.99, within="[0, 1)")
    eps: float = hyper(default=1e-3, within="(0, inf)")
    server_lr: float = hyper(default=1.0, within="[0, inf)")

    server, client = start, stateless

    def exchanges(self, t: int) -> tuple[Exchange, ...]:
        gradient = Exchange(self.send_x, self.gradient, self.keep)
        return (gradient, usual(self)) if t > 0 else ()

    def send_x(self, server: Server) -> Model:
        return Model(server.x)

    def gradient(self, down: Model, client: None, work: Work) -> tuple[Gradient, None]:
        return Gradient(work.full_grad(down.x)), None

    def keep(self, server: Server, mean: Gradient, cohort: Cohort) -> Server:
        return Server(server.x, server.m, server.v, mean.c)

    def send(self, server: Server) -> Down:
        return Down(server.x, server.m, server.v, server.c)

    def local(self, down: Down, client: None, work: Work) -> tuple[Up, None]:
        c = filled(down.c)

        def step(y: Vec) -> Vec:
            g = work.grad(y) - work.grad(down.x) + c
            return y - work.lr * U(self, g, down, work.t)

        return Up(down.x - work.loop(step, down.x)), None

    def update(self, server: Server, mean: Up, cohort: Cohort) -> Server:
        m, v = V(self, server, filled(server.c))
        return Server(server.x - self.server_lr * mean.delta, m, v, None)


@algorithm("mimelite", KARIMIREDDY, reading=True)
class MimeLite:
    """Mime without the correction of local gradients: one exchange a round."""

    opt: str = hyper(default="sgd", among=("sgd", "sgdm", "adam"))
    beta: float = hyper(default=0.9, within="[0, 1)")
    beta2: float = hyper(default=0.99, within="[0, 1)")
    eps: float = hyper(default=1e-3, within="(0, inf)")
    server_lr: float = hyper(default=1.0, within="[0, inf)")

    server, client = start, stateless

    def send(self, server: Server) -> Down:
        return Down(server.x, server.m, server.v, None)

    def local(self, down: Down, client: None, work: Work) -> tuple[LiteUp, None]:
        def step(y: Vec) -> Vec:
            return y - work.lr * U(self, work.grad(y), down, work.t)

        y = work.loop(step, down.x)
        return LiteUp(down.x - y, work.full_grad(down.x)), None

    def update(self, server: Server, mean: LiteUp, cohort: Cohort) -> Server:
        m, v = V(self, server, mean.c)
        return Server(server.x - self.server_lr * mean.delta, m, v, None)


@record
class MVRServer:
    x: Vec
    past: Vec
    m: Vec


@record
class MVRUp:
    delta: Vec
    c: Vec  # at x
    past: Vec  # at the model a round ago


@algorithm("mimelite-mvr", KARIMIREDDY, reading=True)
class MimeLiteMVR:
    """MimeLite with variance-reduced momentum: full gradients at this round's model and at the last one's."""

    a: float = hyper(default=0.1, within="(0, 1]")
    server_lr: float = hyper(default=1.0, within="[0, inf)")

    client = stateless

    def server(self, x: Vec) -> MVRServer:
        return MVRServer(x, past=x, m=0 * x)

    def exchanges(self, t: int) -> tuple[Exchange, ...]:
        return (usual(self),) if t > 0 else (Exchange(self.send_x, self.gradient, self.begin, "everyone"),)

    def send_x(self, server: MVRServer) -> Model:
        return Model(server.x)

    def gradient(self, down: Model, client: None, work: Work) -> tuple[Gradient, None]:
        return Gradient(work.full_grad(down.x)), None

    def begin(self, server: MVRServer, mean: Gradient, cohort: Cohort) -> MVRServer:
        return MVRServer(server.x, server.past, m=mean.c)

    def send(self, server: MVRServer) -> MVRServer:
        return server

    def local(self, down: MVRServer, client: None, work: Work) -> tuple[MVRUp, None]:
        def step(y: Vec) -> Vec:
            return y - work.lr * (work.grad(y) + (1 - self.a) * (down.m - work.grad(down.past)))

        y = work.loop(step, down.x)
        return MVRUp(down.x - y, work.full_grad(down.x), work.full_grad(down.past)), None

    def update(self, server: MVRServer, mean: MVRUp, cohort: Cohort) -> MVRServer:
        m = mean.c + (1 - self.a) * (server.m - mean.past)
        return MVRServer(server.x - self.server_lr * mean.delta, past=server.x, m=m)
