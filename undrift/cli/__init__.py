"""The command line.  What it needs is loaded in `main`, after the first line is on the screen."""

import os
import signal
import sys
import traceback
from typing import Any, Protocol, runtime_checkable

from undrift.cli.terminal import status
from undrift.version import __version__


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
    if arguments == ["--version"]:
        print(f"undrift {__version__}")
        sys.exit(0)
    arguments = arguments or ["--help"]
    interrupt = signal.getsignal(signal.SIGINT)
    _on_signals(_end_at_once, _end_at_once)  # nothing has begun, and an import that is interrupted says strange things
    try:
        with status(quiet="-q" in arguments or "--quiet" in arguments) as show:
            show(f"undrift {__version__}: loading torch")
            from undrift.cli.app import app
            from undrift.cli.options import as_typed
            from undrift.core.errors import speaking
        _on_signals(interrupt, signal.default_int_handler)  # SIGTERM ends as Ctrl-C does
        with speaking(as_typed):
            code = app(args=arguments, prog_name="undrift", standalone_mode=False)
        sys.exit(code or 0)
    except KeyboardInterrupt:
        _on_signals(_end_at_once, _end_at_once)  # a second one is not to interrupt the end
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(1)  # whoever read our output has gone
    except Exception as error:
        if debug:
            traceback.print_exc()
        said, code = _said(error)
        if said:  # a group without a command has shown its help
            from undrift.experiments.report.format import printable

            print(f"undrift: {printable(said)}", file=sys.stderr)
        sys.exit(code)


def _on_signals(interrupt: Any, terminate: Any) -> None:
    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, terminate)


def _end_at_once(*_: object) -> None:
    os._exit(130)


def _said(error: Any) -> tuple[str, int]:
    """What to say of an error, and the exit code."""
    from undrift.core.errors import InvalidInput, Stopped  # loads torch

    if isinstance(error, InvalidInput | Stopped):
        return str(error), 2
    if isinstance(error, UsageError):
        context = vars(error).get("ctx")
        path = context.command_path if context else "undrift"
        words = " ".join(error.format_message().split())
        offered = [parameter.name for parameter in context.command.params] if context else []
        if "settings" in offered and (option := vars(error).get("option_name")):  # no such option
            from undrift.cli.options import instead_of

            instead = instead_of(option, offered)
            words = f"No such option: {option}; {instead}" if instead else words
        return f"{words} (see {path} --help)" if words else "", 2
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename else ""
        return f"{error.strerror}{where}", 1
    first = (str(error).strip() or "no message").splitlines()[0]
    return f"{type(error).__name__}: {first} (--debug shows where)", 1
