"""What every plant is: pure equations. State comes in and goes out; the object holds none."""

from typing import Any, Protocol, TypeAlias

from steadyhand.controllers.signals import SignalSet

Array: TypeAlias = Any
"""An array of the module the plant was built with: numpy at the edge, torch in training."""


class Plant(Protocol):
    """Equations of a plant; leading axes of every array are batch axes.

    Signs, units and order of columns stand in the signal sets and name tuples.
    """

    observations: SignalSet
    outputs: SignalSet
    period_s: float
    margin_names: tuple[str, ...]
    operating_limits: tuple[str, ...]
    """Those margins whose breach is a violation."""

    def step(self, x: Array, u: Array, w: Array, dt_s: float) -> Array:
        """State (…, n_x) after `dt_s` seconds under input u (…, n_u) and disturbance w (…, n_w)."""
        ...

    def measure(self, x: Array, u: Array, w: Array) -> Array:
        """Observation (…, n_y) in engineering units; u is what was applied last."""
        ...

    def cost(self, x: Array, u: Array, w: Array, dt_s: float) -> Array:
        """Money (…,) spent over the step."""
        ...

    def margins(self, x: Array, u: Array, w: Array) -> Array:
        """Signed, scaled operating margins (…, n_g) in the order of `margin_names`; <= 0 is ok."""
        ...
