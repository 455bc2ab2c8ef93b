"""AdaBest: a drift correction that fades with a client's absence.

Varno, Saghayi, Rafiee Sevyeri, Gupta, Matwin, Havaei, ECCV 2022.  (Our reading, confirmed with the first author's code.)

    y     <- y - eta [ g_i(y) - h_i ]                       K times from y = x
    h_i   <- h_i / (t - t_i) + mu (x - y)                   t_i: the round of its last visit
    xbar+  = mean_i y_i,    x <- xbar+ - beta (xbar - xbar+)

With mu = 0 it is FedNAG (FedGM with eta = 1/(1 - beta), nu = beta).
"""

from undrift.algorithms.fedavg import Down, Up, send_model
from undrift.core import Cohort, Col, Vec, Work, algorithm, hyper, record


@record
class Server:
    x: Vec
    mean: Vec


@record
class Client:
    h: Vec
    last: Col


@algorithm("adabest", "Varno et al. 2022", reading=True)
class AdaBest:
    """Keeps an estimate of each client's drift and discounts it by its age."""

    mu: float = hyper(default=0.02, within="[0, inf)")
    beta: float = hyper(default=0.9, within="[0, 1)")

    send = send_model

    def server(self, x: Vec) -> Server:
        return Server(x, mean=x)

    def client(self, x: Vec) -> Client:
        return Client(h=0 * x, last=0 * x[:1])

    def local(self, down: Down, client: Client, work: Work) -> tuple[Up, Client]:
        y = work.loop(lambda y: y - work.lr * (work.grad(y) - client.h), down.x)
        delta = down.x - y
        h = client.h / (work.t - client.last) + self.mu * delta
        return Up(delta), Client(h, 0 * client.last + work.t)

    def update(self, server: Server, mean: Up, cohort: Cohort) -> Server:
        average = server.x - mean.delta
        return Server(average - self.beta * (server.mean - average), average)
