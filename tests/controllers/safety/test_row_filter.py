"""The directional rule, its variants and its check, on numbers worked by hand."""

from collections.abc import Callable
from math import e, inf

import numpy as np
import pytest

from steadyhand.controllers.errors import SafetyError
from steadyhand.controllers.safety.active_set import Status
from steadyhand.controllers.safety.constraint import ConstraintRow, ConstraintSet, Gains, Priority
from steadyhand.controllers.safety.row_filter import (
    ATACOM,
    ATACOM_CLIPPED,
    CBF_QP,
    DC,
    Clip,
    RowFilter,
    Variant,
)
from steadyhand.controllers.safety.rows import REPORTED, Field, blend, distance, surprise
from steadyhand.controllers.safety.tangent import published_projection

# T = 0.1 s, D = 2: (2 + 1*2)*0.1 = 0.4 <= 0.9.
GAINS = Gains(period_s=0.1, diameter=2.0, gamma=2.0, beta=1.0, recovery=5.0)
ONE_ROW = ConstraintSet((ConstraintRow("wall", "m", 1.0),))


class Case:
    """One filter and its last answer; rows and inputs as plain lists."""

    def __init__(self, rows=ONE_ROW, gains=GAINS, r=(1.0,), variant=DC, **options) -> None:
        self.filter = RowFilter(rows, gains, np.array(r, dtype=float), variant, **options)
        self.n, self.m = len(r), len(rows)

    def solve(self, u_nom, k, J, trusted=None, untrusted=None, lo=None, hi=None):
        zeros, self.J = np.zeros(self.m), np.array(J, dtype=float).reshape(self.m, self.n)
        trusted = zeros if trusted is None else np.array(trusted, dtype=float)
        untrusted = zeros if untrusted is None else np.array(untrusted, dtype=float)
        lo = np.full(self.n, -10.0) if lo is None else np.array(lo, dtype=float)
        hi = np.full(self.n, 10.0) if hi is None else np.array(hi, dtype=float)
        self.lo, self.hi, self.u = lo, hi, np.empty(self.n)
        self.status, self.steps = self.filter.solve(
            *(np.array(u_nom, dtype=float), np.array(k, dtype=float), self.J),
            *(trusted, untrusted, lo, hi, self.u),
        )
        return self.u

    def row(self, field: Field) -> list[float]:
        return self.filter.table[field].tolist()


def test_inside_by_hand() -> None:
    # m = 0.5, p = u - 2*0.5, a = 0.5: u = 2 - 1/(1 + 0.25) = 1.2; multiplier 0.2/0.25.
    case = Case()
    assert case.solve([2.0], [-0.5], [1.0]) == pytest.approx([1.2], rel=1e-14)
    assert (case.status, case.steps) == (Status.SOLVED, 1)
    assert case.filter.solver.multiplier[0] == pytest.approx(0.8, rel=1e-13)
    assert case.row(Field.K) == [-0.5]
    assert case.row(Field.MARGIN) == [0.5]
    assert case.row(Field.OFFSET) == [-1.0]
    assert case.row(Field.SOFT) == [0.25]
    assert case.row(Field.P_NOMINAL) == [1.0]
    assert case.row(Field.RATE) == [0.0]
    assert case.row(Field.GATE) == [-5.0]


def test_identity_far_away_and_when_leaving() -> None:
    case = Case()
    for wanted, k in ((0.99, -0.5), (1.0, -0.5), (-9.0, -1e-9), (1.9, -1.0)):
        assert case.solve([wanted], [k], [1.0]).tolist() == [wanted]
        assert case.steps == 0


def test_outside_it_recovers_exactly() -> None:
    case = Case()
    # y = 0.2: k' <= -5*0.2.
    assert case.solve([3.0], [0.2], [1.0]) == pytest.approx([-1.0], abs=1e-14)
    assert case.row(Field.MARGIN) == [-0.2]
    assert case.row(Field.SOFT) == [0.0]
    assert case.row(Field.GATE) == [1.0]
    assert case.solve([-4.0], [0.2], [1.0]).tolist() == [-4.0]


def test_at_the_margin_itself_nothing_may_approach() -> None:
    case = Case()
    assert case.solve([3.0], [0.0], [1.0]) == pytest.approx([0.0], abs=1e-14)


def test_the_margin_counts_as_used_up() -> None:
    # nu = (M T^2/2)/(lambda T) = 0.1*0.01/2/0.5 = 0.001.
    case = Case(ConstraintSet((ConstraintRow("wall", "m", 1.0, curvature=0.1),)))
    case.solve([0.0], [-0.5], [1.0])
    assert case.row(Field.MARGIN) == pytest.approx([0.499], rel=1e-12)


def test_floor_keeps_rows_soft_at_the_limit() -> None:
    gains = Gains(0.1, 2.0, 2.0, 1.0, 5.0, softness_floor=1e-3)
    case = Case(gains=gains)
    # The floor costs a_min D T/(lambda T) = 4e-4 of distance.
    case.solve([0.0], [0.2], [1.0])
    assert case.row(Field.SOFT) == pytest.approx([1e-6])
    assert case.row(Field.GATE) == pytest.approx([5.0 * 0.2004 - 2e-3])
    case.solve([0.0], [-0.5], [1.0])
    assert case.row(Field.SOFT) == pytest.approx([0.4996**2])


def test_exactly_at_the_margin_the_floor_is_not_allowed_twice() -> None:
    gains = Gains(0.1, 2.0, 2.0, 1.0, 5.0, softness_floor=1e-3)
    case = Case(gains=gains)
    case.solve([0.0], [-case.filter.nu[0]], [1.0])
    assert case.row(Field.MARGIN) == [0.0]
    assert case.row(Field.GATE) == pytest.approx([-2e-3])


def test_every_input_counts() -> None:
    case = Case(r=(1.0, 1.0))
    case.solve([0.1, 0.2], [-0.5], [[2.0, -3.0]])
    assert case.row(Field.P_NOMINAL) == pytest.approx([0.2 - 0.6 - 1.0])
    told = case.filter.assess(case.J, np.array([1.0, 0.5]))
    assert told[0] == pytest.approx(0.5 / 0.5)
    assert case.row(Field.P_CERTIFIED) == pytest.approx([0.5 - 1.0])


def test_only_untrusted_help_is_ignored() -> None:
    case = Case()
    case.solve([0.0], [-0.5], [1.0], trusted=[-0.3], untrusted=[-0.4])
    assert case.row(Field.OFFSET) == pytest.approx([-1.3])
    case.solve([0.0], [-0.5], [1.0], trusted=[0.3], untrusted=[0.4])
    assert case.row(Field.OFFSET) == pytest.approx([-0.3])
    assert case.row(Field.RATE) == pytest.approx([0.7])


def test_disturbance_and_wire_steps_are_resisted() -> None:
    rows = ConstraintSet((ConstraintRow("wall", "m", 1.0, rate_disturbance=0.25),))
    case = Case(rows, r=(1.0, 1.0), quantum=np.array([0.1, 0.4]))
    case.solve([0.0, 0.0], [-0.5], [[2.0, -3.0]])
    # 0.25 + 2*0.05 + 3*0.2 = 0.95
    assert case.row(Field.RATE) == pytest.approx([0.95])
    assert case.row(Field.OFFSET) == pytest.approx([-0.05])


def test_the_metric_decides_who_moves() -> None:
    case = Case(r=(4.0, 1.0))
    u = case.solve([1.0, 1.0], [0.0], [[1.0, 1.0]])
    assert u == pytest.approx([1 - 0.4, 1 - 1.6])


def test_equality_first_and_in_both_directions() -> None:
    rows = ConstraintSet(
        (ConstraintRow("balance", "kW", 1.0, equality=True), ConstraintRow("wall", "m", 1.0))
    )
    case = Case(rows, r=(1.0, 1.0))
    # u1 - u2 + 0.1 - 0.2 + 5*0.04 = 0, and u1 <= 2*0.5 softly (a = 0.5).
    u = case.solve([2.0, 2.0], [0.04, -0.5], [[1, -1], [1, 0]], [0.1, 0.0], [-0.2, 0.0])
    assert u[0] - u[1] == pytest.approx(-0.1, abs=1e-13)
    # In the null space both move alike: 2(u1-2) + 0.1 + (u1-1)/0.25 = 0 -> u1 = 7.9/6.
    assert u[0] == pytest.approx(7.9 / 6)
    assert case.row(Field.MARGIN) == [-0.04, 0.5]
    assert case.row(Field.GATE)[0] == pytest.approx(0.1)
    assert case.row(Field.RATE)[0] == pytest.approx(-0.1)
    assert case.row(Field.SOFT)[0] == 0.0


class TestVariants:
    ATACOM_GAINS = Gains(0.1, 2.0, 0.0, 1.0, 5.0)

    def test_atacom_sticks_where_dc_lets_go(self) -> None:
        # Leaving at speed 1 with a = 0.2: kept a^2/(1 + a^2) = 0.04/1.04.
        stuck = Case(variant=ATACOM, gains=self.ATACOM_GAINS).solve([-1.0], [-0.2], [1.0])
        assert stuck == pytest.approx([-0.04 / 1.04], rel=1e-13)
        assert Case().solve([-1.0], [-0.2], [1.0]).tolist() == [-1.0]

    def test_atacom_is_the_published_projection(self, many: Callable[[int], int]) -> None:
        rng = np.random.default_rng(4)
        n, m = 3, 6
        rows = ConstraintSet(tuple(ConstraintRow(f"r{i}", "m", 1.0) for i in range(m)))
        case = Case(rows, self.ATACOM_GAINS, np.ones(n), ATACOM)
        for _ in range(many(100)):
            J, k, drift = rng.standard_normal((m, n)), -rng.random(m) - 1e-2, rng.standard_normal(m)
            u_nom = rng.standard_normal(n)
            far = np.full(n, 1e6)
            u = case.solve(u_nom, k, J, drift, lo=-far, hi=far)
            assert np.abs(u - published_projection(u_nom, J, drift, -k)).max() < 1e-9

    def test_clipping_drops_all_helpful_drift(self) -> None:
        case = Case(variant=ATACOM_CLIPPED, gains=self.ATACOM_GAINS)
        case.solve([0.0], [-0.5], [1.0], trusted=[-0.3], untrusted=[0.1])
        assert case.row(Field.OFFSET) == [0.0]
        case.solve([0.0], [-0.5], [1.0], trusted=[0.3], untrusted=[-0.1])
        assert case.row(Field.OFFSET) == pytest.approx([0.2])
        plain = Case(variant=ATACOM, gains=self.ATACOM_GAINS)
        plain.solve([0.0], [-0.5], [1.0], trusted=[-0.3], untrusted=[0.1])
        assert plain.row(Field.OFFSET) == pytest.approx([-0.2])

    def test_both_sides_count_all_drift_and_no_robust_term(self) -> None:
        rows = ConstraintSet((ConstraintRow("wall", "m", 1.0, rate_disturbance=0.25),))
        case = Case(rows, variant=ATACOM, gains=self.ATACOM_GAINS)
        case.solve([0.0], [-0.5], [1.0], trusted=[-0.3], untrusted=[-0.4])
        assert case.row(Field.OFFSET) == pytest.approx([-0.7])

    def test_the_named_variants(self) -> None:
        assert (DC.two_sided, DC.clip, DC.exponential) == (False, Clip.UNTRUSTED, False)
        assert (ATACOM.two_sided, ATACOM.clip) == (True, Clip.UNTRUSTED)
        assert (ATACOM_CLIPPED.two_sided, ATACOM_CLIPPED.clip) == (True, Clip.ALL)
        assert (CBF_QP.two_sided, CBF_QP.clip) == (False, Clip.UNTRUSTED)
        with pytest.raises(SafetyError, match=r"gamma=0\.5"):
            Case(variant=ATACOM_CLIPPED, gains=Gains(0.1, 2.0, 0.5, 1.0, 5.0))

    def test_one_sided_clipping_keeps_the_robust_term(self) -> None:
        rows = ConstraintSet((ConstraintRow("wall", "m", 1.0, rate_disturbance=0.25),))
        case = Case(rows, variant=Variant("dc-clipped", clip=Clip.ALL))
        case.solve([0.0], [-0.5], [1.0], trusted=[-0.3], untrusted=[0.1])
        assert case.row(Field.OFFSET) == pytest.approx([0.25 - 1.0])
        assert case.row(Field.RATE) == pytest.approx([0.05]), "the check knows the true drift"
        case.solve([0.0], [-0.5], [1.0], trusted=[0.3], untrusted=[0.1])
        assert case.row(Field.OFFSET) == pytest.approx([0.4 + 0.25 - 1.0])

    def test_exponential_softness(self) -> None:
        case = Case(variant=Variant("dc-exp", exponential=True))
        case.solve([0.0], [-1.0], [1.0])
        assert case.row(Field.SOFT) == pytest.approx([(e - 1) ** 2])
        case.solve([0.0], [-0.5], [1.0])
        assert case.row(Field.SOFT) == pytest.approx([(e**0.5 - 1) ** 2])

    def test_two_sided_variants_refuse_gamma(self) -> None:
        with pytest.raises(SafetyError, match=r"variant atacom: gamma=2: .* use gamma=0"):
            Case(variant=ATACOM)

    def test_beta_to_zero_is_the_cbf_qp(self, many: Callable[[int], int]) -> None:
        from steadyhand.controllers.safety.cbf_qp import DaqpSolver

        rng = np.random.default_rng(9)
        n, m, compared = 3, 7, 0
        rows = ConstraintSet(tuple(ConstraintRow(f"r{i}", "m", 1.0) for i in range(m)))
        r = rng.uniform(0.5, 2, n)
        almost = Gains(0.1, 2.0, 2.0, 1e-4, 5.0)
        exact = Gains(0.1, 2.0, 2.0, 0.0, 5.0)
        soft, hard = Case(rows, almost, r), Case(rows, exact, r, CBF_QP)
        library = Case(rows, exact, r, CBF_QP, solver=DaqpSolver(m, n))
        for _ in range(many(200)):
            J, k = rng.standard_normal((m, n)), -rng.uniform(0.05, 1, m)
            u_nom, box = rng.standard_normal(n) * 3, np.ones(n)
            reference = library.solve(u_nom, k, J, lo=-box, hi=box)
            assert np.abs(hard.solve(u_nom, k, J, lo=-box, hi=box) - reference).max() < 1e-9
            assert np.abs(soft.solve(u_nom, k, J, lo=-box, hi=box) - reference).max() < 1e-6
            assert hard.status == soft.status == library.status == Status.SOLVED
            assert (J @ hard.u - 2.0 * -k).max() < 1e-10
            compared += hard.steps > 0
        assert compared > 0.5 * many(200)


class TestCheck:
    def blended(self, case: Case, backup):
        out = np.full(case.n, 99.0)
        return case.filter.blend(case.J, case.u, np.array(backup, dtype=float), out), out

    def test_a_good_answer_passes_unblended(self) -> None:
        case = Case()
        case.solve([2.0], [-0.5], [1.0])
        share, out = self.blended(case, [-3.0])
        assert share == 0.0
        assert out.tolist() == case.u.tolist()

    def test_smallest_share_that_passes(self) -> None:
        # J u - m/T <= 0: with m = 0.1 the speed may be 1; from 3 towards -1 half is needed.
        case = Case()
        case.solve([0.0], [-0.1], [1.0])
        case.u[:] = 3.0
        share, out = self.blended(case, [-1.0])
        assert share == pytest.approx(0.5, rel=1e-8)
        assert out == pytest.approx([1.0], rel=1e-8)
        assert out[0] <= 1.0 + case.filter.tolerance

    def test_worst_row_decides(self) -> None:
        case = Case(ConstraintSet(tuple(ConstraintRow(f"r{i}", "m", 1.0) for i in range(2))))
        case.solve([0.0], [-0.1, -0.2], [[1.0], [4.0]])
        case.u[:] = 3.0
        share, out = self.blended(case, [-1.0])
        # Row 2 allows 4u <= 2: u = 0.5 at s = 2.5/4.
        assert share == pytest.approx(0.625, rel=1e-8)
        assert out == pytest.approx([0.5], rel=1e-7)

    def test_no_share_passes(self) -> None:
        case = Case()
        case.solve([0.0], [-0.1], [1.0])
        case.u[:] = 3.0
        share, out = self.blended(case, [2.0])
        assert share == -1.0
        assert out.tolist() == [99.0]

    @pytest.mark.parametrize("backup", [1.2, 1.5, 1.8])
    def test_a_backup_that_fails_by_little_fails(self, backup: float) -> None:
        case = Case()
        case.solve([0.0], [-0.1], [1.0])
        case.u[:] = 1.5
        assert self.blended(case, [backup])[0] == -1.0

    def test_rows_that_leave_no_common_share(self) -> None:
        # Row 1 needs u1 <= 1 (s >= 0.5), row 2 allows u2 <= 1 (s <= 0.25).
        case = Case(
            ConstraintSet(tuple(ConstraintRow(f"r{i}", "m", 1.0) for i in range(2))), r=(1.0, 1.0)
        )
        case.solve([0.0, 0.0], [-0.1, -0.1], [[1, 0], [0, 1]])
        case.u[:] = [3.0, 0.0]
        assert self.blended(case, [-1.0, 4.0])[0] == -1.0
        share, out = self.blended(case, [-1.0, 2.0])
        assert share == pytest.approx(0.5, rel=1e-7)
        assert out[1] <= 1.0 + 1e-7

    @pytest.mark.parametrize(
        ("gate", "star", "backup", "equality", "share"),
        [
            *((0.0, 0.1, 9.0, False, -1.0), (0.0, 0.0, -1.0, False, 0.0)),
            *((-0.1, 0.2, 9.0, False, 0.0), (-0.1, 0.3, 0.2, False, 1.0)),
            *((0.0, -0.3, -0.05, True, 0.8), (0.0, -0.3, -0.2, True, -1.0)),
            *((0.0, 0.3, 0.05, True, 0.8), (0.0, 0.05, -0.05, True, 0.0)),
        ],
    )
    def test_on_the_edge(self, gate, star, backup, equality, share) -> None:
        """Tolerance 0.1: u + gate <= 0.1, an equality on both sides."""
        table, out = np.zeros((len(Field), 1)), np.zeros(1)
        table[Field.GATE] = gate
        found = blend(
            *(np.ones((1, 1)), table, np.ones(1, bool), np.array([equality]), 0.1),
            *(np.array([star]), np.array([backup]), out),
        )
        if star == 0.1:
            assert found in (0.0, -1.0)
        else:
            assert found == pytest.approx(share)

    def test_the_only_common_share_is_taken(self) -> None:
        # Row 1 needs s >= 0.5, row 2 allows s <= 0.5.
        table = np.zeros((len(Field), 2))
        out, hard, none = np.zeros(2), np.ones(2, bool), np.zeros(2, bool)
        share = blend(
            *(np.eye(2), table, hard, none, 0.0),
            *(np.array([2.0, -1.0]), np.array([-2.0, 1.0]), out),
        )
        assert share == 0.5
        assert out.tolist() == [0.0, 0.0]

    def test_a_good_answer_does_not_mind_a_bad_backup(self) -> None:
        case = Case()
        case.solve([0.0], [-0.1], [1.0])
        share, out = self.blended(case, [5.0])
        assert share == 0.0
        assert out.tolist() == [0.0]

    def test_the_share_is_one_when_only_the_backup_itself_passes(self) -> None:
        case = Case()
        case.solve([0.0], [-0.1], [1.0])
        case.u[:] = 3.0
        share, out = self.blended(case, [1.0])
        assert share == pytest.approx(1.0)
        assert share <= 1.0
        assert out == pytest.approx([1.0])

    def test_soft_rows_have_no_check(self) -> None:
        case = Case(ConstraintSet((ConstraintRow("comfort", "K", 1.0, Priority.COMFORT),)))
        case.solve([0.0], [-0.1], [1.0])
        case.u[:] = 3.0
        assert self.blended(case, [-1.0])[0] == 0.0

    @pytest.mark.parametrize(("star", "share"), [(3.0, 0.75), (-5.0, 5 / 6), (0.0, 0.0)])
    def test_equalities_are_checked_from_both_sides(self, star: float, share: float) -> None:
        # u must be 0 within the tolerance; the backup lies beyond it on the other side.
        case = Case(ConstraintSet((ConstraintRow("balance", "kW", 1.0, equality=True),)))
        case.solve([0.0], [0.0], [1.0])
        case.u[:] = star
        found, out = self.blended(case, [-1.0 if star >= 0 else 1.0])
        assert found == pytest.approx(share, rel=1e-7)
        assert abs(out[0]) <= 1.01 * case.filter.tolerance

    def test_equality_that_the_backup_breaks(self) -> None:
        case = Case(ConstraintSet((ConstraintRow("balance", "kW", 1.0, equality=True),)))
        case.solve([0.0], [0.0], [1.0])
        case.u[:] = 1.0
        assert self.blended(case, [0.5])[0] == -1.0
        case.u[:] = -1.0
        assert self.blended(case, [-0.5])[0] == -1.0


class TestAssess:
    ROWS = ConstraintSet(
        (
            ConstraintRow("near", "m", 1.0),
            ConstraintRow("fast", "m", 1.0),
            ConstraintRow("warm", "K", 1.0, Priority.COMFORT),
            ConstraintRow("balance", "kW", 1.0, equality=True),
        )
    )

    def told(self, k, u, J=((1.0,), (8.0,), (1.0,), (0.0,))):
        case = Case(self.ROWS)
        case.solve([0.0], k, J)
        return case, case.filter.assess(case.J, np.array([u]))

    def test_by_hand(self) -> None:
        case, told = self.told([-0.1, -0.4, -0.3, 0.0], 0.5)
        time, margin, row, hard_gate, soft_gate, outside = told
        assert time == pytest.approx(0.1)  # 0.4/(8*0.5) before 0.1/0.5
        assert (margin, row) == (0.0, 3)
        assert hard_gate == pytest.approx(0.0)  # 4 - 0.4/0.1
        assert soft_gate == pytest.approx(0.5 - 3.0)
        assert outside == pytest.approx(-0.1)
        # p = J u - gamma m
        assert case.row(Field.P_CERTIFIED) == pytest.approx([0.3, 3.2, -0.1, 0.0])

    def test_the_first_of_equal_margins_is_named(self) -> None:
        _, (_, margin, row, _, _, _) = self.told([-0.3, -0.2, -0.2, -1.0], 0.0)
        assert (margin, row) == (-1.0, 3)
        case = Case(ConstraintSet(self.ROWS.rows[:2]))
        case.solve([0.0], [-0.2, -0.2], [[1.0], [1.0]])
        assert case.filter.assess(case.J, case.u)[1:3] == (pytest.approx(0.2), 0)

    def test_soft_rows_cannot_put_the_plant_outside(self) -> None:
        _, (_, margin, row, hard_gate, soft_gate, outside) = self.told([-0.1, -0.4, 0.3, 0.0], 0.0)
        assert outside == pytest.approx(-0.1)
        assert (margin, row) == (pytest.approx(-0.3), 2)
        assert hard_gate == 0.0
        assert soft_gate == pytest.approx(1.5)

    def test_outside_and_leaving(self) -> None:
        _, (time, _, _, hard_gate, _, outside) = self.told([0.2, -9.0, -9.0, 0.0], 0.5)
        assert outside == pytest.approx(0.2)
        assert time == 0.0
        assert hard_gate == pytest.approx(1.5)
        assert self.told([0.2, -9.0, -9.0, 0.0], -1.0)[1][0] == inf

    def test_drift_counts_towards_the_time_to_the_boundary(self) -> None:
        case = Case()
        case.solve([0.0], [-0.6], [1.0], trusted=[0.2])
        assert case.filter.assess(case.J, np.array([0.1]))[0] == pytest.approx(2.0)

    def test_standing_at_the_limit_is_not_approaching_it(self) -> None:
        assert self.told([0.0, -9.0, -9.0, 0.0], 0.0)[1][0] == inf

    def test_a_broken_balance_counts_in_both_directions(self) -> None:
        J = ((0.0,), (0.0,), (0.0,), (1.0,))
        for u in (0.25, -0.25):
            _, (_, _, _, hard_gate, _, _) = self.told([-1.0, -1.0, -1.0, 0.0], u, J)
            assert hard_gate == pytest.approx(0.25)


class TestLeastViolation:
    def rows(self, *priorities: Priority) -> ConstraintSet:
        return ConstraintSet(
            tuple(ConstraintRow(f"r{i}", "m", 1.0, p) for i, p in enumerate(priorities))
        )

    def least(self, case: Case, near=(0.0,)):
        out = np.full(case.n, 99.0)
        good = case.filter.yield_least(case.J, case.lo, case.hi, np.array(near, dtype=float), out)
        return good, out

    @pytest.mark.parametrize("first", [0, 1])
    def test_people_before_equipment(self, first: int) -> None:
        # u <= -0.5 against u >= 0.5 (both m = 0.1, checks J u + c - 1 <= 0).
        order = [Priority.PEOPLE, Priority.EQUIPMENT]
        case = Case(self.rows(order[first], order[1 - first]))
        case.solve([0.0], [-0.1, -0.1], [[1.0], [-1.0]], trusted=[1.5, 1.5])
        assert case.status == Status.INFEASIBLE or case.steps > 0
        good, out = self.least(case)
        assert good
        assert out == pytest.approx([-0.5 if first == 0 else 0.5], abs=1e-6)

    def test_equals_share_the_violation(self) -> None:
        case = Case(self.rows(Priority.STRUCTURE, Priority.STRUCTURE))
        case.solve([0.0], [-0.1, -0.1], [[1.0], [-1.0]], trusted=[1.5, 1.5])
        assert self.least(case)[1] == pytest.approx([0.0], abs=1e-6)

    def test_what_can_hold_holds_and_the_nearest_is_taken(self) -> None:
        case = Case(self.rows(Priority.PEOPLE, Priority.EQUIPMENT), r=(1.0, 1.0))
        case.solve([0, 0], [-0.1, -0.1], [[1, 0], [0, 1]], trusted=[1.5, 0.0])
        good, out = self.least(case, near=(0.3, 0.7))
        assert good
        assert out == pytest.approx([-0.5, 0.7], abs=1e-6)

    def test_bounds_come_before_everything(self) -> None:
        case = Case(self.rows(Priority.PEOPLE))
        case.solve([0.0], [0.5], [[1.0]], lo=[-1.0], hi=[1.0])
        good, out = self.least(case)
        assert good
        assert out.tolist() == [-1.0]

    def test_comfort_is_not_asked(self) -> None:
        case = Case(self.rows(Priority.EQUIPMENT, Priority.COMFORT))
        case.solve([0.0], [-0.1, 9.0], [[1.0], [1.0]])
        assert self.least(case, near=(0.25,))[1] == pytest.approx([0.25])

    def test_equalities_are_met_as_well_as_they_can(self) -> None:
        rows = ConstraintSet((ConstraintRow("balance", "kW", 1.0, equality=True),))
        case = Case(rows)
        case.solve([0.0], [0.0], [[1.0]], trusted=[3.0], lo=[-1.0], hi=[1.0])
        good, out = self.least(case)
        assert good
        assert out.tolist() == [-1.0]

    def test_rows_without_grip_change_nothing(self) -> None:
        case = Case(self.rows(Priority.PEOPLE))
        case.solve([0.0], [0.5], [[0.0]])
        good, out = self.least(case, near=(0.25,))
        assert good
        assert out.tolist() == [0.25]

    def test_a_solver_that_cannot_says_so(self) -> None:
        case = Case(self.rows(Priority.PEOPLE))
        case.solve([0.0], [0.5], [[1.0]])

        class Broken:
            name = "broken"
            multiplier = np.zeros(3)

            def solve(self, *args: object) -> tuple[int, int]:
                return int(Status.STOPPED), 7

        case.filter.solver = Broken()
        good, out = self.least(case)
        assert good is False
        assert out.tolist() == [99.0]


def test_holding_input_of_the_hard_rows_only() -> None:
    rows = ConstraintSet(
        (ConstraintRow("a", "m", 1.0), ConstraintRow("b", "K", 1.0, Priority.COMFORT))
    )
    case = Case(rows)
    case.solve([0.0], [-0.1, -0.1], [[1.0], [-1.0]], trusted=[1.0, 1.0])
    out = np.empty(1)
    near = np.array([0.5])
    # u <= 2*0.1 - 1 = -0.8; the comfort row would ask for u >= 0.8.
    assert case.filter.hold(case.J, case.lo, case.hi, near, out)
    assert out == pytest.approx([-0.8])
    assert not case.filter.hold(case.J, np.array([-0.7]), case.hi, near, out)


def test_surprise_by_hand() -> None:
    worst = surprise(
        np.array([0.30, 0.1]), np.array([0.1, 0.1]), np.array([[1.0], [0.0]]),
        np.array([0.1, 0.0]), np.array([0.05]), 2.0, np.array([0.1, 0.1]),
    )  # fmt: skip
    # measured 0.1, predicted 0.05 + 0.1: off by 0.05 of 0.1.
    assert worst == pytest.approx(0.5)


def test_distance_in_the_metric() -> None:
    u, v, r = np.array([1.0, 2.0]), np.array([4.0, 4.0]), np.array([1.0, 4.0])
    assert distance(u, v, r) == pytest.approx(5.0)


def test_the_report_keeps_the_first_fields() -> None:
    kept = [Field.K, Field.MARGIN, Field.P_NOMINAL, Field.P_CERTIFIED, Field.MULTIPLIER]
    assert sorted(int(field) for field in kept) == list(range(REPORTED))


@pytest.mark.parametrize("r", [[0.0], [-1.0], [np.nan], [np.inf]])
def test_refuses_a_metric_that_is_none(r: list[float]) -> None:
    with pytest.raises(SafetyError, match="every entry must be finite and > 0"):
        Case(r=r)


@pytest.mark.parametrize("quantum", [[-1e-9], [np.nan], [np.inf], [0.0, 0.0]])
def test_refuses_a_quantum_that_is_none(quantum: list[float]) -> None:
    with pytest.raises(SafetyError, match="needs 1 finite entries >= 0"):
        Case(quantum=np.array(quantum))


def test_jacobian_to_zero_changes_nothing_abruptly() -> None:
    """The correction dies with J: a row without grip cannot push."""
    case = Case()
    pushed = [abs(case.solve([2.0], [-0.5], [j], trusted=[1.5])[0] - 2.0)
              for j in (1.0, 1e-1, 1e-2, 1e-3, 1e-6, 0.0)]  # fmt: skip
    assert pushed == sorted(pushed, reverse=True)
    assert pushed[-1] == 0.0
    # j p/(j^2 + a^2) with p = 0.5 + 2j, a = 0.5.
    assert pushed[2] == pytest.approx(0.01 * 0.52 / 0.2501, rel=1e-12)
