"""Threads of ours: nothing but the end of the process, or of its work, ends one in silence.

    work raises ─► told: TASK_DIED, its stack in the log, an alarm ─► mended ─► begun anew

A thread that dies unseen is worse than a crash: the loop goes on, and something that everybody
relies on does not. So every thread of the runtime is a `Guarded`. What breaks it, were it an error
that no sound program has, is told in one place, the `Deaths`; where its work can be begun again it
is, after a pause.
"""

import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Self

from steadyhand.controllers.frames import Fault
from steadyhand.controllers.reasons import ReasonCode

PAUSE_S = 1.0
STANDS_S = 600.0
"""So long the alarm stands after a death that was mended: long enough to be seen."""


class Guarded(threading.Thread):
    """A daemon thread whose death is told."""

    def __init__(
        self,
        work: Callable[[], object],
        name: str,
        *,
        until: threading.Event | None = None,
        lasting: bool = False,
        mend: Callable[[BaseException], object] = lambda error: None,
        pause_s: float = PAUSE_S,
    ) -> None:
        """Name the work; `start` begins it.

        Args:
            work: what the thread does; its return is the thread's orderly end.
            name: of the thread.
            until: set when the work is to end: it is begun again until then. None: its death is
                the thread's.
            lasting: does work that is not begun again leave something undone for good? Then its
                alarm stands until the process ends.
            mend: called with what broke the work, before it is begun again.
            pause_s: between a death and the next beginning.
        """
        super().__init__(name=name, daemon=True)
        self._work, self._until, self._mend, self._pause_s = work, until, mend, pause_s
        self._lasting = lasting

    def run(self) -> None:
        """Work; whatever breaks it is told."""
        while True:
            try:
                self._work()
            except BaseException as error:  # noqa: BLE001  (nothing else would ever tell of it)
                again = self._until is not None and not self._until.is_set()
                deaths.tell(self.name, error, again, self._lasting)
                if self._until is None or not again:
                    return
                with suppress(Exception):  # what cannot be mended dies again, and is told again
                    self._mend(error)
                if self._until.wait(self._pause_s):
                    return
            else:
                return


@dataclass(frozen=True, slots=True)
class Death:
    """One thread that died."""

    name: str
    text: str
    trace: str
    """Its stack."""
    until_s: float
    """Its alarm stands until this monotonic time."""


class Deaths:
    """What has died, for the list of alarms, the metrics and whoever listens. One per process."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Nothing has died yet.

        Args:
            monotonic: clock of how long an alarm stands.
        """
        self.count = 0
        """Deaths so far."""
        self._monotonic = monotonic
        self._last: dict[str, Death] = {}
        self._listeners: list[Callable[[Death], object]] = []
        self._lock = threading.Lock()

    def tell(self, name: str, error: BaseException, again: bool, lasting: bool = False) -> None:
        """A thread died of `error`. Never raises and never waits, where somebody listens.

        Args:
            name: of the thread.
            error: what ended it.
            again: is its work begun again?
            lasting: if not, is something undone for good?
        """
        trace = "".join(traceback.format_exception(error)).rstrip()
        after = "begun again" if again else "it is not begun again"
        text = f"{name}: {type(error).__name__}: {error}; {after}"
        stands_s = inf if lasting and not again else STANDS_S
        death = Death(name, text, trace, self._monotonic() + stands_s)
        with self._lock:
            self.count += 1
            self._last[name] = death
            listeners = [*self._listeners]
        for listener in listeners:
            with suppress(Exception):
                listener(death)
        if not listeners:
            with suppress(OSError, ValueError):  # a log that is gone is no reason to stop
                sys.stderr.write(f"steadyhand: TASK_DIED: {text}\n{trace}\n")

    def faults(self) -> Iterator[Fault]:
        """What is dead, or died a short time ago."""
        with self._lock:
            found = [*self._last.values()]
        for death in found:
            if self._monotonic() < death.until_s:
                yield Fault(ReasonCode.TASK_DIED, text=death.text)

    def listen(self, listener: Callable[[Death], object]) -> "Listening":
        """Have `listener` called for each death, in the thread that died, until it is closed."""
        with self._lock:
            self._listeners.append(listener)
        return Listening(self, listener)

    def drop(self, listener: Callable[[Death], object]) -> None:
        """Call `listener` no more, and forget what died: whoever listened has ended."""
        with self._lock:
            self._listeners.remove(listener)
            self._last.clear()


class Listening:
    """A listener that is called until this is closed."""

    def __init__(self, deaths: Deaths, listener: Callable[[Death], object]) -> None:
        self._deaths, self._listener = deaths, listener
        self._open = True

    def close(self) -> None:
        """No more. Idempotent."""
        if self._open:
            self._open = False
            self._deaths.drop(self._listener)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


deaths = Deaths()
"""Of this process."""
