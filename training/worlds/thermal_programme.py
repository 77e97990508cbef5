"""Dynamic programmes of many episodes at once: the yardstick's recursion, 20 times faster.

The same choices and the same recursion as `controllers.plants.thermal_storage_optimum`, written
for a batch so that the plant's equations are called once per tick for all episodes. A test holds
the two together. With a shield every choice goes through the safety layer first: the least cost
that can be had behind the filter.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from steadyhand.controllers.plants.thermal_storage import DAY_S, PERIOD_S, ThermalStorage
from steadyhand.controllers.plants.thermal_storage_limits import least_command_for_power
from steadyhand.controllers.plants.thermal_storage_optimum import END_VALUE_PER_KWH, Grid
from steadyhand.training.worlds.thermal_storage import StorageShield

Array = NDArray[np.float64]

_TICKS_PER_DAY = int(DAY_S / PERIOD_S)


def solve_batch(
    plant: ThermalStorage, w: Array, grid: Grid, shield: StorageShield, *, filtered: bool = True
) -> tuple[Array, Array, NDArray[np.float32]]:
    """Cost-to-go of B episodes.

    Args:
        plant: numpy plant.
        w: (B, ticks, n_w), every episode starts at midnight.
        grid: resolution.
        shield: input sets of the same episodes.
        filtered: pass every choice through the safety layer, not only through the input set.

    Returns:
        Energies (n_e,) kWh; peaks (B, n_p) kW; least cost (B, ticks + 1, n_e, n_p) from the start
        of each tick to the end, end value included.
    """
    p = plant.parameters
    batch, ticks = w.shape[:2]
    load, outdoor = w[..., 0], w[..., 1]
    energies = np.linspace(p.energy_low_kwh, p.energy_high_kwh, grid.energies)
    highest = np.maximum(p.power_cap_kw, plant.power(0.0 * load, load, outdoor).max(1))
    peaks = np.linspace(0.0, highest, grid.peaks, axis=1)
    powers = peaks[:, None, :] + 0.0 * load[..., None]
    marks = least_command_for_power(
        plant, load[..., None] + 0.0 * powers, outdoor[..., None], powers
    )
    value = np.empty((batch, ticks + 1, grid.energies, grid.peaks), dtype=np.float32)
    ahead = np.empty((batch, grid.energies, grid.peaks))
    ahead[:] = -END_VALUE_PER_KWH * energies[:, None]
    value[:, ticks] = ahead
    for tick in range(ticks - 1, -1, -1):
        if (tick + 1) % _TICKS_PER_DAY == 0:
            ahead = np.repeat(ahead[..., :1], grid.peaks, axis=-1)
            value[:, tick + 1] = ahead
        at_marks = np.concatenate([marks[:, tick], np.zeros((batch, 1))], axis=1)
        choices = _choices(shield, energies, tick, at_marks, grid.actions, filtered)
        now = np.empty_like(ahead)
        _backward(*choices, ahead, energies, peaks, p.demand_per_kw_day, now)
        value[:, tick] = now
        ahead = now
    return energies, peaks, value


def _choices(
    shield: StorageShield, energies: Array, tick: int, marks: Array, actions: int, filtered: bool
) -> tuple[Array, Array, Array]:
    """Energies after, powers, and costs without demand, all (B, n_e, choices)."""
    plant, w, capped = shield.plant, shield.w[:, tick], shield.capped[:, tick, None]
    p = plant.parameters
    low, high = (bound[..., None] for bound in shield.input_set(energies, w[:, None], capped))
    share = np.linspace(0.0, 1.0, actions)
    even = low * (1.0 - share) + high * share
    u = np.concatenate([even, np.clip(marks[:, None, :], low, high)], axis=-1)
    if filtered:
        u = shield.project(energies[:, None], w[:, None, None], capped[..., None], u)
    x = np.zeros((*u.shape, 4))
    x[..., 0] = energies[:, None]
    flows = plant.flows(x, u[..., None], w[:, None, None, :], PERIOD_S)
    kept, gain_h = plant.hold(PERIOD_S)
    after = kept * x[..., 0] - gain_h * flows.storage_kw
    rate = w[:, 2, None, None] + p.co2_price_per_kg * p.co2_kg_per_kwh
    stage = (rate * flows.power_kw + p.unmet_per_kwh * flows.unmet_kw) * (PERIOD_S / 3600.0)
    return after, flows.power_kw, stage


@njit(cache=True)
def _backward(
    after: Array, power: Array, stage: Array, ahead: Array, energies: Array, peaks: Array,
    demand: float, value: Array,
) -> None:  # fmt: skip
    """One step of the recursion for every (episode, energy, peak); fills `value`."""
    n_e, n_p = energies.size, peaks.shape[1]
    step_e = energies[1] - energies[0]
    for b in range(after.shape[0]):
        step_p = peaks[b, 1] - peaks[b, 0]
        for i in range(n_e):
            for j in range(n_p):
                value[b, i, j] = np.inf
            for a in range(after.shape[2]):
                at = min(max((after[b, i, a] - energies[0]) / step_e, 0.0), n_e - 1.0)
                k = min(int(at), n_e - 2)
                s = at - k
                new_peak = power[b, i, a]
                at = min(max((new_peak - peaks[b, 0]) / step_p, 0.0), n_p - 1.0)
                q = min(int(at), n_p - 2)
                r = at - q
                low = (1.0 - r) * ahead[b, k, q] + r * ahead[b, k, q + 1]
                high = (1.0 - r) * ahead[b, k + 1, q] + r * ahead[b, k + 1, q + 1]
                # a new peak costs the same whatever the old one was, up to the part already paid
                raised = stage[b, i, a] + demand * new_peak + (1.0 - s) * low + s * high
                for j in range(n_p):
                    if new_peak > peaks[b, j]:
                        total = raised - demand * peaks[b, j]
                    else:
                        held = (1.0 - s) * ahead[b, k, j] + s * ahead[b, k + 1, j]
                        total = stage[b, i, a] + held
                    value[b, i, j] = min(value[b, i, j], total)
