"""Where the time of a deployed round goes: two nodes, logistic regression, Flower's real processes on loopback.

    python -m benchmarks.deployed --rounds 12 --write

The app's halves write down when a request was sent, when a node began and ended its work, and when the server had the
answer.  A round is as slow as the slowest way there and back.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.tables import written
from tests.support.flower_processes import Loopback, loopback, wait_until
from tests.support.in_process_nodes import experiment
from tests.support.run_directories import read_lines
from undrift.deploy.project import write_app

NODES = ("ash", "birch")
APP, PATIENCE, FIRST = (
    "profiled",
    900,
    2,
)  # rounds that are left out: the first ones read the samples and make the model

NOTE = """

import json, os, time


def _note(who, what):
    with open(os.path.join(os.environ["PROFILE"], "moments.jsonl"), "a") as file:
        file.write(json.dumps({"who": who, "what": what, "time": time.time()}) + "\\n")
"""

OF_CLIENT = (
    NOTE
    + """

from flwr.clientapp import ClientApp

honest, app = app, ClientApp()
app.query()(honest)


@app.train()
def train(message, context):
    _note(context.node_config["name"], "begins")
    reply = honest(message, context)
    _note(context.node_config["name"], "ends")
    return reply
"""
)

OF_SERVER = (
    NOTE
    + """

from undrift.deploy.fleet import Fleet

ask, answers = Fleet.ask, Fleet.answers


def noted_ask(self, i, request):
    _note(self.names[i], "sent")
    ask(self, i, request)


def noted_answers(self):
    for i, reply in answers(self):
        _note(self.names[i], "received")
        yield i, reply


Fleet.ask, Fleet.answers = noted_ask, noted_answers
"""
)

PARTS = {"to the node": ("sent", "begins"), "work": ("begins", "ends"), "back to the server": ("ends", "received")}


def play(flower: Loopback, rounds: int, poll: float) -> tuple[list[float], list[dict[str, float]]]:
    """Seconds of every round, and of the parts of every visit."""
    made = experiment(
        "scaffold-m",
        rounds=rounds,
        clients={"partition": "dirichlet", "number": len(NODES), "alpha": 0.5, "weights": "samples"},
        participation={"scheme": "everyone"},
    )
    app, run = flower.folder / APP, flower.folder / "runs" / APP
    write_app(app, made, NODES, "127.0.0.1")
    for half, noted in (("client_app.py", OF_CLIENT), ("server_app.py", OF_SERVER)):
        with (app / "app" / half).open("a") as file:
            file.write(noted)
    flower.environment["PROFILE"] = str(flower.folder)
    flower.apps = [app]
    flower.superlink()
    flower.register(*NODES)
    for part, name in enumerate(NODES):
        flower.nodes[name] = flower.supernode(name, part)
    flower.flwr_run("run", app, **{"run-dir": str(run), "poll": poll})
    wait_until((run / "result.json").exists, PATIENCE, lambda: flower.said("run"))
    seconds = [line["seconds"] for line in read_lines(run / "times.jsonl")]
    return seconds[FIRST:], visits(read_lines(flower.folder / "moments.jsonl"))[FIRST * len(NODES) :]


def visits(moments: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """The parts of every visit, in the order in which answers came."""
    found, begun = [], {}
    for each in sorted(moments, key=lambda each: each["time"]):
        at = begun.setdefault(each["who"], {})
        at[each["what"]] = each["time"]
        if each["what"] == "received" and "begins" in at:  # not the handshake's
            found.append({part: at[b] - at[a] for part, (a, b) in PARTS.items()})
            del begun[each["who"]]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--poll", type=float, default=0.3, help="seconds between the server's looks for answers")
    parser.add_argument("--write", action="store_true", help="write the result to benchmarks/results/")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, loopback(Path(folder)) as flower:
        seconds, parts = play(flower, given.rounds, given.poll)
    rows = {"a round": seconds} | {part: [visit[part] for visit in parts] for part in PARTS}
    found = {
        name: {"median": statistics.median(each), "most": max(each), "count": len(each)} for name, each in rows.items()
    }
    print(json.dumps(found, indent=1))
    if given.write:
        print(written("deployed", torch.get_num_threads(), {"deployed": found}))


if __name__ == "__main__":
    main()
