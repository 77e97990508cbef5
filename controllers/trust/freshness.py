"""Is each measurement fit for control? Age, quality, stamp, range, rate, stuck, repeated image.

Everything is judged in plant time. One vectorised pass into buffers made at construction: nothing
is allocated while nothing is wrong.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, isfinite, nan

import numpy as np
from numpy.typing import NDArray

from steadyhand.controllers.errors import ConfigError
from steadyhand.controllers.frames import Fault, Observation, Quality
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.signals import SignalSet, Vector

# Most telling cause first: a sample that never came is not also told to be stale and not finite.
_CHECKS = (
    ReasonCode.OBS_MISSING,
    ReasonCode.SAMPLE_BAD,
    ReasonCode.SAMPLE_UNCERTAIN,
    ReasonCode.OBS_TS_INVALID,
    ReasonCode.OBS_STALE,
    ReasonCode.OBS_NONFINITE,
    ReasonCode.OBS_RANGE,
    ReasonCode.OBS_RANGE,
    ReasonCode.OBS_RATE,
    ReasonCode.OBS_STUCK,
)
_MISSING, _BAD, _UNCERTAIN, _STAMP, _STALE, _NONFINITE, _SENTINEL, _RANGE, _RATE, _STUCK = range(10)


@dataclass(frozen=True, slots=True)
class FreshnessSettings:
    """What the signals' own declarations do not say."""

    uncertain_ok: tuple[str, ...] = ()
    """Signals whose uncertain samples may be used; by default none may."""
    sentinels: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Values with which a sensor says that it has none (85, -127, 65535 …), per signal."""
    max_repeats: int = 0
    """So many repetitions of one image are normal: a link slower than the loop repeats itself."""
    future_s: float = 1.0
    """Stamps so far ahead of the plant's clock are forgiven."""


class Freshness:
    """Judges images; remembers the last acceptable sample of each signal."""

    def __init__(self, signals: SignalSet, settings: FreshnessSettings | None = None) -> None:
        """Fix the bounds as vectors.

        Raises:
            SignalError: the settings name an unknown signal.
            ConfigError: a sentinel or tolerance that is not a number, or a negative one.
        """
        settings = settings or FreshnessSettings()
        if settings.max_repeats < 0 or not settings.future_s >= 0.0:
            raise ConfigError(
                f"freshness: max_repeats={settings.max_repeats} future_s={settings.future_s}: "
                "both must be >= 0"
            )
        n = len(signals)
        self._signals = signals
        self._settings = settings
        self._uncertain_refused = np.ones(n, dtype=bool)
        for name in settings.uncertain_ok:
            self._uncertain_refused[signals.index(name)] = False
        self._sentinels = _sentinel_rows(signals, settings.sentinels)
        # A rate of inf times an elapsed time of 0 would be NaN: such signals get infinite slack.
        rated = np.isfinite(signals.rate_per_s)
        self._rate = np.where(rated, signals.rate_per_s, 0.0)
        self._slack = np.where(rated, 1e-9 * (signals.high - signals.low), inf)
        self._good = np.full(n, nan)
        self._good_stamp = np.full(n, nan)
        self._good_image = np.full(n, nan)
        self._seen = np.full(n, nan)
        self._moved = np.full(n, nan)
        self._bad = np.zeros((len(_CHECKS), n), dtype=bool)
        self._fine = np.empty(n, dtype=bool)
        self._mask = np.empty(n, dtype=bool)
        self._change = np.empty(n)
        self._allowed = np.empty(n)
        self._a, self._b = np.empty(n), np.empty(n)
        self._sequence: int | None = None
        self._repeats = 0
        self._time_s = -inf

    def lose_sight(self) -> None:
        """Nothing here depends on who drives."""

    def check(self, observation: Observation) -> tuple[Fault, ...]:
        """Everything that is wrong with this image, at most one fault per signal.

        Faults of the whole image (no new data, a clock that ran backwards) come first.
        """
        time_s, before_s = observation.time_s, self._time_s
        timed = isfinite(time_s) and time_s >= before_s
        whole = self._repeated(observation) if timed else _no_time(time_s, before_s)
        with np.errstate(all="ignore"):  # wire values may overflow a difference; it is still judged
            self._judge(observation, time_s if timed else nan)
            bad = bool(self._bad.any())
            if timed:
                self._accept(observation, bad)
            else:
                self._forget()
        self._time_s = time_s if isfinite(time_s) else -inf
        return (*whole, *self._faults(observation)) if bad else whole

    def _repeated(self, observation: Observation) -> tuple[Fault, ...]:
        if observation.sequence != self._sequence:
            self._sequence = observation.sequence
            self._repeats = 0
            return ()
        self._repeats += 1
        most = self._settings.max_repeats
        if self._repeats <= most:
            return ()
        text = f"image {observation.sequence} again"
        return (Fault(ReasonCode.OBS_REPEAT, "", float(self._repeats), float(most), text),)

    def _forget(self) -> None:
        """Changes and rates against another time scale mean nothing."""
        for memory in (self._good, self._good_stamp, self._good_image, self._seen):
            memory.fill(nan)

    def _judge(self, observation: Observation, time_s: float) -> None:
        """Fill `_bad` (checks, n_y)."""
        values, age = observation.values, observation.age_s
        signals, bad, mask, a = self._signals, self._bad, self._mask, self._a
        np.equal(age, inf, out=bad[_MISSING])
        np.greater_equal(observation.quality, Quality.BAD, out=bad[_BAD])
        np.equal(observation.quality, Quality.UNCERTAIN, out=mask)
        np.logical_and(mask, self._uncertain_refused, out=bad[_UNCERTAIN])
        np.greater_equal(age, -self._settings.future_s, out=mask)
        np.logical_not(mask, out=bad[_STAMP])  # NaN is no age either
        np.greater(age, signals.max_age_s, out=bad[_STALE])
        np.isfinite(values, out=mask)
        np.logical_not(mask, out=bad[_NONFINITE])
        if self._sentinels is not None:
            np.any(self._sentinels == values, axis=0, out=bad[_SENTINEL])
        np.less(values, signals.low, out=bad[_RANGE])
        np.greater(values, signals.high, out=mask)
        np.logical_or(bad[_RANGE], mask, out=bad[_RANGE])
        self._judge_rate(values, age, time_s)
        np.not_equal(values, self._seen, out=mask)
        np.copyto(self._moved, time_s, where=mask)
        np.copyto(self._seen, values)
        np.subtract(time_s, self._moved, out=a)
        np.greater_equal(a, signals.frozen_after_s, out=bad[_STUCK])

    def _accept(self, observation: Observation, some_bad: bool) -> None:
        """Remember the samples that are fine as the last acceptable ones."""
        fine: NDArray[np.bool_] | bool = True
        if some_bad:
            np.any(self._bad, axis=0, out=self._mask)
            fine = np.logical_not(self._mask, out=self._fine)
        np.copyto(self._good, observation.values, where=fine)
        np.subtract(observation.time_s, observation.age_s, out=self._b)
        np.copyto(self._good_stamp, self._b, where=fine)
        np.copyto(self._good_image, observation.time_s, where=fine)

    def _judge_rate(self, values: Vector, age: Vector, time_s: float) -> None:
        """|change| since the last acceptable sample against rate x elapsed time.

        The elapsed time is the longer of image time and sample time: a sample that arrives late
        covers more time than the image. A spike is one fault; a step is accepted once the plant
        could have moved that far.
        """
        a, b = self._a, self._b
        np.subtract(time_s, self._good_image, out=a)
        np.subtract(time_s, age, out=b)
        np.subtract(b, self._good_stamp, out=b)
        np.fmax(a, b, out=a)
        np.maximum(a, 0.0, out=a)
        np.multiply(a, self._rate, out=a)
        np.add(a, self._slack, out=self._allowed)
        np.subtract(values, self._good, out=self._change)
        np.abs(self._change, out=self._change)
        np.greater(self._change, self._allowed, out=self._bad[_RATE])

    def _faults(self, observation: Observation) -> list[Fault]:
        found = []
        forced = {f.signal for f in observation.faults if f.code is ReasonCode.TAG_FORCED}
        for i in np.flatnonzero(self._bad.any(axis=0)):
            check = int(self._bad[:, i].argmax())
            name, signal = self._signals.names[i], self._signals.signals[i]
            value, age = float(observation.values[i]), float(observation.age_s[i])
            limit, text = nan, signal.unit
            if check in (_MISSING, _STAMP):
                value, text = age, "age in s"
            elif check == _STALE:
                value, limit, text = age, signal.max_age_s, "age in s"
            elif check in (_BAD, _UNCERTAIN):
                value, text = float(observation.quality[i]), "quality"
            elif check == _SENTINEL:
                text = "the sensor's code for no value"
            elif check == _RANGE:
                limit = signal.low if value < signal.low else signal.high
            elif check == _RATE:
                value, limit = float(self._change[i]), float(self._allowed[i])
                text = f"change in {signal.unit}"
            elif check == _STUCK:
                value = observation.time_s - float(self._moved[i])
                limit, text = signal.frozen_after_s, "constant for s"
            code = _CHECKS[check]
            if check == _UNCERTAIN and name in forced:
                code, value, text = ReasonCode.TAG_FORCED, nan, ""
            found.append(Fault(code, name, value, limit, text))
        return found


def _no_time(time_s: float, before_s: float) -> tuple[Fault, ...]:
    text = "plant time ran backwards" if isfinite(time_s) else "plant time is not finite"
    return (Fault(ReasonCode.OBS_TS_INVALID, "", time_s, before_s, text),)


def _sentinel_rows(signals: SignalSet, sentinels: Mapping[str, tuple[float, ...]]) -> Vector | None:
    """(k, n_y) forbidden values, padded with NaN, which equals nothing; None if there are none."""
    depth = max((len(values) for values in sentinels.values()), default=0)
    if depth == 0:
        return None
    rows = np.full((depth, len(signals)), nan)
    for name, values in sentinels.items():
        if not all(isfinite(value) for value in values):
            raise ConfigError(f"freshness: sentinels of {name}: {values}: must be finite")
        rows[: len(values), signals.index(name)] = values
    return rows
