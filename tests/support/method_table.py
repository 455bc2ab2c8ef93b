"""Every method, a row (or a few) each: what to run, the oracle it must equal, and where it is defined.

A new method gets the oracle, conformance and engine tests by adding its rows here.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import undrift as ud
from tests.support.oracles import (
    adamw,
    asynchrony,
    baselines,
    fedavg,
    fednova,
    ghbm,
    momentum,
    scaffold,
    server_momentum,
)


@dataclass(frozen=True)
class Row:
    name: str  # the method's name
    hyper: dict[str, Any]
    oracle: Callable[..., np.ndarray]
    told: dict[str, Any]  # what the oracle is told, in its own words
    partial: bool = True  # defined for partial participation
    unequal: bool = True  # defined for unequal numbers of steps
    weighted: bool = False  # its paper weights clients
    walks: bool = False  # one random client walks: the oracle is told which
    local: dict[str, Any] = field(default_factory=dict)  # more for ud.Local

    def __str__(self) -> str:
        settings = {**self.hyper, **self.local}
        return "-".join([self.name, *(f"{k}={v}" for k, v in settings.items())])


def same(name: str, oracle: Callable[..., np.ndarray], hyper: dict[str, Any], **where: Any) -> Row:
    """A row whose oracle uses the method's own words."""
    return Row(name, hyper, oracle, hyper, **where)


def renamed(hyper: dict[str, Any], **names: str) -> dict[str, Any]:
    return {names.get(k, k): v for k, v in hyper.items()}


def server(name: str, oracle: Callable[..., np.ndarray], hyper: dict[str, Any]) -> Row:
    """A row of a method whose server step size is called eta, which for oracles is the clients'."""
    return Row(name, hyper, oracle, renamed(hyper, eta="eta_s"))


sm = server_momentum

ROWS = [
    same("fedavg", fedavg.fedavg, {}, weighted=True),
    same("fedavg", fedavg.fedavg, {"server_lr": 1.7}, weighted=True),
    Row("fedavg", {}, fedavg.fedavg_local_momentum, {"rho": 0.8}, local={"momentum": 0.8}),
    same("fedprox", fedavg.fedprox, {"mu": 0.7, "server_lr": 0.9}, weighted=True),
    # server momentum
    server("fedgm", sm.fedgm, {"eta": 1.3, "beta": 0.8, "nu": 0.6}),
    server("fedgm", sm.fedgm, {"eta": 0.7, "beta": 0.5, "nu": 1.4}),
    Row("fedavgm", {"eta": 1.2, "beta": 0.8}, sm.fedavgm, {"eta_s": 1.2, "beta": 0.8}),
    Row(
        "fedavgm",
        {"eta": 0.3, "beta": 0.8, "dampened": False},
        sm.fedavgm_hsu,
        {"lr": 0.3, "beta": 0.8},
    ),
    Row(
        "fednag",
        {"eta": 0.3, "beta": 0.8, "dampened": False},
        sm.fednag,
        {"lr": 0.3, "beta": 0.8},
    ),
    Row("fednag", {"eta": 1.5, "beta": 0.8}, sm.fednag, {"lr": 0.3, "beta": 0.8}),
    same("snv", sm.snv, {"alpha": 0.6, "b1": 0.7, "b2": 0.4}),
    Row("triple-momentum", {"L": 1.6, "mu": 0.2}, sm.triple_momentum, {"L": 1.6, "m": 0.2}),
    same("robust-momentum", sm.robust_momentum, {"L": 1.6, "kappa": 8.0, "rho": 0.75}),
    same("pid", sm.pid_recht, {"k_P": -1.5, "k_I": 0.6, "k_D": 4.0}),
    same("pid-an", sm.pid_an, {"r": 0.3, "b": 0.7, "K_d": 0.4}),
    same("asgd", sm.asgd, {"delta": 0.4, "kappa": 6.0, "xi": 3.0}),
    Row(
        "multistage-fedgm",
        {"eta": (2.0, 1.0, 0.5), "T": 28, "beta": 0.7, "nu": 0.8},
        sm.multistage_fedgm,
        {
            "etas": [2.0, 1.0, 0.5],
            "betas": [0.7, 14 / 17, 28 / 31],  # beta/(1-beta) doubles as eta halves
            "nus": [0.8, 0.8, 0.8],
            "Ts": [4, 8, 16],
        },
    ),
    Row(
        "autonomous-fedgm",
        {"schedule": ud.FedGM(eta=3.0, beta=0.8, nu=0.6)},
        sm.autonomous_fedgm,
        {"eta_s": 3.0, "beta": 0.8, "nu": 0.6},
    ),
    Row(
        "autonomous-fedavg",
        {"eta": 3.0},
        sm.autonomous_fedgm,
        {"eta_s": 3.0, "beta": 0.0, "nu": 0.0},
    ),
    # asynchronous averaging, here with everyone on time; tests/simulation/asynchronous/test_oracles.py has the delays
    same("fedbuff", asynchrony.fedbuff, {"eta_g": 1.4}, weighted=True),
    same("fedasync", asynchrony.fedasync, {"alpha": 0.7, "rho": 0.6}, weighted=True),
    server("fedadam", sm.fedadam, {"eta": 0.1, "beta1": 0.8, "beta2": 0.9, "tau": 0.01, "v0": 0.0}),
    server(
        "fedadam",
        sm.fedadam,
        {"eta": 0.1, "beta1": 0.8, "beta2": 0.9, "tau": 0.1, "v0": 0.0, "bias_correction": True},
    ),
    Row(
        "fedadam",
        {"eta": 0.1, "tau": 0.2},
        sm.fedadam,
        {"eta_s": 0.1, "beta1": 0.9, "beta2": 0.99, "tau": 0.2, "v0": 0.04},
    ),
    server("fedyogi", sm.fedyogi, {"eta": 0.1, "beta1": 0.8, "beta2": 0.9, "tau": 0.1, "v0": 0.01}),
    server("fedadagrad", sm.fedadagrad, {"eta": 0.1, "beta1": 0.3, "tau": 0.1, "v0": 0.01}),
    # control variates
    same("scaffold", scaffold.scaffold, {"option": 2}),
    same("scaffold", scaffold.scaffold, {"option": 1, "eta_g": 0.8}),
    same("scaffold", scaffold.scaffold, {"option": 2, "eta_g": 1.3, "B": 2}),
    same("scallion", scaffold.scallion, {}),
    same("scallion", scaffold.scallion, {"alpha": 0.4, "eta_g": 1.2}),
    same("scafcom", scaffold.scafcom, {}),
    same("scafcom", scaffold.scafcom, {"beta": 0.6, "eta_g": 0.8}),
    same("vrl-sgd", scaffold.vrl_sgd, {}, partial=False, unequal=False),
    same("led", scaffold.led, {}, partial=False, unequal=False),
    same("led", scaffold.led, {"beta": 2.0}, partial=False),
    same("scaffnew", scaffold.scaffnew, {}, partial=False, unequal=False),
    same("scaffnew", scaffold.scaffnew, {"p": 0.2}, partial=False),
    # momentum in local steps
    same("fedavg-m", momentum.fedavg_m, {"beta": 0.3}),
    same("fedavg-m", momentum.fedavg_m, {"beta": 0.3, "gamma": 0.2}),
    Row("fedavg-m", {"beta": 0.3, "reparametrised": True}, momentum.fedavg_m_reparam, {"beta": 0.3}),
    Row("fedcm", {"alpha": 0.3}, momentum.fedavg_m, {"beta": 0.3}),
    same("fedavg-m-vr", momentum.fedavg_m_vr, {"beta": 0.3, "B": 3}),
    same("fedavg-m-vr", momentum.fedavg_m_vr, {"beta": 0.3, "gamma": 0.2, "B": 0}),
    same("fedavg-m", momentum.fedavg_m, {"beta": 0.3, "server_lr": 0.6}),
    same("fedavg-m-vr", momentum.fedavg_m_vr, {"beta": 0.3, "server_lr": 0.6}),
    same("scaffold-m", momentum.scaffold_m, {"beta": 0.3}),
    same("scaffold-m", momentum.scaffold_m, {"beta": 0.3, "server_lr": 0.6}),
    same("scaffold-m-vr", momentum.scaffold_m_vr, {"beta": 0.3, "server_lr": 0.6}),
    same("scaffold-m", momentum.scaffold_m, {"beta": 0.3, "gamma": 0.2, "B": 2}),
    Row(
        "scaffold-m",
        {"beta": 0.3, "B": 2, "reparametrised": True},
        momentum.scaffold_m_reparam,
        {"beta": 0.3, "B": 2},
    ),
    same("scaffold-m-vr", momentum.scaffold_m_vr, {"beta": 0.3, "B": 2}),
    same("scaffold-m-vr", momentum.scaffold_m_vr, {"beta": 0.3, "gamma": 0.2, "B": 0}),
    # normalised averaging
    same("fednova", fednova.fednova, {}, weighted=True),
    same("fednova", fednova.fednova, {"mu": 0.6, "tau_eff": "steps"}, weighted=True),
    same("fednova", fednova.fednova, {"rho": 0.8, "normalise": "population"}, weighted=True),
    same("fednova", fednova.fednova, {"mu": 0.6, "rho": 0.8, "gmf": 0.5}, weighted=True),
    same("fednova", fednova.fednova, {"tau_eff": 2.5}, weighted=True),
    Row(
        "fednova",
        {"mu": 0.6, "tau_eff": "steps", "w": "pa"},
        fednova.fednova,
        {"mu": 0.6, "tau_eff": "steps", "w_": "pa"},
        weighted=True,
    ),
    Row("fednova", {}, fednova.fednova, {"rho": 0.8}, weighted=True, local={"momentum": 0.8}),
    same("fednova-vr", fednova.fednova_vr, {}, partial=False, weighted=True),
    same("fednova-vr", fednova.fednova_vr, {"rho": 0.7}, partial=False, weighted=True),
    # generalised heavy ball
    same("ghbm", ghbm.ghbm, {"tau": 3, "beta": 0.9}),
    server("ghbm", ghbm.ghbm, {"tau": 3, "beta": 0.9, "eta": 0.8, "warmup": "telescope"}),
    same("ghbm-theory", ghbm.ghbm_theory, {"tau": 3, "beta": 0.4}),
    server("ghbm-theory", ghbm.ghbm_theory, {"tau": 3, "beta": 0.4, "eta": 0.2}),
    same("ghbm-server", ghbm.ghbm_server, {"tau": 3, "beta": 0.7}),
    Row(
        "ghbm-server",
        {"tau": 3, "beta": 0.7, "warmup": "telescope"},
        ghbm.ghbm_eq5,
        {"tau": 3, "beta": 0.7},
    ),
    server("local-ghbm", ghbm.local_ghbm, {"beta": 0.9, "eta": 0.8}),
    same("local-ghbm", ghbm.local_ghbm, {"beta": 0.9, "C": 0.4}),
    server("fedhbm", ghbm.fedhbm, {"beta": 0.9, "eta": 0.8}),
    same("fedhbm", ghbm.fedhbm, {"beta": 1.0, "C": 0.4}),
    # AdamW on clients
    Row("diloco", {"eta": 0.5, "mu": 0.6, "eps": 0.1}, adamw.diloco, {"outer": 0.5, "mu": 0.6, "eps": 0.1}),
    Row(
        "diloco",
        {"beta1": 0.5, "beta2": 0.8, "eps": 0.05, "decay": 0.3},
        adamw.diloco,
        {"beta1": 0.5, "beta2": 0.8, "eps": 0.05, "decay": 0.3},
    ),
    same("fedadamw", adamw.fedadamw, {"eps": 0.1}),
    same("fedadamw", adamw.fedadamw, {"alpha": 1.2, "beta1": 0.5, "beta2": 0.8, "eps": 0.1, "decay": 0.2, "blocks": 2}),
    # others
    same("fedadc", baselines.fedadc, {"beta_l": 0.6, "beta_g": 0.8, "alpha": 0.7}),
    same("fedadc", baselines.fedadc, {"beta_l": 0.8, "beta_g": 0.8, "nesterov": True}),
    same("feddyn", baselines.feddyn, {"alpha": 0.9}),
    same("adabest", baselines.adabest, {"mu": 0.05, "beta": 0.6}),
    same("mime", baselines.mime, {"opt": "sgd", "server_lr": 0.9}),
    same("mime", baselines.mime, {"opt": "sgdm", "beta": 0.8}),
    same("mime", baselines.mime, {"opt": "adam", "beta": 0.8, "beta2": 0.9, "eps": 0.1}),
    same("mimelite", baselines.mimelite, {"opt": "sgd", "server_lr": 0.9}),
    same("mimelite", baselines.mimelite, {"opt": "sgdm", "beta": 0.8}),
    same("mimelite", baselines.mimelite, {"opt": "adam", "beta": 0.8, "beta2": 0.9, "eps": 0.1}),
    same("mimelite-mvr", baselines.mimelite_mvr, {"a": 0.3}),
    same("mimelite-mvr", baselines.mimelite_mvr, {"a": 0.2, "server_lr": 0.7}),
    same("mb-storm", baselines.mb_storm, {"beta": 0.3, "B": 2}),
    same("mb-storm", baselines.mb_storm, {"beta": 0.3, "gamma": 0.2, "B": 0}),
    same("ce-lsgd", baselines.ce_lsgd, {"beta": 0.3, "B": 2}, walks=True),
    same("bvr-l-sgd", baselines.bvr_l_sgd, {"period": 4}, walks=True),
    same("stem", baselines.stem, {"a": 0.3, "B": 2}),
]


FIRST = list({row.name: row for row in reversed(ROWS)}.values())[::-1]  # a row a method


def made(row: Row) -> Any:
    return ud.method(row.name, **row.hyper)
