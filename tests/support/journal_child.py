"""A process that records as fast as it is told to, for tests that kill it.

Each line it writes is "started SECONDS", "handed SEQUENCE TIME" or "synced SEGMENT RECORDS HASH",
written at once; whoever kills it reads what is left in the pipe.
"""

import os
import time
from pathlib import Path

from steadyhand.runtime.journal import Journal, Limits
from tests.support.records import fresh_recorder, record_ticks


def run(directory: Path, period_s: float, segment_bytes: int, keep_bytes: float, fd: int) -> None:
    """Record until killed.

    Args:
        directory: of the journal.
        period_s: between two ticks.
        segment_bytes: size at which it rotates.
        keep_bytes: size beyond which it purges.
        fd: where the lines go.
    """
    recorder = fresh_recorder()
    limits = Limits(segment_bytes=segment_bytes, keep_bytes=keep_bytes)
    os.write(fd, b"begins\n")
    begun = time.monotonic()
    journal = Journal(directory, recorder, limits).start()
    os.write(fd, f"started {time.monotonic() - begun}\n".encode())
    told = None
    while True:
        record_ticks(recorder, 1)
        os.write(fd, f"handed {recorder.sequence - 1} {time.monotonic()}\n".encode())
        head = journal.status.head
        if head != told:
            told = head
            line = f"synced {head.segment} {head.records} {head.hash.hex()}\n"
            os.write(fd, line.encode())
        time.sleep(period_s)
