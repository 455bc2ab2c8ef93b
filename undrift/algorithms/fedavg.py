"""FedAvg with one- or two-sided step sizes, and FedProx.

FedAvg: McMahan, Moore, Ramage, Hampson, Aguera y Arcas, AISTATS 2017.  Two-sided step sizes: Sun, Wu, Huang, Zhang,
AAAI 2024 (there "FedSGD", not McMahan's).  FedProx: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, MLSys 2020, as in
Wang, Liu, Liang, Joshi, Poor, NeurIPS 2020, eqs. (15)-(21).

    y  <- y - eta_l [ grad F_i(y; xi) + mu (y - x) ]        K times from y = x        (FedAvg: mu = 0)
    x  <- x - server_lr * mean_i (x - y_i)

mu is the whole factor of (y - x), i.e. the penalty is mu/2 ||y - x||^2 (some codes use half of it).
"""

from undrift.core import Cohort, Vec, Work, algorithm, hyper, record


@record
class Server:
    x: Vec


@record
class Down:
    x: Vec


@record
class Up:
    delta: Vec


# The server's first state, and what FedAvg's clients do, for every method that changes only one of them.


def start(self: object, x: Vec) -> Server:
    return Server(x)


def stateless(self: object, x: Vec) -> None:
    return None


def send_model(self: object, server: Server) -> Down:
    return Down(server.x)


def local_sgd(self: object, down: Down, client: None, work: Work) -> tuple[Up, None]:
    y = work.loop(lambda y: work.step(y, work.grad(y)), down.x)
    return Up(down.x - y), None


@algorithm("fedavg", "McMahan et al. 2017", local_momentum=True)
class FedAvg:
    """Averages local models; drifts to a wrong point when clients differ and make several steps."""

    server_lr: float = hyper(default=1.0, within="[0, inf)")

    server, client, send, local = start, stateless, send_model, local_sgd

    def update(self, server: Server, mean: Up, cohort: Cohort) -> Server:
        return Server(server.x - self.server_lr * mean.delta)


@algorithm("fedprox", "Li et al. 2020", local_momentum=True)
class FedProx:
    """FedAvg that keeps local models near the server's: moves the wrong point, does not remove it."""

    mu: float = hyper(default=0.01, within="[0, inf)")
    server_lr: float = hyper(default=1.0, within="[0, inf)")

    server, client, send, update = start, stateless, send_model, FedAvg.update

    def solve(self, work: Work, x: Vec) -> Vec:
        return work.loop(lambda y: work.step(y, work.grad(y) + self.mu * (y - x)), x)

    def local(self, down: Down, client: None, work: Work) -> tuple[Up, None]:
        return Up(down.x - self.solve(work, down.x)), None
