"""The report's page in a browser."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.run_directories import (
    ATTACK,
    ENDING,
    FAST,
    METHODS,
    SLOW,
    write_comparison,
    write_run,
)

pytestmark = pytest.mark.xdist_group("browser")  # one for all


def _labels(browser: Any) -> list[str]:
    rows = browser.find_elements("css selector", "#table tbody tr")
    return [row.get_attribute("data-label") for row in rows]


def _chosen(browser: Any, axis: str) -> None:
    browser.execute_script("document.querySelector(`#axis [value=${arguments[0]}]`).click()", axis)


def test_the_page_shows_curves_and_the_summarys_numbers(tmp_path: Path, browser: Any, report: Any) -> None:
    s = report([write_comparison(tmp_path / "c", METHODS)], target=0.55)
    curves = browser.find_elements("css selector", "#chart .curve:not(.rest)")
    assert len(curves) == 3 and all(each.get_attribute("d").startswith("M") for each in curves)
    assert len(browser.find_elements("css selector", "#chart .band")) == 3
    assert browser.find_element("css selector", ".headline").text.replace("\xa0", " ") == s.answer[0]
    rows = browser.find_elements("css selector", "#table tbody tr")
    for row, shown in zip(s.rows, rows, strict=True):
        values = [
            float(cell.get_attribute("data-value") or "nan") for cell in shown.find_elements("css selector", "td")
        ]
        base, target = row.to_baseline, row.to_target
        expected = [row.mean, base.rounds, base.bytes]
        expected += [s.change(row, lambda row: row.to_baseline.bytes), base.seconds]
        expected += [s.change(row, lambda row: row.to_baseline.seconds)]
        expected += [s.change(row, lambda row: row.table4.bytes), s.change(row, lambda row: row.table4.seconds)]
        expected[1:] = [None] * 7 if base.reached is False else expected[1:]  # shown, but no number to sort by
        expected += [target.rounds, target.bytes, target.seconds] if target.reached else [None] * 3
        expected += [row.total.bytes, row.total.seconds]
        assert values[:13] == pytest.approx(
            [math.nan if each is None else each for each in expected], rel=1e-12, nan_ok=True
        )
    text = rows[1].text
    assert "fast" in text and "best" in text and "79.00 ± 1.41 %" in text and "3.00 kB" in text
    assert "never reached 61.00 %" in rows[2].text and "> 10.0 kB" in rows[2].text
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


def test_a_reader_sees_the_numbers_under_the_pointer(tmp_path: Path, browser: Any, report: Any) -> None:
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
    assert _labels(browser) == ["fast", "fedavg", "bad"]  # the best first
    assert heads[1].get_attribute("aria-sort") == "descending"
    quality.send_keys("\ue007")  # enter
    assert _labels(browser) == ["bad", "fedavg", "fast"]
    assert heads[1].get_attribute("aria-sort") == "ascending"
    heads[0].find_element("css selector", "button").click()
    assert _labels(browser) == ["bad", "fast", "fedavg"]
    assert [head.get_attribute("aria-sort") for head in heads[:2]] == ["ascending", "none"]
    heads[3].find_element("css selector", "button").click()
    assert _labels(browser)[0] == "fast"  # the cheapest first
    to_target = heads[9].find_element("css selector", "button")
    for _ in range(2):  # what never was comes last, either way
        to_target.click()
        assert _labels(browser)[-1] == "bad"


def test_hostile_words_stay_words(tmp_path: Path, browser: Any, report: Any) -> None:
    extra = {"data": {"name": ATTACK}, "name": ENDING}
    one = write_run(tmp_path / "one", SLOW, name=ATTACK, extra=extra, stopped=ENDING)
    two = write_run(tmp_path / "two", FAST, name=f"{ENDING}&\"'", extra=extra)
    (two / "manifest.json").write_text(json.dumps({"command": f"undrift {ATTACK}", "python": ENDING}))
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
    fetched = browser.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
    assert [name for name in fetched if not name.startswith("data:")] == []
    assert (tmp_path / "out" / "report.html").stat().st_size < 300_000


def test_metrics_of_the_theory_are_drawn_one_by_one(tmp_path: Path, browser: Any, report: Any) -> None:
    folder = tmp_path / "c"
    write_comparison(folder, METHODS)
    for path in folder.rglob("metrics.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for k, line in enumerate(lines):
            line |= {"drift": 10.0**-k, "chi2": 0.0} | {f"tau_error:{tau}": 1 / tau for tau in (1, 2, 4)}
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    report([folder])
    figures = browser.find_elements("css selector", "#theory figure")
    texts = [figure.text for figure in figures]
    assert [text.split("\n")[0].split(".")[0].split(",")[0] for text in texts] == ["drift", "chi2", "tau error by tau"]
    assert "How far local models walk" in texts[0] and "log scale" in texts[0] and "log scale" not in texts[1]
    for figure in figures:
        curves = figure.find_elements("css selector", ".curve")
        assert len(curves) == 3 and all(each.get_attribute("d").startswith("M") for each in curves)
        assert "NaN" not in figure.get_attribute("innerHTML")
