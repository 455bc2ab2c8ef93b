"""FedAdam, FedYogi, FedAdagrad: adaptive servers.

Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan, "Adaptive Federated Optimization", ICLR 2021, Alg. 2.

    D  = mean_i (y_i - x)                               clients run FedAvg's local steps
    m <- beta1 m + (1 - beta1) D
    v <- v + D^2                                        Adagrad
         v - (1 - beta2) D^2 sign(v - D^2)              Yogi
         beta2 v + (1 - beta2) D^2                      Adam
    x <- x + eta m / (sqrt(v) + tau)

As in the paper there is no bias correction and v starts at tau^2; `bias_correction` and `v0` give the conventions of
other codes.  (Our reading: the paper is not among our sources.)
"""

from typing import Any

from undrift.algorithms.fedavg import Up, local_sgd, send_model, stateless
from undrift.core import Cohort, Vec, algorithm, hyper, record

REDDI = "Reddi et al. 2021"


@record
class Server:
    x: Vec
    m: Vec
    v: Vec


def start(self: Any, x: Vec) -> Server:
    return Server(x, m=0 * x, v=0 * x + (self.tau**2 if self.v0 is None else self.v0))


@algorithm("fedadam", REDDI, local_momentum=True, reading=True)
class FedAdam:
    """Adam on the server."""

    eta: float = hyper(default=0.1, within="[0, inf)")
    beta1: float = hyper(default=0.9, within="[0, 1)")
    beta2: float = hyper(default=0.99, within="[0, 1]")
    tau: float = hyper(default=1e-3, within="(0, inf)")
    v0: float | None = hyper(default=None, within="[0, inf)")
    bias_correction: bool = hyper(default=False, among=(False, True))

    server, client, send, local = start, stateless, send_model, local_sgd

    def update(self, server: Server, mean: Up, cohort: Cohort) -> Server:
        D, t = -mean.delta, cohort.round
        m = self.beta1 * server.m + (1 - self.beta1) * D
        v = self.beta2 * server.v + (1 - self.beta2) * D**2
        mh, vh = m, v
        if self.bias_correction:
            mh, vh = m / (1 - self.beta1**t), v / (1 - self.beta2**t)
        return Server(server.x + self.eta * mh / (vh**0.5 + self.tau), m, v)


@algorithm("fedyogi", REDDI, local_momentum=True, reading=True)
class FedYogi:
    """Yogi on the server: v moves by at most (1 - beta2) D^2 a round."""

    eta: float = hyper(default=0.1, within="[0, inf)")
    beta1: float = hyper(default=0.9, within="[0, 1)")
    beta2: float = hyper(default=0.99, within="[0, 1]")
    tau: float = hyper(default=1e-3, within="(0, inf)")
    v0: float | None = hyper(default=None, within="[0, inf)")

    server, client, send, local = start, stateless, send_model, local_sgd

    def update(self, server: Server, mean: Up, cohort: Cohort) -> Server:
        D = -mean.delta
        m = self.beta1 * server.m + (1 - self.beta1) * D
        v = server.v - (1 - self.beta2) * D**2 * (server.v - D**2).sign()
        return Server(server.x + self.eta * m / (v**0.5 + self.tau), m, v)


@algorithm("fedadagrad", REDDI, local_momentum=True, reading=True)
class FedAdagrad:
    """Adagrad on the server."""

    eta: float = hyper(default=0.1, within="[0, inf)")
    beta1: float = hyper(default=0.0, within="[0, 1)")
    tau: float = hyper(default=1e-3, within="(0, inf)")
    v0: float | None = hyper(default=None, within="[0, inf)")

    server, client, send, local = start, stateless, send_model, local_sgd

    def update(self, server: Server, mean: Up, cohort: Cohort) -> Server:
        D = -mean.delta
        m = self.beta1 * server.m + (1 - self.beta1) * D
        v = server.v + D**2
        return Server(server.x + self.eta * m / (v**0.5 + self.tau), m, v)
