"""Known answers: questions whose answers the trainer wrote down, replayed on the machine that
will run the policy. A corrupt graph usually still loads and runs; only its answers betray it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steadyhand.controllers.errors import ModelError
from steadyhand.controllers.policies.answer import SCALARS
from steadyhand.controllers.signals import SignalSet

SCALAR_NAMES = ("value", "error", "confidence_logit")


@dataclass(frozen=True, slots=True, eq=False)
class Golden:
    """n questions with the answers of the training framework, all float32."""

    observation: NDArray[np.float32]
    """(n, n_y) raw engineering units."""
    action: NDArray[np.float32]
    """(n, n_u) engineering units."""
    value: NDArray[np.float32]
    """(n,)"""
    error: NDArray[np.float32]
    """(n,)"""
    confidence_logit: NDArray[np.float32]
    """(n,)"""
    tolerance: float = 1e-4
    """Largest accepted difference: of an action as a share of its range, of a scalar relative
    to max(1, |answer|)."""

    def __len__(self) -> int:
        return len(self.observation)

    def check(self, n_y: int, n_u: int) -> None:
        """Are the vectors usable for `n_y` observations and `n_u` outputs?

        Raises:
            ModelError: GOLDEN: fewer than two different questions, a wrong shape or type, or a
                number that is not finite.
        """
        n = len(self.observation)
        wanted = {"observation": (n, n_y), "action": (n, n_u)} | dict.fromkeys(SCALAR_NAMES, (n,))
        for name, shape in wanted.items():
            array = getattr(self, name)
            if array.shape != shape or array.dtype != np.float32:
                raise ModelError(
                    f"golden vectors: {name} is {array.dtype}{list(array.shape)}, must be "
                    f"float32{list(shape)}",
                    "GOLDEN",
                )
            if not np.isfinite(array).all():
                raise ModelError(f"golden vectors: {name} holds NaN or infinity", "GOLDEN")
        if len(np.unique(self.observation, axis=0)) < 2:
            raise ModelError(
                f"golden vectors: {n} questions, fewer than 2 different ones: a constant "
                "answer could not be told from a right one",
                "GOLDEN",
            )
        if not 0.0 < self.tolerance <= 0.01:
            raise ModelError(f"golden tolerance {self.tolerance}: must be in (0, 0.01]", "GOLDEN")

    def answers(self) -> NDArray[np.float32]:
        """(n, n_u + 3) rows in the order of `AnswerCheck`."""
        return np.column_stack([self.action, self.value, self.error, self.confidence_logit])

    def worst(self, answers: NDArray[np.float32], outputs: SignalSet) -> tuple[float, str]:
        """Largest scaled difference of `answers` (n, n_u + 3) and where it is.

        NaN counts as infinitely wrong.
        """
        expected = self.answers().astype(np.float64)
        scale = np.maximum(1.0, np.abs(expected))
        scale[:, :-SCALARS] = outputs.high - outputs.low
        difference = np.abs(answers - expected) / scale
        difference[~np.isfinite(difference)] = np.inf
        row, column = np.unravel_index(int(np.argmax(difference)), difference.shape)
        name = (*outputs.names, *SCALAR_NAMES)[int(column)]
        got, want = float(answers[row, column]), float(expected[row, column])
        where = f"vector {int(row)}: {name} is {got:.7g}, must be {want:.7g}"
        return float(difference[row, column]), where
