"""Constraints as data: what must hold, how fast it may change, how well it is known.

A row is declared in engineering units and used divided by `scale`, so that k = -1 is far away
from every limit and no penalty mixes units. From the declaration follow the sampled-data margin
nu and the bounds on the gains that keep the promise k <= 0 at *and between* the ticks.
"""

import hashlib
from dataclasses import astuple, dataclass, field
from enum import IntEnum
from math import inf, isfinite, sqrt
from typing import Self

import numpy as np
from numpy.typing import NDArray

from steadyhand.controllers.errors import SafetyError
from steadyhand.controllers.safety.arrays import Index, Mask
from steadyhand.controllers.signals import SignalSet, Vector


class Priority(IntEnum):
    """Who is hurt by a violation. When not all rows can hold, the first ones are kept."""

    PEOPLE = 0
    STRUCTURE = 1
    EQUIPMENT = 2
    COMFORT = 3
    COST = 4


@dataclass(frozen=True, slots=True)
class ConstraintRow:
    """One constraint k <= 0 (or k = 0), its units and what is not known about it.

    Every number is in `unit` and seconds; the constraint set divides them by `scale`.
    """

    name: str
    unit: str
    scale: float
    """Engineering range: k is divided by it."""
    priority: Priority = Priority.EQUIPMENT
    relative_degree: int = 1
    """1: the input appears in k'. 2: the row is given as k' + zeta k or in braking form."""
    curvature: float = 0.0
    """M: largest |k''| over one hold, unit/s^2."""
    rate_disturbance: float = 0.0
    """w: largest unmodelled |k'| that every tick resists, unit/s."""
    rate_disturbance_excess: float = 0.0
    """w': what may come on top of w; paid for by distance, not by effort, unit/s."""
    measurement_error: float = 0.0
    """e: largest error of the measured k, unit."""
    largest_rate: float = 0.0
    """V: largest possible |k'|, unit/s; used with `delay_s`."""
    delay_s: float = 0.0
    """tau_d: sensor, computation and actuator together, plant seconds."""
    equality: bool = False
    """k = 0 instead of k <= 0: solved exactly, in both directions, before all other rows."""

    @property
    def hard(self) -> bool:
        """Must the row hold, rather than be paid for?"""
        return self.priority <= Priority.EQUIPMENT

    def __post_init__(self) -> None:
        """Refuse impossible declarations.

        Raises:
            SafetyError: a number is negative, not finite, the relative degree is not 1 or 2, an
                equality is not hard, or a delay has no rate.
        """
        if not (isfinite(self.scale) and self.scale > 0):
            raise SafetyError(
                f"constraint {self.name}: scale={self.scale} {self.unit}: must be finite and > 0 "
                "(the engineering range of the row)"
            )
        if self.relative_degree not in (1, 2):
            raise SafetyError(
                f"constraint {self.name}: relative_degree={self.relative_degree}: must be 1 or 2; "
                "a row in which the input itself appears belongs to the bounds of the input set"
            )
        for label in (
            "curvature",
            "rate_disturbance",
            "rate_disturbance_excess",
            "measurement_error",
            "largest_rate",
            "delay_s",
        ):
            value = getattr(self, label)
            if not (isfinite(value) and value >= 0):
                raise SafetyError(
                    f"constraint {self.name}: {label}={value}: must be finite and >= 0"
                )
        if self.equality and not self.hard:
            raise SafetyError(
                f"constraint {self.name}: an equality of priority {self.priority.name}: "
                "equalities are exact, so they need priority EQUIPMENT or higher"
            )
        if self.delay_s > 0 and self.largest_rate == 0:
            raise SafetyError(
                f"constraint {self.name}: delay_s={self.delay_s} s without largest_rate: "
                f"give the largest possible rate in {self.unit}/s, or no margin covers the delay"
            )


@dataclass(frozen=True, slots=True)
class Gains:
    """How strongly the rows act. Bounded by the period, never tuned without it."""

    period_s: float
    diameter: float
    """D: diameter of the input set in the metric of the filter."""
    gamma: float
    """1/s: share of the distance that may be used up per second without resistance."""
    beta: float
    """1/s per metric unit: softness of a row per distance; 0 makes the rows hard (CBF-QP)."""
    recovery: float
    """lambda, 1/s: how fast a broken row is brought back."""
    kappa: float = 0.9
    """Largest share of the distance that one period may use up."""
    softness_floor: float = 0.0
    """a_min, 1/s per metric unit: keeps the filter continuous at the boundary; 0 is exact."""

    @classmethod
    def for_period(cls, period_s: float, diameter: float, kappa: float = 0.9) -> Self:
        """Starting values: half of kappa for gamma, half for beta, half a period to recover."""
        half = kappa / 2
        return cls(
            period_s=period_s,
            diameter=diameter,
            gamma=half / period_s,
            beta=half / (diameter * period_s),
            recovery=0.5 / period_s,
            kappa=kappa,
        )

    @classmethod
    def cbf_limit(cls, period_s: float, diameter: float, kappa: float = 0.9) -> Self:
        """Hard rows: the exact CBF-QP with the steepest gamma that the period allows."""
        return cls(
            period_s=period_s,
            diameter=diameter,
            gamma=kappa / period_s,
            beta=0.0,
            recovery=0.5 / period_s,
            kappa=kappa,
        )

    def __post_init__(self) -> None:
        """Refuse gains that void the promise that k <= 0 between the ticks.

        Raises:
            SafetyError: the message shows the arithmetic.
        """
        for label in ("period_s", "diameter", "recovery"):
            value = getattr(self, label)
            if not (isfinite(value) and value > 0):
                raise SafetyError(f"gains: {label}={value}: must be finite and > 0")
        for label in ("gamma", "beta", "softness_floor"):
            value = getattr(self, label)
            if not (isfinite(value) and value >= 0):
                raise SafetyError(f"gains: {label}={value}: must be finite and >= 0")
        if not 0 < self.kappa < 1:
            raise SafetyError(
                f"gains: kappa={self.kappa}: must be in (0, 1); it is the largest share of the "
                "distance to a limit that one period may use up"
            )
        used = (self.gamma + self.beta * self.diameter) * self.period_s
        if used > self.kappa * (1 + 1e-12):
            raise SafetyError(
                f"gains: (gamma + beta*D)*T = ({self.gamma:g} + {self.beta:g}*{self.diameter:g})"
                f"*{self.period_s:g} s = {used:.6g} > kappa = {self.kappa:g}: a row could be "
                "crossed within one period; lower gamma or beta, or shorten the period"
            )
        step = self.recovery * self.period_s
        if step > 1 + 1e-12:
            raise SafetyError(
                f"gains: recovery*T = {self.recovery:g}*{self.period_s:g} s = {step:.6g} > 1: "
                "recovery would overshoot; at most 1/T"
            )
        floor = self.softness_floor * self.diameter * self.period_s
        if floor > 1e-3 * (1 + 1e-12):
            raise SafetyError(
                f"gains: softness_floor*D*T = {self.softness_floor:g}*{self.diameter:g}"
                f"*{self.period_s:g} s = {floor:.6g} > 0.001 of the range: rows would stay soft "
                "at the limit"
            )


def metric(inputs: SignalSet) -> Vector:
    """R (n_u,): diagonal metric in which the whole range of every input has length 1."""
    weights: Vector = 1.0 / (inputs.high - inputs.low) ** 2
    return weights


def diameter(inputs: SignalSet) -> float:
    """D: diameter of the input box in `metric`; sqrt(n_u) by construction."""
    return sqrt(float(np.sum(metric(inputs) * (inputs.high - inputs.low) ** 2)))


@dataclass(frozen=True, slots=True, eq=False)
class ConstraintSet:
    """The rows as columns of numbers, divided by their scales."""

    rows: tuple[ConstraintRow, ...]
    names: tuple[str, ...] = field(init=False)
    rate_disturbance: Vector = field(init=False)
    """(m,) w, 1/s."""
    equality: Mask = field(init=False)
    hard: Mask = field(init=False)
    priority: Index = field(init=False)

    def __post_init__(self) -> None:
        """Fix the columns.

        Raises:
            SafetyError: there is no row, or two rows have the same name.
        """
        names = tuple(row.name for row in self.rows)
        if not names:
            raise SafetyError("a constraint set needs at least one row")
        doubled = sorted({name for name in names if names.count(name) > 1})
        if doubled:
            raise SafetyError(f"constraints named twice: {', '.join(doubled)}")
        columns: dict[str, NDArray[np.generic]] = {
            "rate_disturbance": np.array([row.rate_disturbance / row.scale for row in self.rows]),
            "equality": np.array([row.equality for row in self.rows]),
            "hard": np.array([row.hard for row in self.rows]),
            "priority": np.array([int(row.priority) for row in self.rows], dtype=np.int64),
        }
        object.__setattr__(self, "names", names)
        for label, column in columns.items():
            column.flags.writeable = False
            object.__setattr__(self, label, column)

    def __len__(self) -> int:
        return len(self.rows)

    def margins(self, gains: Gains) -> Vector:
        """Distances nu (m,) kept from the limits so that they hold between the samples.

        nu = (M T^2/2 + w' T + a_min D T)/(lambda T) + e + V tau_d, divided by the scale; zero for
        equalities, which have no safe side.
        """
        period = gains.period_s
        floor = gains.softness_floor * gains.diameter * period
        nu = np.zeros(len(self.rows))
        for i, row in enumerate(self.rows):
            if row.equality:
                continue
            hold = row.curvature * period**2 / 2 + row.rate_disturbance_excess * period
            known = row.measurement_error + row.largest_rate * row.delay_s
            nu[i] = (hold / row.scale + floor) / (gains.recovery * period) + known / row.scale
        return nu

    def residual_bounds(self, gains: Gains) -> Vector:
        """Largest |predicted - measured k'| (m,) that the declarations explain, 1/s."""
        period = gains.period_s
        bounds = [
            (
                row.rate_disturbance
                + row.rate_disturbance_excess
                + row.curvature * period / 2
                + 2 * row.measurement_error / period
            )
            / row.scale
            for row in self.rows
        ]
        return np.maximum(np.array(bounds), 1e-9 / period)

    def fingerprint(self) -> str:
        """SHA-256 over every declared number: the version of the safety case."""
        text = repr([astuple(row) for row in self.rows])
        return hashlib.sha256(text.encode()).hexdigest()


def braking_speed(distance: float, speed: float, authority: float, period_s: float) -> float:
    """Largest next speed towards a wall from which braking still stops in front of it.

    Args:
        distance: to the wall, >= 0, m.
        speed: towards the wall now, m/s; negative leaves the bound slack.
        authority: braking deceleration that is always available, > 0, m/s^2.
        period_s: time between two decisions, s.

    Returns:
        Allowed speed towards the wall at the end of this period, m/s; -inf if it cannot be met
        any more (braking as hard as possible is then the answer).
    """
    half = authority * period_s / 2
    root = half**2 + 2 * authority * (distance - speed * period_s / 2 - half * period_s / 4)
    return -half + sqrt(root) if root >= 0 else -inf
