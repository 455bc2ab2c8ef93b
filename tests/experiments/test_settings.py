"""Each setting is defined once: TOML and the command line take it from there, and errors use the words of where one is."""

from dataclasses import fields
from pathlib import Path

import pytest

import undrift as ud
from undrift.cli.options import KEYS, define, make_experiment, option, option_type
from undrift.experiments.config import read
from undrift.experiments.config.settings import engine_from_dict, engine_to_dict, local_from_dict
from undrift.experiments.config.toml import to_toml
from undrift.simulation.engines import EngineChoice

FEDAVG = '[algorithm]\nname = "fedavg"\n'

LOCALS = [
    ud.Local(),
    ud.Local(steps=3, batch=5, lr=[0.2] * 100, decay=0.9),
    ud.Local(steps=(2, 5), optimiser="momentum", momentum=0.8),
    ud.Local(steps=ud.Geometric(0.1), weight_decay=0.1, clip=2.0),
    ud.Local(epochs=(1, 3), batch=None),
    ud.Local(steps=[1, 2, 3] * 20 + [4] * 40),
]


@pytest.mark.parametrize("local", LOCALS)
def test_every_setting_of_local_can_be_written_and_read(local: ud.Local, tmp_path: Path) -> None:
    e = ud.Experiment(algorithm="fedavg", local=local)  # pyright: ignore[reportArgumentType]
    (tmp_path / "e.toml").write_text(to_toml(e))
    assert read(tmp_path / "e.toml").local == local == e.local_of("fedavg")


def test_keys_of_toml_are_the_fields_of_local() -> None:
    with pytest.raises(ud.InvalidInput) as error:
        local_from_dict({"lrr": 1})
    known = str(error.value).partition("Known: ")[2].split(", ")
    assert sorted(known) == sorted(f.name for f in fields(ud.Local))


@pytest.mark.parametrize(
    "choice",
    ["auto", "ray", EngineChoice("batched", 7), EngineChoice("compiled", 3, since=2), EngineChoice("sequential", workers=2)],
)  # fmt: skip
def test_engines_can_be_written_and_read(choice: str | EngineChoice) -> None:
    assert engine_from_dict(engine_to_dict(choice)) == choice


def test_options_take_type_and_help_from_the_definition() -> None:
    for name in ("steps", "epochs", "batch", "lr"):
        help = next(f.metadata["help"] for f in fields(ud.Local) if f.name == name)
        assert option(name).help == help
    assert {name: option_type(name) for name in ("lr", "batch", "data", "weights", "seeds", "target")} == {
        "lr": float | None, "batch": str | None, "data": str | None,
        "weights": str | None, "seeds": str | None, "target": float | None,
    }  # fmt: skip
    assert all(define(key)[1] for key in KEYS.values())


def test_momentum_by_name(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text(FEDAVG + '[local]\noptimiser = "momentum"\nmomentum = 0.8\n')
    local = read(tmp_path / "e.toml").local_of("fedavg")
    assert local.solver(1) == ud.Local(batch=32, optimiser="momentum", momentum=0.8).solver(1)
    e = make_experiment(["fedavg:optimiser=momentum,lr=0.2"], {}, "x")
    assert e.local_of(e.labels[0]).optimiser == "momentum"


REFUSED = {
    'optimiser = "adma"': "line 4: [local] unknown optimiser 'adma'; did you mean 'adam'?",
    "optimiser = 3": "line 4: [local] optimiser must be a name (sgd, momentum",
    "steps = true": "line 4: [local] steps must be whole numbers from 1 up, got True",
    "batch = 0": "line 4: [local] batch must lie in [1, inf), got 0",
    "clip = 0": "line 4: [local] clip must lie in (0, inf), got 0",
    "lr = -1": "line 4: [local] lr must lie in [0, inf), got -1",
}


@pytest.mark.parametrize("line", REFUSED)
def test_a_wrong_value_is_named_with_its_line(line: str, tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text(f"{FEDAVG}[local]\n{line}\n")
    with pytest.raises(ud.InvalidInput) as error:
        read(tmp_path / "e.toml")
    assert REFUSED[line] in str(error.value)


def test_functions_cannot_be_written_down() -> None:
    pair = (lambda x: x, lambda g, s: (g, s))
    with pytest.raises(ValueError, match="an experiment names its optimiser"):
        ud.Experiment(algorithm="fedavg", local=ud.Local(optimiser=pair))  # pyright: ignore[reportArgumentType]


OPTIONS = {
    ("--lr", "-1"): "--lr -1.0: lr must lie in [0, inf)",
    ("--steps", "0"): "--steps 0: steps must be whole numbers",
    ("--dirichlet", "-1"): "--dirichlet -1.0: Dirichlet: alpha",
    ("--shards", "0"): "--shards 0: Shards: each",
    ("--engine", "fast"): "--engine fast: unknown engine 'fast'",
    ("--workers", "0"): "--workers 0: workers must lie in [1, 4096]",
    (
        "--weights",
        "some",
    ): "--weights some: clients.weights must be 'uniform' or 'samples', got 'some'",
    ("--log", "wand"): "--log wand: unknown logger 'wand'; did you mean 'wandb'?",
    ("--set", "engine.chunk=2"): "--set engine.chunk=2: engine 'auto' chooses for itself",
}


@pytest.mark.parametrize("words", OPTIONS)
def test_an_error_names_the_option(words: tuple[str, str], undrift) -> None:
    said = undrift("compare", "fedavg", *words)
    assert said.code == 2 and said.err.startswith(f"undrift: {OPTIONS[words]}")


def test_a_parameter_of_the_default_model_needs_no_name(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text(FEDAVG + "[model]\nhidden = [7]\n")
    assert read(tmp_path / "e.toml").model.parameters == {"hidden": [7]}
    assert read(tmp_path / "e.toml").model.name == "mlp"
