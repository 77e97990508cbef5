"""The line to a policy's process: one question at a time, and the answer to it, in fixed buffers.

What the process says is never believed: an answer of the wrong length, to another question, or of
an unknown kind is improper, and whoever hears it replaces the process. `policy_child.py` is the
other end.
"""

import os
import select
import socket
from math import inf

import numpy as np

from steadyhand.runtime.policy_child import (
    ANSWERED,
    FAILED,
    HEAD_BYTES,
    INPUT_NOT_FINITE,
    TEXT_BYTES,
)

_SELECT_FDS = 1024  # FD_SETSIZE: select(2) has microseconds, but only for small descriptors


class ImproperAnswerError(ConnectionError):
    """What came is no answer to the question that is out."""


class PolicyLine:
    """Used by the loop's thread; `unanswered` may be read by any."""

    def __init__(self, n_y: int, n_numbers: int) -> None:
        """Make the buffers.

        Args:
            n_y: values of a question.
            n_numbers: numbers of an answer.
        """
        self.unanswered = 0
        """Number of the one question that is out; 0 when none is."""
        self._request = bytearray(8 * (1 + n_y))
        self._asked = np.frombuffer(self._request, np.uint64, 1)
        self.values = np.frombuffer(self._request, np.float64, n_y, 8)
        """(n_y,) of the next question."""
        self._answer_bytes = HEAD_BYTES + 8 * n_numbers
        self._answer = bytearray(self._answer_bytes + TEXT_BYTES)
        self._head = np.frombuffer(self._answer, np.uint64, 2)
        self._numbers = np.frombuffer(self._answer, np.float64, n_numbers, HEAD_BYTES)
        self._sequence = self._length = 0

    def fresh(self) -> None:
        """Another process is at the other end: it was asked nothing."""
        self.unanswered = self._length = 0

    def ask(self, channel: socket.socket) -> None:
        """Send `values`; never waits.

        Raises:
            OSError: the process is gone, or takes nothing now.
        """
        self._sequence += 1
        self._asked[0] = self.unanswered = self._sequence
        channel.send(self._request, socket.MSG_DONTWAIT)

    def answered(self, channel: socket.socket, timeout_s: float) -> bool:
        """Has the question that is out been answered by then? Reads the answer.

        Raises:
            ImproperAnswerError: what came is none.
            OSError: the process is gone.
        """
        if not readable(channel, timeout_s):
            return False
        # with MSG_TRUNC the kernel tells the whole length, also of what did not fit
        flags = socket.MSG_DONTWAIT | socket.MSG_TRUNC
        self._length = channel.recv_into(self._answer, 0, flags)
        if not self._proper():
            text = f"the policy's process sent {self._length} bytes, no answer"
            raise ImproperAnswerError(text)
        self.unanswered = 0
        return True

    @property
    def kind(self) -> int:
        """Of the last answer: ANSWERED, INPUT_NOT_FINITE or FAILED."""
        return int(self._head[1])

    @property
    def numbers(self) -> list[float]:
        """Of the last answer."""
        numbers: list[float] = self._numbers.tolist()
        return numbers

    @property
    def words(self) -> str:
        """Of the last answer, where it FAILED."""
        return bytes(self._answer[self._answer_bytes : self._length]).decode("utf-8", "replace")

    def _proper(self) -> bool:
        """Is what was read an answer to the question that is out? Words only with a failure."""
        length, longest = self._answer_bytes, len(self._answer)
        if not length <= self._length <= longest or self._head[0] != self.unanswered:
            return False
        kind = self._head[1]
        return kind == FAILED or (kind in (ANSWERED, INPUT_NOT_FINITE) and self._length == length)


def readable(channel: socket.socket, timeout_s: float) -> bool:
    """Is there something to read within `timeout_s`? End of file counts."""
    fd = channel.fileno()
    if 0 <= fd < _SELECT_FDS:
        return bool(select.select((fd,), (), (), timeout_s)[0])
    return bool(wait_readable((fd,), timeout_s))


def wait_readable(fds: tuple[int, ...], timeout_s: float) -> list[int]:
    """Descriptors of `fds` that are readable within `timeout_s` (rounded up to milliseconds)."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return [fd for fd, _ in poll.poll(None if timeout_s == inf else timeout_s * 1e3)]


def drain(event: int) -> None:
    """Take whatever an eventfd holds."""
    try:
        os.eventfd_read(event)
    except BlockingIOError:
        return
