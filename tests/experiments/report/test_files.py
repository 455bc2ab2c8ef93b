"""Directories that become a report, and the files it consists of."""

import csv
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

import undrift as ud
from tests.support.run_directories import (
    BAD,
    FAST,
    SLOW,
    UP,
    page_data,
    printed_table,
    write_comparison,
    write_run,
)
from undrift.core.errors import InvalidInput
from undrift.experiments.report import summarise, write_report
from undrift.experiments.report.tables import _csv_cell, list_columns, summary_csv
from undrift.experiments.runs.running import prepare_directory, run_experiment


def test_the_order_is_the_experiments_and_its_baseline_and_target_count(tmp_path: Path) -> None:
    methods = {"zeta": [SLOW], "fedavg": [FAST], "alpha": [BAD]}
    root = write_comparison(tmp_path / "c", methods, baseline="alpha", target=0.55)
    s = summarise([root])
    assert [row.label for row in s.rows] == ["zeta", "fedavg", "alpha"]
    assert (s.baseline, s.target) == ("alpha", 0.55)
    assert summarise([root], baseline="zeta", target=0.2).baseline == "zeta"
    other = write_comparison(tmp_path / "d", {"zeta": [SLOW], "fedavg": [FAST]})
    assert summarise([other]).baseline == "fedavg"
    third = write_comparison(tmp_path / "e", {"zeta": [SLOW], "alpha": [FAST]})
    assert summarise([third]).baseline == "zeta"


def test_equal_labels_of_several_directories_are_told_apart(tmp_path: Path) -> None:
    one = write_comparison(tmp_path / "x" / "same", {"fedavg": [SLOW], "own": [FAST]})
    two = write_comparison(tmp_path / "y" / "same", {"fedavg": [FAST + FAST]})
    s = summarise([one, two])
    assert [row.label for row in s.rows] == ["fedavg (x/same)", "own", "fedavg (y/same)"]
    assert any("The experiments differ in rounds" in note for note in s.notes)
    assert s.last is None  # each run has its own, whoever stands beside it
    assert s.row("own").mean == summarise([one]).row("own").mean
    assert [row.label for row in summarise([one, one / "fedavg"]).rows] == ["fedavg", "own"]
    assert [row.label for row in summarise([tmp_path]).rows] == [row.label for row in s.rows]


def test_a_part_of_a_comparison_keeps_its_label(tmp_path: Path) -> None:
    root = write_comparison(tmp_path / "c", {"beta=0.1": [SLOW, SLOW], "beta=0.5": [FAST, FAST]})
    s = summarise([root / "beta=0.5" / "seed-1"])
    assert [(row.label, row.seeds) for row in s.rows] == [("beta=0.5", (1,))]


def test_a_run_alone_keeps_its_label(tmp_path: Path) -> None:
    """A run's experiment names its method in [algorithm], or by a label in [algorithms.LABEL]."""
    run = write_run(tmp_path / "r", SLOW)
    words = {"rounds": 10, "seeds": [3], "algorithms": {"strong": {"name": "fedavg"}}}
    (run / "experiment.toml").write_text(tomli_w.dumps(words))
    (row,) = summarise([run]).rows
    assert (row.label, row.seeds) == ("strong", (3,))
    (run / "experiment.toml").write_text(tomli_w.dumps(words | {"seeds": [3, 4]}))
    with pytest.raises(InvalidInput, match="does not describe a single run"):
        summarise([run])


def test_unfinished_runs_are_shown_and_named(tmp_path: Path) -> None:
    root = write_comparison(tmp_path / "c", {"fedavg": [SLOW, SLOW], "late": [SLOW, SLOW]})
    (root / "fedavg" / "seed-1" / "result.json").unlink()
    shutil.rmtree(root / "late" / "seed-1")
    (root / "late" / "seed-0" / "metrics.jsonl").write_text("")
    s = summarise([root])
    assert [row.label for row in s.rows] == ["fedavg"]
    notes = " ".join(s.notes)
    assert "fedavg (seed 1): 10 of 10 rounds" in notes
    assert "nothing is evaluated yet, so not shown: late (seed 0)" in notes
    assert "Not started yet: late (seed 1)" in notes
    assert any("Not all runs finished: fedavg" in sentence for sentence in s.answer)


def test_a_method_that_did_not_end_is_not_called_best(tmp_path: Path) -> None:
    root = write_comparison(tmp_path / "c", {"fedavg": [SLOW], "fast": [FAST]})
    (root / "fast" / "seed-0" / "result.json").unlink()
    s = summarise([root])
    assert s.best is s.row("fedavg")


def test_spreads_that_overlap_are_admitted(tmp_path: Path) -> None:
    near = {"fedavg": [[0.5], [0.7]], "other": [[0.6], [0.8]], "far": [[0.95], [0.96]]}
    s = summarise([write_comparison(tmp_path / "c", near)])
    assert not any("overlap" in sentence for sentence in s.answer)
    del near["far"]
    s = summarise([write_comparison(tmp_path / "d", near)])
    assert any("do not separate other from fedavg" in sentence for sentence in s.answer)
    single = {label: values[:1] for label, values in near.items()}
    s = summarise([write_comparison(tmp_path / "e", single)])
    assert any("one seed only" in sentence for sentence in s.answer)


def test_the_headline_says_best_and_price(tmp_path: Path) -> None:
    s = summarise([write_comparison(tmp_path / "c", {"fedavg": [SLOW], "fast": [FAST]})])
    assert s.answer[0] == (
        "fast ended best with 80.00 % accuracy (fedavg 60.00 %) "
        "and reached fedavg's final accuracy after 3 of 10 rounds, with 57.1 % fewer bytes than fedavg needed for it."
    )
    assert "Against all rounds of fedavg, as GHBM's Table 4 counts, fast needed 70.0 % fewer bytes for it." in s.answer
    s = summarise([write_comparison(tmp_path / "d", {"fedavg": [FAST], "slow": [SLOW]})])
    assert s.answer[0] == "No method beat the baseline fedavg, which ended at 80.00 % accuracy."


def test_the_terminals_table(tmp_path: Path) -> None:
    s = summarise([write_comparison(tmp_path / "c", {"fedavg": [SLOW], "fast": [FAST], "bad": [BAD]})])
    lines = printed_table(s).splitlines()
    words = "rounds to final fedavg's bytes to against method accuracy 60.00 % it fedavg"
    assert " ".join(lines[:3]).split() == words.split()
    _, fast, bad = lines[3:]
    assert fast.split() == ["fast", "80.00", "%", "3", "3.00", "kB", "−57.1", "%", "best"]
    assert bad.split()[3:] == "> 10 > 10.0 kB > +42.9 %".split()
    (whole,) = [column for column in list_columns(s) if column.name == "table4_bytes_change"]
    assert whole.text(s.row("bad")) == "> 0 %" and whole.text(s.row("fast")) == "−70.0 %"


def test_the_terminals_table_fits_a_usual_terminal(tmp_path: Path) -> None:
    label = "scaffold-m beta=0.1 lr=0.2"
    s = summarise([write_comparison(tmp_path / "c", {"fedavg": [SLOW] * 2, label: [FAST] * 2, "bad": [BAD] * 2})])
    printed = printed_table(s, width=80)
    assert "…" not in printed and all(
        word in printed for word in ("scaffold-m beta=0.1", "lr=0.2", "baseline", "± 0.00 %", "> +42.9 %")
    )


def test_a_single_method_is_not_compared_with_itself(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", SLOW)
    s = summarise([run])
    above, heading, line = (text.split() for text in printed_table(s).splitlines())
    assert above + heading == ["final", "method", "accuracy", "bytes"]
    assert line == ["fedavg", "60.00", "%", "10.0", "kB"]
    page = write_report([run], tmp_path / "out").read_text()
    assert "against baseline" not in page and "to fedavg" not in page
    (row,) = csv.DictReader((tmp_path / "out" / "summary.csv").read_text().splitlines())
    assert row["rounds_to_baseline"] == "7"  # summary.csv has the same columns for all to read


def test_a_column_has_a_name_of_its_own_and_a_place(tmp_path: Path) -> None:
    """Whatever is on the page or in the terminal is in summary.csv, too."""
    s = summarise([write_comparison(tmp_path / "c", {"fedavg": [SLOW], "fast": [FAST]})], target=0.5)
    columns = list_columns(s)
    names = [column.name for column in columns]
    assert len(set(names)) == len(names)
    header = summary_csv(s).splitlines()[0]
    assert header.split(",") == names
    assert {column.table for column in columns} == {"results"}  # nothing ran in virtual time


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"metric": "acuracy"}, "unknown metric 'acuracy'; did you mean 'accuracy'"),
        ({"baseline": "fedag"}, "unknown baseline 'fedag'; did you mean 'fedavg'"),
        ({"last": 0}, "last is a number of rounds from 1, got 0"),
        ({"target": math.nan}, "target is a share such as 0.9 or percent such as 90 of accuracy, got nan"),
        ({"target": 9500}, "target is a share such as 0.9 or percent such as 90 of accuracy, got 9500"),
        ({"target": -0.5}, "target is a share such as 0.9 or percent such as 90 of accuracy, got -0.5"),
    ],
)
def test_wrong_words_are_refused(tmp_path: Path, words: dict[str, Any], message: str) -> None:
    run = write_run(tmp_path / "r", SLOW)
    with pytest.raises(InvalidInput, match=message.split(";")[0]) as caught:
        write_report([run], tmp_path / "out", **words)
    assert message in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_directories_without_anything_to_report_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no run in .*empty: give directories"):
        summarise([tmp_path / "empty"])
    run = write_run(tmp_path / "r", [])
    with pytest.raises(InvalidInput, match="nothing is recorded yet in .*: wait"):
        summarise([run])
    (run / "experiment.toml").write_text("rounds = ")
    with pytest.raises(InvalidInput, match="experiment.toml is not TOML"):
        summarise([run])


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", SLOW)
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="the report cannot be written to .*file"):
        write_report([run], tmp_path / "file")


# the files


def test_the_tables_as_csv_and_the_picture(tmp_path: Path) -> None:
    root = write_comparison(tmp_path / "c", {"fedavg": [SLOW, SLOW], "=cmd": [FAST, FAST]})
    page = write_report([root], tmp_path / "out", target=0.7)
    assert page == tmp_path / "out" / "report.html"
    with (tmp_path / "out" / "summary.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == ["fedavg", "'=cmd"]  # no formula for a spreadsheet
    assert rows[0]["rounds_to_target"] == "" and rows[1]["rounds_to_target"] == "4"
    assert float(rows[1]["table4_bytes_change"]) == pytest.approx(3 / 10 - 1)
    assert float(rows[1]["bytes_change"]) == pytest.approx(3 / 7 - 1)
    with (tmp_path / "out" / "rounds.csv").open(newline="") as file:
        rounds = list(csv.DictReader(file))
    assert len(rounds) == 40
    assert rounds[2] == {
        "label": "fedavg",
        "seed": "0",
        "round": "3",
        "accuracy": "0.3",
        "bytes_down": "600",
        "bytes_up": "400",
        "seconds": "2.0",
        "cumulative_bytes": "3000",
    }
    picture = (tmp_path / "out" / "curves.png").read_bytes()
    assert picture.startswith(b"\x89PNG") and len(picture) > 5000


def test_a_real_run_becomes_a_report(tmp_path: Path) -> None:
    experiment = ud.Experiment(
        algorithms={"fedavg": {}, "strong": {"name": "scaffold-m", "beta": 0.5}},  # pyright: ignore[reportArgumentType]
        rounds=3,
        seeds=[0],
        clients={"partition": "dirichlet", "number": 10, "alpha": 0.2},  # pyright: ignore[reportArgumentType]
        participation={"per_round": 3},  # pyright: ignore[reportArgumentType]
        local={"steps": 1},  # pyright: ignore[reportArgumentType]
    )
    directory = prepare_directory(experiment, tmp_path / "runs")
    for _ in run_experiment(directory):
        pass
    s = summarise([tmp_path / "runs"])
    assert [row.label for row in s.rows] == ["fedavg", "strong"]
    assert [note.partition(":")[0] for note in s.notes] == ["One local step per round (fedavg and strong)"]
    lines = (tmp_path / "runs/fedavg/seed-0/metrics.jsonl").read_text().splitlines()
    recorded = [json.loads(line) for line in lines]
    assert s.row("fedavg").mean == recorded[-1]["accuracy"]
    sent = sum(line["bytes_down"] + line["bytes_up"] for line in recorded)
    assert s.row("fedavg").total.bytes == sent
    text = write_report([tmp_path / "runs"], tmp_path / "out").read_text()
    assert "10 clients hold" in text and "[algorithms.strong]" in text
    assert "<li>1 local step per round</li>" in text and "<li>engine batched</li>" in text


def test_long_curves_are_thinned_and_keep_their_end(tmp_path: Path) -> None:
    values = np.linspace(0, 0.9, 5000)
    run = write_run(tmp_path / "r", values.tolist())
    page = write_report([run], tmp_path / "out")
    (method,) = page_data(page)["methods"]
    assert len(method["rounds"]) == 400
    assert (method["rounds"][0], method["rounds"][-1]) == (1, 5000)
    assert method["metrics"]["accuracy"]["mean"][-1] == 0.9
    assert page.stat().st_size < 300_000


def test_virtual_time_is_an_axis_where_it_is_recorded(tmp_path: Path) -> None:
    clock = [1.5, 2.0, 4.0]
    timed = write_run(tmp_path / "timed", [0.1, 0.5, 0.9], virtual=clock)
    page = write_report([timed], tmp_path / "out", target=0.5)
    data = page_data(page)
    assert [axis["name"] for axis in data["axes"]] == ["rounds", "bytes", "seconds", "virtual"]
    assert data["methods"][0]["virtual"] == clock
    assert [metric["name"] for metric in data["metrics"]] == ["accuracy"]
    assert summarise([timed], target=0.5).rows[0].to_target.virtual == 2.0
    assert "virtual time" in page.read_text()
    plain = write_run(tmp_path / "plain", [0.1], name="other")
    both = page_data(write_report([timed, plain], tmp_path / "both"))
    assert [axis["name"] for axis in both["axes"]] == ["rounds", "bytes", "seconds"]


def test_uplink_bytes_are_an_axis_where_there_is_a_codec(tmp_path: Path) -> None:
    coded = write_run(tmp_path / "coded", [0.1, 0.5], extra={"codec": {"name": "top-k", "k": 0.1}})
    assert "codec top-k, k 0.1" in write_report([coded], tmp_path / "alone").read_text()
    plain = write_run(tmp_path / "plain", [0.1], name="other")
    both = page_data(write_report([coded, plain], tmp_path / "both"))
    assert [axis["name"] for axis in both["axes"]] == ["rounds", "bytes", "uplink", "seconds"]
    assert [method["uplink"] for method in both["methods"]] == [[UP, 2 * UP], [UP]]


@pytest.mark.parametrize("begin", ["=", "+", "-", "@", "\t", "\r", "\n"])
def test_no_cell_is_a_formula(begin: str) -> None:
    assert _csv_cell(f"{begin}cmd") == f"'{begin}cmd" and _csv_cell("fedavg") == "fedavg"
