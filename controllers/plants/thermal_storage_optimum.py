"""Yardstick: the least cost any controller could reach with perfect foresight.

Backward dynamic programming on (tick, energy stored, highest power so far today):

    V_t(E, p) = min over u of  c_t(E, u) + d (max(p, P) - p) + V_{t+1}(E', max(p, P))

with u between the operating bounds of that E, so the optimum honours the limits every controller
must honour; V is interpolated linearly, never snapped to the grid; P, E' and the costs come from
the plant's own equations. At midnight p starts again at 0. After the last tick what is stored
beyond the start is worth, and what is missing costs, `END_VALUE_PER_KWH`.
"""

from dataclasses import dataclass

import numpy as np
from numba import njit

from steadyhand.controllers.plants.thermal_storage import DAY_S, PERIOD_S, ThermalStorage
from steadyhand.controllers.plants.thermal_storage_limits import (
    least_command_for_power,
    operating_bounds,
)
from steadyhand.controllers.signals import Vector

END_VALUE_PER_KWH = 0.03
"""Two-sided price of energy at the end: a kWh charged at night, (0.08 + 0.0175) (1/3.5 + 0.02)."""

_TICKS_PER_DAY = int(DAY_S / PERIOD_S)


@dataclass(frozen=True, slots=True)
class Grid:
    """Resolution of the programme."""

    energies: int = 161
    peaks: int = 41
    actions: int = 61


@dataclass(frozen=True, slots=True, eq=False)
class Optimum:
    """Cost-to-go tables of one episode, and the decisions they imply."""

    plant: ThermalStorage
    w: Vector
    """(ticks, n_w) disturbances of the episode."""
    energy_grid: Vector
    peak_grid: Vector
    value: Vector
    """(ticks + 1, energies, peaks) least cost from the start of each tick to the end."""
    actions: int

    def cost_to_go(self, tick: int, energy_kwh: float, peak_kw: float) -> float:
        """Least cost from the start of `tick`, end value included."""
        at = _interpolate(self.value[tick], self.energy_grid, self.peak_grid, energy_kwh, peak_kw)
        return float(at)

    def action(self, tick: int, energy_kwh: float, peak_kw: float) -> float:
        """Best command in kW at the start of `tick`, from any state of the band."""
        energy = np.array([energy_kwh])
        u, after, power, stage = _choices(
            self.plant, energy, self.w[tick], self.actions, np.array([peak_kw])
        )
        demand = self.plant.parameters.demand_per_kw_day
        best = _best_action(
            after[0], power[0], stage[0], self.value[tick + 1],
            self.energy_grid, self.peak_grid, peak_kw, demand,
        )  # fmt: skip
        return float(u[0, best])


@dataclass(frozen=True, slots=True, eq=False)
class Trajectory:
    """What the optimal controller does from a given start."""

    x: Vector
    """(ticks + 1, 4) states."""
    u: Vector
    """(ticks, 1) commands."""
    cost: Vector
    """(ticks,) money per tick, without the end value."""
    cost_to_go: Vector
    """(ticks,) least cost from the start of each tick, end value included."""
    total: float
    """Sum of `cost` minus the value of what is stored more than at the start."""


def solve(plant: ThermalStorage, w: Vector, grid: Grid = Grid()) -> Optimum:
    """Tables for one episode; `plant` must be a numpy plant, `w` (ticks, n_w) starts at midnight.

    About 0.1 s per day at the default grid. The end value is counted from zero energy; only
    differences of V matter for decisions, and `optimal_trajectory` counts from the start.
    """
    p = plant.parameters
    energies = np.linspace(p.energy_low_kwh, p.energy_high_kwh, grid.energies)
    peaks = np.linspace(0.0, _highest_power(plant, w), grid.peaks)
    ticks = w.shape[0]
    value = np.empty((ticks + 1, grid.energies, grid.peaks))
    value[ticks] = -END_VALUE_PER_KWH * energies[:, None]
    for tick in range(ticks - 1, -1, -1):
        _, after, power, stage = _choices(plant, energies, w[tick], grid.actions, peaks)
        ahead = value[tick + 1]
        if (tick + 1) % _TICKS_PER_DAY == 0:
            ahead = np.repeat(ahead[:, :1], grid.peaks, axis=1)
        _backward(after, power, stage, ahead, energies, peaks, p.demand_per_kw_day, value[tick])
        if (tick + 1) % _TICKS_PER_DAY == 0:
            value[tick + 1] = ahead
    return Optimum(plant, w, energies, peaks, value, grid.actions)


def optimal_trajectory(optimum: Optimum, x0: Vector, refine: int = 4) -> Trajectory:
    """Roll the optimal decisions forward from state x0 (4,) with the plant itself.

    Args:
        optimum: tables of the episode.
        x0: state at the first midnight.
        refine: the forward pass tries `refine` times as many actions as the tables did.
    """
    plant, w = optimum.plant, optimum.w
    fine = Optimum(
        plant, w, optimum.energy_grid, optimum.peak_grid, optimum.value,
        refine * (optimum.actions - 1) + 1,
    )  # fmt: skip
    ticks = w.shape[0]
    x = np.empty((ticks + 1, x0.shape[0]))
    u, cost, to_go = np.empty((ticks, 1)), np.empty(ticks), np.empty(ticks)
    x[0] = x0
    for tick in range(ticks):
        energy, peak = float(x[tick, 0]), float(x[tick, 1])
        u[tick, 0] = fine.action(tick, energy, peak)
        to_go[tick] = optimum.cost_to_go(tick, energy, peak)
        done = plant.transition(x[tick], u[tick], w[tick], PERIOD_S)
        x[tick + 1], cost[tick] = done.x, done.cost
    total = float(cost.sum() - END_VALUE_PER_KWH * (x[-1, 0] - x[0, 0]))
    return Trajectory(x, u, cost, to_go + END_VALUE_PER_KWH * x[0, 0], total)


def _highest_power(plant: ThermalStorage, w: Vector) -> float:
    """Top of the peak grid: the cap, or what the worst load alone can need."""
    load, outdoor = w[:, 0], w[:, 1]
    return float(max(plant.parameters.power_cap_kw, plant.power(0.0 * load, load, outdoor).max()))


def _choices(
    plant: ThermalStorage, energies: Vector, w: Vector, actions: int, powers: Vector
) -> tuple[Vector, Vector, Vector, Vector]:
    """Commands, energies after, powers and costs without demand, all (energies, choices).

    The choices are `actions` even steps between the operating bounds, idle, and the commands that
    draw exactly `powers`: an optimum likes to stay just at the peak it has already paid for.
    """
    p = plant.parameters
    low, high = operating_bounds(plant, energies, w[0], w[1], PERIOD_S)
    share = np.linspace(0.0, 1.0, actions)
    even = low[:, None] * (1.0 - share) + high[:, None] * share
    at_power = least_command_for_power(plant, w[0] + 0.0 * powers, w[1], powers)
    marks = np.clip(np.append(at_power, 0.0), low[:, None], high[:, None])
    u = np.concatenate([even, marks], axis=1)
    x = np.zeros((*u.shape, 4))
    x[..., 0] = energies[:, None]
    flows = plant.flows(x, u[..., None], w, PERIOD_S)
    kept, gain_h = plant.hold(PERIOD_S)
    after = kept * x[..., 0] - gain_h * flows.storage_kw
    hours = PERIOD_S / 3600.0
    rate = w[2] + p.co2_price_per_kg * p.co2_kg_per_kwh
    stage = (rate * flows.power_kw + p.unmet_per_kwh * flows.unmet_kw) * hours
    return u, after, flows.power_kw, stage


@njit(cache=True)
def _cell(grid: Vector, at: float) -> tuple[int, float]:
    """Cell of an even grid and the share along it; outside, the edge."""
    position = (at - grid[0]) / (grid[1] - grid[0])
    position = min(max(position, 0.0), grid.size - 1.0)
    i = min(int(position), grid.size - 2)
    return i, position - i


@njit(cache=True)
def _interpolate(
    value: Vector, energies: Vector, peaks: Vector, energy: float, peak: float
) -> float:
    i, s = _cell(energies, energy)
    j, r = _cell(peaks, peak)
    low = (1.0 - r) * value[i, j] + r * value[i, j + 1]
    high = (1.0 - r) * value[i + 1, j] + r * value[i + 1, j + 1]
    return (1.0 - s) * low + s * high


@njit(cache=True)
def _backward(
    after: Vector,
    power: Vector,
    stage: Vector,
    ahead: Vector,
    energies: Vector,
    peaks: Vector,
    demand: float,
    value: Vector,
) -> None:
    """One step of the recursion for every (energy, peak); fills `value`."""
    for i in range(after.shape[0]):
        for j in range(peaks.size):
            value[i, j] = np.inf
        for a in range(after.shape[1]):
            new_peak = power[i, a]
            k, s = _cell(energies, after[i, a])
            # a new peak costs the same whatever the old one was, up to the part already paid
            raised = (
                stage[i, a]
                + demand * new_peak
                + _interpolate(ahead, energies, peaks, after[i, a], new_peak)
            )
            for j in range(peaks.size):
                if new_peak > peaks[j]:
                    total = raised - demand * peaks[j]
                else:
                    total = stage[i, a] + (1.0 - s) * ahead[k, j] + s * ahead[k + 1, j]
                value[i, j] = min(value[i, j], total)


@njit(cache=True)
def _best_action(
    after: Vector,
    power: Vector,
    stage: Vector,
    ahead: Vector,
    energies: Vector,
    peaks: Vector,
    peak: float,
    demand: float,
) -> int:
    best, least = 0, np.inf
    for a in range(after.size):
        new_peak = max(peak, power[a])
        total = (
            stage[a]
            + demand * (new_peak - peak)
            + _interpolate(ahead, energies, peaks, after[a], new_peak)
        )
        if total < least:
            best, least = a, total
    return best
