"""What `run` and `rounds` refuse before any work starts."""

import logging
import math
import sys
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from undrift.core.algorithm import Algorithm, AveragesRounds, ChecksRun, DependsOnRun, MayNeedEqualSteps, exchanges_of
from undrift.core.errors import InvalidInput, setting, shortened
from undrift.core.hyper import Spec, check_value, spec_of
from undrift.core.optimiser import HeavyBall, Optimiser
from undrift.core.records import check_records, children
from undrift.core.rng import Key
from undrift.core.work import Ones, Solver, Work
from undrift.local.optimiser_state import with_optimiser_state
from undrift.local.optimisers import RESCALING, try_optimiser
from undrift.local.settings import Geometric, Local
from undrift.local.wrapping import method_of
from undrift.privacy import Privacy
from undrift.problems import Problem
from undrift.problems.protocols import DrawsWithReplacement
from undrift.simulation.asynchronous.async_state import visit_timeline
from undrift.simulation.asynchronous.availability import Always
from undrift.simulation.asynchronous.policies import Buffer, Deadline, ServerPolicy, Synchronous
from undrift.simulation.asynchronous.population import Dropout, Population
from undrift.simulation.participation import Everyone, Participation, Weighted, expected_size
from undrift.simulation.privacy import by_the_server

log = logging.getLogger("undrift")

FASTEST_VISIT = 10.0  # standard deviations of the jitter: one visit in 10^22 is faster


def check_kinds(algorithm: Any, problem: Any, participation: Any, local: Any) -> None:
    """Refuse a class in place of an object, a name in place of a method, a method that lacks a function."""
    for name, value, asked, example in (
        ("algorithm", algorithm, ("server", "client", "send", "local", "update"), "ud.FedAvg()"),
        ("problem", problem, ("x0", "draw", "grad", "evaluate"), "ud.federate(...)"),
        ("participation", participation, ("check", "draw"), "ud.Uniform(10)"),
        ("local", local, ("check", "solver", "count"), "ud.Local(steps=10, lr=0.1)"),
    ):
        if isinstance(value, type) or not all(hasattr(value, each) for each in asked):
            if name == "algorithm" and (missing := missing_functions(value)):
                raise InvalidInput(missing)
            if name == "algorithm" and isinstance(value, str):
                example = f"ud.method({value!r})"
            raise InvalidInput(
                f"{name} must be an object such as {example}, got {shortened(' '.join(repr(value).split()), 200)}"
            )


FUNCTIONS = {
    "server": "server(self, x) -> Server: what the server starts with; its field x is the model",
    "client": "client(self, x) -> a record, or None: what a client remembers between visits",
    "send": "send(self, server) -> Down: what travels to a client",
    "local": "local(self, down, client, work) -> Up, client: one visit of one client",
    "update": "update(self, server, mean, cohort) -> Server: one step of the server, on the mean of the Ups",
}


def missing_functions(method: Any) -> str:
    """What an object that has some of the five functions of a method lacks, with signatures; "" if it has none, or all."""
    missing = [said for name, said in FUNCTIONS.items() if not callable(getattr(method, name, None))]
    if isinstance(method, type) or len(missing) in (0, len(FUNCTIONS)):
        return ""
    return f"{type(method).__name__} is not a whole method yet; it lacks\n  " + "\n  ".join(missing)


def check_numbers(rounds: int, seed: int, chunk: int | None, evaluate_every: int) -> None:
    """Refuse numbers that are none, or out of range."""
    check_value("run", "rounds", rounds, int, within="[1, inf)")
    check_value("run", "seed", seed, int, within=f"[0, {2**64})")
    check_value("run", "chunk", chunk, int, None, within="[1, inf)")
    check_value("run", "evaluate_every", evaluate_every, int, within="[1, inf)")


def check_first_records(algorithm: Algorithm, server: Any) -> None:
    """A method's records must be what engines can carry."""
    name = type(algorithm).__name__
    try:
        check_records(server, algorithm.send(server))
    except TypeError as error:
        raise InvalidInput(f"{name}: {error}") from error
    inside = children(server) or {}
    if not isinstance(inside.get("x"), Tensor):
        raise InvalidInput(f"{name}: the server's record needs a field x, the model")


def fit_to_run(algorithm: Algorithm, N: int, participation: Participation, rounds: int, local: Local) -> Algorithm:
    """The method with hyper-parameters that follow from the run (all rounds, clients per round) filled in, and with the
    state of its client optimiser, if that has one between visits."""
    if isinstance(algorithm, DependsOnRun):
        algorithm = algorithm.for_run(N, expected_size(participation, N), rounds)
    return with_optimiser_state(algorithm, local)


def check_method_fits_run(
    algorithm: Algorithm, problem: Problem, rounds: int, participation: Participation, local: Local
) -> None:
    """Refuse what a method is not defined for."""
    participation.check(problem.N, rounds)
    local.check(problem.N, rounds)
    if isinstance(algorithm, ChecksRun):
        algorithm.check(problem.N, rounds)
    spec = spec_of(algorithm)
    if isinstance(algorithm, AveragesRounds) and algorithm.averaged_rounds >= rounds > 1:
        log.warning(
            "%s: tau = %d, the run has %d rounds: there are never as many rounds to average over; take a smaller tau",
            spec.name,
            algorithm.averaged_rounds,
            rounds,
        )
    if spec.everyone and not isinstance(participation, Everyone):
        raise InvalidInput(
            f"{spec.name} is defined for full participation: use {setting('ud.Everyone()', participation__scheme='everyone')}"
        )
    if needs_equal_steps(algorithm) and local.unequal(problem):
        steps = setting("ud.Local(steps=...)", local__steps=10)
        raise InvalidInput(f"{spec.name} needs the same number of steps of every client: use {steps}, not epochs")
    if spec.adds_states and isinstance(participation, Weighted):
        raise InvalidInput(
            f"{spec.name} adds up clients' states with the problem's weights, "
            f"{setting('ud.Weighted', participation__scheme='weighted')} draws by weight and averages plainly: "
            f"use {setting('ud.Uniform(S)', participation__scheme='uniform')} with it"
        )
    if spec.divides_by_lr and local.has_zero_lr(rounds):
        raise InvalidInput(
            f"{spec.name} divides by the local step size: {setting('lr', local__lr=...)} must be positive"
        )
    if local.replacement and not isinstance(problem, DrawsWithReplacement):
        raise InvalidInput(
            f"{type(problem).__name__} has no draw_with_replacement: leave out replacement=True, or give it that method"
        )
    optimiser = local.client_optimiser
    if optimiser is not None:
        _check_optimiser(optimiser, local.optimiser_state, spec, problem.x0, method_of(algorithm))


def _check_optimiser(optimiser: Optimiser, between: str, spec: Spec, x: Tensor, method: Any) -> None:
    """Refuse client optimisers that a method's rule is not made for."""
    linear = "use 'sgd', 'momentum' or 'nesterov' with it"
    plain = setting("ud.Local(optimiser='sgd', momentum=0)", local__optimiser="sgd", local__momentum=0)
    ours = type(method).__module__.partition(".")[0] == "undrift"
    if not ours and not _steps_by_work(method):
        raise InvalidInput(
            f"{spec.name}: its local rule never calls work.step, so that {type(optimiser).__name__} would make no "
            f"difference: use {plain}, or write its local steps as y = work.step(y, g)"
        )
    if not spec.local_momentum:
        if not ours:
            raise InvalidInput(
                f"{spec.name} has not said that its clients may take another optimiser than SGD: use {plain}, or, if its "
                f'rule holds for any local steps, @ud.algorithm("{spec.name}", ..., local_momentum=True)'
            )
        raise InvalidInput(f"{spec.name} has a local rule of its own: use {plain} with it")
    if spec.linear_optimiser and not optimiser.linear:
        raise InvalidInput(f"{spec.name} normalises by what a linear optimiser makes of gradients: {linear}")
    if spec.linear_optimiser and between != "reset":
        raise InvalidInput(
            f"{spec.name} normalises by what an optimiser makes of gradients that starts anew in every visit: use "
            "optimiser_state='reset' with it"
        )
    if spec.control_variates and isinstance(optimiser, RESCALING):
        raise InvalidInput(
            f"{spec.name} adds control variates to gradients, which cancel the drift of steps in proportion to them; "
            f"{type(optimiser).__name__}'s are not: {linear}, or FedAdamW"
        )
    if not isinstance(optimiser, HeavyBall):
        try_optimiser(optimiser, x)


class _Watched(Work):
    """A visit that remembers whether its steps were the local solver's."""

    stepped = False

    def step(self, y: Tensor, d: Tensor, momentum: float | None = None) -> Tensor:
        self.stepped = self.stepped or momentum is None
        return super().step(y, d, momentum)


@torch.no_grad()
def _steps_by_work(method: Any) -> bool:
    """Whether a client of a method takes its steps by `work.step`, seen in a trial on a model of one number.

    A trial that fails tells nothing.
    """
    x = torch.zeros(1, dtype=torch.float64)
    work = _Watched(cast(Any, Ones(x)), Solver(lr=1.0), [0], [1], Key(0, 1), single=True)
    try:
        server = method.server(x)
        for exchange in exchanges_of(method, 1):
            exchange.local(exchange.send(server), method.client(x), work)
    except Exception:  # of any kind: the method is a user's, and fails where that is told
        return True
    return work.stepped


def needs_equal_steps(algorithm: Algorithm) -> bool:
    """Whether a method, with its hyper-parameters, needs the same number of steps of every client."""
    if isinstance(algorithm, MayNeedEqualSteps):
        return algorithm.equal_steps
    return spec_of(algorithm).equal_steps


def check_timed(
    algorithm: Algorithm,
    problem: Problem,
    rounds: int,
    local: Local,
    population: Population,
    server: ServerPolicy,
    seed: int,
) -> None:
    """Refuse what cannot be run in virtual time."""
    if not isinstance(population, Population):
        raise InvalidInput(f"population must be ud.Population(...), got {population!r}")
    if not isinstance(server, Synchronous | Deadline | Buffer):
        raise InvalidInput(f"server must be ud.Synchronous(), ud.Deadline(...) or ud.Buffer(...), got {server!r}")
    population.check(problem.N)
    server.check(problem.N)
    spec = spec_of(algorithm)
    name = spec.name
    waits_for_all = isinstance(server, Synchronous) or (isinstance(server, Buffer) and server.size == problem.N)
    if spec.everyone and not (waits_for_all and population.keeps_everyone):
        raise InvalidInput(
            f"{name} is defined for full participation: use {setting('ud.Synchronous()', server__kind='synchronous')} and a "
            "population in which nobody is away or vanishes"
        )
    if population.budget is not None and needs_equal_steps(algorithm):
        raise InvalidInput(f"{name} needs the same number of steps of every client: set no budget")
    if isinstance(server, Buffer):
        _check_one_exchange(algorithm, name, rounds)
    if isinstance(server, Deadline):
        _check_deadline(problem, local, population, server, seed)


def _check_one_exchange(algorithm: Algorithm, name: str, rounds: int) -> None:
    for t in range(1, min(rounds, 1000) + 1):
        if [exchange.to for exchange in exchanges_of(algorithm, t)] != ["cohort"]:
            raise InvalidInput(
                f"{name} crosses the wire several times a round, or to others than the cohort (round {t}): with it use "
                f"{setting('ud.Synchronous() or ud.Deadline(...)', server__kind='synchronous')}"
            )


def _check_deadline(problem: Problem, local: Local, population: Population, server: Deadline, seed: int) -> None:
    """Refuse a deadline that nobody can ever meet, messages taken to be empty and jitter at its luckiest.

    Clients are looked at until one can: all of them only where the answer is no.
    """
    steps, epochs = local.steps, local.epochs
    if isinstance(steps, Geometric):
        steps = 1
    fewest = replace(
        local,
        steps=steps[0] if isinstance(steps, tuple) else steps,
        epochs=epochs[0] if isinstance(epochs, tuple) else epochs,
    )
    luckiest = replace(
        population,
        jitter=0.0,
        dropout=Dropout(),
        work=max(population.work * math.exp(-FASTEST_VISIT * population.jitter), sys.float_info.min),
    )
    best, who = float("inf"), 0
    for i in range(problem.N):
        (K,) = fewest.count(problem, Key(seed, 1), [i])
        *_, returns = visit_timeline(luckiest, luckiest.device(seed, i), seed, i, 0, K, 0.0, 0, 0)
        if returns <= server.seconds:
            return
        if returns < best:
            best, who = returns, i
    least = "at least, however lucky, " if population.jitter else ""
    raise InvalidInput(
        f"Deadline: nobody can finish in {server.seconds:g} s: the fastest, client {who}, needs {least}{best:.3g} s; "
        "set a later deadline, fewer steps or a budget"
    )


def check_private_time(population: Population, server: ServerPolicy, privacy: Privacy | None) -> None:
    """Refuse virtual time in which others take part than the accountant takes to."""
    if not isinstance(server, Synchronous):
        raise InvalidInput(
            f"privacy: with {type(server).__name__} it depends on other clients whose updates count, which no accountant "
            f"covers: use {setting('ud.Synchronous()', server__kind='synchronous')}"
        )
    if not isinstance(population.availability, Always):
        raise InvalidInput(
            "privacy: clients that are away are replaced by others, which is not the participation that epsilon is for"
        )
    if privacy is not None and privacy.where == "clients" and not population.keeps_everyone:
        raise InvalidInput(
            f"privacy: a client that vanishes takes its share of the noise with it: use {by_the_server()} or no dropout"
        )
