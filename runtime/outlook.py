"""Is it in control, and if not, what must happen for it to come back: in words, from a status."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from steadyhand.controllers.frames import LinkState, Source
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime.events import EFFECTS, Situation
from steadyhand.runtime.modes import DRIVING_MODES, Mode

Status = Mapping[str, Any]
"""What `status.py` makes of a tick."""


class Answer(StrEnum):
    """Is it in control?"""

    YES = "yes"
    """The policy drives."""
    NO = "no"
    """It should, and something else does."""
    WATCHING = "watching"
    """Nobody asked it to drive, not even before a restart."""


def in_control(now: Status) -> Answer:
    """Does the policy drive, and if not, was it meant to?"""
    if now["source"] == Source.POLICY.name.lower():
        return Answer.YES
    return Answer.NO if DRIVING_MODES & {now["mode"], now["asked"]} else Answer.WATCHING


def held(now: Status) -> Iterator[str]:
    """Which outputs a person holds, whoever else drives: value, unit, end by the clock, reason."""
    for item in now["overrides"]:
        value = f"{item['value']:g} {item.get('unit', '')}".strip()
        until = f"plant time {item['expires_s']:.0f} s"
        if "until_wall_s" in item:
            until = _by_the_clock(item["until_wall_s"])
        kept = item["output"] in now["taken_out"]
        does = "would hold" if kept else "holds"
        but = "; but the plant keeps this output to itself" if kept else ""
        yield (
            f"override by {item['owner']} {does} {item['output']} at {value} until {until}, "
            f"reason: {item['reason']}{but}"
        )


def _by_the_clock(wall_s: float) -> str:
    """A time of today; with its date on another day. In UTC, like everything that is recorded."""
    then, now = datetime.fromtimestamp(wall_s, UTC), datetime.now(UTC)
    same_day = then.date() == now.date()
    return then.strftime("%H:%M %Z" if same_day else "%Y-%m-%d %H:%M %Z")


def way_back(now: Status) -> Iterator[str]:
    """What must happen for the policy to drive (again), one sentence each, in order."""
    if in_control(now) is Answer.YES:
        return
    if now["mode"] not in DRIVING_MODES:
        yield f"A person asks for mode {Mode.LIMITED} or {Mode.FULL}; it is {now['mode']} now."
    if now["link"] != LinkState.UP:
        yield f"The link to the plant comes up; it is {now['link']} now and is tried by itself."
    elif not now["granted"]:
        yield "The plant grants control; that is done at the plant."
    first, others = _present(now)
    if first is not None:
        yield f"{first['code']} ends. To do: {first['action']}."
    if others:
        yield f"Also present, perhaps because of it: {', '.join(others)}; these end, too."
    for code in now["latched"]:
        yield f"{code} is acknowledged by a person, once its cause is gone."
    if now["mode"] in DRIVING_MODES and not now["trusted"]:
        yield f"The gate trusts the policy; it is in state {now['gate']} now."
    clean, needed = now["clean"]
    yield f"Then {needed} ticks in a row without any of this; {min(clean, needed)} so far."


def _present(now: Status) -> tuple[Mapping[str, Any] | None, list[str]]:
    """The alarm that keeps the policy out, the first cause if it is there, and the other codes."""
    situation = _situation(now)
    present = [
        alarm
        for alarm in now["alarms"]
        if alarm["active"] and EFFECTS[ReasonCode(alarm["code"]), situation].demand > Source.POLICY
    ]
    if not present:
        return None, []
    cause = now["why"]["code"] if now["why"] else ""
    first = next((alarm for alarm in present if alarm["code"] == cause), present[0])
    return first, [str(alarm["code"]) for alarm in present if alarm is not first]


def _situation(now: Status) -> Situation:
    """Column of the table of effects."""
    if now["mode"] not in DRIVING_MODES:
        return Situation.WATCHING
    safe = now["source"] == Source.SAFE.name.lower()
    return Situation.LAST_RESORT if safe else Situation.DRIVING
