"""Random experiments, sensible and hostile: each is refused in one line, or its first rounds can be run.

python -m tests.faults.experiments 1000 0
"""

import copy
import random
import signal
import tempfile
import warnings
from itertools import islice
from pathlib import Path
from typing import Any

import tomli_w
import torch

from tests.faults.harness import Tally, run_as_script
from undrift.core.errors import InvalidInput, Stopped
from undrift.experiments.config import read
from undrift.experiments.config.federation import Federations
from undrift.experiments.runs.running import config_of
from undrift.simulation.api import prepare

ATTACK = "random experiments"
PATIENCE = 30  # seconds; an experiment of this size takes a tenth of one

BASE: dict[str, Any] = {
    "rounds": 2,
    "seeds": [0],
    "threads": 1,
    "checkpoint_every": 1,
    "engine": {"name": "batched"},
    "data": {"name": "digits"},
    "clients": {"partition": "dirichlet", "number": 10, "alpha": 0.3, "weights": "samples", "seed": 1},
    "model": {"name": "mlp", "hidden": [4], "seed": 3},
    "participation": {"scheme": "uniform", "per_round": 3},
    "local": {"steps": 1, "batch": 4, "lr": 0.1, "decay": 0.99, "momentum": 0.0, "weight_decay": 0.0, "clip": 5.0},
    "evaluation": {"every": 1, "metrics": ["test"], "test_samples": 50},
    "algorithm": {"name": "fedavg"},
}
OTHERS: dict[str, list[Any]] = {
    "algorithm": [
        {"name": n} for n in ("scaffold", "fedhbm", "feddyn", "fedadam", "fednova", "mime", "ghbm", "fedavg-m")
    ],
    "population": [
        {"pace": 0.1, "jitter": 0.2},
        {"pace": {"median": 0.1, "sigma": 1.0}, "link": {"latency": 0.1}, "dropout": {"before": 0.1}},
        {"availability": {"kind": "chance", "q": 0.5}},
    ],
    "server": [{"kind": "buffer", "size": 2, "concurrency": 4}, {"kind": "deadline", "seconds": 5.0}],
    "codec": [{"name": "float16"}],
    "engine": [{"name": "sequential"}, {"name": "auto"}, {"name": "sequential", "workers": 2}],
    "participation": [{"scheme": "everyone"}, {"scheme": "bernoulli", "q": 0.5}, {"scheme": "cyclic", "per_round": 2}],
    "clients": [{"partition": "iid", "number": 5}, {"partition": "shards", "number": 5, "shards": 2}],
    "use": [["nowhere.py"]],
}
KEYS = (
    "beta",
    "eta",
    "lr",
    "steps",
    "size",
    "q",
    "clients",
    "name",
    "figures",
    "hidden",
    "state_memory",
    "log",
    "target",
)
ODD: list[Any] = [
    3, 0, -1, 1.5, True, "", "abc", [], {}, [[1, [2, [3]]]], {"a": {"b": 1}}, 10**9, 10**18, 10**30, -(10**30), 1e308, 1e-308,
    float("nan"), float("inf"), "\x1b[2J", "a" * 5000, " " * 8000, "../../etc", "/dev/zero", [1e9] * 5, ["test"] * 3, [0, 0],
    {"low": 1, "high": 10**12}, {"geometric": 1e-12}, {"median": -1}, {"tiers": [], "shares": []}, 10_000_000, 100_000_000,
]  # fmt: skip


def random_words(dice: random.Random) -> dict[str, Any]:
    """The words of an experiment with up to four of them changed."""
    words = copy.deepcopy(BASE)
    for _ in range(dice.choice([0, 0, 1, 1, 2])):
        section = dice.choice(list(OTHERS))
        words[section] = copy.deepcopy(dice.choice(OTHERS[section]))
    for _ in range(dice.choice([0, 1, 1, 2])):
        place = words
        key = dice.choice([*words, *OTHERS, *KEYS])
        if isinstance(place.get(key), dict) and dice.random() < 0.8:
            place = place[key]
            key = dice.choice([*place, *KEYS]) if place else dice.choice(KEYS)
        place[key] = copy.deepcopy(dice.choice(ODD))
    return words


def random_text(dice: random.Random) -> str:
    text = tomli_w.dumps(random_words(dice))
    if dice.random() < 0.15:
        at = dice.randrange(len(text))
        junk = dice.choice(
            ["[" * 5000, "x" * 9, "\x1b", "=", '"', "\n\n[a]\n", " " * 8000, "9" * 5000, "\ud7ff", "#", "{" * 3000]
        )
        text = text[:at] + junk + text[at + dice.randrange(3) :]
    return text


def main(tries: int, seed: int) -> Tally:
    """So many experiments, read and, if they are accepted, begun."""
    dice, tally, federations = random.Random(seed), Tally(ATTACK), Federations()
    threads = torch.get_num_threads()

    def too_long(*_: object) -> None:
        raise TimeoutError(f"no end after {PATIENCE} s")

    before = signal.signal(signal.SIGALRM, too_long)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "experiment.toml"
        try:
            for _ in range(tries):
                text = random_text(dice)
                path.write_text(text, encoding="utf-8")
                signal.alarm(PATIENCE)
                try:
                    _begin(path, federations)
                    tally.survive()
                except (InvalidInput, Stopped) as error:
                    tally.refuse(error)
                except Exception as error:
                    words = [line for line in text.splitlines() if line not in tomli_w.dumps(BASE).splitlines()]
                    tally.crash(f"{type(error).__name__}: {str(error)[:200]} with {'; '.join(words)[:300]!r}")
                finally:
                    signal.alarm(0)
                federations.clear()
        finally:
            signal.signal(signal.SIGALRM, before)
            torch.set_num_threads(threads)
    return tally


def _begin(path: Path, federations: Federations) -> None:
    """What `undrift run` does of an experiment, to its second round."""
    experiment = read(path)
    label, seed = experiment.runs()[0]
    single = experiment.single(label, seed)
    if single.threads is not None:
        torch.set_num_threads(single.threads)
    run = prepare(config_of(single, federations.get(single, seed)))
    longest = max(each for each in (single.local.steps, single.local.epochs, 1) if isinstance(each, int))
    if longest < 100 and not isinstance(single.local.steps, tuple):  # the others may be, but take their time
        for _ in islice(run.play(), 2):
            pass


if __name__ == "__main__":
    run_as_script(main)
