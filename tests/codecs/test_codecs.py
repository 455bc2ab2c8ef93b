"""Codecs: the same trajectory in every engine, bytes of the payload, one's own by name, and plain errors before work starts."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import undrift as ud
from tests.support.everywhere import (
    ENGINES,
    N,
    every_engine,
    federation,
    models,
    other_engines,
    played,
)
from tests.support.toy_problem import gap
from undrift.codecs.codec import CODECS

pytestmark = pytest.mark.usefixtures("interpreted")

D = 4 * 5 + 5 + 5 * 3 + 3


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    """Codecs that a test registers are forgotten after it."""
    known = dict(CODECS)
    yield
    CODECS.clear()
    CODECS.update(known)


@dataclass(frozen=True)
class Dithered:
    """Rounded up or down at random to multiples of the largest number over `levels`, right in the mean."""

    levels: int = 4

    def encode(self, v: Tensor, random: Any) -> Any:
        scale = v.abs().amax(-1, keepdim=True) / self.levels
        rounded = torch.floor(v / scale + random(v, "uniform"))
        return rounded.to(torch.int8), scale

    def decode(self, payload: Any, like: Tensor) -> Tensor:
        rounded, scale = payload
        return rounded.to(like.dtype) * scale


class Twice(Dithered):
    """Draws twice, the second time another kind."""

    def encode(self, v: Tensor, random: Any) -> Any:
        first = random(v)
        return super().encode(v, random) if bool(first.isfinite().all()) else None


@every_engine
@pytest.mark.parametrize("algorithm", [ud.FedAvg(), ud.Scaffold()], ids=repr)
def test_identity_changes_no_bit(engine: str, algorithm: Any) -> None:
    plain, coded = played(algorithm, engine), played(algorithm, engine, codec="identity")
    assert (models(coded) == models(plain)).all()
    assert [r.bytes_up for r in coded] == [r.bytes_up for r in plain]


STATEFUL = [ud.Scaffold(), ud.FedHBM(), ud.GHBM(tau=3), ud.FedNova(), ud.ScaffoldM(beta=0.3, B=1)]
CODED = [
    *((algorithm, "fp16") for algorithm in STATEFUL),
    (ud.FedAvg(), "bf16"),
    (ud.Scaffold(), Dithered()),
    (ud.ScaffoldM(beta=0.3, B=1), Twice()),
]


@other_engines
@pytest.mark.parametrize(("algorithm", "codec"), CODED, ids=str)
def test_every_engine_has_the_same_trajectory(
    engine: str,
    codec: Any,
    algorithm: Any,
    refusals: Any,
) -> None:
    reference = played(algorithm, "sequential", codec=codec)
    found = played(algorithm, engine, codec=codec)
    assert gap(models(found), models(reference)) < 1e-9
    assert [r.bytes_up for r in found] == [r.bytes_up for r in reference]
    assert refusals() == []
    away = gap(models(reference), models(played(algorithm, "sequential")))
    assert 1e-9 < away < 1  # it does something


@pytest.mark.parametrize(("engine", "chunk"), [("batched", 1), ("batched", 2), ("batched", 3), ("compiled", 2)])
def test_random_codecs_do_not_know_of_chunks(engine: str, chunk: int) -> None:
    whole = models(played(ud.Scaffold(), "sequential", codec=Dithered()))
    parts = models(played(ud.Scaffold(), engine, codec=Dithered(), chunk=chunk))
    assert gap(parts, whole) < 1e-9


def test_a_random_codec_draws_by_client_round_and_seed_and_repeats_itself() -> None:
    drawn: list[Tensor] = []

    class Listening(Dithered):
        def encode(self, v: Tensor, random: Any) -> Any:
            drawn.append(random(v, "uniform").clone())
            return v

        def decode(self, payload: Any, like: Tensor) -> Tensor:
            return payload

    def draws(seed: int, **more: Any) -> Tensor:
        drawn.clear()
        played(ud.FedAvg(), "sequential", codec=Listening(), seed=seed, rounds=3,
               participation=ud.Everyone(), **more)  # fmt: skip
        return torch.stack(drawn[-3 * N :])

    first = draws(0)
    assert torch.equal(draws(0), first)
    assert len(torch.unique(first)) == first.numel()  # nobody draws what somebody else has
    assert not (draws(1) == first).any()
    assert 0.4 < float(first.mean()) < 0.6 and 0 <= float(first.min()) and float(first.max()) < 1


class Noisy:
    """FedAvg whose clients add noise of their own before and after their steps."""

    server, client, send, update = (
        ud.FedAvg.server, ud.FedAvg.client, ud.FedAvg.send, ud.FedAvg.update
    )  # fmt: skip
    server_lr = 1.0
    drawn: list[Tensor] = []

    def local(self, down: Any, client: Any, work: Any) -> Any:
        self.drawn.append(work.random(down.x))
        up, client = ud.FedAvg().local(down, client, work)
        self.drawn.append(work.random(down.x))
        return up, client


def test_a_codec_does_not_draw_what_the_method_draws() -> None:
    heard: list[Tensor] = []

    class Listening:
        def encode(self, v: Tensor, random: Any) -> Any:
            heard.append(random(v))
            return v

        def decode(self, payload: Any, like: Tensor) -> Tensor:
            return payload

    method: Any = Noisy()
    method.drawn = []
    played(method, "sequential", codec=Listening(), rounds=1)
    assert len(method.drawn) == 6 and not set(map(_key, heard)) & set(map(_key, method.drawn))


def _key(t: Tensor) -> tuple[float, ...]:
    return tuple(t.flatten().tolist())


def test_a_resumed_run_sends_the_same() -> None:
    settings: dict[str, Any] = {"codec": Dithered(), "engine": "batched"}
    whole = models(played(ud.Scaffold(), **settings))
    half = list(played(ud.Scaffold(), rounds=2, **settings))[-1].snapshot()
    assert (models(played(ud.Scaffold(), start=half, **settings)) == whole[2:]).all()


# what the numbers are


@pytest.mark.parametrize(("codec", "dtype"), [("fp16", np.float16), ("bf16", None)], ids=["fp16", "bf16"])
def test_casts_are_those_of_numpy(codec: str, dtype: Any) -> None:
    """One exact step of FedAvg by hand: x - mean of the rounded differences."""
    random = np.random.default_rng(3)
    H = np.stack([np.diag(random.uniform(0.5, 2, 6)) for _ in range(4)])
    e = random.normal(size=(4, 6))
    problem = ud.Quadratic(torch.tensor(H), torch.tensor(e))
    (r,) = played(
        ud.FedAvg(), "sequential", problem, codec=codec, rounds=1, participation=ud.Everyone(),
        local=ud.Local(steps=1, lr=0.3),
    )  # fmt: skip
    sent = -0.3 * e  # x - y, from x = 0
    if dtype is None:  # the upper half of a float32, rounded to even
        bits = sent.astype(np.float32).view(np.uint32)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
        rounded = bits.view(np.float32).astype(np.float64)
    else:
        rounded = sent.astype(dtype).astype(np.float64)
    assert np.abs(r.x.numpy() + rounded.mean(0)).max() < 1e-15
    assert np.abs(rounded - sent).max() > 1e-6


def test_numbers_that_are_too_large_are_sent_as_the_largest() -> None:
    problem = ud.Quadratic(torch.ones(1, 1, 1, dtype=torch.float64), torch.tensor([[1e6]]).double())
    (r,) = played(
        ud.FedAvg(), "sequential", problem, codec="fp16", rounds=1, participation=ud.Everyone(),
        local=ud.Local(steps=1, lr=1.0),
    )  # fmt: skip
    assert float(r.x) == 65504.0


SENT = {"fedavg": (1, 0), "scaffold": (2, 0), "fednova": (1, 1)}  # vectors, single numbers


@pytest.mark.parametrize("name", SENT)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("engine", ["sequential", "batched", "events"])
def test_bytes_are_those_of_the_payload(engine: str, dtype: torch.dtype, name: str) -> None:
    check_bytes(engine, dtype, name)


def test_bytes_of_compiled_visits_are_those_of_the_payload() -> None:
    check_bytes("compiled", torch.float64, "fednova")


def check_bytes(engine: str, dtype: torch.dtype, name: str) -> None:
    (vectors, numbers), size, problem = SENT[name], dtype.itemsize, federation(dtype)
    algorithm = ud.method(name)
    plain = played(algorithm, engine, problem, rounds=2)
    for codec, each in [("fp16", 2 * D), ("bf16", 2 * D), (Dithered(), D + size)]:
        coded = played(algorithm, engine, problem, rounds=2, codec=codec)
        for r, other in zip(coded, plain, strict=True):
            assert r.bytes_up == 3 * (vectors * each + numbers * size)
            assert other.bytes_up == 3 * (vectors * D + numbers) * size
            assert r.bytes_down == other.bytes_down


def test_fewer_bytes_take_less_virtual_time() -> None:
    population = ud.Population(link=ud.Link(up=100.0))
    times = [played(ud.FedAvg(), "events", population=population, codec=codec)[-1].time for codec in (None, "fp16")]
    assert times == [pytest.approx(4 * 8 * D / 100), pytest.approx(4 * 2 * D / 100)]


# one's own, by name


def test_a_codec_of_ones_own_by_name() -> None:
    ud.codec("dithered")(Dithered)
    by_name = played(ud.Scaffold(), "batched", codec="dithered")
    assert (models(by_name) == models(played(ud.Scaffold(), "batched", codec=Dithered()))).all()
    ud.codec("dithered")(Dithered)  # a notebook's cell that is run twice
    with pytest.raises(ud.InvalidInput, match="there is a codec 'dithered' already: choose another"):
        ud.codec("dithered")(Twice)


OWN = """
from dataclasses import dataclass
import torch
import undrift as ud

@ud.codec("signs")
@dataclass(frozen=True)
class Signs:
    factor: float = 1.0

    def encode(self, v, random):
        return v > 0, self.factor * v.abs().mean(-1, keepdim=True)

    def decode(self, payload, like):
        positive, scale = payload
        return torch.where(positive, scale, -scale)
"""

TOML = """
rounds = 2
use = ["own.py"]
algorithm = "fedavg"
participation = {per_round = 2}
clients = {partition = "iid", number = 4}
model = {name = "mlp", hidden = []}
local = {steps = 2, batch = 8}
engine = "batched"
[codec]
name = "signs"
factor = 0.5
"""


def test_a_codec_by_name_in_an_experiment(undrift: Any, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "e.toml").write_text(TOML)
    said = undrift("run", "e.toml", "--out", "out", "-q")
    assert said.code == 0, said.err
    (found,) = (tmp_path / "out").rglob("metrics.jsonl")
    lines = [json.loads(line) for line in found.read_text().splitlines()]
    assert [line["bytes_up"] for line in lines] == [2 * (650 + 4)] * 2
    for wrong, message in [
        ('name = "sings"', "unknown codec 'sings'; did you mean 'signs'?"),
        ('name = "signs"\nfacter = 1', "unknown parameter of signs: 'facter'; did you mean 'factor'?"),
        ('name = "fp16"\nbits = 8', "unknown parameter of fp16: 'bits'. Known: feedback"),
    ]:  # fmt: skip
        (tmp_path / "wrong.toml").write_text(TOML.split("[codec]")[0] + f"[codec]\n{wrong}\n")
        said = undrift("run", "wrong.toml")
        assert said.code == 2 and message in " ".join(said.err.split())


def test_a_sweep_has_the_codec_of_its_experiment() -> None:
    from undrift.experiments.config.federation import federation as of_experiment
    from undrift.experiments.sweeps.trial import group_curves

    words: dict[str, Any] = {
        "rounds": 2, "algorithm": "fedavg", "seeds": 2, "participation": {"per_round": 2},
        "clients": {"partition": "iid", "number": 4}, "local": {"steps": 2, "batch": 8},
        "engine": "batched", "model": {"name": "mlp", "hidden": []},
    }  # fmt: skip
    with_bf16: dict[str, Any] = {**words, "codec": "bf16"}
    plain, coded = ud.Experiment(**words), ud.Experiment(**with_bf16)
    problems = {seed: of_experiment(plain, seed).problem for seed in (0, 1)}
    without, with_codec = (list(group_curves(e, problems)) for e in (plain, coded))
    assert [t for t, _ in with_codec] == [1, 2] and with_codec != without
    alone = played(
        ud.FedAvg(), "batched", problems[1], rounds=2, seed=1, codec="bf16",
        participation=ud.Uniform(2), local=ud.Local(steps=2, batch=8),
    )  # fmt: skip
    assert [metrics[1] for _, metrics in with_codec] == [r.metrics for r in alone]


# what is wrong


class Wrong:
    """A codec with one thing wrong."""

    def __init__(self, encode: Any = None, decode: Any = None):
        self._encode, self._decode = encode, decode

    def encode(self, v: Tensor, random: Any) -> Any:
        return self._encode(v, random) if self._encode else v

    def decode(self, payload: Any, like: Tensor) -> Any:
        return self._decode(payload, like) if self._decode else payload


def of_a_list(v: Tensor, random: Any) -> Any:
    return v.tolist()


def fail(*given: Any) -> Any:
    raise KeyError("no table")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (Wrong(of_a_list), "codec Wrong: TypeError: records hold tensors, tuples of them or None, got list"),
        (Wrong(lambda v, random: {"v": v}), "codec Wrong: TypeError: records hold tensors.* got dict"),
        (Wrong(lambda v, random: (v, 3.0)), "codec Wrong: TypeError: records hold tensors.* got float"),
        (Wrong(lambda v, random: v.sum()), "codec Wrong: MethodFailure: encode must return tensors with a row for every"),
        (Wrong(fail), "codec Wrong: KeyError: 'no table'"),
        (Wrong(decode=fail), "codec Wrong: KeyError: 'no table'"),
        (Wrong(decode=lambda payload, like: None), "codec Wrong: decode must return a tensor, got NoneType"),
        (Wrong(decode=lambda payload, like: payload[..., 1:]),
         rf"decode returned \[2, {D - 1}\] of torch.float64 for \[2, {D}\] of torch.float64: they must be alike"),
        (Wrong(decode=lambda payload, like: payload.float()), "of torch.float32 for .* of torch.float64: they must be alike"),
        (Wrong(decode=lambda payload, like: payload / 0), "decode returned NaN or Inf for finite numbers"),
        (Wrong(lambda v, random: v * v.abs().max()), "a client's vector is decoded otherwise beside another's than alone"),
        (Wrong(lambda v, random: v * torch.rand_like(v)),
         "the same vector is decoded otherwise a second time: draw random numbers with the `random` that encode is given"),
        (Wrong(lambda v, random: v.clamp_(0, 1)), "MethodFailure: encode must not change the vector that it is given"),
        (Wrong(lambda v, random: v + random(v, "gaussian")),
         "codec Wrong: unknown distribution 'gaussian'. Known: normal, uniform"),
        (Wrong, "codec must be a name such as 'fp16' or an object with encode and decode, got <class"),
        (16, "codec must be a name such as 'fp16' or an object with encode and decode, got 16"),
        ("fp61", "unknown codec 'fp61'; did you mean 'fp16'.* Known: bf16, fp16, identity"),
    ],
)  # fmt: skip
def test_a_wrong_codec_is_refused_before_any_work(wrong: Any, message: str) -> None:
    problem = federation()
    problem.draw = lambda *given: pytest.fail("work has started")
    for engine in ENGINES:
        with pytest.raises(ud.InvalidInput, match=message):
            ud.rounds(ud.FedAvg(), problem, rounds=1, codec=wrong, engine=engine)


@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_a_codec_that_fails_later_names_round_and_stage(engine: str) -> None:
    class Brittle(Wrong):
        tries = 0

        def decode(self, payload: Any, like: Tensor) -> Any:
            self.tries += 1
            return fail() if self.tries > 3 else payload  # three times before work starts

    with pytest.raises(ud.MethodFailure, match="server, round 1, stage decode: KeyError"):
        played(ud.FedAvg(), engine, codec=Brittle())

    class Choosy(Wrong):
        def encode(self, v: Tensor, random: Any) -> Any:
            return fail() if float(v.abs().max()) < 0.9 else v  # what is tried reaches to 1

    with pytest.raises(ud.MethodFailure, match="client.* round 1, stage local: KeyError"):
        played(ud.FedAvg(), engine, codec=Choosy())


def test_what_is_not_finite_stays_so_and_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    class Bursting(Noisy):
        def local(self, down: Any, client: Any, work: Any) -> Any:
            up, client = ud.FedAvg().local(down, client, work)
            return (type(up)(up.delta * torch.inf), client) if 2 in work.clients else (up, client)

    method: Any = Bursting()
    rounds = played(method, "sequential", codec="fp16", participation=ud.Everyone(), rounds=2)
    assert [r.left_out for r in rounds] == [(2,), (2,)]
    assert all(r.x.isfinite().all() for r in rounds)
