"""Partitions: every sample dealt once, nobody left empty, the same from the same seed, bounded in time; your own."""

import time
import tomllib
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

import undrift as ud
from undrift.data.assignment import PARTITIONS, ClientIndices, Samples, assign_clients
from undrift.experiments.config.federation import federation


def samples(n: int, classes: int, seed: int) -> Samples:
    random = np.random.default_rng(seed)
    features = random.normal(size=(n, 3))
    return Samples(n, random.integers(0, classes, n), lambda c: features[:, c])


ALL: dict[str, Any] = {
    "iid": lambda N: ud.IID(N),
    "dirichlet-0": lambda N: ud.Dirichlet(N, 0.0),
    "dirichlet-0.01": lambda N: ud.Dirichlet(N, 0.01),
    "dirichlet-0.3": lambda N: ud.Dirichlet(N, 0.3),
    "dirichlet-100": lambda N: ud.Dirichlet(N, 100.0),
    "class-dirichlet": lambda N: ud.ClassDirichlet(N, 0.5, min_size=1),
    "shards": lambda N: ud.Shards(N, 2),
    "classes-1": lambda N: ud.ClassesPerClient(N, 1),
    "classes-2": lambda N: ud.ClassesPerClient(N, 2),
    "similarity-0": lambda N: ud.Similarity(N, 0),
    "similarity-10": lambda N: ud.Similarity(N, 10),
    "similarity-100": lambda N: ud.Similarity(N, 100),
    "quantity": lambda N: ud.QuantitySkew(N, 0.5),
    "feature": lambda N: ud.FeatureSkew(N, 1),
}
EQUAL = {"iid", "dirichlet-0.01", "dirichlet-0.3", "dirichlet-100", "similarity-0", "similarity-10",
         "similarity-100", "feature"}  # fmt: skip


@pytest.mark.parametrize("name", ALL)
@given(N=st.integers(1, 25), n=st.integers(60, 300), classes=st.integers(1, 6), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_every_sample_is_dealt_once(name: str, N: int, n: int, classes: int, seed: int) -> None:
    data = samples(n, classes, seed)
    try:
        parts = ALL[name](N).split(data, seed)
    except ud.InvalidInput:
        assume(False)  # what cannot be done is refused; see test_bad_input
        raise
    assert parts.N == N
    assert sorted(parts.index) == list(range(n))
    assert sorted(np.concatenate([parts.of(i) for i in range(N)])) == list(range(n))
    assert parts.sizes.min() >= 1
    if name in EQUAL:
        assert parts.sizes.max() - parts.sizes.min() <= 1
    again = ALL[name](N).split(data, seed)
    assert (again.index == parts.index).all() and (again.sizes == parts.sizes).all()


def labels_held(parts: ClientIndices, labels: np.ndarray | None) -> list[int]:
    assert labels is not None
    return [len(set(labels[parts.of(i)])) for i in range(parts.N)]


def test_alpha_zero_gives_one_class_a_client() -> None:
    data = samples(500, 10, 0)
    assert set(labels_held(ud.Dirichlet(50, 0).split(data, 0), data.labels)) == {1}
    with pytest.raises(ud.InvalidInput, match="10 classes need as many clients, got 7"):
        ud.Dirichlet(7, 0).split(data, 0)


def test_classes_per_client_are_exact() -> None:
    data = samples(1000, 10, 0)
    for k in (1, 2, 3, 10):
        parts = ud.ClassesPerClient(20, k).split(data, 1)
        assert set(labels_held(parts, data.labels)) == {k}


def test_shards_hold_few_classes() -> None:
    data = Samples(1000, np.repeat(np.arange(10), 100))
    parts = ud.Shards(50, 2).split(data, 0)
    assert max(labels_held(parts, data.labels)) <= 2
    assert set(parts.sizes) == {20}


def test_similarity_goes_from_sorted_to_iid() -> None:
    data = Samples(5000, np.repeat(np.arange(10), 500))
    held = [np.mean(labels_held(ud.Similarity(50, s).split(data, 0), data.labels)) for s in (0, 10, 100)]
    assert held[0] == 1 and 5 < held[1] < 8 and held[2] > 9.9


def test_feature_skew_is_in_the_order_of_the_column() -> None:
    values = np.random.default_rng(0).integers(0, 9, 200).astype(float)
    parts = ud.FeatureSkew(10, 0).split(Samples(200, None, lambda c: values), 0)
    means = [values[parts.of(i)].mean() for i in range(10)]
    assert means == sorted(means)


def test_dirichlet_mixtures_have_the_right_spread() -> None:
    """While the pools last, a client's share of a class has the mean and variance of Dirichlet(alpha)."""
    data = Samples(20000, np.repeat(np.arange(5), 4000))
    assert data.labels is not None
    for alpha in (0.3, 2.0):
        parts = ud.Dirichlet(200, alpha).split(data, 0)
        shares = np.array([np.bincount(data.labels[parts.of(i)], minlength=5) / 100 for i in range(60)])
        assert shares.mean(0) == pytest.approx(np.full(5, 0.2), abs=0.12)
        assert shares.var() == pytest.approx(0.2 * 0.8 / (5 * alpha + 1), rel=0.25)


@pytest.mark.parametrize("alpha", [0.2, 0.5])
def test_dirichlet_in_both_conventions(alpha: float) -> None:
    """Zaccone et al. C.2 draw from Dir(alpha p): with 10 balanced classes, concentration alpha/10 each."""
    data = Samples(50_000, np.repeat(np.arange(10), 5000))
    assert data.labels is not None
    squares = {}
    for concentration, each in (("alpha", alpha), ("alpha*p", alpha / 10)):
        parts = ud.Dirichlet(500, alpha, concentration).split(data, 0)
        shares = [np.bincount(data.labels[parts.of(i)], minlength=10) / 100 for i in range(150)]
        squares[concentration] = (np.array(shares) ** 2).sum(1).mean()
        expected = (each + 1) / (10 * each + 1)  # the mean of sum_c q_c^2
        assert squares[concentration] == pytest.approx(expected, abs=0.05)
    assert squares["alpha*p"] > 1.8 * squares["alpha"]
    unequal = Samples(20_000, np.repeat([0, 1], [15_000, 5000]))
    parts = ud.Dirichlet(200, 40.0, "alpha*p").split(unequal, 0)
    first = [(unequal.labels[parts.of(i)] == 0).mean() for i in range(100)]  # pyright: ignore
    assert np.mean(first) == pytest.approx(0.75, abs=0.03)


def test_the_partition_is_named_where_a_federation_is_described(capsys: Any) -> None:
    data = torch.randn(60, 2), torch.arange(60) % 3
    clients = ud.Dirichlet(4, alpha=0.5, concentration="alpha*p")
    problem = ud.federate(data, model=torch.nn.Linear(2, 3), loss=F.cross_entropy, clients=clients)
    problem.describe()
    named = "Dirichlet(N=4, alpha=0.5, concentration='alpha*p')"
    assert named in capsys.readouterr().out and problem.summary()["partition"] == named
    own = ud.federate(data, model=torch.nn.Linear(2, 3), loss=F.cross_entropy, clients=[range(30), range(30, 60)])
    assert own.summary()["partition"] == ""


def test_class_dirichlet_shares_have_the_right_spread() -> None:
    """The first class is dealt before any client is full: its shares are Dirichlet over clients."""
    data = Samples(20000, np.repeat(np.arange(4), 5000))
    assert data.labels is not None
    shares = []
    for seed in range(40):
        parts = ud.ClassDirichlet(10, 0.5, min_size=1).split(data, seed)
        shares.append([(data.labels[parts.of(i)] == 0).sum() / 5000 for i in range(10)])
    assert np.mean(shares) == pytest.approx(0.1)
    assert np.var(shares) == pytest.approx(0.1 * 0.9 / (10 * 0.5 + 1), rel=0.25)


def test_class_dirichlet_keeps_its_minimum_or_says_why_not() -> None:
    data = samples(2000, 10, 0)
    assert ud.ClassDirichlet(16, 0.5, min_size=10).split(data, 0).sizes.min() >= 10
    start = time.perf_counter()
    with pytest.raises(ud.InvalidInput, match="take a larger alpha, fewer clients"):
        ud.ClassDirichlet(190, 0.001, min_size=10).split(data, 0)
    assert time.perf_counter() - start < 30
    with pytest.raises(ud.InvalidInput, match="need 3000, there are 2000"):
        ud.ClassDirichlet(300, 1.0, min_size=10).split(data, 0)


def test_quantity_skew_skews_sizes() -> None:
    data = samples(2000, 3, 0)
    spread = [ud.QuantitySkew(20, a).split(data, 0).sizes.std() for a in (0.2, 100.0)]
    assert spread[0] > 5 * spread[1]


def test_natural_clients() -> None:
    names = np.array([3, 1, 1, 7, 3, 1])
    parts = ud.Natural().split(Samples(6, natural=names), 0)
    assert [parts.of(i).tolist() for i in range(3)] == [[1, 2, 5], [0, 4], [3]]
    assert ud.Natural(at_least=2).split(Samples(6, natural=names), 0).N == 2
    with pytest.raises(ud.InvalidInput, match="no client has 4 samples"):
        ud.Natural(at_least=4).split(Samples(6, natural=names), 0)
    with pytest.raises(ud.InvalidInput, match="name no clients"):
        ud.Natural().split(Samples(6), 0)


def test_natural_clients_can_be_drawn_and_cut_to_size() -> None:
    names = np.random.default_rng(0).choice([5, 6, 7, 8, 9], size=400, p=[0.1, 0.1, 0.2, 0.3, 0.3])
    data = Samples(400, natural=names)
    seen, every = set(), np.zeros(400, dtype=bool)
    for seed in range(60):
        parts = ud.Natural(at_least=50, at_most=30, choose=2).split(data, seed)
        assert parts.sizes.tolist() == [30, 30] and parts.names is not None
        for i, name in enumerate(parts.names):
            mine = parts.of(i)
            assert len(set(mine.tolist())) == 30 and (names[mine] == name).all()
            every[mine] = True
        seen.add(tuple(parts.names.tolist()))
    assert seen == {(7, 8), (7, 9), (8, 9)}  # five and six are too small
    assert every[names >= 7].all() and not every[names < 7].any()  # any sample may be drawn
    with pytest.raises(ud.InvalidInput, match="3 clients have at least 50 samples, asked for are 4"):
        ud.Natural(at_least=50, choose=4).split(data, 0)


def test_iid_clients_of_a_size_that_share_nothing() -> None:
    parts = ud.IID(6, size=15, shared=False).split(Samples(100), 0)
    assert parts.sizes.tolist() == [15] * 6
    assert len(np.unique(np.concatenate([parts.of(i) for i in range(6)]))) == 90
    with pytest.raises(ud.InvalidInput, match="7 clients of 15 samples share some, there are 100"):
        ud.IID(7, size=15, shared=False).split(Samples(100), 0)


@pytest.mark.parametrize(
    "partition, message",
    [
        (ud.Shards(70, 2), "100 samples cannot be cut into 140 shards"),
        (ud.ClassesPerClient(3, 1), "cannot hold 5 classes; take from 2 to 5"),
        (ud.ClassesPerClient(3, 6), "cannot hold 5 classes"),
        (ud.IID(5, size=101), "a client cannot hold 101 of 100 samples"),
        (ud.FeatureSkew(4, 0), "needs inputs with columns"),
        (ud.QuantitySkew(101, 1.0), "1 to 100 clients, got 101"),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_refused(partition: Any, message: str) -> None:
    with pytest.raises(ud.InvalidInput, match=message):
        partition.split(Samples(100, np.arange(100) % 5), 0)


def test_a_million_clients_cost_little() -> None:
    """Clients are ranges of an index: describing them takes three numbers each."""
    X, Y = torch.zeros(60000, 4), torch.arange(60000) % 10
    tracemalloc.start()
    problem = ud.federate(
        (X, Y),
        model=nn.Linear(4, 10),
        loss=F.cross_entropy,
        clients=ud.IID(1_000_000, size=60),
    )
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100e6
    assert problem.N == 1_000_000 and problem.size(999_999) == 60
    settings: dict[str, Any] = {
        "participation": ud.Uniform(10),
        "local": ud.Local(steps=2, batch=10),
    }
    result = ud.run(ud.Scaffold(), problem, rounds=3, evaluate_every=3, **settings)
    assert len(result.state.clients) <= 30
    problem.describe()


# --- your own partition ------------------------------------------------------------------------------------------

TEN = Samples(10, np.arange(10) % 3)


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    """Partitions that a test registers are forgotten after it."""
    known = dict(PARTITIONS)
    yield
    PARTITIONS.clear()
    PARTITIONS.update(known)


def returning(value: Any, **options: Any) -> Any:
    """A partition into four clients whose `split` returns this."""

    @ud.partition("custom", **options)
    class Custom:
        N: int = ud.hyper(default=4, within="[1, inf)")

        def split(self, samples: Samples, seed: int) -> Any:
            return value(samples, seed) if callable(value) else value

    return Custom()


def test_a_custom_partition_is_a_frozen_dataclass_of_checked_parameters() -> None:
    custom = type(returning([[0]]))
    assert custom(3) == custom(N=3) and hash(custom(3)) == hash(custom(3))
    assert repr(custom(3)).endswith("Custom(N=3)") and PARTITIONS["custom"] is custom
    with pytest.raises(ud.InvalidInput, match=r"Custom: N must lie in \[1, inf\), got 0"):
        custom(0)
    with pytest.raises(AttributeError):
        custom(3).N = 4

    @ud.partition("even")
    class Even:
        number: int

        def __post_init__(self) -> None:
            if self.number % 2:
                raise ud.InvalidInput(f"an even number of clients, got {self.number}")

        def split(self, samples: Samples, seed: int) -> Any:
            return np.arange(samples.n) % self.number

    assert Even(2).split(TEN, 0).of(1).tolist() == [1, 3, 5, 7, 9]
    with pytest.raises(ud.InvalidInput, match="an even number of clients, got 3"):
        Even(3)


@pytest.mark.parametrize(
    "value",
    [
        [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]],
        ([0, 4, 8], np.array([1, 5, 9]), range(2, 10, 4), np.arange(10) % 4 == 3),
        np.arange(10) % 4,
        torch.arange(10) % 4,
        [f"client {i % 4}" for i in range(10)],
        lambda samples, seed: ClientIndices.from_lists([np.arange(i, 10, 4) for i in range(4)]),
        lambda samples, seed: [np.arange(i, samples.n, 4) for i in range(4)],
    ],
)
def test_what_a_custom_partition_may_return(value: Any) -> None:
    indices = returning(value).split(TEN, 0)
    assert isinstance(indices, ClientIndices)
    assert [indices.of(i).tolist() for i in range(4)] == [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]


def fail(samples: Samples, seed: int) -> Any:
    raise KeyError("no such label")


@pytest.mark.parametrize(
    "value, message",
    [
        ([[0, 1, 2], [2, 3, 4], [5, 6], [7, 8, 9]],
         "1 of 10 samples are not held by exactly one client, the first is sample 2, held by 2 clients"),
        ([[0, 1], [3, 4], [5, 6], [7, 8]], "2 of 10 .* sample 2, held by no client: .*exact=False"),
        ([[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]], "4 clients were asked for, split returned 3"),
        (np.arange(10) % 5, "4 clients were asked for, split returned 5"),
        ([[0, 1, 2], [3, 4], [5, 6], [7, 8, 9, 10]], "client 3 names a sample outside 0 to 9"),
        ([[0, 1, 2], [3, 4], [5, -6], [7, 8, 9]], "client 2 names a sample outside 0 to 9"),
        ([[0, 1, 2], [], [3, 4, 5, 6], [7, 8, 9]], "client 1 has no samples"),
        ([[0, 1, 2], [3, 4.5], [5, 6], [7, 8, 9]], "client 1: sample numbers must be whole"),
        ([[0, 1, 2], [[3, 4]], [5, 6], [7, 8, 9]], "client 1: give a list .* got 2 dimensions"),
        (np.arange(8).reshape(4, 2), r"array of shape \[4, 2\] for 10 samples"),
        (["a"] * 9 + [None], "sample 9 has no client"),
        (None, "split must return a list with the sample numbers of each client, .* got NoneType"),
        ({0: [1, 2]}, "split must return a list .* got dict"),
        ("0123", "split must return a list .* got str"),
        ((i for i in range(4)), "split must return a list .* got generator"),
        ([], "split returned no clients"),
    ],
)  # fmt: skip
def test_what_a_custom_partition_must_not_return_is_named_in_a_line(value: Any, message: str) -> None:
    with pytest.raises(ud.InvalidInput, match=f"^partition 'custom': .*{message}") as caught:
        returning(value).split(TEN, 0)
    assert "\n" not in str(caught.value)
    with pytest.raises(ud.InvalidInput, match=message):  # and before any training
        ud.federate(
            (torch.zeros(10, 2), torch.arange(10) % 3),
            model=nn.Linear(2, 3),
            loss=F.cross_entropy,
            clients=returning(value),
        )


def test_an_error_in_a_custom_partition_names_it() -> None:
    with pytest.raises(ud.InvalidInput, match="partition 'custom' failed: KeyError: 'no such la"):
        returning(fail).split(TEN, 0)
    with pytest.raises(ud.InvalidInput, match="^IID: a client cannot hold 11 of 10 samples"):
        returning(lambda samples, seed: ud.IID(4, size=11).split(samples, seed)).split(TEN, 0)


def test_a_custom_partition_may_share_or_leave_out_samples_if_it_says_so() -> None:
    indices = returning([[0, 1], [1, 2], [0, 2], [0]], exact=False).split(TEN, 0)
    assert indices.sizes.tolist() == [2, 2, 2, 1]
    with pytest.raises(ud.InvalidInput, match="'custom': client 3 names a sample outside"):
        returning([[0, 1], [1, 2], [0, 2], [10]], exact=False).split(TEN, 0)


def test_what_cannot_be_made_a_partition_is_refused() -> None:
    class Empty:
        pass

    @dataclass(frozen=True)
    class Already:
        def split(self, samples: Samples, seed: int) -> Any: ...

    class Seeded:
        seed: int

        def split(self, samples: Samples, seed: int) -> Any: ...

    class IID:
        def split(self, samples: Samples, seed: int) -> Any: ...

    for name, cls, message in [
        ("x", Empty, r"'x' must be a class with split\(self, samples, seed\)"),
        ("x", lambda samples: None, "'x' must be a class with split"),
        ("x", Already, "'x': leave out @dataclass"),
        ("x", Seeded, "'x': seed is a word of experiments"),
        ("iid", IID, "there is a partition 'iid' already: choose another name"),
    ]:
        with pytest.raises(ud.InvalidInput, match=message):
            ud.partition(name)(cls)
    assert "x" not in PARTITIONS and PARTITIONS["iid"] is ud.IID


BLOCKS = """
import numpy as np
import undrift as ud

@ud.partition("blocks")
class Blocks:
    "Consecutive samples in blocks, dealt in turn."

    N: int = ud.hyper(within="[1, inf)")
    length: int = ud.hyper(default=5, within="[1, inf)")

    def split(self, samples, seed):
        return np.arange(samples.n) // self.length % self.N
"""


def test_a_custom_partition_in_an_experiment(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(BLOCKS)
    text = f"""
    rounds = 2
    use = ["{tmp_path / "own.py"}"]
    algorithm = "fedavg"
    participation = {{per_round = 2}}
    [clients]
    partition = "blocks"
    number = 3
    length = 100
    """
    problem = federation(ud.Experiment(**tomllib.loads(text)), seed=0).problem
    assert problem.N == 3 and problem.samples(1)[:101].tolist() == [*range(100, 200), 400]
    for words, message in [
        ({"number": 3, "lenght": 2}, "parameter of blocks: 'lenght'; did you mean 'length'"),
        ({"number": 3, "length": 0}, r"Blocks: length must lie in \[1, inf\), got 0"),
        ({"length": 2}, "blocks: say how many clients"),
    ]:
        with pytest.raises(ValueError, match=message):
            ud.Experiment(
                algorithm={"name": "fedavg"},  # pyright: ignore[reportArgumentType]
                clients={"partition": "blocks", **words},  # pyright: ignore[reportArgumentType]
            )
    with pytest.raises(ValueError, match="unknown partition 'block'; did you mean 'blocks'"):
        ud.Experiment(clients={"partition": "block"})  # pyright: ignore[reportArgumentType]


def test_clients_that_are_no_partition() -> None:
    class Column:  # as a pandas column
        def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
            return np.arange(10) % 2

    assert assign_clients(Column(), TEN).sizes.tolist() == [5, 5]
    with pytest.raises(ud.InvalidInput, match="clients must be a partition .* got 'dirichlet'"):
        assign_clients("dirichlet", TEN)
