"""The n x n forms against the published SVD form, the second solver, and closed forms."""

from collections.abc import Callable

import numpy as np
import pytest

from steadyhand.controllers.safety import tangent
from steadyhand.controllers.safety.active_set import ActiveSetSolver


def projected(u_nom, J, c, weight, r=None):
    n = len(u_nom)
    r = np.ones(n) if r is None else np.asarray(r, dtype=float)
    M, step, u = np.zeros((n, n)), np.zeros(n), np.zeros(n)
    good = tangent.project(
        np.asarray(u_nom, float), r, np.asarray(J, float), np.asarray(c, float),
        np.asarray(weight, float), M, step, u,
    )  # fmt: skip
    return good, u


def newton(u_nom, J, c, weight, lo, hi, r=None, cap=30):
    n, m = len(u_nom), len(c)
    r = np.ones(n) if r is None else np.asarray(r, dtype=float)
    p, u = np.zeros(m), np.zeros(n)
    settled, passes = tangent.newton(
        np.asarray(u_nom, float), r, np.asarray(J, float), np.asarray(c, float),
        np.asarray(weight, float), np.asarray(lo, float), np.asarray(hi, float), cap,
        np.zeros((n + 3, n)), p, u,
    )  # fmt: skip
    return bool(settled), passes, u, p


def test_cholesky_by_hand() -> None:
    # [[4, 2], [2, 5]] x = [8, 14]: x = [3/4, 5/2]; the factor is [[2, .], [1, 2]].
    M, b = np.array([[4.0, 99.0], [2.0, 5.0]]), np.array([8.0, 14.0])
    assert tangent.cholesky_solve(M, b)
    assert b == pytest.approx([0.75, 2.5], rel=1e-15)
    assert np.tril(M).tolist() == [[2.0, 0.0], [1.0, 2.0]]
    assert M[0, 1] == 99.0


def test_cholesky_against_numpy(many: Callable[[int], int]) -> None:
    rng = np.random.default_rng(1)
    for _ in range(many(200)):
        n = int(rng.integers(1, 12))
        half = rng.standard_normal((n, n))
        M, b = half @ half.T + 0.1 * np.eye(n), rng.standard_normal(n)
        x = b.copy()
        assert tangent.cholesky_solve(M.copy(), x)
        assert np.abs(M @ x - b).max() < 1e-9


@pytest.mark.parametrize("M", [[[-1.0]], [[0.0]], [[np.nan]], [[1.0, 0.0], [2.0, 4.0]]])
def test_cholesky_refuses_what_is_not_positive_definite(M: list[list[float]]) -> None:
    assert not tangent.cholesky_solve(np.array(M), np.ones(len(M)))


def test_projection_of_one_row_by_hand() -> None:
    # u = u_nom - J p/(J^2 + a^2) with u_nom = 1, J = 2, c = 1, a^2 = 0.5: 1 - 2*3/4.5 = -1/3.
    good, u = projected([1.0], [[2.0]], [1.0], [2.0])
    assert good
    assert u == pytest.approx([-1 / 3], rel=1e-14)


def test_projection_owes_nothing_to_its_buffers() -> None:
    M, step, u = np.full((2, 2), 7.0), np.full(2, 7.0), np.full(2, 7.0)
    for _ in range(2):
        assert tangent.project(
            np.zeros(2), np.array([4.0, 1.0]), np.array([[1.0, 1.0]]), np.ones(1), np.full(1, 1e8),
            M, step, u,
        )  # fmt: skip
        assert u == pytest.approx([-0.2, -0.8], abs=1e-7)


def test_projection_respects_the_metric() -> None:
    # Two equal inputs, the first four times as dear: it moves a quarter as far.
    _, u = projected([0.0, 0.0], [[1.0, 1.0]], [1.0], [1e8], r=[4.0, 1.0])
    assert u == pytest.approx([-0.2, -0.8], abs=1e-7)


@pytest.mark.parametrize(("n", "m"), [(2, 3), (7, 19), (14, 30)])
def test_projection_equals_the_published_svd_form(
    n: int, m: int, many: Callable[[int], int]
) -> None:
    rng = np.random.default_rng(3)
    for _ in range(many(200)):
        J, u_nom = rng.standard_normal((m, n)), rng.standard_normal(n)
        alpha = 10 ** rng.uniform(-3, 0.3, m)
        c = rng.standard_normal(m) * 0.02 * alpha
        good, u = projected(u_nom, J, c, 1 / alpha**2)
        assert good
        assert np.abs(u - tangent.published_projection(u_nom, J, c, alpha)).max() < 1e-9


def test_projection_that_cannot_be_solved_changes_nothing() -> None:
    good, u = projected([0.3], [[np.inf]], [0.0], [1.0])
    assert not good
    assert u.tolist() == [0.3]


def test_newton_by_hand() -> None:
    settled, passes, u, p = newton([1.0], [[1.0]], [0.0], [1.0], [-2], [2])
    assert settled
    assert passes <= 2
    assert u == pytest.approx([0.5])
    assert p == pytest.approx([0.5])


def test_newton_leaves_alone_what_holds() -> None:
    settled, passes, u, p = newton([0.1 + 0.2], [[1.0]], [-1.0], [1e6], [-2], [2])
    assert (settled, passes) == (True, 1)
    assert u.tolist() == [0.1 + 0.2]
    assert p == pytest.approx([-0.7])


def test_newton_pins_bounds_on_both_sides() -> None:
    J = np.array([[1.0, 1.0, 0.0]])
    settled, _, u, _ = newton([5.0, 0.0, -5.0], J, [0.0], [1.0], [-1, -1, -1], [1, 1, 1])
    assert settled
    # u1 = 1 at its bound; u2 + (1 + u2) = 0.
    assert u == pytest.approx([1.0, -0.5, -1.0])


@pytest.mark.parametrize("side", [1.0, -1.0])
def test_newton_leaves_a_pinned_input_out_of_the_step(side: float) -> None:
    # u1 stays at 1 (gradient 1 - 1.3 + 0.1 < 0), so u2 + 0.1 (1 + u2) = 0 in one step.
    settled, passes, u, _ = newton(
        [1.3 * side, 0.0], [[side, side]], [0.0], [0.1], [-1, -1], [1, 1]
    )
    assert (settled, passes) == (True, 2)
    assert u == pytest.approx([side, -side / 11], rel=1e-14)


def test_newton_takes_exactly_the_passes_it_may() -> None:
    for cap, settled in ((1, False), (2, True)):
        found = newton([1.0], [[1.0]], [0.0], [1.0], [-2], [2], cap=cap)
        assert found[:2] == (settled, cap)
    assert newton([0.1], [[1.0]], [-1.0], [1.0], [-2], [2], cap=1)[:2] == (True, 1)


def test_newton_refuses_what_is_singular() -> None:
    settled, passes, u, _ = newton([0.3], [[1e200]], [1.0], [1e200], [-1], [1])
    assert (settled, passes) == (False, 1)
    assert -1 <= u[0] <= 1


def test_newton_stops_at_its_cap_inside_the_bounds() -> None:
    rng = np.random.default_rng(0)
    J = rng.standard_normal((30, 14))
    settled, passes, u, _ = newton(
        rng.standard_normal(14) * 3, J, rng.random(30), np.full(30, 1e4), -np.ones(14), np.ones(14),
        cap=2,
    )  # fmt: skip
    assert (settled, passes) == (False, 2)
    assert (np.abs(u) <= 1).all()


def test_newton_agrees_with_the_active_set(many: Callable[[int], int]) -> None:
    rng = np.random.default_rng(8)
    n, m = 5, 12
    solver, exact = ActiveSetSolver(m, n), np.empty(n)
    halved = settled_all = 0
    for _ in range(many(600)):
        u_nom, J = rng.standard_normal(n) * 2, rng.standard_normal((m, n))
        a, c, r = 10 ** rng.uniform(-2, 0, m), -rng.random(m), rng.uniform(0.5, 2, n)
        lo, hi = -np.ones(n), np.ones(n)
        settled, passes, u, p = newton(u_nom, J, c, 1 / a**2, lo, hi, r)
        assert (u >= lo).all() and (u <= hi).all()
        assert p == pytest.approx(J @ u + c, abs=1e-12)
        halved += passes > 4
        settled_all += settled
        solver.solve(u_nom, 1 / r, J, c, a**2, np.zeros(m, bool), lo, hi, exact)
        if settled:
            assert np.abs(u - exact).max() < 1e-7
    assert settled_all >= 0.97 * many(600)


def test_smooth_basis_is_a_null_space_and_does_not_jump() -> None:
    rng = np.random.default_rng(2)
    J, bend = rng.standard_normal((3, 2)), rng.standard_normal((3, 2))
    before = None
    for angle in np.linspace(0, 1, 101):
        J_u = np.hstack([J + angle * bend, np.diag([0.5, 1.0, 2.0])])
        basis, overlap = tangent.smooth_basis(J_u, 2)
        assert np.abs(J_u @ basis).max() < 1e-12
        assert basis.T @ basis == pytest.approx(np.eye(2), abs=1e-12)
        assert overlap > 0.05
        if before is not None:
            assert np.abs(basis - before).max() < 0.05
        before = basis


def test_published_form_far_away_is_the_identity() -> None:
    u = tangent.published(
        np.array([0.3, -0.4]),
        np.array([[1.0, 0.0]]),
        np.zeros(1),
        np.zeros(1),
        np.array([1e6]),
        9.0,
    )
    assert u == pytest.approx([0.3, -0.4], abs=1e-9)


def test_published_form_by_hand() -> None:
    # J_u = [1, 1]: null vector [1, -1]/sqrt(2); pinv = [1/2, 1/2]. drift 0.2, recovery 3*0.1.
    u = tangent.published(
        np.array([0.4]), np.array([[1.0]]), np.array([0.2]), np.array([0.1]), np.array([1.0]), 3.0
    )
    assert u == pytest.approx([0.4 / np.sqrt(2) - 0.25])
