"""Faults at work: what each kind does to an image or a command."""

from collections import deque
from collections.abc import Iterable
from math import exp, inf, isnan, nan
from typing import Any

from numpy.typing import NDArray

from steadyhand.adapters.sim.counter_random import normal, uniform
from steadyhand.adapters.sim.faults import OUTPUT_KINDS, FaultKind, SignalFault
from steadyhand.adapters.sim.numbers import decode, encode
from steadyhand.controllers.errors import ConfigError
from steadyhand.controllers.frames import Quality
from steadyhand.controllers.signals import SignalSet, Vector


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
