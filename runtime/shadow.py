"""What a shadow run says about a controller: its proposals beside what the plant did.

In mode shadow each tick's proposal goes through the safety filter and is written nowhere; the
journal keeps the proposal, the filter's report on it, the gate's verdict, and what the plant
applied. A proposal made in one tick is compared with what the plant applies in the next: both are
answers to the same state.

Support comes first: where the proposal is far from what the plant ever did, nothing that the plant
did tells how the proposal would have ended, and only the filter's model speaks for it.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from math import isfinite, isnan, nan, sqrt
from typing import Any

import numpy as np

from steadyhand.controllers.frames import FilterMode, FilterOutcome, ProposalStatus
from steadyhand.runtime.modes import Mode
from steadyhand.runtime.nearness import NEAR, distance
from steadyhand.runtime.reader import EventRecord, JournalReader
from steadyhand.runtime.record import TickRecord

DAY_S = 86_400.0
_Z = 1.959964
"""Two-sided 95 % of the normal distribution."""
_ASKS = 1e-6
"""1/s: a row asking for more than this forbids the proposal as it came."""
_BROKEN = frozenset(
    {
        FilterOutcome.SOLVED_WITH_SLACK,
        FilterOutcome.INFEASIBLE,
        FilterOutcome.TIME_OUT,
        FilterOutcome.NONFINITE,
    }
)
"""Outcomes with which the limits would not have been kept for certain."""
_NOT_JUDGED = frozenset({FilterOutcome.OUTSIDE_SET, FilterOutcome.UNUSABLE})
"""The plant was outside already, or could not be measured: not the proposal's doing."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of a shadow run; shares are of the ticks that could be judged, NaN where none was."""

    ticks: int = 0
    days: float = 0.0
    """Plant time with a shadow tick, days."""
    begin: str = ""
    end: str = ""
    """Wall time of the first and last tick, UTC."""
    coverage: float = nan
    """Share of the ticks with an answer of the policy."""
    compared: int = 0
    """Proposals with a next tick to compare with."""
    support: float = nan
    """Share of proposals near what the plant did, in every output."""
    distance_mean: float = nan
    distance_p95: float = nan
    """Largest distance over the outputs, as a share of the range."""
    judged: int = 0
    """Proposals on which the filter could judge."""
    violations: int = 0
    """Of these, how many the filter could not have made safe."""
    violation_share: float = nan
    violation_low: float = nan
    violation_high: float = nan
    """95 % interval of the share, wider where neighbouring ticks repeat each other."""
    forbidden_share: float = nan
    """Share of proposals that broke a limit as they came; the filter would have changed them."""
    correction_mean: float = nan
    correction_p95: float = nan
    """How far the filter moved the proposal, as a share of the input set."""
    availability: float = nan
    """Share of the ticks in which the gate trusted the proposal."""
    confidence_mean: float = nan

    def as_dict(self) -> dict[str, Any]:
        """Plain data; what is not known is None."""
        return {
            key: None if isinstance(value, float) and isnan(value) else value
            for key, value in asdict(self).items()
        }


@dataclass
class _Tally:
    """Numbers gathered tick by tick."""

    ticks: int = 0
    answers: int = 0
    trusted: int = 0
    first_ns: int = 0
    last_ns: int = 0
    steps_s: list[float] = field(default_factory=list)
    distance: list[float] = field(default_factory=list)
    broken: list[bool] = field(default_factory=list)
    forbidden: list[bool] = field(default_factory=list)
    correction: list[float] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)


def figures(
    journal: JournalReader, bundle: str = "", control: str = "", plant: str = ""
) -> Figures:
    """Score every shadow tick of `journal`.

    Args:
        journal: the record.
        bundle: only ticks with this controller, "name@version#hash"; empty: any.
        control: only runs with this digest of the control settings; empty: any.
        plant: only runs of the plant with this name; empty: any.

    Raises:
        JournalError: a segment cannot be read.
    """
    tally = _Tally()
    for run in journal.runs:
        start = _start_of(journal, run)
        if (control and start.get("control") != control) or (plant and start.get("plant") != plant):
            continue
        before: TickRecord | None = None
        for tick, span in _shadow_ticks(journal, run, bundle):
            if before is not None and tick.sequence == before.sequence + 1:
                _compare(tally, before, tick, span)
            _judge(tally, tick)
            before = tick
    return _sum_up(tally)


def _start_of(journal: JournalReader, run: str) -> dict[str, Any]:
    """What the run said of itself when it began."""
    return next((e.data for e in journal.events(run=run) if e.event == "Start"), {})


def _shadow_ticks(
    journal: JournalReader, run: str, bundle: str
) -> Iterator[tuple[TickRecord, "np.ndarray[Any, Any]"]]:
    for segment, item in journal.items(run):
        if isinstance(item, EventRecord) or item.operator_mode != Mode.SHADOW:
            continue
        if not bundle or item.bundle == bundle[:48]:
            outputs = segment.layout.outputs
            yield item, outputs.high - outputs.low


def _compare(
    tally: _Tally, before: TickRecord, tick: TickRecord, span: "np.ndarray[Any, Any]"
) -> None:
    """What was proposed a tick ago, beside what the plant has applied since."""
    step_s = tick.observation.time_s - before.observation.time_s
    if step_s <= 0.0 or before.proposal is None or before.proposal.status is not ProposalStatus.OK:
        return
    tally.steps_s.append(step_s)
    away = distance(before.proposal.action, tick.observation.applied, span)
    if isfinite(away):
        tally.distance.append(away)


def _judge(tally: _Tally, tick: TickRecord) -> None:
    tally.ticks += 1
    tally.first_ns = tally.first_ns or tick.wall_ns
    tally.last_ns = tick.wall_ns
    if tick.verdict is not None:
        tally.trusted += tick.verdict.trusted
    if tick.proposal is None or tick.proposal.status is not ProposalStatus.OK:
        return
    tally.answers += 1
    if tick.verdict is not None:
        tally.confidence.append(tick.verdict.confidence)
    if tick.certified is None or tick.certified.report.outcome in _NOT_JUDGED:
        return
    report = tick.certified.report
    tally.broken.append(report.outcome in _BROKEN)
    asked = float(np.nanmax(report.p_nominal, initial=0.0))
    tally.forbidden.append(report.mode is not FilterMode.PASS and asked > _ASKS)
    if isfinite(report.correction_share):
        tally.correction.append(report.correction_share)


def _sum_up(tally: _Tally) -> Figures:
    if tally.ticks == 0:
        return Figures()
    low, high = interval(tally.broken)
    period_s = float(np.median(tally.steps_s)) if tally.steps_s else 0.0
    distance = np.array(tally.distance)
    return Figures(
        ticks=tally.ticks,
        days=tally.ticks * period_s / DAY_S,
        begin=_moment(tally.first_ns),
        end=_moment(tally.last_ns),
        coverage=tally.answers / tally.ticks,
        compared=len(distance),
        support=_mean(distance <= NEAR),
        distance_mean=_mean(distance),
        distance_p95=_p95(distance),
        judged=len(tally.broken),
        violations=sum(tally.broken),
        violation_share=_mean(np.array(tally.broken, dtype=float)),
        violation_low=low,
        violation_high=high,
        forbidden_share=_mean(np.array(tally.forbidden, dtype=float)),
        correction_mean=_mean(np.array(tally.correction)),
        correction_p95=_p95(np.array(tally.correction)),
        availability=tally.trusted / tally.ticks,
        confidence_mean=_mean(np.array(tally.confidence)),
    )


def interval(found: list[bool]) -> tuple[float, float]:
    """95 % interval of the share of True (Wilson's score interval).

    Neighbouring ticks are alike, so that n of them tell less than n independent ones: they count as
    n (1 - r) / (1 + r) with r their correlation from one to the next, where that is positive.
    """
    n = float(len(found))
    if n == 0.0:
        return nan, nan
    x = np.array(found, dtype=np.float64)
    share = float(x.mean())
    spread = float(((x - share) ** 2).mean())
    if n > 2.0 and spread > 0.0:
        r = float(((x[1:] - share) * (x[:-1] - share)).mean()) / spread
        n = max(1.0, n * (1.0 - r) / (1.0 + r)) if 0.0 < r < 1.0 else n
    z2 = _Z * _Z
    middle = (share + z2 / (2.0 * n)) / (1.0 + z2 / n)
    half = _Z / (1.0 + z2 / n) * sqrt(share * (1.0 - share) / n + z2 / (4.0 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def _mean(values: "np.ndarray[Any, Any]") -> float:
    return float(np.mean(values)) if len(values) else nan


def _p95(values: "np.ndarray[Any, Any]") -> float:
    return float(np.percentile(values, 95.0)) if len(values) else nan


def _moment(wall_ns: int) -> str:
    return datetime.fromtimestamp(wall_ns / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


MEANINGS = {
    "ticks": "ticks in mode shadow",
    "days": "plant time of them, days",
    "coverage": "share with an answer of the policy",
    "support": f"share of proposals within {NEAR:.0%} of what the plant did",
    "distance_mean": "mean distance, share of the range",
    "distance_p95": "95th percentile of it",
    "violation_share": "share that the filter could not have made safe",
    "violation_low": "… 95 % interval, lower end",
    "violation_high": "… 95 % interval, upper end",
    "forbidden_share": "share that the filter would have had to change",
    "correction_mean": "mean correction, share of the input set",
    "correction_p95": "95th percentile of it",
    "availability": "share of ticks in which the gate trusted it",
    "confidence_mean": "mean confidence",
}
"""What the figures of a report mean, in their order."""
