"""Output of the commands: data or text, never cut to a width that nobody has; files by name."""

import errno
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from steadyhand.controllers.errors import FileError
from steadyhand.runtime.folders import folder_fault

_NO_WIDTH = 100_000
"""Columns of a pipe or a file: as many as a line needs."""
_AS_IT_STANDS = {"markup": False, "emoji": False}
_NOT_SHOWN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Control characters but tab and line feed, and those that turn the direction of writing."""
_REMEDIES = {
    errno.ENOENT: "make its folder first",
    errno.ENOTDIR: "one of its folders is a file",
    errno.EISDIR: "that is a folder; name a file in it",
    errno.EEXIST: "something else has that name",
    errno.ENOSPC: "make room there, or name another place",
    errno.EDQUOT: "make room there, or name another place",
}


class PlainConsole(Console):
    """Text is text: what a person or a server wrote is shown as it stands, never obeyed."""

    def render_str(self, text: str, **options: Any) -> Text:  # noqa: ANN401
        """Text without markup; what would move the cursor or colour the screen becomes `?`."""
        return super().render_str(_NOT_SHOWN.sub("?", text), **options | _AS_IT_STANDS)


def console(stderr: bool = False) -> Console:
    """A console that wraps lines on a terminal only: whoever reads a pipe wants whole lines.

    The only kind there is (a test looks for others): no text that comes from outside is markup.
    """
    made = PlainConsole(stderr=stderr, markup=False, emoji=False)
    if not made.is_terminal:
        made = PlainConsole(stderr=stderr, markup=False, emoji=False, width=_NO_WIDTH)
    return made


def show(data: Any, as_json: bool, text: Any) -> None:  # noqa: ANN401  (any JSON, any renderable)
    """Print `data` as JSON, or `text` for people."""
    if as_json:
        sys.stdout.write(json.dumps(data, indent=2, allow_nan=False) + "\n")
    elif isinstance(text, str):
        console().print(text, soft_wrap=True)
    else:
        console().print(text)


def must_write(path: Path) -> None:
    """Before long work: could a result be written to `path` at its end? Makes nothing.

    Raises:
        FileError: it could not.
    """
    if path.is_dir():
        raise FileError(f"{path}: that is a folder; name a file in it")
    if path.exists():
        if not os.access(path, os.W_OK):
            raise FileError(f"{path}: cannot be written by this user; name another file")
        return
    if not path.parent.is_dir():
        raise FileError(f"{path}: there is no folder {path.parent}; make it first")
    fault = folder_fault(path.parent)
    if fault:
        raise FileError(f"{path}: {fault}")


@contextmanager
def named_file(path: Path, what: str = "written") -> Iterator[None]:
    """Around every use of a file that a person named.

    Raises:
        FileError: it cannot be used: which file, why, and what to do.
    """
    try:
        yield
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, "name a place that this user may use")
        raise FileError(f"{path}: cannot be {what}: {error.strerror or error}; {remedy}") from None
