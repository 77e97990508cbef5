"""How loud a line on standard error is, for a service manager that reads it: `journalctl -p`.

systemd's journal takes a number in front of a line for its priority, as the kernel's log does. It
is written only where standard error is the journal itself: a person at a terminal, or a file, gets
the plain line.
"""

import os
from enum import IntEnum

JOURNAL_STREAM = "JOURNAL_STREAM"
"""Device and inode of the stream that systemd connected to its journal."""


class Priority(IntEnum):
    """Priorities of syslog(3), the loudest first."""

    CRITICAL = 2
    ERROR = 3
    WARNING = 4
    NOTICE = 5
    INFO = 6


def to_journal(descriptor: int = 2) -> bool:
    """Does `descriptor` lead to systemd's journal, and nowhere else?

    The variable alone does not tell: whoever redirects standard error leaves it as it was.
    """
    device, _, inode = os.environ.get(JOURNAL_STREAM, "").partition(":")
    try:
        found = os.fstat(descriptor)
    except OSError:
        return False
    return (device, inode) == (str(found.st_dev), str(found.st_ino))


def marked(text: str, priority: Priority, journal: bool) -> str:
    """`text` as it goes out; each of its lines is an entry of its own in the journal."""
    if not journal:
        return text
    return "\n".join(f"<{priority:d}>{line}" for line in text.split("\n"))
