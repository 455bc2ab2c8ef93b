"""Real `kill -9` of sweeps and comparisons, in forked processes: both go on to the same files.

python -m tests.faults.kills_of_searches 100 0
"""

import random
import shutil
import tempfile
import time
from functools import partial
from pathlib import Path

import torch

import undrift as ud
from tests.faults.flips import quiet
from tests.faults.harness import Tally, killed_after, run_as_script
from tests.support.small_sweep import FEW, experiment
from undrift.experiments.runs.directory import open_directory
from undrift.experiments.runs.running import prepare_directory, run_experiment
from undrift.experiments.sweeps.plan import Plan
from undrift.experiments.sweeps.space import Space
from undrift.experiments.sweeps.sweeping import run_sweep

ATTACK = "kills of sweeps and comparisons"


def _sweep(folder: Path) -> None:
    for _ in run_sweep(_small("fedavg", "scaffold"), Plan(Space("few", common=FEW), trials=2, sampler="grid"), folder):
        pass


def _compare(folder: Path) -> None:
    if not (folder / "experiment.toml").exists():
        prepare_directory(_small("fedavg", "scaffold", seeds=2), folder)
    for update in run_experiment(open_directory(folder)):
        if update.error:
            raise RuntimeError(update.error)


def _small(*methods: str, **words: object) -> ud.Experiment:
    return experiment(*methods, checkpoint_every=1, **words)


def _content(folder: Path) -> dict[str, bytes]:
    names = ("metrics.jsonl", "result.json", "model.safetensors", "trials.csv", "best.toml")
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.name in names}


def main(tries: int, seed: int) -> Tally:
    """So many kills, of sweeps and comparisons in turn."""
    dice, tally, kills, number = random.Random(seed), Tally(ATTACK), 0, 0
    with tempfile.TemporaryDirectory() as root, quiet():
        torch.set_num_threads(1)
        expected: dict[str, tuple[dict[str, bytes], float]] = {}
        while kills < tries:
            work = (_sweep, _compare)[number % 2]
            if work.__name__ not in expected:
                begun, whole = time.monotonic(), Path(root) / f"whole{work.__name__}"
                work(whole)
                expected[work.__name__] = _content(whole), time.monotonic() - begun
            content, seconds = expected[work.__name__]
            folder, number, deaths = Path(root) / str(number), number + 1, 0
            try:
                while not killed_after(
                    partial(work, folder), dice.uniform(0, seconds) if kills + deaths < tries else 600.0
                ):
                    deaths += 1
                found = _content(folder)
                wrong = sorted(name for name in {*content, *found} if content.get(name) != found.get(name))
                for _ in range(deaths):
                    tally.hide(f"{work.__name__}: {wrong}") if wrong else tally.survive()
            except Exception as error:
                tally.crash(f"{work.__name__}: {type(error).__name__}: {error}")
                deaths = max(deaths, 1)
            kills += deaths
            shutil.rmtree(folder, ignore_errors=True)
    return tally


if __name__ == "__main__":
    run_as_script(main)
