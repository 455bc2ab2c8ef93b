"""A client's states on its own disk, by the visit that they come from.

    STATE/RUN/00000003-01.safetensors     the state after exchange 1 of round 3, and what was answered then

A node never decides which state is the right one.  Every request names the stamp of the state to work from, which is the
last one whose answer the server has used; what came of answers that were lost or thrown away is not asked for again.
A request also names the oldest stamp that the server might still go back to after a crash: until then all are kept.
So a state is committed by being named, and a crash at any moment leaves what was there before.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from undrift.deploy.messages import Stamp
from undrift.experiments.runs.files import alone, write_aside

Stored = tuple[dict[str, Tensor], dict[str, str]]  # tensors, and words about them


class ClientStateStore:
    """The states of one client in one run."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def stamps(self) -> list[Stamp]:
        """What is there, oldest first."""
        found = [path.stem.split("-") for path in self.folder.glob("*-*.safetensors")]
        return sorted(Stamp(int(t), int(e)) for t, e in found)

    def put(self, stamp: Stamp, tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> None:
        """Store under a stamp, whole or not at all."""
        content = {name: alone(t) for name, t in tensors.items()}
        write_aside(self._path(stamp), save(content, metadata=dict(about)))

    def get(self, stamp: Stamp) -> Stored | None:
        """What is stored under a stamp; None if nothing is, or nothing that can be read."""
        try:
            with safe_open(self._path(stamp), framework="pt") as file:
                return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}
        except (OSError, SafetensorError):
            return None

    def keep(self, stamps: Iterable[Stamp]) -> None:
        """Forget all others."""
        for stamp in set(self.stamps()) - set(stamps):
            self._path(stamp).unlink(missing_ok=True)

    def _path(self, stamp: Stamp) -> Path:
        return self.folder / f"{stamp.round:08d}-{stamp.exchange:02d}.safetensors"
