"""Commands that were refused: counted by code, and in the journal at once with who, what and why.

Who is refused again and again must not fill the journal. So entries are bounded per person and in
all. What is left out is counted by code, and the loop writes that count down when the flood pauses.
"""

import threading
from collections import Counter
from collections.abc import Callable, Mapping

from steadyhand.controllers.errors import RequestError
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime.health import printable
from steadyhand.runtime.operator_people import Bucket
from steadyhand.runtime.operator_protocol import Door

CODES = frozenset(
    {
        # the form
        "ARGUMENTS", "MALFORMED", "TOO_LONG", "TOO_SLOW", "UNKNOWN_COMMAND",
        # the person
        "DENIED", "HOST", "MEDIA_TYPE", "ORIGIN", "READ_ONLY", "REPLAY", "ROLE", "SESSION",
        # the matter
        str(ReasonCode.ACK_DENIED), "CONFLICT", "CRITICAL", "DURATION", "NOT_SHELVED", "NO_ALARM",
        str(ReasonCode.NO_EVIDENCE), "NO_OVERRIDE", "OUT_OF_RANGE", "REASON_MISSING", "REFUSED",
        "SWAP_UNDER_WAY", "UNKNOWN_CODE", "UNKNOWN_MODE", "UNKNOWN_OUTPUT",
        # the moment
        "BUSY", "GONE", "INTERNAL", "QUEUE_FULL", "RATE", "STARTING", "STOPPING", "TIMEOUT",
        "UNKNOWN",
    }
)  # fmt: skip
"""Every code there is; the label of the metric is one of these or OTHER."""
OTHER = "OTHER"
MAX_PEOPLE = 64
"""People whose entries are bounded one by one; beyond it the oldest is forgotten."""
_EACH_PER_S, _EACH_AT_ONCE = 0.1, 10
_ALL_PER_S, _ALL_AT_ONCE = 1.0, 60
_SUMMARY_EVERY_S = 10.0
_TEXT = 300

Record = Callable[[Mapping[str, object]], None]


class Refusals:
    """Counts and records; any thread, never waits."""

    def __init__(self, record: Record | None = None) -> None:
        """Begin at zero.

        Args:
            record: takes an event for the journal; None: they are only counted.
        """
        self.counts: Counter[str] = Counter()
        """Refusals by code since the start."""
        self._record = record or (lambda event: None)
        self._people: dict[str, Bucket] = {}
        self._all = Bucket(_ALL_PER_S, _ALL_AT_ONCE)
        self._summaries = Bucket(1.0 / _SUMMARY_EVERY_S, 1)
        self._left_out: Counter[str] = Counter()
        self._lock = threading.Lock()

    def count(self, code: str) -> None:
        """Count one that is nobody's command, such as a request for data."""
        with self._lock:
            self.counts[_known(code)] += 1

    def tell(self, error: RequestError, actor: str, command: str, door: Door) -> None:
        """Count one, and record it unless there are too many.

        Args:
            error: why.
            actor: who asked.
            command: for what; empty where that could not be read.
            door: by which way.
        """
        with self._lock:
            self.counts[_known(error.code)] += 1
            if command == "status":
                return  # whoever looks changes nothing
            if not (self._bucket(actor).take() and self._all.take()):
                self._left_out[_known(error.code)] += 1
                return
        self._record(
            {
                "event": "CommandRefused",
                "code": error.code,
                "actor": printable(actor, _TEXT),
                "command": command,
                "door": str(door),
                "text": printable(error.message, _TEXT),
            }
        )

    def settle(self, last: bool = False) -> None:
        """Record how many were left out; the loop calls this after each tick.

        Args:
            last: the end of the service: whatever is left, at once.
        """
        if not self._left_out:
            return
        with self._lock:
            if not (last or self._summaries.take()):
                return
            left, self._left_out = self._left_out, Counter()
        codes = ", ".join(f"{code} {count}" for code, count in sorted(left.items()))
        text = f"{left.total()} more refused commands are not listed: {codes}"
        self._record({"event": "CommandsRefused", "left_out": left.total(), "text": text})

    def _bucket(self, actor: str) -> Bucket:
        bucket = self._people.pop(actor, None)
        if bucket is None:
            bucket = Bucket(_EACH_PER_S, _EACH_AT_ONCE)
            if len(self._people) >= MAX_PEOPLE:
                del self._people[next(iter(self._people))]
        self._people[actor] = bucket  # last used, last forgotten
        return bucket


def _known(code: str) -> str:
    return code if code in CODES else OTHER
