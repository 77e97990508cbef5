"""Folders of the runtime: nobody else may write in them; tried before they are needed."""

import os
import tempfile
from contextlib import suppress
from pathlib import Path


def make_folder(path: Path) -> None:
    """Make `path` and what is missing above it, writable for nobody but its owner.

    `Path.mkdir` would make the folders above with whatever the umask leaves; one that a group may
    write is refused by the next start, because bundle versions are kept there.

    Raises:
        OSError: it cannot be made.
    """
    for folder in (*reversed(path.parents), path):
        with suppress(FileExistsError):
            folder.mkdir(mode=0o755)
    if not path.is_dir():
        path.mkdir()  # says why not


def folder_fault(path: Path) -> str:
    """Why nothing could be written in folder `path`, made or not yet; empty: it could.

    It is tried, because access rights tell little: of a read-only mount, a full disk, /proc, or of
    root. What is made is removed at once.
    """
    existing = path
    while not os.path.lexists(existing) and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        return f"{existing} is no folder; move it away or name another place"
    try:
        Path(tempfile.mkdtemp(prefix=".steadyhand-try-", dir=existing)).rmdir()
    except OSError as error:
        return f"{existing}: nothing can be written there ({error.strerror}); name another place"
    return ""
