"""Experiments on real nodes, by Flower (pip install 'undrift[flower]'): see docs/deploy.md.

    undrift.deploy.server_app(experiment)          the server's half as a Flower ServerApp
    undrift.deploy.client_app(experiment, data)    a node's half as a ClientApp

Flower itself is known to two files only, apps.py and wire.py, and imported when an app is asked for.
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
