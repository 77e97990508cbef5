"""Memory that another process comes to hold, for real, and without a word of its program.

    maps: stacks of threads ─► their lower halves, never reached ─► one zero written to each page

A page that was never touched reads as zeros; a zero written to it changes nothing but that the
kernel now has to give it. Needs the right to write into the process (root).
"""

import mmap
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

PAGE = mmap.PAGESIZE
EVERY_S = 0.25
"""Between two steps of what grows steadily."""
STACK_LEAST = 1 << 20
"""A mapping behind a guard page that is so large is the stack of a thread."""
_PRESENT = 1 << 63
"""In /proc/PID/pagemap."""


def untouched(pid: int) -> Iterator[int]:
    """Addresses of pages of `pid` that it may write to, and never has."""
    with Path(f"/proc/{pid}/pagemap").open("rb", buffering=0) as pagemap:
        for low, high in _stacks(pid):
            pages = (high - low) // 2 // PAGE
            pagemap.seek(low // PAGE * 8)
            entries = memoryview(pagemap.read(pages * 8)).cast("Q")
            yield from (low + i * PAGE for i, entry in enumerate(entries) if not entry & _PRESENT)


def _stacks(pid: int) -> Iterator[tuple[int, int]]:
    guard = 0
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        span, rights, *_ = line.split()
        low, high = (int(word, 16) for word in span.split("-"))
        if rights == "rw-p" and low == guard and high - low >= STACK_LEAST:
            yield low, high
        guard = high if rights == "---p" and high - low == PAGE else 0


def touch(pid: int, n_bytes: int) -> int:
    """Make `pid` hold so many bytes more; how many it became: fewer where there are no more."""
    pages = untouched(pid)
    done = 0
    with Path(f"/proc/{pid}/mem").open("r+b", buffering=0) as memory:
        for address in pages:
            if done >= n_bytes:
                break
            os.pwrite(memory.fileno(), b"\0", address)
            done += PAGE
    return done


class Growth:
    """A process that holds more and more, steadily, until this is closed."""

    def __init__(self, pid: int, bytes_per_s: float) -> None:
        self._pid, self._bytes_per_s = pid, bytes_per_s
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._grow, name="growth")
        self._thread.start()

    def _grow(self) -> None:
        began_s, grown = time.monotonic(), 0
        while not self._end.wait(EVERY_S):
            due = int(self._bytes_per_s * (time.monotonic() - began_s)) - grown
            grown += touch(self._pid, due)

    def close(self) -> None:
        """No more from now on."""
        self._end.set()
        self._thread.join()
