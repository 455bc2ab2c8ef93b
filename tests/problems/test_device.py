"""Where a problem is computed: the same on every device that is there, and plain errors for others."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import undrift as ud
from tests.support.everywhere import federation, models, played
from tests.support.toy_problem import gap

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
DEVICES = ["cpu", pytest.param("cuda", marks=needs_cuda)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("engine", ["sequential", "batched", "events"])
@pytest.mark.parametrize("algorithm", [ud.FedAvg(), ud.Scaffold(B=1), ud.FedNova(), ud.GHBM(tau=3)], ids=repr)
def test_every_device_has_the_same_trajectory(device: str, engine: str, algorithm: Any) -> None:
    local = ud.Local(steps=[4, 2, 3, 1, 5], batch=4, lr=0.1)
    problem = federation(device=device)
    assert problem.x0.device.type == device
    rounds = played(algorithm, engine, problem, local=local, codec="bf16", metrics=("test", "train"))
    assert all(r.x.device.type == device for r in rounds)
    reference = played(algorithm, "sequential", federation(), local=local, codec="bf16", metrics=("test", "train"))
    found = torch.stack([r.x.cpu() for r in rounds]).numpy()
    assert gap(found, models(reference)) < 1e-9
    for r, other in zip(rounds, reference, strict=True):
        assert r.metrics == pytest.approx(other.metrics, rel=1e-9)


def made(device: Any) -> Any:
    data = torch.randn(8, 2), torch.arange(8) % 2
    return ud.federate(data, model=nn.Linear(2, 2), loss=F.cross_entropy, clients=ud.IID(2), device=device)


@pytest.mark.parametrize("device", [None, "cpu", torch.device("cpu")], ids=str)
def test_devices_that_are_there(device: Any) -> None:
    problem = made(device)
    assert problem.x0.device.type == "cpu"
    assert ud.run(ud.FedAvg(), problem, rounds=1).x.isfinite().all()


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("gpu", "device must be 'cpu', 'cuda', 'cuda:1' or the like, got 'gpu'"),
        ("cuda:x", "device must be 'cpu', 'cuda', 'cuda:1' or the like, got 'cuda:x'"),
        (3.5, "device must be 'cpu', 'cuda', 'cuda:1' or the like, got 3.5"),
        ("meta", "device 'meta' is not supported: use 'cpu' or 'cuda'"),
        ("cuda:99", "device 'cuda:99': .* available here: use"),
    ],
    ids=str,
)
def test_devices_that_are_not(device: Any, message: str) -> None:
    with pytest.raises(ud.InvalidInput, match=message):
        made(device)


def test_without_cuda_the_error_says_what_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    for device in ("cuda", "cuda:0", "cuda:1", torch.device("cuda")):
        with pytest.raises(ud.InvalidInput, match="no CUDA device is available here: use device='cpu'"):
            made(device)


def test_without_mps_the_error_says_what_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ud.InvalidInput, match="'mps' is not available here: use device='cpu'"):
        made("mps")


def test_the_models_own_device_is_the_default() -> None:
    net = nn.Linear(2, 2)
    data = torch.randn(8, 2), torch.arange(8) % 2
    problem = ud.federate(data, model=net, loss=F.cross_entropy, clients=ud.IID(2))
    assert problem.x0.device == net.weight.device
