"""The control socket: the door by which people on this machine come to the desk.

    client ─► connection thread: who is it? ─► desk (`commands.py`) ─► loop
                     ▲                           │
                     └── answer or refusal ◄─────┘

A Unix socket of mode 0660 and nothing else; the kernel tells who connects (SO_PEERCRED). A client
only ever gets a code and a sentence, never a stack trace.
"""

import secrets
import socket
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from steadyhand.controllers.errors import ConfigError, RequestError
from steadyhand.runtime.commands import Desk
from steadyhand.runtime.disk_trouble import TROUBLE
from steadyhand.runtime.guard import Guarded
from steadyhand.runtime.operator_people import OperatorSettings, peer_of, role_of, user_name
from steadyhand.runtime.operator_protocol import Door, Role, encode, parse_request
from steadyhand.runtime.operator_socket import Lines, hang_up, listen

RETRY_S = 5.0
"""Between two tries to have a socket on a disk that takes none."""


class OperatorServer:
    """Listens in its own threads and brings commands to the desk."""

    def __init__(self, settings: OperatorSettings, desk: Desk) -> None:
        """Prepare; `open` begins to listen.

        Args:
            settings: who may connect, and for how long.
            desk: takes the commands.
        """
        self._settings = settings
        self.desk = desk
        self._users: Counter[int] = Counter()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._listener: socket.socket | None = None
        self.problem = ""
        """Why nobody can come in now, or empty."""
        self._connections: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []

    def open(self) -> None:
        """Listen. A disk that takes no socket now is `problem`, and tried again.

        Raises:
            ConfigError: the path is too long, taken by something else or another runtime, or the
                directory or group cannot be used.
        """
        self._listen()
        thread = Guarded(self._accept, "operator", until=self._closing)
        self._threads.append(thread)
        thread.start()

    def _listen(self) -> None:
        try:
            self._listener = listen(self._settings.path, self._settings.group_id)
        except (ConfigError, OSError) as error:
            cause = error.__cause__ if isinstance(error, ConfigError) else error
            if not isinstance(cause, OSError) or cause.errno not in TROUBLE:
                raise
            self.problem = f"{self._settings.path}: {cause.strerror}"
        else:
            self.problem = ""

    def close(self) -> None:
        """Stop listening, hang up on everybody, remove the socket. Idempotent."""
        self._closing.set()
        if self._listener is None:
            return
        hang_up(self._listener)
        self._listener = None
        with suppress(OSError):  # a disk that takes nothing: the next start removes it
            self._settings.path.unlink(missing_ok=True)
        with self._lock:
            for connection in self._connections:
                hang_up(connection)
        self.desk.close()
        for thread in self._threads:
            thread.join(timeout=1.0)

    def _accept(self) -> None:
        while not self._closing.is_set():
            listener = self._listener
            if listener is None:
                if not self._closing.wait(RETRY_S):
                    self._listen()
                continue
            try:
                connection, _ = listener.accept()
            except OSError:
                if self._closing.wait(0.05):
                    return
                continue  # out of descriptors: a client gives up sooner than we do
            uid, gid = peer_of(connection)
            try:
                role = self._admit(uid, gid)
            except RequestError as error:
                self.desk.refusals.tell(error, user_name(uid), "connect", Door.SOCKET)
                self._send(connection, _refusal(None, error))
                connection.close()
                continue
            thread = Guarded(partial(self._serve, connection, uid, role), "operator-peer")
            with self._lock:
                self._connections.add(connection)
                self._users[uid] += 1
                self._threads = [t for t in self._threads if t.is_alive()] + [thread]
                thread.start()

    def _admit(self, uid: int, gid: int) -> Role:
        """What may this person do, and is there room?

        Raises:
            RequestError: DENIED or BUSY.
        """
        role = role_of(uid, gid, self._settings)
        if role is None:
            raise RequestError("DENIED", f"{user_name(uid)} has no role here")
        with self._lock:
            if (
                len(self._connections) >= self._settings.max_connections
                or self._users[uid] >= self._settings.max_per_user
            ):
                raise RequestError("BUSY", "too many connections: close one")
        return role

    def _serve(self, connection: socket.socket, uid: int, role: Role) -> None:
        session, actor = secrets.token_hex(16), user_name(uid)
        hello = {"hello": "steadyhand", "session": session, "role": role.name.lower()}
        last, lines = 0, Lines(connection, self._settings)
        try:
            reads = self._send(connection, hello)
            while reads and (line := lines.next()) is not None:
                sequence, command = None, ""
                try:
                    self.desk.pace(uid)
                    request = parse_request(line)
                    sequence, command = request.sequence, request.command
                    if request.session != session or sequence <= last:
                        raise RequestError("REPLAY", "session or sequence was used before")
                    last = sequence
                    answer = {
                        "sequence": sequence,
                        "ok": True,
                        "result": self.desk.carry_out(
                            request.command, request.arguments, actor, role, Door.SOCKET
                        ),
                    }
                except RequestError as error:
                    self.desk.refusals.tell(error, actor, command, Door.SOCKET)
                    answer = _refusal(sequence, error)
                reads = self._send(connection, answer)
        except RequestError as error:  # of the lines: too long, too slow
            self.desk.refusals.tell(error, actor, "", Door.SOCKET)
            self._send(connection, _refusal(None, error))
        finally:
            with self._lock:
                self._connections.discard(connection)
                self._users[uid] -= 1
            connection.close()

    def _send(self, connection: socket.socket, message: Mapping[str, Any]) -> bool:
        """One line; False: the client went away or does not read, and half a line is no answer.

        What it asked for stands all the same.
        """
        try:
            connection.settimeout(self._settings.line_s)
            connection.sendall(encode(message))
        except OSError:
            self.desk.refusals.count("GONE")
            return False
        return True


def _refusal(sequence: int | None, error: RequestError) -> dict[str, Any]:
    return {
        "sequence": sequence,
        "ok": False,
        "error": {"code": error.code, "message": error.message},
    }
