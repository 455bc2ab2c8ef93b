"""What the documents say is so: examples run, tests they name exist."""

import pkgutil
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import undrift as ud
from tests.support.oracles.world import make_world
from tests.support.toy_problem import WorldProblem, gap, path
from undrift.core.hyper import METHODS

ROOT = Path(__file__).parents[2]


def blocks(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), flags=re.DOTALL)


def test_the_readmes_example_runs() -> None:
    (example,) = blocks("README.md")
    assert len(example.strip().splitlines()) <= 12
    names: dict[str, Any] = {}
    exec(example, names)
    assert names["result"].history[-1].metrics["accuracy"] > 0.7


def test_the_readme_is_one_screen_and_names_the_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 50
    assert "make demo" in text and "make test" in text


def test_the_method_of_contributing_works() -> None:
    (file,) = blocks("CONTRIBUTING.md")
    code = [line for line in file.split('"""')[2].splitlines() if line.strip()]
    assert len(code) <= 25
    names: dict[str, Any] = {"__name__": "undrift.algorithms.fedavg"}
    try:
        exec(file, names)
        ours = ud.method("slowmo", alpha=0.8, beta=0.6)
    finally:
        METHODS.pop("slowmo", None)
    problem, local = WorldProblem(make_world()), ud.Local(steps=3, lr=0.05)
    theirs = ud.FedAvgM(eta=0.8, beta=0.6, dampened=False)
    a, b = (path(x, problem, rounds=10, local=local) for x in (ours, theirs))
    assert gap(a, b) < 1e-12
    assert np.abs(a[-1] - a[0]).max() > 0.1


def test_errata_name_tests_that_exist() -> None:
    text = (ROOT / "docs" / "errata.md").read_text()
    assert [int(n) for n in re.findall(r"^## (\d+)\.", text, flags=re.MULTILINE)] == list(
        range(1, 21)
    )
    source = "\n".join(p.read_text() for p in (ROOT / "tests").rglob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)", text)) - {"test_equivalence", "test_mutant_is_caught"}
    assert len(named) > 15
    for test in named:
        assert f"def {test}(" in source or f"{test}.py" in text, test
    for bug in re.findall(r"`([^`\n]*\(RickZack[^`\n]*)`", text):
        assert f'"{bug}"' in source, bug


def test_every_errata_test_is_in_the_errata() -> None:
    text = (ROOT / "docs" / "errata.md").read_text()
    source = (ROOT / "tests" / "algorithms" / "test_errata.py").read_text()
    for test in re.findall(r"^def (test_\w+)\(", source, flags=re.MULTILINE):
        assert f"`{test}`" in text, test


def test_no_module_hides_a_public_name() -> None:
    """A module takes the place of a name like its own when it is imported later than the name is given."""
    for found in pkgutil.walk_packages(ud.__path__, "undrift."):
        if not found.name.endswith("__main__"):
            import_module(found.name)
    hidden = [name for name in ud.__all__ if isinstance(getattr(ud, name), ModuleType)]
    assert hidden == ["models"]
