"""Decorators that register: with a name or bare, alike for all kinds; anything else is refused where it stands."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch import nn

import undrift as ud
from undrift.codecs.codec import CODECS
from undrift.core.hyper import METHODS
from undrift.data.assignment import PARTITIONS
from undrift.data.registry import DATASETS
from undrift.metrics.registry import METRICS
from undrift.models import MODELS

TABLES: list[dict[str, Any]] = [METHODS, DATASETS, METRICS, MODELS, PARTITIONS, CODECS]


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    """What a test registers is forgotten after it."""
    known = [dict(table) for table in TABLES]
    yield
    for table, before in zip(TABLES, known, strict=True):
        table.clear()
        table.update(before)


def a_method() -> Any:
    class HalfSteps:
        part: float = ud.hyper(default=0.5, within="(0, 1]")

    return HalfSteps


def a_partition() -> Any:
    class ByHand:
        N: int = ud.hyper(within="[1, inf)")

        def split(self, samples: Any, seed: int) -> Any:
            return [range(samples.n)]

    return ByHand


def a_codec() -> Any:
    class SignSum:
        def encode(self, v: Any, random: Any) -> Any:
            return v

        def decode(self, payload: Any, like: Any) -> Any:
            return payload

    return SignSum


def a_function() -> Any:
    def my_own(*given: Any) -> Any:
        return nn.Linear(1, 1)

    return my_own


KINDS: dict[str, tuple[Any, dict[str, Any], Callable[[], Any], str]] = {
    "method": (ud.algorithm, METHODS, a_method, "half-steps"),
    "data set": (ud.dataset, DATASETS, a_function, "my-own"),
    "metric": (ud.metric, METRICS, a_function, "my_own"),
    "model": (ud.model, MODELS, a_function, "my_own"),
    "partition": (ud.partition, PARTITIONS, a_partition, "by-hand"),
    "codec": (ud.codec, CODECS, a_codec, "sign-sum"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_with_a_name_or_bare(kind: str) -> None:
    decorator, known, make, name = KINDS[kind]
    for given, expected in (("by-another-name", "by-another-name"), (None, name)):
        new = make()
        assert decorator(given)(new) is new and expected in known
    del known[name]
    new = make()
    assert decorator(new) is new and name in known


def test_a_bare_method_is_a_whole_one() -> None:
    method = ud.algorithm(a_method())
    assert ud.method("half-steps", part=0.25) == method(part=0.25)
    with pytest.raises(ud.InvalidInput, match=r"half-steps: part must lie in \(0, 1\]"):
        method(part=2.0)


@pytest.mark.parametrize("kind", KINDS)
def test_what_has_no_name_is_refused(kind: str) -> None:
    decorator = KINDS[kind][0]
    for wrong in (3, lambda *given: None):
        with pytest.raises(ud.InvalidInput, match=f"the decorator of a {kind} stands above a class or function"):
            decorator(wrong)


def test_a_name_that_is_taken_is_refused_bare_too() -> None:
    def lenet() -> nn.Module:
        return nn.Linear(1, 1)

    with pytest.raises(ud.InvalidInput, match="there is a model 'lenet' already"):
        ud.model(lenet)


def test_a_method_is_a_class_and_what_is_said_of_it_known() -> None:
    with pytest.raises(ud.InvalidInput, match="method 'mine' must be a class"):
        ud.algorithm("mine")(a_function())
    with pytest.raises(
        ud.InvalidInput, match="unknown word about a method 'local_momentun'; did you mean 'local_momentum'"
    ):
        ud.algorithm("mine", local_momentun=True)
