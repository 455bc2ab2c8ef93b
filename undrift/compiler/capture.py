"""Functions of tensors as the lists of torch's operations that they amount to.

What vmap, grad and the layers of a module take to find out what to compute is longer than a small model takes to be
computed.  A captured function calls the same operations one after another and so gives the same bits: a fourth of the time
for a small model, without a compiler.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule
from torch.utils._pytree import tree_flatten, tree_unflatten

from undrift.compiler.inductor import eliminate_common_subexpressions

aten = torch.ops.aten

CALLS = 100  # of one form before it is captured, which takes about as long as they would save
FORMS, MOST_FORMS = 64, 10_000  # that are captured, that are counted, at most
CHANGED = (
    "the model or its loss gives another result than it gave earlier in this process for the same input: its Python code must "
    "not change between rounds (an attribute that is set, a counter); put what changes into the data, or "
)
SAME_IF_ALIKE = (aten.view.default, aten._unsafe_view.default, aten.expand.default)


class Captured:
    """A function of trees of tensors; arguments of a form that comes again and again are computed without the function itself.

    What the function holds besides its arguments (`held`) is part of the form.  What depends on values, and what does not
    come out the same to the bit, is left to the function.  Calls number 200, 400, 800, ... of a form are held against the
    function again: a loss whose Python changes during a run is an error, not a wrong result; `otherwise` says what a user
    can do then.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        held: Callable[[], Hashable] = tuple,
        otherwise: str = "use engine='sequential'",
    ):
        self.function, self.held, self.otherwise = function, held, otherwise
        self.calls: Counter[Hashable] = Counter()
        self.captured: dict[Hashable, Callable[..., Any] | None] = {}

    def __call__(self, *given: Any) -> Any:
        values, structure = tree_flatten(given)
        form = self.held(), structure, tuple(_form(x) for x in values)
        if len(self.calls) > MOST_FORMS:  # as there are if what is held changes all the time
            self.calls.clear()
        found = self.captured.get(form)
        self.calls[form] += 1
        if found is not None:
            with torch.no_grad():
                result = found(*values)
            if _is_checked(self.calls[form]) and not _same_bits(result, self.function(*given)):
                raise RuntimeError(CHANGED + self.otherwise)
            return result
        result = self.function(*given)
        if self.calls[form] == CALLS and len(self.captured) < FORMS:
            call = lambda *flat: self.function(*tree_unflatten(list(flat), structure))
            self.captured[form] = _capture(call, values, result)
        return result

    def __reduce__(self) -> Any:
        return Captured, (self.function, self.held, self.otherwise)  # another process captures for itself


def _is_checked(calls: int) -> bool:
    times, rest = divmod(calls, CALLS)
    return rest == 0 and times > 1 and times.bit_count() == 1


def _same_bits(a: Any, b: Any) -> bool:
    (found, structure), (expected, other) = tree_flatten(a), tree_flatten(b)
    same = [torch.allclose(x, y, rtol=0, atol=0, equal_nan=True) for x, y in zip(found, expected, strict=True)]
    return structure == other and all(same)


def _form(x: Any) -> Hashable:
    return (x.shape, x.stride(), x.dtype, x.device) if isinstance(x, Tensor) else x


def _capture(function: Callable[..., Any], given: list[Any], expected: Any) -> Callable[..., Any] | None:
    """The function for arguments of this form, or None if it cannot be one list of operations."""
    from torch.fx.experimental.proxy_tensor import make_fx  # slow to import

    try:
        with warnings.catch_warnings():  # torch warns of its own deprecated parts
            warnings.simplefilter("ignore")
            module = make_fx(function)(*given)
        operations = [node.target for node in module.graph.nodes if isinstance(node.target, torch._ops.OpOverload)]
        if not any(operation._schema.is_mutable for operation in operations):
            module = _without_idle_operations(eliminate_common_subexpressions(module))
        with torch.no_grad():
            same = _same_bits(module.forward(*given), expected)
    except Exception:  # torch raises many kinds for what depends on values
        return None
    return module.forward if same else None


def _without_idle_operations(module: GraphModule) -> GraphModule:
    """The same without operations that return what they are given."""
    graph: Graph = module.graph
    for node in graph.nodes:
        if node.target in SAME_IF_ALIKE:
            before, after = node.args[0].meta["val"], node.meta["val"]
            idle = before.shape == after.shape and before.stride() == after.stride()
        else:
            idle = node.target is aten.mul.Scalar and node.args[1] == 1
        if idle:
            node.replace_all_uses_with(node.args[0])
    graph.eliminate_dead_code()
    module.recompile()
    return module
