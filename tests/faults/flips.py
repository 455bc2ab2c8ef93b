"""Single bits of the files of runs are flipped: a report shows the same numbers or refuses, and a run that goes on ends
with the same bits.

    python -m tests.faults.flips 2000 0

A run may be refused only where someone may have changed `experiment.toml` on purpose; anything else that a single bit
makes unusable counts as lost.
"""

import contextlib
import io
import logging
import random
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import torch

import undrift as ud
from tests.faults.harness import Tally, run_as_script
from tests.faults.runs import outcome
from undrift.core.errors import InvalidInput
from undrift.experiments.config.federation import Federations
from undrift.experiments.report.tables import rounds_csv
from undrift.experiments.report.write import summarise
from undrift.experiments.runs.directory import EXPERIMENT, open_directory
from undrift.experiments.runs.running import prepare_directory, run_experiment
from undrift.experiments.runs.verify import forget_damaged
from undrift.experiments.verify import verify

ATTACK = "flipped bits in files of runs"
METHODS = ("scaffold", "fedadam", "fedavg")
ROUNDS, STOPPED_AT = 7, 5
UNCHECKED = {".lock"}  # it says who held the directory, nothing more


def _experiment(method: str) -> ud.Experiment:
    return ud.Experiment.model_validate(
        {
            "rounds": ROUNDS,
            "threads": 1,
            "checkpoint_every": 2,
            "engine": "batched",
            "data": {"name": "synthetic", "clients": 6},
            "clients": {"partition": "natural"},
            "participation": {"per_round": 2},
            "local": {"steps": 1, "batch": 8, "lr": 0.05},
            "algorithm": {"name": method, **({"eta": 0.1} if method == "fedadam" else {})},
        }
    )


def _go_on(path: Path, federations: Federations) -> None:
    """What `undrift resume` does."""
    directory = replace(open_directory(path), federations=federations)
    forget_damaged([path])
    for update in run_experiment(directory):
        if update.error:
            raise RuntimeError(update.error)


def figures_of(path: Path) -> str:
    """The numbers of a report, without the clock's."""
    lines = rounds_csv(summarise([path]).records).splitlines()
    clock = [i for i, name in enumerate(lines[0].split(",")) if name == "seconds"]
    return "\n".join(",".join(c for i, c in enumerate(line.split(",")) if i not in clock) for line in lines)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without warnings, which are expected, and with one thread."""
    log, threads = logging.getLogger("undrift"), torch.get_num_threads()
    level = log.level
    log.setLevel(logging.CRITICAL)
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
        torch.set_num_threads(threads)


def flip_in_copy(base: Path, copy: Path, dice: random.Random) -> tuple[Path, str]:
    """Copy a directory with one bit of one of its files flipped; which file, and what was done, in words."""
    shutil.copytree(base, copy)
    files = sorted(p for p in copy.rglob("*") if p.is_file() and p.stat().st_size and p.name not in UNCHECKED)
    path = dice.choice(files)
    content = bytearray(path.read_bytes())
    bit = dice.randrange(8 * len(content))
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    return path, f"{base.name}, {path.relative_to(copy)}, bit {bit}"


def main(tries: int, seed: int) -> Tally:
    """So many bits, over all files of finished and interrupted runs."""
    dice, tally, federations = random.Random(seed), Tally(ATTACK), Federations()
    with tempfile.TemporaryDirectory() as root, quiet():
        bases: list[tuple[Path, dict[str, bytes], str]] = []
        for method in METHODS:
            whole, part = Path(root) / method, Path(root) / f"{method} stopped"
            for path, rounds in ((whole, None), (part, STOPPED_AT)):
                directory = replace(prepare_directory(_experiment(method), path), federations=federations)
                playing = run_experiment(directory)
                for _ in islice(playing, rounds):
                    pass
                playing.close()  # pyright: ignore[reportAttributeAccessIssue]
            bases += [(path, outcome(whole), figures_of(path)) for path in (whole, part)]
        for number in range(tries):
            base, expected, figures = bases[number % len(bases)]
            copy = Path(root) / "damaged"
            path, what = flip_in_copy(base, copy, dice)
            try:
                tally_one(tally, copy, path, what, expected, figures, federations)
            except Exception as error:
                tally.crash(f"{what}: {type(error).__name__}: {error}")
            shutil.rmtree(copy)
    return tally


def tally_one(
    tally: Tally, copy: Path, path: Path, what: str, expected: dict[str, bytes], figures: str, federations: Federations
) -> None:
    """Verify, report and resume a damaged run."""
    refused = None
    found = any(not finding.sound for finding in verify(copy))
    try:
        if figures_of(copy) != figures:
            return tally.hide(f"{what}: the report has other numbers")
    except InvalidInput as error:
        refused = error
    try:
        _go_on(copy, federations)
    except InvalidInput as error:
        if path.name != EXPERIMENT:
            return tally.crash(f"{what}: lost: {error}")
        return tally.refuse(error)
    wrong = [name for name, data in expected.items() if outcome(copy).get(name) != data]
    if wrong:
        return tally.hide(f"{what}: resumed, other bits in {wrong}{'' if found else ', and verify found nothing'}")
    tally.refuse(refused) if refused else tally.survive()


if __name__ == "__main__":
    run_as_script(main)
