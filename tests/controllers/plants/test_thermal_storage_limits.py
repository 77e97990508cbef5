"""Bounds of the command: exact where the equation is linear, the safe side where it is not."""

from dataclasses import replace

import numpy as np
import pytest

from steadyhand.controllers.plants import scalars
from steadyhand.controllers.plants.thermal_storage import (
    DISTURBANCE_NAMES,
    PERIOD_S,
    VIOLATION,
    ThermalStorage,
)
from steadyhand.controllers.plants.thermal_storage_limits import (
    energy_bounds,
    least_command_for_power,
    operating_bounds,
)
from steadyhand.controllers.plants.thermal_storage_parameters import ICE

PLANT = ThermalStorage()


def test_energy_bounds_land_exactly_on_the_band() -> None:
    low, high = energy_bounds(PLANT, np.array([900.0]), PERIOD_S)
    x, w = np.array([[900.0, 0.0, 0.0, 0.0]]), np.zeros((1, len(DISTURBANCE_NAMES)))
    w[:, 0] = 10_000.0  # a building that takes everything
    kept = np.exp(-0.0005)
    assert high[0] == pytest.approx((900 * kept - 75.0) / ((1 - kept) / 0.002))
    plenty = ThermalStorage(replace(ICE, discharge_max_kw=5000.0, charge_max_kw=5000.0,
                                    chiller_capacity_kw=50_000.0))  # fmt: skip
    assert plenty.step(x, high[:, None], w, PERIOD_S)[0, 0] == pytest.approx(75.0)
    assert plenty.step(x, low[:, None], w, PERIOD_S)[0, 0] == pytest.approx(1425.0)


def test_power_bound_is_tight_and_on_the_safe_side() -> None:
    rng = np.random.default_rng(0)
    load, outdoor = rng.uniform(20.0, 600.0, 500), rng.uniform(15.0, 40.0, 500)
    u = least_command_for_power(PLANT, load, outdoor, 100.0)
    power = PLANT.power(u, load, outdoor)
    inside = (u > -ICE.charge_max_kw) & (u < np.minimum(load, ICE.discharge_max_kw))
    assert inside.sum() > 300
    assert np.all(power[inside] <= 100.0)
    np.testing.assert_allclose(power[inside], 100.0, atol=1e-6)


def test_power_bound_that_never_binds_is_full_charge() -> None:
    assert least_command_for_power(PLANT, np.array(50.0), np.array(20.0), 1e4) == -400.0


def test_bounds_hold_every_limit_over_a_period() -> None:
    rng = np.random.default_rng(1)
    n = 20_000
    x, w = np.zeros((n, 4)), np.zeros((n, len(DISTURBANCE_NAMES)))
    x[:, 0] = rng.uniform(ICE.energy_low_kwh, ICE.energy_high_kwh, n)
    w[:, 0], w[:, 1] = rng.uniform(15.0, 560.0, n), rng.uniform(15.0, 38.0, n)
    low, high = operating_bounds(PLANT, x[:, 0], w[:, 0], w[:, 1], PERIOD_S)
    assert np.all(low <= high)
    for share in (0.0, 0.3, 1.0):
        u = (low + share * (high - low))[:, None]
        before, after = PLANT.margins(x, u, w), PLANT.margins(PLANT.step(x, u, w, PERIOD_S), u, w)
        assert before.max() <= VIOLATION
        assert after[:, :2].max() <= VIOLATION


def test_when_the_cap_cannot_be_held_tank_and_building_come_first() -> None:
    tight = ThermalStorage(replace(ICE, power_cap_kw=60.0))
    low, high = operating_bounds(tight, 75.2, 500.0, 40.0, PERIOD_S)
    assert low == high
    assert high == pytest.approx(0.0, abs=1.0)  # nothing left to discharge


def test_plain_floats_give_the_same_bounds() -> None:
    plain = ThermalStorage(xp=scalars)
    rng = np.random.default_rng(2)
    for _ in range(50):
        args = rng.uniform(75, 1425), rng.uniform(15, 600), rng.uniform(10, 45)
        ours = operating_bounds(plain, *map(float, args), PERIOD_S)
        theirs = operating_bounds(PLANT, *map(np.array, args), PERIOD_S)
        assert ours == pytest.approx([float(v) for v in theirs], abs=1e-8)
