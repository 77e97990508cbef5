"""The one solver behind every variant of the filter: a dual active-set method, exact and bounded.

It answers

    min over lo <= u <= hi of  1/2 |u - u_nom|_R^2 + 1/2 sum_i (s_i / a_i)^2,
    s_i >= p_i(u) = J_i u + c_i   (one-sided row)   or   s_i = p_i(u)   (two-sided row).

One-sided rows with a_i > 0 are the directional rule, two-sided ones plain ATACOM; a_i = 0 makes a
row exact: one-sided it is a row of a CBF-QP, two-sided an equality. In the dual all four differ
only in the sign of a multiplier and in a_i^2 on the diagonal of J R^-1 J' + A^2, so a_i may go to
zero without any number growing. Method: Goldfarb and Idnani, "A numerically stable dual method
for solving strictly convex quadratic programs", Math. Programming 27 (1983).

Kernels that call each other stand in this one file: numba's cache looks at no other. They divide as
numpy does: what is no number then fails the check of the finished answer.
"""

from enum import IntEnum
from math import inf, sqrt

import numpy as np
from numba import njit

from steadyhand.controllers.safety.arrays import Index, Mask, Matrix
from steadyhand.controllers.signals import Vector


class Status(IntEnum):
    """How a solver ended. Only SOLVED is an answer."""

    SOLVED = 0
    INFEASIBLE = 1
    STOPPED = 2


_VIOLATED = 1e-11
"""A row counts as violated beyond this, in units of its own length in the metric."""
_VIOLATED_ABSOLUTE = 1e-12
_CHECKED = 1e-9
"""The same, for the check of the finished answer."""
_ROUNDING = 1e-12
"""What may be off in a row for no other reason than the size of the numbers it is summed from."""
_PASSES = 3
"""Passes of the final solve of strained rows: one, and two that refine it."""
_STRAINED = 100.0
"""Multiplier times length of a row, in units of u, beyond which rounding is taken out.

What the path leaves in u is some 1e-16 of the largest: up to here far below `_VIOLATED`.
"""
_EXACT = 1e-10
"""a_i^2 below this share of the row's length^2 counts as zero: it costs digits, moves nothing."""
_NEGLIGIBLE = 1e-200
"""a_i^2 below this counts as zero, too: the multiplier p/a_i^2 would overflow."""
_GRIPLESS = 1e-13
"""A row that all the box changes by less than this share is constant: J_i counts as zero.

Otherwise the path would look for its answer 1e13 ranges away and lose every digit on the way.
"""
_DEPENDENT = 1e-12
"""sin^2 of the angle below which a normal counts as a combination of the active ones."""

_ADDED, _NEVER, _SPARE = -1, -2, -3
# Rows of the `vectors` buffer: one number per active row, and two per row of the problem.
_MULTIPLIER, _SOFT, _STEP, _OFFSET, _LENGTH2 = range(5)


@njit(cache=True, error_model="numpy")
def _reach(
    normals: Matrix,
    factor: Matrix,
    vectors: Matrix,
    r_inv: Vector,
    q: int,
) -> tuple[float, float]:
    """Row q of the Cholesky factor of K = N' R^-1 N + A^2, and the step that adds it.

    The pivot is summed up from squares of what the active rows leave of the candidate, not as a
    difference: only so is "nothing is left" told from rounding. Leaves d(multiplier)/dt of the
    active rows in `vectors` and the rest of the normal in the last row of `normals`.

    Returns:
        (pivot, diagonal of K).
    """
    n = r_inv.shape[0]
    diagonal = vectors[_SOFT, q]
    for a in range(n):
        diagonal += normals[q, a] * r_inv[a] * normals[q, a]
    for j in range(q):
        entry = 0.0
        for a in range(n):
            entry += normals[j, a] * r_inv[a] * normals[q, a]
        for b in range(j):
            entry -= factor[q, b] * factor[j, b]
        factor[q, j] = entry / factor[j, j]
    pivot = vectors[_SOFT, q]
    for j in range(q - 1, -1, -1):
        value = factor[q, j]
        for b in range(j + 1, q):
            value -= factor[b, j] * vectors[_STEP, b]
        value /= factor[j, j]
        vectors[_STEP, j] = value
        pivot += vectors[_SOFT, j] * value * value
    for a in range(n):
        rest = normals[q, a]
        for j in range(q):
            rest -= vectors[_STEP, j] * normals[j, a]
        normals[normals.shape[0] - 1, a] = rest
        pivot += r_inv[a] * rest * rest
    return pivot, diagonal


@njit(cache=True, error_model="numpy")
def _forget(
    normals: Matrix,
    factor: Matrix,
    vectors: Matrix,
    index: Index,
    r_inv: Vector,
    leaving: int,
    q: int,
) -> None:
    """Drop active row `leaving`; the rows behind it, candidate q included, move up by one."""
    n = r_inv.shape[0]
    for j in range(leaving, q):
        for a in range(n):
            normals[j, a] = normals[j + 1, a]
        for v in range(_LENGTH2):
            vectors[v, j] = vectors[v, j + 1]
        index[0, j] = index[0, j + 1]
    for j in range(leaving, q - 1):
        pivot, diagonal = _reach(normals, factor, vectors, r_inv, j)
        factor[j, j] = sqrt(max(pivot, _DEPENDENT * diagonal))


@njit(cache=True, error_model="numpy")
def _refine(
    r_inv: Vector,
    normals: Matrix,
    factor: Matrix,
    vectors: Matrix,
    u: Vector,
    q: int,
) -> None:
    """Solve for what the active rows still miss at u, and add it to u and the multipliers.

    Rows that contradict each other have large multipliers y that cancel in u = u_nom - R^-1 N' y
    and leave rounding of their own size in u. This takes it out (iterative refinement): the rows
    then hold to rounding of their own numbers, and what is left stands in the stationarity,
    relative to y.
    """
    n = r_inv.shape[0]
    for j in range(q):
        value = vectors[_OFFSET, j] - vectors[_SOFT, j] * vectors[_MULTIPLIER, j]
        for a in range(n):
            value += normals[j, a] * u[a]
        for b in range(j):
            value -= factor[j, b] * vectors[_STEP, b]
        vectors[_STEP, j] = value / factor[j, j]
    for j in range(q - 1, -1, -1):
        value = vectors[_STEP, j]
        for b in range(j + 1, q):
            value -= factor[b, j] * vectors[_STEP, b]
        vectors[_STEP, j] = value / factor[j, j]
    for j in range(q):
        vectors[_MULTIPLIER, j] += vectors[_STEP, j]
        for a in range(n):
            u[a] -= r_inv[a] * normals[j, a] * vectors[_STEP, j]


@njit(cache=True, error_model="numpy")
def _strained(vectors: Matrix, index: Index, r_inv: Vector, m: int, q: int) -> bool:
    """Are multipliers so large that they may cancel in u?"""
    n = r_inv.shape[0]
    for j in range(q):
        row = index[0, j]
        length2 = vectors[_LENGTH2, row] if row < m else r_inv[(row - m) % n]
        if not abs(vectors[_MULTIPLIER, j]) * sqrt(length2) <= _STRAINED:
            return True
    return False


@njit(cache=True, error_model="numpy")
def _finish(
    u_nom: Vector,
    r_inv: Vector,
    normals: Matrix,
    factor: Matrix,
    vectors: Matrix,
    index: Index,
    u: Vector,
    m: int,
    q: int,
) -> None:
    """Solve the active rows once more from u_nom, so that no rounding of the path is left."""
    for a in range(r_inv.shape[0]):
        u[a] = u_nom[a]
    for j in range(q):
        vectors[_MULTIPLIER, j] = 0.0
    for _ in range(_PASSES):
        _refine(r_inv, normals, factor, vectors, u, q)
        if not _strained(vectors, index, r_inv, m, q):
            break


@njit(cache=True, error_model="numpy")
def _most_violated(
    J: Matrix,
    c: Vector,
    two_sided: Mask,
    lo: Vector,
    hi: Vector,
    u: Vector,
    vectors: Matrix,
    r_inv: Vector,
    index: Index,
) -> int:
    """The inactive one-sided row or bound that is farthest from holding; -1: all hold."""
    m, n = J.shape
    pick = -1
    worst = 0.0
    for i in range(m):
        if two_sided[i] or index[1, i] != 0:
            continue
        value = c[i]
        for a in range(n):
            value += J[i, a] * u[a]
        length2 = vectors[_LENGTH2, i]
        if value > _VIOLATED_ABSOLUTE and value * value > _VIOLATED**2 * length2:
            score = value * value / (length2 + 1e-300)
            if score > worst:
                worst = score
                pick = i
    for a in range(n):
        below = lo[a] - u[a]
        above = u[a] - hi[a]
        value = max(below, above)
        bound = m + a if below > above else m + n + a
        score = value * value / r_inv[a]
        if value > 0.0 and score > worst and score > _VIOLATED**2 and index[1, bound] == 0:
            worst = score
            pick = bound
    return pick


@njit(cache=True, error_model="numpy")
def _pin(lo: Vector, hi: Vector, u: Vector, index: Index, m: int) -> None:
    """Put inputs on their active bounds exactly, and inside all the others."""
    n = u.shape[0]
    for a in range(n):
        if index[1, m + a] != 0 or u[a] < lo[a]:
            u[a] = lo[a]
        elif index[1, m + n + a] != 0 or u[a] > hi[a]:
            u[a] = hi[a]


@njit(cache=True, error_model="numpy")
def _holds(
    J: Matrix,
    c: Vector,
    soft: Vector,
    two_sided: Mask,
    u: Vector,
    multiplier: Vector,
    vectors: Matrix,
) -> bool:
    """Check the answer against the rows themselves: nothing of the path is trusted."""
    m, n = J.shape
    for i in range(m):
        value = c[i] - soft[i] * multiplier[i]
        size = abs(c[i]) + soft[i] * abs(multiplier[i])
        for a in range(n):
            value += J[i, a] * u[a]
            size += abs(J[i, a] * u[a])
        if two_sided[i]:
            value = abs(value)
        elif multiplier[i] < 0.0:
            multiplier[i] = 0.0
        allowed = max(_CHECKED, _CHECKED * sqrt(vectors[_LENGTH2, i]), _ROUNDING * size)
        # Written so that NaN fails, and numbers too large to be added up.
        if not (value <= allowed < inf):
            return False
    return True


@njit(cache=True, error_model="numpy")
def _gripless(row: Vector, offset: float, lo: Vector, hi: Vector) -> bool:
    """Can no input of the box move the row?"""
    reach, middle = 0.0, offset
    for a in range(row.shape[0]):
        reach += abs(row[a]) * (hi[a] - lo[a])
        middle += row[a] * 0.5 * (lo[a] + hi[a])
    return reach <= _GRIPLESS * abs(middle)


@njit(cache=True, error_model="numpy")
def _load(
    pick: int,
    J: Matrix,
    c: Vector,
    soft: Vector,
    lo: Vector,
    hi: Vector,
    normals: Matrix,
    vectors: Matrix,
    q: int,
) -> None:
    """Put row or bound `pick` behind the q active ones, its multiplier zero."""
    m, n = J.shape
    vectors[_MULTIPLIER, q] = 0.0
    if pick < m:
        grip = 1.0
        if _gripless(J[pick], c[pick], lo, hi):
            grip, vectors[_LENGTH2, pick] = 0.0, soft[pick]
        for a in range(n):
            normals[q, a] = grip * J[pick, a]
        vectors[_OFFSET, q] = c[pick]
        exact = soft[pick] <= _EXACT * vectors[_LENGTH2, pick] + _NEGLIGIBLE
        vectors[_SOFT, q] = 0.0 if exact else soft[pick]
        return
    for a in range(n):
        normals[q, a] = 0.0
    vectors[_SOFT, q] = 0.0
    if pick < m + n:
        normals[q, pick - m] = -1.0
        vectors[_OFFSET, q] = lo[pick - m]
    else:
        normals[q, pick - m - n] = 1.0
        vectors[_OFFSET, q] = -hi[pick - m - n]


@njit(cache=True, error_model="numpy")
def _raise(
    r_inv: Vector,
    two_sided: Mask,
    u: Vector,
    normals: Matrix,
    factor: Matrix,
    vectors: Matrix,
    index: Index,
    q: int,
) -> int:
    """Raise the candidate's multiplier until its row holds or an active one must leave.

    Returns:
        The active row that leaves, or _ADDED, _SPARE (follows from the others), _NEVER.
    """
    n, m = r_inv.shape[0], two_sided.shape[0]
    rest = normals.shape[0] - 1
    free = index[0, q] < m and two_sided[index[0, q]]
    pivot, diagonal = _reach(normals, factor, vectors, r_inv, q)
    residual = vectors[_OFFSET, q] - vectors[_SOFT, q] * vectors[_MULTIPLIER, q]
    for a in range(n):
        residual += normals[q, a] * u[a]
    dependent = pivot <= _DEPENDENT * diagonal
    if free and dependent:
        # It says what the equalities before it say, or contradicts them.
        close = residual * residual <= _VIOLATED**2 * diagonal + _VIOLATED_ABSOLUTE**2
        return _SPARE if close else _NEVER

    length = inf if dependent else residual / pivot
    leaving = _ADDED
    for j in range(q):
        row = index[0, j]
        if vectors[_STEP, j] > 0.0 and (row >= m or not two_sided[row]):
            ratio = vectors[_MULTIPLIER, j] / vectors[_STEP, j]
            if ratio < length:
                length = ratio
                leaving = j
    if length == inf:
        return _NEVER
    if not dependent:
        for a in range(n):
            u[a] -= length * r_inv[a] * normals[rest, a]
    for j in range(q):
        vectors[_MULTIPLIER, j] -= length * vectors[_STEP, j]
    vectors[_MULTIPLIER, q] += length
    if leaving == _ADDED:
        factor[q, q] = sqrt(pivot)
    return leaving


@njit(cache=True, error_model="numpy")
def _add(
    r_inv: Vector,
    two_sided: Mask,
    u: Vector,
    normals: Matrix,
    factor: Matrix,
    vectors: Matrix,
    index: Index,
    q: int,
    budget: int,
) -> tuple[int, int, int]:
    """Make the candidate behind the q active rows hold; returns (status, q, steps)."""
    steps = 0
    while steps < budget:
        steps += 1
        leaving = _raise(r_inv, two_sided, u, normals, factor, vectors, index, q)
        if leaving == _ADDED:
            index[1, index[0, q]] = 1
            return 0, q + 1, steps
        if leaving == _NEVER:
            return 1, q, steps
        if leaving == _SPARE:
            return 0, q, steps
        index[1, index[0, leaving]] = 0
        _forget(normals, factor, vectors, index, r_inv, leaving, q)
        q -= 1
    return 2, q, steps


@njit(cache=True, error_model="numpy")
def _measure(r_inv: Vector, J: Matrix, soft: Vector, vectors: Matrix) -> None:
    """Length of every row in the metric, softness included."""
    m, n = J.shape
    for i in range(m):
        length2 = 0.0
        for a in range(n):
            length2 += J[i, a] * r_inv[a] * J[i, a]
        vectors[_LENGTH2, i] = length2 + soft[i]


@njit(cache=True, error_model="numpy")
def solve_dual(
    u_nom: Vector,
    r_inv: Vector,
    J: Matrix,
    c: Vector,
    soft: Vector,
    two_sided: Mask,
    lo: Vector,
    hi: Vector,
    u: Vector,
    multiplier: Vector,
    normals: Matrix,
    factor: Matrix,
    vectors: Matrix,
    index: Index,
    cap: int,
) -> tuple[int, int]:
    """Solve the problem of this module's first lines.

    Args:
        u_nom: (n,) wanted input, finite.
        r_inv: (n,) 1/R, > 0.
        J: (m, n) rows p = J u + c, finite.
        c: (m,) their offsets, finite.
        soft: (m,) a_i^2 >= 0.
        two_sided: (m,) a penalty in both directions.
        lo: (n,) lower bounds.
        hi: (n,) upper bounds, >= lo.
        u: (n,) out: the answer, exactly inside the bounds whatever the status.
        multiplier: (m + 2n,) out: of the rows, the lower and the upper bounds.
        normals: work space of `Workspace`, as the next three.
        factor: work space.
        vectors: work space.
        index: work space.
        cap: largest number of steps.

    Returns:
        (status, steps): see `Status`; no step was needed if u_nom already holds every row.
    """
    m, n = J.shape
    _measure(r_inv, J, soft, vectors)
    for i in range(m + 2 * n):
        multiplier[i] = 0.0
        index[1, i] = 0
    for a in range(n):
        u[a] = u_nom[a]

    status = steps = q = 0
    for i in range(m):
        if two_sided[i] and status == 0:
            # No active row can block it: its multiplier may have either sign.
            index[0, q] = i
            _load(i, J, c, soft, lo, hi, normals, vectors, q)
            status, q, more = _add(
                r_inv, two_sided, u, normals, factor, vectors, index, q, cap - steps
            )
            steps += more
    while status == 0:
        pick = _most_violated(J, c, two_sided, lo, hi, u, vectors, r_inv, index)
        if pick < 0:
            break
        index[0, q] = pick
        _load(pick, J, c, soft, lo, hi, normals, vectors, q)
        status, q, more = _add(r_inv, two_sided, u, normals, factor, vectors, index, q, cap - steps)
        steps += more
        if status == 0 and _strained(vectors, index, r_inv, m, q):
            # Or the next rows would be picked by rounding.
            _refine(r_inv, normals, factor, vectors, u, q)

    if status == 0 and q > 0:
        _finish(u_nom, r_inv, normals, factor, vectors, index, u, m, q)
        for j in range(q):
            multiplier[index[0, j]] = vectors[_MULTIPLIER, j]
    _pin(lo, hi, u, index, m)
    if status == 0 and not _holds(J, c, soft, two_sided, u, multiplier, vectors):
        status = 2
    return status, steps


class Workspace:
    """Buffers of `solve_dual` for m rows and n inputs, made once."""

    def __init__(self, m: int, n: int) -> None:
        size = m + 2 * n
        # A candidate stands behind up to m rows and n bounds that are active already.
        self.normals: Matrix = np.zeros((size + 1, n))
        self.factor: Matrix = np.zeros((size + 1, size + 1))
        self.vectors: Matrix = np.zeros((5, size + 1))
        self.index: Index = np.zeros((2, size + 1), dtype=np.int64)
        self.multiplier: Vector = np.zeros(size)
        self.cap = 20 + 4 * size


class ActiveSetSolver:
    """`solve_dual` with its buffers; compiled on construction, so that no tick pays for it."""

    name = "active set"

    def __init__(self, m: int, n: int) -> None:
        self._work = Workspace(m, n)
        self.solve(
            *(np.zeros(n), np.ones(n), np.zeros((m, n)), np.zeros(m), np.ones(m)),
            *(np.zeros(m, dtype=np.bool_), -np.ones(n), np.ones(n), np.zeros(n)),
        )

    @property
    def multiplier(self) -> Vector:
        """(m + 2n,) of the last solve: rows, lower bounds, upper bounds."""
        return self._work.multiplier

    def solve(
        self,
        u_nom: Vector,
        r_inv: Vector,
        J: Matrix,
        c: Vector,
        soft: Vector,
        two_sided: Mask,
        lo: Vector,
        hi: Vector,
        u: Vector,
    ) -> tuple[int, int]:
        """Write the answer into `u`; returns (status, steps). Arguments as in `solve_dual`."""
        work = self._work
        # Written out: packing the arguments up would take a tenth of a microsecond.
        # fmt: off
        status, steps = solve_dual(
            u_nom, r_inv, J, c, soft, two_sided, lo, hi, u, work.multiplier,
            work.normals, work.factor, work.vectors, work.index, work.cap,
        )
        # fmt: on
        return status, steps
