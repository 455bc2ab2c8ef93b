"""The report of runs in virtual time: hand-computed numbers, and the section in a browser."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.run_directories import (
    ATTACK,
    BAD,
    FAST,
    SLOW,
    page_data,
    write_comparison,
    write_run,
)
from undrift.experiments.report import summarise, write_report
from undrift.experiments.report.load import (
    MAX_CLIENTS,
    MIN_VISITS,
    build_timeline,
    load_runs,
    read_timing,
)
from undrift.experiments.report.plots import choose_bins


def visit(client: int, order: int, *times: float, fate: str = "arrives") -> dict[str, Any]:
    moments = dict(zip(("dispatched", "begins", "ends", "returns"), times, strict=True))
    words = {"client": client, "visit": 0, "version": 0, "steps": 3, "order": order, "fate": fate}
    return {**words, "weight": 1.0, **moments}


def line(r: int, moment: float, clients: Sequence[int], **other: Any) -> dict[str, Any]:
    timing = {"staleness": [r - 1] * len(clients), "steps": [3] * len(clients), "lost": []}
    timing |= {"in_flight": 1, "waited": 0.5, "wasted": 0.25, "tau_eff": 2.0 + r, "chi2": 1 / r}
    timing |= {"chi2_steps": 2 / r, "used": r + 1}
    return {
        "round": r,
        "clients": clients,
        "virtual_seconds": moment,
        "timing": {**timing, **other},
    }


def in_time(run: Path, lines: Sequence[Mapping[str, Any]], visits: Sequence[Any] = ()) -> Path:
    """A run directory as a run in virtual time would have left it."""
    recorded = [json.loads(each) for each in (run / "metrics.jsonl").read_text().splitlines()]
    both = [{**a, **b} for a, b in zip(recorded, lines, strict=True)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in both))
    (run / "visits.jsonl").write_text("".join(json.dumps(each) + "\n" for each in visits))
    return run


COURSE = [
    visit(7, 1, 0.0, 0.1, 0.4, 0.5),
    visit(2, 2, 0.0, 0.1, 0.6, 0.6, fate="lost after"),
    visit(5, 3, 0.0, 0.1, 0.7, 0.8),
    visit(7, 4, 1.0, 1.1, 2.0, 2.0, fate="left"),
    visit(9, 5, 1.0, 1.0, 1.0, 1.0, fate="lost before"),
]


def made(path: Path, metrics: Sequence[float], pace: float = 1.0) -> Path:
    """Ten rounds, a step every so many seconds, the updates of round r are r - 1 steps old."""
    run = write_run(path, metrics)
    lines = [line(r, pace * r, [7, 5]) for r in range(1, len(metrics) + 1)]
    return in_time(run, lines, COURSE)


def comparison(path: Path, labels: Sequence[str] = ("fedavg", "fast", "bad")) -> Path:
    curves = dict(zip(labels, ([SLOW], [FAST], [BAD]), strict=True))
    root = write_comparison(path, curves)
    for label, pace in zip(labels, (2.0, 3.0, 1.0), strict=True):
        folder = root / label / "seed-0"
        in_time(folder, [line(r, pace * r, [7, 5]) for r in range(1, 11)], COURSE)
    return root


# the numbers


def test_the_price_in_virtual_time_is_what_the_clock_says(tmp_path: Path) -> None:
    """The baseline has its 0.6 in round 7 of 2 s each, fast in round 3 of 3 s, bad never."""
    s = summarise([comparison(tmp_path / "c")])
    assert [(row.to_baseline.virtual, row.to_baseline.reached) for row in s.rows] == [
        (14.0, True),
        (9.0, True),
        (10.0, False),
    ]
    assert [row.total.virtual for row in s.rows] == [20.0, 30.0, 10.0]
    changes = [s.change(row, lambda row: row.to_baseline.virtual) for row in s.rows]
    assert changes == pytest.approx([0, 9 / 14 - 1, 10 / 14 - 1])
    assert (
        "In virtual time fast was the first to reach the baseline's 60.00 %, after 9.00 s, "
        "against 14.0 s with fedavg." in s.answer
    )


def test_the_clock_need_not_run_evenly(tmp_path: Path) -> None:
    """A share of the total would be 3/4 of 100 s: the clock said 3 s."""
    run = write_run(tmp_path / "r", [0.1, 0.2, 0.9, 0.9])
    in_time(run, [line(r, t, [1]) for r, t in enumerate([1.0, 2.0, 3.0, 100.0], 1)])
    s = summarise([run], target=0.5)
    (row,) = s.rows
    assert row.to_baseline.virtual == row.to_target.virtual == 3.0
    assert "In virtual time fedavg reached the target of 50 %, after 3.00 s." in s.answer


def test_the_first_in_time_need_not_be_the_cheapest(tmp_path: Path) -> None:
    root = write_comparison(tmp_path / "c", {"fedavg": [SLOW], "fast": [FAST]})
    in_time(root / "fedavg" / "seed-0", [line(r, 1.0 * r, [1]) for r in range(1, 11)])
    in_time(root / "fast" / "seed-0", [line(r, 5.0 * r, [1]) for r in range(1, 11)])
    s = summarise([root], target=0.55)
    assert any("fast reached the target of 55 % with the fewest bytes" in each for each in s.answer)
    for quality in ("the target of 55 %", "the baseline's 60.00 %"):
        first = f"fedavg was the first to reach {quality}, after 7.00 s, against 15.0 s with fast."
        assert f"In virtual time {first}" in s.answer


def test_an_account_of_a_runs_time() -> None:
    lines = [
        line(1, 1.0, [1, 2], staleness=[0, 0], lost=[4]),
        line(2, 2.0, [3, 4], staleness=[1, 4], lost=[]),
        line(3, 3.0, [], staleness=[], lost=[1, 2]),
    ]
    account = read_timing(lines, [])
    assert account is not None and account.timeline is None
    assert account.counts.tolist() == [2, 1, 0, 0, 1]
    assert account.staleness.tolist() == pytest.approx([0.0, 2.5, np.nan], nan_ok=True)
    assert account.totals == {
        "updates": 4,
        "clients": 4,
        "lost": 3,
        "waited_seconds": 1.5,
        "wasted_seconds": 0.75,
        "tau_eff": 4.0,
        "chi2": 1 / 3,
        "chi2_steps": 2 / 3,
    }
    del lines[1]["timing"]
    assert read_timing(lines, []) is None and read_timing([], []) is None


def test_the_first_seconds_of_a_run() -> None:
    """7's update of 0.5 s is used at 1 s; 5's of 0.8 s only at 1.5 s, for the buffer held enough without it."""
    lines = [line(1, 1.0, [7]), line(2, 1.5, [5]), line(3, 3.0, [8]), line(4, 4.0, [7])]
    first = build_timeline(lines, COURSE[::-1])
    assert first.until == 3.0  # three steps, though all visits are over by 2 s
    assert first.clients == (7, 2, 5, 9) and first.others == 0
    assert [v["order"] for v in first.visits] == [1, 2, 3, 4, 5]
    assert [v["used"] for v in first.visits] == [1.0, None, 1.5, None, None]
    assert first.steps == ((1.0, 1), (1.5, 2), (3.0, 3))


def test_a_picture_has_so_many_rows_and_visits() -> None:
    many = [visit(i % 200, i, 0.1 * i, 0.1 * i, 0.1 * i, 0.1 * i + 1) for i in range(300)]
    first = build_timeline([line(1, 0.5, [0])], many)
    assert first.until == pytest.approx(0.1 * (MIN_VISITS - 1) + 1)
    assert first.clients == tuple(range(MAX_CLIENTS))
    assert first.others == MIN_VISITS + 10 - MAX_CLIENTS  # whoever was sent out by then
    assert {v["client"] for v in first.visits} == set(first.clients)
    assert first.visits[0]["used"] is None  # back at 1 s, after the only step


@given(st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=80), min_size=1, max_size=3))
def test_bars_hold_every_update(rows: list[list[int]]) -> None:
    counts = [np.array([1, *row]) for row in rows]
    edges, tail = choose_bins(counts)
    widths = np.unique(np.diff(edges))
    assert edges[0] == 0 and len(edges) <= 22 and len(widths) <= 1
    if tail:
        assert all(each[edges[-1] :].sum() <= 0.01 * each.sum() + 1e-9 for each in counts)
    elif len(edges) > 1:
        assert max(map(len, counts)) <= edges[-1] + widths[0]


# the files


def test_csv_files_have_the_clock_only_where_there_is_one(tmp_path: Path) -> None:
    write_report([comparison(tmp_path / "c")], tmp_path / "out")
    with (tmp_path / "out" / "summary.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["virtual_seconds_to_baseline"] for row in rows] == ["14.0", "9.0", ""]
    assert [row["total_virtual_seconds"] for row in rows] == ["20.0", "30.0", "10.0"]
    assert float(rows[1]["virtual_seconds_change"]) == pytest.approx(9 / 14 - 1)
    timing = {"staleness": "4.5", "updates": "20.0", "waited_seconds": "5.0", "tau_eff": "7.5"}
    assert timing.items() <= rows[1].items()
    with (tmp_path / "out" / "rounds.csv").open(newline="") as file:
        rounds = list(csv.DictReader(file))
    assert (rounds[2]["virtual_seconds"], rounds[2]["staleness_mean"]) == ("6.0", "2.0")
    write_report([write_comparison(tmp_path / "d", {"fedavg": [SLOW]})], tmp_path / "plain")
    for name in ("summary.csv", "rounds.csv"):
        header = (tmp_path / "plain" / name).read_text().splitlines()[0]
        assert "virtual" not in header and "staleness" not in header


def test_runs_with_and_without_a_clock_in_one_report(tmp_path: Path) -> None:
    clocked = made(tmp_path / "timed", FAST)
    plain = write_run(tmp_path / "plain", SLOW, name="other")
    page = write_report([clocked, plain], tmp_path / "out")
    assert [each["label"] for each in page_data(page)["charts"]["gantt"]] == ["fedavg"]
    with (tmp_path / "out" / "rounds.csv").open(newline="") as file:
        rounds = list(csv.DictReader(file))
    assert [rounds[i]["staleness_mean"] for i in (1, 11)] == ["1.0", ""]


def test_a_clock_without_an_account_has_no_section(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", [0.1, 0.2], virtual=[1.0, 2.0])
    assert load_runs([run]).runs[0].timing is None
    page = write_report([run], tmp_path / "out")
    charts = page_data(page)["charts"]
    assert charts["gantt"] == charts["staleness"] == [] and 'id="time"' not in page.read_text()


# the page in a browser


def _texts(browser: Any, selector: str) -> list[str]:
    return [each.text for each in browser.find_elements("css selector", selector)]


def _count(browser: Any, selector: str) -> int:
    return len(browser.find_elements("css selector", selector))


@pytest.mark.xdist_group("browser")
def test_the_section_shows_who_did_what_when(
    tmp_path: Path,
    browser: Any,
    report: Any,
) -> None:
    report([comparison(tmp_path / "c")])
    assert _count(browser, "#gantt .stripe") == 2  # every other one of four clients
    shown = _texts(browser, "#gantt text")
    assert shown[:4] == ["7", "2", "5", "9"] and "virtual time" in shown
    assert _count(browser, "#gantt .visit") == 5 and _count(browser, "#gantt .visit.lost") == 3
    assert _count(browser, "#gantt .loss") == 3 and _count(browser, "#gantt .step") == 3
    assert _count(browser, "#gantt .computing") == 4  # one was lost before it computed
    assert _count(browser, "#keys span") == 5
    told = browser.find_element("css selector", "#gantt .visit title").get_attribute("textContent")
    assert told == (
        "client 7, sent out at 0 ms with the model of step 0\n"
        "down 100 ms, computing 300 ms (3 steps), up 100 ms\n"
        "back at 500 ms, used at 2 s: waited 1500 ms"
    )
    computing = browser.find_element("css selector", "#gantt .computing")
    axis = browser.find_element("css selector", "#gantt .stripe")
    whole, part = (float(each.get_attribute("width")) for each in (axis, computing))
    assert part / whole == pytest.approx(0.3 / 6.0, rel=1e-6)  # three steps of 2 s are shown

    browser.execute_script(
        "const choice = document.getElementById('first'); choice.value = 1;choice.dispatchEvent(new Event('change'))"
    )
    computing = browser.find_element("css selector", "#gantt .computing")
    assert float(computing.get_attribute("width")) / whole == pytest.approx(0.3 / 9.0, rel=1e-6)


@pytest.mark.xdist_group("browser")
def test_the_section_shows_staleness_and_its_table(
    tmp_path: Path,
    browser: Any,
    report: Any,
) -> None:
    report([comparison(tmp_path / "c")])
    assert "fedavg: mean 4.50, at most 9" in _texts(browser, "#time figcaption")
    assert _count(browser, ".staleness rect") == 3 * 10
    titles = browser.find_elements("css selector", ".staleness title")
    assert titles[0].get_attribute("textContent") == "staleness 0: 10.0 % of the updates"
    rows = browser.find_elements("css selector", "#time tbody tr")
    values = [[cell.get_attribute("data-value") for cell in row.find_elements("css selector", "td")] for row in rows]
    fast = [30.0, 9.0, 9 / 14 - 1, 4.5, 20.0, 0.0, 5.0, 2.5, 7.5, 0.1]
    assert [float(each) for each in values[1]] == pytest.approx(fast, rel=1e-12)
    assert values[2][1:3] == ["", ""] and "never" in rows[2].text
    browser.find_elements("css selector", "#time thead tr:last-child button")[1].click()
    rows = browser.find_elements("css selector", "#time tbody tr")
    assert [row.get_attribute("data-label") for row in rows] == ["bad", "fedavg", "fast"]


@pytest.mark.xdist_group("browser")
def test_fresh_updates_need_no_histogram(
    tmp_path: Path,
    browser: Any,
    report: Any,
) -> None:
    run = write_run(tmp_path / "r", [0.1, 0.2])
    in_time(run, [line(r, 1.0 * r, [1], staleness=[0]) for r in (1, 2)])
    report([run])
    assert "staleness 0 throughout" in browser.find_element("id", "time").text
    assert _count(browser, "#gantt") == _count(browser, ".staleness") == 0  # no visit recorded
    assert not browser.find_elements("css selector", "#time .controls")


@pytest.mark.xdist_group("browser")
def test_no_section_without_virtual_time(
    tmp_path: Path,
    browser: Any,
    report: Any,
) -> None:
    report([write_comparison(tmp_path / "c", {"fedavg": [SLOW], "fast": [FAST]})])
    assert _count(browser, "#time") == 0
    assert _count(browser, "#chart .curve") == 2
    assert "irtual" not in browser.find_element("tag name", "main").text


@pytest.mark.xdist_group("browser")
def test_hostile_words_stay_words_in_time_too(
    tmp_path: Path,
    browser: Any,
    report: Any,
) -> None:
    label = ATTACK.replace("/", "")
    report([made(tmp_path / "a", SLOW), _renamed(made(tmp_path / "b", FAST), label)])
    assert browser.title != "taken" and _count(browser, "main img") == 0
    assert f"{label}, seed 0" in _texts(browser, "#first option")


def _renamed(run: Path, label: str) -> Path:
    words = (run / "experiment.toml").read_text()
    quoted = json.dumps(label)
    (run / "experiment.toml").write_text(words.replace('name = "fedavg"', f"name = {quoted}"))
    return run


@pytest.mark.xdist_group("browser")
def test_the_section_is_narrow_on_a_telephone(
    tmp_path: Path,
    browser: Any,
    report: Any,
) -> None:
    report([comparison(tmp_path / "c")])
    try:
        screen = {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        browser.refresh()
        wide = browser.execute_script("return document.documentElement.scrollWidth")
        assert wide <= 360  # only tables scroll sideways
        assert _count(browser, "#gantt .visit") == 5
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
