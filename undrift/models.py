"""The models of the papers.  Every one normalises by groups or not at all, so all its state is in its parameters.

>>> net = lenet(classes=100)
>>> sum(p.numel() for p in net.parameters())
815332
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar, overload

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from undrift.core.errors import InvalidInput, first_line, registering

Make = TypeVar("Make", bound=Callable[..., nn.Module])

MODELS: dict[str, Callable[..., nn.Module]] = {}


@overload
def model(name: Make) -> Make: ...
@overload
def model(name: str | None = None) -> Callable[[Make], Make]: ...
def model(name: Any = None) -> Any:
    """Register a function that returns an nn.Module as a model that experiments know by its name, or `@model("another")`.

    Parameters called inputs, classes, channels or size are filled in from the data.

    >>> @model
    ... def wide(inputs: int, classes: int) -> nn.Module:
    ...     return mlp(inputs, 1000, classes)
    >>> MODELS.pop("wide").__name__
    'wide'
    """
    return registering("model", name, MODELS, as_written=True)


# dense


@model
def mlp(*sizes: int) -> nn.Module:
    """Linear layers with ReLU in between, on flattened inputs.

    mlp(784, 200, 10), the two layers on MNIST of Cheng et al. (2024; the width is ours): 159,010 parameters
    mlp(3072, 200, 200, 10), their three layers on CIFAR-10 (again our widths): 656,810 parameters
    """
    if len(sizes) < 2 or min(sizes) < 1:
        raise InvalidInput(
            f"mlp takes the inputs, the hidden widths and the classes, all positive, got {sizes}: "
            "e.g. mlp(784, 200, 10)"
        )
    layers: list[nn.Module] = [nn.Flatten()]
    for width, following in pairwise(sizes):
        layers += [nn.Linear(width, following), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


@model
def logistic(inputs: int, classes: int) -> nn.Module:
    """Logistic regression on flattened inputs; (60, 10) on Synthetic (Wang et al. 2020): 610 parameters."""
    return mlp(inputs, classes)


# convolutions


@model
def lenet(
    classes: int = 10, channels: int = 3, size: int = 32, widths: Sequence[int] = (64, 64, 384, 192)
) -> nn.Module:
    """The LeNet-like CNN of Zaccone et al. (GHBM): 797,962 parameters for 10 classes, 815,332 for 100.

    Images are [channels, size, size] with size >= 16; nothing is padded.  `widths` are those of its two convolutions
    and two dense layers; with (6, 16, 120, 84) it is LeNet-5, as NIID-Bench has it: 62,006 parameters.
    """
    if len(widths) != 4 or not all(isinstance(width, int) and width > 0 for width in widths):
        raise InvalidInput(f"lenet takes four widths, of two convolutions and two dense layers, got {widths!r}")
    first, second, *dense = widths
    side = ((size - 4) // 2 - 4) // 2
    if side < 1:
        raise InvalidInput(f"lenet needs images of at least 16 x 16, got size={size}: pad or enlarge them")
    return nn.Sequential(
        nn.Conv2d(channels, first, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(first, second, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        *mlp(second * side**2, *dense, classes).children(),
    )


@model
def cnn_pfl(classes: int = 10) -> nn.Module:
    """The CIFAR CNN of pfl-research (Granqvist et al. 2024): 1,626,442 parameters for 10 classes.

    Weights start from Glorot's uniform distribution, as theirs do.
    """
    net = nn.Sequential(
        nn.Conv2d(3, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(64 * 14**2, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, classes),
    )
    for layer in _layers(net, nn.Conv2d, nn.Linear):
        nn.init.xavier_uniform_(layer.weight)
    return net


@model
def vgg11(classes: int = 10) -> nn.Module:
    """VGG-11 for 32 x 32 images, no normalisation (FedNova, Wang et al. 2020): 9,750,922 parameters for 10 classes.

    Convolutions start from He's normal distribution by fan-out with biases 0, as in the authors' code; with torch's
    default, eleven layers without normalisation hardly pass a signal.
    """
    layers: list[nn.Module] = []
    channels = 3
    for stage in ([64], [128], [256, 256], [512, 512], [512, 512]):
        for width in stage:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    for layer in _layers(nn.ModuleList(layers), nn.Conv2d):
        nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(layer.bias)
    return nn.Sequential(
        *layers,
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(512, 512),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(512, 512),
        nn.ReLU(),
        nn.Linear(512, classes),
    )


# residual networks


class Residual(nn.Module):
    """ReLU of a body plus its shortcut."""

    def __init__(self, body: nn.Module, shortcut: nn.Module):
        super().__init__()
        self.body, self.shortcut = body, shortcut

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


class Subsample(nn.Module):
    """He et al.'s shortcut A, without parameters: every stride-th pixel, and channels of zeros on both sides."""

    def __init__(self, extra: int, stride: int):
        super().__init__()
        self.before, self.after, self.stride = extra // 2, extra - extra // 2, stride

    def forward(self, x: Tensor) -> Tensor:
        pixels = x[:, :, :: self.stride, :: self.stride]
        return F.pad(pixels, (0, 0, 0, 0, self.before, self.after))


@model
def resnet20(classes: int = 10) -> nn.Module:
    """ResNet-20 of He et al. (2016) for CIFAR, with GroupNorm(2), as in Zaccone et al. (GHBM).

    269,722 parameters for 10 classes, 275,572 for 100.  Shortcuts A; weights start from He's normal distribution.
    """
    net = _resnet([16, 32, 64], 3, classes, lambda channels, width, stride: Subsample(width - channels, stride))
    for layer in _layers(net, nn.Conv2d, nn.Linear):
        nn.init.kaiming_normal_(layer.weight)
    return net


@model
def resnet18(classes: int = 10) -> nn.Module:
    """ResNet-18 for CIFAR (3 x 3 stem, no max-pooling), with GroupNorm(2); Cheng et al. (2024) do not say which norm.

    11,173,962 parameters for 10 classes.  Shortcuts B (1 x 1 convolutions); torch's default initialisation.
    """
    projection = lambda channels, width, stride: nn.Sequential(*_conv(channels, width, stride, kernel=1))
    return _resnet([64, 128, 256, 512], 2, classes, projection)


def _resnet(widths: list[int], blocks: int, classes: int, shortcut: Callable[[int, int, int], nn.Module]) -> nn.Module:
    """Stages of `blocks` residual blocks; where size or width changes, shortcut(channels, width, stride)."""
    channels = widths[0]
    layers: list[nn.Module] = [*_conv(3, channels), nn.ReLU()]
    for stage, width in enumerate(widths):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            body = nn.Sequential(*_conv(channels, width, stride), nn.ReLU(), *_conv(width, width))
            same = stride == 1 and channels == width
            around = nn.Identity() if same else shortcut(channels, width, stride)
            layers.append(Residual(body, around))
            channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def _conv(channels: int, width: int, stride: int = 1, kernel: int = 3) -> list[nn.Module]:
    conv = nn.Conv2d(channels, width, kernel, stride, padding=kernel // 2, bias=False)
    return [conv, nn.GroupNorm(2, width)]


# text


class Recurrent(nn.Module):
    """Embedding, LSTM, head; `[b, T]` tokens to scores of the token after the last, or `[b, classes, T]` after each."""

    def __init__(self, embedding: nn.Embedding, lstm: nn.LSTM, head: nn.Module, every_step: bool):
        super().__init__()
        self.embedding, self.lstm, self.head, self.every_step = embedding, lstm, head, every_step

    def forward(self, tokens: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.embedding(tokens))
        return self.head(hidden).mT if self.every_step else self.head(hidden[:, -1])


@model
def char_lstm(vocabulary: int = 80, classes: int = 80, hidden: int = 100, layers: int = 2) -> nn.Module:
    """The next character of Shakespeare (LEAF, Caldas et al. 2018; Zaccone et al.): 133,520 parameters.

    int64 [b, T] (T = 80 in the papers) to scores [b, classes].  `hidden` is the width of each of the `layers`.
    """
    lstm = nn.LSTM(8, hidden, num_layers=layers, batch_first=True)
    return Recurrent(nn.Embedding(vocabulary, 8), lstm, nn.Linear(hidden, classes), every_step=False)


@model
def stackoverflow_lstm(vocabulary: int = 10004) -> nn.Module:
    """The next word of StackOverflow (Reddi et al. 2021; Zaccone et al.): 4,053,428 parameters.

    int64 [b, T] to scores [b, vocabulary, T], which F.cross_entropy takes with targets [b, T].  In Keras, whose
    LSTM has one bias where torch's has two, it is 4,050,748.  The code of Zaccone et al. scores the last step only.
    """
    lstm = nn.LSTM(96, 670, batch_first=True)
    head = nn.Sequential(nn.Linear(670, 96), nn.Linear(96, vocabulary))
    return Recurrent(nn.Embedding(vocabulary, 96), lstm, head, every_step=True)


# large images


@model
def mobilenet_v2(classes: int, pretrained: bool | str | Path = False) -> nn.Module:
    """torchvision's MobileNetV2 with GroupNorm, untrained or pretrained on ImageNet (as Zaccone et al. have it).

    2,223,872 + 1281 classes parameters: 4,821,740 for the 2028 classes of GLDv2.

    pretrained   True: torchvision's weights, which it downloads once; or a file with them, .pth or .safetensors.  The last
                 layer is a new one for these classes; GroupNorm keeps the scales of BatchNorm, not its statistics.
    """
    return group_norm(_torchvision_net("mobilenet_v2", "mobilenet_v2", classes, pretrained))


@model
def vit_b16(classes: int, pretrained: bool | str | Path = False) -> nn.Module:
    """torchvision's ViT-B/16 for 224 x 224 images, untrained or pretrained on ImageNet (as Zaccone et al. have it).

    85,798,656 + 769 classes parameters: 87,358,188 for the 2028 classes of GLDv2.  `pretrained` as for mobilenet_v2.
    """
    return _torchvision_net("vit_b16", "vit_b_16", classes, pretrained)


def _torchvision_net(name: str, theirs: str, classes: int, pretrained: bool | str | Path) -> nn.Module:
    make = getattr(_torchvision_models(name), theirs)
    if pretrained is False:
        return make(num_classes=classes)
    if pretrained is True:
        try:
            net = make(weights="DEFAULT")
        except OSError as error:  # of the network, or of the cache
            raise InvalidInput(
                f"{name}: torchvision could not get its pretrained weights ({error}): give a file that has them, "
                f'pretrained="{theirs}.pth"'
            ) from error
        return _with_new_head(net, classes)
    weights = _read_weights(name, Path(pretrained))
    with torch.device("meta"):  # for its names, without memory
        head = weights.get(f"{_head_of(make(num_classes=classes))}.bias")
    net = make(num_classes=classes if head is None else len(head))
    own = net.state_dict()
    for each in own | weights:
        if each not in own or each not in weights or own[each].shape != weights[each].shape:
            raise InvalidInput(
                f"{name}: pretrained={str(pretrained)!r} is of another model: {each} is missing, or not of its shape"
            )
    net.load_state_dict(weights)
    return _with_new_head(net, classes)


def _read_weights(name: str, path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)  # tensors and nothing else
    except Exception as error:  # of files, archives, headers, and what may not be unpickled
        raise InvalidInput(f"{name}: pretrained={str(path)!r} cannot be read: {first_line(error)}") from error


def _head_of(net: nn.Module) -> str:
    """The name of the last linear layer."""
    return [name for name, layer in net.named_modules() if isinstance(layer, nn.Linear)][-1]


def _with_new_head(net: nn.Module, classes: int) -> nn.Module:
    name = _head_of(net)
    features = int(net.get_submodule(name).in_features)  # pyright: ignore[reportArgumentType]
    net.set_submodule(name, nn.Linear(features, classes))
    return net


def _torchvision_models(name: str) -> Any:
    try:
        return import_module("torchvision.models")
    except ImportError as error:
        raise InvalidInput(f"model {name!r} needs torchvision ({error}): pip install undrift[vision]") from error


# normalisation


def group_norm(model: nn.Module, groups: int = 2) -> nn.Module:
    """A copy of a model with GroupNorm for every BatchNorm; weights and biases are kept, running statistics are not.

    Where `groups` does not divide the channels, the largest divisor below it is taken.

    >>> group_norm(nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6)), groups=4)[1].num_groups
    3
    """
    if groups < 1:
        raise InvalidInput(f"groups must be at least 1, got {groups}")
    holder = nn.ModuleList([deepcopy(model)])  # so that the model itself may be a BatchNorm
    replaced: dict[nn.Module, nn.Module] = {}  # a layer used twice stays one layer
    for parent in list(holder.modules()):
        for name, layer in list(parent._modules.items()):
            if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)):
                if layer not in replaced:
                    replaced[layer] = _group_norm_for(layer, groups)
                setattr(parent, name, replaced[layer])
    return holder[0]


def _group_norm_for(old: nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d, groups: int) -> nn.GroupNorm:
    channels = old.num_features
    fitting = max(g for g in range(1, min(groups, channels) + 1) if channels % g == 0)
    new = nn.GroupNorm(fitting, channels, eps=old.eps, affine=old.affine)
    new.weight, new.bias = old.weight, old.bias  # the copy's own: dtype, device, frozen and tied
    return new.train(old.training)


def _layers(net: nn.Module, *kinds: type[nn.Module]) -> list[Any]:
    return [layer for layer in net.modules() if isinstance(layer, kinds)]
