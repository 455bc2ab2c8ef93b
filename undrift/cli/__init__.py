"""The command line."""

import signal
import sys
import traceback
from typing import Annotated, Any, Protocol, runtime_checkable

import typer

from undrift.cli import about, deploy, doctor, reports, reproduce, runs, sweeps
from undrift.core.errors import InvalidInput, Stopped
from undrift.version import __version__

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Federated optimisation on heterogeneous clients.",
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
    "sweep": sweeps.sweep,
    "reproduce": reproduce.reproduce,
    "list": about.list_all,
    "doctor": doctor.diagnose,
}.items():
    app.command(name)(command)
app.add_typer(deploy.app, name="deploy")


@runtime_checkable
class UsageError(Protocol):
    """An error of the command line itself, as click has them."""

    def format_message(self) -> str: ...


def main() -> None:
    """Run the command line: an error is a line or two on stderr, a traceback is there for those who ask."""
    arguments = sys.argv[1:]
    debug = "--debug" in arguments
    if debug:  # wherever it stands
        arguments = [word for word in arguments if word != "--debug"]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does
    try:
        sys.exit(app(args=arguments, prog_name="undrift", standalone_mode=False) or 0)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(1)  # whoever read our output has gone
    except Exception as error:
        if debug:
            traceback.print_exc()
        said, code = _said(error)
        print(f"undrift: {said}", file=sys.stderr)
        sys.exit(code)


def _said(error: Any) -> tuple[str, int]:
    """What to say of an error, and the exit code."""
    if isinstance(error, InvalidInput | Stopped):
        return str(error), 2
    if isinstance(error, UsageError):
        context = vars(error).get("ctx")
        path = context.command_path if context else "undrift"
        return f"{' '.join(error.format_message().split())} (see {path} --help)", 2
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename else ""
        return f"{error.strerror}{where}", 1
    first = (str(error).strip() or "no message").splitlines()[0]
    return f"{type(error).__name__}: {first} (--debug shows where)", 1
