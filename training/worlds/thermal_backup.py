"""What the fallback would have made of the same hours: the bar a proposal has to reach.

From every tick of an episode the fallback (demand limiting, behind the same safety layer) is run
over the horizon in the plant's model under the logged load, weather and price. Both ends are then
priced with the cost-to-go of the yardstick, so that an hour of charging is not a loss.
"""

import numpy as np
from numpy.typing import NDArray

from steadyhand.controllers.heuristics.thermal_storage import DemandLimiting
from steadyhand.controllers.plants.thermal_storage import PERIOD_S, ThermalStorage
from steadyhand.controllers.plants.thermal_storage_limits import least_command_for_power
from steadyhand.training.worlds.thermal_teacher import Teacher

Array = NDArray[np.float64]


def demand_limiting(plant: ThermalStorage, rule: DemandLimiting, x: Array, w: Array) -> Array:
    """`DemandLimiting.wanted` for a batch: commands (…,) kW at states (…, 4) under w (…, n_w)."""
    load, outdoor = w[..., 0], w[..., 1]
    hour = x[..., 3] / 3600.0
    left_h = np.maximum((rule.schedule.charge_to_h - hour) % 24.0, 0.25)
    evenly = (x[..., 0] - plant.parameters.energy_high_kwh) / left_h
    limit_kw = np.maximum(rule.limit_kw, x[..., 1])
    holds = least_command_for_power(plant, load, outdoor, limit_kw)
    schedule = rule.schedule
    night = (hour >= schedule.charge_from_h) | (hour < schedule.charge_to_h)
    on_peak = (hour >= schedule.on_peak_from_h) & (hour < schedule.on_peak_to_h)
    least: Array = np.where(night, evenly, np.where(on_peak, load, 0.0))
    return np.maximum(holds, least)


def advantage_over_backup(
    teacher: Teacher,
    states: Array,
    cost: Array,
    horizon: int,
    rule: DemandLimiting = DemandLimiting(),  # noqa: B008  (frozen)
) -> Array:
    """Realised return of each horizon minus the fallback's predicted one (T - H + 1, B), money.

    Args:
        teacher: cost-to-go and safety layer of the same episodes.
        states: (T + 1, B, 4) of the policy's roll-out.
        cost: (T, B) money it spent.
        horizon: H ticks.
        rule: the fallback.
    """
    plant, shield = teacher.plant, teacher.shield
    ticks = len(cost)
    starts = ticks - horizon + 1
    x = states[:starts].copy()
    spent = np.zeros((starts, states.shape[1]))
    w = np.swapaxes(shield.w, 0, 1)
    capped = shield.capped.T
    for k in range(horizon):
        now = slice(k, k + starts)
        wanted = demand_limiting(plant, rule, x, w[now])
        u = shield.project(x[..., 0], w[now], capped[now], wanted)
        moved = plant.transition(x, u[..., None], w[now], PERIOD_S)
        x, spent = moved.x, spent + moved.cost
    total = np.concatenate([np.zeros((1, cost.shape[1])), np.cumsum(cost, axis=0)])
    own = total[horizon:] - total[:-horizon]
    advantage = np.empty_like(spent)
    for t in range(starts):
        end, own_end = x[t], states[t + horizon]
        theirs = spent[t] + teacher.cost_to_go(t + horizon, end[:, 0], end[:, 1])
        ours = own[t] + teacher.cost_to_go(t + horizon, own_end[:, 0], own_end[:, 1])
        advantage[t] = theirs - ours
    return advantage
