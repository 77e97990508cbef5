"""How near a proposal is to what the plant did: one measure, for metrics and shadow reports."""

from math import isfinite, nan

from steadyhand.controllers.signals import Vector

NEAR = 0.1
"""Share of an output's range within which a proposal is near what the plant did."""


def distance(proposed: Vector, applied: Vector, span: Vector) -> float:
    """Largest distance over the outputs, each a share of its range; NaN where one is not known.

    Args:
        proposed: what the policy asked for, in the outputs' units.
        applied: what the plant did next.
        span: range of each output.
    """
    away = abs(proposed - applied) / span
    farthest = float(away.max(initial=0.0))  # NaN passes through
    return farthest if isfinite(farthest) else nan
