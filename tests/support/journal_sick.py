"""A process that keeps a journal on a sick disk and tells how control fared.

    python -m tests.support.journal_sick DIRECTORY PATIENCE_S

Its last line is JSON: ticks on disk, causes told meanwhile and at the end, the head that was told
to be safe, and the longest time that recording a tick and asking for faults took.
"""

import json
import sys
import time
from pathlib import Path

from steadyhand.controllers.errors import JournalError
from steadyhand.runtime.journal import Journal, Limits
from tests.support.records import fresh_recorder, record_ticks

TICKS = 40
LIMITS = Limits(commit_every_s=0.003, segment_bytes=9_000, keep_bytes=50_000, retry_s=0.01)


def main() -> None:
    directory, patience_s = Path(sys.argv[1]), float(sys.argv[2])
    recorder = fresh_recorder()
    try:
        journal = Journal(directory, recorder, LIMITS).start()
    except JournalError as error:
        print(json.dumps({"refused": str(error)}))
        return
    causes, worst_s = set(), 0.0
    until_s = None
    while until_s is None or (journal.status.ticks < TICKS and time.monotonic() < until_s):
        begun = time.monotonic()
        if recorder.sequence < TICKS:
            record_ticks(recorder, 1)
        fault = journal.fault()
        worst_s = max(worst_s, time.monotonic() - begun)
        if fault is not None:
            causes.add(fault.text.split(":")[0])
        if recorder.sequence == TICKS and until_s is None:
            until_s = time.monotonic() + patience_s
        time.sleep(0.004)
    journal.close()
    status = journal.status
    print(
        json.dumps(
            {
                "ticks": status.ticks,
                "lost": status.lost_ticks,
                "causes": sorted(causes),
                "cause": status.cause,
                "head": [status.head.segment, status.head.records, status.head.hash.hex()],
                "worst_s": worst_s,
            }
        )
    )


if __name__ == "__main__":
    main()
