"""Files that people give us: read to a bound and never waited for; a secret is for us alone."""

import os
import stat
from pathlib import Path

from steadyhand.controllers.errors import ConfigError

MOST_BYTES = 1024 * 1024
"""No certificate, list, key or password is longer."""
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


def read_input(path: Path, most_bytes: int = MOST_BYTES, *, secret: bool = False) -> bytes:
    """Content of a file. A pipe or a device is not waited for.

    Raises:
        ConfigError: it cannot be read, is no regular file, or is too long; or it is `secret`, and
            others could read it. The message begins with the path and never shows what is in it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise ConfigError(f"{path}: is no regular file")
            if secret and (fault := exposed(path, status)):
                raise ConfigError(f"{path}: has {fault}")
            content = os.read(descriptor, most_bytes + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    if len(content) > most_bytes:
        raise ConfigError(f"{path}: is longer than {most_bytes} bytes")
    return content


def read_secret(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """Content of a file that holds a secret.

    Raises:
        ConfigError: see `read_input`.
    """
    return read_input(path, most_bytes, secret=True)


def read_word(path: Path) -> str:
    """The one line of a file that holds a password or a token.

    Raises:
        ConfigError: see `read_secret`; or it is not one line of UTF-8.
    """
    try:
        word = read_secret(path).decode("utf-8").strip()
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is no text; write the secret as one line of UTF-8") from None
    if not word or "\n" in word:
        raise ConfigError(f"{path}: must hold the secret as its only line")
    return word
