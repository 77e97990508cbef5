"""A server in C (open62541, through the package o6) for goal 7; a process of its own.

    python -m steadyhand.training.bench.opcua_server PORT TAGS [CHANGING [PKI]]

CHANGING of the tags hold the monotonic time at which they were written last, every 20 ms. With the
folder PKI, as a simulated plant has it, it also signs and encrypts. Prints `ready` once it listens
and ends when its standard input closes. Without a licence the package ends the process after ten
minutes: 5000 ticks of 100 ms are the most that one server lives to see.
"""

import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from steadyhand.adapters.sim.certificates import Pki, make_pki

NAMESPACE = 1
NAMESPACE_URI = "urn:open62541.unconfigured.application"
"""Also what the server calls itself; with certificates both are the name that stands in its own."""
CHANGE_MS = 20.0
PKI_NAME = "bench"


def value_of(tag: int) -> float:
    """What tag number `tag` holds."""
    return 1.5 * tag - 7.25


def serve(port: int, tags: int, changing: int = 0, pki: str = "") -> None:
    """Doubles `v0` … on the loopback until told to stop; the first `changing` tell the time."""
    o6: Any = import_module("o6")
    server = o6.Server(port=port, **(_secure(make_pki(Path(pki), PKI_NAME)) if pki else {}))
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


def _secure(pki: Pki) -> dict[str, Any]:
    return {
        "certificate": pki.server_cert,
        "privateKey": pki.server_key,
        "trustList": [pki.client_cert],
        "applicationUri": pki.server_uri,
    }


if __name__ == "__main__":
    port, tags, changing, *secured = sys.argv[1:]
    serve(int(port), int(tags), int(changing), *secured)
