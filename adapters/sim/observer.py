"""The independent observer: logs and judges every write that arrives at the plant.

It stands on the plant's side of the wire and shares no code with the runtime's limits, so that
the invariants of a run are counted by someone who did not try to keep them.
"""

import json
import os
import time
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any, TextIO

from steadyhand.adapters.sim.numbers import encode
from steadyhand.controllers.signals import SignalSet

RATE_SLACK = 1e-9
"""Relative slack of the rate check: rounding of the sender is not a broken limit."""


@dataclass(slots=True)
class WriteCounts:
    """Writes of outputs that arrived, and how many of them broke an invariant."""

    arrived: int = 0
    nonfinite: int = 0
    outside: int = 0
    """Beyond [low, high] of the output."""
    rate: int = 0
    """Steps from the actuator's real position above the rate limit."""
    ungranted: int = 0
    """Arrived while the plant did not grant control."""


class WriteLog:
    """Counts output writes, and keeps each as one JSON line if a path is given.

    Args:
        outputs: limits of the outputs; other names are logged without being judged.
        period_s: control period; a rate limit allows at least one period's step.
        path: file to append to, or None to only count.
        flush: hand every line to the operating system at once, so that a killed plant keeps it.
        fsync: also wait for the disk.
    """

    def __init__(
        self,
        outputs: SignalSet,
        period_s: float,
        path: Path | None = None,
        *,
        flush: bool = True,
        fsync: bool = False,
    ) -> None:
        self.counts = WriteCounts()
        self._low = dict(zip(outputs.names, outputs.low.tolist(), strict=True))
        self._high = dict(zip(outputs.names, outputs.high.tolist(), strict=True))
        self._rate = dict(zip(outputs.names, outputs.rate_per_s.tolist(), strict=True))
        self._period_s = period_s
        self._last_s: dict[str, float] = {}
        self._flush = flush
        self._fsync = fsync
        self._file: TextIO | None = None
        if path is not None:
            self._file = path.open("a", encoding="utf-8")

    def judge(self, time_s: float, name: str, value: float, applied: float, granted: bool) -> None:
        """Count one write of output `name`.

        Args:
            time_s: plant time of arrival.
            name: the output.
            value: what was written, in the output's unit.
            applied: where the actuator really is.
            granted: does the plant grant control now?
        """
        counts = self.counts
        counts.arrived += 1
        if not granted:
            counts.ungranted += 1
        if not isfinite(value):
            counts.nonfinite += 1
            return
        if not self._low[name] <= value <= self._high[name]:
            counts.outside += 1
        since_s = max(time_s - self._last_s.get(name, time_s), self._period_s)
        if abs(value - applied) > self._rate[name] * since_s * (1.0 + RATE_SLACK):
            counts.rate += 1
        self._last_s[name] = time_s

    def line(self, time_s: float, name: str, value: Any, **context: Any) -> None:  # noqa: ANN401
        """Append one line: what arrived, when in plant and wall time, and its context.

        Args:
            time_s: plant time of arrival.
            name: node that was written.
            value: what was written; non-finite numbers become strings, other things their repr.
            context: source, sequence, user, status; whatever the caller knows.
        """
        if self._file is None:
            return
        number = isinstance(value, int | float) and not isinstance(value, bool)
        shown = encode(value) if number else value if isinstance(value, bool) else repr(value)[:200]
        row = {"plant_s": time_s, "wall_s": time.time(), "name": name, "value": shown, **context}
        self._file.write(json.dumps(row, allow_nan=False) + "\n")
        if self._flush or self._fsync:
            self._file.flush()
        if self._fsync:
            os.fsync(self._file.fileno())

    @property
    def logging(self) -> bool:
        """Is there a file to write to?"""
        return self._file is not None

    def totals(self) -> dict[str, int]:
        """The counters by name."""
        return asdict(self.counts)

    def close(self) -> None:
        """Flush and close the file. Idempotent."""
        if self._file is not None:
            self._file.close()
            self._file = None
