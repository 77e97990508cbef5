"""A server in C (open62541, through the package o6) for goal 7; a process of its own.

    python -m steadyhand.training.bench.opcua_server PORT TAGS [CHANGING]

CHANGING of the tags hold the monotonic time at which they were written last, every 20 ms. Prints
`ready` once it listens and ends when its standard input closes. Without a licence the package ends
the process after ten minutes; a run of the goal takes little more than one.
"""

import sys
import time
from importlib import import_module
from typing import Any

NAMESPACE = 1
NAMESPACE_URI = "urn:open62541.unconfigured.application"
"""Also what the server calls itself."""
CHANGE_MS = 20.0


def value_of(tag: int) -> float:
    """What tag number `tag` holds."""
    return 1.5 * tag - 7.25


def serve(port: int, tags: int, changing: int = 0) -> None:
    """Doubles `v0` … on the loopback until told to stop; the first `changing` tell the time."""
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
    names = [f"ns={NAMESPACE};s=v{tag}" for tag in range(changing)]
    with server:
        if changing:
            server.addRepeatedCallback(
                lambda: server.write(dict.fromkeys(names, time.monotonic())), CHANGE_MS
            )
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    serve(*map(int, sys.argv[1:]))
