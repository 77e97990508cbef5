"""Does the policy still look at what it is shown? One that answers the same whatever it sees does
not, be it the network, its inputs on the way, or a process that repeats an old answer.

An answer at a stop is no sign of that: a full tank wants nothing but to stay as it is. So only
answers in between count, equal to the last bit, while a measurement moved.
"""

import numpy as np

from steadyhand.controllers.frames import Fault, Observation, Proposal, ProposalStatus
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.signals import SignalSet

TICKS = 8
"""So many answers in a row that do not differ in a single bit."""
MOVED = 0.01
"""Share of its range by which a measurement must have moved meanwhile."""
AT_STOP = 1e-6
"""Share of its range that an output may be short of a stop and still be at it."""


class SameAnswer:
    """Watches one policy; `look` at each answer."""

    def __init__(self, observations: SignalSet, outputs: SignalSet) -> None:
        """Begin anew.

        Args:
            observations: order of the observation.
            outputs: order of the action.
        """
        self._names = observations.names
        self._enough = MOVED * (observations.high - observations.low)
        near = AT_STOP * (outputs.high - outputs.low)
        self._low, self._high = outputs.low + near, outputs.high - near
        self._action = b""
        self._first = np.empty(0)
        """What was seen when this answer came first."""
        self._count = 0

    def look(self, observation: Observation, proposal: Proposal) -> Fault | None:
        """ACT_CONST once the same answer came too often; never raises."""
        if proposal.status is not ProposalStatus.OK:
            self._action = b""
            return None
        action = proposal.action.tobytes()
        if action != self._action:
            self._action, self._first, self._count = action, observation.values.copy(), 1
            return None
        self._count += 1
        if self._count < TICKS:
            return None
        if ((proposal.action <= self._low) | (proposal.action >= self._high)).all():
            return None
        with np.errstate(invalid="ignore"):
            moved = np.abs(observation.values - self._first)
        far = moved > self._enough  # a number that is none has not moved
        if not far.any():
            return None
        name = self._names[int(far.argmax())]
        text = f"the same answer {self._count} times, while {name} moved by {moved[far][0]:.4g}"
        return Fault(ReasonCode.ACT_CONST, "", float(self._count), float(TICKS), text)
