"""Search spaces: the papers' grids, spaces of one's own, budgets, values at the edge."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import undrift as ud
from tests.support.small_sweep import SPACE, experiment, problem_of
from undrift.cli.sweeps import introduction
from undrift.core.errors import InvalidInput
from undrift.core.hyper import METHODS
from undrift.experiments.sweeps.chosen import (
    check_values,
    edges,
    method_words,
    with_methods,
)
from undrift.experiments.sweeps.plan import Plan, plan_searches
from undrift.experiments.sweeps.space import (
    UNDAMPENED,
    Range,
    Space,
    SpaceRow,
    read_space,
    space_from_dict,
    space_to_dict,
)
from undrift.experiments.sweeps.spaces import SPACES, space_of
from undrift.experiments.sweeps.sweeping import plan_sweep
from undrift.simulation.catalogue import EXAMPLES

# named spaces

TINY = experiment("fedavg")
PROBLEM = problem_of(TINY)


@pytest.mark.parametrize("name", SPACES)
def test_a_named_space_has_only_parameters_and_values_that_its_methods_take(name):
    space = SPACES[name]
    sampler = {"sampler": "random", "trials": 3} if name == "search" else {}
    for row in space.rows:
        e = experiment(algorithms={row.method: dict(row.when)})
        (search,) = plan_searches(e, Plan(space, **sampler))
        assert search.has_row and set(row.choices) <= set(search.choices)
        check_values(e, search)


@pytest.mark.parametrize("name", SPACES)
def test_a_method_without_a_row_has_what_is_common(name):
    for method in set(METHODS) - {row.method for row in SPACES[name].rows}:
        e = experiment(algorithms={method: EXAMPLES.get(method, {})})
        (search,) = plan_searches(e, Plan(SPACES[name], trials=3, sampler="random"))
        assert search.choices == SPACES[name].common and not search.has_row
        check_values(e, search)


def test_the_grids_have_as_many_points_as_in_the_papers():
    def points(space, method, **parameters):
        e = experiment(algorithms={method: parameters})
        return plan_searches(e, Plan(space_of(space)))[0].trials

    assert points("ghbm-lenet", "fedavg") == 3 * 3 * 3  # eta, eta_l, wd
    assert points("ghbm-lenet", "ghbm") == 3 * 3 * 4 * 3
    assert points("ghbm-resnet20", "fedhbm") == 2 * 2 * 3 * 2
    assert points("ghbm-resnet20", "adabest") == 3 * 3 * 2
    assert points("ghbm-resnet20", "mime") == 2 * 2 * 2
    assert points("ghbm-resnet20", "mime", opt="sgdm") == 4 * 4 * 3 * 2
    assert points("ghbm-lenet", "mimelite", opt="sgdm") == 3 * 3 * 2 * 3
    assert points("ghbm-shakespeare", "fedprox") == 3 * 3 * 4 * 3
    assert points("ghbm-stackoverflow", "fedcm") == 4 * 3  # no row: FedAvg's eta_l, and wd
    assert points("ghbm-shakespeare", "fedcm") == 3 * 3 * 3 * 3
    assert points("ghbm-mobilenet", "scaffold") == points("ghbm-vit", "ghbm") == 2 * 2
    assert points("ghbm-inaturalist", "scaffold") == points("ghbm-inaturalist", "mime", opt="sgdm") == 4 * 4
    assert points("ghbm-inaturalist", "fedavgm") == 2 * 2
    assert points("momentum", "scaffold-m") == 5 * 4 and points("momentum", "scaffold") == 5
    assert points("fedgm", "fedgm") == 10 * 3 * 3 and points("fedgm", "fedavgm") == 10 * 3
    assert points("fednova", "fedprox") == 5 * 4 and points("fednova", "fednova") == 5 * 5


def test_table_7_server_momentum_is_undampened():
    (search,) = plan_searches(experiment("fedavgm"), Plan(space_of("ghbm-lenet")))
    assert search.points is not None
    for point in search.points:
        words = method_words(experiment("fedavgm"), "fedavgm", point)
        made = with_methods(TINY, {"fedavgm": words}).methods["fedavgm"].make()
        eta, beta = float(point["eta"]), float(point["beta"])
        assert made == ud.FedGM(eta=eta / (1 - beta), beta=beta, nu=1.0)


def double(e: ud.Experiment) -> ud.ModelProblem:
    """Small data in float64, the same number of samples for everyone."""
    X = torch.randn(24, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    model = nn.Linear(3, 2).double()
    return ud.federate((X, torch.arange(24) % 2), model=model, loss=F.cross_entropy, clients=ud.IID(4))


def test_table_7_fedcm_steps_so_much_of_plain_averaging():
    e = experiment("fedcm", local={"epochs": 2, "batch": 3, "lr": 0.3})
    problem = double(e)

    def moved(part):
        words = method_words(e, "fedcm", {"server_lr": part, "alpha": 0.5})
        chosen = with_methods(e, {"fedcm": words})
        method, local = chosen.methods["fedcm"].make(), chosen.local_of("fedcm")
        return ud.run(method, problem, rounds=1, local=local, engine="sequential").x - problem.x0

    assert torch.allclose(moved(0.1), 0.1 * moved(1.0), rtol=1e-9, atol=0)
    plain = ud.FedCM(alpha=0.5)
    x = ud.run(plain, problem, rounds=1, local=e.local_of("fedcm"), engine="sequential").x
    assert torch.equal(moved(1.0), x - problem.x0)


def test_table_7_mime_has_undampened_momentum():
    e = experiment(algorithms={"mime": {"opt": "sgdm"}}, local={"steps": 1, "batch": "all"})
    problem = double(e)
    chosen = {"server_lr": 0.5, UNDAMPENED: 0.2, "beta": 0.9}
    chosen = with_methods(e, {"mime": method_words(e, "mime", chosen)})
    method, local = chosen.methods["mime"].make(), chosen.local_of("mime")
    x, m = problem.x0.clone(), torch.zeros_like(problem.x0)
    for r in ud.rounds(method, problem, rounds=3, local=local, engine="sequential"):  # everyone
        c = sum((problem.full_grad(x, [i]) for i in range(problem.N)), 0 * x) / problem.N
        x, m = x - 0.5 * 0.2 * (c + 0.9 * m), 0.9 * m + c
        assert torch.allclose(r.x, x, rtol=1e-9, atol=1e-12)


def test_a_server_step_that_is_chosen_takes_the_place_of_gamma():
    e = experiment(algorithms={"fedcm": {"gamma": 0.2}}, local={"steps": {"low": 1, "high": 3}, "decay": 0.9})
    words = method_words(e, "fedcm", {"server_lr": 0.5})
    assert with_methods(e, {"fedcm": words}).methods["fedcm"].make() == ud.FedCM(server_lr=0.5)


def test_the_old_name_of_the_relative_server_step_is_still_read():
    with pytest.warns(DeprecationWarning, match="is now 'server_lr'"):
        space = space_from_dict({"method": [{"name": "fedcm", "gamma/(lr K)": [1.0, 0.5]}]}, "mine")
    assert space.rows[0].choices == {"server_lr": (1.0, 0.5)}


@pytest.mark.parametrize("name", SPACES)
def test_a_space_is_the_same_after_toml(name):
    assert space_from_dict(space_to_dict(SPACES[name]), name) == SPACES[name]


def test_a_space_of_ones_own(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(
        "[common]\nlocal.lr = [0.1, 1.0]\n"
        '[[method]]\nname = "mime"\nwhen = {opt = "sgdm"}\nbeta = {low = 0.1, high = 0.9}\n'
    )
    space = space_of(str(file))
    assert space.common == {"local.lr": (0.1, 1.0)}
    assert space.rows == (SpaceRow("mime", {"beta": Range(0.1, 0.9)}, {"opt": "sgdm"}),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("common = 3", r"one \[common\]"),
        ("[commons]\nbeta = [1]", "unknown key of a space: 'commons'; did you mean 'common'"),
        ("[[method]]\nbeta = [1]", "needs its name"),
        ('[[method]]\nname = "fedavgg"', "unknown method 'fedavgg'; did you mean 'fedavg'"),
        ("[common]\nlocal.lr = 0.1", "lr: give a list of values or a range, got 0.1"),
        ("[common]\nlocal.lr = []", "give a list of values"),
        ("[common]\nlocal.lr = [0.1, 0.1]", "has a value twice"),
        ("[common]\nlocal.lr = {low = 1, high = 0.5}", "from low to high"),
        ("[common]\nlocal.lr = {low = 0, high = 0.5, log = true}", "begins above zero"),
        ("[common]\nlocal.lr = {from = 0}", "a range is written"),
        ("[common", "is not TOML"),
    ],
)
def test_a_wrong_space_file_is_refused(tmp_path, text, message):
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(InvalidInput, match=message):
        read_space(file)


# budgets


def test_budgets_are_equal_and_small_grids_are_exhausted():
    e = experiment("fedavg", "scaffold-m")
    whole = plan_searches(e, Plan(SPACE))
    assert [s.trials for s in whole] == [3, 6]
    few = plan_searches(e, Plan(SPACE, trials=4))
    assert [s.trials for s in few] == [3, 4]
    drawn = few[1].points
    assert drawn is not None and len({tuple(p.items()) for p in drawn}) == 4
    assert drawn != plan_searches(e, Plan(SPACE, trials=4, seed=1))[1].points
    for sampler in ("random", "tpe"):  # nothing to search in what can be tried whole
        fedavg, scaffold = plan_searches(e, Plan(SPACE, trials=4, sampler=sampler))
        assert fedavg.points == whole[0].points and scaffold.points is None


def test_the_introduction_says_what_is_unequal():
    e = experiment("fedavg", "scaffold-m", "fedgm")
    said = list(introduction(plan_sweep(e, Plan(SPACE, trials=4, seeds=2))))
    assert "every method: at most 4 trials of 4 rounds with 2 seeds" in said
    assert "fedavg: the grid has 3 points, the rest of the budget stays unspent" in said
    assert "scaffold-m: 4 of 6 points of the grid, drawn without replacement" in said
    assert "fedgm: no row in space mine; only what is common: local.lr" in said
    assert any("training samples held out" in line and "test data unseen" in line for line in said)
    said = list(introduction(plan_sweep(experiment("scaffold"), Plan(space_of("fedgm"), validate=0))))
    assert "scaffold: space fedgm has nothing to choose; tried once as it is" in said
    assert any("test data, as in the papers" in line for line in said)


# edges


def flagged(method: str, choices: dict, chosen: dict) -> list[str]:
    space = Space("edges", rows=(SpaceRow(method, choices),))
    (search,) = plan_searches(experiment(method), Plan(space, trials=2, sampler="random"))
    return [line.split(" is at")[0] for line in edges(experiment(method), search, chosen)]


def test_a_best_value_at_the_edge_is_flagged_if_there_is_anything_beyond():
    lr = {"local.lr": (0.1, 1.0, 0.3)}
    assert flagged("fedavg", lr, {"local.lr": 1.0}) == ["local.lr = 1"]
    assert flagged("fedavg", lr, {"local.lr": 0.1}) == ["local.lr = 0.1"]
    assert flagged("fedavg", lr, {"local.lr": 0.3}) == []
    assert flagged("fedavg", {"local.lr": (0.1,)}, {"local.lr": 0.1}) == []
    assert flagged("fedhbm", {"beta": (0.9, 1.0)}, {"beta": 1.0}) == []  # 1 is the largest there is
    assert flagged("fedhbm", {"beta": (0.9, 0.99)}, {"beta": 0.99}) == ["beta = 0.99"]
    assert flagged("ghbm", {"tau": (1, 5)}, {"tau": 1}) == []
    assert flagged("ghbm", {"tau": (1, 5)}, {"tau": 5}) == ["tau = 5"]
    assert flagged("fedavgm", {"dampened": (True, False)}, {"dampened": True}) == []
    assert flagged("mime", {"opt": ("sgd", "sgdm")}, {"opt": "sgd"}) == []
    wide = {"local.lr": Range(0.01, 1.0, log=True)}
    assert flagged("fedavg", wide, {"local.lr": 0.98}) == ["local.lr = 0.98"]
    assert flagged("fedavg", wide, {"local.lr": 0.5}) == []
    assert flagged("fedavg", {"local.weight_decay": Range(0.0, 1.0)}, {"local.weight_decay": 0.0}) == []


# fewer trials than points


@pytest.mark.parametrize("trials", [1, 2, 4, 6, 7])
def test_all_methods_try_the_same_step_sizes(trials: int) -> None:
    e = experiment("fedavg", "scaffold-m", "ghbm")
    searches = plan_searches(e, Plan(space_of("choose"), trials=trials))
    tried = [{point["local.lr"] for point in search.points or ()} for search in searches]
    assert tried[0] == tried[1] == tried[2] and len(tried[0]) == min(trials, 6)
