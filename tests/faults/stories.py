"""Random stories of deployed runs: disks that are lost, damaged or go back, messages that are lost, late, doubled or wrong,
and a server that is killed, in any order.

    python -m tests.faults.stories 2000 0

What must hold at every round is in tests/support/node_stories.py.  A failure names its story, to be played again with
`live_through`.
"""

import json
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.faults.flips import quiet
from tests.faults.harness import Tally, run_as_script
from tests.support.node_stories import EVENTS, LOSSES, METHODS, SERVERS, experiment_of, live_through
from undrift.deploy import node

ATTACK = "random stories of nodes"
LONGEST = 40  # events


@contextmanager
def built_once() -> Iterator[None]:
    """What a client has is built once: the nodes of all stories have the same samples, and building takes most of a story."""
    built: dict[Any, Any] = {}

    def as_client(experiment: Any, data: Any, told: Any, client: int, N: int) -> Any:
        key = experiment.labels[0], id(data), json.dumps(told), client, N
        return built[key] if key in built else built.setdefault(key, make(experiment, data, told, client, N))

    make = node.as_client
    with patch.object(node, "as_client", as_client):
        yield


def main(tries: int, seed: int) -> Tally:
    """So many stories, over three kinds of server and four methods."""
    dice, tally = random.Random(seed), Tally(ATTACK)
    with quiet(), built_once():
        for _ in range(tries):
            server, method = dice.choice(list(SERVERS)), dice.choice(METHODS)
            often = dice.choice((EVENTS, LOSSES))
            events = [dice.choice(often) for _ in range(dice.randrange(LONGEST + 1))]
            what = json.dumps([server, method, events])
            with tempfile.TemporaryDirectory() as folder:
                try:
                    live_through(experiment_of(method, server), events, Path(folder))
                    tally.survive()
                except AssertionError as error:
                    tally.hide(f"{error}: {what}")
                except Exception as error:
                    tally.crash(f"{type(error).__name__}: {error}: {what}")
    return tally


if __name__ == "__main__":
    run_as_script(main)
