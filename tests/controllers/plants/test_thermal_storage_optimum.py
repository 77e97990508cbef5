"""The yardstick against brute force, against itself on finer grids, and inside the limits."""

from itertools import product

import numpy as np
import pytest

from steadyhand.controllers.plants.thermal_storage import PERIOD_S, VIOLATION, ThermalStorage
from steadyhand.controllers.plants.thermal_storage_limits import (
    operating_bounds,
)
from steadyhand.controllers.plants.thermal_storage_optimum import (
    END_VALUE_PER_KWH,
    Grid,
    optimal_trajectory,
    solve,
)
from steadyhand.controllers.plants.thermal_storage_parameters import ICE
from steadyhand.controllers.plants.thermal_storage_scenario import ScenarioSpec, generate
from steadyhand.controllers.signals import Vector

PLANT = ThermalStorage()
DAY = generate(ScenarioSpec(3, days=1)).w


def cost_of_plans(w: Vector, x0: Vector, shares: Vector) -> Vector:
    """Cost (n,) of plans (n, ticks) given as shares of the way between the bounds of the state."""
    x, total = np.repeat(x0[None], len(shares), axis=0), np.zeros(len(shares))
    for t in range(w.shape[0]):
        row = np.repeat(w[t][None], len(shares), axis=0)
        low, high = operating_bounds(PLANT, x[:, 0], row[:, 0], row[:, 1], PERIOD_S)
        u = low + shares[:, t] * (high - low)
        done = PLANT.transition(x, u[:, None], row, PERIOD_S)
        x, total = done.x, total + done.cost
    return total - END_VALUE_PER_KWH * (x[:, 0] - x0[0])


def brute_force(w: Vector, x0: Vector, levels: int = 11, rounds: int = 8) -> float:
    """Least cost over all plans on a grid of shares, then on ever finer grids around the best."""
    offsets = np.array(list(product(np.linspace(-1.0, 1.0, levels), repeat=w.shape[0])))
    best, least = np.full(w.shape[0], 0.5), np.inf
    for k in range(rounds):
        plans = np.clip(best + offsets * 0.5 * 0.5**k, 0.0, 1.0)
        costs = cost_of_plans(w, x0, plans)
        best, least = plans[np.argmin(costs)], min(least, float(costs.min()))
    return least


def test_equals_brute_force_on_a_tiny_problem() -> None:
    """Four ticks around the price step at noon, 8 grids of 14,641 plans."""
    w = DAY[46:50]
    x0 = np.array([300.0, 60.0, 0.0, 46 * PERIOD_S])
    optimum = solve(PLANT, w, Grid(321, 161, 61))
    plans = brute_force(w, x0)
    assert optimum.cost_to_go(0, 300.0, 60.0) + END_VALUE_PER_KWH * 300.0 == pytest.approx(
        plans, rel=1e-3
    )
    assert optimal_trajectory(optimum, x0).total == pytest.approx(plans, rel=1e-3)


def test_a_plan_is_worth_what_the_tables_say() -> None:
    x0 = np.array([750.0, 0.0, 0.0, 0.0])
    optimum = solve(PLANT, DAY, Grid(81, 41, 31))
    plan = optimal_trajectory(optimum, x0)
    assert plan.total == pytest.approx(plan.cost_to_go[0], rel=5e-3)
    later = plan.cost[40:].sum() - END_VALUE_PER_KWH * (plan.x[-1, 0] - 750.0)
    assert later == pytest.approx(plan.cost_to_go[40], rel=1e-2)


def test_a_finer_grid_changes_less_than_a_thousandth() -> None:
    x0 = np.array([750.0, 0.0, 0.0, 0.0])
    totals = [
        optimal_trajectory(solve(PLANT, DAY, grid), x0).total
        for grid in (Grid(81, 21, 31), Grid(161, 41, 61))
    ]
    assert abs(totals[0] / totals[1] - 1.0) < 1e-3


def test_the_optimum_honours_every_limit() -> None:
    x0 = np.array([750.0, 0.0, 0.0, 0.0])
    plan = optimal_trajectory(solve(PLANT, DAY, Grid(81, 21, 31)), x0)
    before = PLANT.margins(plan.x[:-1], plan.u, DAY)
    after = PLANT.margins(plan.x[1:], plan.u, DAY)
    assert before.max() <= VIOLATION
    assert after[:, :2].max() <= VIOLATION
    assert np.all(plan.x[:, 0] >= ICE.energy_low_kwh - 1e-9)


def test_the_peak_starts_again_at_midnight() -> None:
    two = np.concatenate([DAY, DAY])
    optimum = solve(PLANT, two, Grid(41, 11, 21))
    first_of_day_two = optimum.value[96]
    assert np.ptp(first_of_day_two, axis=1).max() == 0.0
    # and a paid peak is worth something before midnight, at most its price
    worth = optimum.value[48, :, 0] - optimum.value[48, :, -1]
    assert np.all(worth > 0.0)
    assert worth.max() <= ICE.demand_per_kw_day * optimum.peak_grid[-1] + 1e-9


def test_more_stored_never_costs_more() -> None:
    optimum = solve(PLANT, DAY, Grid(41, 11, 21))
    assert np.all(np.diff(optimum.value[0], axis=0) < 0.0)
