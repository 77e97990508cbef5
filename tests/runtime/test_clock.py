"""The schedule: absolute, skipping, never bursting."""

import math
import random

import pytest

from steadyhand.runtime.clock import Idle, LockstepClock, PacedClock, PlantClock


class FakeTime:
    """A monotonic clock that moves only by sleeping, or by hand."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        self.now_s += 1e-7  # reading a clock takes time: a spin must come to its end
        return self.now_s

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.slept.append(seconds)
        self.now_s += seconds


def paced(period_s: float, time_scale: float = 1.0) -> tuple[PacedClock, FakeTime]:
    time = FakeTime()
    return PacedClock(period_s, time_scale, None, time.monotonic, time.sleep), time


def test_first_tick_is_due_at_once_and_the_next_one_period_later() -> None:
    clock, time = paced(1.0)
    first, second = clock.wait(-1), clock.wait(0)
    assert first.now_s == pytest.approx(0.0, abs=1e-5)
    assert second.now_s == pytest.approx(1.0, abs=1e-5)
    assert (first.skipped, second.skipped) == (0, 0)
    assert sum(time.slept) == pytest.approx(1.0, abs=1e-5)


def test_work_inside_the_period_does_not_move_the_grid() -> None:
    clock, time = paced(1.0)
    for n in range(50):
        beat = clock.wait(n)
        assert beat.now_s == pytest.approx(n, abs=1e-4)
        time.now_s += random.Random(n).uniform(0.0, 0.9)


@pytest.mark.parametrize(("pause_s", "skipped"), [(0.5, 0), (1.5, 0), (2.5, 1), (30.2, 29)])
def test_an_overrun_is_followed_by_one_tick_on_the_grid(pause_s: float, skipped: int) -> None:
    clock, time = paced(1.0)
    clock.wait(-1)
    time.now_s += pause_s
    beat = clock.wait(0)
    assert beat.skipped == skipped
    after = clock.wait(1)
    assert after.skipped == 0
    assert after.now_s == pytest.approx(math.floor(max(pause_s, 1.0)) + 1.0, abs=1e-4)


def test_lateness_is_measured_from_the_plan() -> None:
    clock, time = paced(1.0)
    clock.wait(-1)
    time.now_s += 1.25
    assert clock.wait(0).lateness_s == pytest.approx(0.25, abs=1e-4)


def test_plant_time_runs_time_scale_as_fast() -> None:
    clock, _ = paced(900.0, time_scale=9000.0)
    clock.wait(-1)
    beat = clock.wait(0)
    assert beat.now_s == pytest.approx(900.0, rel=1e-4)
    assert beat.deadline_s - 1000.0 == pytest.approx(0.2, abs=1e-4)


def test_fast_loops_spin_the_last_stretch_and_slow_ones_do_not() -> None:
    fast, time = paced(0.001)
    fast.wait(-1)
    fast.wait(0)
    assert time.slept == [pytest.approx(0.001 - 150e-6, abs=1e-5)]
    slow, time = paced(1.0)
    slow.wait(-1)
    slow.wait(0)
    assert max(time.slept) == pytest.approx(0.1, abs=1e-5)


def test_a_command_during_a_long_wait_gets_a_tick_at_once_and_the_grid_stays() -> None:
    time = FakeTime()
    idle = Idle()
    given_s = 1000.45

    def work() -> None:
        nonlocal given_s
        if time.now_s > given_s:
            given_s = math.inf
            idle.hasten()

    idle.work = work
    clock = PacedClock(1.0, 1.0, idle, time.monotonic, time.sleep)
    clock.wait(-1)
    extra, planned = clock.wait(0), clock.wait(0)
    assert 0.45 <= extra.now_s <= 0.56
    assert extra.deadline_s == pytest.approx(1001.0, abs=1e-4)
    assert planned.now_s == pytest.approx(1.0, abs=1e-4)


class Images:
    """A link as a plant clock sees it."""

    def __init__(self, fresh: bool) -> None:
        self.fresh = fresh
        self.asked: list[tuple[int, float]] = []
        self.skips = 0
        self.time: FakeTime | None = None

    def wait_fresh(self, after_sequence: int, timeout_s: float) -> bool:
        self.asked.append((after_sequence, timeout_s))
        if self.time is not None and not self.fresh:
            self.time.now_s += timeout_s
        return self.fresh

    def skip(self) -> None:
        self.skips += 1

    def newest(self) -> tuple[int, float]:
        return 42, 0.0


class Publishing(Images):
    """A plant that shows an image every 300 s of its time."""

    def __init__(self) -> None:
        super().__init__(fresh=True)
        self.images = 0

    def wait_fresh(self, after_sequence: int, timeout_s: float) -> bool:
        self.images += 1
        return True

    def newest(self) -> tuple[int, float]:
        return self.images, 300.0 * self.images


def test_plant_clock_ticks_once_per_period_of_a_plant_that_shows_more_images() -> None:
    plant, time = Publishing(), FakeTime()
    clock = PlantClock(plant, 900.0, 9000.0, 0.5, None, time.monotonic)  # type: ignore[arg-type]
    seen = []
    for _ in range(4):
        assert clock.wait(plant.images).skipped == 0
        seen.append(plant.images)
    assert seen == [1, 3, 6, 9]
    plant.images = 20
    assert clock.wait(plant.images).skipped == 3  # periods 4, 5 and 6 went by unseen


class Starting(Publishing):
    """A link that has no image of the plant yet when the loop starts."""

    def newest(self) -> tuple[int, float]:
        return (0, 0.0) if self.images < 3 else (self.images, 86_400.0 + 300.0 * self.images)


def test_plant_clock_takes_no_time_from_an_image_that_is_none() -> None:
    """What has an end would be over with the first real one: it may be days, or years, on."""
    plant, time = Starting(), FakeTime()
    clock = PlantClock(plant, 900.0, 9000.0, 0.5, None, time.monotonic)  # type: ignore[arg-type]
    beats = [clock.wait(-1), clock.wait(0)]
    assert plant.images == 2, "at once, so that people are answered meanwhile"
    beats += [clock.wait(0), clock.wait(plant.images)]
    assert [beat.now_s for beat in beats] == pytest.approx([0.0, 0.0, 0.0, 900.0], abs=1.0)
    assert [beat.skipped for beat in beats] == [0, 0, 0, 0]


def test_plant_clock_follows_a_plant_that_begins_anew() -> None:
    plant, time = Publishing(), FakeTime()
    clock = PlantClock(plant, 900.0, 9000.0, 0.5, None, time.monotonic)  # type: ignore[arg-type]
    plant.images = 300
    clock.wait(0)
    plant.images = 0
    assert clock.wait(0).skipped == 0
    assert plant.images == 1


@pytest.mark.parametrize("fresh", [True, False])
def test_plant_clock_waits_for_the_next_image_and_gives_up_in_time(fresh: bool) -> None:
    images, time = Images(fresh), FakeTime()
    images.time = time
    clock = PlantClock(images, 900.0, 9000.0, 0.5, None, time.monotonic)  # type: ignore[arg-type]
    beat = clock.wait(41)
    assert {sequence for sequence, _ in images.asked} == {41}
    assert len(images.asked) == (1 if fresh else 5)
    assert beat.deadline_s - time.now_s == pytest.approx(0.5, abs=1e-5)


def test_lockstep_moves_the_plant_when_nothing_was_written() -> None:
    images = Images(fresh=False)
    clock = LockstepClock(images, 900.0)
    assert [clock.wait(0).now_s, clock.wait(0).now_s] == [0.0, 900.0]
    assert images.skips == 2
    images.fresh = True
    clock.wait(0)
    assert images.skips == 2


def test_a_million_ticks_of_uneven_work_drift_by_less_than_a_period() -> None:
    """The grid is start + n periods, not the sum of a million sleeps with their roundings."""
    ticks, period_s = 1_000_000, 0.05  # not a sum of powers of two: adding it up drifts
    clock, time = paced(period_s, time_scale=0.5)
    wall_period_s = period_s / 0.5
    noise = random.Random(3)
    time.sleep = lambda seconds: setattr(  # type: ignore[method-assign]
        time, "now_s", time.now_s + seconds * (1.0 + 1e-4 * noise.random())
    )
    clock = PacedClock(period_s, 0.5, None, time.monotonic, time.sleep)
    start_s = time.now_s
    skipped, worst_s = 0, 0.0
    for n in range(ticks):
        beat = clock.wait(n)
        skipped += beat.skipped
        worst_s = max(worst_s, abs(time.now_s - (start_s + n * wall_period_s)))
        time.now_s += noise.random() * 0.9 * wall_period_s
    assert skipped == 0
    assert worst_s < 0.001
    assert beat.now_s == pytest.approx((ticks - 1) * period_s, abs=0.001)
