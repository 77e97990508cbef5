"""Files and folders of trust: what is named may be one certificate or list, or a folder of them."""

from collections.abc import Iterable
from pathlib import Path

from steadyhand.controllers.errors import LinkError

ENDINGS = frozenset({".der", ".crt", ".cer", ".pem", ".crl"})
"""Of the files that count in a folder."""


def files_of(paths: Iterable[Path]) -> list[Path]:
    """Files, and in place of each folder the certificates and lists in it.

    Raises:
        LinkError: a folder cannot be read.
    """
    found: list[Path] = []
    for path in paths:
        try:
            inside = sorted(path.iterdir()) if path.is_dir() else [path]
        except OSError as error:
            raise LinkError(f"{path}: cannot be read: {error.strerror}") from None
        found += [file for file in inside if file == path or file.suffix in ENDINGS]
    return found
