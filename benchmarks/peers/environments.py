"""Every peer in a virtual environment of its own, under .bench/, made on first use."""

import re
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLACE = ROOT / ".bench"
CONSTRAINTS = Path(__file__).parent / "constraints.txt"


@dataclass(frozen=True)
class Peer:
    name: str
    module: str  # benchmarks.peers.run_<module> is its runner
    requirements: tuple[str, ...]
    workloads: tuple[str, ...]  # those that it has the method for
    evaluates: bool = False  # its runner can evaluate after every round
    restless: bool = False  # its processes poll even while it is not their turn


DENSE_AND_DEEP = ("W1", "W2", "W3", "W4", "LSTM")
ALL = ("W1", "W2", "W5", "W3", "W4", "LSTM")
PEERS = (
    Peer("fedjax", "fedjax", ("fedjax",), DENSE_AND_DEEP, evaluates=True),
    Peer("pfl", "pfl", ("pfl[pytorch]",), ALL, evaluates=True),
    Peer("fluke", "fluke", ("fluke-fl",), ALL),
    Peer("FedLab", "fedlab", ("fedlab",), ALL),
    Peer("FLGo", "flgo", ("flgo",), ALL),
    Peer("Flower", "flower", ("flwr[simulation]", "torch"), DENSE_AND_DEEP, restless=True),
    Peer("NVFlare", "nvflare", ("nvflare", "torch"), ("W1", "W2", "W4", "LSTM"), restless=True),
)


class Unavailable(Exception):
    """A peer that cannot be measured, and why, in one line."""


def python(peer: Peer) -> Path:
    """The interpreter of a peer's environment; installs it if that was not done, or other versions are asked for."""
    place = PLACE / peer.module
    interpreter = place / "bin" / "python"
    ready = place / "ready"
    wanted = " ".join(peer.requirements) + "\n" + CONSTRAINTS.read_text()
    if ready.exists() and ready.read_text() == wanted:
        return interpreter
    print(f"installing {peer.name}: {' '.join(peer.requirements)}", flush=True)
    venv.create(place, with_pip=True, clear=True)
    pip = (interpreter, "-m", "pip", "install", "--disable-pip-version-check", "--quiet")
    done = subprocess.run([*pip, "-c", CONSTRAINTS, *peer.requirements], capture_output=True, text=True)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise Unavailable(f"does not install: {one_line(errors[0] if errors else done.stderr)}")
    ready.write_text(wanted)
    return interpreter


def one_line(text: str) -> str:
    """The last line of an error, without what only this machine knows."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    last = lines[-1] if lines else "nothing said"
    for path in (str(ROOT), sys.prefix, str(Path.home())):
        last = last.replace(path, "...")
    return re.sub(r"(?<![\w.])/[\w./-]+/", ".../", last)[:200]
