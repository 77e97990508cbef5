r"""Warm start from a teacher: behaviour cloning, then DAgger with the price of each mistake.

Roll-outs of the teacher, then of the pupil itself (so that it learns where *it* goes), every state
labelled with the teacher's cost Q(x, u_k) on a grid of commands. The loss is the mean regret

    L = E[ Q(x, pi(x)) - min_k Q(x, u_k) ] / scale,     Q interpolated linearly between the u_k

so a mistake weighs what it costs, and a command that is as good as the teacher's costs nothing.
Sources: DAgger, Ross et al. 2011 (arXiv 1011.0686); costs instead of labels, AggreVaTe, Ross and
Bagnell 2014 (arXiv 1406.5979).

The teacher may know what the pupil cannot see (the future). Then no pupil reaches it: the loss
stays above zero, and what it learns is the best answer to the teacher's costs, not to the world's.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from steadyhand.training.methods.ppo import descend
from steadyhand.training.nets import Decision
from steadyhand.training.worlds.plant_env import PlantEnv

Array = NDArray[np.float64]


class CostTeacher(Protocol):
    """Knows what each command costs."""

    def action(self, tick: int, x: Array) -> Array:
        """Best command (B, n_u) at states x (B, n_x)."""
        ...

    def action_costs(self, tick: int, x: Array, commands: Array) -> Array:
        """Cost (B, n) of commands (B, n) of the one output."""
        ...


@dataclass(frozen=True, slots=True)
class CloneSettings:
    """Numbers of the warm start."""

    commands: int = 121
    """Even grid over the bounded action [-1, 1] that Q is tabulated on."""
    rounds: int = 48
    """Roll-outs: the first by the teacher, the others by the pupil."""
    epochs: int = 6
    """Epochs over the roll-outs kept, after each roll-out."""
    noise: float = 0.01
    """Exploration of the pupil's roll-outs, in bounded units [-1, 1]. Keep it small: noise raises
    the day's peak, and behind a peak that is paid for most mistakes cost nothing."""
    cost_scale: float = 1.0
    """Money that counts as one in the loss."""
    lr: float = 1e-3
    minibatch: int = 1024
    gradient_norm: float = 1.0


@dataclass(frozen=True, slots=True)
class CloneData:
    """Labelled states."""

    features: Tensor
    """(n, n_features) normalised."""
    regret: Tensor
    """(n, commands) Q(x, u_k) - min Q at even bounded actions."""


def regret_at(regret: Tensor, bounded: Tensor) -> Tensor:
    """Regret (n,) at bounded commands (n,) in [-1, 1]: linear between even knots (n, k)."""
    last = regret.shape[-1] - 1
    position = (0.5 * (bounded + 1.0) * last).clamp(0.0, float(last))
    i = position.detach().floor().clamp(max=last - 1).long()
    share = position - i
    low = regret.gather(-1, i[:, None])[:, 0]
    high = regret.gather(-1, i[:, None] + 1)[:, 0]
    return low + share * (high - low)


@torch.no_grad()
def label(
    decision: Decision,
    env: PlantEnv,
    teacher: CostTeacher,
    settings: CloneSettings,
    pupil: torch.Generator | None,
) -> tuple[Tensor, Tensor]:
    """One roll-out with labels: raw observations (n, n_y) and regrets (n, commands).

    Args:
        decision: the pupil.
        env: reset by this function.
        teacher: of the same episodes as `env`.
        settings: grid and noise.
        pupil: its noise if the pupil acts; None if the teacher acts.
    """
    grid = torch.linspace(-1.0, 1.0, settings.commands).reshape(-1, 1, 1)
    observation = env.reset()
    seen, regrets = [], []
    for tick in range(env.ticks):
        shown = torch.from_numpy(observation.astype(np.float32))
        commands = decision.command(grid.expand(-1, env.batch, 1), shown)[..., 0].T
        costs = teacher.action_costs(tick, env.state, commands.numpy().astype(np.float64))
        seen.append(shown)
        regrets.append(torch.from_numpy(costs - costs.min(-1, keepdims=True)).float())
        if pupil is None:
            action = teacher.action(tick, env.state)
        else:
            mean = torch.tanh(decision.actor(decision.encode(shown)))
            noise = settings.noise * torch.randn(mean.shape, generator=pupil)
            bounded = (mean + noise).clamp(-1.0, 1.0)
            action = decision.command(bounded, shown).numpy().astype(np.float64)
        observation = env.step(action).observation
    return torch.cat(seen), torch.cat(regrets)


class Pupil:
    """Optimiser of the actor and one call per roll-out."""

    def __init__(self, decision: Decision, settings: CloneSettings) -> None:
        self.decision = decision
        self.settings = settings
        self.optimiser = torch.optim.Adam(decision.actor.parameters(), settings.lr)

    def fit(self, data: CloneData, rng: np.random.Generator, share: float = 1.0) -> float:
        """Some epochs of the loss; mean regret of the last one, in money per tick.

        Args:
            data: labelled states.
            rng: shuffles.
            share: of the learning rate.
        """
        actor, s = self.decision.actor, self.settings
        for group in self.optimiser.param_groups:
            group["lr"] = share * s.lr
        mean = 0.0
        for _ in range(s.epochs):
            total = 0.0
            order = torch.from_numpy(rng.permutation(len(data.features)))
            for chosen in torch.split(order, s.minibatch):
                bounded = torch.tanh(actor(data.features[chosen]))[:, 0]
                regret = regret_at(data.regret[chosen], bounded).mean()
                descend(self.optimiser, regret / s.cost_scale, actor, s.gradient_norm)
                total += float(regret.detach()) * len(chosen)
            mean = total / len(data.features)
        return mean
