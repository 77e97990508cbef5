"""Calibrated confidence: from the critic's own judgement to a probability that can be gated.

The policy's graph gives a logit C that the next horizon goes well and an error E that the critic
predicts for itself. A calibrator fitted on held-out days turns them into a probability; smoothing
makes it quick to fall and slow to rise: the smallest value, over a window, of an exponentially
weighted mean.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, exp, expm1, isfinite, isnan, nan, nextafter
from typing import Any, Protocol

import numpy as np

from steadyhand.controllers.errors import ModelError
from steadyhand.controllers.frames import Fault, Observation, Proposal
from steadyhand.controllers.reasons import ReasonCode

MAX_KNOTS = 64
_BELOW_ONE = nextafter(1.0, 0.0)


def sigmoid(x: float) -> float:
    """1 / (1 + e^-x) without overflow."""
    if x >= 0.0:
        return 1.0 / (1.0 + exp(-x))
    e = exp(x)
    return e / (1.0 + e)


class Calibrator(Protocol):
    """Evidence to probability; what is not finite gives NaN."""

    def probability(self, logit: float, error: float) -> float:
        """Probability that the horizon goes well, in [0, 1]."""
        ...


@dataclass(frozen=True, slots=True)
class Logistic:
    """Temperature or Platt scaling: sigmoid(bias + slope C + error_slope E).

    Temperature scaling is slope = 1/T with the other two zero (Guo et al. 2017). `slope` must not
    be negative and `error_slope` not positive: more confidence never lowers the probability and
    more expected error never raises it.
    """

    slope: float = 1.0
    bias: float = 0.0
    error_slope: float = 0.0

    def __post_init__(self) -> None:
        """Refuse numbers that turn confidence upside down.

        Raises:
            ModelError: a coefficient is not finite or has the wrong sign.
        """
        if not all(isfinite(x) for x in (self.slope, self.bias, self.error_slope)):
            raise ModelError(f"calibrator {self}: every coefficient must be finite")
        if self.slope < 0.0 or self.error_slope > 0.0:
            raise ModelError(f"calibrator {self}: slope must be >= 0, error_slope <= 0")

    def probability(self, logit: float, error: float) -> float:
        """Sigmoid of the linear score; the error is left out where its slope is zero."""
        x = self.bias + self.slope * logit
        if self.error_slope != 0.0:
            x += self.error_slope * error
        return sigmoid(x) if isfinite(x) else nan


class Isotonic:
    """Isotonic regression as at most 64 knots over C, linear between, constant outside."""

    def __init__(self, logits: Sequence[float], probabilities: Sequence[float]) -> None:
        """Check the knots.

        Raises:
            ModelError: too few or too many knots, a number not finite, logits not increasing,
                or probabilities that fall or leave [0, 1].
        """
        x, y = np.array(logits, dtype=np.float64), np.array(probabilities, dtype=np.float64)
        if x.shape != y.shape or x.ndim != 1 or not 2 <= len(x) <= MAX_KNOTS:
            raise ModelError(
                f"isotonic calibrator with {x.shape} logits and {y.shape} probabilities: "
                f"needs equally many, 2 to {MAX_KNOTS}"
            )
        if not (np.isfinite(x).all() and np.isfinite(y).all()):
            raise ModelError("isotonic calibrator: every knot must be finite")
        if (np.diff(x) <= 0.0).any() or (np.diff(y) < 0.0).any():
            raise ModelError("isotonic calibrator: logits must increase, probabilities not fall")
        if y[0] < 0.0 or y[-1] > 1.0:
            raise ModelError(f"isotonic calibrator: probabilities {y[0]}..{y[-1]} leave [0, 1]")
        self._x, self._y = x, y

    def probability(self, logit: float, error: float) -> float:
        """Interpolated probability."""
        return float(np.interp(logit, self._x, self._y)) if isfinite(logit) else nan


def calibrator_from_dict(data: Mapping[str, Any]) -> Calibrator:
    """Calibrator from the bundle's data.

    `kind` is "temperature" (temperature), "platt" (slope, bias, error_slope) or "isotonic"
    (logits, probabilities).

    Raises:
        ModelError: unknown kind, a missing, unknown or impossible number.
    """
    rest = {name: value for name, value in data.items() if name != "kind"}
    kind = data.get("kind")
    try:
        if kind == "temperature":
            temperature = float(rest.pop("temperature"))
            if not temperature > 0.0:
                raise ModelError(f"calibrator: temperature={temperature}: must be > 0")
            made: Calibrator = Logistic(slope=1.0 / temperature, **rest)
        elif kind == "platt":
            made = Logistic(**rest)
        elif kind == "isotonic":
            made = Isotonic(**rest)
        else:
            raise ModelError(f"calibrator kind {kind!r}: there are temperature, platt and isotonic")
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"calibrator {kind}: {error}") from None
    return made


class Smoother:
    """Minimum over `window` ticks of an exponentially weighted mean: falls fast, rises slowly."""

    def __init__(self, period_s: float, time_constant_s: float, window_s: float) -> None:
        """Fix the coefficients.

        Raises:
            ModelError: a time is not finite, negative, or the period is not positive.
        """
        times = (period_s, time_constant_s, window_s)
        if not all(isfinite(x) and x >= 0.0 for x in times) or period_s == 0.0:
            raise ModelError(
                f"confidence: period_s={period_s} time_constant_s={time_constant_s} "
                f"window_s={window_s}: must be finite and >= 0, the period > 0"
            )
        self._gain = 1.0 if time_constant_s == 0.0 else -expm1(-period_s / time_constant_s)
        self._ring = np.zeros(max(1, ceil(window_s / period_s)))
        self._next = 0
        self._mean = nan

    def update(self, probability: float) -> float:
        """Take one probability, give the smoothed one. What cannot be told counts as 0.

        The window starts full of zeros: confidence has to be earned, not assumed.
        """
        p = 0.0 if isnan(probability) else probability
        mean = p if isnan(self._mean) else self._mean + self._gain * (p - self._mean)
        self._mean = mean
        self._ring[self._next] = mean
        self._next = (self._next + 1) % len(self._ring)
        return float(self._ring.min())


@dataclass(frozen=True, slots=True)
class ConfidenceSettings:
    """Thresholds on the smoothed probability s, and its smoothing. From validation data."""

    theta_off: float
    """Below it the monitor alarms."""
    theta_on: float
    """Trust comes back only above it."""
    time_constant_s: float = 0.0
    window_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse thresholds without hysteresis.

        Raises:
            ModelError: unless 0 < theta_off < theta_on <= 1.
        """
        if not 0.0 < self.theta_off < self.theta_on <= 1.0:
            raise ModelError(
                f"confidence: theta_off={self.theta_off} theta_on={self.theta_on}: "
                "must be 0 < theta_off < theta_on <= 1"
            )


class Confidence:
    """Monitor of the gate: alarms when the smoothed confidence is below `theta_off`."""

    name = "confidence"
    code = ReasonCode.GATE_CONFIDENCE
    broken = ""

    def __init__(
        self, calibrator: Calibrator, settings: ConfidenceSettings, period_s: float
    ) -> None:
        self.settings = settings
        self._calibrator = calibrator
        self._smoother = Smoother(period_s, settings.time_constant_s, settings.window_s)
        self.probability = 0.0
        """Calibrated probability of the last proposal; NaN when it could not be told."""
        self.smoothed = 0.0
        """What is compared with the thresholds."""
        self.quiet_below = (1.0 - settings.theta_on) / (1.0 - settings.theta_off)

    def score(self, observation: Observation, proposal: Proposal) -> float:
        """(1 - s) / (1 - theta_off), below 1 from `theta_off` on; NaN when C is not a number."""
        self.probability = self._calibrator.probability(proposal.confidence_logit, proposal.error)
        self.smoothed = self._smoother.update(self.probability)
        if isnan(self.probability):
            return nan
        score = (1.0 - self.smoothed) / (1.0 - self.settings.theta_off)
        # The accepted set of validation is s >= theta_off: rounding must not trip on its edge.
        return min(score, _BELOW_ONE) if self.smoothed >= self.settings.theta_off else score

    def fault(self) -> Fault:
        """The last alarm in words and numbers."""
        return Fault(
            self.code, "", self.smoothed, self.settings.theta_off, "smoothed confidence too low"
        )
