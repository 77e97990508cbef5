"""What people did, and what waits for them, kept across restarts: as wishes, never as grants.

    mode asked for · overrides · latches · alarms unacknowledged, shelved · notes of how runs ended

Times are kept as what is left of them, and go on while nothing runs. Where no clock can tell for
how long that was, what had an end has come to it. The file says which plant it is about, and is no
other plant's to read or to replace.
"""

import fcntl
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from steadyhand.controllers.errors import ConfigError, SteadyhandError
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
REFRESH_S = 60.0
"""What is left of a time is written so often, so that a clock that stood still while the machine
was off gives no more than this on top."""
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
    """Overrides whose time ran out while nothing ran, or may have."""
    away_known: bool = True
    """Can the clock tell for how long nothing ran?"""
    named: bool = False
    """Does the file name its plant?"""
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


class _Owner(BaseModel):
    """As much of a file as says whose it is, whatever else is wrong with it."""

    model_config = ConfigDict(strict=True, frozen=True)

    plant: str = ""
    """Its name in the configuration; empty in files from before they named it."""


class _File(_Record):
    schema_version: Literal[1] = 1
    plant: str = ""
    saved: Moment
    asked: Mode | None = None
    overrides: tuple[_Override, ...] = ()
    latches: tuple[_Fault, ...] = ()
    shelves: tuple[_Shelf, ...] = ()
    notes: tuple[_Fault, ...] = ()
    waiting: tuple[_Fault, ...] = ()


def of_another_plant(path: Path, plant: str) -> str:
    """Why the state in `path` is not for `plant`; empty: it is, or nobody can tell whose it is."""
    try:
        owner = _Owner.model_validate_json(read_file(path, max_bytes=_MAX_BYTES)).plant
    except (ValidationError, SteadyhandError, OSError):
        return ""
    if owner in ("", plant):
        return ""
    return (
        f"{path} is the state of plant {owner!r}, and this is {plant!r}: name a journal.directory "
        f"in a folder of its own; if it is the same plant under a new name, call it {owner} again, "
        "or move the file away (overrides and latched faults in it are then over)"
    )


def save_kept(path: Path, plant: str, kept: Kept, now_s: float, moment: Moment) -> None:
    """Replace the file at once: after a power cut it holds the old state or the new one.

    One writer at a time, over all processes: the lock is the folder's, so that it needs no file.

    Args:
        path: the file.
        plant: whose it is, by the configuration's name.
        kept: what to keep.
        now_s: plant time, seconds.
        moment: the same instant by the machine's clocks.

    Raises:
        OSError: the directory cannot be written.
        ConfigError: the file is another plant's; it is as it was.
    """
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        if why := of_another_plant(path, plant):
            raise ConfigError(why)
        temporary = path.with_name(f".{path.name}.new")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(temporary, flags, 0o600)
        with os.fdopen(handle, "wb") as stream:
            stream.write(_written(plant, kept, now_s, moment))
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
        os.fsync(directory)
    finally:
        os.close(directory)


def load_kept(
    path: Path, plant: str, time_scale: float, now: Callable[[], Moment] = Moment.now
) -> Before:
    """What a start finds. A file that cannot be understood is a fault, and keeps nothing.

    Args:
        path: the file; none is as good as an empty one.
        plant: who asks, by the configuration's name.
        time_scale: plant seconds per second, of ends that came nearer meanwhile.
        now: the clock, injectable for tests.

    Raises:
        ConfigError: it is another plant's.
    """
    if not os.path.lexists(path):
        return Before()
    if why := of_another_plant(path, plant):
        raise ConfigError(why)
    try:
        file = _File.model_validate_json(read_file(path, max_bytes=_MAX_BYTES))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        return Before(fault=f"{path}: {where or 'the file'}: {first['msg']}")
    except (SteadyhandError, OSError) as error:
        return Before(fault=str(error))
    away_wall_s = now().since(file.saved)
    away_s = inf if away_wall_s is None else away_wall_s * time_scale
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
    return Before(
        kept,
        tuple(one for one in overrides if one.expires_s <= 0.0),
        away_known=away_wall_s is not None,
        named=file.plant != "",
    )


def _written(plant: str, kept: Kept, now_s: float, moment: Moment) -> bytes:
    file = _File(
        plant=plant,
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

    def __init__(
        self, path: Path, plant: str, failed: Callable[[str], None], first: Kept | None
    ) -> None:
        """Name the file.

        Args:
            path: the file.
            plant: whose it is, by the configuration's name.
            failed: is told once, until one is kept again, that a state could not be; called in a
                thread of ours.
            first: what it holds now; None: something else, so whatever comes first is written.
        """
        self.fault = ""
        """Why the newest state is not on disk; empty: it is, or is being written."""
        self._path, self._plant = path, plant
        self._failed = failed
        self._lock = threading.Lock()
        self._newest = first
        self._since_s = time.monotonic()
        """When what is left of the times was last taken."""
        self._waiting: tuple[Kept, float, Moment] | None = None
        """What is not on disk yet."""
        self._writer: threading.Thread | None = None
        self._closing = threading.Event()

    def keep(self, kept: Kept, now_s: float) -> None:
        """Have `kept`, of plant time `now_s`, written soon, if it is new; returns at once.

        Where something in it has an end, it is new every `REFRESH_S`.
        """
        mono_s = time.monotonic()
        ends = bool(kept.overrides or kept.shelves)
        if kept == self._newest and not (ends and mono_s - self._since_s >= REFRESH_S):
            return
        self._newest, self._since_s = kept, mono_s
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
                save_kept(self._path, self._plant, *waiting)
            except (OSError, ConfigError) as error:
                self._not_kept(error)
                with self._lock:
                    self._waiting = self._waiting or waiting
                    if last_try:
                        self._writer = None
                        return
                self._closing.wait(RETRY_S)
            else:
                self.fault = ""

    def _not_kept(self, error: OSError | ConfigError) -> None:
        told = bool(self.fault)
        why = error.strerror if isinstance(error, OSError) else error
        self.fault = f"{self._path.name}: what people did is not kept across a restart: {why}"
        if not told:
            self._failed(self.fault)
