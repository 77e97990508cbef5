"""Tells when this machine's clock is set: by a person, by a time service, by a year that is wrong.

Ticks, ages and the watchdog follow the monotonic clock, so a step moves nothing. But dates in the
record, certificates and bundles follow the clock on the wall, and whoever reads them should know.
"""

import time
from collections.abc import Callable
from typing import Any

from steadyhand.controllers.frames import Fault
from steadyhand.controllers.reasons import ReasonCode

LEAST_S = 0.5
"""Smallest step that is told; less is what a time service corrects in its ordinary course."""
SLEW = 1e-3
"""Share of the time between two looks that a clock may be slowed or hurried: twice what a time
service does."""
PAUSE_S = 0.1
"""Two clocks that could not be read within this cannot be compared."""
SHOWN_S = 3600.0
"""How long the last step stays an alarm."""

Event = Callable[[dict[str, Any]], None]


def _since_boot() -> float:
    """Monotonic seconds that go on while the machine sleeps, as the clock on the wall does."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class WallWatch:
    """Compares the two clocks at each look. For one thread."""

    def __init__(
        self,
        on_event: Event,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = _since_boot,
    ) -> None:
        """Take the clocks as they are for right.

        Args:
            on_event: takes each step.
            wall: the clock that may be set, seconds since 1970.
            monotonic: the clock that may not.
        """
        self._on_event, self._wall, self._monotonic = on_event, wall, monotonic
        self._wall_s, self._monotonic_s = wall(), monotonic()
        self._steps = 0
        self._fault: Fault | None = None
        self._told_s = 0.0

    def look(self) -> tuple[Fault, ...]:
        """The last step as a fault, for an hour; a new one is told on the way."""
        before_s, wall_s, monotonic_s = self._monotonic(), self._wall(), self._monotonic()
        if monotonic_s - before_s > PAUSE_S:
            return self._shown(monotonic_s)  # stopped between the two: the next look compares
        passed_s = monotonic_s - self._monotonic_s
        step_s = (wall_s - self._wall_s) - passed_s
        self._wall_s, self._monotonic_s = wall_s, monotonic_s
        if abs(step_s) > max(LEAST_S, SLEW * passed_s):
            self._tell(step_s, monotonic_s)
        return self._shown(monotonic_s)

    def _shown(self, monotonic_s: float) -> tuple[Fault, ...]:
        if self._fault is not None and monotonic_s - self._told_s > SHOWN_S:
            self._fault = None
        return () if self._fault is None else (self._fault,)

    def _tell(self, step_s: float, monotonic_s: float) -> None:
        self._steps += 1
        way = "forward" if step_s > 0.0 else "back"
        text = f"the clock was set {way} by {abs(step_s):.3f} s"
        self._fault = Fault(ReasonCode.CLOCK_STEP, "", step_s, LEAST_S, text)
        self._told_s = monotonic_s
        event = {"event": "ClockStep", "code": str(ReasonCode.CLOCK_STEP), "text": text}
        self._on_event({**event, "step_s": step_s, "steps": self._steps})
