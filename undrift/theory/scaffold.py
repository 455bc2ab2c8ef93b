"""SCAFFOLD: step sizes for strongly convex clients, and the Lyapunov function that shrinks under them.

Karimireddy et al., arXiv:1910.06378 version 1, Theorems 1 and 2 (its beta is our L; it prescribes for strongly convex f_i
only and leaves other cases to the reader).

    eta~ = K eta_g eta_l <= 1/(8 L)                         all clients, option I, R >= 8 L / mu                  Theorem 1
    eta~ <= min{ 1/(81 L), S/(15 mu N) }                    S of N, option II, R >= max{ 81 L / mu, 15 N / S }    Theorem 2
    eta~ = 2 eta,  eta = min{ eta_max, log(max(2, mu^2 R d_0 / c)) / (mu R) }                                     Lemma 5
    w_r = (1 - mu eta)^(1 - r)                              weights of the mean of models that is bounded

    Phi_r = |x - x*|^2 + (9 N eta~^2 / S) (1/N) sum_i |c_i - grad f_i(x*)|^2,  E Phi_r <= (1 - mu eta~/2) Phi_{r-1}   Lemma 3

Lemma 5 prints max(1, ...), by which eta may be 0; 2 makes eta R mu >= 1/2, which its proof needs.  eta_g >= 1 (Lemma 4; the
theorem says 0).  The constants of noise are ours, with the proofs mended (errata 29).  H_K = 1 + 1/2 + ... + 1/K.

    c = 4 sigma^2 [ 2/(K N) + 5/48 (1 + 3 H_K/(2 K)) / eta_g^2 ],  c_i from one minibatch at x0 (B = 1)           Theorem 1
    c = 2 sigma^2/K (24/S + 13/(9 eta_g^2)),  and with noise 18 for the 9 in Phi                                  Theorem 2
"""

from dataclasses import dataclass
from math import log, sqrt
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from undrift.core.errors import InvalidInput
from undrift.core.hyper import method
from undrift.problems import Problem
from undrift.problems.quadratic import Quadratic
from undrift.theory.prescription import Prescription, check_constants, checked_rounds, refuse


@dataclass(frozen=True)
class ScaffoldSetting(Prescription):
    """eta_g, option and B of ud.Scaffold.

    step     eta~ = K eta_g lr, the step of a round
    decay    1 - mu eta~/2: what the Lyapunov function shrinks by in a round; w_r = decay^(1 - r)
    """

    eta_g: float
    option: int
    B: int
    step: float
    decay: float
    S: int

    def method(self) -> Any:
        return method("scaffold", eta_g=self.eta_g, option=self.option, B=self.B)

    def bound(self, rounds: Any = None) -> Any:
        """What the proof guarantees for E f(x_bar) - f*, x_bar the mean of models weighted by w_r, after so many rounds."""
        left = self.decay ** self.checked(rounds)
        return self.transient * left / (1 - self.decay * left) + self.floor


def scaffold_everyone(
    *, L: float, mu: float, N: int, K: int, R: int, distance: float, sigma: float = 0.0, eta_g: float | None = None
) -> ScaffoldSetting:
    """SCAFFOLD with all clients and option I, Theorem 1.  distance is |x0 - x*|; eta_g is sqrt(N) if None.

    >>> setting = scaffold_everyone(L=1.0, mu=0.1, N=4, K=5, R=100, distance=1.0)
    >>> setting.step, setting.lr, setting.method()
    (0.125, 0.0125, Scaffold(eta_g=2.0, option=1, B=1))
    """
    source = "SCAFFOLD (Karimireddy et al., Theorem 1)"
    eta_g = sqrt(N) if eta_g is None else eta_g
    check_constants(source, L=L, mu=mu, N=N, K=K, R=R, distance=distance, sigma=sigma, eta_g=eta_g)
    if R < 8 * L / mu:
        refuse(source, "R >= 8 L / mu", R=R, **{"8 L / mu": 8 * L / mu})
    of_controls = 0.0 if K == 1 else 5 / 48 * (1 + 1.5 * sum(1 / k for k in range(1, K + 1)) / K) / eta_g**2
    c = 4 * sigma**2 * (2 / (K * N) + of_controls)
    eta = _step(1 / (16 * L), mu, R, distance**2, c)
    return ScaffoldSetting(
        source, R, K, 2 * eta / (K * eta_g), mu * distance**2, c * eta,
        eta_g=eta_g, option=1, B=1, step=2 * eta, decay=1 - mu * eta, S=N,
    )  # fmt: skip


def scaffold(
    *,
    L: float,
    mu: float,
    N: int,
    S: int,
    K: int,
    R: int,
    distance: float,
    control_error: float,
    sigma: float = 0.0,
    eta_g: float | None = None,
) -> ScaffoldSetting:
    """SCAFFOLD with S of N clients and option II, Theorem 2; eta_g is sqrt(S) if None.

    distance        |x0 - x*|
    control_error   mean_i |c_i - grad f_i(x*)|^2 at the start: mean_i |grad f_i(x*)|^2 where c_i starts at 0

    >>> setting = scaffold(L=1.0, mu=0.1, N=8, S=4, K=5, R=1000, distance=1.0, control_error=1.0)
    >>> round(setting.step * 81, 6), round(setting.decay, 6)
    (1.0, 0.999383)
    """
    source = "SCAFFOLD (Karimireddy et al., Theorem 2)"
    eta_g = sqrt(S) if eta_g is None else eta_g
    check_constants(
        source, L=L, mu=mu, N=N, S=S, K=K, R=R, distance=distance, control_error=control_error, sigma=sigma, eta_g=eta_g
    )
    needed = {"81 L / mu": 81 * L / mu, "15 N / S": 15 * N / S}
    if R < max(needed.values()):
        refuse(source, "R >= max{ 81 L / mu, 15 N / S }", R=R, **needed)
    largest = min(1 / (81 * L), S / (15 * mu * N))
    d0 = distance**2 + (18 if sigma else 9) * N * largest**2 / S * control_error
    c = 2 * sigma**2 / K * (24 / S + 13 / (9 * eta_g**2))
    eta = _step(largest / 2, mu, R, d0, c)
    return ScaffoldSetting(
        source, R, K, 2 * eta / (K * eta_g), mu * d0, c * eta,
        eta_g=eta_g, option=2, B=0, step=2 * eta, decay=1 - mu * eta, S=S,
    )  # fmt: skip


def _step(largest: float, mu: float, R: int, d0: float, c: float) -> float:
    """eta of Lemma 5."""
    return min(largest, log(max(2.0, mu**2 * R * d0 / c)) / (mu * R)) if c else largest


def scaffold_everyone_rate(
    R: Any, *, L: float, mu: float, N: int, K: int, distance: float, sigma: float = 0.0, eta_g: float | None = None
) -> Any:
    """The rate of Theorem 1, up to constants and logarithms.

    >>> float(round(scaffold_everyone_rate(80, L=1.0, mu=0.1, N=4, K=5, distance=1.0), 6))
    0.036788
    """
    R = checked_rounds("scaffold_everyone_rate", R, L=L, mu=mu, N=N, K=K, distance=distance, sigma=sigma)
    noise = sigma**2 / (mu * K * R) * (1 / N + 1 / (N if eta_g is None else eta_g**2))
    return noise + mu * distance**2 * np.exp(-mu * R / (8 * L))


def scaffold_rate(
    R: Any,
    *,
    L: float,
    mu: float,
    N: int,
    S: int,
    K: int,
    distance: float,
    control_error: float,
    sigma: float = 0.0,
    eta_g: float | None = None,
) -> Any:
    """The rate of Theorem 2, up to constants and logarithms.

    >>> rate = scaffold_rate(810, L=1.0, mu=0.1, N=4, S=2, K=5, distance=1.0, control_error=0.0)
    >>> float(round(rate, 6))
    0.036788
    """
    told = {"L": L, "mu": mu, "N": N, "S": S, "K": K, "distance": distance, "control_error": control_error}
    R = checked_rounds("scaffold_rate", R, **told, sigma=sigma)
    noise = sigma**2 / (mu * K * R) * (1 / S + 1 / (S if eta_g is None else eta_g**2))
    d0 = distance**2 + S / N * control_error
    return noise + mu * d0 * np.exp(-min(S / (15 * N), mu / (81 * L)) * R)


@runtime_checkable
class HasControl(Protocol):
    """A server that keeps the mean of the clients' control variates."""

    x: Tensor
    c: Tensor


def scaffold_lyapunov(state: Any, problem: Problem, setting: ScaffoldSetting, optimum: Tensor | None = None) -> float:
    """The Lyapunov function of Theorem 2 in a run's state: |x - x*|^2 + (9 eta~^2 / S) sum_i |c_i - grad f_i(x*)|^2.

    In expectation over clients it shrinks by `setting.decay` a round without noise.  state is that of a round of
    `ud.rounds` (`r.state`, `r.snapshot()`) or of a result; x* may be left out for a ud.Quadratic.

    >>> import torch, undrift as ud
    >>> H, e = torch.ones(2, 1, 1, dtype=torch.float64), torch.tensor([[2.0], [-2.0]], dtype=torch.float64)
    >>> problem = ud.Quadratic(H, e)
    >>> setting = scaffold(L=1.0, mu=1.0, N=2, S=2, K=3, R=81, distance=1.0, control_error=4.0)
    >>> run = ud.rounds(setting.method(), problem, rounds=2, local=setting.local(), x0=torch.ones(1).double())
    >>> first, second = (scaffold_lyapunov(r.state, problem, setting) for r in run)
    >>> second <= setting.decay * first
    True
    """
    if optimum is None:
        if not isinstance(problem, Quadratic):
            raise InvalidInput(f"scaffold_lyapunov: the optimum of a {type(problem).__name__} is not known: give it")
        optimum = problem.optimum
    if not isinstance(state.server, HasControl):
        raise InvalidInput("scaffold_lyapunov: this run has no control variates: run ud.Scaffold")
    everyone = range(problem.N)
    controls = state.clients.gather(everyone).c
    goal = problem.full_grad(optimum.expand(problem.N, -1), everyone)
    error = torch.sum((controls - goal) ** 2)
    away = torch.sum((state.server.x - optimum) ** 2)
    return float(away + 9 * setting.step**2 / setting.S * error)
