"""Whether the files of a run are what was written, a finding a file; nothing is built, run or changed."""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from undrift.experiments.runs.checkpoint import Checkpoints, Unusable, signed_record
from undrift.experiments.runs.directory import (
    DEPLOYMENT,
    EXPERIMENT,
    FAULTS,
    FEDERATION,
    MANIFEST,
    METRICS,
    REFERENCE,
    RESULT,
    START,
    TIMES,
    VISITS,
    WIRE,
    digest,
)
from undrift.experiments.runs.files import (
    CHECK,
    Damaged,
    checked_lines,
    copied_lines,
    copy_of,
    holds,
    mark_of,
    mark_of_bytes,
    read_json,
    whole_lines,
)

log = logging.getLogger("undrift")

RESUME = "`undrift resume` repairs it"


@dataclass(frozen=True)
class Finding:
    """What there is to say about a file."""

    path: Path
    sound: bool
    said: str


def forget_damaged(runs: Iterable[Path]) -> None:
    """Forget that these runs have ended where something of them is damaged: ending again, they write it anew."""
    for path in runs:
        if (path / RESULT).exists():
            damaged = [finding.path.name for finding in verify_run(path) if not finding.sound]
            if damaged:
                log.warning("%s: %s damaged: what can be rebuilt is", path, ", ".join(damaged))
                (path / RESULT).unlink()


def verify_run(folder: Path) -> Iterator[Finding]:
    """Findings on every file of a run, or on those that a comparison has beside its runs."""
    known: dict[str, Any] = {}
    for name, hint in {MANIFEST: "", RESULT: RESUME, FEDERATION: RESUME, DEPLOYMENT: "", REFERENCE: RESUME}.items():
        path = folder / name
        try:
            if path.exists() or name == MANIFEST:
                known[name] = read_json(path)
                checked = CHECK.encode() in path.read_bytes()
                yield Finding(path, True, "" if checked else "it can be read; it was written without a checksum")
        except Damaged as error:
            copy = sound_copy(path)
            known[name] = copy or {}
            yield Finding(path, False, "its copy is sound and will be used" if copy else hint or str(error))
    yield _experiment(folder / EXPERIMENT, known[MANIFEST])
    marks = {**known.get(RESULT, {}).get("files", {})}
    for name in (METRICS, VISITS):
        if (folder / name).exists() or name in marks or copy_of(folder / name).exists():
            yield _lines(folder / name, marks.get(name))
    for path in (folder / TIMES, folder / FAULTS, folder / WIRE):
        if path.exists():
            lines, spoilt = checked_lines(path)
            said = f"{len(spoilt)} lines are damaged, {len(lines)} are sound" if spoilt else f"{len(lines)} lines"
            yield Finding(path, not spoilt, said)
    if "start" in known.get(REFERENCE, {}):
        marks |= {START: known[REFERENCE]["start"]}
    for name, mark in marks.items():
        if name.endswith(".safetensors"):
            sound = (folder / name).is_file() and mark_of(folder / name) == mark
            yield Finding(folder / name, sound, "" if sound else RESUME)
    yield from _checkpoints(folder / "checkpoints")


def sound_copy(path: Path) -> Any:
    """What the copy of a JSON file has; None if that is damaged, too."""
    try:
        return read_json(copy_of(path))
    except Damaged:
        return None


def _experiment(path: Path, manifest: dict[str, Any]) -> Finding:
    digests = {manifest.get("experiment"), manifest.get("next")} - {None}
    if not digests:
        return Finding(path, path.is_file(), "nothing tells what it was")
    copy = copy_of(path)
    sound = [each.is_file() and digest(each.read_bytes()) in digests for each in (path, copy)]
    mends = (
        f"it was changed after the run began; {copy.name} is as it was: put it back" if sound[1] else "it was changed"
    )
    return Finding(path, sound[0], "" if sound[0] else mends)


def _lines(path: Path, mark: dict[str, int] | None) -> Finding:
    lines, copied = whole_lines(path), copied_lines(path)
    if mark is not None:
        sound = holds(path, mark) and path.stat().st_size == mark["bytes"]
        copy = copied is not None and mark_of_bytes(b"".join(copied)) == mark
    else:
        sound = copied is None or lines[: len(copied)] == copied
        copy = copied is not None
    if not sound:
        return Finding(path, False, f"its copy is sound and is used; {RESUME}" if copy else "and so is its copy")
    if not copy and (mark is not None or copy_of(path).exists()):
        return Finding(copy_of(path), False, f"{path.name} itself is {'sound' if mark else 'there'}")
    return Finding(path, True, f"{len(lines)} lines" + ("" if copy or mark else ", written without checksums"))


def _checkpoints(folder: Path) -> Iterator[Finding]:
    checkpoints, done = Checkpoints(folder), set[Path]()
    for round in checkpoints.rounds():
        try:
            files = checkpoints.files_of(round)
        except Unusable as error:
            yield Finding(folder / f"{round:08d}.json", False, str(error))
            continue
        for name, mark in files:
            for path in checkpoints.places(name):
                if path not in done:
                    done.add(path)
                    yield Finding(path, *_judge(path, mark))
    checkpoints.close()


def _judge(path: Path, mark: dict[str, int] | None) -> tuple[bool, str]:
    try:
        sound = mark_of(path) == mark if mark else bool(signed_record(path))
    except (OSError, Unusable) as error:
        return False, str(error)
    return sound, "" if sound else "its checksum is not what was written"
