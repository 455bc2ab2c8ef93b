"""flower-supernode, but the SuperLink notices that it is dead after 20 s and not after a minute.

Nothing else differs: it says how often it will be heard of, and 10 s is the least that Flower allows.
"""

import sys

from flwr.supercore import heartbeat
from flwr.supernode import fleet_http_connection
from flwr.supernode.cli import flower_supernode

for module in (heartbeat, fleet_http_connection):
    assert hasattr(module, "HEARTBEAT_DEFAULT_INTERVAL")
    setattr(module, "HEARTBEAT_DEFAULT_INTERVAL", 10)  # noqa: B010 (not exported)

if __name__ == "__main__":
    sys.exit(flower_supernode())
