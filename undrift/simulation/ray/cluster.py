"""The cluster that a run uses."""

import os
import secrets
import socket
import sys
from typing import Any

from undrift.core.errors import InvalidInput

ANSWERS = 10.0  # seconds within which a cluster should


def connect() -> Any:
    """Ray, connected: as this process is already, to the cluster at RAY_ADDRESS, or to one of its own on this machine.

    A cluster of its own ends with the process.  Ray listens on all interfaces, so that only who has a token is let in.
    """
    address = os.environ.get("RAY_ADDRESS") or "local"
    if address == "local" and "ray" not in sys.modules:  # which has read its settings; newer ones then make a token
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        if "RAY_AUTH_TOKEN_PATH" not in os.environ:
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    try:
        import ray
    except ImportError as error:
        raise InvalidInput("engine 'ray' needs Ray: pip install 'undrift[ray]'") from error
    if ray.is_initialized():
        return ray
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    if address == "local":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        settings |= {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    try:
        _knock(address)
        ray.init(address=address, **settings)
    except InvalidInput:
        raise
    except Exception as error:  # Ray raises many kinds, that one too
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        if any(word in str(error).lower() for word in ("auth", "token", "unauthenticated")):
            raise InvalidInput(
                f"the Ray cluster at {address} asks for a token ({reason}): set RAY_AUTH_MODE=token and "
                "RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH, to those of the cluster"
            ) from error
        if address == "local":
            raise InvalidInput(f"Ray could not be started on this machine: {reason}") from error
        raise InvalidInput(
            f"no Ray cluster can be used at {address} ({reason}): start one with `ray start --head`, "
            "or unset RAY_ADDRESS to use this machine alone"
        ) from error
    return ray


def _knock(address: str) -> None:
    """Raise an error if there is nobody at HOST:PORT; Ray itself would try for minutes."""
    if "://" in address:
        raise InvalidInput(
            f"RAY_ADDRESS={address} is for Ray's client: start the run on a machine of the cluster, "
            "with RAY_ADDRESS=HOST:6379"
        )
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host, int(port)), timeout=ANSWERS).close()


def cpus() -> int:
    """How many processors the cluster has."""
    return int(connect().cluster_resources().get("CPU", 0))
