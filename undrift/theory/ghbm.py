"""GHBM: step sizes, how long a window of gradients may be, and which clients a window misses.

Zaccone, Karimireddy, Masone, Ciccone, TMLR 2025 (arXiv:2311.18578), Theorem 4.7, (122), for Algorithm 3 (ud.GHBMTheory)
with cyclic participation (ud.Cyclic(S)) and tau = N/S.  |S| is N, J is K, T is R.

    beta = min{ 1, sqrt(N K L Delta / (sigma^2 R)) },   eta = min{ 1/(24 L), beta/(sqrt(8) L) }
    eta_l K L <~ min{ 1, 1/(beta eta L sqrt(tau) R), sqrt(L Delta/(beta^3 tau G R)), 1/sqrt(beta N), (beta^3 N K)^(-1/4) }

beta weighs the fresh gradients.  G bounds the mean of |grad f_i|^2 over clients in the first tau rounds.  eta_l is the
largest that satisfies what is printed, read with factor 1, and the inequalities of the proof.

The mean of tau rounds' gradients is late by tau/2 rounds on average, which Lemma 4.6 underestimates by a factor (tau - 1)/2
(errata 22): with eta as in (122) the method diverges on x^2/2 from tau = 119 on without noise (beta = 1), from 93 on at
beta = 0.118.  Here eta is never more than half of what is stable on quadratics; for tau <= 38 that changes nothing.
"""

from dataclasses import dataclass
from math import atan2, cos, e, inf, pi, sin, sqrt
from typing import Any

from undrift.core.errors import InvalidInput
from undrift.core.hyper import method
from undrift.theory.prescription import Prescription, check_constants, checked_rounds, largest_root, require


@dataclass(frozen=True)
class GHBMSetting(Prescription):
    """tau, beta and eta of ud.GHBMTheory, to be run with ud.Cyclic(S)."""

    tau: int
    beta: float
    eta: float

    def method(self) -> Any:
        return method("ghbm-theory", tau=self.tau, beta=self.beta, eta=self.eta)

    def bound(self, rounds: Any = None) -> Any:
        """Not given: the proof loses a factor (errata 22).  `ghbm_rate` is what the theorem states."""
        raise InvalidInput(f"{self.source} has no proven bound (errata 22): ghbm_rate is what it states")


def ghbm(*, L: float, Delta: float, G_tau: float, sigma: float, N: int, S: int, K: int, R: int) -> GHBMSetting:
    """GHBM's Algorithm 3 with S of N clients in turn, Theorem 4.7, (122).

    >>> setting = ghbm(L=1.0, Delta=2.0, G_tau=3.0, sigma=1.0, N=10, S=2, K=5, R=1000)
    >>> setting.tau, round(setting.beta, 4), round(setting.eta, 4)
    (5, 0.3162, 0.0417)
    """
    source = "GHBM (Zaccone et al., Theorem 4.7)"
    check_constants(source, L=L, Delta=Delta, G_tau=G_tau, sigma=sigma, N=N, S=S, K=K, R=R)
    require(N % S == 0, source, "S that divides N (Assumption 4.3)", N=N, S=S)
    tau = N // S
    require(tau <= R, source, "tau = N/S <= R", **{"N/S": tau}, R=R)
    beta = min(1.0, sqrt(N * K * L * Delta / (sigma**2 * R)) if sigma else inf)
    h = min(1 / 24, beta / sqrt(8), ghbm_largest_step(tau, beta) / 2)  # eta L
    lag = (1 - beta) ** 2 + e * (beta * h * R) ** 2
    x = min(
        1.0,
        1 / (beta * h * sqrt(tau) * R),
        sqrt(L * Delta / (beta**3 * tau * G_tau * R)) if G_tau else inf,
        1 / sqrt(beta * N),
        (beta**3 * N * K) ** -0.25,
        1 / beta,  # Lemma B.6
        1 / sqrt(224 * e * lag) if lag else inf,  # Lemma B.7
        1 / sqrt(896 * e**2 * (lag + tau - 1)) if lag + tau > 1 else inf,  # (80)
        sqrt(largest_root(4 * beta**3, 2 * beta / K, 1 / (N * K))),  # (84)
    )
    return GHBMSetting(source, R, K, x / (K * L), inf, inf, tau=tau, beta=beta, eta=h / L)


def ghbm_rate(R: Any, *, L: float, Delta: float, sigma: float, N: int, K: int) -> Any:
    """L Delta / R + sqrt(L Delta sigma^2 / (N K R)) as Theorem 4.7 states it, up to a factor (but see errata 22).

    >>> ghbm_rate(100, L=1.0, Delta=2.0, sigma=0.0, N=10, K=5)
    0.02
    """
    R = checked_rounds("ghbm_rate", R, L=L, Delta=Delta, sigma=sigma, N=N, K=K)
    return L * Delta / R + (L * Delta * sigma**2 / (N * K * R)) ** 0.5


def ghbm_largest_step(tau: int, beta: float) -> float:
    """The largest eta L with which Algorithm 3 is stable on quadratics with exact gradients, one step, identical clients.

    A mode z^t of x - x- = -eta m,  m = (1 - beta) m- + (beta/tau) L (x- + x-- + ... over tau rounds) satisfies

        (1 - 1/z)^2 (1 - (1 - beta)/z) + (eta L beta / tau) (1 - z^-tau) / z = 0.

    The first root to cross the circle, at z = exp(i w), has eta L = (tau/beta) (2 - 2 cos w) |1 - (1 - beta)/z| / |1 - z^-tau|
    where the two phases agree.  For beta = 1, w = pi/tau and eta L = tau (1 - cos(pi/tau)), about 4.93/tau.

    >>> ghbm_largest_step(1, 1.0), ghbm_largest_step(118, 1.0) > 1 / 24 > ghbm_largest_step(119, 1.0)
    (2.0, True)
    """
    check_constants("ghbm_largest_step", tau=tau, beta=beta)
    low, high = (0.0, pi / tau)  # the phase of 1 - z^-tau falls from pi/2 to 0 there, the other rises from 0
    for _ in range(200):
        w = (low + high) / 2
        if atan2((1 - beta) * sin(w), 1 - (1 - beta) * cos(w)) < (pi - w * tau) / 2:
            low = w
        else:
            high = w
    w = high
    size = sqrt((1 - (1 - beta) * cos(w)) ** 2 + ((1 - beta) * sin(w)) ** 2)
    return tau / beta * 4 * sin(w / 2) ** 2 * size / (2 * sin(w * tau / 2))


def missed_clients(N: int, S: int, tau: int) -> float:
    """The expected share of clients that tau rounds of uniform sampling (S of N) miss: (1 - S/N)^tau.

    >>> round(missed_clients(100, 10, 10), 4)
    0.3487
    """
    check_constants("missed_clients", N=N, S=S, tau=tau)
    return (1 - S / N) ** tau


def missed_clients_squared(N: int, S: int, tau: int) -> float:
    """The expected square of that share, which GHBM's Lemma 4.4 multiplies the dissimilarity with.

    E[(missed/N)^2] = [q1 + (N - 1) q2] / N with q1 = (1 - S/N)^tau that a client is missed, and
    q2 = [(N - S)(N - S - 1) / (N (N - 1))]^tau that two are.

    >>> round(missed_clients_squared(100, 10, 10), 5), round(missed_clients(100, 10, 10) ** 2, 5)
    (0.1225, 0.12158)
    """
    q1 = missed_clients(N, S, tau)
    q2 = ((N - S) * (N - S - 1) / (N * (N - 1))) ** tau if N > 1 else 0.0
    return (q1 + (N - 1) * q2) / N
