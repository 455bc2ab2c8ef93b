"""Which engine is chosen, and choices that are refused."""

import logging
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import undrift as ud
from tests.support.compiled import ragged
from tests.support.images import NETS, images
from undrift.simulation.engines import choice as choices
from undrift.simulation.engines.choice import EngineChoice, choose_engine

# choices


def asked(problem: Any, **settings: Any) -> EngineChoice:
    usual: dict[str, Any] = {
        "rounds": 5, "participation": ud.Uniform(3), "local": ud.Local(steps=4, batch=4)
    }  # fmt: skip
    return choose_engine(problem, **(usual | settings))


def test_short_runs_stay_eager_and_long_ones_are_compiled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    problem = ragged()
    monkeypatch.setattr(choices, "step_seconds", lambda *args: 0.001)
    monkeypatch.setattr(choices, "cpp_compiler", lambda: "g++")
    assert asked(problem) == EngineChoice("batched", 3)
    with caplog.at_level(logging.INFO, logger="undrift"):
        ud.rounds(ud.FedAvg(), problem, rounds=5, participation=ud.Uniform(3))
    assert "engine: clients in chunks of 3, batched" in caplog.text
    assert asked(problem, rounds=10_000) == EngineChoice("compiled", 3, since=2)
    assert "from round 2 on" in str(asked(problem, rounds=10_000))
    assert asked(problem, rounds=10_000, engine="batched") == EngineChoice("batched", 3)
    monkeypatch.setattr(choices, "cpp_compiler", lambda: None)
    with caplog.at_level(logging.WARNING, logger="undrift"):
        assert asked(problem, rounds=10_000) == EngineChoice("batched", 3)
    assert "no C++ compiler was found" in caplog.text


def test_convolutions_take_a_core_each(monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = torch.randn(8, 1, 6, 6), torch.arange(8) % 2
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(32, 2))
    problem = ud.federate((X, Y), model=net, loss=F.cross_entropy, clients=ud.IID(4))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert asked(problem) == EngineChoice("sequential", workers=2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert asked(problem) == EngineChoice("sequential")
    assert asked(problem, workers=3) == EngineChoice("sequential", workers=3)


def test_small_steps_have_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = torch.randn(40, 64), torch.arange(40) % 10
    small, large = (
        ud.federate((X, Y), model=nn.Linear(64, width), loss=F.cross_entropy, clients=ud.IID(4)) for width in (10, 5000)
    )
    assert asked(small) == EngineChoice("batched", 3)  # there is one thread, in tests
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert asked(small) == EngineChoice("batched", 3, threads=1)
    assert asked(small, engine="sequential") == EngineChoice("sequential", threads=1)
    assert asked(small, workers=2) == EngineChoice("sequential", workers=2)
    assert asked(large) == EngineChoice("batched", 3)
    assert str(asked(small, engine="sequential")) == "clients one after another, one core for each"


@pytest.mark.parametrize("engine", ["batched", "sequential"])
def test_threads_are_those_of_the_choice_during_visits_alone(engine: str) -> None:
    during: list[int] = []

    def loss(scores: Tensor, target: Tensor) -> Tensor:
        during.append(torch.get_num_threads())
        return F.cross_entropy(scores, target)

    X, Y = torch.randn(40, 6), torch.arange(40) % 3
    problem = ud.federate((X, Y), model=nn.Linear(6, 3), loss=loss, clients=ud.IID(4))
    torch.set_num_threads(3)
    settings: dict[str, Any] = {"rounds": 2, "local": ud.Local(steps=2, batch=4, lr=0.1), "metrics": ()}
    result = ud.run(ud.FedAvg(), problem, engine=EngineChoice(engine, threads=2), **settings)
    assert torch.get_num_threads() == 3
    assert during and set(during[-8:]) == {2}
    torch.set_num_threads(1)
    again = ud.run(ud.FedAvg(), problem, engine=EngineChoice(engine, threads=1), **settings)
    assert torch.allclose(result.x, again.x)


def test_memory_too_small_for_one_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "free_bytes", lambda device: 2000)
    with pytest.raises(ud.InvalidInput, match=r"one client needs about .* MiB: 8 vectors of 57"):
        ud.run(ud.FedAvg(), ragged(), rounds=1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"engine": "warp"}, "warp"),
        ({"workers": 0}, "workers must lie in"),
        ({"engine": "batched", "workers": 2}, "leave workers out"),
        ({"engine": EngineChoice("batched", 2), "chunk": 3}, "give one or the other"),
    ],
    ids=str,
)
def test_impossible_choices_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ud.InvalidInput, match=message):
        ud.run(ud.FedAvg(), ragged(), rounds=1, **settings)


# choices


def test_long_runs_of_convolutions_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = images(*NETS["relu, pool"])
    usual: dict[str, Any] = {
        "participation": ud.Uniform(3), "local": ud.Local(steps=4, batch=4)
    }  # fmt: skip
    monkeypatch.setattr(choices, "step_seconds", lambda *args: 0.01)
    monkeypatch.setattr(choices, "cpp_compiler", lambda: "g++")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert choose_engine(problem, rounds=100, **usual) == EngineChoice("sequential", workers=2)
    long = choose_engine(problem, rounds=10_000, **usual)
    assert long == EngineChoice("compiled", workers=2, since=2)
    assert str(long) == "clients one after another, 2 side by side, compiled from round 2 on"
    assert choose_engine(problem, rounds=1, engine="compiled", **usual) == EngineChoice("compiled", workers=2)
    assert choose_engine(problem, rounds=1, engine="compiled", chunk=3, **usual) == EngineChoice(
        "compiled", 3, threads=1
    )
    own = choose_engine(problem, rounds=1, engine="compiled", workers=3, **usual)
    assert own == EngineChoice("compiled", workers=3)
    assert choose_engine(problem, rounds=10_000, workers=3, **usual) == EngineChoice("compiled", 1, 3, since=2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert choose_engine(problem, rounds=10_000, **usual) == EngineChoice("compiled", since=2)


def test_recurrent_layers_are_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LSTM(2, 3, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x)[0][:, -1]

    X, Y = torch.randn(8, 4, 2), torch.arange(8) % 3
    problem = ud.federate((X, Y), model=Recurrent(), loss=F.cross_entropy, clients=ud.IID(4))
    monkeypatch.setattr(choices, "step_seconds", lambda *args: 10.0)
    local = ud.Local(steps=4, batch=2)
    choice = choose_engine(problem, rounds=10**6, participation=ud.Uniform(3), local=local)
    assert choice.engine == "sequential"


def test_workers_need_chunks_of_one() -> None:
    with pytest.raises(ud.InvalidInput, match="'compiled' with chunk=1"):
        EngineChoice("compiled", 2, workers=2)
    with pytest.raises(ud.InvalidInput, match="workers have one thread each"):
        EngineChoice("sequential", workers=2, threads=1)
    with pytest.raises(ud.InvalidInput, match="workers on Ray have one thread each"):
        EngineChoice("ray", threads=1)


def test_on_ray_each_worker_takes_one_client_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from undrift.simulation.ray import choice as on_ray

    problem = images(*NETS["relu, pool"])
    monkeypatch.setattr(on_ray, "cpus", lambda: 2)
    monkeypatch.setattr(choices, "step_seconds", lambda *args: 1.0)
    monkeypatch.setattr(choices, "cpp_compiler", lambda: "g++")
    usual: dict[str, Any] = {"participation": ud.Uniform(3), "local": ud.Local(steps=4, batch=4)}
    choice = on_ray.choose_on_ray(problem, EngineChoice("ray"), None, rounds=1000, **usual)
    assert choice == EngineChoice("ray", workers=2, since=2, shards=2, inside="compiled")
    assert choice.inner == EngineChoice("compiled", since=2)
    assert str(choice) == "2 workers on Ray, 2 shards; in each, clients one after another, compiled from round 2 on"


def test_fifty_runs_under_any_load_have_one_engine_and_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """No clock decides: clocks that run at random, as under load, change nothing."""
    import random
    import time

    from tests.support.everywhere import federation

    luck, now = random.Random(0), [0.0]

    def stumbling() -> float:
        now[0] += luck.expovariate(0.2)
        return now[0]

    for clock in ("perf_counter", "monotonic", "time", "process_time", "thread_time"):
        monkeypatch.setattr(time, clock, stumbling)
    for module in ("driver", "batched_runs.batch"):
        monkeypatch.setattr(f"undrift.simulation.{module}.perf_counter", stumbling)
    found = set()
    for _ in range(50):
        local = ud.Local(steps=2, batch=4, lr=0.1)
        result = ud.run(ud.Scaffold(), federation(torch.float32), rounds=3, participation=ud.Uniform(3), local=local)
        found.add((str(result.engine), result.x.numpy().tobytes(), tuple(r.bytes_up for r in result.history)))
    assert len(found) == 1


def test_no_clock_is_read_where_engines_are_chosen() -> None:
    from pathlib import Path

    import undrift.simulation.engines.choice as choice
    import undrift.simulation.ray.choice as on_ray

    for module in (choice, on_ray):
        source = Path(module.__file__ or "").read_text()
        assert "perf_counter" not in source and "import time" not in source and "from time" not in source
