"""What the papers say a method becomes at its limits, to the last digits: equivalences and invariants."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import undrift as ud
from tests.support.oracles import scaffold as oracle
from tests.support.oracles.world import make_world
from tests.support.toy_problem import WorldProblem, gap, path, random_cohorts

N, T, K, ETA = 6, 24, 3, 0.08
EVERYONE, SOME = ud.Everyone(), ud.Fixed(random_cohorts(N, 2, T))
NOISY = make_world(N)
EXACT = make_world(N, n=1)  # one sample a client: every gradient is exact
WEIGHTED = make_world(N, p=[1, 2, 3, 1, 2, 4])


def go(
    algorithm: Any,
    *,
    on: Any = NOISY,
    who: Any = SOME,
    steps: Any = K,
    lr: float = ETA,
    rounds: int = T,
    decay: float = 1.0,
) -> np.ndarray:
    local = ud.Local(steps=steps, lr=lr, decay=decay)
    return path(algorithm, WorldProblem(on), rounds=rounds, participation=who, local=local)


def e1() -> float:
    left = [go(ud.FedGM(eta=1.4, beta=b, nu=0)) for b in (0.0, 0.5, 0.9)]
    return max(gap(x, go(ud.FedAvg(server_lr=1.4))) for x in left)


def e2() -> float:
    return gap(go(ud.FedGM(eta=1, beta=0.7, nu=0)), go(ud.FedAvg()))


def e3() -> float:
    lr, b = 0.4, 0.7
    right = go(ud.GHBMServer(tau=1, beta=b, eta=lr))
    left = ud.FedGM(lr / (1 - b), b, nu=1), ud.FedAvgM(lr, b, dampened=False)
    return max(gap(go(x), right) for x in left)


def e4() -> float:
    lr, b = 0.4, 0.7
    right = go(ud.SNV(alpha=lr, b1=b, b2=b))  # x/y-Nesterov, seen at y
    left = ud.FedGM(lr / (1 - b), b, nu=b), ud.FedNAG(lr, b, dampened=False)
    return max(gap(go(x), right) for x in left)


def e5() -> float:
    b = 0.6
    return gap(go(ud.AdaBest(mu=0, beta=b)), go(ud.FedGM(1 / (1 - b), b, nu=b)))


def e6() -> float:
    b, g = 0.3, 0.2
    plain = go(ud.FedAvg_M(beta=b, gamma=g))
    hat = go(ud.FedAvg_M(beta=b, gamma=b * g, reparametrised=True), lr=b * ETA)
    scaffold = go(ud.ScaffoldM(beta=b, gamma=g, B=2))
    scaffold_hat = go(ud.ScaffoldM(beta=b, gamma=b * g, B=2, reparametrised=True), lr=b * ETA)
    fedcm = go(ud.FedCM(alpha=b, gamma=g))
    return max(gap(plain, fedcm), gap(plain, hat), gap(scaffold, scaffold_hat))


def e7() -> float:
    a, s = 0.4, 0.8
    right = go(ud.GHBM(tau=1, beta=(1 - a) / s, eta=s), lr=a * ETA)
    return gap(go(ud.FedCM(alpha=a, gamma=s * ETA * K)), right)


def e8() -> float:
    b, s = 0.6, 0.8
    return gap(go(ud.FedADC(b, b, alpha=s)), go(ud.GHBM(tau=1, beta=b / s, eta=s)))


def e9() -> float:
    gamma = 0.3
    right = go(ud.FedAvg(server_lr=gamma / (ETA * K)))
    left = ud.FedAvg_M(1.0, gamma), ud.FedAvg_M_VR(1.0, gamma)
    return max(gap(go(x), right) for x in left)


def e10() -> float:
    gaps = []
    for B in (0, 2):
        right = go(ud.Scaffold(eta_g=1.2, option=2, B=B))
        left = ud.ScaffoldM(1.0, 1.2 * ETA * K, B), ud.ScaffoldMVR(1.0, 1.2 * ETA * K, B)
        gaps += [gap(go(x), right) for x in left]
    return max(gaps)


def e11() -> float:
    cohorts = random_cohorts(N, 1, T)
    ours = [go(ud.Scaffold(eta_g=1.3, option=o), on=EXACT, who=ud.Fixed(cohorts), steps=1) for o in (1, 2)]
    saga = oracle.saga(EXACT, cohorts, [1] * N, ETA, eta_g=1.3)
    return max(gap(x, saga) for x in ours)


def e12() -> float:
    left, right = (go(ud.Scaffold(option=o), on=EXACT, steps=1) for o in (1, 2))
    return gap(left, right)


def e13() -> float:
    left = go(ud.Scaffold(eta_g=1.3), who=EVERYONE, steps=1)
    return gap(left, go(ud.FedAvg(server_lr=1.3), who=EVERYONE, steps=1))


def e14() -> float:
    gaps = [gap(go(ud.Scaffold(eta_g=s), who=EVERYONE), _flamby(s)) for s in (1.0, 1.4)]
    right = go(ud.Scaffold(), who=EVERYONE)
    left = ud.VRLSGD(), ud.LED(), ud.Scaffnew(), ud.LED(beta=1 / (ETA * K)), ud.Scaffnew(p=1 / K)
    return max(*gaps, *(gap(go(x, who=EVERYONE), right) for x in left))


def _flamby(s: float) -> np.ndarray:
    """SCAFFOLD with everyone at one vector each way: clients infer c from the models they see (FLamby's form)."""
    w = NOISY
    x, h = w.x0, np.zeros((N, len(w.x0)))
    path = [x]
    for t in range(1, T + 1):
        y = np.tile(x, (N, 1))
        for i in range(N):
            for k in range(K):
                y[i] -= ETA * (w.grad(i, y[i], t, k) - h[i])
        new = x - s * (x - y).mean(0)
        h += ((x - y) - (x - new) / s) / (ETA * K)
        x = new
        path.append(x)
    return np.array(path)


def e15() -> float:
    pairs = [
        (ud.ScaffoldM(0.3, B=2), ud.FedAvg_M(0.3)),
        (ud.ScaffoldMVR(0.3, B=2), ud.FedAvg_M_VR(0.3, B=2)),
    ]
    return max(gap(*(go(x, who=EVERYONE, steps=1) for x in pair)) for pair in pairs)


def e16() -> float:
    left, right = (go(x, steps=1) for x in (ud.FedAvg_M_VR(0.3, B=2), ud.MBStorm(0.3, B=2)))
    return gap(left, right)


def e17() -> float:
    left = go(ud.FedAvg_M_VR(0.3, gamma=0.2, B=2), lr=0.0)
    return gap(left, go(ud.MBStorm(0.3, gamma=0.2, B=2)))


def e18() -> float:
    right = go(ud.FedAvg(), on=WEIGHTED)
    left = ud.FedNova(), ud.FedNova(tau_eff="steps"), ud.FedNova(tau_eff=float(K))
    return max(gap(go(x, on=WEIGHTED), right) for x in left)


def e19() -> float:
    one = gap(go(ud.FedProx(mu=0)), go(ud.FedAvg()))
    return max(one, gap(go(ud.FedProx(mu=0.9), steps=1), go(ud.FedAvg(), steps=1)))


def e20() -> float:
    return gap(go(ud.MimeLite(opt="sgd")), go(ud.FedAvg()))


def e21() -> float:
    left = go(ud.MimeLite(opt="sgdm", beta=0.7), on=EXACT, steps=1)
    return gap(left, go(ud.FedCM(alpha=0.3), on=EXACT, steps=1))


def e22() -> float:
    gaps = []
    for opt in ("sgd", "sgdm", "adam"):
        mime = ud.Mime(opt=opt, beta=0.7, beta2=0.9, eps=0.1)
        ours = go(mime, on=EXACT, who=EVERYONE, steps=1)
        gaps.append(gap(ours, _centralised(opt, 0.7, 0.9, 0.1)))
    return max(gaps)


def _centralised(opt: str, beta: float, beta2: float, eps: float) -> np.ndarray:
    x = EXACT.x0
    m, v, path = np.zeros_like(x), np.zeros_like(x), [x]
    for t in range(1, T + 1):
        g = np.mean([EXACT.full(i, x) for i in range(N)], axis=0)
        m = beta * m + (1 - beta) * g
        v = beta2 * v + (1 - beta2) * g**2
        adam = m / (1 - beta**t) / (np.sqrt(v / (1 - beta2**t)) + eps)
        x = x - ETA * {"sgd": g, "sgdm": m, "adam": adam}[opt]
        path.append(x)
    return np.array(path)


def e23() -> float:
    return gap(
        go(ud.LocalGHBM(beta=0.8), who=ud.Cyclic(2)),
        go(ud.GHBM(tau=3, beta=0.8), who=ud.Cyclic(2)),
    )


def e24() -> float:
    return gap(go(ud.GHBMTheory(tau=1, beta=0.3, eta=0.2)), go(ud.FedAvg_M(0.3, gamma=0.2)))


def e25() -> float:
    cohorts = [[2 * (t % 3), 2 * (t % 3) + 1] for t in range(T)]
    left = go(ud.GHBMTheory(tau=3, beta=1.0), on=EXACT, who=ud.Cyclic(2, shuffle=False), steps=1)
    return gap(left, oracle.iag(EXACT, cohorts, [1] * N, ETA, tau=3))


def e26() -> float:
    gaps = []
    for J in (1, 4):
        left, right = (
            go(x, on=EXACT, who=ud.Cyclic(2), steps=J, rounds=900)[-3:] for x in (ud.GHBM(tau=3, beta=0.8), ud.FedAvg())
        )
        gaps.append(gap(left, right))
    return max(gaps)


def e27() -> float:
    left = go(ud.FedAdam(eta=0.2, beta1=0.7, beta2=1.0, tau=0.5, v0=0.0))
    return gap(left, go(ud.FedGM(eta=0.2 / 0.5, beta=0.7, nu=1)))


def e28() -> float:
    right = go(ud.FedAvg())
    left = ud.GHBM(tau=3, beta=0), ud.FedHBM(beta=0), ud.LocalGHBM(beta=0), ud.GHBMServer(3, 0)
    return max(gap(go(x), right) for x in left)


def e29() -> float:
    stages = ud.MultistageFedGM(eta=(1.0, 0.5), T=T, beta=0.6, nu=0.8)
    times_K = ud.MultistageFedGM(eta=(1.0 * K, 0.5 * K), T=T, beta=0.6, nu=0.8)
    return gap(go(ud.AutonomousFedGM(times_K)), go(stages))


def e30() -> float:
    worst = 0.0
    for server, clients in states(ud.FedDyn(alpha=0.8)):
        worst = max(worst, float((server.h - clients.g.mean(0)).abs().max()))
    return worst


def e31() -> float:
    b, eta = 0.25, 0.2
    left = go(ud.FedAvg_M(beta=b), on=EXACT, who=EVERYONE, lr=eta, rounds=1500)[-1:]
    right = go(ud.FedAvg(), on=EXACT, who=EVERYONE, lr=b * eta, rounds=1500)[-1:]
    return gap(left, right)


def e32() -> float:
    """A relative server step follows the decay of the local one."""
    pairs = [
        (ud.FedAvg_M(1.0, server_lr=1.7), ud.FedAvg(server_lr=1.7)),
        (ud.FedCM(1.0, server_lr=1.7), ud.FedAvg(server_lr=1.7)),
        (ud.FedAvg_M_VR(1.0, server_lr=1.7), ud.FedAvg(server_lr=1.7)),
        (ud.ScaffoldM(1.0, server_lr=1.2), ud.Scaffold(eta_g=1.2)),
        (ud.ScaffoldMVR(1.0, server_lr=1.2, B=0), ud.Scaffold(eta_g=1.2)),
    ]
    return max(gap(*(go(x, decay=0.9) for x in pair)) for pair in pairs)


def e33() -> float:
    return gap(go(ud.MimeLiteMVR(a=1.0, server_lr=0.7)), go(ud.FedAvg(server_lr=0.7)))


def e34() -> float:
    """With one exact local step, the direction of MimeLiteMVR's clients is what its m becomes."""
    left, right = (go(x, on=EXACT, steps=1) for x in (ud.MimeLiteMVR(a=0.3), ud.FedAvg_M_VR(beta=0.3)))
    return gap(left, right)


def e35() -> float:
    """FedNova's form with the weights and the step that plain averaging implies is plain averaging."""
    steps, plain = [1, 4, 2, 3, 2, 5], ud.FedNova(w="pa")
    gaps = [gap(*(go(x, on=WEIGHTED, steps=steps) for x in (plain, ud.FedAvg())))]
    prox = ud.FedNova(mu=0.7, w="pa"), ud.FedProx(mu=0.7)
    drawn = ud.FedNova(mu=0.7, w="pa", tau_eff="steps"), ud.FedNova(mu=0.7, tau_eff="steps")
    gaps += [gap(*(go(x, on=WEIGHTED, steps=steps) for x in prox))]
    return max(*gaps, gap(*(go(x, on=WEIGHTED, steps=4) for x in drawn)))  # equal steps: w = p


LIMITS: dict[str, Callable[[], float]] = {f"E{i}": globals()[f"e{i}"] for i in range(1, 36)}


@pytest.mark.parametrize("name", LIMITS)
def test_equivalence(name: str) -> None:
    assert LIMITS[name]() < 1e-9


def states(algorithm: Any, on: Any = NOISY, who: Any = SOME, steps: Any = K) -> Any:
    """The server and the states of all clients, round by round."""
    problem = WorldProblem(on)
    for r in ud.rounds(algorithm, problem, rounds=T, participation=who, local=ud.Local(steps=steps, lr=ETA)):
        state = r.snapshot()
        yield state.server, state.clients.gather(range(N))


CONTROLLED = {
    "scaffold-I": lambda: ud.Scaffold(option=1, eta_g=0.8),
    "scaffold-II": lambda: ud.Scaffold(option=2, B=2),
    "scaffold-m": lambda: ud.ScaffoldM(0.3, B=2),
    "scaffold-m-vr": lambda: ud.ScaffoldMVR(0.3),
    "scallion": lambda: ud.Scallion(alpha=0.5),
    "scafcom": lambda: ud.Scafcom(beta=0.4),
}


@pytest.mark.parametrize("name", CONTROLLED)
@pytest.mark.parametrize("world", [NOISY, WEIGHTED], ids=["uniform", "weighted"])
def test_c_is_the_mean_of_all_c_i(name: str, world: Any) -> None:
    p = torch.as_tensor(world.p)
    for server, clients in states(CONTROLLED[name](), on=world, steps=[1, 4, 2, 3, 2, 5]):
        assert float((server.c - p @ clients.c).abs().max()) < 1e-12


@pytest.mark.parametrize("algorithm", [ud.VRLSGD(), ud.LED(), ud.Scaffnew()])
def test_corrections_sum_to_zero(algorithm: Any) -> None:
    for server, clients in states(algorithm, who=EVERYONE):
        c = clients.z + clients.r * server.x
        assert float(c.sum(0).abs().max()) < 1e-12


def test_scaffnew_with_its_coin_keeps_the_sum() -> None:
    steps = ud.Geometric(0.4)
    for server, clients in states(ud.Scaffnew(p=0.4), who=EVERYONE, steps=steps):
        c = clients.z + clients.r * server.x
        assert float(c.sum(0).abs().max()) < 1e-12


def test_fednova_vr_corrections_have_weighted_sum_zero() -> None:
    p = torch.as_tensor(WEIGHTED.p)
    for server, clients in states(ud.FedNovaVR(rho=0.5), WEIGHTED, EVERYONE, [1, 4, 2, 3, 2, 5]):
        assert float((p @ (clients.r + server.d)).abs().max()) < 1e-12


def test_multistage_constants() -> None:
    stages = ud.MultistageFedGM(eta=(2.0, 1.0, 0.5), T=1001, beta=0.7, nu=0.9).stages
    assert [s.rounds for s in stages] == [143, 286, 572]
    assert [round(s.beta, 3) for s in stages] == [0.7, 0.824, 0.903]
    W1 = [s.eta * s.beta * s.nu / (1 - s.beta) for s in stages]
    assert max(W1) - min(W1) < 1e-12
    assert {s.rounds * s.eta for s in stages} == {286.0}


def test_two_server_steps_are_refused() -> None:
    for make in (ud.FedAvg_M, ud.FedAvg_M_VR, ud.ScaffoldM, ud.ScaffoldMVR, ud.FedCM, ud.MBStorm):
        with pytest.raises(ud.InvalidInput, match="server_lr=0.5 one in units of lr K: give one of them"):
            make(gamma=0.1, server_lr=0.5)


def test_fedprox_with_the_mean_number_of_steps_goes_further() -> None:
    """FedNova's Fig. 7, green: sum p tau in place of sum p |a|_1 with the same direction, also where steps are drawn."""
    prox, longer = ud.FedProx(mu=2.0), ud.FedNova(mu=2.0, w="pa", tau_eff="steps")
    problem = WorldProblem(WEIGHTED)
    moved = [path(x, problem, rounds=1, local=ud.Local(steps=(2, 6), lr=ETA)) for x in (prox, longer)]
    first, second = (x[1] - x[0] for x in moved)
    assert np.allclose(first / np.linalg.norm(first), second / np.linalg.norm(second), atol=1e-12)
    assert np.linalg.norm(second) > 1.1 * np.linalg.norm(first)


def test_scaffold_rests_at_the_optimum() -> None:
    """SCAFFOLD (P2), (P4): x = x*, c_i = grad f_i(x*) is a fixed point, whoever comes."""
    H, e = torch.as_tensor(EXACT.A[:, 0]), torch.as_tensor(EXACT.b[:, 0])
    problem = ud.Quadratic((H + H.mT) / 2, e)
    x = problem.optimum
    r = path(ud.Scaffold(B=1), problem, rounds=T, participation=SOME, local=ud.Local(steps=K), x0=x)
    assert gap(r, np.tile(x.numpy(), (T + 1, 1))) < 1e-12


# compressed and adaptive methods


@pytest.mark.parametrize("who", [EVERYONE, SOME], ids=["everyone", "partial"])
@pytest.mark.parametrize("eta_g", [1.0, 0.7])
def test_scallion_and_scafcom_without_compression_are_scaffold(who: Any, eta_g: float) -> None:
    right = go(ud.Scaffold(eta_g=eta_g), who=who)
    for left in (ud.Scallion(eta_g=eta_g), ud.Scafcom(eta_g=eta_g, beta=1.0)):
        assert gap(go(left, who=who), right) < 1e-9
    settings: dict[str, Any] = {
        "rounds": T,
        "participation": who,
        "local": ud.Local(steps=K, lr=ETA),
        "codec": "identity",
    }
    assert gap(path(ud.Scallion(eta_g=eta_g), WorldProblem(NOISY), **settings), right) < 1e-9


def test_diloco_without_outer_momentum_is_fedavg_with_adamw_kept() -> None:
    local = ud.Local(
        steps=[1, 4, 2, 3, 2, 5], lr=ETA, optimiser="adamw:eps=0.1", optimiser_state="keep", weight_decay=0.3
    )
    method = ud.DiLoCo(eta=1.0, mu=0.0, eps=0.1, decay=0.3)
    right = path(ud.FedAvg(), WorldProblem(NOISY), rounds=T, participation=SOME, local=local)
    assert gap(go(method, steps=[1, 4, 2, 3, 2, 5]), right) < 1e-9


def test_fedadamw_of_one_round_is_fedavg_with_adamw() -> None:
    """Before there are moments and a common step, and with one client in one block a number from there on, too."""
    local = ud.Local(steps=K, lr=ETA, optimiser="adamw:eps=0.1,weight_decay=0.3")
    right = path(ud.FedAvg(), WorldProblem(NOISY), rounds=1, participation=EVERYONE, local=local)
    assert gap(go(ud.FedAdamW(eps=0.1, decay=0.3), rounds=1, who=EVERYONE), right) < 1e-9


@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_fedadamw_sends_a_number_a_block(blocks: int) -> None:
    problem = WorldProblem(NOISY)
    (r,) = ud.rounds(ud.FedAdamW(blocks=blocks), problem, rounds=1, local=ud.Local(steps=K, lr=ETA), evaluate_every=9)
    assert r.bytes_up == N * 8 * (3 + blocks)
    assert r.bytes_down == N * 8 * (2 * 3 + blocks + 1)
