"""What a scenario costs under each heuristic and under the perfect-foresight optimum."""

from dataclasses import dataclass

import numpy as np

from steadyhand.controllers.catalogue import PlantKind
from steadyhand.controllers.frames import Observation
from steadyhand.controllers.plants.simulate import Rollout, rollout
from steadyhand.controllers.plants.thermal_storage import ThermalStorage
from steadyhand.controllers.plants.thermal_storage_optimum import (
    END_VALUE_PER_KWH,
    optimal_trajectory,
    solve,
)
from steadyhand.controllers.plants.thermal_storage_scenario import Scenario
from steadyhand.controllers.protocols import Heuristic
from steadyhand.controllers.signals import Vector


@dataclass(frozen=True, slots=True, eq=False)
class Yardstick:
    """Cumulative cost after each tick."""

    optimum: Vector
    heuristics: dict[str, Vector]
    best: str
    """The cheapest heuristic."""
    total_optimum: float
    """Cost of the whole, less what is stored at the end beyond the start."""
    total_heuristics: dict[str, float]


def yardsticks(kind: PlantKind, scenario: Scenario) -> Yardstick:
    """Run every heuristic and the optimum through `scenario`, without faults."""
    plant = ThermalStorage(kind.parameters)
    x0 = plant.initial(scenario)
    optimum = optimal_trajectory(solve(plant, scenario.w), x0)
    costs, totals = {}, {}
    for name, make in kind.heuristics.items():
        done = _run(plant, make(kind.parameters), scenario.w, x0)
        costs[name] = np.cumsum(done.cost)
        stored = END_VALUE_PER_KWH * float(done.x[-1, 0] - done.x[0, 0])
        totals[name] = float(costs[name][-1]) - stored
    best = min(totals, key=lambda name: totals[name])
    return Yardstick(np.cumsum(optimum.cost), costs, best, optimum.total, totals)


def _run(plant: ThermalStorage, heuristic: Heuristic, w: Vector, x0: Vector) -> Rollout:
    """Closed loop of one heuristic, without wires."""
    n_y = len(plant.observations)
    fresh, good = np.zeros(n_y), np.zeros(n_y, dtype=np.int8)

    def act(y: Vector, applied: Vector) -> Vector:
        return heuristic.act(Observation(0, 0.0, y, fresh, good, applied))

    return rollout(plant, w, x0, act)
