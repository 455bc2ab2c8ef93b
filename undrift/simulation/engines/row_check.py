"""A client is what it would be by itself: in the first rounds one client is computed alone and held against its row.

A method is written for one client, vectors `[D]`, and is run for a cohort, `[S, D]`.  `d.norm()`, a mean, a maximum or a branch
on a number then speaks of all clients at once, silently.  What rounding may explain is measured, as for compiled programs
(compiler/verify.py): from the precision, and from the visit itself with every number off by a few units in its last place.
A unit of a ReLU may fall on the other side of its kink in one computation only; so a difference counts if the client's row
depends on who is beside it, or if no client's row is what it computes alone.
"""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from undrift.compiler.verify import Noise, noise, same_up_to_rounding
from undrift.core.errors import MethodFailure
from undrift.core.records import children, map_tensors, tensors
from undrift.core.work import Work
from undrift.simulation.engines.batched import visit_chunk
from undrift.simulation.engines.request import Engine, Request, ResultStream

CHECKED_ROUNDS = 2  # momentum and control variates are zero in the first
CLIENTS_TRIED = 8
NOISE_UNITS = (1, 4, 16)  # in the last place; the more, the likelier it is that a kink shows

ADVICE = (
    "In a cohort vectors are [S, D], a row a client: take norms, sums and extremes with dim=-1, keepdim=True; "
    "torch.where in place of `if` on a number; work.random for randomness; nothing written in place. "
    "ud.check(method) tests it; engine='sequential' computes clients one by one"
)


def checked(engine: Engine, rows: bool) -> Engine:
    """The same engine for the first rounds of a run: raises MethodFailure if a client's row is not its own answer.

    `rows`: whether it yields a row for each client, as `local` returned it; else two clients are computed for this.
    """

    def visit(request: Request) -> ResultStream:
        known = rows and request.exchange.wire is None
        clients = request.participants.clients
        if not known and clients:
            ids = sorted({clients[0], clients[-1]})
            check_rows(request, ids, visit_together(request, ids * 2 if len(ids) == 1 else ids))
        for number, results in enumerate(engine(request)):
            if number == 0 and known:
                check_rows(request, results.clients, (results.up, results.state))
            yield results

    return visit


def check_rows(request: Request, ids: Sequence[int], rows: tuple[Any, Any]) -> None:
    """Compare two clients, the last and the first, with themselves alone; raises MethodFailure if they differ."""
    same, wrong = 0, ""
    for row in [len(ids) - 1, *range(len(ids) - 1)][:CLIENTS_TRIED]:
        found = map_tensors(lambda t: t[row] if t.dim() > 1 else t, rows)  # noqa: B023 (used at once)
        difference = compare_with_alone(found, partial(visit_alone, request, ids[row]))
        same += difference is None
        if difference is not None:
            wrong = f"client {ids[row]}, round {request.key.round}, stage local: {difference.said}"
            if depends_on_others(request, ids[row], 3 if len(ids) < 3 else 2, found, difference):
                raise MethodFailure(wrong)
        if same == 2:
            return
    if wrong and not same:
        raise MethodFailure(wrong)


@dataclass(frozen=True)
class Difference:
    """What is wrong with a client's row, and the client's answer with the rounding that was allowed for."""

    said: str
    disturbed: list[Tensor]


def compare_with_alone(found: Any, alone: Callable[[Noise], Any]) -> Difference | None:
    """How a client's row, the records (Up, state), differs from what it computes alone; None if only by rounding."""
    expected = alone(lambda t: t)
    a, b = tensors(found), tensors(expected)
    if [t.shape for t in a] != [t.shape for t in b]:
        return Difference(f"its answer has another shape in a cohort than alone. {ADVICE}", [])
    if not all(bool(t.isfinite().all()) for t in (*a, *b)):
        return None  # which aggregation reports
    if same_up_to_rounding(a, b, b):
        return None
    if not all(map(torch.equal, b, tensors(alone(lambda t: t)))):
        return Difference("computed twice, the client answers differently: draw numbers with work.random", [])
    generator = torch.Generator().manual_seed(0)
    disturbed: list[Tensor] = []
    for units in NOISE_UNITS:
        disturbed = tensors(alone(noise(generator, units)))
        if same_up_to_rounding(a, b, disturbed):
            return None
    differing = ", ".join(
        f"{name} by {_percent(x, y)}"
        for (name, x), (_, y), z in zip(_named(found), _named(expected), disturbed, strict=True)
        if not same_up_to_rounding([x], [y], [z])
    )
    said = (
        f"computed alone, the client answers something else than in its cohort ({differing}, far beyond rounding): "
        f"`local` mixes clients, most likely by a norm, a mean, a maximum or a branch over all of them. {ADVICE}"
    )
    return Difference(said, disturbed)


def depends_on_others(request: Request, i: int, copies: int, found: Any, difference: Difference) -> bool:
    """Whether a client's row is another beside others than beside itself, in the same kernels.

    If not, a kink may have made the difference, in which case other clients do not show it.
    """
    again = tensors(map_tensors(lambda t: t[0] if t.dim() > 1 else t, visit_together(request, [i] * copies)))
    known = tensors(found)
    if not difference.disturbed or [t.shape for t in known] != [t.shape for t in again]:
        return True
    return not same_up_to_rounding(known, again, [t.to(again[0]) for t in difference.disturbed])


def _percent(found: Tensor, expected: Tensor) -> str:
    share = float((found - expected).norm() / expected.norm().clamp(min=torch.finfo(expected.dtype).tiny))
    return f"{100 * share:.2g} %" if share < 10 else f"a factor of {share:.2g}"


def _named(records: tuple[Any, Any]) -> list[tuple[str, Tensor]]:
    """Every tensor of (Up, state) by the name of its field."""
    found: list[tuple[str, Tensor]] = []

    def walk(node: Any, name: str) -> None:
        if isinstance(node, Tensor):
            found.append((name, node))
        for key, child in (children(node) or {}).items():
            walk(child, f"{name}.{key}")

    for record, name in zip(records, ("what it sends", "its state"), strict=True):
        walk(record, name)
    return found


# one client alone


class DisturbedWork(Work):
    """Work whose loops start every step from values that are disturbed."""

    def __init__(self, work: Work, disturb: Noise):
        self.__dict__.update(copy(work).__dict__)
        self._disturb, self.path = disturb, None  # nothing of this is the run's

    def loop(self, step: Callable[..., Any], *start: Any, steps: int | None = None) -> Any:
        disturbed = lambda *carried: step(*map(self._disturb, carried))
        return super().loop(disturbed, *start, steps=steps)


def visit_alone(request: Request, i: int, disturb: Noise) -> tuple[Any, Any]:
    """What client i answers by itself, vectors `[D]`, if numbers are disturbed; before any codec."""
    work = DisturbedWork(request.work([i], True), disturb)
    first = lambda t: disturb(t[0])
    down = map_tensors(disturb, request.down) if request.downs is None else map_tensors(first, request.downs([i]))
    try:
        return request.exchange.local(down, map_tensors(first, client_rows(request, [i])), work)
    except Exception as error:
        where = f"client {i} alone, round {request.key.round}, stage local"
        raise MethodFailure(f"{where}: {type(error).__name__}: {error}") from error


def visit_together(request: Request, ids: Sequence[int]) -> tuple[Any, Any]:
    """What some clients answer together, a row each; before any codec."""
    bare = replace(request, exchange=replace(request.exchange, wire=None))
    found = visit_chunk(bare, ids, ids, client_rows(request, ids))
    return found.up, found.state


def client_rows(request: Request, ids: Sequence[int]) -> Any:
    """The method's own states of some clients."""
    state = request.states.gather(ids)
    wire = request.exchange.wire
    return state if wire is None else wire.client_of(state)
