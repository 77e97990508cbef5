"""The observer's judgement: what arrived at the plant, against eight promises.

It goes by the plant's own log of arrivals and by the finished records, knows the outputs' bounds
from their declaration alone, and shares nothing with the filter or the link that keep them.

    I1 every number finite          I5 nothing computed from data older than its limit
    I2 within the absolute limits   I6 exactly one writer
    I3 no step above the rate       I7 a record with the same value, and a reason where one is due
    I4 nothing without the grant    I8 nothing written after its deadline
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from typing import Any

import numpy as np

from steadyhand.adapters.sim.numbers import decode
from steadyhand.controllers.frames import Quality, Source
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.signals import SignalSet
from steadyhand.runtime.record import TickRecord

ROUNDING = 1e-9
"""Share of a bound that a sender's rounding may take."""
_COMPUTING = (Source.POLICY, Source.FALLBACK)
"""Who computes a command from measurements."""
RECORD_S = 3.0
"""Real time within which a write and its record must lie."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One write of an output as the plant saw it."""

    plant_s: float
    wall_s: float
    name: str
    value: float
    applied: float
    """Where the actuator really was."""
    granted: bool
    beat: int | None
    """Heartbeat that came with it."""
    user: str | None

    @classmethod
    def of(cls, line: dict[str, Any]) -> "Arrival":
        """From one line of the plant's log."""
        value = line["value"]
        number = float("nan") if isinstance(value, bool) else value
        if isinstance(number, str) and number not in ("nan", "inf", "-inf"):
            number = float("nan")  # something else than a number, which no output takes
        return cls(
            line["plant_s"],
            line["wall_s"],
            line["name"],
            decode(number),
            decode(line.get("applied", float("nan"))),
            bool(line.get("granted", True)),
            line.get("sequence"),
            line.get("user"),
        )


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the promises are measured by."""

    outputs: SignalSet
    observations: SignalSet
    period_s: float
    wall_period_s: float | None
    """Real time of one period; None in lock-step, which knows no deadline."""
    rivals: frozenset[str] = frozenset()
    """Users whose writes are not ours: injected on purpose."""
    withdrawals: int = 0
    """How often grant or output was taken: each time one command may be on the wire already."""
    under_way: int = 0
    """So many commands may arrive late: something kept them after they were sent."""


def audit(
    arrivals: Sequence[Arrival],
    ticks: Sequence[TickRecord],
    bounds: Bounds,
    unrecorded: int = 0,
) -> list[str]:
    """Every broken promise in words; empty when all were kept.

    Args:
        arrivals: in order.
        ticks: recorded, in order, from somewhat before the first arrival to after the last.
        bounds: see there.
        unrecorded: so many writes may lack a record: the runtime was killed as it made it.
    """
    ours = [one for one in arrivals if one.user not in bounds.rivals]
    found = [*_values(ours, bounds), *_grant(ours, bounds), *_writers(ours)]
    found += _ages(ticks, bounds)
    found += _records(ours, ticks, bounds, unrecorded)
    found += _deadlines(ticks, bounds)
    return found


def _values(arrivals: Sequence[Arrival], bounds: Bounds) -> list[str]:
    outputs, found = bounds.outputs, []
    last_s: dict[str, float] = {}
    for one in arrivals:
        signal = outputs.signals[outputs.index(one.name)]
        if not isfinite(one.value):
            found.append(f"I1 {one.name}: {one.value} arrived")
            continue
        if not signal.low <= one.value <= signal.high:
            found.append(
                f"I2 {one.name}: {one.value:g} is outside [{signal.low:g}, {signal.high:g}]"
            )
        since_s = max(one.plant_s - last_s.get(one.name, one.plant_s), bounds.period_s)
        most = signal.rate_per_s * since_s * (1.0 + ROUNDING)
        if abs(one.value - one.applied) > most:
            found.append(f"I3 {one.name}: {one.applied:g} -> {one.value:g}, at most {most:g}")
        last_s[one.name] = one.plant_s
    return found


def _grant(arrivals: Sequence[Arrival], bounds: Bounds) -> list[str]:
    count = sum(not one.granted for one in arrivals)
    most = bounds.withdrawals * len(bounds.outputs)
    if count <= most:
        return []
    return [f"I4 {count} writes without the plant's grant, at most {most} can be under way"]


def _writers(arrivals: Sequence[Arrival]) -> list[str]:
    users = sorted({one.user for one in arrivals if one.user is not None})
    found = [f"I6 writes by {', '.join(users)}"] if len(users) > 1 else []
    beats = [one.beat for one in arrivals if one.beat is not None]
    back = sum(later < earlier for earlier, later in pairwise(beats))
    if back > 1:  # once where a runtime was started anew
        found.append(f"I6 heartbeats went back {back} times: there are two writers")
    return found


def _ages(ticks: Sequence[TickRecord], bounds: Bounds) -> list[str]:
    """The policy looks at every sample, so none may be too old. The heuristic leaves alone what was
    found to be bad, so a sample too old must have been. What is held, and the safe set-point, are
    computed from nothing.
    """
    oldest = bounds.observations.max_age_s
    found = []
    for tick in ticks:
        if tick.sent is None or not tick.sent.written or tick.source not in _COMPUTING:
            continue
        old = tick.observation.age_s > oldest
        if tick.source is Source.FALLBACK:
            old &= tick.observation.quality < Quality.BAD
        if old.any():
            names = ", ".join(bounds.observations.names[int(i)] for i in np.flatnonzero(old))
            who = tick.source.name.lower()
            found.append(f"I5 tick {tick.sequence}: {who} drives on samples too old: {names}")
    return found


def _records(
    arrivals: Sequence[Arrival], ticks: Sequence[TickRecord], bounds: Bounds, unrecorded: int
) -> list[str]:
    """Each write has a tick of the same value near it, from an image that is not too old."""
    found: list[str] = []
    late: list[str] = []
    # what a tick may reckon with, then the life of a command that a busy server takes late
    oldest_s = float(bounds.observations.max_age_s.min()) + bounds.period_s
    written = [tick for tick in ticks if tick.sent is not None and tick.sent.written]
    walls = [tick.wall_ns / 1e9 for tick in written]
    missing = 0
    for one in arrivals:
        column = bounds.outputs.index(one.name)
        if bounds.wall_period_s is None:
            near = [t for t in written if t.sent is not None and t.sent.sequence == one.beat]
        else:
            first = bisect_left(walls, one.wall_s - RECORD_S)
            near = written[first : bisect_right(walls, one.wall_s + RECORD_S)]
        same = [t for t in near if t.sent is not None and t.sent.action[column] == one.value]
        if not same:
            missing += isfinite(one.value)
            continue
        silent = [t for t in same if t.source is not Source.POLICY and not t.reasons]
        if len(silent) == len(same):
            found.append(f"I7 tick {same[0].sequence}: no reason why {same[0].source.name} drove")
        if bounds.wall_period_s is None:
            continue
        ages = [one.plant_s - t.observation.time_s for t in same]
        if min(abs(age) for age in ages) > oldest_s:
            late.append(f"I5 {one.name}: made from an image {min(ages, key=abs):g} s old")
    if missing > unrecorded + bounds.under_way:  # kept too long to have its record near it
        found.append(f"I7 {missing} writes without a record of the same value")
    return found if len(late) <= bounds.under_way else found + late


def _deadlines(ticks: Sequence[TickRecord], bounds: Bounds) -> list[str]:
    found = []
    for tick in ticks:
        if tick.sent is None or not tick.sent.written:
            continue
        if ReasonCode.TICK_LATE in {fault.code for fault in tick.sent.faults}:
            found.append(f"I8 tick {tick.sequence}: written although it was late")
    return found
