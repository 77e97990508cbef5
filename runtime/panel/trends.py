"""Trends: one row of numbers a second, for an hour, in memory of fixed size.

The rows are taken from the records that wait for the journal, and at the start from the journal
itself, by a thread of our own, so the loop does not know of them. A row is
kept once a second at most, and for every change of driver.
"""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import nan
from typing import Any

import numpy as np

from steadyhand.controllers.signals import SignalSet
from steadyhand.runtime.record import RecordLayout

CAPACITY = 4096
"""Rows: an hour at one a second, and some changes of driver."""
EVERY_S = 1.0
MAX_SIGNALS = 8
_HEAD = ("wall_s", "plant_s", "source", "confidence")


@dataclass(frozen=True, slots=True)
class Column:
    """What one number of a row is."""

    kind: str
    """wall_s, plant_s, source, confidence, signal, applied, sent or proposed."""
    name: str = ""
    """Of the signal or output."""


def main_signals(observations: SignalSet, chosen: Sequence[str] = ()) -> tuple[str, ...]:
    """Names of the signals with a trend: those chosen, or all but forecasts, eight at most."""
    names = [n for n in observations.names if "forecast" not in n][:MAX_SIGNALS]
    return tuple(chosen or names)


class Trends:
    """A ring of rows. `take` belongs to one thread, `read` to any."""

    def __init__(
        self, layout: RecordLayout, chosen: Sequence[str] = (), capacity: int = CAPACITY
    ) -> None:
        """Make the ring.

        Args:
            layout: of the records.
            chosen: names of the signals; see `main_signals`.
            capacity: rows kept.
        """
        names = main_signals(layout.observations, chosen)
        self._signals = np.array([layout.observations.index(n) for n in names], dtype=np.intp)
        self._dtype = layout.dtype
        outputs = [
            Column(kind, name)
            for kind in ("applied", "sent", "proposed")
            for name in layout.outputs.names
        ]
        self.columns = (*map(Column, _HEAD), *(Column("signal", n) for n in names), *outputs)
        self._rows = np.full((capacity, len(self.columns)), nan)
        self._lock = threading.Lock()
        self.next = 0
        """Number of the next row."""
        self.source = -1
        """Who drove in the newest record; -1 before the first."""
        self.since_wall_s = self.since_plant_s = nan
        """When that driver came."""

    def take(self, bodies: Iterable[bytes]) -> None:
        """Keep what is worth a row of these records, oldest first."""
        for body in bodies:
            record = np.frombuffer(body, self._dtype, 1)[0]
            source, wall_s = int(record["source"]), float(record["wall_ns"]) / 1e9
            changed = source != self.source
            if changed:
                self.source = source
                self.since_wall_s, self.since_plant_s = wall_s, float(record["observation_time_s"])
            last_s = self._rows[(self.next - 1) % len(self._rows), 0] if self.next else nan
            # a clock that was set back makes the difference negative: that is another row, too
            if changed or not 0.0 <= wall_s - last_s < EVERY_S:
                self._keep(record, source, wall_s)

    def _keep(self, record: Any, source: int, wall_s: float) -> None:  # noqa: ANN401  (np.void)
        n_u = len(record["applied"])
        with self._lock:
            row = self._rows[self.next % len(self._rows)]
            row[:4] = wall_s, record["observation_time_s"], source, record["confidence"]
            signals = row[4 : 4 + len(self._signals)]
            signals[:] = record["values"][self._signals]
            signals[record["quality"][self._signals] > 1] = nan  # bad: there is no number
            rest = row[4 + len(self._signals) :]
            rest[:n_u] = record["applied"]
            rest[n_u : 2 * n_u] = record["sent"] if record["written"] else nan
            rest[2 * n_u :] = record["proposed"]
            self.next += 1

    def read(self, since: int = 0) -> bytes:
        """Rows from number `since` on, as little-endian float64.

        Returns:
            a head of three numbers (number of the first row, of the next row, columns), then the
            rows one after the other. Binary, because a text of half a million characters would
            hold the interpreter up, and the loop with it.
        """
        with self._lock:
            capacity = len(self._rows)
            first = max(0, self.next - capacity, min(since, self.next))
            rows = self._rows[np.arange(first, self.next) % capacity]
            head = np.array([first, self.next, len(self.columns)], dtype="<f8")
        return head.tobytes() + rows.astype("<f8", copy=False).tobytes()
