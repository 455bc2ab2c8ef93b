"""Every peer in a virtual environment of its own, under .bench/, made on first use."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLACE = ROOT / ".bench"
NEWEST_MINOR = 14  # of Python 3 that is looked for
CONSTRAINTS = Path(__file__).parent / "constraints.txt"


@dataclass(frozen=True)
class Peer:
    name: str
    module: str  # benchmarks.peers.run_<module> is its runner
    requirements: tuple[str, ...]
    workloads: tuple[str, ...]  # those that it has the method for
    evaluates: bool = False  # its runner can evaluate after every round
    oldest: tuple[int, int] = (3, 11)  # the version of Python that it needs, at least
    restless: bool = False  # its processes poll even while it is not their turn


DENSE_AND_DEEP = ("W1", "W2", "W3", "W4", "LSTM")
ALL = ("W1", "W2", "W5", "W3", "W4", "LSTM")
PEERS = (
    Peer("fedjax", "fedjax", ("fedjax",), DENSE_AND_DEEP, evaluates=True),
    Peer("pfl", "pfl", ("pfl[pytorch]",), ALL, evaluates=True),
    Peer("fluke", "fluke", ("fluke-fl",), ALL),
    Peer("BlazeFL", "blazefl", ("blazefl", "torch", "numpy", "tqdm"), DENSE_AND_DEEP, evaluates=True, oldest=(3, 12)),
    Peer("FedLab", "fedlab", ("fedlab",), ALL),
    Peer("APPFL", "appfl", ("appfl", "torch"), ("V1",)),
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
    subprocess.run([interpreter_for(peer), "-m", "venv", "--clear", place], check=True)
    pip = (interpreter, "-m", "pip", "install", "--disable-pip-version-check", "--quiet")
    done = subprocess.run([*pip, "-c", CONSTRAINTS, *peer.requirements], capture_output=True, text=True)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise Unavailable(f"does not install: {one_line(errors[0] if errors else done.stderr)}")
    ready.write_text(wanted)
    return interpreter


def interpreter_for(peer: Peer) -> str:
    """A Python that is new enough for a peer: this one, or one on the path."""
    if sys.version_info[:2] >= peer.oldest:
        return sys.executable
    names = [f"python3.{minor}" for minor in range(NEWEST_MINOR, peer.oldest[1] - 1, -1)]
    folders = map(Path, os.environ["PATH"].split(os.pathsep))
    for found in [folder / name for folder in folders for name in names if (folder / name).exists()]:
        if subprocess.run([found, "-c", ""], capture_output=True).returncode == 0:  # a version manager's may not answer
            return str(found)
    raise Unavailable(f"needs Python {peer.oldest[0]}.{peer.oldest[1]}, and none is on the path")


def one_line(text: str) -> str:
    """The last line of an error, without what only this machine knows."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    last = lines[-1] if lines else "nothing said"
    for path in (str(ROOT), sys.prefix, str(Path.home())):
        last = last.replace(path, "...")
    return re.sub(r"(?<![\w.])/[\w./-]+/", ".../", last)[:200]
