"""Virtual time: the synchronous limit, repeatability, resuming with clients under way, states that stay consistent."""

import io
import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import undrift as ud
from tests.support.method_table import FIRST, Row
from tests.support.oracles.world import make_world
from tests.support.population import ROUGH, SEVERAL_EXCHANGES
from tests.support.quadratics import quadratic
from tests.support.toy_problem import WorldProblem, path
from undrift.core.records import map_tensors, tensors
from undrift.simulation.asynchronous.async_state import AsyncSnapshot

N, T = 6, 10


every_method = pytest.mark.parametrize("row", FIRST, ids=lambda row: row.name)


def settings_of(row: Row) -> dict[str, Any]:
    steps = [1, 4, 2, 5, 3, 2] if row.unequal else 3
    who = ud.Uniform(3) if row.partial else ud.Everyone()
    local = ud.Local(steps=steps, lr=0.05, **row.local)
    return {"rounds": T, "participation": who, "local": local, "seed": 7}


# the synchronous limit


@every_method
def test_without_delays_it_is_the_sequential_engine_bit_for_bit(row: Row) -> None:
    problem, algorithm = WorldProblem(make_world(N)), ud.method(row.name, **row.hyper)
    same = settings_of(row)
    expected = path(algorithm, problem, engine="sequential", **same)
    waits = path(algorithm, problem, engine="events", **same)
    assert (waits == expected).all()
    reference = ud.run(algorithm, problem, engine="sequential", **same).history
    ours = ud.run(algorithm, problem, engine="events", **same).history
    for r, s in zip(ours, reference, strict=True):
        assert (r.bytes_down, r.bytes_up, r.exchanges) == (s.bytes_down, s.bytes_up, s.exchanges)
        # a restart with everyone is told as such here
        assert r.clients == s.clients or (row.name == "bvr-l-sgd" and len(r.clients) == N)
    late = ud.Population(pace=3.0, link=ud.Link(latency=1.0, down=10.0, up=10.0))
    timed = path(algorithm, problem, engine="events-sequential", population=late, **same)
    assert (timed == expected).all()
    if row.name not in SEVERAL_EXCHANGES:
        buffer = ud.Buffer(3 if row.partial else N)
        buffered = path(algorithm, problem, engine="events", server=buffer, **same)
        assert (buffered == expected).all()


@pytest.mark.parametrize("who", [ud.Weighted(3), ud.Bernoulli(0.2), ud.Cyclic(2), ud.Fixed([[0, 2], [], [1, 5]] * 4)])
@pytest.mark.parametrize("steps", [(2, 5), ud.Geometric(0.4), 3])
def test_the_limit_holds_for_every_way_to_draw(who: Any, steps: Any) -> None:
    problem = quadratic([0.1, 0.2, 0.3, 0.1, 0.2, 0.1])
    same: dict[str, Any] = {
        "rounds": 12,
        "participation": who,
        "local": ud.Local(steps=steps, lr=0.1, decay=0.9),
    }
    expected = path(ud.FedNova(), problem, engine="sequential", **same)
    assert (path(ud.FedNova(), problem, engine="events", **same) == expected).all()


def test_the_limit_holds_with_a_larger_concurrency_only_in_part() -> None:
    """More clients at work than the buffer holds: some updates are stale although nothing takes time."""
    problem = quadratic()
    found = list(ud.rounds(ud.FedAvg(), problem, rounds=6, server=ud.Buffer(2, concurrency=6)))
    assert [r.timing.staleness for r in found if r.timing] == [(0, 0), (1, 1), (2, 2)] * 2
    assert {r.time for r in found} == {0.0}


# repeatability

PLAY = """
import sys
sys.path.insert(0, ".")
from tests.simulation.asynchronous.test_virtual_time import bits_of_a_run
print(bits_of_a_run())
"""


def bits_of_a_run() -> str:
    run = ud.run(ud.Scaffold(), quadratic(), rounds=60, local=ud.Local(steps=(2, 5), lr=0.05), seed=3,
                 participation=ud.Uniform(4), population=ROUGH, server=ud.Buffer(2, concurrency=4))  # fmt: skip
    assert (run.x - quadratic().x0).abs().max() > 0.1
    return " ".join(v.hex() for v in [*run.x.tolist(), *(r.time or 0.0 for r in run.history)])


def test_two_processes_give_the_same_bits() -> None:
    other = subprocess.run([sys.executable, "-c", PLAY], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == bits_of_a_run()


@pytest.mark.parametrize("name", ["scaffold", "fedbuff", "feddyn", "autonomous-fedgm"])
def test_any_chunk_gives_the_same_bits(name: str) -> None:
    """What is computed together, or ahead of time, does not matter."""
    problem = quadratic(N=12, d=40)
    paths = [
        path(ud.method(name), problem, rounds=15, seed=5, participation=ud.Uniform(6), chunk=chunk, population=ROUGH,
             local=ud.Local(steps=(2, 5), lr=0.02), server=ud.Buffer(3, concurrency=8), engine="events-batched")
        for chunk in (1, 2, 3, 100)
    ]  # fmt: skip
    for other in paths[1:]:
        assert (other == paths[0]).all()


# resuming with clients under way


def flattened(state: ud.State) -> ud.State:
    """A state that went through bytes, as a checkpoint's would: tensors saved and loaded, none of them shared."""

    def copied(t: torch.Tensor) -> torch.Tensor:
        file = io.BytesIO()
        np.save(file, t.numpy())
        file.seek(0)
        return torch.from_numpy(np.load(file))

    return replace(
        state,
        server=map_tensors(copied, state.server),
        in_flight=map_tensors(copied, state.in_flight),
    )


RESUMED = [
    ("scaffold", ud.Buffer(2, concurrency=5)),
    ("fedasync", ud.Buffer(1, concurrency=4)),
    ("local-ghbm", ud.Buffer(3, concurrency=6)),
    ("scaffold", ud.Buffer(2, concurrency=6, max_staleness=1)),
    ("scaffold-m", ud.Deadline(6.0)),
    ("mime", ud.Synchronous()),
]


@pytest.mark.parametrize("name, server", RESUMED, ids=lambda v: str(v))
def test_resuming_gives_the_same_bits_from_any_round(name: str, server: Any) -> None:
    """25 random pauses each, with updates in flight; everything recorded agrees, not only the model."""
    problem, rounds = quadratic(N=8), 40
    same: dict[str, Any] = {
        "rounds": rounds, "local": ud.Local(steps=(2, 5), lr=0.03), "population": ROUGH,
        "server": server, "participation": ud.Uniform(4), "seed": 11,
    }  # fmt: skip
    whole, states = [], []
    for r in ud.rounds(ud.method(name), problem, **same):
        whole.append((r.x, r.clients, r.time, r.timing, r.bytes_down, r.bytes_up))
        states.append(r.snapshot())
    if isinstance(server, ud.Buffer):
        assert sum(len(s.in_flight.visits) for s in states) > rounds  # there was something under way
    pauses = np.random.default_rng(0).choice(rounds - 1, 25, replace=False)
    for pause in pauses:
        again = ud.rounds(ud.method(name), problem, start=flattened(states[pause]), **same)
        for r, expected in zip(again, whole[pause + 1 :], strict=True):
            assert torch.equal(r.x, expected[0])
            assert (r.clients, r.time, r.timing, r.bytes_down, r.bytes_up) == expected[1:]


GO_ON = """
import json, sys, torch, undrift as ud
sys.path.insert(0, ".")
from tests.simulation.asynchronous.test_virtual_time import SAME, rebuilt
from tests.support.quadratics import quadratic
for line in sys.stdin:
    pause, state = json.loads(line)
    run = ud.run(ud.FedAsync(), quadratic(N=8), start=rebuilt(pause, state), **SAME)
    print(" ".join(v.hex() for v in run.x.tolist()))
"""
SAME: dict[str, Any] = {
    "rounds": 60, "local": ud.Local(steps=(2, 5), lr=0.03), "population": ROUGH,
    "server": ud.Buffer(1, concurrency=5), "participation": ud.Uniform(4), "seed": 12,
}  # fmt: skip


def rebuilt(round: int, numbers: list[Any]) -> ud.State:
    """A state of FedAsync from plain numbers and the records that a fresh run begins with."""
    fresh = next(iter(ud.rounds(ud.FedAsync(), quadratic(N=8), **SAME))).snapshot()
    kinds = [t.dtype for t in tensors((fresh.server, fresh.in_flight))]
    values = iter([torch.tensor(v, dtype=k) for v, k in zip(numbers, kinds, strict=True)])
    server, flight = map_tensors(lambda _: next(values), (fresh.server, fresh.in_flight))
    flight = replace(
        flight,
        visits=flight.visits.reshape(-1, 7),
        moments=flight.moments.reshape(-1, 5),
        downs=map_tensors(lambda t: t.reshape(-1, 4), flight.downs),
    )
    return replace(fresh, round=round, server=server, in_flight=flight)


def test_a_fresh_process_goes_on_with_the_same_bits() -> None:
    """From 20 random rounds, told nothing but numbers."""
    lines, final = [], ""
    pauses = set(np.random.default_rng(1).choice(range(1, 59), 20, replace=False).tolist())
    for r in ud.rounds(ud.FedAsync(), quadratic(N=8), **SAME):
        state = r.snapshot()
        if r.round in pauses:
            numbers = [t.tolist() for t in tensors((state.server, state.in_flight))]
            lines.append(json.dumps([r.round, numbers]))
        final = " ".join(v.hex() for v in r.x.tolist())
    assert len(lines) == 20
    found = subprocess.run([sys.executable, "-c", GO_ON], input="\n".join(lines), capture_output=True, text=True)
    assert found.stderr == ""
    assert found.stdout.splitlines() == [final] * 20


def test_a_snapshot_is_a_record_of_tensors_of_constant_form() -> None:
    """So that whatever writes checkpoints needs to know nothing of virtual time."""
    forms = set()
    for r in ud.rounds(ud.Scaffold(), quadratic(N=8), **SAME):
        flight = r.snapshot().in_flight
        assert type(flight) is AsyncSnapshot
        forms.add((type(flight.downs), tuple((t.dtype, t.dim()) for t in tensors(flight))))
    assert len(forms) == 1


def test_memory_is_that_of_what_is_under_way() -> None:
    """Models that nobody works on any more are forgotten."""
    *_, last = ud.rounds(ud.FedAvg(), quadratic(N=30), rounds=300, seed=1, population=ud.Population(pace=1.0, jitter=0.1),
                         local=ud.Local(steps=2), server=ud.Buffer(2, concurrency=6), participation=ud.Uniform(6))  # fmt: skip
    flight = last.snapshot().in_flight
    assert len(flight.visits) <= 6 + 2
    assert len(flight.versions) <= len(flight.visits)


def test_start_must_fit() -> None:
    problem, local = quadratic(), ud.Local(steps=2)
    buffer, pop = ud.Buffer(2, concurrency=4), ud.Population(pace=1.0, jitter=0.5)
    half = ud.run(ud.FedAvg(), problem, rounds=5, local=local, server=buffer, population=pop)
    with pytest.raises(ud.InvalidInput, match="virtual time.*engine='events'"):
        ud.run(ud.FedAvg(), problem, rounds=9, local=local, start=half)
    with pytest.raises(ud.InvalidInput, match="in flight"):
        ud.run(ud.FedAvg(), problem, rounds=9, local=local, start=half, server=ud.Synchronous())
    whole = ud.run(ud.FedAvg(), problem, rounds=9, local=local, server=buffer, population=pop)
    again = ud.run(ud.FedAvg(), problem, rounds=9, local=local, server=buffer, population=pop, start=half)  # fmt: skip
    assert torch.equal(whole.x, again.x)


def test_a_run_without_a_clock_may_go_on_with_one() -> None:
    problem, who = quadratic(), ud.Uniform(2)
    same: dict[str, Any] = {"local": ud.Local(steps=2), "participation": who, "seed": 4}
    whole = ud.run(ud.Scaffold(), problem, rounds=9, engine="sequential", **same)
    half = ud.run(ud.Scaffold(), problem, rounds=5, engine="sequential", **same)
    again = ud.run(ud.Scaffold(), problem, rounds=9, engine="events", start=half, **same)
    assert torch.equal(whole.x, again.x)


# states stay consistent


SUMS = [  # the server's sum, and what each client adds to it
    (ud.Scaffold(), "c", "c"),
    (ud.Scaffold(option=1, B=1), "c", "c"),
    (ud.ScaffoldMVR(0.3), "c", "c"),
    (ud.FedDyn(alpha=1.5), "h", "g"),
]
KINDS = [ud.Buffer(1, 4), ud.Buffer(3, 5), ud.Buffer(2, 5, max_staleness=1), ud.Deadline(3.0), ud.Synchronous()]


@given(st.integers(0, 2**32), st.sampled_from(KINDS), st.sampled_from(SUMS))
@settings(max_examples=25, deadline=None)
def test_c_is_the_mean_of_the_c_i_whatever_is_lost_or_late(seed: int, server: Any, sum_: Any) -> None:
    method, of_server, of_client = sum_
    p = [0.1, 0.2, 0.3, 0.1, 0.2, 0.1]
    problem, worst, lost = quadratic(p), 0.0, 0
    for r in ud.rounds(method, problem, rounds=25, local=ud.Local(steps=(1, 4), lr=0.03), seed=seed,
                       population=ROUGH, server=server, participation=ud.Uniform(4)):  # fmt: skip
        state = r.snapshot()
        own = getattr(state.clients.gather(range(6)), of_client)
        gap = torch.tensor(p, dtype=own.dtype) @ own - getattr(state.server, of_server)
        worst = max(worst, float(gap.abs().max()))
        lost += len(r.timing.lost) if r.timing else 0
    assert lost > 0
    assert worst < 1e-12


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 6))
@settings(max_examples=25, deadline=None)
def test_a_client_is_never_under_way_twice(seed: int, size: int, out: int) -> None:
    visits: list[Any] = []
    for r in ud.rounds(ud.FedAvg(), quadratic(), rounds=30, seed=seed, population=ROUGH, local=ud.Local(steps=(1, 3)),
                       server=ud.Buffer(size, out), participation=ud.Uniform(3)):  # fmt: skip
        assert r.timing is not None and r.time is not None
        assert len(set(r.clients)) == size
        visits += r.timing.visits
        flight = r.snapshot().in_flight
        under_way = flight.visits[:, 0].tolist()
        assert len(set(under_way)) == len(under_way)
        assert flight.visits[flight.visits[:, 6] == 0].shape[0] <= out
        assert all(v.returns <= r.time for v in r.timing.visits)
    by_client: dict[int, list[Any]] = {}
    for v in sorted(visits, key=lambda v: v.order):
        by_client.setdefault(v.client, []).append(v)
    for mine in by_client.values():
        assert [v.visit for v in mine] == list(range(len(mine)))
        for v, after in zip(mine, mine[1:], strict=False):
            assert v.dispatched <= v.begins <= v.ends <= v.returns <= after.dispatched


def test_a_lost_update_leaves_the_clients_state_as_it_was() -> None:
    """With every second answer lost, only clients that were used have a state of their own."""
    pop = ud.Population(pace=1.0, dropout=ud.Dropout(after=0.5))
    before = None
    for r in ud.rounds(ud.Scaffold(), quadratic(), rounds=20, seed=2, population=pop, local=ud.Local(steps=2)):
        state = r.snapshot().clients.gather(range(N)).c
        if before is not None:
            changed = (state != before).any(1).nonzero().flatten().tolist()
            assert tuple(changed) == r.clients
            assert r.timing is not None and set(r.timing.lost) == set(range(N)) - set(r.clients)
        before = state


def test_a_round_that_fails_is_undone() -> None:
    """The last good state of a diverging run goes on as if it had been a snapshot: nothing of the bad round stays."""
    same: dict[str, Any] = {"population": ROUGH, "server": ud.Buffer(2, 4), "seed": 1}
    wild = ud.Local(steps=3, lr=[0.05] * 8 + [1e200] * 10)
    stopped = ud.run(ud.Scaffold(), quadratic(), rounds=18, local=wild, **same)
    assert stopped.stopped is not None and stopped.state.round >= 8
    *_, last = ud.rounds(ud.Scaffold(), quadratic(), rounds=stopped.state.round, local=wild, **same)
    for a, b in zip(tensors(stopped.state.in_flight), tensors(last.snapshot().in_flight), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(stopped.x, last.x)
