"""What rounds cost, in epsilon, by Google's dp-accounting (pip install "undrift[dp]").

`noise` is the deviation of the noise over the clip, `noise` = 1 being as much as one client may add.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from undrift.core.errors import InvalidInput

LEAST_NOISE, MOST_NOISE = 1e-3, 1e6  # within which a multiplier is searched
SMALL = 0.05  # noise under which sampling is not counted on


def accountants() -> Any:
    """dp-accounting, which need not be installed."""
    try:
        import dp_accounting
        import dp_accounting.gaussian_mechanism
        import dp_accounting.pld
        import dp_accounting.rdp
    except ImportError as error:
        raise InvalidInput(f'privacy needs dp-accounting ({error}): pip install "undrift[dp]"') from error
    return dp_accounting


@lru_cache(maxsize=4096)
def epsilon_of_gaussian(noise: float, times: int, delta: float) -> float:
    """Of a client that takes part so many times, known to do so; against its being left out.

    Exact: `times` Gaussian mechanisms are one with the noise over sqrt(times).

    >>> round(epsilon_of_gaussian(8.0, 100, 1e-5), 4)
    5.6796
    """
    if times == 0:
        return 0.0
    with np.errstate(divide="ignore"):  # where the noise is enough for epsilon = 0
        return float(accountants().gaussian_mechanism.get_epsilon_gaussian(noise / math.sqrt(times), delta))


@lru_cache(maxsize=4)
def _loss_distribution(noise: float, q: float) -> Any:
    pld = accountants().pld.privacy_loss_distribution
    interval = max(1e-3 / noise**2, 1e-5)  # finer where a round costs less; what it rounds is rounded up
    return pld.from_gaussian_mechanism(noise, value_discretization_interval=interval, sampling_prob=q)


@lru_cache(maxsize=4096)
def epsilon_of_poisson(noise: float, q: float, rounds: int, delta: float) -> float:
    """Of a client that takes part in each round with probability q, by itself; against its being left out.

    >>> round(epsilon_of_poisson(1.0, 0.01, 1000, 1e-5), 2)
    1.83
    """
    if q == 1 or noise < SMALL:
        return epsilon_of_gaussian(noise, rounds, delta)
    return float(_loss_distribution(noise, q).self_compose(rounds).get_epsilon_for_delta(delta))


@lru_cache(maxsize=4096)
def epsilon_of_fixed_size(noise: float, N: int, S: int, rounds: int, delta: float) -> float:
    """Of a client in cohorts of S of N, drawn without replacement; against another in its place.

    Two messages within the clip may be twice the clip apart, so the noise counts half.

    >>> round(epsilon_of_fixed_size(4.0, 1000, 10, 100, 1e-5), 2)
    0.43
    """
    dp = accountants()
    always = epsilon_of_gaussian(noise / 2, rounds, delta)  # also true, and less where nearly all take part
    if S == N or noise < SMALL:
        return always
    orders, of_one_round = _renyi_divergence(noise, N, S)
    epsilon, _ = dp.rdp.compute_epsilon(orders, rounds * of_one_round, delta)
    return min(always, float(epsilon))


@lru_cache(maxsize=64)
def _renyi_divergence(noise: float, N: int, S: int) -> tuple[Any, Any]:
    """Orders, and the divergence of one round at each: rounds add up, so it is computed once for all of them."""
    dp = accountants()
    accountant = dp.rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    accountant.compose(dp.SampledWithoutReplacementDpEvent(N, S, dp.GaussianDpEvent(noise / 2)))
    return accountant.orders, accountant.rdp


def least_noise(epsilon_of: Callable[[float], float], epsilon: float) -> float:
    """The least noise multiplier with at most this epsilon, to four digits, rounded up.

    >>> round(least_noise(lambda noise: 1 / noise, 0.4), 3)
    2.5
    """
    if epsilon_of(MOST_NOISE) > epsilon:
        raise InvalidInput(
            f"privacy: no noise reaches epsilon = {epsilon:g} in so many rounds: allow more, or a larger delta"
        )
    enough = 1.0
    while epsilon_of(enough) > epsilon:
        enough *= 2
    little = enough / 2
    while little > LEAST_NOISE and epsilon_of(little) <= epsilon:
        enough, little = little, little / 2
    while enough / little > 1.0001:
        middle = math.sqrt(little * enough)
        little, enough = (little, middle) if epsilon_of(middle) <= epsilon else (middle, enough)
    return enough
