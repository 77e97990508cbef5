"""What people did, and what waits for them, kept across restarts: as wishes, never as grants.

    mode asked for · overrides · latches · alarms unacknowledged, shelved · notes of how runs ended

Times are kept as what is left of them, and go on while nothing runs.
"""

import fcntl
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from steadyhand.controllers.errors import SteadyhandError
from steadyhand.controllers.frames import Fault
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime.alarms import Shelf
from steadyhand.runtime.bundle.archive import read_file
from steadyhand.runtime.crash_loop import Moment
from steadyhand.runtime.guard import Guarded
from steadyhand.runtime.modes import Mode
from steadyhand.runtime.overrides import Override

KEPT_FILE = "kept.json"
RETRY_S = 5.0
"""Between two attempts on a disk that takes nothing."""
_MAX_BYTES = 2**18


@dataclass(frozen=True, slots=True)
class Kept:
    """Everything that outlives a run. Ends are plant time of the run at hand."""

    asked: Mode | None = None
    """None: nobody ever asked."""
    overrides: tuple[Override, ...] = ()
    latches: tuple[Fault, ...] = ()
    shelves: tuple[Shelf, ...] = ()
    notes: tuple[Fault, ...] = ()
    """What a person has to read once; nothing is held back by it."""
    waiting: tuple[Fault, ...] = ()
    """What alarms came with that nobody has acknowledged."""


@dataclass(frozen=True, slots=True)
class Before:
    """What a start finds."""

    kept: Kept = Kept()
    """Ends reckoned from plant time 0."""
    ended: tuple[Override, ...] = ()
    """Overrides whose time ran out while nothing ran."""
    fault: str = ""
    """Why what was kept cannot be told; empty when it can, or when there was nothing."""


class _Record(BaseModel):
    model_config = ConfigDict(
        strict=True, frozen=True, extra="forbid", ser_json_inf_nan="constants"
    )


class _Override(_Record):
    output: str
    value: float
    owner: str
    reason: str
    left_s: float = Field(allow_inf_nan=False)
    for_s: float = Field(allow_inf_nan=False, gt=0.0)


class _Shelf(_Record):
    code: ReasonCode
    owner: str
    reason: str
    left_s: float = Field(allow_inf_nan=False)


class _Fault(_Record):
    code: ReasonCode
    signal: str
    value: float
    limit: float
    text: str


class _File(_Record):
    schema_version: Literal[1] = 1
    saved: Moment
    asked: Mode | None = None
    overrides: tuple[_Override, ...] = ()
    latches: tuple[_Fault, ...] = ()
    shelves: tuple[_Shelf, ...] = ()
    notes: tuple[_Fault, ...] = ()
    waiting: tuple[_Fault, ...] = ()


def save_kept(path: Path, kept: Kept, now_s: float, moment: Moment) -> None:
    """Replace the file at once: after a power cut it holds the old state or the new one.

    One writer at a time, over all processes: the lock is the folder's, so that it needs no file.

    Args:
        path: the file.
        kept: what to keep.
        now_s: plant time, seconds.
        moment: the same instant by the machine's clocks.

    Raises:
        OSError: the directory cannot be written.
    """
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        temporary = path.with_name(f".{path.name}.new")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(temporary, flags, 0o600)
        with os.fdopen(handle, "wb") as stream:
            stream.write(_written(kept, now_s, moment))
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
        os.fsync(directory)
    finally:
        os.close(directory)


def load_kept(path: Path, time_scale: float, now: Callable[[], Moment] = Moment.now) -> Before:
    """What a start finds. A file that cannot be understood is a fault, and keeps nothing.

    Args:
        path: the file; none is as good as an empty one.
        time_scale: plant seconds per second, of ends that came nearer meanwhile.
        now: the clock, injectable for tests.
    """
    if not os.path.lexists(path):
        return Before()
    try:
        file = _File.model_validate_json(read_file(path, max_bytes=_MAX_BYTES))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        return Before(fault=f"{path}: {where or 'the file'}: {first['msg']}")
    except (SteadyhandError, OSError) as error:
        return Before(fault=str(error))
    away_s = now().since(file.saved) * time_scale
    overrides = tuple(
        Override(one.output, one.value, one.owner, one.reason, one.left_s - away_s, one.for_s)
        for one in file.overrides
    )
    shelves = (Shelf(one.code, one.owner, one.reason, one.left_s - away_s) for one in file.shelves)
    kept = Kept(
        file.asked,
        tuple(one for one in overrides if one.expires_s > 0.0),
        tuple(_fault(one) for one in file.latches),
        tuple(one for one in shelves if one.expires_s > 0.0),
        tuple(_fault(one) for one in file.notes),
        tuple(_fault(one) for one in file.waiting),
    )
    return Before(kept, tuple(one for one in overrides if one.expires_s <= 0.0))


def _written(kept: Kept, now_s: float, moment: Moment) -> bytes:
    file = _File(
        saved=moment,
        asked=kept.asked,
        overrides=tuple(
            _Override(
                output=one.output,
                value=one.value,
                owner=one.owner,
                reason=one.reason,
                left_s=one.expires_s - now_s,
                for_s=one.for_s,
            )
            for one in kept.overrides
        ),
        latches=tuple(_shown(one) for one in kept.latches),
        shelves=tuple(
            _Shelf(code=one.code, owner=one.owner, reason=one.reason, left_s=one.expires_s - now_s)
            for one in kept.shelves
        ),
        notes=tuple(_shown(one) for one in kept.notes),
        waiting=tuple(_shown(one) for one in kept.waiting),
    )
    return file.model_dump_json().encode()


def _shown(fault: Fault) -> _Fault:
    return _Fault(
        code=fault.code,
        signal=fault.signal,
        value=fault.value,
        limit=fault.limit,
        text=fault.text,
    )


def _fault(shown: _Fault) -> Fault:
    return Fault(shown.code, shown.signal, shown.value, shown.limit, shown.text)


class Keeper:
    """Keeps the newest state without making anybody wait for the disk.

    However quickly changes follow each other, and however slow the disk: what stands in the file in
    the end is the last one. A disk that takes nothing is asked again until it does.
    """

    def __init__(self, path: Path, failed: Callable[[str], None], first: Kept) -> None:
        """Name the file.

        Args:
            path: the file.
            failed: is told once, until one is kept again, that a state could not be; called in a
                thread of ours.
            first: what it holds now.
        """
        self.fault = ""
        """Why the newest state is not on disk; empty: it is, or is being written."""
        self._path = path
        self._failed = failed
        self._lock = threading.Lock()
        self._newest = first
        self._waiting: tuple[Kept, float, Moment] | None = None
        """What is not on disk yet."""
        self._writer: threading.Thread | None = None
        self._closing = threading.Event()

    def keep(self, kept: Kept, now_s: float) -> None:
        """Have `kept`, of plant time `now_s`, written soon, if it is new; returns at once."""
        if kept == self._newest:
            return
        self._newest = kept
        with self._lock:
            self._waiting = (kept, now_s, Moment.now())
            if self._writer is None:
                self._writer = Guarded(self._write, "kept", until=threading.Event())
                self._writer.start()

    def close(self, timeout_s: float = 2.0) -> None:
        """Wait for the last state to be on disk; where that fails, it is tried once more."""
        self._closing.set()
        writer = self._writer
        if writer is not None:
            writer.join(timeout_s)

    def _write(self) -> None:
        while True:
            last_try = self._closing.is_set()
            with self._lock:
                waiting, self._waiting = self._waiting, None
                if waiting is None:
                    self._writer = None
                    return
            try:
                save_kept(self._path, *waiting)
            except OSError as error:
                self._not_kept(error)
                with self._lock:
                    self._waiting = self._waiting or waiting
                    if last_try:
                        self._writer = None
                        return
                self._closing.wait(RETRY_S)
            else:
                self.fault = ""

    def _not_kept(self, error: OSError) -> None:
        told = bool(self.fault)
        self.fault = (
            f"{self._path.name}: what people did is not kept across a restart: {error.strerror}"
        )
        if not told:
            self._failed(self.fault)
