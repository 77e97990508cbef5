"""What `run` says on standard error while it runs: who drives, why, what to do, at each change.

`journalctl -u steadyhand@plant` shows these lines. Nobody waits for the terminal or the service
manager that takes them: a thread of its own writes, at most one line a second, the newest.
"""

import os
import threading
import time
from contextlib import suppress
from typing import Self

from steadyhand.runtime.health import printable

EVERY_S = 1.0
"""Least time between two lines; what changes faster stands in the journal."""
LENGTH = 400
LAST_S = 0.5
"""Longest wait for the last line at the end."""


class Notices:
    """One line for each change. Never raises and never waits. Use as a context manager."""

    def __init__(self, descriptor: int = 2, every_s: float = EVERY_S) -> None:
        """Start the thread.

        Args:
            descriptor: where to; not a Python stream, because whoever waits in one keeps its lock
                from all others, and from the end of the process.
            every_s: least time between two lines.
        """
        self._descriptor = descriptor
        self._every_s = every_s
        self._about: object = None
        self._text, self._passed_over = "", 0
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._write, name="notices", daemon=True)
        self._thread.start()

    def tell(self, about: object, text: str) -> None:
        """Write `text`, unless the line before was `about` the same."""
        if about == self._about:
            return
        self._about = about
        with self._changed:
            self._passed_over += bool(self._text)
            self._text = f"{time.strftime('%H:%M:%SZ', time.gmtime())} {printable(text, LENGTH)}"
            self._changed.notify()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Write what is left, as far as somebody takes it at once."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(LAST_S)

    def _write(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._text or self._closed)
                text, passed_over = self._text, self._passed_over
                self._text, self._passed_over = "", 0
            if not text:
                return
            more = f" (and {passed_over} changes before)" if passed_over else ""
            with suppress(OSError):  # a terminal that is gone is no reason to stop
                os.write(self._descriptor, f"{text}{more}\n".encode())
            with self._changed:
                self._changed.wait_for(lambda: self._closed, self._every_s)
