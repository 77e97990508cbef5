"""The OPC UA server of the runtime: a thread of its own that shows what the loop left behind.

The loop hands over one reference after a tick and never waits; this thread looks every tenth of a
second whether there is a new one. The socket is bound at once, so that an address that cannot be
had is told at the start; it is tried again for as long as it takes. The address space (a second of
work) is made only once the loop ticks.
"""

import asyncio
import gc
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from steadyhand.controllers.frames import Fault
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime.bundle.load import Bundle
from steadyhand.runtime.commands import Desk
from steadyhand.runtime.exits import words_of
from steadyhand.runtime.guard import Guarded
from steadyhand.runtime.health import printable
from steadyhand.runtime.http_server import listening_socket, shown_address
from steadyhand.runtime.operator_people import Bucket
from steadyhand.runtime.operator_protocol import Role
from steadyhand.runtime.recorder import Recorder
from steadyhand.runtime.scada.people import People, TrustFolder, load_certificate
from steadyhand.runtime.scada.snapshot import Site, Told

LOOK_EVERY_S = 0.1
WAIT_FOR_TICK_S = 2.0
"""So long the loop may take to its first tick before the server starts without one."""
RESTART_FIRST_S, RESTART_CAP_S = 1.0, 60.0
JOIN_S = 4.0
"""Longest wait for the end of the thread: clients hear of it first."""
SWITCH_S = 5e-4
"""A thread that wants the interpreter gets it after so long; the default is ten times that, and a
tick asks for it several times while this thread may be at work for a busy client."""
CALLERS = 4
"""Commands that wait for the loop at the same time."""
ANONYMOUS = "anonymous"
_TOLD_PER_S, _TOLD_AT_ONCE = 0.5, 30
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ScadaSettings:
    """Where to listen, who we are, whom we let in."""

    host: str
    port: int
    certificate: Path | None = None
    private_key: Path | None = None
    trusted: Path | None = None
    """Folder of client certificates."""
    users: Path | None = None
    """The users' file."""
    bundles: Path | None = None
    """Folder from which bundles may be swapped in."""
    sessions: int = 16
    insecure: bool = False


class ScadaServer:
    """Serves one loop; the loop thread calls `publish` and `close` only."""

    def __init__(
        self,
        settings: ScadaSettings,
        site: Site,
        desk: Desk,
        recorder: Recorder,
        bundle: Callable[[], Bundle | None],
        heartbeats: Callable[[], tuple[int, int]],
    ) -> None:
        """Read who may come in; `open` binds.

        Args:
            settings: where, who.
            site: what does not change while the runtime lives.
            desk: takes the commands.
            recorder: newest records; hears of logins.
            bundle: the controller in service now.
            heartbeats: ours and the plant's, -1 where there is none.

        Raises:
            ConfigError: users or certificates that cannot be used.
        """
        self.settings, self.site, self.desk, self.recorder = settings, site, desk, recorder
        self.bundle = bundle
        self.failed = ""
        """Why it does not serve now; empty: it does, or starts."""
        self.address: tuple[str, int] | None = None
        """Where it listens."""
        self.people = None if settings.users is None else People(settings.users, self._complain)
        self.trust = (
            None
            if settings.insecure or settings.trusted is None
            else TrustFolder(settings.trusted, lambda text: self.tell("refused", text))
        )
        self.callers: ThreadPoolExecutor | None = None
        self.told: Told | None = None
        """What the loop said last."""
        self._heartbeats = heartbeats
        self._pace = Bucket(_TOLD_PER_S, _TOLD_AT_ONCE)
        self._untold = 0
        self._begin = threading.Event()
        self._stopping = threading.Event()
        self._socket: socket.socket | None = None
        self._thread: threading.Thread | None = None

    @property
    def faults(self) -> tuple[Fault, ...]:
        """What is wrong with it, for the list of alarms."""
        found = []
        if self.settings.insecure:
            text = "neither signed nor encrypted, on the word in the configuration"
            found.append(Fault(ReasonCode.SCADA_INSECURE, text=text))
        if self.failed:
            found.append(Fault(ReasonCode.SCADA_DOWN, text=self.failed))
        return tuple(found)

    @property
    def stopping(self) -> bool:
        """Is it to end?"""
        return self._stopping.is_set()

    def open(self) -> None:
        """Bind, and have the thread start with the loop's first tick.

        `failed` says at once why it could not bind; then it is tried again and again.
        """
        self._bind()
        self._thread = Guarded(self._run, "scada", until=self._stopping)
        self._thread.start()

    def _bind(self) -> bool:
        """Have the address, if it can be had now."""
        if self._socket is not None:
            return True
        where = (self.settings.host, self.settings.port)
        try:
            self._socket = listening_socket(where, 16)
        except OSError as error:
            failed = f"listen={shown_address(where)}: {words_of(error)}"
            if failed != self.failed:
                self.failed = failed
                self.tell("failed", f"SCADA_BIND: {failed}")
            return False
        found = self._socket.getsockname()
        self.address = (str(found[0]), int(found[1]))
        return True

    @property
    def url(self) -> str:
        """Where clients find it."""
        where = shown_address(self.address or (self.settings.host, self.settings.port))
        return f"opc.tcp://{where}/steadyhand/{self.site.name}"

    def publish(self, status: dict[str, Any]) -> None:
        """Leave the newest status behind; loop thread, after a tick, never waits."""
        self.told = Told(
            status, time.time(), time.monotonic(), self.recorder.ticks.head, self._heartbeats()
        )
        if not self._begin.is_set():
            self._begin.set()

    def close(self) -> None:
        """Tell clients that we stop, hang up, free the socket. Idempotent."""
        self._stopping.set()
        self._begin.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(JOIN_S)
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def tell(self, event: str, text: str) -> None:
        """Record who came, went or was refused; a flood of it is counted, not written."""
        if not self._pace.take():
            self._untold += 1
            return
        more, self._untold = self._untold, 0
        told = {"event": "Scada", "what": event, "text": printable(text, 400)}
        if more:
            told["untold"] = str(more)
        self.recorder.event(told)

    def role_of(self, name: str) -> Role | None:
        """What a user who is logged in may do now; None: nothing any more."""
        if self.settings.insecure and name == ANONYMOUS:
            return Role.OPERATE
        person = None if self.people is None else self.people[name]
        return None if person is None else person.role

    def _complain(self, text: str) -> None:
        self.tell("users", text)

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        """Serve, and start again after a defect; control never depends on it."""
        self._begin.wait(WAIT_FOR_TICK_S)
        sys.setswitchinterval(min(SWITCH_S, sys.getswitchinterval()))
        pause_s = RESTART_FIRST_S
        while not self._stopping.is_set():
            began_s = time.monotonic()
            try:
                if self._bind():
                    asyncio.run(self._serve())
            except Exception as error:  # noqa: BLE001  (a defect here must not reach the loop)
                _log.exception("the OPC UA server for SCADA failed")
                self.failed = f"{type(error).__name__}: {error}; starting again"
                self.tell("failed", self.failed)
            if time.monotonic() - began_s > RESTART_CAP_S:
                pause_s = RESTART_FIRST_S
            if self._stopping.wait(pause_s):
                return
            pause_s = min(2.0 * pause_s, RESTART_CAP_S)

    async def _serve(self) -> None:
        from steadyhand.runtime.scada.serving import Serving

        assert self._socket is not None  # noqa: S101  (bound in `open`)
        self.callers = ThreadPoolExecutor(CALLERS, "scada-call")
        serving = Serving(self, self._socket.dup())
        try:
            await serving.start()
            gc.freeze()  # thousands of nodes that stay: nobody need look at them again
            self.failed = ""
            while not self.stopping:
                await serving.look()
                await asyncio.sleep(LOOK_EVERY_S)
        finally:
            self.callers.shutdown(wait=False, cancel_futures=True)
            with suppress(TimeoutError):
                await asyncio.wait_for(serving.stop(), JOIN_S - 1.0)


def certificate_expires(path: Path | None) -> datetime | None:
    """End of a certificate's validity; None where there is none."""
    return None if path is None else load_certificate(path).not_valid_after_utc.astimezone(UTC)
