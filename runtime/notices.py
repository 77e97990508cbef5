"""What `run` says on standard error while it runs: who drives, why, what to do, at each change.

`journalctl -u steadyhand@plant` shows these lines, with `-p warning` the loud ones. Nobody waits
for the terminal or the service manager that takes them: one thread writes, and it alone. What it
cannot get rid of is left out.
"""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from steadyhand.runtime.guard import Guarded
from steadyhand.runtime.health import printable
from steadyhand.runtime.priority import Priority, marked, to_journal

EVERY_S = 1.0
"""Least time between two changes that are told; what changes faster stands in the journal."""
LENGTH = 400
MOST_LINES = 100
"""Lines that wait to be written; newer ones push older ones out."""
_PRIORITIES = {
    logging.WARNING: Priority.WARNING,
    logging.ERROR: Priority.ERROR,
    logging.CRITICAL: Priority.CRITICAL,
}
LAST_S = 0.5
"""Longest wait for the last line at the end."""


class Notices(logging.Handler):
    """Lines for standard error. Never raises and never waits. Use as a context manager.

    Meanwhile it also takes what parts and libraries log as warnings or worse.
    """

    def __init__(
        self, descriptor: int = 2, every_s: float = EVERY_S, *, quiet: bool = False
    ) -> None:
        """Start the thread.

        Args:
            descriptor: where to; not a Python stream, because whoever waits in one keeps its lock
                from all others, and from the end of the process.
            every_s: least time between two changes that are told.
            quiet: changes are not told.
        """
        super().__init__(logging.WARNING)
        self._descriptor, self._every_s, self._quiet = descriptor, every_s, quiet
        self._journal = to_journal(descriptor)
        self._about: object = None
        self._change, self._passed_over = "", 0
        self._loudest = Priority.INFO
        """Of the changes that wait to be told, and of those passed over for them."""
        self._lines: deque[str] = deque(maxlen=MOST_LINES)
        self._news = threading.Condition()
        self._closed = False
        self._ended = threading.Event()
        self._thread = Guarded(self._write, "notices", until=self._ended)
        self._thread.start()

    def say(self, text: str, priority: Priority = Priority.INFO) -> None:
        """Write `text`, one line or several."""
        with self._news:
            self._lines.append(marked(text, priority, self._journal))
            self._news.notify()

    def tell(
        self, about: object, text: Callable[[], str], priority: Priority = Priority.INFO
    ) -> None:
        """Write what `text` says, unless the change before was `about` the same."""
        if about == self._about or self._quiet:
            return
        self._about = about
        line = f"{_stamp()} {printable(text(), LENGTH)}"
        with self._news:
            self._passed_over += bool(self._change)
            self._change = line
            self._loudest = min(self._loudest, priority)
            self._news.notify()

    def emit(self, record: logging.LogRecord) -> None:
        """Take a line of the log; a stack trace keeps its lines."""
        try:
            text = self.format(record)
        except Exception as error:  # noqa: BLE001  (somebody's % did not fit: that is told instead)
            text = f"{record.msg!r} cannot be formatted: {error}"
        lines = [printable(line, LENGTH) for line in text.splitlines()]
        loud = _PRIORITIES.get(record.levelno, Priority.ERROR)
        self.say(f"{_stamp()} {record.name}: " + "\n    ".join(lines), loud)

    def __enter__(self) -> Self:
        logging.getLogger().addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        """Write what is left, as far as somebody takes it at once."""
        logging.getLogger().removeHandler(self)
        with self._news:
            self._closed = True
            self._ended.set()
            self._news.notify()
        self._thread.join(LAST_S)

    def _write(self) -> None:
        next_s = 0.0
        while True:
            with self._news:
                while not (self._lines or self._closed):
                    left_s = next_s - time.monotonic() if self._change else None
                    if left_s is not None and left_s <= 0.0:
                        break
                    self._news.wait(left_s)
                lines = [*self._lines]
                self._lines.clear()
                if self._change and (self._closed or time.monotonic() >= next_s):
                    more = f" (and {self._passed_over} changes before)" * bool(self._passed_over)
                    lines.append(marked(self._change + more, self._loudest, self._journal))
                    self._change, self._passed_over = "", 0
                    self._loudest = Priority.INFO
                    next_s = time.monotonic() + self._every_s
            if lines:
                with suppress(OSError):  # a terminal that is gone is no reason to stop
                    os.write(self._descriptor, ("\n".join(lines) + "\n").encode())
            elif self._closed:
                return


def _stamp() -> str:
    return time.strftime("%H:%M:%SZ", time.gmtime())
