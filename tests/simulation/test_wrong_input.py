"""Wrong input: said before the first round, with what was got and what is allowed."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import undrift as ud
from tests.support.quadratics import quadratic

X, Y = torch.randn(20, 3), torch.arange(20) % 2


def go(algorithm: Any = None, **settings: Any) -> Any:
    arguments: dict[str, Any] = {"rounds": 3} | settings
    return lambda: ud.rounds(algorithm or ud.FedAvg(), quadratic(), **arguments)


def federate(**more: Any) -> Callable[[], Any]:
    def make() -> Any:
        arguments: dict[str, Any] = {
            "train": (X, Y), "model": nn.Linear(3, 2), "loss": F.cross_entropy, "clients": ud.IID(4)
        }  # fmt: skip
        return ud.federate(**(arguments | more))

    return make


def with_nan(v: torch.Tensor) -> torch.Tensor:
    v = v.clone()
    v[7, 1] = torch.nan
    return v


EYE = torch.eye(2)[None]

CASES: list[tuple[Callable[[], Any], str]] = [
    # hyper-parameters
    (lambda: ud.ScaffoldM(beta=0), r"scaffold-m: beta must lie in \(0, 1\], got 0"),
    (lambda: ud.ScaffoldM(beta=1.5), r"beta must lie in \(0, 1\], got 1.5"),
    (lambda: ud.FedGM(beta=1.0), r"fedgm: beta must lie in \[0, 1\), got 1.0"),
    (lambda: ud.FedAvg(server_lr=-1), r"server_lr must lie in \[0, inf\), got -1"),
    (lambda: ud.FedAvg(server_lr=float("nan")), "server_lr must lie in"),
    (lambda: ud.FedAvg(server_lr="big"), "server_lr must be a number"),  # pyright: ignore
    (lambda: ud.GHBM(tau=0), r"ghbm: tau must lie in \[1, inf\), got 0"),
    (lambda: ud.GHBM(tau=2.5), "tau must be a whole number"),  # pyright: ignore
    (lambda: ud.GHBM(warmup="slow"), "warmup must be one of 'zero', 'telescope', got 'slow'"),
    (lambda: ud.Scaffold(option=3), "option must be one of 1, 2, got 3"),
    (lambda: ud.FedNova(tau_eff="tau"), "tau_eff is 'a', 'steps' or a number, got tau"),
    (lambda: ud.FedAvgM(beta=1.0), "fedavgm: beta must lie in"),
    (lambda: ud.TripleMomentum(L=1.0, mu=2.0), r"mu must lie in \(0, 1.0\)"),
    (lambda: ud.RobustMomentum(L=1.0, kappa=4.0, rho=0.9), "rho must lie in"),
    # schedules
    (lambda: ud.MultistageFedGM(eta=()), "eta lists the stages' step sizes"),
    (lambda: ud.MultistageFedGM(eta=(2.0, 0.0)), r"eta must lie in \(0, inf\), got 0.0"),
    (lambda: ud.MultistageFedGM(eta=(2.0, 1.0), beta=(0.7, 1.0)), r"beta must lie in \[0, 1\)"),
    (
        lambda: ud.MultistageFedGM(eta=(2.0, 1.0), nu=(0.7, 1.0, 0.5), T=20),
        "2 step sizes, 1 betas, 3 nus and 2 lengths: give one of each",
    ),
    (
        lambda: ud.MultistageFedGM(eta=(2.0, 1.0), lengths=(20, 20), T=30),
        r"the lengths \(20, 20\) sum to 40, T is 30: leave one of them out",
    ),
    (
        go(ud.MultistageFedGM(eta=(2.0, 0.01)), rounds=9),
        r"9 rounds are too few for 2 stages .* their lengths would be \(0, 9\); give lengths",
    ),
    (lambda: ud.MultistageFedGM(eta=(2.0, 1.0), lengths=(20,)), "give one of each"),
    (go(ud.MultistageFedGM(T=8), rounds=9), "the stages cover 8 rounds, the run has 9"),
    (federate(model=nn.LazyLinear(2)), r"'weight' has no shape before its first call: call the model on one sample"),
    # names
    (lambda: ud.method("scafold"), "unknown method 'scafold'; did you mean 'scaffold'"),
    (lambda: ud.method("scaffold-m", betta=1), "parameter of .* 'betta'; did you mean 'beta'"),
    (lambda: ud.method("snv"), "snv needs alpha, b1, b2"),
    (go(engine="bached"), "unknown engine 'bached'; did you mean 'batched'"),
    (go("fedavg"), r"algorithm must be an object such as ud.method\('fedavg'\), got 'fedavg'"),
    # numbers
    (go(rounds=0), r"rounds must lie in \[1, inf\), got 0"),
    (go(seed=-1), r"seed must lie in \[0, "),
    (go(chunk=0), r"chunk must lie in \[1, inf\)"),
    (go(evaluate_every=0), r"evaluate_every must lie in"),
    # participation
    (go(participation=ud.Uniform(7)), "S must be from 1 to the number of clients, 6; got 7"),
    (go(participation=ud.Uniform(0)), "S must be from 1 to the number of clients, 6; got 0"),
    (go(participation=ud.Cyclic(9)), "S must be from 1 to"),
    (go(participation=ud.Cyclic(2, shuffle="no")), r"Cyclic: shuffle must be one of False, True, got 'no'"),  # pyright: ignore
    (go(participation=ud.Weighted(0)), r"S must lie in \[1, inf\)"),
    (go(participation=ud.Bernoulli(1.5)), r"q must lie in \(0, 1\], got 1.5"),
    (go(participation=ud.Fixed([[0]])), "Fixed has 1 cohorts for 3 rounds"),
    (go(participation=ud.Fixed([[0], [6], [1]])), "round 2 must name .* 0 to 5"),
    (go(participation=ud.Fixed([[0], [1, 1], [1]])), "round 2 must name different clients"),
    (go(participation=ud.Fixed(np.array([[0], [6], [1]]))), r"round 2 must name .* 0 to 5, got \[6\]"),
    (lambda: ud.Fixed(3), "Fixed takes a list of clients for every round, got 3"),  # pyright: ignore
    (go(ud.VRLSGD(), participation=ud.Uniform(2)), "vrl-sgd is defined for full participation"),
    # local work
    (lambda: ud.Local(steps=0), "steps must be whole numbers from 1 up, got 0"),
    (lambda: ud.Local(steps=[1, 0]), "steps must be whole numbers from 1 up, got 0"),
    (lambda: ud.Local(steps=(5, 2)), r"steps that are drawn go from a low number to a high one, got \(5, 2\)"),
    (lambda: ud.check(ud.FedAvg(), cast(Any, 3)), "problem must be an object such as ud.federate"),
    (lambda: ud.Local(steps=(1, 2, 3)), "for one number a client give a list"),
    (lambda: ud.Local(steps=1, epochs=1), "give steps or epochs, not both"),
    (lambda: ud.Local(lr=-0.1), r"lr must lie in \[0, inf\), got -0.1"),
    (lambda: ud.Local(lr=float("inf")), "lr must lie in"),
    (lambda: ud.Local(batch=0), r"batch must lie in \[1, inf\), got 0"),
    (lambda: ud.Local(momentum=1.0), r"momentum must lie in \[0, 1\)"),
    (lambda: ud.Local(decay=0), r"decay must lie in \(0, 1\]"),
    (lambda: ud.Local(weight_decay=-1), "weight_decay must lie in"),
    (lambda: ud.Local(clip=0), r"clip must lie in \(0, inf\)"),
    (lambda: ud.Local(steps=ud.Geometric(0.0)), "p must lie in"),
    (go(local=ud.Local(steps=[1, 2])), "steps lists 2 numbers for 6 clients"),
    (go(local=ud.Local(lr=[0.1, 0.2])), "lr lists 2 step sizes for 3 rounds"),
    (go(ud.ScaffoldM(), local=ud.Local(momentum=0.9)), "scaffold-m has a local rule of its own"),
    (go(ud.VRLSGD(), local=ud.Local(steps=[1, 2, 1, 1, 1, 1])), "needs the same number of steps"),
    (go(ud.Scaffold(), participation=ud.Weighted(2)), "scaffold adds up clients' states .* ud.Uniform"),
    (go(ud.LED(), local=ud.Local(steps=[1, 2, 1, 1, 1, 1])), "led needs the same number of steps"),
    (go(ud.FedNova(), local=ud.Local(lr=0)), "fednova divides by the local step size"),
    # objects
    (go(ud.FedAvg), "algorithm must be an object such as"),
    (go(participation=ud.Everyone), r"participation must be an object such as ud.Uniform\(10\)"),
    (go(participation=3), "participation must be an object"),
    (go(local={"steps": 1}), "local must be an object such as ud.Local"),
    (go(rounds=2.5), "rounds must be a whole number"),
    (go(seed=None), "seed must be a whole number"),
    (go(engine=None), "unknown engine 'None'"),
    (go(participation=ud.Uniform(2.0)), "S must be from 1 to"),  # pyright: ignore
    (lambda: ud.GHBM(tau=3.0), "tau must be a whole number in"),  # pyright: ignore
    (lambda: ud.Local(batch=2.0), "batch must be a whole number"),  # pyright: ignore
    (lambda: ud.Local(steps=2.0), "steps must be whole numbers from 1 up, got 2.0"),  # pyright: ignore
    (lambda: ud.MultistageFedGM(eta=()), "eta lists the stages' step sizes"),
    (lambda: ud.MultistageFedGM(eta=(1.0, 0.0)), r"eta must lie in \(0, inf\)"),
    (lambda: ud.AutonomousFedGM(schedule=0.5), "schedule is a FedGM"),  # pyright: ignore
    (lambda: ud.RobustMomentum(L=0, kappa=4.0, rho=0.6), "L must lie in"),
    (lambda: ud.SNV(alpha=-1.0, b1=0.5, b2=0.2), "snv: alpha must lie in"),
    (lambda: ud.Exchange(lambda s: s, lambda d, c, w: (d, c), lambda s, m, c: s, "evryone"), "unknown recipient 'evryone'; did you mean 'everyone'"),  # pyright: ignore
    (go(start="yesterday"), r"start must be a snapshot\(\)"),
    (go(start=ud.run(ud.FedGM(), quadratic(), rounds=2)), "a state of another method"),
    (go(start=ud.run(ud.FedAvg(), quadratic(), rounds=3)), "start is after round 3, rounds=3 leaves nothing"),
    # where to start
    (go(x0=torch.zeros(3, dtype=torch.float64)), r"x0 must be \[4\] of torch.float64 .* got \[3\]"),
    (go(x0=torch.zeros(4)), "got .* of torch.float32"),
    (go(x0=torch.full((4,), torch.nan, dtype=torch.float64)), "x0 has NaN or Inf"),
    # quadratics
    (lambda: ud.Quadratic(torch.eye(2), torch.zeros(1, 2)), r"H \[N, d, d\] and e \[N, d\]; got"),
    (lambda: ud.Quadratic(EYE, torch.zeros(2, 2)), r"got \[1, 2, 2\] and \[2, 2\]"),
    (lambda: ud.Quadratic(EYE, torch.zeros(1, 2).double()), "one floating type"),
    (lambda: ud.Quadratic(EYE.long(), torch.zeros(1, 2).long()), "one floating type"),
    (lambda: ud.Quadratic(EYE, torch.full((1, 2), torch.nan)), "e has NaN or Inf at client 0"),
    (lambda: ud.Quadratic(torch.ones(1, 2, 2).triu(), torch.zeros(1, 2)), "H must be symmetric"),
    (lambda: ud.Quadratic(EYE, torch.zeros(1, 2), variance=-1), "variance must be"),
    (lambda: quadratic([0.5] * 6), "weights must sum to 1, these sum to 3"),
    (lambda: quadratic([-0.2, 0.4, 0.2, 0.2, 0.2, 0.2]), "not negative; client 0 has -0.2"),
    (lambda: quadratic([1.0]), "weights: got 1 for 6 clients"),
    (lambda: quadratic([float("nan")] * 6), "weights must be finite"),
    # data
    (federate(train=(with_nan(X), Y)), "train: 1 inputs have NaN or Inf, the first is sample 7"),
    (federate(test=(with_nan(X), Y)), "test: 1 inputs have NaN"),
    (federate(train=(X, Y[:5])), "20 inputs and 5 targets"),
    (federate(train=X), r"must be \(inputs, targets\), .* got Tensor"),
    (federate(train=(X.double(), Y)), "the data are torch.float64 and the model torch.float32"),
    (federate(model=nn.Linear(4, 2)), "model and loss do not fit data of shape"),
    (federate(loss=lambda o, t: o), "must be one finite number"),
    (federate(train=(X, Y + 5)), "do not fit"),
    (federate(clients=ud.IID(21)), "20 samples can be dealt to 1 to 20 clients, got 21"),
    (lambda: ud.IID(0), r"N must lie in \[1, inf\), got 0"),
    (lambda: ud.IID(4.0), "N must be a whole number"),  # pyright: ignore
    (federate(clients=ud.IID), "clients must be an object such as"),
    (federate(seed=-1), "seed must lie in"),
    (federate(model=nn.Linear), "model must be an nn.Module object"),
    (federate(augment=ud.CropFlip()), r"needs images .* inputs are \[3\]"),
    (federate(augment=ud.CropFlip), "augment must be an object such as"),
    (federate(prepare=lambda b: b + torch.randn_like(b)), "prepare must make the same"),
    (federate(train=(X, X[:, 0]), model=nn.Linear(3, 1), loss=lambda o, t: (o - t).square().mean()), r"use y\[:, None\]"),
    (federate(clients=["a", None] * 10), "sample 1 has no client"),
    (federate(test=(X[:, :2], Y)), "do not fit test data of shape"),
    (federate(test=(X.double(), Y)), "the test data are torch.float64"),
    (federate(train=(X, torch.zeros(20, 2).double()), loss=F.mse_loss), "the targets are torch.float64"),
    (federate(train=((X, X), Y)), r"do not fit data of shape \(\[20, 3\], \[20, 3\]\)"),
    (federate(train=(X, "labels")), r"must be \(inputs, targets\), each a tensor"),
    (federate(clients=[]), "clients must be a partition such as"),
    (federate(clients=5), "clients must be a partition such as"),
    (federate(clients=[[0.5, 1.5], [2]]), "client 0: sample numbers must be whole"),
    (federate(clients=np.array([0.0, np.nan] * 10)), "sample 1 has no client"),
    (federate(clients=ud.Natural()), "these data name no clients"),
    (federate(clients=ud.FeatureSkew(2, 9)), "have no column 9"),
    (federate(clients=[[0, 1], []]), "client 1 has no samples"),
    (federate(clients=[[0, 1], [20]]), "client 1 names a sample outside 0 to 19"),
    (federate(clients=np.zeros(5)), r"array of shape \[5\] for 20 samples"),
    (federate(weights="size"), "weights are 'uniform', 'samples' or numbers, got 'size'"),
    (federate(weights=[0.5, 0.5]), "got 2 for 4 clients"),
    (lambda: ud.Dirichlet(4, alpha=-1), "alpha must lie in"),
    (federate(train=(X, torch.randn(20, 2)), loss=F.mse_loss, clients=ud.Dirichlet(4, 0.1)),
     "needs one integer label"),
    (federate(model=nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))), "layer '1' .BatchNorm1d. .*GroupNorm"),
    (federate(model=nn.Linear(3, 2).requires_grad_(False)), "no trainable parameters"),
    (lambda: ud.Synthetic(a=-1), "a must lie in"),
]  # fmt: skip


@pytest.mark.parametrize("make, message", CASES, ids=[message[:50] for _, message in CASES])
def test_bad_input_is_named(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ud.InvalidInput, match=message):
        make()


def test_a_setting_of_local_training_is_told_its_place() -> None:
    with pytest.raises(TypeError, match=r"a run has no setting 'lr'; give local=ud.Local\(lr=...\)"):
        go(lr=0.1)()


def test_invalid_input_is_a_value_error() -> None:
    assert issubclass(ud.InvalidInput, ValueError)
