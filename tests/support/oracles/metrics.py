"""The metrics of the theory on quadratics f_i(y) = y'H_i y / 2 - e_i'y, written out literally beside five methods."""

from typing import Any

import numpy as np


def literal_metrics(
    method: str, H: np.ndarray, e: np.ndarray, p: np.ndarray, steps: list[int], lr: float, cohorts: Any, *,
    beta: float = 0.0, tau: int = 1, taus: tuple[int, ...] = (1,),
) -> tuple[list[np.ndarray], list[dict[str, float]]]:  # fmt: skip
    """Models after every round, and metrics."""
    N, d = e.shape
    x, g, c, ci = np.zeros(d), np.zeros(d), np.zeros(d), np.zeros((N, d))
    past: list[np.ndarray] = []  # models before every round so far
    pseudo: list[np.ndarray] = []
    models, found = [], []

    def visit(i: int) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
        """y_0 .. y_K, the mean of the raw gradients, the mean of the directions."""
        y, K = x.copy(), steps[i]
        ys, raw, directions = [y], np.zeros(d), np.zeros(d)
        for _ in range(K):
            grad = H[i] @ y - e[i]
            if method == "fedavg" or method == "ghbm":
                direction = grad
            elif method == "scaffold":
                direction = grad - ci[i] + c
            elif method == "fedavg-m":
                direction = beta * grad + (1 - beta) * g
            else:
                direction = beta * (grad - ci[i] + c) + (1 - beta) * g
            y = y - lr * direction
            if method == "ghbm" and len(past) >= tau:
                y = y + beta / (tau * K) * (x - past[len(past) - tau])
            ys.append(y)
            raw, directions = raw + grad / K, directions + direction / K
        return ys, raw, directions

    for cohort in cohorts:
        who = list(cohort)
        weights = p[who] / p[who].sum()
        visits = {i: visit(i) for i in range(N)}
        total = np.sum([p[i] * (x - visits[i][0][-1]) for i in range(N)], axis=0)  # of all clients, at the same model
        start = x
        pseudo.append(np.sum([w * (x - visits[i][0][-1]) for w, i in zip(weights, who, strict=True)], axis=0))
        drift = 0.0
        for i in who:
            ys = visits[i][0]
            drift += sum(float((ys[k] - x) @ (ys[k] - x)) for k in range(steps[i])) / steps[i] / len(who)
        K = sum(w * steps[i] for w, i in zip(weights, who, strict=True))
        past.append(x)
        if method in ("fedavg-m", "scaffold-m"):
            g = np.sum([w * visits[i][2] for w, i in zip(weights, who, strict=True)], axis=0)
            x = x - lr * K * g
        else:
            x = x - pseudo[-1]
        for i in who:
            c = c + p[i] * (visits[i][1] - ci[i])
            ci[i] = visits[i][1]
        grads = np.stack([H[i] @ start - e[i] for i in range(N)])
        mean = p @ grads
        norm_of_implied = np.array([w * steps[i] for w, i in zip(weights, who, strict=True)])
        implied = weights if method in ("fedavg-m", "scaffold-m") else norm_of_implied / norm_of_implied.sum()
        metrics = {
            "drift": drift,
            "dissimilarity": sum(p[i] * float((grads[i] - mean) @ (grads[i] - mean)) for i in range(N)),
            "tau_eff": K,
            "chi2": float(((weights - implied) ** 2 / implied).sum()),
        }
        if method in ("fedavg-m", "scaffold-m"):
            metrics["momentum_error"] = float((g - mean) @ (g - mean))
        if method in ("scaffold", "scaffold-m"):
            metrics["control_error"] = sum(float((ci[i] - grads[i]) @ (ci[i] - grads[i])) for i in range(N)) / N
        for window in taus:
            if len(pseudo) >= window:
                away = np.sum(pseudo[-window:], axis=0) / window - total
                metrics[f"tau_error:{window}"] = float(away @ away / (total @ total))
        models.append(x)
        found.append(metrics)
    return models, found
