"""The gate from the bundle's monitor data and the plant's patience.

What the bundle brings can only make the gate stricter than the plant asks, never laxer.
"""

from collections.abc import Mapping
from typing import Any

from steadyhand.controllers.errors import ModelError
from steadyhand.controllers.signals import SignalSet
from steadyhand.controllers.trust.care import Confidence, ConfidenceSettings, calibrator_from_dict
from steadyhand.controllers.trust.freshness import Freshness
from steadyhand.controllers.trust.gate import EvidenceMonitor, Gate, GateSettings
from steadyhand.controllers.trust.novelty import novelty_from_dict

HYSTERESIS = 0.05
"""Smallest distance of the two confidence thresholds."""


def monitors_from_dict(
    data: Mapping[str, Any],
    observations: SignalSet,
    period_s: float,
    minimum_confidence: float = 0.0,
) -> tuple[EvidenceMonitor, ...]:
    """Monitors of one bundle.

    Args:
        data: {"confidence": {"calibrator": {kind …}, "theta_off", "theta_on", "time_constant_s",
            "window_s"}, "novelty": output of `fit_novelty`}. Confidence is required: a policy that
            cannot tell how sure it is does not drive.
        observations: order of the observation vector.
        period_s: control period in plant seconds.
        minimum_confidence: the plant's own lower bound on `theta_off`.

    Raises:
        ModelError: a missing, unknown or impossible entry.
        SignalError: an unknown feature.
    """
    unknown = sorted(set(data) - {"confidence", "novelty"})
    if unknown or not isinstance(data.get("confidence"), Mapping):
        raise ModelError(
            f"trust data with {sorted(data)}: needs a table confidence and may have novelty"
        )
    settings = dict(data["confidence"])
    try:
        calibrator = calibrator_from_dict(settings.pop("calibrator"))
        theta_off = max(float(settings["theta_off"]), minimum_confidence)
        if theta_off > settings["theta_off"]:
            settings["theta_off"] = theta_off
            settings["theta_on"] = min(1.0, max(settings["theta_on"], theta_off + HYSTERESIS))
        confidence = Confidence(calibrator, ConfidenceSettings(**settings), period_s)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"trust data, confidence: {error}") from None
    if data.get("novelty") is None:
        return (confidence,)
    return confidence, novelty_from_dict(data["novelty"], observations)


def gate_from_dict(
    data: Mapping[str, Any],
    observations: SignalSet,
    period_s: float,
    settings: GateSettings,
    freshness: Freshness,
    minimum_confidence: float = 0.0,
) -> Gate:
    """A gate for one bundle; see `monitors_from_dict`.

    Raises:
        ModelError: a missing, unknown or impossible entry.
        SignalError: an unknown feature.
        ConfigError: the settings name a monitor that the bundle does not have.
    """
    return Gate(
        settings,
        freshness,
        monitors_from_dict(data, observations, period_s, minimum_confidence),
    )
