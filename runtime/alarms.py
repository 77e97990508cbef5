"""What is wrong now, for people: one alarm per reason code, with its first cause and since when.

    normal ──► there, unacknowledged ──► gone, unacknowledged ──► normal      (ISA-18.2: A B D)
                 └─ a person ─► there, acknowledged ─► normal                 (C)

What is worth an alarm wants a person's answer: it does not go before somebody has seen it, even
where its cause is gone. A warning wants none and goes with its cause: few alarms, each with
something to do, keep a list read (EEMUA 191). What comes again meanwhile is the same line, so that
there are never more of them than codes. A latch waits for its acknowledgement whatever its
severity, and that is more: it clears the latch, and is refused while the cause is there.

Shelving says "seen, not now": the alarm moves out of the way until its time is over, for a reason,
in somebody's name. What ends meanwhile waits for nobody; what is there afterwards wants its answer
anew. It changes nothing else. The reaction of the mode machine, the journal and the metrics do not
know that it exists.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

from steadyhand.controllers.errors import RequestError
from steadyhand.controllers.frames import Fault
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime.events import EFFECTS, Severity, Situation, describe

WANTS_ANSWER = Severity.ALARM
"""From here on a person acknowledges an alarm before it goes."""
MAX_SHELF_S = 86_400.0
"""Longest shelving, plant seconds: beyond a day an alarm is not late but wrong."""


@dataclass(frozen=True, slots=True)
class Shelf:
    """One alarm out of the way until `expires_s` (plant time)."""

    code: ReasonCode
    owner: str
    reason: str
    expires_s: float


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something that wants to be looked at."""

    code: ReasonCode
    severity: Severity
    text: str
    """First cause, in words."""
    action: str
    """What to do."""
    since_s: float
    """Plant time when it came."""
    cause: Fault
    """What it came with."""
    signals: tuple[str, ...] = ()
    """Every signal that has it now."""
    active: bool = True
    """Is the cause there now? If not, it waits for its acknowledgement."""
    latched: bool = False
    """Does it hold something back until it is acknowledged?"""
    unacknowledged: bool = False
    """Does it want a person's answer before it goes?"""


class Alarms:
    """The alarms of one loop; used by the loop thread between ticks."""

    def __init__(self) -> None:
        self._alarms: dict[ReasonCode, Alarm] = {}
        self._starting = False
        self._shelves: dict[ReasonCode, Shelf] = {}

    def __iter__(self) -> Iterator[Alarm]:
        """The most serious first, then the oldest."""
        return iter(sorted(self._alarms.values(), key=lambda a: (-a.severity, a.since_s, a.code)))

    @property
    def shelves(self) -> Collection[Shelf]:
        """Everything that is shelved, also while it is not there."""
        return tuple(self._shelves.values())

    @property
    def waiting(self) -> tuple[Fault, ...]:
        """What the unacknowledged came with, but for latches, which others keep."""
        return tuple(
            alarm.cause
            for alarm in self._alarms.values()
            if alarm.unacknowledged and not alarm.latched
        )

    def shelf(self, alarm: Alarm) -> Shelf | None:
        """How an alarm is shelved; None when it is not, or has become critical meanwhile."""
        return None if alarm.severity is Severity.CRITICAL else self._shelves.get(alarm.code)

    def update(
        self,
        groups: Sequence[Iterable[Fault]],
        latches: Collection[ReasonCode],
        situation: Situation,
        now_s: float,
        starting: bool = False,
    ) -> tuple[Shelf, ...]:
        """Take over what one tick found.

        Args:
            groups: the faults of the tick, in the order in which the first one is the cause.
            latches: codes that stay until acknowledged.
            situation: column of the table of effects.
            now_s: plant time of the tick.
            starting: the plant was not seen yet: that something is not there is no news, and wants
                an answer only if it lasts.

        Returns:
            the shelvings whose time was over.
        """
        found: dict[ReasonCode, list[Fault]] = {}
        for faults in groups:
            for fault in faults:
                found.setdefault(fault.code, []).append(fault)
        anew, self._starting = self._starting and not starting, starting
        before, self._alarms = self._alarms, {}
        for code in dict.fromkeys((*found, *latches, *before)):
            latched, known = code in latches, before.get(code)
            if code in found and (latched or EFFECTS[code, situation].severity > Severity.LOG):
                came = not starting and (anew or known is None or not known.active)
                self._alarms[code] = _there(found[code], known, latched, situation, now_s, came)
            elif latched:
                self._alarms[code] = replace(
                    known or _gone(Fault(code), situation, now_s),
                    signals=(),
                    active=False,
                    latched=True,
                    unacknowledged=True,
                )
            elif known is not None and self._still_waits(known):
                self._alarms[code] = replace(known, signals=(), active=False)
        ended = tuple(shelf for shelf in self._shelves.values() if now_s >= shelf.expires_s)
        for shelf in ended:
            self._take_off(shelf.code)
        return ended

    def _still_waits(self, known: Alarm) -> bool:
        """Does it stay, though its cause is gone? A latch that is gone was acknowledged."""
        return known.unacknowledged and not known.latched and self.shelf(known) is None

    def wait_on(self, cause: Fault) -> None:
        """What nobody had acknowledged before a restart is still to be acknowledged."""
        self._alarms[cause.code] = _gone(cause, Situation.DRIVING, 0.0)

    def acknowledge(self, code: ReasonCode | None = None) -> tuple[ReasonCode, ...]:
        """Somebody has seen the alarm `code`, or all of them; which these were.

        Whoever acknowledges a latch clears it first, where it is.
        """
        seen = tuple(
            alarm.code
            for alarm in self._alarms.values()
            if alarm.unacknowledged and code in (None, alarm.code)
        )
        for one in seen:
            self._alarms[one] = replace(self._alarms[one], unacknowledged=False)
        return seen

    def shelve(self, code: str, owner: str, reason: str, now_s: float, for_s: float) -> Shelf:
        """Move an alarm out of the way.

        Args:
            code: its reason code; the alarm need not be there now.
            owner: who does it.
            reason: why.
            now_s: plant time.
            for_s: how long, plant seconds.

        Raises:
            RequestError: UNKNOWN_CODE, NO_ALARM, CRITICAL, REASON_MISSING or DURATION. Nothing has
                changed then.
        """
        known = _known(code)
        severity = max(EFFECTS[known, situation].severity for situation in Situation)
        if severity is Severity.LOG:
            raise RequestError("NO_ALARM", f"{known} never is an alarm, so there is none to shelve")
        present = self._alarms.get(known)
        ordinary = EFFECTS[known, Situation.DRIVING].severity
        if max(ordinary, present.severity if present else ordinary) is Severity.CRITICAL:
            raise RequestError("CRITICAL", f"{known} is critical: it cannot be shelved")
        if not owner.strip() or not reason.strip():
            raise RequestError("REASON_MISSING", f"shelving of {known}: give a reason")
        if not (isfinite(for_s) and 0.0 < for_s <= MAX_SHELF_S):
            raise RequestError(
                "DURATION", f"shelving for {for_s} s: must be within (0, {MAX_SHELF_S:g}] s"
            )
        made = self._shelves[known] = Shelf(known, owner, reason, now_s + for_s)
        return made

    def unshelve(self, code: str) -> Shelf:
        """Put an alarm back.

        Raises:
            RequestError: UNKNOWN_CODE or NOT_SHELVED.
        """
        known = _known(code)
        if known not in self._shelves:
            names = ", ".join(self._shelves) or "nothing"
            raise RequestError("NOT_SHELVED", f"{code} is not shelved; shelved now: {names}")
        return self._take_off(known)

    def _take_off(self, code: ReasonCode) -> Shelf:
        """Put it back; what is there now is as if it had just come."""
        alarm = self._alarms.get(code)
        if alarm is not None and alarm.active and alarm.severity >= WANTS_ANSWER:
            self._alarms[code] = replace(alarm, unacknowledged=True)
        return self._shelves.pop(code)


def _there(
    faults: Sequence[Fault],
    known: Alarm | None,
    latched: bool,
    situation: Situation,
    now_s: float,
    came: bool,
) -> Alarm:
    """An alarm whose cause is there; `came`: it was not before."""
    first = faults[0]
    effect = EFFECTS[first.code, situation]
    stays = known if known is not None and known.active else None
    worse = stays is not None and effect.severity > stays.severity
    return Alarm(
        first.code,
        effect.severity,
        describe(first, effect.alarm),
        effect.action,
        stays.since_s if stays is not None else now_s,
        stays.cause if stays is not None else first,
        tuple(dict.fromkeys(fault.signal for fault in faults if fault.signal)),
        latched=latched,
        unacknowledged=latched
        or (known is not None and known.unacknowledged)
        or ((came or worse) and effect.severity >= WANTS_ANSWER),
    )


def _gone(cause: Fault, situation: Situation, now_s: float) -> Alarm:
    """An alarm whose cause nobody saw go."""
    effect = EFFECTS[cause.code, situation]
    return Alarm(
        cause.code,
        effect.severity,
        describe(cause, effect.alarm),
        effect.action,
        now_s,
        cause,
        active=False,
        unacknowledged=True,
    )


def shelf_event(name: str, shelf: Shelf, actor: str) -> dict[str, Any]:
    """For the record: what `actor` did to a shelved alarm."""
    return {
        "event": name,
        "actor": actor,
        "alarm": str(shelf.code),
        "reason": shelf.reason,
        "expires_s": shelf.expires_s,
    }


def _known(code: str) -> ReasonCode:
    try:
        return ReasonCode(code)
    except ValueError:
        raise RequestError(
            "UNKNOWN_CODE", f"no reason code {code!r}; the list of alarms shows those there are"
        ) from None
