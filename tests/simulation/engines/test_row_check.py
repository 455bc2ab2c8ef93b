"""A method that mixes the clients of a cohort is stopped in the first rounds, whatever mixes them."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import undrift as ud
from tests.support.everywhere import federation, played
from undrift.algorithms.fedavg import Server, Up, send_model, stateless


def clip_by_branch(d: Tensor) -> Tensor:
    return d * 0.01 / float(d.norm()) if float(d.norm()) > 0.01 else d


def write_over(d: Tensor) -> Tensor:
    d[0] = 0  # the first coordinate of one client, the first client of several
    return d


COUPLINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "norm": lambda d: d * min(1, 0.01 / float(d.norm())),
    "norm as a tensor": lambda d: d * (0.01 / d.norm()).clamp(max=1.0),
    "mean": lambda d: d - d.mean(0),
    "max": lambda d: d / d.abs().max(),
    "branch": clip_by_branch,
    "in place": write_over,
    "softmax": lambda d: torch.softmax(d, 0),
    "length": lambda d: d / len(d),
    "order": lambda d: d.flip(0),
    "own randomness": lambda d: d + 1e-3 * torch.randn_like(d),
}
every_coupling = pytest.mark.parametrize("name", COUPLINGS)
COUPLINGS_AND_NONE = COUPLINGS | {"nothing": lambda d: d}


@dataclass(frozen=True)
class Mixed:
    """FedAvg with something done to what is sent."""

    name: str
    client, send = stateless, send_model

    def server(self, x: Tensor) -> Any:
        return Server(x)

    def local(self, down: Any, client: None, work: Any) -> Any:
        y = work.loop(lambda y: work.step(y, work.grad(y)), down.x)
        return Up(COUPLINGS_AND_NONE[self.name](down.x - y)), None

    def update(self, server: Any, mean: Any, cohort: Any) -> Any:
        return Server(server.x - mean.delta)


@every_coupling
@pytest.mark.parametrize("engine", ["auto", "batched", "events"])
def test_a_method_that_mixes_clients_is_stopped(name: str, engine: str) -> None:
    told = "dim=-1, keepdim=True.*torch.where" if name != "own randomness" else "work.random"
    more = (
        {"server": ud.Buffer(3, 5), "population": ud.Population(pace=ud.LogNormal(1.0, 0.5))}
        if engine == "events"
        else {}
    )
    with pytest.raises(ud.MethodFailure, match=f"round 1, stage local.*{told}"):
        played(Mixed(name), engine, **more)


@every_coupling
def test_runs_that_are_batched_are_checked(name: str) -> None:
    trials = [ud.Trial(Mixed(name), federation(), ud.Local(steps=2, batch=4, lr=lr)) for lr in (0.1, 0.2)]
    with pytest.raises(ud.MethodFailure, match="round 1, stage local"):
        ud.run_together(trials, rounds=3, engine="batched")


def test_so_are_sums_and_what_a_codec_rounds() -> None:
    with pytest.raises(ud.MethodFailure, match="round 1, stage local"):
        played(Mixed("norm as a tensor"), "compiled")
    with pytest.raises(ud.MethodFailure, match="round 1, stage local"):
        played(Mixed("norm"), "batched", codec="fp16")
    played(ud.Scaffold(), "batched", codec="fp16")


def test_one_client_in_a_cohort_of_one_is_checked() -> None:
    with pytest.raises(ud.MethodFailure, match="client"):
        played(Mixed("norm"), "batched", participation=ud.Uniform(1))


def test_one_by_one_there_is_nothing_to_mix() -> None:
    assert len(played(Mixed("norm"), "sequential")) == 4


def test_a_momentum_that_is_zero_at_first_is_seen_in_round_2() -> None:
    @dataclass(frozen=True)
    class Late(Mixed):
        def local(self, down: Any, client: None, work: Any) -> Any:
            up, client = super().local(down, client, work)
            moved = down.x - problem.x0
            return Up(up.delta + 0.1 * moved / (1e-9 + moved.norm())), client

    problem = federation()
    with pytest.raises(ud.MethodFailure, match="round 2, stage local"):
        played(Late("nothing"), "batched", problem)


def test_a_clean_method_may_branch_by_row() -> None:
    @dataclass(frozen=True)
    class Clean(Mixed):
        def local(self, down: Any, client: None, work: Any) -> Any:
            y = work.loop(lambda y: work.step(y, work.grad(y)), down.x)
            d = down.x - y
            norm = d.norm(dim=-1, keepdim=True)
            return Up(torch.where(norm > 0.01, 0.01 * d / norm, d)), None

    one = played(Clean(""), "sequential")
    all_ = played(Clean(""), "batched")
    assert torch.allclose(one[-1].x, all_[-1].x, rtol=1e-12, atol=0)


def test_kinks_of_a_network_in_single_precision_are_not_taken_for_mixing(caplog: pytest.LogCaptureFixture) -> None:
    """Half a million ReLUs a visit: some are on the other side of their kink when a client is computed alone."""
    random = torch.Generator().manual_seed(0)
    X, y = torch.randn(400, 30, generator=random), torch.arange(400) % 10
    net = nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    problem = ud.federate((X, y), model=net, loss=F.cross_entropy, clients=ud.IID(8))
    with caplog.at_level(logging.WARNING):
        for seed in range(5):
            local = ud.Local(steps=40, batch=50, lr=0.5)
            ud.run(ud.FedAvg(), problem, rounds=2, local=local, engine="batched", seed=seed)
    assert not caplog.records


def test_a_method_that_lacks_functions_is_told_which() -> None:
    class Half:
        server, client, send = Mixed.server, Mixed.client, Mixed.send

    with pytest.raises(ud.InvalidInput) as error:
        ud.run(Half(), federation(), rounds=1)  # pyright: ignore[reportArgumentType]
    said = str(error.value)
    assert "Half is not a whole method yet" in said
    assert "local(self, down, client, work) -> Up, client" in said
    assert "update(self, server, mean, cohort) -> Server" in said
    assert "send(self" not in said
