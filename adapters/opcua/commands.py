"""From an action vector to what goes onto the wire, and the slot between the two threads."""

from dataclasses import dataclass
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from steadyhand.adapters.opcua.tags import TagMap
from steadyhand.adapters.opcua.wire import WireType, in_wire_units, round_inside
from steadyhand.controllers.frames import Fault, Source
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.signals import Vector

OUTSIDE_SHARE = 1e-9
"""Share of an output's range by which rounding may carry a value outside its limits."""


@dataclass(frozen=True, slots=True, eq=False)
class Command:
    """One command on its way. It is never sent in another session than it was made for."""

    sequence: int
    wire: tuple[float, ...] | None
    """Output values in wire units; None: heartbeat only, the plant keeps its own control."""
    source: Source
    heartbeat: int
    """Differs from that of every recent command, also from before a restart."""
    expires_s: float
    """Monotonic time after which it must not be sent."""
    session: int
    out: NDArray[np.bool_] | None = None
    """(n_u,) outputs that the plant keeps to itself and that are not written; None: none."""


class Slot:
    """Room for one command: a newer one replaces an older one that has not been sent."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._command: Command | None = None
        self.replaced = 0
        """How many commands were overtaken before they were sent."""

    def put(self, command: Command) -> None:
        """Hand over the newest command."""
        with self._lock:
            if self._command is not None:
                self.replaced += 1
            self._command = command

    def take(self) -> Command | None:
        """The newest command, once."""
        with self._lock:
            command, self._command = self._command, None
            return command


class Encoder:
    """Rounds actions to what the wire types hold, inside the limits as stored."""

    def __init__(self, tags: TagMap) -> None:
        signals = tags.output_signals
        self._names = signals.names
        self._low, self._high = signals.low, signals.high
        self._slack = OUTSIDE_SHARE * (signals.high - signals.low)
        self._scale = tuple(tag.scale for tag in tags.outputs)
        self._wire_low, self._wire_high = (
            tuple(map(in_wire_units, ends.tolist(), self._scale))
            for ends in (signals.low, signals.high)
        )

    def fault(self, action: Vector) -> Fault | None:
        """Why `action` (n_u,) must not go out: the last question before the wire."""
        finite = np.isfinite(action)
        if not finite.all():
            i = int(np.argmin(finite))
            text = f"{self._names[i]}: {action[i]} is never written"
            return Fault(ReasonCode.ACT_NONFINITE, self._names[i], float(action[i]), text=text)
        outside = (action < self._low - self._slack) | (action > self._high + self._slack)
        if outside.any():
            i = int(np.argmax(outside))
            limit = self._low[i] if action[i] < self._low[i] else self._high[i]
            text = f"{self._names[i]}: outside its limits, not written"
            return Fault(ReasonCode.ACT_RANGE, self._names[i], float(action[i]), float(limit), text)
        return None

    def encode(
        self, action: Vector, kinds: tuple[WireType, ...]
    ) -> tuple[tuple[float, ...], Vector]:
        """Wire values, and the action (n_u,) they stand for."""
        wire = tuple(
            round_inside(float(value) / scale, kind, low, high)
            for value, scale, kind, low, high in zip(
                action, self._scale, kinds, self._wire_low, self._wire_high, strict=True
            )
        )
        return wire, np.clip(np.array(wire) * self._scale, self._low, self._high)
