"""A clock on the wall that is set: told once, with its size; nothing else is."""

import time

import pytest

from steadyhand.controllers.frames import Source
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime.events import EFFECTS, Severity, Situation
from steadyhand.runtime.wall_watch import SHOWN_S, WallWatch

YEAR_S = 365.25 * 86_400.0


class Clocks:
    """Both clocks, moved by hand."""

    def __init__(self) -> None:
        self.wall_s, self.monotonic_s, self.events = 1.7e9, 500.0, []
        self.stop_s = 0.0
        """How long the thread is stopped between a look at one and a look at the other."""
        self.watch = WallWatch(self.events.append, self.wall, lambda: self.monotonic_s)

    def wall(self) -> float:
        shown = self.wall_s
        self.passes(self.stop_s)
        return shown

    def passes(self, seconds: float, rate: float = 1.0) -> None:
        self.monotonic_s += seconds
        self.wall_s += rate * seconds

    def look(self):
        return [fault.code for fault in self.watch.look()]


@pytest.mark.parametrize("step_s", [1.0, -1.0, 3600.0, -3600.0, YEAR_S, -YEAR_S])
def test_each_step_is_told_once_with_its_size_and_stays_an_alarm_for_an_hour(step_s):
    clocks = Clocks()
    clocks.passes(0.1)
    assert clocks.look() == []
    clocks.wall_s += step_s
    for _ in range(5):
        clocks.passes(0.1)
        assert clocks.look() == [ReasonCode.CLOCK_STEP]
    (event,) = clocks.events
    assert (event["event"], event["code"]) == ("ClockStep", "CLOCK_STEP")
    assert event["step_s"] == pytest.approx(step_s, abs=1e-6)
    assert f"{'forward' if step_s > 0 else 'back'} by {abs(step_s):.3f} s" in event["text"]
    clocks.passes(SHOWN_S)
    assert clocks.look() == []
    assert len(clocks.events) == 1


def test_the_second_step_is_told_too():
    clocks = Clocks()
    for expected in (1, 2):
        clocks.passes(10.0)
        clocks.wall_s -= 3.0
        assert clocks.look() == [ReasonCode.CLOCK_STEP]
        assert [event["steps"] for event in clocks.events] == list(range(1, expected + 1))


@pytest.mark.parametrize("rate", [1.0, 1.0 + 5e-4, 1.0 - 5e-4])
@pytest.mark.parametrize("every_s", [0.1, 900.0])
def test_a_clock_that_is_only_slewed_is_no_step(rate, every_s):
    clocks = Clocks()
    for _ in range(2000):
        clocks.passes(every_s, rate)
        assert clocks.look() == []
    assert clocks.events == []


def test_a_thread_that_is_stopped_between_the_two_clocks_sees_no_step():
    clocks = Clocks()
    clocks.stop_s = 5.0
    assert clocks.look() == []
    clocks.stop_s = 0.0
    clocks.passes(0.1)
    assert clocks.look() == []
    clocks.wall_s += 2.0
    assert clocks.look() == [ReasonCode.CLOCK_STEP]


def test_the_clocks_of_this_machine_agree_while_it_runs():
    events = []
    watch = WallWatch(events.append)
    for _ in range(20):
        time.sleep(0.005)
        assert watch.look() == ()
    assert events == []


@pytest.mark.parametrize("situation", Situation)
def test_it_is_a_warning_and_moves_nothing(situation):
    effect = EFFECTS[ReasonCode.CLOCK_STEP, situation]
    assert (effect.demand, effect.latch_after) == (Source.POLICY, 0)
    assert effect.severity is Severity.WARNING
