"""One plant at a time, fast: numpy's array functions cost more than the arithmetic of one state."""

from collections.abc import Callable
from typing import Any

import numpy as np

from steadyhand.controllers.plants import scalars
from steadyhand.controllers.plants.plant import Array, Plant


class _Scalars:
    """The array functions of a plant for one state: floats in between, arrays at the ends."""

    minimum = staticmethod(scalars.minimum)
    maximum = staticmethod(scalars.maximum)
    where = staticmethod(scalars.where)
    concatenate = staticmethod(np.concatenate)
    asarray = staticmethod(np.asarray)

    @staticmethod
    def clip(value: Any, low: float | None, high: float | None) -> Any:  # noqa: ANN401
        # A bound comes back as numpy's float, so that a plant may index it like an array.
        return np.float64(scalars.clip(value, low, high))

    @staticmethod
    def stack(items: list[float], axis: int) -> Array:
        del axis  # the items are single numbers
        return np.array(items)


class SinglePlant:
    """A plant whose step and measurement take one state each; margins take batches as ever.

    The numbers are those of the plant built with numpy, to the last bit.

    Args:
        build: makes the plant for an array module.
    """

    def __init__(self, build: Callable[[Any], Any]) -> None:
        one, many = build(_Scalars), build(np)
        self._many: Plant = many
        self.parameters = many.parameters
        self.observations = many.observations
        self.outputs = many.outputs
        self.period_s: float = many.period_s
        self.margin_names: tuple[str, ...] = many.margin_names
        self.operating_limits: tuple[str, ...] = many.operating_limits
        self.initial = many.initial
        self.transition = one.transition
        self.step = one.step
        self.measure = one.measure
        self.cost = one.cost

    def margins(self, x: Array, u: Array, w: Array) -> Array:
        """Margins (…, n_g), batched."""
        return self._many.margins(x, u, w)
