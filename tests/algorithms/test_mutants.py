"""Mistakes that were made, in public code or in print, as one-line changes of our methods: every one must be caught."""

from dataclasses import dataclass

import pytest

import undrift as ud
from tests.support.method_table import ROWS, Row
from tests.support.mutation import mutated
from tests.support.oracle_distance import distance_to_oracle, settings_of


@dataclass(frozen=True)
class Mutant:
    bug: str  # and where it was seen
    file: str
    right: str
    wrong: str


MUTANTS = [
    Mutant("mu is halved (RickZack/GHBM)", "fedavg.py", "self.mu * (y", "self.mu / 2 * (y"),
    Mutant("server momentum without dampening (APPFL #129)", "fedgm.py",
           "d = (1 - beta) * delta + beta * server.d", "d = delta + beta * server.d"),
    Mutant("server momentum with the wrong sign", "fedgm.py",
           "(1 - nu) * delta + nu * d)", "(1 - nu) * delta - nu * d)"),
    Mutant("a stage ends a round early", "fedgm.py", "cohort.round <= end", "cohort.round < end"),
    Mutant("beta of the stage before", "fedgm.py",
           "betas, nus, lengths, strict=True)", "betas[:1] + betas[:-1], nus, lengths, strict=True)"),
    Mutant("Nesterov mistaken for heavy ball", "fedgm.py", "nu=beta)", "nu=1.0)"),
    Mutant("asynchronous updates not divided by K", "fedgm.py", "Up(up.delta / work.K)", "Up(up.delta)"),
    Mutant("m in place of Delta in the second moment (flower #893)", "fedopt.py",
           "(1 - self.beta2) * D**2\n        mh", "(1 - self.beta2) * m**2\n        mh"),
    Mutant("bias correction one round off (Flower)", "fedopt.py",
           "self.beta1**t)", "self.beta1 ** (t + 1))"),
    Mutant("Yogi's sign", "fedopt.py", "(server.v - D**2).sign()", "(D**2 - server.v).sign()"),
    Mutant("sign of the correction (fedbiomed #734)", "scaffold.py",
           "work.grad(y) - client.c + down.c", "work.grad(y) + client.c - down.c"),
    Mutant("sign of option II (apple/pfl-research)", "scaffold.py",
           "dc = d - down.c if", "dc = -d - down.c if"),
    Mutant("no S/N before the mean change of c (NVFlare)", "scaffold.py",
           "cohort.share * mean.dc", "mean.dc"),
    Mutant("sum of changes of c without 1/N (RickZack/GHBM)", "scaffold.py",
           "cohort.share * mean.dc", "cohort.S * mean.dc"),
    Mutant("c_i sent in place of its change (plato #382)", "scaffold.py",
           "Up(delta, dc)", "Up(delta, client.c + dc)"),
    Mutant("K is the same for all (PFLlib #160)", "scaffold.py",
           "dc = d - down.c if", "dc = delta / (3 * work.lr) - down.c if"),
    Mutant("c_i starts from the weights (Flower niid_bench, NIID-Bench #8)", "scaffold.py",
           "return Client(c=0 * x)", "return Client(c=x)"),
    Mutant("a stray eta_l in c_i", "scaffold.py",
           "dc = d - down.c if", "dc = work.lr * (d + client.c - down.c) - client.c if"),
    Mutant("option I's gradient taken at y", "scaffold.py",
           "mean_gradient(down.x, 1, work)", "mean_gradient(down.x - delta, 1, work)"),
    Mutant("alpha and 1 - alpha exchanged (FedBR #2)", "momentum.py",
           "fresh * work.grad(y) + (1 - self.beta) * down.g",
           "(1 - self.beta) * work.grad(y) + fresh * down.g"),
    Mutant("only the last tensor of the momentum is sent (RickZack/GHBM's FedCM)", "momentum.py",
           "FedAvgMDown(server.x, server.g)",
           "FedAvgMDown(server.x, server.g * (server.g == server.g[-1]))"),
    Mutant("SCAFFOLD's shortcut for c_i used with beta < 1", "momentum.py",
           "dc = (g - down.h) / self.fresh", "dc = g - down.h"),
    Mutant("no S/N in SCAFFOLD-M", "momentum.py",
           "return ScaffoldMServer(x, g, server.c + cohort.share * mean.dc)",
           "return ScaffoldMServer(x, g, server.c + mean.dc)"),
    Mutant("second gradient at the current model", "momentum.py",
           "(down.g - work.grad(down.past))", "(down.g - work.grad(down.x))"),
    Mutant("the past model is never replaced", "momentum.py",
           "FedAvgMVRServer(x, past=server.x, g=mean.g)",
           "FedAvgMVRServer(x, past=server.past, g=mean.g)"),
    Mutant("SCAFFOLD-M-VR starts from g = 0", "momentum.py", "g=mean.g, c=mean.g)", "g=server.g, c=mean.g)"),
    Mutant("FedNova-VR's correction as printed", "fednova.py", "VRClient(c - d)", "VRClient(-d)"),
    Mutant("steps counted where the solver's norm is needed (NIID-Bench)", "fednova.py",
           "a = -self.solve(work.unit, work.zero) / work.lr", "a = work.K"),
    Mutant("population's share forgotten", "fednova.py", "cohort.share * tau_eff", "tau_eff"),
    Mutant("GHBM's window off by one", "ghbm.py",
           "past = (*server.past, server.x)[-int(self.tau) :]\n        return",
           "past = (*server.past, server.x)[-int(self.tau) - 1 :]\n        return"),
    Mutant("GHBM's momentum with the wrong sign", "ghbm.py",
           "self.beta / (int(self.tau) * work.K) * down.m", "-self.beta / (int(self.tau) * work.K) * down.m"),
    Mutant("a stray eta_l before GHBM's momentum (Algorithm 2 as printed)", "ghbm.py",
           "self.beta / (int(self.tau) * work.K) * down.m",
           "work.lr * self.beta / (int(self.tau) * work.K) * down.m"),
    Mutant("GHBM's momentum added whole at every step", "ghbm.py",
           "self.beta / (int(self.tau) * work.K) * down.m", "self.beta / int(self.tau) * down.m"),
    Mutant("FedHBM attracts where it should repel", "ghbm.py",
           "+ b * (y - client.anchor)", "- b * (y - client.anchor)"),
    Mutant("FedHBM anchored at the model received", "ghbm.py",
           "Client(y, 0 * client.last + work.t)", "Client(down.x, 0 * client.last + work.t)"),
    Mutant("tau_i off by one", "ghbm.py", "1 / (work.t - client.last)", "1 / (work.t - client.last + 1)"),
    Mutant("FedDyn's h with the wrong sign (RickZack/GHBM)", "feddyn.py",
           "h = server.h + self.alpha", "h = server.h - self.alpha"),
    Mutant("FedDyn's mean for its sum (RickZack/GHBM)", "feddyn.py",
           "cohort.share * mean.delta", "mean.delta / cohort.N"),
    Mutant("FedDyn's penalty halved (fedsim)", "feddyn.py",
           "self.alpha * (y - down.x)", "self.alpha / 2 * (y - down.x)"),
    Mutant("AdaBest's last round never updated (RickZack/GHBM)", "adabest.py",
           "Client(h, 0 * client.last + work.t)", "Client(h, client.last)"),
    Mutant("Mime without the second gradient", "mime.py",
           "work.grad(y) - work.grad(down.x) + c", "work.grad(y)"),
    Mutant("the relative server step forgets the number of steps", "momentum.py",
           "self.server_lr * (cohort.lr * cohort.K)", "self.server_lr * cohort.lr"),
    Mutant("implied weights divided by steps, not by |a|_1", "fednova.py",
           "mean.d / mean.tau", "mean.d / cohort.K"),
    Mutant("MimeLiteMVR's second gradient at the current model", "mime.py",
           "(down.m - work.grad(down.past))", "(down.m - work.grad(down.x))"),
    Mutant("MimeLiteMVR's m from one full gradient", "mime.py",
           "(server.m - mean.past)", "(server.m - mean.c)"),
    Mutant("MimeLiteMVR starts from m = 0", "mime.py", "m=mean.c)", "m=server.m)"),
    Mutant("FedADC's momentum counted twice", "fedadc.py",
           "(self.beta_g - self.beta_l) * server.m", "self.beta_g * server.m"),
    Mutant("STORM without its factor", "storm.py",
           "(1 - beta) * work.grad(down.past)", "work.grad(down.past)"),
    Mutant("no S/N before the mean of compressed increments", "compressed.py", "cohort.share * mean.dc", "mean.dc"),
    Mutant("the server's step forgets c", "compressed.py", "(mean.dc + server.c)", "mean.dc"),
    Mutant("alpha scales what is sent and not what is kept", "compressed.py",
           "return Up(dc), Client(client.c + dc)", "return Up(dc), Client(client.c + dc / self.alpha)"),
    Mutant("SCAFCOM's momentum weighs the new gradient with 1 - beta", "compressed.py",
           "(1 - self.beta) * client.v + self.beta * g", "self.beta * client.v + (1 - self.beta) * g"),
    Mutant("SCAFCOM's momentum of corrected gradients", "compressed.py",
           "controlled(down, client.c, work) + client.c - down.c", "controlled(down, client.c, work)"),
    Mutant("AdamW's state reset in every visit (DiLoCo's is kept)", "adamw.py",
           "work.loop(step, down.x, client.m, client.v, client.k)",
           "work.loop(step, down.x, 0 * client.m, 0 * client.v, 0 * client.k)"),
    Mutant("weight decay in the gradient: Adam, not AdamW", "adamw.py",
           "g, k = work.grad(y), k + 1\n            m = self.beta1 * m + (1 - self.beta1) * g\n"
           "            v = self.beta2 * v + (1 - self.beta2) * g * g\n            mh, vh = m / bias_correction(self.beta1, k), "
           "v / bias_correction(self.beta2, k)",
           "g, k = work.grad(y) + self.decay * y, k + 1\n            m = self.beta1 * m + (1 - self.beta1) * g\n"
           "            v = self.beta2 * v + (1 - self.beta2) * g * g\n            mh, vh = m / bias_correction(self.beta1, k), "
           "v / bias_correction(self.beta2, k)"),
    Mutant("heavy ball outside in place of Nesterov", "adamw.py", "(mean.delta + self.mu * u)", "u"),
    Mutant("second moments corrected by the steps of the visit alone", "adamw.py",
           "bias_correction(self.beta2, down.t + k)", "bias_correction(self.beta2, k)"),
    Mutant("the common step not divided by eta_l K", "adamw.py",
           "d = mean.delta / (cohort.lr * cohort.K)", "d = mean.delta"),
    Mutant("weight decay with the printed sign", "adamw.py",
           "+ self.decay * y + self.alpha * down.d", "- self.decay * y + self.alpha * down.d"),
    Mutant("drift corrected with the wrong sign", "primal_dual.py",
           "work.grad(y) - c)", "work.grad(y) + c)"),
]  # fmt: skip


def _strays(row: Row, cohorts: list[list[int]], K: list[int]) -> bool:
    try:
        return not distance_to_oracle(row, cohorts, K) < 1e-9
    except (ud.Diverged, ud.MethodFailure):
        return True


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.bug)
def test_mutant_is_caught(mutant: Mutant) -> None:
    with mutated(mutant.file, mutant.right, mutant.wrong) as names:
        rows = [row for row in ROWS if row.name in names]
        caught = any(_strays(row, cohorts, K) for row in rows for _, cohorts, K in settings_of(row))
    assert caught, f"nothing notices: {mutant.bug}"


def test_there_are_enough_of_them() -> None:
    assert len(MUTANTS) >= 15


def test_an_unchanged_method_is_not_caught() -> None:
    with mutated("scaffold.py", "dc = d - down.c if", "dc = d - down.c if") as names:
        assert names == ["scaffold"]
        for row in (row for row in ROWS if row.name in names):
            for _, cohorts, K in settings_of(row):
                assert distance_to_oracle(row, cohorts, K) < 1e-9
