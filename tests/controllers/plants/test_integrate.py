"""Order of convergence as declared, and the exact answer where a method has none to make."""

from math import cos, exp, log2

import numpy as np
import pytest

from steadyhand.controllers.plants.integrate import Integrator, euler, heun, integrate, rk4


def oscillator(x: np.ndarray) -> np.ndarray:
    """x'' = -x: solution cos t from (1, 0)."""
    return np.stack([x[..., 1], -x[..., 0]], -1)


@pytest.mark.parametrize(("method", "order"), [(euler, 1), (heun, 2), (rk4, 4)])
def test_error_falls_with_the_declared_order(method: Integrator, order: int) -> None:
    start = np.array([1.0, 0.0])
    errors = [
        abs(integrate(method, oscillator, start, 2.0, steps)[0] - cos(2.0)) for steps in (64, 128)
    ]
    assert log2(errors[0] / errors[1]) == pytest.approx(order, abs=0.1)


@pytest.mark.parametrize(
    ("method", "kept"),
    # one step of x' = -x with dt = 0.5: the Taylor polynomials of exp(-0.5)
    [(euler, 0.5), (heun, 0.625), (rk4, 1 - 0.5 + 0.125 - 0.125 / 6 + 0.0625 / 24)],
)
def test_one_step_by_hand(method: Integrator, kept: float) -> None:
    assert method(lambda x: -x, 1.0, 0.5) == pytest.approx(kept, abs=1e-15)
    assert kept == pytest.approx(exp(-0.5), abs=0.11)


@pytest.mark.parametrize("method", [euler, heun, rk4])
def test_batches_are_independent_rows(method: Integrator) -> None:
    batch = np.array([[1.0, 0.0], [0.3, -2.0]])
    together = integrate(method, oscillator, batch, 1.0, 7)
    for row, alone in zip(batch, together, strict=True):
        np.testing.assert_array_equal(integrate(method, oscillator, row, 1.0, 7), alone)
