"""Calibrators and smoothing against hand numbers and closed forms."""

from math import exp, inf, log, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadyhand.controllers.errors import ModelError
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.trust.care import (
    Confidence,
    ConfidenceSettings,
    Isotonic,
    Logistic,
    Smoother,
    calibrator_from_dict,
    sigmoid,
)


def test_sigmoid():
    assert sigmoid(0.0) == 0.5
    assert sigmoid(log(3.0)) == pytest.approx(0.75, abs=1e-15)
    assert sigmoid(-log(3.0)) == pytest.approx(0.25, abs=1e-15)
    assert (sigmoid(1e6), sigmoid(-1e6)) == (1.0, 0.0)


def test_temperature_divides_the_logit():
    made = calibrator_from_dict({"kind": "temperature", "temperature": 2.0})
    # 2 ln 3 / 2 = ln 3, and sigmoid(ln 3) = 3/4
    assert made.probability(2.0 * log(3.0), nan) == pytest.approx(0.75, abs=1e-15)


def test_platt_uses_the_error_when_it_has_a_slope():
    made = calibrator_from_dict({"kind": "platt", "slope": 2.0, "bias": 1.0, "error_slope": -0.5})
    assert made.probability(0.5, 4.0) == 0.5  # 1 + 2 x 0.5 - 0.5 x 4 = 0
    assert np.isnan(made.probability(0.5, nan))


def test_isotonic_interpolates_and_is_flat_outside():
    made = calibrator_from_dict(
        {"kind": "isotonic", "logits": [-2.0, 0.0, 4.0], "probabilities": [0.1, 0.5, 0.9]}
    )
    wanted = {-9.0: 0.1, -2.0: 0.1, -1.0: 0.3, 0.0: 0.5, 1.0: 0.6, 4.0: 0.9, 50.0: 0.9}
    for logit, probability in wanted.items():
        assert made.probability(logit, nan) == pytest.approx(probability, abs=1e-15)


@pytest.mark.parametrize("logit", [nan, inf, -inf])
@pytest.mark.parametrize("made", [Logistic(), Isotonic([0.0, 1.0], [0.0, 1.0])])
def test_a_logit_that_is_no_number_gives_no_probability(made, logit):
    assert np.isnan(made.probability(logit, 0.0))


@given(st.floats(-50, 50), st.floats(-50, 50), st.lists(st.floats(0, 1), min_size=2, max_size=64))
def test_calibrators_keep_the_order(a, b, heights):
    low, high = sorted((a, b))
    isotonic = Isotonic(list(range(len(heights))), sorted(heights))
    for made in (isotonic, Logistic(0.3, -1.0)):
        assert 0.0 <= made.probability(low, 0.0) <= made.probability(high, 0.0) <= 1.0


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"kind": "beta"},
        {"kind": "temperature"},
        {"kind": "temperature", "temperature": 0.0},
        {"kind": "temperature", "temperature": nan},
        {"kind": "temperature", "temperature": "warm"},
        {"kind": "temperature", "temperature": 1.0, "slop": 2.0},
        {"kind": "platt", "slope": -1.0},
        {"kind": "platt", "error_slope": 1.0},
        {"kind": "platt", "bias": inf},
        {"kind": "isotonic", "logits": [0.0], "probabilities": [0.5]},
        {"kind": "isotonic", "logits": list(range(65)), "probabilities": [0.5] * 65},
        {"kind": "isotonic", "logits": [0.0, 1.0], "probabilities": [0.5]},
        {"kind": "isotonic", "logits": [0.0, nan], "probabilities": [0.1, 0.5]},
        {"kind": "isotonic", "logits": [0.0, 0.0], "probabilities": [0.1, 0.5]},
        {"kind": "isotonic", "logits": [0.0, 1.0], "probabilities": [0.5, 0.4]},
        {"kind": "isotonic", "logits": [0.0, 1.0], "probabilities": [-0.1, 0.4]},
        {"kind": "isotonic", "logits": [0.0, 1.0], "probabilities": [0.5, 1.1]},
        {"kind": "isotonic", "logits": [[0.0, 1.0]], "probabilities": [[0.5, 1.0]]},
    ],
)
def test_impossible_calibrators_are_refused(data):
    with pytest.raises(ModelError):
        calibrator_from_dict(data)


def test_smoother_by_hand():
    # gain 1 - e^-(1/tau) = 1/2 for tau = 1/ln 2; window of 2 ticks
    smoother = Smoother(1.0, 1.0 / log(2.0), 2.0)
    given_p = [0.8, 0.8, 0.0, 0.8, 0.8]
    means = [0.8, 0.8, 0.4, 0.6, 0.7]
    wanted = [0.0, 0.8, 0.4, 0.4, 0.6]  # the window starts with a zero
    for p, mean, s in zip(given_p, means, wanted, strict=True):
        assert smoother.update(p) == pytest.approx(s, abs=1e-15)
        assert smoother._mean == pytest.approx(mean, abs=1e-15)


def test_smoother_falls_faster_than_it_rises():
    smoother = Smoother(1.0, 3.0, 5.0)
    for _ in range(40):
        top = smoother.update(0.9)
    assert top == pytest.approx(0.9)
    fall = [smoother.update(0.1) for _ in range(5)]
    rise = [smoother.update(0.9) for _ in range(5)]
    assert fall == sorted(fall, reverse=True) and fall[0] < 0.9
    assert max(rise[:4]) <= fall[-1] + 1e-12  # the window still remembers the fall
    assert rise[4] > fall[-1]


def test_what_cannot_be_told_counts_as_zero():
    told, untold = Smoother(1.0, 2.0, 0.0), Smoother(1.0, 2.0, 0.0)
    for p in (0.9, 0.9, 0.0, 0.7):
        a = told.update(p)
        b = untold.update(nan if p == 0.0 else p)
        assert a == b
    # closed form of the last two steps: g = 1 - e^-1/2
    g = 1.0 - exp(-0.5)
    assert a == pytest.approx(0.9 * (1 - g) + g * (0.7 - 0.9 * (1 - g)), abs=1e-15)


def test_without_time_constant_and_window_nothing_is_smoothed():
    smoother = Smoother(900.0, 0.0, 0.0)
    assert [smoother.update(p) for p in (0.3, 0.9, 0.1)] == pytest.approx([0.3, 0.9, 0.1])


@pytest.mark.parametrize("times", [(0.0, 1.0, 1.0), (1.0, -1.0, 1.0), (1.0, 1.0, inf), (nan, 1, 1)])
def test_impossible_times(times):
    with pytest.raises(ModelError, match="must be finite"):
        Smoother(*times)


@pytest.mark.parametrize("pair", [(0.0, 0.5), (0.6, 0.6), (0.7, 0.6), (0.5, 1.1), (nan, 0.6)])
def test_thresholds_need_hysteresis(pair):
    with pytest.raises(ModelError, match="theta_off < theta_on"):
        ConfidenceSettings(*pair)


def test_score_alarms_below_theta_off_only(image, proposal):
    made = Confidence(Isotonic([0.0, 1.0], [0.0, 1.0]), ConfidenceSettings(0.7, 0.8), 1.0)
    below, at, on, above = (
        made.score(image(1), proposal(p)) for p in (np.nextafter(0.7, 0.0), 0.7, 0.8, 0.81)
    )
    assert below >= 1.0 > at
    assert at >= made.quiet_below and above < made.quiet_below
    assert on == pytest.approx(made.quiet_below, abs=1e-12)
    assert made.score(image(1), proposal(0.1)) == pytest.approx(3.0)  # 0.9 / 0.3


@given(st.floats(0.01, 0.98), st.floats(0.001, 0.02), st.floats(0, 1))
def test_score_and_threshold_agree_to_the_last_bit(theta, gap, p):
    made = Confidence(
        Isotonic([0.0, 1.0], [0.0, 1.0]), ConfidenceSettings(theta, min(1.0, theta + gap)), 1.0
    )
    from steadyhand.controllers.frames import Proposal

    score = made.score(None, Proposal(np.zeros(1), confidence_logit=p))
    assert (score < 1.0) == (made.smoothed >= theta)


def test_fault_tells_confidence_and_threshold(image, proposal):
    made = Confidence(Logistic(), ConfidenceSettings(0.7, 0.8), 1.0)
    made.score(image(1), proposal(0.0))
    fault = made.fault()
    assert (fault.code, fault.value, fault.limit) == (ReasonCode.GATE_CONFIDENCE, 0.5, 0.7)
    assert np.isnan(made.score(image(1), proposal(nan)))
