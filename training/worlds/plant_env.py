"""Any plant as a batch of environments: B episodes advance together, one numpy call a tick.

The safety layer stands inside the environment, so that the policy learns with it: the shield moves
a command before the plant sees it, as the filter at the edge will, and the share of the range by
which it was moved is reported.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from steadyhand.controllers.errors import ConfigError
from steadyhand.controllers.signals import SignalSet

Array = NDArray[np.float64]


class Moved(Protocol):
    """One step of a plant: the part an environment needs."""

    @property
    def x(self) -> Array:
        """(B, n_x) next state."""
        ...

    @property
    def cost(self) -> Array:
        """(B,) money."""
        ...


class TrainingPlant(Protocol):
    """A plant that gives next state and cost in one call."""

    observations: SignalSet
    outputs: SignalSet
    period_s: float
    margin_names: tuple[str, ...]

    def transition(self, x: Array, u: Array, w: Array, dt_s: float) -> Moved:
        """Next state and cost."""
        ...

    def measure(self, x: Array, u: Array, w: Array) -> Array:
        """(B, n_y) observation."""
        ...

    def margins(self, x: Array, u: Array, w: Array) -> Array:
        """(B, n_g) signed margins, > 0 is a violation."""
        ...


Shield = Callable[[int, Array, Array], Array]
"""(tick, states (B, n_x), wanted (B, n_u)) → safe commands (B, n_u)."""


Potential = Callable[[int, Array], Array]
"""(tick, states (B, n_x)) → (B,) money that the state is worth."""


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """What one tick gave."""

    observation: Array
    """(B, n_y) at the next tick; after the last tick, at the last disturbance."""
    reward: Array
    """(B,) what is learned from: minus cost and price of the correction, plus the shaping."""
    cost: Array
    """(B,) money spent, the end included."""
    correction: Array
    """(B,) largest |applied - wanted| over the outputs, as a share of each output's range."""
    violated: NDArray[np.bool_]
    """(B,) an operating limit is broken at the start of the tick, or by its command."""
    applied: Array
    """(B, n_u) what the plant was told."""


class PlantEnv:
    """B episodes of one plant.

    Args:
        plant: numpy plant.
        w: (B, ticks, n_w) disturbances.
        initial: (B, n_x) states at the start.
        shield: the safety layer.
        terminal: True when nothing lies behind the last tick (no bootstrapping).
        end_cost: (B, n_x) → (B,) money charged for the final state of a terminal episode.
        correction_price: charged on top of the money, per tick, for a correction of the whole
            range: a policy should ask for what it may have.
        potential: F of the shaping F(t+1, x') - F(t, x) (Ng, Harada, Russell 1999), which moves
            the reward in time and leaves the best policy as it is. It may know the disturbances
            to come: they do not depend on the policy, so what it takes out is noise (Mao et al.
            2019, arXiv 1807.02264).
        tolerance: margins up to this are no violation (rounding).

    Raises:
        ConfigError: the shapes do not belong together.
    """

    def __init__(
        self,
        plant: TrainingPlant,
        w: Array,
        initial: Array,
        shield: Shield,
        *,
        terminal: bool = False,
        end_cost: Callable[[Array], Array] | None = None,
        correction_price: float = 0.0,
        potential: Potential | None = None,
        tolerance: float = 1e-9,
    ) -> None:
        if w.ndim != 3 or initial.ndim != 2 or w.shape[0] != initial.shape[0]:
            raise ConfigError(
                f"plant environment: w {w.shape} must be (B, ticks, n_w) and initial "
                f"{initial.shape} (B, n_x) with the same B"
            )
        self.plant = plant
        self.w = w
        self.initial = initial
        self.shield = shield
        self.terminal = terminal
        self.end_cost = end_cost
        self.correction_price = correction_price
        self.potential = potential
        self.tolerance = tolerance
        self.ticks = int(w.shape[1])
        self.batch = int(w.shape[0])
        self.tick = 0
        self.state = initial
        self._range = plant.outputs.high - plant.outputs.low

    def reset(self) -> Array:
        """Start every episode again; observations (B, n_y)."""
        self.tick = 0
        self.state = self.initial.copy()
        idle = np.zeros((self.batch, len(self.plant.outputs)))
        return self.plant.measure(self.state, idle, self.w[:, 0])

    def step(self, wanted: Array) -> Step:
        """Advance by one period.

        Args:
            wanted: (B, n_u) commands in engineering units.
        """
        w = self.w[:, self.tick]
        applied = self.shield(self.tick, self.state, wanted)
        correction = (np.abs(applied - wanted) / self._range).max(-1)
        moved = self.plant.transition(self.state, applied, w, self.plant.period_s)
        cost = moved.cost
        self.tick += 1
        ahead = self.w[:, min(self.tick, self.ticks - 1)]
        margins = self.plant.margins(self.state, applied, w)
        violated: NDArray[np.bool_] = np.any(margins > self.tolerance, axis=-1)
        if self.tick == self.ticks and self.end_cost is not None:
            cost = cost + self.end_cost(moved.x)
        reward = -cost - self.correction_price * correction
        if self.potential is not None:
            before = self.potential(self.tick - 1, self.state)
            reward = reward + self.potential(self.tick, moved.x) - before
        self.state = moved.x
        observation = self.plant.measure(moved.x, applied, ahead)
        return Step(observation, reward, cost, correction, violated, applied)
