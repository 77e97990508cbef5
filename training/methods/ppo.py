"""Proximal policy optimisation: the clipped loss and one update over a roll-out.

Source: Schulman et al. 2017, arXiv 1707.06347, eq. 7. Advantages are whitened over the batch for
the policy only; returns and values keep their units. Values are not clipped.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from steadyhand.training.nets import Baseline, Decision
from steadyhand.training.rollout import Rollout, gae


@dataclass(frozen=True, slots=True)
class PpoSettings:
    """Numbers of the update."""

    gamma: float = 0.998
    lam: float = 0.95
    clip: float = 0.2
    epochs: int = 4
    minibatch: int = 2048
    lr_actor: float = 3e-4
    lr_baseline: float = 1e-3
    value_weight: float = 0.5
    entropy_weight: float = 0.0
    gradient_norm: float = 0.5
    target_kl: float = 0.02
    """Epochs over the policy stop once the approximate KL divergence passes this."""


@dataclass(frozen=True, slots=True)
class PpoReport:
    """What one update did."""

    policy_loss: float
    value_loss: float
    kl: float
    clipped: float
    """Share of samples on the flat side of the clip."""
    epochs: int


def clipped_loss(log_ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """Mean of -min(rho A, clip(rho, 1-c, 1+c) A) with rho = exp(log_ratio), a scalar."""
    ratio = log_ratio.exp()
    bounded = ratio.clamp(1.0 - clip, 1.0 + clip)
    return -torch.minimum(ratio * advantage, bounded * advantage).mean()


def approximate_kl(log_ratio: Tensor) -> Tensor:
    """Low-variance estimate of KL(old | new): mean of (rho - 1) - log rho, a scalar >= 0."""
    return (log_ratio.exp() - 1.0 - log_ratio).mean()


def whiten(x: Tensor) -> Tensor:
    """X with mean 0 and standard deviation 1."""
    return (x - x.mean()) / (x.std() + 1e-8)


class Ppo:
    """Two Adam optimisers and the update; actor and baseline share nothing."""

    def __init__(self, decision: Decision, baseline: Baseline, settings: PpoSettings) -> None:
        self.decision = decision
        self.baseline = baseline
        self.settings = settings
        self.actor_optimiser = torch.optim.Adam(decision.actor.parameters(), settings.lr_actor)
        self.baseline_optimiser = torch.optim.Adam(baseline.parameters(), settings.lr_baseline)

    def update(
        self, rollout: Rollout, rng: np.random.Generator, *, policy: bool = True
    ) -> PpoReport:
        """Several epochs of minibatches over one roll-out.

        Args:
            rollout: collected with the present policy.
            rng: shuffles the minibatches.
            policy: False trains only the baseline (warm-up behind a cloned policy).
        """
        s = self.settings
        advantage, returns = gae(
            rollout.reward,
            rollout.value.numpy().astype(np.float64),
            rollout.last_value,
            s.gamma,
            s.lam,
        )
        features = rollout.features.flatten(0, 1)
        raw = rollout.raw.flatten(0, 1)
        old = rollout.log_prob.flatten()
        advantages = whiten(torch.from_numpy(advantage.ravel()).float())
        targets = torch.from_numpy(returns.ravel()).float()
        policy_loss = value_loss = kl = clipped = 0.0
        epoch = batches = policy_batches = 0
        moving = policy
        while epoch < s.epochs:
            epoch += 1
            for chosen in _minibatches(len(old), s.minibatch, rng):
                value_loss += self._value_step(features[chosen], targets[chosen])
                batches += 1
                if not moving:
                    continue
                loss, divergence, share = self._policy_step(
                    features[chosen], raw[chosen], old[chosen], advantages[chosen]
                )
                policy_loss, kl, clipped = policy_loss + loss, divergence, clipped + share
                policy_batches += 1
                moving = divergence <= s.target_kl
        steps = max(policy_batches, 1)
        return PpoReport(policy_loss / steps, value_loss / batches, kl, clipped / steps, epoch)

    def anneal(self, share: float) -> None:
        """Set the policy's learning rate to `share` of its start."""
        for group in self.actor_optimiser.param_groups:
            group["lr"] = share * self.settings.lr_actor

    def _policy_step(
        self, features: Tensor, raw: Tensor, old: Tensor, advantage: Tensor
    ) -> tuple[float, float, float]:
        actor, s = self.decision.actor, self.settings
        log_ratio = actor.log_prob(actor(features), raw) - old
        loss = clipped_loss(log_ratio, advantage, s.clip) - s.entropy_weight * actor.entropy()
        descend(self.actor_optimiser, loss, actor, s.gradient_norm)
        with torch.no_grad():
            share = ((log_ratio.exp() - 1.0).abs() > s.clip).float().mean()
            return float(loss), float(approximate_kl(log_ratio)), float(share)

    def _value_step(self, features: Tensor, targets: Tensor) -> float:
        baseline, s = self.baseline, self.settings
        error = (baseline(features) - targets) / baseline.return_scale
        loss = s.value_weight * (error * error).mean()
        descend(self.baseline_optimiser, loss, baseline, s.gradient_norm)
        return float(loss.detach())


def descend(
    optimiser: torch.optim.Optimizer, loss: Tensor, module: nn.Module, gradient_norm: float
) -> None:
    """One step of the optimiser with the gradient's norm clipped."""
    optimiser.zero_grad(set_to_none=True)
    torch.autograd.backward(loss)
    nn.utils.clip_grad_norm_(module.parameters(), gradient_norm)
    optimiser.step()


def _minibatches(n: int, size: int, rng: np.random.Generator) -> list[Tensor]:
    order = torch.from_numpy(rng.permutation(n))
    return list(torch.split(order, size))
