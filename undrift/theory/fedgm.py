"""FedGM: the local step size that its theorems allow beside a server schedule, and where server momentum is stable.

Sun, Wu, Huang, Zhang, "On the Role of Server Momentum in Federated Learning", AAAI 2024, Theorems 4.1, 4.6 and 5.1.

    eta_s, beta_s, nu_s, T_s of the stages s = 1, ..., n_s        K local steps of size eta_l;  m = S of n = N clients
    W1 = eta_s beta_s nu_s / (1 - beta_s),  W2 = T_s eta_s        the same in every stage (3)
    C = eta_1 / eta_S,  eta_bar = mean eta_s                      L, Delta, sigma_l (noise), sigma_g (dissimilarity)

    eta_l <= min{ 1/(8 K L), 1/(K n_s C (L eta_bar + 1 + L^2 W1^2 C)) }                              Theorem 4.1, all clients
    eta_l <= 1/(8 K L),  eta_l C (1 + L eta_bar + L^2 W1^2) n_s K
                                <= min{ m (n-1) / (n (m-1)), 17 m / 282 }                             Theorem 4.6, m of n
    eta_l <= min{ 1/(8 K L), 1/(L K sqrt(120 C tau)) }            Theorem 5.1: delays up to tau, updates divided by K

As printed, Theorem 5.1 does not limit the server's step at all and is false (errata 26).  Here it also asks for
L eta_l (eta_1 (1 + 2 tau) + W1) <= 1, under which delayed momentum is stable on quadratics.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from undrift.core.algorithm import DependsOnRun
from undrift.core.errors import InvalidInput
from undrift.core.hyper import check_value, method
from undrift.problems.quadratic import Quadratic
from undrift.theory.fednova import local_maps
from undrift.theory.prescription import Prescription, check_constants, checked_rounds, refuse, require


class Stage(NamedTuple):
    """One stage of the server: its step size, momentum factors and number of rounds."""

    eta: float
    beta: float
    nu: float
    rounds: int


@runtime_checkable
class Staged(Protocol):
    """A server schedule in stages, as ud.MultistageFedGM is."""

    stages: Sequence[Any]


@runtime_checkable
class SingleStage(Protocol):
    """A server with one setting for all rounds, as ud.FedGM is."""

    eta: Any
    beta: Any
    nu: Any


@dataclass(frozen=True)
class FedGMSetting(Prescription):
    """The server as it was given, with the local step size that goes with it."""

    server: Any
    stages: tuple[Stage, ...]

    def method(self) -> Any:
        return self.server

    def bound(self, rounds: Any = None) -> Any:
        """The theorem's bound on the mean over stages of their mean E|grad f(x)|^2; in stages, of the whole run only."""
        if len(self.stages) > 1 and np.any(self.checked(rounds) != self.rounds):
            raise InvalidInput(f"{self.source}: in stages the bound is that of all {self.rounds} rounds, got {rounds}")
        return super().bound(rounds)


class _Schedule(NamedTuple):
    """What the theorems need to know of the stages."""

    stages: tuple[Stage, ...]
    mean: float  # eta_bar
    mean2: float  # of eta^2
    mean3: float  # of eta^3
    C: float
    W1: float
    W2: float


def fedgm(
    schedule: Any,
    *,
    L: float,
    Delta: float,
    N: int,
    K: int,
    R: int,
    S: int | None = None,
    sigma_l: float = 0.0,
    sigma_g: float = 0.0,
) -> FedGMSetting:
    """The largest local step size for a ud.FedGM or ud.MultistageFedGM: Theorem 4.1 with all clients, 4.6 with S of N.

    >>> import undrift as ud
    >>> setting = fedgm(ud.FedGM(eta=2.0, beta=0.5, nu=0.5), L=1.0, Delta=1.0, N=10, K=4, R=100)
    >>> round(setting.lr, 5), setting.local().steps
    (0.03125, 4)
    """
    m = N if S is None else S
    theorem = "4.1" if m == N else "4.6"
    source = f"FedGM (Sun et al., Theorem {theorem})"
    check_constants(source, L=L, Delta=Delta, N=N, S=m, K=K, R=R, sigma_l=sigma_l, sigma_g=sigma_g)
    stages, mean, mean2, _, C, W1, W2 = _schedule(source, schedule, N, m, R)
    n = len(stages)
    size = C * (1 + L * mean + L**2 * W1**2 * (C if m == N else 1))
    if m == N:
        room = 1.0
    else:
        room = min(m * (N - 1) / (N * (m - 1)) if m > 1 else inf, 17 * m / 282)
    lr = min(1 / (8 * K * L), room / (K * n * size))
    drift_l, drift_g = 160 / 17 * lr**2 * L**2 * K, 960 / 17 * lr**2 * L**2 * K**2
    if m == N:
        psi_l = 32 / 17 * lr / N * (L**2 * W1**2 * R * mean / W2 + L * mean + 1) + drift_l
        psi_g = drift_g
    else:
        phi = 32 / 17 * R / W2 * (mean + L * mean2 + L**2 * W1**2 * mean)
        absent = (N - m) / (m * (N - 1))
        psi_l = lr / m * phi + 15 * absent * K**2 * L**3 * lr**3 * phi + drift_l
        psi_g = (90 * K**3 * L**3 * lr**3 + 3 * lr * K) * absent * phi + drift_g
    return FedGMSetting(
        source,
        R,
        K,
        lr,
        transient=64 / 17 * Delta / (n * W2 * lr * K) * R,
        floor=psi_l * sigma_l**2 + psi_g * sigma_g**2,
        server=schedule,
        stages=stages,
    )


def autonomous_fedgm(
    schedule: Any,
    *,
    L: float,
    Delta: float,
    N: int,
    S: int,
    K: int,
    R: int,
    delay: int = 0,
    sigma_l: float = 0.0,
    sigma_g: float = 0.0,
) -> FedGMSetting:
    """The largest local step size for a ud.AutonomousFedGM whose updates are at most `delay` rounds late: Theorem 5.1.

    K is the largest number of local steps, which the bound takes everyone to make; updates are divided by their number, and
    who takes part is drawn uniformly.

    >>> import undrift as ud
    >>> server = ud.FedGM(eta=2.0, beta=0.5, nu=0.5)
    >>> setting = autonomous_fedgm(server, L=1.0, Delta=1.0, N=10, S=5, K=4, R=100, delay=3)
    >>> round(setting.lr, 5)
    0.01318
    """
    source = "Autonomous FedGM (Sun et al., Theorem 5.1)"
    check_constants(source, L=L, Delta=Delta, N=N, S=S, K=K, R=R, delay=delay, sigma_l=sigma_l, sigma_g=sigma_g)
    require(delay <= R, source, "delay <= R", delay=delay, R=R)
    stages, mean, mean2, mean3, C, W1, W2 = _schedule(source, schedule, N, S, R)
    lr = min(
        1 / (8 * K * L),
        1 / (L * K * sqrt(120 * C * delay)) if delay else inf,
        1 / (L * (stages[0].eta * (1 + 2 * delay) + W1)),  # errata 26
    )
    phi_l = 20 * lr**2 * L**2 * R * mean / W2 * K + R / (S * W2 * K) * (
        4 * L**2 * delay**2 * mean3 * lr**2 + 2 * L**2 * W1**2 * mean * lr + 2 * mean * lr + 2 * L * mean2 * lr
    )
    phi_g = 120 * lr**2 * L**2 * R * mean * K**2 / W2
    return FedGMSetting(
        source,
        R,
        K,
        lr,
        transient=4 * Delta / (len(stages) * W2 * lr) * R,
        floor=phi_l * sigma_l**2 + phi_g * sigma_g**2,
        server=method("autonomous-fedgm", schedule=schedule),
        stages=stages,
    )


def _schedule(source: str, schedule: Any, N: int, S: int, R: int) -> _Schedule:
    """The stages of a schedule in a run, with (3) checked."""
    if isinstance(schedule, DependsOnRun):
        schedule = schedule.for_run(N, S, R)
    if isinstance(schedule, Staged):
        stages = tuple(Stage(s.eta, s.beta, s.nu, s.rounds) for s in schedule.stages)
    elif isinstance(schedule, SingleStage):
        stages = (Stage(schedule.eta, schedule.beta, schedule.nu, R),)
    else:
        raise InvalidInput(f"{source}: the schedule is a ud.FedGM or a ud.MultistageFedGM, got {schedule!r}")
    for s in stages:
        check_value(source, "eta", s.eta, float, within="(0, inf)")
        check_value(source, "beta", s.beta, float, within="[0, 1)")
        check_value(source, "nu", s.nu, float, within="[0, 1]")
    total = sum(s.rounds for s in stages)
    require(total == R, source, "sum of T_s = R", **{"the sum": total}, R=R)
    for before, after in zip(stages, stages[1:], strict=False):
        if after.eta > before.eta:
            refuse(source, "eta_s that does not rise", eta_s=before.eta, then=after.eta)
        if after.beta < before.beta:
            refuse(source, "beta_s that does not fall", beta_s=before.beta, then=after.beta)
    W1 = [s.eta * s.beta * s.nu / (1 - s.beta) for s in stages]
    W2 = [s.eta * s.rounds for s in stages]
    same = "eta beta nu / (1 - beta) that is the same in every stage (3)"
    require(max(W1) - min(W1) <= 1e-3 * max(W1), source, same, smallest=min(W1), largest=max(W1))
    rounding = max(s.eta for s in stages)  # lengths are whole numbers
    same = "T_s eta_s that is the same in every stage (3)"
    require(max(W2) - min(W2) <= rounding, source, same, smallest=min(W2), largest=max(W2))
    eta = np.array([s.eta for s in stages])
    means = (float((eta**power).mean()) for power in (1, 2, 3))
    return _Schedule(stages, *means, C=eta[0] / eta[-1], W1=max(W1), W2=min(W2))


def fedgm_rate(R: Any, *, N: int, K: int, S: int | None = None) -> Any:
    """1/sqrt(N K R) with all clients (Corollary 4.4), sqrt(K/(S R)) with S of N (4.7), up to a factor.

    >>> fedgm_rate(100, N=10, K=10), round(fedgm_rate(100, N=10, K=10, S=5), 3)
    (0.01, 0.141)
    """
    R = checked_rounds("fedgm_rate", R, N=N, K=K, S=N if S is None else S)
    return (N * K * R) ** -0.5 if S is None or S == N else (K / (S * R)) ** 0.5


def autonomous_fedgm_rate(R: Any, *, S: int, K: int, delay: int = 0) -> Any:
    """1/sqrt(S K R) + delay^2/R + K^2/R (Corollary 5.2), up to a factor.

    >>> round(autonomous_fedgm_rate(10_000, S=5, K=2, delay=3), 6)
    0.004462
    """
    R = checked_rounds("autonomous_fedgm_rate", R, S=S, N=S, K=K, delay=delay)
    return (S * K * R) ** -0.5 + delay**2 / R + K**2 / R


def server_step_gain(beta: float, nu: float) -> float:
    """How much larger than FedAvg's the server's step of FedGM may be on quadratics: (1 + beta)/(1 + beta - 2 nu beta).

    Along an eigenvector with x - mean y = m x, a round is (x, d) -> ((1 - k (1 - nu beta)) x - eta nu beta d,
    (1 - beta) m x + beta d) with k = eta m.  Its trace is 1 + beta - k (1 - nu beta), its determinant
    beta - k beta (1 - nu); both eigenvalues are inside the unit circle iff k < 2 (1 + beta)/(1 + beta - 2 nu beta) and, for
    nu > 1, k < (1 - beta)/(beta (nu - 1)).  FedAvg's limit is k = 2.

    >>> round(server_step_gain(0.9, 1.0), 6), round(server_step_gain(0.9, 0.9), 2), server_step_gain(0.0, 1.0)
    (19.0, 6.79, 1.0)
    """
    check_value("server_step_gain", "beta", beta, float, within="[0, 1)")
    check_value("server_step_gain", "nu", nu, float, within="[0, inf)")
    room = 1 + beta - 2 * nu * beta
    gain = (1 + beta) / room if room > 0 else inf
    return min(gain, (1 - beta) / (2 * beta * (nu - 1))) if nu > 1 and beta > 0 else gain


def largest_server_step(
    problem: Quadratic, *, steps: int | Sequence[int], lr: float, beta: float = 0.0, nu: float = 0.0
) -> float:
    """The server's step beyond which FedGM with all clients diverges on a quadratic: 2 gain / the largest m.

    >>> import torch, undrift as ud
    >>> problem = ud.Quadratic(torch.ones(1, 1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64))
    >>> round(largest_server_step(problem, steps=1, lr=0.5), 6)
    4.0
    >>> round(largest_server_step(problem, steps=1, lr=0.5, beta=0.9, nu=1.0), 6)
    76.0
    """
    p, maps = local_maps(problem, steps, lr)
    m = np.linalg.eigvalsh(np.einsum("n,nij,njk->ik", p, maps, problem.H.double().cpu().numpy()))
    if m.min() <= 0:
        raise InvalidInput(
            f"largest_server_step: FedAvg itself does not contract in every direction with lr = {lr}: take lr below 2 / L"
        )
    return 2 * server_step_gain(beta, nu) / float(m.max())
