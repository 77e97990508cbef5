"""The mode the operator last asked for, kept across restarts: as a wish, never as a grant."""

import fcntl
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

from steadyhand.controllers.errors import SteadyhandError
from steadyhand.runtime.bundle.archive import read_file
from steadyhand.runtime.guard import Guarded
from steadyhand.runtime.modes import Mode

_MAX_BYTES = 1024


def save_asked(path: Path, mode: Mode) -> None:
    """Replace the file at once: after a power cut it holds the old wish or the new one.

    One writer at a time, over all processes: the lock is the folder's, so that it needs no file.

    Raises:
        OSError: the directory cannot be written.
    """
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        temporary = path.with_name(f".{path.name}.new")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(temporary, flags, 0o600)
        try:
            os.write(handle, json.dumps({"asked": mode}).encode())
            os.fsync(handle)
        finally:
            os.close(handle)
        temporary.replace(path)
        os.fsync(directory)
    finally:
        os.close(directory)


def load_asked(path: Path) -> Mode:
    """The wish, or off when there is none or it cannot be understood: off is always safe."""
    try:
        data = json.loads(read_file(path, max_bytes=_MAX_BYTES))
        return Mode(data["asked"])
    except (SteadyhandError, OSError, ValueError, KeyError, TypeError, RecursionError):
        return Mode.OFF


class AskedKeeper:
    """Keeps the newest wish without making anybody wait for the disk.

    However quickly wishes follow each other, and however slow the disk: what stands in the file in
    the end is the last one.
    """

    def __init__(self, path: Path, failed: Callable[[str], None]) -> None:
        """Name the file.

        Args:
            path: the file.
            failed: is told when a wish could not be kept; called in a thread of ours.
        """
        self._path = path
        self._failed = failed
        self._lock = threading.Lock()
        self._wish: Mode | None = None
        """What is not on disk yet."""
        self._writer: threading.Thread | None = None

    def keep(self, mode: Mode) -> None:
        """Have `mode` written soon; returns at once."""
        with self._lock:
            self._wish = mode
            if self._writer is None:
                self._writer = Guarded(self._write, "asked", until=threading.Event())
                self._writer.start()

    def close(self, timeout_s: float = 2.0) -> None:
        """Wait for the last wish to be on disk."""
        writer = self._writer
        if writer is not None:
            writer.join(timeout_s)

    def _write(self) -> None:
        while True:
            with self._lock:
                mode, self._wish = self._wish, None
                if mode is None:
                    self._writer = None
                    return
            try:
                save_asked(self._path, mode)
            except OSError as error:
                self._failed(
                    f"the asked mode {mode} is not kept across a restart: {error.strerror}"
                )
