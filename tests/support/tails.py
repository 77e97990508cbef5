"""What a kill cut off in the middle: read from the files as they lie there, before the next start.

The journal's writer is one thread, and what it was writing is a transaction behind the last commit
of a segment's WAL, or a segment whose name it had not been given. The black box has one writer, the
loop's thread, and one slot that it was writing. So a kill can cut off one tail of each, no more.
"""

import struct
import zlib
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from steadyhand.controllers.errors import JournalError
from steadyhand.runtime import chain
from steadyhand.runtime.black_box import _SLOT, HEAD_BYTES, SLOT_BYTES
from steadyhand.runtime.chain import Head

_WAL_HEAD = struct.Struct(">IIIIIIII")
"""https://www.sqlite.org/fileformat2.html#the_write_ahead_log: magic, format, page size, checkpoint
number, two salts, two checksums."""
_FRAME_HEAD = struct.Struct(">IIIIII")
"""Page number, pages of the database if this frame commits (else 0), the two salts, checksums."""


@dataclass(frozen=True, slots=True)
class Tails:
    """What has to be thrown away at the next start."""

    transactions: int = 0
    """Transactions without their commit, over all segments."""
    segments: int = 0
    """Segments that were being made and hold no record."""
    slots: int = 0
    """Slots of the black box whose checksum does not fit."""

    @property
    def journal(self) -> int:
        """Of the journal's one writer."""
        return self.transactions + self.segments


def tails(directory: Path, box: Path | None = None) -> Tails:
    """Look at a journal, and the black box beside it, whose writer is dead."""
    return Tails(
        sum(uncommitted(file) > 0 for file in directory.glob(f"*{chain.SUFFIX}-wal")),
        len(list(directory.glob(f"*{chain.SUFFIX}.new"))),
        0 if box is None or not box.exists() else torn_slots(box.read_bytes()),
    )


def uncommitted(wal: Path) -> int:
    """Bytes behind the last commit of a WAL that belong to what was being written.

    Frames with other salts are left over from before the last checkpoint, and no tail.
    """
    data = wal.read_bytes()
    if len(data) < _WAL_HEAD.size:
        return len(data)
    _, _, page, _, *salts, _, _ = _WAL_HEAD.unpack_from(data)
    at = end = _WAL_HEAD.size
    while at + _FRAME_HEAD.size <= len(data):
        _, commits, *rest = _FRAME_HEAD.unpack_from(data, at)
        if rest[:2] != salts:
            break
        at += _FRAME_HEAD.size + page
        if commits and at <= len(data):
            end = at
    return min(at, len(data)) - end


def torn_slots(data: bytes) -> int:
    """Slots of a black box that were being written."""
    torn = 0
    for at in range(HEAD_BYTES, len(data) - SLOT_BYTES + 1, SLOT_BYTES):
        crc, size = _SLOT.unpack_from(data, at)
        body = data[at + _SLOT.size : at + _SLOT.size + size]
        torn += (crc, size) != (0, 0) and (len(body) < size or zlib.crc32(body) != crc)
    return torn


def acknowledged(directory: Path) -> Head | None:
    """The last record that a reader can see now; None when there is none to be seen.

    The writer shows a transaction to readers after it has synced it, so this one is on disk.
    """
    try:
        index, file = chain.segment_paths(directory)[-1]
        with closing(chain.open_readonly(file)) as connection:
            row = connection.execute("SELECT n, hash FROM record ORDER BY n DESC LIMIT 1")
            n, digest = row.fetchone()
    except (JournalError, TypeError, *chain.UNREADABLE):
        return None  # it is being made, or taken away
    return Head(index, n + 1, digest)


def lost(directory: Path, heads: list[Head]) -> list[Head]:
    """Which of these records are not there any more, or are other ones."""
    files, gone = dict(chain.segment_paths(directory)), []
    for head in heads:
        with closing(chain.open_readonly(files[head.segment])) as connection:
            asked = "SELECT hash FROM record WHERE n = ?"
            found = connection.execute(asked, (head.records - 1,)).fetchone()
        if found is None or found[0] != head.hash:
            gone.append(head)
    return gone
