"""What went wrong with nodes, in a file of the run directory: who, when, why, and who is shut out."""

import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from undrift.experiments.runs.files import Lines, read_lines

log = logging.getLogger("undrift")

FAULTS = "faults.jsonl"


class Faults:
    """A line a fault.  Bad answers count: after so many a node is shut out, also in a run that is resumed."""

    def __init__(self, folder: Path, names: Sequence[str], most: int):
        path = folder / FAULTS
        before = list(read_lines(path))
        self.names, self.most = names, most
        self.counts = Counter(line["client"] for line in before if line["counts"])
        path.touch()
        self.lines = Lines(path, path.stat().st_size)

    def note(self, round: int, client: int, fault: str, counts: bool = False) -> None:
        """Write down a fault of a client."""
        name = self.names[client]
        log.warning("round %d: %s: %s%s", round, name, fault, "; left out" if counts else "")
        self.lines.add({"round": round, "client": name, "fault": fault, "counts": counts})
        self.counts[name] += counts
        if counts and self.counts[name] == self.most:
            log.error("%s gave %d bad answers: it is shut out", name, self.most)

    def shut_out(self, client: int) -> bool:
        return self.counts[self.names[client]] >= self.most

    def close(self) -> None:
        self.lines.close()
