"""SCALLION and SCAFCOM: SCAFFOLD with one vector up, made for codecs (`codec=` of the run).

Huang, Li, Li, "Stochastic Controlled Averaging for Federated Learning with Communication Compression", ICLR 2024
(arXiv:2308.08165), Algorithms 1 and 2.  (Our reading.)

    y    <- y - eta_l [ g_i(y) - c_i + c ]                      K times from y = x
    delta_i = C_i( alpha [ (x - y)/(eta_l K) - c ] )            SCALLION: alpha times the mean gradient less c_i
    v_i  <- (1 - beta) v_i + beta [ (x - y)/(eta_l K) + c_i - c ]
    delta_i = C_i( v_i - c_i )                                  SCAFCOM: local momentum, for biased C_i
    c_i  <- c_i + delta_i
    x    <- x - gamma mean_i (delta_i + c)                      gamma = eta_g eta_l K, K the mean if it differs
    c    <- c + (S/N) mean_i delta_i

C_i is the run's codec: SCALLION is for unbiased ones (random-k, stochastic quantisation), SCAFCOM also for biased ones
(top-k).  Neither needs error feedback, for c_i is what has arrived.  Without a codec and with equal K, SCALLION with
alpha = 1 is SCAFFOLD, and so is SCAFCOM with beta = 1.
"""

from undrift.algorithms.scaffold import Client, Down, Scaffold, Server, correct
from undrift.core import Cohort, Vec, Work, algorithm, hyper, record

HUANG = "Huang et al. 2024"


@record
class Up:
    dc: Vec


@record
class MomentumClient:
    c: Vec
    v: Vec


def controlled(down: Down, c_i: Vec, work: Work) -> Vec:
    """(x - y)/(eta_l K): the mean of g_i - c_i + c over the local steps."""
    _, d = work.descend(lambda y: work.grad(y) - c_i + down.c, down.x)
    return d


def update(self: "Scallion | Scafcom", server: Server, mean: Up, cohort: Cohort) -> Server:
    x = server.x - self.eta_g * cohort.lr * cohort.K * (mean.dc + server.c)
    return Server(x, server.c + cohort.share * mean.dc)


@algorithm("scallion", HUANG, adds_states=True, reading=True)
class Scallion:
    """SCAFFOLD with half of its uplink, and compressed without bias."""

    eta_g: float = hyper(default=1.0, within="[0, inf)")
    alpha: float = hyper(default=1.0, within="(0, 1]")

    server, client, send, update, settle = Scaffold.server, Scaffold.client, Scaffold.send, update, correct
    recount, control = Scaffold.recount, Scaffold.control

    def local(self, down: Down, client: Client, work: Work) -> tuple[Up, Client]:
        dc = self.alpha * (controlled(down, client.c, work) - down.c)
        return Up(dc), Client(client.c + dc)


@algorithm("scafcom", HUANG, adds_states=True, reading=True)
class Scafcom:
    """SCALLION with local momentum, which keeps what biased codecs leave out from piling up."""

    eta_g: float = hyper(default=1.0, within="[0, inf)")
    beta: float = hyper(default=0.2, within="(0, 1]")

    server, send, update = Scaffold.server, Scaffold.send, update
    recount, control = Scaffold.recount, Scaffold.control

    def client(self, x: Vec) -> MomentumClient:
        return MomentumClient(c=0 * x, v=0 * x)

    def local(self, down: Down, client: MomentumClient, work: Work) -> tuple[Up, MomentumClient]:
        g = controlled(down, client.c, work) + client.c - down.c
        v = (1 - self.beta) * client.v + self.beta * g
        return Up(v - client.c), MomentumClient(v, v)

    def settle(self, client: MomentumClient, missed: Up) -> MomentumClient:
        return MomentumClient(client.c + missed.dc, client.v)
