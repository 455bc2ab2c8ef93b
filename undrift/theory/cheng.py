"""Step sizes of FedAvg-M, SCAFFOLD-M and their variance-reduced forms.

Cheng, Huang, Wu, Yuan, ICLR 2024 (arXiv:2306.16504), Theorems 11, 15, 19 and 22, i.e. (5), (8), (9) and (11).

    L      smoothness of every f_i (of every sample's F for the VR forms)        Delta   f(x0) - min f
    sigma  noise of a minibatch gradient, E|g - grad f_i|^2 <= sigma^2           G0      mean_i |grad f_i(x0)|^2
    K      local steps     S of N clients a round     R rounds                   c       in (0, 1], the largest beta

f is the plain mean of the f_i.  beta weighs the fresh gradient, gamma is the server's step, x = eta K L below.

The paper gives eta up to a numeric factor ("<~").  Here it is the largest eta that satisfies what is printed, read with
factor 1, *and* every inequality that its lemmas and proofs use; gamma likewise, where Theorems 19 and 22 print more than
their lemmas allow (errata 24).  With that, the last line of each proof before "<~" holds with its own numbers: `bound`.
"""

from dataclasses import dataclass
from math import ceil, e, inf, sqrt
from typing import Any

from undrift.core.hyper import method
from undrift.theory.prescription import Prescription, check_constants, checked_rounds, largest_root


@dataclass(frozen=True)
class MomentumSetting(Prescription):
    """beta, gamma and, where the start takes minibatches, B of ud.FedAvg_M, ud.ScaffoldM or one of their -VR forms."""

    name: str
    beta: float
    gamma: float
    B: int | None = None

    def method(self) -> Any:
        start = {} if self.B is None else {"B": self.B}
        return method(self.name, beta=self.beta, gamma=self.gamma, **start)


def fedavg_m(
    *, L: float, Delta: float, G0: float, sigma: float, N: int, K: int, R: int, c: float = 1.0
) -> MomentumSetting:
    """FedAvg-M with all clients, Theorem 11, (5).

    >>> setting = fedavg_m(L=1.0, Delta=2.0, G0=3.0, sigma=1.0, N=10, K=5, R=1000)
    >>> round(setting.beta, 4), round(setting.gamma, 4)
    (0.3162, 0.0417)
    >>> setting.method()
    FedAvg_M(beta=0.31622776601683794, gamma=0.041666666666666664, reparametrised=False, server_lr=1.0)
    """
    source = "FedAvg-M (Cheng et al., Theorem 11)"
    check_constants(source, L=L, Delta=Delta, G0=G0, sigma=sigma, N=N, K=K, R=R, c=c)
    beta = min(c, _root(N * K * L * Delta, sigma**2 * R))
    gamma = min(1 / (24 * L), beta / (6 * L))
    g = gamma * L
    x = min(
        1.0,
        _over(1, beta * g * R),
        _root(L * Delta, G0 * beta**3 * R),
        1 / sqrt(beta * N),
        (beta**3 * N * K) ** -0.25,
        1 / beta,  # Lemma 9
        1 / sqrt(288 * e * ((1 - beta) ** 2 + e * (beta * g * R) ** 2)),  # Lemma 10
        sqrt(largest_root(8 * beta**3, 4 * beta / K, 2 / (N * K))),  # Theorem 11
    )
    return MomentumSetting(
        source,
        R,
        K,
        lr=x / (K * L),
        transient=7 * Delta / gamma + 39 / (8 * beta) * 2 * L * Delta,
        floor=78 * (e * beta * x) ** 2 * G0 + 39 / 2 * beta * sigma**2 / (N * K),
        name="fedavg-m",
        beta=beta,
        gamma=gamma,
    )


def fedavg_m_vr(
    *, L: float, Delta: float, G0: float, sigma: float, N: int, K: int, R: int, c: float = 1.0
) -> MomentumSetting:
    """FedAvg-M-VR with all clients, Theorem 15, (8).  L is the smoothness of single samples.

    >>> setting = fedavg_m_vr(L=1.0, Delta=2.0, G0=3.0, sigma=1.0, N=10, K=5, R=1000)
    >>> round(setting.beta, 4), setting.B
    (0.0585, 2)
    """
    source = "FedAvg-M-VR (Cheng et al., Theorem 15)"
    check_constants(source, L=L, Delta=Delta, G0=G0, sigma=sigma, N=N, K=K, R=R, c=c)
    beta = min(c, _over(N * K * L**2 * Delta**2, sigma**4 * R**2) ** (1 / 3))
    gamma = min(1 / (24 * L), sqrt(beta * N * K / 54) / L)
    g = gamma * L
    x = min(
        _root(L * Delta, G0 * g * R),
        sqrt(beta / N),
        (beta / (N * K)) ** 0.25,
        1 / (4 * e),  # Lemma 13
        beta / sqrt(288 * e * (289 / 72 * (1 - beta) ** 2 + 8 * e * (g * beta * R) ** 2)),  # 14
        sqrt(largest_root(64, 32 / K, beta / (N * K))),  # Theorem 15
        sqrt(largest_root(256, 128 / K, beta**2 / (18 * g**2))),
    )
    B = ceil(K / (R * beta**2))
    return MomentumSetting(
        source,
        R,
        K,
        lr=x / (K * L),
        transient=7 * Delta / gamma + 39 / (8 * beta) * sigma**2 / (N * B),
        floor=312 * (e * x) ** 2 * G0 + 39 / 2 * beta * sigma**2 / (N * K),
        name="fedavg-m-vr",
        beta=beta,
        gamma=gamma,
        B=B,
    )


def scaffold_m(
    *, L: float, Delta: float, G0: float, sigma: float, N: int, S: int, K: int, R: int, c: float = 1.0
) -> MomentumSetting:
    """SCAFFOLD-M with S of N clients, Theorem 19, (9), with the gamma that Lemma 16 allows (errata 24).

    >>> setting = scaffold_m(L=1.0, Delta=2.0, G0=3.0, sigma=0.0, N=64, S=4, K=5, R=100)
    >>> round(setting.beta, 4), setting.B
    (0.25, 1)
    """
    source = "SCAFFOLD-M (Cheng et al., Theorem 19)"
    check_constants(source, L=L, Delta=Delta, G0=G0, sigma=sigma, N=N, S=S, K=K, R=R, c=c)
    beta = min(c, S / N ** (2 / 3), _root(L * Delta * S * K, sigma**2 * R), _root(L * Delta * S**2, G0 * N))
    absent = (N - S) / (N - 1) if N > 1 else 0.0
    g = min(1 / 24, beta / 12, _root(S**3, 2592 * beta * N**2 * absent))  # Lemmas 5, 16; proof
    x = min(
        1 / sqrt(S),
        1 / (beta * K**0.25),
        sqrt(S) / N,
        1 / beta,  # Lemma 17
        1 / (24 * beta * K**0.25),  # Lemma 18
        N * g / (5 * S),
        1 / sqrt(18 * (160 * e + 1920 * e * (beta * g * N / S) ** 2)),  # Theorem 19
        sqrt(largest_root(20 * beta**2, (10 + 960 * e * beta) / K, 4 / (S * K))),
        sqrt(4 / (80 * e * beta * S)),
    )
    B = ceil(N * K / (S * R))
    return MomentumSetting(
        source,
        R,
        K,
        lr=x / (K * L),
        transient=7 * Delta * L / g + 39 / (8 * beta) * 2 * L * Delta + 585 / 4 * beta * N / S**2 * sigma**2 / B,
        floor=390 * beta * sigma**2 / (S * K),
        name="scaffold-m",
        beta=beta,
        gamma=g / L,
        B=B,
    )


def scaffold_m_vr(*, L: float, Delta: float, sigma: float, N: int, S: int, K: int, R: int) -> MomentumSetting:
    """SCAFFOLD-M-VR with S of N clients, Theorem 22, (11), with the gamma that its lemmas allow (errata 24).

    >>> setting = scaffold_m_vr(L=1.0, Delta=2.0, sigma=0.0, N=64, S=4, K=5, R=100)
    >>> setting.beta, setting.B
    (0.0625, 1)
    """
    source = "SCAFFOLD-M-VR (Cheng et al., Theorem 22)"
    check_constants(source, L=L, Delta=Delta, sigma=sigma, N=N, S=S, K=K, R=R)
    beta = min(S / N, _over(K * L * Delta, sigma**2 * R) ** (2 / 3) * S ** (1 / 3))
    absent = (N - S) / (N - 1) if N > 1 else 0.0
    g = min(
        1 / 24,  # Lemmas 5, 21
        sqrt(beta * S / 126),  # Lemma 20
        _root(S**3, 1296 * beta * N**2 * absent),  # Theorem 22
    )
    x = min(
        sqrt(beta / S),
        (beta / (S * K)) ** 0.25,
        1 / (4 * e),  # Lemma 21
        N * g / (10 * S),
        beta / sqrt(18 * 720 * (1 + 18 * (beta * g * N / S) ** 2)),  # Theorem 22
        sqrt(largest_root(128 / beta, 8704 / (beta * K), 5 / (S * K))),
        sqrt(beta / (720 * S)),
    )
    B = ceil(max(S * K / (N * R * beta**2), N * K / (S * R)))
    return MomentumSetting(
        source,
        R,
        K,
        lr=x / (K * L),
        transient=7 * Delta * L / g + 39 / (8 * beta) * sigma**2 / (N * B) + 585 / 8 * beta * N / S**2 * sigma**2 / B,
        floor=585 / 2 * beta * sigma**2 / (S * K),
        name="scaffold-m-vr",
        beta=beta,
        gamma=g / L,
        B=B,
    )


# The rates of Tables 1 and 2, up to the numeric factor that the paper leaves out.


def fedavg_m_rate(R: Any, *, L: float, Delta: float, sigma: float, N: int, K: int) -> Any:
    """sqrt(L Delta sigma^2 / (N K R)) + L Delta / R, up to a factor; R may be an array.

    >>> fedavg_m_rate(100, L=1.0, Delta=2.0, sigma=0.0, N=10, K=5)
    0.02
    """
    R = checked_rounds("fedavg_m_rate", R, L=L, Delta=Delta, sigma=sigma, N=N, K=K)
    return (L * Delta * sigma**2 / (N * K * R)) ** 0.5 + L * Delta / R


def fedavg_m_vr_rate(R: Any, *, L: float, Delta: float, sigma: float, N: int, K: int) -> Any:
    """(L Delta sigma / (N K R))^(2/3) + L Delta / R, up to a factor; R may be an array.

    >>> fedavg_m_vr_rate(100, L=1.0, Delta=2.0, sigma=0.0, N=10, K=5)
    0.02
    """
    R = checked_rounds("fedavg_m_vr_rate", R, L=L, Delta=Delta, sigma=sigma, N=N, K=K)
    return (L * Delta * sigma / (N * K * R)) ** (2 / 3) + L * Delta / R


def scaffold_m_rate(R: Any, *, L: float, Delta: float, sigma: float, N: int, S: int, K: int) -> Any:
    """sqrt(L Delta sigma^2 / (S K R)) + L Delta (1 + N^(2/3)/S) / R, up to a factor; R may be an array.

    >>> scaffold_m_rate(100, L=1.0, Delta=2.0, sigma=0.0, N=8, S=4, K=5)
    0.04
    """
    R = checked_rounds("scaffold_m_rate", R, L=L, Delta=Delta, sigma=sigma, N=N, S=S, K=K)
    slower = 1 + N ** (2 / 3) / S
    return (L * Delta * sigma**2 / (S * K * R)) ** 0.5 + L * Delta * slower / R


def scaffold_m_vr_rate(R: Any, *, L: float, Delta: float, sigma: float, N: int, S: int, K: int) -> Any:
    """(L Delta sigma / (S sqrt(K) R))^(2/3) + L Delta (1 + sqrt(N)/S) / R, up to a factor; R may be an array.

    >>> scaffold_m_vr_rate(100, L=1.0, Delta=2.0, sigma=0.0, N=16, S=4, K=5)
    0.04
    """
    R = checked_rounds("scaffold_m_vr_rate", R, L=L, Delta=Delta, sigma=sigma, N=N, S=S, K=K)
    slower = 1 + N**0.5 / S
    return (L * Delta * sigma / (S * K**0.5 * R)) ** (2 / 3) + L * Delta * slower / R


def momentum_error_floor(*, beta: float, sigma: float, N: int, K: int) -> float:
    """Where FedAvg-M's E|g - grad f(x)|^2 settles when noise alone moves g: beta/(2 - beta) sigma^2/(N K).

    g is an average of fresh means with weights beta (1 - beta)^j, each with variance sigma^2/(N K).

    >>> momentum_error_floor(beta=1.0, sigma=2.0, N=4, K=5)
    0.2
    """
    check_constants("momentum_error_floor", beta=beta, sigma=sigma, N=N, K=K)
    return beta / (2 - beta) * sigma**2 / (N * K)


def _over(a: float, b: float) -> float:
    return a / b if b else inf


def _root(a: float, b: float) -> float:
    return sqrt(a / b) if b else inf
