"""Faults as data: each kind by hand, JSON, determinism, resume."""

import json
from math import exp, inf, isnan, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadyhand.adapters.sim.counter_random import uniform
from steadyhand.adapters.sim.fault_injector import FaultInjector
from steadyhand.adapters.sim.faults import (
    MEASUREMENT_KINDS,
    OUTPUT_KINDS,
    PARAMETERS,
    FaultKind,
    SignalFault,
    every_fault,
    faults_from_json,
    faults_to_json,
)
from steadyhand.controllers.errors import ConfigError, SignalError
from steadyhand.controllers.frames import Quality
from steadyhand.controllers.signals import Signal, SignalSet

Y = SignalSet((Signal("a", "m", -10.0, 10.0), Signal("b", "m", 0.0, 4.0)))
U = SignalSet((Signal("pump", "m/s", -1.0, 1.0),))


def run(faults, samples, seed=0, step_s=10.0):
    """Values, qualities and ages of signal `a` for samples taken every `step_s`."""
    injector = FaultInjector(Y, U, faults, seed)
    rows = []
    for k, sample in enumerate(samples):
        values, age = np.array([sample, 1.0]), np.zeros(2)
        quality = np.zeros(2, dtype=np.int8)
        injector.corrupt(k * step_s, values, quality, age)
        assert values[1] == 1.0 and quality[1] == 0 and age[1] == 0.0  # the other is untouched
        rows.append((float(values[0]), int(quality[0]), float(age[0])))
    return rows


def test_window_is_half_open():
    got = run([SignalFault("a", FaultKind.WRONG, 10.0, 20.0, {"bias": 5.0})], [1, 2, 3, 4])
    assert [row[0] for row in got] == [1.0, 7.0, 8.0, 4.0]


def test_off_is_bad_and_endless_old():
    value, quality, age = run([SignalFault("a", FaultKind.OFF)], [1.0])[0]
    assert isnan(value) and quality == Quality.BAD and age == inf


def test_stuck_keeps_the_first_sample_of_the_window_with_a_fresh_stamp():
    got = run([SignalFault("a", FaultKind.STUCK, 10.0, 30.0)], [1, 2, 3, 4, 5])
    assert got == [(1.0, 0, 0.0), (2.0, 0, 0.0), (2.0, 0, 0.0), (2.0, 0, 0.0), (5.0, 0, 0.0)]


@pytest.mark.parametrize("value", [nan, inf, -inf, 1e9, 65535.0])
def test_garbage_keeps_good_quality(value):
    got = run([SignalFault("a", FaultKind.GARBAGE, parameters={"value": value})], [1.0])[0]
    assert got[1:] == (0, 0.0)
    assert got[0] == value or (isnan(got[0]) and isnan(value))


def test_wrong_scales_and_shifts():
    fault = SignalFault("a", FaultKind.WRONG, parameters={"scale": -1.0, "bias": 0.5})
    assert run([fault], [2.0])[0][0] == -1.5


def test_wrong_drifts_from_the_start_of_its_window():
    fault = SignalFault("a", FaultKind.WRONG, 10.0, inf, {"drift_per_s": 0.1})
    got = [row[0] for row in run([fault], [1.0] * 4)]
    np.testing.assert_allclose(got, [1.0, 1.0, 2.0, 3.0])


def test_wrong_adds_white_noise_of_the_given_size():
    fault = SignalFault("a", FaultKind.WRONG, parameters={"noise": 2.0})
    got = np.array([row[0] for row in run([fault], [5.0] * 4000, seed=1)]) - 5.0
    # 4000 normals of sd 2: mean has sd 0.032, the sd itself 0.022; four of each
    assert abs(got.mean()) < 0.13
    assert abs(got.std() - 2.0) < 0.09
    assert abs(np.corrcoef(got[:-1], got[1:])[0, 1]) < 0.064
    assert 0.0 < np.mean(np.abs(got) > 4.0) < 0.065  # 4.55 % beyond two sd
    assert run([fault], [5.0] * 10, seed=2) != run([fault], [5.0] * 10, seed=1)


def test_slow_is_the_exact_first_order_lag():
    # Step 0 -> 1 after the first sample: y_k = 1 - exp(-k dt / tau), the input held until the next
    got = run([SignalFault("a", FaultKind.SLOW, parameters={"tau_s": 20.0})], [0, 1, 1, 1])
    expected = [0.0, *(1.0 - exp(-k * 10.0 / 20.0) for k in (1, 2, 3))]
    np.testing.assert_allclose([row[0] for row in got], expected, rtol=0, atol=1e-15)


def test_delayed_shows_the_past_with_its_age():
    got = run([SignalFault("a", FaultKind.DELAYED, parameters={"delay_s": 20.0})], [5, 6, 7, 8, 9])
    assert got == [(5, 0, 0), (5, 0, 10), (5, 0, 20), (6, 0, 20), (7, 0, 20)]


def test_delayed_can_lie_about_its_age_and_remembers_from_before_its_start():
    parameters = {"delay_s": 20.0, "honest": 0.0}
    got = run([SignalFault("a", FaultKind.DELAYED, 30.0, inf, parameters)], [5, 6, 7, 8, 9])
    assert got == [(5, 0, 0), (6, 0, 0), (7, 0, 0), (6, 0, 0), (7, 0, 0)]


def test_intermittent_drops_about_its_share_and_is_bad_then():
    fault = SignalFault("a", FaultKind.INTERMITTENT, parameters={"probability": 0.3})
    got = run([fault], [1.0] * 4000, seed=7)
    dropped = [row for row in got if row[1] == Quality.BAD]
    # Binomial(4000, 0.3): sd 29; four of them
    assert abs(len(dropped) - 1200) < 116
    assert all(isnan(row[0]) for row in dropped)
    assert run([fault], [1.0] * 4000, seed=7).count((1.0, 0, 0.0)) == 4000 - len(dropped)


def test_faults_of_one_signal_act_in_their_order():
    first = SignalFault("a", FaultKind.WRONG, parameters={"bias": 1.0})
    second = SignalFault("a", FaultKind.WRONG, parameters={"scale": 2.0})
    assert run([first, second], [3.0])[0][0] == 8.0
    assert run([second, first], [3.0])[0][0] == 7.0


def test_output_ignored_and_clamped():
    injector = FaultInjector(Y, U, [SignalFault("pump", FaultKind.IGNORED, 0.0, 10.0)])
    command = np.array([0.9])
    injector.actuate(0.0, command, np.array([0.2]))
    assert command[0] == 0.2
    command = np.array([0.9])
    injector.actuate(10.0, command, np.array([0.2]))
    assert command[0] == 0.9
    clamp = {"low": -0.1, "high": 0.4}
    injector.add(SignalFault("pump", FaultKind.CLAMPED, 10.0, inf, clamp))
    injector.actuate(10.0, command, np.array([0.2]))
    assert command[0] == 0.4
    assert injector.clamp(10.0, 0, -0.9) == -0.1
    assert injector.clamp(0.0, 0, -0.9) == -0.9


def test_every_fault_covers_every_signal_once_with_every_kind():
    table = every_fault(Y, U, 100.0, 50.0)
    assert len(table) == 2 * 7 + 1 * 2
    assert len({(fault.signal, fault.kind) for fault in table}) == len(table)
    wrong = next(f for f in table if f.signal == "b" and f.kind is FaultKind.WRONG)
    assert wrong.parameters["bias"] == 2.0
    clamped = next(f for f in table if f.kind is FaultKind.CLAMPED)
    assert clamped.parameters == {"low": -0.2, "high": 0.2}
    FaultInjector(Y, U, table)


def test_json_round_trip_is_strict_json_and_exact():
    table = every_fault(Y, U, 100.0, inf)
    text = faults_to_json(table)
    json.loads(text, parse_constant=pytest.fail)  # no NaN or Infinity tokens
    again = faults_from_json(text)
    assert faults_to_json(again) == text
    assert [(f.signal, f.kind, f.duration_s) for f in again] == [
        (f.signal, f.kind, inf) for f in table
    ]
    assert isnan(again[2].parameters["value"])


finite = st.floats(-1e12, 1e12)


@given(
    kind=st.sampled_from(sorted(FaultKind)),
    start=st.floats(0.0, 1e9),
    duration=st.one_of(st.just(inf), st.floats(1e-3, 1e9)),
    bias=finite,
)
def test_json_round_trip_of_any_fault(kind, start, duration, bias):
    parameters = {"bias": bias} if kind is FaultKind.WRONG else {}
    fault = SignalFault("a", kind, start, duration, parameters)
    (again,) = faults_from_json(faults_to_json([fault]))
    assert again.to_dict() == fault.to_dict()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: SignalFault("a", "broken"), "there are: off, stuck"),
        (lambda: SignalFault("a", FaultKind.WRONG, parameters={"gain": 1.0}), "gain"),
        (lambda: SignalFault("a", FaultKind.OFF, -1.0), "start_s=-1.0"),
        (lambda: SignalFault("a", FaultKind.OFF, nan), "start_s=nan"),
        (lambda: SignalFault("a", FaultKind.OFF, 0.0, 0.0), "duration_s=0.0"),
        (lambda: SignalFault("a", FaultKind.OFF, 0.0, nan), "duration_s=nan"),
        (lambda: SignalFault("a", FaultKind.SLOW, parameters={"tau_s": 0.0}), "tau_s=0.0"),
        (lambda: SignalFault("a", FaultKind.DELAYED, parameters={"delay_s": inf}), "delay_s=inf"),
        (
            lambda: SignalFault("a", FaultKind.INTERMITTENT, parameters={"probability": 1.1}),
            "probability=1.1",
        ),
        (
            lambda: SignalFault("pump", FaultKind.CLAMPED, parameters={"low": 1.0, "high": 0.0}),
            "low=1.0",
        ),
        (lambda: faults_from_json("{"), "not JSON"),
        (lambda: faults_from_json('{"signal": "a"}'), "JSON list"),
        (lambda: faults_from_json('[{"signal": "a"}]'), "missing: ['kind']"),
        (lambda: faults_from_json('[{"signal": "a", "kind": "off", "start": 1}]'), "['start']"),
        (
            lambda: faults_from_json('[{"signal": "a", "kind": "off", "start_s": true}]'),
            "not a number",
        ),
    ],
)
def test_refusals_name_thing_and_bound(make, says):
    with pytest.raises(ConfigError) as caught:
        make()
    assert says in str(caught.value)


def test_a_kind_decides_whether_measurement_or_output_is_meant():
    with pytest.raises(SignalError, match="there are: pump"):
        FaultInjector(Y, U, [SignalFault("a", FaultKind.IGNORED)])
    with pytest.raises(SignalError, match="there are: a, b"):
        FaultInjector(Y, U, [SignalFault("pump", FaultKind.OFF)])
    assert set(MEASUREMENT_KINDS) | set(OUTPUT_KINDS) == set(PARAMETERS)


@given(cut=st.integers(1, 19), seed=st.integers(0, 2**32))
def test_memory_makes_a_resumed_run_repeat_the_uninterrupted_one(cut, seed):
    faults = [
        SignalFault("a", FaultKind.SLOW, 20.0, 100.0, {"tau_s": 30.0}),
        SignalFault("a", FaultKind.DELAYED, 40.0, 100.0, {"delay_s": 35.0}),
        SignalFault("a", FaultKind.STUCK, 150.0, 20.0),
        SignalFault("a", FaultKind.INTERMITTENT, 0.0, inf, {"probability": 0.2}),
    ]
    samples = np.sin(np.arange(20.0))

    def sweep(injector, numbers):
        rows = []
        for k in numbers:
            values, age = np.array([samples[k], 1.0]), np.zeros(2)
            quality = np.zeros(2, dtype=np.int8)
            injector.corrupt(10.0 * k, values, quality, age)
            rows.append((values[0], quality[0], age[0]))
        return rows

    whole = sweep(FaultInjector(Y, U, faults, seed), range(20))
    first = FaultInjector(Y, U, faults, seed)
    head = sweep(first, range(cut))
    second = FaultInjector(Y, U, faults, seed)
    second.restore(json.loads(json.dumps(first.memory(), allow_nan=False)))
    np.testing.assert_array_equal(head + sweep(second, range(cut, 20)), whole)


def test_memory_of_other_faults_is_refused():
    injector = FaultInjector(Y, U, [SignalFault("a", FaultKind.STUCK)])
    with pytest.raises(ConfigError, match="2 entries for 1 faults"):
        injector.restore([["nan", "nan"], ["nan", "nan"]])


def test_random_numbers_are_uniform_and_independent_of_order():
    numbers = np.array([uniform(3, stream, 900.0 * k) for stream in range(4) for k in range(2500)])
    assert numbers.min() >= 0.0 and numbers.max() < 1.0
    # Mean of 10000 uniforms: sd 0.0029; variance 1/12: sd 0.00075
    assert abs(numbers.mean() - 0.5) < 0.012
    assert abs(numbers.var() - 1.0 / 12.0) < 0.003
    lag = np.corrcoef(numbers[:-1], numbers[1:])[0, 1]
    assert abs(lag) < 0.04
