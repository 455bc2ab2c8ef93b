"""A node that runs only the apps it has itself.

Flower sends a run's code to every node and runs it there in a new process for every message.  Here the SuperNode is
told to run nothing (`--isolation process`), and this answers its messages: with the apps in folders of this machine, in a
process that stays.  What code the server sends is never looked at, and nothing is imported anew for a message.

Written for flwr 1.41, as flower.py.
"""

import importlib
import logging
import sys
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
from flwr.app import Error, Message
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode, SubStatus
from flwr.proto.message_pb2 import PullObjectRequest, PullObjectResponse
from flwr.proto.runtime_pb2 import AcquireTaskRequest, SendTaskHeartbeatRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.retry import RetryInvoker, exponential
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from undrift.core.errors import InvalidInput
from undrift.deploy.checks import printable

log = logging.getLogger("undrift")

ACQUIRE = frozenset({"/flwr.proto.Runtime/AcquireTask"})
POLL = 0.2  # seconds between looks for a message, on loopback
TRIES = 5  # of a call that the SuperNode does not hear
STALLED = 120.0  # seconds without a further part of a message, after which it is given up

Apps = Mapping[str, ClientApp]  # by the name of their project


def load_apps(folders: Sequence[Path]) -> dict[str, ClientApp]:
    """The ClientApps in these folders, each a Flower app."""
    found: dict[str, ClientApp] = {}
    for folder in folders:
        name, app = _load(folder.resolve())
        if name in found:
            raise InvalidInput(f"two apps are called {name}: a node takes one of a name")
        found[name] = app
    return found


def _load(folder: Path) -> tuple[str, ClientApp]:
    try:
        project = tomllib.loads((folder / "pyproject.toml").read_text())
        name, where = project["project"]["name"], project["tool"]["flwr"]["app"]["components"]["clientapp"]
    except (OSError, KeyError, ValueError) as error:
        raise InvalidInput(
            f"{folder} is no app, as `undrift deploy init` writes one ({printable(str(error))})"
        ) from error
    module, _, attribute = where.partition(":")
    package = module.split(".")[0]
    for loaded in [m for m in sys.modules if m.split(".")[0] == package]:
        del sys.modules[loaded]  # another app's, of the same name
    sys.path.insert(0, str(folder))
    try:
        app = getattr(importlib.import_module(module), attribute)
    finally:
        sys.path.remove(str(folder))
    if not isinstance(app, ClientApp):
        raise InvalidInput(f"{folder}: {where} is no ClientApp")
    return name, app


def answer_messages(apps: Apps, runtime: str, secret: bytes, alive: Callable[[], bool]) -> None:
    """Answer what the SuperNode with this Runtime API is asked, as long as it is alive."""
    tasks = _client(runtime, SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=ACQUIRE), retry=False)
    ours = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
    with closing(tasks):
        while alive():
            try:
                token = tasks.AcquireTask(ours).token
            except httpx.TransportError:  # it is starting, or ends
                token = ""
            except Exception as error:  # of Flower: a node goes on asking
                log.error("no message could be asked for: %s", printable(f"{type(error).__name__}: {error}"))
                token = ""
            if token:
                _answer(apps, runtime, token)
            else:
                time.sleep(POLL)


def _answer(apps: Apps, runtime: str, token: str) -> None:
    client = _client(runtime, RuntimeTokenHttpInterceptor(token))
    heartbeat = HeartbeatSender(lambda: _heard(client))
    context, status, details = None, SubStatus.FAILED, "no message"
    try:
        heartbeat.start()
        message, context, run, _ = pull_task_input(client)
        reply = answer(apps, run.fab_id, message, context)
        status, details = SubStatus.COMPLETED, ""
        push_message(client, reply, context)
    except Exception as error:  # of Flower: the server will ask again
        log.error("a message could not be answered: %s", printable(f"{type(error).__name__}: {error}"))
    finally:
        try:
            push_task_output(client, context, status, details)
        except Exception as error:  # the run may have ended meanwhile: nobody waits for this answer
            log.error("an answer was not taken: %s", printable(f"{type(error).__name__}: {error}"))
        if heartbeat.is_running:
            heartbeat.stop()
        client.close()


def _heard(client: RuntimeHttpClient) -> bool:
    """Whether the SuperNode has heard that a task is worked on.

    One that is over, perhaps with its run, is no reason to stop: Flower's own function would end this process with SIGINT.
    """
    try:
        client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
    except httpx.TransportError:
        return False
    except httpx.HTTPStatusError:
        pass
    return True


def answer(apps: Apps, app_id: str, message: Message, context: Any) -> Message:
    """The answer of the app that a run is of, if this node has it.

    `app_id` is publisher/name.
    """
    name = app_id.split("/")[-1]
    if name not in apps:
        reason = f"the app {name!r} is not on this node, which has {', '.join(sorted(apps))} and runs nothing else"
        log.error("refused: %s", printable(reason))
        return Message(Error(ErrorCode.INVALID_FAB, printable(reason)), reply_to=message)
    try:
        return apps[name](message, context)
    except Exception as error:
        reason = printable(f"{type(error).__name__}: {error}")
        log.error("%s: %s", name, reason)
        return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)


class TaskClient(RuntimeHttpClient):
    """Flower's client, which gives up a message whose parts do not come any more.

    A SuperNode that hears in the middle of a message that its run has ended leaves a task that nothing will come for. Flower
    waits for it for two hours, in a process of its own; here all later messages would wait as long.
    """

    def __init__(self, *arguments: Any, **settings: Any):
        super().__init__(*arguments, **settings)
        self.progress = time.monotonic()

    def PullObject(self, request: PullObjectRequest) -> PullObjectResponse:
        reply, now = super().PullObject(request), time.monotonic()
        if reply.object_available:
            self.progress = now
        elif now - self.progress > STALLED:
            raise ObjectPullError(request.object_id, f"no part of the message has come for {STALLED:g} s")
        return reply


def _client(runtime: str, interceptor: Any, retry: bool = True) -> RuntimeHttpClient:
    """Flower's client; a token that is not taken any more is an error, where Flower's way to retry would end this process."""
    again = RetryInvoker(lambda: exponential(max_delay=2), httpx.TransportError, max_tries=TRIES, max_time=None)
    return TaskClient.from_server_address(
        server_address=runtime,
        insecure=True,  # loopback
        root_certificates=None,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec"), interceptor],
        retry_invoker=again if retry else None,
    )
