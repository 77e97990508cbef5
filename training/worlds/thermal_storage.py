"""The thermal storage as a world to learn in: episodes, safety layer, backup.

The safety layer is the edge's filter (ATACOM-DC) worked out for this plant's one input, in closed
form and for a batch. The wanted command u0 approaches a band edge by P0 = h (u0 + l E) - gamma T M
kWh more than is free (h = T in hours, M the usable distance, margin nu taken off); the minimum of
|u - u0|^2/range^2 + (P/S)^2, S = beta T M, is at

    P(u*) = P0 S^2 / (S^2 + (h range)^2)        when P0 > 0, else u* = u0

inside the exact one-step bounds U. A test holds it against the filter itself.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from steadyhand.controllers.plants.thermal_storage import PERIOD_S, ThermalStorage
from steadyhand.controllers.plants.thermal_storage_limits import (
    least_command_for_power,
    operating_bounds,
)
from steadyhand.controllers.plants.thermal_storage_optimum import END_VALUE_PER_KWH
from steadyhand.controllers.plants.thermal_storage_safety import (
    POWER_ERROR,
    ThermalStorageSafety,
)
from steadyhand.controllers.plants.thermal_storage_scenario import Scenario
from steadyhand.controllers.safety.constraint import Gains, diameter
from steadyhand.training.worlds.plant_env import PlantEnv, Potential

Array = NDArray[np.float64]

_NO_CAP_KW = 1e5
_HOURS = PERIOD_S / 3600.0


class StorageShield:
    """The safety layer over B episodes.

    Args:
        plant: numpy plant.
        w: (B, ticks, n_w) disturbances.
        power_error: share of the power cap that is kept free, as the filter does.
    """

    def __init__(self, plant: ThermalStorage, w: Array, power_error: float = POWER_ERROR) -> None:
        p = plant.parameters
        self.plant = plant
        self.w = w
        # Without a cap the operating bounds ask for no bisection; the cap is worked out once.
        self._uncapped = ThermalStorage(replace(p, power_cap_kw=_NO_CAP_KW))
        cap = (1.0 - power_error) * p.power_cap_kw
        self.capped = least_command_for_power(plant, w[..., 0], w[..., 1], cap)
        size = diameter(plant.outputs)
        self._gains = Gains.for_period(PERIOD_S, size)
        margins = ThermalStorageSafety(p).constraints.margins(self._gains)
        self._nu_kwh = margins * p.band_kwh
        self._range = plant.outputs.high - plant.outputs.low

    def __call__(self, tick: int, x: Array, wanted: Array) -> Array:
        """Safe commands (B, n) nearest to `wanted` (B, n) or (n,): n candidates per state."""
        w, capped = self.w[:, tick, None], self.capped[:, tick, None]
        return self.project(x[:, 0, None], w, capped, wanted)

    def bounds(self, tick: int, x: Array) -> tuple[Array, Array]:
        """The input set U (B,), (B,) at states x (B, n_x)."""
        return self.input_set(x[:, 0], self.w[:, tick], self.capped[:, tick])

    def input_set(self, energy: Array, w: Array, capped: Array) -> tuple[Array, Array]:
        """Exact one-step operating bounds (…,), (…,) kW inside the range of the output.

        Args:
            energy: (…,) kWh.
            w: (…, n_w) disturbances.
            capped: (…,) least command that holds the power cap.
        """
        least_kw = self.plant.outputs.low[0]
        low, high = operating_bounds(self._uncapped, energy, w[..., 0], w[..., 1], PERIOD_S)
        high = np.maximum(high, least_kw)
        return np.clip(np.maximum(low, capped), least_kw, high), high

    def project(self, energy: Array, w: Array, capped: Array, wanted: Array) -> Array:
        """Safe commands (…,) nearest to `wanted`; arguments as in `input_set`, all broadcast."""
        p = self.plant.parameters
        low, high = self.input_set(energy, w, capped)
        loss = p.loss_per_h * energy
        to_empty = energy - p.energy_low_kwh - self._nu_kwh[1]
        to_full = p.energy_high_kwh - energy - self._nu_kwh[0]
        # discharging approaches the lower edge at (u + loss); charging the upper at -(u + loss)
        u = self._resist(wanted + loss, to_empty)
        u = -self._resist(-u, to_full) - loss
        return np.minimum(np.maximum(u, low), high)

    def _resist(self, approach: Array, distance: Array) -> Array:
        """Approach (…,) kW to an edge that is `distance` kWh away, after the row has resisted."""
        inside = distance > 0.0
        free = np.where(inside, self._gains.gamma, self._gains.recovery) * PERIOD_S * distance
        softness = self._gains.beta * PERIOD_S * np.maximum(distance, 0.0)
        slope = _HOURS * self._range[0]
        share = softness**2 / (softness**2 + slope**2)
        excess = np.maximum(_HOURS * approach - free, 0.0)
        return approach - (1.0 - share) * excess / _HOURS


def environment(
    plant: ThermalStorage,
    scenario: Scenario,
    rng: np.random.Generator | None = None,
    *,
    end_value: bool = False,
    correction_price: float = 0.0,
    potential: Potential | None = None,
) -> PlantEnv:
    """Batch of episodes, w (B, ticks, n_w).

    Args:
        plant: numpy plant.
        scenario: the episodes.
        rng: draws the initial charge; None takes the scenario's.
        end_value: credit what is stored more than at the start, as the yardstick does, and let
            the episode end there.
        correction_price: see `PlantEnv`.
        potential: see `PlantEnv`.
    """
    initial = plant.initial(scenario, rng)
    start = initial[:, 0].copy()

    def end_cost(x: Array) -> Array:
        return -END_VALUE_PER_KWH * (x[:, 0] - start)

    return PlantEnv(
        plant,
        scenario.w,
        initial,
        StorageShield(plant, scenario.w),
        terminal=end_value,
        end_cost=end_cost if end_value else None,
        correction_price=correction_price,
        potential=potential,
    )
