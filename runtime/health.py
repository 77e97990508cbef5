"""The service manager's view: ready, alive, status, stopping. One datagram each, no library.

Protocol: sd_notify(3). Without NOTIFY_SOCKET nothing is sent and nothing is missed.

The watchdog is fed by completed ticks only, so a process whose other threads live while control
is dead is restarted. A completed tick is worth signs of life until the next one is overdue, sent
by the loop's own thread while it waits: a loop of 15 minutes that hangs is restarted as soon as a
fast one.
"""

import socket
import time
from collections.abc import Callable, Mapping
from math import inf
from os import environ, getpid
from typing import Self

STATUS_LENGTH = 200
STATUS_EVERY_S = 1.0
"""A loop of a thousand ticks a second does not write a thousand lines."""
FEED_EVERY_S = 0.5
"""Signs of life come no closer than this, unless a short watchdog needs it."""
START_STEP_S = 60.0
"""Each sign of life before READY asks for this much more time to get ready."""


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
        self.patience_s = inf
        """Real time after a completed tick within which the next one must be completed."""
        self._monotonic = monotonic
        self.watchdog_s = watchdog_s or 0.0
        """Real time in which the manager wants a sign of life; 0: it wants none."""
        self._watched = watchdog_s is not None
        # Several signs of life per interval, but no system call in each tick of a fast loop.
        wanted_s = START_STEP_S if watchdog_s is None else watchdog_s
        self._feed_every_s = min(max(wanted_s / 4.0, FEED_EVERY_S), wanted_s / 2.0)
        self._fed_s = self._told_s = -inf
        self._good_until_s = -inf
        self._ready = self._stopping = False
        self._status = self._sent_status = ""
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
    def fed_ago_s(self) -> float:
        """Real time since the last sign of life; infinite when there was none yet."""
        return self._monotonic() - self._fed_s

    def starting(self, text: str, within_s: float = START_STEP_S) -> None:
        """One more step of the start; the next one comes within `within_s`, real time."""
        self._good_until_s = self._monotonic() + self.patience_s
        self._send(f"EXTEND_TIMEOUT_USEC={_usec(within_s)}", text)

    def ready(self, status: str = "") -> None:
        """Bundle verified, link up, plant seen: units that wait for us may start."""
        self._ready = True
        self._send("READY=1", status)

    def status(self, text: str) -> None:
        """What `systemctl status` shows; sent when it changes, at most once per STATUS_EVERY_S.

        What comes too soon is kept, and the newest of it is sent with the next sign of life.
        """
        self._status = text
        self._tell(self._monotonic())

    def tick_done(self, completed: bool) -> None:
        """Feed the watchdog, if the tick really did its work."""
        if completed:
            now_s = self._monotonic()
            self._good_until_s = now_s + self.patience_s
            self._feed(now_s)

    def waiting(self) -> None:
        """The loop's thread waits for its next tick: alive, as long as that is not overdue."""
        now_s = self._monotonic()
        if now_s <= self._good_until_s:
            self._feed(now_s)
        self._tell(now_s)

    def stopping(self, reason: str, within_s: float = 0.0) -> None:
        """The last words; `within_s` is the real time the end may take."""
        self._stopping = True
        extend = f"\nEXTEND_TIMEOUT_USEC={_usec(within_s)}" if within_s > 0.0 else ""
        self._send(f"STOPPING=1{extend}", reason)

    def close(self) -> None:
        """Free the socket. Idempotent."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _feed(self, now_s: float) -> None:
        if now_s - self._fed_s < self._feed_every_s or self._stopping:
            return
        if self._ready and not self._watched:
            return
        self._fed_s = now_s
        extend = "" if self._ready else f"EXTEND_TIMEOUT_USEC={_usec(START_STEP_S)}"
        self._send("\n".join(filter(None, ("WATCHDOG=1" if self._watched else "", extend))))

    def _tell(self, now_s: float) -> None:
        if self._status != self._sent_status and now_s - self._told_s >= STATUS_EVERY_S:
            self._send("", self._status)

    def _send(self, state: str, status: str = "") -> None:
        if status:
            self._status = self._sent_status = status
            self._told_s = self._monotonic()
            line = f"STATUS={printable(status, STATUS_LENGTH)}"
            state = f"{state}\n{line}" if state else line
        if self._socket is None or self._address is None:
            return
        try:
            self._socket.sendto(state.encode("utf-8", "replace"), self._address)
        except OSError:
            self.lost += 1


def _usec(seconds: float) -> int:
    return round(1e6 * seconds)
