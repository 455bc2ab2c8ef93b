"""Progress bars and callbacks of `ud.run`."""

import io
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import undrift as ud

PROBLEM = ud.Quadratic(torch.eye(2).repeat(4, 1, 1), torch.arange(8.0).view(4, 2))


def run(**more: Any) -> ud.Result:
    return ud.run(ud.Scaffold(), PROBLEM, rounds=5, local=ud.Local(steps=2, lr=0.1), **more)


def test_on_round_sees_every_round() -> None:
    seen: list[tuple[int, torch.Tensor]] = []
    result = run(on_round=lambda r: seen.append((r.round, r.x)))
    assert [t for t, _ in seen] == [1, 2, 3, 4, 5] and torch.equal(seen[-1][1], result.x)
    assert result.stopped is None


def stop_by_raising(r: ud.Round) -> None:
    if r.round == 3:
        raise StopIteration


@pytest.mark.parametrize("on_round", [lambda r: r.round == 3, stop_by_raising])
def test_on_round_may_end_a_run_that_can_go_on(on_round: Any) -> None:
    early = run(on_round=on_round)
    assert early.stopped == "on_round ended it after round 3" and len(early.history) == 3
    assert torch.equal(run(start=early).x, run().x)


def test_only_true_ends_a_run() -> None:
    assert len(run(on_round=lambda r: 1).history) == 5


def test_errors_of_a_callback_are_the_callers() -> None:
    with pytest.raises(ZeroDivisionError):
        run(on_round=lambda r: 1 / 0)


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(ud.InvalidInput, match="on_round is a function"):
        run(on_round=3)
    with pytest.raises(ud.InvalidInput, match="progress must be True, False or 'auto'"):
        run(progress="yes")


def test_a_bar_on_a_terminal_and_nothing_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    for out, shown in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", out)
        run()
        assert ("Scaffold" in out.getvalue() and "5/5" in out.getvalue()) is shown
    out = Terminal()
    monkeypatch.setattr(sys, "stderr", out)
    run(progress=False)
    assert out.getvalue() == ""


def test_a_bar_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    class ZMQInteractiveShell:
        pass

    def display(bar: str, display_id: bool) -> Any:
        shown.append(bar)
        return SimpleNamespace(update=shown.append)

    shell, displays = ModuleType("IPython"), ModuleType("IPython.display")
    vars(shell)["get_ipython"] = ZMQInteractiveShell
    vars(displays).update(HTML=str, display=display)
    monkeypatch.setitem(sys.modules, "IPython", shell)
    monkeypatch.setitem(sys.modules, "IPython.display", displays)
    run()
    assert len(shown) == 5 and "value='5' max='5'" in shown[-1] and "loss" in shown[-1]
