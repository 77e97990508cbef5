"""What becomes of memory that is not needed any more: collected between ticks, never in one.

What is there when the loop begins is frozen: it stays, and nobody goes through it again. After each
tick the young generation goes. What outlived that (a bundle that was exchanged, a session with the
plant that ended) goes once a minute, in a gap that is long enough.
"""

import ctypes
import gc
import time
from collections.abc import Callable

EVERY_S = 60.0
ROOM = 4.0
"""So many times as long as the last full collection took must be left until the next tick."""
FIRST_S = 5e-3
"""What the first one is expected to take."""
ARENAS = 2
_M_ARENA_MAX = -8
"""Of glibc's malloc.h."""


def share_arenas() -> None:
    """Let all threads take native memory from `ARENAS` places; call it before there are threads.

    glibc makes a place for each, up to eight per core, and what lies free in one is of no use to
    the next thread: every exchange of a bundle, made ready in a thread of its own, left some
    behind. Another C library than glibc goes on as it does.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, ARENAS)


class Garbage:
    """Collects between ticks. Use as a context manager around the loop."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Read `monotonic` for the time."""
        self._monotonic = monotonic
        self._next_s = monotonic() + EVERY_S
        self._took_s = FIRST_S

    def __enter__(self) -> "Garbage":
        gc.collect()
        gc.freeze()
        gc.disable()
        return self

    def __exit__(self, *_: object) -> None:
        gc.enable()

    def collect(self, until_s: float) -> None:
        """Collect what there is time for.

        Args:
            until_s: monotonic time of the next tick. A loop so fast that there is never room for a
                full collection keeps what its young one leaves.
        """
        gc.collect(0)
        now_s = self._monotonic()
        if now_s < self._next_s or until_s - now_s < ROOM * self._took_s:
            return
        gc.collect()
        ended_s = self._monotonic()
        self._took_s, self._next_s = ended_s - now_s, ended_s + EVERY_S
