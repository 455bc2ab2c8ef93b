"""The registry of data sets: names, options, readers and tables of one's own, nothing unpickled."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import undrift as ud
from tests.support.real_data import ROOT
from undrift.core.errors import InvalidInput
from undrift.data import datasets, registry, store
from undrift.data.registry import DATASETS, Data, load


def test_every_name_has_a_reader() -> None:
    for name, source in DATASETS.items():
        assert source.read.__module__.startswith("undrift.data.datasets."), name
        assert callable(source.read) and source.about, name


def test_unknown_names_and_options() -> None:
    with pytest.raises(InvalidInput, match="unknown data set 'minst'; did you mean 'mnist'"):
        load("minst")
    with pytest.raises(InvalidInput, match="option of cifar100: 'label'; did you mean 'labels'"):
        load("cifar100", label="fine")
    with pytest.raises(InvalidInput, match="heart has no options, got 'seed'"):
        load("heart", seed=1)
    with pytest.raises(InvalidInput, match="'fine' or 'coarse', got 'medium'"):
        load("cifar100", labels="medium")


def test_a_custom_reader_is_held_to_its_name_and_its_type() -> None:
    X, y = torch.zeros(2, 1), torch.tensor([0, 1])

    @ud.dataset("custom", about="two samples")
    def custom(as_data: bool = True) -> Any:
        return Data("custom", (X, y), None) if as_data else (X, y)

    try:
        assert load("custom").about == "two samples"
        assert ud.dataset("custom", about="again")(custom) is custom  # a cell that is run twice
        with pytest.raises(InvalidInput, match="'custom': its reader must return a ud.Data, got t"):
            load("custom", as_data=False)
        with pytest.raises(InvalidInput, match="there is a data set 'custom' already"):
            ud.dataset("custom")(lambda: None)
    finally:
        DATASETS.pop("custom")


def test_a_table_with_column_names() -> None:
    class Dataset:  # as Hugging Face's
        column_names = ["x", "y", "who"]

        def __getitem__(self, name: str) -> list[Any]:
            return {"x": [0.5, 1.5], "y": [True, False], "who": [7, 3]}[name]

    data = ud.from_table(Dataset(), ["x"], "y", "who")
    assert data.client_names == ("3", "7") and data.clients is not None
    assert data.clients.tolist() == [1, 0] and data.train[1].tolist() == [1, 0]
    with pytest.raises(InvalidInput, match="unknown column 'keys'.* Known: who, x, y"):
        ud.from_table(Dataset(), "keys", "y")


def test_importing_is_lazy() -> None:
    code = (
        "import sys, undrift, undrift.data.datasets;"
        "assert 'undrift.data.datasets.uci' in sys.modules;"
        "print([m for m in ('h5py', 'PIL', 'sklearn') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_nothing_is_unpickled(home: Path) -> None:
    readers = Path(str(datasets.__file__)).parent.glob("*.py")
    for file in (Path(store.__file__), Path(registry.__file__), *readers):
        source = file.read_text()
        assert "import pickle" not in source and "allow_pickle=True" not in source
        assert "torch.load" not in source
        loads = re.findall(r"np\.load\([^)]*\)", source)
        assert all("allow_pickle=False" in call for call in loads)

    class Trap:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(home / "sprung"),)

    objects = np.array([Trap()], dtype=object)
    np.savez(home / "hapt_int16.npz", x=objects, seg_len=objects, seg_label=objects, seg_user=objects)
    with pytest.raises(InvalidInput, match="hapt_int16.npz is not a whole npz file"):
        load("hapt")
    assert not (home / "sprung").exists()


def test_data_check_themselves() -> None:
    X, y = torch.zeros(3, 2), torch.tensor([0, 1, 2])
    clients = torch.tensor([0, 0, 1])
    Data("a", (X, y), None, clients, client_names=("p", "q"), classes=3)
    for wrong, message in [
        (lambda: Data("a", (X[:2], y), None), "2 inputs and 3 targets"),
        (lambda: Data("a", (X[:0], y[:0]), None), "0 inputs"),
        (lambda: Data("a", (X, y), None, classes=2), "from 0 to 2, allowed are 0 to 1"),
        (lambda: Data("a", (X, y.int()), None, classes=3), "must be int64"),
        (lambda: Data("a", (X / 0, y), None), "train inputs have NaN or Inf"),
        (lambda: Data("a", (X, y), None, clients, client_names=("p",)), "for 1 client names"),
        (lambda: Data("a", (X, y), None, -clients, client_names=("p", "q")), "clients go from -1"),
        (lambda: Data("a", (X, y), None, clients[:2], client_names=("p",)), "one per sample"),
        (lambda: Data("a", (X, y), None, test_clients=clients), "test_clients must be"),
        (lambda: Data("a", (X, y), (X, y - 1), classes=3), "test labels go from -1"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            wrong()


def test_tables_with_named_columns() -> None:
    table = {
        "a": [1.0, 2.0, 3.0, 4.0],
        "b": [0.0, 1.0, 0.0, 1.0],
        "y": [0, 1, 0, 1],
        "site": list("xyxy"),
    }
    data = ud.from_table(table, ["a", "b"], "y", "site")
    problem = ud.federate(data, model=nn.Linear(2, 2), loss=F.cross_entropy, clients=ud.Natural())
    assert problem.N == 2 and problem.samples(0).tolist() == [0, 2]
    with pytest.raises(ud.InvalidInput, match="unknown column 'c'"):
        ud.from_table(table, ["a", "c"], "y")
    with pytest.raises(ud.InvalidInput, match="1 samples name no client, the first is sample 2"):
        ud.from_table(table | {"site": ["x", "y", None, "y"]}, ["a", "b"], "y", "site")
    with pytest.raises(ud.InvalidInput, match="not numbers: encode it first"):
        ud.from_table(table, ["a", "site"], "y")
