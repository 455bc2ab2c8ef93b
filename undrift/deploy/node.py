"""A node: it answers requests from its own samples and the state on its own disk."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from undrift.codecs import make_wire
from undrift.core.algorithm import Wire, exchanges_of
from undrift.core.errors import InvalidInput
from undrift.core.records import tensors
from undrift.core.rng import Key
from undrift.core.work import Work
from undrift.data.registry import Data
from undrift.deploy.checks import NAME, printable
from undrift.deploy.compatibility import differences, facts_of
from undrift.deploy.messages import NOT_VISITED, Envelope, Stamp, digest_of, mark_of, pack_tensors, unpack_tensors
from undrift.deploy.problems import as_client, data_of_client
from undrift.deploy.state_store import ClientStateStore
from undrift.experiments.config.experiment import Experiment
from undrift.experiments.runs.files import lock
from undrift.local.optimiser_state import with_optimiser_state
from undrift.local.parameters import with_local_parameters, without_parameters
from undrift.privacy.accounting import accountants
from undrift.problems.model import ModelProblem
from undrift.simulation.checks import fit_to_run
from undrift.simulation.privacy import private_wire

log = logging.getLogger("undrift")

MOST_CLIENTS = 10**6  # that a server may speak of

Config = Mapping[str, Any]  # what a SuperNode was started with: --node-config
InputsTargets = tuple[Tensor, Tensor]
ReadSamples = Callable[[Config], Data | InputsTargets]


class _Lost(Exception):
    """There is no such state; `has` is what there is."""

    def __init__(self, has: list[Stamp]):
        super().__init__()
        self.has = has


class Answering:
    """A node's answers; also of one that is none, since it was started without what a node needs.

    In a process that stays, so does the node, with the samples that it has read.
    """

    def __init__(self, experiment: Experiment, data: ReadSamples | None):
        self.experiment, self.data = experiment, data
        self._node: Node | None = None

    def __call__(self, config: Config, envelope: Envelope) -> Envelope:
        try:
            if self._node is None or dict(self._node.config) != dict(config):
                self._node = Node(self.experiment, config, self.data)
        except InvalidInput as error:
            log.error("%s", error)
            return Envelope("failed", {"reason": printable(str(error))})
        return self._node.answer(envelope)


class Node:
    """One client.  `config` has its `name`; `state`, the folder for its states; `part`, if it has no data of its own.

    A node keeps nothing in memory that matters: Flower may make a new one for every request.
    """

    def __init__(self, experiment: Experiment, config: Config, data: ReadSamples | None = None):
        self.experiment, self.config = experiment, config
        self.name = _name(config)
        self.folder = Path(str(config.get("state", "~/.undrift/states"))).expanduser() / self.name
        self._read = data or self._share
        self._made: tuple[Any, ModelProblem] | None = None  # so that several requests in a process read once
        ((_, method),) = experiment.methods.items()
        self.local = experiment.local_of(experiment.labels[0]).for_run(experiment.rounds)
        self.method = with_optimiser_state(method.make(), self.local)
        self.privacy = experiment.privacy and experiment.privacy.make()

    def answer(self, envelope: Envelope) -> Envelope:
        """The answer to a request; what goes wrong in making it is an answer, too."""
        answers = {"hello": self._hello, "work": self._work, "state": self._state, "refused": self._is_refused}
        if envelope.kind not in answers:
            reason = f"{self.name} cannot answer {printable(envelope.kind)!r}"
            return Envelope("failed", {"name": self.name, "reason": reason})
        try:
            return answers[envelope.kind](envelope)
        except _Lost as lost:
            return self._lost(envelope.header["visit"], lost.has)
        except Exception as error:
            reason = printable(f"{type(error).__name__}: {error}")
            log.error("%s: %s", self.name, reason)
            return Envelope("failed", {"name": self.name, "reason": reason})

    # handshake

    def _hello(self, envelope: Envelope) -> Envelope:
        """Who is here, and what speaks against working together."""
        told, reasons = envelope.header["told"], []
        self._made = None  # samples may be others than in the last run
        facts: dict[str, Any] = {"name": self.name, "samples": 0}
        try:
            data = self._data(told)
            facts["samples"] = len(data.train[0])
            problem = as_client(self.experiment, data, _of_model(told), 0, 1)
            facts |= facts_of(self.experiment, problem.flat)
            reasons += differences(envelope.header, facts)
            if self.privacy is not None and self.privacy.where == "clients" and self.privacy.noise is None:
                accountants()  # finds the noise
        except InvalidInput as error:
            reasons.append(str(error))
        if reasons:
            self._refused(reasons)
        return Envelope("hello", {**facts, "reasons": reasons})

    def _is_refused(self, envelope: Envelope) -> Envelope:
        return self._refused(envelope.header["reasons"])

    def _refused(self, reasons: list[str]) -> Envelope:
        for reason in reasons:
            log.error("%s is refused: %s", self.name, printable(reason))
        return Envelope("noted", {"name": self.name})

    def _share(self, config: Config) -> Data:
        if not isinstance(config.get("part"), int):
            raise InvalidInput(
                f"{self.name} has no data: give client_app(experiment, data) a function that reads them, or, to try "
                "things out, say in --node-config which part of the experiment's own data it has, e.g. part=0"
            )
        return data_of_client(self.experiment, config["part"])

    def _data(self, told: Mapping[str, Any]) -> Data:
        """The node's samples, checked against what the server's model takes."""
        found = self._read(self.config)
        given = None if found is None else (found.train if isinstance(found, Data) else found)
        if given is None or len(given) != 2 or len(given[0]) == 0:
            raise InvalidInput(f"{self.name} has no samples: its data must be (inputs, targets)")
        labels = told["labels"]
        if isinstance(found, Data):
            data = found
        else:
            X, Y = (torch.as_tensor(part) for part in given)
            data = Data(self.name, (X, Y), None, classes=labels)
        if data.classes != labels:
            raise InvalidInput(f"the data have {data.classes} classes on the node and {labels} on the server")
        first = data.train[0][:1]
        inputs = (first if data.prepare is None else data.prepare(first))[0].numel()
        if inputs != told["inputs"]:
            raise InvalidInput(f"a sample has {inputs} numbers on the node and {told['inputs']} on the server")
        return data

    # work

    @torch.no_grad()
    def _work(self, envelope: Envelope) -> Envelope:
        """One visit from the state that the request names."""
        words, visit = envelope.header, envelope.header["visit"]
        now, base = Stamp(visit["round"], visit["exchange"]), Stamp(*visit["base"])
        if self.privacy is not None and now.round > self.experiment.rounds:
            raise InvalidInput(f"round {now.round}: the privacy of a run is that of {self.experiment.rounds} rounds")
        with lock(self._at(visit["run"])):
            store, asked = ClientStateStore(self._at(visit["run"])), digest_of(envelope)
            stored = store.get(now)
            if stored is not None and stored[1].get("request") == asked:
                return Envelope("up", {"visit": visit}, _named("up", stored[0]))
            problem = self._problem(words)
            state = self._stored(store, base, problem)
            up, new = self._visit(words, envelope.arrays, state, problem)
            _, answer = pack_tensors("up", up)
            store.put(now, pack_tensors("state", new)[1] | answer, {"request": asked})
            last = now if base == NOT_VISITED else base  # who starts again may still have to go back to what it had
            kept = [s for s in store.stamps() if Stamp(*words["keep"]) <= s <= last]
            store.keep([*kept, now])
        return Envelope("up", {"visit": visit}, answer)

    def _visit(
        self, words: Mapping[str, Any], arrays: Mapping[str, Tensor], state: Any, problem: ModelProblem
    ) -> tuple[Any, Any]:
        visit, number = words["visit"], words["visit"]["exchange"] - 1
        t = visit["round"]
        participation = self.experiment.participation.make()
        method = fit_to_run(self.method, words["N"], participation, self.experiment.rounds, self.local)
        method = with_local_parameters(method, problem)
        wire = self._wire(problem)
        exchange = replace(exchanges_of(method, t)[number], wire=wire)
        down = unpack_tensors(words["down"], arrays, exchange.send(method.server(problem.x0)))
        key = Key(self.experiment.seeds[0], t, number)
        work = Work(problem, self.local.solver(t), [visit["client"]], [words["steps"]], key, single=True)
        return exchange.visit(down, state, work)

    def _state(self, envelope: Envelope) -> Envelope:
        """The state itself, for a server that must recompute its sum of states."""
        words, visit = envelope.header, envelope.header["visit"]
        if self.privacy is not None:
            raise InvalidInput("in a private run no state leaves its node")
        with lock(self._at(visit["run"])):
            store = ClientStateStore(self._at(visit["run"]))
            state = self._stored(store, Stamp(*visit["base"]), self._problem(words))
        return Envelope("state", {"visit": visit}, pack_tensors("state", without_parameters(state))[1])

    def _stored(self, store: ClientStateStore, base: Stamp, problem: ModelProblem) -> Any:
        """The state of a stamp; one that was never visited begins with the initial state, and where there are no states none is lost.

        An old copy of a disk may hold another state of the same round, from before the server played it again.
        """
        fresh, wire = with_local_parameters(self.method, problem).client(problem.x0), self._wire(problem)
        fresh = fresh if wire is None else wire.client(fresh)
        if base == NOT_VISITED or not tensors(fresh):
            return fresh
        found = store.get(base)
        if found is None or mark_of(found[1]["request"], _named("up", found[0])) != base.mark:
            raise _Lost(store.stamps())
        return unpack_tensors(pack_tensors("state", fresh)[0], found[0], fresh)

    def _wire(self, problem: ModelProblem) -> Wire | None:
        method = with_local_parameters(self.method, problem)
        codec = make_wire(self.experiment.codec_choice, problem.x0, method, check=False)
        if self.privacy is None:
            return codec
        participation, rounds = self.experiment.participation.make(), self.experiment.rounds
        return private_wire(self.privacy, codec, participation, problem.N, rounds, secret=True)

    def _lost(self, visit: Mapping[str, Any], has: list[Stamp]) -> Envelope:
        log.warning(
            "%s does not have the state of round %d that the server asks for; it has %s",
            self.name,
            visit["base"][0],
            ", ".join(f"one of round {stamp.round}" for stamp in has) or "none",
        )
        return Envelope("lost", {"visit": visit})

    def _problem(self, words: Mapping[str, Any]) -> ModelProblem:
        told, client, N = words["told"], words["visit"]["client"], words["N"]
        if not 0 <= client < N <= MOST_CLIENTS:
            raise InvalidInput(f"client {client} of {N}: there may be {MOST_CLIENTS} at most")
        if self._made is None or self._made[0] != (told, client, N):
            problem = as_client(self.experiment, self._data(told), _of_model(told), client, N)
            self._made = (told, client, N), problem
        return self._made[1]

    def _at(self, run: str) -> Path:
        """The folder of a run, whose name is letters and digits."""
        if not run.isalnum():
            raise InvalidInput(f"a run's name has letters and digits only, got {run!r}")
        folder = self.folder / run
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # states tell of samples: the owner's alone
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder


def _name(config: Config) -> str:
    name = config.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InvalidInput(
            "a node needs a name of its own that stays the same, of letters, digits and _.@-: start it with "
            f"--node-config 'name=\"hospital-a\"'; got {name!r}"
        )
    return name


def _of_model(told: Mapping[str, Any]) -> dict[str, int]:
    return {key: value for key, value in told.items() if key != "labels"}


def _named(prefix: str, arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: t for name, t in arrays.items() if name.split(".")[0] == prefix}
