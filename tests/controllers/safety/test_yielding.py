"""Rows that contradict each other: the least violation by priority, certified and compared."""

from collections.abc import Callable

import daqp
import numpy as np
import pytest
from scipy.optimize import nnls

from steadyhand.controllers.safety.active_set import Status
from steadyhand.controllers.safety.constraint import ConstraintRow, ConstraintSet, Gains, Priority
from steadyhand.controllers.safety.row_filter import RowFilter
from steadyhand.controllers.safety.rows import Field
from steadyhand.controllers.safety.yielding import least_violation

PEOPLE, STRUCTURE, EQUIPMENT, COMFORT = list(Priority)[:4]


def bound_rows(priorities, equality=None) -> ConstraintSet:
    equality = [False] * len(priorities) if equality is None else equality
    return ConstraintSet(
        tuple(
            ConstraintRow(f"r{i}", "m", 1.0, Priority(int(p)), equality=bool(e))
            for i, (p, e) in enumerate(zip(priorities, equality, strict=True))
        )
    )


def least(J, gate, priorities, near, equality=None, lo=-1.0, hi=1.0, r=None, period_s=900.0):
    """(answered, u) for rows J u + gate over the box; the tolerance is 1e-9/period."""
    J = np.array(J, dtype=float)
    n = J.shape[1]
    rows = RowFilter(
        bound_rows(priorities, equality),
        Gains.for_period(period_s, np.sqrt(n)),
        np.ones(n) if r is None else r,
    )
    rows.table[Field.GATE] = gate
    out = np.full(n, 99.0)
    box = (np.full(n, float(lo)), np.full(n, float(hi)))
    good = rows.yield_least(J, *box, np.array(near, dtype=float), out)
    return good, out


@pytest.mark.parametrize("gate", [0.5, 5.0, 5e3, 5e6])
def test_strong_contradictions_are_answered(gate: float) -> None:
    # u <= -g against u >= g: the middle; with -2u they meet where 1*(u+g) = 2*(g-2u): u = g/5.
    assert least([[1], [-1]], [gate, gate], [2, 2], [0.7])[1] == pytest.approx([0.0], abs=1e-9)
    good, u = least([[1], [-2]], [gate, gate], [2, 2], [0.7], lo=-9e9, hi=9e9)
    assert good
    assert u == pytest.approx([gate / 5], rel=1e-9)


@pytest.mark.parametrize("gate", [0.5, 5.0, 5e6])
@pytest.mark.parametrize("first", [0, 1])
def test_the_first_priority_gets_all(gate: float, first: int) -> None:
    priorities = [PEOPLE, EQUIPMENT] if first == 0 else [EQUIPMENT, PEOPLE]
    good, u = least([[1], [-1]], [gate, gate], priorities, [0.7])
    assert good
    reach = min(gate, 1.0)
    assert u == pytest.approx([-reach if first == 0 else reach], abs=1e-9 + 2e-12 * gate)


def test_a_short_row_of_people_comes_before_a_long_one_of_equipment() -> None:
    """The lengths of rows weigh nothing between priorities."""
    for shorter in (1e-3, 1e-6, 1e-9):
        good, u = least([[shorter], [-1.0]], [0.4 * shorter, 0.5], [PEOPLE, EQUIPMENT], [0.9])
        assert good
        assert u[0] <= -0.4 + 2e-12 / shorter


def test_one_priority_shares_by_least_squares() -> None:
    # (u + 0.2)^2 + (1 - 2u)^2 + (1 - u)^2 is least at u = (2 + 1 - 0.2)/6 = 7/15.
    good, u = least([[1], [-2], [-1]], [0.2, 1, 1], [1, 1, 1], [-0.8])
    assert good
    assert u == pytest.approx([7 / 15], abs=1e-9)


def test_what_the_rows_leave_open_stays_near() -> None:
    J = [[1, 0, 0], [-1, 0, 0]]
    good, u = least(J, [0.5, 0.5], [0, 0], [0.3, -0.7, 4.0])
    assert good
    assert u == pytest.approx([0.0, -0.7, 1.0], abs=1e-6)


def test_what_an_earlier_priority_gave_up_is_not_taken_back_nor_exceeded() -> None:
    # People: u1 <= -2 of reach 1 gives up 1. Structure may move u2 alone.
    J = [[1, 0], [-1, 0], [0, 1]]
    good, u = least(J, [2, 0.5, 0.25], [PEOPLE, STRUCTURE, STRUCTURE], [0.9, 0.9])
    assert good
    assert u[0] == pytest.approx(-1.0, abs=1e-9)
    assert u[1] == pytest.approx(-0.25, abs=1e-9)


def test_an_equality_of_a_later_priority_waits_for_its_turn() -> None:
    J = [[1, 0], [-1, 0], [1, 1]]
    for gate in (0.5, 5.0):
        good, u = least(J, [gate, gate, -0.5], [0, 0, 2], [0.9, 0.1], equality=[False, False, True])
        assert good
        assert u == pytest.approx([0.0, 0.5], abs=1e-6)


def test_equalities_that_contradict_meet_in_the_middle() -> None:
    good, u = least([[1], [1]], [0.1, 0.5], [1, 1], [0.9], equality=[True, True])
    assert good
    assert u == pytest.approx([-0.3], abs=1e-9)
    # What both gave up is kept, in its direction, when the next priority is asked.
    good, u = least([[1], [1], [-1]], [0.1, 0.5, 0.8], [1, 1, 2], [0.9], [True, True, False])
    assert good
    assert u == pytest.approx([-0.3], abs=1e-9)


def test_soft_rows_are_never_asked() -> None:
    good, u = least([[1], [-1]], [0.5, 9.0], [EQUIPMENT, COMFORT], [0.25])
    assert good
    assert u == pytest.approx([-0.5])


def test_rows_without_grip_leave_the_command_alone() -> None:
    good, u = least([[0, 0], [0, 0]], [0.5, 2.0], [0, 1], [0.25, -0.5])
    assert good
    assert u.tolist() == [0.25, -0.5]


class TestAsk:
    """The order of the questions, and what is made of answers that fail."""

    ROWS = bound_rows([PEOPLE, EQUIPMENT])
    J, r_inv = np.array([[1.0], [-1.0]]), np.ones(1)

    def run(self, answers, offset=(0.5, 0.5), near=0.0):
        asked = []
        answers = iter(answers)

        def ask(counts, soft, offsets, start):
            asked.append((counts.tolist(), soft.copy(), offsets.copy(), start.copy()))
            answer = next(answers)
            return None if answer is None else np.array([answer])

        found = least_violation(
            ask, self.ROWS, self.J, np.array(offset), self.r_inv, np.array([near]), 1e-9
        )
        return found, asked

    def test_people_alone_first_and_exactly(self) -> None:
        found, asked = self.run([-0.5, -0.7])
        assert found.tolist() == [-0.7]
        assert [one[0] for one in asked] == [[True, False], [True, True]]
        assert not any(one[1].any() for one in asked)
        assert all(one[2].tolist() == [0.5, 0.5] for one in asked)

    def test_no_answer_for_the_first(self) -> None:
        found, asked = self.run([None, None])
        assert found is None
        assert len(asked) == 2

    def test_no_answer_for_the_second_keeps_the_first(self) -> None:
        found, asked = self.run([-0.5, None, None])
        assert found.tolist() == [-0.5]
        assert asked[2][1].tolist() == pytest.approx([0.0, 1e-6]), "only the row in turn is soft"

    def test_steps_start_where_the_last_one_ended(self) -> None:
        found, asked = self.run([None, -0.2, -0.3, -0.4, -0.4, 0.1], near=0.9)
        assert found.tolist() == [0.1]
        assert [one[3].tolist() for one in asked] == [[0.9], [0.9], [-0.2], [-0.3], [-0.4], [0.9]]
        assert [one[1][0] for one in asked] == pytest.approx(
            [0, 1e-6, 1e-8, 1e-8, 1e-8, 0], abs=0.0
        )

    @pytest.mark.parametrize(("moved", "r_inv", "last"), [
        (1.5e-9, 1.0, False), (0.5e-9, 1.0, True), (1.5e-9, 4.0, True), (0.7e-9, 0.25, False),
    ])  # fmt: skip
    def test_a_step_that_hardly_moves_is_the_last(self, moved, r_inv, last) -> None:
        self.r_inv = np.array([r_inv])
        answers = [None, -0.2, -0.2 - moved, -0.3, -0.3, -0.3]
        assert len(self.run(answers)[1]) == (4 if last else 6)

    def test_steps_come_to_an_end(self) -> None:
        people = list(-0.2 - 0.01 * np.arange(1, 21))
        found, asked = self.run([None, *people, 0.1])
        assert len(asked) == 22
        assert found.tolist() == [0.1]

    def test_a_step_that_is_worse_is_dropped(self) -> None:
        found, asked = self.run([None, -0.2, -0.1, -0.2])
        # People miss 0.3 at -0.2; tolerance and rounding are room on top.
        room = 1e-9 + 1e-12 * (0.2 + 0.5)
        assert asked[3][2] == pytest.approx([0.2 - room, 0.5], rel=1e-14, abs=0.0)
        assert found.tolist() == [-0.2]

    @pytest.mark.parametrize(("J", "u", "offset"), [(-1.0, 0.2, 0.5), (1.0, 0.8, -0.5)])
    def test_room_is_left_for_the_size_of_all_numbers(self, J, u, offset) -> None:
        self.J = np.array([[J], [-1.0]])
        _, asked = self.run([None, u, u, u], offset=(offset, 0.5))
        left = -(J * u) - (1e-9 + 1e-12 * (abs(u) + abs(offset)))
        assert asked[3][2][0] == pytest.approx(left, rel=1e-14, abs=0.0)

    @pytest.mark.parametrize(("row", "length2"), [([0.3, 0.4], 0.29), ([0.0, 0.0], 1.0)])
    def test_softness_goes_by_the_length_in_the_metric(self, row, length2) -> None:
        asked = []

        def ask(counts, soft, offsets, start):
            asked.append(soft.copy())

        J, r_inv = np.array([row, [9.0, 9.0]]), np.array([0.5, 1.53125])
        offset, near = np.array([0.5, 0.5]), np.zeros(2)
        assert least_violation(ask, self.ROWS, J, offset, r_inv, near, 1e-9) is None
        assert asked[1] == pytest.approx([1e-6 * length2, 0.0], rel=1e-12, abs=0.0)

    def test_a_step_that_fails_leaves_the_one_before(self) -> None:
        found, asked = self.run([None, -0.2, None, -0.2])
        assert len(asked) == 4
        assert found.tolist() == [-0.2]


def contradictory(rng: np.random.Generator, kind: str):
    n, m = int(rng.integers(1, 8)), int(rng.integers(2, 14))
    J, gate = rng.standard_normal((m, n)), rng.standard_normal(m) + 1
    if kind == "strong":
        gate *= 10 ** rng.uniform(0, 3)
    if kind == "lengths":
        J *= 10 ** rng.uniform(-2, 0, (m, 1))
    if kind == "parallel":
        J = J[:1] * rng.choice([-1, 1], (m, 1)) + J * 10 ** rng.uniform(-9, -1)
    equality = rng.random(m) < (0.15 if kind == "equalities" else 0.0)
    return J, gate, rng.integers(0, 3, m), equality, rng.standard_normal(n), rng.uniform(0.5, 2, n)


def missing(J, gate, equality, u):
    value = J @ u + gate
    return np.where(equality, value, np.maximum(value, 0.0))


def stationarity(J, gate, priority, equality, u) -> float:
    """Largest share of a priority's pull that nothing allowed holds against; 0 is optimal.

    By the conditions of Karush, Kuhn and Tucker, which are sufficient here: -J' missing must be
    a nonnegative combination of the normals of bounds and earlier rows that are in the way.
    """
    worst = 0.0
    value, short = J @ u + gate, missing(J, gate, equality, u)
    small = 1e-7 * (np.abs(gate) + np.abs(J).sum(1))
    unit = np.eye(len(u))
    for level in np.unique(priority):
        pull = np.where((priority == level) & (np.abs(short) > small), short, 0.0)
        if not pull.any():
            continue
        walls = [-unit[a] for a in np.flatnonzero(u < -1 + 1e-4)]
        walls += [unit[a] for a in np.flatnonzero(u > 1 - 1e-4)]
        for i in np.flatnonzero(priority < level):
            if value[i] > -small[i] or equality[i]:
                walls.append(J[i] / np.linalg.norm(J[i]))
            if equality[i]:
                walls.append(-J[i] / np.linalg.norm(J[i]))
        left = J.T @ pull
        rest = nnls(np.array(walls).T, -left)[1] if walls else np.linalg.norm(left)
        worst = max(worst, rest / np.linalg.norm(np.abs(J).T @ np.abs(pull)))
    return worst


KINDS = ["plain", "strong", "lengths", "parallel", "equalities"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_answer_is_least_by_its_certificate(kind: str, many: Callable[[int], int]) -> None:
    rng = np.random.default_rng(7)
    broken = 0
    for _ in range(many(400)):
        J, gate, priority, equality, near, r = contradictory(rng, kind)
        good, u = least(J, gate, priority, near, equality, r=r)
        assert good
        assert (np.abs(u) <= 1).all()
        broken += missing(J, gate, equality, u).any()
        # Rows of a hundredth of the longest, or hardly apart, are weighed to fewer digits.
        allowed = 1e-4 if kind in ("lengths", "parallel") else 1e-7
        assert stationarity(J, gate, priority, equality, u) < allowed
    assert broken > 0.5 * many(400)


def library_levels(J, gate, priority, equality, r) -> list[float]:
    """Sum of squares missing per priority, one QP with slack variables after the other."""
    m, n = J.shape
    levels, big, shift = [], 1e30, gate.copy()
    before = np.zeros(m, bool)
    for level in np.unique(priority):
        now = priority == level
        rows, k = np.flatnonzero(before | now), int(now.sum())
        slack = np.zeros((m, k))
        slack[np.flatnonzero(now), np.arange(k)] = -1.0
        answer, _, flag, _ = daqp.solve(
            np.diag(np.r_[1e-9 * r, np.ones(k)]),
            np.zeros(n + k),
            np.ascontiguousarray(np.hstack([J, slack])[rows]),
            np.r_[np.ones(n), np.full(k, big), -shift[rows]],
            np.r_[-np.ones(n), np.full(k, -big), np.where(equality, -shift, -big)[rows]],
            np.r_[np.zeros(n + k), np.where(equality, 5, 0)[rows]].astype(np.int32),
            primal_tol=1e-11,
        )
        if flag != 1:
            return levels
        short = missing(J, gate, equality, answer[:n])
        levels.append(float(np.sum(short[now] ** 2)))
        shift = np.where(now, gate - short - np.where(equality, 0.0, 1e-9), shift)
        before |= now
    return levels


@pytest.mark.parametrize("kind", ["plain", "strong", "lengths"])
def test_no_library_breaks_them_less(kind: str, many: Callable[[int], int]) -> None:
    rng = np.random.default_rng(8)
    compared = 0
    for _ in range(many(400)):
        J, gate, priority, equality, near, r = contradictory(rng, kind)
        _, u = least(J, gate, priority, near, equality, r=r)
        short = missing(J, gate, equality, u)
        for level, other in zip(
            np.unique(priority), library_levels(J, gate, priority, equality, r), strict=False
        ):
            ours = float(np.sum(short[priority == level] ** 2))
            scale = float(np.sum(np.square(gate)))
            assert ours == pytest.approx(other, abs=1e-6 * scale)
            compared += ours > 1e-9 * scale
    assert compared > 0.5 * many(400)


def test_the_outcome_of_solvers_is_no_matter_of_strength() -> None:
    """Soft rows that contradict are solved however large their multipliers are."""
    from steadyhand.controllers.safety.active_set import ActiveSetSolver

    solver, u = ActiveSetSolver(2, 1), np.empty(1)
    for soft in (1e-4, 1e-8, 1e-9):
        for gate in (0.5, 5.0, 500.0):
            status, _ = solver.solve(
                *(np.array([0.7]), np.ones(1), np.array([[1.0], [-1.0]]), np.full(2, gate)),
                *(np.full(2, soft), np.zeros(2, bool), -np.ones(1), np.ones(1), u),
            )
            assert status == Status.SOLVED
            # (u - 0.7) + 2u/soft = 0.
            assert u == pytest.approx([0.7 * soft / (soft + 2)], rel=1e-5, abs=1e-14 * gate)
