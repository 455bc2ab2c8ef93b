"""The models of the papers: sizes, shapes, gradients, a step of training; GroupNorm for BatchNorm."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from urllib.error import URLError

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

import undrift as ud
from undrift import models
from undrift.problems.flat import FlatModel

# Sums over layers, by hand: the weights of convolutions and linear layers, their biases, scales and shifts of norms.
RESNET20 = (
    9 * 3 * 16 + 6 * 9 * 16 * 16
    + 9 * 16 * 32 + 5 * 9 * 32 * 32
    + 9 * 32 * 64 + 5 * 9 * 64 * 64
    + 2 * (7 * 16 + 6 * 32 + 6 * 64)
)  # fmt: skip
RESNET18 = (
    9 * 3 * 64 + 4 * 9 * 64 * 64
    + 9 * 64 * 128 + 3 * 9 * 128 * 128 + 64 * 128
    + 9 * 128 * 256 + 3 * 9 * 256 * 256 + 128 * 256
    + 9 * 256 * 512 + 3 * 9 * 512 * 512 + 256 * 512
    + 2 * 5 * (64 + 128 + 256 + 512)
)  # fmt: skip
PFL = 28 * 32 + (9 * 32 + 1) * 64 + 12545 * 128 + 129 * 10
CHAR = 80 * 8 + 400 * (8 + 100 + 2) + 400 * (100 + 100 + 2) + 101 * 80
GREY_LENET = 26 * 64 + (25 * 64 + 1) * 64 + 1025 * 384 + 385 * 192 + 193 * 10
WORDS = 10004 * 96 + 2680 * (96 + 670 + 2) + 671 * 96 + 97 * 10004


class Case(NamedTuple):
    make: Callable[[], nn.Module]
    parameters: int
    inputs: tuple[int, ...]  # the shape of one sample; one number is the length of a text
    classes: int
    hand: int | None = None
    every_step: bool = False


IMAGE, GREY = (3, 32, 32), (1, 28, 28)
CASES = {
    "mlp": Case(lambda: models.mlp(784, 200, 10), 159_010, GREY, 10),
    "mlp3": Case(lambda: models.mlp(3072, 200, 200, 10), 656_810, IMAGE, 10),
    "logistic": Case(lambda: models.logistic(60, 10), 610, (60,), 10),
    "lenet": Case(models.lenet, 797_962, IMAGE, 10),
    "lenet-100": Case(lambda: models.lenet(100), 815_332, IMAGE, 100),
    "lenet-grey": Case(lambda: models.lenet(10, channels=1, size=28), 573_578, GREY, 10, GREY_LENET),
    "lenet-5": Case(lambda: models.lenet(widths=[6, 16, 120, 84]), 62_006, IMAGE, 10),
    "cnn_pfl": Case(models.cnn_pfl, 1_626_442, IMAGE, 10, PFL),
    "vgg11": Case(models.vgg11, 9_750_922, IMAGE, 10),
    "resnet20": Case(models.resnet20, 269_722, IMAGE, 10, RESNET20 + 65 * 10),
    "resnet20-100": Case(lambda: models.resnet20(100), 275_572, IMAGE, 100, RESNET20 + 65 * 100),
    "resnet18": Case(models.resnet18, 11_173_962, IMAGE, 10, RESNET18 + 513 * 10),
    "char_lstm": Case(models.char_lstm, 133_520, (80,), 80, CHAR),
    "char_lstm-64": Case(lambda: models.char_lstm(hidden=64, layers=1), 24_784, (80,), 80),
    "stackoverflow_lstm": Case(models.stackoverflow_lstm, 4_053_428, (5,), 10_004, WORDS, every_step=True),
}
EVERY = pytest.mark.parametrize("name", CASES)


def build(name: str) -> nn.Module:
    torch.manual_seed(0)
    return CASES[name].make()


def batch(name: str, n: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    case, random = CASES[name], torch.Generator().manual_seed(1)
    if "lstm" in name:
        X = torch.randint(case.classes, (n, *case.inputs), generator=random)
    else:
        X = torch.randn(n, *case.inputs, generator=random, dtype=dtype)
    targets = (n, *case.inputs) if case.every_step else (n,)
    return X, torch.randint(case.classes, targets, generator=random)


def count(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


@EVERY
def test_parameters(name: str) -> None:
    case, net = CASES[name], build(name)
    assert count(net) == case.parameters == (case.hand or case.parameters)
    assert FlatModel(net).x0.numel() == case.parameters
    assert not list(net.buffers())


@EVERY
def test_output_has_a_score_a_class_and_the_input_stays(name: str) -> None:
    case, net = CASES[name], build(name).eval()
    X, Y = batch(name, 2)
    before = X.clone()
    with torch.no_grad():
        output = net(X)
        one = net(X[:1])
    assert output.shape == (2, case.classes, *Y.shape[1:])
    assert torch.equal(X, before)
    assert torch.allclose(one, output[:1], rtol=1e-4, atol=1e-5)  # a sample does not see the others
    assert output.std() > 1e-3


@EVERY
def test_gradient_of_the_flat_model_is_autograds(name: str) -> None:
    net = build(name).double().eval()  # nothing is dropped
    flat, (X, Y) = FlatModel(net), batch(name, 2, torch.float64)
    F.cross_entropy(net(X), Y).backward()
    expected = torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])
    assert expected.shape == flat.x0.shape
    y = flat.x0.clone().requires_grad_()
    (ours,) = torch.autograd.grad(F.cross_entropy(flat(y, X), Y), y)
    assert (ours - expected).norm() <= 1e-9 * expected.norm()
    assert expected.norm() > 1e-3


@EVERY
def test_one_step_of_a_federation_lowers_the_loss(name: str) -> None:
    data = batch(name, 4)
    problem = ud.federate(data, model=build(name), loss=F.cross_entropy, clients=ud.IID(2))
    result = ud.run(ud.FedAvg(), problem, rounds=1, local=ud.Local(steps=1, lr=0.001))
    assert result.history[0].metrics["loss"] < problem.evaluate(problem.x0)["loss"]


def test_resnet20_shortcuts_subsample_and_pad() -> None:
    x = torch.randn(2, 16, 8, 8)
    y = models.Subsample(16, 2)(x)
    assert y.shape == (2, 32, 4, 4)
    assert torch.equal(y[:, 8:24], x[:, :, ::2, ::2])
    assert y[:, :8].count_nonzero() == y[:, 24:].count_nonzero() == 0


def spread(name: str, kind: type[nn.Module], expected: Callable[[Tensor], float]) -> list[float]:
    """The standard deviations of the larger weights of a model, over the expected ones."""
    layers: list[Any] = [m for m in build(name).modules() if isinstance(m, kind)]
    weights: list[Tensor] = [m.weight.detach() for m in layers if m.weight.numel() > 2000]
    return [float(w.std()) / expected(w) for w in weights]


def test_initial_weights_are_the_sources() -> None:
    by_fan_in = spread("resnet20", nn.Conv2d, lambda w: (2 / w[0].numel()) ** 0.5)
    by_fan_out = spread("vgg11", nn.Conv2d, lambda w: (2 / w[:, 0].numel()) ** 0.5)
    by_both = spread("cnn_pfl", nn.Linear, lambda w: (2 / sum(w.shape)) ** 0.5)
    assert [len(by_fan_in), len(by_fan_out), len(by_both)] == [18, 7, 1]
    assert [*by_fan_in, *by_fan_out, *by_both] == pytest.approx([1.0] * 26, rel=0.05)


@pytest.mark.parametrize("sizes", [(), (784,), (784, 0, 10)])
def test_mlp_says_what_it_takes(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ud.InvalidInput, match=r"mlp\(784, 200, 10\)"):
        models.mlp(*sizes)


def test_lenet_says_what_is_too_small() -> None:
    assert models.lenet(size=16)(torch.zeros(1, 3, 16, 16)).shape == (1, 10)
    with pytest.raises(ud.InvalidInput, match="16 x 16, got size=15"):
        models.lenet(size=15)


@pytest.mark.parametrize("widths", [(6, 16, 120), (6, 16, 120, 0), (6.0, 16, 120, 84)], ids=str)
def test_lenet_has_four_widths(widths: Any) -> None:
    with pytest.raises(ud.InvalidInput, match="four widths, of two convolutions and two dense layers, got"):
        models.lenet(widths=widths)


def test_models_by_name() -> None:
    assert set(models.MODELS) == {
        "mlp", "logistic", "lenet", "cnn_pfl", "vgg11", "resnet20", "resnet18", "char_lstm",
        "stackoverflow_lstm", "mobilenet_v2", "vit_b16",
    }  # fmt: skip
    assert count(models.MODELS["lenet"](classes=100)) == 815_332


# torchvision


@pytest.mark.parametrize("name", ["mobilenet_v2", "vit_b16"])
def test_without_torchvision_the_message_says_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)  # as if it were not there
    monkeypatch.delitem(sys.modules, "torchvision.models", raising=False)
    with pytest.raises(ud.InvalidInput, match=rf"'{name}'.*pip install undrift\[vision\]"):
        models.MODELS[name](10)


def test_torchvisions_models_get_their_classes_and_group_norm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a stand-in for torchvision, for which there is no build that fits every torch."""

    def small(num_classes: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.LazyLinear(num_classes))

    package: Any = ModuleType("torchvision")
    zoo: Any = ModuleType("torchvision.models")
    package.models, zoo.mobilenet_v2, zoo.vit_b_16 = zoo, small, small
    monkeypatch.setitem(sys.modules, "torchvision", package)
    monkeypatch.setitem(sys.modules, "torchvision.models", zoo)
    net = models.mobilenet_v2(7)
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in net.modules())
    assert any(isinstance(layer, nn.GroupNorm) for layer in net.modules())
    assert net(torch.randn(2, 3, 8, 8)).shape == (2, 7)
    assert models.vit_b16(5)(torch.randn(2, 3, 8, 8)).shape == (2, 5)


class Zoo:
    """A stand-in for torchvision.models: small nets, and weights that are in its cache, or cannot be downloaded."""

    def __init__(self, cached: dict[str, torch.Tensor] | None = None):
        self.cached = cached

    def mobilenet_v2(self, num_classes: int = 1000, weights: str | None = None) -> nn.Module:
        net = nn.Sequential()
        net.add_module("features", nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten()))
        net.add_module("classifier", nn.Sequential(nn.Dropout(0.2), nn.Linear(4 * 36, num_classes)))
        if weights is not None:
            assert weights == "DEFAULT" and num_classes == 1000
            if self.cached is None:
                raise URLError("no route to host")
            net.load_state_dict(self.cached)
        return net

    vit_b_16 = mobilenet_v2


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> dict[str, torch.Tensor]:
    """The state of a net for 1000 classes; torchvision has it in its cache."""
    torch.manual_seed(3)
    state = Zoo().mobilenet_v2().state_dict()
    monkeypatch.setattr(models, "_torchvision_models", lambda name: Zoo(state))
    return state


def check_pretrained(net: nn.Module, state: dict[str, torch.Tensor], classes: int) -> None:
    own = net.state_dict()
    for name in ("features.0.weight", "features.0.bias", "features.1.weight", "features.1.bias"):
        assert torch.equal(own[name], state[name])
    assert own["classifier.1.weight"].shape == (classes, 4 * 36)
    assert net(torch.randn(2, 3, 8, 8)).shape == (2, classes)


def test_pretrained_weights_are_torchvisions_with_a_new_last_layer(trained: dict[str, torch.Tensor]) -> None:
    net = models.mobilenet_v2(7, pretrained=True)
    check_pretrained(net, trained, 7)
    assert any(isinstance(layer, nn.GroupNorm) for layer in net.modules())
    check_pretrained(models.vit_b16(5, pretrained=True), trained, 5)
    torch.manual_seed(0)
    first = models.vit_b16(5, pretrained=True)
    torch.manual_seed(0)
    again = models.vit_b16(5, pretrained=True)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize("kind", ["pth", "safetensors"])
def test_pretrained_weights_may_be_in_a_file(kind: str, trained: dict[str, torch.Tensor], tmp_path: Path) -> None:
    path = tmp_path / f"weights.{kind}"
    if kind == "pth":
        torch.save(trained, path)
    else:
        save_file(trained, path)
    check_pretrained(models.mobilenet_v2(7, pretrained=path), trained, 7)
    check_pretrained(models.vit_b16(1000, pretrained=str(path)), trained, 1000)


def test_pretrained_weights_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(models, "_torchvision_models", lambda name: Zoo())
    with pytest.raises(ud.InvalidInput, match=r'no route to host.*give a file.*pretrained="mobilenet_v2.pth"'):
        models.mobilenet_v2(7, pretrained=True)
    with pytest.raises(ud.InvalidInput, match="vit_b16: pretrained='nowhere.pth' cannot be read: .*No such file"):
        models.vit_b16(7, pretrained="nowhere.pth")
    evil, other = tmp_path / "evil.pth", tmp_path / "other.pth"
    torch.save({"features.0.weight": Zoo()}, evil)  # an object, which must not be unpickled
    with pytest.raises(ud.InvalidInput, match=r"evil.pth' cannot be read: Weights only load failed"):
        models.mobilenet_v2(7, pretrained=evil)
    torch.save(nn.Linear(2, 2).state_dict(), other)
    with pytest.raises(ud.InvalidInput, match=r"other.pth' is of another model: features.0.weight is missing"):
        models.mobilenet_v2(7, pretrained=other)


# group_norm


def normalised() -> Any:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3),
        nn.BatchNorm2d(6, eps=1e-3),
        nn.Sequential(nn.ReLU(), nn.BatchNorm2d(6, affine=False)),
        nn.Conv2d(6, 5, 3),
        nn.BatchNorm2d(5),
        nn.Flatten(),
        nn.Linear(80, 9),
        nn.BatchNorm1d(9),
    )
    for p in net.parameters():
        nn.init.normal_(p)
    return net


def test_group_norm_replaces_every_batch_norm() -> None:
    net: Any = models.group_norm(normalised(), groups=4)
    found = [m for m in net.modules() if isinstance(m, nn.GroupNorm)]
    assert [(m.num_groups, m.num_channels) for m in found] == [(3, 6), (3, 6), (1, 5), (3, 9)]
    assert [m.affine for m in found] == [True, False, True, True]
    assert found[0].eps == 1e-3 and found[1].weight is None
    assert not list(net.buffers())
    FlatModel(net)


def test_group_norm_keeps_parameters_and_leaves_the_original() -> None:
    old = normalised()
    before = {name: value.clone() for name, value in old.state_dict().items()}
    new: Any = models.group_norm(old)
    assert [n for n, _ in new.named_parameters()] == [n for n, _ in old.named_parameters()]
    for a, b in zip(new.parameters(), old.parameters(), strict=True):
        assert torch.equal(a, b) and a is not b
    with torch.no_grad():
        for p in new.parameters():
            p.zero_()
    new(torch.randn(2, 3, 8, 8))
    assert isinstance(old[1], nn.BatchNorm2d) and isinstance(old[2][1], nn.BatchNorm2d)
    assert old.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in old.state_dict().items())


def test_group_norm_of_one_channel_a_group_is_instance_norm() -> None:
    old = nn.BatchNorm3d(4)
    nn.init.normal_(old.weight)
    nn.init.normal_(old.bias)
    x = torch.randn(2, 4, 3, 3, 3)
    expected = F.instance_norm(x, weight=old.weight, bias=old.bias)
    new = models.group_norm(old, groups=100)  # a layer by itself, more groups than channels
    assert isinstance(new, nn.GroupNorm) and new.num_groups == 4
    assert torch.allclose(new(x), expected, atol=1e-5)


def test_group_norm_keeps_what_is_shared_frozen_double_and_in_evaluation() -> None:
    shared: Any = nn.BatchNorm1d(4).double()
    shared.bias.requires_grad_(False)
    old = nn.Sequential(shared, nn.Linear(4, 4).double(), shared).eval()
    new: Any = models.group_norm(old)
    assert new[0] is new[2] and new[0] is not shared
    assert new[0].weight.dtype == torch.float64 and not new[0].training
    assert new[0].weight.requires_grad and not new[0].bias.requires_grad
    assert new(torch.randn(3, 4).double()).shape == (3, 4)


def test_group_norm_says_what_it_cannot_use() -> None:
    with pytest.raises(ud.InvalidInput, match="at least 1, got 0"):
        models.group_norm(normalised(), groups=0)
