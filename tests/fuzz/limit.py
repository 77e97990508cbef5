"""No input may take longer than a second on the wall: a wait that is blocked costs no time of the
processor. A busy machine looks the same, so an input counts only if it takes too long every time.
"""

import signal
from collections.abc import Callable

LIMIT_S = 1.0
TRIES = 3


class _Ring(KeyboardInterrupt):
    """The time is over. No target may swallow it, and this alone is what asyncio lets through."""


class TooSlowError(AssertionError):
    """An input took too long each time it was tried."""


def within(run: Callable[[bytes], None], data: bytes, limit_s: float = LIMIT_S) -> None:
    """Run one input. Main thread only, and nobody else may use SIGALRM meanwhile.

    Raises:
        TooSlowError: see there.
    """
    before = signal.signal(signal.SIGALRM, _ring)
    try:
        for _ in range(TRIES):
            try:
                signal.setitimer(signal.ITIMER_REAL, limit_s)
                run(data)
                signal.setitimer(signal.ITIMER_REAL, 0.0)
            except _Ring:
                continue
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0.0)
            return
    finally:
        signal.signal(signal.SIGALRM, before)
    raise TooSlowError(f"longer than {limit_s:g} s, {TRIES} times")


def _ring(*_: object) -> None:
    raise _Ring
