"""Records of earlier runs for the trends: who looks after a crash sees what was before it.

Read from the journal in the panel's own thread, with pauses, so that the loop does not notice.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from math import ceil
from pathlib import Path

from steadyhand.runtime.chain import Kind
from steadyhand.runtime.reader import JournalReader
from steadyhand.runtime.record import RecordLayout

HOUR_S = 3600.0
TICKS = 96
"""Of a loop so slow that it has fewer in an hour: a day of quarter hours."""
PORTION = 64
"""Records taken at once; then whoever waits for the interpreter gets it."""
PAUSE_S = 0.002


@dataclass(frozen=True, slots=True)
class Past:
    """Where the records of earlier runs are."""

    journal: Path
    layout: RecordLayout
    """Of this run; records laid out otherwise are left out: their numbers mean something else."""
    wall_period_s: float

    def portions(
        self, before: int, wall: Callable[[], float] = time.time
    ) -> Iterator[tuple[bytes, ...]]:
        """Records of the last hour (or the last 96) before a tick, oldest first, with pauses.

        Args:
            before: number of the first tick that is not asked for.
            wall: seconds since 1970; for tests.

        Raises:
            JournalError: a segment cannot be read.
        """
        span_s = max(HOUR_S, TICKS * self.wall_period_s)
        first = max(0, before - ceil(span_s / self.wall_period_s))
        found = self._records(first, before, wall() - span_s)
        while portion := tuple(islice(found, PORTION)):
            yield portion
            time.sleep(PAUSE_S)

    def _records(self, first: int, before: int, since_s: float) -> Iterator[bytes]:
        dtype, ours = self.layout.dtype, _meaning(self.layout)
        assert dtype.fields is not None  # noqa: S101  (a structured type)
        number, stamp = (int(dtype.fields[name][1]) for name in ("sequence", "wall_ns"))
        with JournalReader(self.journal) as journal:
            alike = {one.index for one in journal.segments if _meaning(one.layout) == ours}
            for segment, entry in journal.entries(kind=Kind.TICK, start_tick=first):
                body = entry.body
                if segment.index not in alike or len(body) < dtype.itemsize:
                    continue
                if int.from_bytes(body[number : number + 8], "little") >= before:
                    return
                if int.from_bytes(body[stamp : stamp + 8], "little") / 1e9 >= since_s:
                    yield body


def _meaning(layout: RecordLayout) -> tuple[object, ...]:
    """What a number in a record means; new reason codes do not change it."""
    schema = layout.schema()
    return schema["observations"], schema["outputs"], schema["fields"]
