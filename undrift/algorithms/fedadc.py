"""FedADC: the server's momentum spread over the local steps.

Ozfatura, Ozfatura, Gunduz, ISIT 2021.  (Our reading: neither text nor code is among our sources.)

    y  <- y - eta (g_i(y) + mbar),     mbar = beta_l m / K          K times from y = x
          y' = y - eta mbar,  y <- y' - eta g_i(y')                 nesterov
    m  <- mean_i (x - y_i) / eta + (beta_g - beta_l) m
    x  <- x - alpha eta m

With beta_l = beta_g = b it is GHBM(tau = 1, beta = b / alpha, eta = alpha).
"""

from undrift.algorithms.fedavg import stateless
from undrift.core import Cohort, Vec, Work, algorithm, hyper, record


@record
class Server:
    x: Vec
    m: Vec


@record
class Down:
    x: Vec
    m: Vec


@record
class Up:
    d: Vec  # (x - y) / eta, summed from its steps


@algorithm("fedadc", "Ozfatura et al. 2021", reading=True)
class FedADC:
    """Heavy ball (or Nesterov) momentum embedded in the local steps."""

    beta_l: float = hyper(default=0.9, within="[0, 1)")
    beta_g: float = hyper(default=0.9, within="[0, 1)")
    alpha: float = hyper(default=1.0, within="(0, inf)")
    nesterov: bool = hyper(default=False, among=(False, True))

    client = stateless

    def server(self, x: Vec) -> Server:
        return Server(x, m=0 * x)

    def send(self, server: Server) -> Down:
        return Down(server.x, server.m)

    def local(self, down: Down, client: None, work: Work) -> tuple[Up, None]:
        m = self.beta_l / work.K * down.m

        def direction(y: Vec) -> Vec:
            return work.grad(y - work.lr * m if self.nesterov else y) + m

        _, d = work.descend(direction, down.x)
        return Up(work.K * d), None

    def update(self, server: Server, mean: Up, cohort: Cohort) -> Server:
        m = mean.d + (self.beta_g - self.beta_l) * server.m
        return Server(server.x - self.alpha * cohort.lr * m, m)
