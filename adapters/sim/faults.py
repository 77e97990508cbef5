"""Faults as data: what is wrong with a signal, from when, for how long.

The seven kinds for measurements follow the failure injection vocabulary of flight stacks (off,
stuck, garbage, wrong, slow, delayed, intermittent); two more act on outputs (ignored, clamped).
A fault stands between the plant and the wire, so neither the plant nor the controller knows.
"""

import json
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import cos, exp, inf, isnan, log1p, nan, pi, sqrt
from types import MappingProxyType
from typing import Any

from numpy.typing import NDArray

from steadyhand.adapters.sim.numbers import decode, encode
from steadyhand.controllers.errors import ConfigError
from steadyhand.controllers.frames import Quality
from steadyhand.controllers.signals import SignalSet, Vector


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


class FaultInjector:
    """Applies faults to images and commands. Deterministic: same seed and times, same result.

    Several faults of one signal act in the order they were added.
    """

    def __init__(
        self,
        observations: SignalSet,
        outputs: SignalSet,
        faults: Iterable[SignalFault] = (),
        seed: int = 0,
    ) -> None:
        self.observations = observations
        self.outputs = outputs
        self.seed = seed
        self._measured: list[_Injection] = []
        self._driven: list[tuple[int, SignalFault]] = []
        self.faults: tuple[SignalFault, ...] = ()
        for fault in faults:
            self.add(fault)

    def add(self, fault: SignalFault) -> None:
        """Add one fault to those already there.

        Raises:
            SignalError: no such measurement or output (the kind decides which is meant).
        """
        if fault.kind in OUTPUT_KINDS:
            self._driven.append((self.outputs.index(fault.signal), fault))
        else:
            column = self.observations.index(fault.signal)
            self._measured.append(_Injection(fault, column, self.seed, len(self._measured)))
        self.faults = (*self.faults, fault)

    def clear(self) -> None:
        """Remove every fault."""
        self._measured.clear()
        self._driven.clear()
        self.faults = ()

    def corrupt(self, time_s: float, values: Vector, quality: NDArray[Any], age_s: Vector) -> None:
        """Apply the measurement faults of `time_s` in place to one image, each (n_y,)."""
        for injection in self._measured:
            injection.apply(time_s, values, quality, age_s)

    def actuate(self, time_s: float, command: Vector, applied: Vector) -> None:
        """Apply the output faults in place: `command` (n_u,) becomes what reaches the plant.

        Args:
            time_s: plant time.
            command: what the driver wants.
            applied: what the actuator did until now.
        """
        for column, fault in self._driven:
            if not fault.active(time_s):
                continue
            if fault.kind is FaultKind.IGNORED:
                command[column] = applied[column]
            else:
                low, high = fault.parameters["low"], fault.parameters["high"]
                command[column] = min(max(command[column], low), high)

    def clamp(self, time_s: float, column: int, value: float) -> float:
        """What a plant that clamps would store for output `column` when `value` is written."""
        for driven, fault in self._driven:
            if driven == column and fault.kind is FaultKind.CLAMPED and fault.active(time_s):
                value = min(max(value, fault.parameters["low"]), fault.parameters["high"])
        return value

    def memory(self) -> list[list[float | str]]:
        """What stuck, slow and delayed faults remember, for a saved state."""
        return [injection.memory() for injection in self._measured]

    def restore(self, memory: list[list[float | str]]) -> None:
        """Inverse of `memory`, for the same faults added in the same order.

        Raises:
            ConfigError: the memory belongs to other faults.
        """
        if len(memory) != len(self._measured):
            raise ConfigError(
                f"fault memory: {len(memory)} entries for {len(self._measured)} faults: "
                "start with the faults the state was saved with"
            )
        for injection, row in zip(self._measured, memory, strict=True):
            injection.restore(row)


class _Injection:
    """One measurement fault with its memory."""

    def __init__(self, fault: SignalFault, column: int, seed: int, stream: int) -> None:
        self.fault = fault
        self.column = column
        self.seed = seed
        self.stream = stream
        self._held = nan
        self._held_at = nan
        self._history: deque[tuple[float, float]] = deque()

    def memory(self) -> list[float | str]:
        flat = [number for sample in self._history for number in sample]
        return [encode(number) for number in (self._held, self._held_at, *flat)]

    def restore(self, row: list[float | str]) -> None:
        self._held, self._held_at, *flat = (decode(number) for number in row)
        self._history = deque(zip(flat[::2], flat[1::2], strict=True))

    def apply(self, time_s: float, values: Vector, quality: NDArray[Any], age_s: Vector) -> None:
        fault, i = self.fault, self.column
        value = float(values[i])
        if fault.kind is FaultKind.DELAYED and time_s < fault.start_s + fault.duration_s:
            self._remember(time_s, value)  # also before the start: the queue fills beforehand
        if not fault.active(time_s):
            return
        p = fault.parameters
        match fault.kind:
            case FaultKind.OFF:
                values[i], quality[i], age_s[i] = nan, Quality.BAD, inf
            case FaultKind.STUCK:
                if isnan(self._held_at):
                    self._held, self._held_at = value, time_s
                values[i] = self._held
            case FaultKind.GARBAGE:
                values[i] = p["value"]
            case FaultKind.WRONG:
                drift = p["drift_per_s"] * (time_s - fault.start_s)
                values[i] = p["scale"] * value + p["bias"] + drift
                if p["noise"] != 0.0:
                    values[i] += p["noise"] * normal(self.seed, self.stream, time_s)
            case FaultKind.SLOW:
                values[i] = self._lag(time_s, value, p["tau_s"])
            case FaultKind.DELAYED:
                then, values[i] = self._history[0]
                age_s[i] += (time_s - then) * (p["honest"] != 0.0)
            case FaultKind.INTERMITTENT:
                if uniform(self.seed, self.stream, time_s) < p["probability"]:
                    values[i], quality[i], age_s[i] = nan, Quality.BAD, inf

    def _lag(self, time_s: float, value: float, tau_s: float) -> float:
        if isnan(self._held_at):
            self._held = value
        else:
            # Exact first-order lag for an input held since the last sample.
            self._held += (1.0 - exp(-(time_s - self._held_at) / tau_s)) * (value - self._held)
        self._held_at = time_s
        return self._held

    def _remember(self, time_s: float, value: float) -> None:
        """Keep so much history that its first entry is the newest one at least `delay_s` old."""
        history, due = self._history, time_s - self.fault.parameters["delay_s"]
        if not history or history[-1][0] < time_s:
            history.append((time_s, value))
        while len(history) > 1 and history[1][0] <= due:
            history.popleft()


def normal(seed: int, stream: int, time_s: float) -> float:
    """A standard normal number that depends on its arguments only (Box and Muller, 1958)."""
    radius = sqrt(-2.0 * log1p(-uniform(seed, 2 * stream, time_s)))
    return radius * cos(2.0 * pi * uniform(seed ^ _MASK, 2 * stream + 1, time_s))


_MASK = (1 << 64) - 1


def uniform(seed: int, stream: int, time_s: float) -> float:
    """A number in [0, 1) that depends on its arguments only, so that a resumed run repeats it.

    Counter-based generator: two rounds of the SplitMix64 finaliser (Steele, Lea and Flood,
    "Fast splittable pseudorandom number generators", OOPSLA 2014). Time counts in milliseconds.
    """
    z = (seed * 0x9E3779B97F4A7C15 + stream * 0xD1B54A32D192ED03 + round(time_s * 1e3)) & _MASK
    for _ in range(2):
        z = (z + 0x9E3779B97F4A7C15) & _MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        z ^= z >> 31
    return (z >> 11) * 2.0**-53
