"""Does a probability mean what it says? Reliability, ranking, and maps that repair it.

Ticks of one episode are dependent, so splits are by episode and intervals are worked out from the
effective number of ticks (`controllers.trust.thresholds.effective_size`).
Sources: Brier decomposition, Murphy 1973; binomial interval, Clopper and Pearson 1934; pool
adjacent violators, Ayer et al. 1955; temperature scaling, Guo et al. 2017 (arXiv 1706.04599).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steadyhand.controllers.errors import ConfigError
from steadyhand.controllers.trust.thresholds import clopper_pearson

Array = NDArray[np.float64]

BINS = 15


@dataclass(frozen=True, slots=True)
class Bin:
    """One bin of a reliability diagram."""

    count: int
    confidence: float
    """Mean predicted probability."""
    accuracy: float
    """Share of events that happened."""
    low: float
    """Clopper-Pearson interval of the accuracy, 95 % two-sided."""
    high: float


@dataclass(frozen=True, slots=True)
class Brier:
    """Score = reliability - resolution + uncertainty (+ what the binning hides)."""

    score: float
    reliability: float
    resolution: float
    uncertainty: float


def reliability(
    probability: Array, event: NDArray[np.bool_], bins: int = BINS, effective_share: float = 1.0
) -> list[Bin]:
    """Reliability diagram with bins of equal mass.

    Args:
        probability: (n,) predicted.
        event: (n,) happened.
        bins: number of bins; fewer if there are fewer samples.
        effective_share: effective samples per sample, for the intervals.

    Raises:
        ConfigError: no samples, or shapes that differ.
    """
    if probability.shape != event.shape or probability.ndim != 1 or probability.size == 0:
        raise ConfigError(
            f"calibration: {probability.shape} probabilities and {event.shape} events: "
            "needs two vectors of one length, not empty"
        )
    order = np.argsort(probability, kind="stable")
    rows = []
    for chosen in np.array_split(order, min(bins, probability.size)):
        accuracy = float(event[chosen].mean())
        effective = max(1.0, effective_share * len(chosen))
        failures = (1.0 - accuracy) * effective
        low, high = clopper_pearson(min(failures, effective), effective, 0.025)
        rows.append(
            Bin(len(chosen), float(probability[chosen].mean()), accuracy, 1.0 - high, 1.0 - low)
        )
    return rows


def expected_calibration_error(rows: list[Bin]) -> float:
    """ECE: mean |accuracy - confidence| weighted by mass."""
    total = sum(row.count for row in rows)
    return sum(row.count * abs(row.accuracy - row.confidence) for row in rows) / total


def signed_gap(rows: list[Bin]) -> float:
    """Mean confidence minus accuracy: positive is over-confidence, which is the worse side."""
    total = sum(row.count for row in rows)
    return sum(row.count * (row.confidence - row.accuracy) for row in rows) / total


def brier(probability: Array, event: NDArray[np.bool_], bins: int = BINS) -> Brier:
    """Brier score and its three parts over bins of equal mass."""
    rows = reliability(probability, event, bins)
    total, base = len(event), float(event.mean())
    return Brier(
        score=float(np.mean((probability - event) ** 2)),
        reliability=sum(r.count * (r.confidence - r.accuracy) ** 2 for r in rows) / total,
        resolution=sum(r.count * (r.accuracy - base) ** 2 for r in rows) / total,
        uncertainty=base * (1.0 - base),
    )


def auroc(score: Array, event: NDArray[np.bool_]) -> float:
    """Probability that a tick with the event outranks one without; ties count half.

    NaN when all ticks agree: nothing can be ranked.
    """
    positive = int(event.sum())
    negative = len(event) - positive
    if positive == 0 or negative == 0:
        return float("nan")
    values, inverse, counts = np.unique(score, return_inverse=True, return_counts=True)
    del values
    last = np.cumsum(counts)
    rank = (last - 0.5 * (counts - 1))[inverse]
    return float((rank[event].sum() - 0.5 * positive * (positive + 1)) / (positive * negative))


def isotonic(
    score: Array, event: NDArray[np.bool_], knots: int = 64, effective: float | None = None
) -> tuple[Array, Array]:
    """Isotonic regression as at most `knots` points to interpolate between.

    Pool adjacent violators over ticks sorted by score; probabilities are kept inside
    [1/(n+2), (n+1)/(n+2)], n the effective number of ticks: no finite sample makes sure.

    Args:
        score: (n,) raw score, the logit.
        event: (n,) happened.
        knots: largest number of points, at least 2.
        effective: n for the bounds; the number of ticks by default.

    Returns:
        Scores, strictly increasing, and probabilities, not falling, both (k,) with 2 <= k <= knots.

    Raises:
        ConfigError: fewer than two different scores.
    """
    at, inverse = np.unique(score, return_inverse=True)
    if at.size < 2:
        raise ConfigError(f"isotonic calibration: {at.size} different scores, needs at least 2")
    weight = np.bincount(inverse).astype(np.float64)
    mean = np.bincount(inverse, weights=event.astype(np.float64)) / weight
    starts, level = _pool(mean, weight)
    n = float(len(score)) if effective is None else effective
    level = np.clip(level, 1.0 / (n + 2.0), (n + 1.0) / (n + 2.0))
    ends = np.append(starts[1:], at.size) - 1
    x, y = _corners(at, starts, ends, level)
    return _thin(x, y, at, weight, knots)


def temperature(score: Array, event: NDArray[np.bool_]) -> float:
    """T > 0 that makes sigmoid(score/T) most likely: golden section on log T in [-4, 4]."""

    def loss(log_t: float) -> float:
        z = score * np.exp(-log_t)
        return float(np.mean(np.logaddexp(0.0, z) - z * event))

    a, b = -4.0, 4.0
    ratio = (5.0**0.5 - 1.0) / 2.0
    c, d = b - ratio * (b - a), a + ratio * (b - a)
    for _ in range(60):
        if loss(c) < loss(d):
            b, d = d, c
            c = b - ratio * (b - a)
        else:
            a, c = c, d
            d = a + ratio * (b - a)
    return float(np.exp(0.5 * (a + b)))


def _pool(mean: Array, weight: Array) -> tuple[NDArray[np.intp], Array]:
    """Pool adjacent violators: start of each block and its level."""
    starts: list[int] = []
    levels: list[float] = []
    weights: list[float] = []
    for i in range(len(mean)):
        start, level, mass = i, float(mean[i]), float(weight[i])
        while levels and levels[-1] >= level:
            start = starts.pop()
            below, heavy = levels.pop(), weights.pop()
            level = (level * mass + below * heavy) / (mass + heavy)
            mass += heavy
        starts.append(start)
        levels.append(level)
        weights.append(mass)
    return np.array(starts, dtype=np.intp), np.array(levels)


def _corners(
    at: Array, starts: NDArray[np.intp], ends: NDArray[np.intp], level: Array
) -> tuple[Array, Array]:
    """Both ends of every block as points; a block of one score is one point."""
    x, y = [], []
    for start, end, p in zip(starts, ends, level, strict=True):
        x.append(at[start])
        y.append(p)
        if end > start:
            x.append(at[end])
            y.append(p)
    if len(x) == 1:
        x, y = [at[0], at[-1]], [y[0], y[0]]
    return np.array(x), np.array(y)


def _thin(x: Array, y: Array, at: Array, weight: Array, knots: int) -> tuple[Array, Array]:
    """At most `knots` points: scores at even mass, values by interpolation; ends are kept."""
    if len(x) <= knots:
        return x, y
    mass = np.cumsum(weight) / weight.sum()
    picked = np.interp(np.linspace(mass[0], 1.0, knots), mass, at)
    picked[0], picked[-1] = x[0], x[-1]
    picked = np.unique(picked)
    return picked, np.interp(picked, x, y)
