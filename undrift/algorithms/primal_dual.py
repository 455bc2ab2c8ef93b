"""VRL-SGD, LED, Scaffnew: each client learns what its drift was when it next sees the mean.

VRL-SGD: Liang, Shen, Liu, Pan, Chen, Cheng, 2019 (with the authors' code).  LED: Alghunaim, 2023, the centralised form.
Scaffnew (ProxSkip): Mishchenko, Malinovsky, Stich, Richtarik, ICML 2022.  (Our reading of LED and Scaffnew.)

    y   <- y - eta [ g_i(y) - c_i ]                         K times from y = x
    x   <- mean_i y_i
    c_i <- c_i + r (x - y_i)                                VRL-SGD (its Delta_i): r = 1/(K eta)
                                                            Scaffnew (h_i):        r = p / eta
                                                            LED (its y_i = -c_i):  r = beta
    sum_i c_i = 0 at all times, r being the same for all clients

The new mean reaches a client with its next visit, which is when c_i is updated: FedAvg's traffic, full participation
only.  Scaffnew communicates after a random number of steps, the same for all: ud.Local(steps=ud.Geometric(p)); with a
fixed number K = 1/p it is VRL-SGD.  LED's beta and Scaffnew's p default to the values that make all three one method.
"""

from undrift.algorithms.fedavg import Down, Server, Up, send_model, start
from undrift.core import Cohort, Col, Vec, Work, algorithm, hyper, record


@record
class Client:
    z: Vec  # c - r y of the last visit, waiting for x
    r: Col  # 0 before the first visit


def untouched(self: object, x: Vec) -> Client:
    return Client(z=0 * x, r=0 * x[:1])


def corrected_sgd(down: Down, client: Client, work: Work, r: Col) -> tuple[Up, Client]:
    c = client.z + client.r * down.x
    y = work.loop(lambda y: y - work.lr * (work.grad(y) - c), down.x)
    return Up(down.x - y), Client(c - r * y, r)


def settle(self: object, client: Client, missed: Up) -> Client:
    return Client(client.z + client.r * missed.delta, client.r)


def average(self: object, server: Server, mean: Up, cohort: Cohort) -> Server:
    return Server(server.x - mean.delta)


@algorithm("vrl-sgd", "Liang et al. 2019", everyone=True, equal_steps=True, divides_by_lr=True)
class VRLSGD:
    """SCAFFOLD with everyone, at FedAvg's traffic."""

    server, client, send, update, settle = start, untouched, send_model, average, settle

    def local(self, down: Down, client: Client, work: Work) -> tuple[Up, Client]:
        return corrected_sgd(down, client, work, 1 / (work.lr * work.K))


@algorithm("led", "Alghunaim 2023", everyone=True, divides_by_lr=True, reading=True)
class LED:
    """Exact diffusion with local steps, centralised."""

    beta: float | None = hyper(default=None, within="(0, inf)")

    server, client, send, update, settle = start, untouched, send_model, average, settle

    @property
    def equal_steps(self) -> bool:
        return self.beta is None  # with one beta for all, corrections sum to zero whatever the steps

    def local(self, down: Down, client: Client, work: Work) -> tuple[Up, Client]:
        beta = 1 / (work.lr * work.K) if self.beta is None else 0 * work.K + self.beta
        return corrected_sgd(down, client, work, beta)


@algorithm("scaffnew", "Mishchenko et al. 2022", everyone=True, divides_by_lr=True, reading=True)
class Scaffnew:
    """Skips communication at random, provably for free."""

    p: float | None = hyper(default=None, within="(0, 1]")

    server, client, send, update, settle = start, untouched, send_model, average, settle

    @property
    def equal_steps(self) -> bool:
        return self.p is None

    def local(self, down: Down, client: Client, work: Work) -> tuple[Up, Client]:
        p = 1 / work.K if self.p is None else 0 * work.K + self.p
        return corrected_sgd(down, client, work, p / work.lr)
