"""One segment being written, and where the chain ended when the last writer went away."""

import itertools
import os
import sqlite3
import struct
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steadyhand.controllers.errors import JournalError
from steadyhand.runtime import chain
from steadyhand.runtime.bundle.files import sync_directory
from steadyhand.runtime.chain import Head, Kind
from steadyhand.runtime.tested_versions import software

TICK_HEAD = struct.Struct("<qq")
"""Sequence and monotonic_ns: the first two numbers of a tick record."""
_ROW_OVERHEAD = 100
_NEW = ".new"
_SCHEMA = f"""
BEGIN IMMEDIATE;
{chain.RECORD_TABLE};
CREATE TRIGGER no_update BEFORE UPDATE ON record
BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER no_delete BEFORE DELETE ON record
BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
"""


@dataclass(frozen=True, slots=True)
class Resume:
    """Where a journal ended."""

    index: int
    """Last segment; 0 when there is none."""
    previous: Mapping[str, Any] | None
    """What the next header says of the segment before it."""
    reason: str
    text: str
    sequence: int
    """Number of the next tick."""


class Segment:
    """A file that takes chained records in synced transactions."""

    def __init__(
        self,
        directory: Path,
        index: int,
        previous: Mapping[str, Any] | None,
        about: Mapping[str, Any],
    ) -> None:
        """Make the file and write its header; leaves nothing behind when it fails.

        Args:
            directory: where segments live.
            index: number of the new segment.
            previous: segment, records and hash (hex) of the one before; None for the first.
            about: what else the header says: reason, text, layout, configuration.

        Raises:
            sqlite3.Error, OSError: the file cannot be made or written.
        """
        self._file = chain.segment_path(directory, index)
        header = {
            **about,
            "format": chain.FORMAT,
            "segment": index,
            "previous": previous,
            "wall_ns": time.time_ns(),
            "monotonic_ns": time.monotonic_ns(),
            "boot_id": _boot_id(),
            "pid": os.getpid(),
            "software": software(),
        }
        body = chain.dump_json(header)
        carried = bytes.fromhex((previous or {}).get("hash") or "") or chain.ZERO
        self.head = Head(index, 1, chain.link(carried, index, 0, Kind.HEADER, body))
        self.bytes = len(body)
        if self._file.exists() or self._file.is_symlink():
            if not _unbegun(self._file):
                raise FileExistsError(f"{self._file} exists already")
            _discard(self._file)
        _write_header(self._file, body, self.head.hash)
        try:
            sync_directory(directory)
            self._connection = self._connect()
        except (sqlite3.Error, OSError):
            _discard(self._file)
            raise

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._file, isolation_level=None, check_same_thread=False, timeout=1.0
        )
        try:
            connection.execute("PRAGMA synchronous=FULL")  # on disk when a commit returns
            connection.execute("SELECT max(n) FROM record").fetchone()  # makes the WAL file
            # where the file does not open for writing SQLite quietly opens it for reading, for good
            connection.execute("DELETE FROM record WHERE 0")
            files = (self._file, self._file.with_name(self._file.name + "-wal"))
            self._seen = {file: (file.stat().st_ino, file.stat().st_size) for file in files}
        except (sqlite3.Error, OSError):
            with suppress(sqlite3.Error):
                connection.close()
            raise
        return connection

    def append(self, batch: Sequence[tuple[Kind, bytes]]) -> None:
        """Append (kind, body) records in one transaction; all or none.

        Raises:
            sqlite3.Error: nothing was appended, as far as the disk can be believed.
        """
        index, n, digest = self.head.segment, self.head.records, self.head.hash
        rows, size = [], 0
        for kind, body in batch:
            digest = chain.link(digest, index, n, kind, body)
            rows.append((n, int(kind), body, digest))
            size += len(body) + _ROW_OVERHEAD
            n += 1
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany("INSERT INTO record VALUES (?, ?, ?, ?)", rows)
        self._connection.execute("COMMIT")
        self.head = Head(index, n, digest)
        self.bytes += size

    def rollback(self) -> None:
        """Forget a failed transaction; SQLite has often done so itself."""
        with suppress(sqlite3.Error):
            self._connection.execute("ROLLBACK")

    def tampered(self) -> bool:
        """Was the file deleted, replaced or cut by something else? SQLite itself would not see."""
        for file, (inode, size) in self._seen.items():
            try:
                now = file.stat()
            except FileNotFoundError:
                return True
            if now.st_ino != inode or now.st_size < size:
                return True
            self._seen[file] = (inode, now.st_size)
        return False

    def carried(self) -> dict[str, Any]:
        """What the next header says of this segment."""
        head = self.head
        return {"segment": head.segment, "records": head.records, "hash": head.hash.hex()}

    def seal(self) -> None:
        """Close it so that the one file holds everything, readable from read-only media too."""
        with suppress(sqlite3.Error):  # what is committed stays readable through the WAL
            self._connection.execute("PRAGMA journal_mode=DELETE")
        self.abandon()

    def abandon(self) -> None:
        """Close it as it is; nothing it says matters any more."""
        with suppress(sqlite3.Error):
            self._connection.close()


def resume(directory: Path) -> Resume:
    """Find the end of the chain; call it with the writer's lock held.

    Raises:
        OSError: the directory cannot be read.
    """
    try:
        segments = chain.segment_paths(directory)
    except JournalError:
        segments = []
    if not segments:
        return Resume(0, None, "start", "first segment", 0)
    if len(segments) > 1 and _overtaken(segments[-1][1], segments[-2][1]):
        _discard(segments.pop()[1])
    _seal_leftovers([path for _, path in segments[:-1]])
    index, file = segments[-1]
    sequence = _next_sequence([path for _, path in segments])
    try:
        size = chain.must_be_file(file)
        with closing(sqlite3.connect(file, isolation_level=None)) as connection:
            chain.must_hold_records(connection, size)
            rows = chain.last_rows(connection, 1000)
            with suppress(
                *chain.UNREADABLE
            ):  # e.g. a reader holds it: the WAL stays, nothing is lost
                connection.execute("PRAGMA journal_mode=DELETE")
        broken = _broken_tail(index, rows)
        n, kind, body, digest = rows[-1]
        previous = {"segment": index, "records": n + 1, "hash": digest.hex()}
        closed = kind == Kind.EVENT and chain.load_json(body)["event"] == "JournalClosed"
    except (
        sqlite3.Error,
        JournalError,
        LookupError,
        TypeError,
        AttributeError,
        ValueError,
        struct.error,
    ) as error:
        unknown = {"segment": index, "records": None, "hash": None}
        return Resume(index, unknown, "AUDIT_REPAIR", f"segment {index}: {error}", sequence)
    if broken:
        return Resume(index, previous, "AUDIT_REPAIR", broken, sequence)
    text = "clean restart" if closed else "unclean restart"
    return Resume(index, previous, "start", text, sequence)


def _seal_leftovers(files: list[Path]) -> None:
    """Seal what a cut between making a segment and sealing the one before left open."""
    for file in files:
        if any(path.exists() for path in chain.companions(file)):
            # what cannot be sealed stays readable through its WAL
            with (
                suppress(*chain.UNREADABLE, JournalError),
                closing(_to_seal(file)) as connection,
            ):
                connection.execute("PRAGMA journal_mode=DELETE")


def _to_seal(file: Path) -> sqlite3.Connection:
    """A connection that writes.

    Raises:
        JournalError: it is no file of ours.
    """
    chain.must_be_file(file)
    return sqlite3.connect(file, isolation_level=None)


def _unbegun(file: Path) -> bool:
    """Does this segment hold nothing but its header? Then nothing is lost with it."""
    try:
        with closing(chain.open_readonly(file)) as connection:
            kinds = connection.execute("SELECT kind FROM record LIMIT 2").fetchall()
    except (*chain.UNREADABLE, JournalError):
        return False
    return kinds == [(int(Kind.HEADER),)]


def _overtaken(file: Path, before: Path) -> bool:
    """Was this segment given up as it was made, and the one before it written on?

    So it is where the disk failed between its name and its first record, and where a power cut
    then brought the name back.
    """
    if not _unbegun(file):
        return False
    try:
        with closing(chain.open_readonly(file)) as connection:
            header = chain.read_header(connection)
        with closing(chain.open_readonly(before)) as connection:
            records = chain.last_rows(connection, 0)[-1][0] + 1
        carried = (header.get("previous") or {}).get("records")
        return chain.taken_over(header) is None and carried is not None and carried < records
    except (*chain.UNREADABLE, JournalError, LookupError, TypeError, AttributeError):
        return False


def _discard(file: Path) -> None:
    """Remove a segment without records, as far as the disk lets us."""
    for path in (file, *chain.companions(file)):
        with suppress(OSError):
            path.unlink(missing_ok=True)
    with suppress(OSError):
        sync_directory(file.parent)


def _write_header(file: Path, body: bytes, digest: bytes) -> None:
    """Make a segment that holds its header, all or nothing: a kill leaves no file of its name."""
    new = file.with_name(file.name + _NEW)
    _sweep(file.parent)
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    os.close(os.open(new, flags, 0o600))
    try:
        with closing(sqlite3.connect(new, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
            connection.executescript(_SCHEMA)
            connection.execute(
                "INSERT INTO record VALUES (0, ?, ?, ?)", (int(Kind.HEADER), body, digest)
            )
            connection.execute("COMMIT")
            busy, left, done = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if busy or left != done:
                raise sqlite3.OperationalError(f"header not in its file: {busy} {left} {done}")
        new.rename(file)
    except (sqlite3.Error, OSError):
        with suppress(OSError):
            _sweep(file.parent)
        raise


def _sweep(directory: Path) -> None:
    """Remove what a kill left of a segment that was being made: it never held a record."""
    for leftover in directory.glob(f"*{chain.SUFFIX}{_NEW}*"):
        leftover.unlink()


def _broken_tail(index: int, rows: list[tuple[int, int, bytes, bytes]]) -> str:
    """Empty, or which of the last rows does not continue the one before."""
    for (before_n, _, _, before), (n, kind, body, digest) in itertools.pairwise(rows):
        if n != before_n + 1 or chain.link(before, index, n, kind, body) != digest:
            return f"the chain of segment {index} is broken at record {n}"
    return ""


def next_sequence(directory: Path) -> int:
    """Number of the next tick, from a disk that takes nothing.

    A segment that was left open may not be readable there. Then numbers go on so far beyond the
    one before that none of them can be in it: what must not be is a number twice.
    """
    with suppress(JournalError, OSError):
        return _next_sequence([file for _, file in chain.segment_paths(directory)], beyond=True)
    return 0


def _next_sequence(files: list[Path], beyond: bool = False) -> int:
    """One more than the last tick on disk.

    Args:
        files: segments, the newest last.
        beyond: count what a segment that cannot be read could hold.
    """
    hidden = 0
    for file in reversed(files):
        try:
            with closing(chain.open_readonly(file)) as connection:
                row = connection.execute(
                    "SELECT body FROM record WHERE kind = ? ORDER BY n DESC LIMIT 1",
                    (int(Kind.TICK),),
                ).fetchone()
            if row is not None:
                return int(TICK_HEAD.unpack_from(row[0])[0]) + 1 + hidden
        except (*chain.UNREADABLE, struct.error, JournalError, TypeError):
            if beyond:
                hidden += chain.must_be_file(file) // _ROW_OVERHEAD
    return hidden


def make_directory(directory: Path) -> None:
    """Make it private, with all above it, and their names safe from a power cut.

    Raises:
        OSError: it cannot be made.
    """
    made = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in made:
        sync_directory(path.parent)


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
