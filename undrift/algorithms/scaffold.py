"""SCAFFOLD: control variates that take the drift out of local steps.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, ICML 2020 (arXiv:1910.06378), Algorithm 1.

    y    <- y - eta_l [ g_i(y) - c_i + c ]                  K times from y = x
    c_i+  = g_i(x), a fresh minibatch at x                  option I
            mean_k g_i(y_k) = c_i - c + (x - y)/(K eta_l)   option II
    x    <- x - eta_g mean_i (x - y_i)
    c    <- c + (S/N) mean_i (c_i+ - c_i)

Option II is printed with the signs of c_i and c exchanged (errata 1); the mean of the raw gradients, printed beside
it, is what is meant and what we keep, also with eta_l = 0 or local momentum, where the way from x to y does not tell it.
B > 0 starts c_i from B minibatches at x0, for all clients, in an initialisation round; otherwise c_i = 0.
"""

from typing import Any

from undrift.algorithms import fedavg
from undrift.algorithms.initialisation import Gradient, mean_gradient, with_initialisation
from undrift.core import Cohort, Vec, Work, algorithm, hyper, record


@record
class Server:
    x: Vec
    c: Vec


@record
class Client:
    c: Vec


@record
class Down:
    x: Vec
    c: Vec


@record
class Up:
    delta: Vec
    dc: Vec


def correct(self: Any, client: Client, missed: Any) -> Client:
    """c = mean_i c_i is kept if a client adds to c_i what the server adds to c."""
    return Client(client.c + missed.dc)


def keep_first_gradient(self: Any, down: fedavg.Down, client: Client, work: Work) -> tuple[Gradient, Client]:
    c = mean_gradient(down.x, self.B, work)
    return Gradient(c), Client(c)


@algorithm("scaffold", "Karimireddy et al. 2020", local_momentum=True, control_variates=True, adds_states=True)
class Scaffold:
    """Reaches the optimum whatever the heterogeneity (noise leaves a small bias), also with few clients a round."""

    eta_g: float = hyper(default=1.0, within="[0, inf)")
    option: int = hyper(default=2, among=(1, 2))
    B: int = hyper(default=0, within="[0, inf)")

    exchanges, initialise, settle = with_initialisation, keep_first_gradient, correct

    def server(self, x: Vec) -> Server:
        return Server(x, c=0 * x)

    def client(self, x: Vec) -> Client:
        return Client(c=0 * x)

    def begin(self, server: Server, mean: Gradient, cohort: Cohort) -> Server:
        return Server(server.x, c=mean.g)

    def send(self, server: Server) -> Down:
        return Down(server.x, server.c)

    def local(self, down: Down, client: Client, work: Work) -> tuple[Up, Client]:
        delta, d = work.descend(lambda y: work.grad(y) - client.c + down.c, down.x)
        dc = d - down.c if self.option == 2 else mean_gradient(down.x, 1, work) - client.c
        return Up(delta, dc), Client(client.c + dc)

    def update(self, server: Server, mean: Up, cohort: Cohort) -> Server:
        x = server.x - self.eta_g * mean.delta
        return Server(x, server.c + cohort.share * mean.dc)

    def control(self, client: Client) -> Vec:
        return client.c

    def recount(self, server: Server, mean: Client, cohort: Cohort) -> Server:
        return Server(server.x, c=cohort.share * mean.c)
