"""What `undrift deploy init` writes: a Flower app in a folder, and a page with the commands that bring it to life."""

import re
import shutil
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from string import Template

import tomli_w

from undrift.core.errors import InvalidInput
from undrift.deploy.checks import NAME
from undrift.deploy.serving import single
from undrift.deploy.settings import Deployment
from undrift.experiments.config.experiment import Experiment
from undrift.experiments.config.federation import federation
from undrift.experiments.config.toml import to_toml
from undrift.version import __version__

APP = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,31}")

SERVER_APP = '''"""The server's half of the app."""

from pathlib import Path

from undrift.experiments.config import read
from undrift.deploy import server_app

app = server_app(read(Path(__file__).with_name("experiment.toml")))
'''

CLIENT = '''"""A node's half of the app."""

from pathlib import Path

from undrift.experiments.config import read
from undrift.deploy import client_app, data_of_client


def data(node):
    """This node's samples, (inputs, targets); `node` is what it was started with, --node-config."""
    return data_of_client(experiment, node["part"])  # for trying: replace by what reads your own


experiment = read(Path(__file__).with_name("experiment.toml"))
app = client_app(experiment, data)
'''


def write_app(folder: Path, experiment: Experiment, clients: tuple[str, ...], host: str) -> list[Path]:
    """Write a Flower app for an experiment of one method and one seed; the files that were written."""
    experiment, name = single(experiment), folder.resolve().name
    if not APP.fullmatch(name):
        raise InvalidInput(
            f"Flower names an app by its folder, with a letter first, then at most 31 letters, digits and hyphens; got {name!r}"
        )
    for client in clients:
        if not NAME.fullmatch(client):
            raise InvalidInput(f"a client's name has letters, digits and _.@-, got {client!r}")
    if host in ("0.0.0.0", "::", "*", ""):
        raise InvalidInput(f"--host is where nodes find the server, one name or address of it; got {host!r}")
    _check_count(experiment, clients)
    if folder.exists() and any(folder.iterdir()):
        raise InvalidInput(f"{folder} exists and is not empty: choose another folder")
    inside = folder / "app"
    inside.mkdir(parents=True, exist_ok=True)
    files = {
        folder / "pyproject.toml": _project(name, clients, "flower,dp" if experiment.privacy else "flower"),
        folder / "README.md": _page(name, clients, host, experiment),
        folder / "LICENSE": _license(),
        folder / ".gitignore": "keys/\nruns/\nstates/\n",
        inside / "__init__.py": "",
        inside / "server_app.py": SERVER_APP,
        inside / "client_app.py": CLIENT,
        inside / "experiment.toml": to_toml(_moved(experiment, inside)),
    }
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
    return list(files)


def _check_count(experiment: Experiment, clients: tuple[str, ...]) -> None:
    """As many names as the experiment has clients, or none, if it says how many there are."""
    natural = experiment.clients.partition == "natural"
    number = experiment.clients.number
    if number is None:
        number = federation(experiment, experiment.seeds[0]).problem.N
    if natural and not clients:
        raise InvalidInput(f"the experiment has {number} clients, by its data: name them in --clients a,b,...")
    if clients and len(clients) != number:
        how = "name them all" if natural else f"--set clients.number={len(clients)} makes it as many"
        raise InvalidInput(f"--clients: the experiment has {number} clients, {len(clients)} are named: {how}")


def _moved(experiment: Experiment, folder: Path) -> Experiment:
    """The experiment with the user's own files beside it, and without what describes simulated machines."""
    for file in experiment.use:
        shutil.copy(file, folder)
    own = [Path(file).name for file in experiment.use]
    if len(set(own)) < len(own):
        raise InvalidInput(f"use: two files have one name, {', '.join(sorted(own))}: rename one")
    return experiment.model_copy(update={"use": own, "population": None, "engine": "auto"})


def _project(name: str, clients: tuple[str, ...], extras: str) -> str:
    settings = asdict(Deployment(run_dir=f"runs/{name}", clients=",".join(clients), named_keys=True))
    app = {
        "publisher": "undrift",
        "fab-format-version": 1,
        "flwr-version-target": "1.41.0",
        "fab-include": ["LICENSE", "app/**"],  # not the keys, states and runs beside it
        "components": {"serverapp": "app.server_app:app", "clientapp": "app.client_app:app"},
        "config": {word.replace("_", "-"): value for word, value in settings.items()},
    }
    project = {
        "name": name,
        "version": "1.0.0",
        "description": "A federated run with undrift",
        "license": {"file": "LICENSE"},
        "dependencies": ["flwr>=1.41,<1.42", f"undrift[{extras}]=={__version__}"],
    }
    return tomli_w.dumps({"project": project, "tool": {"flwr": {"app": app}}})


def _license() -> str:
    """A license that the user may replace by their own: Flower demands one."""
    return (
        "Copyright: the author of this app.  All rights reserved.\n\n"
        "Replace this text by the license under which you give the app to the people who run nodes.\n"
    )


def _page(name: str, clients: tuple[str, ...], host: str, experiment: Experiment) -> str:
    text = resources.files("undrift.deploy").joinpath("page.md").read_text(encoding="utf-8")
    some = clients or tuple(f"client-{i}" for i in range(min(experiment.clients.number or 2, 2)))
    nodes = "\n".join(
        Template(NODE).substitute(name=client, host=host, part=i, port=PORT + i) for i, client in enumerate(some)
    )
    keys = "\n".join(f"undrift deploy key keys/{client}      # on the machine of {client}" for client in some)
    register = "\n".join(f"flwr supernode register keys/{client}.pub {name} --name {client}" for client in some)
    return Template(text).substitute(
        name=name, host=host, nodes=nodes, keys=keys, register=register, label=experiment.labels[0]
    )


PORT = 9094  # a node's own, for its ClientApps; on one machine each needs another

NODE = """
On the machine of $name:

```sh
undrift deploy node . --superlink $host:8443 --key keys/$name --port $port --config 'part=$part'
```"""
