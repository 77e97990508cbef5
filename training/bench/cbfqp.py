"""Goal 4: the exact CBF-QP, ours beside solvers called directly and through modelling layers.

Every solver gets its data ready in its own form, so that nobody pays for a conversion.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from steadyhand.controllers.safety.active_set import ActiveSetSolver
from steadyhand.controllers.signals import Vector
from steadyhand.training.bench.goals import Check, Measured, faster, largest
from steadyhand.training.bench.problems import Problems, arm_problems, over_states
from steadyhand.training.bench.turns import Setting, take_turns

SIZES = {
    "7 inputs, 5 rows and bounds": (7, 5, True),
    "14 inputs, 30 rows and bounds": (14, 30, False),
}
OURS, DAQP, PROXQP = "active set", "daqp, direct", "qpsolvers + proxqp"
CVXPY = "cvxpy, parametrised"
BOUNDS = {DAQP: 1.1, PROXQP: 1 / 6, CVXPY: 1 / 80}
VIOLATION_BOUND = 1e-8
EXAMINED = 300

Solver = Callable[[int], Vector]


def _ours(problems: Problems) -> Solver:
    n, rows = problems.n, problems.G.shape[1]
    solver, offset = ActiveSetSolver(rows, n), -problems.h
    r_inv, exact, one_sided = np.ones(n), np.zeros(rows), np.zeros(rows, dtype=np.bool_)
    u_nom, G, low, high = problems.u_nom, problems.G, problems.low, problems.high
    u = np.empty(n)

    def solve(i: int) -> Vector:
        solver.solve(u_nom[i], r_inv, G[i], offset[i], exact, one_sided, low[i], high[i], u)
        return u

    return solve


def _daqp(problems: Problems) -> Solver:
    import daqp

    n, rows = problems.n, problems.G.shape[1]
    count = len(problems.u_nom)
    eye, f, G = np.eye(n), -problems.u_nom, problems.G
    upper = np.hstack([problems.high, problems.h])
    lower = np.hstack([problems.low, np.full((count, rows), -1e30)])
    sense = np.zeros(n + rows, dtype=np.int32)

    def solve(i: int) -> Vector:
        u: Vector = daqp.solve(eye, f[i], G[i], upper[i], lower[i], sense)[0]
        return u

    return solve


def _proxqp(problems: Problems) -> Solver:
    import proxsuite  # noqa: F401  (qpsolvers finds it by itself, or fails in the middle of a run)

    solve_qp: Any = import_module("qpsolvers").solve_qp

    eye, q = np.eye(problems.n), -problems.u_nom
    G, h, low, high = problems.G, problems.h, problems.low, problems.high

    def solve(i: int) -> Vector:
        u: Vector = solve_qp(eye, q[i], G[i], h[i], lb=low[i], ub=high[i], solver="proxqp")
        return u

    return solve


def _cvxpy(problems: Problems) -> Solver:
    """Compiled once, with parameters; Clarabel, which was the faster of its two exact solvers."""
    cvxpy: Any = import_module("cvxpy")  # its types say less than nothing

    n, rows = problems.n, problems.G.shape[1]
    u, wanted = cvxpy.Variable(n), cvxpy.Parameter(n)
    G, h = cvxpy.Parameter((rows, n)), cvxpy.Parameter(rows)
    low, high = cvxpy.Parameter(n), cvxpy.Parameter(n)
    problem = cvxpy.Problem(
        cvxpy.Minimize(0.5 * cvxpy.sum_squares(u - wanted)), [G @ u <= h, u >= low, u <= high]
    )

    def solve(i: int) -> Vector:
        wanted.value, G.value, h.value = problems.u_nom[i], problems.G[i], problems.h[i]
        low.value, high.value = problems.low[i], problems.high[i]
        problem.solve(solver=cvxpy.CLARABEL)
        answer: Vector = u.value
        return answer

    return solve


SOLVERS: dict[str, Callable[[Problems], Solver]] = {
    OURS: _ours,
    DAQP: _daqp,
    PROXQP: _proxqp,
    CVXPY: _cvxpy,
}
"""Name → problems → solver: number of the state → input (n,)."""


def measure(setting: Setting) -> Measured:
    """Both sizes, all solvers."""
    tables: dict[str, Any] = {}
    checks: list[Check] = []
    for title, size in SIZES.items():
        problems = arm_problems(*size)
        every = {name: make(problems) for name, make in SOLVERS.items()}
        rows = take_turns(over_states(every, len(problems.u_nom)), setting)
        answers = {
            name: [solve(i).copy() for i in range(EXAMINED)] for name, solve in every.items()
        }
        broken = {
            name: largest([problems.violation(i, u) for i, u in enumerate(found)])
            for name, found in answers.items()
        }
        away = {
            name: largest(np.abs(np.array(found) - np.array(answers[DAQP])).max(axis=1).tolist())
            for name, found in answers.items()
        }
        tables[title] = [
            rows[name].data()
            | {"worst row violation": broken[name], "difference to daqp": away[name]}
            for name in every
        ]
        checks += [faster(title, rows[OURS], rows[rival], bound) for rival, bound in BOUNDS.items()]
        checks.append(Check(f"{title}: row violation of ours", broken[OURS], VIOLATION_BOUND))
    return Measured(tables, checks)
