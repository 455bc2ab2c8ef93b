"""Checkpoints: everything a run needs to resume with the same bits.

    checkpoints/00000020.json             what the checkpoint is made of; written last, so if it is there the rest is
    checkpoints/00000020.safetensors      the server's state and the best model
    checkpoints/clients-00000020-0.safetensors   the states of the clients that changed since the checkpoint before
    checkpoints/*.copy.*                  each of these once more

A checkpoint names the client files it needs, oldest first; a later row of a client replaces an earlier one.  So the cost
of a checkpoint grows with the clients that took part, not with those that have been seen.  When old rows are most of what
is stored, all states are written anew.  The last two checkpoints are kept.  Files are written by a thread beside the run.

Every file is there twice and its checksum is known, so that one that is damaged is replaced by its copy.  Only the owner
may read them.  Files that are not ours are left alone.
"""

import json
import logging
import re
import shlex
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from undrift.core.errors import InvalidInput
from undrift.core.records import children, rebuild, tensors
from undrift.experiments.runs.files import OWNER_ONLY, Draft, synced, synced_names, write_aside
from undrift.experiments.runs.tree import classes_in, from_json, to_json
from undrift.simulation.client_states import ClientStates
from undrift.simulation.results import Best, State

log = logging.getLogger("undrift")
T = TypeVar("T")

KEPT = 2
CLIENTS_A_FILE = 64 * 2**20  # bytes of rows in one file, so that reading stays within memory
FILES_AT_ONCE = 4  # held in memory while they are written
FORMAT = 3
OURS = re.compile(r"\.?(\d{8,}|clients-\d{8,}-\d+)(\.copy)?\.(json|safetensors)(\.part)?")


class Unusable(Exception):
    """A checkpoint that is cut short, damaged or of something else."""


@dataclass(frozen=True)
class Saved:
    """What a checkpoint holds."""

    state: State
    best: Best | None
    marks: dict[str, dict[str, int]]  # how much had been recorded, by file
    files: "list[ClientFile]"


@dataclass(frozen=True)
class ClientFile:
    """States of some clients on disk."""

    name: str
    clients: int
    bytes: int
    crc32: int


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[list[ClientFile]] | None = None
        self._files: list[ClientFile] = []
        self._mended = False  # a copy had to be used: what it is a copy of is written anew
        self._drafts = [Draft() for _ in range(FILES_AT_ONCE + 2)]

    # writing

    def save(self, state: State, best: Best | None, marks: dict[str, dict[str, int]], wait: bool = False) -> bool:
        """Write a checkpoint; left out if the one before is still being written, unless `wait`."""
        if self._pending is not None and not self._pending.done() and not wait:
            return False
        self.finish()
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self._pending = self._writer.submit(self._prepared(state, best, marks))
        if wait:
            self.finish()
        return True

    def finish(self) -> None:
        """Wait for what is being written; an error there is raised here, and then nothing more may be written."""
        if self._pending is not None:
            self._files = self._pending.result()
            self._pending = None

    def adopt(self, saved: Saved) -> None:
        """Go on from this checkpoint."""
        self._files = saved.files

    def close(self) -> None:
        self._writer.shutdown()

    def _prepared(
        self, state: State, best: Best | None, marks: dict[str, dict[str, int]]
    ) -> Callable[[], list[ClientFile]]:
        """All that must not change while it is written, and what writes it."""
        found: dict[str, Tensor] = {}
        shape = to_json(state.server, found, "server")
        in_flight = to_json(state.settled().in_flight, found, "in_flight")
        past = to_json(state.pseudo_gradients, found, "pseudo_gradients")
        about_best = None
        if best is not None:
            found["best.x"] = best.x
            about_best = {"round": best.round, "value": best.value}
        name = f"{state.round:08d}"
        changed = state.clients.changed()
        anew = self._mended or sum(f.clients for f in self._files) + len(changed) > 2 * len(state.clients) + 100
        self._mended = False
        groups = _batches(state.clients, state.clients.seen() if anew else changed)
        files = [] if anew else list(self._files)
        main, spare, *drafts = self._drafts
        here, beyond = groups[:FILES_AT_ONCE], groups[FILES_AT_ONCE:]
        for j, ids in enumerate(beyond, len(here)):  # written now: memory may not hold them all
            _lay_out(spare, state.clients, ids)
            files.append(self._write_clients(f"{name}-{j}", spare, len(ids)))
        # Copied here, not by the thread that writes: torch would give it a pool of threads of its own, and with more
        # threads than cores every parallel loop of the run itself becomes slower.
        for draft, ids in zip(drafts, here, strict=False):
            _lay_out(draft, state.clients, ids)
        main.fill({key: value.detach() for key, value in found.items()})
        record = {
            "format": FORMAT,
            "round": state.round,
            "server": shape,
            "in_flight": in_flight,
            "pseudo_gradients": past,
            "best": about_best,
            "recorded": marks,
        }

        def write() -> list[ClientFile]:
            for j, (draft, ids) in enumerate(zip(drafts, here, strict=False)):
                files.append(self._write_clients(f"{name}-{j}", draft, len(ids)))
            size, crc = main.write(*self.places(f"{name}.safetensors"))
            whole = {**record, "bytes": size, "crc32": crc, "clients": [vars(f) for f in files]}
            content = json.dumps(whole, sort_keys=True).encode()
            signed = json.dumps({**whole, "check": zlib.crc32(content)}, sort_keys=True)
            for recorded in marks:  # lines that the checkpoint counts on are on the disk before it
                synced(self.folder.parent / recorded)
            for path in self.places(f"{name}.json"):
                write_aside(path, signed.encode(), OWNER_ONLY)
            synced_names(self.folder)
            self._forget_old()
            return files

        return write

    def _write_clients(self, name: str, draft: Draft, count: int) -> ClientFile:
        file = f"clients-{name}.safetensors"
        return ClientFile(file, count, *draft.write(*self.places(file)))

    def places(self, name: str) -> list[Path]:
        """Where a file is, and where its copy is."""
        stem, kind = name.rsplit(".", 1)
        return [self.folder / name, self.folder / f"{stem}.copy.{kind}"]

    def _forget_old(self) -> None:
        """Keep the last two checkpoints that can be read, and what they need."""
        needed: set[str] = set()
        kept = 0
        for round in self.rounds():
            try:
                files = self.files_of(round)
            except Unusable:
                continue
            needed |= {path.name for name, _ in files for path in self.places(name)}
            if (kept := kept + 1) == KEPT:
                break
        for path in self.folder.iterdir():
            if OURS.fullmatch(path.name) and path.name not in needed and not path.is_dir():
                path.unlink(missing_ok=True)

    def files_of(self, round: int) -> list[tuple[str, dict[str, int] | None]]:
        """The files that a checkpoint is made of, with their sizes and checksums; its own JSON knows that itself."""
        record, name = self._record(round), f"{round:08d}"
        clients = [(f["name"], {"bytes": f["bytes"], "crc32": f["crc32"]}) for f in record["clients"]]
        main = (f"{name}.safetensors", {"bytes": record["bytes"], "crc32": record["crc32"]})
        return [(f"{name}.json", None), main, *clients]

    def forget_after(self, round: int) -> None:
        """Remove checkpoints later than a round, which could not be used."""
        for later in self.rounds():
            if later > round:
                for path in self.places(f"{later:08d}.json"):
                    path.unlink(missing_ok=True)

    # reading

    def rounds(self) -> list[int]:
        """The rounds that have a checkpoint, the newest first."""
        found = {path.name.split(".")[0] for path in self.folder.glob("[0-9]*.json") if path.is_file()}
        return sorted((int(stem) for stem in found if re.fullmatch(r"\d{8,}", stem, re.ASCII)), reverse=True)

    def read(self, round: int, fresh: State, clients: bool = True) -> Saved:
        """A checkpoint, with client states or without, if it is whole and fits a run that begins with `fresh`; else Unusable."""
        record = self._record(round)
        try:
            content = self._content(f"{round:08d}.safetensors", record["bytes"], record["crc32"])
            kinds = classes_in([fresh.server, fresh.in_flight])
            server = from_json(record["server"], content, kinds)
            in_flight = from_json(record["in_flight"], content, kinds)
            past = from_json(record["pseudo_gradients"], content, kinds) if "pseudo_gradients" in record else ()
            files = [ClientFile(**file) for file in record["clients"]]
            for file in files if clients else ():
                rows = self._content(file.name, file.bytes, file.crc32)
                ids = rows.pop("clients").tolist()
                fresh.clients.scatter(ids, _record(fresh.clients, rows, len(ids)))
            best = record["best"]
            kept = None if best is None else Best(best["round"], best["value"], content["best.x"])
            marks = record["recorded"]
        except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise Unusable(f"it does not fit ({error})") from error
        x = fresh.server.x
        if not _alike((server, past, kept and kept.x), (fresh.server, (), x), x):
            raise Unusable("its vectors have other shapes or dtypes: it is of another model or method")
        fresh.clients.changed()
        fresh.clients.round = round
        new = {"round": round, "server": server, "in_flight": in_flight, "pseudo_gradients": past, "averages": {}}
        return Saved(replace(fresh, **new), kept, marks, files)

    def _record(self, round: int) -> dict[str, Any]:
        return self._either(f"{round:08d}.json", signed_record)

    def _content(self, name: str, size: int, crc: int) -> dict[str, Tensor]:
        return self._either(name, partial(_tensors_in, size=size, crc=crc))

    def _either(self, name: str, read: Callable[[Path], T]) -> T:
        """A file, or its copy."""
        path, copy = self.places(name)
        try:
            return read(path)
        except Unusable as error:
            try:
                found = read(copy)
            except Unusable:
                raise error from None
            log.warning("%s; its copy is used", error)
            self._mended = True
            return found


def signed_record(path: Path) -> dict[str, Any]:
    """The JSON of a checkpoint, if it is what was written by this version; else Unusable."""
    try:
        record = json.loads(path.read_bytes())
        check = record.pop("check")
        content = json.dumps(record, sort_keys=True).encode()
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise Unusable(f"{path.name} cannot be read ({error})") from error
    if zlib.crc32(content) != check:
        raise Unusable(f"{path.name} is damaged")
    if record.get("format") != FORMAT:
        raise Unusable(
            f"{path.name} was written by another version of undrift (format {record.get('format')}, this one has {FORMAT})"
        )
    return record


def _tensors_in(path: Path, size: int, crc: int) -> dict[str, Tensor]:
    name = path.name
    try:
        data = path.read_bytes()
    except OSError as error:
        raise Unusable(f"{name} cannot be read ({error.strerror})") from error
    if len(data) != size:
        raise Unusable(f"{name} is cut short: {len(data)} of {size} bytes")
    if zlib.crc32(data) != crc:
        raise Unusable(f"{name} is damaged: its checksum is not what was written")
    try:
        return load(data)
    except SafetensorError as error:
        raise Unusable(f"{name} is damaged ({error})") from error


def _alike(found: Any, fresh: Any, x: Tensor) -> bool:
    """Whether the vectors of a restored state are of the kind that a run begins with, or like its model.

    A method may keep ever more of them, in a tuple or as rows, so their number is not compared.
    """
    if isinstance(found, Tensor):
        like = fresh if isinstance(fresh, Tensor) else x
        return found.dtype == like.dtype and found.dim() == like.dim() and found.shape[-1:] == like.shape[-1:]
    known = children(fresh) or {}
    return all(_alike(part, known.get(name), x) for name, part in (children(found) or {}).items())


def newest(
    checkpoints: Checkpoints, fresh: Callable[[], State], usable: Callable[[Saved], bool], clients: bool = True
) -> Saved | None:
    """The newest checkpoint that can be used; None if there is none at all.

    Older ones are tried in turn, each failure is logged.  If none can be used, nothing is changed.
    """
    reasons = []
    for round in checkpoints.rounds():
        try:
            saved = checkpoints.read(round, fresh(), clients)
            if usable(saved):
                checkpoints.adopt(saved)
                return saved
            reason = "what was recorded by then is not there any more"
        except Unusable as error:
            reason = str(error)
        reasons.append(f"that of round {round}: {reason}")
        log.warning("the checkpoint of round %d cannot be used: %s", round, reason)
    if reasons:
        raise InvalidInput(
            f"no checkpoint in {checkpoints.folder} can be used ({'; '.join(reasons)}): "
            f"start anew with `undrift run {shlex.quote(str(checkpoints.folder.parent))}/experiment.toml --out NEW`"
        )
    return None


def _batches(clients: ClientStates, ids: Sequence[int]) -> list[Sequence[int]]:
    """Clients in groups whose rows fit a file."""
    if not ids:
        return []
    row = max(1, clients.row_bytes)
    each = max(1, CLIENTS_A_FILE // row)
    return [ids[first : first + each] for first in range(0, len(ids), each)]


def _lay_out(draft: Draft, clients: ClientStates, ids: Sequence[int]) -> None:
    """The file of the states of these clients."""
    fields = tensors(clients.gather([]))
    kinds = {f"{f:03d}": (t.dtype, (len(ids), *t.shape[1:])) for f, t in enumerate(fields)}
    room = draft.lay_out({"clients": (torch.int64, (len(ids),)), **kinds})
    room["clients"].copy_(torch.tensor(ids))
    clients.gather_into([room[name] for name in kinds], ids)


def _record(clients: ClientStates, rows: dict[str, Tensor], count: int) -> Any:
    example, found = clients.gather([]), [rows[name] for name in sorted(rows)]
    expected = [(t.dtype, (count, *t.shape[1:])) for t in tensors(example)]
    if [(t.dtype, tuple(t.shape)) for t in found] != expected:
        raise InvalidInput(f"client states are {[tuple(t.shape) for t in found]}, {[e[1] for e in expected]} expected")
    return rebuild(example, iter(found))
