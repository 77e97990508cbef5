"""Certificates that run out are told 30, 7 and 1 days ahead: as an event, an alarm, a metric.

A plant must not stop because of a date. So nothing here changes who drives; a session that runs
goes on, and what a new one needs is told early enough to renew it in daylight. The files are read
again once an hour, in a thread of their own, so that a renewed one ends its alarm.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Any

from steadyhand.adapters.opcua.trust_files import CERTIFICATES, LISTS, files_of
from steadyhand.controllers.errors import BundleError, FileError, LinkError
from steadyhand.controllers.frames import Fault
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime.bundle.signature import TrustStore
from steadyhand.runtime.certificates import DAY_S, WARN_DAYS, facts, state_of
from steadyhand.runtime.guard import Guarded

EVERY_S = 3600.0
Event = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Watched:
    """Where the certificates lie; a name each, as alarms and metrics use it."""

    own: Path | None = None
    trusted: tuple[Path, ...] = ()
    revoked: tuple[Path, ...] = ()
    scada: Path | None = None
    """Of our own OPC UA server."""
    clients: Path | None = None
    """Folder of the SCADA clients that are let in."""
    keys: Path | None = None
    """Folder of the public keys that may sign bundles."""

    def ends(self) -> dict[str, float]:
        """The first end of each kind, wall seconds; what cannot be read is left out."""
        places: Mapping[str, Iterable[Path]] = {
            "own": () if self.own is None else (self.own,),
            "trusted": self.trusted,
            "revocation_list": self.revoked,
            "scada": () if self.scada is None else (self.scada,),
            "scada_client": () if self.clients is None else (self.clients,),
        }
        found: dict[str, float] = {}
        for name, paths in places.items():
            ends = [end_s for path in paths for end_s in _ends(path, name)]
            if ends:
                found[name] = min(ends)
        ends = [] if self.keys is None else _key_ends(self.keys)
        return {**found, "bundle_key": min(ends)} if ends else found


def _key_ends(folder: Path) -> list[float]:
    """Ends of the keys that are still believed; a key without a date has none."""
    try:
        store = TrustStore.read(folder)
    except BundleError:
        return []
    good = [key for key in store.keys.values() if key.key_id not in store.revoked]
    return [key.expires.timestamp() for key in good if key.expires is not None]


def _ends(place: Path, name: str) -> list[float]:
    """Ends of what is in a file or folder; the check and the link tell what cannot be read."""
    ends: list[float] = []
    with suppress(LinkError):
        for file in files_of([place], LISTS if name == "revocation_list" else CERTIFICATES):
            with suppress(FileError):  # one bad file hides no other
                ends += [one.not_after.timestamp() for one in facts(file)]
    return ends


class CertificateWatch:
    """Knows the ends; tells each step once. Asked by the loop's thread, which it never holds up."""

    def __init__(
        self,
        watched: Watched,
        on_event: Event,
        server_ends_s: Callable[[], float] = lambda: 0.0,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Read the files once.

        Args:
            watched: where they lie.
            on_event: takes the events.
            server_ends_s: end of what the plant's server showed; 0: nothing.
            wall: clock of the dates.
        """
        self._watched, self._on_event = watched, on_event
        self._server_ends_s, self._wall = server_ends_s, wall
        self._files = watched.ends()
        self._told: dict[str, tuple[float, int]] = {}
        """By name: the end and the step that was told of it."""
        self._closing = threading.Event()
        self._thread = Guarded(self._run, "certificates", until=self._closing)

    @property
    def ends(self) -> dict[str, float]:
        """End of each, wall seconds since 1970."""
        server_s = self._server_ends_s()
        return {**self._files, **({"server": server_s} if server_s > 0.0 else {})}

    def start(self) -> None:
        """Read the files again and again."""
        self._thread.start()

    def close(self) -> None:
        """Stop reading. Idempotent; does not wait for a disk."""
        self._closing.set()

    def refresh(self) -> None:
        """Read the files now."""
        self._files = self._watched.ends()

    def _run(self) -> None:
        while not self._closing.wait(EVERY_S):
            self.refresh()

    def look(self) -> tuple[Fault, ...]:
        """What is wrong with the dates now; tells each new step on the way."""
        now_s, found = self._wall(), []
        for name, end_s in self.ends.items():
            step = _step(end_s - now_s)
            if step < 0:
                self._told.pop(name, None)
                continue
            expired = step == len(WARN_DAYS)
            code = ReasonCode.CERT_EXPIRED if expired else ReasonCode.CERT_EXPIRING
            date = f"{datetime.fromtimestamp(end_s, UTC):%Y-%m-%d %H:%M} UTC"
            text = f"{name}: ended on {date}" if expired else f"{name}: ends on {date}"
            found.append(Fault(code, text=text))
            if self._told.get(name) != (end_s, step):
                self._told[name] = (end_s, step)
                event = {"event": "Certificate", "code": str(code), "text": text}
                self._on_event({**event, "days": round((end_s - now_s) / DAY_S, 2)})
        return tuple(found)

    def view(self) -> list[dict[str, Any]]:
        """For the status: name, end and state of each."""
        now_s = self._wall()
        return [
            {"name": name, "ends_s": end_s, "state": state_of(-inf, end_s, now_s)}
            for name, end_s in self.ends.items()
        ]


def _step(left_s: float) -> int:
    """How many of the warnings are due; -1: none yet, `len(WARN_DAYS)`: it has ended."""
    if left_s <= 0.0:
        return len(WARN_DAYS)
    return sum(left_s < days * DAY_S for days in WARN_DAYS) - 1
