"""Ports of the configuration that another program has now: a warning, because a start does without.

A runtime whose port is taken drives all the same and tries again. So whoever checks beforehand
should know which of its doors would stay shut.
"""

import errno
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from steadyhand.runtime.config import Loaded
from steadyhand.runtime.exits import words_of
from steadyhand.runtime.http_server import listen_address, listening_socket, shown_address

_LOCKS = Path("/proc/locks")


def taken_ports(loaded: Loaded) -> list[str]:
    """One warning for each address that could not be listened on now.

    Nothing is warned of while this plant's own runtime is there: it has them.
    """
    if _is_locked(loaded.path(loaded.config.journal.directory) / "lock"):
        return []
    return [
        f"{section}.listen={shown_address(where)}: {why}; `run` drives without it, and tries again"
        for section, where in _addresses(loaded)
        if (why := _why_not(where))
    ]


def _addresses(loaded: Loaded) -> Iterator[tuple[str, tuple[str, int]]]:
    for name in ("metrics", "panel", "scada"):
        section = getattr(loaded.config, name)
        if section is not None:
            address, port = listen_address(section.listen, name)
            yield name, (str(address), port)


def _why_not(where: tuple[str, int]) -> str:
    try:
        listening_socket(where, 1).close()
    except OSError as error:
        stop = ": stop what listens there" if error.errno == errno.EADDRINUSE else ""
        return f"{words_of(error)}{stop}"
    return ""


def _is_locked(file: Path) -> bool:
    """Does some process hold the lock? Looked up: to try it would keep a start from having it."""
    with suppress(OSError, ValueError, IndexError):
        inode = file.stat().st_ino
        for line in _LOCKS.read_text("ascii").splitlines():
            words = line.split()
            if words[1] == "FLOCK" and int(words[5].rpartition(":")[2]) == inode:
                return True
    return False
