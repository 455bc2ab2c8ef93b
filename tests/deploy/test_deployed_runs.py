"""Deployed runs, with nodes in this process: equal to simulations, whatever becomes of messages, states and processes."""

import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import undrift as ud
from tests.support.in_process_nodes import (
    NAMES,
    Nodes,
    deployed,
    deployed_rounds,
    experiment,
    invariant_gap,
    run_dir,
    simulated,
)
from tests.support.run_directories import read_lines
from undrift.core.hyper import METHODS
from undrift.deploy.messages import NOT_VISITED, Envelope
from undrift.experiments.config.federation import federation
from undrift.experiments.report import write_report
from undrift.experiments.runs.directory import RunDirectory
from undrift.experiments.runs.running import config_of
from undrift.simulation.api import prepare
from undrift.simulation.client_states import ClientStates
from undrift.simulation.results import State


def model(folder: Path) -> torch.Tensor:
    named = load_file(run_dir(folder) / "model.safetensors")
    return torch.cat([named[name].flatten() for name in sorted(named)])


def faults(folder: Path) -> list[dict[str, Any]]:
    return read_lines(run_dir(folder) / "faults.jsonl")


NEEDS = {
    "multistage-fedgm": {"T": 28},
    "asgd": {"delta": 0.1, "kappa": 10.0, "xi": 3.0},
    "pid": {"k_P": -0.5, "k_I": 0.5, "k_D": 1.0},
    "pid-an": {"r": 0.5, "b": 0.5, "K_d": 0.1},
    "robust-momentum": {"L": 1.0, "kappa": 10.0, "rho": 0.8},
    "snv": {"alpha": 0.5, "b1": 0.5, "b2": 0.5},
    "triple-momentum": {"L": 1.0, "mu": 0.1},
}


def test_what_the_server_knows_of_the_theory(tmp_path: Path) -> None:
    words: dict[str, Any] = {
        "evaluation": {"metrics": ["test", "chi2", "tau_eff"]},
        "local": {"steps": [1, 4, 2], "batch": 16, "lr": 0.1},
    }
    made = experiment("fedavg", **words)
    expected = simulated(made)
    found = list(deployed_rounds(Nodes(made, tmp_path)))
    assert max(r.metrics["chi2"] for r in found) > 0
    for r, other in zip(found, expected, strict=True):
        assert r.metrics == pytest.approx(other.metrics, rel=1e-6)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_equals_the_simulation(name: str, tmp_path: Path) -> None:
    words: dict[str, Any] = {"algorithm": {"name": name, **NEEDS.get(name, {})}, "rounds": 3}
    if METHODS[name].spec.everyone:
        words["participation"] = {"scheme": "everyone"}
    made = experiment(**words)
    here, there = simulated(made), deployed(Nodes(made, tmp_path))
    for a, b in zip(here, there, strict=True):
        assert torch.equal(a.x, b.x)
        same = ("round", "clients", "metrics", "bytes_down", "bytes_up", "exchanges", "left_out")
        assert [getattr(a, key) for key in same] == [getattr(b, key) for key in same]


def test_epochs_uneven_steps_and_float64_states_are_those_of_the_simulation(tmp_path: Path) -> None:
    made = experiment("feddyn", local={"epochs": {"low": 1, "high": 2}, "batch": 64, "lr": 0.05, "decay": 0.9})
    assert torch.equal(simulated(made)[-1].x, deployed(Nodes(made, tmp_path))[-1].x)


def test_the_report_is_that_of_any_run(tmp_path: Path) -> None:
    last = deployed(Nodes(experiment(), tmp_path))[-1]
    found: Any = ud.load_run(run_dir(tmp_path))
    assert torch.equal(found.x, last.x) and isinstance(found.model(), torch.nn.Module)
    with pytest.raises(ud.InvalidInput, match="client states are on the nodes"):
        ud.run(ud.ScaffoldM(), found.problem, rounds=5, start=found)
    page = write_report([run_dir(tmp_path)], run_dir(tmp_path))
    assert "scaffold-m" in page.read_text()
    lines = RunDirectory(run_dir(tmp_path)).rounds()
    assert [line["round"] for line in lines] == [1, 2, 3, 4]


@pytest.mark.parametrize("fault", ["unheard", "unanswered", "twice"])
@pytest.mark.parametrize("name", ["scaffold-m", "fedhbm", "vrl-sgd", "mime"])
def test_messages_that_are_lost_or_come_twice_change_nothing(name: str, fault: str, tmp_path: Path) -> None:
    everyone = {"scheme": "everyone"} if METHODS[name].spec.everyone else None
    made = experiment(name, **({"participation": everyone} if everyone else {}))
    nodes, count = Nodes(made, tmp_path), iter(range(10**6))
    nodes.fault = lambda who, envelope: fault if next(count) % 3 == 1 else ""
    assert torch.equal(simulated(made)[-1].x, deployed(nodes)[-1].x)


def test_a_lost_answer_is_not_computed_twice(tmp_path: Path, monkeypatch: Any) -> None:
    from undrift.deploy.node import Node

    nodes, visits, seen = Nodes(experiment(), tmp_path), [], set()
    visit = Node._visit
    monkeypatch.setattr(Node, "_visit", lambda self, *a: visits.append(1) or visit(self, *a))

    def once(who: str, envelope: Envelope) -> str:
        if envelope.kind != "work" or who in seen:
            return ""
        seen.add(who)
        return "unanswered"

    nodes.fault = once
    deployed(nodes)
    assert len(visits) == 8  # two clients, four rounds


class Killed(BaseException):
    """The server's process is gone."""


MESSAGES = {"scaffold-m": 6, "fedhbm": 6, "mime": 12}  # of three rounds: mime asks everyone first


@pytest.fixture(scope="module")
def unharmed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs that nothing happened to."""
    folders = {name: tmp_path_factory.mktemp(name) for name in MESSAGES}
    for name, folder in folders.items():
        nodes = Nodes(experiment(name, rounds=3), folder)
        deployed(nodes)
        assert sum(kind == "work" for _, kind in nodes.log) == MESSAGES[name]
    return folders


@pytest.mark.parametrize("name, when", [(name, when) for name, count in MESSAGES.items() for when in range(count)])
def test_a_server_killed_at_any_message_goes_on_to_the_same_bits(
    name: str, when: int, unharmed: dict[str, Path], tmp_path: Path
) -> None:
    made = experiment(name, rounds=3)
    nodes, count = Nodes(made, tmp_path), iter(range(10**6))

    def kill(who: str, envelope: Envelope) -> str:
        if envelope.kind == "work" and next(count) == when:
            nodes.node(who).answer(envelope)
            raise Killed
        return ""

    nodes.fault = kill
    with pytest.raises(Killed):
        deployed(nodes)
    again = Nodes(made, tmp_path)  # with the same disks, and other numbers of nodes
    again.there = {node + 7: who for node, who in again.there.items()}
    deployed(again)
    for file in ("model.safetensors", "metrics.jsonl"):
        assert (run_dir(tmp_path) / file).read_bytes() == (run_dir(unharmed[name]) / file).read_bytes()


def test_a_run_can_be_made_longer(tmp_path: Path) -> None:
    deployed(Nodes(experiment(rounds=2), tmp_path))
    deployed(Nodes(experiment(rounds=4), tmp_path))
    assert torch.equal(simulated(experiment(rounds=4))[-1].x, deployed_x(tmp_path))
    with pytest.raises(ud.InvalidInput, match="another experiment"):
        deployed(Nodes(experiment("fedavg"), tmp_path))


def deployed_x(folder: Path) -> torch.Tensor:
    named = load_file(run_dir(folder) / "model.safetensors")
    problem = federation(experiment(), 0).problem
    return torch.cat([named[name].flatten() for name in problem.flat.names])


# states that are lost


@pytest.mark.parametrize("name", ["scaffold", "scaffold-m", "scaffold-m-vr", "feddyn"])
def test_a_lost_state_leaves_the_sum_of_states_right(name: str, tmp_path: Path) -> None:
    nodes, gaps, lost = Nodes(experiment(name, rounds=8), tmp_path), [], set()

    def lose(who: str, envelope: Envelope) -> str:
        if envelope.kind == "work" and envelope.header["visit"]["round"] == 4 and who not in lost:
            lost.add(who)
            nodes.lose(who)
        return ""

    nodes.fault = lose
    for r in deployed_rounds(nodes):
        gaps.append(invariant_gap(nodes, r))
    assert max(gaps) < 1e-6
    assert {line["client"] for line in faults(tmp_path)} == lost
    assert all("starts again" in line["fault"] for line in faults(tmp_path))
    assert any(kind == "state" for _, kind in nodes.log)


@pytest.mark.parametrize("name, codec", [("fedhbm", None), ("fedavg", "top-k:0.1,feedback")])
def test_a_client_with_a_state_of_its_own_begins_anew_alone(name: str, codec: str | None, tmp_path: Path) -> None:
    nodes = Nodes(experiment(name, codec=codec, participation={"scheme": "everyone"}), tmp_path)

    def lose(who: str, envelope: Envelope) -> str:
        if envelope.kind == "work" and envelope.header["visit"]["round"] == 3 and who == "birch":
            if envelope.header["visit"]["base"] != list(NOT_VISITED):
                nodes.lose(who)
        return ""

    nodes.fault = lose
    assert [len(r.clients) for r in deployed(nodes)] == [3] * 4
    assert [(line["client"], line["round"]) for line in faults(tmp_path)] == [("birch", 3)]


def test_a_loss_is_counted_once_however_late_it_is_made_good(tmp_path: Path) -> None:
    server = {"kind": "deadline", "seconds": 30.0, "minimum": 1}
    made = experiment("fedhbm", rounds=6, server=server, participation={"scheme": "everyone"})
    nodes = Nodes(made, tmp_path)

    def lose(who: str, envelope: Envelope) -> str:
        if envelope.kind == "work" and who == "birch":
            visit = envelope.header["visit"]
            if visit["round"] == 3 and visit["base"] != list(NOT_VISITED):
                nodes.lose(who)
            late = visit["round"] >= 3 and visit["base"] == list(NOT_VISITED)  # what it does then takes long
            nodes.delay = lambda name: 100.0 if late and name == "birch" else 0.0
        return ""

    nodes.fault = lose
    assert [len(r.clients) for r in deployed(nodes, lost_states=2)] == [3, 3, 2, 2, 2, 2]
    said = [line["fault"] for line in faults(tmp_path) if line["client"] == "birch"]
    assert said == ["lost its state and starts again", *["late"] * 4]


def test_all_begin_anew_where_states_belong_together(tmp_path: Path) -> None:
    made = experiment("vrl-sgd", participation={"scheme": "everyone"}, rounds=5)
    nodes, lost = Nodes(made, tmp_path), []

    def lose(who: str, envelope: Envelope) -> str:
        if envelope.kind == "work" and envelope.header["visit"]["round"] == 3 and not lost:
            lost.append(who)
            nodes.lose(who)
        return ""

    nodes.fault = lose
    last = deployed(nodes)[-1]
    assert {line["client"] for line in faults(tmp_path)} == set(NAMES)
    # which is the run that begins at the model after two rounds
    one = made.single(*made.runs()[0]).model_copy(update={"engine": "sequential"})
    settings, x = config_of(one, federation(one, 0)), simulated(made)[1].x
    method = settings.algorithm
    start = State(2, method.server(x), ClientStates(method.client(x)))
    assert torch.equal(list(prepare(settings).play(start))[-1].x, last.x)


# answers that are not to be used


def spoilt(kind: str) -> Any:
    def spoil(who: str, reply: Envelope) -> Envelope:
        if who != "cedar" or reply.kind != "up":
            return reply
        arrays, words = dict(reply.arrays), dict(reply.header)
        first = next(iter(arrays))
        if kind == "NaN":
            arrays[first] = arrays[first].clone().fill_(torch.nan)
        elif kind == "shape":
            arrays[first] = arrays[first][:-1]
        elif kind == "dtype":
            arrays[first] = arrays[first].double()
        elif kind == "round":
            visit = words["visit"]
            words["visit"] = {**visit, "round": visit["round"] - 1}
        elif kind == "names":
            arrays = {"up.other": arrays[first]}
        elif kind == "norm":
            arrays[first] = arrays[first] + 1e6
        return Envelope("hello" if kind == "kind" else "up", words, arrays)

    return spoil


BAD = {
    "NaN": "NaN or Inf",
    "shape": "has shape",
    "dtype": "torch.float64",
    "round": "answers round 0, not round 1",
    "names": "sent ['up.other']",
    "norm": "more than 1000",
    "kind": "kind 'hello'",
}


@pytest.mark.parametrize("kind", sorted(BAD))
def test_a_bad_answer_is_named_left_out_counted_and_its_node_shut_out(kind: str, tmp_path: Path, caplog: Any) -> None:
    made = experiment(participation={"scheme": "everyone"})
    nodes = Nodes(made, tmp_path)
    nodes.spoil = spoilt(kind)
    rounds, gaps = [], []
    for r in deployed_rounds(nodes, bad_replies=2, norm_bound=1e3):
        rounds.append(r)
        gaps.append(invariant_gap(nodes, r))
    assert [r.left_out for r in rounds] == [(2,), (2,), (), ()]
    assert [r.clients for r in rounds] == [(0, 1, 2), (0, 1, 2), (0, 1), (0, 1)]
    assert max(gaps) < 1e-6
    assert BAD[kind] in faults(tmp_path)[0]["fault"]
    assert "cedar gave 2 bad answers: it is shut out" in caplog.text


def test_shut_out_is_for_the_rest_of_the_run(tmp_path: Path) -> None:
    nodes = Nodes(experiment(rounds=2, participation={"scheme": "everyone"}), tmp_path)
    nodes.spoil = spoilt("NaN")
    deployed(nodes, bad_replies=2)
    longer = Nodes(experiment(rounds=3, participation={"scheme": "everyone"}), tmp_path)
    assert deployed(longer, bad_replies=2)[-1].clients == (0, 1)


def test_a_node_that_fails_is_left_out(tmp_path: Path) -> None:
    nodes = Nodes(experiment(participation={"scheme": "everyone"}), tmp_path)
    nodes.spoil = lambda who, reply: (
        Envelope("failed", {"reason": "no memory"}) if who == "ash" and reply.kind == "up" else reply
    )
    assert deployed(nodes)[0].left_out == (0,)
    assert faults(tmp_path)[0]["fault"] == "failed: no memory"


def test_full_participation_stops_without_a_usable_answer(tmp_path: Path) -> None:
    nodes = Nodes(experiment("vrl-sgd", participation={"scheme": "everyone"}), tmp_path)
    nodes.spoil = spoilt("NaN")
    assert deployed(nodes) == []
    assert "full participation" in RunDirectory(run_dir(tmp_path)).result()["stopped"]  # pyright: ignore[reportOptionalSubscript]


@pytest.mark.parametrize("server", [None, {"kind": "buffer", "size": 2}], ids=str)
def test_no_answer_is_kept_after_its_round(server: Any, tmp_path: Path) -> None:
    """Sums only: when a round is over, nothing that a client sent for it is in memory."""
    nodes = Nodes(experiment("scaffold", server=server), tmp_path)
    sent: list[weakref.ref[np.ndarray]] = []  # the memory of an answer, whichever tensors look at it

    def noted(who: str, reply: Envelope) -> Envelope:
        copies = {name: t.numpy().copy() for name, t in reply.arrays.items()}
        sent.extend(weakref.ref(copy) for copy in copies.values() if reply.kind == "up")
        arrays = {name: torch.from_numpy(copy) for name, copy in copies.items()}
        return Envelope(reply.kind, reply.header, arrays)

    nodes.spoil = noted
    for r in deployed_rounds(nodes):
        on_the_way = [t for _, reply in nodes.answers.values() for t in reply.arrays.values()]
        addresses = {t.data_ptr() for t in on_the_way}
        kept = [a for ref in sent if (a := ref()) is not None and a.ctypes.data not in addresses]
        assert kept == [] and len(sent) >= 4 * r.round


# stragglers, and clients that come when they like


def test_a_round_ends_at_its_deadline_with_those_who_answered(tmp_path: Path) -> None:
    server = {"kind": "deadline", "seconds": 10.0, "minimum": 1}
    made = experiment(participation={"scheme": "everyone"}, server=server)
    nodes = Nodes(made, tmp_path)
    nodes.delay = lambda who: 15.0 if who == "birch" else 1.0
    rounds, gaps = [], []
    for r in deployed_rounds(nodes, again=1000.0):
        rounds.append(r)
        gaps.append(invariant_gap(nodes, r))
    assert [r.clients for r in rounds] == [(0, 2)] * 4
    assert max(gaps) < 1e-6  # what birch computed in vain is not part of c
    assert {line["fault"] for line in faults(tmp_path)} == {"late"}


def test_a_deadline_waits_for_the_minimum(tmp_path: Path) -> None:
    server = {"kind": "deadline", "seconds": 10.0, "minimum": 3}
    made = experiment(participation={"scheme": "everyone"}, server=server)
    nodes = Nodes(made, tmp_path)
    nodes.delay = lambda who: 15.0 if who == "birch" else 1.0
    assert [r.clients for r in deployed(nodes, again=1000.0)] == [(0, 1, 2)] * 4


@pytest.mark.parametrize("name", ["autonomous-fedgm", "fedbuff", "scaffold", "fedhbm"])
def test_clients_that_come_when_they_like(name: str, tmp_path: Path) -> None:
    server = {"kind": "buffer", "size": 1, "concurrency": 3}
    nodes = Nodes(experiment(name, rounds=12, server=server), tmp_path)
    nodes.delay = lambda who: {"ash": 2.0, "birch": 3.0, "cedar": 11.0}[who]
    rounds = []
    for r in deployed_rounds(nodes, poll=0.5):
        rounds.append(r)
        if name == "scaffold":
            assert invariant_gap(nodes, r) < 1e-6
    who = [r.clients[0] for r in rounds]
    assert len(who) == 12 and who.count(0) > who.count(2) >= 1


@pytest.mark.parametrize("name", ["scaffold", "fedbuff"])
def test_no_update_is_older_than_the_bound(name: str, tmp_path: Path, caplog: Any) -> None:
    server = {"kind": "buffer", "size": 1, "concurrency": 3, "max_staleness": 2}
    nodes = Nodes(experiment(name, rounds=10, server=server), tmp_path)
    nodes.delay = lambda who: {"ash": 2.0, "birch": 3.0, "cedar": 11.0}[who]
    rounds = list(deployed_rounds(nodes, poll=0.5))
    assert {r.clients[0] for r in rounds} == {0, 1}  # in 11 s the server makes more than two steps
    assert "cedar: its update is 3 server steps old: thrown away" in caplog.text
    if name == "scaffold":
        assert invariant_gap(nodes, rounds[-1]) < 1e-6


def test_a_full_buffer_without_delays_is_a_cohort(tmp_path: Path) -> None:
    server = {"kind": "buffer", "size": 3, "concurrency": 3}
    made = experiment("autonomous-fedgm", participation={"scheme": "everyone"}, server=server)
    plain = made.model_copy(update={"server": None})
    assert torch.equal(simulated(plain)[-1].x, deployed(Nodes(made, tmp_path))[-1].x)


def test_a_restarted_node_may_have_another_number(tmp_path: Path) -> None:
    made = experiment(participation={"scheme": "everyone"})
    nodes = Nodes(made, tmp_path)

    def move(who: str, envelope: Envelope) -> str:
        moved = envelope.kind == "work" and envelope.header["visit"]["round"] == 2 and who == "birch"
        if moved and 101 in nodes.there:
            nodes.there = {100: "ash", 102: "cedar", 555: "birch"}
            return "unheard"
        return ""

    nodes.fault = move
    assert torch.equal(simulated(made)[-1].x, deployed(nodes)[-1].x)
