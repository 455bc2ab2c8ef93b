"""Experiments: the same words in TOML and Python; what is wrong is named with its line and what is allowed."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import undrift as ud
from undrift.core.hyper import METHODS
from undrift.experiments.config import Experiment, read, with_settings
from undrift.experiments.config.federation import federation
from undrift.experiments.config.toml import to_toml
from undrift.models import MODELS


def experiment(**words: Any) -> Experiment:
    return Experiment(**words)


FEDAVG = '[algorithm]\nname = "fedavg"\n'


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "experiment.toml"
    path.write_text(text)
    return path


def test_an_experiment_says_all_of_itself() -> None:
    e = experiment(
        algorithms={
            "fedavg": {},
            "fast": {"name": "scaffold-m", "beta": 0.1, "local": {"lr": 0.5}},
        },
        seeds=2,
        local={"steps": 3, "lr": 0.1},
    )
    assert e.labels == ["fedavg", "fast"] and e.seeds == [0, 1]
    assert e.local_of("fedavg").lr == 0.1 and e.local_of("fast").lr == 0.5
    one = e.single("fast", 1)
    assert one.labels == ["fast"] and one.seeds == [1] and one.local.lr == 0.5
    assert one.methods["fast"].make() == ud.ScaffoldM(beta=0.1)
    assert e.single("fedavg", 0).algorithm is not None
    assert e.runs() == [("fedavg", 0), ("fast", 0), ("fedavg", 1), ("fast", 1)]


def test_a_name_alone_will_do() -> None:
    e = experiment(algorithm="fedavg", data="digits", model="logistic")
    assert e.labels == ["fedavg"] and e.model.name == "logistic"


def test_settings_that_name_something_else() -> None:
    e = experiment(algorithms={"scaffold-m beta=0.1": {"name": "scaffold-m", "beta": 0.1}})
    changed = with_settings(
        e,
        [
            'algorithms."scaffold-m beta=0.1".beta=0.2',
            "model.name=logistic",
            "participation.scheme=everyone",
            "clients.partition=iid",
        ],
    )
    assert changed.methods["scaffold-m beta=0.1"].make().beta == 0.2
    assert changed.model.name == "logistic" and changed.clients.number == 100


def test_own_steps_replace_epochs() -> None:
    e = experiment(algorithms={"fedavg": {"local": {"steps": 4}}}, local={"epochs": 2})
    assert e.local_of("fedavg").steps == 4 and e.local_of("fedavg").epochs is None


@given(
    rounds=st.integers(1, 10**6),
    seeds=st.lists(st.integers(0, 2**63 - 1), min_size=1, unique=True),
    lr=st.floats(0, 1e300, allow_nan=False),
    beta=st.floats(0.001, 1),
    batch=st.integers(1, 1000) | st.just("all"),
    epochs=st.integers(1, 9) | st.just({"low": 2, "high": 5}),
)
def test_toml_gives_the_same_experiment_again(
    tmp_path_factory: pytest.TempPathFactory,
    rounds: int,
    seeds: list[int],
    lr: float,
    beta: float,
    batch: int | str,
    epochs: object,
) -> None:
    e = experiment(
        rounds=rounds,
        seeds=seeds,
        local={"lr": lr, "batch": batch, "epochs": epochs},
        algorithm={"name": "scaffold-m", "beta": beta},
        state_memory="3GB",
    )
    path = tmp_path_factory.mktemp("toml") / "e.toml"
    path.write_text(to_toml(e))
    again = read(path)
    assert again == e and to_toml(again) == to_toml(e)
    assert again.local_of("scaffold-m") == e.local_of("scaffold-m")


@pytest.mark.parametrize("name", METHODS)
def test_every_method_can_be_written_down(name: str, tmp_path: Path) -> None:
    from undrift.simulation.catalogue import EXAMPLES

    e = experiment(algorithm={"name": name, **EXAMPLES.get(name, {})})
    again = read(written(tmp_path, to_toml(e)))
    assert again.methods[name].make() == e.methods[name].make()


def test_a_method_inside_a_method(tmp_path: Path) -> None:
    text = '[algorithm]\nname = "autonomous-fedgm"\nschedule = {name = "fedgm", eta = 2.0, beta = 0.5}\n'
    made = read(written(tmp_path, text)).methods["autonomous-fedgm"].make()
    assert made == ud.AutonomousFedGM(ud.FedGM(eta=2.0, beta=0.5))


def test_settings_change_anything(tmp_path: Path) -> None:
    path = written(tmp_path, '[algorithm]\nname = "scaffold-m"\nbeta = 0.5\n')
    e = read(path, ["algorithm.beta=0.1", "local.lr=[0.5, 0.1]", "rounds=2", "data.name=digits"])
    assert e.methods["scaffold-m"].make().beta == 0.1 and e.local_of("scaffold-m").lr == [0.5, 0.1]
    assert read(path, ["algorithm.name=fedavg"]).labels == ["fedavg"]
    assert with_settings(e, []) is e


def test_an_experiment_in_python(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("import undrift as ud\nexperiment = ud.Experiment(algorithm={'name': 'fedavg'}, rounds=3)\n")
    assert read(path).rounds == 3
    path.write_text("x = 1\n")
    with pytest.raises(ud.InvalidInput, match="must set `experiment"):
        read(path)


OWN = """
import torch
import undrift as ud
from undrift.algorithms.fedavg import FedAvg

@ud.algorithm("mine", "me")
class Mine(FedAvg):
    pass

@ud.dataset("coins", about="made up")
def coins(n: int = 60) -> ud.Data:
    return ud.Data("coins", (torch.randn(n, 3), torch.arange(n) % 2), None, classes=2)

@ud.model
def narrow(inputs: int, classes: int, width: int = 2) -> torch.nn.Module:
    return ud.models.mlp(inputs, width, classes)
"""


def test_methods_data_and_models_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    text = (
        'use = ["own.py"]\n[algorithm]\nname = "mine"\n[data]\nname = "coins"\nn = 80\n'
        '[clients]\npartition = "iid"\nnumber = 4\n[participation]\nper_round = 2\n[model]\nname = "narrow"\nwidth = 5\n'
    )
    try:
        e = read(written(tmp_path, text))
        made = federation(e, 0)
        assert made.problem.N == 4 and made.problem.x0.numel() == 3 * 5 + 5 + 5 * 2 + 2
        assert read(written(tmp_path, to_toml(e))) == e
    finally:
        METHODS.pop("mine", None)
        ud.DATASETS.pop("coins", None)
        MODELS.pop("narrow", None)


def test_a_seed_decides_partition_and_model_unless_they_have_their_own() -> None:
    e = experiment(algorithm={"name": "fedavg"})
    a, b, again = federation(e, 0).problem, federation(e, 1).problem, federation(e, 0).problem
    assert torch.equal(a.x0, again.x0) and torch.equal(a.index, again.index)
    assert not torch.equal(a.x0, b.x0) and not torch.equal(a.index, b.index)
    fixed = with_settings(e, ["clients.seed=7", "model.seed=7"])
    a, b = federation(fixed, 0).problem, federation(fixed, 1).problem
    assert torch.equal(a.x0, b.x0) and torch.equal(a.index, b.index)


def test_making_a_model_leaves_torchs_randomness_alone() -> None:
    before = torch.random.get_rng_state()
    federation(experiment(algorithm={"name": "fedavg"}), 0)
    assert torch.equal(before, torch.random.get_rng_state())


WRONG = {
    "no method": ("rounds = 3\n", "give one method in [algorithm]"),
    "two kinds": (FEDAVG + "[algorithms.scaffold]\n", "not both"),
    "unknown key": ("round = 3\n" + FEDAVG, "line 1: unknown key 'round'; did you mean 'rounds'?"),
    "unknown section": (FEDAVG + "[locall]\nlr = 1\n", "line 3: unknown key 'locall'; did you mean 'local'?"),
    "unknown word": (FEDAVG + "[local]\nlrr = 1\n", "line 4: unknown key of [local]: 'lrr'; did you mean 'lr'?"),
    "type": ('rounds = "many"\n' + FEDAVG, "line 1: rounds must be a whole number, got 'many'"),
    "bool": ("rounds = true\n" + FEDAVG, "line 1: rounds"),
    "zero": ("rounds = 0\n" + FEDAVG, "rounds must be at least 1, got 0"),
    "method": ('[algorithm]\nname = "fedavgg"\n', "line 2: [algorithm] unknown method 'fedavgg'; did you mean 'fedavg'?"),
    "parameter": ('[algorithm]\nname = "scaffold-m"\nbta = 1\n', "line 3: [algorithm] unknown parameter of scaffold-m: 'bta'"),
    "range": ('[algorithm]\nname = "scaffold-m"\n\nbeta = 3\n', "line 4: [algorithm] scaffold-m: beta must lie in (0, 1], got 3"),
    "needs": ('[algorithm]\nname = "triple-momentum"\n', "triple-momentum needs L, mu"),
    "per label": ("[algorithms.scaffold-m]\nbeta = 3\n", "line 2: [algorithms.scaffold-m] scaffold-m: beta"),
    "own local": ("[algorithms.fedavg.local]\nlrr = 3\n", "unknown key of [algorithms.fedavg.local]: 'lrr'"),
    "per round": (FEDAVG + "[clients]\nnumber = 5\nalpha = 1\n[participation]\nper_round = 10\n", "participation.per_round = 10 is more than there are clients, 5"),
    "line of per round": ("[clients]\nnumber = 5\nalpha = 1\n[participation]\nper_round = 6\n" + FEDAVG, "line 5: participation"),
    "words of partitions": (FEDAVG + "[clients]\nnumber = 5\nalfa = 1\n", "line 5: [clients] unknown parameter of dirichlet: 'alfa'; did you mean 'alpha'? Known: alpha, concentration, number"),
    "N is number": (FEDAVG + "[clients]\nN = 5\nalpha = 1\n", "unknown parameter of dirichlet: 'N'. Known: alpha, concentration, number"),
    "engine": ('engine = "fast"\n' + FEDAVG, "line 1: unknown engine 'fast'. Known: auto, batched"),
    "natural": (FEDAVG + '[clients]\npartition = "natural"\nnumber = 5\n', "leave out number"),
    "no number": (FEDAVG + '[clients]\npartition = "iid"\n', "say how many clients"),
    "no alpha": (FEDAVG + "[clients]\nnumber = 50\n", "dirichlet needs alpha"),
    "partition": (FEDAVG + '[clients]\npartition = "iidd"\nnumber = 5\n', "unknown partition 'iidd'; did you mean 'iid'?"),
    "scheme": (FEDAVG + '[participation]\nscheme = "some"\n', "unknown scheme 'some'"),
    "no per round": (FEDAVG + '[participation]\nscheme = "cyclic"\n', "needs per_round"),
    "everyone": (FEDAVG + '[participation]\nscheme = "everyone"\nper_round = 3\n', "leave it out"),
    "data": (FEDAVG + '[data]\nname = "mnits"\n', "did you mean 'mnist'?"),
    "data option": (FEDAVG + '[data]\nname = "digits"\nlabels = 3\n', "digits has no options, got 'labels'"),
    "model": (FEDAVG + '[model]\nname = "lenett"\n', "did you mean 'lenet'?"),
    "model word": (FEDAVG + '[model]\nname = "mlp"\nhiden = [3]\n', "unknown parameter of mlp: 'hiden'; did you mean 'hidden'?"),
    "figure": (FEDAVG + '[evaluation]\nmetrics = ["foo"]\n', "[evaluation] unknown metric 'foo'. Known: accuracy, auroc, "),
    "steps and epochs": (FEDAVG + "[local]\nsteps = 1\nepochs = 1\n", "give steps or epochs, not both"),
    "drawn": (FEDAVG + "[local]\nsteps = {from = 1}\n", "steps is a number, {low = 1, high = 5}"),
    "seeds": ("seeds = [1, 1]\n" + FEDAVG, "different whole numbers"),
    "no seeds": ("seeds = 0\n" + FEDAVG, "different whole numbers"),
    "baseline": ('baseline = "fedprox"\n' + FEDAVG, "unknown baseline 'fedprox'"),
    "logger": ('log = ["wandbb"]\n' + FEDAVG, "unknown logger 'wandbb'; did you mean 'wandb'?"),
    "label": ('[algorithms."../fedavg"]\nname = "fedavg"\n', "a label or name becomes a folder"),
    "use": ('use = ["nowhere.py"]\n' + FEDAVG, "is not a file"),
    "name": ('name = "../x"\n' + FEDAVG, "becomes a folder"),
    "lr in words": (FEDAVG + '[local]\nlr = "0.1"\n', "line 4: [local] lr must be a number in [0, inf), got '0.1'"),
    "no figures": (FEDAVG + "[evaluation]\nmetrics = []\n", "evaluation.metrics"),
    "huge seed": ("seeds = [99999999999999999999]\n" + FEDAVG, "seeds"),
    "data of another kind": ("data = 5\n" + FEDAVG, "line 1: data"),
    "population": (FEDAVG + "[population]\npace = {mean = 1}\n", "pace is a number, a list with one a client"),
    "paces": (FEDAVG + "[population]\npace = [1.0, 2.0]\n", "2 values for 100 clients"),
    "link": (FEDAVG + "[population.link]\nup = 0\n", "up"),
    "server": (FEDAVG + '[server]\nkind = "bufer"\n', "'synchronous', 'deadline' or 'buffer'"),
    "buffer": (FEDAVG + '[server]\nkind = "buffer"\n', "buffer needs size"),
    "word of an optional section": (FEDAVG + "[population]\nspeed = 1\n", "unknown key of [population]: 'speed'. Known: availability, budget"),
    "line of a link": (FEDAVG + "[population]\npace = 1\nlink = {up = 0}\n", "line 5: [population] Link: up must lie"),
    "line of a buffer": ("[clients]\nnumber = 5\nalpha = 1\n[participation]\nper_round = 5\n[server]\nkind = \"buffer\"\nsize = 9\n" + FEDAVG, "line 8: [server] Buffer: size=9"),
    "ray in virtual time": ('engine = "ray"\n[server]\nkind = "synchronous"\n' + FEDAVG, "in one process: leave out ray"),
    "trace": (FEDAVG + '[population.availability]\nkind = "trace"\npath = "x.csv"\n', "there is no trace"),
    "not TOML": ("rounds = \n", "is not TOML"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named(case: str, tmp_path: Path) -> None:
    text, message = WRONG[case]
    with pytest.raises(ud.InvalidInput) as error:
        read(written(tmp_path, text))
    assert message in str(error.value)
    assert "experiment.toml" in str(error.value) and "\n" not in str(error.value)


SET_WRONG = {
    "local.lrr=1": "unknown key of [local]: 'lrr'",
    "population.link.up=0": "Link: up must lie in [1e-3, inf), got 0",
    "algorithm.beta=1": "unknown parameter of fedavg: 'beta'",
    "rounds=0": "rounds must be at least 1, got 0",
}


@pytest.mark.parametrize("setting", SET_WRONG)
def test_a_wrong_setting_is_not_blamed_on_the_file(setting: str, tmp_path: Path) -> None:
    path = written(tmp_path, FEDAVG + "[local]\nsteps = 1\n")
    with pytest.raises(ud.InvalidInput) as error:
        read(path, ["seeds=2", setting])
    assert str(error.value).startswith(f"--set {setting}: {SET_WRONG[setting]}")
    with pytest.raises(ud.InvalidInput) as error:
        with_settings(read(path), [setting])
    assert str(error.value).startswith(f"--set {setting}: {SET_WRONG[setting]}")


@pytest.mark.parametrize("setting", ["rounds", "=3", "rounds.x=3", "a..b=3"])
def test_a_setting_that_is_none(setting: str, tmp_path: Path) -> None:
    with pytest.raises(ud.InvalidInput):
        read(written(tmp_path, "rounds = 3\n" + FEDAVG), [setting])


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ud.InvalidInput, match="No such file"):
        read(tmp_path / "nowhere.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ud.InvalidInput, match="not UTF-8"):
        read(tmp_path / "bytes.toml")
    (tmp_path / "own.py").write_text("1 / 0\n")
    with pytest.raises(ud.InvalidInput, match="ZeroDivisionError"):
        read(written(tmp_path, 'use = ["own.py"]\n' + FEDAVG))
