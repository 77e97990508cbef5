"""The thermal storage as a differentiable world: one day of gradients after the other.

A day ends at midnight, where the paid peak starts again at zero and a stored kWh is worth what it
costs to charge by night: nothing else of the state matters to what follows.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from steadyhand.controllers.plants.thermal_storage import PERIOD_S, ThermalStorage
from steadyhand.controllers.plants.thermal_storage_limits import least_command_for_power
from steadyhand.controllers.plants.thermal_storage_optimum import END_VALUE_PER_KWH
from steadyhand.controllers.plants.thermal_storage_safety import ThermalStorageSafety
from steadyhand.controllers.plants.thermal_storage_scenario import TICKS_PER_DAY, Scenario
from steadyhand.controllers.safety.constraint import Gains, diameter
from steadyhand.training.nets import Decision


class ThermalGradientWorld:
    """Episodes of `scenario` with torch's gradients.

    Args:
        plant: numpy plant, for what needs no gradient.
        scenario: (B, ticks, n_w) disturbances of whole days.
        charge: (B,) initial energy as a share of the band.
        correction_price: money per tick for a command the safety layer moves by its whole range.
    """

    def __init__(
        self,
        plant: ThermalStorage,
        scenario: Scenario,
        charge: NDArray[np.float64],
        correction_price: float,
    ) -> None:
        p = plant.parameters
        self.segments = scenario.ticks // TICKS_PER_DAY
        self._plant = ThermalStorage(p, xp=torch)
        w = scenario.w
        capped = least_command_for_power(plant, w[..., 0], w[..., 1], p.power_cap_kw)
        self._w = torch.as_tensor(w, dtype=torch.float32)
        self._capped = torch.as_tensor(capped, dtype=torch.float32)
        start = plant.initial(scenario)
        start[:, 0] = p.energy_low_kwh + charge * p.band_kwh
        self._start = torch.as_tensor(start, dtype=torch.float32)
        self._kept, self._gain_h = plant.hold(PERIOD_S)
        gains = Gains.for_period(PERIOD_S, diameter(plant.outputs))
        full, empty = ThermalStorageSafety(p).constraints.margins(gains) * p.band_kwh
        self._most_kwh, self._least_kwh = p.energy_high_kwh - full, p.energy_low_kwh + empty
        span = float(plant.outputs.high[0] - plant.outputs.low[0])
        self._price = correction_price / span

    def initial(self) -> Tensor:
        """(B, 4) states at the first midnight."""
        return self._start

    def run(self, decision: Decision, segment: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """One day; loss (B,): money, price of corrections, and what the tank lost in worth."""
        first = segment * TICKS_PER_DAY
        stored = x[:, 0]
        u = torch.zeros(len(x), 1)
        loss = torch.zeros(len(x))
        for tick in range(first, first + TICKS_PER_DAY):
            w = self._w[:, tick]
            seen = self._plant.measure(x, u, w)
            bounded = torch.tanh(decision.actor(decision.encode(seen)))
            wanted = decision.command(bounded, seen)[:, 0]
            low, high = self._bounds(x[:, 0], w[:, 0], self._capped[:, tick])
            safe = torch.minimum(torch.maximum(wanted, low), high)
            u = safe[:, None]
            done = self._plant.transition(x, u, w, PERIOD_S)
            loss = loss + done.cost + self._price * (wanted - safe).abs()
            x = done.x
        return x, loss - END_VALUE_PER_KWH * (x[:, 0] - stored)

    def _bounds(self, energy: Tensor, load: Tensor, capped: Tensor) -> tuple[Tensor, Tensor]:
        """The safety layer's input set (B,), (B,), the rows' margins taken off the band."""
        high = torch.minimum(
            self._plant.discharge_limit(energy, load),
            (self._kept * energy - self._least_kwh) / self._gain_h,
        )
        low = torch.maximum(
            -self._plant.charge_limit(load),
            (self._kept * energy - self._most_kwh) / self._gain_h,
        )
        return torch.minimum(torch.maximum(low, capped), high), high
