"""The control socket itself: how it comes into being, and lines of limited length and time."""

import grp
import logging
import os
import socket
import stat
import time
from pathlib import Path

from steadyhand.controllers.errors import ConfigError, RequestError
from steadyhand.runtime.operator_people import OperatorSettings
from steadyhand.runtime.operator_protocol import LINE_LIMIT

_log = logging.getLogger(__name__)

_PATH_LIMIT = 107  # sizeof(sun_path) - 1


class Lines:
    """Lines of one connection, within the limits of length and time."""

    def __init__(self, connection: socket.socket, settings: OperatorSettings) -> None:
        self._connection = connection
        self._settings = settings
        self._buffer = b""

    def next(self) -> bytes | None:
        """The next line without its end; None when the client hung up or was idle too long.

        Raises:
            RequestError: TOO_LONG or TOO_SLOW.
        """
        deadline = time.monotonic() + self._settings.line_s if self._buffer else None
        while b"\n" not in self._buffer:
            if len(self._buffer) > LINE_LIMIT:
                raise RequestError("TOO_LONG", f"a line may have {LINE_LIMIT} bytes")
            left = self._settings.idle_s if deadline is None else deadline - time.monotonic()
            if left <= 0.0:
                raise RequestError("TOO_SLOW", "a line once begun must be finished")
            try:
                self._connection.settimeout(left)
                part = self._connection.recv(4096)
            except TimeoutError:
                if deadline is None:
                    return None
                continue
            except OSError:
                return None
            if not part:
                return None  # half a line is no command
            self._buffer += part
            deadline = deadline or time.monotonic() + self._settings.line_s
        line, self._buffer = self._buffer.split(b"\n", 1)
        if len(line) > LINE_LIMIT:
            raise RequestError("TOO_LONG", f"a line may have {LINE_LIMIT} bytes")
        return line


def listen(path: Path, group_id: int | None) -> socket.socket:
    """A listening socket of mode 0660; nobody can connect before mode and group are set.

    Raises:
        ConfigError: the path is too long, taken, or its directory or group cannot be used.
    """
    fault = socket_fault(path)
    if fault:
        raise ConfigError(f"operator socket {fault}")
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(listener.fileno(), 0o600)  # Linux: the mode the file is born with
        listener.bind(str(path))
        if group_id is not None:
            os.chown(path, -1, group_id)
        path.chmod(0o660)
        listener.listen(16)
    except OSError as error:
        listener.close()
        group = "" if group_id is None else f" for group {_group_name(group_id)}"
        raise ConfigError(f"operator socket {path}{group}: {error.strerror}") from error
    return listener


def socket_fault(path: Path) -> str:
    """Why no socket can be made at `path`, whoever listens there now; empty: one can."""
    if len(os.fsencode(path)) > _PATH_LIMIT:
        return f"{path}: longer than the {_PATH_LIMIT} bytes a Unix socket's name may have"
    try:
        mode = path.lstat().st_mode
    except OSError:
        return ""  # not there; a directory that cannot be used is told by whoever makes it
    return "" if stat.S_ISSOCK(mode) else f"{path}: something else is there: move it away"


def _remove_stale(path: Path) -> None:
    """Remove what a killed runtime left; refuse to take over from a living one."""
    if not path.exists():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except OSError as error:
            raise ConfigError(f"operator socket {path}: {error.strerror}") from None
    raise ConfigError(
        f"operator socket {path}: another runtime listens there: stop it, or give operator.socket "
        "another name"
    )


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def hang_up(connection: socket.socket) -> None:
    """Close, and wake whoever waits in `recv` or `accept` on it."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        _log.debug("already closed by the other end")
    connection.close()
