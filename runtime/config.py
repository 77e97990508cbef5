"""The one YAML file of a plant engineer: its schema, and reading it with every problem named.

Nothing here opens a connection or a bundle: `check.py` looks at what the file points to.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from steadyhand.adapters.input_file import CREDENTIALS
from steadyhand.adapters.opcua.settings import INSECURE_WORD
from steadyhand.controllers.errors import ConfigError
from steadyhand.runtime.quantity import quantity
from steadyhand.runtime.yaml_source import MAX_BYTES, Problem, Source, read_yaml
from steadyhand.runtime.yaml_source import Path as FieldPath

SCHEMA_VERSION = 1
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,62}$")]
SignalName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")]
NodeText = Annotated[str, Field(min_length=1, max_length=512)]
HostName = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]{0,252}[a-z0-9])?(:[0-9]{1,5})?$")]
CREDENTIAL = "${" + CREDENTIALS + "}"
"""How the name of a file begins that is a credential of the service."""
CREDENTIALS_FOLDER = "credentials"
"""Where credentials lie beside a configuration: systemd takes them from there."""


QUICK_WORD = "i_accept_a_controller_that_was_trained_for_seconds"
UNPROVEN_WORD = "i_accept_that_nothing_shows_what_this_controller_does_to_this_plant"
"""Does without go-live evidence."""


def _only_credentials(text: str) -> str:
    """Refuse a variable that would be taken for a folder's name, and a credential with folders."""
    name = text.removeprefix(f"{CREDENTIAL}/")
    if "${" in name or (name != text and ("/" in name or name in (".", ".."))):
        raise refuse(
            "CFG_FILE",
            f"{text!r}: only {CREDENTIAL}/NAME is understood; other variables are not replaced",
        )
    return text


FileText = Annotated[
    str,
    Field(min_length=1, max_length=4096, pattern=r"^[^\x00]+$"),
    AfterValidator(_only_credentials),
]
Count = Annotated[int, Field(ge=1, le=100_000)]
DAY_S = 86_400.0
MIB = 2.0**20
SHORTEST_PERIOD_S = 1e-3
Period: Any = quantity("s", 1e-3, DAY_S)
Request: Any = quantity("s", 1e-3, 600.0)
"""Of a request over a network: none is answered in less than the smallest value."""
Answer: Any = quantity("s", 1e-4, 600.0)
"""The policy's answer: its fastest takes some ten microseconds, and a process switch."""
PlantTime: Any = quantity("s", 1e-3, 30.0 * DAY_S)
ShadowTime: Any = quantity("s", 60.0, 366.0 * DAY_S)
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Memory: Any = quantity("byte", 256.0 * MIB, 2.0**40)
"""Of the policy's process: the inference engine alone takes most of the smallest value."""
SignEvery: Any = quantity("s", 1.0, DAY_S)
SegmentSize: Any = quantity("byte", MIB, 2.0**40)
KeepSize: Any = quantity("byte", MIB, 2.0**50)


class Section(BaseModel):
    """Strict: no unknown keys, no conversion of types, no NaN."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, hide_input_in_errors=False
    )


def refuse(code: str, message: str) -> PydanticCustomError:
    """A problem found by a rule of ours; braces in `message` are kept as they are."""
    return PydanticCustomError(f"steadyhand.{code}", "{text}", {"text": message})


WireName = Literal[
    "Boolean", "SByte", "Byte", "Int16", "UInt16", "Int32", "UInt32", "Int64", "UInt64", "Float",
    "Double",
]  # fmt: skip
Scale = Annotated[float, Field(gt=0.0, le=1e12)]


class Tag(Section):
    """One number on the plant's OPC UA server."""

    node: NodeText = Field(
        description="nsu=<namespace URI>;s=<identifier>, or a browse path from Objects: "
        "/nsu=<URI>:Plant/nsu=<URI>:Level"
    )
    unit: str | None = Field(default=None, description="unit on the server, when it differs")


class SignalTag(Tag):
    """One measurement."""

    wire: Literal["auto", WireName] = Field(
        default="auto",
        description="data type on the server; auto: what it declares when the link first comes up, "
        "and the same ever after",
    )
    scale: Scale = Field(
        default=1.0,
        description="signal units per number on the server: 0.1 for an Int16 in tenths of a degree",
    )
    freshness: Literal["auto", "source", "server", "arrival"] = Field(
        default="auto",
        description="which stamp says how old it is; server: for sources that keep no time; "
        "arrival: for servers that give no stamps at all",
    )
    forced: Literal["fallback", "use"] = Field(
        default="fallback",
        description="a value that somebody forced in the plant: nothing is decided by it, or it "
        "is used like a measured one; told either way",
    )
    sentinels: Annotated[list[float], Field(max_length=16)] = Field(
        default_factory=list,
        description="numbers that the sensor shows when it has none, in the signal's unit: 85, "
        "-127, 65535; never taken for a measurement",
    )


class OutputTag(Tag):
    """One manipulated variable."""

    wire: WireName = Field(
        default="Double",
        description="data type on the server; the safety filter reckons with what it can store, so "
        "it is fixed here",
    )
    scale: Scale = Field(
        default=1.0,
        description="output's unit per number on the server, for whole numbers only: 0.1 for an "
        "Int16 in tenths of a kW; true of a Boolean is one scale",
    )
    feedback: NodeText | None = Field(
        default=None, description="node that tells what is really applied; default: the node itself"
    )
    feedback_scale: Scale | None = Field(
        default=None, description="output's unit per number of the feedback; default: scale"
    )
    participation: NodeText | None = Field(
        default=None,
        description="Boolean: false while the plant keeps this output to itself; default: never",
    )
    follow_tolerance: str | None = Field(
        default=None,
        description="largest distance of the feedback from the command that counts as following, "
        "such as 20 kW; default: any",
    )
    follow_time: PlantTime | None = Field(
        default=None, description="plant time after which not following is ACT_NOFOLLOW"
    )

    @model_validator(mode="after")
    def _follows(self) -> "OutputTag":
        if (self.follow_tolerance is None) != (self.follow_time is None):
            raise refuse("CFG_MISSING", "follow_tolerance and follow_time go together: give both")
        if self.scale != 1.0 and not self.whole:
            raise refuse(
                "CFG_UNIT",
                f"scale={self.scale:g}: only whole numbers are scaled, and a {self.wire} is none; "
                "let the server take the output's own unit, or name an integer type in wire",
            )
        return self

    @property
    def whole(self) -> bool:
        """Are whole numbers written?"""
        return self.wire not in ("Float", "Double")


class Handshake(Section):
    """Nodes by which plant and controller watch each other."""

    granted: NodeText = Field(description="Boolean: the plant grants control")
    request: NodeText | None = Field(default=None, description="Boolean: we ask for control")
    heartbeat: NodeText = Field(description="UInt32 written with every command")
    source: NodeText | None = Field(default=None, description="Int32: who drives, 0 = policy")
    plant_heartbeat: NodeText | None = Field(default=None, description="UInt32 of the plant")
    plant_time: NodeText | None = Field(default=None, description="Double: plant time in s")
    sequence: NodeText | None = Field(
        default=None, description="UInt32 written last: marks a complete image"
    )


class Security(Section):
    """Certificates and user of the link. Encrypted and signed unless the long word says not."""

    policy: Literal["Basic256Sha256", "Aes128Sha256RsaOaep", "Aes256Sha256RsaPss"] = (
        "Basic256Sha256"
    )
    mode: Literal["SignAndEncrypt"] = "SignAndEncrypt"
    certificate: FileText | None = Field(default=None, description="our certificate (DER or PEM)")
    private_key: FileText | None = Field(
        default=None, description="our key, mode 0600; may be ${CREDENTIALS_DIRECTORY}/NAME"
    )
    trusted: list[FileText] = Field(
        default_factory=list,
        description="certificates of servers we trust, or of the authority that signed them; by "
        "file or folder",
    )
    revoked: list[FileText] = Field(
        default_factory=list,
        description="revocation lists of the trusted authorities; by file or folder",
    )
    overdue_list: Literal["warn", "refuse"] = Field(
        default="warn",
        description="a revocation list whose next one is overdue: an alarm, or no new connection",
    )
    check_host: bool = Field(
        default=True, description="the host of the endpoint must stand in the server's certificate"
    )
    server_uri: NodeText = Field(description="application URI by which the plant is known")
    user: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    password_file: FileText | None = Field(
        default=None, description="file of mode 0600; may be ${CREDENTIALS_DIRECTORY}/NAME"
    )
    allow_anonymous: bool = Field(
        default=False, description="no user: our certificate alone says who we are"
    )
    insecure_no_encryption: str | None = Field(
        default=None, description=f"only the word {INSECURE_WORD} switches encryption off"
    )

    @model_validator(mode="after")
    def _complete(self) -> "Security":
        if self.insecure_no_encryption is not None:
            if self.insecure_no_encryption != INSECURE_WORD:
                raise refuse(
                    "CFG_SECURITY",
                    f"insecure_no_encryption={self.insecure_no_encryption!r}: "
                    f"only the word {INSECURE_WORD} is understood; better: remove the line",
                )
            if self.password_file:
                raise refuse(
                    "CFG_SECURITY",
                    "a password over an unencrypted link could be read by anyone; "
                    "remove password_file or insecure_no_encryption",
                )
            return self
        missing = [key for key in ("certificate", "private_key") if getattr(self, key) is None]
        if not self.trusted:
            missing.append("trusted")
        if missing:
            raise refuse(
                "CFG_SECURITY",
                f"an encrypted link needs {', '.join(missing)}: "
                "name our certificate, its key and the server's certificate",
            )
        self._has_user()
        return self

    def _has_user(self) -> None:
        """A user with a password, or the word that there is none."""
        given = (self.user is not None, self.password_file is not None)
        if any(given) and not all(given):
            raise refuse("CFG_SECURITY", "user and password_file go together: give both")
        if any(given) and self.allow_anonymous:
            raise refuse(
                "CFG_SECURITY", "user and allow_anonymous contradict each other; remove one"
            )
        if not (any(given) or self.allow_anonymous):
            raise refuse(
                "CFG_SECURITY",
                "give user and password_file, or allow_anonymous: true where our certificate "
                "alone says who we are",
            )


class OpcUaLink(Section):
    """A plant behind an OPC UA server."""

    kind: Literal["opcua"]
    endpoint: str = Field(description="opc.tcp://host:port/path")
    security: Security
    request_timeout: Request = Field(default=1.0, description="own deadline of every request")
    publishing: Request | None = Field(
        default=None, description="sampling interval of the subscription; default: half a period"
    )
    command_life: Period | None = Field(
        default=None, description="a command older than this is never sent; default: one period"
    )
    signals: dict[SignalName, SignalTag]
    outputs: dict[SignalName, OutputTag]
    handshake: Handshake

    @model_validator(mode="after")
    def _sound(self) -> "OpcUaLink":
        try:
            parts = urlsplit(self.endpoint)
            sound = parts.scheme == "opc.tcp" and parts.hostname and parts.port
        except ValueError:
            sound = False
        if not sound:
            raise refuse(
                "CFG_ENDPOINT",
                f"endpoint={self.endpoint!r}: an address like opc.tcp://plc.local:4840 is needed",
            )
        if parts.username or parts.password:
            raise refuse("CFG_SECRET", "endpoint holds a password; use security.password_file")
        self._distinct_nodes()
        return self

    def _distinct_nodes(self) -> None:
        """Refuse two names for one node: it hides a wiring fault, or two writers.

        A counter of images may be the plant's sign of life, too.
        """
        shake = self.handshake
        roles = {role: getattr(shake, role) for role in type(shake).model_fields}
        if roles["sequence"] == roles["plant_heartbeat"]:
            del roles["sequence"]
        used: dict[str, str] = {}
        named = [(f"handshake.{role}", node) for role, node in roles.items() if node is not None]
        named += [(f"outputs.{name}", tag.node) for name, tag in self.outputs.items()]
        named += [(f"signals.{name}", tag.node) for name, tag in self.signals.items()]
        for place, node in named:
            if node in used:
                raise refuse(
                    "CFG_DUPTAG",
                    f"{place} and {used[node]} are the same node {node!r}; "
                    "each needs a node of its own",
                )
            used[node] = place


class SimLink(Section):
    """The plant's own equations in this process: for dry runs."""

    kind: Literal["sim"]
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = 0
    days: Annotated[int, Field(ge=1, le=366)] = 1


class Plant(Section):
    """Which plant, and where this one differs from the type's defaults."""

    id: Name
    parameters: dict[SignalName, str] = Field(
        default_factory=dict,
        description="numbers of this plant with their units; see steadyhand plant show",
    )


class Clock(Section):
    """When to tick."""

    source: Literal["paced", "plant"] = Field(
        default="paced", description="our own schedule, or the plant's sequence number"
    )
    time_scale: Annotated[float, Field(ge=1e-3, le=1e6)] = Field(
        default=1.0, description="plant seconds per second; 1 on a real plant"
    )
    realtime_priority: Annotated[int, Field(ge=0, le=99)] = Field(
        default=0, description="SCHED_FIFO priority; 0: ordinary scheduling"
    )


class Bundle(Section):
    """The controller."""

    file: FileText
    trusted_keys: FileText = Field(description="directory of public keys that may sign bundles")
    accept_quick: str | None = Field(
        default=None,
        description=f"only the word {QUICK_WORD} lets a bundle of `train --quick` in",
    )

    @field_validator("accept_quick")
    @classmethod
    def _the_word(cls, value: str | None) -> str | None:
        if value not in (None, QUICK_WORD):
            raise refuse(
                "CFG_QUICK",
                f"{value!r}: only the word {QUICK_WORD} is understood; better: remove the line",
            )
        return value


class Inference(Section):
    """Where the policy runs."""

    isolation: Literal["process", "thread"] = "process"
    provider: Literal["cpu", "cuda"] = "cpu"
    require_provider: bool = Field(
        default=False,
        description="true refuses a bundle that would not run on provider; false runs it on the "
        "CPU and tells it",
    )
    deadline: Answer = Field(default=0.5, description="real time the policy has to answer")
    memory: Memory = Field(default=2.0**31, description="most memory of the child process")
    recycle: Memory | None = Field(
        default=None,
        description="a child process that holds more is replaced by a fresh one without missing a "
        "question; default: three quarters of memory",
    )

    @model_validator(mode="after")
    def _recycled_in_time(self) -> "Inference":
        if self.recycle is not None and self.recycle >= self.memory:
            raise refuse(
                "CFG_BOUNDS",
                f"recycle={self.recycle / MIB:g} MiB is not below memory={self.memory / MIB:g} "
                "MiB, where the process ends by itself; lower recycle or raise memory",
            )
        return self


class Fallback(Section):
    """Who takes over when trust is lost."""

    heuristic: Name
    transfer: PlantTime = Field(default=1800.0, description="plant time of a bumpless take-over")


class Trust(Section):
    """What this site asks of every bundle. A bundle can only be stricter."""

    minimum_confidence: Annotated[float, Field(ge=0, le=0.999999)] = Field(
        default=0.0, description="the policy is not trusted below this, whatever its bundle says"
    )


class Modes(Section):
    """Patience of the mode machine; times are plant time."""

    initial: Literal["off", "shadow", "advisory", "limited", "full"] = Field(
        default="off", description="asked for at the start; the plant still has to grant control"
    )
    clean_ticks: Count = 3
    clean_time: PlantTime | None = None
    hold_max: PlantTime | None = Field(
        default=None, description="longest hold before the safe set-point; default: two periods"
    )
    max_raises: Count = 12
    limited_share: Annotated[float, Field(ge=1e-3, le=1)] = Field(
        default=0.2,
        description="in mode limited, distance of the policy from the heuristic as a share of the "
        "output's range",
    )


class Handover(Section):
    """When the plant has itself back, and when its read-back is not believed; plant time."""

    shed: PlantTime | None = Field(
        default=None,
        description="the plant takes itself back when our heartbeat is away for longer; default: "
        "two periods",
    )
    freeze: PlantTime | None = Field(
        default=None,
        description="a read-back that keeps still for so long, though something else was sent, is "
        "not valid; default: never",
    )


class Safety(Section):
    """Tighten what the plant definition allows; nothing here can widen it."""

    process_safety_time: PlantTime | None = Field(
        default=None,
        description="time in which the plant can become unsafe; reaction must fit in half of it",
    )
    limits: dict[SignalName, dict[Literal["low", "high"], str]] = Field(default_factory=dict)


class GoLive(Section):
    """What lets a bundle into mode full: docs/commission.md."""

    evidence: FileText | None = Field(
        default=None, description="file of `steadyhand evidence make`: what the bundle has shown"
    )
    without_evidence: str | None = Field(
        default=None, description=f"only the word {UNPROVEN_WORD} does without"
    )
    minimum_time: ShadowTime = Field(
        default=7.0 * DAY_S, description="least plant time in shadow that counts as evidence here"
    )
    minimum_coverage: Share = Field(default=0.95, description="least share of ticks with an answer")
    minimum_support: Share = Field(
        default=0.2, description="least share of proposals near what the plant did"
    )
    minimum_availability: Share = Field(
        default=0.8, description="least share of ticks in which the gate trusted the policy"
    )
    maximum_violation_rate: Share = Field(
        default=0.01,
        description="most that the upper end of the interval may be, of the share of proposals "
        "that the filter could not have made safe",
    )
    maximum_correction: Share = Field(
        default=0.1, description="most that the filter may move a proposal on average"
    )

    @model_validator(mode="after")
    def _one_of_them(self) -> "GoLive":
        if self.without_evidence not in (None, UNPROVEN_WORD):
            raise refuse(
                "CFG_GO_LIVE",
                f"without_evidence={self.without_evidence!r}: only the word {UNPROVEN_WORD} is "
                "understood; better: remove the line and name evidence",
            )
        if self.without_evidence is not None and self.evidence is not None:
            raise refuse(
                "CFG_GO_LIVE", "evidence and without_evidence contradict each other; remove one"
            )
        return self


class JournalSection(Section):
    """The record of every decision."""

    directory: FileText
    segment: SegmentSize = Field(default=2.0**28, description="a new file is begun at this size")
    signing_key: FileText | None = Field(
        default=None,
        description="private key, mode 0600, that signs the chain every so often; may be "
        "${CREDENTIALS_DIRECTORY}/NAME; default: nothing is signed",
    )
    sign_every: SignEvery = Field(default=600.0, description="time between two signatures")
    keep: KeepSize | None = Field(
        default=None,
        description="beyond this the oldest files are deleted, which is recorded; beside the file "
        "that is written; default: all are kept",
    )
    required: bool = Field(
        default=False,
        description="while records do not get to disk, the policy does not drive: the heuristic "
        "does (AUDIT_REQUIRED); false: control goes on as it is",
    )

    @model_validator(mode="after")
    def _keeps_one(self) -> "JournalSection":
        if self.keep is not None and self.keep < self.segment:
            raise refuse(
                "CFG_BOUNDS",
                f"keep is {self.keep:g} byte, less than one file (segment, {self.segment:g} byte): "
                "keep more, or make segment smaller",
            )
        return self


def _loopback_only(listen: str, example: str) -> bool:
    """Can an address and port to listen on be reached from this machine alone?

    Raises:
        PydanticCustomError: it is no address and port.
    """
    host, _, port = listen.rpartition(":")
    try:
        address = ip_address(host.strip("[]"))
        if not 0 <= int(port) <= 65535:
            raise ValueError(port)
    except ValueError:
        raise refuse(
            "CFG_LISTEN", f"listen={listen!r}: an address such as 127.0.0.1:{example} is needed"
        ) from None
    return address.is_loopback


class Metrics(Section):
    """Prometheus endpoint."""

    listen: str = "127.0.0.1:9464"
    allow_remote: bool = False
    token_file: FileText | None = None
    plant_values: bool = Field(
        default=False, description="also show measurements and outputs, for the dashboards' trends"
    )

    @model_validator(mode="after")
    def _loopback(self) -> "Metrics":
        if not _loopback_only(self.listen, "9464") and not (self.allow_remote and self.token_file):
            raise refuse(
                "CFG_LISTEN",
                f"listen={self.listen!r} can be reached from outside: "
                "use 127.0.0.1, or set allow_remote and token_file",
            )
        return self


class Panel(Section):
    """Web page for the operator, on this machine only."""

    listen: str = "127.0.0.1:9465"
    token_file: FileText | None = Field(
        default=None,
        description="file of mode 0600 with a name and a token a line: these people may give "
        "commands from the page; without it the page only shows; may be "
        "${CREDENTIALS_DIRECTORY}/NAME",
    )
    hosts: list[HostName] = Field(
        default_factory=list,
        max_length=16,
        description="further names by which browsers reach the page, such as a proxy's",
    )
    signals: list[SignalName] = Field(
        default_factory=list,
        max_length=12,
        description="measurements with a trend; default: the first eight that are no forecast",
    )

    @model_validator(mode="after")
    def _loopback(self) -> "Panel":
        if not _loopback_only(self.listen, "9465"):
            raise refuse(
                "CFG_LISTEN",
                f"listen={self.listen!r} can be reached from outside: use 127.0.0.1, and ssh -L "
                "or a proxy with TLS in front of it",
            )
        return self


class Scada(Section):
    """OPC UA server of the runtime's own, for SCADA clients. Secure unless the long word says not.

    `steadyhand scada certificate` and `steadyhand scada user` make the files.
    """

    listen: str = "127.0.0.1:4841"
    allow_remote: bool = Field(default=False, description="needed for any other than loopback")
    certificate: FileText | None = Field(default=None, description="ours (DER or PEM)")
    private_key: FileText | None = Field(default=None, description="its key, mode 0600")
    trusted: FileText | None = Field(
        default=None, description="folder of the client certificates that are let in"
    )
    users_file: FileText | None = Field(
        default=None, description="users with their roles, mode 0600"
    )
    sessions: Annotated[int, Field(ge=1, le=64)] = Field(
        default=8, description="clients at the same time"
    )
    insecure_no_encryption: str | None = Field(
        default=None, description=f"only the word {INSECURE_WORD} lets anyone in"
    )

    @model_validator(mode="after")
    def _closed(self) -> "Scada":
        if not _loopback_only(self.listen, "4841") and not self.allow_remote:
            raise refuse(
                "CFG_LISTEN",
                f"listen={self.listen!r} can be reached from outside: use 127.0.0.1, or set "
                "allow_remote",
            )
        if self.insecure_no_encryption is not None:
            if self.insecure_no_encryption != INSECURE_WORD:
                raise refuse(
                    "CFG_SECURITY",
                    f"insecure_no_encryption={self.insecure_no_encryption!r}: "
                    f"only the word {INSECURE_WORD} is understood; better: remove the line",
                )
            if self.users_file:
                raise refuse(
                    "CFG_SECURITY",
                    "a password over an unencrypted channel could be read by anyone; "
                    "remove users_file or insecure_no_encryption",
                )
            return self
        needed = ("certificate", "private_key", "trusted", "users_file")
        missing = [key for key in needed if getattr(self, key) is None]
        if missing:
            raise refuse(
                "CFG_SECURITY",
                f"a server that lets only the right people in needs {', '.join(missing)}; "
                "see docs/scada.md",
            )
        return self


class Operator(Section):
    """Control socket."""

    socket: FileText
    group: str | None = Field(default=None, description="group that may connect")
    operators: list[str] = Field(default_factory=list, description="users who may operate")
    engineers: list[str] = Field(default_factory=list, description="users who may swap bundles")


class Config(Section):
    """Everything steadyhand needs to run one plant."""

    schema_version: Literal[1]
    name: Name
    plant: Plant
    period: Period
    clock: Clock = Clock()
    link: Annotated[OpcUaLink | SimLink, Field(discriminator="kind")]
    bundle: Bundle | None = None
    inference: Inference = Inference()
    fallback: Fallback
    trust: Trust = Trust()
    modes: Modes = Modes()
    handover: Handover = Handover()
    go_live: GoLive = GoLive()
    safety: Safety = Safety()
    journal: JournalSection
    metrics: Metrics | None = None
    panel: Panel | None = None
    operator: Operator | None = None
    scada: Scada | None = None

    @model_validator(mode="after")
    def _ports(self) -> "Config":
        if self.metrics is not None and self.panel is not None:
            same = self.metrics.listen == self.panel.listen
            if same and not self.panel.listen.endswith(":0"):
                raise refuse(
                    "CFG_LISTEN",
                    f"metrics.listen and panel.listen are both {self.panel.listen}; "
                    "give one of them another port",
                )
        return self

    @model_validator(mode="after")
    def _timing(self) -> "Config":
        wall_period_s = self.period / self.clock.time_scale
        timeout_s = self.link.request_timeout if isinstance(self.link, OpcUaLink) else 0.0
        if self.clock.source == "paced" and timeout_s > wall_period_s:
            raise refuse(
                "CFG_TIMING",
                f"link.request_timeout {timeout_s:g} s is longer than one period of "
                f"{wall_period_s:g} s of real time (period {self.period:g} s / time_scale "
                f"{self.clock.time_scale:g}); shorten the timeout",
            )
        if isinstance(self.link, OpcUaLink):
            self._fits(self.link, wall_period_s)
        if (
            isinstance(self.link, OpcUaLink) or self.clock.source == "paced"
        ) and self.inference.deadline >= wall_period_s:
            raise refuse(
                "CFG_TIMING",
                f"inference.deadline {self.inference.deadline:g} s must be below one period of "
                f"{wall_period_s:g} s of real time",
            )
        reaction_s = self.period + timeout_s * self.clock.time_scale
        limit_s = self.safety.process_safety_time
        if limit_s is not None and reaction_s > 0.5 * limit_s:
            raise refuse(
                "CFG_TIMING",
                f"detect and react takes up to period {self.period:g} s + request_timeout = "
                f"{reaction_s:g} s, more than half of process_safety_time {limit_s:g} s; "
                "shorten the period",
            )
        return self

    def _fits(self, link: OpcUaLink, wall_period_s: float) -> None:
        """Times of the link against one period of real time."""
        period = (
            f"one period of {wall_period_s:g} s of real time (period {self.period:g} s / "
            f"time_scale {self.clock.time_scale:g})"
        )
        if wall_period_s < SHORTEST_PERIOD_S:
            raise refuse(
                "CFG_TIMING",
                f"{period} is shorter than the {SHORTEST_PERIOD_S:g} s a networked loop can keep; "
                "lower time_scale",
            )
        if link.publishing is not None and link.publishing > 0.5 * wall_period_s:
            raise refuse(
                "CFG_TIMING",
                f"link.publishing {link.publishing:g} s is longer than half of {period}: images "
                "would be missed; shorten it or leave it out",
            )
        if link.command_life is not None and link.command_life > 2.0 * wall_period_s:
            raise refuse(
                "CFG_TIMING",
                f"link.command_life {link.command_life:g} s is longer than two of {period}: a "
                "command that old is not wanted any more; shorten it or leave it out",
            )


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration that is sound in itself, and where it came from."""

    config: Config
    source: Source
    file: Path
    digest: str
    """SHA-256 of the effective configuration (defaults filled in), hexadecimal."""

    def path(self, text: str) -> Path:
        """A file named in the configuration; relative names start at the configuration's folder.

        A name that begins with ${CREDENTIALS_DIRECTORY}/ is a credential that systemd gives the
        service; outside of it, of `steadyhand check` say, it lies beside the configuration.
        """
        if text.startswith(f"{CREDENTIAL}/"):
            folder = os.environ.get(CREDENTIALS) or self.file.parent.resolve() / CREDENTIALS_FOLDER
            return Path(folder, text.removeprefix(f"{CREDENTIAL}/"))
        return (self.file.parent / text).resolve()


def load_config(file: Path) -> Loaded | list[Problem]:
    """Read `file`; returns it, or every problem in it."""
    try:
        if file.exists() and not file.is_file():
            return [Problem(0, "", "is no regular file", "CFG_FILE")]
        with file.open("rb") as stream:
            text = stream.read(MAX_BYTES + 1)
    except OSError as error:
        return [Problem(0, "", f"cannot be read: {error.strerror}", "CFG_FILE")]
    return parse_config(text, file)


def parse_config(text: bytes, file: Path) -> Loaded | list[Problem]:
    """Configuration from bytes; `file` only gives its name and folder."""
    source = read_yaml(text)
    if not isinstance(source, Source):
        return source
    try:
        config = Config.model_validate(source.data)
    except ValidationError as error:
        problems = [_problem(item, source) for item in error.errors()]
        return sorted(problems, key=lambda problem: (problem.line, problem.field))
    effective = json.dumps(config.model_dump(mode="json"), sort_keys=True).encode()
    return Loaded(config, source, file, hashlib.sha256(effective).hexdigest())


def require(loaded: Loaded | list[Problem], file: Path) -> Loaded:
    """The configuration, or one error that names every problem.

    Raises:
        ConfigError: there are problems.
    """
    if isinstance(loaded, Loaded):
        return loaded
    raise ConfigError("\n".join(problem.text(str(file)) for problem in loaded))


def json_schema() -> dict[str, Any]:
    """JSON Schema for editors."""
    schema = Config.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "steadyhand configuration"
    return schema


def _problem(item: ErrorDetails, source: Source) -> Problem:
    """One pydantic error in the words of the person who wrote the file."""
    path = _in_file(item["loc"], source.data)
    kind, value = item["type"], item.get("input")
    code, message = "CFG_TYPE", f"{_short(value)}: {item['msg'].lower()}"
    if kind.startswith("steadyhand."):
        code, message = kind.removeprefix("steadyhand."), str(item["ctx"]["text"])
    elif kind == "extra_forbidden":
        choices = list(_keys_at(path[:-1]))
        close = get_close_matches(str(path[-1]), choices, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"known here: {', '.join(choices)}"
        code, message = "CFG_UNKNOWN", f"unknown key {path[-1]!r}; {hint}"
    elif kind == "missing":
        code, message = "CFG_MISSING", "is missing; add it"
    elif kind == "value_error":
        code, message = "CFG_UNIT", str(item["ctx"]["error"])
    elif kind == "literal_error":
        message = f"{_short(value)} is not one of {item['ctx']['expected']}"
        if path == ("schema_version",):
            code = "CFG_VERSION"
    elif kind in ("union_tag_invalid", "union_tag_not_found"):
        message = "kind must be 'opcua' or 'sim'"
    elif kind in ("greater_than", "less_than_equal", "greater_than_equal"):
        bound = next(iter(item["ctx"].values()))
        code = "CFG_BOUNDS"
        message = f"{_short(value)} is out of bounds: must be {_SIGNS[kind]} {bound:g}"
    elif kind == "string_pattern_mismatch":
        message = f"{_short(value)} is no valid name; pattern {item['ctx']['pattern']}"
    dotted = ".".join(str(part) for part in path)
    return Problem(source.line(path), dotted, message, code)


_SIGNS = {"greater_than": ">", "less_than_equal": "<=", "greater_than_equal": ">="}


def _in_file(loc: tuple[str | int, ...], data: Any) -> FieldPath:  # noqa: ANN401
    """Where a pydantic location stands in the file: drops the tags of unions and key markers."""
    path: list[str | int] = []
    node = data
    for i, part in enumerate(loc):
        if part == "[key]":
            continue
        last = i == len(loc) - 1
        known = isinstance(node, dict) and part in node
        listed = isinstance(node, list) and isinstance(part, int) and part < len(node)
        if known or listed:
            node = node[part]
        elif part in ("opcua", "sim") and (not last or node.get("kind") == part):
            continue
        path.append(part)
    return tuple(path)


def _keys_at(path: FieldPath) -> Iterator[str]:
    """Keys the schema knows at `path`."""
    schema = Config.model_json_schema()
    definitions = schema["$defs"]
    nodes = [schema]
    for part in path:
        nodes = [child for node in nodes for child in _children(node, part, definitions)]
    for node in nodes:
        yield from node.get("properties", {})


def _children(
    node: dict[str, Any], part: str | int, definitions: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    child = node.get("properties", {}).get(part) or node.get("additionalProperties")
    named = node.get("patternProperties", {}).values()  # whatever signal it is
    if not isinstance(child, dict):
        child = next(iter(named), None)
    if child is None:
        return
    options = [child, *child.get("anyOf", ()), *child.get("oneOf", ()), *child.get("allOf", ())]
    for option in options:
        reference = option.get("$ref")
        yield definitions[reference.rsplit("/", 1)[-1]] if reference else option


def _short(value: Any) -> str:  # noqa: ANN401
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


__all__ = [
    "INSECURE_WORD",
    "SCHEMA_VERSION",
    "Config",
    "Loaded",
    "OpcUaLink",
    "SimLink",
    "json_schema",
    "load_config",
    "parse_config",
    "require",
]
