"""FedAvg-M (= FedCM), SCAFFOLD-M and their variance-reduced forms.

Cheng, Huang, Wu, Yuan, "Momentum Benefits Non-IID Federated Learning Simply and Provably", ICLR 2024
(arXiv:2306.16504), Algorithms 1-4.  FedCM: Xu, Wang, Wang, Yao, 2021.

    g_k   = beta grad F_i(y; xi) + (1 - beta) g                                            FedAvg-M
            beta (grad F_i(y; xi) - c_i + c) + (1 - beta) g                                SCAFFOLD-M
            grad F_i(y; xi) + (1 - beta)(g - grad F_i(x-; xi))                             FedAvg-M-VR
            grad F_i(y; xi) - beta (c_i - c) + (1 - beta)(g - grad F_i(x-; xi))            SCAFFOLD-M-VR
    y    <- y - eta g_k                                     K times from y = x;  x- is the server's model a round ago
    c_i+  = mean_k grad F_i(y_k; xi_k),      c <- c + (S/N) mean_i (c_i+ - c_i)
    g    <- mean_i mean_k g_k,               x <- x - gamma g

beta weighs the *fresh* gradient (beta = 1: FedAvg, SCAFFOLD), as FedCM's alpha does and unlike GHBM's beta.  The server's
step is gamma, absolute as in the paper, or server_lr in units of eta K (1: plain averaging), which follows a decay of eta
(the step of FedCM in GHBM's Table 7).  The paper writes the new g as (x - y)/(eta K); it is the mean of the directions, which
is defined for eta = 0 and unequal K as well.  `reparametrised` is the paper's other form, with eta^ = beta eta and
g^ = g / beta: no beta before the fresh gradient.  B minibatches at x0 fill g or c_i in an initialisation round with all clients
(the VR forms need it; their theorems and SCAFFOLD-M's assume it).

SCAFFOLD-M sends h = beta c + (1 - beta) g in place of two vectors, and up only c_i+ - c_i, from which the server has
g+ = h + beta mean_i (c_i+ - c_i): the same iterates for 3 vectors a visit in place of the paper's 5.
"""

from typing import Any

from undrift.algorithms.fedavg import stateless
from undrift.algorithms.initialisation import Gradient, first_gradient, with_initialisation
from undrift.algorithms.scaffold import Client, Scaffold, correct, keep_first_gradient
from undrift.core import Cohort, InvalidInput, Vec, Work, algorithm, check_value, hyper, record, special_case

CHENG = "Cheng et al. 2024"


def direction(self: Any, server: Any) -> Vec:
    return server.g


def reparametrised_direction(self: Any, server: Any) -> Vec:
    return self.beta * server.g if self.reparametrised else server.g


def gamma_of(self: Any, cohort: Cohort) -> float:
    """The server's step: gamma, or server_lr eta K with this round's eta."""
    return self.server_lr * (cohort.lr * cohort.K) if self.gamma is None else self.gamma


def one_server_step(self: Any) -> None:
    if self.gamma is not None and self.server_lr != 1:
        raise InvalidInput(
            f"{self.spec.name}: gamma={self.gamma} is the server's whole step, server_lr={self.server_lr} one in units of "
            "lr K: give one of them"
        )


@record
class FedAvgMServer:
    x: Vec
    g: Vec


@record
class FedAvgMDown:
    x: Vec
    g: Vec


@record
class Direction:
    g: Vec


@algorithm("fedavg-m", CHENG, normalises=True)
class FedAvg_M:
    """FedAvg whose local steps follow the last round's mean direction: less drift at the same speed."""

    beta: float = hyper(default=0.1, within="(0, 1]")
    gamma: float | None = hyper(default=None, within="[0, inf)")
    reparametrised: bool = hyper(default=False, among=(False, True))
    server_lr: float = hyper(default=1.0, within="[0, inf)")

    __post_init__ = one_server_step
    client, direction = stateless, reparametrised_direction

    def server(self, x: Vec) -> FedAvgMServer:
        return FedAvgMServer(x, g=0 * x)

    def send(self, server: FedAvgMServer) -> FedAvgMDown:
        return FedAvgMDown(server.x, server.g)

    def local(self, down: FedAvgMDown, client: None, work: Work) -> tuple[Direction, None]:
        fresh = 1 if self.reparametrised else self.beta
        _, g = work.descend(lambda y: fresh * work.grad(y) + (1 - self.beta) * down.g, down.x)
        return Direction(g), None

    def update(self, server: FedAvgMServer, mean: Direction, cohort: Cohort) -> FedAvgMServer:
        return FedAvgMServer(server.x - gamma_of(self, cohort) * mean.g, mean.g)


@record
class ScaffoldMServer:
    x: Vec
    g: Vec
    c: Vec


@record
class ScaffoldMDown:
    x: Vec
    h: Vec


@record
class Correction:
    dc: Vec


@algorithm("scaffold-m", CHENG, adds_states=True, normalises=True)
class ScaffoldM:
    """SCAFFOLD with momentum: exact under any heterogeneity, faster with few clients a round."""

    beta: float = hyper(default=0.1, within="(0, 1]")
    gamma: float | None = hyper(default=None, within="[0, inf)")
    B: int = hyper(default=0, within="[0, inf)")
    reparametrised: bool = hyper(default=False, among=(False, True))
    server_lr: float = hyper(default=1.0, within="[0, inf)")

    __post_init__ = one_server_step

    @property
    def fresh(self) -> float:
        return 1.0 if self.reparametrised else self.beta

    def server(self, x: Vec) -> ScaffoldMServer:
        return ScaffoldMServer(x, g=0 * x, c=0 * x)

    client, exchanges, initialise, settle = Scaffold.client, with_initialisation, keep_first_gradient, correct
    direction, control = reparametrised_direction, Scaffold.control

    def begin(self, server: ScaffoldMServer, mean: Gradient, cohort: Cohort) -> ScaffoldMServer:
        return ScaffoldMServer(server.x, server.g, c=mean.g)

    def send(self, server: ScaffoldMServer) -> ScaffoldMDown:
        return ScaffoldMDown(server.x, h=self.fresh * server.c + (1 - self.beta) * server.g)

    def local(self, down: ScaffoldMDown, client: Client, work: Work) -> tuple[Correction, Client]:
        _, g = work.descend(lambda y: self.fresh * (work.grad(y) - client.c) + down.h, down.x)
        dc = (g - down.h) / self.fresh
        return Correction(dc), Client(client.c + dc)

    def update(self, server: ScaffoldMServer, mean: Correction, cohort: Cohort) -> ScaffoldMServer:
        g = self.fresh * (mean.dc + server.c) + (1 - self.beta) * server.g
        x = server.x - gamma_of(self, cohort) * g
        return ScaffoldMServer(x, g, server.c + cohort.share * mean.dc)

    def recount(self, server: ScaffoldMServer, mean: Client, cohort: Cohort) -> ScaffoldMServer:
        return ScaffoldMServer(server.x, server.g, c=cohort.share * mean.c)


@record
class FedAvgMVRServer:
    x: Vec
    past: Vec
    g: Vec


@record
class FedAvgMVRDown:
    x: Vec
    past: Vec
    g: Vec


@algorithm("fedavg-m-vr", CHENG, normalises=True)
class FedAvg_M_VR:
    """FedAvg-M with a second gradient at the last model on the same minibatch, which takes the noise out of g."""

    beta: float = hyper(default=0.1, within="(0, 1]")
    gamma: float | None = hyper(default=None, within="[0, inf)")
    B: int = hyper(default=1, within="[0, inf)")
    server_lr: float = hyper(default=1.0, within="[0, inf)")

    __post_init__ = one_server_step
    client, exchanges, initialise, direction = stateless, with_initialisation, first_gradient, direction

    def server(self, x: Vec) -> FedAvgMVRServer:
        return FedAvgMVRServer(x, past=x, g=0 * x)

    def begin(self, server: FedAvgMVRServer, mean: Gradient, cohort: Cohort) -> FedAvgMVRServer:
        return FedAvgMVRServer(server.x, server.past, mean.g)

    def send(self, server: FedAvgMVRServer) -> FedAvgMVRDown:
        return FedAvgMVRDown(server.x, server.past, server.g)

    def local(self, down: FedAvgMVRDown, client: None, work: Work) -> tuple[Direction, None]:
        def direction(y: Vec) -> Vec:
            return work.grad(y) + (1 - self.beta) * (down.g - work.grad(down.past))

        _, g = work.descend(direction, down.x)
        return Direction(g), None

    def update(self, server: FedAvgMVRServer, mean: Direction, cohort: Cohort) -> FedAvgMVRServer:
        x = server.x - gamma_of(self, cohort) * mean.g
        return FedAvgMVRServer(x, past=server.x, g=mean.g)


@record
class ScaffoldMVRServer:
    x: Vec
    past: Vec
    g: Vec
    c: Vec


@record
class ScaffoldMVRDown:
    x: Vec
    past: Vec
    h: Vec


@record
class ScaffoldMVRUp:
    g: Vec
    dc: Vec


@algorithm("scaffold-m-vr", CHENG, adds_states=True, normalises=True)
class ScaffoldMVR:
    """SCAFFOLD-M with the variance-reduced direction."""

    beta: float = hyper(default=0.1, within="(0, 1]")
    gamma: float | None = hyper(default=None, within="[0, inf)")
    B: int = hyper(default=1, within="[0, inf)")
    server_lr: float = hyper(default=1.0, within="[0, inf)")

    __post_init__ = one_server_step

    def server(self, x: Vec) -> ScaffoldMVRServer:
        return ScaffoldMVRServer(x, past=x, g=0 * x, c=0 * x)

    client, exchanges, initialise, settle = Scaffold.client, with_initialisation, keep_first_gradient, correct
    direction, control = direction, Scaffold.control

    def begin(self, server: ScaffoldMVRServer, mean: Gradient, cohort: Cohort) -> ScaffoldMVRServer:
        return ScaffoldMVRServer(server.x, server.past, g=mean.g, c=mean.g)

    def send(self, server: ScaffoldMVRServer) -> ScaffoldMVRDown:
        h = self.beta * server.c + (1 - self.beta) * server.g
        return ScaffoldMVRDown(server.x, server.past, h)

    def local(self, down: ScaffoldMVRDown, client: Client, work: Work) -> tuple[ScaffoldMVRUp, Client]:
        def direction(y: Vec, total: Vec) -> tuple[Vec, Vec]:
            grad = work.grad(y)
            past = (1 - self.beta) * work.grad(down.past)
            return grad - past - self.beta * client.c + down.h, total + grad

        _, g, total = work.descend(direction, down.x, 0 * down.x)
        c = total / work.K
        return ScaffoldMVRUp(g, c - client.c), Client(c)

    def update(self, server: ScaffoldMVRServer, mean: ScaffoldMVRUp, cohort: Cohort) -> ScaffoldMVRServer:
        x = server.x - gamma_of(self, cohort) * mean.g
        return ScaffoldMVRServer(x, server.x, mean.g, server.c + cohort.share * mean.dc)

    def recount(self, server: ScaffoldMVRServer, mean: Client, cohort: Cohort) -> ScaffoldMVRServer:
        return ScaffoldMVRServer(server.x, server.past, server.g, c=cohort.share * mean.c)


@special_case("fedcm", "Xu et al. 2021", FedAvg_M)
def FedCM(alpha: float = 0.1, gamma: float | None = None, server_lr: float = 1.0) -> FedAvg_M:
    """FedAvg-M under its first name: alpha is Cheng et al.'s beta."""
    check_value("fedcm", "alpha", alpha, float, within="(0, 1]")
    return FedAvg_M(beta=alpha, gamma=gamma, server_lr=server_lr)
