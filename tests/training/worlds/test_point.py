"""The point world against numbers worked by hand and an integrator of high order."""

from math import cos, exp, pi, sin, sqrt

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from steadyhand.training.worlds import point


def rows_at(x, y):
    k, J = np.zeros(point.ROWS), np.zeros((point.ROWS, 2))
    point.constraints(np.array([x, y]), k, J)
    return k, J


def fixed_episode(**parts):
    drawn = point.episode(np.random.default_rng(0), 4)
    return point.Episode(
        **({"start": drawn.start, "goals": drawn.goals, "noise": drawn.noise} | parts)
    )


def test_drift_by_hand() -> None:
    assert point.drift(0.0, 0.0, 0.0) == (0.0, 0.25)
    # 1.3 y + 0.4 t = pi/2 and 1.1 x - 0.3 t = pi.
    t = 2.0
    x, y = (pi + 0.3 * t) / 1.1, (pi / 2 - 0.4 * t) / 1.3
    assert point.drift(x, y, t) == pytest.approx((0.25, -0.25))


def test_rows_by_hand() -> None:
    k, J = rows_at(0.0, 0.0)
    far = sqrt(0.35**2 + 0.30**2)
    assert k[:4] == pytest.approx([-0.95] * 4)
    assert k[4] == pytest.approx(0.25 + 0.08 - far)
    assert k[5] == pytest.approx(0.22 + 0.08 - sqrt(0.225))
    assert k[6] == pytest.approx(0.25 + 0.08 - sqrt(0.2525))
    assert J[:4].tolist() == [[1, 0], [-1, 0], [0, 1], [0, -1]]
    # Towards the disc is towards its limit.
    assert J[4] == pytest.approx(np.array([0.35, 0.30]) / far)
    assert rows_at(0.9, -0.2)[0][:4] == pytest.approx([-0.05, -1.85, -1.15, -0.75])


def test_jacobian_matches_differences() -> None:
    rng = np.random.default_rng(1)
    for x, y in rng.uniform(-0.9, 0.9, (50, 2)):
        J, h = rows_at(x, y)[1], 1e-6
        by_x = (rows_at(x + h, y)[0] - rows_at(x - h, y)[0]) / (2 * h)
        by_y = (rows_at(x, y + h)[0] - rows_at(x, y - h)[0]) / (2 * h)
        assert np.stack([by_x, by_y], axis=1) == pytest.approx(J, abs=1e-6)


def test_worst_is_the_largest_row() -> None:
    for x, y in np.random.default_rng(2).uniform(-1.2, 1.2, (200, 2)):
        assert point.worst(x, y) == pytest.approx(rows_at(x, y)[0].max(), abs=1e-15)


def test_advance_follows_the_equation() -> None:
    u, start, t = np.array([0.7, -0.4]), np.array([0.2, -0.1]), 3.0

    def rate(now, q):
        return [
            u[0] + 0.25 * sin(1.3 * q[1] + 0.4 * now),
            u[1] + 0.25 * cos(1.1 * q[0] - 0.3 * now),
        ]

    exact = solve_ivp(rate, (t, t + point.PERIOD_S), start, rtol=1e-12, atol=1e-14).y[:, -1]
    q = start.copy()
    point.advance(q, t, u)
    assert q == pytest.approx(exact, abs=1e-8)


def test_a_corner_cut_between_two_ticks_is_seen() -> None:
    # Along the top of disc 1, R = 0.33: a chord of 2 c bulges c^2 / (2 R) into the circle.
    fx, fy = point.drift(0.35, 0.63, 0.0)
    u = np.array([1.0, -fy])
    c = (1.0 + fx) * point.PERIOD_S / 2
    bulge = c**2 / (2 * 0.33)
    q = np.array([0.35 - c, 0.30 + 0.33 - bulge / 2])
    assert point.worst(*q) < 0
    deepest = point.advance(q, 0.0, u)
    assert point.worst(*q) < 0
    assert deepest == pytest.approx(bulge / 2, rel=0.2)


def test_episodes_start_and_aim_in_the_open() -> None:
    drawn = point.episode(np.random.default_rng(5), 30)
    again = point.episode(np.random.default_rng(5), 30)
    assert drawn.ticks == 30
    assert drawn.goals.shape == (31, 2)
    assert drawn.noise.tobytes() == again.noise.tobytes()
    assert drawn.goals.tobytes() == again.goals.tobytes()
    for q in (drawn.start, *drawn.goals):
        assert point.worst(*q) <= -point.CLEARANCE


def test_seeker_by_hand() -> None:
    goals = np.array([[0.1, 0.1], [0.0, 0.8], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    noise = np.array([[0.0, 0.0], [1.0, -1.0], [0.0, 0.0], [0.0, 0.0]])
    seeker = point.Seeker(fixed_episode(goals=goals, noise=noise))
    # 4/s on each axis.
    assert seeker.act(0, np.array([0.0, 0.2])) == pytest.approx([0.4, -0.4])
    assert seeker.reached == 0
    # 0.05 m from the first goal: the second one, (0.0, 0.8), is 0.7 m above; noise 0.17.
    assert seeker.act(1, np.array([0.05, 0.1])) == pytest.approx([-0.2 + 0.17, 1.0])
    assert seeker.reached == 1


def test_wanderer_by_hand() -> None:
    noise = np.array([[0.5, -3.0], [1.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    wanderer = point.Wanderer(fixed_episode(noise=noise))
    # Starts in its stationary spread, cut to the box only on the way out.
    assert wanderer.act(0, np.zeros(2)) == pytest.approx([0.5, -1.0])
    kept = exp(-0.05)
    expected = [0.5 * kept + sqrt(1 - exp(-0.1)), max(-3.0 * kept, -1.0)]
    assert wanderer.act(1, np.zeros(2)) == pytest.approx(expected)
