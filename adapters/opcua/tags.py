"""Which node is which signal: addresses, wire types, units. Settings only; nothing here connects.

Addresses name the namespace by its URI, never by its index: an index is only valid within one
session, and after a restart the old index can read another variable without any error.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf, isfinite
from typing import Any

from steadyhand.adapters.opcua.wire import WIRE_TYPES
from steadyhand.controllers.errors import ConfigError
from steadyhand.controllers.signals import SignalSet

STANDARD_NAMESPACE = "http://opcfoundation.org/UA/"

_NODE = re.compile(r"(?:nsu=(?P<uri>[^;]+);)?(?P<kind>[si])=(?P<key>.+)", re.DOTALL)
_STEPS = (
    re.compile(r"/nsu=(?P<uri>[^;]+);(?P<name>[^/]+)(?=/|$)"),
    re.compile(r"/nsu=(?P<uri>[^;]+?):(?P<name>[^/:;]+)(?=/|$)"),
    re.compile(r"/(?!nsu=)(?P<name>[^/]+)(?=/|$)"),
)
_HELP = (
    "write nsu=<namespace URI>;s=<name>, nsu=<namespace URI>;i=<number>, or a browse path from "
    "Objects: /nsu=<namespace URI>;<Name>/<Name>"
)
AUTO = "auto"
"""Wire type: what the server declares when the link first comes up; the same ever after."""


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """Where a node is, independent of any session."""

    text: str
    namespace: str = STANDARD_NAMESPACE
    identifier: str | int | None = None
    path: tuple[tuple[str, str], ...] = ()
    """Browse path below Objects: (namespace URI, browse name); empty for a node id."""

    @property
    def namespaces(self) -> frozenset[str]:
        """Every namespace URI this address needs."""
        return frozenset(uri for uri, _ in self.path) if self.path else frozenset((self.namespace,))


def parse_address(text: str, where: str) -> NodeAddress:
    """Read one address as an engineer writes it.

    `nsu=urn:plant;s=Tank.Energy`, `nsu=urn:plant;i=5`, `i=2258` (standard namespace), or a browse
    path from the Objects folder `/nsu=urn:plant;Tank/Energy`, in which a step without a URI takes
    the one of the step before. `:` may stand for `;` where the URI holds no port number.

    Raises:
        ConfigError: the text is none of these, or names a namespace by index.
    """
    if re.match(r"ns=\d", text):
        raise ConfigError(
            f"{where}: address {text!r} names its namespace by index, which changes when the "
            f"server restarts: {_HELP}"
        )
    if text.startswith("/"):
        return NodeAddress(text, path=_parse_path(text, where))
    match = _NODE.fullmatch(text)
    if match is None:
        raise ConfigError(f"{where}: cannot read address {text!r}: {_HELP}")
    key: str | int = match["key"]
    if match["kind"] == "i":
        if not (match["key"].isdecimal() and int(match["key"]) < 2**32):
            raise ConfigError(f"{where}: address {text!r}: i= needs a number from 0 to 4294967295")
        key = int(match["key"])
    return NodeAddress(text, match["uri"] or STANDARD_NAMESPACE, key)


def _parse_path(text: str, where: str) -> tuple[tuple[str, str], ...]:
    steps: list[tuple[str, str]] = []
    uri, position = STANDARD_NAMESPACE, 0
    while position < len(text):
        found = (pattern.match(text, position) for pattern in _STEPS)
        match = next((match for match in found if match is not None), None)
        if match is None:
            raise ConfigError(
                f"{where}: browse path {text!r} breaks at {text[position:]!r}: {_HELP}"
            )
        uri = match.groupdict().get("uri") or uri
        steps.append((uri, match["name"]))
        position = match.end()
    if steps[0] == (STANDARD_NAMESPACE, "Objects"):
        del steps[0]
    if not steps:
        raise ConfigError(f"{where}: browse path {text!r} names no node: {_HELP}")
    return tuple(steps)


class Freshness(StrEnum):
    """Which evidence makes a sample fresh."""

    AUTO = "auto"
    """Source stamp, server stamp or a live subscription, whichever is newest; but the source
    stamp alone once the value has been seen to change while that stamp stood still."""
    SOURCE = "source"
    """The source stamp and nothing else."""
    SERVER = "server"
    """As auto, but the source stamp is not looked at (sources that do not keep it)."""
    ARRIVAL = "arrival"
    """When it reached us: for servers that give no stamps at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tag:
    """One signal's node."""

    address: NodeAddress
    wire_type: str = "Double"
    unit: str = ""
    """The server's EngineeringUnits display name that must be found; empty: not checked."""
    scale: float = 1.0
    """Signal units per wire unit (an Int16 in tenths of a degree: 0.1)."""
    freshness: Freshness = Freshness.AUTO
    use_forced: bool = False
    """Is a value that somebody forced in the plant as good as a measured one? Told either way."""

    def __post_init__(self) -> None:
        """Refuse impossible settings.

        Raises:
            ConfigError: unknown wire type, or a scale that is not positive and finite.
        """
        if self.wire_type != AUTO and self.wire_type not in WIRE_TYPES:
            raise ConfigError(
                f"tag {self.address.text}: wire_type {self.wire_type!r} is unknown: "
                f"choose one of {', '.join((AUTO, *WIRE_TYPES))}"
            )
        if not (isfinite(self.scale) and self.scale > 0.0):
            raise ConfigError(
                f"tag {self.address.text}: scale={self.scale}: must be finite and > 0"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputTag(Tag):
    """A node we write, and how we see that the plant obeys."""

    feedback: Tag | None = None
    """What the actuator really does, in the same signal unit; the set-point node itself if None."""
    follow_tolerance: float = inf
    """Largest |feedback - sent| that counts as following, signal units."""
    follow_time_s: float = inf
    """Not following for longer than this (wall seconds) is ACT_NOFOLLOW."""
    participation: Tag | None = None
    """Read: true while the plant lets us drive this output; it always does if None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handshake:
    """Nodes with which plant and controller watch each other. All optional, but a plant that has
    neither `granted` nor `heartbeat` cannot take itself back when we die. Give them the wire type
    `auto` unless the plant's is to be checked.
    """

    granted: Tag | None = None
    """Read: the plant grants control (Boolean, or a number that is not zero)."""
    plant_heartbeat: Tag | None = None
    """Read: changes as long as the plant's own program runs."""
    plant_time: Tag | None = None
    """Read: plant time, seconds or DateTime."""
    sequence: Tag | None = None
    """Read: grows by one with every complete process image, published last by the plant."""
    heartbeat: Tag | None = None
    """Written: changes with every command, so that the plant sees us alive."""
    source: Tag | None = None
    """Written: who drives (0 policy, 1 fallback, 2 hold, 3 safe, 4 hands off)."""
    request: Tag | None = None
    """Written: true while we ask for control, false once released."""


READ_ROLES = ("granted", "plant_heartbeat", "plant_time", "sequence")
WRITTEN_ROLES = ("heartbeat", "source", "request")
SERVER_STATE = "server_state"
"""The node that says whether the server itself runs, as readings call it."""
RESERVED_NAMES = (SERVER_STATE, *READ_ROLES, *WRITTEN_ROLES)
"""Nodes of a session go by name, those of the plant's signals beside these: a signal of the same
name would be read from the other's node, with status Good."""


@dataclass(frozen=True, slots=True)
class TagMap:
    """Every node of one plant, in signal order."""

    observation_signals: SignalSet
    output_signals: SignalSet
    observations: tuple[Tag, ...]
    outputs: tuple[OutputTag, ...]
    handshake: Handshake = field(default_factory=Handshake)

    def __post_init__(self) -> None:
        """Refuse a map that does not fit the signals.

        Raises:
            ConfigError: wrong number of tags, one name for two nodes, or one node written as two
                things.
        """
        pairs = (
            ("observation", self.observation_signals, self.observations),
            ("output", self.output_signals, self.outputs),
        )
        for label, signals, tags in pairs:
            if len(signals) != len(tags):
                raise ConfigError(f"{len(tags)} {label} tags for {len(signals)} signals")
            for name in signals.names:
                refuse_reserved(name, label)
        both = [
            name for name in self.output_signals.names if name in self.observation_signals.names
        ]
        if both:
            raise ConfigError(
                f"{', '.join(both)}: observation and output of one name would be one node: "
                "rename one of them in the plant's definition"
            )
        shake = self.handshake
        written: list[Tag] = [*self.outputs]
        written += [tag for role in WRITTEN_ROLES if (tag := getattr(shake, role))]
        addresses = [tag.address.text for tag in written]
        doubled = sorted({text for text in addresses if addresses.count(text) > 1})
        if doubled:
            raise ConfigError(f"nodes written as two things: {', '.join(doubled)}")


def refuse_reserved(name: str, label: str) -> None:
    """Refuse a signal that is called like a node of the handshake, or like the server's state.

    Args:
        name: of the signal.
        label: what it is: an observation, an output.

    Raises:
        ConfigError: it is.
    """
    if name in RESERVED_NAMES:
        what = "server's state" if name == SERVER_STATE else f"handshake's {name}"
        raise ConfigError(
            f"{label} {name!r} is called like the {what}, and would be read from its node: rename "
            f"the signal in the plant's definition; taken are: {', '.join(RESERVED_NAMES)}"
        )


def read_tag_map(
    observation_signals: SignalSet, output_signals: SignalSet, settings: Mapping[str, Any]
) -> TagMap:
    """Build the map from plain settings (as they come from a YAML file).

    Args:
        observation_signals: what the controller reads.
        output_signals: what it writes.
        settings: `observations` and `outputs` map signal names to an address text or to a mapping
            with `address` and the fields of `Tag` or `OutputTag`; `handshake` the same by role.

    Raises:
        ConfigError: a signal without a tag, a tag without a signal, an unknown key, a bad value.
    """
    _only(settings, ("observations", "outputs", "handshake"), "tags")
    observations = _by_name(settings.get("observations", {}), observation_signals, "observations")
    outputs = _by_name(settings.get("outputs", {}), output_signals, "outputs")
    shake = settings.get("handshake", {})
    _only(shake, Handshake.__dataclass_fields__, "handshake")
    return TagMap(
        observation_signals,
        output_signals,
        tuple(_tag(entry, name) for name, entry in observations),
        tuple(_output_tag(entry, name) for name, entry in outputs),
        Handshake(
            **{role: handshake_tag(entry, f"handshake {role}") for role, entry in shake.items()}
        ),
    )


def _by_name(given: Mapping[str, Any], signals: SignalSet, where: str) -> list[tuple[str, Any]]:
    missing = [name for name in signals.names if name not in given]
    unknown = [name for name in given if name not in signals.names]
    if missing or unknown:
        raise ConfigError(
            f"{where}: no tag for: {', '.join(missing) or '-'}; "
            f"no such signal: {', '.join(unknown) or '-'}"
        )
    return [(name, given[name]) for name in signals.names]


def _only(given: Mapping[str, Any], known: Any, where: str) -> None:  # noqa: ANN401
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ConfigError(
            f"{where}: unknown key {', '.join(unknown)}: choose from {', '.join(known)}"
        )


def _fields(entry: Any, where: str, known: Any) -> dict[str, Any]:  # noqa: ANN401
    if isinstance(entry, str):
        return {"address": parse_address(entry, where)}
    if not isinstance(entry, Mapping) or "address" not in entry:
        raise ConfigError(f"{where}: needs an address: {_HELP}")
    _only(entry, known, where)
    values = dict(entry)
    values["address"] = parse_address(values["address"], where)
    if "freshness" in values:
        try:
            values["freshness"] = Freshness(values["freshness"])
        except ValueError:
            raise ConfigError(
                f"{where}: freshness {values['freshness']!r}: choose from {', '.join(Freshness)}"
            ) from None
    return values


def _tag(entry: Any, where: str) -> Tag:  # noqa: ANN401
    return Tag(**_fields(entry, where, Tag.__dataclass_fields__))


def handshake_tag(entry: Any, where: str) -> Tag:  # noqa: ANN401
    """A handshake node: its wire type is the server's choice unless given.

    Raises:
        ConfigError: as for any tag.
    """
    values = _fields(entry, where, Tag.__dataclass_fields__)
    return Tag(**{"wire_type": AUTO, **values})


def _output_tag(entry: Any, where: str) -> OutputTag:  # noqa: ANN401
    values = _fields(entry, where, OutputTag.__dataclass_fields__)
    if "feedback" in values:
        values["feedback"] = _tag(values["feedback"], f"{where} feedback")
    if "participation" in values:
        values["participation"] = handshake_tag(values["participation"], f"{where} participation")
    return OutputTag(**values)
