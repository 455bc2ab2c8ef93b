"""Whether more of a metric is better: said where it is defined, kept with the runs, never guessed."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import undrift as ud
from tests.support.run_directories import write_comparison
from undrift.experiments.report import summarise
from undrift.metrics.quality import SAID, higher_is_better
from undrift.metrics.registry import METRICS


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    """What a test registers and says is forgotten after it."""
    known, said = dict(METRICS), dict(SAID)
    SAID.clear()
    yield
    for now, before in ((METRICS, known), (SAID, said)):
        now.clear()
        now.update(before)  # pyright: ignore


def test_it_is_said_with_the_metric() -> None:
    @ud.metric("dice", higher=True)
    def dice_of(probe: ud.Probe) -> float:
        return 0.5

    @ud.metric(higher={"overlap": True, "hausdorff": False})
    def masks(probe: ud.Probe) -> dict[str, float]:
        return {"overlap": 0.5, "hausdorff": 3.0}

    assert dice_of.__name__ == "dice_of" and METRICS["dice"] is dice_of and METRICS["masks"] is masks
    names = ("dice", "dice_of", "overlap", "hausdorff", "masks")
    assert [higher_is_better(name) for name in names] == [True, True, True, False, None]


@pytest.mark.parametrize("higher", ["yes", 1, {"dice": "yes"}])
def test_it_is_yes_or_no(higher: Any) -> None:
    with pytest.raises(ud.InvalidInput, match="higher is True, False or a dict of them"):
        ud.metric("dice", higher=higher)


def scored(tmp_path: Path, higher: bool | None) -> Path:
    """Two methods that end at 0.2 and 0.8 of a metric that is not the package's."""
    path = write_comparison(tmp_path / "runs", {"fedavg": [[0.3, 0.2]], "scaffold": [[0.5, 0.8]]})
    for found in path.rglob("metrics.jsonl"):
        found.write_text(found.read_text().replace('"accuracy"', '"dice"'))
    for found in path.rglob("manifest.json"):
        about = json.loads(found.read_text()) | ({} if higher is None else {"higher": {"dice": higher}})
        found.write_text(json.dumps(about))
    return path


@pytest.mark.parametrize("higher, best", [(True, "scaffold"), (False, "fedavg")])
def test_runs_know_it_without_the_definition(tmp_path: Path, higher: bool, best: str) -> None:
    s = summarise([scored(tmp_path, higher)], metric="dice")
    assert s.best is not None and s.best.label == best


def test_nothing_is_ranked_where_nobody_said_it(tmp_path: Path) -> None:
    s = summarise([scored(tmp_path, None)], metric="dice", target=0.5)
    assert s.best is None and all(row.to_target.reached is None for row in s.rows)
    said = " ".join(s.answer)
    assert '@ud.metric("dice", higher=True)' in said and "fedavg at 0.2000 and scaffold at 0.8000" in said
    assert not any(word in said for word in ("ended best", "beat", "reached", "against"))


@pytest.mark.parametrize("higher, best", [(True, "scaffold"), (False, "fedavg")])
def test_a_report_can_be_told(tmp_path: Path, higher: bool, best: str) -> None:
    s = summarise([scored(tmp_path, None)], metric="dice", higher=higher)
    assert s.best is not None and s.best.label == best


def test_a_run_directory_records_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import undrift as ud\n"
        "@ud.metric('dice', higher=True)\n"
        "def dice(probe):\n"
        "    return float(probe.x_after.norm())\n"
    )
    made = ud.Experiment(
        algorithms=["fedavg", "scaffold"], data={"name": "digits"}, rounds=2, use=[str(file)],
        evaluation={"metrics": ["test", "dice"]},
    )  # fmt: skip
    made.run(tmp_path / "run", progress=False)
    SAID.clear()
    s = summarise([tmp_path / "run"], metric="dice")
    assert s.higher is True and s.best is max(s.rows, key=lambda row: row.mean)
    summarise([tmp_path / "run"], metric="dice", higher=False)
    assert higher_is_better("dice") is False


@pytest.mark.parametrize("flag, best", [("--higher", "scaffold"), ("--lower", "fedavg")])
def test_the_command_can_be_told(undrift: Any, tmp_path: Path, flag: str, best: str) -> None:
    path = str(scored(tmp_path, None))
    done = undrift("report", path, "--metric", "dice", flag)
    assert done.code == 0
    words = {"scaffold": "scaffold ended best", "fedavg": "No method beat the baseline fedavg"}
    assert words[best] in done.out
