"""Is the plant where the policy was trained? Mahalanobis distance and range of chosen features.

Fitted offline on training observations; the threshold is a quantile over separate calibration
days. Source of the distance: Mahalanobis (1936); of its use as a detector: Lee et al. (2018).
It sees where the plant is, not how it moves: delays and changed dynamics need other evidence.
"""

from collections.abc import Mapping, Sequence
from math import isnan, nan, sqrt
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from steadyhand.controllers.errors import ModelError
from steadyhand.controllers.frames import Fault, Observation, Proposal
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.signals import SignalSet, Vector


@njit(cache=True, error_model="numpy")
def _distances(
    values: Vector,
    columns: NDArray[np.intp],
    mean: Vector,
    middle: Vector,
    half: Vector,
    reach: Vector,
    whiten: NDArray[np.float64],
    x: Vector,
    z: Vector,
    excess: Vector,
) -> tuple[float, float]:
    """(Mahalanobis distance, largest range excess); NaN where a feature is NaN.

    One kernel instead of ten array operations: they would cost as much as a small policy. Leaves
    the centred features in `x`, the whitened ones in `z`, and each one's `excess`, all (n_f,).
    """
    n = x.shape[0]
    worst = -np.inf
    for i in range(n):
        value = values[columns[i]]
        excess[i] = (abs(value - middle[i]) - half[i]) / reach[i]
        if excess[i] > worst or isnan(excess[i]):  # a NaN gets in, and stays
            worst = excess[i]
        x[i] = value - mean[i]
    total = 0.0
    for i in range(n):
        z[i] = 0.0
        for j in range(n):
            z[i] += whiten[i, j] * x[j]
        total += z[i] * z[i]
    return sqrt(total), worst


class Novelty:
    """Monitor of the gate: alarms when the observation is unlike the training data.

    score = max(d / threshold, range excess), where d is the Mahalanobis distance and the range
    excess reaches 1 when one feature leaves its training range by `range_margin` of that range.
    """

    name = "novelty"
    code = ReasonCode.GATE_OOD
    quiet_below = 0.9

    def __init__(
        self,
        signals: SignalSet,
        features: Sequence[str],
        mean: Sequence[float],
        cholesky: Sequence[Sequence[float]],
        threshold: float,
        low: Sequence[float],
        high: Sequence[float],
        range_margin: float = 0.1,
    ) -> None:
        """Prepare and compile one kernel call per tick.

        Statistics that cannot work (no spread, not finite) do not stop the runtime: the monitor
        says that it is broken in every score, and `broken` tells why.

        Args:
            signals: order of the observation.
            features: (n_f,) names of the observed signals that are watched.
            mean: (n_f,) training mean.
            cholesky: (n_f, n_f) lower Cholesky factor of the training covariance.
            threshold: distance that alarms.
            low: (n_f,) smallest training value.
            high: (n_f,) largest training value.
            range_margin: share of the training range that may be exceeded.

        Raises:
            SignalError: an unknown feature.
            ModelError: shapes that do not fit together.
        """
        n = len(features)
        self._columns = np.array([signals.index(name) for name in features], dtype=np.intp)
        self._features = tuple(features)
        self._mean = np.array(mean, dtype=np.float64)
        factor = np.array(cholesky, dtype=np.float64)
        lower, upper = np.array(low, dtype=np.float64), np.array(high, dtype=np.float64)
        shapes = {self._mean.shape, lower.shape, upper.shape, factor.shape[:1], factor.shape[1:]}
        if n == 0 or shapes != {(n,)}:
            raise ModelError(f"novelty: {n} features, but data of shapes {sorted(shapes)}")
        half = 0.5 * (upper - lower)
        self.broken = _why_broken(features, self._mean, factor, half, threshold, range_margin)
        """Why nothing can be told, or ""."""
        self._threshold = threshold
        self._whiten: NDArray[np.float64] = np.full((n, n), nan)
        if not self.broken:
            self._whiten[:] = np.linalg.inv(factor)
        self._middle = 0.5 * (upper + lower)
        self._half, self._reach = half, 2.0 * range_margin * half
        self._x, self._z, self._excess = np.empty(n), np.empty(n), np.empty(n)
        self.distance = nan
        """Mahalanobis distance of the last observation."""
        self._values = np.zeros(len(signals))
        self._measure(self._values)

    def score(self, observation: Observation, proposal: Proposal) -> float:
        """Largest of the two scores.

        NaN when the monitor is broken, a feature is NaN, or the image has not as many columns as
        the signals.
        """
        if self.broken or observation.values.shape != self._values.shape:
            return nan
        self.distance, beyond = self._measure(observation.values)
        share = self.distance / self._threshold
        if isnan(share) or isnan(beyond):
            return nan
        return max(share, beyond, 0.0)

    def _measure(self, values: Vector) -> tuple[float, float]:
        self._values[:] = values  # the kernel is compiled for this layout and checks no index
        measured: tuple[float, float] = _distances(
            *(self._values, self._columns, self._mean, self._middle, self._half, self._reach),
            *(self._whiten, self._x, self._z, self._excess),
        )
        return measured

    def fault(self) -> Fault:
        """The last alarm, naming the feature that did most of it."""
        worst = int(self._excess.argmax())
        share = self.distance / self._threshold
        if self._excess[worst] >= share:
            limit = self._middle[worst] + np.copysign(
                self._half[worst] + self._reach[worst],
                self._x[worst] + self._mean[worst] - self._middle[worst],
            )
            value = float(self._x[worst] + self._mean[worst])
            return Fault(
                self.code, self._features[worst], value, float(limit), "outside the training range"
            )
        top = int((self._x * (self._whiten.T @ self._z)).argmax())
        text = "distance from the training data"
        return Fault(self.code, self._features[top], self.distance, self._threshold, text)


def _why_broken(
    features: Sequence[str],
    mean: Vector,
    factor: NDArray[np.float64],
    half: Vector,
    threshold: float,
    range_margin: float,
) -> str:
    spread = np.diag(factor)
    if not all(np.isfinite(part).all() for part in (mean, factor, half, threshold, range_margin)):
        return "statistics that are not finite"
    flat = [name for name, s, h in zip(features, spread, half, strict=True) if s <= 0.0 or h <= 0.0]
    if flat:
        return f"no spread in the training data of {', '.join(flat)}"
    if threshold <= 0.0 or range_margin <= 0.0:
        return f"threshold {threshold} and range margin {range_margin} must be > 0"
    return ""


def fit_novelty(
    training: NDArray[np.float64],
    calibration: NDArray[np.float64],
    features: Sequence[str],
    quantile: float = 0.999,
    shrinkage: float = 1e-3,
    range_margin: float = 0.1,
) -> dict[str, Any]:
    """Statistics for `Novelty`, as plain data for the bundle.

    Args:
        training: (n, n_f) observations the policy was trained on.
        calibration: (m, n_f) from other days than the training data.
        features: (n_f,) their names.
        quantile: of the calibration distances; it becomes the threshold.
        shrinkage: the covariance is pulled this far towards its diagonal, so that near-copies of a
            feature do not make the distance explode.
        range_margin: see `Novelty`.

    Raises:
        ModelError: shapes that do not fit, too few rows, or numbers that are not finite.
    """
    n = len(features)
    if training.shape[1:] != (n,) or calibration.shape[1:] != (n,):
        raise ModelError(
            f"novelty: {n} features, data of shapes {training.shape} and {calibration.shape}"
        )
    if len(training) <= n + 1 or len(calibration) < 1:
        raise ModelError(
            f"novelty: {len(training)} training and {len(calibration)} calibration rows: "
            f"needs more than {n + 1} and at least 1"
        )
    if not (np.isfinite(training).all() and np.isfinite(calibration).all()):
        raise ModelError("novelty: every row must be finite")
    mean = training.mean(axis=0)
    covariance = np.atleast_2d(np.cov(training, rowvar=False))
    covariance = (1.0 - shrinkage) * covariance + shrinkage * np.diag(np.diag(covariance))
    flat = np.diag(covariance) <= 0.0
    if flat.any():
        names = [name for name, none in zip(features, flat, strict=True) if none]
        raise ModelError(f"novelty: no spread in {', '.join(names)}: leave these features out")
    factor = np.linalg.cholesky(covariance)
    z = np.linalg.solve(factor, (calibration - mean).T)
    distance = np.sqrt((z * z).sum(axis=0))
    return {
        "features": list(features),
        "mean": mean.tolist(),
        "cholesky": factor.tolist(),
        "threshold": float(np.quantile(distance, quantile)),
        "low": training.min(axis=0).tolist(),
        "high": training.max(axis=0).tolist(),
        "range_margin": range_margin,
    }


def novelty_from_dict(data: Mapping[str, Any], signals: SignalSet) -> Novelty:
    """Novelty monitor from the bundle's data (the output of `fit_novelty`).

    Raises:
        ModelError: a missing, unknown or unusable entry.
        SignalError: an unknown feature.
    """
    try:
        return Novelty(signals, **data)
    except (TypeError, ValueError) as error:
        raise ModelError(f"novelty: {error}") from None
