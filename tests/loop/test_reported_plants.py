"""Failures that users of other plant controllers have reported, in the real loop."""

import subprocess
import time
from math import inf

import numpy as np
import pytest

from steadyhand.adapters.sim.faults import FaultKind, SignalFault
from steadyhand.adapters.sim.plant_runner import PlantRunner
from steadyhand.adapters.sim.plants import RunSpec, thermal_storage
from steadyhand.controllers.catalogue import plant_kind
from steadyhand.controllers.frames import Fault, Source
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.trust.cross_check import CrossChecked
from steadyhand.controllers.trust.freshness import Freshness, FreshnessSettings
from tests.support.command import COMMAND
from tests.support.loop_hostile import HOSTILE
from tests.support.loop_lockstep import Bench
from tests.support.loop_rig import until

KIND = plant_kind("thermal_storage")
PERIOD_S = 900.0
DAY_TICKS = 96
YEAR_S = 365.0 * 86_400.0


# -- a scale that changed while nobody looked ------------------------------------------------------


def first_told(runner: PlantRunner, ticks: int) -> tuple[int, Fault] | None:
    """What the judge of a runtime that has just started says first, and in which tick."""
    signals = runner.plant.observations
    judge = CrossChecked(
        Freshness(signals, FreshnessSettings()), signals, KIND.relations(KIND.parameters)
    )
    for tick in range(ticks):
        for fault in judge.check(runner.image):
            return tick, fault
        runner.advance(3)
    return None


@pytest.mark.parametrize("scale", [10.0, 0.1, 1000.0, 0.001])
@pytest.mark.parametrize("signal", ["cooling_load_kw", "electric_power_kw", "storage_energy_kwh"])
def test_a_scale_changed_between_two_starts_is_told_within_a_day(signal, scale):
    """There is no step to see: the first image is wrong already."""
    runner = thermal_storage(RunSpec(seed=10_902, days=2), None)
    runner.faults.add(SignalFault(signal, FaultKind.WRONG, 0.0, inf, {"scale": scale}))
    runner.refresh()
    found = first_told(runner, DAY_TICKS)
    assert found is not None
    tick, fault = found
    print(f"{signal} x {scale:g}: {fault.code} in tick {tick}")
    assert fault.code in (ReasonCode.OBS_RANGE, ReasonCode.OBS_XCHECK, ReasonCode.OBS_STUCK)
    assert signal in f"{fault.signal} {fault.text}"


def test_without_a_change_nothing_is_told():
    assert first_told(thermal_storage(RunSpec(seed=10_902, days=2), None), DAY_TICKS) is None


# -- a tank that is said to be fuller than full ----------------------------------------------------


def test_more_than_full_is_outside_and_not_extrapolated():
    """102 % stored: the limits of power are those of a full tank, and the way is back inside."""
    bench = Bench(HOSTILE["constant"](), RunSpec(seed=4, days=2))
    capacity = KIND.parameters.capacity_kwh
    column = bench.plant.observations.index("storage_energy_kwh")
    shown = float(bench.runner.image.values[column])
    more = SignalFault(
        "storage_energy_kwh", FaultKind.WRONG, 0.0, inf, {"bias": 1.02 * capacity - shown}
    )
    bench.inject([more])
    first, *_ = bench.ticks(1)
    assert first.observation.values[column] == pytest.approx(1.02 * capacity)
    assert ReasonCode.FILTER_RECOVER in bench.newest_record().reasons
    assert first.certified.action[0] >= 0.0, "nothing is charged into it"
    assert first.certified.action[0] <= KIND.parameters.discharge_max_kw


# -- the clock on the wall -------------------------------------------------------------------------


@pytest.mark.parametrize("step_s", [1.0, -1.0, 3600.0, -3600.0, YEAR_S, -YEAR_S])
def test_a_wall_clock_that_steps_moves_no_command_and_no_tick(step_s, monkeypatch):
    """Also what a change to and from summer time would do to a clock that is not UTC."""

    def run() -> list[tuple[float, float, Source]]:
        bench = Bench(HOSTILE["bang_bang"](), RunSpec(seed=4, days=1))
        return [
            (tick.observation.time_s, float(tick.sent.action[0]), tick.source)
            for tick in bench.ticks(12)
        ]

    quiet = run()
    genuine_ns, asked = time.time_ns, 0

    def stepped_ns() -> int:
        nonlocal asked
        asked += 1
        return genuine_ns() + int(asked * step_s * 1e9)

    monkeypatch.setattr(time, "time_ns", stepped_ns)
    monkeypatch.setattr(time, "time", lambda: 1e-9 * stepped_ns())
    assert run() == quiet
    assert asked >= 12, "each record was stamped by the clock that steps"
    assert [time_s for time_s, _, _ in quiet] == sorted({time_s for time_s, _, _ in quiet})
    assert len({action for _, action, _ in quiet}) > 2
    assert np.isfinite([action for _, action, _ in quiet]).all()


# -- two at once -----------------------------------------------------------------------------------


def test_of_two_started_at_the_same_moment_one_drives(rig):
    made = rig(time_scale=3000.0, bundle=None)
    with made.said.open("ab") as said:
        both = [
            subprocess.Popen([*COMMAND, "run", str(made.config)], stdout=said, stderr=said)
            for _ in range(2)
        ]
        try:
            until(lambda: any(one.poll() is not None for one in both), what="one to give way")
            refused, driving = sorted(both, key=lambda one: one.poll() is None)
            assert refused.wait(30.0) == 78, made.said.read_text()
            until(made.in_control, what="the other in control", instead=made.said.read_text)
            assert driving.poll() is None
            assert "Traceback" not in made.said.read_text()
            assert str(made.journal) in made.said.read_text()
        finally:
            for one in both:
                one.terminate()
            assert driving.wait(30.0) == 0
    heartbeats = [row["value"] for row in made.arrivals() if row["name"] == "controller_heartbeat"]
    assert len(heartbeats) > 1
    assert np.all(np.diff(heartbeats) > 0), "one count, by one writer"
