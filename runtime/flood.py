"""When everything fails at once, a person still has to be able to read: so many lines a minute of
each kind, the newest never lost, the rest counted.
"""

import logging
import time
from collections import deque
from collections.abc import Callable

MOST, WINDOW_S = 10, 60.0
"""Lines of one kind, and in how many seconds."""
KINDS = 256
"""Kinds that are remembered; what comes from outside must not fill the memory."""


class _Kind:
    """What was written of one kind, and what was not."""

    __slots__ = ("left_out", "refused", "written")

    def __init__(self) -> None:
        self.written: deque[float] = deque()
        self.left_out = 0
        self.refused: object = None


class Flood:
    """Counts lines by kind. For one thread."""

    def __init__(
        self,
        most: int = MOST,
        window_s: float = WINDOW_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with nothing written.

        Args:
            most: lines of one kind in `window_s`.
            window_s: see `most`.
            monotonic: the clock.
        """
        self._most, self._window_s, self._monotonic = most, window_s, monotonic
        self._kinds: dict[str, _Kind] = {}

    def admit(self, kind: str, what: object = None) -> int | None:
        """May one more line of `kind` be written? Then how many were left out before it; else None.

        Args:
            kind: of the line, such as a reason code.
            what: it says; what is asked for again and again until it may is one line left out.
        """
        now_s = self._monotonic()
        found = self._kinds.pop(kind, None) or _Kind()
        self._kinds[kind] = found  # the last one in line is the one asked for last
        if len(self._kinds) > KINDS:
            self._kinds.pop(next(iter(self._kinds)))
        while found.written and now_s - found.written[0] >= self._window_s:
            found.written.popleft()
        if len(found.written) >= self._most:
            if what is None or what != found.refused:
                found.left_out += 1
            found.refused = what
            return None
        found.written.append(now_s)
        # what waited and may now be written was not left out
        left_out = found.left_out - (what is not None and what == found.refused)
        found.left_out, found.refused = 0, None
        return left_out


class FloodFilter(logging.Filter):
    """The same for what parts and libraries log: a kind is a logger and the text of a call."""

    def __init__(self, flood: Flood | None = None) -> None:
        super().__init__()
        self._flood = flood or Flood()

    def filter(self, record: logging.LogRecord) -> bool:
        """Is it written? One that is, after others were left out, says how many."""
        left_out = self._flood.admit(f"{record.name}: {record.msg}")
        if left_out is None:
            return False
        if left_out:
            try:
                text = record.getMessage()
            except (TypeError, ValueError):  # somebody's % did not fit: told by whoever writes it
                return True
            record.msg, record.args = f"{text} (and {left_out} like it before)", ()
        return True
