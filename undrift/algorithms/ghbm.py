"""GHBM, LocalGHBM, FedHBM: momentum over tau rounds, i.e. over all clients even if few take part in each.

Zaccone, Karimireddy, Masone, Ciccone, "Communication-Efficient Heterogeneous Federated Learning with Generalized
Heavy-Ball Momentum", TMLR 2025 (arXiv:2311.18578), Algorithms 1-3, eqs. (4)-(7).

    y  <- y - eta_l g_i(y) + (beta / (tau J)) (x - x_tau)          J times from y = x         GHBM, practical
          x_tau: the server's model tau rounds ago;  the one this client last received, tau = tau_i rounds ago (LocalGHBM)
          (x - x_tau) -> (y - y_last): this step's y minus the client's own last local model                (FedHBM)
    x  <- x - eta mean_i (x - y_i)

beta multiplies the *momentum* (beta = 0: FedAvg), unlike Cheng et al.'s.  No step size stands before it (errata 3).
warmup     "zero": no momentum until tau models are stored, as in the authors' code;  "telescope": x - x0 meanwhile,
           which is what the recursion (5) gives (errata 12)
C          LocalGHBM and FedHBM: the authors' code has the constant C (= S/N) where the paper has 1/tau_i (errata 4)

The theory's Algorithm 3 is another method (errata 2): it averages gradients, not models, and steps along m itself.

    y  <- y - eta_l [ beta g_i(y) + (1 - beta) m ]                 J times;  here beta weighs the fresh gradient
    m  <- (1 - beta) m + beta (1/tau) sum of the last tau rounds' mean gradients;    x <- x - eta m,  eta = eta_l J
"""

from dataclasses import replace
from typing import Any

from undrift.algorithms import fedavg
from undrift.algorithms.fedavg import Down, Up, local_sgd, send_model, stateless
from undrift.core import Cohort, Col, Vec, Work, algorithm, hyper, record

ZACCONE = "Zaccone et al. 2025"


@record
class Server:
    x: Vec
    past: tuple[Vec, ...]  # the models of the last tau rounds, oldest first


@record
class MomentumDown:
    x: Vec
    m: Vec


def start(self: object, x: Vec) -> Server:
    return Server(x, past=())


def window(server: Server, tau: int, warmup: str) -> Vec:
    """x - x_tau, with what is known so far."""
    full = len(server.past) == tau
    known = full or (warmup == "telescope" and server.past)
    return server.x - server.past[0] if known else 0 * server.x


def tau_for_run(self: Any, N: int, S: int, rounds: int) -> Any:
    """tau = "1/C" is the number of rounds in which all clients could come once, C = S/N of them a round (section 3.3)."""
    return replace(self, tau=-(-N // S)) if self.tau == "1/C" else self


@property
def averaged_rounds(self: Any) -> int:
    return int(self.tau)


@algorithm("ghbm", ZACCONE)
class GHBM:
    """Clients feel the server's movement over the last tau rounds; they keep nothing."""

    tau: int | str = hyper(default=10, within="[1, inf)", among=("1/C",))
    beta: float = hyper(default=0.9, within="[0, 1]")
    eta: float = hyper(default=1.0, within="[0, inf)")
    warmup: str = hyper(default="zero", among=("zero", "telescope"))

    server, client, for_run, averaged_rounds = start, stateless, tau_for_run, averaged_rounds

    def send(self, server: Server) -> MomentumDown:
        return MomentumDown(server.x, m=window(server, int(self.tau), self.warmup))

    def local(self, down: MomentumDown, client: None, work: Work) -> tuple[Up, None]:
        shift = self.beta / (int(self.tau) * work.K) * down.m
        y = work.loop(lambda y: y - work.lr * work.grad(y) + shift, down.x)
        return Up(down.x - y), None

    def update(self, server: Server, mean: Up, cohort: Cohort) -> Server:
        past = (*server.past, server.x)[-int(self.tau) :]
        return Server(server.x - self.eta * mean.delta, past)


@algorithm("ghbm-server", ZACCONE, local_momentum=True)
class GHBMServer:
    """The momentum of GHBM applied by the server alone (appendix C.8)."""

    tau: int | str = hyper(default=10, within="[1, inf)", among=("1/C",))
    beta: float = hyper(default=0.9, within="[0, 1]")
    eta: float = hyper(default=1.0, within="[0, inf)")
    warmup: str = hyper(default="zero", among=("zero", "telescope"))

    server, client, send, local = start, stateless, send_model, local_sgd
    for_run, averaged_rounds = tau_for_run, averaged_rounds

    def update(self, server: Server, mean: Up, cohort: Cohort) -> Server:
        past = (*server.past, server.x)[-int(self.tau) :]
        shift = self.beta / int(self.tau) * window(server, int(self.tau), self.warmup)
        return Server(server.x - self.eta * mean.delta + shift, past)


@record
class TheoryServer:
    x: Vec
    m: Vec
    past: tuple[Vec, ...]  # the mean gradients of the last tau rounds


@record
class Gradient:
    g: Vec


@algorithm("ghbm-theory", ZACCONE, normalises=True)
class GHBMTheory:
    """Algorithm 3, the one analysed: under cyclic participation as good as momentum with everyone."""

    tau: int | str = hyper(default=10, within="[1, inf)", among=("1/C",))
    beta: float = hyper(default=0.1, within="(0, 1]")
    eta: float | None = hyper(default=None, within="[0, inf)")

    client, for_run, averaged_rounds = stateless, tau_for_run, averaged_rounds

    def server(self, x: Vec) -> TheoryServer:
        return TheoryServer(x, m=0 * x, past=())

    def direction(self, server: TheoryServer) -> Vec:
        return server.m

    def send(self, server: TheoryServer) -> MomentumDown:
        return MomentumDown(server.x, server.m)

    def local(self, down: MomentumDown, client: None, work: Work) -> tuple[Gradient, None]:
        m = (1 - self.beta) * down.m
        _, d = work.descend(lambda y: self.beta * work.grad(y) + m, down.x)
        return Gradient((d - m) / self.beta), None

    def update(self, server: TheoryServer, mean: Gradient, cohort: Cohort) -> TheoryServer:
        past = (*server.past, mean.g)[-int(self.tau) :]
        m = (1 - self.beta) * server.m + self.beta * sum(past) / int(self.tau)
        eta = cohort.lr * cohort.K if self.eta is None else self.eta
        return TheoryServer(server.x - eta * m, m, past)


@record
class Client:
    anchor: Vec
    last: Col  # the round of the last visit, 0 = never


def unseen(self: object, x: Vec) -> Client:
    return Client(anchor=0 * x, last=0 * x[:1])


def step_of_server(self: Any, server: fedavg.Server, mean: Up, cohort: Cohort) -> fedavg.Server:
    return fedavg.Server(server.x - self.eta * mean.delta)


def share_of_last(client: Client, work: Work, C: float | None) -> Col:
    """1/tau_i, or C; 0 on the first visit."""
    share = 1 / (work.t - client.last) if C is None else C + 0 * client.last
    return (client.last > 0) * share


@algorithm("local-ghbm", ZACCONE)
class LocalGHBM:
    """GHBM at FedAvg's traffic: a client keeps the model it received at its last visit."""

    beta: float = hyper(default=0.9, within="[0, 1]")
    eta: float = hyper(default=1.0, within="[0, inf)")
    C: float | None = hyper(default=None, within="(0, 1]")

    server, client, send, update = fedavg.start, unseen, send_model, step_of_server

    def local(self, down: Down, client: Client, work: Work) -> tuple[Up, Client]:
        shift = self.beta * share_of_last(client, work, self.C) / work.K * (down.x - client.anchor)
        y = work.loop(lambda y: y - work.lr * work.grad(y) + shift, down.x)
        return Up(down.x - y), Client(down.x, 0 * client.last + work.t)


@algorithm("fedhbm", ZACCONE)
class FedHBM:
    """Repels a client from its own last local model, again at every step; FedAvg's traffic."""

    beta: float = hyper(default=1.0, within="[0, 1]")
    eta: float = hyper(default=1.0, within="[0, inf)")
    C: float | None = hyper(default=None, within="(0, 1]")

    server, client, send, update = fedavg.start, unseen, send_model, step_of_server

    def local(self, down: Down, client: Client, work: Work) -> tuple[Up, Client]:
        b = self.beta * share_of_last(client, work, self.C) / work.K

        def step(y: Vec) -> Vec:
            return y - work.lr * work.grad(y) + b * (y - client.anchor)

        y = work.loop(step, down.x)
        return Up(down.x - y), Client(y, 0 * client.last + work.t)
