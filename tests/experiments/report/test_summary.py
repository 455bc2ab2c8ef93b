"""The report's numbers, computed by hand."""

import csv
import io
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from tests.support.run_directories import (
    BAD,
    DOWN,
    FAST,
    SLOW,
    printed_table,
    write_comparison,
    write_run,
)
from undrift.experiments.report import summarise, terminal_table, write_report
from undrift.experiments.report.load import load_runs
from undrift.experiments.report.stats import CostToReach, cost_by_share, first_round, mean_curve
from undrift.experiments.report.text import write_remarks


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
    assert row.to_target == CostToReach(True, 3, 0.3, bytes=sent, seconds=6.0)
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
    assert "never" in printed_table(s)


def test_what_was_not_recorded_is_not_never(tmp_path: Path) -> None:
    a = write_run(tmp_path / "a", [0.5, 0.7])
    b = write_run(tmp_path / "b", [2.0, 1.0], name="scaffold", metric="loss")
    s = summarise([a, b], target=0.6)
    lacking = s.row("scaffold")
    assert lacking.to_baseline == lacking.to_target == CostToReach() and lacking is not s.best
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
    assert s.quality is None and all(row.to_baseline == CostToReach() for row in s.rows)
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
