"""What went wrong with nodes, in a file of the run directory: who, when, why, and who is shut out."""

import logging
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from undrift.experiments.runs.directory import FAULTS
from undrift.experiments.runs.files import Lines, checked_lines, json_line, with_checksum, write_aside

log = logging.getLogger("undrift")


class Faults:
    """A line a fault.  Bad answers count, and so do lost states: after so many a node is shut out for the rest of the run.

    The file goes with the checkpoints.  A run that is resumed after round t forgets what was noted later, since those
    rounds are played again: one bad answer counts once, however often the server is killed.
    """

    def __init__(self, folder: Path, names: Sequence[str], bad_replies: int, lost_states: int):
        self.path, self.names = folder / FAULTS, names
        self.most = {"bad": bad_replies, "lost": lost_states}
        self.counts: Counter[tuple[str, str]] = Counter()  # of a name and a kind
        self._lines: Lines | None = None

    def resume(self, round: int) -> None:
        """Begin after a round."""
        found = lines_until(self.path, round)
        self.counts = Counter((line["client"], line["kind"]) for line in found)
        self._lines = rewritten(self.path, found)

    def note(self, round: int, client: int, fault: str, kind: str = "") -> None:
        """Write down a fault of a client; of kind "bad" or "lost" it counts."""
        if self._lines is None:
            raise RuntimeError("faults are noted in a run that has begun")
        name = self.names[client]
        log.warning("round %d: %s: %s%s", round, name, fault, "; left out" if kind == "bad" else "")
        self._lines.add(with_checksum({"round": round, "client": name, "fault": fault, "kind": kind}))
        self.counts[name, kind] += 1
        if self.counts[name, kind] == self.most.get(kind):
            what = "gave %d bad answers" if kind == "bad" else "lost its state %d times"
            log.error(f"%s {what}: it is shut out", name, self.most[kind])

    def shut_out(self, client: int) -> bool:
        return any(self.counts[self.names[client], kind] >= most for kind, most in self.most.items())

    def close(self) -> None:
        if self._lines is not None:
            self._lines.close()


def lines_until(path: Path, round: int) -> list[dict[str, Any]]:
    """The sound lines of rounds up to this one; others are left out with a warning."""
    sound, damaged = checked_lines(path)
    for number in damaged:
        log.warning("%s: line %d is damaged or was half written: it is left out", path, number)
    return [line for line in sound if line["round"] <= round]


def rewritten(path: Path, lines: Sequence[Mapping[str, Any]]) -> Lines:
    """The file with these lines and no others, to be continued."""
    content = b"".join(json_line(with_checksum(line)) for line in lines)
    write_aside(path, content)
    return Lines(path, len(content), zlib.crc32(content))
