"""Hold: keep applying what is applied, for a bounded time, when nothing better is known."""

import numpy as np

from steadyhand.controllers.frames import Observation, Sent
from steadyhand.controllers.signals import SignalSet, Vector


class Hold:
    """The last applied command, inside the outputs' bounds.

    What the plant says it applies counts; where it says nothing, what was written last.

    Args:
        outputs: bounds of the command.
        start: (n_u,) command before anything is known; the bound nearest to 0 by default.
    """

    def __init__(self, outputs: SignalSet, start: Vector | None = None) -> None:
        self._low, self._high = outputs.low, outputs.high
        first = np.zeros(len(outputs)) if start is None else np.asarray(start, dtype=np.float64)
        self._last: Vector = np.clip(first, self._low, self._high)

    def act(self, observation: Observation) -> Vector:
        """Command (n_u,): the read-back where it is finite, else the last one written."""
        known = np.isfinite(observation.applied)
        held: Vector = np.where(known, observation.applied, self._last)
        return np.clip(held, self._low, self._high)

    def track(self, observation: Observation, sent: Sent) -> None:
        """Remember what was really written; a tick without a write changes nothing."""
        del observation
        if sent.written:
            known = np.isfinite(sent.action)
            self._last = np.clip(np.where(known, sent.action, self._last), self._low, self._high)
