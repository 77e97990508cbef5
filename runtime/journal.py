"""The journal's writer: one thread between the recorder's rings and the disk.

Records are hashed and written in one transaction per cycle, 30 a second at most, fully synced. The
loop never waits: it only fills the rings. An item leaves its ring when its transaction is on disk,
so a disk that is full, read-only or broken costs nothing until the ring wraps; then the oldest
records are lost, counted, and the loss itself becomes a record when the disk comes back. So it is
from the start on: whoever holds the lock drives, and the chain is carried on once the disk allows.

    AUDIT_FULL, AUDIT_RO   the same segment is tried again until it takes records
    AUDIT_EIO              the segment is suspect: never retried, a new one carries the chain on
                           from the last record known to be on disk
    AUDIT_TRUNC            likewise, after something else deleted or cut the file
    AUDIT_LAG              the disk is slow: told, nothing else happens
    AUDIT_DEFECT           a defect broke the writer: told, begun again in a new segment
    AUDIT_MISFIT           the loop handed over a tick that does not fit the record: it is missing
"""

import errno
import fcntl
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from steadyhand.controllers.errors import FileError, JournalError
from steadyhand.controllers.frames import Fault
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime import chain
from steadyhand.runtime.black_box import BlackBox, Left, all_left
from steadyhand.runtime.chain import Head, Kind
from steadyhand.runtime.disk_trouble import TROUBLE, try_disk
from steadyhand.runtime.guard import Guarded
from steadyhand.runtime.operator_people import user_name
from steadyhand.runtime.purge import Purged, beyond, own_event, purge_by_hand
from steadyhand.runtime.recorder import Event, Recorder
from steadyhand.runtime.segment import (
    TICK_HEAD,
    Resume,
    Segment,
    make_directory,
    next_sequence,
    resume,
)

_BATCH = 2000
_CAUSES = {
    sqlite3.SQLITE_FULL: "AUDIT_FULL",
    sqlite3.SQLITE_READONLY: "AUDIT_RO",
    sqlite3.SQLITE_CANTOPEN: "AUDIT_RO",
    sqlite3.SQLITE_PERM: "AUDIT_RO",
    sqlite3.SQLITE_BUSY: "AUDIT_BUSY",
    sqlite3.SQLITE_LOCKED: "AUDIT_BUSY",
}
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class Status:
    """How the journal is doing; replaced as a whole by the writer."""

    head: Head
    """Last record on disk."""
    cause: str = ""
    """Empty, or why records are not getting to disk: AUDIT_FULL, AUDIT_RO, AUDIT_EIO ..."""
    text: str = ""
    lost_ticks: int = 0
    lost_events: int = 0
    records: int = 0
    """Records written by this process."""
    ticks: int = 0
    commit_s: float = 0.0
    """Duration of the last transaction."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How the journal spends disk and time."""

    commit_every_s: float = 0.03
    segment_bytes: int = 256 * 2**20
    segment_age_s: float = 86_400.0
    keep_bytes: float = float("inf")
    """Oldest segments are deleted beyond this, and the deletion is recorded."""
    retry_s: float = 0.5
    lag_alarm_s: float = 2.0
    checkpoint_every_s: float = 3600.0


class Journal:
    """Append-only, hash-chained, one writer. Use as a context manager, or `start` and `close`."""

    def __init__(
        self,
        directory: Path,
        recorder: Recorder,
        limits: Limits | None = None,
        config_hash: str = "",
        bundle_id: str = "",
        signer: Ed25519PrivateKey | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        black_box: Path | None = None,
        on_head: Callable[[str], object] = lambda head: None,
    ) -> None:
        """Name the parts; touches nothing yet.

        Args:
            directory: private to this journal, made with mode 0700.
            recorder: where ticks and events come from; its sequence is set to go on.
            limits: sizes and times.
            config_hash: full hash of the effective configuration, for the headers.
            bundle_id: the controller at start, for the headers.
            signer: signs checkpoints; None writes none.
            monotonic: clock for ages and retries.
            black_box: file that keeps the last ticks beyond a kill; None keeps none.
            on_head: told the head, SEGMENT:RECORDS:HASH, when a segment is begun or closed, for
                a place that whoever writes the journal cannot write; must not wait.
        """
        self._box_file = black_box
        self._on_head = on_head
        self._left: Left | None = None
        """What the run before left in its black box."""
        self.taken_over = ""
        """Who has this journal now, because its folder was taken away from us; empty: we have."""
        self.directory = directory
        self.status = Status(Head(0, 0, chain.ZERO))
        self._recorder = recorder
        self._limits = limits or Limits()
        self._about = {
            "layout": recorder.layout.schema(),
            "config_hash": config_hash,
            "bundle": bundle_id,
            "run": f"{time.time_ns()}-{os.getpid()}",
        }
        self._signer = signer
        self._monotonic = monotonic
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock_fd = -1
        self._segment: Segment | None = None
        self._suspect = ""
        """Why the segment must not be written any more, or empty."""
        self._tick_at = self._event_at = 0
        self._lost_ticks = self._lost_events = 0
        self._opened_s = self._checkpoint_s = self._retry_at_s = self._rotate_at_s = 0.0
        self._busy_since_s = 0.0
        self._to_purge = True
        """Has the limit of what is kept to be looked at before the next rotation?"""

    def start(self) -> "Journal":
        """Take the lock, carry the chain on in a new segment, start the writer.

        A disk that takes nothing now refuses no start: `report` says so at once, and the chain is
        carried on as soon as it does.

        Raises:
            JournalError: another process writes this journal, or there is no place for its lock.
        """
        try:
            self._lock_fd = take_lock(self.directory)
        except OSError as error:
            raise JournalError(
                f"journal {self.directory}: {error}: check space, owner and mode"
            ) from error
        if self._box_file is not None:
            self._left = all_left(self._box_file)
        try:
            self._recorder.sequence = self._begin()
        except (OSError, *chain.UNREADABLE) as error:
            self._recorder.sequence = self._number_beyond()
            self._fail(error, 0, 0)
        self._recorder.black_box = self._make_box()
        self._thread = Guarded(
            self._run,
            "journal",
            until=self._stop,
            mend=self._distrust,
            pause_s=self._limits.retry_s,
        )
        self._thread.start()
        return self

    def _begin(self) -> int:
        """Carry the chain on, after what the run before had not written yet.

        Returns:
            the number of the next tick, as the disk has it.

        Raises:
            OSError, sqlite3.Error: the disk takes nothing now; nothing was begun.
        """
        try_disk(self.directory)  # else what cannot be written would be taken for damage
        end = self._rescue(resume(self.directory))
        self._open(end.index + 1, end.previous, end.reason, end.text)
        self._left = None
        self._publish()
        if end.text == "unclean restart" or end.reason == "AUDIT_REPAIR":
            self._recorder.event({"event": "JournalResumed", "code": end.reason, "text": end.text})
        return end.sequence

    def _number_beyond(self) -> int:
        """Number of the next tick where the disk cannot be written: behind all that are known."""
        number = next_sequence(self.directory)
        left = None if self._left is None else self._left.since(number)
        return number + (0 if left is None else len(left.ticks))

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what is left, close the segment, release the lock. Idempotent."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join(timeout_s)
            self._thread = None
        box, self._recorder.black_box = self._recorder.black_box, None
        if box is not None and self.backlog == 0:
            box.close()
        self._release_lock()

    def __enter__(self) -> "Journal":
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def report(self) -> Status:
        """How the record is doing: the disk's side, and ticks that never got that far."""
        status, misfits = self.status, self._recorder.misfits
        if not misfits:
            return status
        text = f"{misfits} ticks do not fit the record, first {self._recorder.misfit}; report it"
        cause = status.cause or "AUDIT_MISFIT"
        return replace(
            status,
            cause=cause,
            text=status.text if status.cause else text,
            lost_ticks=status.lost_ticks + misfits,
        )

    @property
    def backlog(self) -> int:
        """Ticks and events that are not on disk yet."""
        recorder = self._recorder
        waiting = recorder.ticks.head - self._tick_at + recorder.events.head - self._event_at
        return max(0, waiting)

    @property
    def lag_s(self) -> float:
        """How long the writer has been busy with one transaction; 0 when it is not."""
        busy_s = self._busy_since_s
        return self._monotonic() - busy_s if busy_s else 0.0

    def fault(self) -> Fault | None:
        """What is wrong with the record now; the loop may ask at each tick."""
        status = self.report
        if status.cause:
            text = f"{status.cause}: {status.text}"
            lost = float(status.lost_ticks)
            return Fault(ReasonCode.AUDIT_DEGRADED, "journal", lost, 0.0, text)
        lag_s, limit_s = self.lag_s, self._limits.lag_alarm_s
        if lag_s > limit_s:
            text = "AUDIT_LAG: the disk is slow"
            return Fault(ReasonCode.AUDIT_DEGRADED, "journal", lag_s, limit_s, text)
        return None

    def _rescue(self, end: Resume) -> Resume:
        """What the run before had not written yet, in a segment of its own under its own name."""
        left = None if self._left is None else self._left.since(end.sequence)
        if left is None or end.reason != "start":
            return end
        count = len(left.ticks)
        about = {**left.about, "reason": "rescue", "text": f"{count} ticks from the black box"}
        segment = Segment(self.directory, end.index + 1, end.previous, about)
        try:
            segment.append([(Kind.TICK, body) for body in left.ticks])
        except (*chain.UNREADABLE, OSError):
            segment.abandon()
            raise
        segment.seal()
        self._recorder.event({"event": "JournalRescued", "ticks": count})
        return replace(
            end, index=end.index + 1, previous=segment.carried(), sequence=end.sequence + count
        )

    def _make_box(self) -> BlackBox | None:
        if self._box_file is None:
            return None
        try:
            return BlackBox(self._box_file, self._about)
        except OSError as error:  # the record is complete without it, unless this process is killed
            self._recorder.event({"event": "NoBlackBox", "text": str(error)})
            return None

    def _keep_lock(self) -> None:
        """Whoever takes the folder away takes our lock away with it: get that of the new folder.

        Raises:
            JournalError: somebody else has it, or had, so nothing may be written there.
            OSError: there is no folder, or no lock can be made in it.
        """
        self.directory.stat()
        with suppress(FileNotFoundError):
            lock = (self.directory / "lock").stat()
            if os.path.samestat(lock, os.fstat(self._lock_fd)):
                return
        new = take_lock(self.directory)
        if chain.segment_paths(self.directory):
            os.close(new)
            raise JournalError(
                f"{self.directory} is another folder now, with another journal in it"
            )
        os.close(self._lock_fd)
        self._lock_fd = new

    def _release_lock(self) -> None:
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    # -- the writer thread ------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.wait(self._limits.commit_every_s):
            while self._monotonic() >= self._retry_at_s and self._step():
                pass
        self._finish()

    def _step(self) -> bool:
        """Bring what is in the rings to disk; True when there is more to write at once."""
        ticks, tick_at, lost_ticks = self._recorder.ticks.peek(self._tick_at, _BATCH)
        events, event_at, lost_events = self._recorder.events.peek(self._event_at, _BATCH)
        if not (ticks or events or lost_ticks or lost_events):
            return False
        batch = _merge(ticks, events)
        if lost_ticks or lost_events:
            data = {"ticks": lost_ticks, "events": lost_events, "code": self.status.cause}
            batch.insert(0, (Kind.EVENT, own_event("JournalLost", data)))
        if not self._write(batch, lost_ticks, lost_events):
            return False
        self._tick_at, self._event_at = tick_at, event_at
        self._housekeeping()
        box = self._recorder.black_box
        if box is not None and box.fault:
            self._recorder.black_box = None
            self._recorder.event({"event": "NoBlackBox", "text": box.fault})
        return len(ticks) == _BATCH or len(events) == _BATCH

    def _write(
        self, batch: Sequence[tuple[Kind, bytes]], lost_ticks: int = 0, lost_events: int = 0
    ) -> bool:
        """Append in one transaction; on failure say why and plan the next try."""
        begun_s = self._busy_since_s = self._monotonic()
        try:
            self._usable_segment().append(batch)
        except JournalError as error:
            self.taken_over = str(error)
            self._fail(error, lost_ticks, lost_events)
            return False
        except (*chain.UNREADABLE, OSError) as error:
            self._fail(error, lost_ticks, lost_events)
            return False
        finally:
            self._busy_since_s = 0.0
        self._lost_ticks += lost_ticks
        self._lost_events += lost_events
        ticks = sum(kind is Kind.TICK for kind, _ in batch)
        self._publish(len(batch), ticks, self._monotonic() - begun_s)
        return True

    def _usable_segment(self) -> Segment:
        """The current segment, or a new one when the current one cannot be trusted any more."""
        if self._segment is None:  # the disk took nothing at the start
            self._keep_lock()
            self._begin()
        segment = self._segment
        if segment is None:
            raise sqlite3.OperationalError("the journal is not started")
        if not self._suspect and segment.tampered():
            segment.abandon()
            self._suspect = "AUDIT_TRUNC"
        if self._suspect:
            text = self.status.text or "something else deleted or cut the file"
            self._keep_lock()
            self._open(segment.head.segment + 1, segment.carried(), self._suspect, text)
        return self._segment or segment

    def _open(self, index: int, previous: Any, reason: str, text: str) -> None:  # noqa: ANN401
        about = {**self._about, "reason": reason, "text": text}
        self._segment = Segment(self.directory, index, previous, about)
        self._suspect = ""
        self._opened_s = self._checkpoint_s = self._monotonic()

    def _distrust(self, error: BaseException) -> None:
        """A defect broke the writer: nobody knows what became of its transaction."""
        if self._segment is not None and not self._suspect:
            self._segment.abandon()
            self._suspect = "AUDIT_EIO"
        self._busy_since_s = 0.0
        text = f"{type(error).__name__}: {error}"[:200]
        self.status = replace(self.status, cause="AUDIT_DEFECT", text=text)

    def _fail(self, error: Exception, lost_ticks: int, lost_events: int) -> None:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CANTOPEN) & 0xFF
        if getattr(error, "errno", None) in _FULL:
            code = sqlite3.SQLITE_FULL
        cause = "AUDIT_LOCK" if self.taken_over else _CAUSES.get(code, "AUDIT_EIO")
        if self._segment is not None and not self._suspect:
            if cause == "AUDIT_EIO":
                self._segment.abandon()
                self._suspect = cause
            else:
                self._segment.rollback()
        self._retry_at_s = self._monotonic() + self._limits.retry_s
        if cause != self.status.cause:
            self._recorder.event({"event": "JournalDegraded", "code": cause, "text": str(error)})
        self.status = replace(
            self.status,
            cause=cause,
            text=str(error)[:200],
            lost_ticks=self._lost_ticks + lost_ticks,
            lost_events=self._lost_events + lost_events,
        )

    def _publish(self, records: int = 0, ticks: int = 0, commit_s: float = 0.0) -> None:
        """Tell the new state after a transaction."""
        before = self.status
        if self._segment is None:
            return
        self.status = Status(
            head=self._segment.head,
            lost_ticks=self._lost_ticks,
            lost_events=self._lost_events,
            records=before.records + records,
            ticks=before.ticks + ticks,
            commit_s=commit_s,
        )
        if before.cause:
            self._recorder.event({"event": "JournalRecovered", "code": before.cause})

    # -- housekeeping -----------------------------------------------------------------------

    def _housekeeping(self) -> None:
        now_s, limits, segment = self._monotonic(), self._limits, self._segment
        if now_s - self._checkpoint_s >= limits.checkpoint_every_s:
            self._checkpoint()
        if segment is None or self._suspect or now_s < self._rotate_at_s:
            return
        if self._to_purge:
            self._to_purge = False
            self._purge()
        if segment.bytes >= limits.segment_bytes:
            self._rotate("size")
        elif now_s - self._opened_s >= limits.segment_age_s:
            self._rotate("age")

    def _checkpoint(self) -> None:
        """Sign the chain up to here: whoever rewrites it now needs the key."""
        self._checkpoint_s = self._monotonic()
        if self._signer is None or self._segment is None or self._suspect:
            return
        signature = self._signer.sign(chain.checkpoint_message(self._segment.head)).hex()
        body = chain.dump_json({"signature": signature, "wall_ns": time.time_ns()})
        self._write([(Kind.CHECKPOINT, body)])

    def _rotate(self, reason: str) -> None:
        """Go on in a new segment; if it cannot be made, stay in the old one and try later."""
        self._checkpoint()
        old = self._segment
        if old is None or self._suspect:
            return
        self._busy_since_s = self._monotonic()
        try:
            self._open(old.head.segment + 1, old.carried(), reason, "")
        except (*chain.UNREADABLE, OSError) as error:
            self._rotate_at_s = self._monotonic() + 60.0
            self._recorder.event({"event": "RotateFailed", "code": "ROTATE", "text": str(error)})
        else:
            old.seal()
            self._publish()
            self._tell_head(old.head)
            self._purge()
        finally:
            self._busy_since_s = 0.0

    def _purge(self) -> None:
        """Delete the oldest segments beyond the limit: first record it, then do it."""
        try:
            doomed = beyond(self.directory, self._limits.keep_bytes)
            if doomed.files and self._write([(Kind.EVENT, doomed.record())]):
                doomed.delete()
        except (*chain.UNREADABLE, OSError, JournalError, IndexError) as error:
            self._recorder.event({"event": "PurgeFailed", "code": "PURGE_FAIL", "text": str(error)})

    def _tell_head(self, head: Head) -> None:
        self._on_head(f"{head.segment}:{head.records}:{head.hash.hex()}")

    def _finish(self) -> None:
        """Last transaction, last checkpoint, and a segment that any reader can open."""
        while self._step():
            pass
        self._step()  # what housekeeping told of itself meanwhile
        if self._signer is not None:
            self._checkpoint()
        self._write([(Kind.EVENT, own_event("JournalClosed", {}))])
        if self._segment is not None and not self._suspect:
            self._segment.seal()
            self._tell_head(self._segment.head)


def _merge(ticks: list[bytes], events: list[Event]) -> list[tuple[Kind, bytes]]:
    """Ticks and events in the order in which they were handed over."""
    stamped = [(TICK_HEAD.unpack_from(body)[1], Kind.TICK, body) for body in ticks]
    stamped += [(item.monotonic_ns, Kind.EVENT, _event_body(item)) for item in events]
    stamped.sort(key=lambda item: item[0])
    return [(kind, body) for _, kind, body in stamped]


def _event_body(event: Event) -> bytes:
    """An event as it is written; one that cannot be is named, and keeps no other from the disk."""
    try:
        return chain.dump_json(event)
    except Exception as error:  # noqa: BLE001  (whatever somebody put into it)
        text = f"{event.event} cannot be written: {type(error).__name__}"
        told = {"code": "AUDIT_MISFIT", "text": text}
        return chain.dump_json(replace(event, event="EventMisfit", data=told))


def purge(directory: Path, keep_bytes: float) -> Purged:
    """Delete the oldest segments of a journal by hand; the chain says that they went.

    Args:
        directory: of the journal.
        keep_bytes: what may stay, beside the newest segment.

    Raises:
        JournalError: a runtime writes it, it is somebody else's, or it cannot be carried on.
        FileError: something cannot be read, written or deleted.
    """
    segments = chain.segment_paths(directory)  # says so where there is none
    owner = segments[-1][1].stat().st_uid
    if owner != os.geteuid():
        # a segment of ours would be closed to its runtime
        raise JournalError(f"journal {directory} belongs to {user_name(owner)}: do it as that user")
    try:
        fd = take_lock(directory)
        try:
            return purge_by_hand(directory, keep_bytes)
        finally:
            os.close(fd)
    except (OSError, *chain.UNREADABLE) as error:
        raise FileError(f"journal {directory}: {error}") from error


def take_lock(directory: Path) -> int:
    """The one runtime of a plant: whoever holds this. Close the descriptor to give it back.

    Only the kernel knows who lives: an advisory lock, never a file with a number in it.

    Raises:
        JournalError: somebody else holds it.
    """
    make_directory(directory)
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(directory / "lock", flags, 0o600)
    except OSError as error:
        if error.errno not in TROUBLE:
            raise
        # a disk that takes nothing still has the lock of the run before: to hold it is enough
        fd = os.open(directory / "lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
        os.close(fd)
        raise JournalError(
            f"journal {directory} is written by process {owner or '?'}: "
            "one writer only, stop it or name another directory"
        ) from None
    with suppress(OSError):  # the number is for people; the lock holds on a full disk too
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd
