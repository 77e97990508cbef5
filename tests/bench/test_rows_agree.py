"""Rows of a goal do the same job: same answers, or the ratio means nothing."""

import numpy as np
import pytest

from steadyhand.training.bench import cbfqp, decision, inference, nullspace
from steadyhand.training.bench.problems import arm_problems, over_states

SIZES = [(7, 5, True), (14, 30, False)]


@pytest.mark.parametrize("size", SIZES)
def test_doing_nothing_is_always_allowed(size):
    problems = arm_problems(*size, count=200)
    assert max(problems.violation(i, np.zeros(problems.n)) for i in range(200)) == 0.0
    assert (problems.slack_speed > 0).all()
    closest = problems.slack_speed.min() / 2.0
    assert 1e-3 <= closest < 2e-3, "some states are a millimetre from a limit"


def test_violation_by_hand():
    problems = arm_problems(2, 1, False, count=1)
    problems.G[0], problems.h[0] = [[1.0, 2.0]], [1.0]
    assert problems.violation(0, np.array([1.0, 1.0])) == pytest.approx(2.0)
    assert problems.violation(0, np.array([-2.5, 0.0])) == pytest.approx(1.0)  # beyond -1.5
    assert problems.violation(0, np.array([1.0, 0.0])) == 0.0


def test_every_way_meets_the_same_states_in_order():
    seen = {"a": [], "b": []}
    calls = over_states({name: seen[name].append for name in seen}, 3)
    for name in ("a", "a", "b", "a", "a", "b"):
        calls[name]()
    assert seen == {"a": [0, 1, 2, 0], "b": [0, 1]}


@pytest.mark.parametrize("size", SIZES)
def test_null_space_forms_agree(size):
    problems = arm_problems(*size, count=100)
    forms = nullspace.filters(problems)
    for name in (nullspace.NUMPY, nullspace.COMPILED, nullspace.SOLVER):
        assert nullspace.error(problems, forms[name], forms[nullspace.SVD]) < 1e-9, name


def test_null_space_answer_lies_in_the_tangent_space():
    """[J A](u, u_s) + drift = 0 has the answer's u with the least |(u - u_nom, u_s)|."""
    problems = arm_problems(7, 5, True, count=20)
    solve = nullspace.filters(problems)[nullspace.COMPILED]
    for i in range(20):
        u = solve(i)
        slack = (problems.J[i] @ u + problems.drift[i]) / problems.slack_speed[i]
        # Stationary: u - u_nom + J' A^-1 slack = 0.
        pull = problems.J[i].T @ (slack / problems.slack_speed[i])
        assert np.abs(u - problems.u_nom[i] + pull).max() < 1e-6 * (1.0 + np.abs(pull).max())


@pytest.mark.parametrize("size", SIZES)
def test_qp_solvers_agree(size):
    pytest.importorskip("daqp")
    problems = arm_problems(*size, count=100)
    ours, rival = (cbfqp.SOLVERS[name](problems) for name in (cbfqp.OURS, cbfqp.DAQP))
    for i in range(100):
        u = ours(i)
        assert np.abs(u - rival(i)).max() < 1e-9
        assert problems.violation(i, u) < cbfqp.VIOLATION_BOUND


@pytest.mark.parametrize(
    ("name", "package", "violation", "worse"),
    [
        (cbfqp.CVXPY, "cvxpy", 1e-6, 1e-3),
        # At its defaults proxqp stops early: rows nearly hold, the command is not the nearest.
        (cbfqp.PROXQP, "proxsuite", 1e-4, 1.0),
    ],
)
def test_modelling_layers_solve_the_same_problem(name, package, violation, worse):
    pytest.importorskip(package)
    pytest.importorskip("qpsolvers")
    problems = arm_problems(7, 5, True, count=30)
    ours, rival = cbfqp.SOLVERS[cbfqp.OURS](problems), cbfqp.SOLVERS[name](problems)

    def cost(i, u):
        return 0.5 * float(np.sum((u - problems.u_nom[i]) ** 2))

    for i in range(30):
        answer = rival(i)
        assert problems.violation(i, answer) < violation
        assert -1e-3 < cost(i, answer) - cost(i, ours(i)) < worse


@pytest.mark.parametrize("hidden", [8])
def test_ways_to_ask_the_policy_agree(hidden):
    pytest.importorskip("stable_baselines3")
    with inference.ways(hidden) as (_, ask):
        answers = ask()
    for name in (inference.PROPOSE, inference.PROCESS, inference.DICT, inference.SB3):
        assert answers[name] == pytest.approx(answers[inference.STEP], abs=1e-5), name
    assert np.ptp(answers[inference.STEP]) > 0.01


def test_decisions_agree():
    every = decision.decisions(7, 5, True, 8)
    for i in range(50):
        u, score = every[decision.OURS](i)
        u = u.copy()
        assert 0.0 < score < 3.0
        for name, tolerance in (
            (decision.NUMPY, 1e-9),
            (decision.SVD, 1e-9),
            (decision.TORCH, 1e-5),  # its float32 products round in another order
        ):
            other, other_score = every[name](i)
            assert np.abs(u - other).max() < tolerance, name
            assert other_score == pytest.approx(score, rel=1e-9), name


def test_decision_that_ships_keeps_its_bounds():
    every = decision.decisions(7, 5, True, 8)
    problems = arm_problems(7, 5, True)
    moved = 0
    for i in range(50):
        u, score = every[decision.SHIPPED](i)
        assert score == every[decision.OURS](i)[1]
        assert (u >= problems.low[i]).all()
        assert (u <= problems.high[i]).all()
        moved += bool(np.abs(u).max() > 1e-3)
    assert moved > 40
