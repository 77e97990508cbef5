"""Dates that others have stumbled over: 2038, 2100, a leap second, a monotonic clock near its end.

The loop knows no calendar; bundles, certificates, keys, evidence and records do.
"""

import time
from datetime import UTC, datetime, timedelta

import pytest

from steadyhand.runtime.bundle.manifest import stamp
from steadyhand.runtime.certificates import DAY_S
from steadyhand.runtime.clock import PacedClock
from steadyhand.runtime.health import Health
from steadyhand.runtime.wall_watch import WallWatch
from tests.runtime.test_clock import FakeTime
from tests.support.bundles import BundleKit
from tests.support.records import LAYOUT, fresh_recorder, tick_arguments

LAST_32_BIT_S = 2.0**31
"""03:14:08 on 19 January 2038: one second more than 32 signed bits hold."""
LEAP_SECOND_S = datetime(2017, 1, 1, tzinfo=UTC).timestamp()
"""Before this moment lay the last 23:59:60; UTC of a computer shows one second twice."""


@pytest.mark.parametrize("moment_s", [LAST_32_BIT_S, 2.0**32, 4_102_444_800.0])
def test_a_record_of_then_reads_as_it_was_written(monkeypatch, moment_s):
    wall_ns = int(moment_s * 1e9) + 123_456_789
    monkeypatch.setattr(time, "time_ns", lambda: wall_ns)
    recorder = fresh_recorder()
    recorder.tick(**tick_arguments())
    bodies, _, _ = recorder.ticks.peek(recorder.ticks.head - 1, 1)
    assert LAYOUT.decode(bodies[0]).wall_ns == wall_ns


@pytest.mark.parametrize("year", [2038, 2039, 2100, 2199])
def test_a_bundle_may_end_and_begin_beyond_2038(tmp_path, year):
    kit = BundleKit(tmp_path)
    ends = datetime(year, 1, 19, 3, 14, 8, tzinfo=UTC)
    begins = ends - timedelta(days=10)
    file = kit.pack(not_before=begins, not_after=ends)
    manifest = kit.load(file, now=begins + timedelta(days=1)).manifest
    assert manifest.not_after == ends
    assert stamp(manifest.not_after) == f"{year}-01-19T03:14:08Z"


@pytest.mark.parametrize("start_s", [2.0**31 - 5.0, 2.0**32 - 5.0, 2.0**53 / 1e9 - 5.0, 3.2e9])
def test_ticks_go_on_over_every_number_a_monotonic_clock_may_reach(start_s):
    """2**53 ns are 104 days: a clock kept as a float of ns would begin to skip there."""
    fake = FakeTime()
    fake.now_s = start_s
    clock = PacedClock(1.0, 1.0, None, fake.monotonic, fake.sleep)
    beats = [clock.wait(n) for n in range(20)]
    assert [beat.now_s for beat in beats] == pytest.approx(range(20), abs=1e-4)
    assert sum(beat.skipped for beat in beats) == 0


def test_a_leap_second_is_a_step_of_one_second_and_no_more():
    """The clock shows the last second of the year twice: told, and nothing else happens."""
    monotonic_s, events = [0.0], []
    leap = [0.0]
    watch = WallWatch(
        events.append,
        lambda: LEAP_SECOND_S - 2.0 + monotonic_s[0] + leap[0],
        lambda: monotonic_s[0],
    )
    for tenth in range(1, 60):
        monotonic_s[0] = 0.1 * tenth
        leap[0] = -1.0 if tenth >= 20 else 0.0
        watch.look()
    assert [event["step_s"] for event in events] == [pytest.approx(-1.0)]


def test_a_smeared_leap_second_is_no_step():
    """A day long the clock goes one part in 86 400 slower."""
    monotonic_s, events = [0.0], []
    watch = WallWatch(
        events.append, lambda: LEAP_SECOND_S + monotonic_s[0] * (1.0 - 1.0 / DAY_S),
        lambda: monotonic_s[0],
    )  # fmt: skip
    for second in range(0, int(DAY_S), 900):
        monotonic_s[0] = float(second)
        watch.look()
    assert events == []


def test_signs_of_life_do_not_know_the_date(monkeypatch):
    monkeypatch.setattr(time, "time", lambda: LAST_32_BIT_S)
    monkeypatch.setattr(time, "time_ns", lambda: int(LAST_32_BIT_S * 1e9))
    health = Health(None)
    health.tick_done(True)
    assert health.fed_ago_s >= 0.0
