"""The loop of rounds, over any transport."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from undrift.compiler.kernels.dense import own_products
from undrift.core.algorithm import Cohort, Exchange
from undrift.core.errors import Stopped
from undrift.core.rng import Key
from undrift.local.wrapping import method_of
from undrift.metrics import Probe
from undrift.metrics.evaluator import Evaluator
from undrift.simulation.aggregation import LocalSums, Reply, Traffic, step_server
from undrift.simulation.participation import Draw
from undrift.simulation.results import Round, State
from undrift.simulation.transport import RoundRestart, RunPlan, Transport


@dataclass(frozen=True)
class PlayedRound:
    """What the exchanges of one round led to."""

    server: Any
    draw: Draw
    traffic: Traffic
    exchanges: int
    cohort: Cohort | None  # of the last server step
    local: LocalSums = LocalSums()  # what was seen of local loops
    everyone: Tensor | None = None  # the pseudo-gradient that all clients would have had


def play_round(plan: RunPlan, transport: Transport, server: Any, t: int) -> PlayedRound:
    """One synchronous round.  New states are staged, not committed."""
    exchanges = plan.exchanges_in_round(t)
    return play_exchanges(plan, transport, server, exchanges, lambda: transport.cohort(t))


def play_exchanges(
    plan: RunPlan,
    transport: Transport,
    server: Any,
    exchanges: Sequence[tuple[int, int, Exchange]],
    cohort: Callable[[], Draw],
    step: Callable[[Exchange, Any, Reply, int], Any] = step_server,
) -> PlayedRound:
    """Exchanges, (round, number, exchange), one after another; the cohort is asked for when it is first needed."""
    asked: Draw | None = None
    draw, stepped = Draw(()), None
    traffic, count = Traffic(), 0
    local, of_all = LocalSums(), LocalSums()
    for t, number, exchange in exchanges:
        transport.apply()  # what the exchange before led to
        if asked is None and t > 0:  # the initialisation round is for everyone, and comes before
            asked = draw = cohort()
        key = Key(plan.seed, t, number)
        if plan.observing is not None and plan.observing.everyone(t) and exchange.to == "cohort":
            of_all += LocalSums(delta=transport.of_everyone(exchange, server, key))
        reply = transport.exchange(exchange, server, draw, key)
        traffic += reply.traffic
        local += reply.local
        if reply.lost:  # who is lost does not come to the round's next exchange
            draw = draw.only({*draw.clients} - {*reply.lost})
        if plan.privacy is not None:
            reply = plan.privacy.release(reply, plan.solver(t).lr, key)
        if reply.mean is None:
            continue
        server, stepped, count = step(exchange, server, reply, t), reply.cohort, count + 1
        if reply.amend is not None:
            transport.apply()
            server = reply.amend(server)
    return PlayedRound(server, asked or draw, traffic, count, stepped, local, of_all.delta)


def play(
    plan: RunPlan,
    transport: Transport,
    state: State,
    evaluator: Evaluator,
    last: int,
    one_round: Callable[[RunPlan, Any, Any, int], PlayedRound] = play_round,
) -> Iterator[Round]:
    """Rounds, each whole or not at all; synchronous ones unless `one_round` plays them otherwise."""
    try:
        while state.round < last:
            t, began = state.round + 1, perf_counter()
            try:
                played = one_round(plan, transport, state.server, t)
                seconds = perf_counter() - began
                metrics = evaluate_model(plan, evaluator, played.server.x, t)
            except RoundRestart as restart:
                transport.rollback()
                state = restart.recover(state)
                continue
            except BaseException as end:  # also Ctrl-C
                transport.rollback()
                if isinstance(end, Stopped):
                    raise type(end)(str(end), t, state.settled()) from None
                raise
            transport.commit(t)
            before = state
            past = remember(plan, state.pseudo_gradients, played.local, t)
            averages = {name: mean.include(played.server.x, t) for name, mean in state.averages.items()}
            state = replace(state, round=t, server=played.server, pseudo_gradients=past, averages=averages)
            metrics |= evaluate_probe(plan, evaluator, before, state, played)
            if plan.privacy is not None and evaluator.is_due(t):
                metrics["epsilon"] = plan.privacy.epsilon(t)
            traffic = played.traffic
            r = Round(
                t,
                played.draw.clients,
                metrics,
                traffic.bytes_down,
                traffic.bytes_up,
                seconds,
                traffic.left_out,
                played.exchanges,
                state,
            )
            yield transport.complete(r)
    finally:
        transport.close()


def evaluate_model(plan: RunPlan, evaluator: Evaluator, x: Tensor, t: int) -> dict[str, float]:
    """The metrics of the model after round t, if it is evaluated."""
    if not evaluator.is_due(t):
        return {}
    with own_products(plan.choice.compiles(t)):
        return evaluator.evaluate_model(x)


def remember(plan: RunPlan, past: tuple[Tensor, ...], local: LocalSums, t: int) -> tuple[Tensor, ...]:
    """The mean pseudo-gradients of the last rounds, oldest first, as many as metrics ask for."""
    if plan.observing is None:
        return ()
    observe = plan.observing.of_round(t)
    if observe is None or not observe.delta:
        return ()
    new = () if local.delta is None else (local.delta,)
    return (*past, *new)[-plan.observing.window :]


def evaluate_probe(
    plan: RunPlan, evaluator: Evaluator, before: State, after: State, played: PlayedRound
) -> dict[str, float]:
    """The metrics that look at a whole round, if it is evaluated; client states are final by then."""
    if not evaluator.is_due(after.round):
        return {}
    probe = lambda: Probe(
        round=after.round,
        x_before=before.server.x,
        x_after=after.server.x,
        server=after.server,
        cohort=played.cohort,
        clients=after.clients,
        problem=plan.problem,
        algorithm=method_of(plan.algorithm),
        solver=plan.solver(after.round),
        drift=played.local.mean_drift,
        pseudo_gradients=after.pseudo_gradients,
        pseudo_gradient_of_all=played.everyone,
    )
    with torch.no_grad():
        return evaluator.evaluate_probe(probe)
