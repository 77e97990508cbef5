"""The gate from the bundle's monitor data and the plant's own lower bound.

What the bundle brings can only make the gate stricter than the plant asks, never laxer.
"""

from collections.abc import Mapping
from typing import Any

from steadyhand.controllers.errors import ModelError
from steadyhand.controllers.signals import SignalSet
from steadyhand.controllers.trust.care import Confidence, ConfidenceSettings, calibrator_from_dict
from steadyhand.controllers.trust.gate import (
    EvidenceMonitor,
    Gate,
    GateSettings,
    MonitorSettings,
    Use,
)
from steadyhand.controllers.trust.novelty import novelty_from_dict

HYSTERESIS = 0.05
"""Smallest distance of the two confidence thresholds."""


def gate_from_dict(
    data: Mapping[str, Any],
    observations: SignalSet,
    period_s: float,
    minimum_confidence: float = 0.0,
) -> Gate:
    """A gate for one bundle.

    Args:
        data: {"confidence": {"calibrator": {"kind" …}, "settings": {"theta_off", "theta_on",
            "time_constant_s", "window_s"}}, "novelty": output of `fit_novelty`, "gate": fields of
            `GateSettings`}. Only novelty may be missing.
        observations: order of the observation vector.
        period_s: control period in plant seconds.
        minimum_confidence: the plant's own lower bound on `theta_off`.

    Raises:
        ModelError: a missing, unknown or impossible entry; a bundle that wants to drive without
            an active confidence monitor.
        SignalError: an unknown feature.
        ConfigError: impossible gate settings.
    """
    unknown = sorted(set(data) - {"confidence", "novelty", "gate"})
    if unknown:
        raise ModelError(f"trust data: unknown {unknown}; there are confidence, novelty and gate")
    try:
        confidence = _confidence(data["confidence"], period_s, minimum_confidence)
        settings = GateSettings.from_dict(data["gate"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"trust data: {type(error).__name__}: {error}") from None
    row = settings.monitors.get(confidence.name, MonitorSettings())
    if settings.without_confidence or row.use is not Use.ACTIVE:
        raise ModelError("trust data: a bundle cannot switch its confidence monitor off")
    monitors: list[EvidenceMonitor] = [confidence]
    if data.get("novelty") is not None:
        monitors.append(novelty_from_dict(data["novelty"], observations))
    return Gate(settings, monitors)


def _confidence(data: Mapping[str, Any], period_s: float, minimum_confidence: float) -> Confidence:
    settings = dict(data["settings"])
    if settings["theta_off"] < minimum_confidence:
        settings["theta_off"] = minimum_confidence
        settings["theta_on"] = min(1.0, max(settings["theta_on"], minimum_confidence + HYSTERESIS))
    calibrator = calibrator_from_dict(data["calibrator"])
    return Confidence(calibrator, ConfidenceSettings(**settings), period_s)
