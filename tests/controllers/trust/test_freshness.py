"""Freshness, fault by fault, with numbers that can be checked by hand."""

import tracemalloc
from math import inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadyhand.controllers.errors import ConfigError, SignalError
from steadyhand.controllers.frames import Observation
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.signals import Signal, SignalSet
from steadyhand.controllers.trust.freshness import Freshness, FreshnessSettings


def codes(faults):
    return [(fault.code, fault.signal) for fault in faults]


def test_nothing_wrong_gives_the_empty_tuple(pair, image):
    fresh = Freshness(pair)
    for k in range(20):
        assert fresh.check(image(k, (5.0 + 0.1 * (k % 3), 1.0 + k % 2))) == ()


@pytest.mark.parametrize(
    ("change", "code", "value", "limit"),
    [
        ({"values": (nan, 1.0)}, ReasonCode.OBS_NONFINITE, nan, nan),
        ({"values": (inf, 1.0)}, ReasonCode.OBS_NONFINITE, inf, nan),
        ({"values": (-0.01, 1.0)}, ReasonCode.OBS_RANGE, -0.01, 0.0),
        ({"values": (1e9, 1.0)}, ReasonCode.OBS_RANGE, 1e9, 10.0),
        ({"age_s": (5.001, 0.0)}, ReasonCode.OBS_STALE, 5.001, 5.0),
        ({"age_s": (inf, 0.0), "values": (nan, 1.0)}, ReasonCode.OBS_MISSING, inf, nan),
        ({"age_s": (nan, 0.0)}, ReasonCode.OBS_TS_INVALID, nan, nan),
        ({"age_s": (-3600.0, 0.0)}, ReasonCode.OBS_TS_INVALID, -3600.0, nan),
        ({"quality": (2, 0)}, ReasonCode.SAMPLE_BAD, 2.0, nan),
        ({"quality": (2, 0), "values": (nan, 1.0)}, ReasonCode.SAMPLE_BAD, 2.0, nan),
        ({"quality": (1, 0)}, ReasonCode.SAMPLE_UNCERTAIN, 1.0, nan),
    ],
)
def test_one_fault_names_signal_value_and_limit(pair, image, change, code, value, limit):
    (fault,) = Freshness(pair).check(image(1, **change))
    assert (fault.code, fault.signal) == (code, "level")
    np.testing.assert_equal([fault.value, fault.limit], [value, limit])
    assert fault.text


def test_bounds_themselves_are_fine(pair, image):
    fresh = Freshness(pair)
    assert fresh.check(image(1, (0.0, -20.0), age_s=(5.0, 1e9))) == ()
    # 20 s at 0.5 m/s is exactly the 10 m it moved.
    assert fresh.check(image(2, (10.0, 20.0), time_s=21.0)) == ()
    assert fresh.check(image(3, (10.0, 19.0), time_s=22.0, age_s=(-1.0, 0.0))) == ()


def test_two_signals_two_faults_in_order(pair, image):
    faults = Freshness(pair).check(image(1, (11.0, nan)))
    assert codes(faults) == [(ReasonCode.OBS_RANGE, "level"), (ReasonCode.OBS_NONFINITE, "flow")]


def test_step_is_accepted_once_the_plant_could_have_got_there(pair, image):
    fresh = Freshness(pair)
    assert fresh.check(image(0, (2.0, 1.0))) == ()
    # 2 -> 4 m needs 4 s at 0.5 m/s; it is refused after 1, 2 and 3 s.
    for k in (1, 2, 3):
        (fault,) = fresh.check(image(k, (4.0, 1.0 + k)))
        assert (fault.code, fault.signal, fault.value) == (ReasonCode.OBS_RATE, "level", 2.0)
        assert fault.limit == pytest.approx(0.5 * k)
    assert fresh.check(image(4, (4.0, 1.0))) == ()


def test_spike_is_one_fault(pair, image):
    fresh = Freshness(pair)
    seen = [fresh.check(image(k, (9.0 if k == 3 else 2.0 + 0.01 * k, k / 10))) for k in range(7)]
    assert [len(faults) for faults in seen] == [0, 0, 0, 1, 0, 0, 0]


def test_late_sample_covers_the_time_between_samples(pair, image):
    fresh = Freshness(pair)
    assert fresh.check(image(10, (2.0, 1.0), age_s=(4.0, 0.0))) == ()  # sampled at 6 s
    # One image later comes the sample of 11 s: 5 s and 2.5 m since the last sample.
    assert fresh.check(image(11, (4.5, 2.0))) == ()


def test_stuck_after_its_time_and_free_when_it_moves(pair, image):
    fresh = Freshness(pair)
    for k in range(60):
        assert fresh.check(image(k, (5.0, k % 2))) == ()
    (fault,) = fresh.check(image(60, (5.0, 0.0)))
    assert (fault.code, fault.signal, fault.value, fault.limit) == (
        ReasonCode.OBS_STUCK,
        "level",
        60.0,
        60.0,
    )
    assert fresh.check(image(61, (5.001, 0.0))) == ()


def test_repeated_image(pair, image):
    fresh = Freshness(pair)
    assert fresh.check(image(7)) == ()
    (fault,) = fresh.check(image(7, time_s=8.0))
    assert (fault.code, fault.value, fault.limit) == (ReasonCode.OBS_REPEAT, 1.0, 0.0)
    (fault,) = fresh.check(image(7, time_s=9.0))
    assert fault.value == 2.0
    assert fresh.check(image(8, time_s=10.0)) == ()


def test_slow_link_may_repeat_itself(pair, image):
    fresh = Freshness(pair, FreshnessSettings(max_repeats=2))
    counts = [len(fresh.check(image(7, time_s=float(k)))) for k in range(5)]
    assert counts == [0, 0, 0, 1, 1]


def test_repeated_image_is_still_judged(pair, image):
    fresh = Freshness(pair)
    fresh.check(image(7))
    faults = fresh.check(image(7, time_s=13.0, age_s=(6.0, 6.0)))
    assert codes(faults) == [(ReasonCode.OBS_REPEAT, ""), (ReasonCode.OBS_STALE, "level")]


def test_clock_running_backwards_is_told_once_and_forgets_rates(pair, image):
    fresh = Freshness(pair)
    fresh.check(image(1, (2.0, 1.0), time_s=1000.0))
    (fault,) = fresh.check(image(2, (9.0, 1.0), time_s=10.0))
    assert (fault.code, fault.signal, fault.value, fault.limit) == (
        ReasonCode.OBS_TS_INVALID,
        "",
        10.0,
        1000.0,
    )
    assert fresh.check(image(3, (9.0, 2.0), time_s=11.0)) == ()


@pytest.mark.parametrize("time_s", [nan, inf])
def test_time_that_is_no_number(pair, image, time_s):
    fresh = Freshness(pair)
    fresh.check(image(1))
    assert codes(fresh.check(image(2, time_s=time_s)))[0] == (ReasonCode.OBS_TS_INVALID, "")
    assert fresh.check(image(3, (5.1, 1.0))) == ()


def test_uncertain_may_be_allowed_per_signal(pair, image):
    fresh = Freshness(pair, FreshnessSettings(uncertain_ok=("flow",)))
    assert codes(fresh.check(image(1, quality=(1, 1)))) == [(ReasonCode.SAMPLE_UNCERTAIN, "level")]


def test_sentinels_inside_the_range(pair, image):
    fresh = Freshness(pair, FreshnessSettings(sentinels={"level": (8.5, 0.0), "flow": (-1.0,)}))
    (fault,) = fresh.check(image(1, (8.5, 0.0)))
    assert (fault.code, fault.signal, fault.value) == (ReasonCode.OBS_RANGE, "level", 8.5)
    assert fault.text == "the sensor's code for no value"
    assert codes(fresh.check(image(2, (5.0, -1.0)))) == [(ReasonCode.OBS_RANGE, "flow")]


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        (FreshnessSettings(max_repeats=-1), ConfigError),
        (FreshnessSettings(future_s=-1.0), ConfigError),
        (FreshnessSettings(future_s=nan), ConfigError),
        (FreshnessSettings(sentinels={"level": (nan,)}), ConfigError),
        (FreshnessSettings(sentinels={"height": (1.0,)}), SignalError),
        (FreshnessSettings(uncertain_ok=("height",)), SignalError),
    ],
)
def test_impossible_settings(pair, settings, error):
    with pytest.raises(error):
        Freshness(pair, settings)


def test_wire_values_never_raise_or_warn(pair, image):
    fresh = Freshness(pair)
    fresh.check(image(1, (5.0, 1e308)))
    with np.errstate(all="raise"):
        fresh.check(image(2, (1.7e308, -1.7e308), age_s=(-inf, nan), quality=(127, -128)))
        fresh.check(image(3, (-inf, nan), age_s=(1e308, -1e308)))


@given(
    st.lists(
        st.tuples(
            st.floats(), st.floats(), st.floats(), st.integers(0, 2), st.integers(0, 3), st.floats()
        ),
        min_size=1,
        max_size=12,
    )
)
def test_whatever_is_wrong_is_told_and_nothing_else(rows):
    """Against one plain sentence per rule, without history: range, finite, age, quality."""
    signals = SignalSet((Signal("x", "K", -5.0, 5.0, max_age_s=10.0),))
    fresh = Freshness(signals)
    for number, (value, age, _, quality, _, _) in enumerate(rows):
        faults = fresh.check(
            Observation(
                number,
                float(number),
                np.array([value]),
                np.array([age]),
                np.array([quality], dtype=np.int8),
                np.zeros(1),
            )
        )
        fine = -5.0 <= value <= 5.0 and -1.0 <= age <= 10.0 and quality == 0
        assert (faults == ()) == fine
        assert len(faults) <= 1


def test_nothing_is_allocated_while_nothing_is_wrong(pair, image):
    fresh = Freshness(pair)
    images = [image(k, (5.0 + 0.1 * (k % 3), float(k % 2))) for k in range(3000)]
    for one in images[:1000]:
        fresh.check(one)
    tracemalloc.start()
    before = tracemalloc.take_snapshot()
    for one in images[1000:]:
        fresh.check(one)
    after = tracemalloc.take_snapshot()
    tracemalloc.stop()
    here = tracemalloc.Filter(True, "*trust/freshness.py")
    grown = after.filter_traces([here]).compare_to(before.filter_traces([here]), "filename")
    assert sum(row.size_diff for row in grown) < 2000  # 2000 images: not a byte each
