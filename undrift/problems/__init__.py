"""What is minimised: f(x) = sum_i p_i f_i(x), client i holding f_i."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from undrift.core.rng import Key


class Problem(Protocol):
    """What an engine asks of a problem.  Vectors are `[D]` for one client, `[S, D]` for several.

    Optional besides: `engine`, the one that suits it ("batched" or "sequential", for engine="auto"); `not_batched`, why
    it cannot be batched, or None; `module(x)`, for `Result.model()`; `batch_bytes(batch)`, what one client's minibatch
    takes while it is computed, from which the batched engine finds its chunk; `twin()`, a copy that
    another thread may use; `not_shared`, why threads cannot compute clients side by side, or None; `reopen()`, which
    reads the same problem on another machine (engine "ray"), or None; `draw_each(key, rounds, clients, steps, batch)`,
    `draw` with each client's own round in place of the key's, so that in virtual time clients on different models are
    computed together.
    For the compiled engine: `pieces`, the sizes of the parameters in a vector; `resident()`, tensors that gradients
    read; `inputs(minibatches, K, batch)`, K tuples of tensors (or None), one a step; `grad_of(y, resident, input)`, the
    gradient as a function of these alone; `not_compiled(input)`, why it cannot be, or None.
    """

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

    def draw(
        self, key: Key, clients: Sequence[int], steps: Sequence[int], batch: int | None
    ) -> Any:
        """The minibatches of one local loop, by key; only `grad` looks inside."""
        ...

    def grad(self, y: Tensor, minibatches: Any, k: int) -> Tensor:
        """The gradient on the k-th minibatch, each client at its own row of y."""
        ...

    def full_grad(self, y: Tensor, clients: Sequence[int]) -> Tensor:
        """The gradient of each client's whole objective, at its own row of y."""
        ...

    def evaluate(self, x: Tensor) -> dict[str, float]:
        """The figures recorded for a server model."""
        ...
