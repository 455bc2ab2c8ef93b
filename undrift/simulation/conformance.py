"""`ud.check`: what every method must do, custom ones too.  The package's own methods are tested with the same functions.

A new check is a function in CHECKS: it gets a `Subject`, and raises Failed with what is wrong and the likely cause.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from typing import Any

import torch
from torch import Tensor

from undrift.compiler.verify import random_like, scale_of
from undrift.core.algorithm import Algorithm, Cohort, Exchange, exchanges_of
from undrift.core.errors import InvalidInput, MethodFailure, Stopped, first_line
from undrift.core.hyper import spec_of
from undrift.core.records import check_records, map_tensors, nbytes, tensors
from undrift.core.rng import Key
from undrift.core.work import Solver, Work
from undrift.local import Local
from undrift.problems import Problem
from undrift.problems.quadratic import Quadratic
from undrift.simulation.api import PreparedRun, RunConfig, prepare
from undrift.simulation.catalogue import measure_method
from undrift.simulation.checks import FUNCTIONS, check_kinds, missing_functions
from undrift.simulation.client_states import ClientStates
from undrift.simulation.engines import Request
from undrift.simulation.engines.row_check import check_rows, visit_together
from undrift.simulation.participants import Participants
from undrift.simulation.participation import Everyone, Participation, Uniform
from undrift.simulation.results import Round

N, D, ROUNDS = 5, 12, 6  # of the usual problem, and of every run
STEPS = [1, 4, 2, 5, 3]  # of its clients, for methods that are defined for unequal work
AGREEMENT = 1e-9  # of engines in float64, relative


class Failed(Exception):
    """What a method does wrong, and the likely cause."""


@dataclass(frozen=True)
class Subject:
    """A method, a problem to try it on, and how."""

    method: Any
    problem: Problem
    participation: Participation
    local: Local
    engines: Sequence[str]

    def prepared(self, **more: Any) -> PreparedRun:
        usual = RunConfig(self.method, self.problem, ROUNDS, self.participation, self.local, "batched", seed=7)
        return prepare(replace(usual, evaluate_every=ROUNDS, **more))

    def play(self, start: Any = None, **more: Any) -> list[Round]:
        """The rounds of a run; a failure is that of the method."""
        try:
            return list(self.prepared(**more).play(start))
        except Stopped as end:
            raise Failed(f"the run ends early: {end}") from end

    def path(self, **more: Any) -> Tensor:
        """Every model of a run."""
        return torch.stack([r.x for r in self.play(**more)])

    @cached_property
    def fitted(self) -> Any:
        """The method as a run has it, with what follows from the run filled in."""
        return self.prepared().config.algorithm


def usual_problem(clients: int = N) -> Quadratic:
    """Quadratics in double precision whose optima and curvatures differ, with noise in their gradients."""
    generator = torch.Generator().manual_seed(0)
    H = torch.randn(clients, D, D, dtype=torch.float64, generator=generator)
    e = torch.randn(clients, D, dtype=torch.float64, generator=generator)
    return Quadratic(torch.eye(D, dtype=torch.float64) + H @ H.mT / (2 * D), e, variance=0.1)


def subject_of(
    method: Any,
    problem: Problem | None = None,
    participation: Participation | None = None,
    local: Local | None = None,
    engines: Sequence[str] = ("sequential", "batched", "events"),
) -> Subject:
    """A method with settings that it is defined for: partial participation and unequal work, if it can be."""
    tried = usual_problem() if problem is None else problem
    cohorts = [participation] if participation else [Uniform(min(3, tried.N)), Everyone()]
    unequal = [STEPS[i % len(STEPS)] for i in range(tried.N)]
    locals_ = [local] if local else [Local(steps=unequal, lr=0.05), Local(steps=3, lr=0.05)]
    refused: InvalidInput | None = None
    for who in cohorts:
        for how in locals_:
            found = Subject(method, tried, who, how, engines)
            try:
                found.prepared()
                return found
            except InvalidInput as error:
                refused = error
    raise refused or InvalidInput("nothing to check")


# the checks


def _functions(s: Subject) -> None:
    """The five functions are there, and take what they are given."""
    for name, said in FUNCTIONS.items():
        arguments = said.split("(")[1].split(")")[0].replace("self, ", "").split(", ")
        try:
            inspect.signature(getattr(s.method, name)).bind(*arguments)
        except TypeError as error:
            raise Failed(f"{name} cannot be called: {error}; it is {said}") from error


def _records(s: Subject) -> None:
    """States and messages are records of tensors, of the model's type; they keep their form from round to round."""
    for dtype in (torch.float32, torch.float64):
        for step in played(s.fitted, dtype):
            for name, record in step.records.items():
                try:
                    check_records(record)
                except TypeError as error:
                    raise Failed(f"{name}: {error}") from error
                for t in tensors(record):
                    if t.dtype != dtype:
                        raise Failed(
                            f"{name} has a {t.dtype} in it where the model is {dtype}: make it from x, not anew"
                        )
                    if t.shape not in {(3,), (1,)}:
                        raise Failed(
                            f"{name} has a {list(t.shape)} in it: vectors are as long as the model, numbers [1]"
                        )
            before, after = ([t.shape for t in tensors(record)] for record in (step.client, step.new_client))
            if type(step.client) is not type(step.new_client) or before != after:
                raise Failed(f"local returns another kind of client state than it was given: {step.client!r} becomes "
                             f"{step.new_client!r}")  # fmt: skip
            if type(step.updated) is not type(step.server):
                raise Failed(
                    f"update returns a {type(step.updated).__name__}, it was given a {type(step.server).__name__}"
                )
            if not isinstance(getattr(step.updated, "x", None), Tensor):
                raise Failed("what update returns has no field x, the model")


def _purity(s: Subject) -> None:
    """Called again with the same, each function returns the same; nothing that was given is changed, nor the method."""
    own = dict(vars(s.fitted)) if hasattr(s.fitted, "__dict__") else {}
    for step in played(s.fitted, torch.float64):
        given = {name: step.records[name] for name in ("server", "client", "down", "up")}
        kept = {name: map_tensors(torch.clone, given[name]) for name in ("down", "up")} | step.before
        again = step.repeat()
        for name, record in given.items():
            if not _equal(record, kept[name]):
                raise Failed(f"a function writes over the {name} record that it was given: y = y - d, not y -= d")
        for name, first, second in zip(("send", "local", "local", "update"), step.returned, again, strict=True):
            if not _equal(first, second):
                raise Failed(f"{name}, called again with the same, returns something else: is there a state outside of the "
                             "records, or randomness that is not work.random or cohort.random?")  # fmt: skip
    changed = [name for name, value in own.items() if vars(s.fitted)[name] is not value]
    if changed:
        raise Failed(
            f"the method changes its own {', '.join(changed)}: what changes belongs in the server's or client's state"
        )


def _rows(s: Subject) -> None:
    """A client in a cohort is what it is alone, also with states and messages that are nowhere zero."""
    algorithm, problem, key = s.fitted, s.problem, Key(7, 1)
    server, client = algorithm.server(problem.x0), algorithm.client(problem.x0)
    generator, scale = torch.Generator().manual_seed(0), scale_of(problem.x0)
    like: Callable[[Tensor], Tensor] = lambda t: random_like(t, scale, generator)
    ids = list(range(min(problem.N, 8)))
    steps = s.local.count(problem, key, ids)
    ones = [1.0] * len(ids)
    for t in (0, 1, 2):
        for number, exchange in enumerate(exchanges_of(algorithm, t)):
            states = ClientStates(client)
            if tensors(client):
                states.scatter(ids, map_tensors(lambda x: torch.stack([like(x) for _ in ids]), client))
            down = map_tensors(like, exchange.send(server))
            who = Participants(ids, ones, steps, ones)
            solver = s.local.solver(max(t, 1))
            request = Request(algorithm, exchange, down, states, who, problem, solver, Key(7, t, number), len(ids))
            with torch.no_grad():
                try:
                    found = visit_together(request, ids)
                    check_rows(request, ids, found)
                except MethodFailure as error:
                    raise Failed(str(error)) from error
                weights = torch.full((len(ids),), 1 / len(ids), dtype=torch.float64)
                cohort = Cohort(
                    t, len(ids), problem.N, len(ids) / problem.N, weights, 0 * weights, solver.lr, 3.0, request.key
                )
                server = exchange.update(server, map_tensors(lambda x: x.mean(0), found[0]), cohort)


def _finite(s: Subject) -> None:
    """A short run with a small step size ends, and everything in it is finite."""
    for r in s.play():
        if r.left_out:
            raise Failed(f"round {r.round}: the answers of clients {r.left_out} are NaN, Inf or of a wrong shape")
        if not bool(r.x.isfinite().all()):
            raise Failed(f"round {r.round}: the model is not finite")


def _one_client(s: Subject) -> None:
    """A federation of one client is no exception."""
    alone = replace(s, problem=usual_problem(1), participation=Everyone(), local=Local(steps=2, lr=0.05))
    for engine in ("sequential", "batched"):
        alone.path(engine=engine)


def _chunks(s: Subject) -> None:
    """However many clients are computed at once, the run has the same bits."""
    first = s.path(chunk=1)
    for chunk in (2, 3, 100):
        if not torch.equal(s.path(chunk=chunk), first):
            raise Failed(f"with {chunk} clients at a time the run is another than with one at a time: does `local` look at "
                         "the number of rows, or at other rows?")  # fmt: skip


def _resuming(s: Subject) -> None:
    """Resumed from a snapshot, a run has the same bits: all that it remembers is in its records."""
    models, states = [], []
    for r in s.prepared().play():
        models.append(r.x)
        states.append(r.snapshot())
    for pause in (1, ROUNDS // 2):
        again = [r.x for r in s.play(states[pause - 1])]
        if not all(map(torch.equal, again, models[pause:])):
            raise Failed(
                f"resumed after round {pause} the run is another: is something remembered outside of the records?"
            )


def _bytes_(s: Subject) -> None:
    """The bytes that are booked are those of the records, client by client."""
    history = s.play()
    cost = measure_method(spec_of(s.fitted), s.fitted, D=s.problem.x0.numel())
    model, last = nbytes(s.problem.x0), history[-1]
    visits = [len(last.clients)] * len(cost.traffic)
    if cost.one_walks:
        visits[-1] = 1
    down, up = (round(sum(pair[i] * n for pair, n in zip(cost.traffic, visits, strict=True)) * model) for i in (0, 1))
    if (last.bytes_down, last.bytes_up) != (down, up):
        raise Failed(f"{last.bytes_down} + {last.bytes_up} bytes are booked for a round where the records hold {down} + {up}: "
                     "does a message grow or shrink from round to round?")  # fmt: skip


def _engines(s: Subject) -> None:
    """One trajectory, whatever computes it, to rounding in double precision."""
    exact = s if s.problem.x0.dtype == torch.float64 else replace(subject_of(s.method), engines=s.engines)
    paths = {engine: exact.path(engine=engine) for engine in s.engines}
    (first, expected), *others = paths.items()
    for engine, found in others:
        gap = float((found - expected).abs().max() / expected.abs().max().clamp(min=1.0))
        if not gap < AGREEMENT:
            raise Failed(
                f"engines '{engine}' and '{first}' differ by {gap:.2g}: does `local` mix the clients of a cohort?"
            )


CHECKS: dict[str, Callable[[Subject], None]] = {
    "functions": _functions,
    "records": _records,
    "purity": _purity,
    "rows": _rows,
    "finite": _finite,
    "one client": _one_client,
    "chunks": _chunks,
    "resuming": _resuming,
    "bytes": _bytes_,
    "engines": _engines,
}
WHOLE_RUNS = list(CHECKS)[4:]  # which say little of a method that fails before


# one client, record by record


@dataclass(frozen=True)
class PlayedExchange:
    """One exchange with one client: what went in, what came out, and the same once more."""

    server: Any
    client: Any
    down: Any
    up: Any
    new_client: Any
    updated: Any
    before: dict[str, Any]  # server and client as they were given
    repeat: Callable[[], tuple[Any, Any, Any, Any]]

    @property
    def records(self) -> dict[str, Any]:
        return {name: vars(self)[name] for name in ("server", "client", "down", "up", "new_client", "updated")}

    @property
    def returned(self) -> tuple[Any, Any, Any, Any]:
        return self.down, self.up, self.new_client, self.updated


def played(algorithm: Algorithm, dtype: torch.dtype) -> Iterator[PlayedExchange]:
    """An initialisation round and two rounds of a federation of one client."""
    problem = Quadratic(torch.eye(3, dtype=dtype)[None], torch.arange(3.0).to(dtype)[None])
    x = torch.ones(3, dtype=dtype)
    server, client = algorithm.server(x), algorithm.client(x)
    for t in (0, 1, 2):
        for number, exchange in enumerate(exchanges_of(algorithm, t)):
            step = _exchange(exchange, server, client, problem, t, number)
            yield step
            server, client = step.updated, step.new_client


def _exchange(exchange: Exchange, server: Any, client: Any, problem: Problem, t: int, number: int) -> PlayedExchange:
    key, one = Key(0, t, number), torch.ones(1, dtype=torch.float64)
    cohort = Cohort(t, 1, 1, 1.0, one, 0 * one, 0.05, 3.0, key)

    def play(up: Any = None, down: Any = None) -> tuple[Any, Any, Any, Any]:
        sent = exchange.send(server)
        work = Work(problem, Solver(lr=0.05), [0], [3], key, single=True)
        new_up, new_client = exchange.local(sent if down is None else down, client, work)
        return sent, new_up, new_client, exchange.update(server, new_up if up is None else up, cohort)

    before = {"server": map_tensors(torch.clone, server), "client": map_tensors(torch.clone, client)}
    down, up, new_client, updated = play()
    return PlayedExchange(server, client, down, up, new_client, updated, before, lambda: play(up, down))


def _equal(a: Any, b: Any) -> bool:
    exactly: Callable[..., bool] = lambda s, t: (
        s.shape == t.shape and torch.allclose(s, t, rtol=0, atol=0, equal_nan=True)
    )
    return type(a) is type(b) and all(map(exactly, tensors(a), tensors(b)))


# the report


@dataclass(frozen=True)
class Check:
    """One check: what it is about, and what is wrong, "" if nothing is; or it was not run, because an earlier one failed."""

    name: str
    about: str
    wrong: str = ""
    skipped: bool = False

    @property
    def status(self) -> str:
        return "not run" if self.skipped else "FAILED" if self.wrong else "ok"


@dataclass(frozen=True, repr=False)
class CheckReport:
    """What `ud.check` found.  It is true if nothing is wrong: `assert ud.check(method)`."""

    method: str
    checks: tuple[Check, ...]

    @property
    def failed(self) -> list[Check]:
        return [check for check in self.checks if check.wrong]

    def __bool__(self) -> bool:
        return not self.failed

    def raise_if_failed(self) -> "CheckReport":
        """Raise MethodFailure with all that is wrong; the report itself if nothing is."""
        if self.failed:
            raise MethodFailure(repr(self))
        return self

    def __repr__(self) -> str:
        width = max(len(check.name) for check in self.checks)
        lines = [f"  {check.status:<7}  {check.name:<{width}}  {check.wrong or check.about}" for check in self.checks]
        passed = sum(check.status == "ok" for check in self.checks)
        return "\n".join([f"{self.method}: {passed} of {len(self.checks)} checks passed", *lines])

    def _repr_html_(self) -> str:
        row = "<tr><td>{}</td><td>{}</td><td style='text-align:left'>{}</td></tr>"
        said = [(c.name, c.status, c.wrong or c.about) for c in self.checks]
        body = "".join(row.format(*map(escape, each)) for each in said)
        return f"<table><caption>{escape(self.method)}</caption>{body}</table>"


def check(
    method: Any,
    problem: Problem | None = None,
    *,
    participation: Participation | None = None,
    local: Local | None = None,
    engines: Sequence[str] = ("sequential", "batched", "events"),
) -> CheckReport:
    """Test a custom method: purity, types, rows of a cohort, chunks, resuming, bytes, engines.

    method          an object with the five functions
    problem         what to try it on; small quadratics in double precision by default, on which it takes a second
    participation   who takes part; three clients a round by default, everyone for a method that is not defined for less
    local           how clients train; unequal numbers of steps by default, equal ones for a method that is not defined for them
    engines         that must agree; "compiled" may be added, and takes some seconds

    >>> import undrift as ud
    >>> check(ud.Scaffold())  # doctest: +ELLIPSIS
    Scaffold(eta_g=1.0, option=2, B=0): 10 of 10 checks passed
      ok       functions   The five functions are there, and take what they are given.
      ...
    """
    if missing := missing_functions(method):
        raise InvalidInput(missing)
    if problem is not None:
        check_kinds(method, problem, participation or Everyone(), local or Local())
    subject = subject_of(method, problem, participation, local, engines)
    found: list[Check] = []
    for name in CHECKS:
        skipped = name in WHOLE_RUNS and any(each.wrong for each in found)
        found.append(Check(name, about(name), skipped=True) if skipped else run_check(name, subject))
    return CheckReport(repr(method), tuple(found))


def run_check(name: str, subject: Subject) -> Check:
    """One check of a method."""
    try:
        CHECKS[name](subject)
    except Failed as failed:
        return Check(name, about(name), str(failed))
    except Exception as error:  # whatever the method's own code raises
        said = str(error) if isinstance(error, MethodFailure) else f"{type(error).__name__}: {first_line(error)}"
        return Check(name, about(name), said)
    return Check(name, about(name))


def about(name: str) -> str:
    """What a check is about."""
    return inspect.getdoc(CHECKS[name]) or ""
