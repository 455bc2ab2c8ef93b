"""A run directory: all of a run in one place.

    experiment.toml      the resolved experiment: running it again gives the same metrics
    manifest.json        versions, seeds, machine, command
    federation.json      clients, samples, labels, parameters; checksums of the data
    metrics.jsonl        a line a round: the same bytes whenever the run is repeated
    times.jsonl          a line a round: what the clock said
    visits.jsonl         in virtual time, the first thousand visits of clients: who did what when
    checkpoints/         to resume from after an interruption
    best.safetensors     the best model, model.safetensors the last one, by the names of its parameters
    result.json          how it ended, and checksums of what there is; only there when it did
    .NAME.copy           of experiment.toml, manifest.json, metrics.jsonl and visits.jsonl, should they be damaged

A comparison is a directory of such directories, one a method and seed, with its own experiment.toml and manifest.json.
"""

import hashlib
import logging
import os
import platform
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from importlib import metadata
from itertools import chain, count
from pathlib import Path
from typing import Any

import torch

from undrift.core.errors import InvalidInput, setting
from undrift.data.store import checksum
from undrift.experiments.config.experiment import Experiment
from undrift.experiments.config.federation import Federations
from undrift.experiments.config.toml import read, to_toml
from undrift.experiments.runs.files import (
    Damaged,
    Lines,
    checked_lines,
    copy_of,
    plain,
    read_checked,
    read_json,
    read_json_or_copy,
    rewritten,
    with_checksum,
    write_aside,
    write_json,
)
from undrift.metrics.evaluator import OWN
from undrift.metrics.quality import SAID
from undrift.simulation.results import Round

log = logging.getLogger("undrift")

EXPERIMENT, MANIFEST, RESULT = "experiment.toml", "manifest.json", "result.json"
METRICS, TIMES, FEDERATION = "metrics.jsonl", "times.jsonl", "federation.json"
DEPLOYMENT, FAULTS, WIRE = "deployment.json", "faults.jsonl", "wire.jsonl"  # of runs on real nodes
VISITS = "visits.jsonl"
REFERENCE = "reference.json"  # how many gradients a reference took, and of which method the model is that it began with
START = "start.safetensors"  # that model, which is fine-tuned
LISTED = 1000  # participants of a round that are recorded by number


@dataclass(frozen=True)
class RunDirectory:
    """One run on disk, or a comparison of several.

    known         its experiment, where this process has read or written it already
    federations   what this process has built of it
    """

    path: Path
    known: Experiment | None = field(default=None, compare=False, repr=False)
    federations: Federations = field(default_factory=Federations, compare=False, repr=False)

    @property
    def experiment_text(self) -> str:
        path = self.path / EXPERIMENT
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise Damaged(f"{path} is damaged ({error}): {copy_of(path).name} is a copy of it") from error

    @property
    def recorded_text(self) -> str:
        """The text of the experiment that the run was made with: of its copy, with a warning, if the file is another."""
        path, known = self.path / EXPERIMENT, self.manifest()
        digests = {known.get("experiment"), known.get("next")} - {None}
        for file in (path, copy_of(path)):
            content = file.read_bytes() if file.is_file() else b""
            if not digests or digest(content) in digests:
                if file != path:
                    log.warning("%s is damaged or was changed after the run began: its copy is used", path)
                return content.decode() if digests else self.experiment_text
        raise Damaged(f"{path} is damaged or was changed after the run began, and there is no copy: put it back")

    def experiment(self) -> Experiment:
        return self.known or read(self.path / EXPERIMENT)

    def manifest(self) -> dict[str, Any]:
        return read_json_or_copy(self.path / MANIFEST)

    def result(self) -> dict[str, Any] | None:
        """How the run ended, None if it has not; if that cannot be read, the run has its end still to come."""
        path = self.path / RESULT
        try:
            return read_json(path) if path.exists() else None
        except Damaged as error:
            log.warning("%s; `undrift resume` writes it anew", error)
            return None

    @property
    def is_run(self) -> bool:
        """Whether this is a single run, not a comparison."""
        return (self.path / METRICS).exists()

    def rounds(self) -> list[dict[str, Any]]:
        """The recorded rounds: metrics, bytes and `seconds`, a dictionary a round."""
        times = read_times(self.path / TIMES)
        return [{**line, "seconds": times.get(line["round"])} for line in self.recorded(METRICS)]

    def recorded(self, name: str) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl or visits.jsonl, checked."""
        files = (self.result() or {}).get("files", {})
        return read_checked(self.path / name, files.get(name))


def create(
    path: Path, experiment: Experiment, about: Mapping[str, Any] | None = None, federations: Federations | None = None
) -> RunDirectory:
    """Make a run directory, whose manifest may say more `about` it; one that is there already is never touched, unless it
    was left half-made."""
    try:
        if path.exists() and (not path.is_dir() or _occupied(path)):
            begun = (path / EXPERIMENT).exists()
            hint = f"`undrift resume {shlex.quote(str(path))}` resumes it, " if begun else ""
            raise InvalidInput(f"{path} exists and is not empty: {hint}{setting('out', out=...)} chooses another place")
        path.mkdir(parents=True, exist_ok=True)
        text = to_toml(experiment)
        said = {"higher": dict(SAID)} if SAID else {}  # for reports by somebody who has not the metrics' definitions
        own = {file: checksum(Path(file)) for file in experiment.use}
        known = {**manifest(text), "use": own, **said, "seeds": experiment.seeds, **(about or {})}
        write_json(path / MANIFEST, known, copy=True)
        write_aside(path / EXPERIMENT, text.encode(), copy=True)  # last: with it the directory is made
    except OSError as error:
        another = f"{setting('out', out=...)} chooses another place"
        raise InvalidInput(f"{path} cannot be written ({error.strerror}): {another}") from error
    return RunDirectory(path, experiment, federations or Federations())


def _occupied(path: Path) -> bool:
    """Whether a directory holds anything but what `create` had begun to write."""
    own = {MANIFEST, ".lock", copy_of(path / MANIFEST).name, copy_of(path / EXPERIMENT).name}
    begun = own | {f".{name}.part" for name in (*own, EXPERIMENT)}
    return any(entry.name not in begun for entry in path.iterdir())


def open_directory(path: Path) -> RunDirectory:
    """A run directory that is there, whose experiment is the one it was made with."""
    if not (path / EXPERIMENT).is_file() or not (path / MANIFEST).is_file():
        raise InvalidInput(
            f"{path} is not a run directory: it needs {EXPERIMENT} and {MANIFEST}, which `undrift run` writes"
        )
    directory = RunDirectory(path)
    known = directory.manifest()
    anew = f"start anew with `undrift run {shlex.quote(str(path / EXPERIMENT))} --out NEW`"
    if digest(directory.experiment_text) not in (known.get("experiment"), known.get("next")):
        copy = copy_of(path / EXPERIMENT)
        raise InvalidInput(
            f"{path / EXPERIMENT} was changed after the run began: put it back ({copy.name} is a copy), or {anew}"
        )
    for file, known_digest in known.get("use", {}).items():
        if not Path(file).is_file() or checksum(Path(file)) != known_digest:
            raise InvalidInput(f"{file} was changed after the run in {path} began: put it back, or {anew}")
    return replace(directory, known=directory.experiment())


def rewrite(directory: RunDirectory, experiment: Experiment) -> RunDirectory:
    """Give a directory another experiment, one that continues what is there."""
    text, known = to_toml(experiment), directory.manifest()
    path = directory.path / MANIFEST
    write_json(path, {**known, "next": digest(text)}, copy=True)  # stopped at any moment, one of them is right
    write_aside(directory.path / EXPERIMENT, text.encode(), copy=True)
    (directory.path / RESULT).unlink(missing_ok=True)
    write_json(path, {**known, "experiment": digest(text)}, copy=True)
    return replace(directory, known=experiment)


def free_path(path: Path) -> Path:
    """This path, or the first with a number behind it that is not there yet."""
    numbered = (path.with_name(f"{path.name}-{number}") for number in count(2))
    return next(each for each in chain([path], numbered) if not each.exists())


def runs_below(path: Path) -> Iterator[RunDirectory]:
    """Every single run in a directory, itself included."""
    for found in sorted(path.rglob(EXPERIMENT)):
        directory = RunDirectory(found.parent)
        if directory.is_run:
            yield directory


def manifest(experiment_text: str) -> dict[str, Any]:
    """Where and with what a run is made."""
    packages = ("undrift", "torch", "numpy", "safetensors", "pydantic", "scikit-learn")
    return {
        "experiment": digest(experiment_text),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": _command(),
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in packages},
        "machine": {
            "system": platform.platform(),
            "processor": processor(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
        },
    }


def _command() -> str:
    """What was typed, so that it can be typed again."""
    program = Path(sys.argv[0]).name
    return shlex.join(["undrift" if program == "__main__.py" else program, *sys.argv[1:]])


def processor() -> str:
    """The name of the processor, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration, IndexError):
        return platform.processor() or platform.machine()


def as_line(r: Round) -> dict[str, Any]:
    """A round as metrics.jsonl has it: nothing in it depends on the clock."""
    line: dict[str, Any] = {"round": r.round, "participants": len(r.clients)}
    if len(r.clients) <= LISTED:
        line["clients"] = r.clients
    line |= {"left_out": r.left_out, "exchanges": r.exchanges}
    line |= {"bytes_down": r.bytes_down, "bytes_up": r.bytes_up}
    if r.timing is not None:
        timing = {name: value for name, value in asdict(r.timing).items() if name != "visits"}
        timing |= {name: plain(timing[name]) for name in ("chi2", "chi2_steps")}  # infinite until all were used
        line |= {"virtual_seconds": r.time, "timing": timing}
    return line | metrics_of(r)


def as_time(r: Round) -> dict[str, Any]:
    """A round as times.jsonl has it."""
    return with_checksum({"round": r.round, "seconds": r.seconds})


def times_until(path: Path, round: int) -> Lines:
    """times.jsonl to continue after a round: whatever happened to it, it has a line for every round before."""
    known = read_times(path) if round else {}
    return rewritten(path, ({"round": each, "seconds": known.get(each)} for each in range(1, round + 1)))


def read_times(path: Path) -> dict[int, float | None]:
    """The seconds of rounds.  They are for people: what is damaged is left out, with a warning."""
    lines, damaged = checked_lines(path)
    if damaged:
        log.warning("%d lines of %s are damaged: the seconds of these rounds are not known", len(damaged), path)
    return {line["round"]: line["seconds"] for line in lines}


def metrics_of(r: Round) -> dict[str, float | None]:
    """The metrics of a round, as JSON has them."""
    return {name: plain(value) for name, value in r.metrics.items()}


def metrics_in(line: Mapping[str, Any]) -> dict[str, float | None]:
    """The metrics of a recorded round, without what every round has."""
    return {name: value for name, value in line.items() if name not in OWN}


def sent_before(path: Path, round: int) -> int:
    """Bytes sent in the rounds of a run before this one."""
    lines = read_checked(path / METRICS)
    return sum(x["bytes_down"] + x["bytes_up"] for x in lines if x["round"] < round)


def digest(text: str | bytes) -> str:
    """Of an experiment, as its manifest has it."""
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()
