"""The one solver: hand-worked cases, optimality of random ones, and two libraries as oracles."""

from collections.abc import Callable

import daqp
import numpy as np
import proxsuite
import pytest

from steadyhand.controllers.safety import active_set
from steadyhand.controllers.safety.active_set import ActiveSetSolver, Status, Workspace

FAR = 1e9


def answer(u_nom, J, c, soft, two_sided=None, lo=None, hi=None, r=None):
    u_nom, J = np.array(u_nom, dtype=float), np.array(J, dtype=float)
    m, n = J.shape
    two_sided = np.zeros(m, bool) if two_sided is None else np.array(two_sided)
    lo = np.full(n, -FAR) if lo is None else np.array(lo, dtype=float)
    hi = np.full(n, FAR) if hi is None else np.array(hi, dtype=float)
    r = np.ones(n) if r is None else np.array(r, dtype=float)
    solver, u = ActiveSetSolver(m, n), np.empty(n)
    c, soft = np.array(c, dtype=float), np.array(soft, dtype=float)
    status, steps = solver.solve(u_nom, 1 / r, J, c, soft, two_sided, lo, hi, u)
    return status, steps, u, solver.multiplier.copy()


def test_nothing_to_do_returns_the_very_bits() -> None:
    wanted = [0.1 + 0.2, -1 / 3]
    status, steps, u, multiplier = answer(wanted, [[1, 0], [0, 1]], [-0.5, 0.3], [1, 0])
    assert (status, steps) == (Status.SOLVED, 0)
    assert u.tolist() == wanted
    assert not multiplier.any()


def test_what_is_violated_by_rounding_alone_is_left_alone() -> None:
    # 2e-9 beyond a row of length 1e6 is 2e-15 of the range of the input.
    assert answer([1.0], [[1e6]], [2e-9 - 1e6], [0.0])[1] == 0
    assert answer([1.0], [[1.0]], [2e-9 - 1.0], [0.0])[1] == 1
    assert answer([1.0], [[1e-6]], [5e-13 - 1e-6], [0.0])[1] == 0
    assert answer([1.0], [[1e-6]], [5e-12 - 1e-6], [0.0])[1] == 1
    assert answer([1.0 + 5e-12], [[0.0]], [-1], [0.0], hi=[1.0])[1] == 0
    assert answer([1.0 + 5e-11], [[0.0]], [-1], [0.0], hi=[1.0])[1] == 1
    assert answer([1.0 + 5e-12], [[0.0]], [-1], [0.0], hi=[1.0])[2].tolist() == [1.0]


def test_the_length_of_a_row_is_that_of_the_metric() -> None:
    # 1/R = 1e6: the row is 1e3 long.
    assert answer([1.0], [[1.0]], [5e-9 - 1.0], [0.0], r=[1e-6])[1] == 0
    assert answer([1.0], [[1.0]], [2e-8 - 1.0], [0.0], r=[1e-6])[1] == 1
    # Rows that differ by 1e-7 are one; there is no way out 1e6 ranges away.
    J = [[1.0, 0.0], [-1.0, 1e-7]]
    assert answer([1.0, 0.0], J, [0.0, 0.5], [0, 0], r=[1e-4, 1e-4])[0] == Status.INFEASIBLE


def test_exactly_at_the_tolerance_is_no_violation() -> None:
    assert answer([0.0], [[1e-3]], [1e-12], [0.0])[1] == 0
    assert answer([0.0], [[1.0]], [1e-11], [0.0])[1] == 0
    assert answer([-1e-11], [[0.0]], [-1.0], [0.0], lo=[0.0])[1] == 0
    # The check after the solve as well: 1e-9 of a row of length 1.
    found = active_set._holds(
        *(np.ones((1, 1)), np.array([1e-9]), np.zeros(1), np.zeros(1, bool)),
        *(np.zeros(1), np.zeros(3), np.ones((5, 4))),
    )
    assert found


class TestMostViolated:
    """By distance in the metric; the first of equals."""

    def pick(self, J, c, u, r_inv=(1.0, 1.0), lo=(-9.0, -9.0), hi=(9.0, 9.0)):
        J, r_inv = np.array(J, dtype=float), np.array(r_inv)
        m, n = J.shape
        work = Workspace(m, n)
        work.vectors[active_set._LENGTH2, :m] = np.square(J) @ r_inv
        return active_set._most_violated(
            *(J, np.array(c, dtype=float), np.zeros(m, bool), np.array(lo), np.array(hi)),
            *(np.array(u, dtype=float), work.vectors, r_inv, work.index),
        )

    def test_rows(self) -> None:
        assert self.pick([[1, 0], [10, 0]], [0.5, 1.0], [0, 0]) == 0
        assert self.pick([[10, 0], [1, 0]], [1.0, 0.5], [0, 0]) == 1
        assert self.pick([[1, 0], [1e-3, 0]], [0.5, 1e-3], [0, 0]) == 1
        assert self.pick([[1, 0], [10, 0]], [0.5, 9.0], [0, 0]) == 1
        assert self.pick([[1, 0], [1, 0], [0, 1]], [0.5, 0.7, 0.6], [0, 0]) == 1
        assert self.pick([[1, 0], [0, 1]], [0.5, 0.5], [0, 0]) == 0

    def test_bounds(self) -> None:
        # 2, 3: lower bounds; 4, 5: upper ones of the two inputs below two rows.
        J, c = [[1, 0], [0, 1]], [-99, -99]
        assert self.pick(J, c, [-10, -11]) == 3
        assert self.pick(J, c, [-11, -10]) == 2
        assert self.pick(J, c, [10, -10]) == 4
        assert self.pick(J, c, [10, 12], r_inv=(1.0, 100.0)) == 4
        assert self.pick(J, [-9, -99], [10, 0]) == 0
        assert self.pick(J, [-9.5, -99], [10, 0]) == 4

    def test_nothing(self) -> None:
        assert self.pick([[1, 0]], [-1], [0, 0]) < 0


@pytest.mark.parametrize(
    ("length", "off", "status"),
    [
        *((2.0, 0.9e-11, Status.SOLVED), (2.0, 1.1e-11, Status.INFEASIBLE)),
        *((1e-3, 5e-10, Status.SOLVED), (1e-3, 2e-9, Status.INFEASIBLE)),
    ],
)
def test_equalities_repeat_to_rounding(length: float, off: float, status: Status) -> None:
    """1e-11 of the length of the row, and 1e-12 on top; `off` is in lengths."""
    row = [0.6 * length, 0.8 * length]
    ended, _, _, multiplier = answer(
        [0, 0], [row, row], [-length, (off - 1.0) * length], [0, 0], two_sided=[True, True]
    )
    assert ended == status
    assert multiplier[1] == 0.0


def test_steps_are_counted_and_capped() -> None:
    J, c = np.array([[1.0, 0, 0], [0, 1.0, 0], [0, 0, 1.0]]), np.array([-0.1, -0.2, -0.3])
    work, u = Workspace(3, 3), np.empty(3)
    for cap, status, told in (
        (9, Status.SOLVED, 3),
        (2, Status.STOPPED, 2),
        (1, Status.STOPPED, 1),
    ):
        found = active_set.solve_dual(
            *(np.full(3, 0.9), np.ones(3), J, c, np.zeros(3), np.array([True, True, False])),
            *(-np.ones(3), np.ones(3), u, work.multiplier),
            *(work.normals, work.factor, work.vectors, work.index, cap),
        )
        assert found == (status, told)
    # u1 <= 0 comes first, then u2 >= 1; u1 + 2 u2 <= 0 makes the first leave before it is added.
    rows = ([[1, 2], [2, 0], [0, -1]], [0, 0, 1], [0, 0, 0])
    status, steps, u, multiplier = answer([1.0, 0.0], *rows)
    assert (status, steps) == (Status.SOLVED, 4)
    assert u == pytest.approx([-2.0, 1.0])
    assert multiplier[:3] == pytest.approx([3.0, 0.0, 7.0])


def test_one_soft_row() -> None:
    # R (u - 1) + u/a^2 = 0 with R = 4, a^2 = 0.5: u = 2/3, multiplier u/a^2 = 4/3.
    status, steps, u, multiplier = answer([1.0], [[1.0]], [0.0], [0.5], r=[4.0])
    assert (status, steps) == (Status.SOLVED, 1)
    assert u == pytest.approx([2 / 3], rel=1e-14)
    assert multiplier == pytest.approx([4 / 3, 0, 0], rel=1e-14)


def test_one_hard_row() -> None:
    status, _, u, multiplier = answer([1.0], [[2.0]], [-0.5], [0.0])
    assert status == Status.SOLVED
    assert u.tolist() == [0.25]
    assert multiplier == pytest.approx([0.375, 0, 0])


def test_bounds_are_met_exactly() -> None:
    status, steps, u, multiplier = answer(
        [3.0, -3.0, 0.1],
        np.zeros((1, 3)),
        [-1],
        [1],
        lo=[-1, -0.7, -1],
        hi=[0.3, 1, 1],
        r=[2, 1, 1],
    )
    assert (status, steps) == (Status.SOLVED, 2)
    assert u.tolist() == [0.3, -0.7, 0.1]
    assert multiplier == pytest.approx([0, 0, 2.3, 0, 5.4, 0, 0])


def test_a_two_sided_row_resists_leaving_too() -> None:
    status, _, u, multiplier = answer([-1.0], [[1.0]], [0.0], [1.0], two_sided=[True])
    assert status == Status.SOLVED
    assert u == pytest.approx([-0.5])
    assert multiplier[0] == pytest.approx(-0.5)
    assert answer([-1.0], [[1.0]], [0.0], [1.0])[2].tolist() == [-1.0]


def test_an_equality_shares_the_correction() -> None:
    status, _, u, multiplier = answer([0, 0], [[1, 1]], [-1.0], [0.0], two_sided=[True])
    assert status == Status.SOLVED
    assert u == pytest.approx([0.5, 0.5])
    assert multiplier[0] == pytest.approx(-0.5)


def test_equality_with_bounds_in_the_way() -> None:
    # u1 + u2 = 1 with u1 <= 0.2: all the rest comes from u2.
    status, _, u, _ = answer([0, 0], [[1, 1]], [-1.0], [0.0], [True], [-1, -1], [0.2, 1])
    assert status == Status.SOLVED
    assert u == pytest.approx([0.2, 0.8])


def test_equalities_that_repeat_are_one() -> None:
    status, _, u, _ = answer([0, 0], [[1, 1], [2, 2]], [-1, -2], [0, 0], two_sided=[True, True])
    assert status == Status.SOLVED
    assert u == pytest.approx([0.5, 0.5])


def test_equalities_that_contradict() -> None:
    status, *_ = answer([0, 0], [[1, 1], [2, 2]], [-1, -2.1], [0, 0], two_sided=[True, True])
    assert status == Status.INFEASIBLE


def test_hard_rows_that_contradict() -> None:
    status, _, u, multiplier = answer([0.3], [[1.0], [-1.0]], [0.0, 0.5], [0, 0], lo=[-1], hi=[1])
    assert status == Status.INFEASIBLE
    assert -1 <= u[0] <= 1
    assert not multiplier.any()


def test_a_hard_row_out_of_reach_of_the_bounds() -> None:
    status, _, u, _ = answer([0.0], [[1.0]], [2.0], [0.0], lo=[-1], hi=[1])
    assert status == Status.INFEASIBLE
    assert u.tolist() == [-1.0]


def test_acute_wedge() -> None:
    # Pushing off the first wall alone ends beyond the second one: both must be active.
    J = [[0.0, 1.0], [-0.5, -1.0]]
    status, _, u, multiplier = answer([-1.0, 1.0], J, [0.0, 0.0], [0.0, 0.0])
    assert status == Status.SOLVED
    assert u == pytest.approx([0.0, 0.0], abs=1e-12)
    assert (multiplier[:2] > 0).all()


def test_a_row_leaves_again_when_another_takes_over() -> None:
    # The farther wall u1 <= 0 makes the nearer u1 <= 0.5 redundant.
    status, _, u, multiplier = answer([1.0, 0.0], [[1.0, 0.0], [4.0, 0.1]], [-0.5, 0.0], [0, 0])
    assert status == Status.SOLVED
    assert multiplier[0] == 0.0
    assert multiplier[1] == pytest.approx(4 / 16.01)
    assert u == pytest.approx([1 - 16 / 16.01, -0.4 / 16.01], abs=1e-12)


def test_vanishing_jacobian_costs_a_soft_row_nothing_but_its_penalty() -> None:
    status, _, u, multiplier = answer([0.4], [[0.0]], [2.0], [4.0])
    assert status == Status.SOLVED
    assert u.tolist() == [0.4]
    assert multiplier[0] == pytest.approx(0.5)


def test_vanishing_jacobian_of_a_hard_row_is_infeasible() -> None:
    assert answer([0.4], [[0.0]], [2.0], [0.0])[0] == Status.INFEASIBLE
    assert answer([0.4], [[0.0]], [-2.0], [0.0])[0] == Status.SOLVED


@pytest.mark.parametrize("tiny", [1e-10, 1e-13, 1e-15, 1e-20, 1e-37, 1e-200])
def test_a_hard_row_beyond_what_the_box_can_do_is_infeasible(tiny: float) -> None:
    # 0.1 + tiny (u1 - u2) with |u| <= 1 never holds.
    J, box = [[tiny, -tiny], [1.0, 0.5]], ([-1, -1], [1, 1])
    for soft in (0.0, 1e-201):
        assert answer([0.4, 0.4], J, [0.1, -0.3], [soft, 0.0], None, *box)[0] == Status.INFEASIBLE


@pytest.mark.parametrize("tiny", [1e-15, 1e-20, 1e-37, 1e-90])
def test_a_soft_row_that_the_box_cannot_move_is_paid_for(tiny: float) -> None:
    J, box = [[tiny, -tiny], [1.0, 0.5]], ([-1, -1], [1, 1])
    for soft in (1.0, 1e-6, tiny * 1e-3, tiny * tiny):
        status, steps, u, multiplier = answer([0.4, 0.4], J, [0.1, -0.3], [soft, 0.0], None, *box)
        assert (status, steps) == (Status.SOLVED, 2)
        assert multiplier[0] == pytest.approx(0.1 / soft, rel=1e-12)
        # u1 + u2/2 = 0.3 from (0.4, 0.4): 0.3/1.25 of (1, 0.5) back.
        assert u == pytest.approx([0.16, 0.28], abs=1e-15)


@pytest.mark.parametrize(
    ("lo", "hi", "constant"),
    [(-1.0, 1.0, False), (-0.2, 0.2, True), (0.0, 0.4, True), (-100.0, 100.4, False)],
)
def test_what_the_box_moves_is_told_by_its_width(lo: float, hi: float, constant: bool) -> None:
    # 1e-13 of |c| = 1 against 1e-13 of (hi - lo), and softness as small as the length of the row.
    status, _, u, _ = answer([0.1], [[1e-13]], [1.0], [1e-26], lo=[lo], hi=[hi])
    assert status == Status.SOLVED
    assert u == pytest.approx([0.1 if constant else lo])


def test_a_narrow_box_far_out_still_moves_a_row_that_is_near_zero_there() -> None:
    # The numbers of the row are 1e6, its value in the box at most 1e-8.
    box = ([1e6 - 1e-8], [1e6 + 1e-8])
    status, _, u, _ = answer([1e6 + 1e-8], [[1.0]], [-1e6], [0.0], None, *box)
    assert status == Status.SOLVED
    assert u.tolist() == [1e6]


@pytest.mark.parametrize("tiny", [1e-3, 1e-6, 1e-9, 1e-12])
def test_small_jacobian_never_leaves_the_bounds(tiny: float) -> None:
    status, _, u, multiplier = answer([0.4], [[tiny]], [0.1], [0.01], lo=[-1], hi=[1])
    assert status == Status.SOLVED
    # R(u - u_nom) + J'(Ju + c)/a^2 = 0, then the bound.
    free = (0.4 - tiny * 0.1 / 0.01) / (1 + tiny**2 / 0.01)
    assert u == pytest.approx([max(free, -1.0)], abs=1e-13)
    assert np.isfinite(multiplier).all()


def test_the_cap_is_told_and_the_bounds_still_hold() -> None:
    m, n = 3, 2
    work, u = Workspace(m, n), np.empty(n)
    J = np.array([[1.0, 0.2], [0.1, 1.0], [-1.0, -1.0]])
    status, steps = active_set.solve_dual(
        *(np.array([2.0, 2.0]), np.ones(n), J, np.array([0.0, 0.0, 0.5]), np.ones(m) * 0.1),
        *(np.zeros(m, bool), -np.ones(n), np.ones(n), u, work.multiplier),
        *(work.normals, work.factor, work.vectors, work.index, 1),
    )
    assert (status, steps) == (Status.STOPPED, 1)
    assert (np.abs(u) <= 1).all()
    assert not work.multiplier.any()


def test_the_cap_grows_with_the_problem() -> None:
    assert Workspace(19, 7).cap == 20 + 4 * (19 + 14)
    work = Workspace(19, 7)
    assert work.multiplier.shape == (33,)
    assert (work.normals.shape, work.factor.shape) == ((34, 7), (34, 34))
    assert (work.vectors.shape, work.index.shape) == ((5, 34), (2, 34))


def test_an_answer_that_does_not_hold_is_none() -> None:
    """The check after the solve looks at the rows, not at the path."""
    J, c, u = np.array([[1.0]]), np.array([-0.5]), np.array([0.5])
    vectors = np.ones((5, 4))
    for two_sided, value, holds in (
        (False, 0.5, True),
        (False, 0.4, True),
        (True, 0.4, False),
        (False, 0.5 + 2e-9, False),
        (False, 0.5 + 5e-10, True),
        (True, 0.5 - 2e-9, False),
    ):
        u[0] = value
        found = active_set._holds(J, c, np.zeros(1), np.array([two_sided]), u, np.zeros(3), vectors)
        assert found is holds or bool(found) == holds


@pytest.mark.parametrize(("beyond", "holds"), [(5e-8, True), (2e-7, False), (-1.0, True)])
def test_the_check_knows_how_long_a_row_is(beyond: float, holds: bool) -> None:
    # A row of length 100: 1e-9 of the metric is 1e-7 of the row.
    vectors = np.full((5, 4), 1e4)
    found = active_set._holds(
        *(np.array([[100.0]]), np.array([beyond - 100.0]), np.zeros(1), np.zeros(1, bool)),
        *(np.array([1.0]), np.zeros(3), vectors),
    )
    assert bool(found) is holds


@pytest.mark.parametrize(("size", "beyond", "holds"), [
    (1e6, 5e-7, True), (1e6, 3e-6, False), (1e9, 1e-3, True), (1e9, 1e-2, False),
    (1e3, 3e-9, False), (1e308, 0.0, False), (np.nan, 0.0, False),
])  # fmt: skip
def test_the_check_allows_for_the_rounding_of_large_numbers(
    size: float, beyond: float, holds: bool
) -> None:
    """1e-12 of |c| + |J u| + a^2 y: what rounding alone may leave."""
    ones = np.ones(1)
    for J, c, soft, u, y, both in (
        (1.0, beyond - size, 0.0, size, 0.0, False),  # |c| and |J u|
        (-1.0, size + beyond, 0.0, size, 0.0, False),
        (1e-9, size + beyond, size, 0.0, 1.0, False),  # |c| and a^2 y
        (1e-9, -size - beyond, size, 0.0, -1.0, True),
    ):
        found = active_set._holds(
            *(J * np.ones((1, 1)), c * ones, soft * ones, np.array([both])),
            *(u * ones, y * np.ones(3), np.ones((5, 4))),
        )
        assert bool(found) is holds


@pytest.mark.parametrize("smallest", [-5, -12, -40, -150])
def test_rows_of_all_sizes_are_never_given_up(smallest: int, many: Callable[[int], int]) -> None:
    """Rows and softness over many decades, at random, also within one row."""
    rng = np.random.default_rng(2)
    solvers = {(n, m): ActiveSetSolver(m, n) for n in range(1, 4) for m in range(1, 6)}
    ended = dict.fromkeys(Status, 0)
    for _ in range(many(4000)):
        n, m = int(rng.integers(1, 4)), int(rng.integers(1, 6))
        J = rng.standard_normal((m, n)) * 10 ** rng.uniform(smallest, 1, (m, 1))
        J[rng.random((m, n)) < 0.1] *= 10 ** rng.uniform(smallest, 0)
        a = 10 ** rng.uniform(smallest, 0, m) * (rng.random(m) < 0.7)
        c, u = rng.standard_normal(m) * rng.choice([1, 1, 0, 1e-6]), np.empty(n)
        status, _ = solvers[n, m].solve(
            *(rng.standard_normal(n), 10.0 ** rng.integers(-1, 4, n), J, c, a * a),
            *(np.zeros(m, bool), -np.ones(n), np.ones(n), u),
        )
        ended[Status(status)] += 1
        assert (np.abs(u) <= 1).all()
    assert ended[Status.STOPPED] == 0
    assert min(ended[Status.SOLVED], ended[Status.INFEASIBLE]) > 0.1 * many(4000)


def test_what_is_no_number_is_no_answer() -> None:
    assert answer([np.nan], [[1.0]], [-1.0], [0.0])[0] == Status.STOPPED
    assert answer([0.5], [[1.0]], [1e308 * 10], [1.0])[0] != Status.SOLVED


def test_soft_rows_that_contradict_hold_to_rounding() -> None:
    # 1/2 (u - 0.7)^2 + ((u + g)^2 + (g - u)^2)/(2 a^2): u = 0.7 a^2/(a^2 + 2), y = (g +- u)/a^2.
    gate, soft = 5.0, 1e-8
    status, steps, u, multiplier = answer([0.7], [[1], [-1]], [gate, gate], [soft, soft])
    assert (status, steps) == (Status.SOLVED, 2)
    assert u == pytest.approx([0.7 * soft / (soft + 2)], abs=1e-14)
    assert multiplier[:2] == pytest.approx([gate / soft, gate / soft], rel=1e-8)
    assert gate + u[0] - soft * multiplier[0] == pytest.approx(0.0, abs=1e-14)
    assert gate - u[0] - soft * multiplier[1] == pytest.approx(0.0, abs=1e-14)


def test_multipliers_are_those_of_the_answer_not_of_the_path() -> None:
    # Two walls 1e-6 apart in angle meet at 0: -y1 + 2 y2 = 2 and 1e-6 (y1 + y2) = 1. The soft
    # rows come first and leave again.
    J = [[1, -1], [-1, 1e-6], [2, 1e-6], [-2, 1]]
    status, _, u, multiplier = answer([2, 1], J, [-2, 0, 0, 0], [1e-4, 0, 0, 1e-4])
    assert status == Status.SOLVED
    assert u == pytest.approx([0.0, 0.0], abs=1e-15)
    assert multiplier[:4] == pytest.approx([0.0, 666_666.0, 333_334.0, 0.0], rel=1e-9)


def test_the_path_does_not_follow_its_own_rounding() -> None:
    """A soft row pulls with 1e8 against a hard one that ends 1e-12 before the bound."""
    room = 4e-12
    J = [[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]]
    status, _, u, _ = answer(
        [-1.0, -0.2], J, [1.0 - room, 1.5, 0.25], [0.0, 1e-8, 1e-8], lo=[-1, -1], hi=[1, 1]
    )
    assert status == Status.SOLVED
    assert u[0] == pytest.approx(room - 1.0, abs=1e-15)
    assert u[1] == pytest.approx(-0.25, abs=1e-8)


@pytest.mark.parametrize(("share", "exact"), [(0.9e-10, True), (1.1e-10, False)])
def test_next_to_no_softness_is_none(share: float, exact: bool) -> None:
    # Row of length 10 in the metric; the length counts a^2 too.
    status, _, _, multiplier = answer(
        [0.0, 0.0], [[6.0, 8.0], [-6.0, -8.0]], [1.0, 1.0], [share * 100, 0.0]
    )
    assert status == (Status.INFEASIBLE if exact else Status.SOLVED)
    assert multiplier[0] == (0.0 if exact else pytest.approx(2 / (share * 100), rel=1e-6))


def test_random_contradictions_are_hardly_ever_given_up(many: Callable[[int], int]) -> None:
    """Small whole numbers, spoilt a little: the worst of degenerate rows."""
    rng = np.random.default_rng(1)
    ended = dict.fromkeys(Status, 0)
    solvers = {(n, m): ActiveSetSolver(m, n) for n in range(1, 6) for m in range(2, 12)}
    for _ in range(many(4000)):
        n, m = int(rng.integers(1, 6)), int(rng.integers(2, 12))
        solver, u = solvers[n, m], np.empty(n)
        spoilt = rng.choice([0, 1e-9, 1e-6, 1e-3]) * rng.standard_normal((m, n))
        J, c = rng.integers(-2, 3, (m, n)) + spoilt, rng.integers(-1, 2, m).astype(float)
        soft = rng.choice([0, 1e-8, 1e-4, 1.0]) * (rng.random(m) < 0.5)
        status, _ = solver.solve(
            *(rng.integers(-2, 3, n).astype(float), 10.0 ** rng.integers(-1, 4, n), J, c, soft),
            *(np.zeros(m, bool), -np.ones(n), np.ones(n), u),
        )
        ended[Status(status)] += 1
    # One in ten thousand: more than n soft rows active that are parallel to nine digits.
    assert ended[Status.STOPPED] <= 1e-3 * many(4000)
    assert min(ended[Status.SOLVED], ended[Status.INFEASIBLE]) > 0.1 * many(4000)


def test_the_check_drops_multipliers_below_zero_by_rounding() -> None:
    multiplier = np.array([-1e-18, -1e-3, 0.0])
    J, c = np.array([[1.0], [1.0]]), np.array([-1.0, -1.0])
    soft, vectors = np.zeros(2), np.ones((5, 5))
    assert active_set._holds(
        J, c, soft, np.array([False, True]), np.array([1.0]), multiplier, vectors
    )
    assert multiplier[0] == 0.0
    assert multiplier[1] == -1e-3


def random_problem(rng: np.random.Generator, n: int, m: int):
    J = rng.standard_normal((m, n))
    c = -rng.random(m) * rng.choice([0.01, 1.0, 3.0])
    soft = rng.choice([0.0, 1.0]) * rng.uniform(1e-3, 1, m) ** 2
    two_sided = np.zeros(m, bool)
    kind = rng.integers(4)
    if kind == 1:
        two_sided[: min(2, m)] = True
        soft[0] = 0.0
    if kind == 2:
        two_sided[:] = True
        soft = rng.uniform(0.1, 1, m)
    r = rng.uniform(0.5, 2, n)
    return rng.standard_normal(n) * 2, J, c, soft, two_sided, -np.ones(n), np.ones(n), r


@pytest.mark.parametrize(("n", "m"), [(1, 1), (2, 5), (7, 19), (14, 30)])
def test_random_answers_are_optimal(n: int, m: int, many: Callable[[int], int]) -> None:
    rng = np.random.default_rng(n * 100 + m)
    solved = 0
    for _ in range(many(800)):
        u_nom, J, c, soft, two_sided, lo, hi, r = random_problem(rng, n, m)
        status, _, u, multiplier = answer(u_nom, J, c, soft, two_sided, lo, hi, r)
        assert status in (Status.SOLVED, Status.INFEASIBLE)
        if status == Status.INFEASIBLE:
            continue
        solved += 1
        rows, low, high = multiplier[:m], multiplier[m : m + n], multiplier[m + n :]
        slack = J @ u + c - soft * rows
        assert np.abs(r * (u - u_nom) + J.T @ rows - low + high).max() < 1e-10 * (
            1 + np.abs(rows).max()
        )
        assert slack[~two_sided].max(initial=0.0) < 1e-9
        assert np.abs(slack[two_sided]).max(initial=0.0) < 1e-9
        assert (rows[~two_sided] >= 0).all()
        assert np.abs(rows * slack)[~two_sided].max(initial=0.0) < 1e-8
        assert (u >= lo).all() and (u <= hi).all()
        assert (low[u > lo] == 0).all() and (high[u < hi] == 0).all()
    assert solved > 0


@pytest.mark.parametrize(("n", "m"), [(2, 5), (7, 19), (14, 30)])
def test_agrees_with_daqp_also_on_what_is_infeasible(
    n: int, m: int, many: Callable[[int], int]
) -> None:
    rng = np.random.default_rng(5)
    seen = set()
    for _ in range(many(600)):
        u_nom, J, c, soft, two_sided, lo, hi, r = random_problem(rng, n, m)
        status, _, u, _ = answer(u_nom, J, c, soft, two_sided, lo, hi, r)
        loose = soft > 0
        big = np.full(m, 1e30)
        reference, _, flag, _ = daqp.solve(
            np.diag(np.r_[r, np.where(loose, 1 / np.where(loose, soft, 1.0), 1.0)]),
            np.r_[-r * u_nom, np.zeros(m)],
            np.hstack([J, -np.diag(loose * 1.0)]),
            np.r_[hi, big, -c],
            np.r_[lo, -big, np.where(two_sided, -c, -big)],
            np.r_[np.zeros(n + m), np.where(two_sided, 5, 0)].astype(np.int32),
        )
        seen.add(flag)
        assert (status == Status.SOLVED) == (flag == 1)
        if flag == 1:
            assert np.abs(u - reference[:n]).max() < 1e-8
    assert 1 in seen


def test_never_worse_than_proxqp(many: Callable[[int], int]) -> None:
    """ProxQP at times calls an answer solved that is none: only a better one would count."""
    rng = np.random.default_rng(11)
    n, m, equal = 5, 9, 0
    for _ in range(many(200)):
        u_nom, J = rng.standard_normal(n) * 2, rng.standard_normal((m, n))
        c, hi = -rng.random(m), np.ones(n)
        status, _, u, _ = answer(u_nom, J, c, np.zeros(m), None, -hi, hi)
        problem = proxsuite.proxqp.dense.QP(n, 0, m, True)
        problem.settings.eps_abs = 1e-9
        problem.settings.check_duality_gap = True
        problem.settings.eps_duality_gap_abs = 1e-9
        problem.settings.eps_duality_gap_rel = 0.0
        problem.init(np.eye(n), -u_nom, None, None, J, np.full(m, -1e20), -c, -hi, hi)
        problem.solve()
        other = problem.results.x
        assert status == Status.SOLVED
        assert (J @ u + c).max() < 1e-10
        if (J @ other + c).max() < 1e-7:
            assert np.linalg.norm(u - u_nom) < np.linalg.norm(other - u_nom) + 1e-6
        equal += np.abs(u - other).max() < 1e-5
    assert equal >= 0.8 * many(200)


def test_nearly_parallel_hard_rows_stay_exact() -> None:
    for angle in (1e-2, 1e-4, 1e-5):
        J = [[1.0, 0.0], [np.cos(angle), np.sin(angle)]]
        status, _, u, _ = answer([1.0, 1.0], J, [0.0, 0.0], [0.0, 0.0])
        assert status == Status.SOLVED
        assert u[0] <= 1e-12
        assert np.array(J)[1] @ u <= 1e-12


def test_more_hard_rows_than_inputs_meet_in_one_point() -> None:
    angles = np.linspace(0.1, 1.4, 9)
    J = np.c_[np.cos(angles), np.sin(angles)]
    status, _, u, multiplier = answer([1.0, 1.0], J, -J @ [0.2, 0.3], np.zeros(9))
    assert status == Status.SOLVED
    assert u == pytest.approx([0.2, 0.3], abs=1e-9)
    assert np.count_nonzero(multiplier) <= 2


@pytest.mark.parametrize(
    ("row", "multiplier", "strained"),
    [
        (1, 50.0, False),  # a row of length 2
        (1, 50.01, True),
        (1, -50.01, True),
        (3, 33.0, False),  # the second input's lower bound, of length 3
        (3, 33.4, True),
        (5, 33.4, True),  # its upper bound
        (2, 101.0, False),  # the first input's lower bound, of length 1/2
        (2, 200.1, True),
        (1, np.nan, True),
    ],
)
def test_strain_is_multiplier_times_length(row: int, multiplier: float, strained: bool) -> None:
    work = Workspace(2, 2)
    work.vectors[active_set._LENGTH2, :2] = 7.0, 4.0
    work.vectors[active_set._MULTIPLIER, :2] = 0.0, multiplier
    work.index[0, :2] = 0, row
    r_inv = np.array([0.25, 9.0])
    assert active_set._strained(work.vectors, work.index, r_inv, 2, 2) is strained
    assert not active_set._strained(work.vectors, work.index, r_inv, 2, 1)


def test_grip_is_what_the_box_can_move() -> None:
    lo, hi = np.array([-1.0, 0.0]), np.array([1.0, 4.0])
    row = np.array([1.0, -1.0])  # reaches 2 + 4, -2 in the middle
    assert not active_set._gripless(row, 2.0, lo, hi)
    assert not active_set._gripless(row, 2.0 + 5.9e13, lo, hi)
    assert active_set._gripless(row, 2.0 + 6.1e13, lo, hi)
    assert active_set._gripless(row, 2.0 - 6.1e13, lo, hi)
    assert active_set._gripless(np.zeros(2), 0.0, lo, hi)
