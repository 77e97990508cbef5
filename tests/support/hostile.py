"""Five policies that mean harm. Whatever they propose, the plant's limits must hold.

Each implements `Policy` and answers every observation at once, always with status OK: nothing
but the chain behind them can stop what they ask for.
"""

from collections.abc import Callable

import numpy as np

from steadyhand.controllers.frames import Observation, Proposal
from steadyhand.controllers.protocols import Policy, SafetyModel
from steadyhand.controllers.signals import SignalSet, Vector


def _confident(action: Vector) -> Proposal:
    """As sure of itself as a policy can claim to be."""
    return Proposal(action, value=1e3, error=0.0, confidence_logit=20.0)


class RandomPolicy:
    """Anything within twice the actuator's range, and far beyond it now and then."""

    def __init__(self, outputs: SignalSet, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._middle = (outputs.high + outputs.low) / 2
        self._half = (outputs.high - outputs.low) / 2

    def propose(self, observation: Observation) -> Proposal:
        rng = self._rng
        share = rng.uniform(-2.0, 2.0, len(self._half))
        if rng.random() < 0.01:
            share *= 10.0 ** rng.uniform(0.0, 12.0)
        return _confident(self._middle + share * self._half)


class BangBangPolicy:
    """From one stop of the actuator to the other, as fast as it is asked."""

    def __init__(self, outputs: SignalSet, hold_ticks: int = 1) -> None:
        self._stops = (outputs.low.copy(), outputs.high.copy())
        self._hold_ticks = hold_ticks
        self._tick = 0

    def propose(self, observation: Observation) -> Proposal:
        self._tick += 1
        return _confident(self._stops[self._tick // self._hold_ticks % 2].copy())


class NotANumberPolicy:
    """NaN, infinities of both signs, in all outputs or in one, while it claims to be fine."""

    _CHOICES = (np.nan, np.inf, -np.inf)

    def __init__(self, outputs: SignalSet, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._outputs = outputs

    def propose(self, observation: Observation) -> Proposal:
        rng = self._rng
        action = rng.uniform(self._outputs.low, self._outputs.high)
        bad = self._CHOICES[rng.integers(3)]
        if rng.random() < 0.5:
            action[:] = bad
        else:
            action[rng.integers(len(action))] = bad
        return Proposal(action, value=bad, error=bad, confidence_logit=np.inf)


class ConstantPolicy:
    """One command for ever: by default full on, which empties or fills whatever it drives."""

    def __init__(self, outputs: SignalSet, share: float = 1.0) -> None:
        self._action = outputs.low + share * (outputs.high - outputs.low)

    def propose(self, observation: Observation) -> Proposal:
        return _confident(self._action.copy())


class WorstGradientPolicy:
    """Pushes as hard as the actuators can towards the nearest constraint.

    With k the scaled constraints (k <= 0 is safe) and k' = J_G u + psi, it takes the row i with
    the largest k_i that any input moves, and proposes the corner of U with the largest J_G[i] u:
    high where J_G[i, j] > 0, low where it is < 0. Inputs that do not move that row keep
    their last corner.
    """

    def __init__(self, model: SafetyModel) -> None:
        m, n_u = len(model.row_names), len(model.inputs)
        self._model = model
        self._k = np.zeros(m)
        self._J_G = np.zeros((m, n_u))
        self._psi = np.zeros(m), np.zeros(m)
        self._low, self._high = np.zeros(n_u), np.zeros(n_u)
        self._action = model.inputs.high.copy()
        self.row = -1
        """The row it pushed at last."""

    def propose(self, observation: Observation) -> Proposal:
        k, J_G = self._k, self._J_G
        self._model.linearise(observation, k, J_G, *self._psi, self._low, self._high)
        movable = np.abs(J_G).sum(axis=1) > 0
        if movable.any():
            self.row = int(np.argmax(np.where(movable, k, -np.inf)))
            gradient = J_G[self.row]
            inputs = self._model.inputs
            self._action = np.where(
                gradient > 0, inputs.high, np.where(gradient < 0, inputs.low, self._action)
            )
        return _confident(self._action.copy())


def hostile_policies(
    outputs: SignalSet, model: SafetyModel, seed: int = 0
) -> dict[str, Callable[[], Policy]]:
    """Name → maker of a fresh hostile policy."""
    return {
        "random": lambda: RandomPolicy(outputs, seed),
        "bang_bang": lambda: BangBangPolicy(outputs),
        "not_a_number": lambda: NotANumberPolicy(outputs, seed),
        "constant": lambda: ConstantPolicy(outputs),
        "worst_gradient": lambda: WorstGradientPolicy(model),
    }
