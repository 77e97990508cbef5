"""How the thermal storage's measurements are bound together.

    power    P = P(flow, load, outdoor): the chiller's characteristic, at one moment
    energy   E(t) = kept E(t - dt) - gain f: the tank's balance over one period

Bounds are the errors that the safety filter reckons with (`thermal_storage_safety`), times `SURE`:
an alarm must mean that the filter's own picture of the plant is wrong. What happened between two
images is not known; there the worst case counts, whoever drove.
"""

from math import nan

from steadyhand.controllers.plants import scalars
from steadyhand.controllers.plants.thermal_storage import PERIOD_S, ThermalStorage
from steadyhand.controllers.plants.thermal_storage_parameters import ThermalStorageParameters
from steadyhand.controllers.plants.thermal_storage_safety import (
    ENERGY_ERROR,
    FLOW_ERROR,
    HOUR_S,
    LOSS_ERROR,
    POWER_ERROR,
)
from steadyhand.controllers.signals import Vector
from steadyhand.controllers.trust.cross_check import Relation

SURE = 4.0
"""How many times the declared error is no error any more."""
LONGEST_STEP_S = 1.5 * PERIOD_S
"""Images further apart are not compared: a whole period between them was not seen."""


class PowerRelation:
    """The electric power fits load, weather and what the tank does."""

    name = "electric power"
    unit = "kW"
    signals: tuple[str, ...] = (
        "electric_power_kw",
        "cooling_load_kw",
        "outdoor_temperature_degc",
        "storage_flow_kw",
    )
    n, m = 2, 3

    def __init__(self, parameters: ThermalStorageParameters) -> None:
        self._model = ThermalStorage(parameters, xp=scalars)
        index = self._model.observations.index
        self._power, self._load, self._outdoor, self._flow = (index(name) for name in self.signals)
        self._bound = SURE * POWER_ERROR * parameters.power_cap_kw

    def residual(self, values: Vector, before: Vector | None, dt_s: float) -> tuple[float, float]:
        """Measured less expected power, kW; knows no past."""
        del before, dt_s
        expected = self._model.power(
            float(values[self._flow]), float(values[self._load]), float(values[self._outdoor])
        )
        return float(values[self._power]) - float(expected), self._bound


class EnergyRelation:
    """The stored energy moves by what flows."""

    name = "stored energy"
    unit = "kWh"
    signals: tuple[str, ...] = ("storage_energy_kwh", "storage_flow_kw", "cooling_load_kw")
    n, m = 1, 1

    def __init__(self, parameters: ThermalStorageParameters) -> None:
        p = parameters
        self._plant = ThermalStorage(p, xp=scalars)
        index = self._plant.observations.index
        self._energy, self._flow, self._load = (index(name) for name in self.signals)
        largest_flow = max(p.discharge_max_kw, p.charge_max_kw)
        self._gauge_kwh = 2.0 * ENERGY_ERROR * p.band_kwh
        self._drift_kw = FLOW_ERROR * largest_flow + LOSS_ERROR * p.loss_per_h * p.capacity_kwh

    def residual(self, values: Vector, before: Vector | None, dt_s: float) -> tuple[float, float]:
        """Measured less expected energy, kWh.

        The flow read now is the one that the last command leads to now. Over the period it may have
        been the one before, until that command arrived or another driver took over, or may have
        been cut by a limit that moves with the load.
        """
        if before is None or not 0.0 < dt_s <= LONGEST_STEP_S:
            return nan, nan
        flow = float(values[self._flow])
        kept, gain_h = self._plant.hold(dt_s)
        expected = kept * float(before[self._energy]) - gain_h * flow
        hours = dt_s / HOUR_S
        error = self._gauge_kwh + self._drift_kw * hours
        changed_kw = abs(flow - float(before[self._flow])) + abs(
            float(values[self._load]) - float(before[self._load])
        )
        return float(values[self._energy]) - expected, SURE * error + changed_kw * hours


def relations(parameters: ThermalStorageParameters) -> tuple[Relation, ...]:
    """Everything that binds this plant's measurements."""
    return PowerRelation(parameters), EnergyRelation(parameters)
