"""A loopback HTTP server for one page, in one thread, that cannot be tied up.

GET and HEAD of /metrics; everything else is 404 (or 405). Eight connections; a new one takes the
place of the oldest that has not asked for anything yet, so half-open connections never keep a
scraper out. Five seconds per connection. Twenty scrapes a second; the page is rendered at most
ten times a second.
"""

import hmac
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Protocol

from steadyhand.controllers.errors import ConfigError
from steadyhand.runtime.metrics import CONTENT_TYPE

MAX_CONNECTIONS = 8
DEADLINE_S = 5.0
MAX_HEADER = 8192
SCRAPES_PER_S = 20.0
RENDER_EVERY_S = 0.1
RETRY_S = 5.0
ACCEPTS_PER_TURN = 16
TURN_S = 0.05
"""With connections waiting beyond `ACCEPTS_PER_TURN`, the thread rests this long between turns."""
_STATUS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


class Counters(Protocol):
    """Where the server counts."""

    refused: int
    restarts: int


class _Uncounted:
    """Counts for nobody."""

    refused = 0
    restarts = 0


@dataclass(slots=True, eq=False)
class _Connection:
    sock: socket.socket
    deadline_s: float
    received: bytearray = field(default_factory=bytearray)
    reply: memoryview | None = None
    """What is left to send; None while the request is incomplete."""


class MetricsServer:
    """Serves what `render` gives. Its failures are told, never raised into the control loop."""

    def __init__(
        self,
        render: Callable[[], bytes],
        listen: str = "127.0.0.1:9464",
        allow_remote: bool = False,
        token: str = "",
        on_event: Callable[[dict[str, str]], None] = lambda event: None,
        counters: Counters | None = None,
    ) -> None:
        """Check who may listen; opens nothing yet.

        Args:
            render: makes the page; called in the server's thread.
            listen: address and port; port 0 takes a free one.
            allow_remote: may the address be reached from other machines?
            token: bearer token that scrapers must show; needed for remote addresses.
            on_event: told when the port is taken or the thread had to be restarted.
            counters: where refused requests and restarts are counted: the `Metrics` themselves.

        Raises:
            ConfigError: a remote address without both `allow_remote` and a token, or not an
                address at all.
        """
        host, _, port = listen.rpartition(":")
        try:
            address = ip_address(host.strip("[]"))
            self._listen = (str(address), int(port))
        except ValueError:
            raise ConfigError(
                f"metrics: listen={listen!r}: an address such as 127.0.0.1:9464 is needed"
            ) from None
        if not address.is_loopback and not (allow_remote and token):
            raise ConfigError(
                f"metrics: listen={listen!r} can be reached from outside: use 127.0.0.1, "
                "or set allow_remote and a token"
            )
        self._family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
        self._render = render
        self._token = token.encode()
        self._on_event = on_event
        self._counters = counters or _Uncounted()
        self.problem = ""
        """Why nothing is served now, or empty."""
        self.address: tuple[str, int] | None = None
        """Where it listens, once it does."""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._bound: socket.socket | None = None
        """Listens already, but is not served yet."""
        self._wake_in, self._wake_out = socket.socketpair()
        self._page = b""
        self._page_until_s = self._allowance_at_s = 0.0
        self._allowance = SCRAPES_PER_S

    def bind(self) -> None:
        """Listen before anything else depends on it, and refuse instead of trying again.

        Raises:
            ConfigError: the address cannot be had.
        """
        listener = socket.socket(self._family, socket.SOCK_STREAM)
        try:
            self._bind(listener)
        except OSError as error:
            listener.close()
            host, port = self._listen
            raise ConfigError(
                f"metrics: listen={host}:{port}: {error.strerror}; stop what listens there, or "
                "give metrics.listen another port"
            ) from None
        self._bound = listener

    def start(self) -> "MetricsServer":
        """Start the thread; a taken port is tried again and again, and told."""
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop serving and free the port. Idempotent."""
        if self._thread is not None:
            self._stop.set()
            self._wake_out.send(b"x")
            self._thread.join(DEADLINE_S)
            self._thread = None
            self._wake_in.close()
            self._wake_out.close()
        if self._bound is not None:
            self._bound.close()
            self._bound = None

    def __enter__(self) -> "MetricsServer":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        """Serve for ever; whatever breaks is told, and the server starts again."""
        with suppress(OSError):  # a lower priority is a courtesy to the loop, not a condition
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        while not self._stop.is_set():
            try:
                bound, self._bound = self._bound, None
                with bound or socket.socket(self._family, socket.SOCK_STREAM) as listener:
                    if bound is None:
                        self._bind(listener)
                    self._serve(listener)
            except OSError as error:
                self._tell("METRICS_BIND", f"{self._listen[0]}:{self._listen[1]}: {error}")
                self._stop.wait(RETRY_S)
            except Exception as error:  # noqa: BLE001  (a defect here must not end the metrics)
                self._counters.restarts += 1
                self._tell("TASK_DIED", f"metrics server: {error!r}; started again")
                self._stop.wait(1.0)
        self.address = None

    def _tell(self, code: str, text: str) -> None:
        self.address = None
        if text != self.problem:
            self.problem = text
            self._on_event({"event": "MetricsProblem", "code": code, "text": text})

    def _bind(self, listener: socket.socket) -> None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(self._listen)
        listener.listen(64)
        listener.setblocking(False)
        host, port = listener.getsockname()[:2]
        self.problem = ""
        self.address = (host, port)

    def _serve(self, listener: socket.socket) -> None:
        connections: dict[socket.socket, _Connection] = {}
        with selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            selector.register(self._wake_in, selectors.EVENT_READ)
            try:
                while not self._stop.is_set():
                    busy = False
                    for key, _ in selector.select(0.5 if connections else None):
                        if key.fileobj is listener:
                            busy = self._accept(listener, selector, connections)
                        elif key.fileobj in connections:
                            self._go_on(connections[key.fileobj], selector, connections)
                    now_s = time.monotonic()
                    for late in [c for c in connections.values() if c.deadline_s < now_s]:
                        self._refuse(late, selector, connections)
                    if busy:
                        self._stop.wait(TURN_S)
            finally:
                for sock in connections:
                    sock.close()

    def _accept(
        self,
        listener: socket.socket,
        selector: selectors.BaseSelector,
        connections: dict[socket.socket, _Connection],
    ) -> bool:
        """Take new connections and answer at once those that have asked; True if more may wait."""
        for _ in range(ACCEPTS_PER_TURN):
            try:
                sock, _ = listener.accept()
            except BlockingIOError:
                return False
            except OSError:  # e.g. out of descriptors: leave it waiting
                return True
            sock.setblocking(False)
            if len(connections) >= MAX_CONNECTIONS:
                waiting = [c for c in connections.values() if c.reply is None]
                self._refuse((waiting or list(connections.values()))[0], selector, connections)
            connection = _Connection(sock, time.monotonic() + DEADLINE_S)
            connections[sock] = connection
            selector.register(sock, selectors.EVENT_READ)
            self._go_on(connection, selector, connections)
        return True

    def _refuse(
        self,
        connection: _Connection,
        selector: selectors.BaseSelector,
        connections: dict[socket.socket, _Connection],
    ) -> None:
        if connection.reply is None or len(connection.reply):
            self._counters.refused += 1
        self._drop(connection, selector, connections)

    def _drop(
        self,
        connection: _Connection,
        selector: selectors.BaseSelector,
        connections: dict[socket.socket, _Connection],
    ) -> None:
        selector.unregister(connection.sock)
        del connections[connection.sock]
        connection.sock.close()

    def _go_on(
        self,
        connection: _Connection,
        selector: selectors.BaseSelector,
        connections: dict[socket.socket, _Connection],
    ) -> None:
        """Read, answer, send, then wait for the other side to close."""
        try:
            if connection.reply is None:
                self._receive(connection)
            if connection.reply is not None and len(connection.reply):
                connection.reply = connection.reply[connection.sock.send(connection.reply) :]
                if len(connection.reply):
                    selector.modify(connection.sock, selectors.EVENT_WRITE)
                else:
                    connection.sock.shutdown(socket.SHUT_WR)
                    selector.modify(connection.sock, selectors.EVENT_READ)
            elif connection.reply is not None and not connection.sock.recv(MAX_HEADER):
                self._drop(connection, selector, connections)
        except BlockingIOError:
            return
        except OSError:  # reset by the other side, or closed before it asked
            self._drop(connection, selector, connections)

    def _receive(self, connection: _Connection) -> None:
        """Collect the header; once complete, decide on the reply.

        Raises:
            OSError: the other side closed or reset.
        """
        data = connection.sock.recv(MAX_HEADER)
        if not data:
            raise ConnectionResetError
        connection.received += data
        end = connection.received.find(b"\r\n\r\n")
        if end >= 0:
            connection.reply = memoryview(self._answer(bytes(connection.received[:end])))
        elif len(connection.received) >= MAX_HEADER:
            connection.reply = memoryview(_response(431))

    def _answer(self, header: bytes) -> bytes:
        """Reply to one complete header."""
        first, *rest = header.split(b"\r\n")
        words = first.split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return _response(400)
        method, target, _ = words
        if target.partition(b"?")[0] != b"/metrics":
            return _response(404)
        if method not in {b"GET", b"HEAD"}:
            return _response(405, extra="Allow: GET, HEAD\r\n")
        if self._token and not self._authorised(rest):
            self._counters.refused += 1
            return _response(401, extra="WWW-Authenticate: Bearer\r\n")
        now_s = time.monotonic()
        self._allowance = min(
            SCRAPES_PER_S, self._allowance + (now_s - self._allowance_at_s) * SCRAPES_PER_S
        )
        self._allowance_at_s = now_s
        if self._allowance < 1.0:
            self._counters.refused += 1
            return _response(503, extra="Retry-After: 1\r\n")
        self._allowance -= 1.0
        if now_s >= self._page_until_s:
            self._page = self._render()
            self._page_until_s = time.monotonic() + RENDER_EVERY_S
        return _response(200, self._page, head_only=method == b"HEAD")

    def _authorised(self, lines: list[bytes]) -> bool:
        for line in lines:
            name, _, value = line.partition(b":")
            if name.strip().lower() == b"authorization":
                scheme, _, given = value.strip().partition(b" ")
                return scheme.lower() == b"bearer" and hmac.compare_digest(
                    given.strip(), self._token
                )
        return False


def _response(status: int, body: bytes = b"", head_only: bool = False, extra: str = "") -> bytes:
    body = body or f"{status} {_STATUS[status]}\n".encode()
    kind = CONTENT_TYPE if status == 200 else "text/plain; charset=utf-8"
    head = (
        f"HTTP/1.1 {status} {_STATUS[status]}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\n{extra}Connection: close\r\n\r\n"
    ).encode()
    return head if head_only else head + body
