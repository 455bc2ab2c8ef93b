"""FedDyn: dynamic regularisation.

Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama, ICLR 2021.  (Our reading, confirmed with the authors' code.)

    y    <- y - eta [ g_i(y) - ghat_i + alpha (y - x) ]         K times from y = x
    ghat_i <- ghat_i - alpha (y - x)
    h    <- h - (alpha / N) sum_{i in cohort} (y_i - x)         the sum, over N: the paper's parenthesis is misplaced (errata 18)
    x    <- mean_i y_i - h / alpha

At all times h = (1/N) sum_i ghat_i.
"""

from undrift.algorithms.fedavg import Down, Up, send_model
from undrift.core import Cohort, Vec, Work, algorithm, hyper, record


@record
class Server:
    x: Vec
    h: Vec


@record
class Client:
    g: Vec


@algorithm("feddyn", "Acar et al. 2021", local_momentum=True, adds_states=True, reading=True)
class FedDyn:
    """Each client's objective is bent until its optimum is the common one."""

    alpha: float = hyper(default=0.1, within="(0, inf)")

    send = send_model

    def server(self, x: Vec) -> Server:
        return Server(x, h=0 * x)

    def client(self, x: Vec) -> Client:
        return Client(g=0 * x)

    def local(self, down: Down, client: Client, work: Work) -> tuple[Up, Client]:
        def step(y: Vec) -> Vec:
            return work.step(y, work.grad(y) - client.g + self.alpha * (y - down.x))

        delta = down.x - work.loop(step, down.x)
        return Up(delta), Client(client.g + self.alpha * delta)

    def update(self, server: Server, mean: Up, cohort: Cohort) -> Server:
        h = server.h + self.alpha * cohort.share * mean.delta
        return Server(server.x - mean.delta - h / self.alpha, h)

    def settle(self, client: Client, missed: Up) -> Client:
        return Client(client.g + self.alpha * missed.delta)

    def recount(self, server: Server, mean: Client, cohort: Cohort) -> Server:
        return Server(server.x, h=cohort.share * mean.g)
