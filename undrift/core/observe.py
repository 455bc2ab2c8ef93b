"""What metrics may see of local loops: how far local models are from where they started, and where they end.

Nothing that a loop computes depends on it, so a visit has the same bits whether it is observed or not.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from undrift.core.records import record


@dataclass(frozen=True)
class Observe:
    """What is to be seen of the visits of a round."""

    drift: bool = False
    delta: bool = False


@dataclass(frozen=True)
class Observing:
    """What metrics need to see of the rounds of a run: of those that are evaluated, and of some before them."""

    every: int
    last: int
    drift: bool = False
    window: int = 0  # of how many rounds the mean pseudo-gradients are kept

    def is_due(self, t: int) -> bool:
        """Whether round t is evaluated: every so many rounds, and the last."""
        return t % self.every == 0 or t == self.last

    def of_round(self, t: int) -> Observe | None:
        """What is to be seen of round t."""
        evaluated = min(-(-t // self.every) * self.every, self.last)  # the next round that is
        seen = Observe(self.drift and t == evaluated, evaluated - t < self.window)
        return seen if t > 0 and (seen.drift or seen.delta) else None

    def everyone(self, t: int) -> bool:
        """Whether the pseudo-gradient of all clients is needed, too."""
        return self.window > 0 and self.is_due(t)


@record
class Observed:
    """What was seen, a row for each client.

    drift   the mean over its steps k = 0..K-1 of |y_k - y_0|^2        delta   y_0 - y_K, its pseudo-gradient
    """

    drift: Tensor | None  # [S, 1], float64
    delta: Tensor | None  # [S, D]


class LocalPath:
    """Follows the local model, the first value that is carried, through the loops of a visit; it is given in pieces."""

    def __init__(self, observe: Observe, steps: Sequence[int]):
        self.observe, self.steps = observe, steps
        self._start: list[Tensor] = []
        self._squares: Tensor | None = None
        self._delta: Tensor | None = None
        self._loops = 0

    def begin(self, y: Sequence[Tensor]) -> None:
        """A loop starts from here."""
        self._start = [_rows(piece) for piece in y]
        self._loops += 1

    def step(self, k: int, y: Sequence[Tensor]) -> None:
        """The model before step k = 0, 1, ...: clients that have made all of theirs are done."""
        if not self.observe.drift or k == 0:
            return  # y_0 is where it starts
        away = [torch.linalg.vector_norm(_rows(a) - b, dim=1) for a, b in zip(y, self._start, strict=True)]
        squares = torch.stack([each.double() ** 2 for each in away]).sum(0)
        active = torch.tensor(self.steps, device=squares.device) > k
        squares = torch.where(active, squares, 0)
        self._squares = squares if self._squares is None else self._squares + squares

    def end(self, y: Sequence[Tensor]) -> None:
        """The loop is over."""
        if self.observe.delta:
            parts = [b - _rows(a) for a, b in zip(y, self._start, strict=True)]
            delta = torch.cat(parts, 1)
            self._delta = delta if self._delta is None else self._delta + delta

    def watch(self, k: int, carried: Sequence[Tensor], last: int) -> None:
        """The same for a compiled loop, which writes over what it carries: before step k, and after the last."""
        if k == 0:
            self.begin([piece.clone() for piece in carried])
        if k < last:
            self.step(k, carried)
        else:
            self.end(carried)

    def seen(self, count: int) -> Observed | None:
        """What was seen of the first `count` rows; None if there was no local loop."""
        if not self._loops:
            return None
        drift = None
        if self.observe.drift:
            steps = torch.tensor(self.steps, dtype=torch.float64, device=self._start[0].device) * self._loops
            squares = torch.zeros_like(steps) if self._squares is None else self._squares
            drift = (squares / steps).unsqueeze(1)[:count]
        return Observed(drift, None if self._delta is None else self._delta[:count])


def _rows(piece: Tensor) -> Tensor:
    return piece if piece.dim() == 2 else piece.unsqueeze(0)
