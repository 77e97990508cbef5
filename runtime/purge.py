"""The oldest segments beyond a limit: first it is recorded that they go, then they go.

The record names the last of them and its hash, which the first that stays carries on from. So
`verify` tells a purge from a theft. How old records are is no limit of its own: a wrong clock
would delete a year of them at its first tick.
"""

import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steadyhand.controllers.errors import JournalError
from steadyhand.runtime import chain
from steadyhand.runtime.chain import Head, Kind
from steadyhand.runtime.recorder import Event
from steadyhand.runtime.segment import Segment, resume


@dataclass(frozen=True, slots=True)
class Doomed:
    """Segments that are to be deleted, oldest first."""

    files: tuple[tuple[int, Path], ...] = ()
    size: int = 0
    """Bytes."""

    def record(self) -> bytes:
        """Body of the event that must be on disk before they go.

        Raises:
            JournalError, sqlite3.Error, IndexError: the last of them cannot be read.
        """
        last, file = self.files[-1]
        with closing(chain.open_readonly(file)) as connection:
            digest = chain.last_rows(connection, 0)[-1][3].hex()
        data = {"last_segment": last, "last_hash": digest, "count": len(self.files)}
        return own_event("JournalPurge", data)

    def delete(self) -> None:
        """Delete them.

        Raises:
            OSError: some are left; the next purge takes them.
        """
        for _, path in self.files:
            path.unlink()
            for beside in chain.companions(path):
                beside.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Purged:
    """What a purge by hand did."""

    segments: int
    size: int
    """Bytes that were freed."""
    head: Head
    """Where the chain ends now."""


def own_event(name: str, data: dict[str, Any]) -> bytes:
    """Body of an event of the journal itself."""
    return chain.dump_json(Event(time.monotonic_ns(), time.time_ns(), -1, name, data))


def beyond(directory: Path, keep_bytes: float) -> Doomed:
    """The oldest segments of a journal, so many that what stays has at most `keep_bytes`.

    The newest always stays, and is not counted: it grows.

    Raises:
        JournalError, OSError: the folder cannot be read.
    """
    segments = chain.segment_paths(directory)[:-1]
    sizes = [path.stat().st_size for _, path in segments]
    excess, doomed, size = sum(sizes) - keep_bytes, [], 0
    for segment, bytes_ in zip(segments, sizes, strict=True):
        if size >= excess:
            break
        size += bytes_
        doomed.append(segment)
    return Doomed(tuple(doomed), size)


def purge_by_hand(directory: Path, keep_bytes: float) -> Purged:
    """Delete the oldest segments of a journal that nobody writes; hold its lock meanwhile.

    The record of it gets a segment of its own at the end of the chain. On a disk so full that
    there is no room for it, the oldest segment makes that room.

    Args:
        directory: of the journal.
        keep_bytes: what may stay, beside the newest segment.

    Raises:
        JournalError: the chain cannot be carried on.
        OSError, sqlite3.Error: something cannot be read, written or deleted.
    """
    doomed = beyond(directory, keep_bytes)
    end = resume(directory)
    if not doomed.files or end.previous is None or end.previous.get("hash") is None:
        if doomed.files:
            raise JournalError(f"journal {directory}: its end cannot be read: {end.text}")
        previous = end.previous or {}
        digest = bytes.fromhex(previous.get("hash") or "")
        return Purged(0, 0, Head(end.index, int(previous.get("records") or 0), digest))
    with closing(chain.open_readonly(chain.segment_path(directory, end.index))) as connection:
        header = chain.read_header(connection)
    about = {name: header.get(name) for name in ("layout", "config_hash", "bundle", "run")}
    about |= {"reason": end.reason, "text": "purged by hand"}
    body = doomed.record()
    try:
        segment = Segment(directory, end.index + 1, end.previous, about)
    except (*chain.UNREADABLE, OSError):
        Doomed(doomed.files[:1]).delete()
        doomed = Doomed(doomed.files[1:], doomed.size)
        segment = Segment(directory, end.index + 1, end.previous, about)
    segment.append([(Kind.EVENT, body), (Kind.EVENT, own_event("JournalClosed", {}))])
    doomed.delete()
    segment.seal()
    return Purged(int(chain.load_json(body)["data"]["count"]), doomed.size, segment.head)
