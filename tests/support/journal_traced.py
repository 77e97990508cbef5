"""A process that keeps a journal and ends by `kill -9` or in order, to be traced.

    python -m tests.support.journal_traced DIRECTORY TICKS kill|close [careless]

It rotates and purges as it goes. Each line it prints, written at once, is "handed SEQUENCE" or
"synced SEGMENT RECORDS HASH": from then on these records must outlive a power cut.
A careless one does not sync its records, so that a check of that can be checked.
"""

import os
import signal
import sys
import time
from pathlib import Path

from steadyhand.runtime.journal import Journal, Limits
from tests.support.records import fresh_recorder, record_ticks

LIMITS = Limits(commit_every_s=0.003, segment_bytes=12_000, keep_bytes=100_000, retry_s=0.01)


def main() -> None:
    directory, ticks, end = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    recorder = fresh_recorder()
    journal = Journal(directory, recorder, LIMITS).start()
    told = None
    if "careless" in sys.argv:
        assert journal._segment is not None
        journal._segment._connection.execute("PRAGMA synchronous=OFF")

    def tell() -> None:
        nonlocal told
        head = journal.status.head
        if head != told:
            told = head
            os.write(1, f"synced {head.segment} {head.records} {head.hash.hex()}\n".encode())

    for number in range(ticks):
        record_ticks(recorder, 1)
        os.write(1, f"handed {recorder.sequence - 1}\n".encode())
        tell()
        # mostly single records, now and then a batch
        time.sleep(0.02 if number % 7 == 3 else 0.002)
    if end == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    journal.close()
    tell()


if __name__ == "__main__":
    main()
