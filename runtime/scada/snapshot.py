"""What the loop told after a tick, as values of the nodes. Runs in the server's thread."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import Any

from steadyhand.controllers.frames import LinkState, Quality, Source
from steadyhand.controllers.signals import SignalSet
from steadyhand.runtime.bundle.load import Bundle
from steadyhand.runtime.explain import explain_tick
from steadyhand.runtime.record import RecordLayout, TickRecord
from steadyhand.runtime.scada.model import (
    ACTIONS,
    CONTROLS,
    FLAGS,
    GATES,
    LINKS,
    MODES,
    OUTCOMES,
    SEVERITIES,
    SOURCES,
    TAKING_PART,
)
from steadyhand.runtime.scada.space import BAD, GOOD, NO_DATA, UNCERTAIN, Reading

Readings = dict[str, Reading]
_QUALITIES = {Quality.GOOD: GOOD, Quality.UNCERTAIN: UNCERTAIN, Quality.BAD: BAD}
STALE_AFTER = 3.0
"""Periods without a tick after which values are only the last usable ones."""
LEVELS = {
    Source.POLICY: 255,
    Source.FALLBACK: 230,
    Source.HOLD: 180,
    Source.SAFE: 120,
}
"""ServiceLevel by who drives. From 200 on the service is healthy (OPC 10000-4, 6.6.2.4.2): the
heuristic in charge is as planned, a held or safe value is not."""
WATCHING, NOT_GRANTED, NO_LINK, NO_TICKS, STARTING, STOPPING = 200, 150, 50, 10, 1, 0
DEGRADED_RECORD = 199
"""At most, while the journal cannot be kept."""


@dataclass(frozen=True, slots=True, eq=False)
class Told:
    """What the loop left behind after a tick."""

    status: Mapping[str, Any]
    wall_s: float
    monotonic_s: float
    head: int
    """Number of the next record."""
    heartbeats: tuple[int, int]
    """Ours and the plant's; -1 where there is none."""


@dataclass(frozen=True, slots=True)
class Site:
    """What does not change while the runtime lives."""

    name: str
    plant: str
    version: str
    period_s: float
    time_scale: float
    layout: RecordLayout
    certificate_expires: datetime | None


def service_level(status: Mapping[str, Any]) -> int:
    """Our health as the server's ServiceLevel, 0 to 255."""
    if status["link"] != LinkState.UP:
        return NO_LINK
    source = Source[str(status["source"]).upper()]
    level = LEVELS.get(source)
    if level is None:
        driving = not {status["mode"], status["asked"]}.isdisjoint(("limited", "full"))
        level = NOT_GRANTED if driving else WATCHING
    return min(level, DEGRADED_RECORD) if status["journal"]["fault"] else level


def readings(
    told: Told, record: TickRecord | None, site: Site, bundle: Bundle | None, level: int
) -> Readings:
    """Every variable that follows from a tick."""
    status = told.status
    cause = status["cause"]
    clock = Clock(told, site.time_scale)
    made: Readings = {
        "Plant": Reading(site.plant),
        "Version": Reading(site.version),
        "PeriodSeconds": Reading(site.period_s),
        "Tick": Reading(status["tick"]),
        "Time": Reading(clock.now),
        "PlantTimeSeconds": _number(status["time_s"]),
        "Mode.Asked": _choice(MODES, status["asked"]),
        "Mode.InForce": _choice(MODES, status["mode"]),
        "Mode.Source": _choice(SOURCES, status["source"]),
        "Mode.ReasonCode": Reading(cause["code"]),
        "Mode.ReasonSignal": Reading(cause["signal"]),
        "Mode.ReasonText": Reading(_reason(status)),
        "Handshake.Link": _choice(LINKS, status["link"]),
        "Handshake.State": _choice(CONTROLS, status["handshake"]),
        "Handshake.Granted": Reading(bool(status["granted"])),
        "Handshake.Written": Reading(bool(status["written"])),
        "Handshake.ControllerHeartbeat": _count(told.heartbeats[0]),
        "Handshake.PlantHeartbeat": _count(told.heartbeats[1]),
        "Trust.Trusted": Reading(bool(status["trusted"])),
        "Trust.Gate": _choice(GATES, status["gate"]),
        "Trust.Confidence": _number(status["confidence"]),
        "Journal.Fault": Reading(status["journal"]["fault"]),
        "Journal.Records": Reading(status["journal"]["records"]),
        "Journal.Head": Reading(status["journal"]["head"]),
        "Health.Level": Reading(level),
        "Health.Text": Reading(_health(status)),
        "Health.CertificateExpires": Reading(site.certificate_expires),
    }
    made |= _safety(status)
    made |= _alarms(status, clock)
    made |= _bundle(status, bundle)
    for name, signal in zip(site.layout.outputs.names, site.layout.outputs, strict=True):
        made |= dict(_output(f"Outputs.{name}", name, signal.low, signal.high, status, clock))
    made |= _observations(site.layout.observations, status, record)
    if record is not None:
        made["Decision.Tick"] = Reading(record.sequence)
        made["Decision.Explanation"] = Reading(explain_tick(site.layout, record))
    return made


def aged(made: Readings) -> Readings:
    """The same values, as the last usable ones: the loop has said nothing for too long."""
    return {
        path: Reading(reading.value, UNCERTAIN) if reading.status == GOOD else reading
        for path, reading in made.items()
        if reading.value is not None
    }


class Clock:
    """From plant time to the wall's."""

    def __init__(self, told: Told, time_scale: float) -> None:
        self.now = datetime.fromtimestamp(told.wall_s, UTC)
        self._now_s = float(told.status["now_s"])
        self._scale = time_scale

    def at(self, plant_s: float) -> datetime:
        """When it is, or was, that time at the plant; far ends are cut."""
        away_s = (plant_s - self._now_s) / self._scale
        return self.now + timedelta(seconds=min(max(away_s, -1e9), 1e9))


def _number(value: Any) -> Reading:  # noqa: ANN401
    """A finite number, or no data: a client must never mistake NaN for a value."""
    if value is None or not isfinite(value):
        return Reading(None, NO_DATA)
    return Reading(float(value))


def _count(value: int) -> Reading:
    return Reading(None, NO_DATA) if value < 0 else Reading(value & 0xFFFFFFFF)


def _choice(choices: tuple[str, ...], value: str | None) -> Reading:
    return Reading(choices.index(value)) if value in choices else Reading(None, NO_DATA)


def _reason(status: Mapping[str, Any]) -> str:
    why = status.get("why")
    return str(why["text"]) if why else str(status["cause"]["text"])


def _health(status: Mapping[str, Any]) -> str:
    text = f"mode {status['mode']}, {status['source']} drives, link {status['link']}"
    reason = _reason(status)
    return f"{text}: {status['cause']['code']}{f' ({reason})' if reason else ''}"


def _safety(status: Mapping[str, Any]) -> Readings:
    report = status["filter"]
    if report is None:
        names = ("Action", "Outcome", "Margin", "NearestLimit", "ActiveLimits", "Correction")
        return {f"Safety.{name}": Reading(None, NO_DATA) for name in names}
    return {
        "Safety.Action": _choice(ACTIONS, report["mode"]),
        "Safety.Outcome": _choice(OUTCOMES, report["outcome"]),
        "Safety.Margin": _number(report["margin"]),
        "Safety.NearestLimit": Reading(report["nearest"]),
        "Safety.ActiveLimits": Reading(list(report["active"])),
        "Safety.Correction": _number(report["correction_share"]),
    }


def _alarms(status: Mapping[str, Any], clock: Clock) -> Readings:
    alarms, shelved = status["alarms"], status["shelved"]
    states = [
        " and ".join(
            word for word in ("active", "latched", "unacknowledged", "shelved") if alarm[word]
        )
        for alarm in alarms
    ]
    shown = [alarm for alarm in alarms if not alarm["shelved"]]
    lit = {one["code"]: one["severity"] for one in shown if one["active"] or one["latched"]}
    highest = max((SEVERITIES.index(severity) for severity in lit.values()), default=0)
    flags = {f"Alarms.Flags.{name}": Reading(name in lit) for name in FLAGS}
    return flags | {
        "Alarms.Shown": Reading(len(shown)),
        "Alarms.Highest": Reading(highest),
        "Alarms.Unacknowledged": Reading(sum(bool(alarm["unacknowledged"]) for alarm in alarms)),
        "Alarms.Codes": Reading([alarm["code"] for alarm in alarms]),
        "Alarms.Severities": Reading([alarm["severity"] for alarm in alarms]),
        "Alarms.States": Reading(states),
        "Alarms.Texts": Reading([alarm["text"] for alarm in alarms]),
        "Alarms.Actions": Reading([alarm["action"] for alarm in alarms]),
        "Alarms.Since": Reading([clock.at(alarm["since_s"]) for alarm in alarms]),
        "Alarms.ShelvedCodes": Reading([item["code"] for item in shelved]),
        "Alarms.ShelvedBy": Reading([item["owner"] for item in shelved]),
        "Alarms.ShelvedReasons": Reading([item["reason"] for item in shelved]),
        "Alarms.ShelvedUntil": Reading([clock.at(item["expires_s"]) for item in shelved]),
    }


def _bundle(status: Mapping[str, Any], bundle: Bundle | None) -> Readings:
    made = {"Bundle.Alarm": Reading(status["alarm"]), "Bundle.GoLive": Reading(status["go_live"])}
    if bundle is None:
        return made | {
            "Bundle.Name": Reading(""),
            "Bundle.Number": Reading(None, NO_DATA),
            "Bundle.Hash": Reading(""),
            "Bundle.Signer": Reading(""),
            "Bundle.Expires": Reading(None, NO_DATA),
        }
    manifest = bundle.manifest
    return made | {
        "Bundle.Name": Reading(manifest.name),
        "Bundle.Number": Reading(manifest.version),
        "Bundle.Hash": Reading(bundle.manifest_sha256),
        "Bundle.Signer": Reading(bundle.signer),
        "Bundle.Expires": Reading(manifest.not_after),
    }


def _output(
    path: str, name: str, low: float, high: float, status: Mapping[str, Any], clock: Clock
) -> Iterator[tuple[str, Reading]]:
    held = next((item for item in status["overrides"] if item["output"] == name), None)
    fresh = status["link"] == LinkState.UP
    for label, key in (("Request", "sent"), ("Proposed", "proposed"), ("Wanted", "wanted")):
        yield f"{path}.{label}", _number(status[key][name])
    feedback = _number(status["applied"][name])
    if not fresh and feedback.status == GOOD:
        feedback = Reading(feedback.value, UNCERTAIN)
    yield f"{path}.Feedback", feedback
    yield f"{path}.LimitLow", Reading(low)
    yield f"{path}.LimitHigh", Reading(high)
    yield f"{path}.Participation", _choice(TAKING_PART, status["participation"][name])
    yield f"{path}.OverrideActive", Reading(held is not None)
    yield f"{path}.OverrideValue", _number(None if held is None else held["value"])
    yield f"{path}.OverrideOwner", Reading("" if held is None else held["owner"])
    yield f"{path}.OverrideReason", Reading("" if held is None else held["reason"])
    until = None if held is None else clock.at(held["expires_s"])
    yield f"{path}.OverrideUntil", Reading(until)


def _observations(
    signals: SignalSet, status: Mapping[str, Any], record: TickRecord | None
) -> Readings:
    made = {}
    for i, name in enumerate(signals.names):
        reading = _number(status["observations"][name])
        if reading.status == GOOD and record is not None:
            quality = _QUALITIES[Quality(int(record.observation.quality[i]))]
            reading = Reading(reading.value, quality)
        made[f"Observations.{name}"] = reading
    return made
