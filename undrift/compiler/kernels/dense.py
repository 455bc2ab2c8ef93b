"""Dense layers of models that are being evaluated: those of several models in one product, and with products of our own.

Torch multiplies the samples with the layer of one model after another, each time from the beginning.  Side by side the
layers are one matrix, [models out, in].  And a matrix library is slow where a layer has few outputs (products.py), as
torch's cross entropy is where there are few classes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from undrift.compiler.inductor import only_vmap_is_active
from undrift.compiler.kernels import enabled
from undrift.compiler.kernels.gather import LONG
from undrift.compiler.kernels.products import compiled_products, outputs

FEW_CLASSES = 64  # of which cross entropy is computed class by class, for all samples at once

OWN_PRODUCTS: ContextVar[bool] = ContextVar("own_products", default=False)


@contextmanager
def own_products(wanted: bool) -> Iterator[None]:
    """Let layers be computed with products of our own meanwhile, if that is wanted; the first time compiles them."""
    before = OWN_PRODUCTS.set(wanted)
    try:
        yield
    finally:
        OWN_PRODUCTS.reset(before)


@contextmanager
def fast_layers(several: bool) -> Iterator[None]:
    """Let layers be computed as it is fastest for one model, or for several that are mapped over (`vmap`)."""
    if several or OWN_PRODUCTS.get():
        with _Layers():
            yield
    else:
        yield


class _Layers(TorchFunctionMode):
    """Puts `dense` and `_cross_entropy` in the place of torch's functions, where nothing but the output is asked for."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return OURS.get(func, func)(*args, **(kwargs or {}))


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`dense` for a layer as usual, of which no derivative is taken, and which is not compiled by somebody else."""
    usual = weight.dim() == 2 and (bias is None or bias.dim() == 1)
    if usual and only_vmap_is_active():
        return dense(input, weight, bias, OWN_PRODUCTS.get())
    return F.linear(input, weight, bias)


def _cross_entropy(input: Tensor, target: Tensor, *args: Any, ignore_index: int = -100, **kwargs: Any) -> Tensor:
    """The mean cross entropy of scores `[n, classes]` and integers, as its definition says; else torch's own."""
    usual = input.dim() == 2 and target.dim() == 1 and not target.is_floating_point() and len(input) == len(target)
    few = usual and input.shape[1] <= FEW_CLASSES and input.dtype in (torch.float32, torch.float64)
    if not few or args or kwargs.items() - USUAL_LOSS or not OWN_PRODUCTS.get() or not only_vmap_is_active():
        return F.cross_entropy(input, target, *args, ignore_index=ignore_index, **kwargs)
    counted = target != ignore_index
    of_target = input.gather(1, torch.where(counted, target, 0).unsqueeze(1)).squeeze(1)
    losses = input.T.contiguous().logsumexp(0) - of_target
    return torch.where(counted, losses, 0).sum() / counted.sum()


USUAL_LOSS = {
    ("weight", None),
    ("reduction", "mean"),
    ("label_smoothing", 0.0),
    ("size_average", None),
    ("reduce", None),
}
OURS: dict[Any, Any] = {F.linear: _linear, F.cross_entropy: _cross_entropy}


# Registered plainly: `torch.library.custom_op` takes as long as a small layer itself.
_library = torch.library.Library("undrift", "FRAGMENT")
_library.define("dense(Tensor x, Tensor w, Tensor? b, bool own) -> Tensor")
dense = torch.ops.undrift.dense.default


def _dense(x: Tensor, w: Tensor, b: Tensor | None, own: bool) -> Tensor:
    """x w' + b, from samples `[..., k]` and a layer `[n, k]`."""
    if not own or not _are_ours(x, w):
        return F.linear(x, w, b)
    found = outputs(x.reshape(1, -1, x.shape[-1]), None, w.unsqueeze(0))
    found = found.view(*x.shape[:-1], len(w))
    return found if b is None else found.add_(b)


def _dense_of_several(info: Any, dims: Any, x: Tensor, w: Tensor, b: Tensor | None, own: bool) -> tuple[Tensor, int]:
    """Of several models, or several minibatches: models and samples that are mapped over come first."""
    R, (x_dim, w_dim, b_dim, _) = info.batch_size, dims
    x = x if x_dim is None else x.movedim(x_dim, 0)
    if w_dim is None:
        found = dense(x, w, None, own)
        found = found if x_dim is not None else found.expand(R, *found.shape)
    elif x_dim is None:
        layers = w.movedim(w_dim, 0)
        all_at_once = dense(x, layers.flatten(0, 1), None, own)
        found = all_at_once.unflatten(-1, layers.shape[:2]).movedim(-2, 0)
    else:
        layers, samples = w.movedim(w_dim, 0), x.reshape(R, -1, x.shape[-1])
        each = outputs(samples, None, layers) if own and _are_ours(x, w) else samples @ layers.mT
        found = each.view(*x.shape[:-1], layers.shape[1])
    if b is not None:
        b = b if b_dim is None else b.movedim(b_dim, 0)
        ones = [1] * (found.dim() - 2)
        found = found + (b if b_dim is None else b.view(R, *ones, -1))
    return found, 0


_library.impl("dense", _dense, "CompositeExplicitAutograd")
torch.library.register_fake("undrift::dense", lambda x, w, b, own: x.new_empty(*x.shape[:-1], len(w)))
torch.library.register_vmap("undrift::dense", _dense_of_several)


def _are_ours(x: Tensor, w: Tensor) -> bool:
    """Whether there is code for them, and they are so long that it is as fast as a library's, or faster."""
    on_cpu = x.device.type == w.device.type == "cpu" and x.dtype == w.dtype
    long = x.shape[-1] >= LONG
    return on_cpu and long and enabled("own-products") and w.dtype in compiled_products()
