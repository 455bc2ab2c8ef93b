"""What is asked of a problem: `Problem` always, and small protocols for what only some engines ask."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from torch import Tensor, nn

from undrift.core.rng import Key

StepInput: TypeAlias = Sequence[Tensor | None]  # what `Traceable.grad_of` is given for one step


class Problem(Protocol):
    """f(x) = sum_i p_i f_i(x), client i holding f_i.  Vectors are `[D]` for one client, `[S, D]` for several."""

    @property
    def N(self) -> int:
        """The number of clients."""
        ...

    @property
    def x0(self) -> Tensor:
        """Where a run starts, `[D]`."""
        ...

    @property
    def weights(self) -> Sequence[float] | np.ndarray:
        """The weight p_i of each client in the objective; they sum to one."""
        ...

    def steps_per_epoch(self, client: int, batch: int | None) -> int:
        """Minibatches in one pass over a client's data."""
        ...

    def draw(self, key: Key, clients: Sequence[int], steps: Sequence[int], batch: int | None) -> Any:
        """The minibatches of one local loop, by key; only `grad` looks inside."""
        ...

    def grad(self, y: Tensor, minibatches: Any, k: int) -> Tensor:
        """The gradient on the k-th minibatch, each client at its own row of y."""
        ...

    def full_grad(self, y: Tensor, clients: Sequence[int]) -> Tensor:
        """The gradient of each client's whole objective, at its own row of y."""
        ...

    def evaluate(self, x: Tensor) -> dict[str, float]:
        """The metrics of a server model that are recorded by default."""
        ...


@runtime_checkable
class DrawsByRound(Protocol):
    """Draws minibatches of clients that work on models of different rounds, for virtual time."""

    def draw_each(
        self, key: Key, rounds: Sequence[int], clients: Sequence[int], steps: Sequence[int], batch: int | None
    ) -> Any: ...


@runtime_checkable
class DrawsWithReplacement(Protocol):
    """Can draw every sample of a minibatch on its own, as theory has it; `rounds` as in `DrawsByRound`."""

    def draw_with_replacement(
        self, key: Key, rounds: Sequence[int], clients: Sequence[int], steps: Sequence[int], batch: int | None
    ) -> Any: ...


@runtime_checkable
class Traceable(Protocol):
    """Has a gradient that is a function of tensors alone, for the compiled engine."""

    @property
    def x0(self) -> Tensor: ...

    def draw(self, key: Key, clients: Sequence[int], steps: Sequence[int], batch: int | None) -> Any: ...

    @property
    def pieces(self) -> Sequence[int]:
        """The sizes of the parameters in a vector."""
        ...

    def resident(self) -> Sequence[Tensor]:
        """Tensors that gradients read besides minibatches: the data."""
        ...

    def inputs(self, minibatches: Any, K: int, batch: int | None) -> Sequence[StepInput]:
        """What `grad_of` is given, step by step."""
        ...

    def grad_of(self, y: Tensor, resident: Sequence[Tensor], minibatch: StepInput) -> Tensor:
        """The gradient `[S, D]` as a function of these tensors."""
        ...


@runtime_checkable
class HoldsValues(Protocol):
    """Has code whose values may be set between rounds: a program is right for those that it was made with."""

    def values_held(self) -> Hashable:
        """Equal as long as none of them has changed."""
        ...


@runtime_checkable
class LimitsCompiling(Protocol):
    """Knows minibatches that its traceable gradient is not right for."""

    def not_compiled(self, minibatch: StepInput) -> str | None:
        """Why such minibatches cannot be compiled, or None."""
        ...


@runtime_checkable
class PrefersEngine(Protocol):
    """Knows which engine suits it."""

    @property
    def engine(self) -> str:
        """ "batched" or "sequential"."""
        ...

    @property
    def not_batched(self) -> str | None:
        """Why it cannot be computed for several clients at once, or None."""
        ...


@runtime_checkable
class Sized(Protocol):
    """Knows what its computation takes, by which chunks and engines are chosen."""

    def batch_bytes(self, batch: int | None) -> int:
        """What one client's minibatch takes while it is computed."""
        ...

    def step_flops(self, batch: int | None) -> float:
        """Floating-point operations of one client's gradient on a minibatch."""
        ...


@runtime_checkable
class Replicable(Protocol):
    """Can be computed by several threads at once."""

    def twin(self) -> Any:
        """A copy for another thread."""
        ...

    @property
    def not_shared(self) -> str | None:
        """Why threads cannot compute different clients side by side, or None."""
        ...


@runtime_checkable
class Reopenable(Protocol):
    """Can be read again on another machine."""

    @property
    def reopen(self) -> Callable[[], Any] | None: ...


@runtime_checkable
class HasFullGradient(Protocol):
    """Has the gradients of clients' whole objectives, which metrics of the theory ask for."""

    def full_grad(self, y: Tensor, clients: Sequence[int]) -> Tensor: ...


@runtime_checkable
class HasMetrics(Protocol):
    """Has several metrics of a model, by name."""

    @property
    def metric_names(self) -> Sequence[str]: ...

    def evaluate_metric(self, name: str, x: Tensor) -> dict[str, float]: ...


@runtime_checkable
class FromModule(Protocol):
    """Is made from an nn.Module."""

    def module(self, x: Tensor, client: int | None = None) -> nn.Module:
        """The module with these parameters, a client's if these are."""
        ...

    def named_parameters(self, x: Tensor) -> dict[str, Tensor]:
        """The parameters in a vector, by their names in the module."""
        ...
