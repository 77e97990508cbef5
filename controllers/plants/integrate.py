"""One-step integrators of x' = f(x) with input and disturbance held over the step.

Each takes the right-hand side, the state and the step, and works for numpy and torch alike
because it uses only + and *. Orders of the global error: `euler` 1, `heun` 2, `rk4` 4
(Hairer, Nørsett, Wanner: Solving Ordinary Differential Equations I, II.1).
"""

from collections.abc import Callable
from typing import Protocol

from steadyhand.controllers.plants.plant import Array

Rates = Callable[[Array], Array]


class Integrator(Protocol):
    """One step of a fixed-step method."""

    def __call__(self, rates: Rates, x: Array, dt: float) -> Array:
        """State after `dt`; `rates` gives x' in units of x per unit of `dt`."""
        ...


def euler(rates: Rates, x: Array, dt: float) -> Array:
    """Explicit Euler, order 1, one evaluation."""
    return x + dt * rates(x)


def heun(rates: Rates, x: Array, dt: float) -> Array:
    """Heun's method (explicit trapezoid), order 2, two evaluations."""
    k1 = rates(x)
    k2 = rates(x + dt * k1)
    return x + 0.5 * dt * (k1 + k2)


def rk4(rates: Rates, x: Array, dt: float) -> Array:
    """Classic Runge-Kutta, order 4, four evaluations."""
    k1 = rates(x)
    k2 = rates(x + 0.5 * dt * k1)
    k3 = rates(x + 0.5 * dt * k2)
    k4 = rates(x + dt * k3)
    return x + dt / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)


def integrate(method: Integrator, rates: Rates, x: Array, duration: float, steps: int) -> Array:
    """State after `steps` equal steps of `method` over `duration`."""
    dt = duration / steps
    for _ in range(steps):
        x = method(rates, x, dt)
    return x
