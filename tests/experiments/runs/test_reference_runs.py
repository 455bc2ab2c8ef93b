"""References in a comparison: recorded, resumed, longer with it, and in the report."""

from pathlib import Path
from typing import Any

import pytest

import undrift as ud
from undrift.cli.options import make_experiment
from undrift.experiments.config import Experiment
from undrift.experiments.report import summarise, terminal_table, write_report
from undrift.experiments.report.references import client_table, list_references
from undrift.experiments.runs.directory import RunDirectory, open_directory
from undrift.experiments.runs.files import read_json
from undrift.experiments.runs.running import extend, prepare_directory, run_experiment

KINDS = ["centralised", "local-only", "fine-tuned"]
LABELS = ["fedavg", "scaffold", *KINDS]


def comparison(**more: Any) -> Experiment:
    given: dict[str, Any] = {
        "rounds": 3, "seeds": 1, "reference": KINDS, "algorithms": {"fedavg": {}, "scaffold": {}}, "threads": 1,
        "data": {"name": "synthetic", "clients": 6}, "local": {"steps": 2, "batch": 5, "lr": 0.01},
        "evaluation": {"metrics": ["test", "clients"]}, "engine": "sequential",
    }  # fmt: skip
    return Experiment(**(given | more))


def recorded(path: Path) -> dict[str, list[Any]]:
    return {label: RunDirectory(path / label / "seed-0").rounds() for label in LABELS}


def untimed(lines: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {label: [{k: v for k, v in r.items() if k != "seconds"} for r in rows] for label, rows in lines.items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("references") / "run"
    list(run_experiment(prepare_directory(comparison(), path)))
    return path


def test_a_comparison_has_its_references(whole: Path) -> None:
    rounds = recorded(whole)
    assert {label: len(rows) for label, rows in rounds.items()} == dict(zip(LABELS, (3, 3, 3, 3, 5), strict=True))
    assert all(r["bytes_up"] == r["bytes_down"] == 0 for kind in KINDS for r in rounds[kind])
    about = {kind: read_json(whole / kind / "seed-0" / "reference.json") for kind in KINDS}
    assert [about[kind]["gradients"] for kind in KINDS] == [3 * 6 * 2, 3 * 6 * 2, 5 * 6 * 2]
    assert about["fine-tuned"]["of"] in ("fedavg", "scaffold")


@pytest.mark.parametrize("after", [1, 8, 14])
def test_interrupted_and_resumed_it_is_the_same(whole: Path, tmp_path: Path, after: int) -> None:
    path = tmp_path / "run"
    updates = run_experiment(prepare_directory(comparison(), path))
    for _ in range(after):
        next(updates)
    updates.close()  # pyright: ignore[reportAttributeAccessIssue]
    list(run_experiment(open_directory(path)))
    assert untimed(recorded(path)) == untimed(recorded(whole))


def test_longer_runs_have_longer_references_and_another_model_to_fine_tune(tmp_path: Path) -> None:
    path = tmp_path / "run"
    list(run_experiment(prepare_directory(comparison(rounds=2), path)))
    start = (path / "fine-tuned" / "seed-0" / "start.safetensors").read_bytes()
    list(run_experiment(extend(open_directory(path), 3)))
    assert [len(rows) for rows in recorded(path).values()] == [3, 3, 3, 3, 5]
    best = read_json(path / "fine-tuned" / "seed-0" / "reference.json")["of"]
    model = (path / best / "seed-0" / "model.safetensors").read_bytes()
    assert start != (path / "fine-tuned" / "seed-0" / "start.safetensors").read_bytes() == model


def test_the_report_has_rows_lines_and_an_answer(whole: Path, tmp_path: Path) -> None:
    s = summarise([whole])
    assert [row.label for row in s.rows] == ["fedavg", "scaffold"]
    assert [row.label for row in list_references(s)] == KINDS
    for row in list_references(s):
        last = recorded(whole)[row.label][-1]
        assert row.mean == last["accuracy"]
    assert sum("local-only (every client alone" in sentence for sentence in s.answer) == 1
    assert [str(cell) for cell in terminal_table(s).columns[0]._cells] == LABELS
    table = client_table(s)
    assert table is not None and len(table.rows) == 6 and set(table.columns) == set(LABELS)
    page = write_report([whole], tmp_path).read_text()
    assert 'id="references"' in page and 'id="clients"' in page and '"references":[{"label":"centralised"' in page
    with pytest.raises(ud.InvalidInput, match="references are shown beside methods"):
        summarise([whole / "local-only"])


def test_names_of_references() -> None:
    e = make_experiment(["fedavg"], {"reference": ["local,centralised"]}, "x")
    assert e.reference == ["centralised", "local-only"]
    with pytest.raises(ud.InvalidInput, match="unknown reference 'central'.*centralised"):
        make_experiment(["fedavg"], {"reference": ["central"]}, "x")
