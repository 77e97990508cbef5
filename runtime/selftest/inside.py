"""The bench in process: a configuration's own loop on the plant's equations, in lock-step.

Judge of images, cross-checks, heuristic, filter, limits and mode machine are those of the
configuration. The policy is a stand-in that wants one stop of each actuator after the other and is
sure of itself, so that nothing but the chain behind it keeps the plant safe.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np

from steadyhand.adapters.sim.faults import SignalFault
from steadyhand.adapters.sim.link import SimLink
from steadyhand.adapters.sim.observer import WriteLog
from steadyhand.adapters.sim.plants import RunSpec, make_runner
from steadyhand.controllers.errors import RequestError
from steadyhand.controllers.frames import LinkState, Observation, Proposal, Sent, Source
from steadyhand.controllers.heuristics.transfer import Transfer
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.signals import SignalSet, Vector
from steadyhand.controllers.trust.gate import Gate, GateSettings
from steadyhand.runtime import assemble
from steadyhand.runtime.assemble import PlantParts
from steadyhand.runtime.clock import Beat, LockstepClock
from steadyhand.runtime.config_schema import Config
from steadyhand.runtime.events import EFFECTS, Situation
from steadyhand.runtime.health import Health
from steadyhand.runtime.loop import STAGES, Loop, Parts, Tick
from steadyhand.runtime.metrics import Identity, Metrics
from steadyhand.runtime.modes import Mode, ModeMachine
from steadyhand.runtime.record import TickRecord
from steadyhand.runtime.recorder import Recorder
from steadyhand.runtime.selftest.audit import Arrival, Bounds, audit
from steadyhand.runtime.selftest.rows import Result, Row, Wire

SEED, DAYS = 4, 5
FOR_EVER = 1_000_000_000
PATIENCE = 12
"""Ticks in which a fault must be told."""
BACK = 60
"""Ticks in which control must come back."""
LATCHED = 3
"""Ticks after the fault for which a latch is looked at."""

Alter = Callable[[Observation], Observation]


class FullRange:
    """A stand-in policy: from one stop of every actuator to the other, sure of itself."""

    def __init__(self, outputs: SignalSet) -> None:
        self._stops = (outputs.low.copy(), outputs.high.copy())
        self._asked = 0

    def propose(self, observation: Observation) -> Proposal:
        """The other stop."""
        del observation
        self._asked += 1
        return Proposal(
            self._stops[self._asked % 2].copy(), value=0.0, error=0.0, confidence_logit=20.0
        )


class Kept(WriteLog):
    """The plant's log of arrivals, kept in memory."""

    def __init__(self, outputs: SignalSet, period_s: float) -> None:
        super().__init__(outputs, period_s)
        self.lines: list[dict[str, Any]] = []

    @property
    def logging(self) -> bool:
        """Always."""
        return True

    def line(self, time_s: float, name: str, value: Any, **context: Any) -> None:  # noqa: ANN401
        """Keep one."""
        number = float("nan") if value is None else float(value)
        self.lines.append(
            {
                "plant_s": time_s,
                "wall_s": 0.0,
                "name": name,
                "value": str(number) if number != number else number,  # noqa: PLR0124  (NaN)
                **context,
            }
        )


class SpoiltLink(SimLink):
    """The plant's wire, with everything that may be wrong between plant and loop."""

    alter: Alter | None = None
    """Changes what is read."""
    meddle: Callable[[Sent], Sent] | None = None
    """Changes what is told of a write."""

    def read(self, now_s: float) -> Observation:
        """The image as it arrives."""
        image = super().read(now_s)
        return image if self.alter is None else self.alter(image)

    def write(self, action: Vector, source: Source) -> Sent:
        """The command, and what becomes of it."""
        sent = super().write(action, source)
        return sent if self.meddle is None else self.meddle(sent)


class SpoiltClock:
    """Lock-step, with pauses and missed deadlines on demand."""

    def __init__(self, inner: LockstepClock) -> None:
        self._inner = inner
        self.skipped = 0
        """Periods that were slept through before the next tick."""
        self.late = False
        """Is every command too late?"""

    def wait(self, after_sequence: int) -> Beat:
        """The next tick."""
        beat = self._inner.wait(after_sequence)
        skipped, self.skipped = self.skipped, 0
        return replace(beat, skipped=skipped, deadline_s=-inf if self.late else inf)


class Inside:
    """One loop on one plant, good until something is done to it.

    Attributes:
        loop: its `parts` may be exchanged; `reset` puts the good ones back.
        runner: the plant.
        link, clock, modes: what rows disturb.
    """

    def __init__(self, config: Config, parts: PlantParts) -> None:
        self.parts = parts
        self.runner = make_runner(RunSpec(parts.kind.id, SEED, DAYS, parameters=parts.parameters))
        self.log = Kept(parts.plant.outputs, parts.plant.period_s)
        self.runner.log = self.log
        self.link = SpoiltLink(self.runner)
        gate = Gate(GateSettings(0.0, 0.0, max_switches=FOR_EVER, without_confidence=True))
        recorder = Recorder(assemble.make_layout(parts, gate.names, STAGES), ticks=16)
        patient = replace(assemble.make_modes(config, parts).settings, max_raises=FOR_EVER)
        self.modes = ModeMachine(patient, parts.outputs)
        self.clock = SpoiltClock(LockstepClock(self.link, parts.plant.period_s))
        self._good = Parts(
            link=self.link,
            image_judge=assemble.make_image_judge(config, parts),
            policy=FullRange(parts.outputs),
            gate=gate,
            modes=self.modes,
            heuristic=assemble.make_heuristic(config, parts),
            transfer=Transfer(parts.outputs, 0.0),
            safety=assemble.make_safety(config, parts),
            safe_action=parts.kind.safe_action(parts.parameters),
            leash=assemble.leash(config, parts),
            recorder=recorder,
            metrics=Metrics(Identity("selftest", parts.kind.id), parts.plant.period_s),
            health=Health(None),
        )
        self.loop = Loop(self._good, self.clock)
        self.records: list[TickRecord] = []
        self.withdrawals = 0
        self.link.open()
        self.modes.request(Mode.FULL, "selftest")

    @property
    def now_s(self) -> float:
        """Plant time."""
        return self.runner.time_s

    def tick(self) -> Tick:
        """One tick of the real loop, and its record."""
        tick = self.loop.step()
        ring = self._good.recorder.ticks
        bodies, _, _ = ring.peek(ring.head - 1, 1)
        self.records.append(self._good.recorder.layout.decode(bodies[0]))
        return tick

    # -- what rows do ------------------------------------------------------------------------------

    def sensor(self, fault: SignalFault) -> None:
        """Inject a fault of one signal, from now on."""
        self.runner.faults.add(replace(fault, start_s=self.now_s))
        self.runner.refresh()

    def alter(self, change: Alter) -> None:
        """Change every image on its way, after whatever changes it already."""
        before = self.link.alter
        self.link.alter = change if before is None else lambda image: change(before(image))

    def use(self, **parts: Any) -> None:  # noqa: ANN401  (any part of the loop)
        """Exchange parts of the loop."""
        self.loop.parts = replace(self.loop.parts, **parts)

    def good(self, part: str) -> Any:  # noqa: ANN401
        """A part of the loop as it was."""
        return getattr(self._good, part)

    def grant(self, on: bool) -> None:
        """The plant grants control, or takes it."""
        self.runner.permit = on
        self.runner.refresh()

    def keep(self, output: str) -> None:
        """The plant keeps one output to itself."""
        self.runner.keep(output, True)
        self.runner.refresh()

    def reset(self) -> None:
        """Everything is well again."""
        self.runner.faults.clear()
        self.runner.permit = True
        self.runner.kept[:] = False
        self.link.alter = self.link.meddle = None
        self.link.state = LinkState.UP
        self.clock.late = False
        self.loop.parts = self._good
        if self.modes.mode is not Mode.FULL:
            self.modes.request(Mode.FULL, "selftest")
        self.runner.refresh()


def run_inside(config: Config, parts: PlantParts, row: Row) -> Result:
    """Try one row."""
    bench, result = Inside(config, parts), Result(row)
    if not _drives(bench):
        result.findings.append("the loop does not come to drive before anything is done to it")
        return result
    first, arrived = len(bench.records), len(bench.log.lines)
    row.do(bench)
    _during(bench, row, result, first, arrived)
    bench.reset()
    latched = set(bench.modes.latches)
    if row.latch and not row.may_latch:
        _unlatch(bench, row, result)
    elif latched:
        if latched != {row.latch.removeprefix("?")}:
            result.findings.append(f"latched: {', '.join(sorted(latched))}")
        for _ in range(LATCHED):
            bench.tick()  # the cause is gone, and so is the last image that had it
        _acknowledge(bench, result)
    if not _drives(bench, row.latch.removeprefix("?")):
        result.findings.append(f"control did not come back in {BACK} ticks: {_why(bench)}")
    _judge(bench, row, result)
    result.writes = len(bench.log.lines) - arrived
    return result


def _during(bench: Inside, row: Row, result: Result, first: int, arrived: int) -> None:
    """The fault's time: told, obeyed, and what reaches the plant."""
    told_at: int | None = None
    seen: set[str] = set()
    before = arrived
    while True:
        tick, record = bench.tick(), bench.records[-1]
        number = len(bench.records) - first
        told = seen.union(record.reasons) if told_at is None else set(record.reasons)
        seen |= set(record.reasons)
        result.worst = max(result.worst, tick.source)
        _obeyed(tick, result)
        if told_at is None:
            if not row.codes or (told & set(row.codes) and tick.source >= row.demand):
                told_at, before = number, len(bench.log.lines)
                result.reaction_ticks = number if row.codes else None
            elif number >= PATIENCE:
                break
        else:
            here = told & set(row.codes)
            if here and tick.source < row.demand:
                result.findings.append(f"tick {number}: {', '.join(here)}, {tick.source.name}")
            if row.each and not here:
                result.findings.append(f"tick {number}: not told any more: {sorted(told)}")
        if told_at is not None and number >= told_at + row.hold:
            break
    result.seen = tuple(sorted(seen - _COMMON))
    result.findings += row.unfounded(bench, seen)
    if told_at is None:
        result.findings.append(
            f"none of {', '.join(row.codes)} with {row.demand.name} in {PATIENCE} ticks; "
            f"seen: {', '.join(result.seen) or 'nothing'}, {result.worst.name}"
        )
        return
    count = len(bench.log.lines) - before
    wanted = row.hold * len(bench.parts.outputs)
    if row.wire is Wire.NOTHING and count:
        result.findings.append(f"{count} writes arrived where none should")
    if row.wire is Wire.GOES_ON and count != wanted:
        result.findings.append(f"{count} writes arrived, not {wanted}")


def _obeyed(tick: Tick, result: Result) -> None:
    """Whatever is found before it is decided who drives is obeyed in the same tick."""
    for fault in (*tick.observation.faults, *tick.proposal.faults):
        demand = EFFECTS[fault.code, _DRIVING].demand
        if tick.source < demand:
            result.findings.append(f"tick {tick.number}: {fault.code}, yet {tick.source.name}")


def _unlatch(bench: Inside, row: Row, result: Result) -> None:
    """What is latched stays after its cause, and goes with the acknowledgement."""
    code = ReasonCode(row.latch)
    for _ in range(LATCHED):
        tick = bench.tick()
        if code not in bench.modes.latches:
            result.findings.append(f"{code} is not latched")
            break
        if tick.source < row.demand:
            result.findings.append(f"{code} is latched, yet {tick.source.name} drives")
    _acknowledge(bench, result)


def _acknowledge(bench: Inside, result: Result) -> None:
    try:
        if bench.modes.latches:
            bench.modes.acknowledge("selftest")
    except RequestError as error:
        result.findings.append(f"not acknowledged although its cause is gone: {error}")


def _drives(bench: Inside, may_latch: str = "") -> bool:
    """Run until the policy has driven for three ticks.

    The end of a lie is a contradiction too: what it may latch is acknowledged when it has passed.
    """
    streak = 0
    for i in range(BACK):
        streak = streak + 1 if bench.tick().source is Source.POLICY else 0
        if streak == 3:
            return True
        if i % 10 == 9 and set(bench.modes.latches) == {may_latch}:
            with suppress(RequestError):
                bench.modes.acknowledge("selftest")
    return False


def _why(bench: Inside) -> str:
    return f"{bench.modes.source.name}, {bench.modes.cause.code} {bench.modes.cause.text}"


def _judge(bench: Inside, row: Row, result: Result) -> None:
    plant = bench.parts.plant
    bounds = Bounds(bench.parts.outputs, plant.observations, plant.period_s, None)
    arrivals = [Arrival.of(line) for line in bench.log.lines]
    result.findings += audit(arrivals, bench.records, bounds, row.unrecorded)
    if not row.limits_hold:
        return
    totals = bench.runner.tally.totals().get("controller", {})
    broken = {name: totals[name]["substeps"] for name in plant.operating_limits if name in totals}
    result.findings += [f"{name} broken in {n:.0f} sub-steps" for name, n in broken.items() if n]


_DRIVING = Situation.DRIVING
_COMMON = frozenset({"FILTER_SHAPED", "LIMIT_CLIPPED", "OK", "HANDBACK", "RECOVERED"})
"""Reasons that tell nothing of a fault."""


def span(signal: Any) -> float:  # noqa: ANN401
    """Width of a signal's range."""
    return float(signal.high - signal.low)


def with_values(image: Observation, column: int, value: float) -> Observation:
    """`image` with another number in `column`."""
    values = image.values.copy()
    values[column] = value
    return replace(image, values=values)


def with_age(image: Observation, column: int, age_s: float) -> Observation:
    """`image` with another age in `column`."""
    ages = image.age_s.copy()
    ages[column] = age_s
    return replace(image, age_s=ages)


def with_quality(image: Observation, column: int, quality: int) -> Observation:
    """`image` with another quality in `column`."""
    qualities = image.quality.copy()
    qualities[column] = np.int8(quality)
    return replace(image, quality=qualities)
