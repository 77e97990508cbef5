"""The thermal storage as its safety filter knows it.

    k_full  = (E - E_high)/band <= 0      k_full'  = -(u + l E)/(3600 band)
    k_empty = (E_low - E)/band <= 0       k_empty' = +(u + l E)/(3600 band)

with E in kWh, u in kW (+ discharges), l in 1/h, times in seconds. Loss and flow are known, so all
of the drift is trusted. Everything in which the input itself appears belongs to the input set U:
melt limit, building load, chiller headroom, power cap, and the exact one-period bound of the tank.

What is not known, in engineering units, sound for a hold of T = 900 s (or any other):

- curvature M: with u held, E'' = -l E', and |E'| <= V, so M = l V. At T = 900 s, M T^2/2 is
  0.03 kWh: the bound between the samples costs nothing here.
- rate V: the larger of discharge and charge limit, plus the loss of a full tank.
- disturbance w': the valve passes `FLOW_ERROR` of its range more or less than it was told, and the
  standby loss may be half as large or half as large again.
- measurement error e: `ENERGY_ERROR` of the band.
- delay: the command before goes on for up to `DELAY_S`, in the worst case at V.

The building's load may change within the period. That is no disturbance of these rows: the plant
serves the building first, so a fall only cuts the discharge and a rise only cuts the charge: both
towards the idle tank. It does change the power, so the cap is held with `POWER_ERROR` to spare.

Backup: the tank idle, the chiller following the load. In U whenever the cap can be held without
the tank; against the rows it moves E by the standby loss alone (3 kWh per hour at most), which the
distance kept above the empty end covers for hours. Below that distance the recovery term of the
filter asks for the loss to be made up. The certified region is the band less that distance at both
ends: beyond it an empty tank under a full load cannot be filled, nor a full one without a load be
used.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from steadyhand.controllers.errors import SafetyError
from steadyhand.controllers.frames import Observation, Quality
from steadyhand.controllers.plants import scalars
from steadyhand.controllers.plants.thermal_storage import ThermalStorage
from steadyhand.controllers.plants.thermal_storage_limits import operating_bounds
from steadyhand.controllers.plants.thermal_storage_parameters import ICE, ThermalStorageParameters
from steadyhand.controllers.safety.constraint import ConstraintRow, ConstraintSet, Priority
from steadyhand.controllers.signals import SignalSet, Vector

HOUR_S = 3600.0
DELAY_S = 150.0
"""Sensor, computation and wire together, plant seconds: a sixth of the period."""
ENERGY_ERROR = 0.002
"""Largest error of the energy measurement, share of the band."""
FLOW_ERROR = 0.01
"""Largest error of the flow, share of the larger limit."""
LOSS_ERROR = 0.5
"""Largest error of the standby loss, share of it."""
POWER_ERROR = 0.01
"""Largest error of the electric power, share of the cap."""
NEEDED = ("storage_energy_kwh", "cooling_load_kw", "outdoor_temperature_degc")


class ThermalStorageSafety:
    """Implements `protocols.SafetyModel`.

    Args:
        parameters: the filter's own idea of the plant; may differ from the plant that runs.
    """

    row_names: tuple[str, ...] = ("tank_full", "tank_empty")

    def __init__(self, parameters: ThermalStorageParameters = ICE) -> None:
        self.parameters = parameters
        spared = replace(parameters, power_cap_kw=(1.0 - POWER_ERROR) * parameters.power_cap_kw)
        self._model = ThermalStorage(spared, xp=scalars)
        self.inputs: SignalSet = self._model.outputs
        observations = self._model.observations
        self._columns = tuple(observations.index(name) for name in NEEDED)
        self._energy, self._load, self._outdoor = self._columns
        self._per_kw = 1.0 / (HOUR_S * parameters.band_kwh)
        self.constraints = self._constraints()

    def linearise(
        self,
        observation: Observation,
        k: Vector,
        J_G: NDArray[np.float64],
        psi_trusted: Vector,
        psi_untrusted: Vector,
        low: Vector,
        high: Vector,
    ) -> None:
        """Fill the rows (2,), their Jacobian (2, 1) and drifts, and the bounds (1,) of U.

        Raises:
            SafetyError: a measurement that the rows need is not good; the filter then takes the
                backup.
        """
        p = self.parameters
        for column, name in zip(self._columns, NEEDED, strict=True):
            if observation.quality[column] != Quality.GOOD:
                raise SafetyError(f"{name} is not good")
        energy = float(observation.values[self._energy])
        loss = p.loss_per_h * energy * self._per_kw
        k[0] = (energy - p.energy_high_kwh) / p.band_kwh
        k[1] = (p.energy_low_kwh - energy) / p.band_kwh
        J_G[0, 0], J_G[1, 0] = -self._per_kw, self._per_kw
        psi_trusted[0], psi_trusted[1] = -loss, loss
        psi_untrusted.fill(0.0)
        low[0], high[0] = operating_bounds(
            self._model,
            energy,
            float(observation.values[self._load]),
            float(observation.values[self._outdoor]),
            self._model.period_s,
        )

    def backup(self, observation: Observation, out: Vector) -> None:
        """Leave the tank alone: the chiller follows the load. Needs no measurement."""
        del observation
        out[0] = 0.0

    def _constraints(self) -> ConstraintSet:
        p = self.parameters
        flow, loss = max(p.discharge_max_kw, p.charge_max_kw), p.loss_per_h * p.capacity_kwh
        fastest = (flow + loss) / HOUR_S
        return ConstraintSet(
            tuple(
                ConstraintRow(
                    name=name,
                    unit="kWh",
                    scale=p.band_kwh,
                    priority=Priority.EQUIPMENT,
                    curvature=p.loss_per_h / HOUR_S * fastest,
                    rate_disturbance_excess=(FLOW_ERROR * flow + LOSS_ERROR * loss) / HOUR_S,
                    measurement_error=ENERGY_ERROR * p.band_kwh,
                    largest_rate=fastest,
                    delay_s=DELAY_S,
                )
                for name in self.row_names
            )
        )
