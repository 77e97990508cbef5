"""What is wrong now, for people: one alarm per reason code, with its first cause and since when.

Shelving says "seen, not now": the alarm moves out of the way until its time is over, for a reason,
in somebody's name. It changes nothing else. The reaction of the mode machine, the journal and the
metrics do not know that it exists.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

from steadyhand.controllers.errors import RequestError
from steadyhand.controllers.frames import Fault
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime.events import EFFECTS, Severity, Situation, describe

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
    signals: tuple[str, ...] = ()
    """Every signal that has it now."""
    active: bool = True
    """Is the cause there now? If not, it waits for its acknowledgement."""
    latched: bool = False
    """Does it stay until it is acknowledged?"""


class Alarms:
    """The alarms of one loop; used by the loop thread between ticks."""

    def __init__(self) -> None:
        self._alarms: dict[ReasonCode, Alarm] = {}
        self._shelves: dict[ReasonCode, Shelf] = {}

    def __iter__(self) -> Iterator[Alarm]:
        """The most serious first, then the oldest."""
        return iter(sorted(self._alarms.values(), key=lambda a: (-a.severity, a.since_s, a.code)))

    @property
    def shelves(self) -> Collection[Shelf]:
        """Everything that is shelved, also while it is not there."""
        return tuple(self._shelves.values())

    def shelf(self, alarm: Alarm) -> Shelf | None:
        """How an alarm is shelved; None when it is not, or has become critical meanwhile."""
        return None if alarm.severity is Severity.CRITICAL else self._shelves.get(alarm.code)

    def update(
        self,
        groups: Sequence[Iterable[Fault]],
        latches: Collection[ReasonCode],
        situation: Situation,
        now_s: float,
    ) -> tuple[Shelf, ...]:
        """Take over what one tick found.

        Args:
            groups: the faults of the tick, in the order in which the first one is the cause.
            latches: codes that stay until acknowledged.
            situation: column of the table of effects.
            now_s: plant time of the tick.

        Returns:
            the shelvings whose time was over.
        """
        found: dict[ReasonCode, list[Fault]] = {}
        for faults in groups:
            for fault in faults:
                found.setdefault(fault.code, []).append(fault)
        before, self._alarms = self._alarms, {}
        for code in (*found, *(code for code in latches if code not in found)):
            effect, latched = EFFECTS[code, situation], code in latches
            if effect.severity is Severity.LOG and not latched:
                continue
            known = before.get(code)
            if code not in found:
                self._alarms[code] = replace(
                    known or Alarm(code, effect.severity, effect.alarm, effect.action, now_s),
                    signals=(),
                    active=False,
                    latched=True,
                )
                continue
            faults = found[code]
            self._alarms[code] = Alarm(
                code,
                effect.severity,
                describe(faults[0], effect.alarm),
                effect.action,
                known.since_s if known is not None else now_s,
                tuple(dict.fromkeys(fault.signal for fault in faults if fault.signal)),
                latched=latched,
            )
        ended = tuple(shelf for shelf in self._shelves.values() if now_s >= shelf.expires_s)
        for shelf in ended:
            del self._shelves[shelf.code]
        return ended

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
        shelf = self._shelves.pop(_known(code), None)
        if shelf is None:
            names = ", ".join(self._shelves) or "nothing"
            raise RequestError("NOT_SHELVED", f"{code} is not shelved; shelved now: {names}")
        return shelf


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
