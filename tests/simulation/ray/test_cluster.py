"""What is said when a cluster cannot be used, or a worker says nothing; no cluster is started."""

import logging
import subprocess
import sys
from typing import Any

import pytest

import undrift as ud

ray = pytest.importorskip("ray")

from undrift.simulation.ray import cluster, transport  # noqa: E402 (needs Ray)
from undrift.simulation.ray.handles import WorkerHandle  # noqa: E402


def test_a_cluster_that_asks_for_a_token_is_not_called_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: Any) -> None:
        raise ray.exceptions.AuthenticationError("InvalidAuthToken: the authentication token is missing")

    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setattr(cluster, "_knock", lambda address: None)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(ud.InvalidInput, match=r"at 10.0.0.1:6379 asks for a token .* RAY_AUTH_TOKEN"):
        cluster.connect()


def test_a_worker_that_does_not_answer_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    waits: list[float] = []

    def wait(replies: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        waits.append(timeout)
        return (replies, []) if len(waits) == 3 else ([], replies)

    monkeypatch.setattr(transport.ray, "wait", wait)
    with caplog.at_level(logging.WARNING):
        transport._await_answer(WorkerHandle(4, range(1), None, host="node7"), "reply")
    assert waits == [60.0, 120.0, 240.0]
    assert caplog.text.count("worker 4 on node7 has not answered") == 2


STRANGER = """
import sys
from ray._raylet import GcsClient
print(len(GcsClient(address=sys.argv[1]).internal_kv_keys(b"", None)))
"""
OPERATOR = """
import subprocess, sys
from undrift.simulation.ray.cluster import connect
address = connect().get_runtime_context().gcs_address
for who in ({"HOME": "/nowhere"}, None):
    done = subprocess.run([sys.executable, "-c", sys.argv[1], address], capture_output=True, text=True, env=who)
    print(done.returncode, "InvalidAuthToken" in done.stderr)
"""


@pytest.mark.slow
def test_a_stranger_does_not_get_into_a_cluster_of_ones_own() -> None:
    """Ray's ports are open to the network, and whoever may use them runs code."""
    command = [sys.executable, "-c", OPERATOR, STRANGER]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout.splitlines()
    assert said == ["1 True", "0 False"]
