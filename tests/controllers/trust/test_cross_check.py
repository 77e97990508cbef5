"""Measurements that contradict each other: every kind of plausible lie, no doubt about truth."""

from dataclasses import replace
from math import inf, nan

import numpy as np
import pytest

from steadyhand.adapters.sim.faults import SignalFault
from steadyhand.adapters.sim.plant_runner import PlantRunner
from steadyhand.adapters.sim.plants import RunSpec, thermal_storage
from steadyhand.controllers.catalogue import plant_kind
from steadyhand.controllers.frames import Fault, LinkState, Observation, Quality, Source
from steadyhand.controllers.plants import scalars
from steadyhand.controllers.plants.thermal_storage import ThermalStorage
from steadyhand.controllers.plants.thermal_storage_limits import operating_bounds
from steadyhand.controllers.plants.thermal_storage_relations import EnergyRelation, PowerRelation
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.signals import Signal, SignalSet, Vector
from steadyhand.controllers.trust.cross_check import CrossChecked
from steadyhand.controllers.trust.freshness import Freshness, FreshnessSettings

KIND = plant_kind("thermal_storage")
DAY_TICKS, PERIOD_S = 96, 900.0
AB = SignalSet((Signal("a", "m", -9, 9, ""), Signal("b", "m", -9, 9, "")))


class Nothing:
    """A judge that finds nothing."""

    def check(self, observation: Observation) -> tuple[Fault, ...]:
        del observation
        return ()

    def lose_sight(self) -> None:
        pass


class Equal:
    """a = b within 1 m, and neither moves by more than 5 m."""

    name, unit, signals = "a against b", "m", ("a", "b")

    def __init__(self, n: int = 1, m: int = 1) -> None:
        self.n, self.m = n, m
        self.seen: list[tuple[Vector | None, float]] = []

    def residual(self, values: Vector, before: Vector | None, dt_s: float) -> tuple[float, float]:
        self.seen.append((before, dt_s))
        return float(values[0] - values[1]), 1.0


def image(number: int, a: float, b: float, quality: tuple[int, int] = (0, 0)) -> Observation:
    return Observation(
        sequence=number,
        time_s=10.0 * number,
        values=np.array([a, b]),
        age_s=np.zeros(2),
        quality=np.array(quality, dtype=np.int8),
        applied=np.zeros(1),
    )


def test_a_broken_relation_names_itself_its_signals_and_by_how_much() -> None:
    (fault,) = CrossChecked(Nothing(), AB, (Equal(),)).check(image(1, 3.0, 0.5))
    assert (fault.code, fault.signal) == (ReasonCode.OBS_XCHECK, "a")
    assert (fault.value, fault.limit) == (2.5, 1.0)
    assert fault.text == "a against b is off by +2.5 m; one of these is wrong: a, b"


@pytest.mark.parametrize(
    ("b", "alarms"), [(2.0, False), (1.999, True), (4.0, False), (4.001, True)]
)
def test_the_bound_itself_is_allowed(b: float, alarms: bool) -> None:
    assert bool(CrossChecked(Nothing(), AB, (Equal(),)).check(image(1, 3.0, b))) is alarms


def test_n_of_m_images_must_break_it() -> None:
    judge = CrossChecked(Nothing(), AB, (Equal(n=2, m=3),))
    told = [bool(judge.check(image(k, a, 0.0))) for k, a in enumerate((5, 0, 0, 5, 5, 0, 5, 0, 0))]
    #                     5 alone, forgotten;  5 again: 2 of 3; healthy now; 2 of 3 again
    assert told == [False, False, False, False, True, False, True, False, False]


def test_an_image_seen_twice_counts_once() -> None:
    judge = CrossChecked(Nothing(), AB, (Equal(n=2, m=3),))
    assert [bool(judge.check(image(k, 5.0, 0.0))) for k in (1, 1, 1, 2)] == [False] * 3 + [True]


@pytest.mark.parametrize(
    "bad",
    [
        image(2, 5.0, 0.0, (Quality.BAD, 0)),
        image(2, 5.0, 0.0, (0, Quality.UNCERTAIN)),
        image(2, nan, 0.0),
        image(2, 0.0, inf),
    ],
)
def test_a_bad_sample_is_no_evidence_and_no_yardstick(bad: Observation) -> None:
    relation = Equal()
    judge = CrossChecked(Nothing(), AB, (relation,))
    assert judge.check(image(1, 0.0, 0.0)) == ()
    assert judge.check(bad) == ()
    assert judge.check(image(3, 0.0, 0.0)) == ()
    assert [before is None for before, _ in relation.seen] == [True, True]


def test_what_the_inner_judge_found_is_kept_and_not_used() -> None:
    stuck = Fault(ReasonCode.OBS_STUCK, "b")

    class Stuck(Nothing):
        def check(self, observation: Observation) -> tuple[Fault, ...]:
            return (stuck,) if observation.sequence == 1 else ()

    judge = CrossChecked(Stuck(), AB, (Equal(),))
    assert judge.check(image(1, 5.0, 0.0)) == (stuck,)
    assert [fault.code for fault in judge.check(image(2, 5.0, 0.0))] == [ReasonCode.OBS_XCHECK]


def test_images_from_before_a_lost_link_are_no_yardstick() -> None:
    relation = Equal()
    judge = CrossChecked(Nothing(), AB, (relation,))
    judge.check(image(1, 0.0, 0.0))
    judge.check(replace(image(1, 0.0, 0.0), link=LinkState.DOWN))
    judge.check(image(2, 0.0, 0.0))
    assert [before is None for before, _ in relation.seen] == [True, True]


def test_while_the_plant_has_itself_images_are_not_compared() -> None:
    relation = Equal()
    judge = CrossChecked(Nothing(), AB, (relation,))
    judge.check(image(1, 0.0, 0.0))
    judge.check(replace(image(2, 0.0, 0.0), granted=False))
    judge.check(image(3, 0.0, 0.0))
    judge.check(image(4, 0.0, 0.0))
    assert [before is None for before, _ in relation.seen] == [True, True, True, False]


def test_while_somebody_else_may_drive_images_are_not_compared() -> None:
    relation = Equal()
    judge = CrossChecked(Nothing(), AB, (relation,))
    first, astray = image(1, 0.0, 0.0), Fault(ReasonCode.WRITE_CONTENTION, "u")
    judge.check(first)
    judge.lose_sight()
    judge.check(first)  # seen twice: the next image is still the one that was not watched
    judge.check(image(2, 0.0, 0.0))
    judge.check(image(3, 0.0, 0.0))
    judge.check(replace(image(4, 0.0, 0.0), faults=(astray,)))
    judge.check(image(5, 0.0, 0.0))
    clamped = Fault(ReasonCode.WRITE_CLAMPED, "u")
    judge.check(replace(image(6, 0.0, 0.0), faults=(clamped,)))
    assert [before is None for before, _ in relation.seen] == [
        True,
        True,
        False,
        True,
        False,
        False,
    ]


def test_a_residual_that_cannot_be_told_is_no_alarm() -> None:
    class Unknown(Equal):
        def residual(self, *_: object) -> tuple[float, float]:  # type: ignore[override]
            return nan, nan

    assert CrossChecked(Nothing(), AB, (Unknown(),)).check(image(1, 5.0, 0.0)) == ()


def test_the_image_before_and_the_time_between_are_given() -> None:
    relation = Equal()
    judge = CrossChecked(Nothing(), AB, (relation,))
    first, second = image(1, 1.0, 1.0), image(4, 2.0, 2.0)
    judge.check(first)
    judge.check(second)
    (before, _), (again, dt_s) = relation.seen
    assert before is None
    assert again is first.values
    assert dt_s == 30.0


# The thermal storage's own relations.


def values_of(**named: float) -> Vector:
    observations = ThermalStorage(KIND.parameters).observations
    y = np.zeros(len(observations))
    for name, value in named.items():
        y[observations.index(name)] = value
    return y


def test_the_power_relation_by_hand() -> None:
    plant = ThermalStorage(KIND.parameters)
    power = float(plant.power(np.array(50.0), np.array(300.0), np.array(30.0)))
    y = values_of(
        electric_power_kw=power + 7.0,
        cooling_load_kw=300.0,
        outdoor_temperature_degc=30.0,
        storage_flow_kw=50.0,
    )
    residual, bound = PowerRelation(KIND.parameters).residual(y, None, nan)
    assert residual == pytest.approx(7.0)
    assert bound == pytest.approx(4.0 * 0.01 * KIND.parameters.power_cap_kw)


def test_the_energy_relation_by_hand() -> None:
    p = KIND.parameters
    before = values_of(storage_energy_kwh=800.0, storage_flow_kw=100.0, cooling_load_kw=300.0)
    now = values_of(storage_energy_kwh=700.0, storage_flow_kw=200.0, cooling_load_kw=310.0)
    residual, bound = EnergyRelation(p).residual(now, before, PERIOD_S)
    left = np.exp(-p.loss_per_h * 0.25)
    assert residual == pytest.approx(700.0 - (left * 800.0 - 200.0 * (1.0 - left) / p.loss_per_h))
    gauge = 2 * 0.002 * p.band_kwh
    drift = 0.01 * max(p.discharge_max_kw, p.charge_max_kw) + 0.5 * p.loss_per_h * p.capacity_kwh
    changed = 100.0 + 10.0
    assert bound == pytest.approx(4.0 * (gauge + drift * 0.25) + changed * 0.25)


@pytest.mark.parametrize("dt_s", [0.0, -900.0, 1350.1, nan, inf])
def test_images_too_far_apart_are_not_compared(dt_s: float) -> None:
    y = values_of(storage_energy_kwh=800.0)
    assert np.isnan(EnergyRelation(KIND.parameters).residual(y, y, dt_s)).all()


def plant_run(runner: PlantRunner, ticks: int, seed: int, late: bool) -> list[tuple[int, Fault]]:
    """Random commands inside the filter's input set; what the judge says, with the tick."""
    plant, rng = runner.plant, np.random.default_rng(seed)
    judge = CrossChecked(
        Freshness(plant.observations, FreshnessSettings()),
        plant.observations,
        KIND.relations(KIND.parameters),
    )
    model = ThermalStorage(KIND.parameters, xp=scalars)
    runner.requested, runner.source = True, Source.POLICY
    told = []
    for tick in range(ticks):
        told += [(tick, fault) for fault in judge.check(runner.image)]
        energy, load, outdoor = (float(v) for v in runner.true_values[:3])
        low, high = operating_bounds(model, energy, load, outdoor, PERIOD_S)
        runner.beat(tick + 1)
        if late:
            runner.advance(1)
        runner.write(0, float(rng.uniform(low, max(low, high))))
        runner.advance(2 if late else 3)
    return told


@pytest.mark.parametrize("season", ["hot_weeks", "heat_wave", "mild", "summer"])
@pytest.mark.parametrize("late", [False, True], ids=["at once", "a sub-step late"])
def test_the_truth_is_never_doubted(season: str, late: bool) -> None:
    runner = thermal_storage(RunSpec(seed=10_900, days=2, season=season), None)
    assert plant_run(runner, 2 * DAY_TICKS, 1, late) == []


LIES = {
    "load reads low": ("cooling_load_kw", {"scale": 0.8}),
    "load reads high": ("cooling_load_kw", {"scale": 1.25}),
    "load in another unit": ("cooling_load_kw", {"scale": 0.284}),
    "thermometer reads cold": ("outdoor_temperature_degc", {"bias": -8.0}),
    "thermometer in the sun": ("outdoor_temperature_degc", {"bias": 8.0}),
    "thermometer drifts": ("outdoor_temperature_degc", {"drift_per_s": -12.0 / 86_400.0}),
    "level jumps down": ("storage_energy_kwh", {"bias": -60.0}),
    "level jumps up": ("storage_energy_kwh", {"bias": 60.0}),
    "level drifts": ("storage_energy_kwh", {"drift_per_s": -45.0 / 900.0}),
    "flow with the wrong sign": ("storage_flow_kw", {"scale": -1.0}),
    "flow in another unit": ("storage_flow_kw", {"scale": 0.284}),
    "power reads high": ("electric_power_kw", {"scale": 1.25}),
    "power of one phase": ("electric_power_kw", {"scale": 1.0 / 3.0}),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_plausible_lie_is_found_within_a_day(lie: str) -> None:
    signal, parameters = LIES[lie]
    fault = SignalFault(signal, "wrong", 86_400.0, inf, parameters)  # type: ignore[arg-type]
    runner = thermal_storage(RunSpec(seed=10_901, days=3), None)
    runner.faults.add(fault)
    told = plant_run(runner, 3 * DAY_TICKS, 2, late=True)
    first, found = next((t, f) for t, f in told if f.code is ReasonCode.OBS_XCHECK)
    assert DAY_TICKS <= first < 2 * DAY_TICKS
    assert signal in found.text
