"""Everything a policy is made from, and one flat form of it that a child process can be handed."""

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isinf
from typing import TYPE_CHECKING

import numpy as np

from steadyhand.controllers.policies.golden import Golden
from steadyhand.controllers.signals import Signal, SignalSet

if TYPE_CHECKING:
    from steadyhand.controllers.policies.onnx import OnnxPolicy

ORDER = struct.Struct("<qqqq")
"""What a waiting child is told: bytes of memory while it is examined (0: no limit) and while it
serves, processor seconds, serve or not."""
_GOLDEN = ("observation", "action", "value", "error", "confidence_logit")


@dataclass(frozen=True, slots=True, eq=False)
class PolicySpec:
    """What `OnnxPolicy` needs; plain data, so that it can cross to another process."""

    model: bytes
    observations: SignalSet
    outputs: SignalSet
    golden: Golden
    providers: tuple[str, ...] = ("cpu",)
    require_provider: bool = False
    label: str = "policy"
    """Name and version for people."""

    def build(self, clock: Callable[[], float] | None = None) -> "OnnxPolicy":
        """The policy, loaded and examined in this process.

        Raises:
            ModelError: the graph is refused.
        """
        # Imported here: a process that only hands specs on stays free of the model's runtime.
        from steadyhand.controllers.policies.onnx import OnnxPolicy

        return OnnxPolicy(
            self.model,
            self.observations,
            self.outputs,
            self.golden,
            providers=self.providers,
            require_provider=self.require_provider,
            clock=clock,
        )

    def encode(self) -> bytes:
        """Length of the header (8 bytes), header as JSON, bytes of the graph."""
        header = {
            "observations": [_row(signal) for signal in self.observations],
            "outputs": [_row(signal) for signal in self.outputs],
            "golden": {name: getattr(self.golden, name).tolist() for name in _GOLDEN},
            "tolerance": self.golden.tolerance,
            "providers": self.providers,
            "require_provider": self.require_provider,
            "label": self.label,
        }
        text = json.dumps(header, allow_nan=False).encode()
        return len(text).to_bytes(8, "little") + text + self.model

    @classmethod
    def decode(cls, data: bytes) -> "PolicySpec":
        """Inverse of `encode`; for bytes this program wrote itself."""
        end = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:end])
        columns = {name: np.array(header["golden"][name], np.float32) for name in _GOLDEN}
        return cls(
            data[end:],
            SignalSet(tuple(_signal(row) for row in header["observations"])),
            SignalSet(tuple(_signal(row) for row in header["outputs"])),
            Golden(**columns, tolerance=header["tolerance"]),
            tuple(header["providers"]),
            header["require_provider"],
            header["label"],
        )


def _row(signal: Signal) -> list[str | float | None]:
    rate = None if isinf(signal.rate_per_s) else signal.rate_per_s
    return [signal.name, signal.unit, signal.low, signal.high, rate]


def _signal(row: list[str | float | None]) -> Signal:
    name, unit, low, high, rate = row
    return Signal(
        str(name),
        str(unit),
        float(low or 0.0),
        float(high or 0.0),
        rate_per_s=inf if rate is None else float(rate),
    )
