"""The report: hand-computed numbers, every kind of run directory, and the page in a browser."""

import csv
import io
import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

import undrift as ud
from undrift.core.errors import InvalidInput
from undrift.experiments.report import Summary, summarise, terminal_table, write_report
from undrift.experiments.report.load import load_runs
from undrift.experiments.report.stats import Cost, cost_by_share, first_round, mean_curve
from undrift.experiments.report.tables import list_columns, summary_csv
from undrift.experiments.report.text import write_remarks
from undrift.experiments.runs.running import carried_out, prepared

DOWN, UP = 600, 400  # bytes a round, unless a test says otherwise
FEDERATION = {
    "clients": 4,
    "samples": 60,
    "parameters": 10,
    "heterogeneity": {
        "smallest": 10,
        "median": 15.0,
        "largest": 20,
        "classes": 3,
        "classes_held": 1.5,
        "divergence": 0.4,
    },
    "sizes": [10, 14, 16, 20],
    "label_shares": [[1.0, 0.0, 0.0], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0], [0.2, 0.3, 0.5]],
    "checksums": {"train": "ab" * 32},
}


def write_run(
    path: Path,
    accuracies: Sequence[float | None],
    *,
    name: str = "fedavg",
    seed: int = 0,
    planned: int | None = None,
    every: int = 1,
    ended: bool = True,
    stopped: str | None = None,
    down: Sequence[int] | None = None,
    seconds: float = 2.0,
    extra: Mapping[str, Any] | None = None,
    virtual: Sequence[float] | None = None,
    metric: str = "accuracy",
) -> Path:
    """A run directory with the given values of a metric, one every so many rounds."""
    rounds = len(accuracies) * every
    words = {
        "rounds": planned or rounds,
        "seeds": [seed],
        "data": {"name": "made"},
        "clients": {"partition": "iid", "number": 4},
        "evaluation": {"every": every},
        "algorithm": {"name": name},
        **(extra or {}),
    }
    (path / "checkpoints").mkdir(parents=True)
    (path / "experiment.toml").write_text(tomli_w.dumps(words))
    (path / "manifest.json").write_text(json.dumps({"command": "undrift run it", "python": "3"}))
    (path / "federation.json").write_text(json.dumps(FEDERATION))
    lines, times = [], []
    for r in range(1, rounds + 1):
        line: dict[str, Any] = {"round": r, "participants": 2, "left_out": []}
        line |= {"bytes_down": down[r - 1] if down else DOWN, "bytes_up": UP}
        if r % every == 0:
            line[metric] = accuracies[r // every - 1]
        if virtual is not None:
            line["virtual_seconds"] = virtual[r - 1]
        lines.append(json.dumps(line) + "\n")
        times.append(json.dumps({"round": r, "seconds": seconds}) + "\n")
    (path / "metrics.jsonl").write_text("".join(lines))
    (path / "times.jsonl").write_text("".join(times))
    if ended:
        (path / "result.json").write_text(json.dumps({"rounds": rounds, "stopped": stopped}))
    return path


def write_comparison(
    path: Path, methods: Mapping[str, Sequence[Sequence[float | None]]], **words: Any
) -> Path:
    """A comparison: for each label the metric of each seed."""
    seeds = max(len(each) for each in methods.values())
    rounds = max(len(values) for each in methods.values() for values in each)
    path.mkdir(parents=True)
    experiment = {
        "rounds": rounds,
        "seeds": list(range(seeds)),
        "data": {"name": "made"},
        "clients": {"partition": "iid", "number": 4},
        **words,
        "algorithms": {label: {"name": "fedavg"} for label in methods},
    }
    (path / "experiment.toml").write_text(tomli_w.dumps(experiment))
    (path / "manifest.json").write_text(json.dumps({"command": "undrift compare", "python": "3"}))
    for label, curves in methods.items():
        for seed, values in enumerate(curves):
            write_run(path / label / f"seed-{seed}", values, seed=seed, planned=rounds)
    return path


SLOW = [0.1, 0.2, 0.3, 0.4, 0.5, 0.5, 0.6, 0.6, 0.6, 0.6]
FAST = [0.2, 0.4, 0.6, 0.7, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8]
BAD = [0.1, 0.1, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.3, 0.3]


# the numbers


def test_final_quality_is_the_mean_of_the_last_rounds_over_seeds(tmp_path: Path) -> None:
    runs = write_comparison(tmp_path / "c", {"fedavg": [[0.0, 0.2, 0.4], [0.0, 0.4, 0.6]]})
    (row,) = summarise([runs], last=2).rows
    assert row.finals == pytest.approx((0.3, 0.5), rel=1e-12)
    assert row.mean == pytest.approx(0.4, rel=1e-12)
    assert row.std == pytest.approx(math.sqrt(0.02), rel=1e-12)  # n - 1 in the denominator


@pytest.mark.parametrize(
    ("planned", "every", "last"),
    [(5, 1, 1), (30, 1, 3), (100, 1, 10), (100, 10, 1), (2000, 1, 100), (500, 2, 25)],
)
def test_a_tenth_of_the_evaluated_rounds_counts(
    tmp_path: Path, planned: int, every: int, last: int
) -> None:
    run = write_run(tmp_path / "r", [0.5], planned=planned, every=every)
    assert summarise([run]).last == last


def test_cost_by_the_three_steps_of_c3(tmp_path: Path) -> None:
    """Baseline: final 0.6 (last round), there at round 7 of 10.  Fast: at round 3, for 1400 bytes a round, not 1000."""
    root = write_comparison(tmp_path / "c", {"fedavg": [SLOW], "fast": [FAST], "bad": [BAD]})
    shutil.rmtree(root / "fast")
    write_run(root / "fast" / "seed-0", FAST, down=[1000] * 10, seconds=1.0)
    s = summarise([root])
    assert (s.last, s.baseline, s.quality) == (1, "fedavg", 0.6)
    base, fast, bad = (s.row(label).to_baseline for label in ("fedavg", "fast", "bad"))
    assert (base.rounds, base.share, base.bytes, base.seconds) == (7, 0.7, 7000.0, 14.0)
    assert (fast.rounds, fast.reached) == (3, True)
    assert (fast.bytes, fast.seconds) == pytest.approx((4200.0, 3.0), rel=1e-12)
    assert (bad.rounds, bad.reached, bad.share) == (10, False, 1.0)  # never counts as all rounds
    assert (bad.bytes, bad.seconds) == (10_000.0, 20.0)
    changes = [s.change(row, lambda row: row.to_baseline.bytes) for row in s.rows]
    assert changes == pytest.approx([0.0, 4200 / 7000 - 1, 10 / 7 - 1], rel=1e-12)
    slower = s.change(s.row("fast"), lambda row: row.to_baseline.seconds)
    assert slower == pytest.approx(3 / 14 - 1, rel=1e-12)
    assert s.best is s.row("fast")


def test_c3_spreads_a_first_contact_and_the_target_counts_it(tmp_path: Path) -> None:
    """C.3 takes a share of the total; the plain price of a target is what was sent by then."""
    down = [100_000, *[DOWN] * 9]
    run = write_run(tmp_path / "r", FAST, down=down)
    s = summarise([run], target=0.6)
    (row,) = s.rows
    sent = 100_000 + 3 * 1000 - DOWN
    assert row.to_target == Cost(True, 3, 0.3, bytes=sent, seconds=6.0)
    total = 100_000 - DOWN + 10 * 1000
    assert row.to_baseline.rounds == 5  # of its own final 0.8
    assert row.to_baseline.bytes == pytest.approx(total / 2, rel=1e-12)


def test_a_target_that_is_never_reached_says_never(tmp_path: Path) -> None:
    root = write_comparison(tmp_path / "c", {"fedavg": [SLOW], "fast": [FAST]})
    s = summarise([root], target=0.75)
    assert [row.to_target.rounds for row in s.rows] == [None, 5]
    assert [row.to_target.reached for row in s.rows] == [False, True]
    assert any(
        "fast reached the target of 75 %" in each and "fedavg never" in each for each in s.answer
    )
    s = summarise([root], target=0.99)
    assert "No method reached the target of 99 %." in s.answer
    assert "never" in _printed(s)


def test_what_was_not_recorded_is_not_never(tmp_path: Path) -> None:
    a = write_run(tmp_path / "a", [0.5, 0.7])
    b = write_run(tmp_path / "b", [2.0, 1.0], name="scaffold", metric="loss")
    s = summarise([a, b], target=0.6)
    lacking = s.row("scaffold")
    assert lacking.to_baseline == lacking.to_target == Cost() and lacking is not s.best
    assert write_remarks(s, lacking) == ["seed 0 did not record accuracy"]
    assert "scaffold did not record accuracy." in s.notes
    assert not any("not finite" in note.lower() or "never" in note for note in s.notes)
    assert not any("never" in sentence for sentence in s.answer)
    out = io.StringIO()
    Console(file=out, width=120).print(terminal_table(s))
    line = next(line for line in out.getvalue().splitlines() if line.startswith("scaffold"))
    assert "not recorded" in line and "never" not in line
    page = write_report([a, b], tmp_path / "out", target=0.6).read_text()
    cells = page[page.index("<tbody") : page.index("</tbody>")]
    assert "not recorded" in cells and "never" not in cells
    table = list(csv.DictReader((tmp_path / "out" / "summary.csv").read_text().splitlines()))
    assert [row["rounds_to_target"] for row in table] == ["2", ""]


def test_less_is_better_for_losses(tmp_path: Path) -> None:
    root = write_comparison(tmp_path / "c", {"fedavg": [SLOW], "other": [FAST]})
    shutil.rmtree(root / "fedavg")
    shutil.rmtree(root / "other")
    write_run(root / "fedavg" / "seed-0", [2.0, 1.0, 0.5, 0.4], metric="loss")
    write_run(root / "other" / "seed-0", [1.0, 0.4, 0.3, 0.2], metric="loss")
    s = summarise([root], last=1)
    assert s.metric == "loss" and not s.higher
    assert s.best is s.row("other")
    assert s.row("other").to_baseline.rounds == 2


def test_rounds_without_metrics_are_passed_over(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", [0.2, 0.6, 0.8], every=4)
    s = summarise([run], target=0.5, last=2)
    (row,) = s.rows
    assert row.mean == pytest.approx(0.7, rel=1e-12)
    assert (row.to_target.rounds, row.to_target.bytes) == (8, 8000.0)


def test_the_mean_over_seeds_decides_not_a_lucky_seed(tmp_path: Path) -> None:
    lucky = [[0.9, 0.1, 0.5, 0.9], [0.1, 0.1, 0.7, 0.9]]
    (method,) = load_runs([write_comparison(tmp_path / "c", {"fedavg": lucky})]).methods
    c = mean_curve(method, "accuracy")
    assert c.mean.tolist() == pytest.approx([0.5, 0.1, 0.6, 0.9], rel=1e-12)
    assert (c.low.tolist(), c.high.tolist()) == ([0.1, 0.1, 0.5, 0.9], [0.9, 0.1, 0.7, 0.9])
    assert cost_by_share(method, "accuracy", 0.6).rounds == 3


def test_survivors_do_not_speak_for_a_run_that_stopped(tmp_path: Path) -> None:
    """After round 2 only seed 0 is left: its 0.9 is drawn, but the method has not reached 0.8."""
    root = write_comparison(tmp_path / "c", {"fedavg": [[0.1, 0.2, 0.9, 0.9], [0.1, 0.2]]})
    shutil.rmtree(root / "fedavg" / "seed-1")
    write_run(
        root / "fedavg" / "seed-1", [0.1, 0.2], seed=1, planned=4, stopped="round 3: not finite"
    )
    (method,) = load_runs([root]).methods
    c = mean_curve(method, "accuracy")
    assert c.common == 2 and c.mean.tolist() == [0.1, 0.2, 0.9, 0.9]
    assert (np.diff(c.bytes) > 0).all()
    price = cost_by_share(method, "accuracy", 0.8)
    assert (price.rounds, price.reached, price.bytes) == (4, False, 4000.0)
    s = summarise([root])
    assert any("stopped after round 2 of 4: round 3: not finite." in note for note in s.notes)
    assert write_remarks(s, s.rows[0]) == ["seed 1 stopped after round 2 of 4"]


def test_what_is_not_finite_is_not_averaged_away(tmp_path: Path) -> None:
    root = write_comparison(tmp_path / "c", {"fedavg": [[0.1, 0.5]], "wild": [[0.9, None]]})
    s = summarise([root], last=2)
    assert math.isnan(s.row("wild").mean) and s.best is s.row("fedavg")
    assert any("Not finite at the end: wild" in note for note in s.notes)
    s = summarise([root], last=2, baseline="wild")
    assert s.quality is None and all(row.to_baseline == Cost() for row in s.rows)
    assert any("no finite final quality" in sentence for sentence in s.answer)
    write_report([root], tmp_path / "out", last=2, baseline="wild")


@given(
    st.lists(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=12), min_size=1, max_size=4).map(
        lambda each: [row[: min(map(len, each))] for row in each]
    ),
    st.integers(1, 15),
    st.sampled_from(["accuracy", "loss"]),
)
@settings(max_examples=60, deadline=None)
def test_a_baseline_always_has_its_own_quality(
    tmp_path_factory: pytest.TempPathFactory,
    curves: list[list[float]],
    last: int,
    metric: str,
) -> None:
    """A mean is never better than the best of what it is the mean of, whatever rounding does."""
    root = tmp_path_factory.mktemp("own") / "c"
    write_comparison(root, {"fedavg": curves})
    shutil.rmtree(root / "fedavg")
    for seed, values in enumerate(curves):
        write_run(root / "fedavg" / f"seed-{seed}", values, seed=seed, metric=metric)
    (row,) = summarise([root], last=last).rows
    assert row.to_baseline.reached


@given(st.lists(st.floats(0, 1), min_size=1), st.floats(0, 1), st.booleans())
def test_first_round_is_the_first(values: list[float], quality: float, higher: bool) -> None:
    found = first_round(np.arange(1, len(values) + 1), np.array(values), quality, higher)
    good = [(v >= quality - 1e-12) if higher else (v <= quality + 1e-12) for v in values]
    assert found == (good.index(True) + 1 if True in good else None)


# run directories of every kind


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
    assert s.last == 1  # of the shorter
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
        "and reached fedavg's final accuracy after 3 of 10 rounds, with 57.1 % fewer bytes."
    )
    s = summarise([write_comparison(tmp_path / "d", {"fedavg": [FAST], "slow": [SLOW]})])
    assert s.answer[0] == "No method beat the baseline fedavg, which ended at 80.00 % accuracy."


def _printed(s: Summary) -> str:
    console = Console(width=200)
    with console.capture() as captured:
        console.print(terminal_table(s))
    return captured.get()


def test_the_terminals_table(tmp_path: Path) -> None:
    s = summarise(
        [write_comparison(tmp_path / "c", {"fedavg": [SLOW], "fast": [FAST], "bad": [BAD]})]
    )
    lines = _printed(s).splitlines()
    assert lines[0].split("  ")[0] == "method" and "rounds to fedavg's 60.00 %" in lines[0]
    assert lines[2].split() == ["fast", "80.00", "%", "3", "3.00", "kB", "−57.1", "%", "best"]
    assert "never (10)" in lines[3]


def test_a_single_method_is_not_compared_with_itself(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", SLOW)
    s = summarise([run])
    heading, line = (text.split() for text in _printed(s).splitlines())
    assert heading == ["method", "final", "accuracy", "bytes"]
    assert line == ["fedavg", "60.00", "%", "10.0", "kB"]
    page = write_report([run], tmp_path / "out").read_text()
    assert "against baseline" not in page and "to fedavg" not in page
    (row,) = csv.DictReader((tmp_path / "out" / "summary.csv").read_text().splitlines())
    assert row["rounds_to_baseline"] == "7"  # summary.csv has the same columns for all to read


def test_a_column_has_a_name_of_its_own_and_a_place(tmp_path: Path) -> None:
    """Whatever is on the page or in the terminal is in summary.csv, too."""
    s = summarise(
        [write_comparison(tmp_path / "c", {"fedavg": [SLOW], "fast": [FAST]})], target=0.5
    )
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
        ({"target": math.nan}, "target is a number, got nan"),
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
    assert rows[0]["rounds_to_target"] == "never" and rows[1]["rounds_to_target"] == "4"
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
    directory = prepared(experiment, tmp_path / "runs")
    for _ in carried_out(directory):
        pass
    s = summarise([tmp_path / "runs"])
    assert [row.label for row in s.rows] == ["fedavg", "strong"] and not s.notes
    lines = (tmp_path / "runs/fedavg/seed-0/metrics.jsonl").read_text().splitlines()
    recorded = [json.loads(line) for line in lines]
    assert s.row("fedavg").mean == recorded[-1]["accuracy"]
    sent = sum(line["bytes_down"] + line["bytes_up"] for line in recorded)
    assert s.row("fedavg").total.bytes == sent
    text = write_report([tmp_path / "runs"], tmp_path / "out").read_text()
    assert "10 clients hold" in text and "[algorithms.strong]" in text


def _data(page: Path) -> dict[str, Any]:
    text = page.read_text()
    start = text.index('id="data">') + len('id="data">')
    return json.loads(text[start : text.index("</script>", start)])


def test_long_curves_are_thinned_and_keep_their_end(tmp_path: Path) -> None:
    values = np.linspace(0, 0.9, 5000)
    run = write_run(tmp_path / "r", values.tolist())
    page = write_report([run], tmp_path / "out")
    (method,) = _data(page)["methods"]
    assert len(method["rounds"]) == 400
    assert (method["rounds"][0], method["rounds"][-1]) == (1, 5000)
    assert method["metrics"]["accuracy"]["mean"][-1] == 0.9
    assert page.stat().st_size < 300_000


def test_virtual_time_is_an_axis_where_it_is_recorded(tmp_path: Path) -> None:
    clock = [1.5, 2.0, 4.0]
    timed = write_run(tmp_path / "timed", [0.1, 0.5, 0.9], virtual=clock)
    page = write_report([timed], tmp_path / "out", target=0.5)
    data = _data(page)
    assert [axis["name"] for axis in data["axes"]] == ["rounds", "bytes", "seconds", "virtual"]
    assert data["methods"][0]["virtual"] == clock
    assert [metric["name"] for metric in data["metrics"]] == ["accuracy"]
    assert summarise([timed], target=0.5).rows[0].to_target.virtual == 2.0
    assert "virtual time" in page.read_text()
    plain = write_run(tmp_path / "plain", [0.1], name="other")
    both = _data(write_report([timed, plain], tmp_path / "both"))
    assert [axis["name"] for axis in both["axes"]] == ["rounds", "bytes", "seconds"]


# the page in a browser

FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --window-size=1200,900"
)
ATTACK = "<img src=x onerror=\"document.title='taken'\">"
ENDING = "</script><script>document.title='taken'</script>"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        message = "needs chromium and chromedriver"
        pytest.fail(message) if "UNDRIFT_CI" in os.environ else pytest.skip(message)
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(driver)
    opened = webdriver.Chrome(options, service)
    yield opened
    opened.quit()


@pytest.fixture
def report(tmp_path: Path, browser: Any) -> Iterator[Any]:
    """Opens a page made of some methods; in the end nothing may have been complained of."""

    def opened(paths: Sequence[Path], **words: Any) -> Summary:
        page = write_report(paths, tmp_path / "out", **words)
        browser.get(page.as_uri())
        return summarise(paths, **words)

    browser.get_log("browser")
    yield opened
    assert browser.get_log("browser") == []


METHODS = {
    "fedavg": [SLOW, [v + 0.02 for v in SLOW]],
    "fast": [FAST, [v - 0.02 for v in FAST]],
    "bad": [BAD, BAD],
}


def _labels(browser: Any) -> list[str]:
    rows = browser.find_elements("css selector", "#table tbody tr")
    return [row.get_attribute("data-label") for row in rows]


def _chosen(browser: Any, axis: str) -> None:
    browser.execute_script("document.querySelector(`#axis [value=${arguments[0]}]`).click()", axis)


def test_the_page_shows_curves_and_the_summarys_numbers(
    tmp_path: Path, browser: Any, report: Any
) -> None:
    s = report([write_comparison(tmp_path / "c", METHODS)], target=0.55)
    curves = browser.find_elements("css selector", "#chart .curve:not(.rest)")
    assert len(curves) == 3 and all(each.get_attribute("d").startswith("M") for each in curves)
    assert len(browser.find_elements("css selector", "#chart .band")) == 3
    assert (
        browser.find_element("css selector", ".headline").text.replace("\xa0", " ") == s.answer[0]
    )
    rows = browser.find_elements("css selector", "#table tbody tr")
    for row, shown in zip(s.rows, rows, strict=True):
        values = [
            float(cell.get_attribute("data-value") or "nan")
            for cell in shown.find_elements("css selector", "td")
        ]
        base, target = row.to_baseline, row.to_target
        expected = [row.mean, base.rounds, base.bytes]
        expected += [s.change(row, lambda row: row.to_baseline.bytes), base.seconds]
        expected += [s.change(row, lambda row: row.to_baseline.seconds)]
        expected += [target.rounds, target.bytes, target.seconds]
        expected += [row.total.bytes, row.total.seconds]
        assert values[:11] == pytest.approx(
            [math.nan if each is None else each for each in expected], rel=1e-12, nan_ok=True
        )
    text = rows[1].text
    assert "fast" in text and "best" in text and "79.00 ± 1.41 %" in text and "3.00 kB" in text
    assert "never" in rows[2].text
    heat = browser.find_elements("css selector", ".heat rect:not(.ground)")
    assert len(heat) == 7  # as many shares as are not nought
    assert "4 clients hold 60 samples" in browser.find_element("id", "federations").text


def test_the_axis_and_the_metric_can_be_chosen(tmp_path: Path, browser: Any, report: Any) -> None:
    report([write_comparison(tmp_path / "c", METHODS)])

    def drawn() -> list[str]:
        found = browser.find_elements("css selector", "#chart .curve:not(.rest)")
        return [each.get_attribute("d") for each in found]

    def words() -> str:
        return browser.find_element("css selector", "#chart svg").text

    on_rounds = drawn()
    assert "rounds" in words()
    _chosen(browser, "bytes")
    assert drawn() != on_rounds and "10 kB" in words()
    _chosen(browser, "seconds")
    assert "20 s" in words()
    browser.find_element("css selector", "#legend button").click()
    assert len(drawn()) == 2
    button = browser.find_element("css selector", "#legend button")
    assert button.get_attribute("aria-pressed") == "false"
    button.click()
    assert len(drawn()) == 3


def test_losses_have_a_log_scale(tmp_path: Path, browser: Any, report: Any) -> None:
    run = write_run(tmp_path / "r", [100.0, 10.0, 1.0, 0.1], metric="loss")
    report([run])
    box = browser.find_element("id", "log")
    assert box.is_selected() and box.is_enabled()  # so much is seen on a log scale only
    path = browser.find_element("css selector", "#chart .curve").get_attribute("d")
    heights = [float(point.split()[1]) for point in path[1:].split("L")]
    assert np.diff(heights) == pytest.approx(np.diff(heights)[0], abs=0.2)  # a line
    box.click()
    straight = browser.find_element("css selector", "#chart .curve").get_attribute("d")
    assert straight != path


def test_a_reader_sees_the_numbers_under_the_pointer(
    tmp_path: Path, browser: Any, report: Any
) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    report([write_comparison(tmp_path / "c", METHODS)])
    svg = browser.find_element("css selector", "#chart svg")
    assert not browser.find_element("css selector", ".tip").is_displayed()
    ActionChains(browser).move_to_element(svg).perform()
    tip = browser.find_element("css selector", ".tip")
    assert tip.is_displayed() and tip.text.startswith("round ")
    lines = tip.text.split("\n")[1:]
    assert lines[0] == "fast" and set(lines) >= {"fast", "fedavg", "bad"}  # the best first
    browser.execute_script("arguments[0].focus()", svg)
    svg.send_keys("\ue014")  # right
    assert tip.is_displayed()


def test_the_table_sorts_by_mouse_and_keyboard(tmp_path: Path, browser: Any, report: Any) -> None:
    report([write_comparison(tmp_path / "c", METHODS)], target=0.55)
    assert _labels(browser) == ["fedavg", "fast", "bad"]
    heads = browser.find_elements("css selector", "#table thead tr:last-child th")
    quality = heads[1].find_element("css selector", "button")
    quality.click()
    assert _labels(browser) == ["bad", "fedavg", "fast"]
    assert heads[1].get_attribute("aria-sort") == "ascending"
    quality.send_keys("\ue007")  # enter
    assert _labels(browser) == ["fast", "fedavg", "bad"]
    assert heads[1].get_attribute("aria-sort") == "descending"
    heads[0].find_element("css selector", "button").click()
    assert _labels(browser) == ["bad", "fast", "fedavg"]
    assert [head.get_attribute("aria-sort") for head in heads[:2]] == ["ascending", "none"]
    to_target = heads[7].find_element("css selector", "button")
    for _ in range(2):  # what never was comes last, either way
        to_target.click()
        assert _labels(browser)[-1] == "bad"


def test_hostile_words_stay_words(tmp_path: Path, browser: Any, report: Any) -> None:
    extra = {"data": {"name": ATTACK}, "name": ENDING}
    one = write_run(tmp_path / "one", SLOW, name=ATTACK, extra=extra, stopped=ENDING)
    two = write_run(tmp_path / "two", FAST, name=f"{ENDING}&\"'", extra=extra)
    (two / "manifest.json").write_text(
        json.dumps({"command": f"undrift {ATTACK}", "python": ENDING})
    )
    s = report([one, two])
    assert ENDING in browser.title and browser.title != "taken"
    assert _labels(browser) == [row.label for row in s.rows] == [ATTACK, f"{ENDING}&\"'"]
    assert browser.find_elements("css selector", "main img") == []
    assert len(browser.find_elements("css selector", "script")) == 2
    assert len(browser.find_elements("css selector", "#chart .curve:not(.rest)")) == 2


def test_dark_light_and_narrow(tmp_path: Path, browser: Any, report: Any) -> None:
    root = write_comparison(tmp_path / "c", METHODS)

    def ground() -> int:
        script = "return getComputedStyle(document.body).backgroundColor"
        return sum(int(part) for part in browser.execute_script(script).strip("rgb()").split(","))

    def prefers(scheme: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    report([root])
    try:
        prefers("light")
        assert ground() > 600
        prefers("dark")
        assert ground() < 150
        browser.find_element("id", "theme").click()
        assert ground() > 600
        screen = {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        browser.refresh()
        wide = browser.execute_script("return document.documentElement.scrollWidth")
        assert wide <= 360  # only the table scrolls sideways
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_nothing_is_fetched(tmp_path: Path, browser: Any, report: Any) -> None:
    report([write_comparison(tmp_path / "c", METHODS)])
    fetched = browser.execute_script(
        "return performance.getEntriesByType('resource').map(e => e.name)"
    )
    assert [name for name in fetched if not name.startswith("data:")] == []
    assert (tmp_path / "out" / "report.html").stat().st_size < 300_000
