"""Exit codes: one table, and the one place where errors become codes.

The numbers are those of sysexits(3) where it has one, so that a service manager or a script can
tell what to do: mend the configuration, try again, or call for help.
"""

import errno
import os
import signal
import sys
import traceback
from collections.abc import Callable
from enum import IntEnum

from steadyhand.controllers.errors import (
    BundleError,
    ConfigError,
    FileError,
    LinkError,
    RequestError,
    SteadyhandError,
)
from steadyhand.runtime.priority import Priority, marked, to_journal


class Exit(IntEnum):
    """How a command ended. The numbers never change their meaning."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    UNAVAILABLE = 69
    BUG = 70
    FILE = 74
    AGAIN = 75
    FORBIDDEN = 77
    REFUSED = 78


INTERRUPTED = 128 + signal.SIGINT
"""As every shell has it; no meaning of ours."""
MEANINGS = {
    Exit.DONE: "done",
    Exit.FAILED: "failed, or a request that was refused",
    Exit.USAGE: "wrong usage: the words of the command",
    Exit.UNAVAILABLE: "nobody answers",
    Exit.BUG: "a defect of steadyhand itself",
    Exit.FILE: "a file or device that cannot be read or written",
    Exit.AGAIN: "not now: starting, stopping or busy; try again",
    Exit.FORBIDDEN: "your user may not",
    Exit.REFUSED: "a configuration, key or bundle that is refused, or a start that is",
}
EPILOG = "Exit codes: " + " · ".join(f"{int(code)} {text}" for code, text in MEANINGS.items())

_REQUESTS = {
    **dict.fromkeys(
        ("ARGUMENTS", "UNKNOWN_COMMAND", "UNKNOWN_OUTPUT", "UNKNOWN_CODE", "UNKNOWN_MODE"),
        Exit.USAGE,
    ),
    **dict.fromkeys(("NOT_RUNNING", "GONE"), Exit.UNAVAILABLE),
    **dict.fromkeys(
        (
            *("STARTING", "STOPPING", "TIMEOUT", "HUNG", "BUSY", "QUEUE_FULL", "RATE"),
            "SWAP_UNDER_WAY",
        ),
        Exit.AGAIN,
    ),
    **dict.fromkeys(("DENIED", "ROLE"), Exit.FORBIDDEN),
}
"""Refusals of the operator's socket that are more than a plain refusal, by their code."""
_WRITING = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
_EXTRAS = {
    "asyncua": "opcua",
    "onnxruntime": "cpu",
    "matplotlib": "demo",
    "torch": "train",
    "onnx": "train",
    "scipy": "train",
}
"""What a missing package belongs to."""


def exit_of(error: Exception) -> Exit:
    """Code of an error."""
    if isinstance(error, RequestError):
        return _REQUESTS.get(error.code, Exit.FAILED)
    if isinstance(error, ConfigError | BundleError):
        return Exit.REFUSED
    if isinstance(error, LinkError):
        return Exit.UNAVAILABLE
    if isinstance(error, FileError | OSError):
        return Exit.FILE
    if isinstance(error, SteadyhandError) or _missing(error):
        return Exit.FAILED
    return Exit.BUG


def words_of(error: Exception) -> str:
    """What a person reads about an error that is not a defect."""
    if isinstance(error, OSError):
        names = [os.fsdecode(name) for name in (error.filename, error.filename2) if name]
        where = f"{' -> '.join(names)}: " if names else ""
        if not names and error.errno in _WRITING:
            where = "standard output: "  # files that a person named are told by name
        return f"{where}{error.strerror or error}"
    extra = _missing(error)
    return f"{error}: pip install 'steadyhand[{extra}]'" if extra else str(error)


def guarded(command: Callable[[], object]) -> int:
    """Run `command`; returns the exit status of the process.

    Every error of ours, of files and of devices is one clear line on stderr. What is left is a
    defect: its trace is shown, with a line that says so.
    """
    try:
        try:
            command()
        finally:
            sys.stdout.flush()  # a full disk behind stdout must not look like success
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except KeyboardInterrupt:  # before anybody handles the signal: nothing was begun
        sys.stderr.write("steadyhand: interrupted; nothing was begun\n")
        return INTERRUPTED
    except BrokenPipeError:
        close_stdout()
        return Exit.FAILED  # whoever read our output has gone; there is nobody to tell
    except Exception as error:  # noqa: BLE001  (the last net)
        status = exit_of(error)
        if status is Exit.BUG:
            text = (
                f"{traceback.format_exc()}"
                f"steadyhand: this is a bug ({type(error).__name__}): please report the lines "
                "above, with the command and the output of `steadyhand --version`, to whoever "
                "gave you steadyhand (its issue tracker)"
            )
            sys.stderr.write(marked(text, Priority.CRITICAL, to_journal()) + "\n")
        else:
            text = f"steadyhand: {words_of(error)}"
            sys.stderr.write(marked(text, Priority.ERROR, to_journal()) + "\n")
        if isinstance(error, OSError):
            close_stdout()
        return status
    return Exit.DONE


def _missing(error: Exception) -> str:
    """The extra that a missing package belongs to, or nothing."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return ""
    return _EXTRAS.get(error.name.partition(".")[0], "")


def close_stdout() -> None:
    """What could not be written is not tried again, with a trace, at the interpreter's end."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(devnull, 1)
    finally:
        os.close(devnull)
