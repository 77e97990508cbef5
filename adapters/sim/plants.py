"""The plants that can be run by name: equations, scenario and the local control they came with."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from steadyhand.adapters.sim.faults import SignalFault
from steadyhand.adapters.sim.observer import WriteLog
from steadyhand.adapters.sim.plant_runner import PlantRunner
from steadyhand.adapters.sim.single import SinglePlant
from steadyhand.controllers.errors import ConfigError
from steadyhand.controllers.heuristics.thermal_storage import (
    StoragePriority,
    ThermalStorageHeuristic,
)
from steadyhand.controllers.plants.thermal_storage import ThermalStorage
from steadyhand.controllers.plants.thermal_storage_parameters import ThermalStorageParameters
from steadyhand.controllers.plants.thermal_storage_scenario import (
    Scenario,
    ScenarioSpec,
    generate,
)
from steadyhand.controllers.signals import Vector

GAUGE_NOISE = {"storage_energy_kwh": 0.1}
"""No real level gauge repeats itself to the last digit; one that does is stuck."""
_ARRIVAL_TICKS = 16
"""Four hours in which another season's weather comes in."""


@dataclass(frozen=True, slots=True)
class RunSpec:
    """What to simulate. `season` None means the plant's usual one; see the plant for others."""

    plant: str = "thermal_storage"
    seed: int = 0
    days: int = 5
    season: str | None = None
    substeps: int = 3
    shed_s: float | None = None
    faults: tuple[SignalFault, ...] = ()
    parameters: Any = None
    """Of the plant; None: those of its type."""


def make_runner(spec: RunSpec, log: WriteLog | None = None) -> PlantRunner:
    """A plant ready to run, at the first midnight of its scenario.

    Raises:
        ConfigError: no such plant, season, or number.
    """
    try:
        make = PLANTS[spec.plant]
    except KeyError:
        choices = ", ".join(PLANTS)
        raise ConfigError(f"no plant {spec.plant!r}; there are: {choices}") from None
    return make(spec, log)


def thermal_storage_scenario(spec: RunSpec) -> Scenario:
    """Disturbances of `spec`; a season such as "hot_weeks,heat_wave" gives each day its own.

    Raises:
        ConfigError: no such season, or a number that makes no sense.
    """
    if spec.season is None:
        return generate(ScenarioSpec(spec.seed, spec.days))
    if "," not in spec.season:
        return generate(ScenarioSpec(spec.seed, spec.days, spec.season))
    days = [
        generate(ScenarioSpec(spec.seed + i, 1, season))
        for i, season in enumerate(spec.season.split(","))
    ]
    return replace(days[0], w=_join([day.w for day in days]))


def _join(days: Sequence[Vector]) -> Vector:
    """Disturbances of several days, (ticks, n_w) each; weather and load change over hours."""
    joined = [days[0]]
    share = (np.arange(1, _ARRIVAL_TICKS + 1) / _ARRIVAL_TICKS)[:, None]
    for day in days[1:]:
        first = day.copy()
        now = first[:_ARRIVAL_TICKS, :2]
        first[:_ARRIVAL_TICKS, :2] = (1.0 - share) * joined[-1][-1, :2] + share * now
        joined.append(first)
    return np.concatenate(joined)


def thermal_storage(
    spec: RunSpec,
    log: WriteLog | None = None,
    parameters: ThermalStorageParameters | None = None,
) -> PlantRunner:
    """The building with its tank; by itself it runs storage-priority, as most such plants do."""
    numbers = parameters or spec.parameters or ThermalStorageParameters()
    plant = SinglePlant(lambda xp: ThermalStorage(numbers, xp))
    scenario = thermal_storage_scenario(spec)
    local = ThermalStorageHeuristic(StoragePriority(), plant.observations, plant.parameters)
    return PlantRunner(
        plant,
        plant.initial(scenario),
        scenario.w,
        local,
        faults=spec.faults,
        seed=spec.seed,
        shed_s=spec.shed_s,
        substeps=spec.substeps,
        log=log,
        gauge_noise=GAUGE_NOISE,
    )


PLANTS: dict[str, Callable[[RunSpec, WriteLog | None], PlantRunner]] = {
    "thermal_storage": thermal_storage,
}
