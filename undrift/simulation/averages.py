"""Means of a run's models, kept along the way: no model is stored for them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from torch import Tensor

from undrift.core.errors import InvalidInput
from undrift.core.hyper import check_fields, hyper


@dataclass(frozen=True)
class Average:
    """A mean of the models x^0, x^1, ..., x^R of a run, for `ud.run(..., average=...)` and `Result.average()`.

    decay   x^r has the weight decay^-r: 1 is the plain mean; 1 - mu eta that of SCAFFOLD's theorems, eqs. (8) and (13) with
            w_r = (1 - mu eta)^(1 - r) for x^{r-1}
    after   the first model that counts, after so many rounds: rounds // 2 is a tail average

    >>> import torch, undrift as ud
    >>> problem = ud.Quadratic(torch.ones(2, 1, 1), torch.tensor([[1.0], [3.0]]))
    >>> result = ud.run(ud.FedAvg(), problem, rounds=3, local=ud.Local(lr=0.5), average=ud.Average(after=2))
    >>> float(result.average())  # of 1.5 and 1.75
    1.625
    """

    decay: float = hyper(default=1.0, within="(0, 1]")
    after: int = hyper(default=0, within="[0, inf)")

    __post_init__ = check_fields


Averages: TypeAlias = Average | Mapping[str, Average]  # one, or several by name


@dataclass(frozen=True)
class RunningAverage:
    """A mean so far, in double precision; `total` is the sum of weights in units of the last one, which never overflows."""

    kind: Average
    mean: Tensor | None = None
    total: float = 0.0

    def include(self, x: Tensor, t: int) -> "RunningAverage":
        """With the model after round t."""
        if t < self.kind.after:
            return self
        x, total = x.detach().double(), 1 + self.kind.decay * self.total
        mean = x if self.mean is None else self.mean + (x - self.mean) / total
        return replace(self, mean=mean, total=total)


def begin(averages: Averages | None, x: Tensor, rounds: int) -> dict[str, RunningAverage]:
    """What a run keeps, with its first model."""
    if averages is None:
        return {}
    named = {"": averages} if isinstance(averages, Average) else averages
    if not isinstance(named, Mapping) or not all(isinstance(kind, Average) for kind in named.values()):
        raise InvalidInput(f"average is ud.Average(...), or a dictionary of several by name; got {averages!r}")
    for kind in named.values():
        if kind.after > rounds:
            raise InvalidInput(f"Average: after={kind.after} leaves no model of {rounds} rounds: give a smaller one")
    return {name: RunningAverage(kind).include(x, 0) for name, kind in named.items()}


def pick(averages: Mapping[str, RunningAverage], name: str, like: Tensor) -> Tensor:
    """One of them, as a model."""
    if not averages:
        raise InvalidInput("this run kept no average: ask for it with ud.run(..., average=ud.Average())")
    if name not in averages:
        raise InvalidInput(f"which average? This run kept {', '.join(map(repr, averages))}, got {name!r}")
    mean = averages[name].mean
    if mean is None:
        raise InvalidInput(f"the run ended before round {averages[name].kind.after}, from which its average counts")
    return mean.to(like.dtype)
