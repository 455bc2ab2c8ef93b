"""undrift doctor: what is installed and missing, and a speed without the time of compiling."""

import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import torch

import undrift as ud
from undrift.cli import doctor

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_every_extra_is_listed_with_its_version_or_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    extras = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    lines = [f'{line}; extra == "{name}"' for name, lines in extras.items() for line in lines]
    monkeypatch.setattr(metadata, "requires", lambda name: ["torch>=2.12", *lines])
    monkeypatch.setattr(doctor, "_speed", lambda: iter(["fast"]))
    monkeypatch.setattr(doctor, "_data_found", lambda: iter(["digits (1,500)"]))
    monkeypatch.setattr(doctor, "_version", lambda name: "" if name in ("ray", "torchvision") else "1.2")
    found = dict(doctor.findings())
    assert {key.removeprefix("extra ") for key in found if key.startswith("extra ")} == set(extras)
    assert found["extra ray"] == 'no ray: pip install "undrift[ray]"'
    assert found["extra vision"] == 'pillow 1.2; no torchvision: pip install "undrift[vision]"'
    assert found["extra flower"] == "flwr 1.2" and found["installed"] == "torch 1.2"
    assert torch.__version__ in found["compiling"] and found["data found"] == "digits (1,500)"
    assert {"C++ compiler", "CUDA", "Ray", "data folders", "processor"} <= set(found)


def test_compiling_is_no_part_of_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    class Timed:
        def __init__(self, seconds: float):
            self.seconds = seconds

    times = [9.0, 2.0, 1.0, 0.3, 0.1, 0.2, 0.2, 5.0, 0.2, 0.2]
    monkeypatch.setattr(ud, "rounds", lambda *_, rounds, **__: map(Timed, times[:rounds]))
    assert doctor.time_rounds(None, "compiled") == (9.0, 0.2)  # pyright: ignore[reportArgumentType]
