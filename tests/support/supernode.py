"""undrift deploy node, but the SuperLink notices that it is dead after 20 s and not after a minute.

    python -m tests.support.supernode deploy node ARGUMENTS

Nothing else differs: it says how often it will be heard of, and 10 s is the least that Flower allows.
"""

import sys

from undrift.deploy import flower_process

if __name__ == "__main__":
    if sys.argv[1] == "deploy":
        from undrift.cli import main

        flower_process.MODULE = "tests.support.supernode"
        sys.exit(main())
    from flwr.supercore import heartbeat
    from flwr.supernode import fleet_http_connection

    for module in (heartbeat, fleet_http_connection):
        assert hasattr(module, "HEARTBEAT_DEFAULT_INTERVAL")
        setattr(module, "HEARTBEAT_DEFAULT_INTERVAL", 10)  # noqa: B010 (not exported)
    flower_process.main()
