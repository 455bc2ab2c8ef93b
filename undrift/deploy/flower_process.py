"""Flower's own processes, which end when the process that started them does, however that ends.

python -m undrift.deploy.flower_process superlink|supernode ARGUMENTS
"""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

MODULE = __spec__.name if __spec__ else "undrift.deploy.flower_process"


def start(which: str, *arguments: str) -> "subprocess.Popen[bytes]":
    """Start a SuperLink or a SuperNode, without telemetry."""
    bin = str(Path(sys.executable).parent)
    environment = {
        **os.environ,
        "PATH": os.pathsep.join((bin, os.environ.get("PATH", ""))),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }
    command = [sys.executable, "-m", MODULE, which, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)


def stop(process: "subprocess.Popen[bytes]") -> None:
    """Ask it to end; insist after a while."""
    process.terminate()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _end_with_parent() -> None:
    while sys.stdin.buffer.read(1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    which, *arguments = sys.argv[1:]
    sys.argv = [f"flower-{which}", *arguments]
    if which == "superlink":
        from flwr.superlink.cli.flower_superlink import flower_superlink

        flower_superlink()
    else:
        from flwr.supernode.cli import flower_supernode

        flower_supernode()


if __name__ == "__main__":
    main()
