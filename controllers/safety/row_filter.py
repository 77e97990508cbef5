"""Rows, gains and solver without any plant: the directional rule as arrays in, arrays out.

What studies and benches call, and the core of `atacom.py`, where the rule is written down. Plain
ATACOM, ATACOM with drift clipping and the CBF-QP are parameters of the same solver.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np

from steadyhand.controllers.errors import SafetyError
from steadyhand.controllers.safety.active_set import ActiveSetSolver, Status
from steadyhand.controllers.safety.arrays import Mask, Matrix
from steadyhand.controllers.safety.constraint import ConstraintSet, Gains
from steadyhand.controllers.safety.rows import FIELDS, Field, assess, blend, build, distance
from steadyhand.controllers.safety.yielding import least_violation
from steadyhand.controllers.signals import Vector

_IGNORED = -1e30
"""Offset of a row that is not asked for."""


class Clip(StrEnum):
    """Which helpful drift is ignored."""

    UNTRUSTED = "untrusted"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Variant:
    """Which filter the one solver is."""

    name: str
    two_sided: bool = False
    """Resist leaving as much as approaching (ATACOM); the gains need gamma = 0."""
    clip: Clip = Clip.UNTRUSTED
    exponential: bool = False
    """a = exp(beta m) - 1: near-identity far away, strong close in."""


DC = Variant("atacom-dc")
ATACOM = Variant("atacom", two_sided=True)
ATACOM_CLIPPED = Variant("atacom-clipped", two_sided=True, clip=Clip.ALL)
CBF_QP = Variant("cbf-qp")
"""The rule with `Gains.cbf_limit`: beta = 0, every row exact."""


class Solver(Protocol):
    """Answers the problem in the first lines of `active_set.py`."""

    name: str

    @property
    def multiplier(self) -> Vector:
        """(m + 2n,) of the last solve: rows, lower bounds, upper bounds."""
        ...

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
        """Write the answer into `u`; returns (status, steps)."""
        ...


class RowFilter:
    """Rows, gains and solver without any plant: arrays in, arrays out.

    What studies and benches call, and the core of `AtacomDC`.
    """

    def __init__(
        self,
        constraints: ConstraintSet,
        gains: Gains,
        r: Vector,
        variant: Variant = DC,
        quantum: Vector | None = None,
        solver: Solver | None = None,
    ) -> None:
        """Make the buffers and compile the kernels.

        Args:
            constraints: the m rows.
            gains: bound to the period; see `Gains`.
            r: (n,) diagonal of the metric R, > 0.
            variant: which filter.
            quantum: (n,) step width of each input on the wire; 0 (default) is continuous.
            solver: the exact active-set solver by default.

        Raises:
            SafetyError: a two-sided variant with gamma > 0, or a metric or quantum that is none.
        """
        n, m = len(r), len(constraints)
        if variant.two_sided and gains.gamma > 0:
            raise SafetyError(
                f"variant {variant.name}: gamma={gains.gamma:g}: a two-sided row with an allowed "
                "rate would push towards its limit; use gamma=0"
            )
        quantum = np.zeros(n) if quantum is None else np.array(quantum, dtype=np.float64)
        if not (np.all(np.isfinite(r)) and np.all(r > 0)):
            raise SafetyError(f"metric r={r}: every entry must be finite and > 0")
        if quantum.shape != (n,) or not (np.all(np.isfinite(quantum)) and np.all(quantum >= 0)):
            raise SafetyError(f"quantum={quantum}: needs {n} finite entries >= 0")
        self.constraints, self.gains, self.variant = constraints, gains, variant
        self.r = np.array(r, dtype=np.float64)
        self.r_inv = 1.0 / self.r
        self.nu = constraints.margins(gains)
        self.quantum = quantum
        self.solver: Solver = ActiveSetSolver(m, n) if solver is None else solver
        self.two_sided: Mask = constraints.equality | variant.two_sided
        self.table = np.zeros((FIELDS, m))
        self.tolerance = 1e-9 / gains.period_s
        self._offset = self.table[Field.OFFSET]
        self._soft = self.table[Field.SOFT]
        self._gains = np.array(
            [
                *(gains.gamma, gains.beta, gains.recovery, gains.softness_floor),
                *(1.0 / gains.period_s, gains.diameter),
            ]
        )
        self._zeros = np.zeros(m)
        zero = np.zeros(n)
        self.build(zero, -np.ones(m), np.zeros((m, n)), np.zeros(m), np.zeros(m))
        self.blend(np.zeros((m, n)), zero, zero, zero)
        self.assess(np.zeros((m, n)), zero)
        distance(zero, zero, self.r)

    def build(
        self, u_nom: Vector, k: Vector, J_G: Matrix, psi_trusted: Vector, psi_untrusted: Vector
    ) -> None:
        """Fill `table` from (m,) k, (m, n) J_G and (m,) drifts, all scaled, per second."""
        build(
            *(k, J_G, psi_trusted, psi_untrusted, self.nu, self.constraints.rate_disturbance),
            *(self.quantum, self.constraints.equality, self._gains, self.variant.two_sided),
            *(self.variant.clip is Clip.ALL, self.variant.exponential, u_nom, self.table),
        )

    def project(
        self, u_nom: Vector, J_G: Matrix, lo: Vector, hi: Vector, out: Vector
    ) -> tuple[int, int]:
        """Solve for the rows in `table` over lo <= u <= hi (n,); returns (status, steps)."""
        return self.solver.solve(
            *(u_nom, self.r_inv, J_G, self._offset, self._soft, self.two_sided, lo, hi, out)
        )

    def solve(
        self,
        u_nom: Vector,
        k: Vector,
        J_G: Matrix,
        psi_trusted: Vector,
        psi_untrusted: Vector,
        lo: Vector,
        hi: Vector,
        out: Vector,
    ) -> tuple[int, int]:
        """`build` and `project` in one; the rule alone, without check, blend or backup."""
        self.build(u_nom, k, J_G, psi_trusted, psi_untrusted)
        return self.project(u_nom, J_G, lo, hi, out)

    def blend(self, J_G: Matrix, u_star: Vector, u_backup: Vector, out: Vector) -> float:
        """Least share of the backup that passes the check, or -1; see `rows.blend`."""
        share: float = blend(
            *(J_G, self.table, self.constraints.hard, self.constraints.equality),
            *(self.tolerance, u_star, u_backup, out),
        )
        return share

    def assess(self, J_G: Matrix, u: Vector) -> tuple[float, float, int, float, float, float]:
        """How `u` stands against the rows; see `rows.assess`."""
        told: tuple[float, float, int, float, float, float] = assess(
            J_G, self.table, self.constraints.hard, self.constraints.equality, u
        )
        return told

    def hold(self, J_G: Matrix, lo: Vector, hi: Vector, near: Vector, out: Vector) -> bool:
        """Is there an input with p_i <= 0 in every hard row? Writes the one nearest to `near`.

        The promise of the sampled-data margin rests on it; see `AtacomDC.holding_input`.
        """
        offset = np.where(self.constraints.hard, self._offset, _IGNORED)
        # A copy: for a mask that is read-only the solver would be compiled once more.
        equality = self.constraints.equality.copy()
        status, _ = self.solver.solve(
            *(near, self.r_inv, J_G, offset, self._zeros, equality, lo, hi, out)
        )
        return status == Status.SOLVED

    def yield_least(self, J_G: Matrix, lo: Vector, hi: Vector, near: Vector, out: Vector) -> bool:
        """Input that fails the check of the hard rows least: people first, equipment last.

        Bounds come before everything, ties go to the input nearest to `near`; see `yielding.py`.

        Returns:
            Did the solver answer for the first priority? `out` is left alone if not.
        """
        constraints = self.constraints

        def ask(counts: Mask, soft: Vector, offset: Vector, start: Vector) -> Vector | None:
            answer = np.empty_like(out)
            status, _ = self.solver.solve(
                *(start, self.r_inv, J_G, np.where(counts, offset, _IGNORED), soft),
                *(counts & constraints.equality, lo, hi, answer),
            )
            return answer if status == Status.SOLVED else None

        least = least_violation(
            *(ask, constraints, J_G, self.table[Field.GATE], self.r_inv, near, self.tolerance)
        )
        if least is None:
            return False
        out[:] = least
        return True
