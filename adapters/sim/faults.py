"""Faults as data: what is wrong with a signal, from when, for how long.

The seven kinds for measurements follow the failure injection vocabulary of flight stacks (off,
stuck, garbage, wrong, slow, delayed, intermittent); two more act on outputs (ignored, clamped).
A fault stands between the plant and the wire, so neither the plant nor the controller knows.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf, nan
from types import MappingProxyType
from typing import Any

from steadyhand.adapters.sim.numbers import decode, encode
from steadyhand.controllers.errors import ConfigError
from steadyhand.controllers.signals import SignalSet


class FaultKind(StrEnum):
    """What is wrong. The last two are for outputs, the others for measurements."""

    OFF = "off"
    STUCK = "stuck"
    GARBAGE = "garbage"
    WRONG = "wrong"
    SLOW = "slow"
    DELAYED = "delayed"
    INTERMITTENT = "intermittent"
    IGNORED = "ignored"
    CLAMPED = "clamped"


MEASUREMENT_KINDS = tuple(FaultKind)[:7]
OUTPUT_KINDS = tuple(FaultKind)[7:]

PARAMETERS: dict[FaultKind, dict[str, float]] = {
    FaultKind.OFF: {},
    FaultKind.STUCK: {},
    FaultKind.GARBAGE: {"value": nan},
    FaultKind.WRONG: {"scale": 1.0, "bias": 0.0, "drift_per_s": 0.0, "noise": 0.0},
    FaultKind.SLOW: {"tau_s": 3600.0},
    FaultKind.DELAYED: {"delay_s": 1800.0, "honest": 1.0},
    FaultKind.INTERMITTENT: {"probability": 0.5},
    FaultKind.IGNORED: {},
    FaultKind.CLAMPED: {"low": -inf, "high": inf},
}
"""Parameters of each kind with their defaults.

`drift_per_s` grows from the start of the window, `noise` is a standard deviation, both in the
signal's unit; `honest` = 0: a delayed sample looks new.
"""


@dataclass(frozen=True, slots=True)
class SignalFault:
    """One fault of one signal. Times are plant seconds since the start of the run."""

    signal: str
    kind: FaultKind
    start_s: float = 0.0
    duration_s: float = inf
    parameters: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Fill the defaults in and refuse what makes no sense.

        Raises:
            ConfigError: an unknown kind or parameter, or a time or parameter out of its range.
        """
        try:
            kind = FaultKind(self.kind)
        except ValueError:
            choices = ", ".join(FaultKind)
            raise ConfigError(
                f"fault of {self.signal}: kind {self.kind!r} unknown; there are: {choices}"
            ) from None
        known = PARAMETERS[kind]
        unknown = sorted(set(self.parameters) - set(known))
        if unknown:
            raise ConfigError(
                f"fault {kind} of {self.signal}: parameters {unknown} unknown; "
                f"there are: {sorted(known)}"
            )
        object.__setattr__(self, "kind", kind)
        filled = {name: float(self.parameters.get(name, known[name])) for name in known}
        object.__setattr__(self, "parameters", MappingProxyType(filled))
        self._check(filled)

    def _check(self, p: dict[str, float]) -> None:
        def refuse(name: str, value: float, bound: str) -> None:
            raise ConfigError(
                f"fault {self.kind} of {self.signal}: {name}={value}: must be {bound}"
            )

        if not 0.0 <= self.start_s < inf:
            refuse("start_s", self.start_s, "finite and >= 0")
        if not self.duration_s > 0.0:
            refuse("duration_s", self.duration_s, "> 0")
        for name in ("tau_s", "delay_s"):
            if name in p and not 0.0 < p[name] < inf:
                refuse(name, p[name], "finite and > 0")
        if "probability" in p and not 0.0 <= p["probability"] <= 1.0:
            refuse("probability", p["probability"], "in [0, 1]")
        if "low" in p and not p["low"] <= p["high"]:
            refuse("low", p["low"], f"<= high={p['high']}")

    def active(self, time_s: float) -> bool:
        """Is the fault there at `time_s`? The window is half-open: [start, start + duration)."""
        return self.start_s <= time_s < self.start_s + self.duration_s

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form; NaN and infinities become strings."""
        return {
            "signal": self.signal,
            "kind": str(self.kind),
            "start_s": encode(self.start_s),
            "duration_s": encode(self.duration_s),
            "parameters": {name: encode(value) for name, value in self.parameters.items()},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "SignalFault":
        """Inverse of `to_dict`.

        Raises:
            ConfigError: a field is missing, unknown or not a number.
        """
        unknown = sorted(set(data) - {"signal", "kind", "start_s", "duration_s", "parameters"})
        missing = sorted({"signal", "kind"} - set(data))
        if unknown or missing:
            raise ConfigError(f"fault: fields missing: {missing}, unknown: {unknown}")
        return cls(
            signal=str(data["signal"]),
            kind=data["kind"],
            start_s=decode(data.get("start_s", 0.0)),
            duration_s=decode(data.get("duration_s", inf)),
            parameters={k: decode(v) for k, v in dict(data.get("parameters", {})).items()},
        )


def faults_to_json(faults: Iterable[SignalFault]) -> str:
    """Strict JSON (no NaN tokens) of a list of faults."""
    return json.dumps([fault.to_dict() for fault in faults], allow_nan=False)


def faults_from_json(text: str) -> tuple[SignalFault, ...]:
    """Inverse of `faults_to_json`.

    Raises:
        ConfigError: the text is not a JSON list of faults.
    """
    try:
        rows = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"faults: not JSON: {error}") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ConfigError("faults: expected a JSON list of objects")
    return tuple(SignalFault.from_dict(row) for row in rows)


def every_fault(
    observations: SignalSet, outputs: SignalSet, start_s: float, duration_s: float
) -> tuple[SignalFault, ...]:
    """The whole table, generated: every kind for every measurement and every output.

    The parameters are chosen so that each fault shows: WRONG shifts by half the range, CLAMPED
    leaves the middle fifth.
    """
    table = []
    for signal in observations:
        span = signal.high - signal.low
        for kind in MEASUREMENT_KINDS:
            parameters = {"bias": 0.5 * span} if kind is FaultKind.WRONG else {}
            table.append(SignalFault(signal.name, kind, start_s, duration_s, parameters))
    for signal in outputs:
        middle, fifth = 0.5 * (signal.low + signal.high), 0.1 * (signal.high - signal.low)
        for kind in OUTPUT_KINDS:
            clamp = {"low": middle - fifth, "high": middle + fifth}
            parameters = clamp if kind is FaultKind.CLAMPED else {}
            table.append(SignalFault(signal.name, kind, start_s, duration_s, parameters))
    return tuple(table)
