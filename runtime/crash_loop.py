"""A bundle that takes the runtime down again and again: then the heuristic drives until a person
has looked.

    start ─► note found? the run before crashed ─► counted by bundle ─► too many: latched
      └────► own note written ─► policy built ─► loop ─► orderly end: note taken back

The note is on disk before the policy exists, so that whatever ends the process, were it the power,
is seen by the next start. A start that is refused and a stop that was asked for are no crashes.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from steadyhand.controllers.errors import SteadyhandError
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime.bundle.archive import read_file
from steadyhand.runtime.bundle.files import replace

CRASHES = 3
"""So many crashes with one bundle ..."""
WINDOW_S = 600.0
"""... within so many seconds latch it."""
STATE_FILE, LOCK_FILE = "crash_loop.json", "crash_loop.lock"
END_FILE = "last_end"
"""How the service manager saw the last run end: `RESULT CODE STATUS`, written by the unit."""
_MAX_BYTES = 2**16
_MOST_KEPT = 30
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_ENDS = {"watchdog": ReasonCode.WATCHDOG_PREV, "oom-kill": ReasonCode.OOM_PREV}

Digest = Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]


class _Record(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class Moment(_Record):
    """A time that can be compared across restarts, and across a clock that is set meanwhile."""

    wall_s: float
    boot_s: float
    """Since the machine started, times of suspension included."""
    boot_id: str

    @classmethod
    def now(cls) -> "Moment":
        """This moment."""
        try:
            boot_id = _BOOT_ID.read_text("ascii").strip()
        except OSError:
            boot_id = ""
        return cls(
            wall_s=time.time(), boot_s=time.clock_gettime(time.CLOCK_BOOTTIME), boot_id=boot_id
        )

    def since(self, earlier: "Moment") -> float | None:
        """Seconds from `earlier` to this, by the wall clock only over a reboot; None: unknown.

        Since `earlier` there was at least the time that this machine is up. A clock by which there
        was less began in the past, as that of a box without a battery does at each boot.
        """
        if self.boot_id and self.boot_id == earlier.boot_id:
            elapsed_s, least_s = self.boot_s - earlier.boot_s, 0.0
        else:
            rebooted = self.boot_id and earlier.boot_id
            elapsed_s, least_s = self.wall_s - earlier.wall_s, self.boot_s if rebooted else 0.0
        return elapsed_s if elapsed_s >= least_s else None


class Counted(_Record):
    """Which bundle; both empty where none is in use."""

    digest: Digest = ""
    label: str = ""


class _Crash(_Record):
    policy: Counted
    seen: Moment
    """When the next start found it."""
    how: str


class _State(_Record):
    schema_version: Literal[1] = 1
    running: Counted | None = None
    crashes: tuple[_Crash, ...] = ()
    latched: tuple[Counted, ...] = ()
    everything: str = ""
    """Not empty: no policy at all may be started, and why."""


@dataclass(frozen=True, slots=True)
class Before:
    """How the run before ended, where that was not in order."""

    code: ReasonCode
    text: str
    policy: Counted


class CrashLoop:
    """The notes of one plant, in its folder of state. One process at a time keeps them."""

    def __init__(
        self,
        folder: Path,
        crashes: int = CRASHES,
        window_s: float = WINDOW_S,
        now: Callable[[], Moment] = Moment.now,
    ) -> None:
        """Look how the run before ended.

        Args:
            folder: it must be there.
            crashes: so many with one bundle within `window_s` latch it.
            window_s: see `crashes`.
            now: the clock, injectable for tests.
        """
        self.before: Before | None = None
        """How the run before ended, where that was not in order."""
        self.fault = ""
        """Why notes cannot be kept; empty when they can."""
        self._folder = folder
        self._crashes, self._window_s, self._now = crashes, window_s, now
        self._writing = Lock()
        self._state = _State()
        self._fd = -1
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._fd = os.open(folder / LOCK_FILE, flags, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # another process runs this plant: its note is no crash, and the journal will refuse us
            self.fault = f"{folder / LOCK_FILE}: another process keeps the notes"
            self._release()
        except OSError as error:
            self.fault = f"{folder / LOCK_FILE}: crashes are not counted: {error.strerror}"
            self._release()
        else:
            self._look()

    @property
    def latched(self) -> tuple[Counted, ...]:
        """Bundles that are not started before somebody acknowledges."""
        return self._state.latched

    @property
    def bars(self) -> bool:
        """Is there anything to acknowledge?"""
        return bool(self._state.latched or self._state.everything)

    def barred(self, digest: str) -> str:
        """Why the bundle `digest` must not be started; empty when it may."""
        state = self._state
        if state.everything:
            return state.everything
        if not any(policy.digest == digest for policy in state.latched):
            return ""
        hows = ", ".join(crash.how for crash in state.crashes if crash.policy.digest == digest)
        return (
            f"the runtime crashed {self._crashes} times within {self._window_s / 60.0:g} min with "
            f"this bundle ({hows or 'see the journal'})"
        )

    @contextmanager
    def run(self) -> Iterator[Self]:
        """One run. Its note is taken back at an orderly end; a defect of ours is none."""
        try:
            yield self
        except (SteadyhandError, SystemExit, KeyboardInterrupt):
            self._ended()
            raise
        else:
            self._ended()
        finally:
            self._release()

    def use(self, policy: Counted) -> None:
        """From now on `policy` is what a crash is counted for; on disk when this returns."""
        if self._fd < 0 or (policy == self._state.running and not self.fault):
            return
        with suppress(OSError):
            (self._folder / END_FILE).unlink(missing_ok=True)
        self._change(lambda state: state.model_copy(update={"running": policy}))

    def acknowledge(self) -> tuple[str, ...]:
        """A person has looked: labels of what may be started again; empty when nothing was barred.

        On disk when this returns.
        """
        if not self.bars:
            return ()
        labels = tuple(policy.label for policy in self.latched) or ("all bundles",)
        self._change(
            lambda state: state.model_copy(update={"latched": (), "crashes": (), "everything": ""})
        )
        return labels

    def _look(self) -> None:
        """Read the notes; count the crash they tell of."""
        try:
            state = self._read()
        except (ValueError, SteadyhandError, OSError) as error:
            why = str(error).splitlines()[0]
            path = self._folder / STATE_FILE
            state = _State(everything=f"{path}: the notes on crashes cannot be read ({why})")
            self._state = state
            self._change(lambda state: state)
            return
        self._state = state
        if state.running is None:
            return
        code, how = self._how()
        self.before = Before(code, how, state.running)
        now, running = self._now(), state.running
        crashes, latched = state.crashes, state.latched
        if running.digest:
            crashes = (*crashes, _Crash(policy=running, seen=now, how=how))[-_MOST_KEPT:]
            count = sum(
                crash.policy.digest == running.digest and self._recent(crash, now)
                for crash in crashes
            )
            if count >= self._crashes and not self.barred(running.digest):
                latched = (*latched, running)
        self._change(
            lambda state: state.model_copy(
                update={"running": None, "crashes": crashes, "latched": latched}
            )
        )

    def _recent(self, crash: _Crash, now: Moment) -> bool:
        """Did it happen within the window? One before a reboot only where the clock can tell.

        To count it in doubt would bar the bundle after any three power cuts, years apart, on a box
        whose clock begins anew at each boot. What crashes again and again does so within a boot.
        """
        elapsed_s = now.since(crash.seen)
        return elapsed_s is not None and elapsed_s < self._window_s

    def _how(self) -> tuple[ReasonCode, str]:
        """How the run before ended, as far as the service manager has told."""
        try:
            told = read_file(self._folder / END_FILE, max_bytes=_MAX_BYTES)
            words = told.decode("ascii")[:200].split()
        except (SteadyhandError, OSError, ValueError):
            words = []
        if len(words) != 3 or words[0] == "success":
            return ReasonCode.RESTART, "killed, or the machine went down"
        result, code, status = words
        text = f"signal {status}" if code in ("killed", "dumped") else f"exit status {status}"
        if result in _ENDS:
            return _ENDS[result], f"{result}, {text}"
        return ReasonCode.RESTART, text

    def _ended(self) -> None:
        if self._state.running is not None:
            self._change(lambda state: state.model_copy(update={"running": None}))

    def _read(self) -> _State:
        path = self._folder / STATE_FILE
        if not path.exists() and not path.is_symlink():
            return _State()
        try:
            return _State.model_validate_json(read_file(path, max_bytes=_MAX_BYTES))
        except ValidationError as error:
            raise ValueError(str(error.errors()[0]["msg"])) from None

    def _change(self, change: Callable[[_State], _State]) -> None:
        with self._writing:
            if self._fd < 0:
                return
            self._state = change(self._state)
            try:
                replace(self._folder / STATE_FILE, self._state.model_dump_json().encode())
            except OSError as error:
                self.fault = f"{self._folder / STATE_FILE}: not kept: {error.strerror}"
            else:
                self.fault = ""

    def _release(self) -> None:
        with self._writing:
            if self._fd >= 0:
                os.close(self._fd)
            self._fd = -1
