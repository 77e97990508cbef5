"""Scenarios: the same for ever, splits apart, and as their texts promise."""

import numpy as np
import pytest

from steadyhand.controllers.errors import ConfigError
from steadyhand.controllers.plants import thermal_storage_scenario as scenarios
from steadyhand.controllers.plants.thermal_storage import ThermalStorage
from steadyhand.controllers.plants.thermal_storage_scenario import (
    HELD_OUT_SEEDS,
    REFERENCE_TARIFF,
    ScenarioSpec,
    generate,
    generate_batch,
    held_out,
)


def test_same_spec_same_arrays_whatever_the_batch() -> None:
    one = generate(ScenarioSpec(7, days=2))
    np.testing.assert_array_equal(one.w, generate(ScenarioSpec(7, days=2)).w)
    np.testing.assert_array_equal(one.w, generate_batch([3, 7], days=2).w[1])
    assert not np.array_equal(one.w, generate(ScenarioSpec(8, days=2)).w)
    assert not one.w.flags.writeable


def test_known_answer() -> None:
    """Held-out days must never change unnoticed: every published gap rests on them."""
    w = held_out().w
    assert w.shape == (6, 480, 19)
    assert w[0, 0, :3].tolist() == pytest.approx(KNOWN_FIRST, abs=1e-9)
    assert w[..., 0].mean() == pytest.approx(KNOWN_MEAN_LOAD, abs=1e-9)


def test_splits_are_disjoint() -> None:
    splits = [
        set(getattr(scenarios, f"{name}_SEEDS"))
        for name in ("TRAINING", "VALIDATION", "CALIBRATION", "THRESHOLD", "HELD_OUT")
    ]
    assert sum(map(len, splits)) == len(set().union(*splits))
    assert len(HELD_OUT_SEEDS) * scenarios.EPISODE_DAYS == 30


def test_price_by_hour() -> None:
    hours = np.array([0.0, 7.75, 8.0, 11.75, 12.0, 17.75, 18.0, 21.75, 22.0, 23.75])
    expected = [0.08, 0.08, 0.16, 0.16, 0.28, 0.28, 0.16, 0.16, 0.08, 0.08]
    assert REFERENCE_TARIFF.price(hours).tolist() == expected


@pytest.mark.parametrize("season", scenarios.SEASONS)
def test_every_measurement_is_plausible(season: str) -> None:
    plant = ThermalStorage()
    scenario = generate_batch(range(20), days=4, season=season)
    y = plant.measure(plant.initial(scenario)[:, None], np.zeros((20, 1, 1)), scenario.w)
    assert np.all(y >= plant.observations.low)
    assert np.all(y <= plant.observations.high)


def test_load_forecast_error_is_8_percent_at_6_h() -> None:
    spec = [generate(ScenarioSpec(seed, days=6)).w for seed in range(40)]
    sd = []
    for window in (2, 3):  # 4 to 6 h and 6 to 8 h ahead: leads of 5 and 7 h around 6 h
        errors = []
        for w in spec:
            truth = np.convolve(w[:, 0], np.full(8, 1 / 8), "valid")[8 * window :]
            errors.append(w[: truth.size, 3 + window] / truth - 1.0)
        sd.append(np.std(np.concatenate(errors)))
    assert sd[0] < 0.08 < sd[1]
    assert np.mean(sd) == pytest.approx(0.08, abs=0.004)


def test_near_forecasts_are_better_than_far_ones() -> None:
    w = np.concatenate([generate(ScenarioSpec(seed, days=6)).w for seed in range(10)])
    near = w[:-8, 3] / np.convolve(w[:, 0], np.full(8, 1 / 8), "valid")[:-1] - 1.0
    assert np.std(near[np.abs(near) < 0.5]) < 0.06


def test_the_heat_wave_is_outside_everything_seen_in_training() -> None:
    usual = generate_batch(range(50), days=5).w
    wave = generate_batch(range(50), days=5, season=scenarios.OUT_OF_RANGE_SEASON).w
    assert wave[..., 1].max(1).min() > usual[..., 1].max()
    assert np.median(wave[..., 0].max(1)) > usual[..., 0].max()
    assert wave[..., 2].max() > usual[..., 2].max()


def test_weekends_need_less() -> None:
    loads = generate_batch(range(30), days=7).w[..., 0].reshape(30, 7, 96)
    noon = np.sort(loads[:, :, 44:52].mean(-1), axis=1)
    assert np.all(noon[:, 2:].mean(1) > 1.3 * noon[:, :2].mean(1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"season": "monsoon"}, "there are: hot_weeks"),
        ({"days": 0}, "days=0"),
        ({"seed": -1}, "seed=-1"),
        ({"initial_charge": 1.5}, "initial_charge=1.5"),
    ],
)
def test_impossible_specs_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ScenarioSpec(**{"seed": 1, **changes})


KNOWN_FIRST = [84.33207831514439, 26.792540580518494, 0.08]
KNOWN_MEAN_LOAD = 177.87074825585802
