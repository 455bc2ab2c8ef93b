"""Low-rank adapters (LoRA, Hu et al. 2022): W + B A with W frozen, of which A and B are trained, or B alone."""

from collections.abc import Iterable
from typing import TypeVar

from torch import nn

from undrift.core.errors import InvalidInput

Module = TypeVar("Module", bound=nn.Module)


def lora_pairs(names: Iterable[str]) -> list[tuple[str, str]]:
    """The parameters A and B of each adapted layer, as `peft` names them.

    >>> lora_pairs(["h.0.lora_A.default.weight", "h.0.lora_B.default.weight", "head.weight"])
    [('h.0.lora_A.default.weight', 'h.0.lora_B.default.weight')]
    """
    known = list(names)
    pairs = [(name, name.replace("lora_A", "lora_B")) for name in known if "lora_A" in name.split(".")]
    return [(a, b) for a, b in pairs if b in known]


def freeze_lora_a(model: Module) -> Module:
    """Train B alone in all LoRA adapters of a model (FFA-LoRA, Sun et al. 2024), in place; returns the model.

    Averages of clients' B are then exact: (mean B_i) A = mean(B_i A), and half of the adapter travels.

    >>> model = nn.ModuleDict({"lora_A": nn.Linear(4, 2, bias=False), "lora_B": nn.Linear(2, 4, bias=False)})
    >>> [name for name, p in freeze_lora_a(model).named_parameters() if p.requires_grad]
    ['lora_B.weight']
    """
    factors = [a for a, _ in lora_pairs(name for name, _ in model.named_parameters())]
    if not factors:
        raise InvalidInput(
            "freeze_lora_a: the model has no LoRA adapters, parameters called ...lora_A... and ...lora_B..."
        )
    for name in factors:
        model.get_parameter(name).requires_grad_(False)
    return model
