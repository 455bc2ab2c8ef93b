"""`ud.check` finds what is wrong with a method, and says why."""

import re
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

import undrift as ud
from tests.simulation.engines.test_row_check import COUPLINGS, Mixed
from tests.support.everywhere import federation
from undrift.algorithms.fedavg import Server, Up


class Base(Mixed):
    """FedAvg, of which each class below breaks one thing."""

    def __init__(self) -> None:
        super().__init__("nothing")


@dataclass(frozen=True)
class Remembering(Mixed):
    seen: list[int] = field(default_factory=list)

    def local(self, down: Any, client: None, work: Any) -> Any:
        up, client = super().local(down, client, work)
        self.seen.append(1)
        return Up(up.delta * (1 + 0.01 * len(self.seen))), client


class InPlace(Base):
    def update(self, server: Any, mean: Any, cohort: Any) -> Any:
        server.x.sub_(mean.delta)
        return Server(server.x)


class OtherType(Base):
    def local(self, down: Any, client: None, work: Any) -> Any:
        up, client = super().local(down, client, work)
        return Up(up.delta.float()), client


class Scalar(Base):
    def local(self, down: Any, client: None, work: Any) -> Any:
        up, client = super().local(down, client, work)
        return Up(up.delta.sum()), client


class Growing(Base):
    def client(self, x: Tensor) -> Any:
        return None

    def local(self, down: Any, client: Any, work: Any) -> Any:
        up, _ = super().local(down, None, work)
        return up, Up(up.delta)


class Unrecorded(Base):
    def send(self, server: Any) -> Any:
        return {"x": server.x}


class WrongArguments(Base):
    def update(self, server: Any, mean: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return Server(server.x - mean.delta)


class Diverging(Base):
    def update(self, server: Any, mean: Any, cohort: Any) -> Any:
        return Server(server.x - mean.delta / 0.0)


@pytest.mark.parametrize(
    "method, name, said",
    [
        (Remembering("nothing"), "purity", "called again with the same, returns something else"),
        (InPlace(), "purity", "writes over the server record"),
        (OtherType(), "records", "torch.float32 in it where the model is torch.float64"),
        (Scalar(), "records", r"up has a \[\] in it"),
        (Growing(), "records", "another kind of client state"),
        (WrongArguments(), "functions", r"update\(self, server, mean, cohort\)"),
        (Diverging(), "finite", "the run ends early"),
        *[(Mixed(name), "rows", "alone|work.random") for name in COUPLINGS],
    ],
)
def test_what_is_wrong_is_found_and_said(method: Any, name: str, said: str) -> None:
    report = ud.check(method)
    assert not report
    (wrong,) = [each.wrong for each in report.checks if each.name == name]
    assert re.search(said, wrong), wrong
    with pytest.raises(ud.MethodFailure, match=name):
        report.raise_if_failed()


def test_what_cannot_begin_is_refused() -> None:
    with pytest.raises(ud.InvalidInput, match="records hold tensors"):
        ud.check(Unrecorded())

    class Half:
        server, client, send, local = Mixed.server, Mixed.client, Mixed.send, Mixed.local

    with pytest.raises(ud.InvalidInput, match=r"it lacks\n  update\(self, server, mean, cohort\)"):
        ud.check(Half())


def test_a_good_method_passes_on_a_problem_of_ones_own() -> None:
    local = ud.Local(steps=3, batch=4, lr=0.05)
    for problem in (federation(), federation(torch.float32)):
        report = ud.check(ud.ScaffoldM(beta=0.3), problem, local=local)
        assert report, report
    assert repr(report).count("ok") >= 10 and "10 of 10" in repr(report) and "<table>" in report._repr_html_()
    assert report.raise_if_failed() is report


def test_methods_that_are_defined_for_less_are_tried_on_less() -> None:
    assert ud.check(ud.LED())
