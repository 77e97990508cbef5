"""Networks: normaliser, bounded Gaussian actor, critic with value, error and confidence.

The whole decision is one module, `Decision`, and that module is what gets exported. The critic has
a trunk of its own, so that learning the confidence cannot disturb the policy. V is a property of
the state and does not see the action; E and C judge one proposed action and must see it.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Judgement(NamedTuple):
    """What the critic says, all (…,)."""

    value: Tensor
    """V: expected return, in units of reward."""
    error: Tensor
    """E >= 0: expected |G - V|, in units of reward."""
    confidence_logit: Tensor
    """C: log-odds that the coming horizon goes well."""


class DecisionOutput(NamedTuple):
    """Outputs of the exported graph, in order."""

    action: Tensor
    value: Tensor
    error: Tensor
    confidence_logit: Tensor


def mlp(sizes: Sequence[int], last_gain: float) -> nn.Sequential:
    """Tanh network with orthogonal weights (gain sqrt 2, `last_gain` at the end), zero biases."""
    layers: list[nn.Module] = []
    for i, (wide, narrow) in enumerate(pairwise(sizes)):
        linear = nn.Linear(wide, narrow)
        last = i == len(sizes) - 2
        nn.init.orthogonal_(linear.weight, last_gain if last else 2.0**0.5)
        nn.init.zeros_(linear.bias)
        layers += [linear] if last else [linear, nn.Tanh()]
    return nn.Sequential(*layers)


class Normaliser(nn.Module):
    """(x - mean)/std, clipped. Fitted once on recorded data, then frozen: no drift in training."""

    mean: Tensor
    std: Tensor

    def __init__(self, width: int, clip: float = 8.0) -> None:
        super().__init__()
        self.clip = clip
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("std", torch.ones(width))

    @torch.no_grad()
    def fit(self, data: Tensor, floor: float = 1e-3) -> None:
        """Take mean and standard deviation of data (n, width); `floor` guards constant columns."""
        self.mean.copy_(data.mean(0))
        self.std.copy_(data.std(0, correction=0).clamp(min=floor))

    def forward(self, x: Tensor) -> Tensor:
        """Normalised x (…, width)."""
        return ((x - self.mean) / self.std).clamp(-self.clip, self.clip)


class Actor(nn.Module):
    """Gaussian over a raw action r (…, n_u); what is applied is tanh(r), inside (-1, 1).

    Probability ratios are taken in r: the Jacobian of tanh is the same above and below the
    fraction and cancels.
    """

    def __init__(self, n_in: int, n_u: int, hidden: Sequence[int], log_std: float) -> None:
        super().__init__()
        self.body = mlp([n_in, *hidden, n_u], last_gain=0.01)
        self.log_std = nn.Parameter(torch.full((n_u,), log_std))

    def forward(self, features: Tensor) -> Tensor:
        """Mean of the raw action (…, n_u)."""
        mean: Tensor = self.body(features)
        return mean

    def log_prob(self, mean: Tensor, raw: Tensor) -> Tensor:
        """Log density (…,) of the raw action (…, n_u)."""
        z = (raw - mean) * torch.exp(-self.log_std)
        constant = 0.5 * torch.log(torch.tensor(2.0 * torch.pi))
        return (-0.5 * z * z - self.log_std - constant).sum(-1)

    def entropy(self) -> Tensor:
        """Entropy () of the raw Gaussian."""
        return (self.log_std + 0.5 * torch.log(torch.tensor(2.0 * torch.pi * torch.e))).sum()


class Baseline(nn.Module):
    """Value (…,) of normalised features (…, n_in): the baseline of the advantage, not exported."""

    def __init__(self, n_in: int, hidden: Sequence[int], return_scale: float = 1.0) -> None:
        super().__init__()
        self.return_scale = return_scale
        self.body = mlp([n_in, *hidden, 1], last_gain=1.0)

    def forward(self, features: Tensor) -> Tensor:
        """V (…,) in units of reward."""
        value: Tensor = self.body(features)[..., 0]
        return value * self.return_scale


class Critic(nn.Module):
    """Value, error and confidence from one trunk, separate from the actor's."""

    def __init__(
        self, n_in: int, n_u: int, hidden: Sequence[int], return_scale: float = 1.0
    ) -> None:
        super().__init__()
        self.return_scale = return_scale
        self.trunk = nn.Sequential(mlp([n_in, *hidden], last_gain=2.0**0.5), nn.Tanh())
        width = hidden[-1]
        self.value_head = mlp([width, 1], last_gain=1.0)
        self.error_head = mlp([width + n_u, 32, 1], last_gain=0.1)
        self.confidence_head = mlp([width + n_u, 32, 1], last_gain=0.1)

    def forward(self, features: Tensor, action: Tensor) -> Judgement:
        """Judge the bounded action (…, n_u) in [-1, 1] at features (…, n_in)."""
        hidden = self.trunk(features)
        seen = torch.cat([hidden, action], -1)
        value = self.value_head(hidden)[..., 0] * self.return_scale
        error = nn.functional.softplus(self.error_head(seen)[..., 0]) * self.return_scale
        return Judgement(value, error, self.confidence_head(seen)[..., 0])


class Scale(nn.Module):
    """The plain action map: [-1, 1] → [low, high], whatever the observation."""

    low: Tensor
    high: Tensor

    def __init__(self, low: Sequence[float], high: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("low", torch.tensor(low, dtype=torch.float32))
        self.register_buffer("high", torch.tensor(high, dtype=torch.float32))

    def forward(self, bounded: Tensor, observation: Tensor) -> Tensor:
        """Command (…, n_u) in engineering units."""
        del observation
        return self.low + 0.5 * (bounded + 1.0) * (self.high - self.low)


class Decision(nn.Module):
    """The whole decision: raw observation in, engineering action and judgement out.

    Args:
        features: module (…, n_y) → (…, n_features); knows the plant, has no weights.
        n_features: its width.
        action_map: module (bounded (…, n_u), observation (…, n_y)) → command (…, n_u) in
            engineering units; `Scale`, or one that knows the plant.
        n_u: number of outputs.
        hidden: widths of the hidden layers of actor and of critic.
        log_std: initial log standard deviation of the raw action.
        return_scale: typical size of a return, so that heads work with numbers near one.
    """

    def __init__(
        self,
        features: nn.Module,
        n_features: int,
        action_map: nn.Module,
        n_u: int,
        hidden: Sequence[int] = (64, 64),
        log_std: float = -1.0,
        return_scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.features = features
        self.action_map = action_map
        self.normaliser = Normaliser(n_features)
        self.actor = Actor(n_features, n_u, hidden, log_std)
        self.critic = Critic(n_features, n_u, hidden, return_scale)

    def encode(self, observation: Tensor) -> Tensor:
        """Normalised features (…, n_features) of raw observations (…, n_y)."""
        encoded: Tensor = self.normaliser(self.features(observation))
        return encoded

    def command(self, bounded: Tensor, observation: Tensor) -> Tensor:
        """Command (…, n_u) in engineering units for a bounded action in [-1, 1]."""
        mapped: Tensor = self.action_map(bounded, observation)
        return mapped

    def forward(self, observation: Tensor) -> DecisionOutput:
        """Deterministic decision for observations (batch, n_y); every output is 2-D."""
        features = self.encode(observation)
        bounded = torch.tanh(self.actor(features))
        judged = self.critic(features, bounded)
        return DecisionOutput(
            self.command(bounded, observation),
            judged.value[..., None],
            judged.error[..., None],
            judged.confidence_logit[..., None],
        )
