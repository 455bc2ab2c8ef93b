"""What every method of the table computes, to the bit, in the engines that promise it: recorded once, compared ever after.

A change that must not move a trajectory is checked against these.  One that must is a commit of its own, is listed under
"Numbers changed" in CHANGELOG.md, and records them anew:

    python -m tests.support.digests
    python -m tests.support.digests new        only the rows that are not there yet

Bits depend on the processor and on torch's build; elsewhere than where they were recorded final models are compared to
rounding instead.
"""

import hashlib
import json
import platform
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import undrift as ud
from tests.support.method_table import ROWS, Row
from undrift.core.algorithm import exchanges_of

RECORDED = Path(__file__).with_name("digests.json")
DEMO = Path(__file__).parents[2] / "examples" / "digits.toml"
ENGINES = ("sequential", "batched")
SERVERS: dict[str, Any] = {
    "buffer": ud.Buffer(2, concurrency=3),
    "deadline": ud.Deadline(0.5),
    "synchronous": ud.Synchronous(),
}
POPULATION = ud.Population(
    pace=ud.LogNormal(0.05, 0.8),
    link=ud.Link(latency=0.02, down=1e4, up=5e3),
    jitter=0.3,
    dropout=ud.Dropout(after=0.1),
)
N, T = 5, 8


def machine() -> str:
    """What bits depend on besides the code: numpy and torch have other kernels for other families of processors."""
    return (
        f"torch {torch.__version__}, numpy {np.__version__}, {torch.backends.cpu.get_cpu_capability()}, {processor()}"
    )


def processor() -> str:
    """Vendor, family and model, which Linux tells; elsewhere what Python knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return platform.processor()
    known = dict(line.split(":", 1) for line in lines if ":" in line)
    fields = {name.strip(): value.strip() for name, value in known.items()}
    return " ".join(fields[name] for name in ("vendor_id", "cpu family", "model") if name in fields)


def quadratic() -> Any:
    random = torch.Generator().manual_seed(1)
    A = torch.randn(N, 6, 6, dtype=torch.float64, generator=random)
    e = torch.randn(N, 6, dtype=torch.float64, generator=random)
    H = torch.eye(6, dtype=torch.float64) + A @ A.mT / 12
    return ud.Quadratic(H, e, weights=[0.1, 0.3, 0.2, 0.3, 0.1], variance=0.05)


def model() -> Any:
    random = torch.Generator().manual_seed(2)
    X, Y = torch.randn(70, 9, generator=random), torch.arange(70) % 3
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(9, 7), nn.ReLU(), nn.Dropout(0.2), nn.Linear(7, 3))
    cut = [list(range(a, b)) for a, b in ((0, 8), (8, 20), (20, 35), (35, 55), (55, 60))]
    return ud.federate((X, Y), model=net, loss=F.cross_entropy, clients=cut, weights="samples")


def settings(row: Row, problem: str) -> dict[str, Any]:
    steps = [1, 4, 2, 5, 3] if row.unequal else 3
    batch = None if problem == "quadratic" else 4
    return {
        "rounds": T,
        "participation": ud.Uniform(3) if row.partial else ud.Everyone(),
        "local": ud.Local(steps=steps, batch=batch, lr=0.05, **row.local),
        "seed": 7,
    }


def cases() -> Iterator[tuple[str, Row, str, str]]:
    """(id, row, problem, engine)"""
    for row in ROWS:
        for problem in ("quadratic", "model"):
            for engine in ENGINES:
                yield f"{row}, {problem}, {engine}", row, problem, engine
        for server in SERVERS if row.partial and row.unequal else ():
            if server != "buffer" or len(exchanges_of(ud.method(row.name, **row.hyper), 1)) == 1:
                yield f"{row}, quadratic, {server}", row, "quadratic", server


def digest(row: Row, problem: str, engine: str) -> dict[str, Any]:
    """All that a run records but its seconds, and every model, as a hash; and the last model."""
    made = {"quadratic": quadratic, "model": model}[problem]()
    seen, x = hashlib.sha256(), made.x0
    method = ud.method(row.name, **row.hyper)
    how: dict[str, Any] = {"engine": engine}
    if engine in SERVERS:
        how = {"engine": "events", "server": SERVERS[engine], "population": POPULATION}
    for r in ud.rounds(method, made, **how, **settings(row, problem)):
        numbers = [*r.metrics.values(), r.bytes_down, r.bytes_up, r.exchanges, *r.clients]
        numbers += [] if r.time is None else [r.time]
        seen.update(struct.pack(f"{len(numbers)}d", *numbers))
        seen.update(r.x.numpy().tobytes())
        x = r.x
    return {"sha256": seen.hexdigest(), "x": [float(v) for v in x[:6]]}


def demo(folder: Path) -> dict[str, Any]:
    """The files that the demo leaves behind, of its first seed, in one thread."""
    out = folder / "demo"
    changes = ["seeds=1", "threads=1"]
    words = [f"--set={change}" for change in changes]
    command = [sys.executable, "-m", "undrift.cli", "run", str(DEMO), *words, "--out", str(out)]
    subprocess.run([*command, "--quiet", "--jobs", "1"], check=True)
    found: dict[str, Any] = {}
    for metrics in sorted(out.glob("*/seed-0/metrics.jsonl")):
        model = metrics.with_name("model.safetensors")
        content = hashlib.sha256(metrics.read_bytes() + model.read_bytes()).hexdigest()
        last = json.loads(metrics.read_text().splitlines()[-1])
        found[f"demo, {metrics.parent.parent.name}"] = {"sha256": content, "x": [last["loss"]]}
    return found


def record(only_new: bool = False) -> None:
    torch.set_num_threads(1)
    known: dict[str, Any] = json.loads(RECORDED.read_text()) if only_new else {"machine": machine()}
    if known.pop("machine") != machine():
        raise SystemExit("the rows that are there were recorded on another machine: record all of them")
    found = {name: known.get(name) or digest(row, problem, engine) for name, row, problem, engine in cases()}
    demos = {name: each for name, each in known.items() if name.startswith("demo")}
    with TemporaryDirectory() as folder:
        found |= demos or demo(Path(folder))
    lines = [f'"{name}": {json.dumps(each)}' for name, each in found.items()]
    body = ",\n".join([f'"machine": "{machine()}"', *lines])
    RECORDED.write_text(f"{{\n{body}\n}}\n")


if __name__ == "__main__":
    record(only_new="new" in sys.argv)
