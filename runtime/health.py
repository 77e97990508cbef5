"""The service manager's view: ready, alive, status, stopping. One datagram each, no library.

Protocol: sd_notify(3). Without NOTIFY_SOCKET nothing is sent and nothing is missed. The watchdog is
fed by completed ticks only: a process whose other threads live while control is dead is restarted.
"""

import socket
import time
from collections.abc import Callable, Mapping
from os import environ, getpid
from typing import Self

STATUS_LENGTH = 200


def printable(text: str, limit: int) -> str:
    """Text from outside on one line: what is not printable is escaped, what is long is cut.

    A status line must not be able to smuggle in another assignment by a line break.
    """
    safe = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return safe if len(safe) <= limit else safe[: limit - 1] + "…"


class Health:
    """Tells the service manager. Never raises and never waits: a lost datagram is counted."""

    def __init__(
        self,
        address: str | None,
        watchdog_s: float | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open the socket.

        Args:
            address: path of the notify socket, "@name" for an abstract one; None: nobody listens.
            watchdog_s: real time in which the manager wants a sign of life; None: it does not.
            monotonic: real time, injectable for tests.
        """
        self.lost = 0
        """Datagrams that could not be sent."""
        self._monotonic = monotonic
        # Several signs of life per interval, but no system call in each tick of a fast loop.
        self._feed_every_s = None if watchdog_s is None else watchdog_s / 4.0
        self._fed_s = float("-inf")
        self._status = ""
        self._address: str | bytes | None = None
        self._socket: socket.socket | None = None
        if address:
            self._address = b"\0" + address[1:].encode() if address[0] == "@" else address
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)

    @classmethod
    def from_environment(cls, variables: Mapping[str, str] = environ) -> Self:
        """As the service manager started us; a watchdog meant for another process is left alone."""
        usec, pid = variables.get("WATCHDOG_USEC", ""), variables.get("WATCHDOG_PID", "")
        ours = not pid or pid == str(getpid())
        watchdog_s = int(usec) / 1e6 if ours and usec.isdecimal() and int(usec) > 0 else None
        return cls(variables.get("NOTIFY_SOCKET"), watchdog_s)

    @property
    def watchdog_s(self) -> float:
        """Real time in which the manager wants a sign of life; 0: it wants none."""
        return 0.0 if self._feed_every_s is None else 4.0 * self._feed_every_s

    @property
    def fed_ago_s(self) -> float:
        """Real time since the last sign of life; infinite when there was none yet."""
        return self._monotonic() - self._fed_s

    def ready(self, status: str = "") -> None:
        """Bundle verified, link open, warmed up: units that wait for us may start."""
        self._send("READY=1", status)

    def status(self, text: str) -> None:
        """What `systemctl status` shows; sent only when it changes."""
        if text != self._status:
            self._send("", text)

    def tick_done(self, completed: bool) -> None:
        """Feed the watchdog, if the tick really did its work."""
        if not completed or self._feed_every_s is None:
            return
        now_s = self._monotonic()
        if now_s - self._fed_s >= self._feed_every_s:
            self._fed_s = now_s
            self._send("WATCHDOG=1")

    def stopping(self, reason: str) -> None:
        """The last words."""
        self._send("STOPPING=1", reason)

    def close(self) -> None:
        """Free the socket. Idempotent."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, state: str, status: str = "") -> None:
        if status:
            self._status = status
            line = f"STATUS={printable(status, STATUS_LENGTH)}"
            state = f"{state}\n{line}" if state else line
        if self._socket is None or self._address is None:
            return
        try:
            self._socket.sendto(state.encode("utf-8", "replace"), self._address)
        except OSError:
            self.lost += 1
