"""The gate: from evidence to "this proposal may drive" or not.

    evidence: sound image? · policy answered? · filter feasible? · monitors (N of M)
                                 any alarm
              TRUST ------------------------------> FALLBACK ----+
                ^                                    ^   |       | switched too often
                | quiet for dwell_s,       any alarm |   | minimum_stay_s over, quiet
                | margin > 0, settled                |   v       v
                +------------------------------- PROBATION    LATCHED --acknowledge--> FALLBACK

Leaving trust is immediate; coming back takes evidence over time. The policy is scored all the
while, also when it does not drive, so that probation has something to go by. All times are plant
seconds, taken from the image itself.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from math import isfinite, isnan, nan
from typing import Any, Protocol

import numpy as np

from steadyhand.controllers.errors import ConfigError
from steadyhand.controllers.frames import (
    Fault,
    FilterMode,
    FilterOutcome,
    FilterReport,
    Observation,
    Proposal,
    ProposalStatus,
    Verdict,
)
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.trust.care import Confidence


class GateState(StrEnum):
    """Where the gate stands."""

    TRUST = "trust"
    FALLBACK = "fallback"
    PROBATION = "probation"
    LATCHED = "latched"


class Use(StrEnum):
    """What a monitor is used for."""

    ACTIVE = "active"
    PASSIVE = "passive"
    """Scored and counted, never acted upon."""
    DISABLED = "disabled"


class EvidenceMonitor(Protocol):
    """A `Monitor` that can say what its alarm means."""

    name: str
    code: ReasonCode
    quiet_below: float
    """Trust comes back only while the score is below this (<= 1: hysteresis)."""
    broken: str
    """Why it cannot tell anything, or ""."""

    def score(self, observation: Observation, proposal: Proposal) -> float:
        """0 is normal, >= 1 alarms, NaN means that the monitor cannot tell."""
        ...

    def fault(self) -> Fault:
        """The last score as a fault; only called after an alarm."""
        ...


@dataclass(frozen=True, slots=True)
class MonitorSettings:
    """One row of the gate's table: alarm when `n` of the last `m` ticks scored >= 1."""

    use: Use = Use.ACTIVE
    n: int = 1
    m: int = 1

    def __post_init__(self) -> None:
        """Refuse a persistence that can never or not always be met.

        Raises:
            ConfigError: unless 1 <= n <= m.
        """
        if not 1 <= self.n <= self.m:
            raise ConfigError(f"monitor: n={self.n} of m={self.m}: must be 1 <= n <= m")


@dataclass(frozen=True, slots=True)
class GateSettings:
    """Patience of the gate. Times are plant seconds."""

    dwell_s: float
    """How long everything must be quiet before trust (about 3 horizons)."""
    minimum_stay_s: float
    """Shortest stay in fallback (about 5 horizons)."""
    max_switches: int = 6
    """Most changes to or from trust in `switch_window_s`; then a person is asked."""
    switch_window_s: float = 3600.0
    monitors: Mapping[str, MonitorSettings] = field(default_factory=dict)
    """By name; a monitor without a row is active and alarms at once."""
    without_confidence: bool = False
    """Let a policy drive that cannot tell how sure it is: for benches, never for a plant."""

    def __post_init__(self) -> None:
        """Refuse numbers that void a rule.

        Raises:
            ConfigError: a time that is negative or not finite, or room for less than one switch
                in and one out.
        """
        for label in ("dwell_s", "minimum_stay_s", "switch_window_s"):
            value = getattr(self, label)
            if not (isfinite(value) and value >= 0.0):
                raise ConfigError(f"gate: {label}={value}: must be finite and >= 0")
        if self.max_switches < 2:
            raise ConfigError(f"gate: max_switches={self.max_switches}: must be >= 2 (in and out)")

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "GateSettings":
        """Settings from plain data.

        Raises:
            ConfigError: an unknown or missing name, or an impossible value.
        """
        known = {item.name for item in fields(cls)}
        unknown = sorted(set(data) - known)
        if unknown:
            raise ConfigError(f"gate: unknown {unknown}; there are: {sorted(known)}")
        try:
            rows = {
                name: MonitorSettings(**{**row, "use": Use(row.get("use", Use.ACTIVE))})
                for name, row in data.get("monitors", {}).items()
            }
            return cls(**{**data, "monitors": rows})
        except (TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"gate: {error}") from None


class _Row:
    """One monitor at work: its settings and the bits of its last `m` alarms."""

    __slots__ = ("alarms", "bits", "mask", "monitor", "n", "use")

    def __init__(self, monitor: EvidenceMonitor, settings: MonitorSettings) -> None:
        self.monitor = monitor
        self.use = settings.use
        self.n = settings.n
        self.mask = (1 << settings.m) - 1
        self.bits = 0
        self.alarms = 0

    def persists(self, alarm: bool) -> bool:
        self.bits = ((self.bits << 1) | alarm) & self.mask
        return self.bits.bit_count() >= self.n


_IMAGE_CODES = frozenset(
    code
    for code in ReasonCode
    if code.startswith(("OBS_", "SAMPLE_", "SUB_")) or code is ReasonCode.TICK_GAP
)
"""Faults of the image that void trust at once: the policy answered to something untrue or old."""
_PROPOSAL_CODES = {
    ProposalStatus.ABSENT: ReasonCode.POLICY_ABSENT,
    ProposalStatus.LATE: ReasonCode.INFER_LATE,
    ProposalStatus.ERROR: ReasonCode.INFER_ERROR,
    ProposalStatus.CRASHED: ReasonCode.INFER_CRASH,
    ProposalStatus.NONFINITE: ReasonCode.ACT_NONFINITE,
}
_FILTER_CODES = {
    FilterOutcome.INFEASIBLE: ReasonCode.FILTER_INFEASIBLE,
    FilterOutcome.TIME_OUT: ReasonCode.FILTER_INFEASIBLE,
    FilterOutcome.NONFINITE: ReasonCode.FILTER_NONFINITE,
    FilterOutcome.OUTSIDE_SET: ReasonCode.FILTER_RECOVER,
}


class Gate:
    """Judges every proposal. Comes up on probation: trust is earned after each start."""

    def __init__(
        self,
        settings: GateSettings,
        monitors: Sequence[EvidenceMonitor] = (),
    ) -> None:
        """Set up the table. Without an active confidence monitor nothing is ever trusted.

        Raises:
            ConfigError: a row of the settings names no monitor, or two monitors share a name.
        """
        names = tuple(monitor.name for monitor in monitors)
        if len(set(names)) != len(names):
            raise ConfigError(f"gate: two monitors share a name: {names}")
        unknown = sorted(set(settings.monitors) - set(names))
        if unknown:
            raise ConfigError(f"gate: no monitor {unknown}; there are: {names}")
        default = MonitorSettings()
        self.names = names
        """Order of `Verdict.scores`."""
        self.state = GateState.PROBATION
        self._settings = settings
        self._rows = tuple(
            _Row(monitor, settings.monitors.get(monitor.name, default)) for monitor in monitors
        )
        self._confidence = next((m for m in monitors if isinstance(m, Confidence)), None)
        sure = any(r.use is Use.ACTIVE and isinstance(r.monitor, Confidence) for r in self._rows)
        self._blind = not (sure or settings.without_confidence)
        self._filter_fault: Fault | None = None
        self._may_return = True
        self._switches: deque[float] = deque()
        self._now_s = nan
        self._since_s = nan
        self._quiet_since_s = nan

    @property
    def alarms(self) -> dict[str, int]:
        """Ticks with a score >= 1 or NaN per monitor since the start, passive ones included."""
        return {row.monitor.name: row.alarms for row in self._rows}

    def judge(self, observation: Observation, proposal: Proposal) -> Verdict:
        """Verdict on one proposal; never raises on what the plant or the policy may say.

        The faults of the image (`Observation.faults`) void trust, but are not repeated in the
        verdict, which only names what the gate itself found.
        """
        unsound = any(fault.code in _IMAGE_CODES for fault in observation.faults)
        found: list[Fault] = []
        unanswered = _proposal_fault(proposal)
        if unanswered is not None:
            found.append(unanswered)
        elif self._blind:
            found.append(_BLIND)
        if self._filter_fault is not None:
            found.append(self._filter_fault)
        explained = unsound or unanswered is not None
        scores, quiet = self._score(observation, proposal, explained, found)
        flap = self._advance(observation.time_s, unsound or bool(found), quiet)
        if flap is not None:
            found.insert(0, flap)
        confidence = 0.0 if self._confidence is None else self._confidence.smoothed
        trusted = self.state is GateState.TRUST
        return Verdict(trusted, confidence, self.state, tuple(found), scores)

    def filtered(self, report: FilterReport, settled: bool = True) -> None:
        """Take this tick's filter report as evidence for the next.

        Args:
            report: of the safety filter.
            settled: has the heuristic come to rest? Trust does not return in the middle of a move.
        """
        self._may_return = report.margin > 0.0 and settled
        code = _FILTER_CODES.get(report.outcome)
        if code is None and report.infeasible:
            code = ReasonCode.FILTER_INFEASIBLE
        if code is None and report.mode is FilterMode.BACKUP:
            code = ReasonCode.FILTER_BACKUP
        self._filter_fault = (
            None if code is None else Fault(code, "", report.margin, 0.0, "margin of the filter")
        )

    def acknowledge(self) -> bool:
        """A person has seen that control changed hands too often. False: nothing was latched."""
        if self.state is not GateState.LATCHED:
            return False
        self._switches.clear()
        self._enter(GateState.FALLBACK)
        return True

    def _score(
        self, observation: Observation, proposal: Proposal, explained: bool, found: list[Fault]
    ) -> tuple[tuple[float, ...], bool]:
        """Scores of all monitors, and whether the active ones are all quiet; alarms to `found`.

        A score that is not a number is a broken monitor, unless a bad image or a missing answer
        explains it already.
        """
        scores: list[float] = []
        quiet = True
        for row in self._rows:
            if row.use is Use.DISABLED:
                scores.append(nan)
                continue
            monitor = row.monitor
            score = monitor.score(observation, proposal)
            scores.append(score)
            told = not isnan(score)
            alarm = not told or score >= 1.0
            row.alarms += alarm
            persists = row.persists(alarm)
            if row.use is Use.PASSIVE:
                continue
            quiet = quiet and score < monitor.quiet_below  # NaN is not quiet
            if not told and not explained:
                text = monitor.broken or "its score is not a number"
                found.append(Fault(ReasonCode.GATE_FAULT, monitor.name, text=text))
            elif told and alarm and persists:
                found.append(monitor.fault())
        return tuple(scores), quiet

    def _advance(self, time_s: float, alarm: bool, quiet: bool) -> Fault | None:
        """One step of the state machine; returns the fault of a new latch."""
        if isfinite(time_s):
            if not time_s >= self._now_s:  # the first image, or another time scale begins
                self._since_s, self._quiet_since_s = time_s, nan
            self._now_s = time_s
        now_s = self._now_s
        if alarm or not quiet:
            self._quiet_since_s = nan
        elif isnan(self._quiet_since_s):
            self._quiet_since_s = now_s
        if self.state is GateState.TRUST:
            if alarm:
                return self._leave_trust(now_s)
        elif self.state is GateState.FALLBACK:
            if not isnan(self._quiet_since_s) and self._lasted(self._settings.minimum_stay_s):
                self._enter(GateState.PROBATION)
        elif self.state is GateState.PROBATION:
            if alarm:
                self._enter(GateState.FALLBACK)
            elif (
                self._may_return
                and self._lasted(self._settings.dwell_s)
                and now_s - self._quiet_since_s >= self._settings.dwell_s
            ):
                self._enter(GateState.TRUST)
                self._switches.append(now_s)
        return None

    def _lasted(self, time_s: float) -> bool:
        """Has this state lasted so long? Never, while the time is not known."""
        return self._now_s - self._since_s >= time_s

    def _leave_trust(self, now_s: float) -> Fault | None:
        """Record the switch; latch when there is no room for one more in and out."""
        window_s, most = self._settings.switch_window_s, self._settings.max_switches
        self._switches.append(now_s)
        while now_s - self._switches[0] > window_s:
            self._switches.popleft()
        if len(self._switches) + 2 <= most:
            self._enter(GateState.FALLBACK)
            return None
        self._enter(GateState.LATCHED)
        text = f"trust came and went in {window_s:g} s"
        return Fault(ReasonCode.MODE_FLAP, "", float(len(self._switches)), float(most), text)

    def _enter(self, state: GateState) -> None:
        self.state = state
        self._since_s = self._now_s


_BLIND = Fault(ReasonCode.GATE_FAULT, text="no confidence monitor is active")


def _proposal_fault(proposal: Proposal) -> Fault | None:
    """What is wrong with the policy's answer; the numbers are looked at, not only the status."""
    if proposal.status is ProposalStatus.OK:
        if np.isfinite(proposal.action).all():
            return None
        return Fault(ReasonCode.ACT_NONFINITE, text="status OK, action not finite")
    code = _PROPOSAL_CODES[proposal.status]
    return Fault(code, "", proposal.latency_s, nan, proposal.text or "latency in s")
