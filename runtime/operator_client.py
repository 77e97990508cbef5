"""The other end of the control socket: what `steadyhand status`, `mode`, `ack` … use."""

import socket
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from steadyhand.controllers.errors import RequestError
from steadyhand.runtime.operator_protocol import LINE_LIMIT, encode, parse_object


class OperatorClient:
    """One connection to a running loop. Use it as a context manager."""

    def __init__(self, path: Path, timeout_s: float = 15.0) -> None:
        """Connect and read the server's greeting.

        Raises:
            RequestError: NOT_RUNNING, DENIED, or the refusal of the server.
        """
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout_s)
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
            raise RequestError("TIMEOUT", f"no answer to {command}: look at the status") from None
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

    def _read(self) -> dict[str, Any]:
        while b"\n" not in self._buffer:
            part = self._socket.recv(65536)
            if not part or len(self._buffer) > 16 * LINE_LIMIT:
                raise RequestError("GONE", "the loop hung up")
            self._buffer += part
        line, self._buffer = self._buffer.split(b"\n", 1)
        answer = parse_object(line)
        error = answer.get("error")
        if isinstance(error, dict):
            raise RequestError(str(error.get("code")), str(error.get("message")))
        return answer
