"""Goal 3: the null-space filter without a basis, beside the SVD form it replaces."""

from collections.abc import Callable
from typing import Any

import numpy as np

from steadyhand.controllers.safety.active_set import ActiveSetSolver
from steadyhand.controllers.safety.tangent import project, published_projection
from steadyhand.controllers.signals import Vector
from steadyhand.training.bench.goals import Check, Measured, faster, largest
from steadyhand.training.bench.problems import Problems, arm_problems, over_states
from steadyhand.training.bench.turns import Setting, take_turns

NUMPY_BOUND, COMPILED_BOUND, ERROR_BOUND = 1 / 10, 1 / 40, 1e-9
SIZES = {"7 inputs, 19 rows": (7, 5, True), "14 inputs, 30 rows": (14, 30, False)}
SVD, NUMPY, COMPILED, SOLVER = "SVD basis, pinv", "n x n, numpy", "n x n, compiled", "active set"
EXAMINED = 300

Filter = Callable[[int], Vector]


def filters(problems: Problems) -> dict[str, Filter]:
    """Every form: number of the state → input (n,)."""
    n, m = problems.n, problems.m
    u_nom, J, drift, speed = (
        *(problems.u_nom, problems.J),
        *(problems.drift, problems.slack_speed),
    )
    weight, soft = 1.0 / speed**2, speed**2
    eye = np.eye(n)

    def svd(i: int) -> Vector:
        return published_projection(u_nom[i], J[i], drift[i], speed[i])

    def plain(i: int) -> Vector:
        heavy = J[i].T * weight[i]
        u: Vector = np.linalg.solve(eye + heavy @ J[i], u_nom[i] - heavy @ drift[i])
        return u

    r, M, step, u = np.ones(n), np.empty((n, n)), np.empty(n), np.empty(n)

    def compiled(i: int) -> Vector:
        project(u_nom[i], r, J[i], drift[i], weight[i], M, step, u)
        return u

    solver, both = ActiveSetSolver(m, n), np.ones(m, dtype=np.bool_)
    low, high, exact = np.full(n, -1e6), np.full(n, 1e6), np.empty(n)

    def active_set(i: int) -> Vector:
        solver.solve(u_nom[i], r, J[i], drift[i], soft[i], both, low, high, exact)
        return exact

    return {SVD: svd, NUMPY: plain, COMPILED: compiled, SOLVER: active_set}


def error(problems: Problems, form: Filter, reference: Filter) -> float:
    """Largest difference of one form to another."""
    count = min(EXAMINED, len(problems.u_nom))
    return largest([float(np.abs(form(i) - reference(i)).max()) for i in range(count)])


def measure(setting: Setting) -> Measured:
    """Both sizes, all forms."""
    tables: dict[str, Any] = {}
    checks: list[Check] = []
    for title, size in SIZES.items():
        problems = arm_problems(*size)
        forms = filters(problems)
        rows = take_turns(over_states(forms, len(problems.u_nom)), setting)
        errors = {name: error(problems, form, forms[SVD]) for name, form in forms.items()}
        tables[title] = [rows[name].data() | {"error against SVD": errors[name]} for name in forms]
        checks += [
            faster(title, rows[NUMPY], rows[SVD], NUMPY_BOUND),
            faster(title, rows[COMPILED], rows[SVD], COMPILED_BOUND),
            *(
                Check(f"{title}: error of {name}", errors[name], ERROR_BOUND)
                for name in (COMPILED, SOLVER)
            ),
        ]
    note = (
        f"'{SOLVER}' is the solver of the filter that ships; it takes exact rows and bounds too, "
        "which the n x n system cannot"
    )
    return Measured(tables, checks, [note])
