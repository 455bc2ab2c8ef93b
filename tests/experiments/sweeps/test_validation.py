"""Data held out to choose by."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import undrift as ud
from tests.support.small_sweep import FEW, experiment
from undrift.core.errors import InvalidInput
from undrift.data.registry import DATASETS, Data, dataset
from undrift.experiments.sweeps.plan import Plan
from undrift.experiments.sweeps.space import Space
from undrift.experiments.sweeps.sweeping import run_sweep
from undrift.experiments.sweeps.validation import with_held_out

# data to choose by


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    fraction=st.floats(0.05, 0.9),
    seed=st.integers(0, 2**32),
)
def test_held_out_data_are_nobodys(sizes, fraction, seed):
    n = sum(sizes) + 30
    ends = np.cumsum(sizes)
    clients = [np.arange(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    clients.append(np.arange(n - 30, n))  # so that something can be held out
    X = torch.arange(n, dtype=torch.float32)[:, None]
    whole = ud.federate((X, torch.arange(n) % 2), model=nn.Linear(1, 2), loss=F.cross_entropy, clients=clients)
    part = with_held_out(whole, fraction, seed)
    assert part.test is not None
    held = set(part.test[0].flatten().long().tolist())
    kept = [set(part.samples(i).tolist()) for i in range(part.N)]
    assert all(kept) and not held & set().union(*kept)
    for i, client in enumerate(clients):
        assert kept[i] | (held & set(client.tolist())) == set(client.tolist())
        assert abs(len(held & set(client.tolist())) - fraction * len(client)) <= 1
    again = with_held_out(whole, fraction, seed)
    assert again.test is not None and torch.equal(again.test[0], part.test[0])


def test_a_shared_sample_is_held_out_of_all_its_clients():
    X = torch.arange(10.0)[:, None]
    whole = ud.federate(
        (X, torch.arange(10) % 2),
        model=nn.Linear(1, 2),
        loss=F.cross_entropy,
        clients=ud.IID(40, size=4),
    )
    part = with_held_out(whole, 0.5, seed=0)
    assert part.test is not None
    held = set(part.test[0].flatten().long().tolist())
    kept = [set(part.samples(i).tolist()) for i in range(part.N)]
    assert held and all(kept) and not held & set().union(*kept)


def test_nothing_held_out_is_an_error():
    X = torch.zeros(3, 1)
    lonely = ud.federate((X, torch.arange(3)), model=nn.Linear(1, 3), loss=F.cross_entropy, clients=ud.IID(3))
    with pytest.raises(InvalidInput, match="holds out nothing"):
        with_held_out(lonely, 0.5, seed=0)


def test_test_data_are_not_looked_at_unless_asked_for(tmp_path):
    @dataset("coins")
    def coins(other: bool = False) -> Data:
        random = torch.Generator().manual_seed(0)
        X, Y = torch.randn(90, 4, generator=random), torch.arange(90) % 3
        test = X[:30] + 9 * other, Y[:30]
        return Data("coins", (X + Y[:, None], Y), test, classes=3)

    def qualities(validate: float, other: bool):
        clients = {"partition": "iid", "number": 6}
        e = experiment("fedavg", data={"name": "coins", "other": other}, clients=clients)
        plan = Plan(Space("lr", common=FEW), validate=validate)
        place = tmp_path / f"{validate} {other}"
        return [t.outcome.qualities for t in run_sweep(e, plan, place)]

    try:
        assert qualities(0.2, other=False) == qualities(0.2, other=True)
        assert qualities(0, other=False) != qualities(0, other=True)
    finally:
        DATASETS.pop("coins")
