"""The safety chain: filter, then limits, then a look at its own answer. It always answers.

Whatever fails inside — an exception, a number that is none, a filter that passes what its own
rows forbid — ends in the backup, or in the last applied command where there is none, and always
behind the limits.
"""

from collections.abc import Callable
from math import nan

import numpy as np

from steadyhand.controllers.frames import (
    Certified,
    Fault,
    FilterMode,
    FilterOutcome,
    FilterReport,
    Observation,
    Sent,
)
from steadyhand.controllers.protocols import SafetyFilter
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.safety.limits import Limits, agree, all_finite, take
from steadyhand.controllers.signals import SignalSet, Vector

Backup = Callable[[Observation, Vector], None]

_ACTS = 1e-6
"""1/s: a row asking for more than this must have changed the command."""


def bypassed(certified: Certified, sent: Sent, outputs: SignalSet) -> Fault | None:
    """Did something else than the certified command go to the wire?

    The certified command already is what the wire stores, so the two must be equal.

    Returns:
        The fault FILTER_BYPASS, or None if all is well or nothing was written.
    """
    if not sent.written or np.array_equal(sent.action, certified.action):
        return None
    differs = int(np.argmax(sent.action != certified.action))
    name = outputs.names[differs]
    return Fault(
        ReasonCode.FILTER_BYPASS,
        name,
        float(sent.action[differs]),
        float(certified.action[differs]),
        f"{name}: what was written is not what was certified",
    )


class SafetyChain:
    """A `SafetyFilter` that never raises and whose answer always is within the limits."""

    def __init__(self, inner: SafetyFilter, limits: Limits, backup: Backup) -> None:
        """Put the limits behind the filter.

        Args:
            inner: the filter.
            limits: last line before the wire.
            backup: writes the plant's verified backup command (`SafetyModel.backup`).
        """
        self.inner, self.limits = inner, limits
        self._backup = backup
        n = len(limits.outputs)
        # As many rows as the filter's own reports have, so that records keep their shape.
        self._row_count = len(getattr(inner, "constraints", ()))
        self._wanted, self._action, self._last = np.zeros(n), np.zeros(n), np.zeros(n)
        # What is passed is rounded to what the wire stores.
        self._tolerance = np.maximum(1e-6 * (limits.high - limits.low), 0.5001 * limits.quantum)
        agree(self._action, self._wanted, self._tolerance)

    def certify(self, observation: Observation, wanted: Vector, sent: Sent) -> Certified:
        """Certified command (n_u,) for `wanted`; never raises.

        Args:
            observation: the process image.
            wanted: proposed command, engineering units; may be anything.
            sent: what went to the wire last.
        """
        # A copy: the filter asks the limits too, and they reuse their answer.
        last = self._last
        last[:] = self.limits.last_of(observation, sent)
        try:
            certified = self.inner.certify(observation, wanted, sent)
            faults = self._contradictions(certified, wanted)
        except Exception as error:  # noqa: BLE001  a command must go out, whatever the filter does
            text = f"safety filter: {type(error).__name__}: {error}"
            return self._rescue(
                observation, sent, last, (Fault(ReasonCode.FILTER_BACKUP, text=text),)
            )
        if faults:
            return self._rescue(observation, sent, last, faults)
        dt_s = observation.time_s - sent.time_s
        action, clipped = self.limits.apply(certified.action, last, dt_s)
        return Certified(action, certified.report, certified.faults + clipped)

    def _contradictions(self, certified: Certified, wanted: Vector) -> tuple[Fault, ...]:
        """What the filter's answer says against itself; empty if nothing."""
        report = certified.report
        take(certified.action, self._action)
        if not all_finite(self._action):
            text = "the filter's answer is not a vector of finite numbers"
            return (Fault(ReasonCode.FILTER_NONFINITE, text=text),)
        if report.mode is FilterMode.PASS:
            take(wanted, self._wanted)
            if not agree(self._action, self._wanted, self._tolerance):
                text = "the filter says it passed the command, and did not"
                return (Fault(ReasonCode.FILTER_BYPASS, text=text),)
            if len(report.p_nominal) > 0 and float(report.p_nominal.max()) > _ACTS:
                text = "the filter passed a command that its own rows forbid"
                return (Fault(ReasonCode.FILTER_BYPASS, text=text),)
        return ()

    def _rescue(
        self, observation: Observation, sent: Sent, last: Vector, faults: tuple[Fault, ...]
    ) -> Certified:
        """The backup, or the last applied command, behind the limits."""
        wanted = np.full(len(last), nan)
        try:
            self._backup(observation, wanted)
        except Exception as error:  # noqa: BLE001  see certify
            wanted = np.full(len(last), nan)
            text = f"backup: {type(error).__name__}: {error}"
            faults += (Fault(ReasonCode.FALLBACK_FAIL, text=text),)
        # A backup that is not finite is reported by the limits, which hold the last command.
        action, clipped = self.limits.apply(wanted, last, observation.time_s - sent.time_s)
        unknown = np.full(self._row_count, nan)
        report = FilterReport(
            mode=FilterMode.BACKUP,
            outcome=FilterOutcome.NONFINITE,
            correction_norm=nan,
            correction_share=nan,
            margin=nan,
            margin_row=-1,
            active=(),
            k=unknown,
            m=unknown,
            p_nominal=unknown,
            p_certified=unknown,
            multiplier=unknown,
            blend=1.0,
        )
        return Certified(action, report, faults + clipped)
