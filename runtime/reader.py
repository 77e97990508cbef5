"""Read a journal, also while its writer is at work; nothing here can write.

with JournalReader(Path("var/journal")) as journal:
    for tick in journal.ticks(): ...
"""

import json
import sqlite3
import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from steadyhand.controllers.errors import JournalError
from steadyhand.controllers.signals import SignalSet
from steadyhand.runtime import chain
from steadyhand.runtime.chain import Entry, Kind, plain
from steadyhand.runtime.record import DAMAGED, RecordLayout, TickRecord
from steadyhand.runtime.segment import TICK_HEAD

_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class EventRecord:
    """One event as it stands in the journal."""

    event: str
    """Its name."""
    tick: int
    """Number of the tick that follows or contains it; -1 for events of the journal itself."""
    monotonic_ns: int
    wall_ns: int
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """One segment and what its header says."""

    index: int
    file: Path
    header: dict[str, Any]
    layout: RecordLayout
    until: int | None
    """Records from here on stand again in the next segment; None when all count."""


class JournalReader:
    """Read-only view of all segments of a journal."""

    def __init__(self, path: Path) -> None:
        """Read the headers; a damaged segment is left out, and stands in `unreadable`.

        Args:
            path: directory of the journal, or one segment.

        Raises:
            JournalError: there is none that can be read.
        """
        headers: list[tuple[int, Path, dict[str, Any], RecordLayout]] = []
        unreadable = {}
        for index, file in chain.segment_paths(path):
            try:
                with closing(chain.open_readonly(file)) as connection:
                    header = chain.read_header(connection)
                layout = RecordLayout.from_schema(header.get("layout") or {})
                headers.append((index, file, header, layout))
            except JournalError as error:
                unreadable[index] = str(error)
        if not headers:
            why = "; ".join(f"segment {index}: {text}" for index, text in unreadable.items())
            raise JournalError(f"no segment of {path} can be read: {why}; restore it from a copy")
        self.unreadable = unreadable
        """Why, by number of the segment."""
        self.segments = tuple(
            SegmentInfo(
                index,
                file,
                header,
                layout,
                chain.taken_over(headers[i + 1][2]) if i + 1 < len(headers) else None,
            )
            for i, (index, file, header, layout) in enumerate(headers)
        )

    def __enter__(self) -> "JournalReader":
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing stays open between calls."""

    @property
    def runs(self) -> tuple[str, ...]:
        """Identities of the processes that wrote, oldest first."""
        return tuple(dict.fromkeys(segment.header.get("run", "") for segment in self.segments))

    def entries(
        self, run: str | None = None, kind: Kind | None = None, start_tick: int = 0
    ) -> Iterator[tuple[SegmentInfo, Entry]]:
        """Records in order, raw.

        Args:
            run: of one run only.
            kind: of one kind only.
            start_tick: not before the first tick with this number or a later one.

        Raises:
            JournalError: a segment cannot be read; `verify` names the record.
        """
        for segment in self.segments:
            if run is None or segment.header.get("run") == run:
                yield from self._segment_entries(segment, kind, start_tick)

    def _segment_entries(
        self, segment: SegmentInfo, kind: Kind | None, start_tick: int = 0
    ) -> Iterator[tuple[SegmentInfo, Entry]]:
        until = _MAX if segment.until is None else segment.until
        with closing(chain.open_readonly(segment.file)) as connection:
            n = 0
            try:
                first = _position(connection, start_tick) if start_tick else 0
                for n, found, body, digest in connection.execute(
                    "SELECT n, kind, body, hash FROM record "
                    "WHERE n >= ? AND n < ? AND (? IS NULL OR kind = ?) ORDER BY n",
                    (first, until, kind, kind),
                ):
                    if not isinstance(body, bytes) or not isinstance(digest, bytes):
                        raise ValueError("not a record")  # noqa: TRY004  (of a file)
                    yield segment, Entry(segment.index, n, Kind(found), body, digest)
            except (sqlite3.Error, ValueError, struct.error) as error:
                raise JournalError(
                    f"segment {segment.index}, record {n}: {error}: verify it"
                ) from error

    def items(
        self, run: str | None = None
    ) -> Iterator[tuple[SegmentInfo, TickRecord | EventRecord]]:
        """Ticks and events in order, decoded, each with its segment."""
        for segment, entry in self.entries(run):
            if entry.kind is Kind.TICK:
                yield segment, _decoded(segment, entry)
            elif entry.kind is Kind.EVENT:
                yield segment, _event(entry)

    def ticks(
        self, start: int = 0, stop: int | None = None, run: str | None = None
    ) -> Iterator[TickRecord]:
        """Ticks with start <= sequence < stop, in order; goes to the first by bisection."""
        for segment, entry in self.entries(run, Kind.TICK, start):
            if stop is not None and _number(entry.body) >= stop:
                return
            yield _decoded(segment, entry)

    def events(self, run: str | None = None) -> Iterator[EventRecord]:
        """Events in order."""
        return (_event(entry) for _, entry in self.entries(run, Kind.EVENT))

    def events_backwards(self, segment: SegmentInfo) -> Iterator[EventRecord]:
        """Events of the same run, from the end of `segment` back to the start of the run."""
        run = segment.header.get("run")
        for earlier in reversed(self.segments):
            if earlier.index <= segment.index and earlier.header.get("run") == run:
                found = [_event(entry) for _, entry in self._segment_entries(earlier, Kind.EVENT)]
                yield from reversed(found)

    def tick(self, sequence: int) -> tuple[SegmentInfo, TickRecord]:
        """One tick by its number: a bisection, not a scan.

        Raises:
            JournalError: there is no such tick; the message names the range there is.
        """
        for segment in reversed(self.segments):
            with _opened(segment) as connection:
                row = connection.execute(
                    "SELECT body, n FROM record WHERE n >= ? AND kind = 1 ORDER BY n LIMIT 1",
                    (_position(connection, sequence),),
                ).fetchone()
            if row is not None and _number(row[0]) == sequence:
                return segment, _decoded(
                    segment, Entry(segment.index, row[1], Kind.TICK, row[0], b"")
                )
        first, last = self.span()
        if last < first:
            raise JournalError("there is no tick in the journal yet: run the loop first")
        raise JournalError(f"no tick {sequence} in the journal: it holds {first} to {last}")

    def span(self) -> tuple[int, int]:
        """Numbers of the first and the last tick; (0, -1) when there is none."""
        found = []
        for segment in self.segments:
            with _opened(segment) as connection:
                for order in ("ASC", "DESC"):
                    row = connection.execute(
                        f"SELECT body FROM record WHERE kind = 1 ORDER BY n {order} LIMIT 1"  # noqa: S608
                    ).fetchone()
                    if row is not None:
                        found.append(_number(row[0]))
        return (min(found), max(found)) if found else (0, -1)

    def export_json_lines(self, out: IO[str], run: str | None = None) -> int:
        """Write every tick and event as one JSON object per line; returns the number of lines."""
        count = 0
        for segment, item in self.items(run):
            if isinstance(item, TickRecord):
                line = {"kind": "tick", **tick_as_dict(segment.layout, item)}
            else:
                line = {"kind": "event", **plain(item)}
            out.write(json.dumps(line, ensure_ascii=True, allow_nan=False) + "\n")
            count += 1
        return count


@contextmanager
def _opened(segment: SegmentInfo) -> Iterator[sqlite3.Connection]:
    """A connection to one segment; whatever a damaged one makes of a question is told of it.

    Raises:
        JournalError: it cannot be read.
    """
    try:
        with closing(chain.open_readonly(segment.file)) as connection:
            yield connection
    except (*chain.UNREADABLE, ValueError, OverflowError) as error:
        raise JournalError(f"segment {segment.index}: {error}: verify it") from error


def _event(entry: Entry) -> EventRecord:
    try:
        return EventRecord(**chain.load_json(entry.body))
    except (*DAMAGED, RecursionError) as error:
        where = f"segment {entry.segment}, record {entry.n}"
        raise JournalError(f"{where}: an event is damaged: {error}: verify it") from error


def _decoded(segment: SegmentInfo, entry: Entry) -> TickRecord:
    """The tick of an entry.

    Raises:
        JournalError: the bytes are no tick; the message names the record.
    """
    try:
        return segment.layout.decode(entry.body)
    except JournalError as error:
        raise JournalError(f"segment {entry.segment}, record {entry.n}: {error}") from None


def _number(body: bytes) -> int:
    """Number of the tick behind the bytes of its record.

    Raises:
        JournalError: they are too few.
    """
    try:
        return int(TICK_HEAD.unpack_from(body)[0])
    except (struct.error, TypeError) as error:
        raise JournalError(f"a tick's record is damaged: {error}: verify it") from error


def _position(connection: sqlite3.Connection, sequence: int) -> int:
    """Smallest n from which on ticks are numbered `sequence` or more.

    Ticks ascend within a segment, with events in between.
    """
    row = connection.execute("SELECT max(n) FROM record").fetchone()
    low, high = 0, (row[0] if row and row[0] is not None else -1) + 1
    while low < high:
        middle = (low + high) // 2
        found = connection.execute(
            "SELECT n, substr(body, 1, 16) FROM record "
            "WHERE n >= ? AND kind = 1 ORDER BY n LIMIT 1",
            (middle,),
        ).fetchone()
        if found is None or _number(found[1]) >= sequence:
            high = middle
        else:
            low = int(found[0]) + 1
    return low


def tick_as_dict(layout: RecordLayout, tick: TickRecord) -> dict[str, Any]:
    """A tick as JSON data, vectors by the names of their signals.

    Raises:
        JournalError: the record names rows that there are not.
    """
    try:
        return _as_dict(layout, tick)
    except DAMAGED as error:
        text = f"tick {tick.sequence}: its record is damaged: {error}: verify it"
        raise JournalError(text) from error


def _as_dict(layout: RecordLayout, tick: TickRecord) -> dict[str, Any]:
    report = tick.certified.report if tick.certified else None
    data = plain(tick)
    data["reasons"] = sorted(tick.reasons)
    data["timings"] = dict(zip(layout.stages, plain(tick.timings), strict=True))
    data["wanted"] = _named(layout.outputs, tick.wanted)
    for name in ("values", "age_s"):
        data["observation"][name] = _named(layout.observations, getattr(tick.observation, name))
    quality = tick.observation.quality.tolist()
    data["observation"]["quality"] = dict(zip(layout.observations.names, quality, strict=True))
    data["observation"]["applied"] = _named(layout.outputs, tick.observation.applied)
    for name in ("proposal", "certified", "sent"):
        frame = getattr(tick, name)
        if frame is not None:
            data[name]["action"] = _named(layout.outputs, frame.action)
    if tick.verdict is not None and tick.verdict.scores:
        scores = zip(layout.monitors, plain(tick.verdict.scores), strict=True)
        data["verdict"]["scores"] = dict(scores)
    if report is not None:
        out = data["certified"]["report"]
        for name in ("k", "m", "p_nominal", "p_certified", "multiplier"):
            out[name] = dict(zip(layout.rows, plain(getattr(report, name)), strict=True))
        out["active"] = [layout.rows[i] for i in report.active]
        out["margin_row"] = layout.rows[report.margin_row] if report.margin_row >= 0 else None
    return dict(data)


def _named(signals: SignalSet, vector: Any) -> dict[str, Any]:  # noqa: ANN401  (array)
    return dict(plain(signals.mapping(vector)))
