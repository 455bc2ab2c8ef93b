"""Hostile messages: what two nodes of three, and strangers beside them, send in place of honest answers.

    python -m tests.faults.messages TRIES SEED

Every message goes through Flower's records, as on a real wire.  A run survives if it ends, honest nodes are in every
round, and every message that is used has the form of an honest answer, finite and within the bound.
"""

import json
import math
import random
import sys
import tempfile
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from tests.support.in_process_nodes import Nodes, deployed_rounds, experiment, quietly
from undrift.core.records import tensors
from undrift.deploy.checks import printable
from undrift.deploy.flower import RAW, from_records, to_records
from undrift.deploy.messages import Envelope
from undrift.deploy.transport import FlowerTransport

METHODS = ("fedavg", "scaffold", "fedhbm", "mime", "feddyn")
SERVERS = (None, {"kind": "deadline", "seconds": 30.0, "minimum": 1}, {"kind": "buffer", "size": 1, "concurrency": 3})
BOUND = 1e6
ROUNDS = 100

JUNK: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 2**31, 2**63, 10**18, -(10**300), 0.5, math.nan, math.inf, "", "ash", "cedar\n"),
    *("\x1b[2J", "<script>alert(1)</script>", "\ud800", "../../etc", "x" * 100_000, [], {}, [[]], {"a": {"b": []}}),
    *([0, 0], [1, 1], [True, 1], ["a"], {"round": 1}, list(range(2000)), {str(i): i for i in range(2000)}),
)


def mutated(reply: Envelope, rng: random.Random) -> RecordDict:
    """An honest reply after something was done to it."""
    return rng.choice((_words, _words, _kind, _text, _array, _array, _arrays, _records))(reply, rng)


def _words(reply: Envelope, rng: random.Random) -> RecordDict:
    header = json.loads(json.dumps(reply.header))
    for _ in range(rng.randint(1, 3)):
        inside = header
        while inside and rng.random() < 0.5 and isinstance(below := rng.choice(list(inside.values())), dict):
            inside = below
        key = rng.choice([*inside, "name", "samples", "reasons", "reason", "visit", "base"])
        inside[key] = deepcopy(rng.choice(JUNK))
        if rng.random() < 0.2:
            del inside[key]
    return to_records(replace(reply, header=header))


def _kind(reply: Envelope, rng: random.Random) -> RecordDict:
    kinds = ("hello", "up", "state", "lost", "failed", "absent", "refused", "work", "noted", "", "\n", "k" * 10**5)
    return to_records(replace(reply, kind=rng.choice(kinds)))


def _text(reply: Envelope, rng: random.Random) -> RecordDict:
    text = json.dumps(reply.header)
    cut = rng.randrange(len(text))
    made = rng.choice(
        (
            text[:cut],
            text[:cut] + chr(rng.randrange(0x2FF)) + text[cut + 1 :],
            text * 2,
            "[" * rng.choice((40, 10**5)),
            '{"a":' * 40 + "1" + "}" * 40,
            "9" * 5000,
            '{"visit":NaN}',
            "null",
            " " * 2**20 + "{}",
        )
    )
    return _of(ConfigRecord({"kind": reply.kind, "header": made}), to_records(reply)["arrays"])


def _array(reply: Envelope, rng: random.Random) -> RecordDict:
    """One array is not what it says, or says what it is not."""
    arrays: Any = dict(to_records(reply)["arrays"])
    name = rng.choice([*arrays, "up.delta"])
    old = arrays.get(name) or Array("float32", (1,), RAW, b"\0" * 4)
    n = max(1, len(old.data) // 4)
    bad = torch.full((n,), rng.choice((math.nan, math.inf, 1e30, -1e30, 3e38)))
    arrays[name] = rng.choice(
        (
            Array(old.dtype, old.shape, RAW, bad.numpy().tobytes()),
            Array(rng.choice(("float64", "int64", "bfloat16", "bool", "O", "", "float31")), old.shape, RAW, old.data),
            Array(old.dtype, rng.choice(((), (0,), (-1,), (2**62, 4), (1,) * 40, (n, 1), (1, n))), RAW, old.data),
            Array(old.dtype, old.shape, rng.choice(("numpy.ndarray", "", "pickle")), b"\x80\x04K\x01."),
            Array(old.dtype, old.shape, RAW, old.data[: rng.randrange(len(old.data) + 1)]),
            Array(old.dtype, old.shape, RAW, rng.randbytes(len(old.data))),
            Array(old.dtype, old.shape, RAW, b""),
        )
    )
    return _of(to_records(reply)["header"], ArrayRecord(arrays))


def _arrays(reply: Envelope, rng: random.Random) -> RecordDict:
    """Some are missing, or too many."""
    arrays: Any = dict(to_records(reply)["arrays"])
    some = Array("float32", (1,), RAW, b"\0" * 4)
    for name in [name for name in arrays if rng.random() < 0.5]:
        del arrays[name]
    for i in range(rng.choice((0, 1, 2000))):
        arrays[rng.choice((f"up.{i}", f"state.{i}\n", "x" * 500 + str(i)))] = some
    return _of(to_records(reply)["header"], ArrayRecord(arrays))


def _records(reply: Envelope, rng: random.Random) -> RecordDict:
    honest = to_records(reply)
    others = (ConfigRecord({"kind": 3, "header": b"{}"}), MetricRecord({"kind": 1}), ArrayRecord(), ConfigRecord())
    return rng.choice(
        (
            RecordDict(),
            RecordDict({"header": honest["header"]}),
            RecordDict({"arrays": honest["arrays"]}),
            _of(rng.choice(others), honest["arrays"]),
            _of(honest["header"], rng.choice(others)),
        )
    )


def _of(header: Any, arrays: Any) -> RecordDict:
    return RecordDict({"header": header, "arrays": arrays})


class Hostile(Nodes):
    """Nodes of which one is honest; strangers come and go."""

    def __init__(self, made: Any, folder: Path, rng: random.Random, most: int):
        super().__init__(made, folder)
        self.rng, self.most, self.tries, self.let_in = rng, most, 0, False
        self.spoil = self.hostile

    def hostile(self, who: str, reply: Envelope) -> Envelope:
        if who == "ash" or self.tries >= self.most or (reply.kind == "hello" and who != "zelkova"):
            return reply
        self.tries += 1
        return from_records(mutated(reply, self.rng))

    def nodes(self) -> Any:
        """A stranger, with another number every time: it is greeted again and again."""
        self.there = {n: who for n, who in self.there.items() if who != "zelkova"}
        self.there[self.rng.randrange(1000, 10**9)] = "zelkova"
        return super().nodes()

    def _read(self, config: Any) -> Any:
        return super()._read({**config, "name": "ash" if config["name"] == "zelkova" else config["name"]})


def attack(tries: int, rng: random.Random) -> dict[str, int]:
    """One run under attack."""
    name, rounds = rng.choice(METHODS), min(ROUNDS, 2 + tries // 2)
    made = experiment(
        name,
        rounds=rounds,
        participation={"scheme": "everyone"},
        server=rng.choice(SERVERS[:2] if name == "mime" else SERVERS),  # which crosses the wire twice a round
        model={"name": "mlp", "hidden": [1]},
        local={"steps": 1, "batch": 4, "lr": 0.01},
        evaluation={"every": rounds},
    )
    found = {"tries": 0, "survived": 0, "silent": 0, "crashed": 0}
    with tempfile.TemporaryDirectory() as folder, _watched(found):
        nodes = Hostile(made, Path(folder), rng, tries)
        try:
            settings = {"bad_replies": 10**9, "lost_states": 10**9, "norm_bound": BOUND}
            for r in deployed_rounds(nodes, clients="ash,birch,cedar", **settings):
                found["silent"] += 0 in r.left_out or not bool(r.x.isfinite().all())
        except Exception as error:
            print(f"crashed: {printable(f'{type(error).__name__}: {error}')}", file=sys.stderr)
            found["crashed"] += 1
        found["tries"] = nodes.tries
    return found


class _watched:
    """Look at every answer that gets through, with other eyes than the door's."""

    def __init__(self, found: dict[str, int]):
        self.found = found

    def __enter__(self) -> None:
        self.read: Callable[..., None] = FlowerTransport.read

        def watched(transport: Any, answers: Any, i: int, reply: Envelope, request: Any, form: Any, t: int) -> None:
            self.read(transport, answers, i, reply, request, form, t)
            if i in answers.good:
                got, like = tensors(answers.good[i]), tensors(form)
                sound = reply.header["visit"] == request.header["visit"] and len(got) == len(like)
                for a, b in zip(got, like, strict=False):
                    sound &= a.shape == b.shape and a.dtype == b.dtype and math.isfinite(float(a.double().abs().sum()))
                    sound &= float(a.double().norm()) <= BOUND
                self.found["silent"] += not sound

        FlowerTransport.read = watched  # type: ignore[method-assign]

    def __exit__(self, *_: Any) -> None:
        FlowerTransport.read = self.read  # type: ignore[method-assign]


@quietly()
def main(tries: int = 10_000, seed: int = 0) -> dict[str, Any]:
    """Attack until so many messages were sent; prints and returns what came of them."""
    rng, total = random.Random(seed), {"tries": 0, "survived": 0, "silent": 0, "crashed": 0}
    while total["tries"] < tries:
        for key, value in attack(tries - total["tries"], rng).items():
            total[key] += value
    total["survived"] = total["tries"] - total["silent"] - total["crashed"]
    line = {"attack": "hostile messages of nodes", **total}
    print(json.dumps(line))
    return line


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
