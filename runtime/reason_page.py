"""docs/reasons.md: every reason code for whoever is called, made from the table of reactions.

`steadyhand reasons --markdown > docs/reasons.md` makes the page; a test compares.
"""

from collections.abc import Iterator, Mapping

from steadyhand.controllers.frames import Source
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime.events import EFFECTS, Effect, Severity, Situation

_GROUPS: Mapping[ReasonCode, str] = {
    ReasonCode.OK: "All is well",
    ReasonCode.LINK_DOWN: "The link",
    ReasonCode.OBS_NONFINITE: "Measurements",
    ReasonCode.TICK_LATE: "Time",
    ReasonCode.POLICY_ABSENT: "The policy",
    ReasonCode.GATE_CONFIDENCE: "Trust",
    ReasonCode.FILTER_SHAPED: "Safety",
    ReasonCode.WRITE_FAILED: "Actuation",
    ReasonCode.NOT_GRANTED: "People and the service",
}
"""Headings, by the code that each begins with."""
_DOES: Mapping[Source, str] = {
    Source.POLICY: "the policy may go on driving",
    Source.FALLBACK: "the heuristic drives",
    Source.HOLD: "the last value is held",
    Source.SAFE: "the safe set-point is held",
    Source.HANDS_OFF: "hands off: the plant has its own control",
}
_TOLD: Mapping[Severity, str] = {
    Severity.LOG: "record only",
    Severity.WARNING: "warning",
    Severity.ALARM: "alarm",
    Severity.CRITICAL: "critical",
}
_RUNBOOKS: Mapping[str, str] = {
    "LINK_INSECURE": "LinkInsecure",
    "LINK_": "LinkDown",
    "NO_SESSION_SLOT": "LinkDown",
    "SERVER_STATE": "LinkDown",
    "SERVER_ID": "Latched",
    "TAG_TYPE": "Latched",
    "TAG_MISSING": "LinkDown",
    "CERT_CHANGED": "Latched",
    "CERT_": "CertificateExpires",
    "SUB_STALE": "MeasurementFault",
    "SAMPLE_": "MeasurementFault",
    "OBS_": "MeasurementFault",
    "TICK_": "Overruns",
    "INFER_LATE": "PolicyShareLow",
    "INFER_": "PolicyRestarts",
    "CRASH_LOOP": "PolicyRestarts",
    "GATE_OOD": "Unfamiliar",
    "GATE_": "PolicyShareLow",
    "FILTER_RECOVER": "OutsideLimits",
    "FILTER_INFEASIBLE": "FilterNoAnswer",
    "FILTER_STOPPED": "FilterNoAnswer",
    "FILTER_NONFINITE": "FilterNoAnswer",
    "FILTER_BYPASS": "Latched",
    "FILTER_": "FilterBusy",
    "WRITE_CONTENTION": "Latched",
    "WRITE_": "WritesFailing",
    "NOT_GRANTED": "NotGranted",
    "SWAP_REFUSED": "BundleRefused",
    "RESTART": "Restarts",
    "WATCHDOG_PREV": "Restarts",
    "OOM_PREV": "Restarts",
    "AUDIT_DEGRADED": "JournalDegraded",
    "TASK_DIED": "Restarts",
    "NOT_RESUMED": "NotResumed",
    "EVIDENCE_ENDS": "EvidenceExpires",
    "SCADA_INSECURE": "ScadaInsecure",
    "SCADA_DOWN": "ScadaDown",
}
"""Where a code, or all that begin so, is gone into; the first that fits counts."""
_BY_DEMAND: Mapping[Source, str] = {
    Source.FALLBACK: "OnFallback",
    Source.HOLD: "LastResort",
    Source.SAFE: "LastResort",
    Source.HANDS_OFF: "HandsOff",
}
_SILENT = "none needed"
_HEAD = """\
# Reason codes

Every word by which status, panel, SCADA, metrics and journal say *why*. A code never changes its
meaning. This page is made from the table that the runtime itself works with, by
`steadyhand reasons --markdown`. On the machine, `steadyhand reasons OBS_STUCK` says it of one.

- **What the loop does**: nothing that trusts the controller more may drive while the code is there;
  of several codes, the most restrictive counts. In the modes off, shadow and advisory nothing is
  written anyway, and codes marked with ° are recorded there and no more.
- **Latches**: whether it stays after its cause is gone, until a person acknowledges it with
  `steadyhand ack`. All others clear by themselves.
- **Told as**: how loudly. Warnings stand in the list of alarms while they last; alarms and critical
  ones until a person has acknowledged them, too.

Refusals of files have words of their own, which stand beside the text that explains them: `CFG_`
(configuration), `BUNDLE_` (bundle), `GO_LIVE_` (evidence), `AUDIT_` (the journal's disk).
"""


def page() -> str:
    """The page, ending in a line break."""
    parts = [_HEAD]
    for code in ReasonCode:
        if title := _GROUPS.get(code):
            parts.append(f"\n## {title}\n\n{_row(_COLUMNS)}{_row(['---'] * len(_COLUMNS))}")
        parts.append(_row(_cells(code)))
    return "".join(parts)


def in_words(code: ReasonCode) -> Iterator[tuple[str, str]]:
    """What stands on the page about one code, as pairs of heading and text."""
    yield from zip(_COLUMNS, _plain_cells(code), strict=True)


_COLUMNS = (
    "Code", "What it means", "What the loop does", "Latches", "Told as", "What to do", "Runbook",
)  # fmt: skip


def _plain_cells(code: ReasonCode) -> list[str]:
    effect = EFFECTS[code, Situation.DRIVING]
    return [
        str(code),
        effect.alarm,
        _does(code, effect),
        _latches(effect),
        _TOLD[effect.severity],
        "nothing" if effect.action == _SILENT else effect.action,
        runbook(code),
    ]


def _cells(code: ReasonCode) -> list[str]:
    name, *texts, book = _plain_cells(code)
    mark = "°" if _only_recorded_while_watching(code) else ""
    linked = f"[{book}](runbooks/Steadyhand{book}.md)" if book else ""
    return [f'<a id="{name.lower()}"></a>`{name}`{mark}', *texts, linked]


def _only_recorded_while_watching(code: ReasonCode) -> bool:
    return EFFECTS[code, Situation.WATCHING] != EFFECTS[code, Situation.DRIVING]


def _does(code: ReasonCode, effect: Effect) -> str:
    last = EFFECTS[code, Situation.LAST_RESORT]
    text = _DOES[effect.demand]
    if last.demand is not effect.demand:
        text += f"; at the safe set-point already: {_DOES[last.demand]}"
        text += ", latched" if last.latch_after and not effect.latch_after else ""
    return text


def _latches(effect: Effect) -> str:
    if effect.latch_after == 0:
        return "no"
    return "at once" if effect.latch_after == 1 else f"after {effect.latch_after} ticks"


def runbook(code: ReasonCode) -> str:
    """The runbook that goes into `code`, without the name of the product; empty for none."""
    for beginning, name in _RUNBOOKS.items():
        if code.startswith(beginning):
            return name
    effect = EFFECTS[code, Situation.DRIVING]
    if effect.severity is Severity.LOG:
        return ""
    return "Latched" if effect.latch_after else _BY_DEMAND.get(effect.demand, "")


def _row(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |\n"
