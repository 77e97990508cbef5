"""A million ticks against inputs that mean harm: the rows hold at and between the samples.

Two 2-D worlds of a first-order point |u| <= 1 with a known drift, run on the filter's own kernels:
an arena with three discs, and an acute wedge (20 degrees) with a disc in its mouth.
"""

from math import cos, radians, sin, sqrt

import numpy as np
import pytest
from numba import njit

from steadyhand.controllers.safety.active_set import Workspace, solve_dual
from steadyhand.controllers.safety.constraint import ConstraintRow, ConstraintSet, Gains
from steadyhand.controllers.safety.row_filter import DC, RowFilter, Variant
from steadyhand.controllers.safety.rows import FIELDS, build

PERIOD_S = 0.05
SUBSTEPS = 10
DRIFT = 0.25
COMPILED = hasattr(solve_dual, "py_func")
TICKS = 1_000_000 if COMPILED else 2_000
SPEED = sqrt(2) * (1 + DRIFT)
DRIFT_RATE = DRIFT * (1.3 * SPEED + 0.4)
"""Largest change of the drift along any path, m/s^2."""
HALF_ANGLE = radians(10)

# x, y and grown radius of the discs; unit normal and offset of the walls: n.x <= b.
ARENA_WALLS = np.array([[1.0, 0, 0.95], [-1, 0, 0.95], [0, 1, 0.95], [0, -1, 0.95]])
ARENA_DISCS = np.array([[0.35, 0.30, 0.33], [-0.45, 0.15, 0.30], [0.05, -0.5, 0.33]])
WEDGE_WALLS = np.array(
    [
        [sin(HALF_ANGLE), cos(HALF_ANGLE), 0.9 * sin(HALF_ANGLE)],
        [sin(HALF_ANGLE), -cos(HALF_ANGLE), 0.9 * sin(HALF_ANGLE)],
        [-1.0, 0.0, 3.0],
    ]
)
WEDGE_DISCS = np.array([[-1.2, 0.0, 0.2]])


@njit
def _drift(x: float, y: float, t: float) -> tuple[float, float]:
    return DRIFT * sin(1.3 * y + 0.4 * t), DRIFT * cos(1.1 * x - 0.3 * t)


@njit
def _rows(walls, discs, x, y, t, k, J, psi):
    across, along = _drift(x, y, t)
    w = walls.shape[0]
    for i in range(w):
        k[i] = walls[i, 0] * x + walls[i, 1] * y - walls[i, 2]
        J[i, 0], J[i, 1] = walls[i, 0], walls[i, 1]
    for i in range(discs.shape[0]):
        dx, dy = x - discs[i, 0], y - discs[i, 1]
        far = sqrt(dx * dx + dy * dy)
        k[w + i] = discs[i, 2] - far
        J[w + i, 0], J[w + i, 1] = -dx / far, -dy / far
    for i in range(k.shape[0]):
        psi[i] = J[i, 0] * across + J[i, 1] * along


@njit
def _harm(kind, k, J, seed_free, u_nom):
    """Wanted input: 0 at the nearest row, 1 corners at random, 2 noise, 3 between the two nearest,
    4 along the nearest row at full speed."""
    if kind == 1:
        u_nom[0] = 1.0 if seed_free[0] > 0 else -1.0
        u_nom[1] = 1.0 if seed_free[1] > 0 else -1.0
        return
    if kind == 2:
        u_nom[0], u_nom[1] = 3 * seed_free[0], 3 * seed_free[1]
        return
    nearest, second = 0, 1
    for i in range(k.shape[0]):
        if k[i] > k[nearest]:
            second = nearest
            nearest = i
        elif i != nearest and (k[i] > k[second] or second == nearest):
            second = i
    u_nom[0], u_nom[1] = 5 * J[nearest, 0], 5 * J[nearest, 1]
    if kind == 3:
        u_nom[0] += 5 * J[second, 0]
        u_nom[1] += 5 * J[second, 1]
    if kind == 4:
        u_nom[0], u_nom[1] = -5 * J[nearest, 1], 5 * J[nearest, 0]


@njit
def _run(
    walls, discs, start, ticks, noise, nu, w, gains, r_inv, normals, factor, vectors, index, cap,
    multiplier, table,
):  # fmt: skip
    """Returns (deepest k of every substep, ticks in the margin, unsolved ticks, largest |p|+/a)."""
    m, n = nu.shape[0], 2
    k, psi, zero = np.zeros(m), np.zeros(m), np.zeros(m)
    J, u, u_nom = np.zeros((m, n)), np.zeros(n), np.zeros(n)
    lo, hi, quantum = -np.ones(n), np.ones(n), np.zeros(n)
    none = np.zeros(m, np.bool_)
    x, y, t = start[0], start[1], 0.0
    deepest, margin_ticks, unsolved, excess = -1e9, 0, 0, 0.0
    h = PERIOD_S / SUBSTEPS
    for tick in range(ticks):
        _rows(walls, discs, x, y, t, k, J, psi)
        _harm((tick // 37) % 5, k, J, noise[tick % noise.shape[0]], u_nom)
        build(k, J, psi, zero, nu, w, quantum, none, gains, False, False, False, u_nom, table)
        status, _ = solve_dual(
            u_nom, r_inv, J, table[5], table[6], none, lo, hi, u, multiplier, normals, factor,
            vectors, index, cap,
        )  # fmt: skip
        if status != 0:
            unsolved += 1
        for i in range(m):
            p = table[5, i]
            for a in range(n):
                p += J[i, a] * u[a]
            if table[1, i] < 0.0:
                margin_ticks += 1
            if p > 0.0 and table[6, i] > 0.0:
                excess = max(excess, p / sqrt(table[6, i]))
        for _ in range(SUBSTEPS):
            ax, ay = _drift(x, y, t)
            mx, my = x + 0.5 * h * (ax + u[0]), y + 0.5 * h * (ay + u[1])
            bx, by = _drift(mx, my, t + 0.5 * h)
            x, y, t = x + h * (bx + u[0]), y + h * (by + u[1]), t + h
            _rows(walls, discs, x, y, t, k, J, psi)
            for i in range(m):
                deepest = max(deepest, k[i])
    return deepest, margin_ticks, unsolved, excess


def _constraints(walls: np.ndarray, discs: np.ndarray) -> ConstraintSet:
    straight = [
        ConstraintRow(f"wall{i}", "m", 1.0, curvature=DRIFT_RATE) for i in range(len(walls))
    ]
    round_ = [
        ConstraintRow(f"disc{i}", "m", 1.0, curvature=DRIFT_RATE + SPEED**2 / disc[2])
        for i, disc in enumerate(discs)
    ]
    return ConstraintSet((*straight, *round_))


WORLDS = {
    "arena": (ARENA_WALLS, ARENA_DISCS, (-0.8, -0.8)),
    "wedge": (WEDGE_WALLS, WEDGE_DISCS, (0.0, 0.0)),
}
D = sqrt(2)
SHARES = [(0.5, 0.5), (0.0, 1.0), (1.0, 0.0), (0.95, 0.05)]


@pytest.mark.parametrize("world", list(WORLDS))
@pytest.mark.parametrize(("for_gamma", "for_beta"), SHARES)
def test_no_row_is_crossed_at_or_between_the_samples(
    world: str, for_gamma: float, for_beta: float
) -> None:
    walls, discs, start = WORLDS[world]
    constraints = _constraints(walls, discs)
    gains = Gains(
        PERIOD_S, D, for_gamma * 0.9 / PERIOD_S, for_beta * 0.9 / (D * PERIOD_S), 0.5 / PERIOD_S
    )
    m = len(constraints)
    work = Workspace(m, 2)
    noise = np.random.default_rng(3).uniform(-1, 1, (4099, 2))
    deepest, margin_ticks, unsolved, excess = _run(
        *(walls, discs, np.array(start), TICKS // (len(WORLDS) * len(SHARES)), noise),
        *(constraints.margins(gains), constraints.rate_disturbance),
        np.array([gains.gamma, gains.beta, gains.recovery, 0.0, 1 / PERIOD_S, D]),
        *(np.full(2, 4.0), work.normals, work.factor, work.vectors, work.index, work.cap),
        *(work.multiplier, np.zeros((FIELDS, m))),
    )
    assert unsolved == 0
    assert deepest <= 0.0, "a limit was crossed"
    nearest = 0.002 if COMPILED else 0.05
    assert deepest > -nearest, "the attack never came near: the test proves nothing"
    assert excess <= D * (1 + 1e-9), "the bound of the proposition: [p]+ <= a D"
    if COMPILED:
        assert margin_ticks > 100, "the margin was never needed: the test proves nothing"


def _random_rows(rng: np.random.Generator, n: int, m: int, variant: Variant = DC) -> RowFilter:
    rows = ConstraintSet(tuple(ConstraintRow(f"r{i}", "m", 1.0) for i in range(m)))
    gamma = 0.0 if variant.two_sided else 4.5
    gains = Gains(0.1, sqrt(n), gamma, 4.5 / sqrt(n), 5.0)
    return RowFilter(rows, gains, rng.uniform(0.5, 2, n), variant)


def test_the_filter_never_amplifies_the_controllers_noise() -> None:
    """Firmly nonexpansive: |Tu - Tv|^2 <= <Tu - Tv, u - v> in the metric."""
    rng = np.random.default_rng(17)
    pairs = moved = 0
    for _ in range(60 if COMPILED else 6):
        n, m = int(rng.integers(1, 8)), int(rng.integers(1, 20))
        rows = _random_rows(rng, n, m)
        for _ in range(60 if COMPILED else 10):
            k, J = -(rng.random(m) ** 3), rng.standard_normal((m, n))
            drift, box, zero = rng.standard_normal(m) * 0.1, np.ones(n), np.zeros(m)
            answers = []
            pair = [rng.uniform(-2, 2, n), rng.uniform(-2, 2, n)]
            if rng.random() < 0.5:
                pair[1] = pair[0] + 1e-3 * rng.standard_normal(n)
            for u_nom in pair:
                u = np.empty(n)
                status, steps = rows.solve(u_nom, k, J, drift, zero, -box, box, u)
                answers.append(u)
                moved += steps > 0
                if status != 0:
                    break
            else:
                pairs += 1
                change, asked = answers[0] - answers[1], pair[0] - pair[1]
                assert change @ (rows.r * change) <= change @ (rows.r * asked) + 1e-10
    assert pairs > 30
    assert moved > pairs
