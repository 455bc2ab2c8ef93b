"""Flower apps from experiments."""

import logging
import os
from typing import Any

from undrift.core.errors import InvalidInput
from undrift.deploy.node import Answering, ReadSamples
from undrift.deploy.serving import serve, single
from undrift.deploy.settings import Deployment
from undrift.experiments.config.experiment import Experiment

try:
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
except ImportError as error:
    raise InvalidInput("Flower is not installed: pip install 'undrift[flower]'") from error


def server_app(experiment: Experiment) -> ServerApp:
    """A ServerApp that runs an experiment on the nodes that clients are; its settings are those of `Deployment`.

    >>> import undrift as ud
    >>> app = server_app(ud.Experiment(algorithm="scaffold-m", rounds=3))
    """
    from undrift.deploy.flower import FlowerLink

    single(experiment)
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        log_to_stderr()
        os.umask(0o077)  # a run tells of its clients: the owner's alone
        settings = Deployment.of(context.run_config)
        for _ in serve(experiment, FlowerLink(grid), settings):
            pass

    return app


def client_app(experiment: Experiment, data: ReadSamples | None = None) -> ClientApp:
    """A ClientApp for one client's node, which has its name in its node config.

    `data(config)` reads the node's samples: (inputs, targets), or what ud.load gives.  Without it a node has the part of
    the experiment's own data that `part` in its node config says, which is for trying things out.

    >>> import undrift as ud
    >>> app = client_app(ud.Experiment(algorithm="scaffold-m", rounds=3))
    """
    from undrift.deploy.flower import from_records, to_records

    experiment = single(experiment)
    app, answering = ClientApp(), Answering(experiment, data)

    @app.train()
    @app.query()
    def answer(message: Message, context: Context) -> Message:
        log_to_stderr()
        asked = from_records(message.content)
        reply: Any = to_records(answering(context.node_config, asked))
        return Message(reply, reply_to=message)

    return app


def log_to_stderr() -> None:
    """What is logged goes to stderr, which Flower passes on."""
    log = logging.getLogger("undrift")
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("undrift: %(message)s"))
        log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
