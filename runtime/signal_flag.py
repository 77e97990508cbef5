"""What a signal handler may set.

A handler runs in the middle of whatever the main thread does, also in the middle of itself: a
second signal while the first is being handled. A `threading.Event` takes a lock to be set, and
would wait for ever for the one that it interrupted.
"""

from typing import Protocol


class Stop(Protocol):
    """Something that is asked to end; a `threading.Event` will do where no signal sets it."""

    def is_set(self) -> bool:
        """Was it asked for?"""
        ...

    def set(self) -> None:
        """Ask for it."""
        ...


class SignalFlag:
    """One attribute, no lock: for signal handlers and any thread. Nobody can wait for it."""

    def __init__(self) -> None:
        self._asked = False

    def is_set(self) -> bool:
        """Was it asked for?"""
        return self._asked

    def set(self) -> None:
        """Ask for it."""
        self._asked = True

    def clear(self) -> None:
        """It was taken up."""
        self._asked = False
