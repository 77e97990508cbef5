"""Rules that ran the thermal storage before: what operators use, and what takes over.

A strategy says what it would like; `ThermalStorageHeuristic` holds every wish inside the operating
limits of its model of the plant, so that a heuristic needs no filter to be safe on a plant
that is like its model. All strategies are functions of the present observation: nothing winds up,
and taking over needs no tracking (the ramp from the applied value is in `transfer`).
"""

from collections.abc import Callable
from dataclasses import astuple, dataclass
from math import isfinite
from typing import Protocol

import numpy as np

from steadyhand.controllers.frames import Observation, Quality, Sent
from steadyhand.controllers.plants import scalars
from steadyhand.controllers.plants.thermal_storage import ThermalStorage
from steadyhand.controllers.plants.thermal_storage_limits import (
    least_command_for_power,
    operating_bounds,
)
from steadyhand.controllers.plants.thermal_storage_parameters import ICE, ThermalStorageParameters
from steadyhand.controllers.signals import SignalSet, Vector


@dataclass(frozen=True, slots=True)
class Reading:
    """What the strategies look at."""

    energy_kwh: float
    load_kw: float
    outdoor_degc: float
    peak_kw: float
    hour: float


class Strategy(Protocol):
    """A rule for the tank."""

    def wanted(self, now: Reading, model: ThermalStorage) -> float:
        """Command in kW, + discharges, before the operating limits."""
        ...


@dataclass(frozen=True, slots=True)
class Schedule:
    """When the tank is charged and when it is used, hours of the day."""

    charge_from_h: float = 22.0
    charge_to_h: float = 8.0
    on_peak_from_h: float = 12.0
    on_peak_to_h: float = 18.0

    def charges(self, hour: float) -> bool:
        """Night: spans midnight."""
        return hour >= self.charge_from_h or hour < self.charge_to_h

    def charge(self, now: Reading, model: ThermalStorage) -> float:
        """Command in kW that fills the tank evenly until the charging hours end."""
        left_h = max((self.charge_to_h - now.hour) % 24.0, 0.25)
        return (now.energy_kwh - model.parameters.energy_high_kwh) / left_h

    def on_peak(self, hour: float) -> bool:
        """Hours of the highest price."""
        return self.on_peak_from_h <= hour < self.on_peak_to_h


@dataclass(frozen=True, slots=True)
class NoStorage:
    """Leave the tank alone."""

    def wanted(self, now: Reading, model: ThermalStorage) -> float:
        """Idle."""
        del now, model
        return 0.0


@dataclass(frozen=True, slots=True)
class ChillerPriority:
    """The chiller carries a base load by day, the tank what is above it; charge evenly by night."""

    base_kw: float = 250.0
    schedule: Schedule = Schedule()

    def wanted(self, now: Reading, model: ThermalStorage) -> float:
        """Load above the base, or an even charge."""
        if self.schedule.charges(now.hour):
            return self.schedule.charge(now, model)
        return max(now.load_kw - self.base_kw, 0.0)


@dataclass(frozen=True, slots=True)
class ConstantProportion:
    """The tank carries a fixed share of the on-peak load; charge evenly by night."""

    share: float = 0.5
    schedule: Schedule = Schedule()

    def wanted(self, now: Reading, model: ThermalStorage) -> float:
        """Share of the load, or an even charge."""
        if self.schedule.charges(now.hour):
            return self.schedule.charge(now, model)
        return self.share * now.load_kw if self.schedule.on_peak(now.hour) else 0.0


@dataclass(frozen=True, slots=True)
class StoragePriority:
    """The tank carries all it can on-peak; charge evenly by night."""

    schedule: Schedule = Schedule()

    def wanted(self, now: Reading, model: ThermalStorage) -> float:
        """The whole load, or an even charge."""
        if self.schedule.charges(now.hour):
            return self.schedule.charge(now, model)
        return now.load_kw if self.schedule.on_peak(now.hour) else 0.0


@dataclass(frozen=True, slots=True)
class DemandLimiting:
    """Time of use with a demand limit: electric power is held at `limit_kw` all day.

    On-peak: the tank carries all it can. By night: charge evenly, with no more than the limit
    leaves. In between: the tank only holds the limit. Once a peak above the limit is paid for, it
    is the limit for the rest of the day. It goes by the clock: a threshold of price leaves the
    tank empty on the day on which every price is higher.
    """

    limit_kw: float = 90.0
    schedule: Schedule = Schedule()

    def wanted(self, now: Reading, model: ThermalStorage) -> float:
        """Even charge, idle or the whole load by the hour; never less than holds the limit."""
        limit_kw = max(self.limit_kw, now.peak_kw)
        holds = least_command_for_power(model, now.load_kw, now.outdoor_degc, limit_kw)
        if self.schedule.charges(now.hour):
            return max(float(holds), self.schedule.charge(now, model))
        if self.schedule.on_peak(now.hour):
            return max(float(holds), now.load_kw)
        return max(float(holds), 0.0)


class ThermalStorageHeuristic:
    """A strategy held inside the operating limits.

    Args:
        strategy: the rule.
        observations: order of the observation vector.
        parameters: the heuristic's own idea of the plant.
        period_s: how long a command is held.
    """

    def __init__(
        self,
        strategy: Strategy,
        observations: SignalSet,
        parameters: ThermalStorageParameters = ICE,
        period_s: float = 900.0,
    ) -> None:
        self._strategy = strategy
        self._model = ThermalStorage(parameters, xp=scalars)
        self._period_s = period_s
        self._columns = [
            observations.index(name)
            for name in (
                "storage_energy_kwh",
                "cooling_load_kw",
                "outdoor_temperature_degc",
                "peak_power_kw",
                "time_of_day_h",
            )
        ]

    def act(self, observation: Observation) -> Vector:
        """Command (1,) in kW; idle if a number it needs is not finite, or found to be bad.

        A value that is too old, out of range or a lie stands in the image like any other: only its
        quality tells, and what is computed from it would be wrong in a way that nobody sees.
        """
        if (observation.quality[self._columns] >= Quality.BAD).any():
            return np.zeros(1)
        now = Reading(*(float(observation.values[i]) for i in self._columns))
        return np.array([self.command(now)])

    def command(self, now: Reading) -> float:
        """Command in kW inside the operating bounds."""
        if not all(map(isfinite, astuple(now))):
            return 0.0
        low, high = operating_bounds(
            self._model, now.energy_kwh, now.load_kw, now.outdoor_degc, self._period_s
        )
        wanted = self._strategy.wanted(now, self._model)
        return min(max(wanted, low), high)

    def track(self, observation: Observation, sent: Sent) -> None:
        """Nothing to follow: the rules have no memory."""
        del observation, sent


STRATEGIES: dict[str, Callable[[], Strategy]] = {
    "no_storage": NoStorage,
    "chiller_priority": ChillerPriority,
    "constant_proportion": ConstantProportion,
    "storage_priority": StoragePriority,
    "demand_limiting": DemandLimiting,
}
"""Rules by name, as a configuration names them."""
