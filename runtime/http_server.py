"""A small HTTP server in one thread that cannot be tied up: what metrics and panel share.

    accept ─► header, body ─► `answer` ─► reply, or a promise of one ─► closed
                 within a deadline            bounded

Eight connections; a new one takes the place of the oldest that has not asked for anything yet, so
half-open connections never keep anybody out. Five seconds per connection, one request each, no
chunks, no compression, no files: whoever answers gets a method, a path and headers, and that is
all there is. The thread has a lower priority than the control loop.
"""

import os
import re
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Protocol, Self

from steadyhand.controllers.errors import ConfigError
from steadyhand.runtime.exits import words_of
from steadyhand.runtime.guard import Guarded

MAX_CONNECTIONS = 8
DEADLINE_S = 5.0
MAX_HEADER = 8192
RETRY_FIRST_S, RETRY_CAP_S = 1.0, 30.0
"""Pauses between two tries to have a port that is taken."""
ACCEPTS_PER_TURN = 16
TURN_S = 0.05
"""With connections waiting beyond `ACCEPTS_PER_TURN`, the thread rests this long between turns."""
PROMISE_S = 20.0
"""A promised reply that has not come by then is given up: longer than any command may take."""
STATUS = {
    200: "OK",
    204: "No Content",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    409: "Conflict",
    411: "Length Required",
    413: "Content Too Large",
    415: "Unsupported Media Type",
    421: "Misdirected Request",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}")
_TARGET = re.compile(rb"[!-~]{1,2048}")


class Counters(Protocol):
    """Where the server counts."""

    refused: int
    restarts: int


class Uncounted:
    """Counts for nobody."""

    refused = 0
    restarts = 0


@dataclass(frozen=True, slots=True)
class Request:
    """One complete request, well-formed and within the limits; nothing of it is believed."""

    method: str
    path: str
    """As it came, without the query: nothing is decoded, so nothing can be hidden in it."""
    query: str
    headers: Mapping[str, str]
    """By lower-case name."""
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Response:
    """One reply."""

    status: int
    body: bytes = b""
    kind: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()

    def encode(self, head_only: bool = False) -> bytes:
        """The bytes on the wire; an empty body says its status in words."""
        body = self.body
        if not body and self.status != 204:
            body = f"{self.status} {STATUS[self.status]}\n".encode()
        extra = "".join(f"{name}: {value}\r\n" for name, value in self.headers)
        head = (
            f"HTTP/1.1 {self.status} {STATUS[self.status]}\r\nContent-Type: {self.kind}\r\n"
            f"Content-Length: {len(body)}\r\n{extra}Connection: close\r\n\r\n"
        ).encode()
        return head if head_only else head + body


Answer = Callable[[Request], "Response | Future[Response]"]


class Malformed(Exception):  # noqa: N818  (a word for what came in, not for what failed)
    """A request that is not answered as such; `status` says why."""

    def __init__(self, status: int) -> None:
        super().__init__(STATUS[status])
        self.status = status


@dataclass(slots=True, eq=False)
class _Connection:
    sock: socket.socket
    deadline_s: float
    received: bytearray = field(default_factory=bytearray)
    head: Request | None = None
    """The request once its header is complete, still without its body."""
    length: int = 0
    """Bytes of the body."""
    promised: bool = False
    """Its reply is being made elsewhere."""
    reply: memoryview | None = None
    """What is left to send; None while there is none."""


def listen_address(listen: str, section: str) -> tuple[IPv4Address | IPv6Address, int]:
    """Address and port of a text such as 127.0.0.1:9464.

    Raises:
        ConfigError: it is none.
    """
    host, _, port = listen.rpartition(":")
    try:
        return ip_address(host.strip("[]")), int(port)
    except ValueError:
        raise ConfigError(
            f"{section}: listen={listen!r}: an address such as 127.0.0.1:9464 is needed"
        ) from None


def listening_socket(address: tuple[str, int], backlog: int) -> socket.socket:
    """A socket that listens at `address`; it never blocks.

    Raises:
        OSError: the address cannot be had.
    """
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(backlog)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def shown_address(address: tuple[str, int]) -> str:
    """Host and port as they stand in a URL."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class HttpServer:
    """Serves what `answer` gives. Its failures are told, never raised into the control loop."""

    def __init__(
        self,
        section: str,
        listen: str,
        answer: Answer,
        on_event: Callable[[dict[str, str]], None] = lambda event: None,
        counters: Counters | None = None,
        max_body: int = 0,
        refusal: Callable[[int], Response] = Response,
    ) -> None:
        """Open nothing yet.

        Args:
            section: of the configuration: names the thread and the problems.
            listen: address and port; port 0 takes a free one.
            answer: called in the server's thread; must not wait, but may promise a reply.
            on_event: told when the port is taken or the thread had to be restarted.
            counters: where refused requests and restarts are counted.
            max_body: longest body of a request, bytes.
            refusal: makes the reply to what never reaches `answer`, from its status.

        Raises:
            ConfigError: not an address at all.
        """
        address, port = listen_address(listen, section)
        self._section = section
        self._listen = (str(address), port)
        self._answer_to = answer
        self._on_event = on_event
        self._counters = counters or Uncounted()
        self._max_body = max_body
        self._refusal = refusal
        self.problem = ""
        """Why nothing is served now, or empty."""
        self.address: tuple[str, int] | None = None
        """Where it listens, once it does."""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._bound: socket.socket | None = None
        """Listens already, while its thread has not begun."""
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._kept: deque[tuple[_Connection, Future[Response]]] = deque()
        """Promises that were kept, for the server's thread."""

    def start(self) -> Self:
        """Listen and serve; `problem` says at once why not. Then it is tried again and again."""
        try:
            self._bound = self._listening()
        except OSError as error:
            self._taken(error)
        self._thread = Guarded(self._run, self._section, until=self._stop)
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop serving and free the port. Idempotent."""
        if self._thread is not None:
            self._stop.set()
            self._wake()
            self._thread.join(DEADLINE_S)
            self._thread = None
            self._wake_in.close()
            self._wake_out.close()
        if self._bound is not None:
            self._bound.close()
            self._bound = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        """Serve for ever; whatever breaks is told, and the server starts again."""
        with suppress(OSError):  # a lower priority is a courtesy to the loop, not a condition
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        pause_s = RETRY_FIRST_S
        while not self._stop.is_set():
            try:
                bound, self._bound = self._bound, None
                with bound or self._listening() as listener:
                    pause_s = RETRY_FIRST_S
                    self._serve(listener)
            except OSError as error:
                self._taken(error)
                self._stop.wait(pause_s)
                pause_s = min(2.0 * pause_s, RETRY_CAP_S)
            except Exception as error:  # noqa: BLE001  (a defect here must not end the service)
                self._counters.restarts += 1
                self._tell("TASK_DIED", f"{self._section} server: {error!r}; started again")
                self._stop.wait(1.0)
            finally:
                self.address = None

    def _taken(self, error: OSError) -> None:
        where = shown_address(self._listen)
        self._tell(f"{self._section.upper()}_BIND", f"listen={where}: {words_of(error)}")

    def _tell(self, code: str, text: str) -> None:
        self.address = None
        if text != self.problem:
            self.problem = text
            name = f"{self._section.capitalize()}Problem"
            self._on_event({"event": name, "code": code, "text": text})

    def _listening(self) -> socket.socket:
        """A socket that listens where it should.

        Raises:
            OSError: the address cannot be had.
        """
        listener = listening_socket(self._listen, 64)
        host, port = listener.getsockname()[:2]
        self.address = (host, port)
        if self.problem:
            self.problem = ""
            name, text = f"{self._section.capitalize()}Serves", shown_address(self.address)
            self._on_event({"event": name, "code": "RECOVERED", "text": text})
        return listener

    def _wake(self) -> None:
        with suppress(OSError):  # full: it wakes anyway; closed: nobody sleeps there any more
            self._wake_out.send(b"x")

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
                        elif key.fileobj is self._wake_in:
                            self._collect(selector, connections)
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
                self._refuse(_least_worthy(connections.values()), selector, connections)
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

    def _collect(
        self, selector: selectors.BaseSelector, connections: dict[socket.socket, _Connection]
    ) -> None:
        """Send the replies that were promised and have come."""
        with suppress(BlockingIOError):
            self._wake_in.recv(256)
        while self._kept:
            connection, promise = self._kept.popleft()
            if connections.get(connection.sock) is not connection:
                continue  # it has gone meanwhile
            try:
                response = promise.result(0.0)
            except CancelledError:
                response = self._refusal(503)
            connection.promised = False
            connection.deadline_s = time.monotonic() + DEADLINE_S
            connection.reply = memoryview(response.encode())
            self._go_on(connection, selector, connections)

    def _go_on(
        self,
        connection: _Connection,
        selector: selectors.BaseSelector,
        connections: dict[socket.socket, _Connection],
    ) -> None:
        """Read, answer, send, then wait for the other side to close."""
        try:
            if connection.promised:
                self._listen_to_the_waiting(connection)
                return
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

    @staticmethod
    def _listen_to_the_waiting(connection: _Connection) -> None:
        """Who waits for a promised reply has nothing more to say.

        Raises:
            OSError: it has gone, or says more.
        """
        connection.sock.recv(MAX_HEADER)
        raise ConnectionResetError

    def _receive(self, connection: _Connection) -> None:
        """Collect header and body; once complete, decide on the reply.

        Raises:
            OSError: the other side closed or reset.
        """
        data = connection.sock.recv(MAX_HEADER)
        if not data:
            raise ConnectionResetError
        connection.received += data
        try:
            if connection.head is None:
                end = connection.received.find(b"\r\n\r\n")
                if end < 0 and len(connection.received) < MAX_HEADER:
                    return
                if not 0 <= end < MAX_HEADER:
                    raise Malformed(431)
                connection.head = parse_head(bytes(connection.received[:end]))
                connection.length = self._body_length(connection.head)
                del connection.received[: end + 4]
            if len(connection.received) < connection.length:
                return
            if len(connection.received) > connection.length > 0:
                raise Malformed(400)
        except Malformed as error:
            self._counters.refused += error.status != 400
            connection.reply = memoryview(self._refusal(error.status).encode())
            return
        self._reply(connection, connection.head)

    def _body_length(self, head: Request) -> int:
        """Bytes of the body that follows.

        Raises:
            Malformed: no length that we take.
        """
        if "transfer-encoding" in head.headers:
            raise Malformed(411)
        text = head.headers.get("content-length", "0")
        if not (text.isascii() and text.isdecimal() and len(text) < 20):
            raise Malformed(400)
        if int(text) > self._max_body:
            raise Malformed(413)
        return int(text)

    def _reply(self, connection: _Connection, head: Request) -> None:
        """Ask whoever answers."""
        body = bytes(connection.received[: connection.length])
        request = Request(head.method, head.path, head.query, head.headers, body)
        answer = self._answer_to(request)
        if isinstance(answer, Response):
            connection.reply = memoryview(answer.encode(request.method == "HEAD"))
            return
        connection.promised = True
        connection.deadline_s = time.monotonic() + PROMISE_S

        def kept(promise: "Future[Response]") -> None:
            self._kept.append((connection, promise))
            self._wake()

        answer.add_done_callback(kept)


def _least_worthy(connections: Iterable[_Connection]) -> _Connection:
    """Who has to go for a new one: has not asked yet, or else reads slowly, or else is oldest."""
    everybody = list(connections)
    silent = [c for c in everybody if c.reply is None and not c.promised]
    idle = silent or [c for c in everybody if not c.promised]
    return (idle or everybody)[0]


def parse_head(head: bytes) -> Request:
    """The request line and the headers, strictly (RFC 9112), each header once.

    Raises:
        Malformed: 400.
    """
    first, *lines = head.split(b"\r\n")
    words = first.split(b" ")
    if len(words) != 3 or not re.fullmatch(rb"HTTP/1\.[01]", words[2]):
        raise Malformed(400)
    method, target, _ = words
    if not (_TOKEN.fullmatch(method) and _TARGET.fullmatch(target)):
        raise Malformed(400)
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        text = value.strip(b" \t").decode("latin-1")
        key = name.decode("latin-1").lower()
        # a header twice: two readers could believe two different ones
        if not colon or not _TOKEN.fullmatch(name) or key in headers or not _plain(text):
            raise Malformed(400)
        headers[key] = text
    path, _, query = target.decode("ascii").partition("?")
    return Request(method.decode("ascii"), path, query, headers)


def _plain(text: str) -> bool:
    """No control characters, which end lines for some readers and not for others."""
    return all(char >= " " and char != "\x7f" for char in text.replace("\t", " "))


def bearer_token(request: Request) -> bytes:
    """What follows `Bearer` in the Authorization header; empty if there is none (RFC 6750)."""
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    return given.strip().encode("latin-1") if scheme.lower() == "bearer" else b""
