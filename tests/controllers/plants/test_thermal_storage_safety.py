"""The filter's model of the tank: derivatives, units, and that its numbers keep the promise."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from steadyhand.controllers.errors import SafetyError
from steadyhand.controllers.frames import Observation, Quality, Sent
from steadyhand.controllers.plants.thermal_storage import VIOLATION, ThermalStorage
from steadyhand.controllers.plants.thermal_storage_limits import operating_bounds
from steadyhand.controllers.plants.thermal_storage_parameters import (
    ICE,
    ThermalStorageParameters,
)
from steadyhand.controllers.plants.thermal_storage_safety import (
    DELAY_S,
    ENERGY_ERROR,
    ThermalStorageSafety,
)
from steadyhand.controllers.plants.thermal_storage_scenario import generate_batch
from steadyhand.controllers.safety.atacom import AtacomDC
from steadyhand.controllers.safety.constraint import Gains
from steadyhand.controllers.safety.limits import Limits
from steadyhand.controllers.signals import Vector

MODEL = ThermalStorageSafety()


def image(energy: float, load: float, outdoor: float, t: int = 0) -> Observation:
    values = np.zeros(len(ThermalStorage().observations))
    values[:3] = energy, load, outdoor
    n = len(values)
    return Observation(t, 900.0 * t, values, np.zeros(n), np.zeros(n, np.int8), np.zeros(1))


def linearised(observation: Observation) -> tuple[Vector, ...]:
    out = (
        *(np.full(2, 7.0), np.full((2, 1), 7.0), np.full(2, 7.0), np.full(2, 7.0)),
        *(np.full(1, 7.0), np.full(1, 7.0)),
    )
    MODEL.linearise(observation, *out)
    return out


def test_rows_by_hand() -> None:
    k, J, trusted, untrusted, *_ = linearised(image(1290.0, 300.0, 30.0))
    assert k == pytest.approx([-135 / 1350, -1215 / 1350])
    assert J[:, 0] * 3600 == pytest.approx([-1 / 1350, 1 / 1350])  # 1 kW for an hour is 1 kWh
    assert trusted * 3600 == pytest.approx([-0.002 * 1290 / 1350, 0.002 * 1290 / 1350])
    assert untrusted.tolist() == [0.0, 0.0]


def rows_of(plant: ThermalStorage, u: object, w: object, x: object) -> object:
    return plant.margins(x, u, w)[:2]


def test_rates_agree_with_automatic_differentiation_of_the_plant() -> None:
    """k' = dk/dE E' with dk/dE and E' both from torch's gradients of the plant itself."""
    torch = pytest.importorskip("torch")
    plant = ThermalStorage(xp=torch)
    for energy, u in ((200.0, 150.0), (800.0, -130.0), (1400.0, 20.0)):
        x = torch.tensor([energy, 0.0, 0.0, 0.0], dtype=torch.float64, requires_grad=True)
        command = torch.tensor([u], dtype=torch.float64, requires_grad=True)
        w = torch.zeros(19, dtype=torch.float64)
        w[0], w[1] = 300.0, 30.0
        row_slopes = torch.autograd.functional.jacobian(
            partial(rows_of, plant, command.detach(), w), x.detach()
        )[:, 0]
        h = 0.01  # s
        energy_rate = (plant.step(x, command, w, h)[0] - x[0]) / h
        (rate_by_u,) = torch.autograd.grad(energy_rate, command)
        k, J, trusted, *_ = linearised(image(energy, 300.0, 30.0))
        assert k == pytest.approx(plant.margins(x, command, w)[:2].tolist(), abs=1e-12)
        np.testing.assert_allclose(J[:, 0], row_slopes * rate_by_u.item(), rtol=1e-6)
        np.testing.assert_allclose(
            J[:, 0] * u + trusted, row_slopes * energy_rate.item(), rtol=1e-6
        )


def test_inputs_set_is_the_operating_bounds_with_some_power_to_spare() -> None:
    spared = ThermalStorage(replace(ICE, power_cap_kw=0.99 * ICE.power_cap_kw))
    for energy, load, outdoor in ((75.0, 200.0, 30.0), (700.0, 560.0, 38.0), (1425.0, 80.0, 25.0)):
        *_, low, high = linearised(image(energy, load, outdoor))
        expected = operating_bounds(spared, *map(np.array, (energy, load, outdoor)), 900.0)
        assert [low[0], high[0]] == pytest.approx([float(v) for v in expected], abs=1e-8)


def test_a_bad_measurement_is_refused_and_the_backup_needs_none() -> None:
    observation = image(700.0, 300.0, 30.0)
    observation.quality[1] = Quality.BAD
    with pytest.raises(SafetyError, match="cooling_load_kw is not good"):
        linearised(observation)
    out = np.ones(1)
    MODEL.backup(observation, out)
    assert out.tolist() == [0.0]


def test_margin_by_hand() -> None:
    """nu = (M T^2/2 + w' T)/(lambda T) + e + V tau, lambda T = 1/2."""
    fastest = 450.0 + 0.002 * 1500.0  # kW
    hold = 0.002 * fastest * 0.25**2 / 2 + (0.01 * 450.0 + 0.5 * 3.0) * 0.25
    expected = 2 * hold + 0.002 * 1350.0 + fastest * 150.0 / 3600.0
    nu = MODEL.constraints.margins(Gains.for_period(900.0, 1.0))
    assert nu * 1350.0 == pytest.approx([expected, expected])
    assert expected / 1350.0 < 0.02  # the price: under 2 % of the band at either end


def adversary(t: int, rng: np.random.Generator, kind: str) -> float:
    if kind == "full":
        return -400.0
    if kind == "empty":
        return 450.0
    if kind == "square":
        return 450.0 if (t // 7) % 2 else -400.0
    return float(rng.uniform(-2000.0, 2000.0))


OTHER_PLANTS = {
    "as modelled": ICE,
    "leaky": replace(ICE, loss_per_h=0.003),
    "melts worse": replace(ICE, melt_base=0.2),
    "smaller chiller": replace(ICE, chiller_capacity_kw=520.0),
}


@pytest.mark.parametrize("kind", ["full", "empty", "square", "random"])
@pytest.mark.parametrize("other", OTHER_PLANTS)
def test_no_command_breaks_the_band_of_a_plant_that_differs(kind: str, other: str) -> None:
    """Late commands, a lying gauge within its error, a valve off by 1 %, and the worst wishes."""
    rng = np.random.default_rng(len(kind) * 31 + len(other))
    plant = ThermalStorage(OTHER_PLANTS[other])
    limits = Limits(plant.outputs, 900.0)
    safety = AtacomDC(MODEL, MODEL.constraints, limits)
    w = generate_batch([int(rng.integers(1000))], days=3).w[0]
    x, applied = np.array([rng.uniform(110.0, 1390.0), 0.0, 0.0, 0.0]), np.zeros(1)
    worst = -1.0
    for t in range(w.shape[0]):
        lie = ENERGY_ERROR * 1350.0 * rng.choice([-1.0, 1.0])
        seen = image(x[0] + lie, w[t, 0], w[t, 1], t)
        sent = Sent(applied, t, 900.0 * t, True)
        wish = np.array([adversary(t, rng, kind)])
        command = safety.certify(seen, wish, sent).action
        for u, seconds in ((applied, DELAY_S), (command, 900.0 - DELAY_S)):
            x = tank_only(plant, x, u * rng.choice([0.99, 1.01]), w[t], seconds)
            worst = max(worst, float(plant.margins(x, u, w[t])[:2].max()))
        applied = command
    assert worst <= VIOLATION


def tank_only(plant: ThermalStorage, x: Vector, u: Vector, w: Vector, seconds: float) -> Vector:
    """The plant's step; metering windows do not matter here."""
    return np.array([plant.step(x, u, w, seconds)[0], 0.0, 0.0, 0.0])


def test_the_same_wishes_unfiltered_do_break_it() -> None:
    """Else the test above shows nothing."""
    plant = ThermalStorage()
    w = generate_batch([5], days=1).w[0]
    x = plant.initial(generate_batch([5], days=1))[0]
    worst = -1.0
    for t in range(w.shape[0]):
        x = plant.step(x, np.array([-400.0]), w[t], 900.0)
        worst = max(worst, float(plant.margins(x, np.zeros(1), w[t])[0]))
    assert worst > 0.05


def test_holding_input_exists_all_over_the_certified_region() -> None:
    """The promise of the margins rests on it: swept over energy, load and heat."""
    safety = AtacomDC(MODEL, MODEL.constraints, Limits(MODEL.inputs, 900.0))
    kept = float(MODEL.constraints.margins(safety.gains)[0]) * ICE.band_kwh
    for energy in np.linspace(ICE.energy_low_kwh + kept, ICE.energy_high_kwh - kept, 28):
        for load in (15.0, 100.0, 300.0, 500.0, 560.0):
            for outdoor in (16.0, 28.0, 38.0):
                assert safety.holding_input(image(energy, load, outdoor)) is not None


def test_the_certified_region_ends_where_no_input_brings_the_tank_back() -> None:
    """An empty tank under a full load cannot be filled, a full one without a load not be used."""
    safety = AtacomDC(MODEL, MODEL.constraints, Limits(MODEL.inputs, 900.0))
    assert safety.holding_input(image(ICE.energy_low_kwh, 650.0, 30.0)) is None
    assert safety.holding_input(image(ICE.energy_high_kwh, 15.0, 20.0)) is None


def test_parameters_of_the_model_are_its_own() -> None:
    narrow = ThermalStorageSafety(ThermalStorageParameters(energy_high_kwh=1000.0))
    out = (np.zeros(2), np.zeros((2, 1)), np.zeros(2), np.zeros(2), np.zeros(1), np.zeros(1))
    narrow.linearise(image(1000.0, 100.0, 25.0), *out)
    assert out[0][0] == pytest.approx(0.0)
    assert out[4][0] == pytest.approx(-2.0, abs=0.01)  # only the loss may be made up
