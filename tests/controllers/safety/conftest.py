"""Every test of the filter runs twice: on the compiled kernels and on their Python source."""

from collections.abc import Callable, Iterator
from math import inf
from typing import Any

import numpy as np
import pytest

from steadyhand.controllers.frames import Observation, Sent
from steadyhand.controllers.safety import (
    active_set,
    atacom,
    chain,
    limits,
    row_filter,
    rows,
    tangent,
)
from steadyhand.controllers.safety.constraint import ConstraintRow, ConstraintSet
from steadyhand.controllers.signals import Signal, SignalSet

KERNEL_MODULES = (active_set, rows, limits, tangent, row_filter, atacom, chain)


@pytest.fixture(autouse=True, params=["compiled", "source"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "source":
        if request.node.get_closest_marker("slow") is not None:
            pytest.skip("too long for the Python source")
        for module in KERNEL_MODULES:
            for name, value in list(vars(module).items()):
                if hasattr(value, "py_func"):
                    monkeypatch.setattr(module, name, value.py_func)
    yield request.param


@pytest.fixture
def many(kernels: str) -> Callable[[int], int]:
    """How many random cases: all of them compiled, a fortieth in Python."""
    compiled = hasattr(active_set.solve_dual, "py_func")
    return lambda count: count if compiled else max(count // 40, 5)


class TableModel:
    """A safety model whose every number a test may set."""

    def __init__(self, inputs: SignalSet, row_names: tuple[str, ...]) -> None:
        n, m = len(inputs), len(row_names)
        self.inputs, self.row_names = inputs, row_names
        self.k, self.J = -np.ones(m), np.zeros((m, n))
        self.trusted, self.untrusted = np.zeros(m), np.zeros(m)
        self.low, self.high = inputs.low.copy(), inputs.high.copy()
        self.fallback = np.zeros(n)
        self.error: Exception | None = None
        self.backup_error: Exception | None = None

    def linearise(
        self,
        observation: Observation,
        k: Any,
        J_G: Any,
        psi_trusted: Any,
        psi_untrusted: Any,
        low: Any,
        high: Any,
    ) -> None:
        if self.error is not None:
            raise self.error
        k[:], J_G[:] = self.k, self.J
        psi_trusted[:], psi_untrusted[:] = self.trusted, self.untrusted
        low[:], high[:] = self.low, self.high

    def backup(self, observation: Observation, out: Any) -> None:
        if self.backup_error is not None:
            raise self.backup_error
        out[:] = self.fallback


@pytest.fixture
def box() -> Callable[..., SignalSet]:
    """`box(n, rate)`: n inputs within [-1, 1] and their rate limit."""

    def make(n: int = 1, rate: float = inf, low: float = -1.0, high: float = 1.0) -> SignalSet:
        return SignalSet(tuple(Signal(f"u{i}", "kW", low, high, rate_per_s=rate) for i in range(n)))

    return make


@pytest.fixture
def rows_of() -> Callable[..., ConstraintSet]:
    """`rows_of(m, **numbers)`: m rows of scale 1 with the same numbers."""

    def make(m: int = 1, **numbers: Any) -> ConstraintSet:
        return ConstraintSet(
            tuple(ConstraintRow(f"row{i}", "m", **{"scale": 1.0, **numbers}) for i in range(m))
        )

    return make


@pytest.fixture
def table_model() -> type[TableModel]:
    return TableModel


@pytest.fixture
def image() -> Callable[..., Observation]:
    """`image(applied, time_s, sequence)`: an observation with one good sample."""

    def make(applied: Any, time_s: float = 1.0, sequence: int = 1, age: float = 0.0) -> Observation:
        return Observation(
            sequence,
            time_s,
            np.zeros(1),
            np.array([age]),
            np.zeros(1, dtype=np.int8),
            np.asarray(applied, dtype=np.float64),
        )

    return make


@pytest.fixture
def command() -> Callable[..., Sent]:
    """`command(action, time_s, written)`: what was sent before."""

    def make(action: Any, time_s: float = 0.0, written: bool = True, sequence: int = 0) -> Sent:
        return Sent(np.asarray(action, dtype=np.float64), sequence, time_s, written)

    return make
