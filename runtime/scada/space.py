"""The nodes in the running server, and how one image gets onto them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from asyncua import ua
from asyncua.server.server import Server

from steadyhand.adapters.opcua.units import unit_information
from steadyhand.controllers.signals import SignalSet
from steadyhand.runtime.scada.model import TYPES_URI, Argument, Method, Variable, loop_uri
from steadyhand.runtime.scada.nodes import DATA_TYPES, Node, Ref, loop_nodes, type_nodes

GOOD = int(ua.StatusCodes.Good)
UNCERTAIN = int(ua.StatusCodes.UncertainLastUsableValue)
BAD = int(ua.StatusCodes.BadSensorFailure)
NO_DATA = int(ua.StatusCodes.BadNoData)
_WAITING = ua.StatusCode(ua.StatusCodes.BadWaitingForInitialData)
_IS_BAD = 0x80000000
_CLASSES = {name: getattr(ua.NodeClass, name) for name in ("Object", "ObjectType", "Variable")}


@dataclass(frozen=True, slots=True)
class Reading:
    """One value with its quality; None is no value."""

    value: Any
    status: int = GOOD
    """StatusCode."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A method on one object."""

    method: Method
    subject: str
    """The output it is about."""
    path: str


@dataclass(slots=True)
class _Cell:
    """Where a variable's value lies in the library's address space."""

    attribute: Any
    kind: ua.VariantType
    variable: Variable
    shown: tuple[Any, int] | None = None


class Space:
    """All our nodes. Used in the server's own thread."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._spaces = {"ua": 0}
        self._cells: dict[str, _Cell] = {}
        self.methods: dict[tuple[ua.NodeId, ua.NodeId], Bound] = {}
        """By object and method, as a client names them: the instance's method or the type's."""

    async def build(self, name: str, outputs: SignalSet, observations: SignalSet) -> None:
        """Make types and loop."""
        self._spaces["types"] = await self._server.register_namespace(TYPES_URI)
        self._spaces["loop"] = await self._server.register_namespace(loop_uri(name))
        for node in type_nodes():
            await self._add(node)
        for node in loop_nodes(name, outputs, observations):
            await self._add(node)
            if node.variable is not None:
                self._remember(node)
            elif node.method is not None:
                self._bind(node)

    def id_of(self, ref: Ref) -> ua.NodeId:
        """Node id in this server."""
        return ua.NodeId(ref[1], self._spaces[ref[0]])

    @property
    def paths(self) -> tuple[str, ...]:
        """Every variable of the loop."""
        return tuple(self._cells)

    async def show(self, readings: Mapping[str, Reading], when: datetime) -> None:
        """Put an image onto the nodes with one source time stamp.

        All values are in place before anybody is told, so that no read sees half of an image.
        Subscriptions hear only of what has changed.
        """
        told = list(self._place(readings, when))
        for attribute in told:
            for handle, callback in list(attribute.datachange_callbacks.items()):
                await callback(handle, attribute.value)

    def _place(self, readings: Mapping[str, Reading], when: datetime) -> Iterator[Any]:
        for path, reading in readings.items():
            cell = self._cells[path]
            status, value = reading.status, reading.value
            if value is None and status == GOOD:
                status = NO_DATA
            if status & _IS_BAD:
                variant = ua.Variant(None, ua.VariantType.Null)
            else:
                variant = ua.Variant(value, cell.kind, is_array=cell.variable.array)
            cell.attribute.value = ua.DataValue(
                Value=variant,
                StatusCode=ua.StatusCode(status),
                SourceTimestamp=when,
                ServerTimestamp=when,
            )
            shown = (variant.Value, status)
            if shown != cell.shown:
                cell.shown = shown
                yield cell.attribute

    def _remember(self, node: Node) -> None:
        assert node.variable is not None  # noqa: S101
        attributes = self._server.iserver.aspace[self.id_of(node.ref)].attributes
        attribute = attributes[ua.AttributeIds.Value]
        attribute.value = ua.DataValue(
            Value=ua.Variant(None, ua.VariantType.Null), StatusCode=_WAITING
        )
        kind = getattr(ua.VariantType, node.variable.kind)
        self._cells[str(node.ref[1])] = _Cell(attribute, kind, node.variable)

    def _bind(self, node: Node) -> None:
        assert node.method is not None  # noqa: S101
        bound = Bound(node.method, node.subject, str(node.ref[1]))
        parent, made = self.id_of(node.parent), self.id_of(node.ref)
        self.methods[parent, made] = bound
        for other in type_nodes():  # a client may name the method by its type as well
            if other.method is node.method and other.parent[1] == str(other.ref[1]).split(".")[0]:
                self.methods[parent, self.id_of(other.ref)] = bound

    async def _add(self, node: Node) -> None:
        item = ua.AddNodesItem()
        item.RequestedNewNodeId = self.id_of(node.ref)
        item.BrowseName = ua.QualifiedName(node.name, self._spaces[node.home])
        item.ParentNodeId = self.id_of(node.parent)
        item.ReferenceTypeId = self.id_of(node.reference)
        if node.type is not None:
            item.TypeDefinition = self.id_of(node.type)
        item.NodeClass = _CLASSES.get(node.kind, ua.NodeClass.Method)
        item.NodeAttributes = self._attributes(node)
        session = self._server.iserver.isession
        (result,) = await session.add_nodes([item])
        result.StatusCode.check()
        if node.rule is not None:
            rule = ua.AddReferencesItem()
            rule.SourceNodeId = item.RequestedNewNodeId
            rule.ReferenceTypeId = ua.NodeId(ua.ObjectIds.HasModellingRule)
            rule.IsForward = True
            rule.TargetNodeId = self.id_of(node.rule)
            rule.TargetNodeClass = ua.NodeClass.Object
            (status,) = await session.add_references([rule])
            status.check()

    def _attributes(self, node: Node) -> Any:  # noqa: ANN401
        names = {
            "DisplayName": ua.LocalizedText(node.name),
            "Description": ua.LocalizedText(node.meaning),
        }
        if node.kind == "ObjectType":
            return ua.ObjectTypeAttributes(**names, IsAbstract=False)
        if node.kind == "Object":
            return ua.ObjectAttributes(**names, EventNotifier=0)
        if node.kind == "Method":
            return ua.MethodAttributes(**names, Executable=True, UserExecutable=True)
        readable = ua.AccessLevel.CurrentRead.mask
        return ua.VariableAttributes(
            **names,
            Value=_constant(node),
            DataType=ua.NodeId(DATA_TYPES[node.data]),
            ValueRank=ua.ValueRank.OneDimension if node.array else ua.ValueRank.Scalar,
            ArrayDimensions=[0] if node.array else None,
            AccessLevel=readable,
            UserAccessLevel=readable,
        )


def _constant(node: Node) -> ua.Variant:
    """Value of a property; null for what changes."""
    if node.value is None:
        return ua.Variant(None, ua.VariantType.Null)
    if node.data == "LocalizedText":
        texts = [ua.LocalizedText(choice) for choice in node.value]
        return ua.Variant(texts, ua.VariantType.LocalizedText, is_array=True)
    if node.data == "Argument":
        arguments = [_argument(one) for one in node.value]
        return ua.Variant(arguments, ua.VariantType.ExtensionObject, is_array=True)
    if node.data == "Range":
        return ua.Variant(ua.Range(*node.value), ua.VariantType.ExtensionObject)
    return ua.Variant(unit_information(node.value), ua.VariantType.ExtensionObject)


def _argument(one: Argument) -> ua.Argument:
    return ua.Argument(
        Name=one.name,
        DataType=ua.NodeId(DATA_TYPES[one.kind]),
        ValueRank=ua.ValueRank.Scalar,
        ArrayDimensions=[],
        Description=ua.LocalizedText(one.meaning),
    )
