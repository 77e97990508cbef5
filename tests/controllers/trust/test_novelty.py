"""Novelty against closed forms, an oracle, and monitors that are broken."""

from math import inf, nan, sqrt

import numpy as np
import pytest
from scipy.stats import chi2

from steadyhand.controllers.errors import ModelError, SignalError
from steadyhand.controllers.frames import Observation
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.signals import Signal, SignalSet
from steadyhand.controllers.trust import novelty
from steadyhand.controllers.trust.novelty import Novelty, fit_novelty, novelty_from_dict

NAMES = ("a", "b", "c")


@pytest.fixture(autouse=True, params=["compiled", "source"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs twice: on the compiled kernel and on its Python source."""
    if request.param == "source":
        monkeypatch.setattr(novelty, "_distances", novelty._distances.py_func)


@pytest.fixture
def three() -> SignalSet:
    return SignalSet(tuple(Signal(name, "1", -100.0, 100.0) for name in NAMES))


def at(*values):
    return Observation(1, 1.0, np.array(values), np.zeros(3), np.zeros(3, np.int8), np.zeros(1))


def plain(three, **change):
    data = {
        "features": ["c", "a"],  # another order than the observation
        "mean": [1.0, 10.0],
        "cholesky": [[2.0, 0.0], [0.0, 5.0]],
        "threshold": 2.5,
        "low": [-9.0, -10.0],
        "high": [11.0, 30.0],
        "range_margin": 0.1,
        **change,
    }
    return novelty_from_dict(data, three)


def test_distance_by_hand(three):
    made = plain(three)
    # c is 6 above its mean, 3 deviations; a is 20 below, 4 deviations: 5 together.
    score = made.score(at(-10.0, 0.0, 7.0), None)
    assert made.distance == pytest.approx(5.0)
    assert score == pytest.approx(2.0)
    fault = made.fault()
    assert (fault.code, fault.signal) == (ReasonCode.GATE_OOD, "a")
    assert (fault.value, fault.limit) == (pytest.approx(5.0), 2.5)


def test_the_middle_scores_zero(three):
    assert plain(three).score(at(10.0, 55.0, 1.0), None) == 0.0


def test_range_excess_by_hand_on_both_sides(three):
    made = plain(three, threshold=1e6)
    # c may leave [-9, 11] by a tenth of 20: 2. At 14 it is 3 outside: score 1.5.
    assert made.score(at(10.0, 0.0, 14.0), None) == pytest.approx(1.5)
    fault = made.fault()
    assert (fault.signal, fault.value, fault.limit) == ("c", pytest.approx(14.0), pytest.approx(13))
    assert made.score(at(10.0, 0.0, -12.0), None) == pytest.approx(1.5)
    assert made.fault().limit == pytest.approx(-11.0)
    assert made.score(at(10.0, 0.0, 13.0), None) == pytest.approx(1.0)
    assert made.score(at(10.0, 0.0, 11.0), None) < 1e-3


def test_correlation_counts(three):
    # covariance [[1, .8], [.8, 1]]: (1, 1) is usual, (1, -1) is not: d^2 = 2/1.8 and 2/0.2
    made = plain(
        three,
        mean=[0.0, 0.0],
        cholesky=[[1.0, 0.0], [0.8, 0.6]],
        low=[-9.0, -9.0],
        high=[9.0, 9.0],
    )
    made.score(at(1.0, 0.0, 1.0), None)
    assert made.distance == pytest.approx(sqrt(2 / 1.8))
    made.score(at(-1.0, 0.0, 1.0), None)
    assert made.distance == pytest.approx(sqrt(2 / 0.2))


def test_an_image_of_another_width_cannot_be_told(three):
    made = plain(three)
    assert np.isnan(made.score(at(10.0), None))
    assert np.isnan(made.score(at(10.0, 0.0, 1.0, 0.0), None))
    assert made.score(at(10.0, 0.0, 1.0), None) == 0.0


@pytest.mark.parametrize("value", [nan, inf, -inf])
def test_a_feature_that_is_no_number_cannot_be_told(three, value):
    assert np.isnan(plain(three).score(at(value, 0.0, 1.0), None))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"cholesky": [[0.0, 0.0], [0.0, 5.0]]}, "no spread in the training data of c"),
        ({"low": [-9.0, 30.0]}, "no spread in the training data of a"),
        ({"mean": [nan, 0.0]}, "not finite"),
        ({"cholesky": [[2.0, 0.0], [inf, 5.0]]}, "not finite"),
        ({"threshold": nan}, "not finite"),
        ({"threshold": 0.0}, "must be > 0"),
        ({"range_margin": 0.0}, "must be > 0"),
    ],
)
def test_broken_statistics_never_vouch_for_anything(three, change, why):
    made = plain(three, **change)
    assert why in made.broken
    assert np.isnan(made.score(at(10.0, 0.0, 1.0), None))


@pytest.mark.parametrize(
    "change",
    [
        {"features": []},
        {"mean": [1.0]},
        {"cholesky": [[1.0, 0.0]]},
        {"low": [1.0, 2.0, 3.0]},
        {"mean": "high"},
        {"speed": 3.0},
        {"threshold": None},
    ],
)
def test_data_that_does_not_fit_is_refused(three, change):
    with pytest.raises(ModelError, match="novelty"):
        plain(three, **change)


def test_unknown_feature(three):
    with pytest.raises(SignalError, match="no signal 'd'"):
        plain(three, features=["c", "d"])


def test_fit_recovers_a_known_gaussian(three):
    rng = np.random.default_rng(3)
    factor = np.array([[2.0, 0.0, 0.0], [1.0, 0.5, 0.0], [0.0, -1.0, 3.0]])
    draw = lambda n: np.array([1.0, 2.0, 3.0]) + rng.normal(size=(n, 3)) @ factor.T  # noqa: E731
    data = fit_novelty(draw(40_000), draw(40_000), NAMES, quantile=0.99, shrinkage=0.0)
    np.testing.assert_allclose(data["mean"], [1.0, 2.0, 3.0], atol=0.06)
    np.testing.assert_allclose(data["cholesky"], factor, atol=0.06)
    # squared distances of a Gaussian are chi-square with 3 degrees of freedom
    assert data["threshold"] == pytest.approx(sqrt(chi2.ppf(0.99, 3)), rel=0.01)
    made = novelty_from_dict(data, three)
    alarms = [made.score(at(*row), None) >= 1.0 for row in draw(4000)]
    assert 0.005 < np.mean(alarms) < 0.016
    assert all(made.score(at(*row), None) >= 1.0 for row in draw(50) + np.array([30.0, 0.0, 0.0]))
    assert made.fault().signal == "a"


def test_near_copies_do_not_explode(three):
    rng = np.random.default_rng(4)
    a = rng.normal(size=(500, 1))
    data = fit_novelty(np.hstack([a, a, a]), np.hstack([a, a, a]), NAMES)
    made = novelty_from_dict(data, three)
    assert made.score(at(0.5, 0.5, 0.5), None) < 1.0


@pytest.mark.parametrize(
    ("training", "calibration", "why"),
    [
        (np.ones((50, 2)), np.ones((5, 3)), "shapes"),
        (np.ones((50, 3)), np.ones((5, 2)), "shapes"),
        (np.ones((4, 3)), np.ones((5, 3)), "needs more than 4"),
        (np.ones((50, 3)), np.ones((0, 3)), "at least 1"),
        (np.full((50, 3), nan), np.ones((5, 3)), "finite"),
        (np.ones((50, 3)), np.full((5, 3), inf), "finite"),
        (np.column_stack([np.arange(50), np.arange(50) % 7, np.ones(50)]), np.ones((5, 3)), "in c"),
    ],
)
def test_fit_refuses(training, calibration, why):
    with pytest.raises(ModelError, match=why):
        fit_novelty(training.astype(float), calibration.astype(float), NAMES)


def test_one_feature(three):
    rng = np.random.default_rng(5)
    data = fit_novelty(rng.normal(size=(99, 1)), rng.normal(size=(99, 1)), ("b",))
    assert isinstance(novelty_from_dict(data, three), Novelty)
