"""A process that forks runs and kills or interrupts them: it imports once, so that fifty kills take seconds.

    python -m tests.support.killed_runs

reads lines of JSON, [FOLDER, METHOD, KILLS, SEED]: it runs METHOD in FOLDER/0, kills it within a random round and
resumes it, until it is finished; then in FOLDER/1, and so on until there have been KILLS kills.  Its answer, a line of
JSON, is how many there were, and at which rounds runs were resumed; or what went wrong.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

import undrift as ud
from undrift.experiments.runs.recorded import Recording, recorded
from undrift.simulation.api import RunConfig, prepare

ROUNDS, INTERRUPTED = 40, 130
LATE = ", late"  # a method of that name runs in virtual time, with updates under way
POPULATION = ud.Population(
    pace=ud.LogNormal(1.0, sigma=1.0), link=ud.Link(0.1), dropout=ud.Dropout(after=0.1), jitter=0.3
)


EVERY_7 = Recording(checkpoint_every=7)


def settings(method: str) -> RunConfig:
    """A run of a second or so; the model is small, the states are real."""
    torch.manual_seed(0)
    X, Y = torch.randn(400, 20), torch.arange(400) % 4
    problem = ud.federate(
        (X, Y),
        model=torch.nn.Linear(20, 4),
        loss=torch.nn.functional.cross_entropy,
        clients=ud.Dirichlet(40, alpha=0.2),
    )
    name = method.removesuffix(LATE)
    hyper = {"fedadam": {"eta": 0.1}}.get(name, {})
    late = method != name
    return RunConfig(
        ud.method(name, **hyper),
        problem,
        ROUNDS,
        ud.Uniform(5),
        ud.Local(steps=(1, 3) if late else 2, batch=4, lr=0.05),
        engine="auto" if late else "batched",
        population=POPULATION if late else None,
        server=ud.Buffer(3, concurrency=8) if late else None,
    )


def child(folder: Path, method: str) -> tuple[int, int]:
    """A forked process that runs the method: its process id, and a pipe that gets a byte after every round."""
    played, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            first = None
            for r in recorded(folder, settings(method), EVERY_7):
                if first is None:
                    first = r.round
                    with (folder / "begun").open("a") as file:
                        file.write(f"{first}\n")
                os.write(tell, b".")
            os._exit(0)
        except KeyboardInterrupt:
            os._exit(INTERRUPTED)
        except BaseException as error:  # a forked process must never return
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
    os.close(tell)
    return pid, played


def wait_for_rounds(played: int, rounds: int) -> bool:
    """Whether so many rounds have been played; no, if the process has ended before."""
    return all(os.read(played, 1) for _ in range(rounds))


def killed_repeatedly(folder: Path, method: str, kills: int, seed: int) -> dict[str, Any]:
    """Runs of a method, killed so many times; and what became of them."""
    began, uninterrupted = time.monotonic(), folder / "uninterrupted"
    uninterrupted.mkdir(parents=True)
    pid, played = child(uninterrupted, method)
    os.waitpid(pid, 0)
    os.close(played)
    a_round = (time.monotonic() - began) / ROUNDS
    dice, killed, number = random.Random(seed), 0, 0
    while killed < kills:
        run, number, finished = folder / str(number), number + 1, False
        run.mkdir(parents=True)
        while not finished:
            pid, played = child(run, method)
            # rounds are counted, not timed: a busy machine would be killed before its first checkpoint every time
            if killed < kills and wait_for_rounds(played, dice.randrange(ROUNDS)):
                time.sleep(dice.uniform(0.0, 2 * a_round))
                os.kill(pid, dice.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGINT]))
            _, status = os.waitpid(pid, 0)
            os.close(played)
            code = os.waitstatus_to_exitcode(status)
            if code not in (0, INTERRUPTED, -signal.SIGKILL):
                return {"failed": f"a run ended with {code}"}
            finished = code == 0
            killed += not finished
    begun = [int(line) for path in folder.glob("[0-9]*/begun") for line in path.read_text().split()]
    return {"killed": killed, "begun": begun}


def main() -> None:
    torch.set_num_threads(1)
    next(prepare(settings("fedavg")).play())  # what torch imports at the first round is imported here, once
    for line in sys.stdin:
        folder, method, kills, seed = json.loads(line)
        print(json.dumps(killed_repeatedly(Path(folder), method, kills, seed)), flush=True)


if __name__ == "__main__":
    main()
