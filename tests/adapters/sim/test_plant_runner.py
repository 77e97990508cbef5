"""The plant that runs: who drives, violations between samples, observer, resume."""

import json
from math import inf, nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steadyhand.adapters.sim.faults import FaultKind, SignalFault
from steadyhand.adapters.sim.observer import WriteLog
from steadyhand.adapters.sim.plant_runner import PlantRunner
from steadyhand.adapters.sim.plants import GAUGE_NOISE, PLANTS, RunSpec, make_runner
from steadyhand.adapters.sim.tally import Tally
from steadyhand.controllers.errors import ConfigError
from steadyhand.controllers.frames import Quality, Source
from steadyhand.controllers.plants.thermal_storage import ThermalStorage
from steadyhand.controllers.plants.thermal_storage_scenario import ScenarioSpec, generate
from steadyhand.controllers.reasons import ReasonCode


def drive(runner, value, beat):
    runner.requested, runner.source = True, Source.POLICY
    runner.write(0, value)
    runner.beat(beat)


def test_local_control_drives_until_asked(tank_runner):
    runner = tank_runner(local=-0.01)
    runner.advance()
    assert runner.x[0] == pytest.approx(-1.0)  # -0.01 m/s for 100 s
    drive(runner, 0.02, 1)
    assert runner.controlled
    image = runner.advance()
    assert runner.x[0] == pytest.approx(1.0)
    assert runner.cost == pytest.approx(1.0 + 2.0)
    assert image.applied.tolist() == [0.02]
    assert image.sequence == 2 and image.time_s == 200.0


def test_shed_takes_over_at_its_time_between_samples(tank_runner):
    # Heartbeat at t = 0, shed after 150 s, sub-steps of 25 s: the controller's 0.02 acts for
    # 150 s = 6 sub-steps, then local -0.01 for 50 s: 3.0 - 0.5 = 2.5
    runner = tank_runner(shed_s=150.0)
    drive(runner, 0.02, 1)
    runner.advance()
    runner.advance()
    assert not runner.controlled
    assert runner.x[0] == pytest.approx(2.5)
    assert runner.command.tolist() == [-0.01]  # the set-point follows what really acts
    assert runner.local_control.asked == [150.0]  # local control was asked once, at the shed
    assert not runner.beat(1)  # the same number is no new beat
    assert not runner.controlled
    assert runner.beat(2)
    assert runner.controlled
    runner.advance()
    assert runner.applied.tolist() == [-0.01]  # without a bump


@pytest.mark.parametrize(
    "take",
    [
        lambda runner: setattr(runner, "permit", False),
        lambda runner: runner.release(),
        lambda runner: runner.shed(),
        lambda runner: setattr(runner, "source", Source.HANDS_OFF),
    ],
)
def test_control_is_lost_without_grant_request_beat_or_driver(tank_runner, take):
    runner = tank_runner()
    drive(runner, 0.02, 1)
    assert runner.controlled
    take(runner)
    assert not runner.controlled
    runner.advance()
    assert runner.applied.tolist() == [-0.01]


def test_a_shed_lasts_a_period_whatever_beats_come_meanwhile(tank_runner):
    runner = tank_runner()
    drive(runner, 0.02, 1)
    runner.shed()
    drive(runner, 0.02, 2)
    assert not runner.controlled
    runner.advance()
    assert not runner.controlled, "the beat is from before"
    drive(runner, 0.02, 3)
    assert runner.controlled


def test_violations_between_samples_are_found_and_told_apart(tank_runner):
    # The ripple is -cos - 0.5: -1.5, -0.5, 0.5, -0.5 at 0, 25, 50, 75 s: one sub-step of four.
    runner = tank_runner(substeps=4)
    for beat in range(1, 4):
        drive(runner, 0.05, beat)
        runner.advance()
    runner.release()
    runner.advance()
    violations = runner.truth()["violations"]
    assert violations["controller"]["ripple"] == {
        "decisions": 0, "substeps": 3, "worst": pytest.approx(0.5),
    }  # fmt: skip
    assert violations["local"]["ripple"]["substeps"] == 1
    # Level 15 after three periods, 10 is full. States judged: 0, 1.25 … 13.75: > 10 from 11.25 on
    assert violations["controller"]["full"]["substeps"] == 3
    assert violations["controller"]["full"]["decisions"] == 0
    assert violations["controller"]["full"]["worst"] == pytest.approx(3.75)
    assert violations["local"]["full"]["decisions"] == 1
    one = tank_runner(substeps=1)
    one.advance()
    assert one.truth()["violations"]["local"]["ripple"]["substeps"] == 0  # samples alone are blind


def test_commands_are_clipped_and_nonsense_is_ignored(tank_runner):
    runner = tank_runner()
    drive(runner, 7.0, 1)
    runner.advance()
    assert runner.applied.tolist() == [0.5]
    for bad in (nan, inf, -inf):
        drive(runner, bad, runner.heartbeat + 1)
        runner.advance()
        assert runner.applied.tolist() == [0.5]
        assert np.isfinite(runner.x).all()
    assert runner.log.totals()["nonfinite"] == 3
    assert runner.log.totals()["outside"] == 1


def test_output_fault_reaches_the_plant_and_the_read_back(tank_runner):
    runner = tank_runner(faults=[SignalFault("pump", FaultKind.IGNORED, 100.0, 100.0)])
    seen = []
    for beat, value in enumerate((0.01, 0.02, 0.03), start=1):
        drive(runner, value, beat)
        seen.append(float(runner.advance().applied[0]))
    assert seen == [0.01, 0.01, 0.03]


def test_measurement_fault_changes_the_image_and_not_the_truth(tank_runner):
    fault = SignalFault("level", FaultKind.OFF, 100.0, 100.0)
    runner = tank_runner(faults=[fault])
    clean = runner.image
    assert clean.faults == () and clean.quality[0] == Quality.GOOD
    image = runner.advance()
    assert np.isnan(image.values[0]) and image.quality[0] == Quality.BAD
    assert [(f.code, f.signal) for f in image.faults] == [(ReasonCode.SAMPLE_BAD, "level")]
    assert runner.truth()["measurements"]["level"] == pytest.approx(-1.0)
    assert runner.advance().values[0] == pytest.approx(-2.0)


def test_local_control_sees_true_measurements(tank_runner):
    runner = tank_runner(faults=[SignalFault("level", FaultKind.GARBAGE)])
    seen = []
    runner.local_control.act = lambda o: (seen.append(o.values.copy()), np.array([0.0]))[1]
    runner.advance()
    assert seen[0].tolist() == [0.0, 0.0]


def test_local_control_that_answers_nonsense_holds(tank_runner):
    runner = tank_runner(local=nan)
    runner.advance()
    assert runner.applied.tolist() == [0.0]


def test_disturbances_follow_the_tick_and_repeat(tank_runner):
    runner = tank_runner(local=0.0, inflow=(0.1, -0.2, 0.05))
    levels = [float(runner.advance().values[0]) for _ in range(4)]
    np.testing.assert_allclose(levels, [10.0, -10.0, -5.0, 5.0], atol=1e-12)


def test_images_are_never_shared_with_the_next(tank_runner):
    runner = tank_runner()
    first = runner.image
    before = first.values.copy()
    runner.advance()
    np.testing.assert_array_equal(first.values, before)
    assert runner.image.values is not first.values


@pytest.mark.parametrize("cut", [1, 5, 9])
def test_saved_state_continues_exactly(tank_runner, cut):
    faults = [
        SignalFault("level", FaultKind.SLOW, 150.0, 2000.0, {"tau_s": 300.0}),
        SignalFault("inflow", FaultKind.INTERMITTENT),
    ]

    def some(runner, beats):
        images = []
        for beat in beats:
            if beat % 3:
                drive(runner, 0.01 * (beat % 5), beat)
            image = runner.advance(3)
            images.append((image.sequence, image.values.tolist(), image.quality.tolist()))
        return images

    inflow = tuple(np.sin(np.arange(7.0)) * 0.01)
    whole = tank_runner(inflow=inflow, faults=faults, seed=5, shed_s=60.0)
    expected = some(whole, range(1, 13))
    first = tank_runner(inflow=inflow, faults=faults, seed=5, shed_s=60.0)
    head = some(first, range(1, cut + 1))
    second = tank_runner(inflow=inflow, seed=5, shed_s=60.0)
    second.restore(json.loads(json.dumps(first.save(), allow_nan=False)))
    assert not second.controlled  # after a restart the controller has to show itself again
    # 75 s per call against a shed time of 60 s: nobody was alive at the cut anyway
    np.testing.assert_equal(head + some(second, range(cut + 1, 13)), expected)
    assert second.cost == whole.cost
    assert second.truth()["violations"] == whole.truth()["violations"]


def test_state_of_another_run_is_refused(tank_runner):
    runner = tank_runner()
    with pytest.raises(ConfigError, match="substeps=2"):
        tank_runner(substeps=4).restore(tank_runner(substeps=2).save())
    with pytest.raises(ConfigError, match="another plant"):
        runner.restore({**runner.save(), "x": [0.0]})
    with pytest.raises(ConfigError, match="version=99"):
        runner.restore({**runner.save(), "version": 99})
    with pytest.raises(ConfigError, match="rows"):
        Tally(("other",)).restore(runner.tally.save())


@pytest.mark.parametrize("kw", [{"substeps": 0}, {"shed_s": 0.0}, {"shed_s": nan}, {"inflow": ()}])
def test_impossible_runners_are_refused(tank_runner, kw):
    with pytest.raises(ConfigError, match="plant runner"):
        tank_runner(**kw)


def test_observer_counts_and_logs_every_write(tank_runner, tmp_path):
    path = tmp_path / "writes.jsonl"
    outputs = tank_runner().plant.outputs
    runner = tank_runner(log=WriteLog(outputs, 100.0, path, fsync=True))
    # rate limit 0.004 per s x 100 s = 0.4 from where the actuator is
    for beat, value in enumerate((0.3, -0.2, nan, 0.6), start=1):
        runner.requested, runner.source = True, Source.POLICY
        runner.write(0, value, source=0, sequence=beat)
        runner.beat(beat)
        runner.advance()
    runner.permit = False
    runner.write(0, 0.0)
    runner.log.close()
    # 0 -> 0.3 ok; 0.3 -> -0.2 is 0.5; nan; -0.2 -> 0.6 is 0.8 over the 200 s since the last
    # finite write: 0.8 allowed, but outside; then 0.5 -> 0 over 100 s: too fast, and ungranted
    assert runner.log.totals() == {
        "arrived": 5, "nonfinite": 1, "outside": 1, "rate": 2, "ungranted": 1,
    }  # fmt: skip
    rows = [json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines()]
    assert [row["value"] for row in rows] == [0.3, -0.2, "nan", 0.6, 0.0]
    assert [row["plant_s"] for row in rows] == [0.0, 100.0, 200.0, 300.0, 400.0]
    assert [row["granted"] for row in rows] == [True, True, True, True, False]
    assert rows[1] | {"wall_s": 0} == {
        "plant_s": 100.0, "wall_s": 0, "name": "pump", "value": -0.2, "source": 0, "sequence": 2,
        "applied": 0.3, "granted": True,
    }  # fmt: skip


def test_reference_plant_is_reproducible_and_keeps_its_limits_by_itself():
    runs = [make_runner(RunSpec(seed=3, days=2)) for _ in range(2)]
    for runner in runs:
        for _ in range(192):
            runner.advance()
    first, second = (runner.truth() for runner in runs)
    assert first == second
    assert first["cost"] > 0.0
    rows = first["violations"]["local"]
    for name in ("tank_full", "tank_empty", "power_cap"):
        assert rows[name]["substeps"] == 0, (name, rows[name])
    other = make_runner(RunSpec(seed=4, days=2))
    other.advance()
    assert other.truth()["measurements"] != runs[0].truth()["measurements"]


def test_substeps_do_not_change_the_physics():
    ends = []
    for substeps in (1, 3):
        runner = make_runner(RunSpec(seed=3, days=1, substeps=substeps))
        runner.local_control.act = lambda _: np.array([60.0])
        for _ in range(20):
            runner.advance()
        ends.append((runner.x, runner.cost))
    np.testing.assert_allclose(ends[0][0], ends[1][0], rtol=1e-12)
    assert ends[0][1] == pytest.approx(ends[1][1], rel=1e-12)


@settings(max_examples=300)
@given(
    x=st.tuples(st.floats(-50.0, 1900.0), st.floats(0.0, 200.0), st.floats(0.0, 40.0)),
    slot=st.integers(0, 287),
    u=st.floats(-500.0, 500.0),
    w=st.tuples(st.floats(0.0, 1200.0), st.floats(-20.0, 50.0), st.floats(0.0, 1.0)),
)
def test_one_plant_at_a_time_gives_the_same_bits(x, slot, u, w):
    single, batched = make_runner(RunSpec()).plant, ThermalStorage()
    state = np.array([*x, 300.0 * slot])
    command, row = np.array([u]), np.concatenate([w, np.full(16, 20.0)])
    fast, slow = (p.transition(state, command, row, 300.0) for p in (single, batched))
    np.testing.assert_array_equal(fast.x, slow.x)
    assert fast.cost == slow.cost
    seen = single.measure(state, command, row)
    np.testing.assert_array_equal(seen, batched.measure(state, command, row))
    assert seen.dtype == np.float64 and seen.shape == (24,)


def test_each_day_can_have_its_own_season():
    runner = make_runner(RunSpec(seed=5, season="hot_weeks,heat_wave"))
    days = [
        generate(ScenarioSpec(seed, 1, season)).w
        for seed, season in ((5, "hot_weeks"), (6, "heat_wave"))
    ]
    w = runner.disturbances
    np.testing.assert_array_equal(w[:96], days[0])
    np.testing.assert_array_equal(w[112:], days[1][16:])  # after four hours the season is there
    np.testing.assert_array_equal(w[96:, 2:], days[1][:, 2:])
    middle = 0.5 * (days[0][-1, :2] + days[1][7, :2])  # tick 8 of 16: half of each
    np.testing.assert_allclose(w[103, :2], middle)


def test_a_gauge_adds_its_own_noise_and_repeats_it_after_a_restart():
    clean = make_runner(RunSpec(seed=5))
    seen = []
    for _ in range(200):
        clean.advance()
        seen.append(clean.image.values[0] - clean.true_values[0])
    assert np.std(seen) == pytest.approx(GAUGE_NOISE["storage_energy_kwh"], rel=0.2)
    assert len(set(seen)) == len(seen)
    np.testing.assert_array_equal(clean.image.values[1:], clean.true_values[1:])
    again = make_runner(RunSpec(seed=5))
    again.restore(clean.save())
    np.testing.assert_array_equal(again.image.values, clean.image.values)


def test_an_unknown_season_of_a_day_is_refused():
    with pytest.raises(ConfigError, match="monsoon"):
        make_runner(RunSpec(season="hot_weeks,monsoon"))


def test_unknown_plant_lists_the_choices():
    with pytest.raises(ConfigError, match="there are: thermal_storage"):
        make_runner(RunSpec(plant="teapot"))
    assert isinstance(PLANTS["thermal_storage"](RunSpec(), None), PlantRunner)
