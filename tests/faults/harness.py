"""What all attacks have in common: how they count, and how they are called.

An attack is a module of this folder with `main(tries, seed) -> Tally`.  Called as a script it prints one line of JSON,
{"attack", "tries", "survived", "silent", "crashed"}:

    python -m tests.faults.flips 2000 0

survived   went on with the same bits, or was refused with one clear line
silent     a wrong result that nobody was told of
crashed    a traceback, a hang, or something lost that should not be
"""

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

LONGEST = 600  # characters of a refusal: a line or two


@dataclass
class Tally:
    """What has come of the tries of an attack."""

    attack: str
    survived: int = 0
    refused: int = 0  # of those that survived: they were told what is wrong
    silent: int = 0
    crashed: int = 0
    failures: list[str] = field(default_factory=list)

    @property
    def tries(self) -> int:
        return self.survived + self.silent + self.crashed

    def survive(self) -> None:
        self.survived += 1

    def refuse(self, error: BaseException) -> None:
        """A refusal counts as survival if it is a line that says something."""
        said = str(error)
        if not said.strip() or len(said) > LONGEST or "\n" in said:
            return self.crash(f"not a clear line: {said[:200]!r}")
        self.refused += 1
        self.survived += 1

    def hide(self, what: str) -> None:
        """Something is wrong and nobody was told."""
        self.silent += 1
        self.failures.append(f"silent: {what}")

    def crash(self, what: str) -> None:
        self.crashed += 1
        self.failures.append(f"crashed: {what}")

    def line(self) -> str:
        counts = {"tries": self.tries, "survived": self.survived, "refused": self.refused}
        return json.dumps({"attack": self.attack, **counts, "silent": self.silent, "crashed": self.crashed})


INTERRUPTED = 130


def in_fork(work: Callable[[], object]) -> int:
    """Do some work in a process of its own, which has imported all that this one has; its process id."""
    if pid := os.fork():
        return pid
    code = 1
    try:
        work()
        code = 0
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(code)


def killed_after(work: Callable[[], None], seconds: float, by: signal.Signals = signal.SIGKILL) -> bool:
    """Do some work in a forked process and kill it after some time; whether it ended before."""
    pid = in_fork(work)
    until, done = time.monotonic() + seconds, (0, 0)
    while done[0] == 0:
        if time.monotonic() > until:
            os.kill(pid, by)
            done = os.waitpid(pid, 0)
        else:
            time.sleep(min(0.002, seconds))
            done = os.waitpid(pid, os.WNOHANG)
    code = os.waitstatus_to_exitcode(done[1])
    if code not in (0, -signal.SIGKILL, INTERRUPTED):
        raise RuntimeError(f"what was killed could not go on: exit code {code}")
    return code == 0


def run_as_script(main: Callable[[int, int], Tally]) -> None:
    """`python -m tests.faults.NAME TRIES SEED`: the line of JSON, and what went wrong on stderr."""
    tries, seed = (int(word) for word in sys.argv[1:3])
    tally = main(tries, seed)
    for failure in tally.failures:
        print(failure[:LONGEST], file=sys.stderr)
    print(tally.line(), flush=True)
