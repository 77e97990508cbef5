r"""Analytic policy gradient: differentiate the plant's own equations through time.

The plant is differentiable, so the gradient of an episode's cost with respect to the policy's
weights is exact, without the variance of sampled returns:

    x_{t+1} = f(x_t, S(pi(y_t)), w_t),   L = sum_t c_t + price |pi - S(pi)| + end(x_T)

with S the safety layer's input set as a clamp. Time is cut into segments over which gradients
flow; the state goes on into the next segment without them. Inside a segment the gradient is exact,
but for the clamp's flat sides: what the safety layer moves is priced, so that the policy comes back
inside.

Source: SHAC's short horizons (Xu et al. 2022, arXiv 2204.07137), without a critic at the end: a
segment ends where the state's worth is known.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from steadyhand.training.nets import Decision


@dataclass(frozen=True, slots=True)
class ApgSettings:
    """Numbers of the stage."""

    iterations: int = 60
    """Batches of fresh episodes."""
    episodes: int = 96
    """Per batch."""
    lr: float = 1e-3
    """At the start; falls to zero along a half cosine."""
    gradient_norm: float = 5.0


class DifferentiableWorld(Protocol):
    """A batch of episodes of a plant built with torch."""

    segments: int
    """Parts of the episode over which gradients flow."""

    def initial(self) -> Tensor:
        """(B, n_x) first states."""
        ...

    def run(self, decision: Decision, segment: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """State (B, n_x) after the segment and loss (B,) along it."""
        ...


def descend(
    decision: Decision, worlds: Iterator[DifferentiableWorld], settings: ApgSettings
) -> Iterator[float]:
    """Improve the actor on one world after the other; yields the mean loss of each."""
    actor = decision.actor.body
    optimizer = torch.optim.Adam(actor.parameters(), lr=settings.lr)
    steps = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.iterations)
    for _, world in zip(range(settings.iterations), worlds, strict=False):
        x, total = world.initial(), 0.0
        for segment in range(world.segments):
            after, loss = world.run(decision, segment, x)
            mean = loss.mean()
            optimizer.zero_grad()
            mean.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(actor.parameters(), settings.gradient_norm)
            optimizer.step()
            x, total = after.detach(), total + float(mean.detach())
        steps.step()
        yield total / world.segments
