"""Mistakes that are easily made in metrics of the theory, as one-line changes: every one must be caught."""

import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest

from tests.metrics.test_theory import EVERYWHERE, METHODS, expected, misses, runs
from undrift.metrics.registry import METRICS


@dataclass(frozen=True)
class Mutant:
    bug: str
    module: str
    right: str
    wrong: str


FURTHER = "torch.cat([_rows(a) - b for a, b in zip(y, self._start)], 1).double().square().sum(1)"
MUTANTS = [
    Mutant("k from 1 to K in drift", "undrift.core.observe", '"""The loop is over."""\n',
           f'"""The loop is over."""\n        self._squares = (0 if self._squares is None else self._squares) + {FURTHER}\n'),
    Mutant("clients that are done go on drifting", "undrift.core.observe", "> k\n        squares", ">= 0\n        squares"),
    Mutant("a sum over steps in place of their mean", "undrift.core.observe", "(squares / steps)", "(squares)"),
    Mutant("the same number of steps for all", "undrift.core.observe", "drift = (squares / steps)", "drift = (squares / steps.max())"),
    Mutant("drift weighted by p", "undrift.simulation.aggregation",
           "observed.drift[row, 0].item() for row", "weights[row] * observed.drift[row, 0].item() for row"),
    Mutant("w and p exchanged in chi2", "undrift.metrics.theory", "** 2 / w[there]", "** 2 / p[there]"),
    Mutant("steps without p in w", "undrift.metrics.theory", "p * a / (p @ a)", "a / a.sum()"),
    Mutant("normalised updates weighed by steps", "undrift.metrics.theory",
           "w = p if _normalises(probe.algorithm) else", "w ="),
    Mutant("tau_eff without weights", "undrift.metrics.theory", "return float(p @ a)", "return float(a.mean())"),
    Mutant("g of the round before", "undrift.simulation.driver", "server=after.server,", "server=before.server,"),
    Mutant("the gradient at the new model", "undrift.metrics.registry", "(self.x_before, self.problem", "(self.x_after, self.problem"),
    Mutant("control variates of visited clients only", "undrift.metrics.gradients", "None if controls is None else error / N",
           "None if controls is None else error / 3"),
    Mutant("dissimilarity without p", "undrift.metrics.gradients", "p = float(problem.weights[i])", "p = 1 / N"),
    Mutant("a window one round too long", "undrift.metrics.theory", "pseudo_gradients[-tau:]", "pseudo_gradients[-tau - 1 :]"),
    Mutant("the sum of a window, not its mean", "undrift.metrics.theory", "/ tau - G)", "- G)"),
    Mutant("tau_error not squared below", "undrift.metrics.theory", ".square().sum()) / length", ".square().sum()) / length**0.5"),
    Mutant("all clients weigh the same in G", "undrift.simulation.transport",
           'return plan.participants(replace(exchange, to="everyone"), Draw(()), key)',
           'return replace(plan.participants(replace(exchange, to="everyone"), Draw(()), key), weights=[1.0] * plan.problem.N)'),
]  # fmt: skip


def use(mutant: ModuleType, original: ModuleType, patch: pytest.MonkeyPatch) -> None:
    """Put the mutant's functions and methods wherever the original's are known."""
    for name, value in vars(mutant).items():
        if isinstance(value, type) and value.__module__ == original.__name__:
            for member in ("end", "step", "seen", "of", "gradients"):
                if member in vars(value):
                    patch.setattr(getattr(original, name), member, vars(value)[member])
        elif isinstance(value, FunctionType) and value.__module__ == original.__name__:
            right = vars(original)[name]
            for module in [m for m in sys.modules.values() if m.__name__.startswith("undrift")]:
                if vars(module).get(name) is right:
                    patch.setattr(module, name, value)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.bug)
def test_every_mistake_is_caught(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    original: Any = import_module(mutant.module)
    source = Path(original.__file__).read_text()
    assert source.count(mutant.right) == 1, f"{mutant.module} must contain this once: {mutant.right!r}"
    known = dict(METRICS)
    wrong = ModuleType(mutant.module)
    monkeypatch.setitem(sys.modules, mutant.module, wrong)
    exec(compile(source.replace(mutant.right, mutant.wrong), mutant.module, "exec"), wrong.__dict__)
    monkeypatch.setitem(sys.modules, mutant.module, original)
    try:
        use(wrong, original, monkeypatch)
        off: list[str] = []
        for method in METHODS:
            found = runs(method, "batched", 3, (*EVERYWHERE, *METHODS[method][1]))
            off += misses(found, expected(method, found)[1])
        assert off
    finally:
        METRICS.clear()
        METRICS.update(known)


def test_the_originals_are_not() -> None:
    for method in METHODS:
        found = runs(method, "batched", 3, (*EVERYWHERE, *METHODS[method][1]))
        assert misses(found, expected(method, found)[1]) == []
