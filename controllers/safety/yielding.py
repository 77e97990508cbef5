"""Rows that cannot all hold: which of them give way, and by how much.

Lexicographic least squares over the priorities. A priority that can hold beside the ones before
it holds exactly, whatever the lengths of its rows; only where it cannot is anything weighed.
"""

from collections.abc import Callable

import numpy as np

from steadyhand.controllers.safety.arrays import Mask, Matrix
from steadyhand.controllers.safety.constraint import ConstraintSet
from steadyhand.controllers.signals import Vector

Ask = Callable[[Mask, Vector, Vector, Vector], Vector | None]
"""(rows that count, their softness a^2, offsets, input to stay near) -> input (n,), None: none."""

_FIRST, _THEN = 1e-3, 1e-4
"""Softness of the rows that give way, relative to the longest of them.

The first step decides ties, to 1e-6 of the ranges; the others take its pull out of what is missing.
"""
_STEPS = 20
"""Three are usual; rows of 1e-4 of the longest take all."""
_SETTLED = 1e-9
"""A step of less than this share of the ranges is the last."""
_ROUNDING = 1e-12
"""Room left to a row that gave way, relative to the numbers it is summed from."""


def least_violation(
    ask: Ask,
    constraints: ConstraintSet,
    J: Matrix,
    offset: Vector,
    r_inv: Vector,
    near: Vector,
    tolerance: float,
) -> Vector | None:
    """Input that breaks the hard rows J u + offset <= 0 (= 0) least: people first.

    Each priority in turn is met exactly if what the ones before it were given allows, and else
    as well as that allows, in least squares of what is missing in 1/s; what it gave up is then
    fixed. Ties go to the input nearest to `near`.

    Args:
        ask: solves for some of the rows; the bounds are its own.
        constraints: the m rows.
        J: (m, n).
        offset: (m,).
        r_inv: (n,) 1/R.
        near: (n,) wanted input.
        tolerance: room left to a row that gave way, 1/s.

    Returns:
        (n,) input, or None if there is no answer for the first priority.
    """
    found: Vector | None = None
    none = np.zeros(len(constraints))
    for priority in np.unique(constraints.priority[constraints.hard]):
        counts = constraints.hard & (constraints.priority <= priority)
        answer = ask(counts, none, offset, near)
        if answer is None:
            now = counts & (constraints.priority == priority)
            answer = _share(ask, counts, now, constraints.equality, J, offset, r_inv, near)
            if answer is None:
                break
            room = tolerance + _ROUNDING * (np.abs(J) @ np.abs(answer) + np.abs(offset))
            gave_up = _missing(constraints.equality, J @ answer + offset)
            gave_up += np.where(constraints.equality, 0.0, room)
            offset = np.where(now, offset - gave_up, offset)
        found = answer
    return found


def _missing(equality: Mask, value: Vector) -> Vector:
    """How far (m,) rows are from holding, 1/s; signed for equalities."""
    missing: Vector = np.where(equality, value, np.maximum(value, 0.0))
    return missing


def _share(
    ask: Ask,
    counts: Mask,
    now: Mask,
    equality: Mask,
    J: Matrix,
    offset: Vector,
    r_inv: Vector,
    near: Vector,
) -> Vector | None:
    """Input that meets the other rows that count and misses the rows `now` least, in squares.

    Proximal-point steps (Rockafellar, SIAM J. Control Optim. 14, 1976): each starts where the
    last one ended, so the pull towards the start fades by softness^2 a step, and no step needs a
    softness that would cost the digits of its answer.
    """
    longest: float = np.max(np.square(J[now]) @ r_inv) or 1.0
    best = np.inf
    found: Vector | None = None
    for step in range(_STEPS):
        softness = _THEN if step else _FIRST
        start = near if found is None else found
        answer = ask(counts, np.where(now, softness**2 * longest, 0.0), offset, start)
        if answer is None:
            break
        total = np.sum(np.square(_missing(equality, J @ answer + offset)[now]))
        # No step is worse but by rounding; the sum is too flat to tell the last digits by.
        if total > best * (1.0 + 1e-9):
            break
        best, found = total, answer
        if np.sum(np.square(answer - start) / r_inv) <= _SETTLED**2:
            break
    return found
