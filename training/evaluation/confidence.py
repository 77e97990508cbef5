"""Judge a confidence: split by episode, fit the map, choose thresholds, report under shift."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steadyhand.controllers.signals import Vector
from steadyhand.controllers.trust.care import Smoother, calibrator_from_dict
from steadyhand.controllers.trust.thresholds import (
    ThresholdChoice,
    effective_size,
    select_thresholds,
)
from steadyhand.training.evaluation.calibration import (
    auroc,
    brier,
    expected_calibration_error,
    isotonic,
    reliability,
    signed_gap,
    temperature,
)

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """Confidence logits and what came of them: T ticks of B episodes."""

    logit: Array
    """(T, B)."""
    event: Flags
    """(T, B) Y."""

    def episodes(self) -> list[Vector]:
        """Events as numbers, one vector per episode."""
        return [column.astype(np.float64) for column in self.event.T]


def effective(data: Judged) -> float:
    """Effective number of ticks, from the autocorrelation of the events."""
    return effective_size(data.episodes())


def fit_calibrator(data: Judged) -> dict[str, Any]:
    """Calibrator for the bundle, the simplest whose cross-fitted Brier score is within one error.

    Folds are by episode. Temperature keeps the ranking and has one number; isotonic may bend.
    """
    episodes = data.event.shape[1]
    folds = np.arange(episodes) % 2
    scores: dict[str, Array] = {}
    for kind in ("temperature", "isotonic"):
        losses = np.empty(episodes)
        for fold in (0, 1):
            train = Judged(data.logit[:, folds != fold], data.event[:, folds != fold])
            fitted = _fit(kind, train)
            for episode in np.flatnonzero(folds == fold):
                p = probabilities(fitted, data.logit[:, episode])
                losses[episode] = np.mean((p - data.event[:, episode]) ** 2)
        scores[kind] = losses
    gain = scores["temperature"] - scores["isotonic"]
    better = gain.mean() > gain.std(ddof=1) / np.sqrt(episodes)
    return _fit("isotonic" if better else "temperature", data)


def probabilities(calibrator: dict[str, Any], logit: Array) -> Array:
    """Calibrated probabilities, exactly as the edge computes them."""
    made = calibrator_from_dict(calibrator)
    flat = [made.probability(float(x), 0.0) for x in logit.ravel()]
    return np.array(flat).reshape(logit.shape)


def report(probability: Array, event: Flags, logit: Array) -> dict[str, Any]:
    """ECE, Brier and its parts, AUROC and the reliability diagram over (T, B)."""
    episodes = [column.astype(np.float64) for column in event.T]
    n_eff = effective_size(episodes)
    flat_p, flat_y = probability.ravel(), event.ravel()
    rows = reliability(flat_p, flat_y, effective_share=min(1.0, n_eff / flat_y.size))
    parts = brier(flat_p, flat_y)
    ranked = auroc(logit.ravel(), flat_y)
    return {
        "ticks": int(flat_y.size),
        "episodes": int(event.shape[1]),
        "effective_ticks": round(n_eff, 1),
        "share_going_well": float(flat_y.mean()),
        "mean_confidence": float(flat_p.mean()),
        "ece": expected_calibration_error(rows),
        "signed_gap": signed_gap(rows),
        "brier": parts.score,
        "brier_reliability": parts.reliability,
        "brier_resolution": parts.resolution,
        "brier_uncertainty": parts.uncertainty,
        "auroc": None if np.isnan(ranked) else ranked,
        "reliability_diagram": [
            {
                "count": row.count,
                "confidence": row.confidence,
                "accuracy": row.accuracy,
                "low": row.low,
                "high": row.high,
            }
            for row in rows
        ],
    }


def smoothed(
    probability: Array, period_s: float, time_constant_s: float, window_s: float
) -> list[Vector]:
    """Per episode, the score the gate compares, from the moment its window is full."""
    skip = int(np.ceil(window_s / period_s))
    scores = []
    for column in probability.T:
        smoother = Smoother(period_s, time_constant_s, window_s)
        scores.append(np.array([smoother.update(float(p)) for p in column])[skip:])
    return scores


def choose_thresholds(
    data: Judged,
    probability: Array,
    *,
    period_s: float,
    time_constant_s: float,
    window_s: float,
    ticks_per_day: int,
    epsilons: Sequence[float],
    availability: float,
) -> tuple[ThresholdChoice | None, float]:
    """Thresholds for the smallest epsilon that can be promised, and that epsilon.

    What can be promised depends on the data. A promise that leaves less than `availability` of the
    nominal ticks to the policy is passed over for the next, unless it is the last.
    """
    scores = smoothed(probability, period_s, time_constant_s, window_s)
    skip = data.event.shape[0] - len(scores[0])
    failures = [~column[skip:] for column in data.event.T]
    nominal = np.concatenate(scores)
    found: tuple[ThresholdChoice | None, float] = (None, epsilons[-1])
    for epsilon in epsilons:
        choice = select_thresholds(scores, failures, scores, ticks_per_day, epsilon=epsilon)
        if choice is None:
            continue
        found = (choice, epsilon)
        if float((nominal >= choice.theta_off).mean()) >= availability:
            break
    return found


def _fit(kind: str, data: Judged) -> dict[str, Any]:
    score, event = data.logit.ravel(), data.event.ravel()
    if kind == "temperature":
        return {"kind": "temperature", "temperature": temperature(score, event)}
    x, y = isotonic(score, event, effective=effective(data))
    return {"kind": "isotonic", "logits": x.tolist(), "probabilities": y.tolist()}
