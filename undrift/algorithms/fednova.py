"""FedNova: normalised averaging, for clients that make different numbers of steps.

Wang, Liu, Liang, Joshi, Poor, "Tackling the Objective Inconsistency Problem ...", NeurIPS 2020, appendices B, E, G, H.

    u  <- rho u + grad F_i(y; xi),    y <- y - eta [ u + mu (y - x) ]      tau_i times from y = x, u = 0
    d_i = (x - y) / (eta ||a_i||_1)                             x - y = eta sum_k a_ik g_k
    x  <- x - tau_eff eta sum_i w_i d_i                         w_i = p_i / sum_cohort p

||a_i||_1 is found by running the same solver on a single number with gradient 1 (`work.unit`), exact for every linear
solver: SGD (tau_i), proximal, momentum, both (where published code counts twice, errata 15).

tau_eff    "a": sum_i w_i ||a_i||_1, FedAvg's own;  "steps": sum_i w_i tau_i, the authors' code with mu > 0;  or a number
w          "p": as above;  "pa": w_i = p_i ||a_i||_1 / sum_cohort p ||a||_1, the weights that plain averaging of the local
           models implies.  With tau_eff="a" that is FedAvg (mu = 0) or FedProx; with "steps", FedProx with the longer
           step sum_i p_i tau_i of Fig. 7 (green).
normalise  "cohort" (Algorithm 1);  "population": tau_eff sums p_i, not w_i, over the cohort (text of appendix H).  The
           third estimator, of the proof (G), is "cohort" with ud.Weighted(S): S draws with replacement, averaged plainly.
gmf        server momentum of the authors' code: buf <- gmf buf + tau_eff sum_i w_i d_i,  x <- x - eta buf
rho        the local solver's momentum; None = that of ud.Local

FedNova-VR is Algorithm 2 with the cross-client correction mended: c_i <- c_i - d_i + dbar; as printed it oscillates
(errata 5).  dbar reaches a client with its next visit, so the method is defined for full participation.
"""

from undrift.algorithms.fedavg import Down, send_model, stateless
from undrift.core import Cohort, Col, InvalidInput, Vec, Work, algorithm, check_value, hyper, record

WANG = "Wang et al. 2020"


@record
class Server:
    x: Vec
    buf: Vec


@record
class Up:
    d: Vec
    tau: Col


@algorithm("fednova", WANG, local_momentum=True, linear_optimiser=True, divides_by_lr=True)
class FedNova:
    """FedAvg with updates divided by their length in steps: right objective under unequal work (bias O(eta) stays)."""

    mu: float = hyper(default=0.0, within="[0, inf)")
    rho: float | None = hyper(default=None, within="[0, 1)")
    tau_eff: float | str = "a"
    normalise: str = hyper(default="cohort", among=("cohort", "population"))
    gmf: float = hyper(default=0.0, within="[0, 1)")
    w: str = hyper(default="p", among=("p", "pa"))

    client, send = stateless, send_model

    def __post_init__(self) -> None:
        if isinstance(self.tau_eff, str) and self.tau_eff not in ("a", "steps"):
            raise InvalidInput(f"fednova: tau_eff is 'a', 'steps' or a number, got {self.tau_eff}")
        if not isinstance(self.tau_eff, str):
            check_value("fednova", "tau_eff", self.tau_eff, float, within="[0, inf)")

    @property
    def normalises(self) -> bool:
        return self.w == "p"

    def server(self, x: Vec) -> Server:
        return Server(x, buf=0 * x)

    def solve(self, work: Work, x: Vec) -> Vec:
        def step(y: Vec) -> Vec:
            return work.step(y, work.grad(y), self.rho) - work.lr * self.mu * (y - x)

        return work.loop(step, x)

    def local(self, down: Down, client: None, work: Work) -> tuple[Up, None]:
        a = -self.solve(work.unit, work.zero) / work.lr
        delta = down.x - self.solve(work, down.x)
        if self.w == "pa":
            return Up(delta / work.lr, a), None  # a_i d_i, whose mean is divided by the mean of a_i
        return Up(delta / (work.lr * a), work.K if self.tau_eff == "steps" else a), None

    def update(self, server: Server, mean: Up, cohort: Cohort) -> Server:
        tau_eff = mean.tau if isinstance(self.tau_eff, str) else self.tau_eff
        if self.w == "pa" and self.tau_eff == "steps":
            tau_eff = cohort.K
        d = mean.d if self.w == "p" else mean.d / mean.tau
        if self.normalise == "population" and isinstance(self.tau_eff, str):
            tau_eff = cohort.share * tau_eff
        buf = self.gmf * server.buf + tau_eff * d
        return Server(server.x - cohort.lr * buf, buf)


@record
class VRServer:
    x: Vec
    d: Vec


@record
class VRClient:
    r: Vec  # c_i - d_i of the last visit, waiting for dbar


@record
class VRDown:
    x: Vec
    d: Vec


@algorithm(
    "fednova-vr", WANG, local_momentum=True, linear_optimiser=True, everyone=True, divides_by_lr=True, normalises=True
)
class FedNovaVR:
    """FedNova with cross-client variance reduction: reaches the optimum with unequal steps and local momentum."""

    rho: float | None = hyper(default=None, within="[0, 1)")

    def server(self, x: Vec) -> VRServer:
        return VRServer(x, d=0 * x)

    def client(self, x: Vec) -> VRClient:
        return VRClient(r=0 * x)

    def send(self, server: VRServer) -> VRDown:
        return VRDown(server.x, server.d)

    def local(self, down: VRDown, client: VRClient, work: Work) -> tuple[Up, VRClient]:
        def solve(work: Work, x: Vec, c: Vec | float) -> Vec:
            return work.loop(lambda y: work.step(y, work.grad(y) + c, self.rho), x)

        c = client.r + down.d
        a = -solve(work.unit, work.zero, 0) / work.lr
        d = (down.x - solve(work, down.x, c)) / (work.lr * a)
        return Up(d, a), VRClient(c - d)

    def settle(self, client: VRClient, missed: Up) -> VRClient:
        return VRClient(client.r - missed.d)

    def update(self, server: VRServer, mean: Up, cohort: Cohort) -> VRServer:
        return VRServer(server.x - mean.tau * cohort.lr * mean.d, mean.d)
