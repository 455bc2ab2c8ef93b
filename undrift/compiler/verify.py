"""A compiled program is believed only after it has computed what the uncompiled code computes, up to rounding.

Both run the same visit, all K steps of it, from random states and messages that are nowhere zero: a momentum or a control
variate that is dropped or read too late cannot hide behind a zero.  What counts as rounding is measured on the uncompiled
code itself: it runs once more with every carried number off by about one unit in its last place before each step.  That
shows what rounding does to this visit, with its step size, its number of steps and the kinks of its model.  A correct
program stays within a few times that; a wrong one is off by many orders of magnitude.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

Values: TypeAlias = Sequence[Tensor]
Noise: TypeAlias = Callable[[Tensor], Tensor]

MARGIN = 64  # times the effect of rounding: sums are taken in another order, products in another blocking
VERIFY_ATTEMPTS = 3  # a single unit of a ReLU may fall on the other side of its kink; not three times in a row


def same_up_to_rounding(found: Values, expected: Values, disturbed: Values) -> bool:
    """Whether values are the expected ones, up to MARGIN times the rounding that `disturbed` shows.

    >>> expected = [torch.ones(4)]
    >>> same_up_to_rounding([torch.full((4,), 1 + 1e-6)], expected, expected)
    True
    >>> same_up_to_rounding([torch.full((4,), 1.001)], expected, expected)
    False
    """
    return all(
        torch.equal(a, b) if not b.is_floating_point() else _close(a, b, c)
        for a, b, c in zip(found, expected, disturbed, strict=True)
    )


def _close(found: Tensor, expected: Tensor, disturbed: Tensor) -> bool:
    if found.shape != expected.shape or not bool(expected.isfinite().all()):
        return False
    rounding = torch.finfo(expected.dtype).eps * expected.norm() + (disturbed - expected).norm()
    return bool((found - expected).norm() <= MARGIN * rounding)


def noise(generator: torch.Generator, units: float = 1.0) -> Noise:
    """Rounding as a perturbation: each number times 1 + eps or 1 - eps, at random, or with so many eps."""

    def disturb(t: Tensor) -> Tensor:
        if not t.is_floating_point():
            return t
        signs = torch.randint(2, t.shape, generator=generator).to(t) * 2 - 1
        return t * (1 + units * torch.finfo(t.dtype).eps * signs)

    return disturb


def random_like(t: Tensor, scale: float, generator: torch.Generator) -> Tensor:
    """A state or message that is laid out like t, near it, and nowhere zero.

    Signs stay as they are, and what was zero becomes positive: some states, such as Adam's second moment, must not be
    negative.
    """
    if not t.is_floating_point():
        return t.clone()
    found = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device)
    # one row for all where all rows are one in memory, as a message is that all clients are sent
    shape = [1 if step == 0 else n for n, step in zip(t.shape, t.stride(), strict=True)]
    drawn = torch.rand(shape, generator=generator, dtype=torch.float64).to(t) + 0.5
    given, view = (each.as_strided(shape, each.stride()) for each in (t, found))
    return view.copy_(torch.where(given == 0, scale * drawn, given * drawn)).expand(t.shape)


def scale_of(x0: Tensor) -> float:
    """How large random states are where the given ones are zero: a tenth of the model's own size, or of one."""
    size = float(x0.double().square().mean().sqrt())
    return 0.1 * (size or 1.0)


def attempts(x0: Tensor) -> Iterator[tuple[torch.Generator, float]]:
    """Keyed generators, and scales that shrink in case that a visit from far away does not stay finite."""
    for number in range(VERIFY_ATTEMPTS):
        yield torch.Generator().manual_seed(number), scale_of(x0) / 10**number
