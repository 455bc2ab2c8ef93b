"""Sparse and quantised codecs: what they mean, what they weigh, and what methods keep under them."""

import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import undrift as ud
from tests.support.everywhere import federation, models, other_engines, played
from tests.support.mutation import assert_noticed
from tests.support.oracles import scaffold as oracle
from tests.support.oracles.world import make_world
from tests.support.toy_problem import WorldProblem, gap, path, random_cohorts
from undrift.codecs import CodecWire, compressors, make_codec
from undrift.codecs.codec import _round_trip, random_of
from undrift.codecs.compressors import pack_bits, unpack_bits
from undrift.core.records import nbytes
from undrift.core.rng import Key
from undrift.core.work import Ones, Solver, Work

codec_module = sys.modules["undrift.codecs.codec"]  # the package has a function of this name
pytestmark = pytest.mark.usefixtures("interpreted")


def random(clients: int, round: int = 1) -> Any:
    problem: Any = Ones(torch.zeros(1, dtype=torch.float64))
    return random_of(Work(problem, Solver(lr=1.0), list(range(clients)), [1] * clients, Key(0, round), single=False))


# what a payload means, against the same in numpy, for 10,000 vectors


def of_numpy(name: str, codec: Any, v: np.ndarray, found: np.ndarray) -> np.ndarray:
    """What the server must see of a vector; of a random codec, given what it saw, what it may have seen."""
    if name == "top-k":
        k = codec.k if isinstance(codec.k, int) else max(1, round(codec.k * len(v)))
        expected = np.zeros_like(v)
        places = np.argsort(-np.abs(v), kind="stable")[:k]
        expected[places] = v[places]
        return expected
    if name == "random-k":
        k = codec.k if isinstance(codec.k, int) else max(1, round(codec.k * len(v)))
        sent = found != 0
        assert sent.sum() == min(k, (v != 0).sum()) or (v == 0).any()
        return np.where(sent, v if codec.feedback else v * len(v) / k, 0)
    s, L = np.abs(v).max(), 2**codec.bits - 1
    grid = np.linspace(-s, s, L + 1)
    if codec.stochastic:
        near = np.abs(found - v) <= 2 * s / L * (1 + 1e-9)
        assert near.all()
        return grid[np.abs(grid[None] - found[:, None]).argmin(1)]
    assert (np.abs(found - v) <= s / L * (1 + 1e-9) + 1e-300).all()
    return grid[np.abs(grid[None] - found[:, None]).argmin(1)]


def bytes_of(name: str, codec: Any, D: int) -> int:
    if name == "quantised":
        return -(-D * codec.bits // 8) + 8
    k = codec.k if isinstance(codec.k, int) else max(1, round(codec.k * D))
    return 8 * k + -(-k * max(1, (D - 1).bit_length()) // 8)


@st.composite
def codecs(draw: Any) -> tuple[str, Any, int]:
    D = draw(st.integers(1, 70))
    name = draw(st.sampled_from(["top-k", "random-k", "quantised"]))
    if name == "quantised":
        return name, ud.Quantised(draw(st.integers(1, 8)), draw(st.booleans())), D
    k = draw(st.one_of(st.integers(1, D), st.floats(0.01, 1.0)))
    return name, (ud.TopK if name == "top-k" else ud.RandomK)(k, feedback=draw(st.booleans())), D


@settings(max_examples=200, deadline=None)
@given(codecs(), st.integers(0, 2**32), st.sampled_from([1e-6, 1.0, 1e6]))
def test_what_is_decoded_is_what_was_meant(drawn: tuple[str, Any, int], seed: int, scale: float) -> None:
    """50 vectors in each of 200 examples."""
    check_meaning(*drawn, seed, scale)


def check_meaning(name: str, codec: Any, D: int, seed: int = 0, scale: float = 1.0) -> None:
    v = torch.randn(50, D, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * scale
    payload = codec.encode(v, random(50))
    found = codec.decode(payload, v[0])
    for row, seen in zip(v.numpy(), found.numpy(), strict=True):
        assert np.allclose(seen, of_numpy(name, codec, row, seen), rtol=1e-9, atol=1e-12 * scale)
    assert nbytes(payload) == 50 * bytes_of(name, codec, D)


@given(st.integers(1, 20), st.lists(st.integers(0, 2**20 - 1), min_size=1, max_size=40))
def test_bits_are_packed_without_a_gap(bits: int, numbers: list[int]) -> None:
    rows = torch.tensor([numbers, numbers[::-1]]) % 2**bits
    packed = pack_bits(rows, bits)
    assert packed.dtype == torch.uint8 and packed.shape == (2, -(-len(numbers) * bits // 8))
    assert torch.equal(unpack_bits(packed, bits, len(numbers)), rows)
    whole = sum(int(n) << (bits * i) for i, n in enumerate(rows[0].tolist()))
    assert bytes(packed[0].tolist()) == whole.to_bytes(packed.shape[1], "little")


@pytest.mark.parametrize(
    "codec", [ud.RandomK(0.3), ud.RandomK(2), *(ud.Quantised(bits, stochastic=True) for bits in (1, 2, 4, 8))], ids=repr
)
def test_unbiased_codecs_are(codec: Any) -> None:
    """The mean of 20,000 draws lies within 4.5 standard errors of the vector, in every coordinate."""
    clients = 20_000
    v = torch.tensor([0.3, -1.0, 0.0, 0.77, 0.05, -0.4], dtype=torch.float64)
    found = codec.decode(codec.encode(v.expand(clients, -1), random(clients)), v)
    error = (found.mean(0) - v).abs() / (found.std(0) / clients**0.5 + 1e-12)
    assert float(error.max()) < 4.5


@pytest.mark.parametrize("codec", [ud.TopK(0.3), ud.Quantised(2)], ids=repr)
def test_the_test_of_bias_finds_it(codec: Any) -> None:
    v = torch.tensor([0.3, -1.0, 0.0, 0.77, 0.05, -0.4], dtype=torch.float64)
    assert float((codec.decode(codec.encode(v, None), v) - v).abs().max()) > 0.01


@pytest.mark.parametrize("name", ["top-k:0.2", "random-k:0.2", "quantised:4", "quantised:4,stochastic"])
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_what_is_not_finite_is_seen_by_the_server(name: str, wrong: float) -> None:
    codec: Any = make_codec(name)
    v = torch.zeros(2, 10, dtype=torch.float64)
    v[0, 7] = wrong
    found = codec.decode(codec.encode(v, random(2)), v[0])
    assert not found[0].isfinite().all() and found[1].isfinite().all()


def test_zero_stays_zero() -> None:
    for name in ("top-k:3", "random-k:3", "quantised:3", "quantised:8,stochastic"):
        codec: Any = make_codec(name)
        v = torch.zeros(2, 10)
        assert not codec.decode(codec.encode(v, random(2)), v[0]).any()


# in every engine

NAMES = ["top-k:0.1", "top-k:3,feedback", "random-k:0.3", "random-k:0.3,feedback", "quantised:3", "quantised:4,stochastic",
         "quantised:1,feedback", "bf16:feedback"]  # fmt: skip


@other_engines
@pytest.mark.parametrize("name", NAMES)
def test_every_engine_sends_the_same(name: str, engine: str) -> None:
    problem = federation()
    one, other = (played(ud.Scaffold(B=1), each, problem, codec=name) for each in ("sequential", engine))
    assert gap(models(other), models(one)) < 1e-9
    assert [r.bytes_up for r in one] == [r.bytes_up for r in other]
    codec: Any = make_codec(name)
    assert one[-1].bytes_up == 3 * 2 * nbytes(codec.encode(problem.x0, lambda like, _: torch.zeros_like(like)))


def test_a_resumed_run_goes_on_with_the_errors() -> None:
    whole = models(played(ud.FedAvg(), "batched", codec="top-k:0.1,feedback"))
    half = played(ud.FedAvg(), "batched", codec="top-k:0.1,feedback", rounds=2)[-1].snapshot()
    again = played(ud.FedAvg(), "batched", codec="top-k:0.1,feedback", start=half)
    assert (models(again) == whole[2:]).all()


# error feedback


def test_error_feedback_is_that_of_a_loop_in_numpy() -> None:
    w, T, K, eta, k = make_world(4, d=5), 12, 3, 0.05, 2
    cohorts = random_cohorts(4, 2, T)
    x, e, xs = w.x0.copy(), np.zeros((4, 5)), [w.x0]
    for t, S in enumerate(cohorts, start=1):
        sent = []
        for i in S:
            y = x.copy()
            for j in range(K):
                y = y - eta * w.grad(i, y, t, j)
            p = x - y + e[i]
            c = np.where(np.abs(p) >= np.sort(np.abs(p))[-k], p, 0)
            e[i] = p - c
            sent.append(c)
        x = x - np.mean(sent, axis=0)
        xs.append(x)
    local = ud.Local(steps=K, lr=eta)
    ours = path(
        ud.FedAvg(),
        WorldProblem(w),
        rounds=T,
        participation=ud.Fixed(cohorts),
        local=local,
        codec=ud.TopK(k, feedback=True),
    )
    assert gap(ours, np.array(xs)) < 1e-9


def test_error_feedback_reaches_where_compression_alone_does_not() -> None:
    rng = torch.Generator().manual_seed(0)
    e = torch.randn(4, 6, dtype=torch.float64, generator=rng)
    problem = ud.Quadratic(torch.eye(6, dtype=torch.float64).repeat(4, 1, 1), e)
    local = ud.Local(steps=1, lr=0.01)
    ends = [
        ud.run(ud.FedAvg(), problem, rounds=1500, local=local, codec=f"top-k:1{word}", evaluate_every=1500).x
        for word in ("", ",feedback")
    ]
    alone, with_feedback = (float((x - e.mean(0)).norm()) for x in ends)
    assert with_feedback < alone / 4, (with_feedback, alone)


# both sides agree on what was sent

STATEFUL = [ud.Scaffold(B=2), ud.Scaffold(option=1), ud.ScaffoldM(0.3, B=2), ud.ScaffoldMVR(0.3), ud.Scallion(alpha=0.5), ud.Scafcom(beta=0.4)]  # fmt: skip
CODECS = ["top-k:1", "top-k:1,feedback", "random-k:1", "quantised:2", "quantised:2,stochastic", "fp16"]
N = 6


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("method", STATEFUL, ids=repr)
@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_c_is_the_mean_of_all_c_i_under_compression(method: Any, codec: str, engine: str) -> None:
    w = make_world(N, p=[1, 2, 3, 1, 2, 4])
    who, local = ud.Fixed(random_cohorts(N, 2, 8)), ud.Local(steps=[1, 4, 2, 3, 2, 5], lr=0.05)
    for r in ud.rounds(
        method, WorldProblem(w), rounds=8, participation=who, local=local, codec=codec, engine=engine, evaluate_every=9
    ):
        state = r.snapshot()
        assert float((state.server.c - torch.as_tensor(w.p) @ state.clients.gather(range(N)).c).abs().max()) < 1e-12


@pytest.mark.parametrize("engine", ["sequential", "batched", "events"])
@pytest.mark.parametrize("codec", ["top-k:0.1,feedback", "quantised:4,stochastic"])
def test_c_is_the_mean_of_all_c_i_if_clients_are_lost(codec: str, engine: str) -> None:
    """In virtual time some vanish on their way; in the others one answers with NaN."""

    class Lossy:
        settle = ud.Scaffold.settle
        server, client, send, update = ud.Scaffold.server, ud.Scaffold.client, ud.Scaffold.send, ud.Scaffold.update
        eta_g, option = 1.0, 2

        def local(self, down: Any, client: Any, work: Any) -> Any:
            up, state = ud.Scaffold().local(down, client, work)
            bad = work.column([i == 2 for i in work.clients]) * torch.inf
            return type(up)(up.delta + torch.nan_to_num(bad, nan=0.0, posinf=torch.inf), up.dc), state

    problem, lossy = federation(), engine != "events"
    method: Any = Lossy() if lossy else ud.Scaffold()
    more: dict[str, Any] = {} if lossy else {"population": ud.Population(dropout=ud.Dropout(before=0.4))}
    rounds = list(ud.rounds(method, problem, rounds=6, participation=ud.Uniform(3), seed=3, codec=codec, engine=engine,
                            local=ud.Local(steps=3, batch=4, lr=0.1), **more))  # fmt: skip
    state = rounds[-1].snapshot()
    c_i = state.clients.gather(range(problem.N)).c
    assert float((state.server.c - c_i.mean(0)).abs().max()) < 1e-12 < float(c_i.abs().max())
    assert any(r.left_out for r in rounds) if lossy else len(state.clients.seen()) > 0


@pytest.mark.parametrize("method", [ud.VRLSGD(), ud.LED(), ud.Scaffnew()], ids=repr)
def test_corrections_sum_to_zero_under_compression(method: Any) -> None:
    for r in ud.rounds(
        method, WorldProblem(make_world(N)), rounds=8, local=ud.Local(steps=3, lr=0.05), codec="top-k:1"
    ):
        state = r.snapshot()
        clients = state.clients.gather(range(N))
        assert float((clients.z + clients.r * state.server.x).sum(0).abs().max()) < 1e-12


def test_fednova_vr_and_feddyn_keep_their_sums_under_compression() -> None:
    w, local = make_world(N, p=[1, 2, 3, 1, 2, 4]), ud.Local(steps=[1, 4, 2, 3, 2, 5], lr=0.05)
    p = torch.as_tensor(w.p)
    for r in ud.rounds(ud.FedNovaVR(), WorldProblem(w), rounds=6, local=local, codec="top-k:1"):
        state = r.snapshot()
        assert float((p @ (state.clients.gather(range(N)).r + state.server.d)).abs().max()) < 1e-12
    for r in ud.rounds(
        ud.FedDyn(), WorldProblem(w), rounds=6, local=local, codec="top-k:1", participation=ud.Uniform(2)
    ):
        state = r.snapshot()
        assert float((p @ state.clients.gather(range(N)).g - state.server.h).abs().max()) < 1e-12


# SCALLION and SCAFCOM with the compressors of their paper


def top_one(v: np.ndarray) -> np.ndarray:
    return np.where(np.abs(v) == np.abs(v).max(), v, 0)


@pytest.mark.parametrize("name, told", [("scallion", {"alpha": 0.5}), ("scafcom", {"beta": 0.3})])
@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_compressed_methods_equal_their_oracles_with_top_1(name: str, told: dict[str, float], engine: str) -> None:
    w, cohorts = make_world(5), random_cohorts(5, 2, 20)
    expected = getattr(oracle, name)(w, cohorts, [3] * 5, 0.05, compress=top_one, **told)
    ours = path(ud.method(name, **told), WorldProblem(w), rounds=20, participation=ud.Fixed(cohorts), engine=engine,
                local=ud.Local(steps=3, lr=0.05), codec="top-k:1")  # fmt: skip
    assert gap(ours, expected) < 1e-9


@pytest.mark.parametrize(
    ("method", "codec", "lr"),
    [(ud.Scallion(alpha=0.3), "random-k:0.5", 0.02), (ud.Scallion(alpha=0.5), "quantised:3,stochastic", 0.03), (ud.Scafcom(beta=0.3), "top-k:1", 0.02)],
    ids=repr,
)  # fmt: skip
def test_compressed_methods_reach_the_optimum(method: Any, codec: str, lr: float) -> None:
    """Increments vanish at the optimum, and with them what a codec leaves out."""
    w = make_world(4, n=1)
    H = torch.as_tensor(w.A[:, 0])
    problem = ud.Quadratic((H + H.mT) / 2, torch.as_tensor(w.b[:, 0]))
    result = ud.run(
        method,
        problem,
        rounds=2500,
        participation=ud.Uniform(2),
        local=ud.Local(steps=3, lr=lr),
        codec=codec,
        evaluate_every=2500,
    )
    assert float((result.x - problem.optimum).norm()) < 1e-8


# what is wrong


@pytest.mark.parametrize(
    ("codec", "message"),
    [
        ("top-k:100", r"codec TopK: k = 100 is more than the model has numbers, 43: give at most 43, or a share such as 0.01"),
        ("random-k:44", "codec RandomK: k = 44 is more than"),
        ("top-k:0", r"TopK: k must lie in \[1, inf\), got 0"),
        ("top-k:1.5", r"TopK: k must lie in \(0, 1\], got 1.5"),
        ("top-k:-0.1", r"TopK: k must lie in \(0, 1\], got -0.1"),
        ("top-k:some", r"TopK: k must be a number in \(0, 1\], got 'some'"),
        ("quantised:9", r"Quantised: bits must lie in \[1, 8\], got 9"),
        ("quantised:0", r"Quantised: bits must lie in \[1, 8\], got 0"),
        ("quantised:2.5", r"Quantised: bits must be a whole number in \[1, 8\], got 2.5"),
        ("quantised:4,stocastic", "unknown parameter of quantised: 'stocastic'; did you mean 'stochastic'"),
        ("top-z:3", "unknown codec 'top-z'; did you mean 'top-k'"),
    ],
)  # fmt: skip
def test_wrong_codecs_are_refused_before_any_work(codec: str, message: str) -> None:
    with pytest.raises(ud.InvalidInput, match=message):
        ud.rounds(ud.FedAvg(), federation(), rounds=1, codec=codec)


def test_feedback_needs_one_exchange_a_round() -> None:
    with pytest.raises(
        ud.InvalidInput, match="mime crosses the wire several times a round: use a codec without error feedback"
    ):
        ud.rounds(ud.Mime(), federation(), rounds=1, codec="top-k:0.1,feedback")
    assert played(ud.Mime(), "batched", codec="top-k:0.1")


def test_a_wire_keeps_errors_only_with_feedback() -> None:
    x = torch.zeros(5)
    assert CodecWire(ud.TopK(1), x).client(None) is None
    assert CodecWire(ud.TopK(1, feedback=True), x, 2).client(None).error[1].shape == (5,)
    assert _round_trip(ud.TopK(1), torch.tensor([1.0, 3.0]), x[:2]).tolist() == [0.0, 3.0]


# mistakes that are made

MISTAKES: list[tuple[Any, str, str, Any]] = [
    (compressors, "v.abs().topk(", "v.topk(", lambda: check_meaning("top-k", ud.TopK(3), 20)),
    (compressors, "values * (D / k)", "values * (k / D)", lambda: test_unbiased_codecs_are(ud.RandomK(2))),
    (compressors, "values if self.feedback else", "values if False else",
     lambda: check_meaning("random-k", ud.RandomK(3, feedback=True), 20)),
    (compressors, "(D - 1).bit_length()", "(D - 2).bit_length()", lambda: check_meaning("top-k", ud.TopK(1.0), 65)),
    (compressors, "random(v, \"uniform\")).floor()", "random(v, \"uniform\"))",
     lambda: test_unbiased_codecs_are(ud.Quantised(2, stochastic=True))),
    (compressors, "2 * level / (2**self.bits - 1) - 1", "2 * level / 2**self.bits - 1",
     lambda: check_meaning("quantised", ud.Quantised(3), 20)),
    (compressors, "(0, -each.shape[-1] % 8)", "(-each.shape[-1] % 8, 0)", lambda: check_meaning("quantised", ud.Quantised(3), 3)),
    (codec_module, "v = leaf if error is None else leaf + error", "v = leaf", test_error_feedback_is_that_of_a_loop_in_numpy),
    (codec_module, "kept.append(v - self", "kept.append(leaf - self", test_error_feedback_is_that_of_a_loop_in_numpy),
]  # fmt: skip


@pytest.mark.parametrize(
    ("module", "right", "wrong", "notices"), MISTAKES, ids=lambda x: x if isinstance(x, str) else ""
)
def test_mistakes_are_found(module: Any, right: str, wrong: str, notices: Any, monkeypatch: Any) -> None:
    assert_noticed(notices, module, right, wrong, monkeypatch)
