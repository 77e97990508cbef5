"""Who could read a file that holds a secret?"""

import os
import stat
from pathlib import Path

CREDENTIALS = "CREDENTIALS_DIRECTORY"
"""Where systemd shows a service its credentials; nobody else is let into that folder."""


def exposed(path: Path, status: os.stat_result) -> str:
    """Why the secret in `path` is none, and what to do; empty when only we can read it.

    A credential of systemd belongs to root and is opened to the service by an access list, whose
    mask is shown in place of the group's rights. So there, and there alone, reading by group root
    is no sign of others.

    Args:
        path: absolute, without links.
        status: of the file.
    """
    mode = stat.S_IMODE(status.st_mode)
    forbidden = 0o077
    folder = os.environ.get(CREDENTIALS)
    if folder and path.parent == Path(folder) and status.st_uid == status.st_gid == 0:
        forbidden = 0o037
    return f"mode {mode:04o}: others could read it; chmod 600 it" if mode & forbidden else ""
