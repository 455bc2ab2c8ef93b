"""FedBuff and FedAsync: asynchronous averaging with updates that count less the staler they are.

FedBuff: Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba, AISTATS 2022, Algorithm 1.  FedAsync: Xie, Koyejo, Gupta,
"Asynchronous Federated Optimization", OPT 2020, Algorithm 1.

    FedBuff     Delta_i = x_s - y_i                                  from the model x_s of tau_i server updates ago
                x  <- x - eta_g (1/m) sum_i s(tau_i) Delta_i         when m of them are in the buffer
    FedAsync    y_i minimises f_i(y) + rho/2 ||y - x_s||^2           by local steps from x_s
                x  <- (1 - alpha s(tau)) x + alpha s(tau) y_i        at once, i.e. with ud.Buffer(1)

    s(tau)      "polynomial" (1 + tau)^-a   "hinge" 1 up to b, then 1 / (1 + a (tau - b))   "constant" 1

A method says by `discount(staleness)` what its updates are multiplied with as they come in; engines without virtual time
have none that are stale, and s(0) = 1.  With a larger buffer FedAsync mixes in the mean of the models, each by its own s.
"""

from undrift.algorithms.fedavg import Down, Server, Up, local_sgd, send_model, start, stateless
from undrift.core import Cohort, Vec, Work, algorithm, hyper, record

STALENESS = ("polynomial", "hinge", "constant")


def s(kind: str, tau: Vec, a: float, b: float) -> Vec:
    if kind == "polynomial":
        return (1 + tau) ** -a
    if kind == "hinge":
        return 1 / (1 + a * (tau - b).clamp(min=0))
    return tau**0


@algorithm("fedbuff", "Nguyen et al. 2022", local_momentum=True, reading=True)
class FedBuff:
    """FedAvg on whatever has arrived; stale updates count less, so the server's step is shorter the staler they are."""

    eta_g: float = hyper(default=1.0, within="[0, inf)")
    staleness: str = hyper(default="polynomial", among=STALENESS)
    a: float = hyper(default=0.5, within="[0, inf)")
    b: float = hyper(default=4.0, within="[0, inf)")

    server, client, send, local = start, stateless, send_model, local_sgd

    def discount(self, staleness: Vec) -> Vec:
        return s(self.staleness, staleness, self.a, self.b)

    def update(self, server: Server, mean: Up, cohort: Cohort) -> Server:
        return Server(server.x - self.eta_g * mean.delta)


@record
class Model:
    y: Vec


@algorithm("fedasync", "Xie et al. 2020", local_momentum=True, reading=True)
class FedAsync:
    """Mixes each client's model into the server's as it arrives, less of it the staler it is."""

    alpha: float = hyper(default=0.6, within="[0, 1]")
    rho: float = hyper(default=0.005, within="[0, inf)")
    staleness: str = hyper(default="polynomial", among=STALENESS)
    a: float = hyper(default=0.5, within="[0, inf)")
    b: float = hyper(default=4.0, within="[0, inf)")

    server, client, send, discount = start, stateless, send_model, FedBuff.discount

    def solve(self, work: Work, x: Vec) -> Vec:
        return work.loop(lambda y: work.step(y, work.grad(y) + self.rho * (y - x)), x)

    def local(self, down: Down, client: None, work: Work) -> tuple[Model, None]:
        return Model(self.solve(work, down.x)), None

    def update(self, server: Server, mean: Model, cohort: Cohort) -> Server:
        mixed = self.alpha * float(cohort.weights @ self.discount(cohort.staleness))
        return Server((1 - mixed) * server.x + self.alpha * mean.y)
