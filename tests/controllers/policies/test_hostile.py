"""The hostile policies are as hostile as they claim: else a filter passes by luck."""

import numpy as np
import pytest

from steadyhand.controllers.frames import Observation
from steadyhand.controllers.signals import Signal, SignalSet
from tests.support.hostile import hostile_policies

OUTPUTS = SignalSet((Signal("u0", "kW", -400.0, 450.0), Signal("u1", "kW", 0.0, 10.0)))


class TwoWalls:
    """k0 grows with u0 and falls with u1; k1 falls with u0; k2 is moved by no input."""

    inputs = OUTPUTS
    row_names = ("upper", "lower", "weather")

    def linearise(self, observation, k, J_G, psi_trusted, psi_untrusted, low, high):
        k[:] = [*observation.values, 0.0]
        J_G[:] = [[1.0, -2.0], [-1.0, 0.0], [0.0, 0.0]]
        psi_trusted[:] = psi_untrusted[:] = 0.0
        low[:], high[:] = OUTPUTS.low, OUTPUTS.high

    def backup(self, observation, out):
        out[:] = 0.0


def observe(*values: float) -> Observation:
    n = len(values)
    return Observation(1, 0.0, np.array(values), np.zeros(n), np.zeros(n, np.int8), np.zeros(2))


@pytest.fixture
def makers():
    return hostile_policies(OUTPUTS, TwoWalls())


def actions(policy, n=2000):
    return np.array([policy.propose(observe(-0.5, -0.9)).action for _ in range(n)])


def test_worst_gradient_pushes_at_the_nearest_wall_that_it_can_move(makers):
    policy = makers["worst_gradient"]()
    # upper is nearer: k0 = -0.1 > k1 = -0.9; k2 = 0 is nearest of all, but no input moves it
    np.testing.assert_array_equal(policy.propose(observe(-0.1, -0.9)).action, [450.0, 0.0])
    assert policy.row == 0
    # lower is nearer: -u0 grows it, so u0 = low; u1 does not move it and keeps its corner
    np.testing.assert_array_equal(policy.propose(observe(-0.9, -0.1)).action, [-400.0, 0.0])
    assert policy.row == 1


def test_random_leaves_the_range_on_both_sides(makers):
    tried = actions(makers["random"]())
    assert (tried < OUTPUTS.low).any(axis=0).all()
    assert (tried > OUTPUTS.high).any(axis=0).all()
    assert np.abs(tried).max() > 1e6
    np.testing.assert_array_equal(tried, actions(makers["random"]()))


def test_bang_bang_takes_the_full_step_every_tick(makers):
    tried = actions(makers["bang_bang"](), 10)
    np.testing.assert_array_equal(np.abs(np.diff(tried, axis=0)), np.tile([850.0, 10.0], (9, 1)))


def test_not_a_number_never_gives_a_finite_command(makers):
    tried = actions(makers["not_a_number"]())
    bad = ~np.isfinite(tried)
    assert bad.any(axis=1).all()
    assert not bad.all(axis=1).all()
    assert np.isnan(tried).any()
    assert np.isposinf(tried).any()
    assert np.isneginf(tried).any()


def test_constant_stays_at_its_stop(makers):
    np.testing.assert_array_equal(actions(makers["constant"](), 3), np.tile([450.0, 10.0], (3, 1)))
