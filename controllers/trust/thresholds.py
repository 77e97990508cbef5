"""Thresholds of the confidence gate from validation data: offline, pure functions.

For each threshold theta the accepted ticks {s >= theta} contain failures. A threshold is kept when
the Clopper-Pearson upper bound (1934) on their share is at most epsilon. Thresholds are tested from
the strictest downwards and testing ends at the first that fails: in a fixed sequence no correction
for the number of tests is needed (Maurer et al. 1995; Angelopoulos et al. 2021).
Scores are the smoothed confidences the gate compares, from days that no fit has seen.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, isfinite, lgamma, log, log1p

import numpy as np
from numpy.typing import NDArray

from steadyhand.controllers.errors import ModelError
from steadyhand.controllers.signals import Vector

Flags = NDArray[np.bool_]


def beta_cdf(x: float, a: float, b: float) -> float:
    """Regularised incomplete beta function I_x(a, b), a, b > 0.

    Continued fraction of DLMF 8.17.22, evaluated by the modified Lentz method; it converges fast
    for x below (a + 1)/(a + b + 2), and the symmetry I_x(a, b) = 1 - I_{1-x}(b, a) gives the rest.
    """
    if x <= 0.0 or x >= 1.0:
        return 0.0 if x <= 0.0 else 1.0
    if x > (a + 1.0) / (a + b + 2.0):
        return 1.0 - beta_cdf(1.0 - x, b, a)
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x)) / a
    tiny = 1e-300
    c, d = 1.0, 1.0 / (1.0 - (a + b) * x / (a + 1.0))
    fraction, change, m = d, 0.0, 0
    while m < 10_000 and abs(change - 1.0) > 1e-15:
        m += 1
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0)),
        ):
            d = 1.0 / _away_from_zero(1.0 + term * d, tiny)
            c = _away_from_zero(1.0 + term / c, tiny)
            change = c * d
            fraction *= change
    return front * fraction


def _away_from_zero(value: float, tiny: float) -> float:
    return value if abs(value) > tiny else tiny


def clopper_pearson(failures: float, n: float, delta: float) -> tuple[float, float]:
    """One-sided bounds on a failure probability, each at confidence 1 - delta.

    Args:
        failures: k, 0 <= k <= n; effective numbers need not be whole.
        n: number of trials, > 0.
        delta: in (0, 1).

    Returns:
        (lower, upper): the probability is above `lower` with confidence 1 - delta, and below
        `upper` with confidence 1 - delta.

    Raises:
        ModelError: numbers outside these ranges.
    """
    if not (isfinite(n) and n > 0.0 and 0.0 <= failures <= n and 0.0 < delta < 1.0):
        raise ModelError(
            f"Clopper-Pearson with {failures} failures of {n} at delta {delta}: "
            "needs 0 <= failures <= n, n > 0 and 0 < delta < 1"
        )
    lower = 0.0 if failures == 0.0 else _beta_quantile(delta, failures, n - failures + 1.0)
    upper = 1.0 if failures == n else _beta_quantile(1.0 - delta, failures + 1.0, n - failures)
    return lower, upper


def _beta_quantile(q: float, a: float, b: float) -> float:
    """Solve I_x(a, b) = q for x by bisection: 100 halvings are beyond what a double resolves."""
    low, high = 0.0, 1.0
    for _ in range(100):
        middle = 0.5 * (low + high)
        if beta_cdf(middle, a, b) < q:
            low = middle
        else:
            high = middle
    return high


def effective_size(episodes: Sequence[Vector]) -> float:
    """N / (1 + 2 sum of autocorrelations), pooled over episodes.

    The sum ends where the mean of two neighbouring lags is no longer positive (Geyer 1992). Values
    that never change tell nothing about their dependence: then each episode counts as one.
    """
    total = sum(len(episode) for episode in episodes)
    if total == 0:
        return 0.0
    mean = sum(float(np.sum(episode)) for episode in episodes) / total
    parts = [np.asarray(episode, dtype=np.float64) - mean for episode in episodes]
    variance = sum(float(part @ part) for part in parts)
    if variance <= 1e-24 * total:
        return float(sum(len(episode) > 0 for episode in episodes))
    longest = max(len(part) for part in parts)
    correlations = 0.0
    for lag in range(1, longest, 2):
        pair = 0.0
        for k in (lag, lag + 1):
            pair += sum(float(part[:-k] @ part[k:]) for part in parts if len(part) > k) / variance
        if pair <= 0.0:
            break
        correlations += pair
    return total / (1.0 + 2.0 * correlations)


@dataclass(frozen=True, slots=True)
class Tested:
    """One threshold under test; numbers are effective ones."""

    theta: float
    accepted: float
    failures: float
    upper: float
    kept: bool


@dataclass(frozen=True, slots=True)
class ThresholdChoice:
    """Both thresholds, and what they rest on."""

    theta_off: float
    theta_on: float
    lower: float
    """Lower bound on the failure share of what is accepted."""
    upper: float
    """Upper bound on it: at most epsilon."""
    switches_per_window: float
    """Changes of trust in the busiest window of the replay."""
    tested: tuple[Tested, ...]


def select_thresholds(
    scores: Sequence[Vector],
    failures: Sequence[Flags],
    nominal: Sequence[Vector],
    window_ticks: int,
    max_switches: int = 6,
    epsilon: float = 0.01,
    delta: float = 0.05,
    step: float = 0.01,
) -> ThresholdChoice | None:
    """Both thresholds, or None: no threshold passes, so there is no autonomy.

    Args:
        scores: per episode, (n,) smoothed confidences.
        failures: per episode, (n,) True where the following horizon went wrong.
        nominal: per episode, (n,) scores of steady undisturbed running.
        window_ticks: ticks in which at most `max_switches` changes of trust are allowed.
        max_switches: see `window_ticks`.
        epsilon: largest share of failures in what is accepted.
        delta: chance of being wrong about that.
        step: distance of the thresholds under test.

    Raises:
        ModelError: episodes that do not match, or no data.
    """
    if len(scores) != len(failures) or any(
        len(s) != len(f) for s, f in zip(scores, failures, strict=True)
    ):
        raise ModelError("thresholds: every episode needs as many scores as failures")
    s, failed = np.concatenate(scores), np.concatenate(failures)
    if s.size == 0 or not np.isfinite(s).all() or not any(len(part) for part in nominal):
        raise ModelError("thresholds: needs finite scores, and nominal running")
    effective = effective_size(scores)
    if failed.any() and not failed.all():  # else nothing can be told from the failures themselves
        effective = min(effective, effective_size([part.astype(float) for part in failures]))
    share = effective / s.size
    tested = _test_downwards(s, failed, share, epsilon, delta, step)
    kept = [row for row in tested if row.kept]
    if not kept:
        return None
    last = kept[-1]
    steady = np.concatenate([np.asarray(part) for part in nominal])
    spread = float(np.median(np.abs(steady - np.median(steady))))
    theta_on = min(1.0, last.theta + max(0.05, 3.0 * spread))
    busiest = _busiest(scores, last.theta, theta_on, window_ticks)
    while busiest > max_switches and theta_on < 1.0:
        theta_on = min(1.0, theta_on + step)
        busiest = _busiest(scores, last.theta, theta_on, window_ticks)
    lower, upper = clopper_pearson(last.failures, last.accepted, delta)
    return ThresholdChoice(last.theta, theta_on, lower, upper, float(busiest), tested)


def _test_downwards(
    s: Vector, failed: Flags, share: float, epsilon: float, delta: float, step: float
) -> tuple[Tested, ...]:
    enough = log(1.0 / delta) / epsilon
    rows: list[Tested] = []
    count = round(1.0 / step)
    for theta in (i / count for i in range(count - 1, 0, -1)):
        accepted = s >= theta
        n, k = share * float(accepted.sum()), share * float((accepted & failed).sum())
        if n < enough:
            continue
        _, upper = clopper_pearson(k, n, delta)
        rows.append(Tested(theta, n, k, upper, upper <= epsilon))
        if upper > epsilon:
            break
    return tuple(rows)


def _busiest(
    episodes: Sequence[Vector], theta_off: float, theta_on: float, window_ticks: int
) -> int:
    """Most changes of trust in any `window_ticks` of a replay without dwell times."""
    return max(_most_in_window(changes(e, theta_off, theta_on), window_ticks) for e in episodes)


def _most_in_window(ticks: NDArray[np.intp], window_ticks: int) -> int:
    ends = np.searchsorted(ticks, ticks + window_ticks, side="left")
    return int((ends - np.arange(len(ticks))).max(initial=0))


def changes(scores: Vector, theta_off: float, theta_on: float) -> NDArray[np.intp]:
    """Ticks at which hysteresis changes its mind: off below `theta_off`, on above `theta_on`."""
    found = []
    on = bool(scores[0] > theta_on) if len(scores) else False
    for tick, s in enumerate(scores):
        if (on and s < theta_off) or (not on and s > theta_on):
            found.append(tick)
            on = not on
    return np.array(found, dtype=np.intp)


def persistence(nominal: Sequence[Vector], theta_off: float, max_trips: float) -> int:
    """Smallest n such that n ticks in a row below `theta_off` happen at most so often.

    Args:
        nominal: per episode, scores of undisturbed running; ticks are dependent, so this is
            counted and not multiplied.
        theta_off: threshold.
        max_trips: false trips allowed per tick.
    """
    total = sum(len(episode) for episode in nominal)
    runs = np.concatenate([_runs(np.asarray(episode) < theta_off) for episode in nominal])
    n = 1
    while float((runs >= n).sum()) > max_trips * total:
        n += 1
    return n


def _runs(flags: Flags) -> NDArray[np.intp]:
    """Lengths of the runs of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags.astype(np.int8), [0]])))
    return edges[1::2] - edges[::2]
