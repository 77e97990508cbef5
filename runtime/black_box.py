"""The last ticks in memory that outlives the process.

The journal writes every 30 ms; what a kill cuts off before that stands here, in pages of a file
that the kernel keeps. Written, not mapped: in a mapping, a file that somebody cuts short would kill
the process. The next start carries it over into the journal, as records of the run that made it.
Power cuts are not its business: what the journal has acknowledged is on disk.

Put the file on a memory file system (`/run`): then no disk can ever hold up the tick.
"""

import contextlib
import os
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steadyhand.controllers.errors import SteadyhandError
from steadyhand.runtime import chain
from steadyhand.runtime.bundle.archive import read_file
from steadyhand.runtime.segment import TICK_HEAD

SLOTS = 256
SLOT_BYTES = 4096
HEAD_BYTES = 65_536
_MAX_BYTES = 16 * (HEAD_BYTES + SLOTS * SLOT_BYTES)
_LENGTH = struct.Struct("<I")
_SLOT = struct.Struct("<II")
"""CRC-32 and length of the body behind it: a slot that was being written is not taken for one."""


@dataclass(frozen=True, slots=True)
class Left:
    """What a run left behind."""

    about: dict[str, Any]
    """Layout, configuration, bundle and name of that run."""
    ticks: tuple[bytes, ...]
    """Bodies of its last ticks, oldest first."""

    def since(self, sequence: int) -> "Left | None":
        """The ticks from number `sequence` on without a gap; None when there are none."""
        found = {TICK_HEAD.unpack_from(body)[0]: body for body in self.ticks}
        ticks: list[bytes] = []
        while sequence + len(ticks) in found:
            ticks.append(found[sequence + len(ticks)])
        return Left(self.about, tuple(ticks)) if ticks else None


class BlackBox:
    """A ring of tick records in a file. One writer, the loop thread."""

    def __init__(self, file: Path, about: Mapping[str, Any]) -> None:
        """Make the file anew, every page of it there.

        Args:
            file: replaced if it exists.
            about: what the header of a journal segment says of this run.

        Raises:
            OSError: the file cannot be made, or `about` is too long.
        """
        head = chain.dump_json(about)
        if len(head) > HEAD_BYTES - _LENGTH.size:
            raise OSError(f"{file}: {len(head)} bytes about a run do not fit")
        self.file = file
        self.fault = ""
        """Why ticks are not kept any more; empty: they are."""
        with contextlib.suppress(FileNotFoundError):
            file.unlink()
        size = HEAD_BYTES + SLOTS * SLOT_BYTES
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(file, flags, 0o600)
        try:
            os.posix_fallocate(self._descriptor, 0, size)  # no disk can be too full later
            os.pwrite(self._descriptor, _LENGTH.pack(len(head)) + head, 0)
        except OSError:
            os.close(self._descriptor)
            file.unlink()
            raise

    def put(self, sequence: int, body: bytes) -> None:
        """Keep one tick; a record longer than a slot is left to the journal alone."""
        size = len(body)
        if size <= SLOT_BYTES - _SLOT.size:
            at = HEAD_BYTES + sequence % SLOTS * SLOT_BYTES
            try:
                os.pwrite(self._descriptor, _SLOT.pack(zlib.crc32(body), size) + body, at)
            except OSError as error:
                self.fault = str(error)

    def close(self) -> None:
        """Everything is in the journal: take it away."""
        os.close(self._descriptor)
        with contextlib.suppress(OSError):
            self.file.unlink()


def left_behind(file: Path, sequence: int) -> Left | None:
    """The ticks from number `sequence` on without a gap; None when there are none."""
    left = all_left(file)
    return None if left is None else left.since(sequence)


def all_left(file: Path) -> Left | None:
    """Every tick that is in the file; None when there is none.

    What cannot be read is no reason not to start: then there is none.
    """
    try:
        data = read_file(file, max_bytes=_MAX_BYTES)
        (length,) = _LENGTH.unpack_from(data)
        about = chain.load_json(data[_LENGTH.size : _LENGTH.size + length])
    except (SteadyhandError, OSError, ValueError, RecursionError, struct.error):
        return None
    found: dict[int, bytes] = {}
    for at in range(HEAD_BYTES, len(data) - SLOT_BYTES + 1, SLOT_BYTES):
        crc, size = _SLOT.unpack_from(data, at)
        body = data[at + _SLOT.size : at + _SLOT.size + size]
        if TICK_HEAD.size <= size == len(body) and zlib.crc32(body) == crc:
            found[TICK_HEAD.unpack_from(body)[0]] = body
    if not found or not isinstance(about, dict):
        return None
    return Left(about, tuple(found[number] for number in sorted(found)))
