"""The information model as data: object types with their variables, parts and methods.

One table for three uses: the NodeSet file, the nodes of the running server, and the documentation.
Names and types only ever grow: what is here keeps its name and its meaning.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from steadyhand.controllers.frames import FilterMode, FilterOutcome, LinkState, Source
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.trust.gate import GateState
from steadyhand.runtime.events import EFFECTS, Severity, Situation
from steadyhand.runtime.handshake import Control, Participation
from steadyhand.runtime.modes import Mode
from steadyhand.runtime.operator_protocol import Role

TYPES_URI = "urn:steadyhand:types"
MODEL_VERSION = "1.3.0"
MODEL_DATE = "2026-11-30T00:00:00Z"


def loop_uri(name: str) -> str:
    """Namespace of the nodes of one loop."""
    return f"urn:steadyhand:loop:{name}"


@dataclass(frozen=True, slots=True)
class Variable:
    """One value."""

    name: str
    kind: str
    """Built-in type: Boolean, Byte, UInt32, UInt64, Double, String, DateTime."""
    meaning: str
    array: bool = False
    choices: tuple[str, ...] = ()
    """The value is a number of one of these (MultiStateDiscreteType)."""
    analog: bool = False
    """Has unit and range (AnalogItemType)."""
    unit: str = ""
    """Of an analog; empty: the plant's signal gives it."""
    low: float = 0.0
    high: float = 0.0


@dataclass(frozen=True, slots=True)
class Argument:
    """One input of a method."""

    name: str
    kind: str
    meaning: str
    key: str
    """Its name on the desk."""
    choices: tuple[str, ...] = ()
    """It is one of these."""


@dataclass(frozen=True, slots=True)
class Method:
    """Something a client can ask for; it becomes a command on the desk."""

    name: str
    command: str
    role: Role
    meaning: str
    arguments: tuple[Argument, ...] = ()
    subject: str = ""
    """The desk's name for the object the method hangs on: an output."""


@dataclass(frozen=True, slots=True)
class Part:
    """An object of one of the types."""

    name: str
    type: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Many:
    """As many members as the plant has signals."""

    name: str
    """Placeholder, in angle brackets."""
    member: "Part | Variable"


Member = Variable | Method | Part | Many


@dataclass(frozen=True, slots=True)
class ObjectType:
    """One type of object."""

    name: str
    meaning: str
    members: tuple[Member, ...]


RESULTS = (
    Argument("Code", "String", "OK, or the code of the refusal", ""),
    Argument("Text", "String", "what was done, or why not and what to do", ""),
)
"""Outputs of every method, also beside a bad StatusCode."""


def _names(kind: type[Source | FilterMode | FilterOutcome]) -> tuple[str, ...]:
    return tuple(item.name.lower() for item in kind)


MODES = tuple(str(mode) for mode in Mode)
SOURCES = _names(Source)
LINKS = tuple(str(state) for state in LinkState)
CONTROLS = tuple(str(state) for state in Control)
GATES = tuple(str(state) for state in GateState)
ACTIONS = _names(FilterMode)
OUTCOMES = _names(FilterOutcome)
TAKING_PART = tuple(str(one) for one in Participation)
_REASON = Argument("Reason", "String", "why; goes into the journal with your name", "reason")
_FOR = Argument("Duration", "Double", "how long, plant seconds (at most a day)", "for_s")
_CODE = Argument("Code", "String", "reason code of the alarm, such as OBS_STALE", "code")


def _analog(name: str, meaning: str) -> Variable:
    return Variable(name, "Double", meaning, analog=True)


def _choice(name: str, choices: tuple[str, ...], meaning: str) -> Variable:
    return Variable(name, "UInt32", meaning, choices=choices)


def _text(name: str, meaning: str) -> Variable:
    return Variable(name, "String", meaning)


def _list(name: str, meaning: str, kind: str = "String") -> Variable:
    return Variable(name, kind, meaning, array=True)


def _share(name: str, meaning: str) -> Variable:
    return Variable(name, "Double", meaning, analog=True, unit="1", low=0.0, high=1.0)


_LOOP = ObjectType(
    "LoopType",
    "One control loop: who drives, why, how near the limits.",
    (
        _text("Plant", "type of the plant"),
        _text("Version", "version of steadyhand"),
        Variable("PeriodSeconds", "Double", "period of the loop, plant seconds"),
        Variable("Tick", "UInt64", "number of the last tick; grows also across restarts"),
        Variable("Time", "DateTime", "when the last tick ended; all values are of that moment"),
        Variable("PlantTimeSeconds", "Double", "plant time of the last tick"),
        Part("Mode", "ModeType", "who drives, and who should"),
        Part("Handshake", "HandshakeType", "plant and controller watch each other"),
        Part("Trust", "TrustType", "is the policy believed?"),
        Part("Safety", "SafetyType", "what the safety filter did, and how near the limits are"),
        Part("Outputs", "OutputsType", "what is driven"),
        Part("Observations", "ObservationsType", "what was read, with its quality"),
        Part("Alarms", "AlarmsType", "what wants to be looked at"),
        Part("Bundle", "BundleType", "the controller"),
        Part("Decision", "DecisionType", "the last tick in words"),
        Part("Journal", "JournalType", "the record"),
        Part("Health", "HealthType", "the runtime itself"),
        Part("LastCommand", "CommandType", "the last command that came in here"),
        Method("Stop", "stop", Role.OPERATE, "hand the plant back and end", (_REASON,)),
    ),
)
_MODE = ObjectType(
    "ModeType",
    "The operator asks for a mode; plant and trust grant who drives.",
    (
        _choice("Asked", MODES, "asked for last, perhaps before a restart; no data: by nobody yet"),
        _choice("InForce", MODES, "in force now"),
        _choice("Source", SOURCES, "who drives"),
        _text("ReasonCode", "why it is not less restricted: the code"),
        _text("ReasonSignal", "the signal that the reason is about"),
        _text("ReasonText", "the reason in words"),
        Method(
            "Request",
            "mode",
            Role.OPERATE,
            "ask for a mode; less authority holds from the next tick, more has to be earned",
            (Argument("Mode", "String", f"one of {', '.join(MODES)}", "mode", MODES), _REASON),
        ),
    ),
)
_HANDSHAKE = ObjectType(
    "HandshakeType",
    "The plant grants control; heartbeats in both directions.",
    (
        _choice("Link", LINKS, "state of the connection to the plant"),
        _choice("State", CONTROLS, "how far control is: asked for, prepared, held, lost"),
        Variable("Granted", "Boolean", "does the plant grant control?"),
        Variable("Written", "Boolean", "was the last command handed to the plant?"),
        Variable("ControllerHeartbeat", "UInt32", "ours, as last handed over"),
        Variable("PlantHeartbeat", "UInt32", "the plant's, as last seen"),
    ),
)
_TRUST = ObjectType(
    "TrustType",
    "The gate between the policy and the plant.",
    (
        Variable("Trusted", "Boolean", "is the policy believed?"),
        _choice("Gate", GATES, "state of the gate"),
        _share("Confidence", "calibrated confidence in the policy's proposal"),
    ),
)
_SAFETY = ObjectType(
    "SafetyType",
    "The safety filter's report of the last tick.",
    (
        _choice("Action", ACTIONS, "what it did to the command"),
        _choice("Outcome", OUTCOMES, "how it came to its answer"),
        Variable("Margin", "Double", "smallest distance to a limit, scaled; negative is outside"),
        _text("NearestLimit", "name of that limit"),
        _list("ActiveLimits", "limits that bound the command"),
        _share("Correction", "size of the change as a share of the input set"),
    ),
)
_OUTPUTS = ObjectType(
    "OutputsType",
    "One object per manipulated variable.",
    (Many("<Output>", Part("<Output>", "OutputType", "one manipulated variable")),),
)
_OUTPUT = ObjectType(
    "OutputType",
    "One manipulated variable: request, feedback, participation.",
    (
        _analog("Request", "sent last to the plant"),
        _analog("Feedback", "what the plant says it applies"),
        _analog("Proposed", "what the policy wants"),
        _analog("Wanted", "what went into the safety filter"),
        _analog("LimitLow", "lowest value allowed here"),
        _analog("LimitHigh", "highest value allowed here"),
        _choice("Participation", TAKING_PART, "who this output follows now"),
        Variable("OverrideActive", "Boolean", "does a person hold this output?"),
        _analog("OverrideValue", "the value it is held at"),
        _text("OverrideOwner", "who holds it"),
        _text("OverrideReason", "why"),
        Variable("OverrideUntil", "DateTime", "when the override ends by itself"),
        Method(
            "SetOverride",
            "override",
            Role.OPERATE,
            "hold this output at a value for a time; the limits still apply",
            (Argument("Value", "Double", "in the unit of Request", "value"), _FOR, _REASON),
            subject="output",
        ),
        Method(
            "ClearOverride",
            "clear-override",
            Role.OPERATE,
            "give this output back to whoever drives",
            subject="output",
        ),
    ),
)
_OBSERVATIONS = ObjectType(
    "ObservationsType",
    "The process image of the last tick.",
    (Many("<Observation>", Variable("<Observation>", "Double", "one measurement", analog=True)),),
)
SEVERITIES = ("none", *(str(one.name.lower()) for one in Severity if one is not Severity.LOG))
FLAGS = tuple(
    str(code)
    for code in ReasonCode
    if any(EFFECTS[code, situation].severity is not Severity.LOG for situation in Situation)
)
"""Every reason code that is an alarm in some situation."""
_FLAGS = ObjectType(
    "AlarmFlagsType",
    "One lamp per alarm, for screens that know no alarms and conditions.",
    tuple(
        Variable(name, "Boolean", EFFECTS[ReasonCode(name), Situation.DRIVING].alarm)
        for name in FLAGS
    ),
)
_ALARMS = ObjectType(
    "AlarmsType",
    "Alarms, the most serious first; entries with the same place belong together.",
    (
        Variable("Shown", "UInt32", "alarms that are not shelved"),
        _choice("Highest", SEVERITIES, "the most serious, there or latched, that is not shelved"),
        Part("Flags", "AlarmFlagsType", "one Boolean per alarm: there or latched, not shelved?"),
        Variable("Unacknowledged", "UInt32", "alarms that stay until they are acknowledged"),
        _list("Codes", "reason codes"),
        _list("Severities", "warning, alarm or critical"),
        _list("States", "active, latched, unacknowledged, shelved, and what of these together"),
        _list("Texts", "first cause, in words"),
        _list("Actions", "what to do"),
        _list("Since", "when it came", "DateTime"),
        _list("ShelvedCodes", "reason codes that are shelved, also while they are not there"),
        _list("ShelvedBy", "who shelved them"),
        _list("ShelvedReasons", "why"),
        _list("ShelvedUntil", "when that ends by itself", "DateTime"),
        Method(
            "Acknowledge",
            "ack",
            Role.OPERATE,
            "acknowledge an alarm; one that is latched once its cause is gone",
            (Argument("Code", "String", "reason code; empty: all that wait for it", "code"),),
        ),
        Method(
            "Shelve",
            "shelve",
            Role.OPERATE,
            "move an alarm out of the way; reaction, journal and metrics stay as they are",
            (_CODE, _FOR, _REASON),
        ),
        Method("Unshelve", "unshelve", Role.OPERATE, "put a shelved alarm back", (_CODE,)),
    ),
)
_BUNDLE = ObjectType(
    "BundleType",
    "The signed bundle that proposes.",
    (
        _text("Name", "name of the bundle; empty: there is none"),
        Variable("Number", "UInt32", "its version, which only grows"),
        _text("Hash", "SHA-256 of its manifest"),
        _text("Signer", "key that signed it"),
        Variable("Expires", "DateTime", "not valid after"),
        _text("Alarm", "why it is not the configured one; empty when it is"),
        _text("GoLive", "what lets it into mode full, or keeps it out"),
        Method(
            "Swap",
            "swap",
            Role.ENGINEER,
            "exchange the controller; the old one stays if the new one is refused",
            (
                Argument("File", "String", "the bundle's file on the runtime's machine", "file"),
                _REASON,
            ),
        ),
    ),
)
_DECISION = ObjectType(
    "DecisionType",
    "Why the last command was what it was.",
    (
        Variable("Tick", "UInt64", "the tick explained"),
        _list("Explanation", "one line per stage: plant, policy, trust, driver, filter, sent"),
    ),
)
_JOURNAL = ObjectType(
    "JournalType",
    "The record of every decision.",
    (
        _text("Fault", "what is wrong with the record; empty: nothing"),
        Variable("Records", "UInt64", "records safely stored"),
        _text("Head", "hash of the newest record: whoever notes it sees later if any was cut off"),
    ),
)
_HEALTH = ObjectType(
    "HealthType",
    "The runtime itself.",
    (
        Variable("Level", "Byte", "as the server's ServiceLevel: 255 all is well, 0 stopping"),
        _text("Text", "who drives and why not the policy, in one line"),
        Variable("CertificateExpires", "DateTime", "end of this server's own certificate"),
    ),
)
_COMMAND = ObjectType(
    "CommandType",
    "One command and what came of it.",
    (
        Variable("Time", "DateTime", "when"),
        _text("Actor", "who"),
        _text("Command", "what"),
        _text("Code", "OK, or the code of the refusal"),
        _text("Text", "what was done, or why not"),
    ),
)
TYPES: Mapping[str, ObjectType] = {
    kind.name: kind
    for kind in (
        _MODE, _HANDSHAKE, _TRUST, _SAFETY, _OUTPUT, _OUTPUTS, _OBSERVATIONS, _FLAGS, _ALARMS,
        _BUNDLE, _DECISION, _JOURNAL, _HEALTH, _COMMAND, _LOOP,
    )
}  # fmt: skip
"""Every type, in the order of the NodeSet file: parts before the whole."""
