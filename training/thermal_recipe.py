"""How the thermal-storage controller is made: clone, improve, descend, learn to judge itself.

1. Clone: DAgger on the costs of a teacher with perfect foresight, fresh episodes every round.
2. Improve: PPO with the safety layer in the loop. The reward is shaped with the teacher's
   cost-to-go, so what is learned from is the regret of each tick instead of the money of a day.
3. Descend: analytic policy gradients through the plant's equations, a day at a time, on episodes
   that were never seen before and without the teacher. Last, because a day's peak makes noise dear:
   PPO's policy is the best for itself *with* its exploration.
4. Judge: CARE on fresh roll-outs of the frozen policy: value and error of the next hours' return,
   confidence that they go well.

Everything is drawn from TRAINING_SEEDS; each stage has a range of its own.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle

import numpy as np
import torch
from numpy.typing import NDArray

from steadyhand.controllers.plants.thermal_storage import N_LOAD_FORECAST, ThermalStorage
from steadyhand.controllers.plants.thermal_storage_scenario import (
    EPISODE_DAYS,
    TICKS_PER_DAY,
    TRAINING_SEEDS,
    Scenario,
    generate_batch,
)
from steadyhand.training.methods import apg
from steadyhand.training.methods.apg import ApgSettings
from steadyhand.training.methods.care import CareData, CareSettings, fit_care, success_event
from steadyhand.training.methods.care import windowed_sum as windowed
from steadyhand.training.methods.clone import CloneData, CloneSettings, Pupil, label
from steadyhand.training.methods.ppo import Ppo, PpoSettings
from steadyhand.training.nets import Baseline, Decision
from steadyhand.training.progress import stage
from steadyhand.training.rollout import Rollout, collect
from steadyhand.training.seeding import generator, make_deterministic
from steadyhand.training.worlds.thermal_backup import advantage_over_backup
from steadyhand.training.worlds.thermal_features import (
    N_FEATURES,
    PowerLevel,
    ThermalFeatures,
)
from steadyhand.training.worlds.thermal_gradient import ThermalGradientWorld
from steadyhand.training.worlds.thermal_storage import environment
from steadyhand.training.worlds.thermal_teacher import Teacher

Array = NDArray[np.float64]

Pools = list[tuple[Scenario, Teacher]]
"""Sets of training episodes with their teachers."""

_SEEDS_PER_RUN = 2000
"""A run's seed chooses its own block of training episodes, so that seeds differ in data too."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Every number of a run."""

    season: str = "hot_weeks"
    hidden: tuple[int, ...] = (64, 64)
    correction_price: float = 1.0
    days: int = EPISODE_DAYS
    """Of an episode."""
    episodes: int = 32
    """Per roll-out."""
    pools: int = 6
    """Sets of training episodes, used in turn."""
    clone: CloneSettings = field(default_factory=lambda: CloneSettings(rounds=20))
    clone_memory: int = 8
    """Roll-outs kept: mistakes of an old policy teach little."""
    apg: ApgSettings = field(default_factory=lambda: ApgSettings(iterations=109, episodes=64))
    ppo: PpoSettings = field(
        default_factory=lambda: PpoSettings(gamma=0.99, lr_actor=1e-4, minibatch=4096)
    )
    ppo_iterations: int = 30
    warm_up: int = 5
    """Iterations in which only the baseline learns."""
    log_std: float = -4.0
    care: CareSettings = field(default_factory=lambda: CareSettings(tolerance=2.0, epochs=12))
    care_episodes: int = 96
    care_seasons: tuple[tuple[str, float], ...] = (
        ("hot_weeks", 1.0), ("hot_weeks", 1.1), ("summer", 1.0),
    )  # fmt: skip
    """Season and gain of the load: who never saw trouble cannot tell it."""
    return_scale: float = 50.0


QUICK = Recipe(
    clone=CloneSettings(rounds=2, epochs=2),
    days=1,
    episodes=4,
    pools=1,
    apg=ApgSettings(iterations=1, episodes=2),
    ppo_iterations=3,
    warm_up=1,
    care=CareSettings(tolerance=100.0, epochs=2),
    care_episodes=4,
)
"""Seconds instead of minutes; for tests, good for nothing else."""


def new_decision(plant: ThermalStorage, recipe: Recipe) -> Decision:
    """Untrained networks; weights come from torch's seed."""
    return Decision(
        ThermalFeatures(plant.parameters),
        N_FEATURES,
        PowerLevel(plant.parameters),
        len(plant.outputs),
        recipe.hidden,
        recipe.log_std,
        recipe.return_scale,
    )


def train(plant: ThermalStorage, recipe: Recipe, seed: int) -> Iterator[tuple[str, Decision]]:
    """Yield the decision after each stage: "clone", "ppo", "apg", "care".

    The same object each time: look at it before asking for the next stage.
    """
    make_deterministic(seed)
    decision = new_decision(plant, recipe)
    pools = training_pools(plant, recipe, seed)
    clone(decision, plant, recipe, seed, pools)
    yield "clone", decision
    improve(decision, plant, recipe, seed, pools)
    yield "ppo", decision
    descend(decision, plant, recipe, seed)
    yield "apg", decision
    judge(decision, plant, recipe, seed)
    yield "care", decision


def training_pools(plant: ThermalStorage, recipe: Recipe, seed: int) -> Pools:
    """Sets of training episodes with their teachers."""
    pools = []
    with stage("solve training episodes", recipe.pools) as bar:
        for k in range(recipe.pools):
            scenario = _episodes(recipe, recipe.season, seed, k * recipe.episodes, recipe.episodes)
            price = recipe.correction_price
            pools.append((scenario, Teacher.solve(plant, scenario, correction_price=price)))
            bar.advance()
    return pools


def clone(
    decision: Decision, plant: ThermalStorage, recipe: Recipe, seed: int, pools: Pools
) -> None:
    """Stage 1; also fits the normaliser."""
    rng, noise = generator(seed, "clone"), _noise(seed, 1)
    pupil = Pupil(decision, recipe.clone)
    recent: deque[CloneData] = deque(maxlen=recipe.clone_memory)
    with stage("clone the optimum", recipe.clone.rounds) as bar:
        for k in range(recipe.clone.rounds):
            scenario, teacher = pools[k % len(pools)]
            env = environment(plant, scenario, rng)
            observations, regret = label(
                decision, env, teacher, recipe.clone, None if k == 0 else noise
            )
            if k == 0:
                decision.normaliser.fit(decision.features(observations))
            with torch.no_grad():
                recent.append(CloneData(decision.encode(observations), regret))
            data = CloneData(
                torch.cat([part.features for part in recent]),
                torch.cat([part.regret for part in recent]),
            )
            share = 1.0 - 0.95 * k / recipe.clone.rounds
            mean = pupil.fit(data, rng, share)
            bar.advance(f"regret {mean * TICKS_PER_DAY:.2f} a day")


def descend(decision: Decision, plant: ThermalStorage, recipe: Recipe, seed: int) -> None:
    """Stage 3: fresh episodes, half of them from any charge of the tank."""
    rng = generator(seed, "apg")
    first = cycle(range(3000, 10_000 - recipe.apg.episodes + 1, recipe.apg.episodes))

    def worlds() -> Iterator[ThermalGradientWorld]:
        for k, start in enumerate(first):
            scenario = _episodes(recipe, recipe.season, seed, start, recipe.apg.episodes)
            usual = np.full(recipe.apg.episodes, scenario.initial_charge)
            charge = usual if k % 2 == 0 else rng.uniform(0.0, 1.0, recipe.apg.episodes)
            yield ThermalGradientWorld(plant, scenario, charge, recipe.correction_price)

    with stage("descend through the plant", recipe.apg.iterations) as bar:
        for loss in apg.descend(decision, worlds(), recipe.apg):
            bar.advance(f"cost {loss:.2f} a day")


def improve(
    decision: Decision, plant: ThermalStorage, recipe: Recipe, seed: int, pools: Pools
) -> None:
    """Stage 2."""
    rng, noise = generator(seed, "ppo"), _noise(seed, 2)
    with torch.no_grad():
        decision.actor.log_std.fill_(recipe.log_std)
    baseline = Baseline(N_FEATURES, recipe.hidden, return_scale=2.0)
    ppo = Ppo(decision, baseline, recipe.ppo)
    with stage("PPO behind the filter", recipe.ppo_iterations) as bar:
        for i in range(recipe.ppo_iterations):
            ppo.anneal(1.0 - 0.9 * i / recipe.ppo_iterations)
            scenario, teacher = pools[i % len(pools)]
            env = environment(
                plant,
                scenario,
                rng,
                correction_price=recipe.correction_price,
                potential=teacher.potential,
            )
            rollout = collect(decision, env, noise, baseline)
            ppo.update(rollout, rng, policy=i >= recipe.warm_up)
            days = rollout.reward.shape[0] / TICKS_PER_DAY
            bar.advance(f"regret {-rollout.reward.sum(0).mean() / days:.2f} a day")


def judge(decision: Decision, plant: ThermalStorage, recipe: Recipe, seed: int) -> None:
    """Stage 4: the policy is frozen, only the critic learns."""
    rng, noise = generator(seed, "care"), _noise(seed, 3)
    parts: list[CareData] = []
    each = recipe.care_episodes // len(recipe.care_seasons)
    with stage("learn to judge itself", len(recipe.care_seasons) + 1) as bar:
        for season, gain in recipe.care_seasons:
            scenario = heavier(_episodes(recipe, season, seed, 1500, each), gain)
            teacher = Teacher.solve(plant, scenario)
            for explore in (None, noise):
                rollout = collect(decision, environment(plant, scenario, rng), explore)
                parts.append(care_data(rollout, teacher, recipe.care))
            bar.advance()
        data = CareData(
            torch.cat([part.features for part in parts]),
            torch.cat([part.action for part in parts]),
            torch.cat([part.returns for part in parts]),
            torch.cat([part.event for part in parts]),
        )
        losses = fit_care(decision, data, recipe.care, rng)
        bar.advance(f"loss {losses[-1]:.3f}")


def care_data(rollout: Rollout, teacher: Teacher, settings: CareSettings) -> CareData:
    """Judged ticks of a roll-out: those with a whole horizon ahead.

    G is minus the money of the coming horizon, undiscounted: it can be read off the meter.
    """
    event = events(rollout, teacher, settings)
    n = len(event)
    returns = -windowed(rollout.cost, settings.horizon_ticks)
    return CareData(
        rollout.features[:n].flatten(0, 1),
        torch.tanh(rollout.raw[:n]).flatten(0, 1),
        torch.from_numpy(returns.ravel()).float(),
        torch.from_numpy(event.ravel()).float(),
    )


def events(rollout: Rollout, teacher: Teacher, settings: CareSettings) -> NDArray[np.bool_]:
    """Y (T - H + 1, B)."""
    ahead = advantage_over_backup(teacher, rollout.states, rollout.cost, settings.horizon_ticks)
    return success_event(rollout.violated, rollout.correction, ahead, settings)


def heavier(scenario: Scenario, gain: float) -> Scenario:
    """The same episodes with load and its forecasts `gain` times as high."""
    w = scenario.w.copy()
    w[..., 0] *= gain
    w[..., 3 : 3 + N_LOAD_FORECAST] *= gain
    return Scenario(w, scenario.initial_charge)


def _episodes(recipe: Recipe, season: str, seed: int, first: int, count: int) -> Scenario:
    start = (seed * _SEEDS_PER_RUN + first) % len(TRAINING_SEEDS)
    seeds = [(start + i) % len(TRAINING_SEEDS) for i in range(count)]
    return generate_batch(seeds, recipe.days, season)


def _noise(seed: int, stream: int) -> torch.Generator:
    return torch.Generator().manual_seed(1_000_003 * seed + stream)
