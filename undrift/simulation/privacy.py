"""The private release of a round: a sum with noise over a fixed denominator, and what the rounds so far have cost.

What the server is told of a cohort is what is expected of it, never who came: whose message is in the sum shows in nothing
but the sum.
"""

import math
from collections import Counter
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np
import torch

from undrift.core.algorithm import Algorithm, Cohort, Wire, exchanges_of, trial_up
from undrift.core.errors import Diverged, InvalidInput, setting
from undrift.core.hyper import spec_of
from undrift.core.records import map_tensors, tensors
from undrift.core.rng import Key, Purpose, draw_numbers
from undrift.local import Local
from undrift.local.parameters import initial_of
from undrift.local.settings import Geometric
from undrift.local.wrapping import method_of
from undrift.privacy import Privacy, PrivateWire, make_privacy, noise_by_secret
from undrift.privacy.accounting import (
    accountants,
    epsilon_of_fixed_size,
    epsilon_of_gaussian,
    epsilon_of_poisson,
    least_noise,
)
from undrift.problems import Problem
from undrift.simulation.aggregation import Reply
from undrift.simulation.participation import Bernoulli, Cyclic, Everyone, Fixed, Participation, Uniform

_searched: dict[tuple[Any, ...], float] = {}


@dataclass(frozen=True)
class PrivateRelease:
    """What becomes of a round's sum before the server sees it."""

    privacy: Privacy
    participation: Participation
    problem_size: int
    local: Local
    form: Any  # an Up of zeros: the sum of a round in which nobody came
    K: float | None  # every client's number of local steps, unless that depends on the client; 0: drawn by round
    secret: bytes = b""  # that noise comes from in place of the seed: on real nodes

    def release(self, reply: Reply, lr: float, key: Key) -> Reply:
        """The reply with the sum over the expected number of clients, with noise; also if nobody came."""
        expected = expected_number(self.participation, self.problem_size, key.round)
        if expected == 0:  # as the given cohorts say, whatever the data are
            return reply
        came = 0 if reply.cohort is None else reply.cohort.S
        if self.privacy.where == "clients" and came != expected:
            raise Diverged(
                f"round {key.round}: {came} of {expected:g} clients returned something that can be used; the others' shares "
                "of the noise are missing, and with them the guarantee: nothing of this round is used",
                key.round,
                None,
            )
        deviation = self.privacy.deviation if self.privacy.where == "server" else 0.0
        mean = self.form if reply.mean is None else map_tensors(lambda t: t * (came / expected), reply.mean)
        if deviation:
            noise = iter(tensors(self._noise(mean, key)))
            mean = map_tensors(lambda t: t + (deviation / expected) * next(noise), mean)
        return replace(reply, mean=mean, cohort=self._cohort(expected, lr, key))

    def _noise(self, mean: Any, key: Key) -> Any:
        """Standard normal numbers in the form of the mean."""
        if self.secret:
            return noise_by_secret(self.secret, mean, f"round {key.round}")
        calls = count()
        draw = lambda t: draw_numbers(Purpose.PRIVACY, [key], [0], next(calls), t.unsqueeze(0), "normal")[0]
        return map_tensors(draw, mean)

    def _cohort(self, expected: float, lr: float, key: Key) -> Cohort:
        S, N = max(1, round(expected)), self.problem_size
        K = math.nan if self.K is None else self.K
        if isinstance(self.local.steps, Geometric):
            nobody: Any = None  # it is drawn for all
            (K,) = self.local.count(nobody, key, [0])
        steps = None if math.isnan(K) else torch.full((S,), float(K), dtype=torch.float64)
        weights = torch.full((S,), 1 / S, dtype=torch.float64)
        return Cohort(key.round, S, N, expected / N, weights, torch.zeros_like(weights), lr, float(K), key, steps)

    def epsilon(self, t: int) -> float:
        """Of the first t rounds."""
        noise = self.privacy.noise
        assert noise is not None, "found by now"
        return epsilon_after(noise, self.participation, self.problem_size, t, self.privacy.delta)


def by_the_server() -> str:
    return setting('where="server"', privacy__where="server")


def expected_number(participation: Participation, N: int, t: int) -> float:
    """How many clients are expected in round t: the denominator of its mean."""
    if isinstance(participation, Bernoulli):
        return participation.q * N
    if isinstance(participation, Fixed):
        return len(participation.cohorts[t - 1])
    return participation.S if isinstance(participation, Uniform | Cyclic) else N


def epsilon_after(noise: float, participation: Participation, N: int, rounds: int, delta: float) -> float:
    """Of so many rounds, for the way in which clients take part; infinite without noise.

    >>> epsilon_after(4.0, Bernoulli(0.01), 1000, 100, 1e-5) < epsilon_after(4.0, Everyone(), 1000, 100, 1e-5)
    True
    """
    if noise == 0:
        return math.inf
    if isinstance(participation, Bernoulli):
        return epsilon_of_poisson(noise, participation.q, rounds, delta)
    if isinstance(participation, Uniform):
        return epsilon_of_fixed_size(noise, N, participation.S, rounds, delta)
    return epsilon_of_gaussian(noise, _visits(participation, N, rounds), delta)


def _visits(participation: Participation, N: int, rounds: int) -> int:
    """How often the client takes part that does so most often, where it is known who takes part."""
    if isinstance(participation, Cyclic):
        return math.ceil(rounds * participation.S / N)
    if isinstance(participation, Fixed):
        each = Counter(int(i) for cohort in participation.cohorts[:rounds] for i in cohort)
        return max(each.values(), default=0)
    return rounds


def resolve(given: Any, participation: Participation, N: int, rounds: int) -> Privacy | None:
    """The privacy of a run, with the noise that its epsilon asks for; refuses participation that has no accountant."""
    privacy = make_privacy(given)
    if privacy is None:
        return None
    if not isinstance(participation, Bernoulli | Cyclic | Everyone | Fixed | Uniform):
        better = setting("ud.Bernoulli(q) or ud.Uniform(S)", participation__scheme="bernoulli")
        raise InvalidInput(
            f"privacy: no accountant covers {type(participation).__name__} participation, in which a client may count "
            f"several times or by rules of its own: use {better}"
        )
    if privacy.where == "clients" and isinstance(participation, Bernoulli | Fixed):
        raise InvalidInput(
            f"privacy: with {type(participation).__name__} cohorts differ in size, so that a client does not know its share of "
            f"the noise: use {by_the_server()}, or "
            f"{setting('ud.Uniform(S)', participation__scheme='uniform')}"
        )
    if privacy.noise is None:
        assert privacy.epsilon is not None
        key = (privacy.epsilon, privacy.delta, repr(participation), N, rounds)
        if key not in _searched:  # every seed of an experiment asks for it
            delta = privacy.delta
            _searched[key] = least_noise(lambda z: epsilon_after(z, participation, N, rounds, delta), privacy.epsilon)
        noise = _searched[key]
        return replace(privacy, noise=noise, epsilon=None)
    return privacy


def make_private(
    given: Any,
    codec: Wire | None,
    algorithm: Algorithm,
    problem: Problem,
    participation: Participation,
    local: Local,
    rounds: int,
    secret: bytes = b"",
) -> tuple[PrivateRelease, PrivateWire]:
    """The release of a private run, and its wire; raises InvalidInput where there would be no guarantee."""
    accountants()
    privacy = resolve(given, participation, problem.N, rounds)
    assert privacy is not None
    _check(algorithm, problem, local, privacy, codec, rounds)
    with torch.no_grad():
        up = trial_up(exchanges_of(algorithm, 1)[0], algorithm, problem.x0)
    K = _steps_of_all(problem, local)
    release = PrivateRelease(privacy, participation, problem.N, local, map_tensors(torch.zeros_like, up), K, secret)
    _check_server(release, algorithm, problem, up)
    return release, private_wire(privacy, codec, participation, problem.N, rounds, bool(secret))


def private_wire(
    given: Any, codec: Wire | None, participation: Participation, N: int, rounds: int, secret: bool = False
) -> PrivateWire:
    """What happens to messages of a private run: also on a node, which knows the server's settings from its own."""
    privacy, share = make_privacy(given), 0.0
    assert privacy is not None
    if privacy.where == "clients":
        found = resolve(privacy, participation, N, rounds)
        assert found is not None
        share = found.deviation / math.sqrt(expected_number(participation, N, 1))
    return PrivateWire(privacy.clip, share, codec, secret)


def _check(
    algorithm: Algorithm, problem: Problem, local: Local, privacy: Privacy, codec: Wire | None, rounds: int
) -> None:
    name = spec_of(algorithm).name
    if exchanges_of(algorithm, 0):
        hint = "; leave out B" if "B" in vars(method_of(algorithm)) else ""
        raise InvalidInput(f"privacy: {name} has an initialisation round, which asks all clients without noise{hint}")
    for t in range(1, rounds + 1):
        if [exchange.to for exchange in exchanges_of(algorithm, t)] != ["cohort"]:
            raise InvalidInput(
                f"privacy: {name} crosses the wire several times a round, or to others than the cohort (round {t}); epsilon is "
                "accounted for methods with one exchange a round"
            )
    weights = np.asarray(problem.weights)
    if weights.min() != weights.max():
        uniform = setting('weights="uniform"', clients__weights="uniform")
        raise InvalidInput(
            "privacy: clients weigh differently (by their number of samples, say), so that more of one than `clip` would "
            f"enter the mean, and weights tell of data: use {uniform}"
        )
    if privacy.where == "clients" and codec is not None:
        raise InvalidInput(
            f"privacy: a codec after clients' noise would change its distribution: use {by_the_server()}, or no codec"
        )
    if local.optimiser_state == "average":
        kept = setting('optimiser_state="keep"', local__optimiser_state="keep")
        raise InvalidInput(
            "privacy: an averaged optimiser state with noise is none (a second moment may be negative): "
            f"{kept} stays with clients"
        )
    if initial_of(problem) is not None:
        raise InvalidInput(
            "privacy: local parameters are trained with what the server sends and are not accounted for: "
            "use a problem without local_parameters"
        )
    if privacy.delta * problem.N >= 1:
        raise InvalidInput(
            f"privacy: delta = {privacy.delta:g} with {problem.N} clients allows to publish one of them: give less than 1/N"
        )


def _steps_of_all(problem: Problem, local: Local) -> float | None:
    """The number of steps that every client makes; None if that differs, and so tells who took part."""
    if isinstance(local.steps, Geometric):
        return 0.0
    if isinstance(local.steps, tuple) or isinstance(local.epochs, tuple):
        return None
    found = {*local.count(problem, Key(0, 1), range(problem.N))}
    return float(found.pop()) if len(found) == 1 else None


@torch.no_grad()
def _check_server(release: PrivateRelease, algorithm: Algorithm, problem: Problem, up: Any) -> None:
    """Refuse a method whose server uses numbers of steps, where they tell who took part, or is lost with what noise makes."""
    exchange, name = exchanges_of(algorithm, 1)[0], spec_of(algorithm).name
    noisy, expected = (
        map_tensors(lambda t: -torch.ones_like(t), up),
        expected_number(release.participation, problem.N, 1),
    )
    cohort = release._cohort(expected, release.local.solver(1).lr, Key(0, 1))
    server = exchange.update(algorithm.server(problem.x0), noisy, cohort)
    if release.K is None and _has_nan(server):
        raise InvalidInput(
            f"privacy: the server's step of {name} uses the cohort's mean number of local steps, which here "
            f"tells who took part: give all clients the same, {setting('ud.Local(steps=10)', local__steps=10)}"
        )
    if _has_nan(trial_up(exchange, algorithm, problem.x0, server)):
        raise InvalidInput(
            f"privacy: {name} has no step where noise makes the mean of clients' messages negative (the mean of second moments, "
            "say): use another method"
        )


def _has_nan(record: Any) -> bool:
    return any(bool(t.isnan().any()) for t in tensors(record))
