"""A teacher with perfect foresight: what every command would cost, then playing on optimally,
behind the same safety layer.

    Q_t(x, u) = cost_t(x, u) + V_{t+1}(x')       V from the dynamic programme of the true episode

The teacher knows the future and the pupil does not. What it teaches is therefore "best if the
future were known from the next tick on": it is no optimum under uncertainty and does not hedge.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from steadyhand.controllers.plants.thermal_storage import PERIOD_S, ThermalStorage
from steadyhand.controllers.plants.thermal_storage_optimum import Grid
from steadyhand.controllers.plants.thermal_storage_scenario import Scenario
from steadyhand.training.worlds.thermal_programme import solve_batch
from steadyhand.training.worlds.thermal_storage import StorageShield

Array = NDArray[np.float64]

COARSE = Grid(energies=61, peaks=21, actions=25)
"""0.1 % from the converged yardstick; what a teacher needs."""


@dataclass(frozen=True, slots=True, eq=False)
class Teacher:
    """Cost-to-go tables of B episodes."""

    plant: ThermalStorage
    shield: StorageShield
    energies: Array
    """(n_e,) even grid, kWh."""
    peaks: Array
    """(B, n_p) even grids, kW."""
    value: NDArray[np.float32]
    """(B, ticks + 1, n_e, n_p)."""
    correction_price: float = 0.0
    """As the environment charges it."""

    @classmethod
    def solve(
        cls,
        plant: ThermalStorage,
        scenario: Scenario,
        grid: Grid = COARSE,
        correction_price: float = 0.0,
    ) -> Self:
        """Solve every episode of w (B, ticks, n_w), about 0.3 s an episode of five days."""
        shield = StorageShield(plant, scenario.w)
        energies, peaks, value = solve_batch(plant, scenario.w, grid, shield)
        return cls(plant, shield, energies, peaks, value, correction_price)

    def cost_to_go(self, tick: int, energy: Array, peak: Array) -> Array:
        """V (B, …) at the start of `tick` for energies and peaks (B, …)."""
        rows = np.arange(len(self.peaks)).reshape(-1, *([1] * (energy.ndim - 1)))
        i, s = _cell(self.energies[0], self.energies[1], len(self.energies), energy)
        first, second = (self.peaks[:, k].reshape(rows.shape) for k in (0, 1))
        j, r = _cell(first, second, self.peaks.shape[1], peak)
        table = self.value[:, tick]
        low = (1.0 - r) * table[rows, i, j] + r * table[rows, i, j + 1]
        high = (1.0 - r) * table[rows, i + 1, j] + r * table[rows, i + 1, j + 1]
        result: Array = (1.0 - s) * low + s * high
        return result

    def potential(self, tick: int, x: Array) -> Array:
        """Minus the cost-to-go (B,) at states x (B, 4): what a state is worth."""
        return -self.cost_to_go(tick, x[:, 0], x[:, 1])

    def action_costs(self, tick: int, x: Array, commands: Array) -> Array:
        """Q (B, n) of `commands` (n,) or (B, n) in kW, behind the shield, at states x (B, 4)."""
        u = self.shield(tick, x, commands)
        w = self.shield.w[:, tick, None, :]
        moved = self.plant.transition(x[:, None, :], u[..., None], w, PERIOD_S)
        peak = moved.x[..., 1]
        costs: Array = moved.cost + self.cost_to_go(tick + 1, moved.x[..., 0], peak)
        if self.correction_price:
            outputs = self.plant.outputs
            share = np.abs(u - commands) / (outputs.high[0] - outputs.low[0])
            costs = costs + self.correction_price * share
        return costs

    def action(self, tick: int, x: Array, choices: int = 121) -> Array:
        """Best of `choices` even commands (B, 1) between the bounds."""
        low, high = self.shield.bounds(tick, x)
        commands: Array = low[:, None] + (high - low)[:, None] * np.linspace(0.0, 1.0, choices)
        best = self.action_costs(tick, x, commands).argmin(-1)
        chosen: Array = np.take_along_axis(commands, best[:, None], axis=1)
        return chosen


def _cell(
    first: Array | float, second: Array | float, size: int, at: Array
) -> tuple[NDArray[np.int64], Array]:
    """Cell of an even grid and the share along it; outside, the edge."""
    position = np.clip((at - first) / (second - first), 0.0, size - 1.0)
    i = np.minimum(position.astype(np.int64), size - 2)
    return i, position - i
