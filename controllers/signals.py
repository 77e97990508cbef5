"""Signals: named numbers with units and bounds, and their order in a vector."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf, isfinite, isnan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steadyhand.controllers.errors import SignalError

Vector = NDArray[np.float64]
ROUNDING = 4.0 * float(np.finfo(np.float64).eps)
"""Relative error that a few operations on decimal numbers leave: 0.3 is three steps of 0.1, though
3 * 0.1 > 0.3."""


@dataclass(frozen=True, slots=True)
class Signal:
    """One number on the wire.

    For a measurement `low` and `high` bound what is physically plausible; for an output they are
    the hard limits of the actuator. Times are plant seconds.
    """

    name: str
    unit: str
    low: float
    high: float
    meaning: str = ""
    rate_per_s: float = inf
    """Largest plausible (measurement) or allowed (output) |change| per second, in `unit`/s."""
    positive: str = ""
    """What a positive value means, where the sign could be mistaken."""
    max_age_s: float = inf
    """A sample older than this is stale."""
    frozen_after_s: float = inf
    """A measurement exactly constant for this long is stuck."""

    def __post_init__(self) -> None:
        """Refuse impossible declarations.

        Raises:
            SignalError: a bound is NaN or inverted, or a time or rate is not positive.
        """
        if not self.name.isidentifier():
            raise SignalError(f"signal name {self.name!r} is not an identifier: use a-z, 0-9, _")
        if not (isfinite(self.low) and isfinite(self.high) and self.low < self.high):
            raise SignalError(
                f"signal {self.name}: low={self.low} high={self.high} {self.unit}: "
                "both must be finite and low < high"
            )
        for label in ("rate_per_s", "max_age_s", "frozen_after_s"):
            value = getattr(self, label)
            if isnan(value) or value <= 0:
                raise SignalError(f"signal {self.name}: {label}={value}: must be > 0")


@dataclass(frozen=True, slots=True, eq=False)
class SignalSet:
    """An ordered set of signals: names → columns of a vector."""

    signals: tuple[Signal, ...]
    names: tuple[str, ...] = field(init=False)
    low: Vector = field(init=False)
    high: Vector = field(init=False)
    rate_per_s: Vector = field(init=False)
    max_age_s: Vector = field(init=False)
    frozen_after_s: Vector = field(init=False)
    _index: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        """Fix the columns.

        Raises:
            SignalError: two signals have the same name.
        """
        names = tuple(signal.name for signal in self.signals)
        doubled = sorted({name for name in names if names.count(name) > 1})
        if doubled:
            raise SignalError(f"signals named twice: {', '.join(doubled)}")
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "_index", {name: i for i, name in enumerate(names)})
        for label in ("low", "high", "rate_per_s", "max_age_s", "frozen_after_s"):
            column = np.array([getattr(signal, label) for signal in self.signals], dtype=np.float64)
            column.flags.writeable = False
            object.__setattr__(self, label, column)

    def __len__(self) -> int:
        return len(self.signals)

    def __iter__(self) -> Iterator[Signal]:
        return iter(self.signals)

    def index(self, name: str) -> int:
        """Column of `name`; call it at start-up, not in the tick.

        Raises:
            SignalError: there is no such signal; the message lists the choices.
        """
        try:
            return self._index[name]
        except KeyError:
            raise SignalError(f"no signal {name!r}; there are: {', '.join(self.names)}") from None

    def vector(self, values: Mapping[str, float]) -> Vector:
        """Vector from named values.

        Raises:
            SignalError: a name is missing or unknown.
        """
        missing = [name for name in self.names if name not in values]
        unknown = [name for name in values if name not in self._index]
        if missing or unknown:
            raise SignalError(f"signals missing: {missing}, unknown: {unknown}")
        return np.array([values[name] for name in self.names], dtype=np.float64)

    def mapping(self, vector: Any) -> dict[str, float]:  # noqa: ANN401  (any array-like row)
        """Named values of one vector, for people and records."""
        return {name: float(vector[i]) for i, name in enumerate(self.names)}
