"""Do the measurements fit each other? What every single check passes, physics may still refuse.

A gauge that reads 20 % low or sits 60 kWh off is fresh, finite, in range and moves. A plant says
which of its measurements are bound together (`Relation`: a balance, a characteristic); where they
are not, nobody knows which of them lies, so none of them is to be believed.

Source of the idea: parity relations, Chow & Willsky, IEEE TAC 29, 1984.
"""

from collections.abc import Sequence
from math import isfinite, nan
from typing import Protocol

from steadyhand.controllers.frames import Fault, LinkState, Observation, Quality
from steadyhand.controllers.protocols import ImageJudge
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.signals import SignalSet, Vector

_ASTRAY = frozenset(
    code for code in ReasonCode if code.startswith("WRITE_") and code != ReasonCode.WRITE_CLAMPED
)
"""Somebody else wrote, or it is not known what became of what we wrote."""


class Relation(Protocol):
    """One equation between measurements, with what it may be off by."""

    name: str
    unit: str
    signals: tuple[str, ...]
    """What it needs; the first is the one an alarm names."""
    n: int
    m: int
    """Alarm when `n` of the last `m` images broke it."""

    def residual(self, values: Vector, before: Vector | None, dt_s: float) -> tuple[float, float]:
        """(residual, bound) in `unit`, the residual signed; NaN where it cannot be told.

        Args:
            values: (n_y,) this image.
            before: (n_y,) the image before, where all `signals` were good; else None.
            dt_s: between the two, plant seconds.
        """
        ...


class _Watch:
    """One relation at work."""

    __slots__ = ("before", "before_s", "bits", "columns", "mask", "relation")

    def __init__(self, relation: Relation, signals: SignalSet) -> None:
        self.relation = relation
        self.columns = tuple(signals.index(name) for name in relation.signals)
        self.mask = (1 << relation.m) - 1
        self.bits = 0
        self.before: Vector | None = None
        self.before_s = nan

    def check(self, observation: Observation, bad: frozenset[str]) -> Fault | None:
        relation, values = self.relation, observation.values
        quality = observation.quality
        if any(quality[c] != Quality.GOOD or not isfinite(values[c]) for c in self.columns) or any(
            name in bad for name in relation.signals
        ):
            self.before = None  # a bad sample is another fault's business, and no yardstick
            return None
        dt_s = observation.time_s - self.before_s
        residual, bound = relation.residual(values, self.before, dt_s)
        self.before, self.before_s = values, observation.time_s
        broken = abs(residual) > bound  # NaN is not
        self.bits = ((self.bits << 1) | broken) & self.mask
        if not broken or self.bits.bit_count() < relation.n:
            return None
        text = f"{relation.name} is off by {residual:+.3g} {relation.unit}; one of these is wrong: "
        return Fault(
            ReasonCode.OBS_XCHECK,
            relation.signals[0],
            residual,
            bound,
            text + ", ".join(relation.signals),
        )


class CrossChecked:
    """A judge of images with the plant's relations behind it."""

    def __init__(
        self, inner: ImageJudge, signals: SignalSet, relations: Sequence[Relation]
    ) -> None:
        """Look the columns up.

        Raises:
            SignalError: a relation names an unknown signal.
        """
        self._inner = inner
        self._watches = tuple(_Watch(relation, signals) for relation in relations)
        self._sequence: int | None = None
        self._blind = False

    def lose_sight(self) -> None:
        """The next image has no yardstick in the one before."""
        self._inner.lose_sight()
        self._blind = True

    def check(self, observation: Observation) -> tuple[Fault, ...]:
        """The inner judge's faults, then at most one per relation; an image is judged once."""
        faults = self._inner.check(observation)
        # what comes back after a lost link may be the plant as it was some time ago; and where we
        # have no control, or a command went astray, another's may have moved it meanwhile
        down = observation.link is not LinkState.UP or not observation.granted
        astray = any(fault.code in _ASTRAY for fault in observation.faults)
        self._blind = self._blind or down or astray
        if observation.sequence == self._sequence:
            return faults
        self._sequence = observation.sequence
        if self._blind:
            self._blind = down
            for watch in self._watches:
                watch.before = None
        bad = frozenset(fault.signal for fault in faults)
        for watch in self._watches:
            fault = watch.check(observation, bad)
            if fault is not None:
                faults = (*faults, fault)
        return faults
