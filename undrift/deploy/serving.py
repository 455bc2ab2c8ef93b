"""A deployed run from the handshake to its last round, in a run directory as a simulation's."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import Any

import numpy as np

from undrift.codecs import make_wire
from undrift.core.algorithm import Vec, Wire
from undrift.core.errors import InvalidInput
from undrift.deploy.async_transport import FlowerBuffer
from undrift.deploy.checks import check_method
from undrift.deploy.compatibility import facts_of
from undrift.deploy.faults import Faults, RoundLines
from undrift.deploy.fleet import Fleet, NodeLink
from undrift.deploy.messages import NOT_VISITED, StateStamp
from undrift.deploy.problems import Reported, of_server
from undrift.deploy.settings import Deployment
from undrift.deploy.transport import FlowerTransport
from undrift.experiments.config.experiment import Experiment
from undrift.experiments.config.toml import to_dict
from undrift.experiments.runs.checkpoint import Checkpoints
from undrift.experiments.runs.directory import (
    DEPLOYMENT,
    EXPERIMENT,
    FEDERATION,
    WIRE,
    RunDirectory,
    create,
    metrics_of,
    open_directory,
    rewrite,
)
from undrift.experiments.runs.files import lock, read_json_or_copy, write_json
from undrift.experiments.runs.recorded import Recording, recorded
from undrift.local.parameters import with_local_parameters
from undrift.metrics.evaluator import Evaluator
from undrift.simulation.api import RunConfig
from undrift.simulation.asynchronous.buffered_rounds import play_buffered_round
from undrift.simulation.asynchronous.policies import Buffer, ServerPolicy, Synchronous
from undrift.simulation.asynchronous.population import Population
from undrift.simulation.checks import (
    check_first_records,
    check_method_fits_run,
    check_private_time,
    check_timed,
    fit_to_run,
)
from undrift.simulation.driver import play
from undrift.simulation.engines import EngineChoice
from undrift.simulation.participation import Draw, Participation, Weights
from undrift.simulation.privacy import make_private
from undrift.simulation.results import Round, State
from undrift.simulation.transport import RunPlan

log = logging.getLogger("undrift")


@dataclass(frozen=True)
class Remote:
    """A method whose clients' states are elsewhere: the server remembers only which ones they have."""

    method: Any

    def server(self, x: Vec) -> Any:
        return self.method.server(x)

    def client(self, x: Vec) -> StateStamp:
        return StateStamp.of(NOT_VISITED, x)

    def send(self, server: Any) -> Any:
        return self.method.send(server)

    def local(self, down: Any, client: Any, work: Any) -> Any:
        raise RuntimeError("the clients of a deployed run are on their own nodes")

    def update(self, server: Any, mean: Any, cohort: Any) -> Any:
        return self.method.update(server, mean, cohort)


def serve(experiment: Experiment, link: NodeLink, settings: Deployment) -> Iterator[Round]:
    """Every round of a deployed run, recorded; one that is in the directory already is resumed."""
    experiment = single(experiment)
    folder = Path(settings.run_dir).expanduser()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    held = lock(folder)
    try:
        yield from _serve(experiment, link, settings, folder)
    finally:
        held.release()


def single(experiment: Experiment) -> Experiment:
    """The one run of an experiment that is to be deployed."""
    if len(experiment.runs()) != 1:
        raise InvalidInput(
            f"one method and one seed can be deployed at a time, the experiment has {', '.join(experiment.labels)} "
            f"with seeds {experiment.seeds}: choose with `undrift deploy init --method LABEL --seed N`"
        )
    return experiment.single(*experiment.runs()[0])


def _serve(experiment: Experiment, link: NodeLink, settings: Deployment, folder: Path) -> Iterator[Round]:
    own, told = of_server(experiment)
    _directory(folder, experiment)
    known = read_json_or_copy(folder / DEPLOYMENT) if (folder / DEPLOYMENT).exists() else None
    fleet = Fleet(link, settings, {**facts_of(experiment, own.flat), "told": told})
    count = _count(experiment, settings, known)
    samples = fleet.handshake(count, known and known["clients"])
    known = known or {"run": token_hex(8), "clients": samples}
    if experiment.privacy is not None and "secret" not in known:
        known["secret"] = token_hex(32)
    write_json(folder / DEPLOYMENT, known, copy=True)
    problem = Reported.of(own, samples, experiment.clients.weights)
    if not (folder / FEDERATION).exists():
        write_json(folder / FEDERATION, {**problem.summary(), "checksums": {}})
    faults = Faults(folder, problem.names, settings.bad_replies, settings.lost_states)
    wire = _Wire(folder / WIRE, link)
    try:
        plan, policy = _plan(experiment, problem, bytes.fromhex(known.get("secret", "")))
        checkpoints = Checkpoints(folder / "checkpoints")
        oldest = lambda: min(checkpoints.rounds(), default=None)
        nodes = FlowerTransport(plan, fleet, policy, faults, known["run"], oldest)
        log.info("%d clients: %s", problem.N, ", ".join(problem.names))
        if problem.N > 2 and problem.weights.max() > 0.5:
            heavy = problem.names[int(problem.weights.argmax())]
            log.warning(
                "%s reports more samples than all others together, and has that weight: most-samples bounds it", heavy
            )
        config = RunConfig(Remote(plan.algorithm), plan.problem, experiment.rounds, seed=plan.seed)
        recording = Recording(checkpoint_every=1)
        started = partial(_rounds, nodes, wire, experiment=experiment, policy=policy)
        for r in recorded(folder, config, recording, play=started):
            wire.count(r.round)
            metrics = ", ".join(f"{k} {v:.4g}" for k, v in metrics_of(r).items() if v is not None)
            log.info("round %d of %d: %s", r.round, experiment.rounds, metrics or "done")
            yield r
        if "secret" in known:  # the run is over: nobody is to subtract its noise
            write_json(folder / DEPLOYMENT, {k: v for k, v in known.items() if k != "secret"}, copy=True)
        log.info("the run is in %s: undrift report %s", folder, folder)
    finally:
        wire.close()
        faults.close()


def _directory(folder: Path, experiment: Experiment) -> RunDirectory:
    """The run's directory, made or found; another experiment than the one that is there is refused, but for rounds."""
    if not (folder / EXPERIMENT).exists():
        return create(folder, experiment, {"seeds": experiment.seeds, "deployed": True})
    directory = open_directory(folder)
    before = directory.experiment()
    same = before.model_copy(update={"rounds": experiment.rounds})
    if to_dict(same) != to_dict(experiment) or experiment.rounds < before.rounds:
        raise InvalidInput(
            f"{folder} holds a run of another experiment: choose another run-dir, or give back {folder / EXPERIMENT}"
        )
    if experiment.rounds > before.rounds:
        if before.privacy is not None and before.privacy.epsilon is not None:
            raise InvalidInput("rounds: the noise so far was chosen for privacy.epsilon of all rounds: start a new run")
        return rewrite(directory, experiment)
    return directory


def _count(experiment: Experiment, settings: Deployment, known: Mapping[str, Any] | None) -> int:
    """How many clients there are to be."""
    names = len(known["clients"]) if known else len(settings.names)
    number = experiment.clients.number
    if names and number is not None and names != number:
        raise InvalidInput(f"the experiment has {number} clients, the deployment names {names}: they must be as many")
    if not names and number is None:
        raise InvalidInput("name the nodes that take part in clients, e.g. 'hospital-a,hospital-b'")
    return names or int(number or 0)


@dataclass(frozen=True)
class SecretCohorts:
    """Participation as the experiment has it, drawn with a seed that only the server has: nobody else may know the cohorts of
    a private run, and nodes know the experiment's seed."""

    participation: Participation
    secret: bytes

    def check(self, N: int, rounds: int) -> None:
        self.participation.check(N, rounds)

    def draw(self, seed: int, round: int, weights: Weights) -> Draw:
        own = int.from_bytes(sha256(self.secret + b"cohorts").digest()[:7], "big")
        return self.participation.draw(own, round, weights)


def _plan(experiment: Experiment, problem: Reported, secret: bytes) -> tuple[RunPlan, ServerPolicy]:
    """The plan of a deployed run, and when its server steps; what cannot run is refused."""
    (label,), (seed,) = experiment.labels, experiment.seeds
    method, local = experiment.methods[label].make(), experiment.local_of(label).for_run(experiment.rounds)
    participation = experiment.participation.make()
    policy = experiment.server.make() if experiment.server else Synchronous()
    anyone: Any = problem
    method = with_local_parameters(fit_to_run(method, problem.N, participation, experiment.rounds, local), problem.own)
    check_method_fits_run(method, anyone, experiment.rounds, participation, local)
    check_timed(method, anyone, experiment.rounds, local, Population(), policy, seed)
    check_first_records(method, method.server(problem.x0))
    check_method(method)
    _evaluator(experiment, anyone).check(method, local.solver(1).optimiser)
    largest = float(np.max(problem.weights))
    wire: Wire | None = make_wire(experiment.codec_choice, problem.x0, method)
    release = None
    if experiment.privacy is not None:
        privacy = experiment.privacy.make()
        check_private_time(Population(), policy, privacy)
        made = make_private(privacy, wire, method, anyone, participation, local, experiment.rounds, secret)
        (release, wire), participation = made, SecretCohorts(participation, secret)
    choice = EngineChoice("sequential")
    return RunPlan(method, anyone, participation, local, choice, seed, largest, wire, privacy=release), policy


def _evaluator(experiment: Experiment, problem: Any) -> Evaluator:
    evaluation = experiment.evaluation
    return Evaluator(problem, evaluation.metrics, evaluation.every, experiment.rounds)


def _rounds(
    nodes: FlowerTransport, wire: "_Wire", state: State, experiment: Experiment, policy: ServerPolicy
) -> Iterator[Round]:
    """The rounds after a state."""
    plan, last = nodes.plan, experiment.rounds
    nodes.faults.resume(state.round)
    wire.resume(state.round)
    evaluator = _evaluator(experiment, plan.problem)
    nodes.begin(state.clients)
    if isinstance(policy, Buffer):
        buffer = FlowerBuffer(nodes, policy, state)
        return play(plan, buffer, state, evaluator, last, play_buffered_round)
    return play(plan, nodes, state, evaluator, last)


class _Wire(RoundLines):
    """A line a round: the bytes that the carrier itself has counted, of all messages whatever became of them."""

    def __init__(self, path: Path, link: NodeLink):
        super().__init__(path)
        self.link, self.sent, self.received = link, link.sent, link.received

    def count(self, round: int) -> None:
        sent, received = self.link.sent - self.sent, self.link.received - self.received
        self.sent, self.received = self.link.sent, self.link.received
        self.add(round=round, sent=sent, received=received)
