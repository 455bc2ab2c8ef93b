"""The commands."""

from typing import Annotated

import typer

from undrift.cli import about, choose, deploy, doctor, reports, reproduce, runs, sweeps
from undrift.version import __version__

app = typer.Typer(
    add_completion=False, pretty_exceptions_enable=False, help="Federated optimisation on heterogeneous clients."
)


@app.callback(invoke_without_command=True)
def undrift(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
) -> None:
    """What goes before a command; --debug is looked for in `main`, wherever it stands."""
    if version:
        print(f"undrift {__version__}")
        raise typer.Exit


for name, command in {
    "run": runs.run,
    "compare": runs.compare,
    "resume": runs.resume,
    "report": reports.report,
    "verify": reports.verify,
    "sweep": sweeps.sweep,
    "choose": choose.choose,
    "reproduce": reproduce.reproduce,
    "list": about.list_all,
    "doctor": doctor.diagnose,
}.items():
    app.command(name)(command)
app.add_typer(deploy.app, name="deploy")
