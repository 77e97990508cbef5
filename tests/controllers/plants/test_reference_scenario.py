"""The reference scenario is worth learning: the tuning, as numbers that must keep holding.

Run with `pytest -m slow tests/controllers/plants/test_reference_scenario.py -s` for the table.
"""

import numpy as np
import pytest

from steadyhand.controllers.heuristics.thermal_storage import (
    STRATEGIES,
    Reading,
    ThermalStorageHeuristic,
)
from steadyhand.controllers.plants.simulate import rollout
from steadyhand.controllers.plants.thermal_storage import VIOLATION, ThermalStorage
from steadyhand.controllers.plants.thermal_storage_optimum import (
    END_VALUE_PER_KWH,
    Grid,
    optimal_trajectory,
    solve,
)
from steadyhand.controllers.plants.thermal_storage_scenario import (
    EPISODE_DAYS,
    HELD_OUT_SEEDS,
    held_out,
)

PLANT = ThermalStorage()
DAYS = EPISODE_DAYS * len(HELD_OUT_SEEDS)
COLUMNS = (0, 1, 2, 5, 6)


def cost_per_day_of_rule(name: str) -> float:
    heuristic = ThermalStorageHeuristic(STRATEGIES[name](), PLANT.observations)
    scenario, total = held_out(), 0.0
    for w, x0 in zip(scenario.w, PLANT.initial(scenario), strict=True):
        run = rollout(
            *(PLANT, w, x0),
            lambda y, _: np.array([heuristic.command(Reading(*map(float, y[list(COLUMNS)])))]),
        )
        assert run.margins.max() <= VIOLATION
        total += run.cost.sum() - END_VALUE_PER_KWH * (run.x[-1, 0] - run.x[0, 0])
    return total / DAYS


def cost_per_day_of_optimum(grid: Grid) -> float:
    scenario = held_out()
    total = 0.0
    for w, x0 in zip(scenario.w, PLANT.initial(scenario), strict=True):
        total += optimal_trajectory(solve(PLANT, w, grid), x0).total
    return total / DAYS


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_best_rule_costs_8_to_20_percent_more_than_the_optimum() -> None:
    optimum = cost_per_day_of_optimum(Grid())
    gaps = {name: cost_per_day_of_rule(name) / optimum - 1.0 for name in STRATEGIES}
    print(f"\noptimum {optimum:.2f} per day over {DAYS} held-out days")
    for name, gap in sorted(gaps.items(), key=lambda item: item[1]):
        print(f"{name:20s} {optimum * (1 + gap):8.2f} per day  {100 * gap:+5.1f} %")
    best = min(gaps, key=gaps.__getitem__)
    assert best == "storage_priority"
    assert 0.08 <= gaps[best] <= 0.20
    assert gaps["no_storage"] > gaps[best] + 0.05
    assert min(gaps.values()) > 0.0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_optimum_has_converged_to_a_thousandth() -> None:
    totals = [
        cost_per_day_of_optimum(grid) for grid in (Grid(81, 21, 31), Grid(), Grid(321, 81, 121))
    ]
    print(f"\noptimum per day on ever finer grids: {totals}")
    assert abs(totals[1] / totals[2] - 1.0) < 1e-3
    assert abs(totals[1] / totals[2] - 1.0) < abs(totals[0] / totals[2] - 1.0) + 1e-6
