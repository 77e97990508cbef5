"""The rival: the CBF-QP solved by a library (DAQP), for comparison and differential tests.

The same rows and bounds as `active_set.py` with every a_i = 0, handed to a dual active-set solver
in C. Not installed at the edge and not needed there.
"""

from typing import Any

import numpy as np

from steadyhand.controllers.errors import SafetyError
from steadyhand.controllers.protocols import SafetyModel
from steadyhand.controllers.safety.active_set import Status
from steadyhand.controllers.safety.arrays import Mask, Matrix
from steadyhand.controllers.safety.atacom import AtacomDC
from steadyhand.controllers.safety.constraint import ConstraintSet, Gains, diameter
from steadyhand.controllers.safety.limits import Limits
from steadyhand.controllers.safety.row_filter import CBF_QP
from steadyhand.controllers.signals import Vector

_UNBOUNDED = 1e30
_SOLVED = 1
_INFEASIBLE = -1
_EQUALITY = 5


class DaqpSolver:
    """DAQP called directly, behind the interface of `ActiveSetSolver`."""

    name = "daqp"

    def __init__(self, m: int, n: int) -> None:
        """Make the buffers for m rows and n inputs.

        Raises:
            SafetyError: the package daqp is not installed.
        """
        try:
            import daqp
        except ImportError as error:
            raise SafetyError(
                "the CBF-QP reference needs the package daqp: pip install daqp"
            ) from error
        self._library: Any = daqp
        self._m, self._n = m, n
        self._upper, self._lower = np.zeros(n + m), np.full(n + m, -_UNBOUNDED)
        self._sense = np.zeros(n + m, dtype=np.int32)
        self._multiplier = np.zeros(m + 2 * n)

    @property
    def multiplier(self) -> Vector:
        """(m + 2n,) of the last solve: rows, lower bounds, upper bounds."""
        return self._multiplier

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
        """Write the answer into `u`; returns (status, steps). Arguments as in `solve_dual`.

        Soft rows are handed over with one slack variable each, which is slow but exact.
        """
        m, n = self._m, self._n
        if np.any(soft > 0):
            return self._solve_soft(u_nom, r_inv, J, c, soft, two_sided, lo, hi, u)
        upper, lower, sense = self._upper, self._lower, self._sense
        upper[:n], lower[:n] = hi, lo
        np.negative(c, out=upper[n:])
        sense[n:] = np.where(two_sided, _EQUALITY, 0)
        lower[n:] = np.where(two_sided, upper[n:], -_UNBOUNDED)
        r = 1.0 / r_inv
        answer, _, flag, told = self._library.solve(
            np.diag(r), -r * u_nom, np.ascontiguousarray(J), upper, lower, sense
        )
        return self._take(answer, flag, told, m, n, u)

    def _solve_soft(
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
        m, n = self._m, self._n
        loose = soft > 0
        slack = np.where(loose, 1.0 / np.where(loose, soft, 1.0), 1.0)
        r = 1.0 / r_inv
        unbounded = np.full(m, _UNBOUNDED)
        answer, _, flag, told = self._library.solve(
            np.diag(np.concatenate([r, slack])),
            np.concatenate([-r * u_nom, np.zeros(m)]),
            np.hstack([J, -np.diag(loose.astype(np.float64))]),
            np.concatenate([hi, unbounded, -c]),
            np.concatenate([lo, -unbounded, np.where(two_sided, -c, -unbounded)]),
            np.concatenate([np.zeros(n + m), np.where(two_sided, _EQUALITY, 0)]).astype(np.int32),
        )
        return self._take(answer, flag, told, m, n, u, n + m)

    def _take(
        self,
        answer: Vector,
        flag: int,
        told: dict[str, Any],
        m: int,
        n: int,
        u: Vector,
        first_row: int | None = None,
    ) -> tuple[int, int]:
        """Read the library's answer; only its own "optimal" counts as one."""
        first_row = n if first_row is None else first_row
        steps = int(told["iterations"])
        if flag == _SOLVED:
            u[:] = answer[:n]
            multiplier = told["lam"]
            self._multiplier[:m] = multiplier[first_row:]
            self._multiplier[m : m + n] = np.maximum(-multiplier[:n], 0.0)
            self._multiplier[m + n :] = np.maximum(multiplier[:n], 0.0)
            return int(Status.SOLVED), steps
        return int(Status.INFEASIBLE if flag == _INFEASIBLE else Status.STOPPED), steps


def cbf_qp(
    model: SafetyModel, constraints: ConstraintSet, limits: Limits, kappa: float = 0.9
) -> AtacomDC:
    """The CBF-QP filter of a plant, solved by the library; same interface, same checks.

    Raises:
        SafetyError: see `AtacomDC`, or the library is missing.
    """
    gains = Gains.cbf_limit(limits.period_s, diameter(model.inputs), kappa)
    solver = DaqpSolver(len(constraints), len(model.inputs))
    return AtacomDC(model, constraints, limits, gains, CBF_QP, solver=solver)
