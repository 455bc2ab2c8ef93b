"""Small runs of every kind of state, which attacks interrupt and damage; one takes a tenth of a second."""

import io
from contextlib import redirect_stderr
from functools import cache
from pathlib import Path

import torch

import undrift as ud
from undrift.experiments.runs.recorded import Recording, recorded
from undrift.simulation.api import RunConfig

ROUNDS = 12
LATE = ", late"
EVERY_3 = Recording(checkpoint_every=3)
POPULATION = ud.Population(
    pace=ud.LogNormal(1.0, sigma=1.0), link=ud.Link(0.1), dropout=ud.Dropout(after=0.1), jitter=0.3
)
METHODS = {
    "fedavg": "nothing",
    "scaffold": "a control variate a client",
    "fedhbm": "an anchor a client",
    "ghbm": "a history of models on the server",
    "fedadam": "an optimiser's state on the server",
    "scaffold-m-vr": "two vectors a client",
    "scaffold, late": "a control variate a client, the clock and everything in flight",
    "autonomous-fedgm, late": "momentum, the clock and everything in flight",
    "fedhbm, late": "an anchor a client, the clock and everything in flight",
}


class Killed(BaseException):
    """The process is gone at this moment: nothing after it happens."""


@cache
def config(method: str) -> RunConfig:
    """The model is small, the states are real."""
    torch.manual_seed(0)
    X, Y = torch.randn(400, 20), torch.arange(400) % 4
    loss = torch.nn.functional.cross_entropy
    problem = ud.federate((X, Y), model=torch.nn.Linear(20, 4), loss=loss, clients=ud.Dirichlet(40, alpha=0.2))
    name = method.removesuffix(LATE)
    late = name != method
    return RunConfig(
        ud.method(name, **({"eta": 0.1} if name == "fedadam" else {})),
        problem,
        ROUNDS,
        ud.Uniform(5),
        ud.Local(steps=(1, 3) if late else 2, batch=4, lr=0.05),
        engine="auto" if late else "batched",
        population=POPULATION if late else None,
        server=ud.Buffer(3, concurrency=8) if late else None,
    )


def finish(folder: Path, method: str) -> None:
    """Begin a run or go on with it, to its end."""
    folder.mkdir(parents=True, exist_ok=True)
    with redirect_stderr(io.StringIO()):
        for _ in recorded(folder, config(method), EVERY_3):
            pass


def outcome(folder: Path) -> dict[str, bytes]:
    """What must be the same whatever has happened: all but the clock's times."""
    names = (
        "metrics.jsonl",
        ".metrics.jsonl.copy",
        "model.safetensors",
        "best.safetensors",
        "result.json",
        "visits.jsonl",
    )
    return {name: (folder / name).read_bytes() for name in names if (folder / name).exists()}
