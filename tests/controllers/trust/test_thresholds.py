"""Thresholds against hand numbers and scipy."""

from math import inf, log, nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from steadyhand.controllers.errors import ModelError
from steadyhand.controllers.trust.thresholds import (
    beta_cdf,
    changes,
    clopper_pearson,
    effective_size,
    persistence,
    select_thresholds,
)


@given(
    st.sampled_from([0.0, 1.0]) | st.floats(0, 0.999), st.floats(0.5, 2000), st.floats(0.5, 2000)
)
@settings(max_examples=300)
def test_beta_against_scipy(x, a, b):
    assert beta_cdf(x, a, b) == pytest.approx(float(special.betainc(a, b, x)), abs=1e-10)


@given(st.just(0.0) | st.floats(1e-6, 1), st.floats(0.5, 5000), st.sampled_from([0.01, 0.05, 0.1]))
@settings(max_examples=100, deadline=None)
def test_clopper_pearson_against_scipy(share, n, delta):
    k = share * n
    lower, upper = clopper_pearson(k, n, delta)
    expected_upper = 1.0 if k == n else stats.beta.ppf(1 - delta, k + 1, n - k)
    expected_lower = 0.0 if k == 0.0 else stats.beta.ppf(delta, k, n - k + 1)
    assert upper == pytest.approx(expected_upper, abs=1e-7)
    assert lower == pytest.approx(expected_lower, abs=1e-7)


def test_beta_by_hand():
    # I_x(1/2, 1/2) = 2/pi asin(sqrt(x)); I_x(1, b) = 1 - (1 - x)^b
    assert beta_cdf(0.25, 0.5, 0.5) == pytest.approx(1 / 3, abs=1e-14)
    assert beta_cdf(0.3, 1.0, 7.0) == pytest.approx(1 - 0.7**7, abs=1e-14)


def test_clopper_pearson_by_hand():
    # no failure in n: the bound solves (1 - p)^n = delta
    assert clopper_pearson(0, 300, 0.05) == (0.0, pytest.approx(1 - 0.05 ** (1 / 300), rel=1e-12))
    assert clopper_pearson(5, 5, 0.05)[1] == 1.0
    # one trial, one failure: p > delta with confidence 1 - delta
    assert clopper_pearson(1, 1, 0.05)[0] == pytest.approx(0.05, rel=1e-12)
    # about 300 clean samples are needed for 1 % at 95 %
    n = log(1 / 0.05) / 0.01
    assert clopper_pearson(0, n, 0.05)[1] < 0.01 < clopper_pearson(0, n - 2, 0.05)[1]


@pytest.mark.parametrize("bad", [(-1, 5, 0.05), (6, 5, 0.05), (0, 0, 0.05), (0, 5, 0.0), (0, 5, 1)])
def test_clopper_pearson_refuses(bad):
    with pytest.raises(ModelError, match="Clopper-Pearson"):
        clopper_pearson(*bad)
    with pytest.raises(ModelError):
        clopper_pearson(0, inf, 0.05)


def test_effective_size_of_independent_and_of_dependent_samples():
    rng = np.random.default_rng(0)
    white = [rng.normal(size=2000) for _ in range(5)]
    assert effective_size(white) == pytest.approx(10_000, rel=0.15)
    # AR(1) with rho: sum of autocorrelations rho/(1-rho), so n_eff = N (1-rho)/(1+rho)
    rho, red = 0.8, []
    for noise in white:
        x = np.zeros_like(noise)
        for t in range(1, len(x)):
            x[t] = rho * x[t - 1] + noise[t]
        red.append(x)
    assert effective_size(red) == pytest.approx(10_000 * (1 - rho) / (1 + rho), rel=0.2)


def test_effective_size_at_the_edges():
    assert effective_size([]) == 0.0
    assert effective_size([np.ones(50), np.ones(50), np.ones(0)]) == 2.0
    # +1, -1, +1 …: the first pair of lags sums to less than 0
    assert effective_size([np.array([1.0, -1.0] * 10)]) == 20.0
    # two levels that never change within an episode: correlations 3/4, 2/4, 1/4; 8 / (1 + 3)
    assert effective_size([np.zeros(4), np.ones(4)]) == pytest.approx(2.0)
    # trend of one episode: every pair stays positive to the end of the short series
    assert effective_size([np.array([0.0, 1.0])]) == 2.0


def world(seed, episodes=60, n=200):
    """Independent scores; below 0.6 everything fails, above 0.6 nothing does."""
    rng = np.random.default_rng(seed)
    scores = [rng.uniform(size=n) for _ in range(episodes)]
    return scores, [s < 0.6 for s in scores]


STEADY = [np.full(100, 0.97) + 0.01 * (np.arange(100) % 3 - 1)]


def test_the_threshold_is_found_where_failures_begin():
    scores, failures = world(1)
    choice = select_thresholds(scores, failures, STEADY, window_ticks=10, max_switches=10)
    # below 0.6 a share (0.6 - theta)/(1 - theta) of what is accepted fails: 1 % at 0.596
    assert choice.theta_off == pytest.approx(0.60)
    assert choice.lower == 0.0 and choice.upper <= 0.01
    kept = [row.kept for row in choice.tested]
    assert kept == [True] * (len(kept) - 1) + [False]  # tested downwards to the first failure
    assert [row.theta for row in choice.tested] == sorted(
        (row.theta for row in choice.tested), reverse=True
    )
    enough = log(1 / 0.05) / 0.01
    assert all(row.accepted >= enough for row in choice.tested)
    # MAD of the steady scores is 0.01: 3 x 0.01 < 0.05
    assert choice.theta_on == pytest.approx(0.65)


def test_steady_noise_widens_the_hysteresis():
    scores, failures = world(1)
    noisy = [np.array([0.8, 0.9, 1.0] * 30)]  # MAD 0.1
    choice = select_thresholds(scores, failures, noisy, window_ticks=10, max_switches=10)
    assert choice.theta_on == pytest.approx(0.9)


def test_chatter_raises_theta_on():
    scores, failures = world(2)
    loose = select_thresholds(scores, failures, STEADY, window_ticks=20, max_switches=20)
    strict = select_thresholds(scores, failures, STEADY, window_ticks=20, max_switches=4)
    assert strict.theta_off == loose.theta_off
    assert strict.theta_on > loose.theta_on
    assert strict.switches_per_window <= 4 < loose.switches_per_window
    never = select_thresholds(scores, failures, STEADY, window_ticks=1000, max_switches=0)
    assert never.theta_on == 1.0


def test_no_autonomy_when_nothing_passes():
    scores, _ = world(3)
    all_fail = [np.ones(len(s), dtype=bool) for s in scores]
    assert select_thresholds(scores, all_fail, STEADY, 10) is None
    few, fine = [scores[0][:100]], [np.zeros(100, dtype=bool)]
    assert select_thresholds(few, fine, STEADY, 10) is None


def test_clean_data_keeps_every_threshold():
    scores, _ = world(4)
    choice = select_thresholds(scores, [s < 0 for s in scores], STEADY, 10, max_switches=10)
    assert choice.theta_off == pytest.approx(0.01)
    assert all(row.kept for row in choice.tested)


def test_dependent_samples_count_less():
    """Each tick four times over: a quarter of the evidence, so the strictest thresholds go."""
    rng = np.random.default_rng(5)
    base = [rng.uniform(size=100) for _ in range(20)]
    copied = [np.repeat(s, 4) for s in base]
    once = select_thresholds(base, [s < 0.5 for s in base], STEADY, 10, 10)
    again = select_thresholds(copied, [s < 0.5 for s in copied], STEADY, 40, 10)
    assert again.tested[0].theta == pytest.approx(once.tested[0].theta, abs=0.03)
    assert again.tested[0].accepted == pytest.approx(once.tested[0].accepted, rel=0.15)


@pytest.mark.parametrize("seed", range(6))
def test_coverage(seed):
    """What is accepted fails no more than epsilon in fresh data (95 of 100 times; here: 6 of 6)."""
    rng = np.random.default_rng(seed)

    def draw(n):
        s = rng.uniform(size=n)
        return s, rng.uniform(size=n) < 0.2 * (1 - s) ** 3

    train, fail = zip(*(draw(500) for _ in range(40)), strict=True)
    choice = select_thresholds(train, fail, STEADY, 10, 10)
    s, y = draw(200_000)
    assert y[s >= choice.theta_off].mean() <= 0.01


@pytest.mark.parametrize(
    ("scores", "failures", "nominal"),
    [
        ([np.zeros(3)], [], STEADY),
        ([np.zeros(3)], [np.zeros(2, dtype=bool)], STEADY),
        ([np.array([nan])], [np.array([False])], STEADY),
        ([np.zeros(0)], [np.zeros(0, dtype=bool)], STEADY),
        ([np.zeros(3)], [np.zeros(3, dtype=bool)], [np.zeros(0)]),
    ],
)
def test_data_that_cannot_be_used(scores, failures, nominal):
    with pytest.raises(ModelError, match="thresholds"):
        select_thresholds(scores, failures, nominal, 10)


def test_changes_by_hand():
    s = np.array([0.9, 0.7, 0.55, 0.7, 0.9, 0.5, 0.9])
    assert changes(s, 0.6, 0.8).tolist() == [2, 4, 5, 6]
    assert changes(np.zeros(0), 0.6, 0.8).tolist() == []


def test_persistence_by_hand():
    low = np.array([1, 0, 1, 1, 0, 1, 1, 1, 0, 1, 0, 0], dtype=bool)  # runs 1, 2, 3, 1
    nominal = [np.where(low, 0.1, 0.9)]
    assert persistence(nominal, 0.5, 4 / 12) == 1
    assert persistence(nominal, 0.5, 3 / 12) == 2
    assert persistence(nominal, 0.5, 1 / 12) == 3
    assert persistence(nominal, 0.5, 0.0) == 4
