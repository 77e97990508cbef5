"""The batched world against the plant, the real filter, the yardstick and the real rule."""

import numpy as np
import pytest
import torch

from steadyhand.controllers.catalogue import PLANTS
from steadyhand.controllers.errors import ConfigError
from steadyhand.controllers.frames import Observation, Sent
from steadyhand.controllers.heuristics.thermal_storage import DemandLimiting, Reading
from steadyhand.controllers.plants import scalars
from steadyhand.controllers.plants.thermal_storage import PERIOD_S, ThermalStorage
from steadyhand.controllers.plants.thermal_storage_optimum import END_VALUE_PER_KWH, Grid, solve
from steadyhand.controllers.plants.thermal_storage_scenario import Scenario, generate_batch
from steadyhand.training.evaluation.in_the_loop import run_episode, safety_chain
from steadyhand.training.worlds.plant_env import PlantEnv
from steadyhand.training.worlds.thermal_backup import advantage_over_backup, demand_limiting
from steadyhand.training.worlds.thermal_features import N_FEATURES, PowerLevel, ThermalFeatures
from steadyhand.training.worlds.thermal_programme import solve_batch
from steadyhand.training.worlds.thermal_storage import StorageShield, environment
from steadyhand.training.worlds.thermal_teacher import Teacher

KIND = PLANTS["thermal_storage"]
SMALL = Grid(energies=21, peaks=9, actions=9)


@pytest.fixture(scope="module")
def plant() -> ThermalStorage:
    return ThermalStorage()


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return generate_batch(range(3), days=1)


@pytest.fixture(scope="module")
def teacher(plant: ThermalStorage, scenario: Scenario) -> Teacher:
    return Teacher.solve(plant, scenario, SMALL)


def image(plant: ThermalStorage, x: np.ndarray, w: np.ndarray) -> Observation:
    values = plant.measure(x, np.zeros(1), w)
    n = len(values)
    return Observation(1, 0.0, values, np.zeros(n), np.zeros(n, dtype=np.int8), np.zeros(1))


def test_shield_is_the_real_filter(plant: ThermalStorage) -> None:
    scenario = generate_batch(range(4), days=1)
    shield, chain = StorageShield(plant, scenario.w), safety_chain(KIND, plant)
    p, rng = plant.parameters, np.random.default_rng(0)
    edges = [p.energy_low_kwh, p.energy_high_kwh]
    for trial in range(600):
        b, tick = int(rng.integers(4)), int(rng.integers(96))
        near = float(rng.choice(edges)) + 80.0 * rng.normal()
        energy = rng.uniform(*edges) if trial % 2 else np.clip(near, 0.0, p.capacity_kwh)
        x = np.zeros((4, 4))
        x[:, 0], x[:, 3] = energy, tick * PERIOD_S
        wanted = rng.uniform(plant.outputs.low, plant.outputs.high)
        mine = shield(tick, x, np.tile(wanted, (4, 1)))[b, 0]
        sent = Sent(np.zeros(1), 0, -PERIOD_S, written=True)
        real = chain.certify(image(plant, x[b], scenario.w[b, tick]), wanted, sent)
        outside = not edges[0] <= energy <= edges[1]
        # outside the band the filter shares the way back between its rows and its input set
        tolerance = 10.0 if outside else 1e-3
        assert mine == pytest.approx(float(real.action[0]), abs=tolerance), (energy, wanted)


def test_environment_is_the_plant_behind_the_filter(plant: ThermalStorage) -> None:
    scenario = generate_batch(range(2), days=1)
    rng = np.random.default_rng(1)
    wanted = rng.uniform(-400.0, 450.0, size=(96, 1))
    env = environment(plant, scenario, end_value=True)
    env.reset()
    steps = [env.step(np.tile(u, (2, 1))) for u in wanted]
    for b in range(2):
        x0 = plant.initial(Scenario(scenario.w[b]))
        ticks = iter(wanted)
        real = run_episode(KIND, plant, scenario.w[b], x0, lambda _, ticks=ticks: next(ticks))
        np.testing.assert_allclose([s.applied[b, 0] for s in steps], real.applied[:, 0], atol=1e-3)
        stored = real.states[-1, 0] - x0[0]
        total = real.cost.sum() - END_VALUE_PER_KWH * stored
        assert sum(s.cost[b] for s in steps) == pytest.approx(total, rel=1e-5)
        assert not any(s.violated[b] for s in steps)


def test_shaping_takes_the_worth_of_the_states_out_of_the_reward(
    plant: ThermalStorage, scenario: Scenario, teacher: Teacher
) -> None:
    plain = environment(plant, scenario)
    shaped = environment(plant, scenario, potential=teacher.potential)
    plain.reset()
    first = shaped.reset()
    start = shaped.state
    action = np.full((3, 1), 50.0)
    total = sum(shaped.step(action).reward - plain.step(action).reward for _ in range(96))
    del first
    worth = teacher.potential(96, shaped.state) - teacher.potential(0, start)
    np.testing.assert_allclose(total, worth, atol=1e-9)


def test_correction_price_is_charged_on_the_reward_only(plant: ThermalStorage) -> None:
    scenario = generate_batch(range(1), days=1)
    env = environment(plant, scenario, correction_price=10.0)
    env.reset()
    step = env.step(np.array([[450.0]]))  # at midnight the load is far below 450 kW
    assert step.correction[0] > 0.1
    assert step.reward[0] == pytest.approx(-step.cost[0] - 10.0 * step.correction[0])


def test_environment_refuses_shapes_that_do_not_belong_together(plant: ThermalStorage) -> None:
    scenario = generate_batch(range(2), days=1)
    shield = StorageShield(plant, scenario.w)
    with pytest.raises(ConfigError, match="same B"):
        PlantEnv(plant, scenario.w, np.zeros((3, 4)), shield)


def test_batched_programme_is_the_yardstick(plant: ThermalStorage, scenario: Scenario) -> None:
    shield = StorageShield(plant, scenario.w, power_error=0.0)
    energies, peaks, value = solve_batch(plant, scenario.w, SMALL, shield, filtered=False)
    for b, w in enumerate(scenario.w):
        optimum = solve(plant, w, SMALL)
        np.testing.assert_allclose(energies, optimum.energy_grid)
        np.testing.assert_allclose(peaks[b], optimum.peak_grid)
        np.testing.assert_allclose(value[b], optimum.value, rtol=1e-5, atol=1e-3)


def test_the_filter_never_makes_the_optimum_cheaper(
    plant: ThermalStorage, scenario: Scenario, teacher: Teacher
) -> None:
    shield = StorageShield(plant, scenario.w, power_error=0.0)
    _, _, free = solve_batch(plant, scenario.w, SMALL, shield, filtered=False)
    middle = teacher.value[:, 0, 10, 0]
    assert (middle >= free[:, 0, 10, 0] - 1e-3).all()
    assert (middle <= 1.05 * free[:, 0, 10, 0]).all()


def test_teacher_earns_what_its_tables_promise(
    plant: ThermalStorage, scenario: Scenario, teacher: Teacher
) -> None:
    env = environment(plant, scenario, end_value=True)
    env.reset()
    promised = teacher.cost_to_go(0, env.state[:, 0], env.state[:, 1])
    promised += END_VALUE_PER_KWH * env.state[:, 0]
    spent = sum(env.step(teacher.action(t, env.state)).cost for t in range(96))
    np.testing.assert_allclose(spent, promised, rtol=0.01)


def test_no_command_beats_the_teachers_by_its_own_account(
    plant: ThermalStorage, scenario: Scenario, teacher: Teacher
) -> None:
    x = plant.initial(scenario)
    best = teacher.action(40, x)
    costs = teacher.action_costs(40, x, np.linspace(-400.0, 450.0, 101))
    assert (teacher.action_costs(40, x, best)[:, 0] <= costs.min(-1) + 0.02).all()


def test_batched_rule_is_the_real_rule(plant: ThermalStorage) -> None:
    scenario = generate_batch(range(2), days=1)
    rule, model = DemandLimiting(), ThermalStorage(xp=scalars)
    rng = np.random.default_rng(4)
    x = np.zeros((2, 96, 4))
    x[..., 0], x[..., 1] = rng.uniform(75.0, 1425.0, (2, 96)), rng.uniform(0.0, 150.0, (2, 96))
    x[..., 3] = PERIOD_S * np.arange(96)
    mine = demand_limiting(plant, rule, x, scenario.w)
    for b in range(2):
        for t in range(0, 96, 5):
            w = scenario.w[b, t]
            now = Reading(x[b, t, 0], w[0], w[1], x[b, t, 1], t / 4.0)
            assert mine[b, t] == pytest.approx(rule.wanted(now, model), abs=1e-6)


def test_the_backup_has_no_advantage_over_itself(
    plant: ThermalStorage, scenario: Scenario, teacher: Teacher
) -> None:
    env = environment(plant, scenario)
    env.reset()
    states, costs = [env.state], []
    for t in range(96):
        wanted = demand_limiting(plant, DemandLimiting(), env.state, scenario.w[:, t])
        costs.append(env.step(wanted[:, None]).cost)
        states.append(env.state)
    ahead = advantage_over_backup(teacher, np.stack(states), np.stack(costs), horizon=8)
    assert ahead.shape == (89, 3)
    np.testing.assert_allclose(ahead, 0.0, atol=1e-6)


def test_waste_is_a_disadvantage_of_its_price(
    plant: ThermalStorage, scenario: Scenario, teacher: Teacher
) -> None:
    env = environment(plant, scenario)
    env.reset()
    states, costs = [env.state], []
    for t in range(8):
        wanted = demand_limiting(plant, DemandLimiting(), env.state, scenario.w[:, t])
        costs.append(env.step(wanted[:, None]).cost)
        states.append(env.state)
    costs[3] = costs[3] + 7.0
    ahead = advantage_over_backup(teacher, np.stack(states), np.stack(costs), horizon=8)
    np.testing.assert_allclose(ahead, -7.0, atol=1e-6)


def test_features_read_tariff_and_forecast() -> None:
    # 10:00, every forecast window 200 kW: 2 h to the dear hours, which need 6 h * 200 kW
    observation = torch.zeros(1, 24)
    observation[0, 0], observation[0, 1], observation[0, 2] = 775.0, 200.0, 30.0
    observation[0, 6] = 10.0
    observation[0, 8:20] = 200.0
    features = ThermalFeatures()
    row = features(observation)[0]
    assert row.shape == (N_FEATURES,)
    tariff = row[13:29]
    band = features.numbers.band_kwh
    torch.testing.assert_close(tariff[:4], torch.tensor([22.0, 2.0, 8.0, 12.0]) / 24.0)
    torch.testing.assert_close(tariff[4:6], torch.tensor([0.0, 0.0]))
    torch.testing.assert_close(tariff[6], torch.tensor(1200.0 / band))
    torch.testing.assert_close(tariff[7], torch.tensor(400.0 / band))
    torch.testing.assert_close(tariff[8], torch.tensor(2400.0 / (2.0 * band)))
    torch.testing.assert_close(tariff[10], torch.tensor((1200.0 - 700.0) / band))
    # 13:30: 4.5 of the dear hours are left
    observation[0, 6] = 13.5
    dear = features(observation)[0][13:29]
    assert float(dear[4]) == 1.0
    torch.testing.assert_close(dear[6], torch.tensor(4.5 * 200.0 / band))


def test_the_level_map_draws_the_power_it_was_asked_for(plant: ThermalStorage) -> None:
    w = generate_batch(range(3), days=1).w[:, ::7].reshape(-1, 19)
    rng = np.random.default_rng(2)
    x = np.zeros((len(w), 4))
    x[:, 0] = rng.uniform(300.0, 1200.0, len(w))
    seen = plant.measure(x, np.zeros((len(w), 1)), w)
    level = rng.uniform(-1.0, 1.0, (len(w), 1))
    action = PowerLevel()(torch.from_numpy(level).float(), torch.from_numpy(seen).float())
    u = action.numpy().astype(np.float64)[:, 0]
    drawn = plant.power(u, w[:, 0], w[:, 1])
    asked = 0.5 * plant.parameters.power_cap_kw * (level[:, 0] + 1.0)
    most, least = plant.discharge_limit(x[:, 0], w[:, 0]), -plant.charge_limit(w[:, 0])
    assert (u <= most + 1e-3).all()
    assert (u >= least - 1e-3).all()
    reachable = (asked < plant.power(least, w[:, 0], w[:, 1]) - 2.0) & (
        asked > plant.power(most, w[:, 0], w[:, 1]) + 2.0
    )
    assert reachable.sum() > 10
    # linear between nine knots: within 2 % of the cap
    assert np.abs(drawn - asked)[reachable].max() < 0.02 * plant.parameters.power_cap_kw
