"""Whether the files of runs, comparisons, sweeps, choices and reproductions are what was written, a finding a file."""

from collections.abc import Iterator
from pathlib import Path

from undrift.core.errors import InvalidInput
from undrift.experiments.choosing.choosing import CHOICE, FINALS, PLAN
from undrift.experiments.recipes.results import NUMBERS
from undrift.experiments.runs.directory import EXPERIMENT, MANIFEST, METRICS
from undrift.experiments.runs.files import CHECK, CHECKSUMS, Damaged, copy_of, mark_of, marks_in, read_json
from undrift.experiments.runs.verify import RESUME, Finding, sound_copy, verify_run
from undrift.experiments.sweeps.store import DATABASE, damages_in
from undrift.experiments.sweeps.sweeping import SWEEP

AGAIN = "`undrift reproduce` computes it again"


def verify(root: Path) -> Iterator[Finding]:
    """Findings on every file of what is in a directory; nothing is built, run or changed.

    >>> import tempfile
    >>> from undrift.experiments.runs.files import write_json
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "experiment.toml").write_text("rounds = 1")
    >>> write_json(folder / "manifest.json", {"experiment": "that of another text"})
    >>> [(finding.path.name, finding.sound) for finding in verify(folder)]
    [('manifest.json', True), ('experiment.toml', False)]
    """
    kinds = {verify_run: (EXPERIMENT, MANIFEST, METRICS), _sweep: (SWEEP, DATABASE), _choice: (PLAN, CHOICE)}
    kinds |= {_numbers: (NUMBERS,), _marked: (CHECKSUMS,)}
    found = {
        look: sorted({path.parent for name in names for path in root.rglob(name)}) for look, names in kinds.items()
    }
    if not any(found.values()):
        raise InvalidInput(
            f"no run in {root}: give directories that `undrift run`, `compare`, `sweep` or `choose` wrote"
        )
    for look, folders in found.items():
        for folder in folders:
            yield from look(folder)


def _json(path: Path, mends: str) -> Finding:
    try:
        read_json(path)
    except Damaged as error:
        return Finding(path, False, _mends(path, mends) or str(error))
    checked = CHECK.encode() in path.read_bytes()
    return Finding(path, True, "" if checked else "it can be read; it was written without a checksum")


def _mends(path: Path, otherwise: str) -> str:
    return "its copy is sound and will be used" if sound_copy(path) else otherwise


def _marked(folder: Path) -> Iterator[Finding]:
    """The files whose checksums are beside them, and copies of these."""
    yield _json(folder / CHECKSUMS, "the files that it is of are taken as they are")
    for name, marks in marks_in(folder).items():
        path, copy = folder / name, copy_of(folder / name)
        sound, copied = (each.is_file() and mark_of(each) in marks for each in (path, copy))
        said = "it is damaged or was changed; " + ("its copy is sound and will be used" if copied else RESUME)
        yield Finding(path, sound, "" if sound else said)
        if copy.exists() and not copied:
            yield Finding(copy, False, f"{name} itself is {'sound' if sound else 'damaged'}")


def _sweep(folder: Path) -> Iterator[Finding]:
    path = folder / DATABASE
    if not (folder / SWEEP).is_file():
        yield Finding(folder / SWEEP, False, "it is not there")
    if not path.exists():
        return  # no trial has ended yet
    why, copied = damages_in(path, None, None)
    whole = copied is None
    yield Finding(path, why is None, "" if why is None else f"{why}; " + (_MENDED if whole else _LOST))
    if copy_of(path).exists() and not whole:
        yield Finding(copy_of(path), False, f"{copied}; {RESUME}")


_MENDED, _LOST = "its copy is sound and will be used", "remove it, and `undrift resume` runs the trials again"


def _choice(folder: Path) -> Iterator[Finding]:
    if (folder / PLAN).exists():
        yield _json(folder / PLAN, "choose again with --out NEW")
    else:
        yield Finding(folder / PLAN, False, "it is not there")
    for path in [*sorted((folder / FINALS).glob("*.json")), folder / CHOICE]:
        if path.exists():
            yield _json(path, RESUME)


def _numbers(folder: Path) -> Iterator[Finding]:
    yield _json(folder / NUMBERS, AGAIN)
