"""LoRA adapters: what averaging them leaves out, in numpy, and those that `peft` gives a language model."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import undrift as ud
from undrift.core.errors import InvalidInput

STEPS = ud.Local(steps=3, batch=4, lr=0.5)


class NextToken(nn.Module):
    """Logits of the next token, (samples, tokens of the vocabulary), from GPT-2 with adapters."""

    def __init__(self) -> None:
        super().__init__()
        peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
        torch.manual_seed(0)
        sizes = {"vocab_size": 11, "n_positions": 6, "n_embd": 8, "n_layer": 2, "n_head": 2}
        quiet = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}
        config = transformers.GPT2Config(**sizes, **quiet, use_cache=False, attn_implementation="eager")
        adapters = peft.LoraConfig(r=2, lora_alpha=4, target_modules=["c_attn"], fan_in_fan_out=True)
        self.gpt = peft.get_peft_model(transformers.GPT2LMHeadModel(config), adapters).double()

    def forward(self, tokens: Tensor) -> Tensor:
        return self.gpt(input_ids=tokens).logits[:, -1]


def federation(model: nn.Module) -> ud.ModelProblem:
    random = torch.Generator().manual_seed(1)
    tokens = torch.randint(11, (24, 6), generator=random)
    after = (tokens[:, -1] + 1) % 11
    return ud.federate((tokens, after), model=model, loss=F.cross_entropy, clients=ud.IID(3))


@pytest.mark.slow  # the import of transformers
@pytest.mark.parametrize("b_alone", (False, True))
def test_adapters_of_gpt2_are_what_is_trained_and_sent(b_alone: bool) -> None:
    model = NextToken()
    if b_alone:
        ud.freeze_lora_a(model)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    count = sum(before[name].numel() for name in trained)
    assert count == 2 * 2 * (24 if b_alone else 24 + 8)  # layers, rank, outputs and inputs of c_attn
    problem = federation(model)
    settings: dict[str, Any] = {"rounds": 2, "local": STEPS, "metrics": ("train", "lora_bias:5")}
    one, many = (ud.run(ud.FedAvg(), problem, engine=e, **settings) for e in ("sequential", "batched"))
    assert problem.x0.numel() == count and (one.x - many.x).abs().max() < 1e-9
    assert all(r.bytes_up == r.bytes_down == 3 * 8 * count for r in one.history)
    after = dict(one.model().named_parameters())
    assert {name for name in before if not torch.equal(before[name], after[name])} == trained
    kept = ud.run(ud.Scaffold(), problem, rounds=1, local=STEPS).state.clients.gather(range(3))
    assert kept.c.shape == (3, count)  # what clients keep is of the adapter's size, too
    bias = [r.metrics["lora_bias"] for r in one.history]
    assert max(bias) < 1e-9 if b_alone else min(bias) > 1e-3


class Adapted(nn.Module):
    """(W + B A) x, with W frozen."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.frozen, self.lora_A, self.lora_B = (nn.Linear(*sizes, bias=False) for sizes in ((3, 4), (3, 2), (2, 4)))
        self.frozen.requires_grad_(False)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(x) + self.lora_B(self.lora_A(x))


def test_lora_bias_as_one_would_write_it() -> None:
    random, model = np.random.default_rng(0), Adapted()
    X, Y = random.standard_normal((2, 8, 3)), random.standard_normal((2, 8, 4))
    W, A, B = (p.detach().numpy().copy() for p in model.parameters())
    data = [(torch.tensor(x), torch.tensor(y)) for x, y in zip(X, Y, strict=True)]
    problem = ud.federate(data, model=model, loss=F.mse_loss)
    run: dict[str, Any] = {"rounds": 1, "local": ud.Local(steps=2, lr=0.3)}
    found = ud.run(ud.FedAvg(), problem, metrics="lora_bias:3", **run).history[-1].metrics["lora_bias"]

    def clients(A: Any, B: Any, steps: int) -> list[Any]:
        made = []
        for x, y in zip(X, Y, strict=True):
            a, b = A, B
            for _ in range(steps):
                slope = 2 * (x @ (W + b @ a).T - y).T @ x / y.size
                a, b = a - 0.3 * b.T @ slope, b - 0.3 * slope @ a.T
            made.append((a, b))
        return made

    A, B = (np.mean(each, axis=0) for each in zip(*clients(A, B, 2), strict=True))
    after = clients(A, B, 3)
    product = np.mean([b @ a for a, b in after], axis=0)
    mean_a, mean_b = (np.mean(each, axis=0) for each in zip(*after, strict=True))
    expected = np.linalg.norm(product - mean_b @ mean_a) / np.linalg.norm(product - B @ A)
    assert found == pytest.approx(expected, rel=1e-9) and expected > 1e-3
    alone = ud.federate(data, model=ud.freeze_lora_a(model), loss=F.mse_loss)
    assert ud.run(ud.FedAvg(), alone, metrics="lora_bias:3", **run).history[-1].metrics["lora_bias"] < 1e-12


def test_models_without_adapters_are_refused() -> None:
    with pytest.raises(InvalidInput, match="freeze_lora_a: the model has no LoRA adapters"):
        ud.freeze_lora_a(nn.Linear(2, 1))
    problem = ud.federate([(torch.ones(2, 2), torch.ones(2, 1))], model=nn.Linear(2, 1), loss=F.mse_loss)
    with pytest.raises(InvalidInput, match="the model has no LoRA adapters"):
        ud.run(ud.FedAvg(), problem, rounds=1, metrics="lora_bias")
