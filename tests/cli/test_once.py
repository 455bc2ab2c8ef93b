"""A comparison is read, built and decided once in its process."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from undrift.cli import app  # noqa: F401 (its defaults are validated when it is loaded)
from undrift.experiments.config import federation
from undrift.experiments.config.experiment import Experiment
from undrift.simulation import api

SMALL = ["--rounds", 2, "--steps", 1, "--batch", 5, "-q", "--jobs", 1]


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often an experiment was validated, a federation built, an engine chosen."""
    counts: Counter[str] = Counter()

    def counted(owner: Any, name: str, kind: str, counts_if: Any = lambda *_: True) -> None:
        real = vars(owner)[name]

        def call(*args: Any, **words: Any) -> Any:
            counts[kind] += bool(counts_if(words))
            return real(*args, **words)

        monkeypatch.setattr(owner, name, call)

    monkeypatch.setattr(
        Experiment,
        "__init__",
        lambda self, **words: (
            counts.update(["validated"]),
            super(Experiment, self).__init__(**words),
        )[1],
    )
    counted(federation, "federate", "built")
    counted(api, "choose_engine", "chosen", lambda words: isinstance(words["engine"], str))
    return counts


@pytest.mark.parametrize(("seeds", "built"), [(1, 1), (2, 2)])
def test_once_in_a_process(undrift, counts: Counter[str], seeds: int, built: int) -> None:
    said = undrift("compare", "fedavg", "scaffold", *SMALL, "--seeds", seeds)
    assert said.code == 0, said.err
    assert counts == {"validated": 1, "built": built, "chosen": 1}


def test_changes_of_a_file_are_validated_with_it(undrift, counts: Counter[str], tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text('engine = "batched"\n[algorithms.fedavg]\n[algorithms.ghbm]\n')
    said = undrift("run", "e.toml", "--set", "rounds=2", "--engine", "sequential", "-q", "--jobs", 1)
    assert said.code == 0, said.err
    assert counts == {"validated": 1, "built": 1, "chosen": 1}
    assert 'name = "sequential"' in (tmp_path / "runs/e/experiment.toml").read_text()
