"""What the soak concludes from its samples: on samples of which the answer is known."""

from array import array

import numpy as np
import pytest

from tests.support.soak_figures import (
    ABOVE,
    BELOW,
    UNDECIDED,
    settling_s,
    slope_per_hour,
    tick_tenths,
    verdict,
)

HOUR = array("d", range(3600))


def noisy(slope_per_h, noise, seed=1):
    source = np.random.default_rng(seed)
    return array("d", slope_per_h * np.array(HOUR) / 3600 + source.normal(0.0, noise, len(HOUR)))


@pytest.mark.parametrize(
    ("slope", "noise", "limit", "enough", "expected"),
    [
        (3.0, 0.5, 1.0, None, ABOVE),
        (0.2, 0.5, 1.0, None, BELOW),
        (1.0, 0.5, 1.0, None, UNDECIDED),  # at the limit: no length of run tells
        (0.2, 60.0, 1.0, None, UNDECIDED),  # far too noisy
        (0.0, 0.5, 0.0, 1.0, BELOW),  # none, and surely less than one an hour
        (0.0, 60.0, 0.0, 1.0, UNDECIDED),
        (2.0, 0.5, 0.0, 1.0, ABOVE),
    ],
)
def test_a_slope_is_judged_by_its_whole_interval(slope, noise, limit, enough, expected):
    found = slope_per_hour(HOUR, noisy(slope, noise), 0.0)
    assert found["low"] <= slope <= found["high"]
    assert verdict(found, limit, enough) == expected


def test_a_straight_line_has_its_own_slope():
    found = slope_per_hour(HOUR, array("d", [2.5 * t / 3600 for t in HOUR]), 600.0)
    assert found["slope"] == found["low"] == found["high"] == 2.5


def test_too_few_samples_say_nothing():
    found = slope_per_hour(HOUR, HOUR, 3590.0)
    assert found == {"slope": None, "low": None, "high": None}
    assert verdict(found, 0.0) == UNDECIDED


@pytest.mark.parametrize(
    ("length_s", "expected_s"),
    # the ring of 512 ticks of 0.2 s is full after 102 s; a quarter of a day is six hours
    [(180.0, 108.0), (240.0, 112.64), (1800.0, 450.0), (7200.0, 1800.0), (86_400.0, 7200.0)],
)
def test_what_does_not_count(length_s, expected_s):
    assert settling_s(length_s, 0.2) == pytest.approx(expected_s)


def ticks(count, slower_at_the_end, seed):
    """Half an hour of 0.2 s and 20 ms each; the last tenth takes so many times as long."""
    took = np.random.default_rng(seed).lognormal(np.log(0.02), 0.2, count)
    took[-count // 10 :] *= slower_at_the_end
    return array("d", 0.2 * np.arange(count)), array("d", took)


def test_ticks_that_get_slower_are_found():
    found = tick_tenths(*ticks(9000, 2.0, 1))
    assert found["warming_up_s"] == 60.0
    assert found["ticks"] == 870  # (9000 - 300) / 10
    assert 1.5 < found["ratio"] < 2.7
    assert verdict(found, 1.10) == ABOVE


def test_chance_alone_is_not_called_slower():
    """One in forty may be: the lower end of a 95 % interval."""
    found = [tick_tenths(*ticks(3000, 1.0, seed)) for seed in range(20)]
    assert sum(verdict(one, 1.10) == ABOVE for one in found) <= 2
    assert sum(one["ratio"] > 1.10 for one in found) > 2, "no chance in it, so it shows nothing"


def test_a_run_that_is_long_enough_decides_either_way():
    """No difference is surely below the limit, three tenths more surely above it."""
    same = tick_tenths(*ticks(100_000, 1.0, 1))
    more = tick_tenths(*ticks(100_000, 1.3, 1))
    assert verdict(same, 1.10) == BELOW
    assert verdict(more, 1.10) == ABOVE


def test_a_run_too_short_for_a_tenth_says_nothing():
    found = tick_tenths(*ticks(200, 1.0, 1))
    assert found["ratio"] is None
    assert verdict(found, 1.10) == UNDECIDED
    assert tick_tenths(array("d"), array("d"))["ticks"] == 0
