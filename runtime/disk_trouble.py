"""A disk that takes nothing now, though a journal was here before: no reason to stop a plant.

Whoever names a place where nothing can ever be written is told so and refused. But a disk that ran
full, or that the kernel made read-only, may do so between two runs at night; then the runtime
drives, keeps its record in memory, and writes it as soon as there is room.
"""

import errno
import os
from contextlib import suppress
from pathlib import Path

TROUBLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})
"""What a disk says that took writes before: full, no quota left, made read-only, broken."""
TRIAL_BYTES = 65_536
"""More than a new segment begins with."""
_TRIAL = ".trial"


def try_disk(folder: Path) -> None:
    """Can a file of some size be made in `folder` now? Nothing of it stays.

    Raises:
        OSError: it cannot.
    """
    file = folder / _TRIAL
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(file, flags, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, TRIAL_BYTES)
    finally:
        os.close(descriptor)
        with suppress(OSError):
            file.unlink()


def disk_trouble(journal: Path) -> str:
    """What the disk of the journal in folder `journal` says now; empty: it takes records.

    Empty also where no journal ever was: then its place is wrong, and that is another question.
    """
    if not (journal / "lock").is_file():
        return ""
    try:
        try_disk(journal)
    except OSError as error:
        if error.errno in TROUBLE:
            return f"{journal}: {error.strerror}"
    return ""
