"""Files that are either wholly there or not at all."""

import os
import secrets
from pathlib import Path


def write_new(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Create `path` with `data`, durable when it returns.

    Raises:
        OSError: it exists already (also as a dangling link), or cannot be written; then nothing
            is left behind.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(path, flags, mode)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        sync_directory(path.parent)
    except OSError:
        path.unlink()
        raise


def replace(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Put `data` at `path` in one step: whoever reads it sees the old or the new bytes.

    Raises:
        OSError: it cannot be written; the old bytes are still there, unless only the last step
            failed, which makes the new ones durable.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    write_new(temporary, data, mode=mode)
    try:
        os.replace(temporary, path)  # noqa: PTH105  (the rename is the point)
    except OSError:
        temporary.unlink()
        raise
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make the names in `directory` durable.

    Raises:
        OSError: they may not be.
    """
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
