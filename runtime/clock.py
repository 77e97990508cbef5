"""When to tick: an absolute schedule on the monotonic clock, or the plant's own beat.

Nothing here looks at wall-clock time of day, so a stepped or smeared clock cannot move a tick.
Plant time runs `time_scale` times as fast as the monotonic clock: 1 on a real plant, more in front
of a simulated one.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import floor
from typing import Protocol

from steadyhand.adapters.link import Link

SPIN_S = 150e-6
"""The last stretch before a deadline of a fast loop is spun: sleep wakes up to 100 us late."""
SPIN_BELOW_PERIOD_S = 0.02
"""Slower loops do not need the precision, and should not burn a core for it."""

SLICE_S = 0.1
"""Longest sleep in one piece: people who give a command do not wait for a slow loop's tick."""


@dataclass(frozen=True, slots=True)
class Beat:
    """One tick's place in time."""

    now_s: float
    """Plant time since the clock started, seconds."""
    lateness_s: float
    """Monotonic seconds between the planned time and the real start of the tick."""
    skipped: int
    """Periods skipped since the last beat because the tick before overran. Never caught up."""
    deadline_s: float
    """Monotonic time by which this tick's command must have left."""


class Clock(Protocol):
    """Waits for the next tick."""

    def wait(self, after_sequence: int) -> Beat:
        """Block until the next tick is due; `after_sequence` numbers the last image judged."""
        ...


class Idle:
    """What is done while waiting: operator's commands. They may ask for a tick at once."""

    def __init__(self, work: Callable[[], None] = lambda: None) -> None:
        """Set the work, called at least every `SLICE_S` of a long wait."""
        self.work = work
        self._hastened = False

    def hasten(self) -> None:
        """Tick at once: a person wants something. The grid of planned ticks does not move."""
        self._hastened = True

    def take(self) -> bool:
        """Do the work; was a tick asked for?"""
        self.work()
        hastened, self._hastened = self._hastened, False
        return hastened


class PacedClock:
    """Absolute schedule: adds the period to the plan, skips what was missed, counts it.

    After an overrun the plan stays on its grid: missed periods are skipped, never worked off in a
    burst, so a pause of any length is followed by exactly one ordinary tick.
    """

    def __init__(
        self,
        period_s: float,
        time_scale: float = 1.0,
        idle: Idle | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Plan the first tick for now.

        Args:
            period_s: plant seconds between ticks.
            time_scale: plant seconds per monotonic second.
            idle: what is done during long waits.
            monotonic: the clock, injectable for tests.
            sleep: the sleeper, injectable for tests.
        """
        self._wall_period_s = period_s / time_scale
        self._time_scale = time_scale
        self._idle = idle or Idle()
        self._monotonic = monotonic
        self._sleep = sleep
        self._spin_s = SPIN_S if self._wall_period_s < SPIN_BELOW_PERIOD_S else 0.0
        self._start_s = monotonic()
        self._next = 0
        """Index of the next planned tick on the grid start + n * period."""

    def wait(self, after_sequence: int) -> Beat:
        """Sleep, then spin, until the planned time."""
        del after_sequence
        now_s = self._monotonic()
        elapsed_periods = (now_s - self._start_s) / self._wall_period_s
        skipped = max(0, floor(elapsed_periods) - self._next)
        self._next += skipped
        planned_s = self._start_s + self._next * self._wall_period_s
        while (left_s := planned_s - now_s) > 0:
            if left_s > SLICE_S and self._idle.take():
                return self._beat(now_s, now_s, skipped, planned_s)
            if left_s > self._spin_s:
                self._sleep(min(left_s - self._spin_s, SLICE_S))
            now_s = self._monotonic()
        self._next += 1
        return self._beat(now_s, planned_s, skipped, planned_s + self._wall_period_s)

    def _beat(self, now_s: float, planned_s: float, skipped: int, deadline_s: float) -> Beat:
        plant_s = (now_s - self._start_s) * self._time_scale
        return Beat(plant_s, now_s - planned_s, skipped, deadline_s)


NO_IMAGE = 0
"""What a link numbers the image it starts with; its time is none."""


class PlantClock:
    """Ticks with the plant: at the first image of each period of plant time.

    A plant that shows images more often than once per period is followed all the same; one that
    falls silent still gets a tick per time-out, so that its silence is judged.
    """

    def __init__(
        self,
        link: Link,
        period_s: float,
        time_scale: float,
        timeout_s: float,
        idle: Idle | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Wait for images of `link`.

        Args:
            link: the link whose images are waited for.
            period_s: plant seconds between ticks.
            time_scale: plant seconds per monotonic second, for the deadline.
            timeout_s: monotonic seconds after which a beat is given without a new image.
            idle: what is done during long waits.
            monotonic: the clock, injectable for tests.
        """
        self._link = link
        self._period_s = period_s
        self._wall_period_s = max(period_s / time_scale, timeout_s)
        self._time_scale = time_scale
        self._timeout_s = timeout_s
        self._idle = idle or Idle()
        self._monotonic = monotonic
        self._now_s = 0.0
        """The loop's time: the plant's, but never backwards."""
        self._plant_s: float | None = None
        self._period: int | None = None
        """Number of the plant's period that the last tick belonged to."""

    def wait(self, after_sequence: int) -> Beat:
        """Block for the first image of another period, at most `timeout_s`."""
        began_s = self._monotonic()
        until_s = began_s + self._timeout_s
        skipped = 0
        moved_s: float | None = None
        while (left_s := until_s - self._monotonic()) > 0.0:
            if self._link.wait_fresh(after_sequence, min(left_s, SLICE_S)):
                after_sequence, plant_s = self._link.newest()
                if after_sequence == NO_IMAGE:  # a beat all the same, so that people are answered
                    break
                period = floor(plant_s / self._period_s + 1e-6)
                if period != self._period:
                    before, self._period = self._period, period
                    # a plant that began anew has not skipped anything
                    skipped = 0 if before is None else max(0, period - before - 1)
                    moved_s = 0.0 if self._plant_s is None else max(0.0, plant_s - self._plant_s)
                    self._plant_s = plant_s
                    break
            if self._idle.take():
                break
        now_s = self._monotonic()
        if moved_s is None:  # no new image: time goes on by our own clock
            moved_s = (now_s - began_s) * self._time_scale
            if self._plant_s is not None:
                self._plant_s += moved_s
        self._now_s += moved_s
        return Beat(
            now_s=self._now_s,
            lateness_s=0.0,
            skipped=skipped,
            deadline_s=now_s + self._wall_period_s,
        )


class Steppable(Protocol):
    """A simulated plant that moves only when told."""

    def wait_fresh(self, after_sequence: int, timeout_s: float) -> bool:
        """Is there an image newer than `after_sequence`?"""
        ...

    def skip(self) -> None:
        """One period passes without a command."""
        ...


class LockstepClock:
    """As fast as the machine goes: a simulated plant advances by one period per tick."""

    def __init__(self, plant: Steppable, period_s: float) -> None:
        """Start at plant time 0."""
        self._plant = plant
        self._period_s = period_s
        self._ticks = 0

    def wait(self, after_sequence: int) -> Beat:
        """Return at once; there is no deadline, only order."""
        if not self._plant.wait_fresh(after_sequence, 0.0):
            self._plant.skip()  # nothing was written, but time goes on
        now_s = self._ticks * self._period_s
        self._ticks += 1
        return Beat(now_s=now_s, lateness_s=0.0, skipped=0, deadline_s=float("inf"))
