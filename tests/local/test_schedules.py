"""Step-size schedules over rounds: against torch's where it has them, in every engine, and what is wrong with some."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import undrift as ud
from tests.support.everywhere import every_engine, models, played
from undrift.local.schedules import Cosine, Multistage, Step, Warmup, check_factors, make_schedule

T = 12


def of_torch(make: Any) -> list[float]:
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 1.0)
    schedule, found = make(optimiser), []
    for _ in range(T):
        found.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        schedule.step()
    return found


t = torch.optim.lr_scheduler
EXPECTED: dict[Any, list[float]] = {
    "constant": [1.0] * T,
    "step:4": of_torch(lambda o: t.StepLR(o, 4)),
    "step:every=3,factor=0.5": of_torch(lambda o: t.StepLR(o, 3, 0.5)),
    "exponential:0.9": of_torch(lambda o: t.ExponentialLR(o, 0.9)),
    "cosine": of_torch(lambda o: t.CosineAnnealingLR(o, T)),
    "cosine:floor=0.1": of_torch(lambda o: t.CosineAnnealingLR(o, T, 0.1)),
    "cosine:6": [*of_torch(lambda o: t.CosineAnnealingLR(o, 6))[:6], *[0.0] * 6],
    "warmup:4": [0.25, 0.5, 0.75, *[1.0] * 9],
    "warmup:2,then=cosine": [0.5, 1.0, *[Cosine(10)(s) for s in range(1, 11)]],
    "multistage:2": [1, 1, 0.5, 0.5, 0.5, 0.5, *[0.25] * 6],
}


@pytest.mark.parametrize("name", EXPECTED)
def test_step_sizes_are_lr_times_the_schedule(name: str) -> None:
    local = ud.Local(lr=0.3, schedule=name).for_run(T)
    assert [local.solver(t).lr for t in range(1, T + 1)] == pytest.approx([0.3 * f for f in EXPECTED[name]], abs=1e-15)
    assert local.solver(0).lr == local.solver(1).lr


def test_lists_functions_and_objects() -> None:
    for schedule in ([1, 0.5, 0.1], lambda t: [1, 0.5, 0.1][t - 1]):
        local = ud.Local(lr=2.0, schedule=schedule).for_run(3)
        assert [local.solver(t).lr for t in (1, 2, 3)] == [2.0, 1.0, 0.2]
    assert ud.Local(schedule=Step(2)).solver(3).lr == pytest.approx(0.01)
    both = ud.Local(lr=[1.0, 2.0], decay=0.5, schedule="exponential:0.1")
    assert both.solver(2).lr == pytest.approx(2.0 * 0.5 * 0.1)
    assert Warmup(1, then=Multistage(1)).for_run(5)(3) == 0.5


@every_engine
def test_a_run_has_the_step_sizes_of_the_list(engine: str) -> None:
    rounds = 4
    factors = [Cosine(rounds)(t) for t in range(1, rounds + 1)]
    by_name = played(ud.Scaffold(), engine, rounds=rounds, local=ud.Local(steps=3, batch=4, lr=0.2, schedule="cosine"))
    listed = ud.Local(steps=3, batch=4, lr=[0.2 * f for f in factors])
    assert (models(by_name) == models(played(ud.Scaffold(), engine, rounds=rounds, local=listed))).all()


@pytest.mark.parametrize("kind", [np.array, torch.tensor])
def test_arrays_are_as_good_as_lists(kind: Any) -> None:
    factors = [1.0, 0.5, 0.25]
    assert ud.Local(schedule=kind(factors)) == ud.Local(schedule=factors)


def test_a_bare_name_is_enough_for_what_can_follow_the_run() -> None:
    """Thirds of the run, and a tenth of it to warm up."""
    factors = {name: check_factors(make_schedule(name), 12) for name in ("step", "warmup")}
    assert factors["step"] == pytest.approx([1] * 4 + [0.1] * 4 + [0.01] * 4)
    assert factors["warmup"] == [0.5, *[1.0] * 11]


def test_batched_runs_have_each_its_own() -> None:
    problem = ud.Quadratic(torch.ones(2, 1, 1), torch.tensor([[1.0], [3.0]]))
    locals_ = [ud.Local(steps=2, lr=lr, schedule="cosine") for lr in (0.1, 0.3)]
    together = ud.run_together([ud.Trial(ud.FedAvg(), problem, local) for local in locals_], rounds=4)
    alone = [ud.run(ud.FedAvg(), problem, rounds=4, local=local) for local in locals_]
    assert [float(r.x) for r in together] == pytest.approx([float(r.x) for r in alone])


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ("cosin", "unknown schedule 'cosin'; did you mean 'cosine'"),
        ("exponential", 'exponential needs factor: write "exponential:FACTOR"'),
        ("step:every=0", r"schedule step: every must lie in \[1, inf\), got 0"),
        ("cosine:floor=2", r"floor must lie in \[0, 1\], got 2"),
        ("warmup:5,then=later", "unknown schedule 'later'"),
        (3.0, "schedule must be a name .* got 3.0"),
    ],
)
def test_wrong_schedules_are_refused_at_once(schedule: Any, message: str) -> None:
    with pytest.raises(ud.InvalidInput, match=message):
        ud.Local(schedule=schedule)


def fails(t: int) -> float:
    raise KeyError(t)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ([1.0, 0.5], "schedule lists 2 factors for 3 rounds: give one a round"),
        (lambda t: 1 - t, r"schedule in round 2 must lie in \[0, inf\), got -1.0"),
        (lambda t: float("nan"), "schedule in round 1 must lie in"),
        (fails, "schedule failed in round 1: KeyError: 1"),
        (lambda t: "fast", "schedule failed in round 1: ValueError"),
    ],
)
def test_what_does_not_fit_the_run_is_refused_before_it(schedule: Any, message: str) -> None:
    with pytest.raises(ud.InvalidInput, match=message):
        ud.rounds(
            ud.FedAvg(),
            ud.Quadratic(torch.ones(2, 1, 1), torch.ones(2, 1)),
            rounds=3,
            local=ud.Local(schedule=schedule),
        )


def test_methods_that_divide_by_lr_refuse_a_zero_in_it() -> None:
    problem = ud.Quadratic(torch.ones(2, 1, 1), torch.ones(2, 1))
    with pytest.raises(ud.InvalidInput, match="fednova divides by the local step size"):
        ud.rounds(ud.FedNova(), problem, rounds=3, local=ud.Local(schedule="cosine:2"))


# in files and on the command line

TOML = """
rounds = 3
algorithm = "fedavg"
participation = {per_round = 2}
clients = {partition = "iid", number = 4}
model = {name = "mlp", hidden = []}
engine = "batched"
[local]
steps = 2
batch = 8
lr = 0.01
optimiser = {name = "adam", beta2 = 0.99}
optimiser_state = "keep"
schedule = {name = "warmup", rounds = 2, then = "cosine"}
"""


def quality(folder: Path) -> list[Any]:
    (found,) = folder.rglob("metrics.jsonl")
    return [(line["loss"], line["bytes_up"]) for line in map(json.loads, found.read_text().splitlines())]


def test_optimisers_and_schedules_in_toml_and_on_the_command_line(undrift: Any, tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text(TOML)
    said = undrift("run", "e.toml", "--out", "file", "-q")
    assert said.code == 0, said.err
    (tmp_path / "plain.toml").write_text(TOML.split("optimiser =")[0])
    said = undrift(
        "run", "plain.toml", "--out", "line", "-q", "--set", "local.optimiser=adam:beta2=0.99",
        "--set", "local.schedule=warmup:2,then=cosine", "--set", "local.optimiser_state=keep",
    )  # fmt: skip
    assert said.code == 0, said.err
    assert quality(tmp_path / "file") == quality(tmp_path / "line")
    again = undrift("run", str(next((tmp_path / "file").rglob("experiment.toml"))), "--out", "again", "-q")
    assert again.code == 0 and quality(tmp_path / "again") == quality(tmp_path / "file")
    options = ["compare", "fedavg", "--iid", "--clients", "4", "--per-round", "2", "--rounds", "3", "--steps", "2", "--batch", "8",
               "--lr", "0.01", "--engine", "batched", "--set", "model.hidden=[]", "-q"]  # fmt: skip
    more = [
        "--optimiser",
        "adam:beta2=0.99",
        "--schedule",
        "warmup:2,then=cosine",
        "--set",
        "local.optimiser_state=keep",
    ]
    said = undrift(*options, *more, "--out", "options")
    assert said.code == 0, said.err
    assert quality(tmp_path / "options") == quality(tmp_path / "file")
    for option, value, message in [
        ("--optimiser", "adma", "unknown optimiser 'adma'; did you mean 'adam'"),
        ("--schedule", "cosin", "unknown schedule 'cosin'; did you mean 'cosine'"),
        ("--codec", "top-z", "unknown codec 'top-z'; did you mean 'top-k'"),
    ]:
        said = undrift(*options, option, value)
        assert said.code == 2 and message in " ".join(said.err.split())
