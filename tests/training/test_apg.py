"""Analytic policy gradients: the world against the batched one, gradients against differences."""

import numpy as np
import pytest
import torch
from torch import Tensor

from steadyhand.controllers.plants.thermal_storage import ThermalStorage
from steadyhand.controllers.plants.thermal_storage_optimum import END_VALUE_PER_KWH
from steadyhand.controllers.plants.thermal_storage_scenario import Scenario, generate_batch
from steadyhand.training.methods.apg import ApgSettings, descend
from steadyhand.training.nets import Decision, Scale
from steadyhand.training.thermal_recipe import QUICK, new_decision
from steadyhand.training.worlds.thermal_gradient import ThermalGradientWorld
from steadyhand.training.worlds.thermal_storage import environment


class Follow:
    """x' = x + u, loss (x + u - 3)^2 per segment: the best command is 3 - x."""

    segments = 4

    def initial(self) -> Tensor:
        return torch.tensor([[0.0], [2.0]])

    def run(self, decision: Decision, segment: int, x: Tensor) -> tuple[Tensor, Tensor]:
        del segment
        bounded = torch.tanh(decision.actor(decision.encode(x)))
        after = x + decision.command(bounded, x)
        return after, (after[:, 0] - 3.0) ** 2


def test_descent_finds_the_best_command() -> None:
    torch.manual_seed(0)
    decision = Decision(torch.nn.Identity(), 1, Scale([-5.0], [5.0]), 1, (16,))
    settings = ApgSettings(iterations=150, lr=1e-2)
    losses = list(descend(decision, iter([Follow()] * 150), settings))
    assert len(losses) == 150
    assert losses[-1] < 0.05 < losses[0]
    with torch.no_grad():
        command = decision(torch.tensor([[1.0]])).action
    assert float(command) == pytest.approx(2.0, abs=0.3)


@pytest.fixture(scope="module")
def plant() -> ThermalStorage:
    return ThermalStorage()


@pytest.fixture(scope="module")
def decision(plant: ThermalStorage) -> Decision:
    """Holds about a third of the power cap: far from the edges of the band for some hours."""
    torch.manual_seed(1)
    made = new_decision(plant, QUICK)
    last = made.actor.body[-1]
    with torch.no_grad():
        last.bias.fill_(-0.45)
    return made


def test_a_day_costs_what_the_batched_world_says(plant: ThermalStorage, decision: Decision) -> None:
    scenario = generate_batch(range(4), days=1)
    world = ThermalGradientWorld(plant, scenario, np.full(4, 0.5), correction_price=0.0)
    with torch.no_grad():
        after, loss = world.run(decision, 0, world.initial())
    env = environment(plant, scenario)
    observation = env.reset()
    start, total = env.state[:, 0].copy(), np.zeros(4)
    for _ in range(96):
        with torch.no_grad():
            action = decision(torch.from_numpy(observation).float()).action
        step = env.step(action.numpy().astype(np.float64))
        observation, total = step.observation, total + step.cost
    total -= END_VALUE_PER_KWH * (env.state[:, 0] - start)
    # the rows resist softly near the edges in one world and not at all in the other
    np.testing.assert_allclose(loss.numpy(), total, rtol=0.01)
    np.testing.assert_allclose(after[:, 0].numpy(), env.state[:, 0], atol=30.0)


def test_the_gradient_is_the_slope_of_the_days_cost(plant: ThermalStorage) -> None:
    # float64 throughout; the slope with respect to one bias by central differences
    torch.manual_seed(1)
    decision = new_decision(plant, QUICK).double()
    bias = decision.actor.body[-1].bias
    scenario = generate_batch(range(3), days=1)
    world = ThermalGradientWorld(plant, scenario, np.full(3, 0.5), correction_price=0.3)
    for name in ("_w", "_capped", "_start"):
        setattr(world, name, getattr(world, name).double())

    def cost(value: float) -> Tensor:
        with torch.no_grad():
            bias.fill_(value)
        return world.run(decision, 0, world.initial())[1].mean()

    mean = cost(-0.45)
    bias.grad = None
    mean.backward()
    assert bias.grad is not None
    slope = float(bias.grad)
    step = 1e-6
    numeric = (float(cost(-0.45 + step).detach()) - float(cost(-0.45 - step).detach())) / (2 * step)
    assert slope == pytest.approx(numeric, rel=1e-3)
    assert abs(slope) > 1.0


def test_corrections_are_priced(plant: ThermalStorage, decision: Decision) -> None:
    w = generate_batch(range(2), days=1).w
    scenario = Scenario(w)
    losses = []
    for price in (0.0, 100.0):
        world = ThermalGradientWorld(plant, scenario, np.full(2, 0.98), correction_price=price)
        with torch.no_grad():
            losses.append(world.run(decision, 0, world.initial())[1].mean())
    assert losses[1] > losses[0]
