"""How methods are told apart in every picture: colours that the colour-blind can tell (Okabe and Ito's), then dashes."""

from collections.abc import Sequence

BASELINE = "#4a525c"  # neutral: what the others are compared with
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#882255")
DASHES = ("", "7 3", "2 3", "9 3 2 3")


def looks(labels: Sequence[str], baseline: str) -> dict[str, tuple[int, int]]:
    """(colour, dash) of every label: colour 0 is the baseline's, the others count from 1.

    >>> looks(["fedavg", "ghbm", "fedhbm"], "fedavg")
    {'fedavg': (0, 0), 'ghbm': (1, 0), 'fedhbm': (2, 0)}
    """
    others = [label for label in labels if label != baseline]
    place = {label: number for number, label in enumerate(others or labels)}
    return {
        label: (0, 0)
        if label == baseline and others
        else (1 + place[label] % len(COLOURS), place[label] // len(COLOURS) % len(DASHES))
        for label in labels
    }
