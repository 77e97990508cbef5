r"""CARE: a critic that says how far to trust the proposal (confidence from the critic of PPO).

PPO throws its critic away after training. Here it is kept and gets two more heads on its own trunk:

    L = c_v (V - G)^2 + c_E Huber(E - |G - V|) + c_a BCE(C, Y)

V is the value, E predicts the critic's own error (the error is a constant target: no gradient
flows through it into V), C is the log-odds of an event Y that can be checked from a log: over the
coming horizon no hard row is broken, the safety layer moves the command by no more than a share q
of its range on average, and the realised return reaches what the backup controller would have made
of the same hours, less a tolerance. V, E and C keep their units: no whitening, no value clipping;
either would break the meaning of a probability. The last epochs train this loss alone, on fresh
roll-outs of the frozen policy; a critic that was trained beside a moving policy lags behind it.

BCE and the Huber loss follow their textbook forms (Huber 1964, delta in units of the return scale).
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, huber_loss

from steadyhand.training.methods.ppo import descend
from steadyhand.training.nets import Decision, Judgement

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class CareSettings:
    """Weights of the loss, and what counts as going well."""

    value_weight: float = 0.5
    error_weight: float = 0.5
    confidence_weight: float = 1.0
    huber_delta: float = 1.0
    """In units of the return scale."""
    horizon_ticks: int = 24
    correction_share: float = 0.05
    """q: largest mean share of the range by which the safety layer may move the command."""
    tolerance: float = 0.0
    """Money by which the return may miss the backup's."""
    gamma: float = 0.998
    lr: float = 1e-3
    epochs: int = 4
    minibatch: int = 2048
    gradient_norm: float = 0.5


class CareLoss(NamedTuple):
    """The total and its three weighted parts, scalars."""

    total: Tensor
    value: Tensor
    error: Tensor
    confidence: Tensor


@dataclass(frozen=True, slots=True)
class CareData:
    """n judged ticks."""

    features: Tensor
    """(n, n_features) normalised."""
    action: Tensor
    """(n, n_u) bounded proposal in [-1, 1]."""
    returns: Tensor
    """(n,) realised return G."""
    event: Tensor
    """(n,) Y, 0 or 1."""


def care_loss(
    judged: Judgement, returns: Tensor, event: Tensor, settings: CareSettings, scale: float
) -> CareLoss:
    """The loss above.

    Args:
        judged: V, E, C, each (n,).
        returns: (n,) realised return G.
        event: (n,) Y, 0 or 1.
        settings: weights.
        scale: typical size of a return; V and E are compared in units of it.
    """
    miss = (returns - judged.value) / scale
    value = settings.value_weight * (miss * miss).mean()
    error = settings.error_weight * huber_loss(
        judged.error / scale, miss.detach().abs(), delta=settings.huber_delta
    )
    confidence = settings.confidence_weight * binary_cross_entropy_with_logits(
        judged.confidence_logit, event
    )
    return CareLoss(value + error + confidence, value, error, confidence)


def windowed_sum(x: Array, horizon: int) -> Array:
    """Sums (T - H + 1, B) over the H ticks that start at each tick of x (T, B)."""
    total = np.concatenate([np.zeros((1, *x.shape[1:])), np.cumsum(x, axis=0)])
    ahead: Array = total[horizon:] - total[:-horizon]
    return ahead


def success_event(
    violated: NDArray[np.bool_],
    correction: Array,
    advantage_over_backup: Array,
    settings: CareSettings,
) -> NDArray[np.bool_]:
    """Y (T - H + 1, B) for every tick with a whole horizon ahead.

    Args:
        violated: (T, B) a hard row is broken.
        correction: (T, B) share of the range by which the command was moved.
        advantage_over_backup: (T - H + 1, B) realised return of the horizon minus the backup's.
        settings: horizon, q and tolerance.
    """
    horizon = settings.horizon_ticks
    kept = windowed_sum(violated.astype(np.float64), horizon) == 0.0
    light = windowed_sum(correction, horizon) / horizon <= settings.correction_share
    paid: NDArray[np.bool_] = advantage_over_backup >= -settings.tolerance
    return kept & light & paid


def fit_care(
    decision: Decision, data: CareData, settings: CareSettings, rng: np.random.Generator
) -> list[float]:
    """Train the critic alone on roll-outs of the frozen policy; mean total loss per epoch."""
    critic = decision.critic
    optimiser = torch.optim.Adam(critic.parameters(), settings.lr)
    losses = []
    for _ in range(settings.epochs):
        order = torch.from_numpy(rng.permutation(len(data.event)))
        total = 0.0
        for chosen in torch.split(order, settings.minibatch):
            judged = critic(data.features[chosen], data.action[chosen])
            loss = care_loss(
                judged, data.returns[chosen], data.event[chosen], settings, critic.return_scale
            )
            descend(optimiser, loss.total, critic, settings.gradient_norm)
            total += float(loss.total.detach()) * len(chosen)
        losses.append(total / len(data.event))
    return losses
