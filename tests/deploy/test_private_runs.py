"""Private runs on nodes: who clips, whose noise it is, what the server lets in and what never leaves a node."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats

import undrift as ud
from tests.deploy.test_handshake import refused
from tests.support.in_process_nodes import (
    NAMES,
    Nodes,
    deployed,
    deployed_rounds,
    experiment,
    run_dir,
    simulated,
    state_of,
)
from undrift.deploy import serving
from undrift.deploy.messages import Envelope
from undrift.experiments.runs.files import checked_lines, read_json
from undrift.privacy import noise_by_secret, system_noise

pytest.importorskip("dp_accounting")

UNIFORM = {"partition": "dirichlet", "number": 3, "alpha": 0.5, "weights": "uniform"}
EVERYONE = {"scheme": "everyone"}


def private(name: str = "fedavg", where: str = "server", clip: float = 0.05, noise: float = 0.0, **words: Any) -> Any:
    words = {"clients": UNIFORM, "participation": EVERYONE, "rounds": 3} | words
    return experiment(name, privacy={"clip": clip, "noise": noise, "where": where}, **words)


def faults(folder: Path) -> list[dict[str, Any]]:
    return checked_lines(run_dir(folder) / "faults.jsonl")[0]


# the same as in a simulation


@pytest.mark.parametrize(
    "codec", [None, {"name": "quantised", "bits": 4}, {"name": "top-k", "k": 60, "feedback": True}]
)
@pytest.mark.parametrize("name", ["fedavg", "scaffold-m", "fedhbm"])
def test_without_noise_it_is_the_simulation(name: str, codec: Any, tmp_path: Path) -> None:
    made = private(name, codec=codec)
    ours, alone = deployed(Nodes(made, tmp_path)), simulated(made)
    assert torch.allclose(ours[-1].x, alone[-1].x, atol=1e-6)
    assert not torch.allclose(
        ours[-1].x, simulated(experiment(name, rounds=3, participation=EVERYONE))[-1].x, atol=1e-3
    )


def test_epsilon_is_that_of_the_simulation(tmp_path: Path) -> None:
    made = private(noise=5.0)
    epsilons = [[r.metrics["epsilon"] for r in rounds] for rounds in (deployed(Nodes(made, tmp_path)), simulated(made))]
    assert epsilons[0] == epsilons[1] and len(set(epsilons[0])) == 3


# noise


def test_the_systems_noise_is_normal() -> None:
    drawn = system_noise(torch.zeros(20_001, dtype=torch.float64))
    assert stats.kstest(drawn.numpy(), "norm").pvalue > 1e-6
    assert abs(float(drawn[:10_000] @ drawn[10_000:20_000])) / 100 < 6  # the two of a pair do not tell of each other


@pytest.mark.parametrize("where", ["server", "clients"])
def test_the_noise_has_its_deviation_and_no_seed_tells_it(where: str, tmp_path: Path) -> None:
    clean = simulated(private(rounds=1))[-1].x
    runs = [deployed(Nodes(private(where=where, noise=4.0, rounds=1), tmp_path / name))[-1].x for name in "ab"]
    for x in runs:
        in_deviations = (x - clean) * 3 / (4.0 * 0.05)  # the mean of three has a third of the sum's noise
        assert stats.kstest(in_deviations.numpy(), "norm").pvalue > 1e-6
    keyed = simulated(private(where=where, noise=4.0, rounds=1))[-1].x
    assert min(float((a - b).norm()) for a, b in ((runs[0], runs[1]), (runs[0], keyed))) > 0.1


def test_noise_of_clients_is_in_the_sum_and_in_their_states(tmp_path: Path) -> None:
    nodes = Nodes(private("scaffold-m", "clients", noise=1.0), tmp_path)
    last = deployed(nodes)[-1]
    mean = torch.stack([state_of(nodes, i, last).c for i in range(3)]).mean(0)
    assert float(mean.norm()) > 0.01 and torch.allclose(mean, last.state.server.c, atol=1e-6)


def test_an_answer_that_is_asked_for_twice_has_the_same_noise(tmp_path: Path) -> None:
    nodes, answers = Nodes(private(where="clients", noise=1.0, rounds=1), tmp_path), []
    nodes.spoil = lambda who, reply: (answers.append(reply), reply)[1] if reply.kind == "up" and who == "ash" else reply
    sent: list[Envelope] = []
    nodes.fault = lambda who, envelope: (sent.append(envelope), "")[1] if envelope.kind == "work" else ""
    deployed(nodes)
    again = nodes.node("ash").answer(sent[0])
    assert torch.equal(again.arrays["up.delta"], answers[0].arrays["up.delta"])


# what the server lets in, and what leaves a node


@pytest.mark.parametrize("where", ["server", "clients"])
def test_a_message_that_was_not_clipped_is_a_bad_answer(where: str, tmp_path: Path) -> None:
    nodes = Nodes(private(where=where, noise=0.1), tmp_path)
    huge = lambda reply: replace(reply, arrays={name: t + 1.0 for name, t in reply.arrays.items()})
    nodes.spoil = lambda who, reply: huge(reply) if who == "cedar" and reply.kind == "up" else reply
    rounds = deployed(nodes)
    assert "norm 25.5, more than 0." in faults(tmp_path)[0]["fault"]
    if where == "server":
        assert [r.left_out for r in rounds] == [(2,)] * 3  # it counts as zero
    else:
        assert (
            rounds == []
            and "shares of the noise are missing" in read_json(run_dir(tmp_path) / "result.json")["stopped"]
        )


@pytest.mark.parametrize("name", ["scaffold", "scaffold-m"])
def test_no_state_leaves_its_node_when_another_is_lost(name: str, tmp_path: Path) -> None:
    nodes, lost = Nodes(private(name, rounds=5), tmp_path), []

    def lose(who: str, envelope: Envelope) -> str:
        if envelope.kind == "work" and envelope.header["visit"]["round"] == 3 and not lost:
            lost.append(envelope)
            nodes.lose(who)
        return ""

    nodes.fault = lose
    last = deployed(nodes)[-1]
    assert last.round == 5 and {line["client"] for line in faults(tmp_path)} == set(NAMES)
    assert not any(kind == "state" for _, kind in nodes.log)
    asked = nodes.node("ash").answer(Envelope("state", lost[0].header))
    assert asked.kind == "failed" and "no state leaves its node" in asked.header["reason"]
    later = {**lost[0].header, "visit": {**lost[0].header["visit"], "round": 6}}
    assert "that of 5 rounds" in nodes.node("ash").answer(replace(lost[0], header=later)).header["reason"]


# who takes part


class Killed(BaseException):
    """The server's process is gone."""


def test_a_killed_server_goes_on_with_the_same_secret_cohorts_and_noise(tmp_path: Path, monkeypatch: Any) -> None:
    made = private(noise=1.0, rounds=6, participation={"scheme": "uniform", "per_round": 1})
    monkeypatch.setattr(serving, "token_hex", lambda n: "5a" * n)
    whole = deployed(Nodes(made, tmp_path / "whole"))
    half: Any = deployed_rounds(Nodes(made, tmp_path / "killed"))
    first = [next(half).clients for _ in range(3)]
    assert "secret" in read_json(run_dir(tmp_path / "killed") / "deployment.json")
    with pytest.raises(Killed):
        half.throw(Killed())
    rest = deployed(Nodes(made, tmp_path / "killed"))
    assert torch.equal(rest[-1].x, whole[-1].x) and [*first, *(r.clients for r in rest)] == [r.clients for r in whole]
    assert [r.clients for r in whole] != [r.clients for r in simulated(made)]
    for name in ("deployment.json", ".deployment.json.copy"):
        assert "5a5a5a5a" * 8 not in (run_dir(tmp_path / "killed") / name).read_text()  # the run is over


def test_cyclic_cohorts_stay_cyclic(tmp_path: Path) -> None:
    """As epsilon takes them to be: every client in one of three rounds."""
    made = private(noise=1.0, rounds=6, participation={"scheme": "cyclic", "per_round": 1})
    cohorts = [r.clients for r in deployed(Nodes(made, tmp_path))]
    assert len(set(cohorts[:3])) == 3 and cohorts[:3] == cohorts[3:]


def test_a_round_that_is_played_again_with_other_answers_has_other_noise() -> None:
    one, other = (noise_by_secret(b"secret", (torch.tensor([x, 0.0]),), "round 1")[0] for x in (1.0, 1.0 + 1e-6))
    assert not torch.isclose(one, other).any()


# what is refused


@pytest.mark.parametrize("words, reason", [
    ({"clients": {**UNIFORM, "weights": "samples"}}, "clients weigh differently"),
    ({"server": {"kind": "buffer", "size": 2}}, "which no accountant covers"),
    ({"server": {"kind": "deadline", "seconds": 9.0}}, "which no accountant covers"),
    ({"name": "mime"}, "crosses the wire several times"),
])  # fmt: skip
def test_what_has_no_guarantee_is_refused(words: dict[str, Any], reason: str, tmp_path: Path) -> None:
    nodes = Nodes(private(**words), tmp_path)
    nodes.spoil = lambda who, reply: (
        replace(reply, header={**reply.header, "samples": 7}) if reply.kind == "hello" and who == "ash" else reply
    )
    with pytest.raises(ud.InvalidInput, match=reason):
        deployed(nodes)


def test_on_one_side_only_it_is_refused(tmp_path: Path, caplog: Any) -> None:
    nodes = Nodes(experiment(clients=UNIFORM), tmp_path)
    nodes.own["birch"] = private(noise=1.0), nodes._read
    refused(nodes, caplog, "experiment.privacy is not set on the server and {")
    nodes = Nodes(private(noise=1.0), tmp_path / "another")
    nodes.own["birch"] = experiment(clients=UNIFORM, participation=EVERYONE), nodes._read
    refused(nodes, caplog, "experiment.privacy is {")


def test_a_private_run_has_as_many_rounds_on_both_sides(tmp_path: Path) -> None:
    nodes = Nodes(private(noise=1.0), tmp_path)
    nodes.own["birch"] = private(noise=1.0, rounds=4), nodes._read
    with pytest.raises(ud.InvalidInput, match="experiment.rounds is 3 on the server and 4 on the node"):
        deployed(nodes)
