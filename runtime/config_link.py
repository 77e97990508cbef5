"""Section `link` of a configuration: where the plant is, which node is which signal, who we are."""

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from steadyhand.adapters.opcua.settings import INSECURE_WORD
from steadyhand.runtime.config_fields import (
    FileText,
    NodeText,
    Period,
    PlantTime,
    Request,
    Section,
    SignalName,
    insecure,
    refuse,
)

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
        if insecure(self.insecure_no_encryption, self.password_file and "password_file"):
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
