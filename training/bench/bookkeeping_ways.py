"""Two ways of keeping books on one tick: ours, and prometheus_client + pydantic + orjson.

The same content on both sides: 24 measurements, one output, four constraints, three monitors; six
histograms, five counters, eight gauges; one record per tick, appended to a buffered file. Ours
also extends the hash chain, which the usual set does not have at all.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import create_model

from steadyhand.controllers.errors import ConfigError
from steadyhand.controllers.frames import (
    Certified,
    Fault,
    FilterMode,
    FilterOutcome,
    FilterReport,
    Observation,
    Proposal,
    Sent,
    Source,
    Verdict,
)
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.signals import Signal, SignalSet
from steadyhand.runtime.chain import Kind, link
from steadyhand.runtime.metrics import Identity, Metrics, time_buckets
from steadyhand.runtime.reader import tick_as_dict
from steadyhand.runtime.record import RecordLayout
from steadyhand.runtime.recorder import Recorder

BLOCK = 16
"""Ticks timed together: the writer's thread takes records in batches too."""
N_Y, ROWS, MONITORS = 24, ("a", "b", "c", "d"), ("x", "y", "z")


@dataclass(frozen=True, slots=True, eq=False)
class _Tick:
    """One finished tick."""

    observation: Observation
    proposal: Proposal
    verdict: Verdict
    source: Source
    wanted: Any
    certified: Certified
    sent: Sent
    faults: tuple[Fault, ...]
    timings: tuple[float, ...]


class _Modes:
    mode = "full"
    cause = Fault(ReasonCode.OK)
    demand = Source.POLICY
    latches: tuple[ReasonCode, ...] = ()
    overrides: tuple[object, ...] = ()


def _layout() -> RecordLayout:
    measured = tuple(Signal(f"y{i:02d}_kw", "kW", -1e3, 1e3) for i in range(N_Y))
    output = Signal("u_kw", "kW", -400.0, 450.0)
    return RecordLayout(SignalSet(measured), SignalSet((output,)), ROWS, MONITORS)


def _tick() -> _Tick:
    rng = np.random.default_rng(0)
    m = len(ROWS)
    k, margins, nominal, certified, multiplier = rng.standard_normal((5, m))
    report = FilterReport(
        FilterMode.SHAPED, FilterOutcome.SOLVED, 20.0, 0.02, 0.3, 2, (1, 3),
        k, margins, nominal, certified, multiplier,
    )  # fmt: skip
    return _Tick(
        Observation(
            3, 900.0, rng.standard_normal(N_Y), rng.random(N_Y), np.zeros(N_Y, np.int8), np.ones(1)
        ),
        Proposal(np.array([120.0]), value=-3.5, error=0.25, confidence_logit=2.0, latency_s=0.001),
        Verdict(True, 0.9, "trust", (), (0.1, 0.2, 0.3)),
        Source.POLICY,
        np.array([120.0]),
        Certified(np.array([100.0]), report),
        Sent(np.array([100.0]), 4, 900.0, written=True),
        (),
        (1e-4,) * 7,
    )


def our_ways(directory: Path) -> tuple[Callable[[], None], Callable[[], None], Callable[[], None]]:
    """Metrics and record of one tick, and what the journal's thread does for `BLOCK` of them."""
    layout, tick, modes = _layout(), _tick(), _Modes()
    recorder = Recorder(layout, "c0ffee", "bench@1")
    metrics = Metrics(Identity("bench", "bench"), 900.0, ROWS)
    file = (directory / "ours").open("ab", buffering=1 << 16)
    digest = [bytes(32)]

    def record() -> None:
        recorder.tick(
            tick.observation, tick.proposal, tick.verdict, tick.source, "full", tick.wanted,
            tick.certified, tick.sent, tick.faults, tick.timings, 900.0,
        )  # fmt: skip

    def store() -> None:
        first = recorder.ticks.head - BLOCK
        for n, body in enumerate(recorder.ticks.peek(first, BLOCK)[0], first):
            digest[0] = link(digest[0], 1, n, Kind.TICK, body)
            file.write(body)

    return (lambda: metrics.tick(tick, 0, modes)), record, store


def usual_ways(directory: Path) -> tuple[Callable[[], None], Callable[[], None]]:
    """Metrics and record as most would write them: kept children, lists made each tick.

    Raises:
        ConfigError: prometheus_client or orjson is not installed.
    """
    try:
        prometheus, orjson = import_module("prometheus_client"), import_module("orjson")
    except ImportError as error:
        raise ConfigError(f"bench: {error.name} is missing: pip install 'steadyhand[bench]'") from (
            None
        )
    registry = prometheus.CollectorRegistry()
    edges = time_buckets(900.0)
    histograms = [
        prometheus.Histogram(f"h{i}", "d", registry=registry, buckets=edges) for i in range(6)
    ]
    gauges = [prometheus.Gauge(f"g{i}", "d", registry=registry) for i in range(8)]
    counters = [
        prometheus.Counter(f"c{i}", "d", ["label"], registry=registry).labels("x") for i in range(5)
    ]
    tick = _tick()
    recorder = Recorder(_layout())
    recorder.tick(
        tick.observation, tick.proposal, tick.verdict, tick.source, "full", tick.wanted,
        tick.certified, tick.sent, tick.faults, tick.timings, 900.0,
    )  # fmt: skip
    layout = recorder.layout
    sample = tick_as_dict(layout, layout.decode(recorder.ticks.peek(0, 1)[0][0]))
    fields: dict[str, Any] = {
        "sequence": (int, ...), "monotonic_ns": (int, ...), "wall_ns": (int, ...),
        "now_s": (float, ...), "image": (int, ...), "time_s": (float, ...),
        "values": (list[float], ...), "age_s": (list[float], ...), "quality": (list[int], ...),
        "applied": (list[float], ...), "link": (str, ...), "granted": (bool, ...),
        "proposed": (list[float], ...), "status": (int, ...), "value": (float, ...),
        "error": (float, ...), "logit": (float, ...), "latency_s": (float, ...),
        "trusted": (bool, ...), "confidence": (float, ...), "state": (str, ...),
        "scores": (list[float], ...), "source": (int, ...), "mode": (str, ...),
        "wanted": (list[float], ...), "certified": (list[float], ...), "filter_mode": (int, ...),
        "outcome": (int, ...), "correction_norm": (float, ...), "correction_share": (float, ...),
        "margin": (float, ...), "margin_row": (int, ...), "active": (list[int], ...),
        "k": (list[float], ...), "m": (list[float], ...), "p_nominal": (list[float], ...),
        "p_certified": (list[float], ...), "multiplier": (list[float], ...),
        "boundary_s": (float, ...), "blend": (float, ...), "passes": (int, ...),
        "duration_us": (float, ...), "infeasible": (bool, ...), "residual_z": (float, ...),
        "sent": (list[float], ...), "sent_sequence": (int, ...), "sent_s": (float, ...),
        "written": (bool, ...), "faults": (list[str], ...), "timings": (list[float], ...),
        "config": (str, ...), "bundle": (str, ...),
    }  # fmt: skip
    model: Any = create_model("Record", **fields)
    file = (directory / "usual").open("ab", buffering=1 << 16)
    observation, proposal, verdict = tick.observation, tick.proposal, tick.verdict
    report, sent = tick.certified.report, tick.sent
    number = [0]
    link_word = str(sample["observation"]["link"])

    def count() -> None:
        lateness, *stages = tick.timings
        for histogram, value in zip(
            histograms, (lateness, sum(stages), *stages[:3], max(observation.age_s.tolist())),
            strict=True,
        ):  # fmt: skip
            histogram.observe(value)
        for counter in counters:
            counter.inc()
        now_s = time.time()
        for gauge, value in zip(
            gauges,
            (observation.granted, verdict.trusted, verdict.confidence, report.blend,
             report.correction_share, report.margin, now_s, now_s),
            strict=True,
        ):  # fmt: skip
            gauge.set(value)

    def record() -> None:
        number[0] += 1
        made = model(
            sequence=number[0], monotonic_ns=time.monotonic_ns(), wall_ns=time.time_ns(),
            now_s=900.0, image=observation.sequence, time_s=observation.time_s,
            values=observation.values.tolist(), age_s=observation.age_s.tolist(),
            quality=observation.quality.tolist(), applied=observation.applied.tolist(),
            link=link_word, granted=observation.granted, proposed=proposal.action.tolist(),
            status=proposal.status, value=proposal.value, error=proposal.error,
            logit=proposal.confidence_logit, latency_s=proposal.latency_s, trusted=verdict.trusted,
            confidence=verdict.confidence, state=verdict.state, scores=list(verdict.scores),
            source=tick.source, mode="full", wanted=tick.wanted.tolist(),
            certified=tick.certified.action.tolist(), filter_mode=report.mode,
            outcome=report.outcome, correction_norm=report.correction_norm,
            correction_share=report.correction_share, margin=report.margin,
            margin_row=report.margin_row, active=list(report.active), k=report.k.tolist(),
            m=report.m.tolist(), p_nominal=report.p_nominal.tolist(),
            p_certified=report.p_certified.tolist(), multiplier=report.multiplier.tolist(),
            boundary_s=report.time_to_boundary_s, blend=report.blend, passes=report.passes,
            duration_us=report.duration_us, infeasible=report.infeasible,
            residual_z=report.residual_z, sent=sent.action.tolist(), sent_sequence=sent.sequence,
            sent_s=sent.time_s, written=sent.written, faults=[], timings=list(tick.timings),
            config="c0ffee", bundle="bench@1",
        )  # fmt: skip
        file.write(orjson.dumps(made.model_dump()) + b"\n")

    return count, record
