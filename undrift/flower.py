"""The name of `undrift.deploy` in 0.1, for apps that `undrift deploy init` wrote then."""

import warnings

from undrift.deploy import Deployment, client_app, data_of_client, server_app

share = data_of_client

__all__ = ["Deployment", "client_app", "server_app", "share"]

warnings.warn("undrift.flower is now undrift.deploy", DeprecationWarning, stacklevel=2)
