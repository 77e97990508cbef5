"""A process that records as fast as it is told to, for tests that kill it or fill its disk.

    python -m tests.support.journal_child DIRECTORY PERIOD_S SEGMENT_BYTES

Each line it prints is "handed SEQUENCE" or "synced TICKS SEGMENT RECORDS HASH", written at once.
"""

import os
import sys
import time
from pathlib import Path

from steadyhand.runtime.journal import Journal, Limits
from tests.support.records import fresh_recorder, record_ticks


def main() -> None:
    directory, period_s, segment_bytes = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    recorder = fresh_recorder()
    journal = Journal(directory, recorder, Limits(segment_bytes=segment_bytes)).start()
    told = None
    while True:
        record_ticks(recorder, 1)
        os.write(1, f"handed {recorder.sequence - 1} {time.monotonic()}\n".encode())
        head = journal.status.head
        if head != told:
            told = head
            line = f"synced {head.segment} {head.records} {head.hash.hex()} {time.monotonic()}\n"
            os.write(1, line.encode())
        time.sleep(period_s)


if __name__ == "__main__":
    main()
