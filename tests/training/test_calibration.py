"""Calibration measures and maps against numbers worked by hand and closed forms."""

import numpy as np
import pytest

from steadyhand.controllers.errors import ConfigError
from steadyhand.training.evaluation.calibration import (
    auroc,
    brier,
    expected_calibration_error,
    isotonic,
    reliability,
    signed_gap,
    temperature,
)
from steadyhand.training.evaluation.confidence import (
    Judged,
    choose_thresholds,
    fit_calibrator,
    probabilities,
    report,
)


def test_ece_and_signed_gap_by_hand() -> None:
    # two bins of two: confidence 0.2, accuracy 0.5 and confidence 0.9, accuracy 0.5
    p = np.array([0.9, 0.1, 0.3, 0.9])
    y = np.array([True, True, False, False])
    rows = reliability(p, y, bins=2)
    assert [row.count for row in rows] == [2, 2]
    assert expected_calibration_error(rows) == pytest.approx(0.5 * 0.3 + 0.5 * 0.4)
    assert signed_gap(rows) == pytest.approx(0.5 * (-0.3) + 0.5 * 0.4)


def test_reliability_interval_is_clopper_pearson() -> None:
    # 0 failures of 10: the lower bound of the accuracy is 0.025^(1/10), the upper 1
    rows = reliability(np.full(10, 0.5), np.ones(10, dtype=np.bool_), bins=1)
    assert rows[0].low == pytest.approx(0.025**0.1, rel=1e-9)
    assert rows[0].high == 1.0
    # a tenth of the samples is effective: 1 trial
    thin = reliability(np.full(10, 0.5), np.ones(10, dtype=np.bool_), 1, effective_share=0.1)
    assert thin[0].low == pytest.approx(0.025, rel=1e-9)


def test_reliability_refuses_what_it_cannot_judge() -> None:
    with pytest.raises(ConfigError, match="not empty"):
        reliability(np.empty(0), np.empty(0, dtype=np.bool_))
    with pytest.raises(ConfigError, match="one length"):
        reliability(np.ones(3), np.ones(2, dtype=np.bool_))


def test_brier_parts_add_up_when_each_bin_has_one_confidence() -> None:
    # Murphy 1973: score = reliability - resolution + uncertainty, exactly, for constant bins
    p = np.repeat([0.2, 0.7], 5)
    y = np.array([1, 0, 0, 0, 0, 1, 1, 1, 0, 0], dtype=np.bool_)
    parts = brier(p, y, bins=2)
    assert parts.score == pytest.approx(np.mean((p - y) ** 2))
    assert parts.uncertainty == pytest.approx(0.4 * 0.6)
    assert parts.reliability == pytest.approx(0.5 * 0.0 + 0.5 * 0.01)
    assert parts.resolution == pytest.approx(0.04)
    assert parts.score == pytest.approx(parts.reliability - parts.resolution + parts.uncertainty)


def test_auroc_counts_ranked_pairs() -> None:
    # pairs (event, none): scores 3 > 2, 3 > 1, 2 = 2 (half), 2 > 1 -> 3.5 of 4
    score = np.array([3.0, 2.0, 2.0, 1.0])
    event = np.array([True, True, False, False])
    assert auroc(score, event) == pytest.approx(3.5 / 4.0)
    rng = np.random.default_rng(0)
    score, event = np.round(rng.normal(size=200), 1), rng.random(200) < 0.3
    pairs = score[event][:, None] - score[~event][None, :]
    assert auroc(score, event) == pytest.approx(float(np.mean((pairs > 0) + 0.5 * (pairs == 0))))
    assert np.isnan(auroc(score, np.ones(200, dtype=np.bool_)))


def test_isotonic_by_hand() -> None:
    # means by score 1, 0, 1, 1: the first two violate and pool to 0.5; bounds 1/6 and 5/6
    x, y = isotonic(np.array([1.0, 2.0, 3.0, 4.0]), np.array([True, False, True, True]))
    np.testing.assert_allclose(x, [1.0, 2.0, 3.0, 4.0])
    np.testing.assert_allclose(y, [0.5, 0.5, 5.0 / 6.0, 5.0 / 6.0])


def test_isotonic_agrees_with_an_independent_solution() -> None:
    # min-max formula: y_i = max over a <= i of min over b >= i of mean(event[a..b])
    rng = np.random.default_rng(5)
    score = np.sort(rng.normal(size=40))
    event = rng.random(40) < 0.5
    x, y = isotonic(score, event)
    mean = np.array([[event[a : b + 1].mean() if b >= a else 9.0 for b in range(40)]
                     for a in range(40)])  # fmt: skip
    oracle = np.array([max(mean[a, i:].min() for a in range(i + 1)) for i in range(40)])
    np.testing.assert_allclose(np.interp(score, x, y), np.clip(oracle, 1 / 42, 41 / 42), atol=1e-12)


def test_isotonic_is_thinned_to_its_knots_and_stays_monotone() -> None:
    rng = np.random.default_rng(1)
    score = rng.normal(size=20_000)
    event = rng.random(20_000) < 1.0 / (1.0 + np.exp(-2.0 * score))
    x, y = isotonic(score, event, knots=64)
    assert 2 <= len(x) <= 64
    assert (np.diff(x) > 0).all()
    assert (np.diff(y) >= 0).all()
    assert float(np.abs(np.interp(score, x, y) - 1 / (1 + np.exp(-2 * score))).mean()) < 0.02
    with pytest.raises(ConfigError, match="different scores"):
        isotonic(np.ones(5), np.ones(5, dtype=np.bool_))


@pytest.mark.parametrize("true", [0.5, 1.0, 3.0])
def test_temperature_is_found(true: float) -> None:
    # every score appears with exactly the share of events that sigmoid(score/T) promises
    score = np.repeat(np.linspace(-3.0, 3.0, 61), 1000)
    share = 1.0 / (1.0 + np.exp(-score / true))
    event = np.tile(np.arange(1000), 61) < np.round(1000 * share)
    assert temperature(score, event) == pytest.approx(true, rel=0.02)


def sampled(temperature_true: float, episodes: int, seed: int) -> Judged:
    rng = np.random.default_rng(seed)
    logit = rng.normal(1.0, 1.5, size=(200, episodes))
    return Judged(logit, rng.random(logit.shape) < 1 / (1 + np.exp(-logit / temperature_true)))


def test_the_simplest_calibrator_wins_where_it_fits() -> None:
    chosen = fit_calibrator(sampled(2.0, 20, seed=0))
    assert chosen["kind"] == "temperature"
    assert chosen["temperature"] == pytest.approx(2.0, rel=0.1)


def test_isotonic_is_taken_where_one_number_cannot_fit() -> None:
    data = sampled(1.0, 20, seed=0)
    rng = np.random.default_rng(9)
    odd = Judged(data.logit, rng.random(data.logit.shape) < np.where(data.logit > 0, 0.6, 0.4))
    assert fit_calibrator(odd)["kind"] == "isotonic"


def test_report_of_a_calibrated_confidence() -> None:
    data = sampled(1.0, 40, seed=3)
    p = probabilities({"kind": "temperature", "temperature": 1.0}, data.logit)
    result = report(p, data.event, data.logit)
    assert result["ticks"] == 8000
    assert result["ece"] < 0.02
    assert abs(result["signed_gap"]) < 0.02
    assert result["auroc"] > 0.7
    assert result["brier"] < result["brier_uncertainty"]
    # independent ticks: nearly all of them are effective
    assert result["effective_ticks"] > 0.7 * 8000


def test_thresholds_promise_the_smallest_share_that_leaves_enough_to_the_policy() -> None:
    rng = np.random.default_rng(2)
    p = np.where(rng.random((300, 60)) < 0.95, 0.99, 0.3)
    data = Judged(p, rng.random(p.shape) < p)
    args = {
        "period_s": 900.0, "time_constant_s": 0.0, "window_s": 0.0, "ticks_per_day": 96,
        "epsilons": (0.001, 0.02, 0.2),
    }  # fmt: skip
    choice, epsilon = choose_thresholds(data, p, availability=0.9, **args)
    assert choice is not None
    assert epsilon == 0.02
    assert 0.3 < choice.theta_off <= 0.99
    # who must always be available gets the weaker promise
    _, weaker = choose_thresholds(data, p, availability=0.999, **args)
    assert weaker == 0.2
