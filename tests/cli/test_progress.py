"""Progress: what is said of the time that is left, against the time that it took."""

from pathlib import Path

import pytest

from undrift.cli.progress import Forecast
from undrift.experiments.runs.running import Update


def play(
    runs: int, jobs: int, rounds: int, compiling: float, pace: float, start: float
) -> list[tuple[float, float | None]]:
    """The moments of news, and what was forecast then, of workers that run one after another; the last moment is the end."""
    free, news = [start] * jobs, []
    for n in range(runs):
        worker = free.index(min(free))
        at = free[worker] + compiling
        for r in range(1, rounds + 1):
            at += pace
            news.append((at, Update(Path(f"{n}"), r, rounds, {}, 0, finished=r == rounds)))
        free[worker] = at
    forecast = Forecast(runs, jobs, 0.0)
    said = []
    for at, update in sorted(news, key=lambda each: each[0]):
        forecast.take(update, at)
        said.append((at, forecast.left()))
    return said


@pytest.mark.parametrize("runs", [1, 2, 5, 6])
@pytest.mark.parametrize("compiling", [0.0, 8.0])
def test_what_is_said_is_within_half_of_the_truth(runs: int, compiling: float) -> None:
    """From the first guess on, although the first round compiles for as long as eighty others take."""
    said = play(runs, jobs=2, rounds=200, compiling=compiling, pace=0.1, start=3.0)
    end = said[-1][0]
    guesses = [(end - at, left) for at, left in said if left is not None and end - at > 1.0]
    assert len(guesses) > 0.9 * len([at for at, _ in said if end - at > 1.0])  # nearly from the beginning
    for truth, left in guesses:
        assert truth / 1.5 < left < 1.5 * truth


def test_nothing_is_said_before_there_is_a_pace() -> None:
    forecast = Forecast(2, 2, 0.0)
    forecast.take(Update(Path("a"), 1, 400, {}, 0), 10.0)
    assert forecast.left() is None
    run = forecast.take(Update(Path("a"), 2, 400, {}, 0), 10.1)
    assert forecast.left() is None and run.left is None


def test_a_resumed_run_is_not_taken_for_a_fast_one() -> None:
    """Its 300 rounds of before took no time now."""
    forecast = Forecast(1, 1, 0.0)
    for at, r in [(5.0, 301), (6.0, 302), (7.0, 303), (8.0, 304), (9.0, 305)]:
        run = forecast.take(Update(Path("a"), r, 400, {}, 0), at)
    assert run.left == forecast.left() == pytest.approx(95.0)


def test_the_last_rounds_accuracy_is_called_so() -> None:
    forecast = Forecast(1, 1, 0.0)
    run = forecast.take(Update(Path("a"), 1, 2, {"accuracy": 0.5}, 10**6), 1.0)
    assert run.status() == "accuracy 0.500, 1.00 MB"
    run = forecast.take(Update(Path("a"), 2, 2, {"accuracy": 0.6}, 2 * 10**6, finished=True), 2.0)
    assert run.status() == "accuracy 0.600 in the last round, 2.00 MB"
