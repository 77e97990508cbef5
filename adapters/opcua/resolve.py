"""Find and check every node, anew in each session, before the link counts as up."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from asyncua import ua

from steadyhand.adapters.opcua.session import Session
from steadyhand.adapters.opcua.tags import AUTO, READ_ROLES, WRITTEN_ROLES, NodeAddress, Tag, TagMap
from steadyhand.adapters.opcua.wire import (
    BAD_STATUS,
    WIRE_TYPES,
    WireType,
    holds_some_value,
    in_wire_units,
    status_name,
)
from steadyhand.controllers.errors import LinkError
from steadyhand.controllers.frames import Fault
from steadyhand.controllers.reasons import ReasonCode

_ATTRIBUTES = ("NodeClass", "DataType", "ValueRank", "UserAccessLevel", "Value")
_BUILT_IN = {int(kind.variant.value): name for name, kind in WIRE_TYPES.items()}
"""Built-in types by the number of their DataType node (the same as the variant's)."""
_CAN_READ, CAN_WRITE = 1, 2


class VerificationError(LinkError):
    """The server is reachable, but not the plant as configured. Carries one fault per finding."""

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        super().__init__("; ".join(fault.text for fault in faults))
        self.faults = faults


@dataclass(frozen=True, slots=True)
class Use:
    """One node and what we want with it."""

    name: str
    tag: Tag
    writes: bool = False
    reads: bool = True
    low: float = 0.0
    high: float = 0.0


def uses_of(tags: TagMap) -> list[Use]:
    """Every node of the map: observations, outputs, feedbacks, handshake."""
    uses = [
        Use(signal.name, tag)
        for signal, tag in zip(tags.observation_signals, tags.observations, strict=True)
    ]
    for signal, output in zip(tags.output_signals, tags.outputs, strict=True):
        low, high = (in_wire_units(end, output.scale) for end in (signal.low, signal.high))
        uses.append(Use(signal.name, output, writes=True, low=low, high=high))
        if output.feedback is not None:
            uses.append(Use(f"{signal.name} feedback", output.feedback))
        if output.participation is not None:
            uses.append(Use(f"{signal.name} participation", output.participation))
    shake = tags.handshake
    for role in READ_ROLES:
        tag = getattr(shake, role)
        if tag is not None:
            uses.append(Use(role, tag))
    for role in WRITTEN_ROLES:
        tag = getattr(shake, role)
        if tag is not None:
            uses.append(Use(role, tag, writes=True, reads=False))
    return uses


@dataclass(frozen=True, slots=True, eq=False)
class Resolved:
    """Node ids of one session. Worthless in the next."""

    nodes: dict[str, Any]
    namespaces: dict[str, int]
    kinds: dict[str, WireType]
    """Wire type of each use; pins `auto` for the sessions to come."""


async def read_namespaces(session: Session) -> dict[str, int]:
    """URI → index, as this session has them.

    Raises:
        LinkError: the server shows no namespace array.
    """
    values, _ = await session.read(
        [(ua.NodeId(ua.ObjectIds.Server_NamespaceArray), ua.AttributeIds.Value)], "read namespaces"
    )
    array = values[0].Value.Value if values[0].Value is not None else None
    if not isinstance(array, list):
        raise LinkError("the server shows no namespace array: not an OPC UA server we can use")
    return {str(uri): index for index, uri in enumerate(array)}


def remapped(before: dict[str, int], now: dict[str, int], tags: TagMap) -> tuple[Fault, ...]:
    """One NS_REMAP fault per configured namespace whose index moved since the last session."""
    used = {uri for use in uses_of(tags) for uri in use.tag.address.namespaces}
    return tuple(
        Fault(
            ReasonCode.NS_REMAP,
            value=float(now[uri]),
            limit=float(before[uri]),
            text=f"namespace {uri} moved from index {before[uri]} to {now[uri]}: tags found anew",
        )
        for uri in sorted(used)
        if uri in before and uri in now and before[uri] != now[uri]
    )


async def resolve(session: Session, tags: TagMap, pinned: dict[str, WireType]) -> Resolved:
    """Find every node and check existence, type, rank, unit and access rights.

    Args:
        session: an open one.
        tags: what to find.
        pinned: wire types of an earlier session, for tags of type `auto`.

    Raises:
        VerificationError: at least one node is not as configured; all findings at once.
        LinkError: the server stopped answering.
    """
    namespaces = await read_namespaces(session)
    uses = uses_of(tags)
    kinds = dict(pinned)
    kinds |= {u.name: WIRE_TYPES[u.tag.wire_type] for u in uses if u.tag.wire_type != AUTO}
    nodes, faults = await _find(session, uses, namespaces)
    found = [use for use in uses if use.name in nodes]
    faults += _written_twice(found, nodes)
    faults += await _check_nodes(session, found, nodes, kinds)
    faults += await _check_units(session, found, nodes)
    if faults:
        raise VerificationError(tuple(faults))
    return Resolved(nodes, namespaces, kinds)


def _written_twice(uses: list[Use], nodes: dict[str, Any]) -> Iterator[Fault]:
    """Nodes that are written as two things; their addresses may be of two forms."""
    first: dict[Any, Use] = {}
    for use in uses:
        other = first.setdefault(nodes[use.name], use) if use.writes else use
        if other is not use:
            text = (
                f"{use.name}: {use.tag.address.text} is the node of {other.name} "
                f"({other.tag.address.text}), and both are written: correct one of the two"
            )
            yield Fault(ReasonCode.TAG_TYPE, use.name, text=text)


async def writable(session: Session, tags: TagMap) -> list[str]:
    """Names of what we write that the user of this session may write, by the server's own word.

    Raises:
        LinkError, OSError, asyncua's UaError: the server stopped answering.
    """
    nodes = await written_nodes(session, tags)
    wanted = [(node, ua.AttributeIds.UserAccessLevel) for node in nodes.values()]
    values = (await session.read(wanted, "read rights"))[0] if wanted else []
    rights = [_plain(value) for value in values]
    return [
        name
        for name, right in zip(nodes, rights, strict=True)
        if isinstance(right, int) and right & CAN_WRITE
    ]


async def written_nodes(session: Session, tags: TagMap) -> dict[str, Any]:
    """Node ids of everything that we write, by name; what is not there is left out.

    Raises:
        LinkError, OSError, asyncua's UaError: the server stopped answering.
    """
    namespaces = await read_namespaces(session)
    uses = [use for use in uses_of(tags) if use.writes]
    nodes, _ = await _find(session, uses, namespaces)
    return {use.name: nodes[use.name] for use in uses if use.name in nodes}


async def _find(
    session: Session, uses: list[Use], namespaces: dict[str, int]
) -> tuple[dict[str, Any], list[Fault]]:
    nodes: dict[str, Any] = {}
    faults: list[Fault] = []
    by_path: list[Use] = []
    for use in uses:
        address = use.tag.address
        lost = sorted(uri for uri in address.namespaces if uri not in namespaces)
        if lost:
            faults.append(_missing(use, f"the server has no namespace {', '.join(lost)}"))
        elif address.path:
            by_path.append(use)
        else:
            nodes[use.name] = ua.NodeId(address.identifier, namespaces[address.namespace])
    root = ua.NodeId(ua.ObjectIds.ObjectsFolder)
    paths = [
        _browse_path(root, ((namespaces[uri], name) for uri, name in use.tag.address.path))
        for use in by_path
    ]
    results = await session.translate(paths) if paths else []
    for use, result in zip(by_path, results, strict=True):
        if result.StatusCode.is_good() and len(result.Targets) == 1:
            target = result.Targets[0].TargetId
            nodes[use.name] = ua.NodeId(target.Identifier, target.NamespaceIndex)
        else:
            faults.append(_missing(use, f"path not found or ambiguous ({result.StatusCode.name})"))
    return nodes, faults


def _browse_path(start: Any, steps: Iterable[tuple[int, str]]) -> Any:  # noqa: ANN401
    path = ua.BrowsePath(StartingNode=start)
    path.RelativePath.Elements = [
        ua.RelativePathElement(
            ReferenceTypeId=ua.NodeId(ua.ObjectIds.HierarchicalReferences),
            IsInverse=False,
            IncludeSubtypes=True,
            TargetName=ua.QualifiedName(name, index),
        )
        for index, name in steps
    ]
    return path


async def _check_nodes(
    session: Session, uses: list[Use], nodes: dict[str, Any], kinds: dict[str, WireType]
) -> list[Fault]:
    wanted = [
        (nodes[use.name], getattr(ua.AttributeIds, attribute))
        for use in uses
        for attribute in _ATTRIBUTES
    ]
    values, _ = await session.read(wanted, "verify nodes")
    width = len(_ATTRIBUTES)
    faults: list[Fault] = []
    for i, use in enumerate(uses):
        faults += _check_node(use, kinds, *values[i * width : (i + 1) * width])
    return faults


def _check_node(
    use: Use,
    kinds: dict[str, WireType],
    node_class: Any,  # noqa: ANN401
    data_type: Any,  # noqa: ANN401
    rank: Any,  # noqa: ANN401
    access: Any,  # noqa: ANN401
    value: Any,  # noqa: ANN401
) -> list[Fault]:
    status = node_class.StatusCode
    if status is not None and status.value >= BAD_STATUS:
        return [_missing(use, f"the server answers {status_name(status.value)}")]
    if _plain(node_class) not in (None, ua.NodeClass.Variable, ua.NodeClass.Variable.value):
        return [_missing(use, f"there is a node, but no variable (class {_plain(node_class)})")]
    faults: list[Fault] = []
    if use.name not in kinds:
        kind = _served_kind(_plain(data_type), value.Value)
        if kind is None:
            text = f"{_label(use)}: its data type is none we can read: give its wire type"
            return [Fault(ReasonCode.TAG_TYPE, use.name, text=text)]
        kinds[use.name] = kind
    kind = kinds[use.name]
    problem = _type_problem(use, kind, _plain(data_type), _plain(rank), value.Value)
    if problem:
        faults.append(Fault(ReasonCode.TAG_TYPE, use.name, text=f"{_label(use)}: {problem}"))
    rights = _plain(access)
    if rights is None:
        rights = _CAN_READ | CAN_WRITE
    elif not isinstance(rights, int):
        rights = 0
    if use.reads and not rights & _CAN_READ:
        text = f"{_label(use)}: we may not read it: have the account's rights corrected"
        faults.append(Fault(ReasonCode.TAG_MISSING, use.name, text=text))
    if use.writes and not rights & CAN_WRITE:
        text = f"{_label(use)}: we may not write it: have the account's rights corrected"
        faults.append(Fault(ReasonCode.WRITE_DENIED, use.name, text=text))
    return faults


def _plain(data_value: Any) -> Any:  # noqa: ANN401
    return None if data_value.Value is None else data_value.Value.Value


def _declared(data_type: Any) -> str | None:  # noqa: ANN401
    """Name of a built-in data type; None for a type derived from one."""
    if not isinstance(data_type, ua.NodeId) or data_type.NamespaceIndex != 0:
        return None
    return _BUILT_IN.get(data_type.Identifier)


def _served_kind(data_type: Any, variant: Any) -> WireType | None:  # noqa: ANN401
    name = _declared(data_type)
    if name is None and variant is not None and variant.Value is not None:
        name = _BUILT_IN.get(variant.VariantType.value)
    return None if name is None else WIRE_TYPES[name]


def _type_problem(
    use: Use,
    kind: WireType,
    data_type: Any,  # noqa: ANN401
    rank: Any,  # noqa: ANN401
    variant: Any,  # noqa: ANN401
) -> str:
    """Empty when the node's type fits: what is declared, and what is really served."""
    served = variant is not None and variant.Value is not None
    if (isinstance(rank, int) and rank >= 0) or (served and variant.is_array):
        return f"is an array, configured is a scalar {kind.name}"
    declared = _declared(data_type)
    if declared is not None and declared != kind.name:
        return f"is declared {declared}, configured is {kind.name}"
    if served and variant.VariantType != kind.variant:
        return f"is served as {variant.VariantType.name}, configured is {kind.name}"
    is_output = use.writes and use.reads
    if is_output and not holds_some_value(kind, use.low, use.high):
        return (
            f"limits {use.low:g} to {use.high:g} (wire units) do not fit {kind.name}: "
            "choose a wider wire type or correct scale"
        )
    return ""


async def _check_units(session: Session, uses: list[Use], nodes: dict[str, Any]) -> list[Fault]:
    """Compare EngineeringUnits where a unit is configured; a server that shows none passes."""
    checked = [use for use in uses if use.tag.unit]
    if not checked:
        return []
    paths = [_browse_path(nodes[use.name], [(0, "EngineeringUnits")]) for use in checked]
    shown = [
        (use, result.Targets[0].TargetId)
        for use, result in zip(checked, await session.translate(paths), strict=True)
        if result.StatusCode.is_good() and result.Targets
    ]
    wanted = [
        (ua.NodeId(target.Identifier, target.NamespaceIndex), ua.AttributeIds.Value)
        for _, target in shown
    ]
    values = (await session.read(wanted, "verify units"))[0] if wanted else []
    faults = []
    for (use, _), value in zip(shown, values, strict=True):
        display = getattr(_plain(value), "DisplayName", None)
        unit = getattr(display, "Text", None)
        if unit is not None and unit != use.tag.unit:
            text = f"{_label(use)}: unit is {unit!r}, configured is {use.tag.unit!r}"
            faults.append(Fault(ReasonCode.TAG_TYPE, use.name, text=text))
    return faults


def _label(use: Use) -> str:
    address: NodeAddress = use.tag.address
    return f"{use.name} ({address.text})"


def _missing(use: Use, why: str) -> Fault:
    text = f"{_label(use)}: {why}: correct the address or restore the node"
    return Fault(ReasonCode.TAG_MISSING, use.name, text=text)
