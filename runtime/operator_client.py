"""The other end of the control socket: what `steadyhand status`, `mode`, `ack` … use."""

import socket
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from steadyhand.controllers.errors import RequestError
from steadyhand.runtime.operator_protocol import LINE_LIMIT, encode, parse_object

GREETING_S = 5.0
"""A runtime that lives greets at once, whatever its loop does: a thread of its own sees to it."""
FIRST_WORD_S = 1.0
"""After so long a person is told that we wait."""


class OperatorClient:
    """One connection to a running loop. Use it as a context manager."""

    def __init__(
        self,
        path: Path,
        timeout_s: float = 15.0,
        waits: Callable[[str], object] = lambda _: None,
        greeting_s: float = GREETING_S,
    ) -> None:
        """Connect and read the server's greeting.

        Args:
            path: the socket.
            timeout_s: for the answer to a command.
            waits: is told once per wait, within two seconds, that nothing has come yet.
            greeting_s: for the greeting; never more than `timeout_s`.

        Raises:
            RequestError: NOT_RUNNING, HUNG (it listens and does not answer), DENIED, or the
                refusal of the server.
        """
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._path, self._waits, self._timeout_s = path, waits, timeout_s
        self._deadline = time.monotonic() + min(timeout_s, greeting_s)
        self._socket.settimeout(min(timeout_s, greeting_s))
        self._buffer = b""
        self._sequence = 0
        try:
            self._socket.connect(str(path))
            hello = self._read()
        except PermissionError:
            self.close()
            raise RequestError(
                "DENIED", f"{path}: your user may not connect; ask for the operators' group"
            ) from None
        except (TimeoutError, BlockingIOError):  # a full queue of connections looks the same
            self.close()
            raise RequestError(
                "HUNG",
                f"{path}: a runtime listens but does not answer: its process hangs, is stopped "
                "(SIGSTOP) or starves; nothing was done; try again, then look at the process",
            ) from None
        except OSError as error:
            self.close()
            raise RequestError(
                "NOT_RUNNING", f"nothing listens on {path} ({error.strerror}): is the loop running?"
            ) from None
        except RequestError:
            self.close()
            raise
        self._session = str(hello.get("session", ""))
        self.role = str(hello.get("role", ""))

    def call(self, command: str, **arguments: Any) -> dict[str, Any]:  # noqa: ANN401  (JSON)
        """Give one command and wait for its result.

        Raises:
            RequestError: the server's refusal, TIMEOUT or GONE.
        """
        self._sequence += 1
        self._deadline = time.monotonic() + self._timeout_s
        self._socket.settimeout(self._timeout_s)
        try:
            self._socket.sendall(
                encode(
                    {
                        "session": self._session,
                        "sequence": self._sequence,
                        "command": command,
                        "arguments": arguments,
                    }
                )
            )
            result = self._read().get("result", {})
        except TimeoutError:
            raise RequestError(
                "TIMEOUT",
                f"{self._path}: no answer to {command} within {self._timeout_s:g} s; whether it "
                "was carried out, the status and the journal tell",
            ) from None
        except OSError as error:
            raise RequestError("GONE", f"the loop went away: {error.strerror}") from None
        return dict(result)

    def close(self) -> None:
        """Hang up. Idempotent."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _receive(self) -> bytes:
        """What comes next, until the deadline.

        Raises:
            TimeoutError: nothing came.
        """
        left = self._deadline - time.monotonic()
        if left > FIRST_WORD_S:
            self._socket.settimeout(FIRST_WORD_S)
            try:
                return self._socket.recv(65536)
            except TimeoutError:
                self._waits(
                    f"{self._path}: no answer yet; waiting {left - FIRST_WORD_S:.0f} s more"
                )
        self._socket.settimeout(max(0.001, self._deadline - time.monotonic()))
        return self._socket.recv(65536)

    def _read(self) -> dict[str, Any]:
        while b"\n" not in self._buffer:
            part = self._receive()
            if not part or len(self._buffer) > 16 * LINE_LIMIT:
                raise RequestError("GONE", "the loop hung up")
            self._buffer += part
        line, self._buffer = self._buffer.split(b"\n", 1)
        answer = parse_object(line)
        error = answer.get("error")
        if isinstance(error, dict):
            raise RequestError(str(error.get("code")), str(error.get("message")))
        return answer
