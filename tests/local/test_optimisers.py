"""Client optimisers: by name or as a pair of functions, against loops in numpy, in every engine, and plain errors."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import undrift as ud
from tests.support.everywhere import (
    ENGINES,
    every_engine,
    federation,
    models,
    other_engines,
    played,
)
from tests.support.toy_problem import gap
from undrift.algorithms.fedavg import Server, Up, send_model, stateless
from undrift.core.hyper import METHODS

pytestmark = pytest.mark.usefixtures("interpreted")

N, DIM, LR = 4, 6, 0.05
STEPS = [1, 4, 2, 5]


def quadratics() -> tuple[np.ndarray, np.ndarray, Any]:
    random = np.random.default_rng(5)
    A, e = random.normal(size=(N, DIM, DIM)), random.normal(size=(N, DIM))
    H = np.eye(DIM) + A @ A.transpose(0, 2, 1) / DIM
    return H, e, ud.Quadratic(torch.tensor(H), torch.tensor(e))


# Optimisers, in torch as a user writes them, and in numpy as a loop reads.


def nesterov(rho: float) -> Any:
    def init(y: Tensor) -> Tensor:
        return torch.zeros_like(y)

    def update(d: Tensor, u: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        u = rho * u + d
        return d + rho * u, u

    return init, update


def adam(y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.zeros_like(y), torch.zeros_like(y), torch.zeros_like(y[..., :1])


def adam_update(d: Tensor, state: Any, y: Tensor) -> Any:
    m, v, t = state
    m, v, t = 0.9 * m + 0.1 * d, 0.99 * v + 0.01 * d * d, t + 1
    direction = (m / (1 - 0.9**t)) / ((v / (1 - 0.99**t)).sqrt() + 1e-3)
    return direction, (m, v, t)


def normed(y: Tensor) -> None:
    return None


def normed_update(d: Tensor, state: None, y: Tensor) -> tuple[Tensor, None]:
    return d / (1 + d.norm(dim=-1, keepdim=True)) + 0.1 * y, None


class InNumpy:
    """One client's optimiser."""

    def __init__(self, name: str):
        self.name, self.u, self.m, self.v, self.t = name, 0.0, 0.0, 0.0, 0

    def __call__(self, d: np.ndarray, y: np.ndarray) -> np.ndarray:
        self.t += 1
        if self.name == "sgd":
            return d
        if self.name in ("momentum", "momentum 0.5"):
            self.u = (0.9 if self.name == "momentum" else 0.5) * self.u + d
            return self.u
        if self.name == "nesterov":
            self.u = 0.8 * self.u + d
            return d + 0.8 * self.u
        if self.name == "adam":
            self.m, self.v = 0.9 * self.m + 0.1 * d, 0.99 * self.v + 0.01 * d * d
            return self.m / (1 - 0.9**self.t) / (np.sqrt(self.v / (1 - 0.99**self.t)) + 1e-3)
        return d / (1 + np.linalg.norm(d)) + 0.1 * y


OPTIMISERS: dict[str, dict[str, Any]] = {
    "sgd": {"optimiser": "sgd"},
    "momentum": {"optimiser": "momentum"},
    "momentum 0.5": {"optimiser": "momentum", "momentum": 0.5},
    "nesterov": {"optimiser": nesterov(0.8)},
    "adam": {"optimiser": (adam, adam_update)},
    "normed": {"optimiser": (normed, normed_update)},
}


def fedavg_in_numpy(name: str, steps: list[int], rounds: int = 3) -> np.ndarray:
    H, e, _ = quadratics()
    x, path = np.zeros(DIM), []
    for _ in range(rounds):
        ends = []
        for i in range(N):
            y, optimiser = x.copy(), InNumpy(name)  # its state begins anew in every visit
            for _ in range(steps[i]):
                y = y - LR * optimiser(H[i] @ y - e[i], y)
            ends.append(y)
        x = np.mean(ends, axis=0)
        path.append(x)
    return np.stack(path)


@every_engine
@pytest.mark.parametrize("unequal", [False, True])
@pytest.mark.parametrize("name", OPTIMISERS)
def test_every_engine_makes_the_steps_of_a_loop_in_numpy(
    name: str,
    unequal: bool,
    engine: str,
    refusals: Any,
) -> None:
    steps = STEPS if unequal else [3] * N
    local = ud.Local(steps=steps if unequal else 3, lr=LR, **OPTIMISERS[name])
    rounds = played(ud.FedAvg(), engine, quadratics()[2], rounds=3, participation=ud.Everyone(), local=local)
    assert gap(models(rounds), fedavg_in_numpy(name, steps)) < 1e-9
    assert refusals() == []
    if name != "sgd":
        assert gap(models(rounds), fedavg_in_numpy("sgd", steps)) > 1e-3


@every_engine
def test_sgd_by_name_has_the_same_bits(engine: str) -> None:
    problem = federation()
    for first, second in [
        ({}, {"optimiser": "sgd"}),
        ({"momentum": 0.7}, {"optimiser": "momentum", "momentum": 0.7}),
        ({"momentum": 0.9}, {"optimiser": "momentum"}),
    ]:
        local = {"steps": 3, "batch": 4, "lr": 0.1}
        one, other = (
            models(played(ud.Scaffold(), engine, problem, local=ud.Local(**local, **words)))
            for words in (first, second)
        )
        assert (one == other).all()


@other_engines
@pytest.mark.parametrize("algorithm", [ud.Scaffold(), ud.Scaffold(option=1), ud.FedGM(eta=0.7)], ids=repr)
def test_methods_with_states_and_an_own_optimiser(
    algorithm: Any,
    engine: str,
    refusals: Any,
) -> None:
    local = ud.Local(steps=[4, 2, 3, 1, 5], batch=4, lr=0.05, optimiser=(adam, adam_update))
    found, reference = (models(played(algorithm, each, local=local)) for each in (engine, "sequential"))
    assert gap(found, reference) < 1e-9
    assert refusals() == []


@pytest.mark.parametrize("chunk", [1, 2, 3])
def test_chunks_do_not_matter(chunk: int) -> None:
    local = ud.Local(steps=(1, 5), batch=4, lr=0.05, optimiser=(adam, adam_update))
    whole, parts = (models(played(ud.Scaffold(), "batched", local=local, chunk=each)) for each in (None, chunk))
    assert (parts == whole).all()


def test_runs_computed_together_have_the_optimiser_too() -> None:
    problem = federation()
    each: list[dict[str, Any]] = [{"optimiser": "momentum"}, {"optimiser": (adam, adam_update)}]
    for words in each:
        locals_ = [ud.Local(steps=3, batch=4, lr=lr, **words) for lr in (0.05, 0.1)]
        trials = [ud.Trial(ud.FedAvg(), problem, local, 3) for local in locals_]
        together = ud.run_together(trials, rounds=3, participation=ud.Uniform(3), engine="batched")
        for local, result in zip(locals_, together, strict=True):
            alone = played(ud.FedAvg(), "batched", problem, rounds=3, local=local)
            assert gap(result.x.numpy(), alone[-1].x.numpy()) < 1e-9


# FedNova


@dataclass(frozen=True)
class Nesterov:
    """A linear optimiser as an object, which says that it is one."""

    rho: float
    linear: bool = True

    def init(self, y: Tensor) -> Tensor:
        return torch.zeros_like(y)

    def update(self, d: Tensor, u: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return nesterov(self.rho)[1](d, u, y)


LINEAR = {"sgd": "sgd", "momentum": "momentum", "nesterov": Nesterov(0.8)}


def fednova_in_numpy(name: str, rounds: int = 3) -> np.ndarray:
    """x - y = lr sum_k a_k g_k, with the coefficients a_k written out."""
    rho = {"sgd": 0.0, "momentum": 0.9, "nesterov": 0.8}[name]
    H, e, _ = quadratics()
    x, path = np.zeros(DIM), []
    for _ in range(rounds):
        directions, norms = [], []
        for i, K in enumerate(STEPS):
            y, optimiser = x.copy(), InNumpy(name)
            for _ in range(K):
                y = y - LR * optimiser(H[i] @ y - e[i], y)
            # how often g_k is walked along: with momentum sum_{j=k}^{K-1} rho^{j-k}, Nesterov's rho that + 1
            a = [sum(rho ** (j - k) for j in range(k, K)) for k in range(K)]
            if name == "nesterov":
                a = [1 + rho * each for each in a]
            norms.append(sum(a))
            directions.append((x - y) / (LR * norms[-1]))
        x = x - np.mean(norms) * LR * np.mean(directions, axis=0)
        path.append(x)
    return np.stack(path)


@every_engine
@pytest.mark.parametrize("name", LINEAR)
def test_fednova_normalises_by_what_a_linear_optimiser_makes_of_gradients(name: str, engine: str) -> None:
    local = ud.Local(steps=STEPS, lr=LR, optimiser=LINEAR[name])
    rounds = played(ud.FedNova(), engine, quadratics()[2], rounds=3, participation=ud.Everyone(), local=local)
    assert gap(models(rounds), fednova_in_numpy(name)) < 1e-9


@pytest.mark.parametrize("algorithm", [ud.FedNova(), ud.FedNovaVR()], ids=repr)
@pytest.mark.parametrize("optimiser", [(adam, adam_update), Nesterov(0.8, linear=False)], ids=["adam", "nesterov"])
def test_fednova_refuses_others_in_words(algorithm: Any, optimiser: Any) -> None:
    message = "fednova.* normalises by what a linear optimiser makes of gradients: use 'sgd', 'momentum' or"
    with pytest.raises(ud.InvalidInput, match=message):
        ud.rounds(algorithm, federation(), rounds=1, local=ud.Local(steps=2, optimiser=optimiser))


@pytest.mark.parametrize("name", ["fedavg-m", "fedhbm", "mime"])
def test_methods_with_a_local_rule_of_their_own_refuse_all(name: str) -> None:
    each: list[dict[str, Any]] = [
        {"optimiser": "momentum"}, {"optimiser": (adam, adam_update)}, {"momentum": 0.5}
    ]  # fmt: skip
    for words in each:
        with pytest.raises(
            ud.InvalidInput,
            match=rf"{name} has a local rule of its own: use ud.Local\(optimiser='sgd'",
        ):
            ud.rounds(ud.method(name), federation(), rounds=1, local=ud.Local(steps=2, **words))


# what is wrong

zeros = torch.zeros_like


def fail(*given: Any) -> Any:
    raise KeyError("no schedule")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"optimiser": "adma"}, "unknown optimiser 'adma'; did you mean 'adam'.* Known: adagrad, adam, adamw, momentum"),
        ({"optimiser": "momentun"}, "unknown optimiser 'momentun'; did you mean 'momentum'"),
        ({"optimiser": (zeros,)}, r"optimiser must be a name .* or a pair of functions \(init, update\), got \("),
        ({"optimiser": (zeros, 0.9)}, "or a pair of functions"),
        ({"optimiser": zeros}, "or a pair of functions .* got <built-in"),
        ({"optimiser": None}, "or a pair of functions .* got None"),
        ({"optimiser": Nesterov}, "or a pair of functions .* got <class"),
        ({"optimiser": torch.optim.SGD}, "or a pair of functions .* got <class"),
        ({"optimiser": nesterov(0.5), "momentum": 0.5}, "momentum belongs to optimiser='sgd', 'momentum' or 'nesterov': others"),
        ({"optimiser": "momentum", "momentum": 1.0}, r"momentum must lie in \[0, 1\), got 1.0"),
    ],
)  # fmt: skip
def test_what_is_no_optimiser_is_refused_at_once(words: dict[str, Any], message: str) -> None:
    with pytest.raises(ud.InvalidInput, match=f"(?s){message}"):
        ud.Local(steps=2, **words)


D = 4 * 5 + 5 + 5 * 3 + 3


def grows(d: Tensor, state: Any, y: Tensor) -> Any:
    return d, torch.cat([state, d], -1)


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ((fail, lambda d, s, y: (d, s)), "init failed: KeyError: 'no schedule'"),
        ((zeros, fail), "update failed: KeyError: 'no schedule'"),
        ((zeros, lambda d, s: (d, s)), "update failed: TypeError: .*takes 2 positional arguments but 3 were given"),
        ((lambda y: {"u": y}, lambda d, s, y: (d, s)), "init failed: TypeError: records hold tensors.* got dict"),
        ((lambda y: (y, 0), lambda d, s, y: (d, s)), "init failed: TypeError: records hold tensors.* got int"),
        ((zeros, lambda d, s, y: d), r"update must return \(direction, state\), got Tensor"),
        ((zeros, lambda d, s, y: (d, s, s)), r"update must return \(direction, state\), got tuple of 3"),
        ((zeros, lambda d, s, y: (None, s)), "update must return a tensor as direction, got NoneType"),
        ((zeros, lambda d, s, y: (d.sum(-1), s)), rf"direction of \[2\] torch.float64 for \[2, {D}\] torch.float64: they must"),
        ((zeros, lambda d, s, y: (d.float(), s)), "torch.float32 for .* torch.float64: they must be alike"),
        ((zeros, grows), "returned a state of other shapes or types than it was given"),
        ((zeros, lambda d, s, y: (d, None)), "returned a state of other shapes or types than it was given"),
        ((zeros, lambda d, s, y: (d / d.norm(), s)), "a client's step is another beside other clients than alone: use red"),
        ((zeros, lambda d, s, y: (d / d.abs().max(), s)), "a client's step is another beside other clients than alone"),
        ((zeros, lambda d, s, y: (d.mul_(2), s)), "init and update must not change what they are given"),
    ],
)  # fmt: skip
def test_an_optimiser_that_does_not_work_is_refused_before_any_work(pair: Any, message: str) -> None:
    problem = federation()
    problem.draw = lambda *given: pytest.fail("work has started")
    for engine in ENGINES:
        with pytest.raises(ud.InvalidInput, match=f"^Local: optimiser: .*{message}"):
            ud.rounds(
                ud.FedAvg(), problem, rounds=1, engine=engine,
                local=ud.Local(steps=2, batch=4, optimiser=pair),
            )  # fmt: skip


# methods of a user's own


def own_method(decorate: Any, by_hand: bool = False) -> Any:
    """FedAvg that takes half of the mean step, with local steps of the solver's or by hand."""

    class HalfSteps:
        client, send = stateless, send_model

        def server(self, x: Any) -> Any:
            return Server(x)

        def local(self, down: Any, client: Any, work: Any) -> Any:
            step = lambda y: y - work.lr * work.grad(y) if by_hand else work.step(y, work.grad(y))
            return Up(down.x - work.loop(step, down.x)), client

        def update(self, server: Any, mean: Any, cohort: Any) -> Any:
            return Server(server.x - 0.5 * mean.delta)

    return decorate(HalfSteps)()


@pytest.fixture
def methods() -> Iterator[None]:
    """Methods that a test registers are forgotten after it."""
    known = dict(METHODS)
    yield
    METHODS.clear()
    METHODS.update(known)


ADAM = ud.Local(steps=3, lr=0.05, optimiser="adam")
PLAIN: Any = lambda cls: cls
SAYS: Any = lambda cls: ud.algorithm("half-steps", local_momentum=True)(cls)


@pytest.mark.usefixtures("methods")
@pytest.mark.parametrize("decorate", [PLAIN, SAYS], ids=["undecorated", "says so"])
def test_an_own_method_that_steps_by_the_solver_takes_adam(decorate: Any) -> None:
    own = models(played(own_method(decorate), "sequential", local=ADAM))
    assert np.abs(own - models(played(ud.FedAvg(server_lr=0.5), "sequential", local=ADAM))).max() < 1e-12
    assert (own != models(played(own_method(decorate), "sequential", local=replace(ADAM, optimiser="sgd")))).any()


@pytest.mark.usefixtures("methods")
def test_an_own_method_that_has_not_said_so_is_told_how() -> None:
    method = own_method(ud.algorithm("half-steps"))
    message = r"half-steps has not said .* use ud.Local\(optimiser=.*local_momentum=True\)"
    with pytest.raises(ud.InvalidInput, match=message):
        ud.rounds(method, federation(), rounds=1, local=ADAM)


@pytest.mark.usefixtures("methods")
@pytest.mark.parametrize("decorate", [PLAIN, SAYS], ids=["undecorated", "says so"])
def test_steps_by_hand_do_not_ignore_an_optimiser_in_silence(decorate: Any) -> None:
    with pytest.raises(ud.InvalidInput, match=r"never calls work.step, so that Adam would make no difference"):
        ud.rounds(own_method(decorate, by_hand=True), federation(), rounds=1, local=ADAM)
