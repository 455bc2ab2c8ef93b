"""Client optimisers by name: those of torch.optim, in every engine, with a state that is reset, kept or averaged."""

from typing import Any

import numpy as np
import pytest
import torch

import undrift as ud
from tests.support.everywhere import every_engine, federation, models, other_engines, played
from tests.support.mutation import assert_noticed
from tests.support.toy_problem import gap
from undrift.local import optimiser_state, optimisers
from undrift.local.optimisers import Adagrad, Adam, AdamW, make_optimiser

pytestmark = pytest.mark.usefixtures("interpreted")

DIM, LR, STEPS = 6, 0.01, 50

IN_TORCH: dict[str, Any] = {
    "sgd": lambda p: torch.optim.SGD(p, LR),
    "momentum": lambda p: torch.optim.SGD(p, LR, momentum=0.9),
    "nesterov": lambda p: torch.optim.SGD(p, LR, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, LR),
    "adam:beta1=0.5,beta2=0.9,eps=0.001": lambda p: torch.optim.Adam(p, LR, (0.5, 0.9), 1e-3),
    "adam:0": lambda p: torch.optim.Adam(p, LR, (0.0, 0.999)),
    "adamw": lambda p: torch.optim.AdamW(p, LR),
    "adamw:weight_decay=0.3": lambda p: torch.optim.AdamW(p, LR, weight_decay=0.3),
    "adagrad": lambda p: torch.optim.Adagrad(p, LR),
}


def one_client() -> tuple[torch.Tensor, torch.Tensor, Any]:
    random = np.random.default_rng(5)
    A, e = random.normal(size=(DIM, DIM)), torch.tensor(random.normal(size=DIM))
    H = torch.tensor(np.eye(DIM) + A @ A.T / DIM)
    return H, e, ud.Quadratic(H[None], e[None])


@every_engine
@pytest.mark.parametrize("name", IN_TORCH)
def test_fifty_steps_of_one_client_are_torchs(name: str, engine: str, refusals: Any) -> None:
    H, e, problem = one_client()
    y = torch.zeros(DIM, dtype=torch.float64, requires_grad=True)
    optimiser = IN_TORCH[name]([y])
    for _ in range(STEPS):
        y.grad = (H @ y - e).detach()
        optimiser.step()
    local = ud.Local(steps=STEPS, lr=LR, optimiser=name)
    (r,) = played(ud.FedAvg(), engine, problem, rounds=1, participation=ud.Everyone(), local=local)
    assert float((r.x - y.detach()).abs().max()) < 1e-12
    assert refusals() == []


@pytest.mark.parametrize("name", ["sgd", "momentum", "nesterov", "adam", "adagrad"])
def test_fifty_steps_with_weight_decay_are_torchs(name: str) -> None:
    H, e, problem = one_client()
    y = torch.zeros(DIM, dtype=torch.float64, requires_grad=True)
    optimiser = IN_TORCH[name]([y])
    optimiser.param_groups[0]["weight_decay"] = 0.3
    for _ in range(STEPS):
        y.grad = (H @ y - e).detach()
        optimiser.step()
    local = ud.Local(steps=STEPS, lr=LR, optimiser=name, weight_decay=0.3)
    found = ud.run(ud.FedAvg(), problem, rounds=1, local=local, engine="sequential").x
    assert float((found - y.detach()).abs().max()) < 1e-12


def test_bias_correction_is_exact_in_float32_and_can_be_left_out() -> None:
    d, y = torch.full((1,), 3.0), torch.zeros(1)
    for beta2 in (0.999, 0.999999):
        direction, _ = Adam(beta2=beta2).update(d, Adam().init(y), y)
        assert abs(float(direction) - 1) < 1e-6
    plain = Adam(bias_correction=False)
    direction, (m, _, *weights) = plain.update(d, plain.init(y), y)
    assert float(direction) == pytest.approx(0.3 / (9e-3**0.5 + 1e-8)) and float(m) == pytest.approx(0.3)
    assert [*map(float, weights)] == pytest.approx([0.1, 0.001])


def test_weight_decay_of_adamw_is_decoupled_and_that_of_others_in_the_gradient() -> None:
    assert make_optimiser("adamw", 0.0, 0.2) == AdamW(weight_decay=0.2)
    assert ud.Local(optimiser="adamw", weight_decay=0.2).solver(1).weight_decay == 0.0
    assert ud.Local(optimiser="adam", weight_decay=0.2).solver(1).weight_decay == 0.2


# the state between visits


def in_numpy(between: str, rounds: int) -> np.ndarray:
    """FedAvg with Adam on scalar quadratics (h_i y - e_i), two of three clients a round, unequal steps."""
    h, e, K, cohorts = [1.0, 2.0, 0.5], [1.0, -2.0, 3.0], [1, 3, 2], [[0, 1], [1, 2], [0, 2], [0, 1], [1, 2]]
    fresh = (0.0, 0.0, 0.0, 0.0)
    kept, server, x, path = [fresh] * 3, fresh, 0.0, []
    for t in range(rounds):
        ends, states = [], []
        for i in cohorts[t]:
            y, (m, v, c1, c2) = x, {"reset": fresh, "keep": kept[i], "average": server}[between]
            for _ in range(K[i]):
                d = h[i] * y - e[i]
                m, v = 0.9 * m + 0.1 * d, 0.999 * v + 0.001 * d * d
                c1, c2 = 1 - 0.9 * (1 - c1), 1 - 0.999 * (1 - c2)
                y -= 0.1 * (m / c1) / (np.sqrt(v / c2) + 1e-8)
            ends.append(y)
            states.append((m, v, c1, c2))
            kept[i] = states[-1]
        x = float(np.mean(ends))
        server = tuple(np.mean(states, axis=0))
        path.append([x])
    return np.array(path)


@every_engine
@pytest.mark.parametrize("between", ["reset", "keep", "average"])
def test_a_state_between_visits_is_that_of_a_loop_in_numpy(between: str, engine: str, refusals: Any) -> None:
    H, e = torch.tensor([1.0, 2.0, 0.5]).double().view(3, 1, 1), torch.tensor([1.0, -2.0, 3.0]).double().view(3, 1)
    local = ud.Local(steps=[1, 3, 2], lr=0.1, optimiser="adam", optimiser_state=between)
    who = ud.Fixed([[0, 1], [1, 2], [0, 2], [0, 1], [1, 2]])
    rounds = played(ud.FedAvg(), engine, ud.Quadratic(H, e), rounds=5, participation=who, local=local)
    assert gap(models(rounds), in_numpy(between, 5)) < 1e-9
    assert refusals() == []
    travels = 5 if between == "average" else 1  # numbers: beside the model m, v and a column each
    assert rounds[-1].bytes_up == 2 * 8 * travels == rounds[-1].bytes_down


METHODS = [ud.Scaffold(B=2), ud.FedGM(eta=0.7), ud.FedDyn(), ud.FedBuff()]


@other_engines
@pytest.mark.parametrize("between", ["keep", "average"])
@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.spec.name)
def test_methods_with_states_of_their_own_in_every_engine(method: Any, between: str, engine: str) -> None:
    problem = federation()
    local = ud.Local(steps=[1, 3, 2, 4, 2], batch=4, lr=0.05, optimiser="momentum", optimiser_state=between)
    one, other = (models(played(method, each, problem, local=local)) for each in ("sequential", engine))
    reset = models(played(method, "sequential", problem, local=ud.Local(**{**vars(local), "optimiser_state": "reset"})))
    assert gap(other, one) < 1e-9 < 1e-4 < gap(one, reset)


@pytest.mark.parametrize("between", ["keep", "average"])
def test_a_resumed_run_goes_on_from_the_state(between: str) -> None:
    local = ud.Local(steps=3, batch=4, lr=0.01, optimiser="adam", optimiser_state=between)
    rounds = played(ud.FedAvg(), "batched", local=local)
    whole, half = models(rounds), played(ud.FedAvg(), "batched", local=local, rounds=2)[-1].snapshot()
    assert (models(played(ud.FedAvg(), "batched", local=local, start=half)) == whole[2:]).all()


def test_a_methods_own_fields_can_be_read_beside_the_optimisers_state() -> None:
    seen: list[torch.Tensor] = []
    local = ud.Local(steps=2, batch=4, lr=0.1, optimiser="momentum", optimiser_state="average")

    def look(probe: Any) -> float:
        seen.extend([probe.server.c, probe.clients.gather([0]).c])
        return 0.0

    played(ud.Scaffold(), "sequential", local=local, metrics=("test", look), rounds=1)
    assert [tuple(t.shape) for t in seen] == [(43,), (1, 43)]


# which methods take which


@pytest.mark.parametrize(
    ("method", "words", "message"),
    [
        ("scaffold", {"optimiser": "adam"}, "scaffold adds control variates .* Adam's are not: use 'sgd', 'momentum' or"),
        ("scaffold", {"optimiser": "adamw"}, "AdamW's are not"),
        ("scaffold", {"optimiser": "adagrad"}, "Adagrad's are not"),
        ("fednova", {"optimiser": "adam"}, "fednova normalises by what a linear optimiser makes of gradients"),
        ("fednova", {"momentum": 0.9, "optimiser_state": "keep"}, "starts anew in every visit: use optimiser_state='reset'"),
        ("scaffold-m", {"optimiser": "adam"}, "scaffold-m has a local rule of its own"),
    ],
)  # fmt: skip
def test_what_a_method_is_not_made_for_is_refused(method: str, words: dict[str, Any], message: str) -> None:
    with pytest.raises(ud.InvalidInput, match=message):
        ud.rounds(ud.method(method), federation(), rounds=1, local=ud.Local(steps=2, **words))


@pytest.mark.parametrize("method", [ud.FedNova(), ud.Scaffold()], ids=lambda m: m.spec.name)
def test_nesterov_by_name_is_linear(method: Any) -> None:
    local = ud.Local(steps=[1, 2, 3, 2, 1], batch=4, lr=0.05, optimiser="nesterov", momentum=0.5)
    one, other = (models(played(method, engine, local=local)) for engine in ("sequential", "batched"))
    assert gap(one, other) < 1e-9


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"optimiser": "adam:beta1=1"}, r"Adam: beta1 must lie in \[0, 1\), got 1"),
        ({"optimiser": "adam:beta=0.9"}, "unknown parameter of adam: 'beta'; did you mean 'beta"),
        ({"optimiser": "adagrad:eps=0"}, r"Adagrad: eps must lie in \(0, inf\), got 0"),
        ({"optimiser": "adam", "momentum": 0.9}, "momentum belongs to optimiser='sgd', 'momentum' or 'nesterov'"),
        ({"optimiser": "adam", "optimiser_state": "kept"}, "optimiser_state must be one of 'reset', 'keep', 'average', got 'kept'"),
        ({"optimiser_state": "keep"}, "plain SGD has no state"),
    ],
)  # fmt: skip
def test_wrong_optimisers_are_refused_at_once(words: dict[str, Any], message: str) -> None:
    with pytest.raises(ud.InvalidInput, match=message):
        ud.Local(steps=2, **words)


def test_objects_are_as_good_as_names() -> None:
    assert ud.Local(optimiser=Adagrad()).client_optimiser == make_optimiser("adagrad", 0.0)


# mistakes that are made


def fifty(name: str) -> Any:
    return lambda: test_fifty_steps_of_one_client_are_torchs(name, "sequential", list)


def between_visits(name: str) -> Any:
    return lambda: test_a_state_between_visits_is_that_of_a_loop_in_numpy(name, "sequential", list)


MISTAKES: list[tuple[Any, str, str, Any]] = [
    (optimisers, "return d + self.momentum * u, u", "return u, u", fifty("nesterov")),
    (optimisers, "(m / c1, v / c2)", "(m / c1, v)", fifty("adam")),
    (optimisers, "(1 - self.beta2) * d * d", "(1 - self.beta2) * m * m", fifty("adam")),
    (optimisers, "self.beta1 * c1 + (1 - self.beta1)", "self.beta1 * c1 + (1 - self.beta2)", fifty("adam")),
    (optimisers, "return direction + self.weight_decay * y", "return direction - self.weight_decay * y", fifty("adamw")),
    (optimisers, "d / (s.sqrt() + self.eps)", "d / (s + self.eps)", fifty("adagrad")),
    (optimiser_state, "return up, WithState(own, work.carried)", "return up, client", between_visits("keep")),
    (optimiser_state, "ServerWithState(new.x, new, mean.optimiser)", "ServerWithState(new.x, new, server.optimiser)",
     between_visits("average")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("module", "right", "wrong", "notices"), MISTAKES, ids=lambda x: x if isinstance(x, str) else ""
)
def test_mistakes_are_found(module: Any, right: str, wrong: str, notices: Any, monkeypatch: Any) -> None:
    assert_noticed(notices, module, right, wrong, monkeypatch)
