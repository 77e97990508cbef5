"""Counts how often and how far a plant left its operating limits, and who drove meanwhile."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steadyhand.controllers.errors import ConfigError

TOLERANCE = 1e-9
"""Scaled margins up to this are rounding, not violations."""

DRIVERS = ("local", "controller")


class Tally:
    """Violations per driver and margin row.

    `decisions` counts those found at the start of a period, where a command meets the state it
    was made for; `substeps` counts every sub-step, also those in between; `worst` is the largest
    margin seen, in the plant's scale (> 0 is a violation).
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        shape = (len(DRIVERS), len(self.names))
        self.decisions: NDArray[np.int64] = np.zeros(shape, dtype=np.int64)
        self.substeps: NDArray[np.int64] = np.zeros(shape, dtype=np.int64)
        self.worst = np.full(shape, -np.inf)

    def add(
        self, margins: NDArray[np.float64], drivers: Sequence[bool], starts: Sequence[bool]
    ) -> None:
        """Judge margins (n, n_g) of n sub-steps; `drivers`: does the controller drive?"""
        broken = margins > TOLERANCE
        for i, driver in enumerate(drivers):
            row = int(driver)
            np.maximum(self.worst[row], margins[i], out=self.worst[row])
        if not broken.any():
            return
        for i, (driver, start) in enumerate(zip(drivers, starts, strict=True)):
            self.substeps[int(driver)] += broken[i]
            if start:
                self.decisions[int(driver)] += broken[i]

    def totals(self) -> dict[str, dict[str, dict[str, float]]]:
        """Driver → margin row → {decisions, substeps, worst}; rows never judged are left out."""
        return {
            driver: {
                name: {
                    "decisions": int(self.decisions[d, g]),
                    "substeps": int(self.substeps[d, g]),
                    "worst": float(self.worst[d, g]),
                }
                for g, name in enumerate(self.names)
                if np.isfinite(self.worst[d, g])
            }
            for d, driver in enumerate(DRIVERS)
        }

    def save(self) -> dict[str, Any]:
        """JSON-ready state."""
        worst = np.where(np.isfinite(self.worst), self.worst, -1e300)
        return {
            "names": list(self.names),
            "decisions": self.decisions.tolist(),
            "substeps": self.substeps.tolist(),
            "worst": worst.tolist(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Inverse of `save`.

        Raises:
            ConfigError: the rows are those of another plant.
        """
        if tuple(state["names"]) != self.names:
            raise ConfigError(
                f"saved tally has the rows {state['names']}, the plant {list(self.names)}"
            )
        self.decisions = np.array(state["decisions"], dtype=np.int64)
        self.substeps = np.array(state["substeps"], dtype=np.int64)
        worst = np.array(state["worst"], dtype=np.float64)
        self.worst = np.where(worst > -1e300, worst, -np.inf)
