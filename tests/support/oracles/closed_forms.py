"""Where the methods come to rest on noiseless quadratics F_i(x) = x'H_i x / 2 - e_i'x.

H [N, d, d], e [N, d], p [N] with sum 1, K[i] local steps, everybody in every round.
"""

import numpy as np


def optimum(H: np.ndarray, e: np.ndarray, p: np.ndarray) -> np.ndarray:
    """The minimiser of sum_i p_i F_i (Wang et al. 2020, appendix A)."""
    A = sum(p[i] * H[i] for i in range(len(p)))
    b = sum(p[i] * e[i] for i in range(len(p)))
    return np.linalg.solve(A, b)


def local_map(H_i: np.ndarray, tau: int, eta: float, mu: float) -> np.ndarray:
    """K_i(eta, mu) of Wang et al. 2020, eq. (21): y - x = K_i (e_i - H_i x) after tau steps."""
    eye = np.eye(len(H_i))
    M = eye - eta * mu * eye - eta * H_i
    return (eye - np.linalg.matrix_power(M, tau)) @ np.linalg.inv(H_i + mu * eye)


def fedavg_limit(H: np.ndarray, e: np.ndarray, p: np.ndarray, K: list[int], eta: float, mu: float = 0.0) -> np.ndarray:
    """Limit of FedAvg (mu = 0) and FedProx, Wang et al. 2020, eq. (28); any server step size."""
    maps = [local_map(H[i], K[i], eta, mu) for i in range(len(p))]
    A = sum(p[i] * maps[i] @ H[i] for i in range(len(p)))
    b = sum(p[i] * maps[i] @ e[i] for i in range(len(p)))
    return np.linalg.solve(A, b)


def fednova_limit(H: np.ndarray, e: np.ndarray, p: np.ndarray, K: list[int], eta: float, mu: float = 0.0) -> np.ndarray:
    """Limit of FedNova: eq. (28) with every K_i divided by ||a_i||_1; any tau_eff.

    a_i = (1 - eta mu)^(tau-1), ..., 1 - eta mu, 1 (Wang et al. 2020, appendix B.1).
    """
    a = [sum((1 - eta * mu) ** j for j in range(K[i])) for i in range(len(p))]
    maps = [local_map(H[i], K[i], eta, mu) / a[i] for i in range(len(p))]
    A = sum(p[i] * maps[i] @ H[i] for i in range(len(p)))
    b = sum(p[i] * maps[i] @ e[i] for i in range(len(p)))
    return np.linalg.solve(A, b)


def fedavg_m_limit(H: np.ndarray, e: np.ndarray, p: np.ndarray, K: list[int], eta: float, beta: float) -> np.ndarray:
    """Limit of FedAvg-M (uniform p): at rest g = 0, so every client runs SGD at beta * eta.

    Equal K_i: FedAvg's limit at beta * eta.  Unequal K_i: the client-wise division by eta K_i
    leaves the equation sum_i (x - y_i) / K_i = 0, which is FedNova's.
    """
    if len(set(K)) == 1:
        return fedavg_limit(H, e, p, K, beta * eta)
    return fednova_limit(H, e, p, K, beta * eta)


def lemma4_gradient_norm(tau1: int, tau2: int, a: float) -> float:
    """lim ||grad F||^2 (squared, as in the lemma) of Wang et al. 2020, Lemma 4, eqs. (117)-(120).

    F_1 = (x - a)^2 / 2 with tau1 local steps, F_2 = (x + a)^2 / 2 with tau2, equal weights; first
    T -> infinity, then eta -> 0.
    """
    x = (tau1 * a - tau2 * a) / (tau1 + tau2)
    return ((x - a) / 2 + (x + a) / 2) ** 2


def lemma4_chi_kappa(tau1: int, tau2: int, a: float, printed: bool = False) -> float:
    """chi^2_{p||w} kappa^2 of Wang et al. 2020, Lemma 4.

    kappa^2 is the w-weighted variance of the local gradients, w1 (2 w2 a)^2 + w2 (2 w1 a)^2
    = 4 w1 w2 a^2; eqs. (115)-(116) print 2 w1 w2 a^2.
    """
    w1, w2 = tau1 / (tau1 + tau2), tau2 / (tau1 + tau2)
    chi2 = (w1 - 1 / 2) ** 2 / w1 + (w2 - 1 / 2) ** 2 / w2
    kappa2 = 2 * w1 * w2 * a**2 if printed else w1 * (2 * w2 * a) ** 2 + w2 * (2 * w1 * a) ** 2
    return chi2 * kappa2
