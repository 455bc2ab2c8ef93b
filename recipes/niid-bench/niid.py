"""NIID-Bench's setting as Flower's baseline has it: its network, and partitions of which every client keeps a tenth for itself."""

import numpy as np
from torch import Tensor, nn

import undrift as ud
from undrift.data.assignment import Samples

HELD_OUT = 0.1  # of every client's samples, on which the baseline never trains


class ChannelsLast(nn.Module):
    """The same images with strides that convolutions of few channels are faster on."""

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        return x.permute(0, 2, 3, 1).contiguous().as_strided((b, c, h, w), (c * h * w, 1, w * c, c))


@ud.model
def niid_cnn(classes: int = 10, channels: int = 1, size: int = 28) -> nn.Module:
    """Two convolutions of 5 x 5 and three dense layers: 44,426 parameters on MNIST."""
    side = ((size - 4) // 2 - 4) // 2
    return nn.Sequential(
        ChannelsLast(),
        nn.Conv2d(channels, 6, 5),
        nn.MaxPool2d(2),  # before the ReLU, which comes to the same with a quarter of the numbers
        nn.ReLU(),
        nn.Conv2d(6, 16, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        *ud.models.mlp(16 * side**2, 120, 84, classes).children(),
    )


@ud.partition("niid-dirichlet", exact=False)
class NiidDirichlet:
    """ClassDirichlet, of which clients use nine tenths."""

    N: int
    alpha: float

    def split(self, samples: Samples, seed: int) -> list[np.ndarray]:
        random = np.random.default_rng([seed, 1])
        dealt = ud.ClassDirichlet(self.N, alpha=self.alpha).split(samples, seed)
        shuffled = [random.permutation(dealt.of(client)) for client in range(self.N)]
        return [own[int(HELD_OUT * len(own)) :] for own in shuffled]
