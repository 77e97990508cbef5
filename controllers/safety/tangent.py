"""Linear algebra of the constraint manifold: one n x n system instead of a null-space basis.

`project` and `newton` are compiled and write into buffers of the caller; they are what plain and
directional ATACOM need when no row has to be exact, and an independent second way to the answers
of `active_set.py`. `published` is ATACOM as its authors compute it, with an SVD and a basis that
a Procrustes rotation keeps smooth: the form to compare with, in speed and in behaviour.
"""

from math import inf, sqrt

import numpy as np
from numba import njit

from steadyhand.controllers.safety.arrays import Matrix
from steadyhand.controllers.signals import Vector

_ARMIJO = 1e-4
_SHORTEST = 1e-12
_SETTLED = 1e-14


@njit(cache=True)
def cholesky_solve(M: Matrix, b: Vector) -> bool:
    """Solve M x = b for a positive definite M (n, n), of which the lower half is read.

    Args:
        M: (n, n); its lower half becomes the Cholesky factor.
        b: (n,); becomes x.

    Returns:
        False if M is not positive definite; `b` is then of no use.
    """
    n = b.shape[0]
    for i in range(n):
        for j in range(i):
            entry = M[i, j]
            for q in range(j):
                entry -= M[i, q] * M[j, q]
            M[i, j] = entry / M[j, j]
        pivot = M[i, i]
        for q in range(i):
            pivot -= M[i, q] * M[i, q]
        if not 0.0 < pivot < inf:
            return False
        M[i, i] = sqrt(pivot)
        value = b[i]
        for q in range(i):
            value -= M[i, q] * b[q]
        b[i] = value / M[i, i]
    for i in range(n - 1, -1, -1):
        value = b[i]
        for q in range(i + 1, n):
            value -= M[q, i] * b[q]
        b[i] = value / M[i, i]
    return True


@njit(cache=True)
def project(
    u_nom: Vector,
    r: Vector,
    J: Matrix,
    c: Vector,
    weight: Vector,
    M: Matrix,
    step: Vector,
    u: Vector,
) -> bool:
    """Plain ATACOM without a basis: argmin |u - u_nom|_R^2 + sum_i weight_i (J_i u + c_i)^2.

    By the matrix inversion lemma this is (R + J' W J) (u - u_nom) = -J' W (J u_nom + c).

    Args:
        u_nom: (n,) wanted input.
        r: (n,) diagonal of R, > 0.
        J: (m, n) input Jacobian of the rows.
        c: (m,) drift plus recovery of the rows.
        weight: (m,) 1/a_i^2, finite.
        M: (n, n) work space.
        step: (n,) work space.
        u: (n,) out.

    Returns:
        False if the system is numerically singular; `u` is then u_nom.
    """
    m, n = J.shape
    for a in range(n):
        step[a] = 0.0
        for b in range(a):
            M[a, b] = 0.0
        M[a, a] = r[a]
    for i in range(m):
        value = c[i]
        for a in range(n):
            value += J[i, a] * u_nom[a]
        for a in range(n):
            heavy = weight[i] * J[i, a]
            step[a] -= heavy * value
            for b in range(a + 1):
                M[a, b] += heavy * J[i, b]
    solved: bool = cholesky_solve(M, step)
    for a in range(n):
        u[a] = u_nom[a] + step[a] if solved else u_nom[a]
    return solved


@njit(cache=True)
def _cost(
    u: Vector, u_nom: Vector, r: Vector, J: Matrix, c: Vector, weight: Vector, p: Vector
) -> float:
    """Half the objective of `newton` at u; leaves p(u) behind."""
    m, n = J.shape
    total = 0.0
    for a in range(n):
        total += r[a] * (u[a] - u_nom[a]) ** 2
    for i in range(m):
        value = c[i]
        for a in range(n):
            value += J[i, a] * u[a]
        p[i] = value
        if value > 0.0:
            total += weight[i] * value * value
    return 0.5 * total


@njit(cache=True)
def _descend(
    u: Vector,
    u_nom: Vector,
    r: Vector,
    J: Matrix,
    weight: Vector,
    lo: Vector,
    hi: Vector,
    p: Vector,
    g: Vector,
    M: Matrix,
    step: Vector,
) -> bool:
    """Gradient `g` and Newton `step` on the inputs that no bound pins; False if singular."""
    m, n = J.shape
    for a in range(n):
        g[a] = r[a] * (u[a] - u_nom[a])
        for b in range(a):
            M[a, b] = 0.0
        M[a, a] = r[a]
    for i in range(m):
        if p[i] > 0.0:
            for a in range(n):
                heavy = weight[i] * J[i, a]
                g[a] += heavy * p[i]
                for b in range(a + 1):
                    M[a, b] += heavy * J[i, b]
    for a in range(n):
        step[a] = -g[a]
        if (u[a] <= lo[a] and g[a] > 0.0) or (u[a] >= hi[a] and g[a] < 0.0):
            step[a] = 0.0
            for b in range(a):
                M[a, b] = 0.0
            for b in range(a + 1, n):
                M[b, a] = 0.0
            M[a, a] = 1.0
    solved: bool = cholesky_solve(M, step)
    return solved


@njit(cache=True)
def newton(
    u_nom: Vector,
    r: Vector,
    J: Matrix,
    c: Vector,
    weight: Vector,
    lo: Vector,
    hi: Vector,
    cap: int,
    work: Matrix,
    p: Vector,
    u: Vector,
) -> tuple[bool, int]:
    """The directional rule by projected Newton: rows soft, bounds exact, any-time feasible.

    min over lo <= u <= hi of 1/2 |u - u_nom|_R^2 + 1/2 sum_i weight_i max(J_i u + c_i, 0)^2,
    Armijo steps on the projected path (Bertsekas, SIAM J. Control Optim. 20, 1982).

    Args:
        u_nom: (n,) wanted input.
        r: (n,) diagonal of R, > 0.
        J: (m, n) input Jacobian of the rows.
        c: (m,) offsets of the rows.
        weight: (m,) 1/a_i^2, finite: digits are lost as 1e-16 max(weight), see `active_set.py`.
        lo: (n,) lower bounds.
        hi: (n,) upper bounds.
        cap: largest number of passes; 3 to 8 are usual.
        work: (n + 3, n) work space.
        p: (m,) out: rows at the answer.
        u: (n,) out, inside the bounds whatever happens.

    Returns:
        (settled, passes).
    """
    n = u.shape[0]
    M, g, step, trial = work[:n], work[n], work[n + 1], work[n + 2]
    for a in range(n):
        u[a] = min(max(u_nom[a], lo[a]), hi[a])
    cost = _cost(u, u_nom, r, J, c, weight, p)
    for passes in range(1, cap + 1):
        if not _descend(u, u_nom, r, J, weight, lo, hi, p, g, M, step):
            return False, passes
        length = 1.0
        while True:
            moved = 0.0
            promised = 0.0
            for a in range(n):
                trial[a] = min(max(u[a] + length * step[a], lo[a]), hi[a])
                change = trial[a] - u[a]
                moved += r[a] * change * change
                promised += g[a] * change
            next_cost = _cost(trial, u_nom, r, J, c, weight, p)
            if next_cost <= cost + _ARMIJO * promised or length < _SHORTEST:
                break
            length *= 0.5
        for a in range(n):
            u[a] = trial[a]
        if moved <= _SETTLED**2 * (1.0 + cost):
            return True, passes
        cost = next_cost
    return False, cap


def smooth_basis(J_u: Matrix, n: int) -> tuple[Matrix, float]:
    """Null-space basis of J_u (m, n + m) that follows the first n unit vectors without jumps.

    Orthogonal Procrustes rotation of any orthonormal basis, as the later public ATACOM
    controllers do.

    Returns:
        B (n + m, n) with J_u B = 0 and orthonormal columns, and the smallest singular value of
        its overlap with the unit vectors: at 0 the rotation is undefined.
    """
    full = np.linalg.svd(J_u, full_matrices=True)[2]
    null = full[J_u.shape[0] :].T
    left, overlap, right = np.linalg.svd(null[:n].T)
    return null @ (left @ right), float(overlap[-1])


def published(
    action: Vector, J: Matrix, drift: Vector, violation: Vector, alpha: Vector, recovery: float
) -> Vector:
    """ATACOM as published: drift compensation, contraction and a tangential step.

    Args:
        action: (n,) the policy's action, used as coordinates in `smooth_basis`.
        J: (m, n) input Jacobian of the rows.
        drift: (m,) psi; clip it at zero from below first for ATACOM with drift clipping.
        violation: (m,) c, zero for every row whose slack is positive.
        alpha: (m,) slack speeds, > 0.
        recovery: lambda, 1/s.

    Returns:
        (n,) input of the plant, before any bound.
    """
    n = len(action)
    J_u = np.hstack([J, np.diag(alpha)])
    basis, _ = smooth_basis(J_u, n)
    forced = np.linalg.pinv(J_u) @ (drift + recovery * violation)
    command: Vector = (basis @ action - forced)[:n]
    return command


def published_projection(u_nom: Vector, J: Matrix, c: Vector, alpha: Vector) -> Vector:
    """(u_nom, 0) projected on the tangent space by an SVD: what `project` computes without one.

    Args:
        u_nom: (n,) wanted input.
        J: (m, n) input Jacobian of the rows.
        c: (m,) drift plus recovery.
        alpha: (m,) slack speeds, > 0.

    Returns:
        (n,) input, in the Euclidean metric.
    """
    n, m = len(u_nom), len(c)
    J_u = np.hstack([J, np.diag(alpha)])
    full = np.linalg.svd(J_u, full_matrices=True)[2]
    null = full[m:].T
    wanted = np.concatenate([u_nom, np.zeros(m)])
    command: Vector = (null @ (null.T @ wanted) - np.linalg.pinv(J_u) @ c)[:n]
    return command
