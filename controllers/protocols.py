"""The few interfaces everything else hangs on: one or two methods each."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from steadyhand.controllers.frames import Certified, Fault, Observation, Proposal, Sent
from steadyhand.controllers.signals import SignalSet, Vector


class ImageJudge(Protocol):
    """Finds what is wrong with an image."""

    def check(self, observation: Observation) -> tuple[Fault, ...]:
        """Everything that is wrong, at most one fault per signal."""
        ...

    def lose_sight(self) -> None:
        """What the plant does until the next image is not known: somebody else may drive it."""
        ...


class Policy(Protocol):
    """Proposes. May be wrong, late, dead or hostile; must not raise."""

    def propose(self, observation: Observation) -> Proposal:
        """Return an action for `observation`; a failure is a status of the proposal."""
        ...


class Monitor(Protocol):
    """Watches one kind of evidence for or against the proposal."""

    name: str

    def score(self, observation: Observation, proposal: Proposal) -> float:
        """Normalised score: 0 is normal, >= 1 alarms, NaN means the monitor itself is broken."""
        ...


class SafetyFilter(Protocol):
    """Certifies an action and says how it came to its answer. It is not a kind of controller."""

    def certify(self, observation: Observation, wanted: Vector, sent: Sent) -> Certified:
        """Nearest safe action to `wanted` (n_u,) given the last applied one; never raises."""
        ...


class Heuristic(Protocol):
    """Ran the plant before. Always tracking, so that it can take over without a bump."""

    def act(self, observation: Observation) -> Vector:
        """Command (n_u,) in output units."""
        ...

    def track(self, observation: Observation, sent: Sent) -> None:
        """Follow what was really sent while something else drives (bumpless transfer)."""
        ...


class SafetyModel(Protocol):
    """The plant as the safety filter knows it: control-affine rates of the constraints.

    k_i <= 0 is safe; k' = J_G u + psi. Every k is divided by its engineering range,
    so that k = -1 is far away.
    """

    inputs: SignalSet
    row_names: tuple[str, ...]

    def linearise(
        self,
        observation: Observation,
        k: Vector,
        J_G: NDArray[np.float64],
        psi_trusted: Vector,
        psi_untrusted: Vector,
        low: Vector,
        high: Vector,
    ) -> None:
        """Fill the arrays in place, without allocating.

        Args:
            observation: the frozen process image.
            k: (m,) constraint values, scaled.
            J_G: (m, n_u) d(k')/du per second and input unit.
            psi_trusted: (m,) drift of k that the model is sure of, 1/s.
            psi_untrusted: (m,) drift that is only a guess: its helpful part is ignored, 1/s.
            low: (n_u,) lower bound of U now (state-dependent actuator limits).
            high: (n_u,) upper bound of U now.
        """
        ...

    def backup(self, observation: Observation, out: Vector) -> None:
        """Write the plant's verified backup command (n_u,) into `out`."""
        ...
