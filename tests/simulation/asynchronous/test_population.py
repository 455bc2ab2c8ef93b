"""Populations: who is how fast, when they are there, what is lost, and what is refused beforehand."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import undrift as ud
from tests.support.quadratics import quadratic
from undrift.simulation.asynchronous.availability import NEVER_AVAILABLE

HOUR, DAY = 3600.0, 86400.0
LOCAL = ud.Local(steps=2, lr=0.05)


def rounds(**settings: Any) -> list[Any]:
    chosen = {"rounds": 5, "local": LOCAL, "engine": "events"} | settings
    algorithm, problem = chosen.pop("algorithm", ud.FedAvg()), chosen.pop("problem", quadratic())
    return list(ud.rounds(algorithm, problem, **chosen))


# values


def test_log_normal_has_its_median_and_spread() -> None:
    pop = ud.Population(pace=ud.LogNormal(0.5, sigma=0.7))
    logs = np.log([pop.device(3, i).pace for i in range(4000)])
    assert abs(np.median(logs) - math.log(0.5)) < 0.05
    assert abs(logs.std() - 0.7) < 0.03


def test_tiers_have_their_shares_and_are_the_same_in_all_settings() -> None:
    pop = ud.Population(
        pace=ud.Tiers([1.0, 2.0, 8.0], shares=[6, 3, 1]),
        link=ud.Link(down=ud.Tiers([9.0, 5.0, 1.0], shares=[0.6, 0.3, 0.1])),
    )
    devices = [pop.device(0, i) for i in range(4000)]
    assert {(d.pace, d.down) for d in devices} == {(1.0, 9.0), (2.0, 5.0), (8.0, 1.0)}
    assert abs(np.mean([d.pace == 8.0 for d in devices]) - 0.1) < 0.02


def test_a_client_is_the_same_whenever_it_is_asked_and_another_with_another_seed() -> None:
    pop = ud.Population(pace=ud.LogNormal(1.0, 1.0), link=ud.Link(latency=ud.LogNormal(1.0, 1.0)))
    assert pop.device(1, 5) == pop.device(1, 5)
    device = pop.device(1, 5)
    assert device.pace != pop.device(2, 5).pace != pop.device(2, 6).pace
    assert device.pace != device.latency


def test_tables_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "devices.csv"
    file.write_text("client,pace,up\n0,0.5,10\n1,0.25,20\n")
    assert ud.Table.read(file, "pace") == ud.Table([0.5, 0.25])
    with pytest.raises(ud.InvalidInput, match="no column 'speed'.*client, pace, up"):
        ud.Table.read(file, "speed")
    with pytest.raises(ud.InvalidInput, match="there is no table"):
        ud.Table.read(tmp_path / "none.csv", "pace")
    for content, reason in ((b"pace\n\xff\n", "is not utf-8"), (b"pace\n1\n" + b"9" * 200_000, "line 2: field larger")):
        file.write_bytes(content)
        with pytest.raises(ud.InvalidInput, match=reason):
            ud.Table.read(file, "pace")


# the course of a visit


def test_times_add_up() -> None:
    """Latency and bytes down, steps, latency and bytes up: 2 visits by hand, the ledger's bytes in them."""
    link = ud.Link(latency=0.5, down=64.0, up=ud.Table([16.0, 32.0] * 3))
    pop = ud.Population(pace=ud.Table([1.0, 2.0] * 3), link=link, work=3.0)
    first = rounds(population=pop, rounds=1)[0]
    model = 4 * 8  # four numbers of float64
    assert first.bytes_down == 6 * model and first.bytes_up == 6 * model
    for v in first.timing.visits[:2]:
        assert v.begins == 0.5 + model / 64
        assert v.ends == v.begins + 2 * (1.0, 2.0)[v.client] * 3.0
        assert v.returns == v.ends + 0.5 + model / (16.0, 32.0)[v.client]
    assert first.time == max(v.returns for v in first.timing.visits)
    waited = sum(first.time - v.returns for v in first.timing.visits)
    assert first.timing.waited == pytest.approx(waited) and waited > 0


def test_uplink_bytes_are_those_of_the_method() -> None:
    """SCAFFOLD's answer is twice as long as FedAvg's."""
    pop = ud.Population(link=ud.Link(up=1.0))
    times = [rounds(algorithm=x, population=pop)[-1].time for x in (ud.FedAvg(), ud.Scaffold())]
    assert times[1] == 2 * times[0] == 2 * 5 * 4 * 8


def test_as_many_steps_as_fit() -> None:
    paces = [0.1, 0.5, 1.0, 2.0, 5.0, 100.0]
    pop = ud.Population(pace=ud.Table(paces), budget=4.0)
    (one,) = rounds(population=pop, rounds=1, local=ud.Local(steps=10))
    assert one.timing.steps == (10, 8, 4, 2, 1, 1)
    assert one.timing.tau_eff == pytest.approx(26 / 6)
    assert one.time == 100.0


def test_steps_drawn_by_visit_are_those_of_the_other_engines() -> None:
    pop = ud.Population(pace=1.0)
    found = rounds(population=pop, local=ud.Local(epochs=(2, 5)), participation=ud.Uniform(3), rounds=40)
    steps = [K for r in found for K in r.timing.steps]
    assert set(steps) == {2, 3, 4, 5}


# losses


def test_dropouts_are_as_frequent_as_they_should_be() -> None:
    pop = ud.Population(pace=1.0, dropout=ud.Dropout(before=0.2, after=0.25))
    found = rounds(population=pop, rounds=300)
    fates = [v.fate for r in found for v in r.timing.visits]
    n = len(fates)
    assert n == 1000  # as many as are told one by one
    assert abs(fates.count("lost before") / n - 0.2) < 4 * math.sqrt(0.16 / n)
    assert abs(fates.count("lost after") / n - 0.8 * 0.25) < 4 * math.sqrt(0.16 / n)
    for r in found[:100]:
        lost = [v for v in r.timing.visits if not v.arrives]
        assert r.timing.wasted == pytest.approx(sum(2.0 for v in lost if v.fate == "lost after"))
        assert set(r.clients) | set(r.timing.lost) == set(range(6))
        assert r.bytes_down == 6 * 32 and r.bytes_up == 32 * len(r.clients)


def test_a_round_in_which_all_are_lost_leaves_the_model_as_it_is() -> None:
    pop = ud.Population(pace=1.0, dropout=ud.Dropout(after=0.9))
    found = rounds(population=pop, participation=ud.Uniform(2), rounds=20)
    empty = [t for t, r in enumerate(found) if not r.clients and t > 0]
    assert empty
    for t in empty:
        assert torch.equal(found[t].x, found[t - 1].x)
        assert found[t].time == found[t - 1].time + 2


def test_who_leaves_takes_the_work_along() -> None:
    trace = ud.Trace([(0, 0, 100), (1, 0, 3), (2, 5, 100), (3, 0, 100), (4, 0, 100), (5, 0, 100)])
    pop = ud.Population(pace=2.0, availability=trace)
    first, second, *_ = rounds(population=pop)
    assert first.clients == (0, 3, 4, 5)
    gone = next(v for v in first.timing.visits if v.client == 1)
    assert (gone.fate, gone.returns, gone.ends) == ("left", 3.0, 3.0)
    assert first.timing.wasted == 3.0
    assert first.time == 4.0 and second.time == 8.0  # client 2 comes at 5, in the third round


def test_deadline() -> None:
    pop = ud.Population(pace=ud.Table([0.1, 0.2, 0.5, 1.0, 2.0, 9.0]))
    for server, came, time in [
        (ud.Deadline(2.5), (0, 1, 2, 3), 2.5),
        (ud.Deadline(0.3), (0,), 0.3),
        (ud.Deadline(0.3, minimum=3), (0, 1, 2), 1.0),
        (ud.Deadline(50.0), (0, 1, 2, 3, 4, 5), 18.0),
        (ud.Deadline(0.2, minimum=0), (0,), 0.2),
    ]:
        (one,) = rounds(population=pop, server=server, rounds=1)
        assert (one.clients, one.time) == (came, time)
        late = [v for v in one.timing.visits if not v.arrives]
        assert {v.fate for v in late} <= {"late"} and all(v.returns == time for v in late)
        assert one.timing.lost == tuple(sorted(set(range(6)) - set(came)))


# availability


@given(st.sampled_from([
    ud.Chance(0.3, every=10.0), ud.Chance(0.95, every=7.0), ud.Daily(22, 6), ud.Daily(8, 17.5, spread=24),
    ud.Trace([(0, 3, 5), (0, 5, 9), (0, 20, 31), (1, 0, 1)]),
    ud.Trace([(0, 0, 4), (0, 9, 10), (1, 0, 10)], repeat=10.0),
    ud.Trace([(0, 1, 2.5), (1, 0, 3)], repeat=[3.5, 4.0], reuse=True),
]), st.integers(0, 5), st.floats(0, 3e5))  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_windows_are_consistent(availability: Any, client: int, time: float) -> None:
    """The first interval that ends after a moment: the same asked from inside; and again at its own beginning."""
    begin, end = availability.window(9, client, time)
    if (begin, end) == NEVER_AVAILABLE:
        assert availability.window(9, client, time + 100) == NEVER_AVAILABLE
        return
    assert begin < end and end > time
    if math.isinf(end):
        return
    inside = max(begin, time)
    assert availability.window(9, client, inside) == pytest.approx((begin, end))
    assert availability.window(9, client, inside)[0] <= inside  # a clock that wakes then finds the client
    later, _ = availability.window(9, client, end)
    assert later > end or later == math.inf or later == pytest.approx(end)


def test_windows_by_hand() -> None:
    trace = ud.Trace([(0, 3, 5), (0, 5, 9), (0, 20, 31)])
    assert trace.window(0, 0, 0.0) == (3.0, 9.0)  # without a seam
    assert trace.window(0, 0, 9.0) == (20.0, 31.0)
    assert trace.window(0, 0, 31.0) == NEVER_AVAILABLE and trace.window(0, 7, 0.0) == NEVER_AVAILABLE
    around = ud.Trace([(0, 0, 4), (0, 9, 10)], repeat=10.0)
    assert around.window(0, 0, 9.5) == (9.0, 14.0)
    assert ud.Trace([(0, 0, 10)], repeat=10.0).window(0, 0, 7.0) == (-math.inf, math.inf)
    assert ud.Daily(22, 6).window(0, 0, 25 * HOUR) == (22 * HOUR, 30 * HOUR)
    assert ud.Daily(9, 17).window(0, 0, 20 * HOUR) == (DAY + 9 * HOUR, DAY + 17 * HOUR)


def test_chance_is_q_and_slots_are_independent() -> None:
    there = [
        [ud.Chance(0.3, every=60.0).window(1, i, 60.0 * slot)[0] <= 60 * slot for slot in range(100)]
        for i in range(100)
    ]
    grid = np.array(there)
    assert abs(grid.mean() - 0.3) < 0.02
    assert abs(np.corrcoef(grid[:, :-1].ravel(), grid[:, 1:].ravel())[0, 1]) < 0.04
    assert ud.Chance(1.0).window(0, 0, 5.0) == (-math.inf, math.inf)


def test_traces_from_files(tmp_path: Path) -> None:
    table = tmp_path / "trace.csv"
    table.write_text("client,from,to\n0,10,20\n1,0,5.5\n0,30,40\n")
    trace = ud.Trace.read(table)
    assert trace == ud.Trace([(0, 10.0, 20.0), (1, 0.0, 5.5), (0, 30.0, 40.0)])
    assert trace.window(0, 0, 25.0) == (30.0, 40.0)
    published = tmp_path / "behaviour.json"
    about = {"duration": 9, "active": [0, 7], "inactive": [5, 9], "finish_time": 12, "model": "A"}
    other = {"duration": 1, "active": [3], "inactive": [4], "finish_time": 5, "model": "B"}
    published.write_text(json.dumps({"10": other, "2": about}))
    trace = ud.Trace.read(published)
    assert trace.window(0, 0, 6.0) == (7.0, 9.0) and trace.window(0, 0, 10.0) == (12.0, 17.0)
    assert trace.window(0, 1, 6.0) == (8.0, 9.0) == trace.window(0, 3, 6.0)  # two devices, in turn


@pytest.mark.parametrize("text, message", [
    ("client,from,to\n0,10,20\n0,15,30\n", "client 0: the interval from 15 begins before"),
    ("client,from,to\n0,10,20\n0,1,5\n", "client 0: the interval from 1 begins before"),
    ("client,from,to\n0,10,20\n3,9,2\n", r"line 3 must be .*from < to <= 1e12, got \(3, 9.0, 2.0\)"),
    ("client,from,to\n0,10,later\n", "line 2: three numbers are needed"),
    ("client,begin,end\n0,10,20\n", "first line must name client, from, to"),
    ("client,from,to\n", "no interval"),
    ("client,from,to\n-1,0,5\n", "client >= 0"),
])  # fmt: skip
def test_wrong_traces_say_where(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(text)
    with pytest.raises(ud.InvalidInput, match=message):
        ud.Trace.read(file)


def test_wrong_traces_of_other_kinds(tmp_path: Path) -> None:
    with pytest.raises(ud.InvalidInput, match="there is no trace"):
        ud.Trace.read(tmp_path / "none.csv")
    (tmp_path / "odd.json").write_text('{"1": {"active": [0]}}')
    with pytest.raises(ud.InvalidInput, match="expected.*active.*inactive"):
        ud.Trace.read(tmp_path / "odd.json")
    with pytest.raises(ud.InvalidInput, match="after repeat=10"):
        ud.Trace([(0, 5, 11)], repeat=10)
    with pytest.raises(ud.InvalidInput, match="client 9 is named.*0 to 5"):
        rounds(population=ud.Population(availability=ud.Trace([(9, 0, 5)])))


def test_the_server_asks_others_in_place_of_who_is_away() -> None:
    pop = ud.Population(pace=1.0, availability=ud.Chance(0.5, every=1e6))
    found = rounds(problem=quadratic(N=40), population=pop, participation=ud.Uniform(5), rounds=20)
    assert {len(r.clients) for r in found} == {5}
    here = {i for i in range(40) if ud.Chance(0.5, every=1e6).window(0, i, 0.0)[0] <= 0}
    assert set().union(*(r.clients for r in found)) == here


@pytest.mark.parametrize("server", [ud.Synchronous(), ud.Deadline(2400.0), ud.Buffer(2, 4)])
def test_an_empty_population_is_waited_for(server: Any) -> None:
    """Nobody is there by day: the clock jumps to the evening."""
    pop = ud.Population(pace=1200.0, availability=ud.Daily(20, 21))
    found = rounds(population=pop, server=server, rounds=6, participation=ud.Uniform(2))
    hours = [r.time / HOUR for r in found]
    assert hours[0] == pytest.approx(20 + 2 / 3)
    assert all(20 < hour % 24 <= 21 for hour in hours)  # at 21 those still at work have left
    assert any(r.clients for r in found if r.time > 24 * HOUR)


@pytest.mark.parametrize("server", [ud.Synchronous(), ud.Buffer(2, 4)])
def test_a_population_that_is_gone_for_good_ends_the_run(server: Any) -> None:
    pop = ud.Population(pace=1.0, availability=ud.Trace([(i, 0, 9 + i) for i in range(6)]))
    run = ud.run(ud.Scaffold(), quadratic(), rounds=50, local=LOCAL, population=pop, server=server)
    assert run.stopped is not None and "nobody is left" in run.stopped
    assert 0 < run.state.round == len(run.history) < 50
    assert run.x.isfinite().all()
    with pytest.raises(ud.Deserted) as end:
        rounds(algorithm=ud.Scaffold(), population=pop, server=server, rounds=50)
    assert end.value.round == run.state.round + 1
    assert torch.equal(end.value.state.server.x, run.x)  # pyright: ignore[reportAttributeAccessIssue]


def test_cohorts_that_are_given_come_to_an_end() -> None:
    pop = ud.Population(pace=ud.Table([1.0, 5.0, 1.0, 1.0, 1.0, 1.0]))
    who = ud.Fixed([[0, 1], [1, 2], [0, 3]])
    run = ud.run(ud.FedAvg(), quadratic(), rounds=3, local=LOCAL, population=pop, server=ud.Buffer(2),
                 participation=who)  # fmt: skip
    assert run.stopped is not None and "participation names" in run.stopped


# what is refused


anything: Any = ud  # so that wrong types can be tried


@pytest.mark.parametrize("make, message", [
    (lambda: anything.Link(down=0), r"Link: down must lie in \[1e-3, inf\), got 0"),
    (lambda: anything.Link(up=ud.Table([5.0, 0.0])), "up of client 1 must lie in"),
    (lambda: anything.Link(up=ud.Tiers([5.0, 0.0])), "up of tier 1 must lie in"),
    (lambda: anything.Link(latency=-1), "latency must lie in"),
    (lambda: anything.Population(pace=-1), "pace must lie in"),
    (lambda: anything.Population(pace=float("nan")), "pace must lie in"),
    (lambda: anything.Population(pace="fast"), "pace must be a number"),
    (lambda: anything.Population(pace=1e308), "pace must lie in"),
    (lambda: anything.Population(jitter=1e300), "jitter must lie in"),
    (lambda: anything.Population(work=1e308), "work must lie in"),
    (lambda: anything.Link(latency=1e308), "latency must lie in"),
    (lambda: anything.Link(down=1e-320), "down must lie in"),
    (lambda: anything.LogNormal(1e308, 1), "median must lie in"),
    (lambda: anything.LogNormal(1, 1e300), "sigma must lie in"),
    (lambda: anything.Trace([(0, 1, 1e308)]), "from < to <= 1e12"),
    (lambda: anything.Population(link=0.3), r"link must be ud.Link\(...\), got 0.3"),
    (lambda: anything.Population(availability=ud.Always), r"availability must be ud.Always\(\)"),
    (lambda: anything.Population(budget=0), "budget must lie in"),
    (lambda: anything.LogNormal(0, 1), "median must lie in"),
    (lambda: anything.Tiers([1.0], shares=[1, 2]), "1 values and 2 shares"),
    (lambda: anything.Tiers([1.0, 2.0], shares=[0, 0]), "all zero"),
    (lambda: anything.Tiers([]), "values is empty"),
    (lambda: anything.Table("abc"), "must be a list of numbers"),
    (lambda: anything.Table([1.0, -2.0]), r"values\[1\] must lie in"),
    (lambda: anything.Dropout(before=1.0), r"before must lie in \[0, 1\)"),
    (lambda: anything.Chance(0), "q must lie in"),
    (lambda: anything.Daily(5, 5), "all day or no time"),
    (lambda: anything.Buffer(0), "size must lie in"),
    (lambda: anything.Buffer(2.5), "size must be a whole number"),
    (lambda: anything.Deadline(0), "seconds must lie in"),
])  # fmt: skip
def test_wrong_values_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ud.InvalidInput, match=message):
        make()


SLOW = ud.Population(pace=ud.Table([3.0, 2.0, 5.0, 9.0, 7.0, 4.0]), link=ud.Link(latency=1.0))


@pytest.mark.parametrize("chosen, message", [
    ({"server": ud.Buffer(7)}, "size=7 is more than there are clients, 6"),
    ({"server": ud.Buffer(2, concurrency=7)}, "concurrency=7 is more than"),
    ({"server": ud.Deadline(1.0, minimum=7)}, "minimum=7 of 6"),
    ({"server": ud.Deadline(5.9), "population": SLOW}, "fastest, client 1, needs 6 s"),
    ({"server": ud.Deadline(3.9), "population": SLOW, "local": ud.Local(steps=(1, 9))}, "client 1, needs 4 s"),
    ({"server": ud.Deadline(1.9), "population": replace(SLOW, jitter=3.0)}, "client 1, needs at least, however lucky, 2 s"),
    ({"server": ud.Deadline(5.9), "population": replace(SLOW, dropout=ud.Dropout(0.9))}, "fastest, client 1, needs 6 s"),
    ({"population": ud.Population(pace=ud.Table([1.0, 2.0]))}, "table of pace has 2 values for 6 clients"),
    ({"server": ud.Buffer(2), "algorithm": ud.Mime()}, "mime crosses the wire several times"),
    ({"server": ud.Buffer(2), "algorithm": ud.BVRLSGD(period=3)}, "bvr-l-sgd crosses the wire"),
    ({"server": ud.Buffer(2), "algorithm": ud.VRLSGD()}, "vrl-sgd is defined for full participation"),
    ({"population": ud.Population(dropout=ud.Dropout(0.1)), "algorithm": ud.FedNovaVR()}, "full participation"),
    ({"population": ud.Population(pace=1.0, budget=9.0), "algorithm": ud.LED()}, "set no budget"),
    ({"server": ud.Buffer(2), "engine": "batched"}, "use engine='events', not 'batched'"),
    ({"server": "buffer"}, r"server must be ud.Synchronous\(\)"),
    ({"population": 3}, r"population must be ud.Population"),
    ({"engine": "event"}, "did you mean 'events'"),
])  # fmt: skip
def test_what_cannot_work_is_refused_at_the_start(chosen: Any, message: str) -> None:
    settings: Any = {"algorithm": ud.FedAvg(), "rounds": 5, "local": LOCAL} | chosen
    with pytest.raises(ud.InvalidInput, match=message):
        ud.rounds(settings.pop("algorithm"), quadratic(), **settings)


def test_a_deadline_that_somebody_can_meet_is_accepted() -> None:
    rounds(server=ud.Deadline(6.0), population=SLOW)
    rounds(server=ud.Deadline(5.9), population=replace(SLOW, jitter=0.1))
    rounds(server=ud.Deadline(4.0), population=SLOW, local=ud.Local(steps=(1, 9)))
    budget = ud.Population(pace=3.0, budget=3.0)
    assert rounds(server=ud.Deadline(3.0), population=budget, local=ud.Local(steps=9))[0].timing.steps == (1,) * 6


def test_a_deadline_is_checked_with_every_client_of_a_large_population() -> None:
    """The only one that can meet it is far back."""
    N = 20_000
    problem = ud.Quadratic(torch.ones(N, 1, 1), torch.zeros(N, 1))
    paces = [9.0] * (N - 1) + [1.0]
    same: Any = {"rounds": 1, "participation": ud.Uniform(2), "local": ud.Local(steps=2)}
    for table, message in ((paces, None), (paces[::-1][1:] + [1.5], f"client {N - 1}, needs 3 s")):
        population = ud.Population(pace=ud.Table(table))
        if message is None:
            ud.rounds(ud.FedAvg(), problem, server=ud.Deadline(2.0), population=population, **same)
            continue
        with pytest.raises(ud.InvalidInput, match=message):
            ud.rounds(ud.FedAvg(), problem, server=ud.Deadline(2.0), population=population, **same)


# a bad client


class Broken(ud.FedAvg):
    """Client 2 answers with NaN."""

    def local(self, down: Any, client: Any, work: Any) -> Any:
        up, client = super().local(down, client, work)
        bad = torch.tensor([[math.nan if i == 2 else 0.0] for i in work.clients])
        return type(up)(up.delta + (bad if up.delta.dim() == 2 else bad[0])), client


@pytest.mark.parametrize("engine", ["events-sequential", "events-batched"])
def test_a_broken_client_is_left_out_and_named(engine: str) -> None:
    pop = ud.Population(pace=ud.Table([1.0, 2.0, 1.5, 1.0, 3.0, 2.5]))
    found = rounds(algorithm=Broken(), population=pop, server=ud.Buffer(3, 5), engine=engine, rounds=12)
    assert {r.left_out for r in found} == {(), (2,)}
    assert all((2 in r.clients) == (r.left_out == (2,)) for r in found)
    assert found[-1].x.isfinite().all()
    assert found[-1].timing.used == 5
