"""Seeded filter problems: states of an arm near its limits, as every solver wants them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steadyhand.controllers.signals import Vector

Batch = NDArray[np.float64]

ALPHA = 4.0
"""1/s: share of a distance that may be used up per second."""
SPEED, REACH = 1.5, 2.5
"""Largest |input|, rad/s, and |position|, rad."""
SLACK_GAIN = 2.0
NEAR = (-3.0, -1.0)
"""Decades of the distances that are small: 1 mm to 100 mm."""


@dataclass(frozen=True, slots=True, eq=False)
class Problems:
    """`count` states with n inputs; doing nothing is always allowed.

    `G` u <= `h` over `low` <= u <= `high` is the QP. `J`, `slack_speed` and `drift` are the rows
    of the null-space form, in which position limits are rows too.
    """

    u_nom: Batch
    """(count, n)"""
    G: Batch
    """(count, rows, n)"""
    h: Batch
    low: Batch
    high: Batch
    J: Batch
    """(count, m, n)"""
    slack_speed: Batch
    """(count, m), > 0"""
    drift: Batch
    """(count, m)"""

    @property
    def n(self) -> int:
        """Inputs."""
        return self.u_nom.shape[1]

    @property
    def m(self) -> int:
        """Rows of the null-space form."""
        return self.J.shape[1]

    def violation(self, i: int, u: Vector) -> float:
        """Largest amount by which `u` breaks a row or bound of QP `i`."""
        rows = (self.G[i] @ u - self.h[i]).max()
        return float(max(rows, (self.low[i] - u).max(), (u - self.high[i]).max(), 0.0))


def arm_problems(n: int, rows: int, positions: bool, count: int = 2000, seed: int = 0) -> Problems:
    """Random states, of which many are close to a limit.

    Args:
        n: joints.
        rows: obstacles, each a dense row.
        positions: joints have position limits: bounds in the QP, two rows each otherwise.
        count: states.
        seed: of the random numbers.
    """
    rng = np.random.default_rng(seed)
    G = 0.6 * rng.standard_normal((count, rows, n))
    distance = rng.uniform(0.1, 1.0, (count, rows))
    close = rng.random((count, rows)) < 0.3
    distance[close] = 10.0 ** rng.uniform(*NEAR, int(close.sum()))
    low, high = np.full((count, n), -SPEED), np.full((count, n), SPEED)
    J, slack = G, distance
    if positions:
        q = rng.uniform(0.01 - REACH, REACH - 0.01, (count, n))
        close = rng.random((count, n)) < 0.15
        gap = 10.0 ** rng.uniform(*NEAR, (count, n))
        q = np.where(close, np.sign(q) * (REACH - gap), q)
        low, high = np.maximum(low, -ALPHA * (REACH + q)), np.minimum(high, ALPHA * (REACH - q))
        unit = np.broadcast_to(np.eye(n), (count, n, n))
        J = np.ascontiguousarray(np.concatenate([G, unit, -unit], axis=1))
        slack = np.concatenate([distance, REACH - q, REACH + q], axis=1)
    return Problems(
        u_nom=1.3 * rng.uniform(-SPEED, SPEED, (count, n)),
        G=G,
        h=ALPHA * distance,
        low=low,
        high=high,
        J=J,
        slack_speed=SLACK_GAIN * np.minimum(slack, 1.0),
        drift=0.02 * slack * rng.standard_normal(slack.shape),
    )


def over_states(
    ways: Mapping[str, Callable[[int], Any]], count: int
) -> dict[str, Callable[[], Any]]:
    """Calls without an argument: every call takes the next state, the same for every way."""

    def walk(way: Callable[[int], Any]) -> Callable[[], Any]:
        state = cycle(range(count)).__next__
        return lambda: way(state())

    return {name: walk(way) for name, way in ways.items()}
