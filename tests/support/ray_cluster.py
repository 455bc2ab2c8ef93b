"""One Ray cluster for all tests that need one; they are the xdist group "ray", so that one worker takes them all."""

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

CPUS = 4  # of each node, as Ray counts them
HERE = "127.0.0.2"  # for the loopback address 127.0.0.1 Ray would put another
NODE: dict[str, Any] = {"num_cpus": CPUS, "include_dashboard": False, "node_ip_address": HERE}
# a dead node is noticed sooner than usual
WATCHED = {"health_check_period_ms": 1000, "health_check_failure_threshold": 5}


def two_nodes() -> Any:
    from ray.cluster_utils import Cluster

    for attempt in range(3):
        made = None
        try:
            made = Cluster(initialize_head=True, head_node_args={**NODE, "_system_config": WATCHED})
            made.add_node(**NODE)
            return made
        except Exception:  # Ray gives a node 30 s to start, which a busy machine may not have
            if made is not None:
                made.shutdown()
            if attempt == 2:
                raise
    raise AssertionError


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Any]:
    """Two nodes; this process is on the first."""
    ray = pytest.importorskip("ray")
    before = dict(os.environ)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.pop("RAY_ADDRESS", None)
    made = two_nodes()
    try:
        ray.init(address=made.address, _node_ip_address=HERE, log_to_driver=False, logging_level="error")
        yield made
    finally:
        ray.shutdown()
        made.shutdown()
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture(scope="session")
def idle_ray_workers(ray_cluster: Any) -> Iterator[list[Any]]:
    from undrift.simulation.ray.handles import stop_worker

    found: list[Any] = []
    yield found
    for actor in found:
        stop_worker(actor)


@pytest.fixture
def ray_workers(idle_ray_workers: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of one run are used for the next: starting them is what takes long."""
    import ray

    from undrift.simulation.ray import transport
    from undrift.simulation.ray.handles import LOST, start_worker

    def reuse_or_start(cpu: bool = True) -> Any:
        while idle_ray_workers:
            with suppress(*LOST):  # with its node
                ray.get(idle_ray_workers[-1].where.remote())
                return idle_ray_workers.pop()
            idle_ray_workers.pop()
        return start_worker(cpu)

    monkeypatch.setattr(transport, "start_worker", reuse_or_start)
    monkeypatch.setattr(transport, "stop_worker", idle_ray_workers.append)
