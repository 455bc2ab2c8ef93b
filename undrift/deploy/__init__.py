"""Experiments on real nodes, by Flower (pip install 'undrift[flower]'): see docs/deploy.md.

    undrift.deploy.server_app(experiment)          the server's half as a Flower ServerApp
    undrift.deploy.client_app(experiment, data)    a node's half as a ClientApp

Only apps.py, flower.py, executor.py and flower_process.py import Flower, and only when they are needed.

    apps.py, flower.py       Flower's apps, and Flower as a link that carries messages
    serving.py               a deployed run, from the handshake to its last round
    transport.py             nodes as a transport of synchronous rounds; async_transport.py: of a buffered server
    node.py, state_store.py  a node's half, and its client states on disk
    fleet.py                 which node is which client          messages.py        what travels
    checks.py, faults.py     the door: what is refused           compatibility.py   nodes that are refused
    problems.py              the problem as each side knows it   settings.py        how a run is held together
    project.py, keys.py      what `undrift deploy init`, `certificates` and `key` write
    running.py               what `undrift deploy superlink` and `node` run: gateway.py lets nodes through and nobody
                             else, executor.py answers with the apps of its own machine, flower_process.py is Flower
"""

from typing import TYPE_CHECKING, Any

from undrift.deploy.problems import data_of_client
from undrift.deploy.settings import Deployment

if TYPE_CHECKING:
    from undrift.deploy.apps import client_app, server_app

__all__ = ["Deployment", "client_app", "server_app", "data_of_client"]


def __getattr__(name: str) -> Any:
    if name in ("client_app", "server_app"):
        from undrift.deploy import apps

        return getattr(apps, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
