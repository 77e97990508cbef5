"""The table of reactions: what each reason code does to who drives, and what the operator reads.

Faults are rows, not branches: adding a fault is adding a row. The mode machine only looks up what a
code demands in the present situation; the most restrictive demand wins.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from math import isnan, nan
from types import MappingProxyType

from steadyhand.controllers.frames import Fault, Source
from steadyhand.controllers.reasons import ReasonCode


class Situation(IntEnum):
    """What the runtime is doing when the code turns up."""

    WATCHING = 0
    """Mode off, shadow or advisory: nothing is written."""
    DRIVING = 1
    """Policy, fallback or hold drives, or may drive next."""
    LAST_RESORT = 2
    """The safe set-point drives: the only thing left to fall back to is the plant itself."""


class Severity(IntEnum):
    """How loudly a person is told."""

    LOG = 0
    WARNING = 1
    ALARM = 2
    CRITICAL = 3


@dataclass(frozen=True, slots=True)
class Effect:
    """Reaction to one code in one situation."""

    demand: Source
    """Nothing less restrictive than this may drive while the code is present."""
    latch_after: int
    """0: clears by itself; k: after k ticks with the code it stays until acknowledged."""
    severity: Severity
    alarm: str
    """What the operator reads, in words."""
    action: str
    """What the operator should do."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing worth a record: a change, a request, a refusal, a latch."""

    time_s: float
    code: ReasonCode
    severity: Severity
    text: str
    actor: str = ""
    signal: str = ""
    value: float = nan
    limit: float = nan


@dataclass(frozen=True, slots=True)
class Transition:
    """A change of who drives, with its first cause."""

    time_s: float
    before: Source
    after: Source
    mode: str
    cause: Fault
    severity: Severity
    text: str
    action: str


# code: (demand, severity, latch_after, alarm, action)
_Row = tuple[Source, Severity, int, str, str]
_POLICY, _FALLBACK, _HOLD, _SAFE, _OFF = Source
_LOG, _WARNING, _ALARM, _CRITICAL = Severity

_NONE = "none needed"
_SENSOR = "check the sensor and its wiring; the heuristic drives meanwhile"
_SERVER = "check the plant server and the network; the plant's own control has it meanwhile"
_SLOW = "check the plant server and the network"
_IDENTITY = "find out which server answered before you acknowledge"
_RENEW = "make a new one and give it to both sides: see docs/security.md"
_LOAD = "find what slowed this machine down"
_MODEL = "look at the policy's last inputs; swap or roll back the bundle if it repeats"
_TRUST = "none at once; if it repeats, the plant has left what the policy was trained on"
_FILTER = "look at the constraints named in the filter's report"
_PORT = "stop what listens there, or give it another port and restart; it is tried again"
_WRITING = "check access rights and the output's own interlocks in the plant"

_ROWS: Mapping[ReasonCode, _Row] = {
    ReasonCode.OK: (_POLICY, _LOG, 0, "all is well", _NONE),
    # the link
    ReasonCode.LINK_DOWN: (_OFF, _ALARM, 0, "link to the plant is down", _SERVER),
    ReasonCode.LINK_TIMEOUT: (_OFF, _ALARM, 0, "the plant does not answer", _SERVER),
    ReasonCode.LINK_FLAP: (_OFF, _ALARM, 0, "link to the plant comes and goes", _SERVER),
    ReasonCode.LINK_INSECURE: (
        _POLICY,
        _WARNING,
        0,
        "link to the plant is not encrypted and signed",
        "give the server and this runtime certificates",
    ),
    # The session ends with its channel and a new one is made: the link's state says who drives.
    ReasonCode.CHANNEL_RENEW_FAIL: (
        _POLICY,
        _WARNING,
        0,
        "the secure channel to the plant could not be renewed; a new one is made",
        "none at once; if it repeats, check the plant server and the network",
    ),
    ReasonCode.NO_SESSION_SLOT: (
        _OFF,
        _ALARM,
        0,
        "the plant's server has no session left for us",
        "close a client that is not needed; it is tried again every half minute",
    ),
    ReasonCode.SERVER_BUSY: (
        _POLICY,
        _WARNING,
        0,
        "the plant's server refuses requests because it is busy",
        "find out what loads it; what gets too old meanwhile is told by itself",
    ),
    ReasonCode.CLOCK_OFFSET: (
        _POLICY,
        _WARNING,
        0,
        "the clocks of the plant's server and of this machine disagree",
        "set the wrong one right; ages are corrected meanwhile",
    ),
    ReasonCode.NS_REMAP: (_OFF, _WARNING, 0, "the server re-ordered its namespaces", _NONE),
    ReasonCode.TAG_MISSING: (_OFF, _ALARM, 0, "a tag is gone from the server", _SERVER),
    ReasonCode.TAG_TYPE: (_OFF, _ALARM, 1, "a tag changed its data type", _IDENTITY),
    ReasonCode.SERVER_ID: (_OFF, _CRITICAL, 1, "another server answers", _IDENTITY),
    ReasonCode.SERVER_STATE: (_OFF, _ALARM, 0, "the plant's server is not running", _SERVER),
    # Certificates end on a date that everybody knows: a session that runs goes on, a new one does
    # not begin, and then the link's state says who drives.
    ReasonCode.CERT_EXPIRING: (_POLICY, _WARNING, 0, "a certificate ends soon", _RENEW),
    ReasonCode.CERT_EXPIRED: (_POLICY, _ALARM, 0, "a certificate has expired", _RENEW),
    ReasonCode.CERT_CHANGED: (
        _OFF,
        _CRITICAL,
        1,
        "the server shows another certificate, which is not trusted",
        "compare its fingerprint on site before you trust it, then acknowledge",
    ),
    ReasonCode.SUB_STALE: (_FALLBACK, _WARNING, 0, "the subscription went silent", _SLOW),
    ReasonCode.SAMPLE_BAD: (_FALLBACK, _WARNING, 0, "a measurement has bad quality", _SENSOR),
    ReasonCode.SAMPLE_UNCERTAIN: (
        _FALLBACK,
        _WARNING,
        0,
        "a measurement has uncertain quality",
        _SENSOR,
    ),
    ReasonCode.SAMPLE_TYPE: (_FALLBACK, _WARNING, 0, "a measurement is not a number", _SENSOR),
    ReasonCode.TAG_FORCED: (
        _FALLBACK,
        _WARNING,
        0,
        "a measurement is forced in the plant",
        "take the force off in the PLC; the heuristic drives meanwhile",
    ),
    ReasonCode.TAG_FORCED_USED: (
        _POLICY,
        _WARNING,
        0,
        "a measurement is forced in the plant, and used as the configuration says",
        "take the force off in the PLC when the work there is done",
    ),
    # measurements
    ReasonCode.OBS_NONFINITE: (_FALLBACK, _ALARM, 0, "a measurement is not finite", _SENSOR),
    ReasonCode.OBS_RANGE: (_FALLBACK, _ALARM, 0, "a measurement is out of range", _SENSOR),
    ReasonCode.OBS_STUCK: (_FALLBACK, _WARNING, 0, "a measurement does not move", _SENSOR),
    ReasonCode.OBS_STALE: (_FALLBACK, _WARNING, 0, "a measurement is too old", _SENSOR),
    ReasonCode.OBS_RATE: (_FALLBACK, _WARNING, 0, "a measurement jumped", _SENSOR),
    ReasonCode.OBS_TS_INVALID: (_FALLBACK, _WARNING, 0, "a time stamp is impossible", _SLOW),
    ReasonCode.OBS_REPEAT: (_HOLD, _WARNING, 0, "no new data from the plant", _SLOW),
    ReasonCode.OBS_MISSING: (_FALLBACK, _ALARM, 0, "a measurement is missing", _SENSOR),
    # The filter needs the same measurements, so nothing that it certifies from them is to be had.
    ReasonCode.OBS_XCHECK: (
        _SAFE,
        _ALARM,
        1,
        "measurements contradict each other",
        "find out which of them is wrong, then acknowledge; the plant stands at its safe set-point",
    ),
    # time
    ReasonCode.TICK_LATE: (_HOLD, _WARNING, 0, "this tick came too late to be written", _LOAD),
    ReasonCode.TICK_OVERRUN: (_FALLBACK, _ALARM, 0, "ticks overrun again and again", _LOAD),
    ReasonCode.TICK_GAP: (_HOLD, _ALARM, 0, "the runtime was paused", _LOAD),
    ReasonCode.HOLD_EXPIRED: (_SAFE, _ALARM, 0, "the last value was held long enough", _LOAD),
    ReasonCode.CLOCK_STEP: (
        _POLICY,
        _WARNING,
        0,
        "this machine's clock was set",
        "none where somebody set it; else look at the time service. Ticks and ages do not follow "
        "it, dates in the record do",
    ),
    # the policy
    ReasonCode.POLICY_ABSENT: (
        _FALLBACK,
        _WARNING,
        0,
        "there is no answer of a policy",
        "see the text: load a bundle, or wait for its process",
    ),
    ReasonCode.ACT_NONFINITE: (_FALLBACK, _ALARM, 3, "the policy's answer is not finite", _MODEL),
    ReasonCode.ACT_RANGE: (_POLICY, _WARNING, 0, "the policy asks for more than there is", _MODEL),
    ReasonCode.ACT_CONST: (
        _POLICY,
        _WARNING,
        0,
        "the policy answers the same whatever it sees",
        _MODEL,
    ),
    ReasonCode.INFER_ERROR: (_FALLBACK, _ALARM, 0, "the policy failed", _MODEL),
    ReasonCode.INFER_LATE: (_FALLBACK, _WARNING, 0, "the policy answered too late", _LOAD),
    ReasonCode.INFER_CRASH: (_FALLBACK, _ALARM, 0, "the policy's process died", _MODEL),
    ReasonCode.INFER_HANG: (_FALLBACK, _ALARM, 0, "the policy's process hangs", _MODEL),
    ReasonCode.PROVIDER_FALLBACK: (
        _POLICY,
        _WARNING,
        0,
        "the policy does not run where it was asked to",
        "check the accelerator and its driver",
    ),
    ReasonCode.MEM_RECYCLE: (
        _POLICY,
        _WARNING,
        0,
        "the policy's process grew too large and was replaced",
        "none at once; if it repeats, report it with the bundle",
    ),
    ReasonCode.CRASH_LOOP: (
        _FALLBACK,
        _CRITICAL,
        1,
        "the policy crashes again and again; it is not started any more",
        "look at what it did, roll back the bundle if need be, then acknowledge",
    ),
    # trust
    ReasonCode.GATE_CONFIDENCE: (_FALLBACK, _WARNING, 0, "the policy is not confident", _TRUST),
    ReasonCode.GATE_OOD: (_FALLBACK, _WARNING, 0, "the plant is outside the training data", _TRUST),
    ReasonCode.GATE_FAULT: (
        _FALLBACK,
        _ALARM,
        0,
        "a trust monitor is broken, so nothing is trusted",
        "check the monitor data of the bundle",
    ),
    ReasonCode.GATE_PROBATION: (_FALLBACK, _LOG, 0, "the policy is on probation", _NONE),
    # safety
    ReasonCode.FILTER_SHAPED: (_POLICY, _LOG, 0, "the command was shaped", _NONE),
    ReasonCode.FILTER_BLENDED: (_POLICY, _LOG, 0, "the command was blended with the backup", _NONE),
    ReasonCode.FILTER_BACKUP: (_FALLBACK, _WARNING, 0, "the filter took its backup", _FILTER),
    ReasonCode.FILTER_INFEASIBLE: (_SAFE, _ALARM, 0, "no command keeps all limits", _FILTER),
    ReasonCode.FILTER_SLACK: (_POLICY, _WARNING, 0, "a soft limit was given up", _FILTER),
    ReasonCode.FILTER_STOPPED: (_SAFE, _ALARM, 0, "the filter came to no answer", _FILTER),
    ReasonCode.FILTER_RECOVER: (_FALLBACK, _ALARM, 0, "the plant is outside its safe set", _FILTER),
    ReasonCode.FILTER_NONFINITE: (_SAFE, _ALARM, 0, "the filter met a number not finite", _FILTER),
    ReasonCode.FILTER_BYPASS: (
        _OFF,
        _CRITICAL,
        1,
        "what was written is not what the filter certified",
        "stop this runtime and report it",
    ),
    ReasonCode.LIMIT_CLIPPED: (_POLICY, _LOG, 0, "the command was cut to the limits", _NONE),
    ReasonCode.FALLBACK_FAIL: (
        _SAFE,
        _ALARM,
        0,
        "the heuristic failed",
        "check the measurements the heuristic needs",
    ),
    # actuation
    ReasonCode.WRITE_FAILED: (_HOLD, _ALARM, 0, "a write failed", _WRITING),
    ReasonCode.WRITE_DENIED: (_OFF, _ALARM, 1, "the plant refuses our writes", _WRITING),
    ReasonCode.WRITE_PARTIAL: (_SAFE, _ALARM, 0, "only part of a command was written", _WRITING),
    ReasonCode.WRITE_UNKNOWN: (_HOLD, _WARNING, 0, "it is not known if a write arrived", _WRITING),
    ReasonCode.WRITE_LATE: (
        _POLICY,
        _WARNING,
        0,
        "the command before is not answered yet, seconds",
        "find what delays the network or the plant's server",
    ),
    ReasonCode.WRITE_STALE_DROP: (_HOLD, _WARNING, 0, "a command too old was dropped", _SLOW),
    ReasonCode.WRITE_CLAMPED: (_POLICY, _WARNING, 0, "the plant cut our command", _WRITING),
    ReasonCode.WRITE_CONTENTION: (
        _OFF,
        _ALARM,
        1,
        "someone else writes our output",
        "find the second writer, then acknowledge",
    ),
    ReasonCode.ACT_NOFOLLOW: (_FALLBACK, _ALARM, 0, "the actuator does not follow", _WRITING),
    ReasonCode.FEEDBACK_INVALID: (
        _OFF,
        _ALARM,
        0,
        "what the plant says it applies cannot be right",
        "check the read-back of the output, its unit and its sign",
    ),
    ReasonCode.OUTPUT_OUT: (
        _POLICY,
        _LOG,
        0,
        "the plant keeps an output to itself",
        "none; give it back in the plant when it may be driven again",
    ),
    ReasonCode.PARTIAL_UNSAFE: (
        _OFF,
        _ALARM,
        1,
        "the outputs left to us cannot keep all limits",
        "give back in the plant what it keeps, then acknowledge",
    ),
    # people and the service
    ReasonCode.NOT_GRANTED: (_OFF, _LOG, 0, "the plant does not grant control", "grant it there"),
    ReasonCode.MODE_REQUEST: (_POLICY, _LOG, 0, "another mode was asked for", _NONE),
    ReasonCode.MODE_FLAP: (
        _FALLBACK,
        _ALARM,
        1,
        "control changed hands too often",
        "find the cause, then acknowledge",
    ),
    ReasonCode.NO_EVIDENCE: (
        _POLICY,
        _WARNING,
        0,
        "mode full is refused: no go-live evidence",
        "see docs/commission.md: shadow first, then `steadyhand evidence make`",
    ),
    ReasonCode.EVIDENCE_ENDS: (
        _POLICY,
        _WARNING,
        0,
        "the go-live evidence ends: after it, a restart comes up without mode full",
        "make new evidence from the journals; see docs/commission.md",
    ),
    ReasonCode.NOT_RESUMED: (
        _POLICY,
        _WARNING,
        0,
        "less is in force than was asked for before the restart",
        "ask for the mode again, or for the one in force to leave it at that",
    ),
    ReasonCode.OVERRIDE_ENDS: (
        _POLICY,
        _WARNING,
        0,
        "an override ends soon",
        "set it again if it has to go on",
    ),
    ReasonCode.OVERRIDE: (_POLICY, _LOG, 0, "an operator overrides an output", _NONE),
    ReasonCode.OVERRIDE_EXPIRED: (_POLICY, _WARNING, 0, "an override came to its end", _NONE),
    ReasonCode.HANDBACK: (_POLICY, _LOG, 0, "control was handed back", _NONE),
    ReasonCode.ACK: (_POLICY, _LOG, 0, "latched faults were acknowledged", _NONE),
    ReasonCode.ACK_DENIED: (_POLICY, _WARNING, 0, "acknowledgement refused", "remove the cause"),
    ReasonCode.SWAP: (_POLICY, _LOG, 0, "another bundle drives", _NONE),
    ReasonCode.SWAP_REFUSED: (_POLICY, _WARNING, 0, "a bundle was refused", "see the reason given"),
    ReasonCode.START: (_OFF, _LOG, 0, "the runtime starts, not controlling", _NONE),
    ReasonCode.STOP: (_OFF, _LOG, 0, "the runtime stops", _NONE),
    ReasonCode.RECOVERED: (_POLICY, _LOG, 0, "the cause is gone", _NONE),
    ReasonCode.RESTART: (
        _POLICY,
        _WARNING,
        0,
        "the run before did not end in order",
        "look at the service manager's log",
    ),
    ReasonCode.WATCHDOG_PREV: (
        _POLICY,
        _ALARM,
        0,
        "the run before hung and was ended by the watchdog",
        "look at the stacks in the service manager's log, and report them",
    ),
    ReasonCode.OOM_PREV: (
        _POLICY,
        _ALARM,
        0,
        "the run before ran out of memory",
        "find what takes this machine's memory",
    ),
    ReasonCode.STATE_LOST: (
        _FALLBACK,
        _ALARM,
        1,
        "overrides and latched faults of the run before are not known",
        "look whether an output was in somebody's hand or a fault not cleared, then acknowledge",
    ),
    ReasonCode.CFG_RELOAD: (
        _POLICY,
        _LOG,
        0,
        "the configuration was looked at again",
        "see the text: a changed file is taken over by a restart",
    ),
    ReasonCode.ENV_VERSION: (
        _POLICY,
        _WARNING,
        0,
        "a library has another version than it was tested with",
        "install the versions of constraints.txt, or run `make test` with the ones that are there",
    ),
    ReasonCode.AUDIT_DEGRADED: (
        _POLICY,
        _ALARM,
        0,
        "the journal, or what has to outlive a restart, does not get to disk",
        "free space on the journal's disk; it is tried again",
    ),
    ReasonCode.AUDIT_REQUIRED: (
        _FALLBACK,
        _ALARM,
        0,
        "records do not get to disk, and without a record the policy may not drive",
        "free space on the journal's disk; see journal.required",
    ),
    ReasonCode.TASK_DIED: (_HOLD, _ALARM, 0, "a part control depends on died", "restart"),
    ReasonCode.OPERATOR_DOWN: (
        _POLICY,
        _WARNING,
        0,
        "there is no operator's socket, so the command line reaches nobody",
        "free space on its disk; it is tried again",
    ),
    ReasonCode.METRICS_DOWN: (_POLICY, _WARNING, 0, "the metrics are not served", _PORT),
    ReasonCode.PANEL_DOWN: (_POLICY, _WARNING, 0, "the panel is not served", _PORT),
    ReasonCode.SCADA_DOWN: (
        _POLICY,
        _WARNING,
        0,
        "the OPC UA server for SCADA does not run",
        "free its port if that is what the text says; else none, it starts again by itself",
    ),
    ReasonCode.SCADA_INSECURE: (
        _POLICY,
        _WARNING,
        0,
        "anyone on the network may command this loop over OPC UA",
        "give the server and its clients certificates; see docs/scada.md",
    ),
}

_TRUST_ONLY = frozenset(
    {
        ReasonCode.POLICY_ABSENT,
        ReasonCode.ACT_NONFINITE,
        ReasonCode.INFER_ERROR,
        ReasonCode.INFER_LATE,
        ReasonCode.INFER_CRASH,
        ReasonCode.INFER_HANG,
        ReasonCode.GATE_CONFIDENCE,
        ReasonCode.GATE_OOD,
        ReasonCode.GATE_FAULT,
        ReasonCode.GATE_PROBATION,
        ReasonCode.MODE_FLAP,
    }
)
"""Codes about a proposal that nobody uses while we only watch: recorded, no demand, no latch."""

_WRITE_BROKEN = frozenset(
    {
        ReasonCode.WRITE_FAILED,
        ReasonCode.WRITE_PARTIAL,
        ReasonCode.WRITE_UNKNOWN,
    }
)
"""Codes that say the safe set-point itself may not have arrived: only the plant is left."""


def _effect(code: ReasonCode, row: _Row, situation: Situation) -> Effect:
    demand, severity, latch_after, alarm, action = row
    if situation is Situation.WATCHING and code in _TRUST_ONLY:
        return Effect(_POLICY, 0, min(severity, _WARNING), alarm, action)
    if situation is Situation.LAST_RESORT and code in _WRITE_BROKEN:
        return Effect(_OFF, 1, _CRITICAL, f"the safe set-point is not written: {alarm}", action)
    return Effect(demand, latch_after, severity, alarm, action)


EFFECTS: Mapping[tuple[ReasonCode, Situation], Effect] = MappingProxyType(
    {
        (code, situation): _effect(code, row, situation)
        for code, row in _ROWS.items()
        for situation in Situation
    }
)
"""What each code does in each situation. Complete: every code, every situation."""


def effect_of(code: ReasonCode, situation: Situation) -> Effect:
    """Reaction to `code` in `situation`."""
    return EFFECTS[code, situation]


def describe(fault: Fault, alarm: str) -> str:
    """One line for people: the alarm's words, the signal, its value and limit, the detail."""
    parts = [alarm]
    if fault.signal:
        parts.append(f"({fault.signal})")
    if not isnan(fault.value):
        parts.append(f"value {fault.value:.6g}")
    if not isnan(fault.limit):
        parts.append(f"limit {fault.limit:.6g}")
    line, text = " ".join(parts), detail(fault.signal, fault.text)
    return f"{line}: {text}" if text else line


def detail(signal: str, text: str) -> str:
    """`text` without the signal it begins with, for where the signal is named already."""
    return text.removeprefix(f"{signal}: ") if signal else text
