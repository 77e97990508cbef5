"""What a soak's samples say, each with its 95 % interval, and what may be concluded from that."""

from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.stats import t as student

RING_TICKS, RING_EVENTS = 512, 128
"""The recorder's rings are memory that fills once: an eighth of what they hold in service."""
FILLED = 1.1
SETTLE_SHARE, SETTLE_LEAST_SHARE, SETTLE_MOST_S = 0.6, 0.25, 7200.0
"""Warming up does not count for slopes: until the ring is full, or 0.6 of a run too short for it,
of which memory is told but not judged."""
BLOCKS = 12
"""A slope is fitted through the means of so many stretches of time, so that what follows from the
sample before does not count as another one."""
WARM_S, WARM_SHARE = 60.0, 0.1
"""Native code, caches, the first swaps: so much of a run, at most, does not count for its ticks."""
TENTH = 0.1
SLOWER = 1.10
"""Ticks of the last tenth may take so much more than those of the first."""
TOGETHER = 25
"""Ticks that are drawn together when the interval is made: a slow one seldom comes alone."""
DRAWS = 1000
AT_ONCE = 1_000_000
"""Numbers that are drawn at a time."""
QUANTILE = 0.999
ABOVE, BELOW, UNDECIDED = "above", "below", "undecided"


def settling_s(length_s: float, tick_s: float) -> float:
    """What of a run does not count for slopes."""
    wanted_s = max(SETTLE_LEAST_SHARE * length_s, FILLED * RING_TICKS * tick_s)
    return min(wanted_s, SETTLE_SHARE * length_s, SETTLE_MOST_S)


def slope_per_hour(time_s: array, values: array, settle_s: float) -> dict[str, float | None]:
    """Slope with its interval, by least squares through the means of equal stretches.

    All are None where there are too few samples for it.
    """
    at = np.array(time_s) / 3600.0
    kept = at >= settle_s / 3600.0
    if kept.sum() < 2 * BLOCKS:
        return {"slope": None, "low": None, "high": None}
    x = np.array([part.mean() for part in np.array_split(at[kept], BLOCKS)])
    y = np.array([part.mean() for part in np.array_split(np.array(values)[kept], BLOCKS)])
    spread = float(((x - x.mean()) ** 2).sum())
    slope = float(((x - x.mean()) * (y - y.mean())).sum()) / spread
    rest = y - y.mean() - slope * (x - x.mean())
    error = float(np.sqrt((rest**2).sum() / (BLOCKS - 2) / spread))
    half = float(student.ppf(0.975, BLOCKS - 2)) * error
    return {
        "slope": round(slope, 4),
        "low": round(slope - half, 4),
        "high": round(slope + half, 4),
        "begin": round(float(y[0]), 3),
        "end": round(float(y[-1]), 3),
    }


def verdict(
    found: Mapping[str, float | None], limit: float, enough_below: float | None = None
) -> str:
    """What an interval "low" to "high" says: wholly above the limit, below it, or too wide to tell.

    Args:
        found: None in it where there is no interval.
        limit: what must not be exceeded.
        enough_below: the whole interval below this is below the limit, too; where the limit is no
            growth at all, no interval around it ever lies below it.
    """
    low, high = found["low"], found["high"]
    if low is None or high is None:
        return UNDECIDED
    if low > limit:
        return ABOVE
    return BELOW if high <= (limit if enough_below is None else enough_below) else UNDECIDED


def tick_tenths(time_s: array, took_s: array, seed: int = 0) -> dict[str, Any]:
    """p99.9 of how long ticks took, first tenth after warming up against the last, milliseconds.

    Args:
        time_s: when each tick was, in order.
        took_s: how long it took.
        seed: of the draws behind the interval.

    Returns:
        "ratio" of the last to the first with its interval "low" to "high", "ticks" in each tenth.
        The ratio is None where a tenth holds fewer than `TOGETHER` ticks.
    """
    at, took = np.array(time_s), 1e3 * np.array(took_s)
    warm_s = min(WARM_S, WARM_SHARE * (at[-1] - at[0])) if len(at) else 0.0
    took = took[at >= at[0] + warm_s] if len(at) else took
    count = int(TENTH * len(took))
    made: dict[str, Any] = {"warming_up_s": round(warm_s, 1), "ticks": count, "ratio": None,
                            "low": None, "high": None}  # fmt: skip
    if count < TOGETHER:
        return made
    first, last = took[:count], took[-count:]
    source = np.random.default_rng(seed)
    ratios = _drawn(last, source) / _drawn(first, source)
    return made | {
        "first_p999_ms": round(float(np.quantile(first, QUANTILE)), 2),
        "last_p999_ms": round(float(np.quantile(last, QUANTILE)), 2),
        "ratio": round(float(np.quantile(last, QUANTILE) / np.quantile(first, QUANTILE)), 3),
        "low": round(float(np.quantile(ratios, 0.025)), 3),
        "high": round(float(np.quantile(ratios, 0.975)), 3),
    }


def _drawn(took: np.ndarray, source: np.random.Generator) -> np.ndarray:
    """(DRAWS,) the quantile of ticks drawn anew from these, `TOGETHER` at a time."""
    whole = took[: len(took) // TOGETHER * TOGETHER].reshape(-1, TOGETHER)
    step = max(1, AT_ONCE // len(took))
    drawn = []
    for begin in range(0, DRAWS, step):
        size = (min(step, DRAWS - begin), len(whole))
        picked = whole[source.integers(len(whole), size=size)].reshape(size[0], -1)
        drawn.append(np.quantile(picked, QUANTILE, axis=1))
    return np.concatenate(drawn)
