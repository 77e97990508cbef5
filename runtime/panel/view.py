"""What the page shows, as plain data: the plant once, the state each second, the last decisions.

Made in the panel's thread from what the loop left behind: the status, the records, the events.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from datetime import datetime
from math import inf, isfinite
from typing import Any

from steadyhand.controllers.frames import Source
from steadyhand.controllers.safety.constraint import ConstraintRow
from steadyhand.controllers.signals import Signal
from steadyhand.runtime.explain import DRIVERS, explain_tick
from steadyhand.runtime.journal import Status as JournalStatus
from steadyhand.runtime.modes import Mode
from steadyhand.runtime.outlook import in_control, way_back
from steadyhand.runtime.panel.trends import Trends
from steadyhand.runtime.record import RecordLayout, TickRecord
from steadyhand.runtime.recorder import Event, Recorder

EVENTS = 30
"""Events shown."""
DECISIONS = 8
"""Ticks explained: the newest."""
CHANGES = 8
"""Ticks explained besides: those with a change of driver."""
LOOKED_AT = 512
"""Newest records in which changes of driver are looked for."""
_BORING = frozenset({"CertificateExpiry"})


@dataclass(frozen=True, slots=True)
class BundleFacts:
    """Which controller proposes."""

    name: str
    version: int
    sha256: str
    signer: str
    not_after: datetime
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class About:
    """What does not change while a runtime lives."""

    run: str
    """Another one for every start, so that a page knows when everything began anew."""
    name: str
    plant: str
    title: str
    version: str
    period_s: float
    time_scale: float
    address: str
    """Of the plant."""
    layout: RecordLayout
    rows: tuple[ConstraintRow, ...]
    commands: bool
    """May anybody give commands from the page?"""


@dataclass(frozen=True, slots=True)
class Told:
    """The loop's last word, and when it was said."""

    status: Mapping[str, Any]
    head: int
    """Number after the record of that tick."""
    wall_s: float
    monotonic_s: float


def plant_view(about: About, trends: Trends) -> dict[str, Any]:
    """What the page needs to know once."""
    layout = about.layout
    return {
        "run": about.run,
        "name": about.name,
        "plant": about.plant,
        "title": about.title,
        "version": about.version,
        "period_s": about.period_s,
        "time_scale": about.time_scale,
        "wall_period_s": about.period_s / about.time_scale,
        "address": about.address,
        "signals": [_signal(s) for s in layout.observations],
        "outputs": [_signal(s) for s in layout.outputs],
        "rows": [{"name": r.name, "unit": r.unit, "hard": r.hard} for r in about.rows],
        "monitors": list(layout.monitors),
        "columns": [asdict(column) for column in trends.columns],
        "sources": [source.name.lower() for source in Source],
        "modes": list(Mode),
        "commands": about.commands,
    }


def _signal(signal: Signal) -> dict[str, Any]:
    return {
        "name": signal.name,
        "unit": signal.unit,
        "low": signal.low,
        "high": signal.high,
        "meaning": signal.meaning,
        "positive": signal.positive,
    }


class View:
    """Makes the state from what the loop left behind; belongs to the server's thread."""

    def __init__(
        self,
        about: About,
        recorder: Recorder,
        trends: Trends,
        journal: Callable[[], JournalStatus],
        bundle: Callable[[], BundleFacts | None],
    ) -> None:
        """Name the sources.

        Args:
            about: what does not change.
            recorder: holds the newest records and events.
            trends: know since when who drives.
            journal: tells how the journal is doing.
            bundle: tells which controller proposes.
        """
        self._about = about
        self._recorder = recorder
        self._trends = trends
        self._journal = journal
        self._bundle = bundle
        self._explained: dict[int, dict[str, Any]] = {}

    def state(self, told: Told | None) -> dict[str, Any]:
        """Everything but its age.

        Args:
            told: the loop's last word; None before the first tick.
        """
        journal = self._journal()
        state: dict[str, Any] = {
            "run": self._about.run,
            "events": self._events(),
            "bundle": self._bundle_view(told),
            "journal": {
                "fault": journal.text if journal.cause else "",
                "cause": journal.cause,
                "records": journal.records,
                "lost_ticks": journal.lost_ticks,
                "lost_events": journal.lost_events,
                "commit_s": journal.commit_s,
                "head": journal.head.hash.hex()[:16],
            },
            "tick": None,
        }
        if told is None:
            return state
        now = told.status
        return state | self._control(now, told) | self._measured(now, told)

    def _control(self, now: Mapping[str, Any], told: Told) -> dict[str, Any]:
        """Who drives, and why."""
        trends, source = self._trends, Source[now["source"].upper()]
        known = trends.source == source
        return {
            "tick": now["tick"],
            "loop_s": now["now_s"],
            "plant_s": now["time_s"],
            "wall_s": told.wall_s,
            "answer": in_control(now),
            "source": now["source"],
            "words": DRIVERS[source],
            "since_wall_s": trends.since_wall_s if known else told.wall_s,
            "since_plant_s": trends.since_plant_s if known else now["time_s"],
            "mode": now["mode"],
            "asked": now["asked"],
            "why": now["why"],
            "back": list(way_back(now)),
            "alarms": now["alarms"],
            "shelved": now["shelved"],
            "latched": now["latched"],
            "overrides": now["overrides"],
            "participation": now["participation"],
            "link": {"state": now["link"], "granted": now["granted"], "control": now["handshake"]},
            "go_live": now["go_live"],
            "unproven": now["unproven"],
            "written": now["written"],
            "timings_s": now["timings_s"],
        }

    def _measured(self, now: Mapping[str, Any], told: Told) -> dict[str, Any]:
        """Numbers of the tick, from its record."""
        tick = self._record(told)
        if tick is None:
            return {}
        observation, verdict, certified = tick.observation, tick.verdict, tick.certified
        proposal, sent = tick.proposal, tick.sent
        return {
            "values": observation.values,
            "quality": observation.quality,
            "ages": observation.age_s,
            "applied": observation.applied,
            "proposed": None if proposal is None else proposal.action,
            "wanted": tick.wanted,
            "sent": sent.action if sent is not None and sent.written else None,
            "trust": None
            if verdict is None
            else {
                "trusted": verdict.trusted,
                "confidence": verdict.confidence,
                "gate": verdict.state,
                "scores": list(verdict.scores),
            },
            "filter": None if certified is None else now["filter"],
            "limits": [] if certified is None else self._limits(tick),
            "reached_s": inf if certified is None else certified.report.time_to_boundary_s,
        }

    def _limits(self, tick: TickRecord) -> list[dict[str, Any]]:
        """How near each constraint is: k is 0 at the limit and -1 a whole range away from it."""
        assert tick.certified is not None  # noqa: S101  (the caller looked)
        report = tick.certified.report
        rows = []
        for i, row in enumerate(self._about.rows):
            k, usable = float(report.k[i]), float(report.m[i])
            rows.append(
                {
                    "left": -k * row.scale,
                    "near": 1.0 + k,
                    "kept": -k - usable if isfinite(usable) else 0.0,
                    "inside_kept": usable < 0.0,
                    "active": i in report.active,
                    "nearest": i == report.margin_row,
                }
            )
        return rows

    def _record(self, told: Told) -> TickRecord | None:
        """The record of the loop's last word; None if it could not be made."""
        bodies, _, _ = self._recorder.ticks.peek(max(0, told.head - 1), 1)
        if not bodies:
            return None
        tick = self._about.layout.decode(bodies[0])
        return tick if tick.sequence == told.status["tick"] else None

    def _events(self) -> list[dict[str, Any]]:
        """The newest events, newest first."""
        head = self._recorder.events.head
        events, _, _ = self._recorder.events.peek(max(0, head - 4 * EVENTS), 4 * EVENTS)
        shown = [_event(event) for event in reversed(events) if event.event not in _BORING]
        return [event for event in shown if event["text"]][:EVENTS]

    def _bundle_view(self, told: Told | None) -> dict[str, Any] | None:
        facts = self._bundle()
        alarm = "" if told is None else told.status["alarm"]
        if facts is None:
            return {"label": "none", "alarm": alarm}
        return {
            "label": f"{facts.name} v{facts.version}",
            "sha256": facts.sha256,
            "signer": facts.signer,
            "not_after_s": facts.not_after.timestamp(),
            "left_s": facts.not_after.timestamp() - time.time(),
            "warnings": list(facts.warnings),
            "alarm": alarm,
        }

    # -- decisions ---------------------------------------------------------------------------------

    def decisions(self) -> list[dict[str, Any]]:
        """The newest ticks and the newest changes of driver, explained, newest first."""
        ring, layout = self._recorder.ticks, self._about.layout
        head = ring.head
        bodies, _, _ = ring.peek(max(0, head - LOOKED_AT), LOOKED_AT)
        chosen = _worth_explaining(bodies, layout)
        sequence, source = _place(layout, "sequence"), _place(layout, "source")
        known, self._explained = self._explained, {}
        shown = []
        for i in reversed(chosen):
            last = i + 1 == len(bodies)
            number = _whole(bodies[i], sequence)
            entry = known.get(number)
            if entry is None or not (last or entry["complete"]):
                before = _whole(bodies[max(0, i - 1)], source)
                following = None if last else layout.decode(bodies[i + 1])
                entry = _decision(layout, layout.decode(bodies[i]), following, Source(before))
            self._explained[number] = entry
            shown.append(entry)
        return shown


def _worth_explaining(bodies: Sequence[bytes], layout: RecordLayout) -> list[int]:
    """Places of the newest ticks and of the newest changes of driver."""
    place = _place(layout, "source")
    sources = [_whole(body, place) for body in bodies]
    changes = [i for i in range(1, len(sources)) if sources[i] != sources[i - 1]]
    newest = range(max(0, len(bodies) - DECISIONS), len(bodies))
    return sorted({*changes[-CHANGES:], *newest})


def _place(layout: RecordLayout, name: str) -> slice:
    """Where a whole number stands in a record, to read it without decoding the rest."""
    fields = layout.dtype.fields
    assert fields is not None  # noqa: S101  (a structured type)
    kind, offset = fields[name][:2]
    return slice(offset, offset + kind.itemsize)


def _whole(body: bytes, place: slice) -> int:
    return int.from_bytes(body[place], "little")


def _decision(
    layout: RecordLayout, tick: TickRecord, following: TickRecord | None, before: Source
) -> dict[str, Any]:
    lines = []
    for line in explain_tick(layout, tick, following):
        stage, _, words = line.partition(":")
        lines.append([stage.strip(), words.strip()] if words else ["", line])
    return {
        "tick": tick.sequence,
        "wall_s": tick.wall_ns / 1e9,
        "plant_s": tick.observation.time_s,
        "source": tick.source.name.lower(),
        "words": DRIVERS[tick.source],
        "changed_from": "" if before == tick.source else before.name.lower(),
        "codes": sorted(str(code) for code in tick.reasons),
        "lines": lines[1:],
        "complete": following is not None,
    }


def _event(event: Event) -> dict[str, Any]:
    """One event for people; without a text it says nothing to them."""
    data = event.data if isinstance(event.data, Mapping) else {}
    if is_dataclass(event.data) and not isinstance(event.data, type):
        data = {name: getattr(event.data, name) for name in event.data.__dataclass_fields__}
    text = str(data.get("text", "") or _SAID.get(event.event, ""))
    if event.event in _TOLD:
        text = _TOLD[event.event].format_map(_Missing(data))
    severity = data.get("severity")
    return {
        "wall_s": event.wall_ns / 1e9,
        "tick": event.tick,
        "event": event.event,
        "code": str(data.get("code", "")),
        "severity": "" if severity is None else str(getattr(severity, "name", severity)).lower(),
        "actor": str(data.get("actor", "")),
        "text": text,
    }


class _Missing(dict[str, Any]):
    """Fields that an event does not have are empty."""

    def __missing__(self, key: str) -> str:
        return ""


_SAID = {"Start": "the runtime starts, not controlling", "Stop": "the runtime stops"}
_TOLD = {
    "Shelved": "alarm {alarm} is shelved: {reason}",
    "Unshelved": "alarm {alarm} is back from the shelf",
    "ShelfExpired": "alarm {alarm} is back from the shelf: its time is over",
    "SwapAsked": "swap to {file} asked for: {reason}",
    "Swapped": "{new} instead of {old}",
    "StopAsked": "stop asked for: {reason}",
    "CommandRefused": "refused ({code}): {command}: {text}",
}
"""Words for events that carry none."""
