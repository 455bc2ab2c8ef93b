"""A client's states on its own disk, by the visit that they come from.

    STATE/RUN/00000003-01.safetensors     the state after exchange 1 of round 3, and what was answered then

A node never decides which state is the right one.  Every request names the stamp of the state to work from, which is the
last one whose answer the server has used; what came of answers that were lost or thrown away is not asked for again.
A request also names the oldest stamp that the server might still go back to after a crash: until then all are kept.
Between two states of one visit, made in a round that was played again, the stamp's mark tells.
So a state is committed by being named, and a crash at any moment leaves what was there before.

Every file has a checksum of all that is in it.  One that does not have its own any more is as good as lost, and named in
the log: from a state with a flipped bit nobody should work.
"""

import json
import logging
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from undrift.deploy.messages import Stamp, digest
from undrift.experiments.runs.files import OWNER_ONLY, alone, write_aside
from undrift.experiments.runs.verify import Finding

log = logging.getLogger("undrift")

NAME = re.compile(r"(\d{8})-(\d{2})\.safetensors")
CHECKSUM = "checksum"

Stored = tuple[dict[str, Tensor], dict[str, str]]  # tensors, and words about them


class ClientStateStore:
    """The states of one client in one run."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def stamps(self) -> list[Stamp]:
        """What is there, oldest first."""
        found = [NAME.fullmatch(path.name) for path in self.folder.iterdir()]
        return sorted(Stamp(int(match[1]), int(match[2])) for match in found if match)

    def put(self, stamp: Stamp, tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> None:
        """Store under a stamp, whole or not at all."""
        content = {name: alone(t) for name, t in tensors.items()}
        checksum = {CHECKSUM: _checksum(content, about)}
        write_aside(self._path(stamp), save(content, metadata={**about, **checksum}), OWNER_ONLY)

    def get(self, stamp: Stamp) -> Stored | None:
        """What is stored under a stamp; None if nothing is, or not what was put there."""
        path = self._path(stamp)
        found = _read(path) if path.exists() else None
        if found is None and path.exists():
            log.error("%s is damaged: the state in it is lost", path)
        return found

    def keep(self, stamps: Iterable[Stamp]) -> None:
        """Forget all others."""
        for stamp in set(self.stamps()) - set(stamps):
            self._path(stamp).unlink(missing_ok=True)

    def _path(self, stamp: Stamp) -> Path:
        return self.folder / f"{stamp.round:08d}-{stamp.exchange:02d}.safetensors"


def verify_states(root: Path) -> list[Finding]:
    """Findings on the states of nodes under a folder."""
    paths = [path for path in sorted(root.rglob("*.safetensors")) if NAME.fullmatch(path.name)]
    sound = [_read(path) is not None for path in paths]
    return [Finding(p, s, "" if s else "this state is lost") for p, s in zip(paths, sound, strict=True)]


def _read(path: Path) -> Stored | None:
    try:
        with safe_open(path, framework="pt") as file:
            found, about = {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}
        return (found, about) if about.pop(CHECKSUM, None) == _checksum(found, about) else None
    except (OSError, SafetensorError, ValueError):  # ValueError: words that are not UTF-8
        return None


def _checksum(tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> str:
    return digest(json.dumps(dict(about), sort_keys=True), tensors)
