"""Run a plant in closed loop, without wires or clocks: for yardsticks, studies and tests."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from steadyhand.controllers.plants.thermal_storage import ThermalStorage
from steadyhand.controllers.signals import Vector


@dataclass(frozen=True, slots=True, eq=False)
class Rollout:
    """One closed-loop episode."""

    x: Vector
    """(ticks + 1, n_x) states."""
    y: Vector
    """(ticks, n_y) what the controller saw."""
    u: Vector
    """(ticks, n_u) what it asked for."""
    cost: Vector
    """(ticks,) money."""
    margins: Vector
    """(ticks, n_g) with u applied, tank rows judged after the period; > 0 is a violation."""


def rollout(
    plant: ThermalStorage, w: Vector, x0: Vector, act: Callable[[Vector, Vector], Vector]
) -> Rollout:
    """Episode of `plant` from x0 (n_x,) under w (ticks, n_w).

    Args:
        plant: a numpy plant.
        w: disturbances, held over each period.
        x0: first state.
        act: command (n_u,) from the observation (n_y,) and the command applied last (n_u,).
    """
    ticks, n_u = w.shape[0], len(plant.outputs)
    x = np.empty((ticks + 1, x0.shape[-1]))
    y, u = np.empty((ticks, len(plant.observations))), np.empty((ticks, n_u))
    cost, margins = np.empty(ticks), np.empty((ticks, len(plant.margin_names)))
    x[0], applied = x0, np.zeros(n_u)
    for t in range(ticks):
        y[t] = plant.measure(x[t], applied, w[t])
        u[t] = act(y[t], applied)
        done = plant.transition(x[t], u[t], w[t], plant.period_s)
        x[t + 1], cost[t] = done.x, done.cost
        margins[t] = plant.margins(x[t], u[t], w[t])
        margins[t, :2] = plant.margins(x[t + 1], u[t], w[t])[:2]
        applied = u[t]
    return Rollout(x, y, u, cost, margins)
