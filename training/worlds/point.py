"""A round robot in a drifting current among walls and discs: the smallest world that hurts.

A first-order point q' = u + f(q, t) in the plane, |u_i| <= 1, held for T = 50 ms. Seven
constraints k <= 0, in metres: four walls and three discs, each kept clear by the robot's radius.
Every period is checked at ten instants, so that a corner cut between two ticks counts too.

    f(q, t) = 0.25 [sin(1.3 y + 0.4 t), cos(1.1 x - 0.3 t)]   m/s
"""

from dataclasses import dataclass
from math import cos, exp, inf, sin, sqrt
from typing import Protocol

import numpy as np
from numba import njit

from steadyhand.controllers.safety.arrays import Matrix
from steadyhand.controllers.signals import Vector

PERIOD_S = 0.05
SUBSTEPS = 10
TOP_SPEED = 1.0
"""Bound of |u_i|, m/s: U is a square of diameter 2 sqrt(2)."""
WALL = 0.95
"""The robot's centre must stay within +-WALL, m: its radius is already taken off."""
RADIUS = 0.08
"""Of the robot, m."""
DISCS = ((0.35, 0.30, 0.25), (-0.45, 0.15, 0.22), (0.05, -0.50, 0.25))
"""x, y and radius of every disc, m."""
NAMES = ("wall_right", "wall_left", "wall_top", "wall_bottom", "disc_1", "disc_2", "disc_3")
ROWS = len(NAMES)

# Free choices, the same for every filter. The last four were set by looking at the unfiltered robot
# alone, so that it breaks limits and reaches goals as often as in the experiment reproduced.
CLEARANCE = 0.05
"""Starts and goals are drawn uniformly where every constraint has this much room, m."""
GOAL_RADIUS = 0.06
"""A goal counts as reached at a tick within this distance, m; the next one then appears."""
GAIN = 4.0
"""Of the goal seeker, 1/s: full speed until a quarter of a metre away."""
SEEKER_NOISE = 0.17
"""Standard deviation of the white noise on each input of the goal seeker, m/s."""
OU_RATE, OU_DEVIATION = 1.0, 1.0
"""Reversion, 1/s, and stationary standard deviation, m/s, of the Ornstein-Uhlenbeck nominal."""

TOLERANCE = 1e-9
"""A violation is more than this, m: rounding is none."""


@njit(cache=True)
def drift(x: float, y: float, t: float) -> tuple[float, float]:
    """f(q, t), m/s."""
    return 0.25 * sin(1.3 * y + 0.4 * t), 0.25 * cos(1.1 * x - 0.3 * t)


@njit(cache=True)
def constraints(q: Vector, k: Vector, J: Matrix) -> None:
    """Write k (7,), m, and dk/dq (7, 2) at the position q (2,)."""
    for a in range(2):
        for side in range(2):
            sign = 1.0 - 2.0 * side
            i = 2 * a + side
            k[i] = sign * q[a] - WALL
            J[i, a] = sign
            J[i, 1 - a] = 0.0
    for d in range(len(DISCS)):
        dx, dy = q[0] - DISCS[d][0], q[1] - DISCS[d][1]
        far = max(sqrt(dx * dx + dy * dy), 1e-9)
        k[4 + d] = DISCS[d][2] + RADIUS - far
        J[4 + d, 0], J[4 + d, 1] = -dx / far, -dy / far


@njit(cache=True)
def worst(x: float, y: float) -> float:
    """Largest k at a position, m."""
    k = max(abs(x), abs(y)) - WALL
    for cx, cy, r in DISCS:
        k = max(k, r + RADIUS - sqrt((x - cx) ** 2 + (y - cy) ** 2))
    return k


@njit(cache=True)
def advance(q: Vector, t: float, u: Vector) -> float:
    """Hold u (2,) for one period from time t: moves q (2,), returns the largest k on the way.

    Midpoint rule on every sub-step.
    """
    dt = PERIOD_S / SUBSTEPS
    deepest = -inf
    x, y = q[0], q[1]
    for s in range(SUBSTEPS):
        now = t + s * dt
        fx, fy = drift(x, y, now)
        half = 0.5 * dt
        fx, fy = drift(x + half * (u[0] + fx), y + half * (u[1] + fy), now + half)
        x += dt * (u[0] + fx)
        y += dt * (u[1] + fy)
        deepest = max(deepest, worst(x, y))
    q[0], q[1] = x, y
    return deepest


@dataclass(frozen=True, slots=True, eq=False)
class Episode:
    """Everything random about one episode, drawn beforehand: the same for every filter."""

    start: Vector
    """(2,) m."""
    goals: Matrix
    """(ticks + 1, 2) m: more than can be reached."""
    noise: Matrix
    """(ticks, 2) standard normal, for whichever nominal policy acts."""

    @property
    def ticks(self) -> int:
        """Length in periods."""
        return len(self.noise)


def episode(rng: np.random.Generator, ticks: int) -> Episode:
    """Draw one episode."""
    return Episode(
        start=_free(rng, 1)[0], goals=_free(rng, ticks + 1), noise=rng.standard_normal((ticks, 2))
    )


def _free(rng: np.random.Generator, count: int) -> Matrix:
    """(count, 2) positions with `CLEARANCE` to every limit."""
    found: list[Vector] = []
    while len(found) < count:
        q = rng.uniform(-WALL, WALL, 2)
        if worst(q[0], q[1]) <= -CLEARANCE:
            found.append(q)
    return np.array(found)


class Nominal(Protocol):
    """A policy that knows nothing of limits."""

    reached: int
    """Goals reached so far."""

    def act(self, tick: int, q: Vector) -> Vector:
        """Wanted input (2,) at position q (2,)."""
        ...


class Seeker:
    """Knows neither obstacles nor drift: straight at the goal, with noise."""

    def __init__(
        self,
        episode: Episode,
        gain: float = GAIN,
        noise: float = SEEKER_NOISE,
        goal_radius: float = GOAL_RADIUS,
    ) -> None:
        self._goals, self._noise = episode.goals, noise * episode.noise
        self._gain, self._goal_radius = gain, goal_radius
        self.reached = 0

    def act(self, tick: int, q: Vector) -> Vector:
        """Wanted input (2,) at position q (2,); counts goals."""
        way = self._goals[self.reached] - q
        if np.hypot(way[0], way[1]) < self._goal_radius:
            self.reached += 1
            way = self._goals[self.reached] - q
        wanted: Vector = np.clip(self._gain * way + self._noise[tick], -TOP_SPEED, TOP_SPEED)
        return wanted


class Wanderer:
    """Has no purpose: Ornstein-Uhlenbeck noise, exact in discrete time."""

    def __init__(self, episode: Episode) -> None:
        self._episode = episode
        self._state = np.zeros(2)
        self.reached = 0

    def act(self, tick: int, q: Vector) -> Vector:
        """Wanted input (2,)."""
        kept = exp(-OU_RATE * PERIOD_S) if tick else 0.0
        new = OU_DEVIATION * sqrt(1 - kept**2) * self._episode.noise[tick]
        self._state = kept * self._state + new
        wanted: Vector = np.clip(self._state, -TOP_SPEED, TOP_SPEED)
        return wanted
