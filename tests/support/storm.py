"""Scrapes by the thousand: `python storm.py PORT RATE SECONDS` asks for /metrics whether or not it
is answered, and prints what came of it, as JSON.

A process of its own with the lowest priority, so that what the loop feels is the server and not
the processor that the asking takes.
"""

import json
import os
import resource
import selectors
import socket
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass

REQUEST = b"GET /metrics HTTP/1.1\r\nHost: storm\r\n\r\n"
PATIENCE_S = 1.0
"""Who has no answer by then gives up."""


@dataclass(slots=True)
class _Asked:
    sock: socket.socket
    until_s: float
    status: str = ""


def storm(port: int, rate: float, for_s: float) -> dict[str, float]:
    """Ask `rate` times a second for `for_s`.

    Returns:
        wall time of begin and end, how often it asked, and how often each status came; "none": cut
        off, or no answer in time.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    selector = selectors.DefaultSelector()
    counts: Counter[str] = Counter()
    waiting: dict[int, _Asked] = {}

    def end(asked: _Asked) -> None:
        counts[asked.status or "none"] += 1
        selector.unregister(asked.sock)
        del waiting[asked.sock.fileno()]
        asked.sock.close()

    def go_on(asked: _Asked, writable: bool) -> None:
        if writable:
            asked.sock.sendall(REQUEST)
            selector.modify(asked.sock, selectors.EVENT_READ, asked)
            return
        data = asked.sock.recv(1 << 18)
        if not data:
            end(asked)
        elif not asked.status:
            asked.status = data[9:12].decode("ascii", "replace")

    begun_s, begun_wall_s, asked_for = time.monotonic(), time.time(), 0
    while (now_s := time.monotonic()) < begun_s + for_s:
        for _ in range(int((now_s - begun_s) * rate) - asked_for):
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", port))
            made = waiting[sock.fileno()] = _Asked(sock, now_s + PATIENCE_S)
            selector.register(sock, selectors.EVENT_WRITE, made)
            asked_for += 1
        for key, events in selector.select(0.5 / rate):
            try:
                go_on(key.data, bool(events & selectors.EVENT_WRITE))
            except OSError:
                end(key.data)
        while waiting and (oldest := next(iter(waiting.values()))).until_s < now_s:
            end(oldest)
    ended_wall_s = time.time()
    for asked in list(waiting.values()):
        end(asked)
    return {"begin_s": begun_wall_s, "end_s": ended_wall_s, "asked": asked_for, **counts}


if __name__ == "__main__":
    with suppress(OSError):
        os.nice(19)
    print(json.dumps(storm(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))))
