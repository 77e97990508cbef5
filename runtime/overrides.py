"""Overrides: a person sets one output. Each has an owner, a reason and an end, and always wins."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite, nan

import numpy as np

from steadyhand.controllers.errors import RequestError
from steadyhand.controllers.signals import SignalSet, Vector

WARN_SHARE = 0.1
"""Share of its time that is left when the end of an override is announced."""


@dataclass(frozen=True, slots=True)
class Override:
    """One output in the hand of one person until `expires_s` (plant time)."""

    output: str
    value: float
    owner: str
    reason: str
    expires_s: float
    for_s: float
    """How long it was meant to last, plant seconds."""


class Overrides:
    """The overrides in force. The command still passes the safety filter, as every other does."""

    def __init__(self, outputs: SignalSet, max_duration_s: float) -> None:
        self._outputs = outputs
        self._max_duration_s = max_duration_s
        self._active: dict[str, Override] = {}
        self.vector: Vector | None = None
        """(n_u,) overriding values, NaN where no one overrides; None when no one does."""

    def __iter__(self) -> Iterator[Override]:
        return iter(self._active.values())

    def set(
        self, output: str, value: float, owner: str, reason: str, now_s: float, for_s: float
    ) -> Override:
        """Put `output` at `value` for `for_s` plant seconds.

        Raises:
            RequestError: unknown output, value outside its limits, no owner or reason, no or too
                long a duration, or another person holds the output. Nothing has changed then.
        """
        if output not in self._outputs.names:
            raise RequestError(
                "UNKNOWN_OUTPUT",
                f"no output {output!r}; there are: {', '.join(self._outputs.names)}",
            )
        signal = self._outputs.signals[self._outputs.index(output)]
        if not (isfinite(value) and signal.low <= value <= signal.high):
            raise RequestError(
                "OUT_OF_RANGE",
                f"{output}={value} {signal.unit}: must be within [{signal.low}, {signal.high}]",
            )
        if not owner.strip() or not reason.strip():
            raise RequestError("REASON_MISSING", f"override of {output}: name owner and reason")
        if not 0.0 < for_s <= self._max_duration_s:  # also refuses NaN
            raise RequestError(
                "DURATION", f"override for {for_s} s: must be within (0, {self._max_duration_s}] s"
            )
        holder = self._active.get(output)
        if holder is not None and holder.owner != owner:
            raise RequestError(
                "CONFLICT", f"{output} is overridden by {holder.owner}: it must be cleared first"
            )
        override = Override(output, float(value), owner, reason, now_s + for_s, for_s)
        self._active[output] = override
        self._rebuild()
        return override

    def clear(self, output: str) -> Override:
        """Give `output` back.

        Raises:
            RequestError: no one overrides it.
        """
        override = self._active.pop(output, None)
        if override is None:
            names = ", ".join(self._active) or "none"
            raise RequestError("NO_OVERRIDE", f"{output!r} is not overridden; overridden: {names}")
        self._rebuild()
        return override

    def expire(self, now_s: float) -> tuple[Override, ...]:
        """Drop and return those whose time is over."""
        if not self._active:
            return ()
        ended = tuple(item for item in self._active.values() if now_s >= item.expires_s)
        if ended:
            for item in ended:
                del self._active[item.output]
            self._rebuild()
        return ended

    def ending(self, now_s: float) -> tuple[Override, ...]:
        """Those in the last tenth of their time."""
        if not self._active:
            return ()
        return tuple(
            item
            for item in self._active.values()
            if item.expires_s - now_s <= WARN_SHARE * item.for_s
        )

    def _rebuild(self) -> None:
        if not self._active:
            self.vector = None
            return
        vector = np.full(len(self._outputs), nan)
        for name, item in self._active.items():
            vector[self._outputs.index(name)] = item.value
        vector.flags.writeable = False
        self.vector = vector
