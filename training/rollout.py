"""Batched roll-outs and generalised advantage estimation. Time first: (T, B, …)."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from steadyhand.training.nets import Baseline, Decision
from steadyhand.training.worlds.plant_env import PlantEnv, Step

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Rollout:
    """T ticks of B plants."""

    features: Tensor
    """(T, B, n_features) normalised."""
    raw: Tensor
    """(T, B, n_u) raw Gaussian action."""
    log_prob: Tensor
    """(T, B) of `raw` under the policy that acted."""
    value: Tensor
    """(T, B) baseline before the update; zero without one."""
    reward: Array
    """(T, B) as the environment pays it, in units of money."""
    cost: Array
    """(T, B) money spent."""
    correction: Array
    """(T, B) share of the input range by which the safety layer moved the command."""
    violated: NDArray[np.bool_]
    """(T, B) a hard row was broken."""
    last_value: Array
    """(B,) V behind the last tick; zero where the episode ends there."""
    states: Array
    """(T + 1, B, n_x) plant states, the last behind the last tick."""
    observations: Array
    """(T, B, n_y) raw observation at each tick."""
    applied: Array
    """(T, B, n_u) what the plant was told, behind the safety layer."""


def gae(
    reward: Array, value: Array, last_value: Array, gamma: float, lam: float
) -> tuple[Array, Array]:
    r"""Generalised advantage estimation (Schulman et al. 2016, arXiv 1506.02438, eq. 16).

    delta_t = r_t + gamma V_{t+1} - V_t,   A_t = delta_t + gamma lambda A_{t+1},   G_t = A_t + V_t

    Args:
        reward: (T, B).
        value: (T, B) V at each tick.
        last_value: (B,) V behind the last tick; zero where the episode has ended.
        gamma: discount per tick.
        lam: trace decay.

    Returns:
        Advantages and lambda-returns, both (T, B).
    """
    advantage = np.zeros_like(reward)
    running = np.zeros_like(last_value)
    following = last_value
    for t in range(reward.shape[0] - 1, -1, -1):
        delta = reward[t] + gamma * following - value[t]
        running = delta + gamma * lam * running
        advantage[t] = running
        following = value[t]
    return advantage, advantage + value


@torch.no_grad()
def collect(
    decision: Decision,
    env: PlantEnv,
    generator: torch.Generator | None = None,
    baseline: Baseline | None = None,
) -> Rollout:
    """Run the policy over every episode of `env`, from its reset to its end.

    Args:
        decision: the policy.
        env: reset by this function.
        generator: source of exploration noise; None acts deterministically.
        baseline: of the advantage.
    """
    observation = env.reset()
    acted: list[tuple[Tensor, Tensor, Tensor]] = []
    steps: list[Step] = []
    states, observations = [env.state], [observation]
    std = torch.exp(decision.actor.log_std)
    for _ in range(env.ticks):
        seen = torch.from_numpy(observation.astype(np.float32))
        features = decision.encode(seen)
        mean = decision.actor(features)
        raw = mean
        if generator is not None:
            raw = mean + std * torch.randn(mean.shape, generator=generator)
        acted.append((features, raw, decision.actor.log_prob(mean, raw)))
        action = decision.command(torch.tanh(raw), seen).numpy().astype(np.float64)
        steps.append(env.step(action))
        observation = steps[-1].observation
        states.append(env.state)
        observations.append(observation)
    features, raw, log_prob = (torch.stack(column) for column in zip(*acted, strict=True))
    value = torch.zeros(log_prob.shape)
    last_value = np.zeros(env.batch)
    if baseline is not None:
        value = baseline(features)
        if not env.terminal:
            ahead = decision.encode(torch.from_numpy(observation.astype(np.float32)))
            last_value = baseline(ahead).numpy().astype(np.float64)
    return Rollout(
        features=features,
        raw=raw,
        log_prob=log_prob,
        value=value,
        reward=np.stack([step.reward for step in steps]),
        cost=np.stack([step.cost for step in steps]),
        correction=np.stack([step.correction for step in steps]),
        violated=np.stack([step.violated for step in steps]),
        last_value=last_value,
        states=np.stack(states),
        observations=np.stack(observations[:-1]),
        applied=np.stack([step.applied for step in steps]),
    )
