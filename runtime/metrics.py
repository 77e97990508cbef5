"""Metrics: plain accumulators written by the loop thread, rendered by another one.

The tick only adds to lists of numbers whose places were fixed at start-up; label sets are closed,
so the number of series never changes. Rendering (Prometheus text format 0.0.4) reads the lists and
the last tick. Conventions: base units, one quantity per name, `_total` on counters only, modes as
state sets (one series per state), identities in info gauges.
"""

import platform
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from math import inf, isfinite
from typing import Protocol

from steadyhand.controllers.frames import (
    Certified,
    Fault,
    FilterMode,
    FilterOutcome,
    LinkState,
    Observation,
    Proposal,
    Sent,
    Source,
    Verdict,
)
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.trust.gate import GateState
from steadyhand.runtime.journal import Status
from steadyhand.runtime.modes import Mode

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
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
        signals: Sequence[str] = (),
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Fix every series.

        Args:
            identity: loop, plant and bundle.
            period_s: period in plant seconds.
            rows: names of the safety constraints, in the filter's order.
            wall_period_s: period in wall seconds where plant time runs faster.
            journal: tells the journal's status at scrape time.
            signals: names of observations to expose as gauges; empty exposes no plant value.
            wall: clock of the time stamps.
        """
        self.bundle = identity.bundle
        self.restarts = 0
        """Times the server's thread had to be started again."""
        self.refused = 0
        """Requests refused: too many, too slow, unauthorised."""
        self._identity = identity
        self._rows = (*rows, "input_limits")
        self._journal = journal
        self._signals = tuple(signals)
        self._wall = wall
        edges = time_buckets(wall_period_s or period_s)
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
        self._was_trusted = False
        self._was_source = Source.HANDS_OFF
        self._last: FinishedTick | None = None
        self._mode = "off"
        self._last_tick_s = self._last_write_s = 0.0

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
        sent = tick.sent
        if tick.faults or verdict.faults or sent.faults:
            self._count_faults(tick)
        now_s = self._wall()
        self._last_tick_s = now_s
        if sent.written:
            self._last_write_s = now_s
        self._mode = modes.mode
        self._last = tick

    def _observe_one_by_one(self, values: Sequence[float]) -> None:
        """The slow way, when at least one duration is nonsense: the others still count."""
        for i, value in enumerate(values):
            if 0.0 <= value < _LARGEST:
                self._counts[i][bisect_left(self._edges, value)] += 1
                self._sums[i] += value
            else:
                self._nonfinite += 1

    def _count_changes(self, source: Source, verdict: Verdict, modes: ModesView) -> None:
        """Why the policy lost control, and why trust was lost."""
        if self._was_source is Source.POLICY and source is not Source.POLICY:
            self._fallbacks[_CODE_INDEX[modes.cause.code]] += 1
        if self._was_trusted and not verdict.trusted:
            first = verdict.faults[0].code if verdict.faults else ReasonCode.GATE_PROBATION
            self._trips[_CODE_INDEX[first]] += 1
        self._was_source, self._was_trusted = source, verdict.trusted

    def _count_faults(self, tick: FinishedTick) -> None:
        """Each code counts once per tick."""
        groups = (tick.faults, tick.verdict.faults, tick.sent.faults)
        for code in {fault.code for group in groups for fault in group}:
            self._faults[_CODE_INDEX[code]] += 1
        for fault in tick.sent.faults:
            if fault.code in self._rejected:
                self._rejected[fault.code] += 1

    def render(self) -> bytes:
        """The whole exposition. Any thread but the loop's.

        It gives the processor away between families, so that a loop waiting for the interpreter
        waits for one family at most.
        """
        parts: list[str] = []
        for family in self._families():
            parts.extend(family)
            time.sleep(0)
        return ("\n".join(parts) + "\n").encode()

    def _families(self) -> Iterable[list[str]]:
        yield from self._info()
        for i, (name, meaning) in enumerate(_TIMED):
            yield _histogram(
                f"{name}_seconds",
                f"{meaning}, wall seconds.",
                self._edges,
                self._counts[i],
                self._sums[i],
            )
        yield _histogram(
            "input_age_seconds",
            "Age of the oldest input, plant seconds.",
            self._age_edges,
            self._age_counts,
            self._age_sum,
        )
        yield from self._counters()
        yield from self._states()
        yield from self._gauges()
        if self._journal is not None:
            yield from _journal_families(self._journal())

    def _info(self) -> Iterable[list[str]]:
        identity = self._identity
        labels = {"version": _software(), "python": platform.python_version()}
        yield _family("build_info", "gauge", "Software that runs.", [(labels, 1)])
        labels = {"loop": identity.loop, "plant": identity.plant}
        yield _family("loop_info", "gauge", "Loop and plant.", [(labels, 1)])
        labels = {"bundle": self.bundle or "none"}
        yield _family("bundle_info", "gauge", "Controller that proposes.", [(labels, 1)])

    def _counters(self) -> Iterable[list[str]]:
        def by(label: str, names: Iterable[object], counts: Sequence[int]) -> list[_Sample]:
            pairs = zip(names, list(counts), strict=True)
            return [({label: _lower(name)}, count) for name, count in pairs]

        def codes(label: str, counts: Sequence[int]) -> list[_Sample]:
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
        yield _family("rejected_writes_total", "counter", "Writes that did not take effect.",
                      [({"reason": code}, n) for code, n in self._rejected.items()])  # fmt: skip
        yield _family("nonfinite_values_total", "counter",
                      "Values kept out of the metrics because they were not finite.",
                      [({}, self._nonfinite)])  # fmt: skip
        yield _family("metrics_refused_total", "counter", "Scrapes refused.",
                      [({}, self.refused)])  # fmt: skip
        yield _family("metrics_restarts_total", "counter", "Restarts of the metrics server.",
                      [({}, self.restarts)])  # fmt: skip

    def _states(self) -> Iterable[list[str]]:
        last = self._last
        source = last.source if last else Source.HANDS_OFF
        gate = last.verdict.state if last else GateState.FALLBACK
        link = last.observation.link if last else LinkState.DOWN
        yield _state_set("mode", "Mode asked for by the operator.", Mode, self._mode)
        yield _state_set("source", "What drives the plant.", Source, source)
        yield _state_set("gate_state", "State of the trust gate.", GateState, gate)
        yield _state_set("link_state", "State of the link to the plant.", LinkState, link)

    def _gauges(self) -> Iterable[list[str]]:
        last = self._last
        granted = trusted = confidence = blend = share = margin = 0.0
        if last is not None:
            granted, trusted = float(last.observation.granted), float(last.verdict.trusted)
            confidence = last.verdict.confidence
            if last.certified is not None:
                report = last.certified.report
                blend, share, margin = report.blend, report.correction_share, report.margin
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
            ("last_tick_timestamp_seconds", "When the last tick ended.", self._last_tick_s),
            ("last_write_timestamp_seconds", "When a command last left.", self._last_write_s),
        )
        for name, meaning, value in values:
            yield _family(name, "gauge", meaning, [({}, self._finite(value))])
        if self._signals:
            readings = last.observation.values.tolist() if last else [0.0] * len(self._signals)
            samples: list[_Sample] = [
                ({"signal": name}, self._finite(value))
                for name, value in zip(self._signals, readings, strict=True)
            ]
            yield _family("observation", "gauge", "Measurements, in their own units.", samples)

    def _finite(self, value: float) -> float:
        """Zero stands for what is not known: a series never vanishes and never is NaN."""
        if isfinite(value):
            return float(value)
        self._nonfinite += 1
        return 0.0


_Sample = tuple[dict[str, str], float]


def _family(name: str, kind: str, meaning: str, samples: Sequence[_Sample]) -> list[str]:
    full = f"steadyhand_{name}"
    lines = [f"# HELP {full} {meaning}", f"# TYPE {full} {kind}"]
    for labels, value in samples:
        lines.append(f"{full}{_labels(labels)} {value:.17g}")
    return lines


def _histogram(
    name: str, meaning: str, edges: Sequence[float], counts: Sequence[int], total: float
) -> list[str]:
    full = f"steadyhand_{name}"
    lines = [f"# HELP {full} {meaning}", f"# TYPE {full} histogram"]
    running = 0
    for edge, count in zip((*edges, inf), list(counts), strict=True):
        running += count
        bound = "+Inf" if edge == inf else repr(edge)
        lines.append(f'{full}_bucket{{le="{bound}"}} {running}')
    return [*lines, f"{full}_sum {total:.17g}", f"{full}_count {running}"]


def _state_set(name: str, meaning: str, states: Iterable[object], now: object) -> list[str]:
    samples: list[_Sample] = [
        ({name.removesuffix("_state"): _lower(state)}, int(state == now)) for state in states
    ]
    return _family(name, "gauge", meaning, samples)


def _journal_families(status: Status) -> Iterable[list[str]]:
    head = status.head
    values = (
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


def _labels(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{key}="{escape(str(value))}"' for key, value in labels.items()) + "}"


@lru_cache(maxsize=1024)
def escape(value: str) -> str:
    """Label value that cannot break a line: cut, escaped, control characters replaced."""
    value = value[:120].replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return "".join(c if c.isprintable() else "?" for c in value)


@lru_cache(maxsize=1)
def _software() -> str:
    try:
        return version("steadyhand")
    except PackageNotFoundError:
        return "unknown"
