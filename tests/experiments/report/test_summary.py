"""The report's numbers, computed by hand."""

import csv
import io
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

import undrift as ud
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
from undrift.experiments.report.costs import CostToReach, cost_to_reach, first_round, table4_cost
from undrift.experiments.report.curves import mean_curve
from undrift.experiments.report.load import Method, load_runs
from undrift.experiments.report.tables import list_columns
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
def test_a_tenth_of_the_evaluated_rounds_counts(tmp_path: Path, planned: int, every: int, last: int) -> None:
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
    assert base == CostToReach(True, 7, 7000.0, 14.0)
    assert fast == CostToReach(True, 3, 4200.0, 3.0)
    assert bad == CostToReach(False, 10, 10_000.0, 20.0)  # all of which was not enough
    changes = [s.change(row, lambda row: row.to_baseline.bytes) for row in s.rows]
    assert changes == pytest.approx([0.0, 4200 / 7000 - 1, 10 / 7 - 1], rel=1e-12)
    slower = s.change(s.row("fast"), lambda row: row.to_baseline.seconds)
    assert slower == pytest.approx(3 / 14 - 1, rel=1e-12)
    assert s.best is s.row("fast")
    base, fast, bad = (s.row(label).table4 for label in ("fedavg", "fast", "bad"))
    assert base == CostToReach(True, 10, 10_000.0, 20.0)  # all its rounds
    assert (fast.rounds, fast.bytes, fast.seconds) == pytest.approx((3, 4200.0, 3.0), rel=1e-12)
    assert bad == CostToReach(False, 10, 10_000.0, 20.0)
    assert s.change(s.row("fast"), lambda row: row.table4.bytes) == pytest.approx(4200 / 10_000 - 1, rel=1e-12)


def test_table4_spreads_a_first_contact_and_other_costs_count_it(tmp_path: Path) -> None:
    """C.3 takes a share of the total; the plain price of a quality is what was sent by then, whatever the quality is."""
    down = [100_000, *[DOWN] * 9]
    run = write_run(tmp_path / "r", FAST, down=down)
    s = summarise([run], target=0.6)
    (row,) = s.rows
    sent = 100_000 + 3 * 1000 - DOWN
    assert row.to_target == CostToReach(True, 3, bytes=sent, seconds=6.0)
    assert row.to_baseline == CostToReach(True, 5, bytes=sent + 2000, seconds=10.0)  # of its own final 0.8
    total = 100_000 - DOWN + 10 * 1000
    assert table4_cost(row.method, row.to_target, is_baseline=False).bytes == pytest.approx(0.3 * total, rel=1e-12)
    assert row.to_target == summarise([run], target=0.6, baseline="fedavg", last=3).rows[0].to_target


# GHBM's Table 4: GB of FedAvg, overhead, GB and percentage of each method; the 1.417 TB of the last column are 1451 GB
TABLE_4 = {
    (30.9, 10_000): {2: [(31.8, 3.0)], 1: [(28.9, -6.5), (3.9, -87.4)], 3: [(21.5, -30.4)], 1.5: [(6.4, -79.3)]},
    (10.3, 10_000): {2: [(12.1, 17.5)], 1: [(9.2, -10.7), (3.7, -64.1)], 3: [(30.9, 200.0)], 1.5: [(6.3, -38.8)]},
    (89.8, 5_000): {2: [(51.2, -43.0)], 1: [(73.6, -18.0), (29.6, -67.0)], 3: [(269.4, 200.0)], 1.5: [(48.5, -46.0)]},
    (483.7, 1_500): {
        2: [(967.4, 100.0)],
        1: [(403.1, -16.7), (234.4, -51.5)],
        3: [(1451.0, 200.0)],
        1.5: [(314.4, -35.0)],
    },
}


@pytest.mark.parametrize("column", TABLE_4)
def test_the_percentages_of_table_4_come_out_of_its_rounds(tmp_path: Path, column: tuple[float, int]) -> None:
    """r_a is what the printed bytes imply; the baseline reaches its own quality half way, and is charged for all T."""
    whole, T = column
    example = load_runs([write_run(tmp_path / "r", [0.5])]).runs[0]

    def row(r: float, overhead: float, is_baseline: bool = False) -> float:
        run = replace(
            example,
            planned=T,
            round=np.arange(1, T + 1),
            evaluated=np.ones(T, dtype=bool),
            metrics={"accuracy": (np.arange(1, T + 1) >= r) * 0.5},
            bytes_down=np.full(T, whole / T * overhead),
            bytes_up=np.zeros(T),
            seconds=np.ones(T),
            virtual=np.full(T, np.nan),
        )
        method = Method("m", (run,))
        cost = table4_cost(method, cost_to_reach(method, "accuracy", 0.5), is_baseline)
        assert cost.bytes is not None
        return cost.bytes

    base = row(T // 2, 1, is_baseline=True)
    assert base == pytest.approx(whole, rel=1e-12)
    for overhead, cells in TABLE_4[column].items():
        for printed, percent in cells:
            r_a = round(printed / whole / overhead * T)
            assert 100 * (row(r_a, overhead) / base - 1) == pytest.approx(percent, abs=0.1)
    assert row(math.inf, 3) / base - 1 == pytest.approx(2.0)  # never: r_a = T


def test_a_target_in_percent_is_understood(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", FAST)
    assert summarise([run], target=70).rows[0].to_target == summarise([run], target=0.7).rows[0].to_target
    assert summarise([run], target=70).target == 0.7
    impossible = write_run(tmp_path / "e", FAST, extra={"target": 950})  # recorded, so that the report must be made
    assert summarise([impossible]).target is None


def test_a_final_quality_is_the_runs_own(tmp_path: Path) -> None:
    """Beside a short run, too, the mean is over a tenth of the long one's rounds."""
    long = write_run(tmp_path / "long", [0.0] * 90 + [0.5] * 9 + [1.0])
    short = write_run(tmp_path / "short", [0.2] * 5, name="scaffold")
    alone, beside = summarise([long]), summarise([long, short])
    assert alone.row("fedavg").mean == beside.row("fedavg").mean == pytest.approx(0.55)
    assert "the last tenth of a run's evaluated rounds" in " ".join(beside.answer)


def test_runs_on_different_data_are_not_ranked(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", SLOW)
    two = write_run(tmp_path / "two", FAST, name="scaffold", extra={"data": {"name": "others"}})
    s = summarise([one, two])
    assert s.best is None and s.answer[0].startswith("These runs are on different data (made, others)")
    shown = printed_table(s)
    assert not any(word in shown for word in ("best", "baseline", "against", "rounds to"))
    assert s.change(s.row("scaffold"), lambda row: row.total.bytes) is None
    page = write_report([one, two], tmp_path / "out").read_text()
    assert "against baseline" not in page and 'class="best"' not in page


def test_one_step_and_equal_curves_are_pointed_out(tmp_path: Path) -> None:
    """15 samples in minibatches of 32 are one step: nothing drifts, and nothing can be told apart."""
    root = write_comparison(tmp_path / "c", {"fedavg": [SLOW], "fedprox": [SLOW], "fast": [FAST]})
    for path in root.glob("*/seed-0"):
        text = (path / "experiment.toml").read_text()
        (path / "experiment.toml").write_text(f"{text}\n[local]\nbatch = 32\n")
    s = summarise([root])
    assert any(note.startswith("One local step per round (fedavg, fedprox and fast)") for note in s.notes)
    assert "fedavg and fedprox have the same curve to the last digit: in this setting they are one method." in s.notes
    columns = {column.name: column for column in list_columns(s)}
    assert columns["seconds_change"].value(s.row("fedprox")) is None  # no difference, whatever the clock says
    assert columns["seconds_change"].value(s.row("fast")) == pytest.approx(6 / 14 - 1)
    assert columns["local_steps"].text(s.row("fast")) == "1"


@pytest.mark.parametrize(
    ("local", "steps"),
    [
        ({"steps": 10}, "10"),
        ({"batch": 5}, "2 to 4, median 3.5"),  # sizes 10, 14, 16, 20
        ({"batch": 5, "epochs": {"low": 1, "high": 3}}, "2 to 12, median 7"),
        ({"batch": "all", "epochs": 2}, "2"),
        ({"steps": {"geometric": 0.1}}, "from 1, mean 10"),
        ({"steps": [1, 2, 3, 4]}, "1 to 4, median 2.5"),
        ({}, "–"),
    ],
)
def test_local_steps_are_told(tmp_path: Path, local: dict[str, object], steps: str) -> None:
    s = summarise([write_run(tmp_path / "r", SLOW, extra={"local": local})])
    assert {column.name: column for column in list_columns(s)}["local_steps"].text(s.rows[0]) == steps


def test_short_times_have_no_percentages(tmp_path: Path) -> None:
    root = write_comparison(tmp_path / "c", {"fedavg": [SLOW], "fast": [FAST]})
    shutil.rmtree(root / "fast")
    write_run(root / "fast" / "seed-0", FAST, seconds=1.0)  # 3 s to the baseline's quality
    s = summarise([root])
    change = {column.name: column for column in list_columns(s)}
    assert (
        change["seconds_change"].text(s.row("fast")) == "–" and change["bytes_change"].text(s.row("fast")) == "−57.1 %"
    )


def test_a_target_that_is_never_reached_says_never(tmp_path: Path) -> None:
    root = write_comparison(tmp_path / "c", {"fedavg": [SLOW], "fast": [FAST]})
    s = summarise([root], target=0.75)
    assert [row.to_target.rounds for row in s.rows] == [10, 5]
    assert "> 10.0 kB" in printed_table(s)
    assert [row.to_target.reached for row in s.rows] == [False, True]
    assert any("fast reached the target of 75 %" in each and "fedavg never" in each for each in s.answer)
    s = summarise([root], target=0.99)
    assert "No method reached the target of 99 %." in s.answer
    assert printed_table(s).count("> 10 ") == 2
    assert "> 0 %" not in printed_table(s)  # two bounds have no ratio


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
    assert cost_to_reach(method, "accuracy", 0.6).rounds == 3


def test_survivors_do_not_speak_for_a_run_that_stopped(tmp_path: Path) -> None:
    """After round 2 only seed 0 is left: its 0.9 is drawn, but the method has not reached 0.8."""
    root = write_comparison(tmp_path / "c", {"fedavg": [[0.1, 0.2, 0.9, 0.9], [0.1, 0.2]]})
    shutil.rmtree(root / "fedavg" / "seed-1")
    write_run(root / "fedavg" / "seed-1", [0.1, 0.2], seed=1, planned=4, stopped="round 3: not finite")
    (method,) = load_runs([root]).methods
    c = mean_curve(method, "accuracy")
    assert c.common == 2 and c.mean.tolist() == [0.1, 0.2, 0.9, 0.9]
    assert (np.diff(c.bytes) > 0).all()
    price = cost_to_reach(method, "accuracy", 0.8)
    assert (price.rounds, price.reached, price.bytes) == (2, False, 3000.0)  # 4 rounds of one seed, 2 of the other
    assert table4_cost(method, price, is_baseline=False).bytes == 4000.0  # as if both had gone on
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


def test_a_target_that_the_metric_cannot_have_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    experiment = ud.Experiment(algorithm={"name": "fedavg"}, rounds=1, target=950, model={"name": "logistic"})  # pyright: ignore[reportArgumentType]
    with pytest.raises(ud.InvalidInput, match="target = 950 cannot be reached: accuracy is a share such as 0.9"):
        experiment.run(out=tmp_path / "run")
    recorded = write_run(tmp_path / "e", FAST, extra={"target": 950})
    assert summarise([recorded]).target is None
    assert "the target 950 cannot be a value of accuracy" in caplog.text
