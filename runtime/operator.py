"""The control socket: people give commands, the loop carries them out between ticks.

    client ─► connection thread: who is it? well-formed? allowed? not too fast? ─► bounded queue
                     ▲                                                                  │
                     └───────────── answer, refusal or time-out ◄──── loop: `drain` ◄───┘

A Unix socket of mode 0660 and nothing else; the kernel tells who connects (SO_PEERCRED). The loop
never waits for a client, and a client only ever gets a code and a sentence, never a stack trace.
"""

import logging
import queue
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import Any

from steadyhand.controllers.errors import RequestError, SteadyhandError
from steadyhand.runtime.operator_people import (
    Bucket,
    OperatorSettings,
    peer_of,
    role_of,
    user_name,
)
from steadyhand.runtime.operator_protocol import COMMANDS, Request, Role, encode, parse_request
from steadyhand.runtime.operator_socket import Lines, hang_up, listen

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Command:
    """One command of an authorised person, waiting for the loop."""

    name: str
    arguments: Mapping[str, Any]
    actor: str
    role: Role
    answer: "Future[Mapping[str, Any]]"


Handler = Callable[[Command], Mapping[str, Any]]


class OperatorServer:
    """Listens in its own threads; the loop calls `publish` and `drain`."""

    def __init__(self, settings: OperatorSettings, wake: Callable[[], None] = lambda: None) -> None:
        """Prepare; `open` begins to listen.

        Args:
            settings: who may connect and how hard they may press.
            wake: called from a connection's thread when a command waits, so that a loop with a
                long period can cut its sleep short.
        """
        self.refused: Counter[str] = Counter()
        """Refusals by code since the start."""
        self._settings = settings
        self._wake = wake
        self._queue: queue.Queue[Command] = queue.Queue(settings.queue_length)
        self._status: Mapping[str, Any] = {}
        self._starting = ""
        """What the runtime is doing before its first status; empty: it has one."""
        self._starting_s = 0.0
        self._accepting = True
        self._buckets: dict[int, Bucket] = {}
        self._users: Counter[int] = Counter()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._listener: socket.socket | None = None
        self._connections: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []

    def open(self) -> None:
        """Listen.

        Raises:
            ConfigError: the path is too long, taken by something else or another runtime, or the
                directory or group cannot be used.
        """
        self._listener = listen(self._settings.path, self._settings.group_id)
        thread = threading.Thread(
            target=self._accept, args=(self._listener,), name="operator", daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def close(self) -> None:
        """Stop listening, hang up on everybody, remove the socket. Idempotent."""
        self._closing.set()
        if self._listener is None:
            return
        hang_up(self._listener)
        self._listener = None
        self._settings.path.unlink(missing_ok=True)
        with self._lock:
            for connection in self._connections:
                hang_up(connection)
        while not self._queue.empty():
            self._queue.get_nowait().answer.cancel()
        for thread in self._threads:
            thread.join(timeout=1.0)

    def starting(self, what: str, accepting: bool = False) -> None:
        """Answer that the runtime is still starting, until the first `publish`.

        Args:
            what: it is doing now.
            accepting: does the loop take commands already? Then only the status has to wait.
        """
        self._starting_s = time.monotonic() if not self._starting else self._starting_s
        self._starting, self._accepting = what, accepting

    def publish(self, status: Mapping[str, Any]) -> None:
        """Replace what `status` answers; the loop hands over a mapping it will not change."""
        self._status, self._starting, self._accepting = status, "", True

    def drain(self, handlers: Mapping[str, Handler], limit: int = 8) -> int:
        """Carry out waiting commands; called by the loop thread between ticks, never waits.

        A handler returns the result or raises a `SteadyhandError`, whose message the client gets.
        Anything else that is raised is logged here and told as INTERNAL.

        Returns:
            How many commands were begun.
        """
        begun = 0
        while begun < limit:
            try:
                command = self._queue.get_nowait()
            except queue.Empty:
                break
            if not command.answer.set_running_or_notify_cancel():
                continue  # withdrawn: its client was told that nothing was done
            begun += 1
            try:
                command.answer.set_result(handlers[command.name](command))
            except SteadyhandError as error:
                command.answer.set_exception(error)
            except Exception as error:  # noqa: BLE001  (no command may end the loop)
                _log.exception("command %s of %s failed", command.name, command.actor)
                command.answer.set_exception(error)
        return begun

    def _accept(self, listener: socket.socket) -> None:
        while not self._closing.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                if self._closing.wait(0.05):
                    return
                continue  # out of descriptors: a client gives up sooner than we do
            try:
                uid, role = self._admit(connection)
            except RequestError as error:
                self._send(connection, self._refusal(None, error))
                connection.close()
                continue
            thread = threading.Thread(
                target=self._serve, args=(connection, uid, role), name="operator-peer", daemon=True
            )
            with self._lock:
                self._connections.add(connection)
                self._users[uid] += 1
                self._threads = [t for t in self._threads if t.is_alive()] + [thread]
                thread.start()

    def _admit(self, connection: socket.socket) -> tuple[int, Role]:
        """Who is it, what may they do, and is there room?

        Raises:
            RequestError: DENIED or BUSY.
        """
        uid, gid = peer_of(connection)
        role = role_of(uid, gid, self._settings)
        if role is None:
            raise RequestError("DENIED", f"{user_name(uid)} has no role here")
        with self._lock:
            if (
                len(self._connections) >= self._settings.max_connections
                or self._users[uid] >= self._settings.max_per_user
            ):
                raise RequestError("BUSY", "too many connections: close one")
        return uid, role

    def _serve(self, connection: socket.socket, uid: int, role: Role) -> None:
        session, actor = secrets.token_hex(16), user_name(uid)
        hello = {"hello": "steadyhand", "session": session, "role": role.name.lower()}
        last, lines = 0, Lines(connection, self._settings)
        try:
            reads = self._send(connection, hello)
            while reads and (line := lines.next()) is not None:
                sequence = None
                try:
                    self._pace(uid)
                    request = parse_request(line)
                    sequence = request.sequence
                    if request.session != session or sequence <= last:
                        raise RequestError("REPLAY", "session or sequence was used before")
                    last = sequence
                    answer = {
                        "sequence": sequence,
                        "ok": True,
                        "result": self._do(request, actor, role),
                    }
                except RequestError as error:
                    answer = self._refusal(sequence, error)
                reads = self._send(connection, answer)
        except RequestError as error:  # of the lines: too long, too slow
            self._send(connection, self._refusal(None, error))
        finally:
            with self._lock:
                self._connections.discard(connection)
                self._users[uid] -= 1
            connection.close()

    def _do(self, request: Request, actor: str, role: Role) -> Mapping[str, Any]:
        """Have one command carried out.

        Raises:
            RequestError: ROLE, STARTING, QUEUE_FULL, TIMEOUT, INTERNAL, or what the handler
                refused.
        """
        needed = COMMANDS[request.command].role
        if role < needed:
            raise RequestError("ROLE", f"{request.command} needs the role {needed.name.lower()}")
        starting = self._starting
        if starting and (request.command == "status" or not self._accepting):
            for_s = time.monotonic() - self._starting_s
            raise RequestError(
                "STARTING",
                f"still starting ({starting}, {for_s:.0f} s): nothing was done; try again",
            )
        if request.command == "status":
            return self._status
        command = Command(request.command, request.arguments, actor, role, Future())
        try:
            self._queue.put_nowait(command)
        except queue.Full:
            raise RequestError("QUEUE_FULL", "too many commands wait: try again") from None
        self._wake()
        try:
            return command.answer.result(self._settings.answer_s)
        except TimeoutError:
            return self._late(command)
        except CancelledError:
            raise RequestError("STOPPING", "the runtime stops; nothing was done") from None
        except RequestError:
            raise
        except SteadyhandError as error:
            raise RequestError("REFUSED", str(error)) from None
        except Exception:  # noqa: BLE001  (the loop has logged it; the client gets no insides)
            raise RequestError("INTERNAL", "the command failed: see the runtime's log") from None

    def _late(self, command: Command) -> Mapping[str, Any]:
        """Withdraw a command that has not begun; of one that has, the status will tell."""
        if command.answer.cancel():
            raise RequestError("TIMEOUT", "the loop did not take it in time; nothing was done")
        raise RequestError("UNKNOWN", "begun, but not finished in time: look at the status")

    def _pace(self, uid: int) -> None:
        with self._lock:
            bucket = self._buckets.get(uid)
            if bucket is None:
                bucket = self._buckets[uid] = Bucket(
                    self._settings.rate_per_s, self._settings.burst
                )
            if not bucket.take():
                raise RequestError(
                    "RATE", f"at most {self._settings.rate_per_s:g} commands per second"
                )

    def _refusal(self, sequence: int | None, error: RequestError) -> dict[str, Any]:
        with self._lock:
            self.refused[error.code] += 1
        return {
            "sequence": sequence,
            "ok": False,
            "error": {"code": error.code, "message": error.message},
        }

    def _send(self, connection: socket.socket, message: Mapping[str, Any]) -> bool:
        """One line; False: the client went away or does not read, and half a line is no answer.

        What it asked for stands all the same.
        """
        try:
            connection.settimeout(self._settings.line_s)
            connection.sendall(encode(message))
        except OSError:
            with self._lock:
                self.refused["GONE"] += 1
            return False
        return True
