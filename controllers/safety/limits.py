"""The last line before the wire: finite, box, rate; true of the number *as the wire stores it*.

Whole numbers count in steps: a limit or ramp of n steps is n steps, whatever n times the step
rounds to.

Plain and independent of everything before it. The rate is measured from the command that the
plant applies now, and the time since then is never believed below half or above twice a period.
"""

from contextlib import suppress
from dataclasses import dataclass
from math import isfinite, isnan, nan

import numpy as np
from numba import njit

from steadyhand.controllers.errors import SafetyError
from steadyhand.controllers.frames import Fault, Observation, Sent
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.signals import ROUNDING, Signal, SignalSet, Vector

FLOAT32 = -1.0
"""What the wire stores, as one number per output: 0, any 64-bit float; this, a 32-bit one; above 0,
a whole number of such steps."""


@dataclass(frozen=True, slots=True)
class Whole:
    """Stored as a whole number: of which step, and from where to where its type goes."""

    step: float
    """Output units per one."""
    low: float
    high: float


Wire = str | Whole
"""How one output is stored: "float64", "float32", or as whole numbers."""


def clamp_dt(dt_s: float, period_s: float) -> float:
    """Time step that limits may rely on: within [0.5, 2] periods; half a period if it is NaN."""
    least = 0.5 * period_s
    return least if isnan(dt_s) else min(max(float(dt_s), least), 2.0 * period_s)


@njit(cache=True)
def narrow_up(
    value: float,
) -> float:
    """Smallest 32-bit float >= value."""
    narrow = np.float32(value)
    if np.float64(narrow) < value:
        narrow = np.nextafter(narrow, np.float32(np.inf))
    return np.float64(narrow)


@njit(cache=True)
def narrow_down(
    value: float,
) -> float:
    """Largest 32-bit float <= value."""
    narrow = np.float32(value)
    if np.float64(narrow) > value:
        narrow = np.nextafter(narrow, np.float32(-np.inf))
    return np.float64(narrow)


@njit(cache=True)
def settle(
    value: float,
    grid: float,
) -> float:
    """The number nearest to `value` that the wire stores."""
    if grid == 0.0:
        return value
    return np.float64(np.float32(value)) if grid < 0.0 else np.rint(value / grid) * grid


@njit(cache=True)
def settle_up(
    value: float,
    grid: float,
) -> float:
    """Smallest number >= value that the wire stores, of whole steps but for `ROUNDING`."""
    if grid == 0.0:
        return value
    if grid < 0.0:
        return narrow_up(value)
    steps = value / grid
    near = np.rint(steps)
    return (near if steps - near <= ROUNDING * abs(steps) else np.ceil(steps)) * grid


@njit(cache=True)
def settle_down(
    value: float,
    grid: float,
) -> float:
    """Largest number <= value that the wire stores, of whole steps but for `ROUNDING`."""
    if grid == 0.0:
        return value
    if grid < 0.0:
        return narrow_down(value)
    steps = value / grid
    near = np.rint(steps)
    return (near if near - steps <= ROUNDING * abs(steps) else np.floor(steps)) * grid


@njit(cache=True)
def reachable(
    low: Vector,
    high: Vector,
    rate: Vector,
    last: Vector,
    dt_s: float,
    grid: Vector,
    lo: Vector,
    hi: Vector,
) -> None:
    """Interval that each output may take now: its box cut by its ramp.

    Args:
        low: (n,) lower bounds.
        high: (n,) upper bounds.
        rate: (n,) largest |change| per second; may be inf.
        last: (n,) command that the plant applies now; NaN: unknown, the box alone counts.
        dt_s: clamped time step.
        grid: (n,) what the wire stores (`FLOAT32`); the interval ends on such numbers, or, where
            the nearest one is beyond a bound by no more than `ROUNDING`, on the bound.
        lo: (n,) out.
        hi: (n,) out, never below `lo`.
    """
    for a in range(low.shape[0]):
        bottom = max(settle_up(low[a], grid[a]), low[a])
        top = min(settle_down(high[a], grid[a]), high[a])
        lo[a] = bottom
        hi[a] = top
        if np.isfinite(last[a]):
            anchor = min(max(last[a], bottom), top)
            step = rate[a] * dt_s
            down = anchor - step
            up = anchor + step
            if grid[a] > 0.0:
                # The difference is off by the rounding of what it is made of.
                slack = ROUNDING * (abs(anchor) + step)
                down -= slack
                up += slack
            if grid[a] != 0.0:
                # Where the ramp is finer than the wire: stay.
                stay = min(max(settle(anchor, grid[a]), bottom), top)
                down = min(settle_up(down, grid[a]), stay)
                up = max(settle_down(up, grid[a]), stay)
            lo[a] = max(bottom, down)
            hi[a] = min(top, up)


@njit(cache=True)
def cut(low: Vector, high: Vector, grid: Vector, lo: Vector, hi: Vector) -> int:
    """Cut the reachable box [lo, hi] by the bounds of this moment, in place.

    Where they do not meet, the nearest reachable point is all that is left; where the bounds of
    this moment contradict each other, the point between them.

    Args:
        low: (n,) lower bounds of this moment.
        high: (n,) upper bounds of this moment.
        grid: (n,) what the wire stores (`FLOAT32`).
        lo: (n,) lower end of the reachable box.
        hi: (n,) upper end of the reachable box, never below `lo`.

    Returns:
        First input where they do not meet, or -1.
    """
    missed = -1
    for a in range(lo.shape[0]):
        bottom = max(lo[a], settle_up(low[a], grid[a]))
        top = min(hi[a], settle_down(high[a], grid[a]))
        if bottom > top:
            # Beyond one end of what is reachable this is that end.
            middle = settle(0.5 * (low[a] + high[a]), grid[a])
            bottom = top = min(max(middle, lo[a]), hi[a])
            if missed < 0:
                missed = a
        lo[a] = bottom
        hi[a] = top
    return missed


@njit(cache=True)
def agree(u: Vector, v: Vector, tolerance: Vector) -> bool:
    """Is |u - v| within `tolerance` everywhere? NaN agrees with nothing."""
    good = True
    for a in range(u.shape[0]):
        good = good and abs(u[a] - v[a]) <= tolerance[a]
    return good


@njit(cache=True)
def confine(
    wanted: Vector,
    lo: Vector,
    hi: Vector,
    grid: Vector,
    out: Vector,
) -> int:
    """Clip (n,) `wanted` into [lo, hi] and round it to what the wire stores, never -0.0.

    Returns:
        Output that was clipped farthest, or -1 if none was; of whole steps, `ROUNDING` is nothing.
    """
    clipped = -1
    worst = 0.0
    for a in range(wanted.shape[0]):
        value = min(max(wanted[a], lo[a]), hi[a])
        excess = abs(wanted[a] - value)
        forgiven = ROUNDING * abs(value) if grid[a] > 0.0 else 0.0
        if excess > max(worst, forgiven):
            worst = excess
            clipped = a
        out[a] = min(max(settle(value, grid[a]), lo[a]), hi[a]) + 0.0
    return clipped


@njit(cache=True)
def all_finite(values: Vector) -> bool:
    """Is every number finite?"""
    good = True
    for a in range(values.shape[0]):
        good = good and np.isfinite(values[a])
    return good


@njit(cache=True)
def all_within(values: Vector, bound: float) -> bool:
    """Is every number at most `bound` in size? NaN is not."""
    good = True
    for a in range(values.shape[0]):
        good = good and abs(values[a]) <= bound
    return good


@njit(cache=True)
def _last_applied(
    applied: Vector,
    sent: Vector,
    written: bool,
    step: Vector,
    out: Vector,
) -> None:
    for a in range(applied.shape[0]):
        # A read-back that lags by less than a step would halve every ramp.
        lags = abs(applied[a] - sent[a]) <= step[a] or not np.isfinite(applied[a])
        out[a] = sent[a] if written and lags and np.isfinite(sent[a]) else applied[a]


def take(values: object, out: Vector) -> None:
    """Copy (n,) `values` into `out`; anything that is no vector of n numbers becomes NaN.

    The kernels see only buffers of our own: of the right type, so that nothing is compiled
    inside a tick, and of the right length, which compiled code does not check.
    """
    out.fill(nan)
    if getattr(values, "shape", None) == out.shape:
        with suppress(TypeError, ValueError):
            out[:] = values  # type: ignore[call-overload]


class Limits:
    """Hard limits of the outputs, applied to the number as the wire stores it."""

    def __init__(
        self, outputs: SignalSet, period_s: float, wire: tuple[Wire, ...] | None = None
    ) -> None:
        """Take the bounds from the outputs' declaration; nothing can widen them later.

        Args:
            outputs: bounds and rates; `rate_per_s` may be inf.
            period_s: control period, plant seconds.
            wire: how each output is stored; all float64 by default.

        Raises:
            SafetyError: a bound is NaN or inverted, a rate or the period is not positive, the
                wire type is unknown, no number of it lies within the bounds, or the ramp is finer
                than its steps.
        """
        wire = wire if wire is not None else ("float64",) * len(outputs)
        if not (isfinite(period_s) and period_s > 0):
            raise SafetyError(f"limits: period_s={period_s}: must be finite and > 0")
        if len(wire) != len(outputs):
            raise SafetyError(f"limits: {len(wire)} wire types for {len(outputs)} outputs")
        for signal, kind in zip(outputs, wire, strict=True):
            _check(signal.name, signal.low, signal.high, signal.rate_per_s, kind)
            _check_whole(signal, kind, period_s)
        self.outputs = outputs
        self.period_s = period_s
        self.grid: Vector = np.array([_grid(kind) for kind in wire])
        self.low = outputs.low.copy()
        self.high = outputs.high.copy()
        self.rate_per_s = outputs.rate_per_s.copy()
        narrow, self.quantum = self.grid < 0.0, self.grid.copy()
        widest = np.maximum(np.abs(self.low), np.abs(self.high))[narrow].astype(np.float32)
        with np.errstate(over="ignore"):  # there is no next one after the widest
            self.quantum[narrow] = np.spacing(widest)
        """(n,) largest step of what the wire stores; 0: none that counts."""
        self._lo = np.zeros(len(outputs))
        self._hi = np.zeros(len(outputs))
        self._last = np.zeros(len(outputs))
        self._applied, self._sent = np.zeros(len(outputs)), np.zeros(len(outputs))
        self._wanted, self._from = np.zeros(len(outputs)), np.zeros(len(outputs))
        self._step = self.rate_per_s * (2.0 * period_s)
        # Zero, or the bound next to it: where an output goes when nothing at all is known.
        self._rest = np.clip(np.zeros(len(outputs)), self.low, self.high)
        self.apply(self._rest, self._rest, period_s)
        self.last_applied(self._rest, self._rest, written=True)

    def reach(self, last: Vector, dt_s: float, lo: Vector, hi: Vector) -> None:
        """Write into `lo`, `hi` (n,) what each output may take, given the applied one."""
        dt_s = clamp_dt(dt_s, self.period_s)
        reachable(self.low, self.high, self.rate_per_s, last, dt_s, self.grid, lo, hi)

    def last_applied(self, applied: Vector, sent: Vector, written: bool) -> Vector:
        """Command (n,) that the plant applies now, from its read-back and what was sent.

        What was sent counts while the read-back agrees within the largest step: it may lag. When
        nothing was sent, or the plant does something else, the read-back counts. NaN: neither
        is known. The answer is overwritten by the next call.
        """
        take(applied, self._applied)
        take(sent, self._sent)
        _last_applied(self._applied, self._sent, bool(written), self._step, self._last)
        return self._last

    def last_of(self, observation: Observation, sent: Sent) -> Vector:
        """`last_applied` of two frames."""
        return self.last_applied(observation.applied, sent.action, sent.written)

    def apply(self, wanted: Vector, last: Vector, dt_s: float) -> tuple[Vector, tuple[Fault, ...]]:
        """Nearest command to `wanted` (n,) that may go to the wire; never raises.

        Args:
            wanted: command of the filter. If any number is not finite, `last` is held.
            last: command that the plant applies now.
            dt_s: time since it was sent; clamped to [0.5, 2] periods.

        Returns:
            A new (n,) command and what had to be changed.
        """
        out = np.empty(len(self._rest))
        faults: tuple[Fault, ...] = ()
        take(last, self._from)
        take(wanted, self._wanted)
        if not all_finite(self._wanted):
            faults = (self._nonfinite(self._wanted),)
            self._wanted[:] = np.where(np.isfinite(self._from), self._from, self._rest)
        self.reach(self._from, dt_s, self._lo, self._hi)
        clipped = confine(self._wanted, self._lo, self._hi, self.grid, out)
        if clipped >= 0:
            faults += (self._clipped(clipped, float(self._wanted[clipped]), float(out[clipped])),)
        return out, faults

    def _nonfinite(self, wanted: Vector) -> Fault:
        index = int(np.argmin(np.isfinite(wanted)))
        name = self.outputs.names[index]
        value = float(wanted[index])
        return Fault(
            ReasonCode.FILTER_NONFINITE, name, value, text=f"{name}={value}: last command held"
        )

    def _clipped(self, index: int, wanted: float, limit: float) -> Fault:
        name = self.outputs.names[index]
        return Fault(
            ReasonCode.LIMIT_CLIPPED,
            name,
            wanted,
            limit,
            text=f"{name}={wanted:g} cut to {limit:g}",
        )


def _grid(kind: Wire) -> float:
    if isinstance(kind, Whole):
        return kind.step
    return FLOAT32 if kind == "float32" else 0.0


def _check_whole(signal: Signal, kind: Wire, period_s: float) -> None:
    """Refuse whole numbers that cannot say what the output may be.

    Raises:
        SafetyError: see `Limits`.
    """
    if not isinstance(kind, Whole):
        return
    name, step = signal.name, kind.step
    if not (isfinite(step) and step > 0):
        raise SafetyError(f"limits of {name}: step={step}: must be finite and > 0")
    first, last = settle_up(signal.low, step), settle_down(signal.high, step)
    within = kind.low <= round(first / step) and round(last / step) <= kind.high
    if first >= last or not within:
        raise SafetyError(
            f"limits of {name}: [{signal.low:g}, {signal.high:g}] {signal.unit} in whole steps of "
            f"{step:g} do not fit the type ({kind.low:g} to {kind.high:g}): choose another wire "
            "type or scale"
        )
    if signal.rate_per_s * period_s * (1.0 + ROUNDING) < step:
        raise SafetyError(
            f"limits of {name}: the ramp of {signal.rate_per_s * period_s:g} {signal.unit} a "
            f"period is finer than a step of {step:g}, so it could never move: a finer scale"
        )


def _check(name: str, low: float, high: float, rate_per_s: float, wire: Wire) -> None:
    """Refuse limits that could not limit.

    Raises:
        SafetyError: see `Limits`.
    """
    if not (isfinite(low) and isfinite(high) and low < high):
        raise SafetyError(f"limits of {name}: low={low} high={high}: need finite low < high")
    if not rate_per_s > 0:
        raise SafetyError(f"limits of {name}: rate_per_s={rate_per_s}: must be > 0")
    if not isinstance(wire, Whole) and wire not in ("float64", "float32"):
        raise SafetyError(f"limits of {name}: wire type {wire!r}: float64 or float32")
    if wire == "float32":
        widest = float(np.finfo(np.float32).max)
        if low < -widest or high > widest or narrow_up(low) > narrow_down(high):
            raise SafetyError(
                f"limits of {name}: no 32-bit float lies within [{low}, {high}]: use float64"
            )
