"""One tick in words: what was seen, proposed, believed, decided, changed and sent, and why."""

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from math import isfinite, isnan

from steadyhand.controllers.errors import JournalError
from steadyhand.controllers.frames import (
    Certified,
    Fault,
    FilterMode,
    FilterOutcome,
    ProposalStatus,
    Quality,
    Source,
)
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.signals import Signal, SignalSet, Vector
from steadyhand.runtime.events import EFFECTS, Situation, describe
from steadyhand.runtime.reader import EventRecord, JournalReader
from steadyhand.runtime.record import RecordLayout, TickRecord
from steadyhand.runtime.spans import plant_time, span

_MOVE = re.compile(r"^\w+ -> (\w+): ")
DRIVERS = {
    Source.POLICY: "the policy drives",
    Source.FALLBACK: "the heuristic drives",
    Source.HOLD: "the last value is held",
    Source.SAFE: "the safe set-point drives",
    Source.HANDS_OFF: "nothing is driven: the plant's own control has it",
}
"""Who drives, in words."""
_WANTED = {
    Source.POLICY: "the policy's proposal",
    Source.FALLBACK: "the heuristic",
    Source.HOLD: "holding what is applied",
    Source.SAFE: "the safe set-point",
    Source.HANDS_OFF: "following what the plant applies",
}
_FILTER = {
    FilterMode.PASS: "let the command pass unchanged",
    FilterMode.SHAPED: "changed the command as little as the constraints allow",
    FilterMode.BLENDED: "blended the command with the plant's backup",
    FilterMode.BACKUP: "took the plant's backup instead of the command",
}
_OUTCOME = {
    FilterOutcome.SOLVED: "solved",
    FilterOutcome.SOLVED_WITH_SLACK: "solved, giving way on soft constraints",
    FilterOutcome.INFEASIBLE: "no command keeps all constraints",
    FilterOutcome.TIME_OUT: "no answer in time",
    FilterOutcome.NONFINITE: "a number was not finite",
    FilterOutcome.OUTSIDE_SET: "the plant was outside its safe set already",
    FilterOutcome.UNUSABLE: "a measurement that the constraints need is not good",
    FilterOutcome.UNUSABLE: "a measurement it needs is not good",
}


def _wish(tick: TickRecord) -> str:
    """Where the wish came from; a mode that only looks at proposals has them filtered."""
    watched = tick.source is Source.HANDS_OFF and tick.operator_mode in ("shadow", "advisory")
    answered = tick.proposal is not None and tick.proposal.status is ProposalStatus.OK
    if watched and answered:
        return "the policy's proposal, which is only looked at"
    return _WANTED[tick.source]


def explain(journal: JournalReader, sequence: int) -> str:
    """Why the command of tick `sequence` was what it was.

    Raises:
        JournalError: there is no such tick; the message names the range there is.
    """
    segment, tick = journal.tick(sequence)
    try:
        _, following = journal.tick(sequence + 1)
    except JournalError:
        following = None
    cause = _last_move(journal.events_backwards(segment), tick)
    owners = _owners(journal.events_backwards(segment), tick)
    return "\n".join(explain_tick(segment.layout, tick, following, cause, owners))


def explain_tick(
    layout: RecordLayout,
    tick: TickRecord,
    following: TickRecord | None = None,
    cause: str = "",
    owners: Mapping[str, str] | None = None,
) -> list[str]:
    """One line per stage.

    Args:
        layout: names and units.
        tick: the tick.
        following: the next tick, whose read-back tells if the plant followed.
        cause: text of the last change of driver up to this tick.
        owners: who overrides, by output; the tick itself tells value and reason.
    """
    when = datetime.fromtimestamp(tick.wall_ns / 1e9, UTC).isoformat(timespec="milliseconds")
    lines = [
        f"tick {tick.sequence}, {when}, plant time {plant_time(tick.observation.time_s)}, "
        f"mode {tick.operator_mode}, controller {tick.bundle or 'none'}",
        *_plant(layout, tick),
        *_policy(layout, tick),
        *_trust(layout, tick),
        f"driver:  {DRIVERS[tick.source]}" + (f"; last change: {cause}" if cause else ""),
        f"wanted:  {_wanted(layout.outputs, tick, owners or {})}",
        *_filter(layout, tick),
        *_sent(layout, tick, following),
    ]
    if tick.faults:
        lines += _faults("noted", tick.faults)
    if tick.reasons:
        lines.append(f"codes:   {', '.join(sorted(tick.reasons))}")
    return lines


def _last_move(backwards: Iterator[EventRecord], tick: TickRecord) -> str:
    """Text of the last change of driver at or before the tick."""
    for event in backwards:
        text = str(event.data.get("text", ""))
        time_s = event.data.get("time_s")
        early = event.tick <= tick.sequence + 1 and (time_s is None or time_s <= tick.now_s)
        if early and _MOVE.match(text):
            return text
    return ""


def _owners(backwards: Iterator[EventRecord], tick: TickRecord) -> dict[str, str]:
    """Who set the overrides that the tick names, by output."""
    missing = {fault.signal for fault in tick.faults if fault.code is ReasonCode.OVERRIDE}
    owners: dict[str, str] = {}
    for event in backwards if missing else ():
        if event.data.get("code") != ReasonCode.OVERRIDE or event.tick > tick.sequence + 1:
            continue
        signal, time_s = str(event.data.get("signal", "")), event.data.get("time_s")
        if signal in missing and (time_s is None or time_s <= tick.now_s):
            missing.remove(signal)
            owners[signal] = str(event.data.get("actor", ""))
            if not missing:
                break
    return owners


def _number(value: float, signal: Signal) -> str:
    return "unknown" if isnan(value) else f"{value:.6g} {signal.unit}"


def _values(signals: SignalSet, vector: Vector) -> str:
    return ", ".join(
        f"{signal.name} = {_number(float(value), signal)}"
        for signal, value in zip(signals, vector, strict=True)
    )


def _faults(label: str, faults: tuple[Fault, ...]) -> list[str]:
    label = f"{label}:"
    return [
        f"{label:<8} {fault.code}: {describe(fault, EFFECTS[fault.code, Situation.DRIVING].alarm)}"
        for fault in faults
    ]


def _plant(layout: RecordLayout, tick: TickRecord) -> list[str]:
    observation = tick.observation
    granted = "granted" if observation.granted else "not granted"
    bad = [
        f"{signal.name} ({Quality(int(quality)).name.lower()}, {age:.3g} s old)"
        for signal, quality, age in zip(
            layout.observations, observation.quality, observation.age_s, strict=True
        )
        if quality != Quality.GOOD
    ]
    state = f"not good: {', '.join(bad)}" if bad else "all measurements good"
    line = f"plant:   link {observation.link}, control {granted}, {state}"
    return [line, *_faults("plant", observation.faults)]


def _policy(layout: RecordLayout, tick: TickRecord) -> list[str]:
    proposal = tick.proposal
    if proposal is None or proposal.status is ProposalStatus.ABSENT:
        found = () if proposal is None else proposal.faults
        return ["policy:  was not asked or is absent", *_faults("policy", found)]
    if proposal.status is not ProposalStatus.OK:
        why = f": {proposal.text}" if proposal.text else ""
        line = f"policy:  no usable answer ({proposal.status.name.lower()}{why})"
        return [line, *_faults("policy", proposal.faults)]
    return [
        f"policy:  {_values(layout.outputs, proposal.action)} "
        f"(predicted return {proposal.value:.4g} ± {proposal.error:.3g}, "
        f"after {1e3 * proposal.latency_s:.3g} ms)",
        *_faults("policy", proposal.faults),
    ]


def _trust(layout: RecordLayout, tick: TickRecord) -> list[str]:
    verdict = tick.verdict
    if verdict is None:
        return ["trust:   was not judged"]
    word = "trusted" if verdict.trusted else "not trusted"
    scores = ", ".join(
        f"{name} {score:.3g}" for name, score in zip(layout.monitors, verdict.scores, strict=False)
    )
    line = f"trust:   {word}, confidence {verdict.confidence:.3g}, gate in state {verdict.state}"
    line += f"; scores (1 alarms): {scores}" if scores else ""
    return [line, *_faults("trust", verdict.faults)]


def _wanted(outputs: SignalSet, tick: TickRecord, owners: Mapping[str, str]) -> str:
    """What went into the filter, each output with where it came from."""
    overrides = {
        fault.signal: fault
        for fault in tick.faults
        if fault.code is ReasonCode.OVERRIDE
        and fault.signal in outputs.names
        and tick.wanted[outputs.index(fault.signal)] == fault.value
    }
    told, rest = [], []
    for signal, value in zip(outputs, tick.wanted, strict=True):
        text = f"{signal.name} = {_number(float(value), signal)}"
        held = overrides.get(signal.name)
        if held is None:
            rest.append(text)
        else:
            owner = owners.get(signal.name) or "a person"
            told.append(f"{text}, from the override of {owner} (reason {held.text})")
    if rest:
        held_there = [name in overrides for name in outputs.names]
        told.append(f"{', '.join(rest)}, from {_wish(tick)}{_on_the_way(tick, held_there)}")
    return "; ".join(told)


def _on_the_way(tick: TickRecord, overridden: list[bool]) -> str:
    """What is wanted is not the proposal although the policy drives: say so."""
    proposal = tick.proposal
    if tick.source is not Source.POLICY or proposal is None:
        return ""
    pairs = zip(tick.wanted, proposal.action, overridden, strict=True)
    same = all(held or wanted == proposed for wanted, proposed, held in pairs)
    leash = " or the leash of mode limited" if tick.operator_mode == "limited" else ""
    return "" if same else f", after the ramp of a take-over{leash}"


def _filter(layout: RecordLayout, tick: TickRecord) -> list[str]:
    certified = tick.certified
    if certified is None:
        return ["filter:  was not asked"]
    report = certified.report
    lines = [
        f"filter:  {_FILTER[report.mode]} ({_OUTCOME[report.outcome]}): "
        f"{_values(layout.outputs, certified.action)}{_change(layout, tick, certified)}"
    ]
    lines += [
        f"bound:   {layout.rows[row]} (k = {report.k[row]:.4g}, 0 is the limit; "
        f"multiplier {report.multiplier[row]:.3g})"
        for row in report.active
    ]
    if 0 <= report.margin_row < len(layout.rows):
        nearest = f"nearest: {layout.rows[report.margin_row]}, margin {report.margin:.4g}"
        if isfinite(report.time_to_boundary_s):
            nearest += f", its limit {span(report.time_to_boundary_s)} away"
        lines.append(nearest)
    for signal, value in zip(layout.outputs, certified.action, strict=True):
        for word, bound in (("lowest", signal.low), ("highest", signal.high)):
            if value == bound:
                lines.append(f"limit:   {signal.name} is at its {word} value, {bound:g}")
    return [*lines, *_faults("filter", certified.faults)]


def _change(layout: RecordLayout, tick: TickRecord, certified: Certified) -> str:
    changes = [
        f"{signal.name} by {after - before:+.4g} {signal.unit}"
        for signal, before, after in zip(layout.outputs, tick.wanted, certified.action, strict=True)
        if after != before and isfinite(after - before)
    ]
    share = certified.report.correction_share
    if not changes:
        return ""
    text = f"; moved {', '.join(changes)}"
    return text + (f" ({100 * share:.3g} % of the input set)" if isfinite(share) else "")


def _sent(layout: RecordLayout, tick: TickRecord, following: TickRecord | None) -> list[str]:
    sent, outputs = tick.sent, layout.outputs
    lines = []
    if sent is None or not sent.written:
        lines.append("sent:    nothing")
    else:
        lines.append(f"sent:    {_values(outputs, sent.action)}, as command {sent.sequence}")
    if sent is not None:
        lines += _faults("sent", sent.faults)
    lines.append(f"applied: {_values(outputs, tick.observation.applied)}, when the tick began")
    if following is not None:
        applied = following.observation.applied
        lines.append(f"then:    {_values(outputs, applied)}, read back by the next tick")
    return lines
