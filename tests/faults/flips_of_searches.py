"""Single bits of the files of sweeps, choices and references are flipped: whoever goes on finds the same, and nothing is lost.

    python -m tests.faults.flips_of_searches 500 0

What a person may open without going on, an answer or an experiment, is the same, refused, or not as it was written.
"""

import json
import random
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import undrift as ud
from tests.faults.flips import figures_of, flip_in_copy, quiet
from tests.faults.harness import Tally, run_as_script
from tests.support.small_sweep import FEW, experiment
from undrift.core.errors import InvalidInput
from undrift.experiments.choosing import open_choosing, prepare_choosing
from undrift.experiments.choosing.choosing import CHOICE, CHOSEN, carry_out, conclude
from undrift.experiments.config.federation import Federations
from undrift.experiments.runs.directory import REFERENCE, open_directory
from undrift.experiments.runs.files import is_as_written, read_json
from undrift.experiments.runs.running import members, prepare_directory, run_experiment
from undrift.experiments.runs.verify import forget_damaged
from undrift.experiments.sweeps.plan import Plan
from undrift.experiments.sweeps.space import Space
from undrift.experiments.sweeps.sweeping import BEST, TRIALS, open_sweep, run_sweep
from undrift.experiments.verify import verify

ATTACK = "flipped bits in files of searches"
SETTLED = {"trials": 2, "seeds": 1, "rounds": 2}
SAME = {TRIALS, BEST, "sweep.toml", CHOSEN, CHOICE, REFERENCE, "metrics.jsonl", "result.json", "model.safetensors"}


def _methods() -> ud.Experiment:
    return experiment("fedavg", "scaffold-m", rounds=2)


def _sweep(folder: Path, steps: int | None = None) -> None:
    if (folder / "sweep.toml").exists():
        described, plan = open_sweep(folder)
    else:
        described, plan = _methods(), Plan(Space("few", common=FEW), trials=2, sampler="grid")
    for _ in islice(run_sweep(described, plan, folder), steps):
        pass


def _choice(folder: Path, steps: int | None = None) -> None:
    ready = open_choosing(folder) if folder.exists() else prepare_choosing(_methods(), given=SETTLED, directory=folder)
    for _ in islice(carry_out(ready, folder), steps):
        pass
    if steps is None:
        conclude(ready, folder)


FEDERATIONS = Federations()


def _comparison(folder: Path, steps: int | None = None) -> None:
    if not folder.exists():
        made = experiment("fedavg", rounds=2, checkpoint_every=1, reference=["fine-tuned", "local-only"])
        prepare_directory(made, folder)
    whole = replace(open_directory(folder), federations=FEDERATIONS)
    forget_damaged(members(whole))
    for update in islice(run_experiment(whole), steps):
        if update.error:
            raise RuntimeError(update.error)


def _content(folder: Path) -> dict[str, bytes]:
    kept = (p for p in sorted(folder.rglob("*")) if p.name in SAME or p.parent.name == "finals")
    return {str(p.relative_to(folder)): _read(p) for p in kept if not p.name.startswith(".")}


def _read(path: Path) -> bytes:
    if path.name in (CHOICE, REFERENCE):  # the one says where it is, the other grows from its end
        words = {name: value for name, value in read_json(path).items() if name != "next"}
        return json.dumps(words, sort_keys=True).encode()
    return path.read_bytes()


def _looked_at(folder: Path, path: Path, found: bool, figures: str) -> str | None:
    """What is wrong with what someone sees who does not go on."""
    if path.name in (BEST, CHOSEN, TRIALS) and (is_as_written(path) or not found):
        return "it is taken for what was written"
    if path.name == CHOICE:
        ud.load_choice(path)
    if figures and figures_of(folder) != figures:
        return "the report has other numbers"
    return None


def main(tries: int, seed: int) -> Tally:
    """So many bits, over all files of finished and interrupted searches."""
    dice, tally = random.Random(seed), Tally(ATTACK)
    works: dict[str, Callable[..., None]] = {"sweep": _sweep, "choice": _choice, "comparison": _comparison}
    with tempfile.TemporaryDirectory() as root, quiet():
        bases: list[tuple[Path, Callable[..., None], dict[str, bytes], str]] = []
        for name, work in works.items():
            whole, part = Path(root) / name, Path(root) / f"{name} stopped"
            work(whole)
            work(part, 5 if name == "choice" else 3)
            runs = name == "comparison"
            bases += [(path, work, _content(whole), figures_of(path) if runs else "") for path in (whole, part)]
        for number in range(tries):
            base, work, expected, figures = bases[number % len(bases)]
            copy, refused = Path(root) / "damaged", None
            path, what = flip_in_copy(base, copy, dice)
            try:
                found = any(not finding.sound for finding in verify(copy))
                try:
                    wrong = _looked_at(copy, path, found, figures)
                except InvalidInput as error:
                    refused, wrong = error, None
                work(copy)
                other = sorted(name for name, data in expected.items() if _content(copy).get(name) != data)
                if wrong or other:
                    tally.hide(f"{what}: {wrong or f'other bits in {other}'}")
                elif refused:
                    tally.refuse(refused)
                else:
                    tally.survive()
            except Exception as error:
                if isinstance(error, InvalidInput) and path.name == "experiment.toml":
                    tally.refuse(error)
                else:
                    tally.crash(f"{what}: {type(error).__name__}: {error}")
            shutil.rmtree(copy)
    return tally


if __name__ == "__main__":
    run_as_script(main)
