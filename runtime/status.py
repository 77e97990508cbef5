"""What a running service says of itself: at its start, on one line, and as plain data."""

import time
from typing import TYPE_CHECKING, Any

from steadyhand.controllers.frames import Fault, Source
from steadyhand.runtime.alarms import Alarm, Shelf
from steadyhand.runtime.config_link import OpcUaLink
from steadyhand.runtime.config_schema import Config
from steadyhand.runtime.events import EFFECTS, Severity, describe
from steadyhand.runtime.go_live import Basis, record_name
from steadyhand.runtime.loop import STAGES, Tick
from steadyhand.runtime.modes import Mode, ModeMachine
from steadyhand.runtime.priority import Priority

if TYPE_CHECKING:
    from steadyhand.runtime.service import Service

_DRIVERS = {
    Source.FALLBACK: "the heuristic drives, not the policy",
    Source.HOLD: "the last value is held",
    Source.SAFE: "the safe set-point is held",
    Source.HANDS_OFF: "hands off, the plant has its own control",
}
_PRIORITIES = {
    Severity.LOG: Priority.INFO,
    Severity.WARNING: Priority.WARNING,
    Severity.ALARM: Priority.ERROR,
    Severity.CRITICAL: Priority.CRITICAL,
}


def introduction(service: "Service") -> str:
    """What is being run, one line each, for whoever started it."""
    config, loaded, doors = service.config, service.loaded, service.doors
    controller = record_name(service.first.bundle)
    if service.first.bundle is None:
        controller = f"none: the heuristic {config.fallback.heuristic} drives"
    asked = service.modes.asked
    other = asked is not None and asked != config.modes.initial
    before = f" (before the restart {asked} was asked for)" if other else ""
    shown = "none"
    if doors.metrics is not None and doors.metrics.address is not None:
        host, port = doors.metrics.address
        shown = f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"
    socket = config.operator and loaded.path(config.operator.socket)
    scale = config.clock.time_scale
    lines = {
        "plant": f"{config.name} ({config.plant.id}) at {address(config)}",
        "period": f"{config.period:g} s of plant time, {config.period / scale:g} s here",
        "bundle": controller,
        "mode": f"{config.modes.initial}{before}",
        "go-live": service.go_live.words(service.serving.bundle),
        "operator": socket or "none",
        "metrics": shown,
        "panel": doors.panel.url or "not now" if doors.panel is not None else "none",
        "scada": doors.scada.url if doors.scada is not None else "none",
        "journal": loaded.path(config.journal.directory),
    }
    head = "steadyhand runs; Ctrl-C or SIGTERM hands the plant back\n"
    return head + "\n".join(f"  {name:9} {text}" for name, text in lines.items())


def words(service: "Service", tick: Tick) -> str:
    """Who drives and why nobody better does, on one line."""
    modes, audit = service.modes, service.journal.fault()
    if tick.source is Source.POLICY:
        line = f"{service.serving.label} drives, confidence {tick.verdict.confidence:.2f}"
    else:
        cause = modes.why(False)[0]
        alarm = EFFECTS[cause.code, modes.situation].alarm
        line = f"{_DRIVERS[tick.source]}: {cause.code}: {describe(cause, alarm)}"
    tail = f"; {audit.text}" if audit is not None else ""
    proof = " without go-live evidence" * _unproven(service)
    return f"{line}; mode {modes.mode}{proof}{tail}"


def _unproven(service: "Service") -> bool:
    """Is mode full open by the long word alone, and asked for?"""
    return service.modes.mode is Mode.FULL and service.serving.basis is Basis.WITHOUT


def remedy(service: "Service", tick: Tick, cause: Fault) -> str:
    """What a person should do, where something should be done."""
    effect = EFFECTS[cause.code, service.modes.situation]
    asked = loudness(service, tick, cause) < Priority.INFO
    return f"; to do: {effect.action}" if asked else ""


def loudness(service: "Service", tick: Tick, cause: Fault) -> Priority:
    """How loudly a person is told who drives: nothing is wrong while the policy does."""
    if tick.source is Source.POLICY:
        return Priority.INFO
    return _PRIORITIES[EFFECTS[cause.code, service.modes.situation].severity]


def status(service: "Service", tick: Tick) -> dict[str, Any]:
    """What `steadyhand status` shows; plain data that does not change any more."""
    modes, observation, plant = service.modes, tick.observation, service.plant
    report = tick.certified.report if tick.certified is not None else None
    rows = plant.kind.constraints(plant.parameters).names
    stored, audit = service.journal.status, service.journal.fault()
    return {
        "name": service.config.name,
        "tick": tick.number,
        "time_s": observation.time_s,
        "now_s": tick.now_s,
        "mode": str(modes.mode),
        "asked": None if modes.asked is None else str(modes.asked),
        "source": tick.source.name.lower(),
        "cause": {
            "code": str(modes.cause.code),
            "signal": modes.cause.signal,
            "text": modes.cause.text,
        },
        "why": None if tick.source is Source.POLICY else _told(modes),
        "clean": [modes.clean_ticks, modes.settings.n_clean],
        "link": str(observation.link),
        "granted": observation.granted,
        "handshake": str(tick.control),
        "taken_out": list(service.loop.handshake.taken_out),
        "participation": service.loop.handshake.participation(
            tick.source, [item.output for item in modes.overrides]
        ),
        "trusted": tick.verdict.trusted,
        "gate": str(tick.verdict.state),
        "confidence": tick.verdict.confidence,
        "faults": [
            {"code": str(fault.code), "signal": fault.signal, "text": fault.text}
            for fault in (*tick.faults, *tick.verdict.faults)
        ],
        "latched": [str(code) for code in modes.latches],
        "alarms": [_shown(alarm, service.alarms.shelf(alarm)) for alarm in service.alarms],
        "shelved": [
            {
                "code": str(item.code),
                "owner": item.owner,
                "reason": item.reason,
                "expires_s": item.expires_s,
            }
            for item in service.alarms.shelves
        ],
        "overrides": [
            {
                "output": item.output,
                "value": item.value,
                "unit": plant.outputs.signals[plant.outputs.index(item.output)].unit,
                "owner": item.owner,
                "reason": item.reason,
                "expires_s": item.expires_s,
                "until_wall_s": time.time()
                + (item.expires_s - tick.now_s) / service.config.clock.time_scale,
            }
            for item in modes.overrides
        ],
        "observations": plant.plant.observations.mapping(observation.values),
        "applied": plant.outputs.mapping(observation.applied),
        "proposed": plant.outputs.mapping(tick.proposal.action),
        "wanted": plant.outputs.mapping(tick.wanted),
        "sent": plant.outputs.mapping(tick.sent.action),
        "written": tick.sent.written,
        "filter": None
        if report is None
        else {
            "mode": report.mode.name.lower(),
            "outcome": report.outcome.name.lower(),
            "margin": report.margin,
            "nearest": rows[report.margin_row] if report.margin_row >= 0 else "",
            "active": [rows[i] for i in report.active],
            "correction_share": report.correction_share,
        },
        "bundle": service.serving.label,
        "controller": record_name(service.serving.bundle),
        "swap": service.serving.last_swap,
        "alarm": service.serving.alarm,
        "go_live": service.go_live.words(service.serving.bundle),
        "unproven": _unproven(service),
        "certificates": service.watches.certificates.view(),
        "journal": {
            "fault": audit.text if audit is not None else "",
            "records": stored.records,
            "head": stored.head.hash.hex(),
            "end": f"{stored.head.segment}:{stored.head.records}:{stored.head.hash.hex()}",
        },
        "timings_s": dict(zip(STAGES, tick.timings, strict=True)),
    }


def address(config: Config) -> str:
    """Where the plant is."""
    return config.link.endpoint if isinstance(config.link, OpcUaLink) else "its own equations"


def _told(modes: ModeMachine) -> dict[str, Any]:
    """First cause of the policy not driving, in words."""
    cause = modes.why(unchanged=True)[0]
    effect = EFFECTS[cause.code, modes.situation]
    return {
        "code": str(cause.code),
        "severity": effect.severity.name.lower(),
        "signal": cause.signal,
        "text": describe(cause, effect.alarm),
        "action": effect.action,
    }


def _shown(alarm: Alarm, shelf: Shelf | None) -> dict[str, Any]:
    """One alarm as the status shows it."""
    return {
        "code": str(alarm.code),
        "severity": alarm.severity.name.lower(),
        "text": alarm.text,
        "action": alarm.action,
        "since_s": alarm.since_s,
        "signals": list(alarm.signals),
        "active": alarm.active,
        "latched": alarm.latched,
        "unacknowledged": alarm.unacknowledged,
        "shelved": shelf is not None,
    }
