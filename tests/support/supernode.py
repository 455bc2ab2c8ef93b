"""undrift deploy node, but the SuperLink notices that it is dead after 20 s and not after a minute.

    python -m tests.support.supernode deploy node ARGUMENTS

It says how often it will be heard of, and 10 s is the least that Flower allows; and it gives up messages of ended runs sooner.
Nothing else differs.
"""

import sys

from undrift.deploy import flower_process

if __name__ == "__main__":
    if sys.argv[1] == "deploy":
        from undrift.cli import main
        from undrift.deploy import executor

        executor.STALLED = 10.0
        flower_process.MODULE = "tests.support.supernode"
        sys.exit(main())
    from flwr.supercore import heartbeat
    from flwr.supernode import fleet_http_connection

    for module in (heartbeat, fleet_http_connection):
        assert hasattr(module, "HEARTBEAT_DEFAULT_INTERVAL")
        setattr(module, "HEARTBEAT_DEFAULT_INTERVAL", 10)  # noqa: B010 (not exported)
    flower_process.main()
