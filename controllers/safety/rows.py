"""The rows of the directional rule, the check of the answer, and what the report tells of it.

Kernels over one `table` (FIELDS, m) of numbers per row, filled in the order of the work: `build`
before the solver, `blend` after it, `assess` for the report. They write in place and allocate
nothing. See `atacom.py` for the rule and its symbols.
"""

from enum import IntEnum
from math import exp, inf

import numpy as np
from numba import njit

from steadyhand.controllers.safety.arrays import Mask, Matrix
from steadyhand.controllers.signals import Vector


class Field(IntEnum):
    """Rows of the table; the first five are what the report keeps."""

    K = 0
    MARGIN = 1
    """m_i, usable distance, scaled; negative when the distance nu is used up."""
    P_NOMINAL = 2
    P_CERTIFIED = 3
    MULTIPLIER = 4
    OFFSET = 5
    """c_i of p_i(u) = J_i u + c_i."""
    SOFT = 6
    """a_i^2."""
    GATE = 7
    """The check of the answer: J_i u + GATE_i <= 0."""
    RATE = 8
    """k_i' = J_i u + RATE_i, robust terms included."""


FIELDS = len(Field)
REPORTED = 5
_K, _MARGIN, _P_NOMINAL, _P_CERTIFIED = 0, 1, 2, 3
_OFFSET, _SOFT, _GATE, _RATE = 5, 6, 7, 8


@njit(cache=True)
def build(
    k: Vector,
    J: Matrix,
    psi_trusted: Vector,
    psi_untrusted: Vector,
    nu: Vector,
    rate_disturbance: Vector,
    quantum: Vector,
    equality: Mask,
    gains: Vector,
    two_sided: bool,
    clip_all: bool,
    exponential: bool,
    u_nom: Vector,
    table: Matrix,
) -> None:
    """Fill the table from the linearised constraints.

    Args:
        k: (m,) scaled constraint values.
        J: (m, n) d(k')/du.
        psi_trusted: (m,) drift of k that is known.
        psi_untrusted: (m,) drift that is a guess.
        nu: (m,) distance kept.
        rate_disturbance: (m,) w.
        quantum: (n,) step width of every input on the wire; half of it is a known disturbance.
        equality: (m,) k = 0 instead of k <= 0.
        gains: (6,) gamma, beta, recovery, a_min, 1/T, D.
        two_sided: plain ATACOM: resist leaving a limit as much as approaching it.
        clip_all: ignore all helpful drift, not only the untrusted part.
        exponential: a = exp(beta m) - 1 instead of beta m.
        u_nom: (n,) wanted input.
        table: (FIELDS, m) out.
    """
    m, n = J.shape
    gamma, beta, recovery, floor, per_period, diameter = gains
    for i in range(m):
        robust = rate_disturbance[i]
        projected = 0.0
        for a in range(n):
            robust += abs(J[i, a]) * 0.5 * quantum[a]
            projected += J[i, a] * u_nom[a]
        table[_K, i] = k[i]
        if equality[i]:
            offset = psi_trusted[i] + psi_untrusted[i] + recovery * k[i]
            table[_MARGIN, i] = -abs(k[i])
            table[_RATE, i] = psi_trusted[i] + psi_untrusted[i]
            table[_SOFT, i] = 0.0
            table[_GATE, i] = offset
        else:
            drift = psi_trusted[i] + max(psi_untrusted[i], 0.0) + robust
            margin = -(k[i] + nu[i])
            table[_MARGIN, i] = margin
            table[_RATE, i] = drift
            if two_sided:
                offset = psi_trusted[i] + psi_untrusted[i]
                if clip_all:
                    offset = max(offset, 0.0)
            elif clip_all:
                offset = max(psi_trusted[i] + psi_untrusted[i], 0.0) + robust
            else:
                offset = drift
            if margin > 0.0:
                offset -= gamma * margin
                softness = exp(beta * margin) - 1.0 if exponential else beta * margin
                table[_GATE, i] = drift - margin * per_period
            else:
                offset -= recovery * margin
                softness = 0.0
                table[_GATE, i] = drift - recovery * margin - floor * diameter
            softness = max(softness, floor)
            table[_SOFT, i] = softness * softness
        table[_OFFSET, i] = offset
        table[_P_NOMINAL, i] = projected + offset


@njit(cache=True)
def blend(
    J: Matrix,
    table: Matrix,
    hard: Mask,
    equality: Mask,
    tolerance: float,
    u_star: Vector,
    u_backup: Vector,
    u: Vector,
) -> float:
    """Smallest share s of the backup with which every hard row passes its check.

    The rows are affine, so each one allows an interval of s; u = (1-s) u_star + s u_backup.
    Both inputs must be finite.

    Returns:
        s in [0, 1], or -1 if no share passes; `u` is then left alone.
    """
    m, n = J.shape
    least = 0.0
    most = 1.0
    for i in range(m):
        if not hard[i]:
            continue
        star = table[_GATE, i]
        backup = table[_GATE, i]
        for a in range(n):
            star += J[i, a] * u_star[a]
            backup += J[i, a] * u_backup[a]
        for side in range(2 if equality[i] else 1):
            at_star = star - tolerance if side == 0 else -star - tolerance
            at_backup = backup - tolerance if side == 0 else -backup - tolerance
            if at_star > 0.0:
                if at_backup > 0.0:
                    return -1.0
                least = max(least, at_star / (at_star - at_backup))
            elif at_backup > 0.0:
                most = min(most, at_star / (at_star - at_backup))
    if least > most:
        return -1.0
    if least > 0.0:
        # Past the exact point by a rounding, so that the row itself passes.
        least = min(least * (1.0 + 1e-12), most)
    for a in range(n):
        u[a] = u_star[a] + least * (u_backup[a] - u_star[a])
    return least


@njit(cache=True)
def assess(
    J: Matrix,
    table: Matrix,
    hard: Mask,
    equality: Mask,
    u: Vector,
) -> tuple[float, float, int, float, float, float]:
    """Tell how `u` stands against the rows; completes P_CERTIFIED.

    Returns:
        (time to the boundary in s, smallest margin, its row, largest hard gate,
        largest soft gate, largest hard k), gates and k being <= 0 where all is well.
    """
    m, n = J.shape
    time_to_boundary = inf
    margin = inf
    margin_row = -1
    hard_gate = -inf
    soft_gate = -inf
    outside = -inf
    for i in range(m):
        value = 0.0
        for a in range(n):
            value += J[i, a] * u[a]
        table[_P_CERTIFIED, i] = value + table[_OFFSET, i]
        gate = value + table[_GATE, i]
        if equality[i]:
            gate = abs(gate)
        else:
            rate = value + table[_RATE, i]
            if rate > 0.0:
                time_to_boundary = min(time_to_boundary, max(table[_MARGIN, i], 0.0) / rate)
            if hard[i]:
                outside = max(outside, table[_K, i])
        if table[_MARGIN, i] < margin:
            margin = table[_MARGIN, i]
            margin_row = i
        if hard[i]:
            hard_gate = max(hard_gate, gate)
        else:
            soft_gate = max(soft_gate, gate)
    return time_to_boundary, margin, margin_row, hard_gate, soft_gate, outside


@njit(cache=True)
def surprise(
    k: Vector,
    k_before: Vector,
    J_before: Matrix,
    drift_before: Vector,
    u_applied: Vector,
    dt_s: float,
    bounds: Vector,
) -> float:
    """Largest |predicted - measured k'| over its declared bound since the last tick."""
    m, n = J_before.shape
    worst = 0.0
    for i in range(m):
        rate = drift_before[i]
        for a in range(n):
            rate += J_before[i, a] * u_applied[a]
        worst = max(worst, abs((k[i] - k_before[i]) / dt_s - rate) / bounds[i])
    return worst


@njit(cache=True)
def distance(
    u: Vector,
    v: Vector,
    r: Vector,
) -> float:
    """|u - v|_R."""
    total = 0.0
    for a in range(u.shape[0]):
        total += r[a] * (u[a] - v[a]) ** 2
    return np.sqrt(total)
