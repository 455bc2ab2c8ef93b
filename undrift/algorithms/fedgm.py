"""FedGM: general server momentum, its named special cases, and its multistage form.

Sun, Wu, Huang, Zhang, "On the Role of Server Momentum in Federated Learning", AAAI 2024, eqs. (2)-(3), Alg. 1-3.

    Delta = mean_i (x - y_i)                            clients run FedAvg's local steps
    d  <- (1 - beta) Delta + beta d                     d = 0 at the start
    x  <- x - eta [ (1 - nu) Delta + nu d ]

It is QHM (Ma & Yarats, ICLR 2019) on the pseudo-gradient Delta; the special cases below are their conversions, each
tested against its own form.  beta is the decay of a *dampened* average: Hsu's FedAvgM(lr, beta) is undampened, and
equal to ours with eta = lr / (1 - beta).  For SNV and its relatives the server's model is the point where gradients are
taken.  Multistage (Algorithm 3): stage s has eta_s, beta_s, nu_s for T_s rounds, d is carried over.  Any stages may be
given; those that are derived satisfy constraint (3), which the analysis asks for:

    W1 = eta_s beta_s nu_s / (1 - beta_s)   and   W2 = T_s eta_s   are the same in every stage.
"""

from dataclasses import replace
from math import sqrt
from typing import NamedTuple

from undrift.algorithms.fedavg import Down, Up, local_sgd, send_model, stateless
from undrift.core import Cohort, InvalidInput, Vec, Work, algorithm, check_value, hyper, record, special_case

SUN = "Sun et al. 2024"


@record
class Server:
    x: Vec
    d: Vec


def qhm(server: Server, delta: Vec, eta: float, beta: float, nu: float) -> Server:
    d = (1 - beta) * delta + beta * server.d
    return Server(server.x - eta * ((1 - nu) * delta + nu * d), d)


@algorithm("fedgm", SUN, local_momentum=True)
class FedGM:
    """Server momentum with a free mixture of pseudo-gradient (1 - nu) and momentum (nu)."""

    eta: float = hyper(default=1.0, within="[0, inf)")
    beta: float = hyper(default=0.9, within="[0, 1)")
    nu: float = hyper(default=0.9, within="(-inf, inf)")

    client, send, local = stateless, send_model, local_sgd

    def server(self, x: Vec) -> Server:
        return Server(x, d=0 * x)

    def update(self, server: Server, mean: Up, cohort: Cohort) -> Server:
        return qhm(server, mean.delta, self.eta, self.beta, self.nu)


class Stage(NamedTuple):
    eta: float
    beta: float
    nu: float
    rounds: int


@algorithm("multistage-fedgm", SUN, local_momentum=True)
class MultistageFedGM:
    """FedGM in stages, each with its own eta, beta, nu and number of rounds.

    eta      the stages' step sizes
    beta     of every stage, or of the first: then constraint (3) gives the others
    nu       of every stage, or one for all
    lengths  the stages' rounds; by default constraint (3) divides T
    T        rounds in all, by default those of the run
    betas    the old name of a `beta` of every stage

    >>> [stage.rounds for stage in MultistageFedGM(eta=(2.0, 1.0, 0.5), T=1001, beta=0.7).stages]
    [143, 286, 572]
    >>> MultistageFedGM(eta=(1.0, 0.1), beta=(0.9, 0.5), nu=(1.0, 0.7), lengths=(30, 10)).stages[1]
    Stage(eta=0.1, beta=0.5, nu=0.7, rounds=10)
    """

    eta: tuple[float, ...] = (2.0, 1.0, 0.5)
    T: int | None = hyper(default=None, within="[1, inf)")
    beta: float | tuple[float, ...] = 0.7
    nu: float | tuple[float, ...] = 0.9
    betas: tuple[float, ...] | None = None
    lengths: tuple[int, ...] | None = None

    client, send, local = stateless, send_model, local_sgd

    def __post_init__(self) -> None:
        name = "multistage-fedgm"
        if not isinstance(self.eta, tuple | list) or not self.eta:
            raise InvalidInput(f"{name}: eta lists the stages' step sizes, e.g. (2.0, 1.0, 0.5); got {self.eta!r}")
        if self.lengths is not None and self.T is not None and sum(self.lengths) != self.T:
            raise InvalidInput(
                f"{name}: the lengths {tuple(self.lengths)} sum to {sum(self.lengths)}, T is {self.T}: "
                "leave one of them out"
            )
        for word, within, values in (
            ("eta", "(0, inf)", self.eta),
            ("beta", "[0, 1)", _listed(self.beta if self.betas is None else self.betas)),
            ("nu", "(-inf, inf)", _listed(self.nu)),
        ):
            for value in values:
                check_value(name, word, value, float, within=within)
        for value in self.lengths or ():
            check_value(name, "a stage's length", value, int, within="[1, inf)")
        if self.lengths is not None or self.T is not None:
            _ = self.stages

    def for_run(self, N: int, S: int, rounds: int) -> "MultistageFedGM":
        known = self.lengths is not None or self.T is not None
        return self if known else replace(self, T=rounds)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """eta, beta, nu and number of rounds of every stage."""
        eta, nu = tuple(self.eta), _listed(self.nu)
        nus = nu * len(eta) if len(nu) == 1 else nu
        betas = _listed(self.beta if self.betas is None else self.betas)
        if len(betas) == 1 and len(nus) == len(eta):
            betas = multistage_betas(eta, betas[0], nus)
        lengths = self.lengths or multistage_lengths(eta, self.T or 0)
        if not len(betas) == len(nus) == len(lengths) == len(eta):
            raise InvalidInput(
                f"multistage-fedgm: {len(eta)} step sizes, {len(betas)} betas, {len(nus)} nus and "
                f"{len(lengths)} lengths: give one of each for every stage"
            )
        if min(lengths) < 1:
            raise InvalidInput(
                f"multistage-fedgm: {sum(lengths)} rounds are too few for {len(eta)} stages with step sizes {eta}: "
                f"their lengths would be {lengths}; give lengths"
            )
        return tuple(Stage(*each) for each in zip(eta, betas, nus, lengths, strict=True))

    def check(self, N: int, rounds: int) -> None:
        covered = sum(stage.rounds for stage in self.stages)
        if rounds > covered:
            raise InvalidInput(f"multistage-fedgm: the stages cover {covered} rounds, the run has {rounds}")

    def server(self, x: Vec) -> Server:
        return Server(x, d=0 * x)

    def update(self, server: Server, mean: Up, cohort: Cohort) -> Server:
        end = 0
        for eta, beta, nu, rounds in self.stages:
            end += rounds
            if cohort.round <= end:
                return qhm(server, mean.delta, eta, beta, nu)
        raise InvalidInput(f"multistage-fedgm: round {cohort.round} is after the last stage")


def multistage_betas(eta: tuple[float, ...], beta: float, nu: float | tuple[float, ...]) -> tuple[float, ...]:
    """The betas that keep W1 as it is in the first stage: beta_s = W1 / (W1 + eta_s nu_s)."""
    nus = nu if isinstance(nu, tuple) else (nu,) * len(eta)
    W1 = eta[0] * beta * nus[0] / (1 - beta)
    return tuple(W1 / (W1 + eta_s * nu_s) if W1 else beta for eta_s, nu_s in zip(eta, nus, strict=True))


def multistage_lengths(eta: tuple[float, ...], T: int) -> tuple[int, ...]:
    """The lengths that keep W2 = T_s eta_s, rounded so that they sum to T."""
    W2 = T / sum(1 / eta_s for eta_s in eta)
    ends = [round(W2 * sum(1 / e for e in eta[: s + 1])) for s in range(len(eta))]
    return tuple(end - start for start, end in zip([0, *ends], ends, strict=False))


def _listed(values: float | tuple[float, ...]) -> tuple[float, ...]:
    return tuple(values) if isinstance(values, tuple | list) else (values,)


@algorithm("autonomous-fedgm", SUN, local_momentum=True, normalises=True)
class AutonomousFedGM:
    """FedGM, in stages or not, for clients that come when they like with as many steps as they like (Algorithm 4).

    A client sends (x - y) / K, the mean of its steps, on whatever model it last saw.  With everyone on time and the same
    K it is therefore FedGM with eta / K, not FedGM itself as the paper has it (errata 6).
    """

    schedule: FedGM | MultistageFedGM = FedGM()

    client, send = stateless, send_model

    def __post_init__(self) -> None:
        if not all(hasattr(self.schedule, name) for name in ("eta", "beta", "nu", "update")):
            raise InvalidInput(f"autonomous-fedgm: schedule is a FedGM or a MultistageFedGM, got {self.schedule!r}")

    def for_run(self, N: int, S: int, rounds: int) -> "AutonomousFedGM":
        schedule = self.schedule
        staged = isinstance(schedule, MultistageFedGM)
        return AutonomousFedGM(schedule.for_run(N, S, rounds)) if staged else self

    def check(self, N: int, rounds: int) -> None:
        if isinstance(self.schedule, MultistageFedGM):
            self.schedule.check(N, rounds)

    def server(self, x: Vec) -> Server:
        return self.schedule.server(x)

    def local(self, down: Down, client: None, work: Work) -> tuple[Up, None]:
        up, _ = local_sgd(self, down, client, work)
        return Up(up.delta / work.K), None

    def update(self, server: Server, mean: Up, cohort: Cohort) -> Server:
        return self.schedule.update(server, mean, cohort)


# The special cases by name.


@special_case("autonomous-fedavg", SUN, AutonomousFedGM)
def AutonomousFedAvg(eta: float = 1.0) -> AutonomousFedGM:
    """Averages of normalised updates without momentum (nu = 0): x <- x - eta mean_i (x - y_i) / K_i."""
    return AutonomousFedGM(FedGM(eta, beta=0.0, nu=0.0))


@special_case("fedavgm", SUN + ", Hsu et al. 2019", FedGM)
def FedAvgM(eta: float = 1.0, beta: float = 0.9, dampened: bool = True) -> FedGM:
    """Heavy ball: d <- (1 - beta) Delta + beta d, x <- x - eta d; undampened (Hsu): v <- Delta + beta v, x <- x - eta v."""
    check_value("fedavgm", "beta", beta, float, within="[0, 1)")
    return FedGM(eta if dampened else eta / (1 - beta), beta, nu=1.0)


@special_case("fednag", SUN, FedGM)
def FedNAG(eta: float = 1.0, beta: float = 0.9, dampened: bool = True) -> FedGM:
    """Nesterov: nu = beta.  Undampened, it is PyTorch's: v <- Delta + beta v, x <- x - eta (Delta + beta v)."""
    check_value("fednag", "beta", beta, float, within="[0, 1)")
    return FedGM(eta if dampened else eta / (1 - beta), beta, nu=beta)


@special_case("snv", "Lessard et al. 2016", FedGM)
def SNV(alpha: float, b1: float, b2: float) -> FedGM:
    """Synthesised Nesterov: z+ = z - alpha Delta(y) + b1 (z - z-), y = z + b2 (z - z-)."""
    check_value("snv", "alpha", alpha, float, within="[0, inf)")
    check_value("snv", "b1", b1, float, within="(0, 1)")
    return FedGM(alpha / (1 - b1), b1, nu=1 - (1 - b1) * b2 / b1)


@special_case("triple-momentum", "Van Scoy et al. 2018", FedGM)
def TripleMomentum(L: float, mu: float) -> FedGM:
    """SNV tuned for functions with curvature between mu and L (of the map x -> Delta)."""
    check_value("triple-momentum", "L", L, float, within="(0, inf)")
    check_value("triple-momentum", "mu", mu, float, within=f"(0, {L})")
    rho = 1 - sqrt(mu / L)
    return SNV((1 + rho) / L, rho**2 / (2 - rho), rho**2 / ((1 + rho) * (2 - rho)))


@special_case("robust-momentum", "Cyrus et al. 2018", FedGM)
def RobustMomentum(L: float, kappa: float, rho: float) -> FedGM:
    """SNV with a rate rho between 1 - 1/sqrt(kappa) (fast) and 1 - 1/kappa (robust)."""
    check_value("robust-momentum", "L", L, float, within="(0, inf)")
    check_value("robust-momentum", "kappa", kappa, float, within="(1, inf)")
    low, high = 1 - 1 / sqrt(kappa), 1 - 1 / kappa
    check_value("robust-momentum", "rho", rho, float, within=f"[{low}, {high}]")
    alpha = kappa * (1 - rho) ** 2 * (1 + rho) / L
    return SNV(alpha, b1=kappa * rho**3 / (kappa - 1), b2=rho**3 / ((kappa - 1) * (1 - rho) ** 2 * (1 + rho)))


@special_case("pid", "Recht 2018, Ma & Yarats 2019", FedGM)
def PID(k_P: float, k_I: float, k_D: float) -> FedGM:
    """x = x0 - k_P Delta - k_I sum(Delta) - k_D D, D the difference of Deltas filtered with k_D / (k_D - k_P)."""
    check_value("pid", "k_I", k_I, float, within="(0, inf)")
    check_value("pid", "k_D", k_D, float, within="(0, inf)")
    check_value("pid", "k_P", k_P, float, within="(-inf, 0)")
    return FedGM(k_I, k_D / (k_D - k_P), nu=k_P**2 / (k_I * k_D))


@special_case("pid-an", "An et al. 2018", FedGM)
def PIDAn(r: float, b: float, K_d: float) -> FedGM:
    """V <- b V + r Delta, D <- b D + (1 - b)(Delta - Delta-), x <- x - V - K_d D."""
    check_value("pid-an", "r", r, float, within="(0, inf)")
    check_value("pid-an", "b", b, float, within="(0, 1)")
    return FedGM(r / (1 - b), b, nu=1 - K_d * (1 - b) ** 2 / (b * r))


@special_case("asgd", "Kidambi et al. 2018", FedGM)
def ASGD(delta: float, kappa: float, xi: float, eps: float = 0.7) -> FedGM:
    """A long step into a running average, a short step, and a mixture of the two."""
    check_value("asgd", "delta", delta, float, within="[0, inf)")
    check_value("asgd", "kappa", kappa, float, within="[1, inf)")
    check_value("asgd", "eps", eps, float, within="(0, 1]")
    check_value("asgd", "xi", xi, float, within=f"(0, {kappa / eps**2}]")
    return FedGM(
        eta=delta * eps * (1 + xi) / (1 + eps),
        beta=(kappa - eps**2 * xi) / (kappa + eps * xi),
        nu=(eps * xi - 1) / (eps * (1 + xi)),
    )
