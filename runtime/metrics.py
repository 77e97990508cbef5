"""Metrics: plain accumulators written by the loop thread, rendered by another one.

The tick only adds to lists of numbers whose places were fixed at start-up; label sets are closed,
so the number of series never changes. Rendering (`exposition.py`) reads the lists, the last tick,
and what the service knows outside the tick (`vitals.py`). Conventions: base units, one quantity per
name, `_total` on counters only, modes as state sets (one series per state), identities in info
gauges, moments as time stamps from which the reader works out the age.
"""

import platform
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, isnan, nan
from typing import Protocol

from steadyhand.controllers.frames import (
    Certified,
    Fault,
    FilterMode,
    FilterOutcome,
    LinkState,
    Observation,
    Proposal,
    ProposalStatus,
    Sent,
    Source,
    Verdict,
)
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.signals import SignalSet
from steadyhand.controllers.trust.gate import GateState
from steadyhand.runtime.exposition import (
    Family,
    Histogram,
    Kind,
    Sample,
    page,
    process_families,
)
from steadyhand.runtime.handshake import Control, Participation
from steadyhand.runtime.journal import Status
from steadyhand.runtime.modes import Mode
from steadyhand.runtime.nearness import NEAR, distance
from steadyhand.runtime.tested_versions import software
from steadyhand.runtime.vitals import Look, Vitals
from steadyhand.runtime.vitals import families as vital_families

_CODES = tuple(str(code) for code in ReasonCode)
_CODE_INDEX = {code: i for i, code in enumerate(ReasonCode)}
_WRITE_CODES = tuple(code for code in _CODES if code.startswith("WRITE_"))
_LARGEST = 1e12
"""Seconds beyond which a duration is nonsense; sums stay finite for ever below it."""
_TIMED = (
    ("lateness", "Start of a tick after its planned time"),
    ("cycle", "From reading the plant to the command's hand-over"),
    ("inference", "The policy's answer"),
    ("filter", "Certifying a command"),
    ("write", "Handing a command over"),
)


class FinishedTick(Protocol):
    """What the loop tells of a tick; timings are lateness, read, propose, judge, decide, certify,
    write.
    """

    @property
    def observation(self) -> Observation: ...  # noqa: D102
    @property
    def proposal(self) -> Proposal | None: ...  # noqa: D102
    @property
    def verdict(self) -> Verdict: ...  # noqa: D102
    @property
    def source(self) -> Source: ...  # noqa: D102
    @property
    def certified(self) -> Certified | None: ...  # noqa: D102
    @property
    def sent(self) -> Sent: ...  # noqa: D102
    @property
    def faults(self) -> tuple[Fault, ...]: ...  # noqa: D102
    @property
    def timings(self) -> tuple[float, ...]: ...  # noqa: D102


class ModesView(Protocol):
    """What the metrics need of the mode machine."""

    @property
    def mode(self) -> str: ...  # noqa: D102
    @property
    def cause(self) -> Fault: ...  # noqa: D102
    @property
    def demand(self) -> Source: ...  # noqa: D102
    @property
    def latches(self) -> Collection[ReasonCode]: ...  # noqa: D102
    @property
    def overrides(self) -> Collection[object]: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Identity:
    """Who is measured; constant for the life of a process, but for the bundle."""

    loop: str
    plant: str
    bundle: str = ""


def time_buckets(period_s: float) -> tuple[float, ...]:
    """Upper bounds for durations inside a tick: half decades, then finer around the period.

    They begin at 0.1 ms, or at a hundredth of the period for fast loops.
    """
    edges = []
    edge = min(1e-4, period_s / 100.0)
    while edge < 0.4 * period_s:
        edges.append(edge)
        edge *= 10.0**0.5
    around = (0.5 * period_s, 0.75 * period_s, period_s, 2.0 * period_s)
    return tuple(float(f"{edge:.3g}") for edge in (*edges, *around))


def age_buckets(period_s: float) -> tuple[float, ...]:
    """Upper bounds for the age of inputs, in plant seconds: multiples of the period."""
    return tuple(
        float(f"{k * period_s:.3g}") for k in (0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30)
    )


class Metrics:
    """Accumulates; `tick` belongs to the loop thread, `render` to any other."""

    def __init__(
        self,
        identity: Identity,
        period_s: float,
        rows: Sequence[str] = (),
        wall_period_s: float | None = None,
        journal: Callable[[], Status] | None = None,
        signals: SignalSet | None = None,
        outputs: SignalSet | None = None,
        plant_values: bool = False,
        monitors: Sequence[str] = (),
        vitals: Look = Vitals,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Fix every series.

        Args:
            identity: loop, plant and bundle.
            period_s: period in plant seconds.
            rows: names of the safety constraints, in the filter's order.
            wall_period_s: period in wall seconds where plant time runs faster.
            journal: tells the journal's status at scrape time.
            signals: the measurements; None: there are none.
            outputs: the outputs, likewise.
            plant_values: may their values be seen?
            monitors: names of the gate's monitors, in its order.
            vitals: looks at what is known outside the tick, at scrape time.
            wall: clock of the time stamps.
        """
        self.bundle = identity.bundle
        self.restarts = 0
        """Times the server's thread had to be started again."""
        self.refused = 0
        """Requests refused: too many, too slow, unauthorised."""
        self.standing: Collection[Fault] = ()
        """What is wrong beside the tick now: with SCADA, with certificates, with the run before."""
        self.shelved = 0
        """Alarms that somebody has moved out of the way."""
        self.participation: Mapping[str, Participation] = {}
        """Whom each output follows now; of one that is not named, nobody of ours."""
        self._identity = identity
        self._rows = (*rows, "input_limits")
        self._journal = journal
        nothing = SignalSet(())
        self._signals, self._outputs = signals or nothing, outputs or nothing
        self._plant_values = plant_values
        self._span = self._outputs.high - self._outputs.low
        self._monitors = tuple(monitors)
        self._vitals = vitals
        self._wall = wall
        self._wall_period_s = wall_period_s or period_s
        edges = time_buckets(self._wall_period_s)
        self._edges = list(edges)
        self._counts = tuple([0] * (len(edges) + 1) for _ in _TIMED)
        self._sums = [0.0] * len(_TIMED)
        self._age_edges = list(age_buckets(period_s))
        self._age_counts = [0] * (len(self._age_edges) + 1)
        self._age_sum = 0.0
        self._nonfinite = 0
        self._ticks = [0] * len(Source)
        self._skipped = 0
        self._interventions = [0] * len(self._rows)
        self._filter_modes = [0] * len(FilterMode)
        self._outcomes = [0] * len(FilterOutcome)
        self._faults = [0] * len(_CODES)
        self._trips = [0] * len(_CODES)
        self._fallbacks = [0] * len(_CODES)
        self._rejected = dict.fromkeys(_WRITE_CODES, 0)
        self._compared = self._near = 0
        self._distance = nan
        self._asked: Proposal | None = None
        """In mode shadow: what was proposed in the last tick."""
        self._was_trusted = False
        self._was_source = Source.HANDS_OFF
        self._last: FinishedTick | None = None
        self._modes: ModesView | None = None
        self._last_tick_s = self._last_write_s = 0.0
        self._source_since_s = wall()

    def tick(self, tick: FinishedTick, skipped: int, modes: ModesView) -> None:
        """Count one tick. Loop thread, after the write; allocates nothing that stays.

        Args:
            tick: the finished tick.
            skipped: periods skipped since the tick before.
            modes: the mode machine after the tick.
        """
        lateness, read, propose, judge, decide, certify, write = tick.timings
        cycle = read + propose + judge + decide + certify + write
        observation, source, verdict = tick.observation, tick.source, tick.verdict
        late_n, cycle_n, inference_n, filter_n, write_n = self._counts
        edges, sums = self._edges, self._sums
        if (  # one look for all: NaN fails every comparison
            0.0 <= lateness < 1e12
            and 0.0 <= cycle < 1e12
            and 0.0 <= propose < 1e12
            and 0.0 <= certify < 1e12
            and 0.0 <= write < 1e12
        ):
            late_n[bisect_left(edges, lateness)] += 1
            cycle_n[bisect_left(edges, cycle)] += 1
            inference_n[bisect_left(edges, propose)] += 1
            filter_n[bisect_left(edges, certify)] += 1
            write_n[bisect_left(edges, write)] += 1
            sums[0] += lateness
            sums[1] += cycle
            sums[2] += propose
            sums[3] += certify
            sums[4] += write
        else:
            self._observe_one_by_one((lateness, cycle, propose, certify, write))
        ages = observation.age_s.tolist()
        age = max(ages) if ages else 0.0
        if 0.0 <= age < _LARGEST:
            self._age_counts[bisect_left(self._age_edges, age)] += 1
            self._age_sum += age
        else:
            self._nonfinite += 1
        self._ticks[source] += 1
        self._skipped += skipped
        if tick.certified is not None:
            report = tick.certified.report
            self._filter_modes[report.mode] += 1
            self._outcomes[report.outcome] += 1
            if report.mode:
                row = report.margin_row
                known = report.active and row < len(self._rows) - 1
                self._interventions[row if known else -1] += 1
        if source is not self._was_source or verdict.trusted is not self._was_trusted:
            self._count_changes(source, verdict, modes)
        if modes.mode == Mode.SHADOW or self._asked is not None:
            self._score(tick, modes.mode == Mode.SHADOW and self._span.size > 0)
        sent = tick.sent
        filtered = () if tick.certified is None else tick.certified.faults
        if tick.faults or verdict.faults or sent.faults or filtered:
            self._count_faults((tick.faults, verdict.faults, sent.faults, filtered))
        now_s = self._wall()
        self._last_tick_s = now_s
        if sent.written:
            self._last_write_s = now_s
        self._modes = modes
        self._last = tick

    def _observe_one_by_one(self, values: Sequence[float]) -> None:
        """The slow way, when at least one duration is nonsense: the others still count."""
        for i, value in enumerate(values):
            if 0.0 <= value < _LARGEST:
                self._counts[i][bisect_left(self._edges, value)] += 1
                self._sums[i] += value
            else:
                self._nonfinite += 1

    def _score(self, tick: FinishedTick, shadow: bool) -> None:
        """In mode shadow: what was proposed a tick ago, beside what the plant has done since."""
        before, proposal = self._asked, tick.proposal
        self._distance = nan
        if shadow and before is not None:
            self._distance = distance(before.action, tick.observation.applied, self._span)
        if isfinite(self._distance):
            self._compared += 1
            self._near += self._distance <= NEAR
        answered = proposal is not None and proposal.status is ProposalStatus.OK
        self._asked = proposal if shadow and answered else None

    def _count_changes(self, source: Source, verdict: Verdict, modes: ModesView) -> None:
        """Why the policy lost control, why trust was lost, and since when this source drives."""
        if source is not self._was_source:
            self._source_since_s = self._wall()
        if self._was_source is Source.POLICY and source is not Source.POLICY:
            self._fallbacks[_CODE_INDEX[modes.cause.code]] += 1
        if self._was_trusted and not verdict.trusted:
            first = verdict.faults[0].code if verdict.faults else ReasonCode.GATE_PROBATION
            self._trips[_CODE_INDEX[first]] += 1
        self._was_source, self._was_trusted = source, verdict.trusted

    def _count_faults(self, groups: Iterable[Iterable[Fault]]) -> None:
        """Each code counts once per tick. What became of a write is told by a later image."""
        for code in {fault.code for group in groups for fault in group}:
            self._faults[_CODE_INDEX[code]] += 1
            if code in self._rejected:
                self._rejected[code] += 1

    def render(self, open_metrics: bool = False) -> bytes:
        """The whole page. Any thread but the loop's."""
        return page(self._families(), open_metrics)

    def _families(self) -> Iterable[Family | Histogram]:
        vitals = self._vitals()
        yield from self._info()
        for i, (name, meaning) in enumerate(_TIMED):
            yield Histogram(
                f"steadyhand_{name}_seconds",
                f"{meaning}, wall seconds.",
                self._edges,
                self._counts[i],
                self._sums[i],
            )
        yield Histogram(
            "steadyhand_input_age_seconds",
            "Age of the oldest input, plant seconds.",
            self._age_edges,
            self._age_counts,
            self._age_sum,
        )
        yield from self._counters()
        yield from self._states(vitals.link)
        yield from self._gauges()
        yield from self._codes()
        yield from self._trust_and_safety()
        yield from self._shadow()
        yield from self._shown_values()
        yield from vital_families(vitals)
        if self._journal is not None:
            yield from _journal_families(self._journal())
        yield from process_families()

    def _info(self) -> Iterable[Family]:
        identity = self._identity
        labels = {"version": software(), "python": platform.python_version()}
        yield _family("build_info", "gauge", "Software that runs.", [(labels, 1)])
        labels = {"loop": identity.loop, "plant": identity.plant}
        yield _family("loop_info", "gauge", "Loop and plant.", [(labels, 1)])
        labels = {"bundle": self.bundle or "none"}
        yield _family("bundle_info", "gauge", "Controller that proposes.", [(labels, 1)])

    def _counters(self) -> Iterable[Family]:
        def by(label: str, names: Iterable[object], counts: Sequence[int]) -> list[Sample]:
            pairs = zip(names, list(counts), strict=True)
            return [({label: _lower(name)}, count) for name, count in pairs]

        def codes(label: str, counts: Sequence[int]) -> list[Sample]:
            return [({label: code}, n) for code, n in zip(_CODES, list(counts), strict=True)]

        yield _family("ticks_total", "counter", "Ticks by who drove.",
                      by("source", Source, self._ticks))  # fmt: skip
        yield _family("skipped_periods_total", "counter",
                      "Periods skipped because a tick before overran.",
                      [({}, self._skipped)])  # fmt: skip
        yield _family("interventions_total", "counter",
                      "Ticks in which the filter changed the command, by the constraint nearest.",
                      by("constraint", self._rows, self._interventions))  # fmt: skip
        yield _family("filter_modes_total", "counter", "Ticks by what the filter did.",
                      by("mode", FilterMode, self._filter_modes))  # fmt: skip
        yield _family("filter_outcomes_total", "counter", "Ticks by how the filter ended.",
                      by("outcome", FilterOutcome, self._outcomes))  # fmt: skip
        yield _family("gate_trips_total", "counter", "Losses of trust by first cause.",
                      codes("gate", self._trips))  # fmt: skip
        yield _family("fallback_entries_total", "counter",
                      "Times the policy lost control, by first cause.",
                      codes("reason", self._fallbacks))  # fmt: skip
        yield _family("faulty_ticks_total", "counter", "Ticks with a fault, by reason code.",
                      codes("reason", self._faults))  # fmt: skip
        yield _family("rejected_writes_total", "counter", "Ticks in which a write failed.",
                      [({"reason": code}, n) for code, n in self._rejected.items()])  # fmt: skip
        yield _family("shadow_ticks_total", "counter",
                      "Ticks in mode shadow whose proposal was compared with what the plant did.",
                      [({}, self._compared)])  # fmt: skip
        yield _family("shadow_near_ticks_total", "counter",
                      "Of these, ticks in which both were near each other, in every output.",
                      [({}, self._near)])  # fmt: skip
        yield _family("nonfinite_values_total", "counter",
                      "Values kept out of the metrics because they were not finite.",
                      [({}, self._nonfinite)])  # fmt: skip
        yield _family("metrics_refused_total", "counter", "Scrapes refused.",
                      [({}, self.refused)])  # fmt: skip
        yield _family("metrics_restarts_total", "counter", "Restarts of the metrics server.",
                      [({}, self.restarts)])  # fmt: skip

    def _states(self, link_now: LinkState | None) -> Iterable[Family]:
        last, modes = self._last, self._modes
        source = last.source if last else Source.HANDS_OFF
        demand = modes.demand if modes else Source.HANDS_OFF
        gate = last.verdict.state if last else GateState.FALLBACK
        link = link_now or (last.observation.link if last else LinkState.DOWN)
        mode = modes.mode if modes else Mode.OFF
        yield _state_set("mode", "Mode asked for by the operator.", Mode, mode)
        yield _state_set("source", "What drives the plant.", Source, source)
        yield _state_set(
            "demand",
            "What may drive at most now; less restrictive than the source while it counts clean "
            "ticks on the way back.",
            Source,
            demand,
            "source",
        )
        control = getattr(last, "control", Control.OFF)  # a recorded tick has none
        words = "State of the handshake with the plant."
        yield _state_set("control_state", words, Control, control)
        taking_part = self.participation
        pairs = [(name, part) for name in self._outputs.names for part in Participation]
        part: list[Sample] = [
            ({"output": name, "follows": str(follows)},
             float(follows is taking_part.get(name, Participation.NONE)))
            for name, follows in pairs
        ]  # fmt: skip
        yield _family("output_participation", "gauge", "Whom an output follows now.", part)
        yield _state_set("gate_state", "State of the trust gate.", GateState, gate)
        yield _state_set("link_state", "State of the link to the plant.", LinkState, link)

    def _codes(self) -> Iterable[Family]:
        """Every reason code, on or off: what is wrong now, what came first, what is latched."""
        last, modes = self._last, self._modes
        present: set[ReasonCode] = set()
        if last is not None:
            certified = () if last.certified is None else last.certified.faults
            groups = (last.faults, last.verdict.faults, last.sent.faults, certified)
            present = {fault.code for group in groups for fault in group}
        present |= {fault.code for fault in self.standing}
        cause = modes.cause.code if modes else ReasonCode.START
        latched = tuple(modes.latches) if modes else ()
        for name, meaning, on in (
            ("fault", "Is this wrong now?", present),
            ("cause", "First cause of what holds the policy back; OK when nothing does.", {cause}),
            ("latched", "Does this wait for an acknowledgement?", latched),
        ):
            samples: list[Sample] = [({"reason": c}, float(c in on)) for c in ReasonCode]
            yield _family(name, "gauge", meaning, samples)

    def _gauges(self) -> Iterable[Family]:
        last, modes = self._last, self._modes
        granted = trusted = confidence = blend = share = margin = 0.0
        if last is not None:
            granted, trusted = float(last.observation.granted), float(last.verdict.trusted)
            confidence = last.verdict.confidence
            if last.certified is not None:
                report = last.certified.report
                blend, share, margin = report.blend, report.correction_share, report.margin
        overrides = len(modes.overrides) if modes else 0
        values = (
            ("granted", "Does the plant grant control?", granted),
            ("trusted", "Does the gate trust the proposal?", trusted),
            ("confidence_ratio", "Confidence in the proposal.", confidence),
            ("backup_blend_ratio", "Share of the backup in the command.", blend),
            ("correction_ratio", "Correction as a share of the input set.", share),
            (
                "safety_margin_ratio",
                "Smallest scaled distance to a constraint; negative is outside.",
                margin,
            ),
            ("period_seconds", "Time from tick to tick, wall seconds.", self._wall_period_s),
            ("last_tick_timestamp_seconds", "When the last tick ended.", self._last_tick_s),
            ("last_write_timestamp_seconds", "When a command last left.", self._last_write_s),
            (
                "source_since_timestamp_seconds",
                "Since when this source drives.",
                self._source_since_s,
            ),
            ("overrides", "Outputs that a person overrides now.", overrides),
            ("shelved_alarms", "Alarms that somebody has moved out of the way.", self.shelved),
        )
        for name, meaning, value in values:
            yield _family(name, "gauge", meaning, [({}, self._finite(value))])

    def _trust_and_safety(self) -> Iterable[Family]:
        """Monitor by monitor and row by row. What is not known now has no sample: zero would be
        the edge of a limit.
        """
        last = self._last
        scores = last.verdict.scores if last else ()
        yield _family("monitor_score_ratio", "gauge",
                      "Score of a monitor of the gate; it alarms from 1 on.",
                      _known("monitor", self._monitors, scores))  # fmt: skip
        rows = self._rows[:-1]
        report = last.certified.report if last and last.certified else None
        yield _family("constraint_margin_ratio", "gauge",
                      "Scaled distance to each constraint; negative is outside.",
                      _known("constraint", rows, [] if report is None else report.m.tolist()),
                      )  # fmt: skip
        active = () if report is None else report.active
        yield _family("constraint_active", "gauge", "Does this constraint shape the command now?",
                      [({"constraint": name}, float(i in active)) for i, name in enumerate(rows)],
                      )  # fmt: skip

    def _shadow(self) -> Iterable[Family]:
        """How far the last proposal was from what the plant did; no sample while not known."""
        away: list[Sample] = [] if isnan(self._distance) else [({}, self._distance)]
        yield _family("shadow_distance_ratio", "gauge",
                      "Distance between proposal and plant, share of the range; mode shadow only.",
                      away)  # fmt: skip

    def _shown_values(self) -> Iterable[Family]:
        """Measurements and outputs in their own units, where the configuration shows them."""
        if not self._plant_values:
            return
        last = self._last
        readings = last.observation.values.tolist() if last else ()
        yield _family("observation", "gauge", "Measurements, in their own units.",
                      _known("signal", self._signals.names, readings))  # fmt: skip
        yield _family("observation_info", "gauge", "Units of the measurements.",
                      _units("signal", self._signals))  # fmt: skip
        nothing: Sequence[float] = ()
        sent = last.sent if last else None
        for name, meaning, values in (
            ("output_proposed", "What the policy asks for, in the output's unit.",
             last.proposal.action.tolist() if last and last.proposal else nothing),
            ("output_sent", "What was written, in the output's unit.",
             sent.action.tolist() if sent and sent.written else nothing),
            ("output_applied", "What the plant applies, in the output's unit.",
             last.observation.applied.tolist() if last else nothing),
        ):  # fmt: skip
            yield _family(name, "gauge", meaning, _known("output", self._outputs.names, values))
        yield _family("output_info", "gauge", "Units of the outputs.",
                      _units("output", self._outputs))  # fmt: skip

    def _finite(self, value: float) -> float:
        """Zero stands for what is not known: a series never vanishes and never is NaN."""
        if isfinite(value):
            return float(value)
        self._nonfinite += 1
        return 0.0


def _family(name: str, kind: Kind, meaning: str, samples: Sequence[Sample]) -> Family:
    return Family(f"steadyhand_{name}", kind, meaning, samples)


def _state_set(
    name: str, meaning: str, states: Iterable[object], now: object, label: str = ""
) -> Family:
    label = label or name.removesuffix("_state")
    samples: list[Sample] = [({label: _lower(state)}, int(state == now)) for state in states]
    return _family(name, "gauge", meaning, samples)


def _known(label: str, names: Sequence[str], values: Sequence[float]) -> list[Sample]:
    """One sample for each value that is a number."""
    pairs = zip(names, values, strict=False)
    return [({label: name}, float(value)) for name, value in pairs if isfinite(value)]


def _units(label: str, signals: SignalSet) -> list[Sample]:
    """An info sample for each signal, to be joined in queries."""
    return [({label: signal.name, "unit": signal.unit}, 1) for signal in signals]


def _journal_families(status: Status) -> Iterable[Family]:
    head = status.head
    values: tuple[tuple[str, Kind, str, float], ...] = (
        ("journal_records_total", "counter", "Records on disk, by this process.", status.records),
        ("journal_lost_ticks_total", "counter", "Ticks the journal lost.", status.lost_ticks),
        ("journal_lost_events_total", "counter", "Events the journal lost.", status.lost_events),
        ("journal_degraded", "gauge", "Are records missing on disk?", int(bool(status.cause))),
        ("journal_commit_seconds", "gauge", "Duration of the last transaction.", status.commit_s),
        ("journal_head_segment", "gauge", "Segment of the last record.", head.segment),
        ("journal_head_records", "gauge", "Records in that segment.", head.records),
        ("journal_head_hash", "gauge", "First 48 bits of the last record's hash, as a number.",
         int.from_bytes(head.hash[:6], "big")),
    )  # fmt: skip
    for name, kind, meaning, value in values:
        yield _family(name, kind, meaning, [({}, value)])


def _lower(name: object) -> str:
    """Label value of a state: the name of an integer enum, the value of a text enum."""
    return name if isinstance(name, str) else str(getattr(name, "name", name)).lower()
