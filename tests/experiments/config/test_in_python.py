"""Experiments written in Python: refused as plainly as files, and with modules of their own."""

from pathlib import Path
from typing import Any

import pytest

import undrift as ud
from undrift.experiments.config.toml import to_toml

MODULE = """
import undrift as ud
from undrift.algorithms.fedavg import FedAvg

@ud.metric("moved-by")
def moved(probe):
    return float((probe.x_after - probe.x_before).norm())
"""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"algoritms": {}}, "unknown key 'algoritms'; did you mean 'algorithms'?"),
        ({"algorithm": "fedavg", "rounds": 0}, "rounds must be at least 1, got 0"),
        ({"algorithms": "fedavg"}, "algorithms must be a section of keys and values"),
        ({"algorithms": ["fedavg", ud.FedAvg()]}, "algorithms are different methods, or a section"),
        ({"algorithms": [3]}, "algorithms are different methods, or a section"),
        (
            {"algorithm": "fedavg", "seeds": "3"},
            "seeds are a number of them, or different whole numbers from 0; got '3'",
        ),
        ({"algorithm": "fedavg", "local": {"lrr": 1}}, r"unknown key of \[local\]: 'lrr'; did you mean 'lr'?"),
        ({"algorithm": {"name": "scaffold-m", "beta": 3}}, r"scaffold-m: beta must lie in \(0, 1\], got 3"),
    ],
)
def test_what_is_wrong_is_one_line(words: dict[str, Any], message: str) -> None:
    with pytest.raises(ud.InvalidInput, match=message) as caught:
        ud.Experiment(**words)
    assert "pydantic" not in str(caught.value) and "\n" not in str(caught.value)


def test_sections_may_be_objects() -> None:
    given = ud.Experiment(
        algorithms=["fedavg", ud.AutonomousFedGM(ud.FedGM(nu=0.5))],
        clients=ud.Dirichlet(20, alpha=0.3),
        participation=ud.Cyclic(5),
        codec=ud.TopK(0.1),
        local=ud.Local(steps=3, batch=32),
    )
    words = ud.Experiment(
        algorithms={"fedavg": {}, "autonomous-fedgm": {"schedule": {"name": "fedgm", "nu": 0.5}}},
        clients={"partition": "dirichlet", "number": 20, "alpha": 0.3},
        participation={"scheme": "cyclic", "per_round": 5},
        codec={"name": "top-k", "k": 0.1},
        local={"steps": 3},
    )
    assert to_toml(given) == to_toml(words) and repr(given) == repr(words)
    assert given.participation.make() == ud.Cyclic(5)
    assert repr(words).startswith("Experiment(clients={'number': 20, 'alpha': 0.3}, model={'name': 'mlp'")


def test_few_clients_all_take_part() -> None:
    few = ud.Experiment(algorithm="fedavg", clients=ud.Dirichlet(5, alpha=1.0))
    assert few.participation.per_round == 5
    assert ud.Experiment(algorithm="fedavg").participation.per_round == 10


def test_help_tells_every_key() -> None:
    about = ud.Experiment.__doc__ or ""
    for key in ud.Experiment.model_fields:
        (line,) = [line for line in about.splitlines() if line.startswith(f"    {key:<18}")]
        assert len(line.split()) > 2, key


def test_a_module_beside_the_script_is_found_from_the_run_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MODULE)
    experiment = ud.Experiment(
        use=["mine.py"],
        algorithm="fedavg",
        rounds=1,
        clients={"number": 5, "alpha": 0.5},
        participation={"per_round": 2},
        evaluation={"metrics": ["test", "moved-by"]},
    )
    assert experiment.run("run").history[-1].metrics["moved-by"] > 0
    monkeypatch.chdir("/")
    assert ud.load_run(tmp_path / "run")
