"""The short form of the attacks on deployed runs; the long one is `make soak`."""

from typing import Any

import pytest

from tests.faults import deployed_kills, messages, node_states
from undrift.deploy import checks


@pytest.mark.parametrize(
    ("attack", "tries"),
    [(messages, 150), (node_states, 5), (deployed_kills, 12)],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_nothing_gets_through(attack: Any, tries: int) -> None:
    found = attack.main(tries, seed=7)
    assert found["tries"] == found["survived"] == tries and found["silent"] == found["crashed"] == 0


def test_an_open_door_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_check_array", lambda *_: None)
    found = messages.main(120, seed=7)
    assert found["silent"] + found["crashed"] > 0
