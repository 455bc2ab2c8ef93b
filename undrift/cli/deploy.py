"""undrift deploy: an experiment as a Flower app, and the keys to run it with."""

from pathlib import Path
from typing import Annotated

import typer

from undrift.cli import options as o
from undrift.core.errors import InvalidInput, unknown
from undrift.experiments.config import Experiment, read

app = typer.Typer(
    no_args_is_help=True,
    help="Run an experiment on real nodes, with Flower.\n\n"
    "Example: undrift deploy init hospitals --from experiment.toml --clients hospital-a,hospital-b",
)


@app.command("init")
def init(
    folder: Annotated[Path, typer.Argument(help="Where to write the app")],
    file: Annotated[Path, typer.Option("--from", help="An experiment: TOML or Python")],
    settings: o.Set = None,
    method: Annotated[str | None, typer.Option("--method", help="Which of several methods, by its label")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Which of several seeds")] = None,
    clients: Annotated[str, typer.Option("--clients", help="The nodes' names, separated by commas")] = "",
    host: Annotated[
        str, typer.Option("--host", help="Name or address under which nodes find the server")
    ] = "127.0.0.1",
) -> None:
    """Write a Flower app that runs an experiment, and a page with the commands.

    Example: undrift deploy init hospitals --from experiment.toml --clients hospital-a,hospital-b --host fl.example.org
    """
    from undrift.deploy.project import write_app

    experiment = _chosen(read(file, settings or ()), method, seed)
    names = tuple(name.strip() for name in clients.split(",") if name.strip())
    for path in write_app(folder, experiment, tuple(sorted(names)), host):
        print(path)
    print(f"what to do next is in {folder / 'README.md'}")


@app.command("certificates")
def certificates(
    folder: Annotated[Path, typer.Argument(help="Where to write them")],
    host: Annotated[list[str], typer.Option("--host", help="Name or address of the server; may be repeated")],
) -> None:
    """Make a certificate authority and the server's certificate.

    Example: undrift deploy certificates keys --host fl.example.org
    """
    from undrift.deploy.keys import write_certificates

    for path in write_certificates(folder, host):
        print(path)


@app.command("superlink")
def superlink(
    host: Annotated[
        str, typer.Option("--host", help="Name or address under which nodes find the server; it listens there")
    ],
    bind: Annotated[
        str, typer.Option("--bind", help="The address of this machine to listen on, if it is another than --host")
    ] = "",
    port: Annotated[int, typer.Option("--port", help="For nodes", min=1, max=65535)] = 8443,
    control_port: Annotated[
        int, typer.Option("--control-port", help="For `flwr`, on loopback only", min=1, max=65535)
    ] = 8000,
    keys: Annotated[Path, typer.Option("--keys", help="Where the certificates are")] = Path("keys"),
) -> None:
    """Run the server's SuperLink: nodes reach it at --host, runs are started on this machine only.

    Example: undrift deploy superlink --host fl.example.org
    """
    from undrift.deploy.running import run_superlink

    raise typer.Exit(run_superlink(bind or host, port, control_port, keys))


@app.command("node")
def node(
    apps: Annotated[list[Path], typer.Argument(help="Folders of the apps that this node runs; it runs no others")],
    superlink: Annotated[str, typer.Option("--superlink", help="Where the server is, host:port")],
    key: Annotated[Path, typer.Option("--key", help="The node's key, from `undrift deploy key`")],
    name: Annotated[str, typer.Option("--name", help="The client's name; that of the key's file, if not given")] = "",
    state: Annotated[Path, typer.Option("--state", help="A folder for the client's states")] = Path("states"),
    ca: Annotated[Path | None, typer.Option("--ca", help="The server's ca.crt; beside the key, if not given")] = None,
    config: Annotated[str, typer.Option("--config", help="What `data` in client_app.py is given, e.g. 'part=0'")] = "",
    port: Annotated[
        int, typer.Option("--port", help="For this node's own processes, on loopback", min=1, max=65535)
    ] = 9094,
) -> None:
    """Run a node: it answers with the apps of its own machine, never with code that the server sends.

    Example: undrift deploy node . --superlink fl.example.org:8443 --key keys/hospital-a
    """
    from undrift.deploy.running import run_node

    certificate = ca or key.parent / "ca.crt"
    raise typer.Exit(run_node(apps, superlink, key, name or key.name, state, certificate, port, config))


@app.command("key")
def key(path: Annotated[Path, typer.Argument(help="Where to write it; the public half ends in .pub")]) -> None:
    """Make a node's key, on the node.

    Example: undrift deploy key keys/hospital-a
    """
    from undrift.deploy.keys import write_node_key

    for written in write_node_key(path):
        print(written)


def _chosen(experiment: Experiment, method: str | None, seed: int | None) -> Experiment:
    """The one run that is to be deployed."""
    if method is not None and method not in experiment.labels:
        raise unknown("method of the experiment:", method, experiment.labels)
    if seed is not None and seed not in experiment.seeds:
        raise InvalidInput(f"--seed {seed} is none of the experiment's seeds {experiment.seeds}")
    if method is None and len(experiment.labels) > 1:
        raise InvalidInput(
            f"one method can be deployed at a time: --method chooses among {', '.join(experiment.labels)}"
        )
    one_seed = experiment.seeds[0] if seed is None else seed
    return experiment.single(method or experiment.labels[0], one_seed)
