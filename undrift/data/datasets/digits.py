"""The digits that come with scikit-learn: a data set without files."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from undrift.core.errors import InvalidInput
from undrift.data.datasets.common import split_rng
from undrift.data.registry import Data, dataset
from undrift.data.transforms import Normalise

TRAIN = 1500


@dataset(
    "digits",
    about="the digits of scikit-learn: test part of UCI Machine Learning Repository, Optical Digits; CC BY 4.0",
)
def digits() -> Data:
    """The 1,797 digits of scikit-learn: uint8 [1500, 1, 8, 8] to train and [297, 1, 8, 8] to test, values 0 to 16.

    Shuffled with a fixed seed; no natural clients, no file.
    """
    installed = find_spec("sklearn")  # read beside it: importing it takes as long as importing torch
    if installed is None or not installed.submodule_search_locations:
        raise InvalidInput("data digits are those of scikit-learn, which is not installed: pip install scikit-learn")
    file = Path(installed.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    table = np.loadtxt(file, delimiter=",")
    pixels, labels = table[:, :-1], table[:, -1]
    order = split_rng().permutation(len(labels))
    train, test = (
        (
            torch.from_numpy(pixels[rows].astype(np.uint8)).reshape(-1, 1, 8, 8),
            torch.from_numpy(labels[rows].astype(np.int64)),
        )
        for rows in (order[:TRAIN], order[TRAIN:])
    )
    return Data("digits", train, test, classes=10, prepare=Normalise((0.0,), (1.0,), scale=16.0))
