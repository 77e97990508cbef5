"""The thermal storage against numbers worked by hand, its balances, and its signs."""

from dataclasses import replace

import numpy as np
import pytest

from steadyhand.controllers.plants import scalars
from steadyhand.controllers.plants.thermal_storage import (
    DISTURBANCE_NAMES,
    PERIOD_S,
    ThermalStorage,
)
from steadyhand.controllers.plants.thermal_storage_parameters import CHILLED_WATER, ICE
from steadyhand.controllers.plants.thermal_storage_scenario import (
    Scenario,
    generate_batch,
)
from steadyhand.controllers.signals import Vector

PLANT = ThermalStorage()


def disturbance(load: float, outdoor: float = 25.0, price: float = 0.28) -> Vector:
    w = np.zeros(len(DISTURBANCE_NAMES))
    w[:3] = load, outdoor, price
    return w


def state(energy: float, peak: float = 0.0, window: float = 0.0, time_s: float = 0.0) -> Vector:
    return np.array([energy, peak, window, time_s])


def draws(rng: np.random.Generator, n: int) -> tuple[Vector, Vector, Vector]:
    """States over the whole physical tank, commands beyond all limits, wild disturbances."""
    x = np.zeros((n, 4))
    x[:, 0] = rng.uniform(0.0, ICE.capacity_kwh, n)
    x[:, 1] = rng.uniform(0.0, 150.0, n)
    x[:, 3] = rng.integers(0, 96, n) * PERIOD_S
    u = rng.uniform(-900.0, 900.0, (n, 1))
    w = rng.uniform(0.0, 30.0, (n, len(DISTURBANCE_NAMES)))
    w[:, 0] = rng.uniform(0.0, 800.0, n)
    w[:, 1] = rng.uniform(-10.0, 48.0, n)
    w[:, 2] = rng.uniform(0.05, 0.4, n)
    return x, u, w


class TestPower:
    """P = (q/COP_d + c/COP_i) phi + 0.02 (q + c) + 0.015 f."""

    @pytest.mark.parametrize(
        ("storage", "load", "outdoor", "expected"),
        [
            # full load at 15 degC: COP 6.2, phi 1
            (0.0, 650.0, 15.0, 650 / 6.2 + 13.0),
            # half load at 25 degC: COP 5.3, phi = 0.17/0.5 + 0.55 + 0.28 * 0.5 = 1.03
            (0.0, 325.0, 25.0, 325 / 5.3 * 1.03 + 6.5),
            # q = 125, below the minimum of 130: duty d = 125/130, starts (1-d)/d = 0.04,
            # phi = 1.456 (1 + 5/30 * 0.04)
            (200.0, 325.0, 25.0, 125 / 5.3 * 1.456 * (1 + 0.04 / 6) + 2.5 + 3.0),
            # q = 13: d = 0.1, a start each minimum off spell: phi = 1.456 (1 + 5/30)
            (0.0, 13.0, 25.0, 13 / 5.3 * 1.456 * 7 / 6 + 0.26),
            # charging: PLR = 400/650 = 8/13, phi = 0.17 * 13/8 + 0.55 + 0.28 * 8/13
            (
                -300.0,
                100.0,
                25.0,
                (100 / 5.3 + 300 / 3.5) * (0.17 * 13 / 8 + 0.55 + 0.28 * 8 / 13) + 8.0,
            ),
            # chiller off: only the discharge pump
            (400.0, 400.0, 25.0, 6.0),
            # COPs at their floors and ceilings
            (-100.0, 550.0, 60.0, 550 / 3.0 + 100 / 2.2 + 13.0),
            (-100.0, 550.0, -20.0, 550 / 6.5 + 100 / 4.5 + 13.0),
        ],
    )
    def test_by_hand(self, storage: float, load: float, outdoor: float, expected: float) -> None:
        power = PLANT.power(np.array(storage), np.array(load), np.array(outdoor))
        assert power == pytest.approx(expected, rel=1e-9)

    def test_falls_with_discharge_everywhere(self) -> None:
        u = np.linspace(-400.0, 450.0, 851)
        for load in (20.0, 90.0, 130.0, 250.0, 451.0, 640.0):
            for outdoor in (10.0, 25.0, 38.0, 46.0):
                inside = u[(u >= -float(PLANT.charge_limit(np.array(load)))) & (u <= load)]
                power = PLANT.power(inside, load + 0.0 * inside, outdoor + 0.0 * inside)
                assert np.all(np.diff(power) < 0.0)

    def test_rises_with_load_and_with_heat(self) -> None:
        load = np.linspace(0.0, 650.0, 651)
        assert np.all(np.diff(PLANT.power(0.0 * load, load, 30.0 + 0.0 * load)) > 0.0)
        outdoor = np.linspace(12.0, 50.0, 100)
        power = PLANT.power(0.0 * outdoor - 100.0, 0.0 * outdoor + 300.0, outdoor)
        assert np.all(np.diff(power) >= 0.0)
        assert power[-1] > 1.3 * power[0]


class TestStep:
    def test_by_hand(self) -> None:
        # kept = exp(-0.0005), gain = (1 - kept)/0.002 h
        after = PLANT.step(
            state(1000.0, 20.0, 0.0, 3600.0), np.array([200.0]), disturbance(325.0), 900.0
        )
        kept = 0.9995001249791693
        assert after[0] == pytest.approx(1000 * kept - 200 * (1 - kept) / 0.002, abs=1e-9)
        assert after[0] == pytest.approx(949.5126, abs=1e-4)
        assert after[1] == pytest.approx(125 / 5.3 * 1.456 * (1 + 0.04 / 6) + 5.5)  # new peak
        assert after[2] == 0.0
        assert after[3] == 4500.0

    def test_cost_by_hand(self) -> None:
        power = 325 / 5.3 * 1.03 + 6.5
        cost = PLANT.cost(state(1000.0, power - 2.0), np.zeros(1), disturbance(325.0), 900.0)
        energy = (0.28 + 0.05 * 0.35) * power / 4
        assert cost == pytest.approx(energy + 2.0 * ICE.demand_per_kw_day)

    def test_unmet_load_costs(self) -> None:
        base = PLANT.cost(state(1000.0), np.zeros(1), disturbance(650.0), 900.0)
        more = PLANT.cost(state(1000.0), np.zeros(1), disturbance(690.0), 900.0)
        assert more - base == pytest.approx(40.0 / 4 * 5.0)

    def test_one_step_is_many_small_ones(self) -> None:
        u, w = np.array([-120.0]), disturbance(210.0)
        x = one = state(400.0, 5.0, 0.0, 7200.0)
        cost = 0.0
        for _ in range(15):
            done = PLANT.transition(x, u, w, 60.0)
            x, cost = done.x, cost + done.cost
        whole = PLANT.transition(one, u, w, 900.0)
        np.testing.assert_allclose(x, whole.x, rtol=1e-12)
        assert cost == pytest.approx(float(whole.cost), rel=1e-12)

    def test_the_peak_is_a_mean_over_the_window_not_a_spike(self) -> None:
        x = state(400.0)
        x = PLANT.step(x, np.zeros(1), disturbance(600.0), 300.0)
        assert x[1] == 0.0
        for _ in range(2):
            x = PLANT.step(x, np.zeros(1), disturbance(0.0), 300.0)
        spike = PLANT.power(np.array(0.0), np.array(600.0), np.array(25.0))
        assert x[1] == pytest.approx(spike / 3, rel=1e-6)

    def test_midnight_starts_a_new_day(self) -> None:
        late = state(400.0, 60.0, 0.0, 86400.0 - 900.0)
        done = PLANT.transition(late, np.zeros(1), disturbance(500.0), 900.0)
        assert done.x[1] == 0.0
        assert done.x[3] == 0.0
        power = float(done.flows.power_kw)
        assert done.cost == pytest.approx(0.2975 * power / 4 + ICE.demand_per_kw_day * (power - 60))

    def test_a_days_demand_charge_is_that_of_its_highest_window(self) -> None:
        free = ThermalStorage(
            replace(ICE, demand_per_kw_day=0.0),
        )
        load = 200.0 + 150.0 * np.sin(np.arange(96) / 15.0)
        total, powers = 0.0, []
        x = y = state(700.0)
        for value in load:
            w = disturbance(value)
            one, other = (
                PLANT.transition(x, np.zeros(1), w, 900.0),
                free.transition(y, np.zeros(1), w, 900.0),
            )
            total += float(one.cost - other.cost)
            powers.append(float(one.flows.power_kw))
            x, y = one.x, other.x
        assert total == pytest.approx(ICE.demand_per_kw_day * max(powers))


class TestLimits:
    def test_melt_limit_by_hand(self) -> None:
        # 300 of 1500 kWh: 450 (0.35 + 1.1 * 0.2) = 256.5
        assert PLANT.discharge_limit(np.array(300.0), np.array(500.0)) == pytest.approx(256.5)
        assert PLANT.discharge_limit(np.array(1500.0), np.array(500.0)) == 450.0
        assert PLANT.discharge_limit(np.array(1500.0), np.array(70.0)) == 70.0

    def test_chilled_water_discharges_fully_at_any_charge(self) -> None:
        water = ThermalStorage(CHILLED_WATER)
        assert water.discharge_limit(np.array(10.0), np.array(500.0)) == 450.0

    def test_the_building_is_served_before_the_tank(self) -> None:
        assert PLANT.charge_limit(np.array(600.0)) == 50.0
        assert PLANT.charge_limit(np.array(100.0)) == 400.0
        assert PLANT.charge_limit(np.array(700.0)) == 0.0

    def test_the_tank_never_leaves_its_physical_range(self) -> None:
        rng = np.random.default_rng(1)
        x, u, w = draws(rng, 5000)
        for _ in range(40):
            x = PLANT.step(x, u, w, 900.0)
            assert np.all(x[:, 0] >= -1e-9)
            assert np.all(x[:, 0] <= ICE.capacity_kwh + 1e-9)

    def test_the_operating_band_can_be_left_and_the_margins_tell(self) -> None:
        x = state(1430.0)
        assert PLANT.margins(x, np.zeros(1), disturbance(80.0))[0] == pytest.approx(5 / 1350)
        x = PLANT.step(x, np.array([-400.0]), disturbance(80.0), 900.0)
        assert x[0] == pytest.approx(1500.0)  # full
        low = PLANT.margins(state(60.0), np.zeros(1), disturbance(80.0))
        assert low[1] == pytest.approx(15 / 1350)

    def test_margins_of_the_command_and_of_power(self) -> None:
        g = PLANT.margins(state(300.0), np.array([300.0]), disturbance(500.0))
        assert g[3] == pytest.approx((300.0 - 256.5) / 450)
        g = PLANT.margins(state(300.0), np.array([-300.0]), disturbance(500.0))
        assert g[4] == pytest.approx((300.0 - 150.0) / 400)
        power = PLANT.power(np.array(-150.0), np.array(500.0), np.array(25.0))
        assert g[2] == pytest.approx(float(power) / ICE.power_cap_kw - 1.0)


def test_energy_is_neither_made_nor_lost() -> None:
    x, u, w = draws(np.random.default_rng(2), 20_000)
    for dt_s in (60.0, 300.0, 900.0):
        assert PLANT.balance_residual(x, u, w, dt_s).max() < 1e-9


def test_measurement_reads_back_what_the_tank_really_does() -> None:
    x, w = state(300.0, 44.0, 0.0, 45000.0), disturbance(200.0)
    w[3:] = np.arange(16.0)
    y = PLANT.observations.mapping(PLANT.measure(x, np.array([400.0]), w))
    assert y["storage_flow_kw"] == 200.0  # the building takes no more
    assert y["electric_power_kw"] == pytest.approx(3.0)
    assert y["time_of_day_h"] == 12.5
    assert y["peak_power_kw"] == 44.0
    assert y["load_forecast_01_kw"] == 0.0
    assert y["load_forecast_12_kw"] == 11.0
    assert y["outdoor_forecast_04_degc"] == 15.0


@pytest.mark.parametrize("parameters", [ICE, CHILLED_WATER], ids=["ice", "water"])
def test_torch_and_numpy_agree(parameters: object) -> None:
    torch = pytest.importorskip("torch")
    ours, theirs = ThermalStorage(parameters), ThermalStorage(parameters, xp=torch)
    x, u, w = draws(np.random.default_rng(3), 3000)
    tx, tu, tw = (torch.from_numpy(a.copy()) for a in (x, u, w))
    for dt_s in (300.0, 900.0):
        for name in ("step", "cost", "balance_residual"):
            one = getattr(ours, name)(x, u, w, dt_s)
            other = getattr(theirs, name)(tx, tu, tw, dt_s)
            assert other.dtype == torch.float64
            np.testing.assert_allclose(other.numpy(), one, rtol=1e-12, atol=1e-12)
    for name in ("measure", "margins"):
        one, other = getattr(ours, name)(x, u, w), getattr(theirs, name)(tx, tu, tw)
        np.testing.assert_allclose(other.numpy(), one, rtol=1e-12, atol=1e-12)


def test_gradients_flow_through_the_step() -> None:
    torch = pytest.importorskip("torch")
    plant = ThermalStorage(xp=torch)
    u = torch.tensor([100.0], dtype=torch.float64, requires_grad=True)
    after = plant.step(
        torch.from_numpy(state(800.0)), u, torch.from_numpy(disturbance(300.0)), 900.0
    )
    (slope,) = torch.autograd.grad(after[0], u)
    assert slope.item() == pytest.approx(-(1 - np.exp(-0.0005)) / 0.002)


def test_plain_floats_agree_with_arrays() -> None:
    plain = ThermalStorage(xp=scalars)
    x, _, w = draws(np.random.default_rng(4), 300)
    for (energy, *_), (load, outdoor, *_) in zip(x, w, strict=True):
        for u in (-0.4 * plain.charge_limit(load), 0.3 * load):
            ours = plain.power(float(u), float(load), float(outdoor))
            assert ours == pytest.approx(
                float(PLANT.power(np.array(u), np.array(load), np.array(outdoor))), rel=1e-13
            )
        limit = plain.discharge_limit(float(energy), float(load))
        assert limit == PLANT.discharge_limit(np.array(energy), np.array(load))


def test_initial_state() -> None:
    scenario = generate_batch([1, 2, 3], days=1)
    x = PLANT.initial(scenario)
    np.testing.assert_array_equal(x, [[750.0, 0.0, 0.0, 0.0]] * 3)
    drawn = PLANT.initial(scenario, np.random.default_rng(0))
    assert np.ptp(drawn[:, 0]) > 0.0
    assert np.all((drawn[:, 0] >= 75.0) & (drawn[:, 0] <= 1425.0))
    assert PLANT.initial(Scenario(scenario.w[0], 0.0)).tolist() == [75.0, 0.0, 0.0, 0.0]
