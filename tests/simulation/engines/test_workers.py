"""Clients side by side in threads: the same bits with any number of workers."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import undrift as ud
from tests.support.compiled import ragged
from tests.support.oracles.world import make_world
from tests.support.quadratics import quadratic
from tests.support.toy_problem import PlainFedAvg, WorldProblem, gap, path

# workers


@pytest.mark.parametrize("algorithm", [ud.FedAvg(), ud.Scaffold(B=1), ud.FedHBM()], ids=repr)
def test_any_number_of_workers_gives_the_same_bits(algorithm: Any) -> None:
    problem, threads = ragged(torch.float32), torch.get_num_threads()
    settings: dict[str, Any] = {"rounds": 3, "local": ud.Local(epochs=1, batch=4, lr=0.1)}
    one = path(algorithm, problem, workers=1, **settings)
    for workers in (2, 3, 8):
        assert (path(algorithm, problem, workers=workers, **settings) == one).all()
    assert gap(path(algorithm, problem, engine="batched", **settings), one) < 1e-5
    assert torch.get_num_threads() == threads


def test_errors_of_workers_name_the_client() -> None:
    class Broken(PlainFedAvg):
        def local(self, down: Any, client: Any, work: Any) -> Any:
            if 2 in work.clients:
                raise ZeroDivisionError("the client's own fault")
            return super().local(down, client, work)

    broken: Any = Broken()
    with pytest.raises(ud.MethodFailure, match="client 2, round 1, stage local: ZeroDivision"):
        ud.run(broken, ragged(), rounds=1, workers=2)


class KeepsTooMuch(PlainFedAvg):
    def local(self, down: Any, client: Any, work: Any) -> Any:
        up, _ = super().local(down, client, work)
        return up, up


def test_a_run_that_fails_gives_the_cores_back_while_its_error_is_looked_at() -> None:
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        with pytest.raises(ud.MethodFailure, match="they must be alike") as error:
            ud.run(KeepsTooMuch(), ragged(), rounds=1, workers=2)
        assert error.value.__traceback__ is not None and torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)


class Hidden(nn.Module):
    """Draws random numbers of torch's own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(F.dropout(x, 0.3, self.training))


def test_problems_that_threads_cannot_share_are_refused() -> None:
    hidden: Any = ragged(model=Hidden())
    world: Any = WorldProblem(make_world(3))
    for problem, reason in ((hidden, "random numbers"), (world, r"no twin\(\)")):
        with pytest.raises(ud.InvalidInput, match=f"cannot compute this problem side by side.*{reason}"):
            ud.run(ud.FedAvg(), problem, rounds=1, workers=2)


def test_a_quadratic_is_shared() -> None:
    local = ud.Local(steps=3, lr=0.1)
    one, two = (ud.run(ud.Scaffold(), quadratic(), rounds=3, local=local, workers=n).x for n in (1, 2))
    assert torch.equal(one, two)
