"""What the papers' proofs follow: drift, errors of momentum and of control variates, dissimilarity, unequal work.

x is the server's model before the round, f_i includes the weight decay of `ud.Local` if there is one.

    drift            (1/S) sum_i (1/K_i) sum_k |y_{i,k} - x|^2, k = 0..K_i - 1, over the round's cohort   U_r, Cheng et al.
    momentum_error   |g - grad f(x)|^2, g the direction that the server has just formed                   E_r, Cheng et al.
    control_error    (1/N) sum_i |c_i - grad f_i(x)|^2 over all clients, after the round                  V_r, Cheng et al.
    dissimilarity    sum_i p_i |grad f_i(x) - grad f(x)|^2
    gradient         |grad f| at the model after the round, recorded as grad_norm
    tau_eff          sum_i p_i |a_i|_1 over the cohort, the mean number of steps                          Wang et al. (121)
    chi2             sum_i (p_i - w_i)^2 / w_i over the cohort, w_i the weights that steps imply          Wang et al. (103)
    tau_error        |mean of the last tau rounds' pseudo-gradients - G|^2 / |G|^2, G that of all clients   Zaccone et al. Fig. 1

p_i are the weights of the round's mean, which sum to one; |a_i|_1 is the number of steps, or with local momentum or a proximal
term what its linear solver makes of gradients that are all 1 (Wang et al., appendix B).  The mean pseudo-gradient of a round is that of x - y over its
cohort; G is what it would have been with all clients, from the same model, states and minibatches.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from undrift.core.algorithm import AveragesRounds, HasControls, HasDirection, HasSolver, MayNormalise
from undrift.core.errors import InvalidInput
from undrift.core.hyper import spec_of
from undrift.core.optimiser import Optimiser
from undrift.core.rng import Key
from undrift.core.work import Ones, Solver, Work
from undrift.metrics.gradients import gradients_at
from undrift.metrics.personal import fine_tuned, lora_bias, not_of_adapters, not_of_clients
from undrift.metrics.registry import METRICS, Metric, Probe, metric
from undrift.problems import Problem
from undrift.problems.protocols import HasFullGradient

Numbers: TypeAlias = float | dict[str, float]
NOTHING: dict[str, float] = {}  # in a round in which the server did not step


@dataclass(frozen=True)
class Run:
    """What a metric may be refused for."""

    algorithm: Any
    problem: Problem
    rounds: int
    optimiser: Optimiser | None


@metric("drift")
def drift(probe: Probe) -> Numbers:
    return NOTHING if probe.drift is None else probe.drift


@metric("momentum_error")
def momentum_error(probe: Probe) -> Numbers:
    if probe.cohort is None:
        return NOTHING
    g = probe.algorithm.direction(probe.server)
    return float((g - probe.gradients.mean).square().sum())


@metric("control_error")
def control_error(probe: Probe) -> Numbers:
    assert probe.gradients.control_error is not None
    return probe.gradients.control_error


@metric("dissimilarity")
def dissimilarity(probe: Probe) -> Numbers:
    return probe.gradients.dissimilarity


@metric("gradient")
def gradient(probe: Probe) -> Numbers:
    """Of problems that do not record it themselves."""
    return {"grad_norm": float(gradients_at(probe.x_after, probe.problem, 0.0, None).mean.norm())}


@metric("tau_eff")
def tau_eff(probe: Probe) -> Numbers:
    if probe.cohort is None:
        return NOTHING
    p, a = _work(probe)
    return float(p @ a)


@metric("chi2")
def chi2(probe: Probe) -> Numbers:
    if probe.cohort is None:
        return NOTHING
    p, a = _work(probe)
    w = p if _normalises(probe.algorithm) else p * a / (p @ a)
    there = w > 0  # who has no weight has none in both
    return float(((p - w)[there] ** 2 / w[there]).sum())


@metric("tau_error")
def tau_error(probe: Probe) -> Numbers:
    return error_of_window(probe, probe.algorithm.averaged_rounds)


def error_of_window(probe: Probe, tau: int) -> Numbers:
    past, G = probe.pseudo_gradients[-tau:], probe.pseudo_gradient_of_all
    if len(past) < tau or G is None or not (length := float(G.square().sum())):
        return NOTHING  # too few rounds so far, or nothing to compare with
    return float((sum(past[1:], past[0]) / tau - G).square().sum()) / length


def _work(probe: Probe) -> tuple[np.ndarray, np.ndarray]:
    """Of each client of the cohort its weight p_i and |a_i|_1."""
    cohort, algorithm, solver = probe.cohort, probe.algorithm, probe.solver
    assert cohort is not None and cohort.steps is not None
    steps = cohort.steps.double()
    if isinstance(algorithm, HasSolver) or solver.optimiser is not None:
        steps = _lengths(algorithm, solver, cohort.steps.tolist())
    return cohort.weights.numpy(), steps.numpy()


def _lengths(algorithm: Any, solver: Solver, steps: Sequence[int]) -> Tensor:
    """|a_i|_1: how far the local steps go on a model of one number whose gradient is 1, in units of lr."""
    ones: Any = Ones(torch.zeros(1, dtype=torch.float64))
    solver = replace(solver, lr=solver.lr or 1e-9)  # at lr = 0 its limit
    work = Work(ones, solver, range(len(steps)), [int(K) for K in steps], Key(0, round=1), single=False).unit
    solve = algorithm.solve if isinstance(algorithm, HasSolver) else _steps_of_optimiser
    return -solve(work, work.zero).squeeze(1) / work.lr


def _steps_of_optimiser(work: Work, x: Tensor) -> Tensor:
    return work.loop(lambda y: work.step(y, work.grad(y)), x)


def _normalises(algorithm: Any) -> bool:
    return algorithm.normalises if isinstance(algorithm, MayNormalise) else spec_of(algorithm).normalises


# who is refused


def _of_local_models(name: str, run: Run) -> str | None:
    spec = spec_of(run.algorithm)
    return None if spec.local_models else f"{spec.name} has no local models"


def _of_gradients(name: str, run: Run) -> str | None:
    lacking = f"{type(run.problem).__name__} has no full_grad(y, clients), the gradients of clients' objectives"
    return None if isinstance(run.problem, HasFullGradient) else lacking


def _of_direction(name: str, run: Run) -> str | None:
    if not isinstance(run.algorithm, HasDirection):
        return f"the server of {spec_of(run.algorithm).name} keeps no direction that estimates the gradient of f"
    return _of_gradients(name, run)


def _of_controls(name: str, run: Run) -> str | None:
    if not isinstance(run.algorithm, HasControls):
        return f"clients of {spec_of(run.algorithm).name} keep no control variates"
    return _of_gradients(name, run)


def _of_work(name: str, run: Run) -> str | None:
    if run.optimiser is not None and not run.optimiser.linear:
        return "it counts the steps of a linear client optimiser, 'sgd', 'momentum' or 'nesterov'"
    return _of_local_models(name, run)


def _of_window(name: str, run: Run) -> str | None:
    tau = window_of(name, run.algorithm)
    if tau is None:
        return f"{spec_of(run.algorithm).name} has no tau: name one, as in 'tau_error:10'"
    if tau > run.rounds:
        return f"tau = {tau} is more than the run has rounds, {run.rounds}"
    return _of_local_models(name, run)


REFUSALS: dict[str, Callable[[str, Run], str | None]] = {
    "drift": _of_local_models,
    "momentum_error": _of_direction,
    "control_error": _of_controls,
    "dissimilarity": _of_gradients,
    "gradient": _of_gradients,
    "tau_eff": _of_work,
    "chi2": _of_work,
    "tau_error": _of_window,
    "clients": not_of_clients,
    "fine-tuned": not_of_clients,
    "lora_bias": not_of_adapters,
}


NUMBERED: dict[str, tuple[str, Callable[..., Any]]] = {
    "tau_error": ("tau is a number of rounds", error_of_window),
    "fine-tuned": ("steps is a number of local steps", fine_tuned),
    "lora_bias": ("steps is a number of local steps", lora_bias),
}


def find_metric(name: str) -> Metric | None:
    """The registered metric of a name, also "tau_error:10" or "fine-tuned:5"; None if there is none.

    >>> find_metric("drift") is drift, find_metric("speed")
    (True, None)
    """
    base, colon, number = name.partition(":")
    if not colon or base not in NUMBERED:
        return METRICS.get(name)
    what, function = NUMBERED[base]
    if not number.isdecimal() or not int(number):
        raise InvalidInput(f"metric {name!r}: {what}, at least 1, as in '{base}:10'")
    return partial(function, **{what.split()[0]: int(number)})


def check_metric(name: str, run: Run) -> None:
    """Raise InvalidInput if a metric of the theory cannot be recorded in a run."""
    refuse = REFUSALS.get(name.partition(":")[0])
    why = None if refuse is None else refuse(name, run)
    if why:
        raise InvalidInput(f"metric {name!r} cannot be recorded: {why}")


def window_of(name: str, algorithm: Any) -> int | None:
    """Of how many rounds a metric needs the pseudo-gradients: 0 for most, None if the method does not tell.

    >>> window_of("tau_error:10", None), window_of("drift", None)
    (10, 0)
    """
    base, _, tau = name.partition(":")
    if base != "tau_error":
        return 0
    if tau:
        return int(tau)
    return int(algorithm.averaged_rounds) if isinstance(algorithm, AveragesRounds) else None
