"""Client-level privacy: the sum's sensitivity, the noise, the denominators, epsilon, and what is refused."""

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import nn

import undrift as ud
from tests.privacy import oracle
from tests.support.everywhere import models, played
from tests.support.mutation import mistaken
from tests.support.quadratics import quadratic
from undrift.privacy import PrivateWire, clip_jointly, clipping
from undrift.privacy.accounting import epsilon_of_poisson, least_noise
from undrift.simulation import privacy as release_module
from undrift.simulation.api import RunConfig, prepare
from undrift.simulation.privacy import PrivateRelease, epsilon_after

dp: Any = pytest.importorskip("dp_accounting")
from dp_accounting import pld, rdp  # noqa: E402

LOCAL = ud.Local(steps=3, lr=0.1)
METHODS = [ud.FedAvg(), ud.Scaffold(), ud.ScaffoldM(), ud.FedHBM(), ud.FedDyn(), ud.FedNova()]
named = pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)


def path(method: Any, problem: Any, rounds: int = 6, **more: Any) -> np.ndarray:
    given: dict[str, Any] = {"local": LOCAL, "engine": "batched", "seed": 5} | more
    return np.array([r.x.numpy() for r in ud.rounds(method, problem, rounds=rounds, **given)])


# the trajectory


SCHEMES = [(ud.Everyone(), 6), (ud.Uniform(3), 3), (ud.Bernoulli(0.3), 1.8), (ud.Cyclic(2), 2)]


def distance_to_oracle(name: str, who: Any, n: float, where: str = "server", clip: float = 0.7) -> float:
    problem, rounds = quadratic(), 8
    problem.x0 = torch.zeros_like(problem.x0)
    cohorts = [who.draw(5, t, problem.weights).clients for t in range(1, rounds + 1)]
    H, e = problem.H.numpy(), problem.e.numpy()
    private = ud.Privacy(clip=clip, noise=0.4, where=where)  # pyright: ignore[reportArgumentType]
    found = path(ud.method(name), problem, rounds, participation=who, privacy=private)
    literal = {"fedavg": oracle.fedavg, "scaffold-m": oracle.scaffold_m}[name]
    right = literal(H, e, cohorts, 3, 0.1, 5, clip, 0.4, n, where == "clients")
    return float(np.abs(found - right).max())


@pytest.mark.parametrize("who, n", SCHEMES, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("name", ["fedavg", "scaffold-m"])
def test_private_runs_equal_a_loop_in_numpy(name: str, who: Any, n: float) -> None:
    assert distance_to_oracle(name, who, n) < 1e-10
    if not isinstance(who, ud.Bernoulli):
        assert distance_to_oracle(name, who, n, "clients") < 1e-10


@named
def test_without_clip_and_noise_it_is_the_method_itself(method: Any) -> None:
    nothing = ud.Privacy(clip=math.inf, noise=0.0)
    for who in (ud.Everyone(), ud.Uniform(3)):
        plain = path(method, quadratic(), participation=who)
        assert np.abs(path(method, quadratic(), participation=who, privacy=nothing) - plain).max() < 1e-12


def between_engines(name: str, engine: str, where: str) -> float:
    private = {"clip": 0.3, "noise": 0.5, "where": where}
    ours, alone = (models(played(ud.method(name), each, privacy=private)) for each in (engine, "sequential"))
    return float(np.abs(ours - alone).max())


@pytest.mark.parametrize("where", ["server", "clients"])
@pytest.mark.parametrize("engine", ["batched", "events"])
@pytest.mark.parametrize("name", ["fedavg", "scaffold-m", "fedhbm", "fednova"])
def test_every_engine_releases_the_same(name: str, engine: str, where: str) -> None:
    assert between_engines(name, engine, where) < 1e-9


@pytest.mark.slow
def test_the_compiled_engine_releases_the_same() -> None:
    assert between_engines("scaffold-m", "compiled", "clients") < 1e-9


def test_a_resumed_run_goes_on_with_the_same_noise() -> None:
    how: dict[str, Any] = {
        "local": LOCAL,
        "privacy": ud.Privacy(clip=0.5, noise=1.0),
        "participation": ud.Bernoulli(0.5),
    }
    whole = ud.run(ud.Scaffold(), quadratic(), rounds=6, **how)
    half = ud.run(ud.Scaffold(), quadratic(), rounds=3, **how)

    def again(change: dict[str, Any]) -> Any:
        given: dict[str, Any] = {**how, **change}
        return ud.run(ud.Scaffold(), quadratic(), rounds=6, start=half, **given)

    assert torch.equal(again({}).x, whole.x)
    for other in (None, ud.Privacy(clip=0.5, noise=2.0)):
        with pytest.raises(ud.InvalidInput, match="epsilon is that of all rounds"):
            again({"privacy": other})
    with pytest.raises(ud.InvalidInput, match="participation stay"):
        again({"participation": ud.Bernoulli(0.1)})


# sensitivity


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.floats(1e-3, 10))
def test_a_message_is_clipped_as_a_whole(seed: int, a: float, b: float, clip: float) -> None:
    random = torch.Generator().manual_seed(seed)
    draw = lambda scale, D: scale * torch.randn(3, D, dtype=torch.float64, generator=random)
    up = draw(a, 7), draw(b, 7), draw(a, 1)
    ours = torch.cat(clip_jointly(up, clip), 1)
    norm = torch.cat(up, 1).norm(dim=1, keepdim=True)
    assert bool((ours.norm(dim=1) <= clip * (1 + 1e-12)).all())
    assert torch.allclose(ours, torch.cat(up, 1) * torch.clamp(clip / norm, max=1.0), rtol=1e-12)


def release_of(method: Any, problem: Any, who: Any, codec: Any) -> torch.Tensor:
    """What the server's step of a first round is given, without noise."""
    config = RunConfig(
        method, problem, 1, who, ud.Local(steps=2, lr=0.1), privacy=ud.Privacy(clip=0.5, noise=0.0), codec=codec
    )
    prepared, seen = prepare(config), []
    original = PrivateRelease.release

    def spy(self: Any, *given: Any) -> Any:
        reply = original(self, *given)
        seen.append(torch.cat([t.flatten() for t in clipping.tensors(reply.mean)]))
        return reply

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PrivateRelease, "release", spy)
        list(prepared.play())
    return seen[0]


@pytest.mark.parametrize("codec", [None, "top-k:2,feedback", "random-k:2", "quantised:2,stochastic"])
@named
def test_one_client_moves_the_mean_by_no_more_than_the_clip(method: Any, codec: Any) -> None:
    far = quadratic()
    moved = quadratic()
    moved.e[2] = -1e6 * moved.e[2]  # the worst that a client may have
    for who, n in ((ud.Everyone(), 6), (ud.Fixed([[0, 2, 3]]), 3)):
        one, other = (release_of(method, problem, who, codec) for problem in (far, moved))
        assert 0 < float((one - other).norm()) <= 2 * 0.5 / n * (1 + 1e-9)
    # it is there or not: with Poisson sampling the denominator does not tell
    with_it, without = (release_of(method, moved, _Given(cohort, 0.5), codec) for cohort in ((0, 2, 3), (0, 3)))
    assert 0 < float((with_it - without).norm()) <= 0.5 / 3 * (1 + 1e-9)


class _Given(ud.Bernoulli):
    """Bernoulli participation that draws these."""

    def __init__(self, clients: tuple[int, ...], q: float):
        super().__init__(q)
        object.__setattr__(self, "given", clients)

    def draw(self, seed: int, round: int, weights: Any) -> Any:
        from undrift.simulation.participation import Draw

        return Draw(self.given)  # pyright: ignore[reportAttributeAccessIssue]


def test_a_round_in_which_nobody_comes_is_noise_alone() -> None:
    problem, private = quadratic(), ud.Privacy(clip=0.5, noise=2.0)
    x = ud.run(ud.FedAvg(), problem, rounds=1, local=LOCAL, participation=_Given((), 0.5), privacy=private, seed=9).x
    expected = problem.x0.numpy() - 2.0 * 0.5 / 3 * oracle.normal(9, 1, 0, 4)
    assert np.abs(x.numpy() - expected).max() < 1e-12


def test_who_came_does_not_show_in_what_the_server_is_told() -> None:
    seen: list[Any] = []

    class Spy(type(ud.FedAvg())):  # pyright: ignore[reportUntypedBaseClass]
        def update(self, server: Any, mean: Any, cohort: Any) -> Any:
            seen.append(cohort)
            return super().update(server, mean, cohort)

    for cohort in ((0, 1), (0, 1, 2, 5), ()):
        ud.run(
            Spy(),
            quadratic(),
            rounds=1,
            local=LOCAL,
            participation=_Given(cohort, 0.5),
            privacy={"clip": 1.0, "noise": 1.0},
        )
    first = vars(seen[0])
    assert (seen[0].S, seen[0].share, seen[0].K) == (3, 0.5, 3.0)
    for other in map(vars, seen[1:]):
        assert all(torch.equal(v, other[k]) if isinstance(v, torch.Tensor) else v == other[k] for k, v in first.items())


# noise


@pytest.mark.parametrize("where", ["server", "clients"])
def test_the_noise_is_gaussian_of_the_deviation_that_was_said(where: Any) -> None:
    D, N, clip, z = 4000, 5, 0.5, 3.0
    # nobody's gradient is anything but zero: what moves is noise
    problem = ud.Quadratic(torch.zeros(N, 60, 60, dtype=torch.float64), torch.zeros(N, 60, dtype=torch.float64))
    private = ud.Privacy(clip=clip, noise=z, where=where)
    steps = np.diff(path(ud.FedAvg(), problem, D // 60, participation=ud.Uniform(4), privacy=private), axis=0).ravel()
    scaled = steps / (z * clip / 4)
    assert stats.kstest(scaled, "norm").pvalue > 0.01
    assert abs(scaled.std() - 1) < 0.05 and abs(scaled.mean()) < 0.06
    lag = np.corrcoef(scaled[:-60], scaled[60:])[0, 1]
    assert abs(lag) < 0.06  # rounds draw apart


def test_c_is_the_mean_of_c_i_up_to_the_servers_noise_alone() -> None:
    """What a client keeps is what was counted of its message; noise of clients is in both, the server's in c alone."""
    for where, who in (
        ("clients", ud.Uniform(3)),
        ("clients", ud.Everyone()),
        ("server", ud.Uniform(3)),
        ("server", ud.Bernoulli(0.5)),
    ):
        for name in ("scaffold", "scaffold-m"):
            private = ud.Privacy(clip=0.3, noise=0.7, where=where)  # pyright: ignore[reportArgumentType]
            state = ud.run(
                ud.method(name), quadratic(), rounds=7, local=LOCAL, participation=who, privacy=private, seed=5
            ).state
            mean = state.clients.gather(range(6)).c.mean(0)
            gap = (state.server.c - mean).numpy()
            if where == "clients":
                assert np.abs(gap).max() < 1e-12
            else:
                call = 1 if name == "scaffold" else 0  # dc is the second vector there
                noise = sum(0.7 * 0.3 / 6 * _noise_of_call(5, t, call) for t in range(1, 8))
                assert np.abs(gap - noise).max() < 1e-12


def _noise_of_call(seed: int, t: int, call: int) -> np.ndarray:
    bits = np.random.Philox(
        key=np.array([seed, 15 + (call << 8)], dtype=np.uint64), counter=np.array([0, 0, 0, t], dtype=np.uint64)
    )
    return np.random.Generator(bits).standard_normal(4)


# epsilon


def test_epsilon_is_that_of_dp_accounting() -> None:
    z, delta, N, rounds = 1.3, 1e-5, 500, 40
    poisson = pld.PLDAccountant(value_discretization_interval=1e-3 / z**2)
    poisson.compose(dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.05, dp.GaussianDpEvent(z)), rounds))
    fixed = rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    event = dp.SampledWithoutReplacementDpEvent(N, 20, dp.GaussianDpEvent(z / 2))  # two messages may be 2 clip apart
    fixed.compose(dp.SelfComposedDpEvent(event, rounds))
    alone = pld.PLDAccountant()
    alone.compose(dp.SelfComposedDpEvent(dp.GaussianDpEvent(z), rounds))
    twice = pld.PLDAccountant()
    twice.compose(dp.SelfComposedDpEvent(dp.GaussianDpEvent(z), 2))
    for who, accountant in (
        (ud.Bernoulli(0.05), poisson),
        (ud.Uniform(20), fixed),
        (ud.Everyone(), alone),
        (ud.Cyclic(20), twice),
        (ud.Fixed([[0, 1], [1, 2]] + [[t % 400 + 10] for t in range(38)]), twice),
    ):
        assert epsilon_after(z, who, N, rounds, delta) == pytest.approx(
            accountant.get_epsilon(delta), rel=1e-6, abs=1e-6
        )


def test_a_finer_accountant_says_nearly_the_same() -> None:
    fine = pld.PLDAccountant(value_discretization_interval=1e-4)
    fine.compose(dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(1.0)), 50))
    ours = epsilon_of_poisson(1.0, 0.1, 50, 1e-5)
    assert fine.get_epsilon(1e-5) - 1e-6 <= ours < 1.001 * fine.get_epsilon(1e-5)


def test_epsilon_is_recorded_where_metrics_are_and_grows() -> None:
    private = ud.Privacy(clip=1.0, noise=2.0)
    history = ud.run(
        ud.FedAvg(),
        quadratic(),
        rounds=6,
        local=LOCAL,
        participation=ud.Bernoulli(0.3),
        privacy=private,
        evaluate_every=2,
    ).history
    found = [r.metrics["epsilon"] for r in history if r.metrics]
    assert [r.round for r in history if r.metrics] == [2, 4, 6] and found == sorted(found)
    assert found[-1] == epsilon_after(2.0, ud.Bernoulli(0.3), 6, 6, 1e-5)
    free = ud.run(ud.FedAvg(), quadratic(), rounds=1, privacy=ud.Privacy(clip=1.0, noise=0.0))
    assert free.history[-1].metrics["epsilon"] == math.inf


TARGETS = [(who, epsilon) for who in (ud.Bernoulli(0.1), ud.Everyone(), ud.Cyclic(2)) for epsilon in (0.5, 8.0)]


@pytest.mark.parametrize("who, epsilon", [*TARGETS, (ud.Uniform(3), 8.0)], ids=repr)
def test_a_target_epsilon_gives_the_least_noise(who: Any, epsilon: float) -> None:
    config = RunConfig(ud.FedAvg(), quadratic(), 20, who, LOCAL, privacy=ud.Privacy(clip=1.0, epsilon=epsilon))
    release: Any = prepare(config).plan.privacy
    z = release.privacy.noise
    assert release.epsilon(20) <= epsilon < epsilon_after(z / 1.001, who, 6, 20, 1e-5)


def test_noise_that_nothing_reaches_is_refused() -> None:
    with pytest.raises(ud.InvalidInput, match="no noise reaches epsilon = 0.1"):
        least_noise(lambda z: 0.2, 0.1)


# what is refused


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"participation": ud.Weighted(2)}, "no accountant covers Weighted"),
    ({"algorithm": ud.method("mime")}, "mime crosses the wire several times"),
    ({"algorithm": ud.ScaffoldM(B=1)}, "scaffold-m has an initialisation round.*leave out B"),
    ({"problem": quadratic([0.1, 0.2, 0.3, 0.1, 0.2, 0.1])}, "clients weigh differently"),
    ({"participation": ud.Bernoulli(0.5), "where": "clients"}, "does not know its share"),
    ({"codec": "fp16", "where": "clients"}, "a codec after clients' noise"),
    ({"local": ud.Local(steps=2, optimiser="adam", optimiser_state="average")}, "averaged optimiser state"),
    ({"algorithm": ud.FedAdamW()}, "fedadamw has no step where noise makes the mean of clients' messages negative"),
    ({"algorithm": ud.ScaffoldM(), "local": ud.Local(steps=(1, 3))}, "uses the cohort's mean number of local steps"),
    ({"server": ud.Buffer(2)}, "with Buffer it depends on other clients"),
    ({"server": ud.Deadline(5.0)}, "with Deadline it depends on other clients"),
    ({"population": ud.Population(availability=ud.Chance(0.5))}, "clients that are away are replaced"),
    ({"population": ud.Population(dropout=ud.Dropout(0.5)), "where": "clients"}, "takes its share of the noise"),
    ({"privacy": {"clip": 0, "noise": 1}}, "clip must be a positive number, got 0"),
    ({"privacy": {"clip": math.nan, "noise": 1}}, "clip must be a positive number"),
    ({"privacy": {"clip": 1}}, "one of the two"),
    ({"privacy": {"clip": 1, "noise": 1, "epsilon": 1}}, "one of the two"),
    ({"privacy": {"clip": math.inf, "noise": 1}}, "without a finite clip"),
    ({"privacy": {"clip": 1, "noise": -1}}, r"noise must lie in \[0, inf\)"),
    ({"privacy": {"clip": 1, "epsilon": 0}}, r"epsilon must lie in \(0, inf\)"),
    ({"privacy": {"clip": 1, "noise": 1, "delta": 0.5}}, "delta = 0.5 with 6 clients"),
    ({"privacy": {"clip": 1, "noise": 1, "where": "nodes"}}, "where must be one of"),
    ({"privacy": {"clip": 1, "nose": 1}}, "unknown parameter of privacy: 'nose'"),
    ({"privacy": 1.0}, "privacy must be ud.Privacy"),
]


@pytest.mark.parametrize("change, message", REFUSED, ids=[message[:30] for _, message in REFUSED])
def test_runs_without_a_guarantee_are_refused_before_any_work(change: dict[str, Any], message: str) -> None:
    change = dict(change)
    where = change.pop("where", "server")
    given: dict[str, Any] = {"algorithm": ud.FedAvg(), "problem": quadratic(), "rounds": 3, "local": LOCAL}
    given["privacy"] = {"clip": 1.0, "noise": 1.0, "where": where}
    with pytest.raises(ud.InvalidInput, match=message):
        ud.run(**(given | change))


def test_steps_that_differ_are_allowed_where_the_server_does_not_use_them() -> None:
    for method in (ud.FedAvg(), ud.FedHBM(), ud.Scaffold()):
        result = ud.run(
            method, quadratic(), rounds=2, local=ud.Local(steps=(1, 3)), privacy={"clip": 1.0, "noise": 1.0}
        )
        assert result.stopped is None


class Answers(type(ud.FedAvg())):  # pyright: ignore[reportUntypedBaseClass]
    """FedAvg whose client 1 answers with this times its update."""

    def __init__(self, factor: float):
        super().__init__()
        object.__setattr__(self, "factor", factor)

    def local(self, down: Any, client: None, work: Any) -> Any:
        up, state = super().local(down, client, work)
        each = [vars(self)["factor"] if i == 1 else 1.0 for i in work.clients]
        return type(up)(up.delta * work.column(each)), state


@pytest.mark.parametrize("factor", [math.nan, math.inf])
def test_an_answer_that_is_not_finite_counts_as_zero(factor: float) -> None:
    how: dict[str, Any] = {"rounds": 2, "local": LOCAL, "engine": "batched", "privacy": {"clip": 1.0, "noise": 0.3}}
    found, zero = (ud.run(Answers(f), quadratic(), **how) for f in (factor, 0.0))
    assert [r.left_out for r in found.history] == [(1,), (1,)]
    assert float((found.x - zero.x).abs().max()) < 1e-12


def test_an_answer_that_is_not_finite_ends_a_run_in_which_clients_add_the_noise() -> None:
    private = {"clip": 1.0, "noise": 1.0, "where": "clients"}
    result = ud.run(Answers(math.nan), quadratic(), rounds=2, local=LOCAL, engine="batched", privacy=private)
    assert result.stopped is not None and "shares of the noise are missing" in result.stopped
    assert not result.history


# mistakes that are made


MUTANTS = [
    (clipping, "    return map_tensors(lambda t: t * factor, up)", "    return map_tensors(lambda t: t * (clip / t.norm(dim=-1, keepdim=True)).clamp(max=1.0) + 0 * factor, up)", "vectors"),
    (clipping, ".clamp(max=1.0)", "", "server"),
    (clipping, "clip_jointly(up, self.clip)", "clip_jointly(up, 2 * self.clip)", "clients"),
    (clipping, "t + self.share * noise(t)", "t + self.share * self.share * noise(t)", "clients"),
    (clipping, "key, calls = replace(work.key, loop=0), count()", "key, calls = replace(work.key, loop=0, round=1), count()", "clients"),
    (release_module, "lambda t: t * (came / expected)", "lambda t: t", "bernoulli"),
    (release_module, "(deviation / expected)", "(deviation / max(came, 1))", "bernoulli"),
    (release_module, "(deviation / expected)", "deviation", "server"),
    (release_module, "expected / N", "S / N", "bernoulli"),
    (release_module, "self.privacy.deviation if self.privacy.where == \"server\" else 0.0", "self.privacy.deviation", "clients"),
    (release_module, "if expected == 0:", "if reply.mean is None:", "nobody"),
]  # fmt: skip


@pytest.mark.parametrize("module, right, wrong, seen", MUTANTS, ids=[f"{m[2][:40]}" for m in MUTANTS])
def test_mistakes_are_found(module: Any, right: str, wrong: str, seen: str, monkeypatch: Any) -> None:
    mistaken(module, right, wrong, monkeypatch)
    if seen == "vectors":
        wire = PrivateWire(1.0)
        sent = wire.decode((torch.ones(4), 2 * torch.ones(4)))
        assert float(torch.cat(sent).norm()) > 1.1
    elif seen == "nobody":
        with pytest.raises(AssertionError):
            test_a_round_in_which_nobody_comes_is_noise_alone()
    elif seen == "bernoulli":
        assert max(distance_to_oracle(name, ud.Bernoulli(0.3), 1.8) for name in ("fedavg", "scaffold-m")) > 1e-4
    else:
        assert (
            distance_to_oracle("fedavg", ud.Uniform(3), 3, seen) > 1e-4
            or distance_to_oracle("fedavg", ud.Uniform(3), 3, seen, 50.0) > 1e-4
        )


def test_a_network_is_trained_within_the_epsilon_that_was_asked_for() -> None:
    private = {"clip": 1.0, "epsilon": 50.0}
    found = played(ud.FedAvg(), "batched", rounds=3, participation=ud.Bernoulli(0.5), privacy=private)
    assert 49.0 < found[-1].metrics["epsilon"] <= 50.0


def test_parameters_that_clients_keep_are_refused() -> None:
    X, Y = torch.randn(40, 6, dtype=torch.float64), torch.arange(40) % 2
    net = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    problem = ud.federate((X, Y), model=net, loss=F.cross_entropy, clients=ud.IID(4), local_parameters="2")
    with pytest.raises(ud.InvalidInput, match="use a problem without local_parameters"):
        ud.run(ud.FedAvg(), problem, rounds=2, privacy=ud.Privacy(clip=1.0, noise=1.0, delta=1e-5))
