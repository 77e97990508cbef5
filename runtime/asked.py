"""The mode the operator last asked for, kept across restarts: as a wish, never as a grant."""

import json
import os
from pathlib import Path

from steadyhand.runtime.modes import Mode


def save_asked(path: Path, mode: Mode) -> None:
    """Replace the file at once: after a power cut it holds the old wish or the new one.

    Raises:
        OSError: the directory cannot be written.
    """
    temporary = path.with_name(f".{path.name}.new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(temporary, flags, 0o600)
    try:
        os.write(handle, json.dumps({"asked": mode}).encode())
        os.fsync(handle)
    finally:
        os.close(handle)
    temporary.replace(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def load_asked(path: Path) -> Mode:
    """The wish, or off when there is none or it cannot be understood: off is always safe."""
    try:
        data = json.loads(path.read_bytes()[:1024])
        return Mode(data["asked"])
    except (OSError, ValueError, KeyError, TypeError):
        return Mode.OFF
