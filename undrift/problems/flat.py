"""An nn.Module as a function of one flat vector."""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase

from undrift.core.errors import InvalidInput
from undrift.problems.dropout import with_keyed_dropout


class FlatModel:
    """The trainable parameters of a module laid end to end.  Tied weights count once, frozen ones stay where they are.

    >>> flat = FlatModel(nn.Linear(2, 3))
    >>> flat.x0.shape
    torch.Size([9])
    """

    def __init__(self, module: nn.Module, device: torch.device | None = None):
        for name, layer in module.named_modules():
            if isinstance(layer, _NormBase) and layer.track_running_stats:
                raise InvalidInput(
                    f"layer {name!r} ({type(layer).__name__}) keeps running statistics, which are not parameters "
                    "and cannot be averaged with them: ud.group_norm(model) puts GroupNorm in its place"
                )
        self.original = module
        self.template = deepcopy(module).to(device)
        self.dropouts = with_keyed_dropout(self.template)
        named = [(n, p) for n, p in self.template.named_parameters() if p.requires_grad]
        if not named:
            raise InvalidInput("the model has no trainable parameters")
        dtypes = {p.dtype for _, p in named}
        if len(dtypes) > 1:
            raise InvalidInput(f"the model's parameters must have one dtype, got {dtypes}")
        self.names = [n for n, _ in named]
        self.shapes = [p.shape for _, p in named]
        self.sizes = [p.numel() for _, p in named]
        self.x0 = torch.cat([p.detach().flatten() for _, p in named])

    def parameters(self, y: Tensor) -> dict[str, Tensor]:
        """The vector as named parameters: views, no copies."""
        parts = y.split(self.sizes)
        return {n: p.view(s) for n, p, s in zip(self.names, parts, self.shapes, strict=True)}

    def __call__(self, y: Tensor, inputs: Tensor, seed: Tensor | None = None) -> Any:
        """The model's output; `seed` chooses the units that dropout drops in training."""
        for layer in self.dropouts:
            layer.seed, layer.calls = seed, 0
        try:
            return functional_call(self.template, self.parameters(y), (inputs,))
        finally:
            for layer in self.dropouts:
                layer.seed = None  # which may exist inside a transformation only

    def module(self, x: Tensor) -> nn.Module:
        """A copy of the user's module with these parameters."""
        copy = deepcopy(self.original).eval()
        own = dict(copy.named_parameters())
        with torch.no_grad():
            for name, value in self.parameters(x).items():
                own[name].copy_(value)
        return copy

    def has(self, *kinds: type[nn.Module]) -> bool:
        """Whether any layer is of one of these kinds."""
        return any(isinstance(layer, kinds) for layer in self.template.modules())

    def buffers(self) -> dict[str, Tensor]:
        """What the module holds besides parameters, as it is now."""
        return {name: value.clone() for name, value in self.template.named_buffers()}
