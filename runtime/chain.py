"""The journal on disk: segments of one SQLite file each, every record chained to the one before.

A record is (n, kind, body, hash) with

    hash = SHA-256(hash of the record before ‖ segment ‖ n ‖ kind ‖ body).

The first record of a segment is its header: it says what the bytes of a tick mean and carries the
chain over from the segment before. So a changed, deleted, inserted, swapped or doubled record, and
a missing or replaced segment, break the chain at a place that can be named. A cut tail leaves a
chain that is merely shorter: it is noticed by comparing the head with one told outside (a metric,
the service's log). Who can write the files can also compute a new chain from any point on: signed
checkpoints are what stops that.
"""

import hashlib
import json
import re
import sqlite3
import stat
import struct
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, is_dataclass
from datetime import UTC, datetime
from enum import Enum, IntEnum
from math import isfinite, isnan
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from steadyhand.controllers.errors import JournalError

FORMAT = 1
RECORD_TABLE = """CREATE TABLE record (
  n INTEGER PRIMARY KEY, kind INTEGER NOT NULL, body BLOB NOT NULL, hash BLOB NOT NULL
)"""
"""The one table of a segment."""
MAX_BODY_BYTES = 64 * 2**20
_STEPS = 50_000
"""Steps of SQLite's machine between two looks at how many are left."""
SUFFIX = ".sqlite"
ZERO = bytes(32)
_HASH = re.compile(r"[0-9a-f]{64}")
_PLACE = struct.Struct("<IQB")
_CHECKPOINT = b"steadyhand journal checkpoint\0"
_TAKEN_OVER = ("AUDIT_EIO", "AUDIT_TRUNC", "AUDIT_REPAIR")
"""Why a new segment may begin before the last record that the old one turns out to hold."""


UNREADABLE = (sqlite3.Error, UnicodeDecodeError)
"""What SQLite makes of a damaged file; where a name in it is damaged, its message is no text."""


class Kind(IntEnum):
    """What a record is."""

    HEADER = 0
    TICK = 1
    EVENT = 2
    CHECKPOINT = 3


@dataclass(frozen=True, slots=True)
class Head:
    """The end of a chain: tell it to someone else, and the tail cannot be cut off unnoticed."""

    segment: int
    records: int
    """Records in the segment."""
    hash: bytes


@dataclass(frozen=True, slots=True)
class Entry:
    """One record as it stands in the journal."""

    segment: int
    n: int
    kind: Kind
    body: bytes
    hash: bytes


@dataclass(frozen=True, slots=True)
class Problem:
    """The first record of a segment that is not what was written."""

    segment: int
    n: int
    text: str

    def __str__(self) -> str:
        return f"segment {self.segment}, record {self.n}: {self.text}"


@dataclass(frozen=True, slots=True)
class Verification:
    """What `verify` found."""

    segments: int
    records: int
    ticks: int
    head: Head | None
    signed: Head | None
    """Last place covered by a valid signed checkpoint."""
    signed_ns: int | None
    """When that was signed, by the wall clock of whoever signed; ns since 1970."""
    unsigned: int
    """Records behind that place; all of them where nothing is signed."""
    problems: tuple[Problem, ...]
    """At most one per segment, in order: the first is the first bad record."""
    notes: tuple[str, ...]
    """Things that are in order but worth knowing: purged segments, records written twice."""

    @property
    def ok(self) -> bool:
        """Is everything what was written?"""
        return not self.problems


def link(previous: bytes, segment: int, n: int, kind: int, body: bytes) -> bytes:
    """Hash of a record, (32,) bytes."""
    return hashlib.sha256(previous + _PLACE.pack(segment, n, kind) + body).digest()


def segment_path(directory: Path, index: int) -> Path:
    """File of a segment; the name is made from a number only."""
    return directory / f"{index:08d}{SUFFIX}"


def segment_paths(path: Path) -> list[tuple[int, Path]]:
    """Segments of a journal in order; `path` is its directory or one segment.

    Raises:
        JournalError: there is none.
    """
    files = [path] if path.is_file() else sorted(path.glob(f"*{SUFFIX}"))
    found = [(int(file.stem), file) for file in files if file.stem.isdecimal()]
    if not found:
        raise JournalError(f"no journal at {path}: expected files like 00000001{SUFFIX}")
    return found


def open_readonly(file: Path) -> sqlite3.Connection:
    """A connection that cannot write; also while the writer is at work.

    Raises:
        JournalError: the file cannot be opened.
    """
    size = must_be_file(file)
    uri = f"file:{quote(str(file.absolute()))}?mode=ro"
    if not file.with_name(file.name + "-wal").exists():
        uri += "&immutable=1"  # closed by its writer: readable from read-only media too
    try:
        connection = sqlite3.connect(uri, uri=True, timeout=5.0)
    except sqlite3.Error as error:
        raise JournalError(f"segment {file}: {error}") from error
    try:
        must_hold_records(connection, size)
    except JournalError:
        connection.close()
        raise
    return connection


def companions(file: Path) -> list[Path]:
    """What SQLite keeps beside a segment that is not sealed."""
    return [file.with_name(file.name + ending) for ending in ("-wal", "-shm", "-journal")]


def must_be_file(file: Path) -> int:
    """Bytes of a segment with what lies beside it; never waits, as opening a pipe would.

    Raises:
        JournalError: one of them is no regular file, or cannot be looked at.
    """
    size = 0
    for path in (file, *companions(file)):
        try:
            found = path.stat()
        except FileNotFoundError:
            if path == file:
                raise JournalError(f"segment {file}: no such file") from None
            continue
        except OSError as error:
            raise JournalError(f"segment {path}: {error.strerror}") from None
        if not stat.S_ISREG(found.st_mode):
            raise JournalError(f"segment {path}: is no regular file: it is not the journal's")
        size += found.st_size
    return size


def must_hold_records(connection: sqlite3.Connection, size: int) -> None:
    """Is `record` the table that the writer makes, and nothing that computes? Sets bounds, too.

    A view, a virtual table or a computed column may take for ever to read. So may pages that lead
    back to themselves: whatever is asked of the connection may take a number of steps that goes
    with the bytes there are, and no value may be longer than `MAX_BODY_BYTES`.

    Raises:
        JournalError: it is not.
    """
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_BODY_BYTES)
    left = 100 + 2 * size // _STEPS

    def spend() -> int:
        nonlocal left
        left -= 1
        return left < 0

    connection.set_progress_handler(spend, _STEPS)
    try:
        connection.execute("PRAGMA trusted_schema=OFF")
        rows = connection.execute(
            "SELECT type, sql FROM sqlite_schema WHERE lower(name) = 'record' LIMIT 2"
        ).fetchall()
    except UNREADABLE as error:
        raise JournalError(f"cannot be read: {error}") from error
    if len(rows) != 1 or rows[0][0] != "table" or str(rows[0][1]).split() != RECORD_TABLE.split():
        raise JournalError("holds no table of records as the journal makes it")


def read_header(connection: sqlite3.Connection) -> dict[str, Any]:
    """Header of a segment.

    Raises:
        JournalError: there is none, or it cannot be read.
    """
    try:
        row = connection.execute("SELECT kind, body FROM record WHERE n = 0").fetchone()
        if row is None or row[0] != Kind.HEADER:
            raise JournalError("segment without a header")
        header: dict[str, Any] = load_json(row[1])
        if not isinstance(header, dict):
            raise JournalError("header is no JSON object")
    except (sqlite3.Error, ValueError, TypeError, RecursionError) as error:
        raise JournalError(f"header cannot be read: {error}") from error
    _must_carry_over(header.get("previous"))
    if header.get("format") != FORMAT:
        raise JournalError(
            f"journal format {header.get('format')!r}, only {FORMAT} is known: "
            "use the release that wrote it"
        )
    return header


def _must_carry_over(previous: object) -> None:
    """What a header says of the segment before it, if it says anything.

    Raises:
        JournalError: this program would not say it so.
    """
    if previous is None:
        return
    if isinstance(previous, dict):
        records, digest = previous.get("records"), previous.get("hash")
        if records is None and digest is None:
            return
        if type(records) is int and isinstance(digest, str) and _HASH.fullmatch(digest):
            return
    raise JournalError("header makes no sense of the segment before")


def taken_over(header: Mapping[str, Any]) -> int | None:
    """How many records of the segment before count; None when all of them do.

    After an error the writer cannot know if its last transaction reached the disk: it goes on in a
    new segment from the last record it is sure of, and writes the doubtful ones again.
    """
    previous = header.get("previous") or {}
    return previous.get("records") if header.get("reason") in _TAKEN_OVER else None


def dump_json(value: object) -> bytes:
    """Canonical JSON: sorted, ASCII (control and line characters escaped), no NaN, strings cut."""
    return json.dumps(
        plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    ).encode()


def load_json(body: bytes) -> Any:  # noqa: ANN401  (JSON)
    """Parse JSON and refuse what JSON does not have.

    Raises:
        ValueError: not JSON, NaN or Infinity, or a key twice.
    """
    return json.loads(body, parse_constant=_refuse, object_pairs_hook=_once)


def _refuse(token: str) -> None:
    raise ValueError(f"{token} is not JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise ValueError(f"key twice in {[key for key, _ in pairs]}")
    return mapping


def plain(value: object, depth: int = 0) -> Any:  # noqa: ANN401  (JSON)
    """Any value as JSON data: enums by name, NaN as null, infinities as strings, texts cut."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return value.value if isinstance(value, str) else value.name
    if isinstance(value, str):
        return value[:2000]
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        if isfinite(value):
            return float(value)
        return None if isnan(value) else ("inf" if value > 0 else "-inf")
    if depth > 8:
        return "..."
    if is_dataclass(value) and not isinstance(value, type):
        names = value.__dataclass_fields__
        return {name: plain(getattr(value, name), depth + 1) for name in names}
    if isinstance(value, Mapping):
        return {str(key)[:200]: plain(item, depth + 1) for key, item in value.items()}
    if hasattr(value, "tolist"):
        return plain(value.tolist(), depth + 1)
    if isinstance(value, (list, tuple, set, frozenset)):
        items = sorted(value, key=str) if isinstance(value, (set, frozenset)) else value
        return [plain(item, depth + 1) for item in items]
    return str(value)[:2000]


def checkpoint_message(head: Head) -> bytes:
    """What a checkpoint signs."""
    return _CHECKPOINT + _PLACE.pack(head.segment, head.records, Kind.CHECKPOINT) + head.hash


def verify(
    path: Path, keys: Sequence[Ed25519PublicKey] = (), expected: Head | None = None
) -> Verification:
    """Recompute the whole chain and name the first bad record.

    Args:
        path: directory of the journal, or one segment.
        keys: public keys of the checkpoints, each signed by one of them; none skips their
            signatures.
        expected: a head noted outside, at least the begin of its hash; the journal must still
            contain it.

    Returns:
        what was found; never stops at a damaged segment, but goes on with the next.

    Raises:
        JournalError: there is no journal.
    """
    return _Verifier(keys, expected).run(segment_paths(path), whole=path.is_dir())


_NOT_SAID_BY_US = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What comes of a forged event that has the right hash."""


class _Verifier:
    """Walks the segments once; holds what has been seen so far."""

    def __init__(self, keys: Sequence[Ed25519PublicKey], expected: Head | None) -> None:
        self._keys = keys
        self._expected = expected
        self._expected_seen = expected is None
        self._records = self._ticks = 0
        self._signed: Head | None = None
        self._signed_ns: int | None = None
        self._unsigned = 0
        self._problems: list[Problem] = []
        self._notes: list[str] = []
        self._purged: dict[int, str] = {}

    def run(self, files: list[tuple[int, Path]], whole: bool) -> Verification:
        headers = [_try_header(file) for _, file in files]
        before: Head | None = None
        for i, (index, file) in enumerate(files):
            follower = headers[i + 1] if i + 1 < len(headers) else None
            if i and index != files[i - 1][0] + 1:
                self._bad(index, 0, f"segments between {files[i - 1][0]} and {index} are missing")
                before = None
            before = self._segment(index, file, headers[i], follower, before, first=not i)
        if whole:
            self._check_start(files[0][0], dict(zip((i for i, _ in files), headers, strict=True)))
        if not self._expected_seen and self._expected is not None:
            wanted = self._expected
            self._bad(
                wanted.segment,
                wanted.records - 1,
                "the head noted outside is not here: tail cut, or an older copy",
            )
        if self._keys and self._signed is None and not self._problems:
            self._bad(files[-1][0], 0, "no checkpoint signed by this key: cannot be trusted")
        problems = tuple(sorted(self._problems, key=lambda bad: (bad.segment, bad.n)))
        return Verification(
            segments=len(files),
            records=self._records,
            ticks=self._ticks,
            head=before,
            signed=self._signed,
            signed_ns=self._signed_ns,
            unsigned=self._unsigned,
            problems=problems,
            notes=tuple(self._notes),
        )

    def _bad(self, segment: int, n: int, text: str) -> None:
        self._problems.append(Problem(segment, n, text))

    def _check_start(self, first: int, headers: Mapping[int, dict[str, Any] | None]) -> None:
        """Segments missing at the front must have been purged, and the purge recorded.

        A purge that was cut short leaves some of the segments that its record names.
        """
        if first == 1:
            return
        for last, digest in self._purged.items():
            previous = (headers.get(last + 1) or {}).get("previous") or {}
            if last >= first - 1 and previous.get("hash") == digest:
                self._notes.append(f"segments before {first} were purged, as recorded")
                return
        self._bad(first, 0, f"segments before {first} are missing and no purge is recorded")

    def _segment(
        self,
        index: int,
        file: Path,
        header: dict[str, Any] | None,
        follower: dict[str, Any] | None,
        before: Head | None,
        first: bool,
    ) -> Head | None:
        """Check one segment; returns its head as the follower should see it."""
        if header is None:
            self._bad(index, 0, why_no_header(file))
            return None
        if header.get("segment") != index:
            self._bad(index, 0, f"file is named {index}, its header says {header.get('segment')}")
            return None
        digest = self._carried_over(index, header, before, first)
        carried = (follower or {}).get("previous") or {}
        records = carried.get("records")
        head, extra = self._walk(index, file, digest, taken_over(follower or {}))
        if extra:
            self._notes.append(f"segment {index}: its last {extra} records stand again in the next")
        if head is not None and records is not None and head.records < records:
            self._bad(index, head.records, f"records up to {records - 1} are missing: tail cut")
            return None
        return head

    def _carried_over(
        self, index: int, header: Mapping[str, Any], before: Head | None, first: bool
    ) -> bytes:
        """Hash the segment goes on from; it must be the end of the segment before."""
        previous = header.get("previous")
        if previous is None:
            if not first or index != 1:
                self._bad(index, 0, "does not continue any segment, but is not the first")
            return ZERO
        if previous.get("hash") is None:
            self._bad(index, 0, f"the chain starts anew: {header.get('text', '')}")
            return ZERO
        digest = bytes.fromhex(previous["hash"])
        if index == 1:
            self._bad(index, 0, "first segment claims one before it")
        elif before is not None and (previous["records"], digest) != (before.records, before.hash):
            self._bad(index, 0, "does not continue the segment before: one of them was replaced")
        return digest

    def _walk(
        self, index: int, file: Path, digest: bytes, until: int | None
    ) -> tuple[Head | None, int]:
        """Recompute the hashes of one segment.

        Returns:
            the head where the next segment should go on, or None after a problem, and the number
            of records beyond it.
        """
        n = 0
        end: Head | None = None
        try:
            with closing(open_readonly(file)) as connection:
                for number, kind, body, stored in connection.execute(
                    "SELECT n, kind, body, hash FROM record ORDER BY n"
                ):
                    if number != n:
                        self._bad(index, n, f"record missing: the next one is {number}")
                        return None, 0
                    if not isinstance(body, bytes) or not isinstance(kind, int):
                        self._bad(index, n, "not a record")
                        return None, 0
                    before, digest = digest, link(digest, index, n, kind, body)
                    if digest != stored:
                        self._bad(index, n, "hash does not match: this record was changed")
                        return None, 0
                    n += 1
                    if until is None or n <= until:
                        end = Head(index, n, digest)
                        self._records += 1
                        try:
                            self._count(index, n, kind, body, before, digest)
                        except _NOT_SAID_BY_US as error:
                            self._bad(index, n - 1, f"was not written by this program: {error}")
        except (sqlite3.Error, JournalError, ValueError, OverflowError, struct.error) as error:
            self._bad(index, n, f"cannot be read: {error}")
            return None, 0
        return end, n - end.records if end else 0

    def _count(
        self, index: int, n: int, kind: int, body: bytes, before: bytes, digest: bytes
    ) -> None:
        """Note what a good record says about the chain itself."""
        self._unsigned += 1
        if kind == Kind.TICK:
            self._ticks += 1
        elif kind == Kind.EVENT:
            event = load_json(body)
            if event.get("event") == "JournalPurge":
                data = event["data"]
                self._purged[int(data["last_segment"])] = str(data["last_hash"])
        elif kind == Kind.CHECKPOINT and self._keys:
            self._checkpoint(Head(index, n - 1, before), load_json(body))
        wanted = self._expected
        if wanted is not None and (index, n) == (wanted.segment, wanted.records):
            self._expected_seen |= digest.startswith(wanted.hash)

    def _checkpoint(self, signed: Head, told: Mapping[str, Any]) -> None:
        """A signature under everything before it, by one of the keys."""
        signature, message = bytes.fromhex(told["signature"]), checkpoint_message(signed)
        for key in self._keys:
            with suppress(InvalidSignature):
                key.verify(signature, message)
                self._signed, self._signed_ns = signed, int(told["wall_ns"])
                self._unsigned = 0
                return
        self._bad(signed.segment, signed.records, "checkpoint is not signed by this key")


def why_no_header(file: Path) -> str:
    """What is wrong with a segment whose header cannot be had."""
    try:
        with closing(open_readonly(file)) as connection:
            read_header(connection)
    except JournalError as error:
        text = str(error).removeprefix(f"segment {file}: ")
        return text if text.startswith("header") else f"header cannot be read: {text}"
    return "header cannot be read"


def _try_header(file: Path) -> dict[str, Any] | None:
    try:
        with closing(open_readonly(file)) as connection:
            return read_header(connection)
    except JournalError:
        return None


def last_rows(connection: sqlite3.Connection, count: int) -> list[tuple[int, int, bytes, bytes]]:
    """The last `count` + 1 rows (n, kind, body, hash) in ascending order."""
    rows = connection.execute(
        "SELECT n, kind, body, hash FROM record ORDER BY n DESC LIMIT ?", (count + 1,)
    ).fetchall()
    return rows[::-1]


def describe_problem(verification: Verification, compared: bool = False) -> str:
    """For people: the first bad record; or the head, and what nobody can tell without another.

    Args:
        verification: what was found.
        compared: was a head given that had been noted elsewhere?
    """
    if verification.ok:
        text = (
            f"{verification.records} records ({verification.ticks} ticks) in "
            f"{verification.segments} segments: chain intact"
        )
        head = verification.head
        if head is None:
            return text
        place = f"{head.segment}:{head.records}:{head.hash.hex()}"
        told = (
            "the head that was noted elsewhere is in it"
            if compared
            else "whether its end was cut off, only an end noted elsewhere tells: "
            "journal verify --head SEGMENT:RECORDS:HASH"
        )
        return f"{text}\n{_signed_words(verification)}head {place}: note it elsewhere\n{told}"
    return f"first bad record: {verification.problems[0]}"


def _signed_words(verification: Verification) -> str:
    """A line about the last signature that holds; empty where none was asked about."""
    signed, signed_ns = verification.signed, verification.signed_ns
    if signed is None or signed_ns is None:
        return ""
    when = datetime.fromtimestamp(signed_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    return (
        f"signed up to {signed.segment}:{signed.records}, last at {when}; "
        f"{verification.unsigned} records behind it are not signed yet\n"
    )


def as_json(verification: Verification) -> dict[str, Any]:
    """The result as JSON data."""
    data = asdict(verification)
    for place in ("head", "signed"):
        if data[place] is not None:
            data[place]["hash"] = data[place]["hash"].hex()
    return data | {"ok": verification.ok}
