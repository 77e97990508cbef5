"""A server in C (open62541, through the package o6) for goal 7; a process of its own.

    python -m steadyhand.training.bench.opcua_server PORT TAGS

Prints `ready` once it listens and ends when its standard input closes. Without a licence the
package ends the process after ten minutes; a run of the goal takes less than one.
"""

import sys
from importlib import import_module
from typing import Any

NAMESPACE = 1


def value_of(tag: int) -> float:
    """What tag number `tag` holds."""
    return 1.5 * tag - 7.25


def serve(port: int, tags: int) -> None:
    """Doubles `v0` … on the loopback until told to stop."""
    o6: Any = import_module("o6")
    server = o6.Server(port=port)
    for tag in range(tags):
        server.addVariable(
            f"v{tag}",
            server.objectsNode,
            value_of(tag),
            nodeId=f"ns={NAMESPACE};s=v{tag}",
            writable=False,
        )
    with server:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
