"""What is typed wrong: a line that names the option or key, says what is allowed, and no work is begun."""

import re
import shlex
from pathlib import Path

import pytest

FILES = {
    "ok.toml": '[algorithm]\nname = "fedavg"\n',
    "type.toml": 'rounds = "x"\n[algorithm]\nname = "fedavg"\n',
    "broken.toml": "rounds = 2\n[algorithm\n",
    "key.toml": '[algorithm]\nname = "fedavg"\n[local]\nstepz = 3\n',
    "parameter.toml": '[algorithm]\nname = "fedavg"\nbeta = 2\n',
    "nothing.py": "x = 1\n",
    "import.py": "import foo_bar\n",
    "known.py": "import undrift as ud\n@ud.algorithm('fedavg')\nclass Known(ud.FedAvg): ...\n",
    "occupied/file": "",
}

WRONG = {
    "compare": "Missing argument 'METHODS",
    "compare fedavg --rounds 0": "--rounds 0: rounds must be at least 1, got 0",
    "compare fedavg --rounds 2.5": "'--rounds': '2.5' is not a valid integer",
    "compare fedavg --seeds 0": "--seeds 0: seeds are a number of them",
    "compare fedavg --seeds 1,x": "--seeds [1,x]: seeds are a number of them, or different whole numbers",
    "compare fedavg --clients 0": "--clients 0: clients.number must be at least 1, got 0",
    "compare fedavg --clients 2000": "1500 samples can be dealt to 1 to 1500 clients, got --clients 2000",
    "compare fedavg --per-round 0": "--per-round 0: participation.per_round must be at least 1",
    "compare fedavg --per-round 200": "--per-round 200: participation.per_round = 200 is more than there are clients, 100",
    "compare fedavg --steps 0": "--steps 0: steps must be whole numbers from 1 up, got 0",
    "compare fedavg --steps 3 --epochs 2": "give steps or epochs, not both",
    "compare fedavg --epochs -1": "--epochs -1: epochs must be whole numbers from 1 up",
    "compare fedavg --batch some": "--batch some: batch must be a whole number in [1, inf), got 'some'",
    "compare fedavg --batch 0": "--batch 0: batch must lie in [1, inf), got 0",
    "compare fedavg --lr nan": "--lr nan: lr must lie in [0, inf), got nan",
    "compare fedavg --lr x": "'--lr': 'x' is not a valid float",
    "compare fedavg --engine fast": "--engine fast: unknown engine 'fast'. Known: auto",
    "compare fedavg --workers 0": "--workers 0: workers must lie in [1, ",
    "compare fedavg --target nan": "--target nan: target must be a finite number, got nan",
    "compare fedavg --baseline scaffold": "--baseline scaffold: unknown baseline 'scaffold'. Known: fedavg",
    "compare fedavg --log wand": "--log wand: unknown logger 'wand'; did you mean 'wandb'?",
    "compare fedavg --data mnits": "--data mnits: unknown data set 'mnits'; did you mean 'mnist'?",
    "compare fedavg --model mpl": "--model mpl: unknown model 'mpl'; did you mean 'mlp'?",
    "compare fedavg --weights size": "--weights size: clients.weights must be 'uniform' or 'samples', got 'size'",
    "compare fedavg --dirichlet -1": "--dirichlet -1.0: Dirichlet: alpha must lie in [0, inf)",
    "compare fedavg --iid --shards 2": "--iid and --shards are different partitions",
    "compare fedavg --shards 0": "--shards 0: Shards: each must lie in [1, inf)",
    "compare fedavg --natural": "--natural: these data name no clients",
    "compare fedavg --natural --clients 5": "--natural takes the clients that the data name",
    "compare fedavg --everyone --per-round 3": "--everyone and --per-round contradict each other",
    "compare fedavg --set local.steps={low=5,high=1}": "--set local.steps={low=5,high=1}: steps that are drawn go from a low",
    "compare fedavg --set local.clip": "a setting is written key=value",
    "compare fedavg --set local.clip=-1": "--set local.clip=-1: clip must lie in (0, inf), got -1",
    "compare fedavg --set loca.clip=1": "--set loca.clip=1: unknown key 'loca'; did you mean 'local'?",
    "compare fedavg --set local.clipp=1": "--set local.clipp=1: unknown key of [local]: 'clipp'; did you mean 'clip'?",
    "compare fedavg --set rounds=many": "--set rounds=many: rounds must be a whole number, got 'many'",
    "compare fedavg --set clients=5": "--set clients=5: clients must be a section of keys and values, got 5",
    "compare fedavg --set model.hidden=3": "model mlp: hidden is a list of widths, such as [64], got 3",
    "compare fedavg --set model.hiden=[3]": "--set model.hiden=[3]: unknown parameter of mlp: 'hiden'",
    "compare fedavg --set evaluation.metrics=accuracy": "evaluation.metrics must be a list in brackets, got 'accuracy'",
    "compare fedavg --set codec.name=zip": "--set codec.name=zip: unknown codec 'zip'",
    "compare fedavg --clip 1": "privacy: give noise, the noise multiplier, or epsilon",
    "compare fedavg --noise 1": "privacy.clip must be given",
    "compare fedavg --clip 0 --noise 1": "privacy: clip must be a positive number, got 0",
    "compare fedavg --set server.kind=buffr": "server.kind must be 'synchronous', 'deadline' or 'buffer', got 'buffr'",
    "compare fedavg --set seeds=[1,1]": "--set seeds=[1,1]: seeds are a number of them, or different whole numbers",
    "compare fedavg --use nofile.py": "--use: ",
    "compare fedavg --use import.py": "import.py failed: ModuleNotFoundError: No module named 'foo_bar'",
    "compare fedavg --out occupied": "occupied exists and is not empty: --out chooses another place",
    "compare fedavg --jobs 0": "'--jobs': 0 is not in the range x>=1",
    "compare fedavg FedAvg": "fedavg is there twice",
    "compare fedavg:beta=1": "unknown parameter of fedavg: 'beta'. Known: server_lr",
    "compare scaffold-m:beta=2": "scaffold-m: beta must lie in (0, 1], got 2",
    "compare fedavg:lr=0.1,lr=0.2": "'fedavg:lr=0.1,lr=0.2': lr is there twice",
    "compare fedavg --learning-rate 0.1": "No such option: --learning-rate; use --lr",
    "compare fedavg --threads 2": "No such option: --threads; use --set threads=...",
    "compare fedavg --beta 0.1": "a method's parameters follow its name, as in ",
    "run ok.toml --rounds 3": "No such option: --rounds; use --set rounds=...",
    "run ok.toml --out occupied": "occupied exists and is not empty: --out chooses another place",
    "compare scaffold-m:beta": "a method's parameters are written name:beta=0.1,lr=0.5",
    "compare scaffold-m:lr=-1": "scaffold-m:lr=-1: lr must lie in [0, inf), got -1",
    "compare snv": "snv needs alpha, b1, b2",
    "compare scaffnew": "scaffnew is defined for full participation: use --everyone",
    "compare mime --async": "with it use --set server.kind=synchronous",
    "compare fedavg --set participation.scheme=weighted": "weighted participation needs --per-round",
    "compare fedavg --use known.py": "known.py: there is a method 'fedavg' already",
    "choose --async": "without virtual time: leave out --async",
    "choose --validate 2": "--validate must lie in [0, 1), got 2",
    "choose --seeds 1,2": "--seeds must be a whole number in [1, inf), got [1, 2]",
    "sweep fedavg --trials 0": "'--trials': 0 is not in the range",
    "sweep fedavg --space nospace": "unknown --space 'nospace'. Known: ",
    "sweep fedavg --sampler best": "unknown --sampler 'best'. Known: grid, random, tpe",
    "run nofile.toml": "nofile.toml cannot be read (No such file or directory): give an experiment file",
    "run occupied": "occupied cannot be read (",
    "run type.toml": "type.toml, line 1: rounds must be a whole number, got 'x'",
    "run broken.toml": "broken.toml is not TOML: ",
    "run key.toml": "key.toml, line 4: unknown key of [local]: 'stepz'; did you mean 'steps'?",
    "run parameter.toml": "parameter.toml, line 3: [algorithm] unknown parameter of fedavg: 'beta'",
    "run nothing.py": "nothing.py must set `experiment = ",
    "run import.py": "import.py failed: ModuleNotFoundError: No module named 'foo_bar'",
    "run ok.toml --set algorithm.name=scaffnew": 'use participation.scheme = "everyone"',
    "resume nodir": "nodir is not a run directory: it needs experiment.toml and manifest.json",
    "report nodir": "no run in nodir",
    "report occupied --last 0": "'--last': 0 is not in the range x>=1",
    "list nothing": "unknown name 'nothing'",
    "list dirichlett": "did you mean 'dirichlet'?",
    "reproduce nopaper": "unknown recipe 'nopaper'",
    "doctor now": "unexpected extra argument (now)",
    "deploy init x --from nofile.toml --clients a,b": "nofile.toml cannot be read",
    "deploy start": "No such command 'start'",
    "walk": "No such command 'walk'",
    "--nope": "No such option: --nope",
}
LEAKS = re.compile(r"Traceback|Input should|pydantic|\bud\.(?!Experiment)|Error: 1 validation|object at 0x")


@pytest.mark.parametrize("typed", WRONG)
def test_one_line_names_what_is_wrong(undrift, typed: str, tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    before = sorted(tmp_path.rglob("*"))
    said = undrift(*shlex.split(typed))
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("undrift: ") and WRONG[typed] in said.err and not LEAKS.search(said.err)
    assert len(said.err.splitlines()) == 1 and len(said.err) < 260
    assert sorted(tmp_path.rglob("*")) == before
