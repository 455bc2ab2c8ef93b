"""What a node may send or claim, and how little comes of it."""

import json
import logging
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import undrift as ud
from tests.support.in_process_nodes import Nodes, deployed, experiment, run_dir, simulated
from undrift.core.hyper import METHODS
from undrift.deploy.checks import BadAnswer, RawArray, parse_envelope
from undrift.deploy.faults import Faults
from undrift.deploy.flower import FlowerLink, from_records, to_records
from undrift.deploy.messages import Envelope
from undrift.experiments.runs.directory import RunDirectory
from undrift.experiments.runs.files import checked_lines
from undrift.experiments.verify import verify
from undrift.models import MODELS


def faults(folder: Path) -> list[dict[str, Any]]:
    return checked_lines(run_dir(folder) / "faults.jsonl")[0]


def by_cedar(change: Callable[[Envelope], Envelope], *kinds: str) -> Callable[[str, Envelope], Envelope]:
    return lambda who, reply: change(reply) if who == "cedar" and reply.kind in kinds else reply


# the door


@given(st.text() | st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists).map(json.dumps))
def test_any_header_is_an_envelope_or_a_bad_answer(header: str) -> None:
    try:
        assert isinstance(parse_envelope("up", header, {}).header, dict)
    except BadAnswer as bad:
        assert str(bad).isprintable() and len(str(bad)) <= 2000


@given(
    st.sampled_from(["float32", "bool", "bfloat16", "int8", "object", "<U9", ""]),
    st.lists(st.integers(-2, 10**18) | st.booleans(), max_size=10),
    st.binary(max_size=64),
)
def test_any_array_is_a_tensor_of_its_bytes_or_a_bad_answer(dtype: str, shape: list[int], data: bytes) -> None:
    try:
        made = parse_envelope("up", "{}", {"a": RawArray(dtype, tuple(shape), data)}).arrays["a"]
        assert made.numel() * made.element_size() == len(data) and list(made.shape) == shape
    except BadAnswer as bad:
        assert str(bad).isprintable()


NUMPY = "numpy.ndarray"
OK = {"kind": "up", "header": "{}"}


@pytest.mark.parametrize(
    "records",
    [
        RecordDict(),
        RecordDict({"header": ArrayRecord(), "arrays": ConfigRecord()}),
        RecordDict({"header": ConfigRecord({"kind": "up"}), "arrays": ArrayRecord()}),
        RecordDict({"header": ConfigRecord({"kind": 3, "header": "{}"}), "arrays": ArrayRecord()}),
        RecordDict({"header": ConfigRecord({"kind": "up", "header": "[" * 10**5}), "arrays": ArrayRecord()}),
        RecordDict({"header": ConfigRecord({"kind": "up", "header": '{"a":' * 50}), "arrays": ArrayRecord()}),
        RecordDict({"header": ConfigRecord({"kind": "up", "header": " " * 2**21 + "{}"}), "arrays": ArrayRecord()}),
        *(
            RecordDict({"header": ConfigRecord(dict(OK)), "arrays": ArrayRecord({"up.x": array})})
            for array in (
                Array("float32", (2,), NUMPY, b""),
                Array("float32", (2,), NUMPY, b"PK\x03\x04"),
                Array("float32", (2,), NUMPY, b"\x93NUMPY\x01\x00v\x00{'descr': (((("),
                Array("float32", (10**12,), NUMPY, b"\0" * 8),
                Array("object", (1,), NUMPY, b"\0" * 8),
                Array("bool", (1,), NUMPY, b"\7"),
            )
        ),
    ],
)
def test_records_that_are_no_message_are_a_failure_not_a_crash(records: RecordDict) -> None:
    found = from_records(records)
    assert found.kind == "failed" and len(found.header["reason"]) <= 500


def test_what_flower_cannot_unpack_spoils_no_other_answer() -> None:
    class Grid:
        def pull_messages(self, tickets: list[str]) -> list[Any]:
            if tickets == ["a"]:
                raise RecursionError
            return []

    ((ticket, reply),) = FlowerLink(Grid()).receive(["a", "b"])
    assert (ticket, reply.kind) == ("a", "failed") and "RecursionError" in reply.header["reason"]


# answers that lead nowhere


BUFFER = {"kind": "buffer", "size": 2, "concurrency": 3}


@pytest.mark.parametrize("name, server", [
    *((name, None) for name in ("fedavg", "scaffold", "fedhbm", "vrl-sgd")),
    *((name, BUFFER) for name in ("fedavg", "scaffold", "fedhbm")),  # vrl-sgd needs all clients at once
])  # fmt: skip
def test_a_node_that_always_says_lost_is_shut_out(name: str, server: Any, tmp_path: Path) -> None:
    made = experiment(name, participation={"scheme": "everyone"}, server=server, rounds=8)
    nodes = Nodes(made, tmp_path)
    nodes.spoil = by_cedar(lambda reply: Envelope("lost", reply.header), "up", "state")
    rounds = deployed(nodes)
    counted = [line for line in faults(tmp_path) if line["kind"] == "bad"]
    if METHODS[name].spec.everyone:
        stopped = RunDirectory(run_dir(tmp_path)).result()["stopped"]  # pyright: ignore[reportOptionalSubscript]
        assert "full participation" in stopped and len(counted) == 1
    else:
        assert len(rounds) == 8 and len(counted) == 3 and {line["client"] for line in counted} == {"cedar"}
        assert 2 not in rounds[-1].clients


def test_a_node_that_loses_its_state_again_and_again_is_shut_out(tmp_path: Path, caplog: Any) -> None:
    made = experiment("scaffold", participation={"scheme": "everyone"}, rounds=6)
    nodes = Nodes(made, tmp_path)

    def lose(who: str, envelope: Envelope) -> str:
        if who == "cedar" and envelope.kind == "work" and any(envelope.header["visit"]["base"][:2]):
            nodes.lose(who)
        return ""

    nodes.fault = lose
    assert deployed(nodes, lost_states=2)[-1].clients == (0, 1)
    assert "cedar lost its state 2 times: it is shut out" in caplog.text


def test_the_norm_bound_is_for_states_too(tmp_path: Path) -> None:
    """After one honest loss a node lies in the recount."""
    made = experiment("scaffold", participation={"scheme": "everyone"}, rounds=6)
    nodes, lost = Nodes(made, tmp_path), []

    def lose(who: str, envelope: Envelope) -> str:
        if envelope.kind == "work" and envelope.header["visit"]["round"] == 3 and not lost:
            lost.append(who)
            nodes.lose(who)
        return ""

    def huge(reply: Envelope) -> Envelope:
        return replace(reply, arrays={name: t + 1e20 for name, t in reply.arrays.items()})

    nodes.fault, nodes.spoil = lose, by_cedar(huge, "state")
    last = deployed(nodes, norm_bound=1e3)[-1]
    assert last.round == 6 and float(last.state.server.c.norm()) < 1e3
    assert ["cedar"] == [line["client"] for line in faults(tmp_path) if line["kind"] == "bad"]


@ud.codec("picks")
class Picks:
    """The first half of a vector, by places that a node may choose badly."""

    def encode(self, v: torch.Tensor, random: Any) -> Any:
        places = torch.arange(v.shape[-1] // 2, dtype=torch.int32).expand(*v.shape[:-1], -1)
        return places, v.gather(-1, places.long())

    def decode(self, payload: Any, like: torch.Tensor) -> torch.Tensor:
        places, values = payload
        return values.new_zeros(*values.shape[:-1], like.numel()).scatter(-1, places.long(), values)


@pytest.mark.parametrize("place", [10**6, -1])
def test_a_payload_that_cannot_be_decoded_is_a_bad_answer(place: int, tmp_path: Path) -> None:
    nodes = Nodes(experiment("fedavg", codec="picks", participation={"scheme": "everyone"}), tmp_path)

    def astray(reply: Envelope) -> Envelope:
        spoilt = {n: t.clone().fill_(place) if t.dtype == torch.int32 else t for n, t in reply.arrays.items()}
        return replace(reply, arrays=spoilt)

    nodes.spoil = by_cedar(astray, "up")
    rounds = deployed(nodes)
    assert [r.left_out for r in rounds] == [(2,), (2,), (2,), ()]
    assert "cannot be decoded" in faults(tmp_path)[0]["fault"]


def test_the_norm_bound_is_of_what_is_decoded(tmp_path: Path) -> None:
    nodes = Nodes(experiment("fedavg", codec="picks", participation={"scheme": "everyone"}), tmp_path)
    assert deployed(nodes, norm_bound=1e3)[0].left_out == ()  # places are numbers up to 324


# what a node says of itself


def claims(**words: Any) -> Callable[[Envelope], Envelope]:
    return lambda reply: replace(reply, header={**reply.header, **words})


HELLO: dict[str, tuple[dict[str, Any], str]] = {
    "newline": ({"name": "ash\nroot is here"}, "a client's name has at most 64"),
    "markup": ({"name": "<script>"}, "a client's name has at most 64"),
    "long": ({"name": "a" * 10**6}, "a client's name has at most 64"),
    "number": ({"name": 3}, "it said no name"),
    "samples": ({"samples": 10**18}, "not a whole number from 1 to 1000000000"),
    "bool": ({"samples": True}, "it has True samples"),
    "float": ({"samples": 1.5}, "it has 1.5 samples"),
    "reasons": ({"reasons": 3}, "its reasons are no list"),
    "reason": ({"reasons": ["x" * 5_000_000]}, "xxx..."),
    "key": ({"experiment": {"a\nroot is here\x1b[2J" + "a" * 10**6: 1}}, "experiment.a\\nroot is here\\x1b[2Ja"),
    "deep": ({"experiment": {str(i): i for i in range(5000)}}, "more differences"),
}


@pytest.mark.parametrize("claim", sorted(HELLO))
def test_a_claim_that_is_not_believed(claim: str, tmp_path: Path, caplog: Any) -> None:
    words, reason = HELLO[claim]
    nodes = Nodes(experiment(), tmp_path)
    nodes.spoil = by_cedar(claims(**words), "hello")
    with caplog.at_level(logging.INFO), pytest.raises(ud.InvalidInput, match="2 of 3 clients came") as error:
        deployed(nodes, wait=3.0)
    said = [str(error.value), *(r.getMessage() for r in caplog.records)]
    assert reason in said[0] and all(len(text) < 20_000 and text.isprintable() for text in said)


def test_one_that_outweighs_all_others_is_named(tmp_path: Path, caplog: Any) -> None:
    nodes = Nodes(experiment(rounds=1), tmp_path)
    nodes.spoil = by_cedar(claims(samples=10**8), "hello")
    deployed(nodes)
    assert "cedar reports more samples than all others together" in caplog.text


def test_samples_are_the_operators_to_bound(tmp_path: Path) -> None:
    with pytest.raises(ud.InvalidInput, match="not a whole number from 1 to 5"):
        deployed(Nodes(experiment(), tmp_path), most_samples=5, wait=3.0)


@pytest.mark.parametrize("first", [True, False])
def test_a_key_without_a_name_does_not_get_one_that_is_anothers(first: bool, tmp_path: Path, caplog: Any) -> None:
    nodes = Nodes(experiment(), tmp_path)
    nodes.registered = {100: "ash"}
    nodes.there = {**({50: "ash"} if first else {}), **nodes.there, **({} if first else {200: "ash"})}
    assert len(deployed(nodes)) == 4
    assert "it calls itself ash, which is the name of another key" in caplog.text


def test_a_name_goes_to_the_key_that_has_it_also_if_that_comes_later(tmp_path: Path, caplog: Any) -> None:
    nodes = Nodes(experiment(rounds=2), tmp_path)
    nodes.there[200] = nodes.there.pop(100)  # an impostor, alone at first
    nodes.fault = lambda who, envelope: (
        nodes.there.update({100: "ash"}) or nodes.registered.update({100: "ash"}) or ""  # type: ignore[func-returns-value]
    )
    assert len(deployed(nodes)) == 2
    assert "ash is refused: it calls itself ash, which is the name of another key" in caplog.text


def test_keys_may_have_to_be_named(tmp_path: Path) -> None:
    nodes = Nodes(experiment(), tmp_path)
    with pytest.raises(ud.InvalidInput, match="registered without a name"):
        deployed(nodes, named_keys=True, wait=3.0)
    nodes = Nodes(experiment(), tmp_path)
    nodes.registered = dict(nodes.there)
    assert len(deployed(nodes, named_keys=True)) == 4


# files


class Killed(BaseException):
    """The server's process is gone."""


def spoilt_by(name: str, nodes: Nodes) -> Nodes:
    nan = lambda reply: replace(reply, arrays={n: t * math.nan for n, t in reply.arrays.items()})
    nodes.spoil = lambda who, reply: nan(reply) if who == name and reply.kind == "up" else reply
    return nodes


def test_a_bad_answer_counts_once_however_often_the_server_is_killed(tmp_path: Path, monkeypatch: Any) -> None:
    made, note = experiment(participation={"scheme": "everyone"}, rounds=3), Faults.note

    def killed(self: Faults, *fault: Any) -> None:
        note(self, *fault)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Faults, "note", killed)
        for _ in range(4):
            with pytest.raises(Killed):
                deployed(spoilt_by("ash", Nodes(made, tmp_path)))
            assert len(faults(tmp_path)) == 1
            with (run_dir(tmp_path) / "faults.jsonl").open("ab") as file:
                file.write(b'{"round":0,"client":"bi')  # half a line
    assert [r.left_out for r in deployed(spoilt_by("birch", Nodes(made, tmp_path)))] == [(1,)] * 3
    assert [line["client"] for line in faults(tmp_path)] == ["birch"] * 3


def test_a_damaged_line_hides_no_other_fault(tmp_path: Path, caplog: Any) -> None:
    made = experiment(participation={"scheme": "everyone"}, rounds=2)
    nodes = Nodes(made, tmp_path)
    nodes.spoil = by_cedar(lambda reply: Envelope("failed", {"reason": "tired"}), "up")
    deployed(nodes, bad_replies=2)
    path = run_dir(tmp_path) / "faults.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"round":1', b'"round":0', 1))
    assert [line["round"] for line in faults(tmp_path)] == [2]
    assert [f.path.name for f in verify(run_dir(tmp_path)) if not f.sound] == ["faults.jsonl"]
    longer = made.model_copy(update={"rounds": 3})
    assert deployed(Nodes(longer, tmp_path), bad_replies=2)[-1].clients == (0, 1, 2)  # one fault is known, not two
    assert "line 1 is damaged" in caplog.text


def test_files_are_their_owners_alone(tmp_path: Path) -> None:
    deployed(Nodes(experiment(rounds=1), tmp_path))
    for folder in (run_dir(tmp_path), tmp_path / "ash"):
        assert folder.stat().st_mode & 0o077 == 0


# half precision


class HalfLinear(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input.flatten(1).to(self.weight.dtype))


def half_linear(inputs: int, classes: int, dtype: str = "bfloat16") -> nn.Module:
    return HalfLinear(inputs, classes).to(getattr(torch, dtype))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_travels_and_has_whole_stamps(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MODELS, "half_linear", half_linear)
    made = experiment("fedhbm", rounds=2, model={"name": "half_linear", "dtype": dtype})
    nodes = Nodes(made, tmp_path)
    nodes.spoil = lambda who, reply: from_records(to_records(reply))
    last = deployed(nodes)[-1]
    assert last.x.dtype == getattr(torch, dtype) and torch.equal(last.x, simulated(made)[-1].x)
