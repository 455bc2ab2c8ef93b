"""What went wrong with nodes, in a file of the run directory: who, when, why, and who is shut out."""

import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from undrift.experiments.runs.directory import FAULTS
from undrift.experiments.runs.files import Lines, checked_lines, rewritten, with_checksum

log = logging.getLogger("undrift")


class RoundLines:
    """A file with lines of rounds that goes with the checkpoints: a run that is resumed after round t forgets what was
    noted later, since those rounds are played again."""

    def __init__(self, path: Path):
        self.path = path
        self._lines: Lines | None = None

    def resume(self, round: int) -> list[dict[str, Any]]:
        """Begin after a round, with the sound lines of rounds up to it; others are left out with a warning."""
        sound, damaged = checked_lines(self.path)
        for number in damaged:
            log.warning("%s: line %d is damaged: it is left out", self.path, number)
        found = [line for line in sound if line["round"] <= round]
        self._lines = rewritten(self.path, found)
        return found

    def add(self, **line: Any) -> None:
        if self._lines is None:
            raise RuntimeError("lines are added to a run that has begun")
        self._lines.add(with_checksum(line))

    def close(self) -> None:
        if self._lines is not None:
            self._lines.close()


class Faults(RoundLines):
    """A line a fault.  Bad answers count, and so do lost states: after so many a node is shut out for the rest of the run.

    One bad answer counts once, however often the server is killed.
    """

    def __init__(self, folder: Path, names: Sequence[str], bad_replies: int, lost_states: int):
        super().__init__(folder / FAULTS)
        self.names, self.most = names, {"bad": bad_replies, "lost": lost_states}
        self.counts: Counter[tuple[str, str]] = Counter()  # of a name and a kind

    def resume(self, round: int) -> list[dict[str, Any]]:
        found = super().resume(round)
        self.counts = Counter((line["client"], line["kind"]) for line in found)
        return found

    def note(self, round: int, client: int, fault: str, kind: str = "") -> None:
        """Write down a fault of a client; of kind "bad" or "lost" it counts."""
        name = self.names[client]
        log.warning("round %d: %s: %s%s", round, name, fault, "; left out" if kind == "bad" else "")
        self.add(round=round, client=name, fault=fault, kind=kind)
        self.counts[name, kind] += 1
        if self.counts[name, kind] == self.most.get(kind):
            what = "gave %d bad answers" if kind == "bad" else "lost its state %d times"
            log.error(f"%s {what}: it is shut out", name, self.most[kind])

    def shut_out(self, client: int) -> bool:
        return any(self.counts[self.names[client], kind] >= most for kind, most in self.most.items())
