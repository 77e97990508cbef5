"""Responses of a simulated plant judged: right tags pass, and each wrong one is named."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from steadyhand.adapters.sim.plants import RunSpec, make_runner
from steadyhand.controllers.catalogue import plant_kind
from steadyhand.controllers.frames import Source
from steadyhand.runtime.response_test import PATTERN
from steadyhand.runtime.responses import GOOD, Answer, Sample, judge, line

KIND = plant_kind("thermal_storage")
PLANT = KIND.plant(KIND.parameters)
OUTPUT = "storage_discharge_kw"
NAMES = PLANT.observations.names


def answers(wrong=lambda y: y, output=lambda u: u, periods=12, parameters=None, rest_kw=30.0):
    """Answers by measurement; `wrong` changes what is measured, `output` what is written."""
    spec = RunSpec(seed=5, days=2, parameters=parameters)
    runner = make_runner(spec)
    runner.permit = runner.requested = True
    runner.source = Source.FALLBACK
    for beat in range(1, 41):  # into the morning, with some ice and some load
        runner.beat(beat)
        runner.write(0, -100.0 if beat < 20 else 0.0)
        runner.advance()
    rest = np.array([rest_kw])
    samples = []
    for period in range(periods):
        begin = runner.image
        command = rest + 42.5 * PATTERN[period % 4]
        runner.beat(100 + period)
        runner.write(0, float(output(command[0])))
        end = runner.advance()
        samples.append(Sample(wrong(begin.values.copy()), command, wrong(end.values.copy()),
                              end.applied.copy()))  # fmt: skip
    found = judge(PLANT, KIND.reconstruct, PLANT.outputs, OUTPUT, rest, samples, KIND.held)
    assert [item.signal for item in found] == [f"{OUTPUT} (read-back)", *NAMES]
    return {item.signal: item for item in found}


def scaled(name, factor):
    column = NAMES.index(name)

    def change(y):
        y[column] *= factor
        return y

    return change


def swapped(one, other):
    a, b = NAMES.index(one), NAMES.index(other)

    def change(y):
        y[[a, b]] = y[[b, a]]
        return y

    return change


def wrong_ones(found):
    return {name: item.answer for name, item in found.items() if item.answer not in GOOD}


def test_right_tags_pass_and_tell_how_well_they_fit():
    found = answers()
    assert wrong_ones(found) == {}
    for name in ("storage_energy_kwh", "electric_power_kw", "storage_flow_kw"):
        assert found[name].answer is Answer.RIGHT
        assert found[name].slope == pytest.approx(1.0, abs=0.05)
    assert found["outdoor_temperature_degc"].answer is Answer.STILL
    assert found[f"{OUTPUT} (read-back)"].slope == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("name", "factor", "answer"),
    [
        ("storage_flow_kw", -1.0, Answer.SIGN),
        ("electric_power_kw", -1.0, Answer.SIGN),
        ("storage_energy_kwh", 0.293, Answer.SIZE),  # tons of refrigeration, say, for kW
        ("electric_power_kw", 3.6, Answer.SIZE),
        ("storage_flow_kw", 0.0, Answer.NONE),
        ("storage_flow_kw", 1000.0, Answer.SIZE),
    ],
)
def test_a_wrong_sign_or_unit_is_named(name, factor, answer):
    wrong = wrong_ones(answers(scaled(name, factor)))
    assert wrong[name] is answer


@pytest.mark.parametrize(
    "pair",
    [
        ("electric_power_kw", "cooling_load_kw"),
        ("storage_flow_kw", "electric_power_kw"),
        ("storage_flow_kw", "load_forecast_03_kw"),
        ("storage_energy_kwh", "cooling_load_kw"),
    ],
)
def test_swapped_tags_are_named(pair):
    wrong = wrong_ones(answers(swapped(*pair)))
    assert set(pair) & set(wrong), wrong


def test_what_moves_and_should_not_is_told():
    wrong = wrong_ones(answers(swapped("storage_flow_kw", "load_forecast_03_kw")))
    assert wrong["load_forecast_03_kw"] is Answer.STRANGE


def test_a_tag_of_an_output_with_the_wrong_sign_shows_in_its_read_back():
    wrong = wrong_ones(answers(output=lambda u: -u))
    assert wrong[f"{OUTPUT} (read-back)"] is Answer.SIGN
    assert wrong_ones(answers(output=lambda u: 10.0))[f"{OUTPUT} (read-back)"] is Answer.NONE


def test_a_model_that_is_somewhat_off_is_still_the_same_plant():
    other = replace(KIND.parameters, capacity_kwh=1.2 * KIND.parameters.capacity_kwh,
                    cop_direct_15=0.85 * KIND.parameters.cop_direct_15)  # fmt: skip
    assert wrong_ones(answers(parameters=other)) == {}


def test_a_measurement_drowned_in_noise_decides_nothing():
    rng = np.random.default_rng(1)
    column = NAMES.index("storage_flow_kw")

    def noisy(y):
        y[column] += 400.0 * rng.standard_normal()
        return y

    assert wrong_ones(answers(noisy))["storage_flow_kw"] in (Answer.UNDECIDED, Answer.STRANGE)


def test_what_keeps_a_past_value_is_not_judged():
    found = answers(scaled("peak_power_kw", 7.0))
    assert found["peak_power_kw"].answer is Answer.UNJUDGED


def test_steps_that_the_limits_cut_are_never_called_right():
    """Near what the ice can melt the plant follows the steps down, and those up not."""
    for rest_kw in (300.0, 350.0, 400.0, 450.0):
        found = answers(scaled("storage_flow_kw", -1.0), rest_kw=rest_kw)
        assert found["storage_flow_kw"].answer is not Answer.RIGHT


def test_a_line_by_hand():
    x = np.array([0.0, 1.0, 2.0, 3.0])
    slope, error = line(x, np.array([1.0, 2.9, 5.1, 7.0]))
    assert slope == pytest.approx(2.02)
    # residuals 0.03, -0.09, 0.09, -0.03: sum of squares 0.018; spread 5
    assert error == pytest.approx((0.018 / 2.0 / 5.0) ** 0.5)
    assert line(x[:2], x[:2])[1] == inf
    slope, error = line(x, 3.0 * x + 7.0 * x**2, x**2)
    assert slope == pytest.approx(3.0) and error == pytest.approx(0.0, abs=1e-6)
    slope, error = line(np.ones(5), np.arange(5.0))
    assert np.isnan(slope) and error == inf
