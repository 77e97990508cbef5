"""What may be asked of a policy, and what is wrong with its answer. Numbers only, no runtime of
any model: the process that ran the graph is not believed about its own numbers.
"""

from math import isfinite, nan, sqrt
from typing import Any, Final

import numpy as np

from steadyhand.controllers.frames import Fault, Proposal, ProposalStatus
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.signals import SignalSet, Vector

VALUE, ERROR, CONFIDENCE_LOGIT = range(3)
"""Places of the three scalars behind the action in a row of numbers."""
SCALARS = 3

SQUARE_LIMIT: Final = 1e76
"""|x|^2 of a question stays below this: then every |x| < 1e38 is finite and fits float32. One dot
product asks all of it at once; NaN and infinity fail the comparison."""

# The graph computes low + (high - low) * share in float32, so an action exactly on its bound may
# come out a few units in the last place beyond it. That is rounding, not a range fault.
_ROUNDING = 2.0 * float(np.finfo(np.float32).eps)

# Every good answer makes one Proposal. The constructor of a frozen dataclass looks each field up by
# name and costs a quarter of a small net's whole call, so its slots are filled directly here.
_blank = object.__new__
_slots: Any = Proposal
_set_action = _slots.action.__set__
_set_status = _slots.status.__set__
_set_value = _slots.value.__set__
_set_error = _slots.error.__set__
_set_confidence_logit = _slots.confidence_logit.__set__
_set_latency_s = _slots.latency_s.__set__
_set_text = _slots.text.__set__
_set_faults = _slots.faults.__set__


class AnswerCheck:
    """Turns the numbers of one run (n_u actions, V, E, C) into a proposal."""

    def __init__(self, observations: SignalSet, outputs: SignalSet) -> None:
        self.n_u = len(outputs)
        self._observations = observations
        self._outputs = outputs
        reach = np.maximum(np.abs(outputs.low), np.abs(outputs.high)) * _ROUNDING
        self._low: list[float] = (outputs.low - reach).tolist()
        self._high: list[float] = (outputs.high + reach).tolist()
        self._nothing: Vector = np.full(self.n_u, nan)
        self._nothing.flags.writeable = False

    def proposal(self, numbers: list[float], latency_s: float = 0.0) -> Proposal:
        """Proposal from `numbers` (n_u + 3,); callable in the tick, never raises.

        A number that is not finite makes the whole answer NONFINITE. An action outside the
        declared range is passed on with a fault: the filter limits it, the record keeps it.
        """
        if not isfinite(sum(numbers)):  # float32 numbers cannot overflow a float64 sum
            return self._nonfinite(numbers, latency_s)
        n_u = self.n_u
        faults: tuple[Fault, ...] = ()
        for number, low, high in zip(numbers, self._low, self._high, strict=False):
            if not low <= number <= high:
                faults = self._outside(numbers)
                break
        made: Proposal = _blank(Proposal)
        _set_action(made, np.array(numbers[:n_u]))
        _set_status(made, ProposalStatus.OK)
        _set_value(made, numbers[n_u])
        _set_error(made, numbers[n_u + ERROR])
        _set_confidence_logit(made, numbers[n_u + CONFIDENCE_LOGIT])
        _set_latency_s(made, latency_s)
        _set_text(made, "")
        _set_faults(made, faults)
        return made

    def failed(
        self,
        status: ProposalStatus,
        text: str,
        faults: tuple[Fault, ...] = (),
        latency_s: float = 0.0,
    ) -> Proposal:
        """Proposal that says only why there is none; its action is NaN."""
        return Proposal(self._nothing, status, latency_s=latency_s, text=text, faults=faults)

    def input_refused(self, values: Vector) -> Proposal:
        """Say which of `values` (n_y,) are not finite, or beyond float32.

        They must not reach the graph: a saturating net answers infinity as if it were a number.
        """
        faults = tuple(
            Fault(ReasonCode.OBS_NONFINITE, name, float(value))
            for name, value in zip(self._observations.names, values, strict=False)
            if not abs(value) < sqrt(SQUARE_LIMIT)
        )
        names = ", ".join(fault.signal for fault in faults) or "their squares add up beyond float32"
        return self.failed(
            ProposalStatus.NONFINITE, f"inputs of the policy are not finite: {names}", faults
        )

    def _nonfinite(self, numbers: list[float], latency_s: float) -> Proposal:
        names = (*self._outputs.names, "value", "error", "confidence_logit")
        faults = tuple(
            Fault(ReasonCode.ACT_NONFINITE, name, number)
            for name, number in zip(names, numbers, strict=True)
            if not isfinite(number)
        )
        text = f"the model's answer is not finite: {', '.join(fault.signal for fault in faults)}"
        return self.failed(ProposalStatus.NONFINITE, text, faults, latency_s)

    def _outside(self, numbers: list[float]) -> tuple[Fault, ...]:
        found = []
        for signal, number, low, high in zip(
            self._outputs, numbers, self._low, self._high, strict=False
        ):
            if not low <= number <= high:
                limit = signal.low if number < low else signal.high
                text = (
                    f"{signal.name}={number:g} {signal.unit}: declared {signal.low:g}.."
                    f"{signal.high:g}"
                )
                found.append(Fault(ReasonCode.ACT_RANGE, signal.name, number, limit, text))
        return tuple(found)
