"""An nn.Module as a function of one flat vector."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from fnmatch import fnmatchcase
from functools import cached_property
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.parameter import is_lazy

from undrift.core.errors import InvalidInput
from undrift.data.trees import Tree
from undrift.problems.dropout import with_keyed_dropout


class FlatModel:
    """The trainable parameters of a module laid end to end.  Tied weights count once, frozen ones stay where they are.

    >>> flat = FlatModel(nn.Linear(2, 3))
    >>> flat.x0.shape
    torch.Size([9])
    """

    def __init__(self, module: nn.Module, device: torch.device | None = None, local: str | Sequence[str] | None = None):
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if is_lazy(tensor):
                raise InvalidInput(
                    f"the model's {name!r} has no shape before its first call: call the model on one sample first, "
                    "model(X[:1])"
                )
        trained = [n for n, p in module.named_parameters() if p.requires_grad]
        own = () if local is None else local_names(module, trained, local)
        for name, layer in module.named_modules():
            if isinstance(layer, _NormBase) and layer.track_running_stats and not _is_local(name, layer, own):
                raise InvalidInput(
                    f"layer {name!r} ({type(layer).__name__}) keeps running statistics, which are not parameters "
                    "and cannot be averaged with them: ud.group_norm(model) puts GroupNorm in its place, or "
                    "local_parameters='batch-norm' leaves such layers to clients (FedBN)"
                )
        self.original, self.signature = module, signature(module.forward)
        self.template = deepcopy(module).to(device)
        self.dropouts = with_keyed_dropout(self.template)
        self.norms = [
            layer for layer in self.template.modules() if isinstance(layer, _BatchNorm) and layer.track_running_stats
        ]
        for layer in self.norms:
            layer.track_running_stats = False  # those of the minibatch in training, `statistics_of` in evaluation
        named = [(n, p) for n, p in self.template.named_parameters() if p.requires_grad]
        named.sort(key=lambda each: each[0] in own)  # clients' own ones at the end
        if not named:
            raise InvalidInput("the model has no trainable parameters")
        dtypes = {p.dtype for _, p in named}
        if len(dtypes) > 1:
            raise InvalidInput(f"the model's parameters must have one dtype, got {dtypes}")
        self.names = [n for n, _ in named]
        self.shapes = [p.shape for _, p in named]
        self.sizes = [p.numel() for _, p in named]
        self.x0 = torch.cat([p.detach().flatten() for n, p in named if n not in own])
        self.local_names = [n for n in self.names if n in own]
        self.local_x0 = torch.cat([p.detach().flatten() for n, p in named if n in own]) if own else None

    @cached_property
    def own_modules(self) -> list[nn.Module]:
        """Those whose classes are the user's, and whose code may set attributes."""
        known = ("torch", "undrift")
        return [each for each in self.template.modules() if type(each).__module__.split(".")[0] not in known]

    def parameters(self, y: Tensor) -> dict[str, Tensor]:
        """The vector as named parameters: views, no copies.

        Of the shared parameters alone it is completed with the initial values of clients' own.
        """
        if self.local_x0 is not None and y.shape[-1] == self.x0.shape[-1]:
            y = torch.cat([y, self.local_x0])
        parts = y.split(self.sizes)
        return {n: p.view(s) for n, p, s in zip(self.names, parts, self.shapes, strict=True)}

    def arguments(self, inputs: Tree) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A dict goes to the model by keywords and a tuple by position where it takes them so, else as they are."""
        args, kwargs = (inputs,), {}
        if isinstance(inputs, dict | tuple):
            given: Any = ((), inputs) if isinstance(inputs, dict) else (inputs, {})
            try:
                self.signature.bind(*given[0], **given[1])
                args, kwargs = given
            except TypeError as error:
                if isinstance(inputs, dict) and {*inputs} & {*self.signature.parameters}:
                    takes = f"the model takes {self.signature}, the inputs are {', '.join(inputs)}"
                    raise InvalidInput(f"{takes}: {error}") from error
        return args, kwargs

    def __call__(self, y: Tensor, inputs: Tree, seed: Tensor | None = None) -> Any:
        """The model's output; `seed` chooses the units that dropout drops in training."""
        for layer in self.dropouts:
            layer.seed, layer.calls = seed, 0
        try:
            return functional_call(self.template, self.parameters(y), *self.arguments(inputs))
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
        buffers = dict(copy.named_buffers())
        for name, value in self.template.named_buffers():
            if name.endswith(("running_mean", "running_var")) and self.norms:
                buffers[name].copy_(value)
        return copy

    @contextmanager
    def statistics_of(self, y: Tensor, batches: Iterable[Tree]) -> Iterator[None]:
        """Evaluate with means and variances of these inputs in BatchNorm layers, as a client has them for its own model."""
        initial = [(layer.running_mean, layer.running_var) for layer in self.norms]
        seen: dict[nn.Module, list[Tensor]] = {layer: [] for layer in self.norms}

        def look(layer: Any, inputs: tuple[Tensor, ...]) -> None:
            x = inputs[0].transpose(0, 1).flatten(1)
            seen[layer].append(torch.stack([x.mean(1), x.square().mean(1), torch.full_like(x[:, 0], x.shape[1])]))

        handles = [layer.register_forward_pre_hook(look) for layer in self.norms]
        try:
            for layer in self.norms:
                layer.train()
            for batch in batches if self.norms else ():
                self(y, batch)
            for layer in self.norms:
                mean, square, count = torch.stack(seen[layer]).unbind(1)
                share = count / count.sum(0)
                layer.running_mean = (share * mean).sum(0)
                layer.running_var = ((share * square).sum(0) - layer.running_mean.square()).clamp(min=0)
                layer.eval()
            for handle in handles:
                handle.remove()
            yield
        finally:
            for handle, layer, (mean, var) in zip(handles, self.norms, initial, strict=True):
                handle.remove()
                layer.running_mean, layer.running_var = mean, var
                layer.eval()

    def has(self, *kinds: type[nn.Module]) -> bool:
        """Whether any layer is of one of these kinds."""
        return any(isinstance(layer, kinds) for layer in self.template.modules())

    @cached_property
    def dense_width(self) -> int | None:
        """The outputs of the widest layer, if all layers that have parameters are dense ones and none is the user's own."""
        layers = [layer for layer in self.template.modules() if next(layer.parameters(recurse=False), None) is not None]
        if self.own_modules or not all(type(layer) is nn.Linear for layer in layers):
            return None
        return max(layer.out_features for layer in layers if isinstance(layer, nn.Linear))

    def frozen(self) -> dict[str, Tensor]:
        """The parameters that are not trained."""
        return {name: p for name, p in self.template.named_parameters() if name not in self.names}

    def buffers(self) -> dict[str, Tensor]:
        """What the module holds besides parameters, as it is now."""
        return {name: value.clone() for name, value in self.template.named_buffers()}


def local_names(module: nn.Module, trained: Sequence[str], patterns: str | Sequence[str]) -> set[str]:
    """The trainable parameters that patterns name: by themselves, by a layer that they are in, or all of "batch-norm".

    >>> model = nn.ModuleDict({"body": nn.Linear(2, 2), "head": nn.Linear(2, 1)})
    >>> sorted(local_names(model, [n for n, _ in model.named_parameters()], "head"))
    ['head.bias', 'head.weight']
    """
    norms = {f"{n}.{p}" for n, m in module.named_modules() if isinstance(m, _NormBase) for p in ("weight", "bias")}
    asked = [patterns] if isinstance(patterns, str) else list(patterns)
    found: set[str] = set()
    for pattern in asked:
        if not isinstance(pattern, str):
            raise InvalidInput(f"local_parameters are names or patterns, one or a list of them, got {pattern!r}")
        matches = {n for n in trained if _matches(n, pattern) or (pattern == "batch-norm" and n in norms)}
        if not matches:
            raise InvalidInput(
                f"local_parameters={pattern!r} matches none of the model's trainable parameters: {_some(trained)}; name "
                "one, a layer ('head'), a pattern ('*.bn?') or 'batch-norm'"
            )
        found |= matches
    if not found:
        raise InvalidInput("local_parameters is an empty list: leave it out, or name parameters")
    if len(found) == len(trained):
        raise InvalidInput(
            f"local_parameters={patterns!r} matches all trainable parameters, so that nothing would be shared: name "
            "fewer, or train every client alone with ud.reference('local-only', ...)"
        )
    return found


def _matches(name: str, pattern: str) -> bool:
    """Whether a pattern fits a parameter's name or that of a layer around it."""
    parts = name.split(".")
    return any(fnmatchcase(".".join(parts[: i + 1]), pattern) for i in range(len(parts)))


def _is_local(name: str, layer: nn.Module, own: Iterable[str]) -> bool:
    """Whether all parameters of a layer, of which there are some, are clients' own."""
    inside = [f"{name}.{p}" if name else p for p, _ in layer.named_parameters()]
    return bool(inside) and {*inside} <= {*own}


def _some(names: Sequence[str], most: int = 12) -> str:
    more = f", ... ({len(names)} in all)" if len(names) > most else ""
    return ", ".join(names[:most]) + more
