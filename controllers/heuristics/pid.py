"""PID control of one measurement by one output, in velocity form.

    e = r - y
    du = K [ (b r_k - y_k) - (b r_{k-1} - y_{k-1})  +  h/Ti e_k  -  (d_k - d_{k-1}) ]
    d_k = Td/(Td + N h) d_{k-1} + N Td/(Td + N h) (y_k - y_{k-1})
    u_k = clip(u_applied + du)

(Åström, Hägglund: Advanced PID Control, 2006, sections 3.3 to 3.6: set-point weight b, filtered
derivative of the measurement, backward differences.) The command starts from what is *applied*, so
the integrator cannot wind up behind a limit, a filter or another driver, and taking over has no
bump: the state is the actuator's own position.
"""

from dataclasses import dataclass
from math import isfinite, nan

import numpy as np

from steadyhand.controllers.errors import ConfigError
from steadyhand.controllers.frames import Observation, Quality, Sent
from steadyhand.controllers.signals import SignalSet, Vector


@dataclass(frozen=True, slots=True)
class PidSettings:
    """Tuning. Times in seconds, gain in output units per measurement unit."""

    gain: float
    """K; negative when more output lowers the measurement."""
    integral_s: float
    """Ti."""
    period_s: float
    """h, time between two calls of `act`."""
    derivative_s: float = 0.0
    """Td; 0 is PI."""
    setpoint_weight: float = 1.0
    """b: share of a set-point step that acts at once."""
    derivative_filter: float = 10.0
    """N: the derivative is filtered with Td/N."""

    def __post_init__(self) -> None:
        """Refuse a tuning that is none.

        Raises:
            ConfigError: names the number.
        """
        numbers = {
            "integral_s": self.integral_s,
            "period_s": self.period_s,
            "derivative_filter": self.derivative_filter,
        }
        for label, value in numbers.items():
            if not (isfinite(value) and value > 0.0):
                raise ConfigError(f"pid: {label}={value}: must be finite and > 0")
        if not (isfinite(self.gain) and self.gain != 0.0):
            raise ConfigError(f"pid: gain={self.gain}: must be finite and not 0")
        if not (isfinite(self.derivative_s) and self.derivative_s >= 0.0):
            raise ConfigError(f"pid: derivative_s={self.derivative_s}: must be finite and >= 0")
        if not 0.0 <= self.setpoint_weight <= 1.0:
            raise ConfigError(f"pid: setpoint_weight={self.setpoint_weight}: must be in 0 to 1")


class Pid:
    """Holds one measurement at a set-point with one output; other outputs stay as applied.

    Args:
        settings: tuning.
        observations: finds the measurement's column.
        outputs: finds the output's column and bounds.
        measurement: name of the controlled measurement.
        output: name of the manipulated output.
        setpoint: target, in the measurement's unit.
    """

    def __init__(
        self,
        settings: PidSettings,
        observations: SignalSet,
        outputs: SignalSet,
        measurement: str,
        output: str,
        setpoint: float,
    ) -> None:
        self.settings = settings
        self.setpoint = setpoint
        self._column = observations.index(measurement)
        self._output = outputs.index(output)
        self._low, self._high = outputs.low, outputs.high
        self._last: Vector = np.clip(np.zeros(len(outputs)), outputs.low, outputs.high)
        self._measured: float | None = None
        self._target = setpoint
        self._slope = 0.0
        """Filtered derivative action d, in measurement units."""

    def act(self, observation: Observation) -> Vector:
        """Command (n_u,); held where the measurement is not finite, or was found to be bad."""
        command = self._applied(observation)
        y = self._seen(observation)
        if not isfinite(y):
            self._measured = None  # a gap is no step: start the differences again after it
            self._slope = 0.0
            return command
        command[self._output] += self._increment(y)
        return np.clip(command, self._low, self._high)

    def track(self, observation: Observation, sent: Sent) -> None:
        """Follow the measurement and what was written while something else drives."""
        if sent.written:
            self._last = np.where(np.isfinite(sent.action), sent.action, self._last)
        y = self._seen(observation)
        if isfinite(y):
            self._increment(y)

    def _seen(self, observation: Observation) -> float:
        """The measurement; NaN where its value is not to be looked at."""
        bad = observation.quality[self._column] >= Quality.BAD
        return nan if bad else float(observation.values[self._column])

    def _increment(self, y: float) -> float:
        """du; moves the differences one period on."""
        s = self.settings
        before = y if self._measured is None else self._measured
        lag = s.derivative_s + s.derivative_filter * s.period_s
        slope = (s.derivative_s * self._slope
                 + s.derivative_filter * s.derivative_s * (y - before)) / lag  # fmt: skip
        proportional = s.setpoint_weight * (self.setpoint - self._target) - (y - before)
        integral = s.period_s / s.integral_s * (self.setpoint - y)
        du = s.gain * (proportional + integral - (slope - self._slope))
        self._measured, self._target, self._slope = y, self.setpoint, slope
        return du

    def _applied(self, observation: Observation) -> Vector:
        known = np.isfinite(observation.applied)
        return np.where(known, observation.applied, self._last).astype(np.float64)
