"""How much clients differ: metrics and a picture."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from torch import Tensor

from undrift.data.assignment import ClientIndices
from undrift.data.trees import Tree

SHOWN = 100  # clients in a picture
LOOKED_AT = 20_000  # clients in the metrics of labels; more are sampled evenly


def labels_of(Y: Tree) -> np.ndarray | None:
    """One integer a sample, if that is what targets are."""
    labels = isinstance(Y, Tensor) and Y.dim() == 1 and not Y.is_floating_point()
    return Y.cpu().numpy() if labels else None


@dataclass(frozen=True)
class Heterogeneity:
    """Sizes, and how far clients' labels are from those of all samples together.

    divergence   total variation distance between a client's labels and all labels, mean over clients: 0 the same,
                 1 - 1/classes if every client has one of equally frequent classes
    """

    smallest: int
    median: float
    largest: int
    classes: int | None = None
    classes_held: float | None = None  # by a client, on average
    divergence: float | None = None
    mean: float | None = None  # samples a client

    def __str__(self) -> str:
        mean = "" if self.mean is None else f", mean {self.mean:.4g}"
        sizes = f"samples a client: {self.smallest} to {self.largest}, median {self.median:g}{mean}"
        if self.classes is None:
            return sizes
        return (
            f"{sizes}\nclasses a client: {self.classes_held:.1f} of {self.classes} on average\n"
            f"label divergence from the whole: {self.divergence:.3f} (0 = IID, {1 - 1 / self.classes:.3f} = one class each)"
        )


def measure_heterogeneity(parts: ClientIndices, labels: np.ndarray | None) -> Heterogeneity:
    """The metrics of a partition."""
    sizes = parts.sizes
    smallest, median, largest = int(sizes.min()), float(np.median(sizes)), int(sizes.max())
    if labels is None:
        return Heterogeneity(smallest, median, largest, mean=float(sizes.mean()))
    counts, whole = _histograms(parts, labels, LOOKED_AT)
    shares = counts / counts.sum(1, keepdims=True)
    divergence = np.abs(shares - whole / whole.sum()).sum(1).mean() / 2
    held = (counts > 0).sum(1).mean()
    return Heterogeneity(smallest, median, largest, len(whole), float(held), float(divergence), float(sizes.mean()))


def summarise_heterogeneity(parts: ClientIndices, labels: np.ndarray | None) -> dict[str, Any]:
    """What a picture needs, as JSON holds it: sizes, and the shares of labels of (at most a hundred) clients."""
    some = np.unique(np.linspace(0, parts.N - 1, min(parts.N, LOOKED_AT)).astype(int))
    shares = None
    if labels is not None:
        counts, _ = _histograms(parts, labels, SHOWN)
        shares = (counts / counts.sum(1, keepdims=True)).round(4).tolist()
    metrics = asdict(measure_heterogeneity(parts, labels))
    return {"heterogeneity": metrics, "sizes": parts.sizes[some].tolist(), "label_shares": shares}


def plot_heterogeneity(parts: ClientIndices, labels: np.ndarray | None) -> Any:
    """A figure with the labels of (at most a hundred) clients, and the sizes of all."""
    import matplotlib.pyplot as plt  # here, because it is slow to import and seldom needed

    rows = 1 if labels is None else 2
    figure, axes = plt.subplots(rows, 1, figsize=(9, 2.6 * rows), layout="constrained", squeeze=False)
    if labels is not None:
        counts, whole = _histograms(parts, labels, SHOWN)
        shares = counts / counts.sum(1, keepdims=True)
        image = axes[0, 0].imshow(shares.T, aspect="auto", cmap="cividis", vmin=0, interpolation="none")
        axes[0, 0].set(xlabel=f"client ({len(counts)} of {parts.N:,})", ylabel="label")
        figure.colorbar(image, ax=axes[0, 0], label="share of its samples")
    axes[-1, 0].hist(parts.sizes, bins=40, color="#0072b2")
    axes[-1, 0].set(xlabel="samples of a client", ylabel="clients")
    axes[-1, 0].spines[["top", "right"]].set_visible(False)
    return figure


def _histograms(parts: ClientIndices, labels: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """How often each label occurs with each of (at most so many) clients, and in all."""
    _, codes = np.unique(labels, return_inverse=True)
    C = int(codes.max()) + 1
    clients = np.unique(np.linspace(0, parts.N - 1, min(parts.N, most)).astype(int))
    counts = np.stack([np.bincount(codes[parts.of(int(i))], minlength=C) for i in clients])
    return counts, np.bincount(codes, minlength=C)
