"""Client of a simulated plant's side channel."""

import json
import socket
from pathlib import Path
from typing import Any

from steadyhand.adapters.sim.faults import SignalFault
from steadyhand.adapters.sim.numbers import encode
from steadyhand.controllers.errors import LinkError

Answer = dict[str, Any]


class SideChannel:
    """Client of the side channel; blocking, for tests and demonstrations.

    Raises:
        LinkError: nobody listens at `path`.
    """

    def __init__(self, path: Path, timeout_s: float = 10.0) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(timeout_s)
        try:
            self._socket.connect(str(path))
        except OSError as error:
            self._socket.close()
            raise LinkError(f"side channel {path}: {error}") from None
        self._file = self._socket.makefile("r", encoding="utf-8")

    def call(self, operation: str, **fields: Any) -> Answer:  # noqa: ANN401
        """One operation; the answer without its `ok`.

        Raises:
            LinkError: the plant refused, or is gone.
        """
        fields = {k: encode(v) if isinstance(v, float) else v for k, v in fields.items()}
        try:
            self._socket.sendall((json.dumps({"op": operation, **fields}) + "\n").encode())
            line = self._file.readline()
        except OSError as error:
            raise LinkError(f"side channel: {operation}: {error}") from None
        if not line:
            raise LinkError(f"side channel: {operation}: the plant is gone")
        answer: Answer = json.loads(line)
        if not answer.pop("ok"):
            raise LinkError(f"side channel: {operation}: {answer['error']}")
        return answer

    def set_value(self, signal: str, value: Any) -> None:  # noqa: ANN401
        """Show `value` on `signal` until cleared."""
        self.call("set", signal=signal, value=value)

    def set_quality(self, signal: str, status: str) -> None:
        """Show `signal` with a status code such as "UncertainLastUsableValue"."""
        self.call("quality", signal=signal, status=status)

    def inject(self, fault: SignalFault) -> None:
        """Inject a fault."""
        self.call("fault", fault=fault.to_dict())

    def grant(self, on: bool) -> None:
        """Grant control, or take it away."""
        self.call("grant", on=on)

    def keep(self, output: str, on: bool) -> None:
        """Keep one output from the controller, or give it back."""
        self.call("keep", signal=output, on=on)

    def truth(self) -> Answer:
        """State, cost, violations, who drives."""
        return self.call("truth")

    def clear(self) -> None:
        """Remove every disguise and every fault."""
        self.call("clear")
        self.call("clear_faults")

    def close(self) -> None:
        """Close the connection."""
        self._file.close()
        self._socket.close()

    def __enter__(self) -> "SideChannel":
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()
