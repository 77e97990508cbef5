"""Rules of the thermal storage: what they say by hand, and that they honour the limits."""

from dataclasses import replace
from math import nan

import numpy as np
import pytest

from steadyhand.controllers.frames import Observation, Quality, Sent
from steadyhand.controllers.heuristics.thermal_storage import (
    STRATEGIES,
    ChillerPriority,
    ConstantProportion,
    DemandLimiting,
    Reading,
    StoragePriority,
    ThermalStorageHeuristic,
)
from steadyhand.controllers.plants.simulate import rollout
from steadyhand.controllers.plants.thermal_storage import VIOLATION, ThermalStorage
from steadyhand.controllers.plants.thermal_storage_parameters import ICE
from steadyhand.controllers.plants.thermal_storage_scenario import ScenarioSpec, generate
from steadyhand.controllers.signals import Vector

PLANT = ThermalStorage()
NIGHT = Reading(750.0, 60.0, 24.0, 0.0, 2.0)
NOON = Reading(1400.0, 420.0, 33.0, 60.0, 13.0)
EVENING = Reading(700.0, 200.0, 30.0, 60.0, 19.0)


def seen(now: Reading) -> Observation:
    values = np.zeros(len(PLANT.observations))
    for name, value in (
        ("storage_energy_kwh", now.energy_kwh),
        ("cooling_load_kw", now.load_kw),
        ("outdoor_temperature_degc", now.outdoor_degc),
        ("peak_power_kw", now.peak_kw),
        ("time_of_day_h", now.hour),
    ):
        values[PLANT.observations.index(name)] = value
    return Observation(
        0, 0.0, values, np.zeros_like(values), np.zeros(len(values), np.int8), np.zeros(1)
    )


def command(strategy: object, now: Reading) -> float:
    heuristic = ThermalStorageHeuristic(strategy, PLANT.observations)  # type: ignore[arg-type]
    return float(heuristic.act(seen(now))[0])


def test_night_charge_is_even_until_the_morning() -> None:
    # 675 kWh missing, 6 h left
    for rule in (StoragePriority(), ChillerPriority(), ConstantProportion()):
        assert command(rule, NIGHT) == pytest.approx(-112.5)
    # 22:00: ten hours left
    late = Reading(425.0, 60.0, 24.0, 0.0, 22.0)
    assert command(StoragePriority(), late) == pytest.approx(-100.0)


def test_by_day_each_in_its_way() -> None:
    assert command(StoragePriority(), NOON) == 420.0
    assert command(ConstantProportion(0.5), NOON) == 210.0
    assert command(ChillerPriority(300.0), NOON) == 120.0
    assert command(DemandLimiting(), NOON) == 420.0
    for rule in (StoragePriority(), ConstantProportion(0.5), ChillerPriority(300.0)):
        assert command(rule, EVENING) == 0.0


def test_demand_limiting_charges_evenly_up_to_its_limit_and_helps_out_by_day() -> None:
    assert command(DemandLimiting(limit_kw=200.0), NIGHT) == pytest.approx(-112.5)
    held = command(DemandLimiting(limit_kw=40.0), NIGHT)
    assert -112.5 < held < 0.0
    assert PLANT.power(np.array(held), np.array(60.0), np.array(24.0)) == pytest.approx(40.0)
    morning = Reading(1400.0, 450.0, 34.0, 70.0, 11.0)
    help_out = command(DemandLimiting(limit_kw=80.0), morning)
    power = PLANT.power(np.array(help_out), np.array(450.0), np.array(34.0))
    assert help_out > 0.0
    assert power == pytest.approx(80.0)
    assert command(DemandLimiting(limit_kw=80.0), EVENING) == 0.0


def test_a_peak_already_paid_for_is_used() -> None:
    paid = Reading(750.0, 60.0, 24.0, 45.0, 2.0)
    charge = command(DemandLimiting(limit_kw=40.0), paid)
    power = PLANT.power(np.array(charge), np.array(60.0), np.array(24.0))
    assert power == pytest.approx(45.0)


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("season", ["hot_weeks", "mild"])
@pytest.mark.parametrize("charge", [0.0, 1.0])
def test_every_rule_honours_every_limit_from_either_end(
    name: str, season: str, charge: float
) -> None:
    scenario = generate(ScenarioSpec(5, 2, season, charge))
    heuristic = ThermalStorageHeuristic(STRATEGIES[name](), PLANT.observations)
    columns = [0, 1, 2, 5, 6]

    def act(y: Vector, applied: Vector) -> Vector:
        del applied
        return np.array([heuristic.command(Reading(*(float(y[i]) for i in columns)))])

    run = rollout(PLANT, scenario.w, PLANT.initial(scenario), act)
    assert run.margins.max() <= VIOLATION
    assert np.all(np.isfinite(run.u))


def test_demand_limiting_has_a_full_tank_when_energy_is_dearest_however_dear_all_of_it_is() -> None:
    scenario = generate(ScenarioSpec(5, 2, "heat_wave"))
    heuristic = ThermalStorageHeuristic(DemandLimiting(), PLANT.observations)
    run = rollout(
        PLANT, scenario.w, PLANT.initial(scenario), lambda y, _: heuristic.act(observed(y))
    )
    price = scenario.w[:, 2]
    assert price.min() > 0.10, "the night costs more than a usual one"
    first = np.flatnonzero(price == price.max())[0]
    dearest = np.flatnonzero(price[: first + 48] == price.max())
    used_kwh = run.x[first, 0] - run.x[dearest[-1] + 1, 0]
    assert run.x[first, 0] > 0.5 * ICE.capacity_kwh
    assert used_kwh > 0.4 * ICE.capacity_kwh


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_tank_is_kept_inside_its_band_even_in_the_heat_wave(name: str) -> None:
    scenario = generate(ScenarioSpec(5, 2, "heat_wave"))
    heuristic = ThermalStorageHeuristic(STRATEGIES[name](), PLANT.observations)
    run = rollout(
        PLANT, scenario.w, PLANT.initial(scenario), lambda y, _: heuristic.act(observed(y))
    )
    assert run.margins[:, [0, 1, 3, 4]].max() <= VIOLATION


def observed(y: Vector) -> Observation:
    return Observation(0, 0.0, y, np.zeros_like(y), np.zeros(len(y), np.int8), np.zeros(1))


@pytest.mark.parametrize("field", ["storage_energy_kwh", "cooling_load_kw", "time_of_day_h"])
def test_idle_where_a_needed_number_is_missing(field: str) -> None:
    observation = seen(NOON)
    observation.values[PLANT.observations.index(field)] = nan
    heuristic = ThermalStorageHeuristic(StoragePriority(), PLANT.observations)
    assert heuristic.act(observation).tolist() == [0.0]


@pytest.mark.parametrize("field", ["storage_energy_kwh", "peak_power_kw"])
@pytest.mark.parametrize("lie", [0.0, 0.25, 1400.0])
def test_idle_where_a_needed_number_was_found_to_be_bad_whatever_it_is(field, lie) -> None:
    """Too old, out of range, a jump: the value still stands there, and is not looked at."""
    observation = seen(NOON)
    column = PLANT.observations.index(field)
    observation.values[column] = lie
    observation.quality[column] = Quality.BAD
    heuristic = ThermalStorageHeuristic(DemandLimiting(), PLANT.observations)
    assert heuristic.act(observation).tolist() == [0.0]


def test_what_it_does_not_look_at_may_be_bad() -> None:
    observation = seen(NOON)
    observation.quality[PLANT.observations.index("load_forecast_01_kw")] = Quality.BAD
    heuristic = ThermalStorageHeuristic(StoragePriority(), PLANT.observations)
    assert heuristic.act(observation) == heuristic.act(seen(NOON))
    assert heuristic.act(observation)[0] > 0.0


def test_tracking_leaves_no_memory() -> None:
    heuristic = ThermalStorageHeuristic(DemandLimiting(), PLANT.observations)
    before = heuristic.act(seen(NOON))
    for _ in range(10):
        heuristic.track(seen(EVENING), Sent(np.array([-400.0]), 1, 0.0, True))
    assert heuristic.act(seen(NOON)) == before


def test_its_own_idea_of_the_plant_counts() -> None:
    careful = ThermalStorageHeuristic(
        StoragePriority(), PLANT.observations, replace(ICE, energy_low_kwh=1395.0)
    )
    # 5 kWh left over a quarter of an hour, less the standby loss of 1,400 kWh
    assert careful.act(seen(NOON))[0] == pytest.approx(5.0 / 0.25 - 0.002 * 1400.0, abs=0.01)
