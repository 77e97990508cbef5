"""The plant's nodes on an OPC UA server, and how one image gets onto them.

    Objects/<plant>                      ns = urn:steadyhand:plant:<plant>
      <observation>                      Double, read only, AnalogItemType
      <output>                           Double, writable, AnalogItemType
      <output>_applied                   Double, what the actuator really does
      <output>_participates              Boolean: false while the plant keeps the output to itself
      control_granted, controller_active Boolean
      control_request                    UInt32, writable: not 0 asks for control
      controller_heartbeat               UInt32, writable: any change is a beat
      controller_source                  Int32, writable: who drives (0 policy … 4 hands off)
      plant_heartbeat                    UInt32, changes while the plant lives
      plant_time_s, time_scale           Double: plant seconds; plant per wall seconds, 0 lock-step
      sequence                           UInt32, the image's number, written last

Node ids are strings equal to the signal names. An image is put onto all nodes without yielding to
the event loop, so that no read can see half of it.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from asyncua import ua
from asyncua.server.server import Server

from steadyhand.adapters.opcua.units import unit_information
from steadyhand.adapters.sim.plant_runner import PlantRunner
from steadyhand.adapters.sim.server_clock import server_now
from steadyhand.adapters.sim.ua_values import Stamp, make_variant, stamped
from steadyhand.controllers.frames import Observation, Quality
from steadyhand.controllers.signals import Signal

HANDSHAKE: dict[str, tuple[ua.VariantType, bool]] = {
    "control_granted": (ua.VariantType.Boolean, False),
    "controller_active": (ua.VariantType.Boolean, False),
    "control_request": (ua.VariantType.UInt32, True),
    "controller_heartbeat": (ua.VariantType.UInt32, True),
    "controller_source": (ua.VariantType.Int32, True),
    "plant_heartbeat": (ua.VariantType.UInt32, False),
    "plant_time_s": (ua.VariantType.Double, False),
    "time_scale": (ua.VariantType.Double, False),
    "sequence": (ua.VariantType.UInt32, False),
}
_STATUS = {
    Quality.GOOD: ua.StatusCode(ua.StatusCodes.Good),
    Quality.UNCERTAIN: ua.StatusCode(ua.StatusCodes.Uncertain),
    Quality.BAD: ua.StatusCode(ua.StatusCodes.BadSensorFailure),
}


def namespace_uri(plant: str) -> str:
    """Namespace of a simulated plant's nodes."""
    return f"urn:steadyhand:plant:{plant}"


@dataclass(slots=True)
class Disguise:
    """What a node shows instead of the truth; None leaves that part alone."""

    value: Any = None
    replaces_value: bool = False
    variant: ua.VariantType | None = None
    status: ua.StatusCode | None = None
    source_stamp: Stamp = None
    """Offset in seconds, a fixed time, or "none"."""
    server_stamp: Stamp = None
    frozen: bool = False
    shows: str | None = None
    """Another measurement whose value this one shows (swapped wires)."""


class PlantNodes:
    """The nodes of one plant."""

    def __init__(self, server: Server, runner: PlantRunner, name: str, time_scale: float) -> None:
        self._server = server
        self._runner = runner
        self._name = name
        self._time_scale = time_scale
        self.index = 0
        self.disguises: dict[str, Disguise] = {}
        self.beats = 0
        self.silent = False
        """Reads work, but subscriptions get nothing."""
        self._ids: dict[str, ua.NodeId] = {}
        self._cells: dict[str, Any] = {}
        self._kinds: dict[str, ua.VariantType] = {}
        self._names: dict[ua.NodeId, str] = {}

    async def build(self, dummies: int, order: int) -> None:
        """Register the namespaces and make the nodes.

        Args:
            dummies: namespaces beside the plant's, each with decoys under the same identifiers.
            order: place of the plant's namespace among them, 0 is first.
        """
        uris = [f"urn:steadyhand:dummy:{i}" for i in range(dummies)]
        uris.insert(order, namespace_uri(self._name))
        for uri in uris:
            index = await self._server.register_namespace(uri)
            if uri == namespace_uri(self._name):
                self.index = index
                await self._build_plant(index)
            else:
                await self._build_decoys(index)

    def id_of(self, name: str) -> ua.NodeId:
        """Node id of a signal or handshake node (KeyError if there is none)."""
        return self._ids[name]

    def name_of(self, node_id: ua.NodeId) -> str | None:
        """Name of one of the plant's nodes, None for any other node."""
        return self._names.get(node_id)

    def kind_of(self, name: str) -> ua.VariantType:
        """Declared data type of a node."""
        return self._kinds[name]

    @property
    def names(self) -> tuple[str, ...]:
        """All node names, signals first, `sequence` last."""
        return tuple(self._ids)

    async def publish(self, image: Observation) -> None:
        """Put one image onto all nodes with one source time stamp, `sequence` last."""
        runner, now = self._runner, server_now()
        driving = runner.controlled
        shown = runner.command if driving else runner.applied
        scale = self._time_scale or 1.0
        changed = []
        observations = runner.plant.observations.names
        for i, name in enumerate(observations):
            age = float(image.age_s[i])
            stamp = now - timedelta(seconds=age / scale) if 0.0 < age < 1e9 else now
            status = _STATUS[Quality(int(image.quality[i]))]
            value = float(image.values[self._column(i, name)])
            changed.append(self._put(name, value, status, stamp))
        good = _STATUS[Quality.GOOD]
        for i, name in enumerate(runner.plant.outputs.names):
            changed.append(self._put(name, float(shown[i]), good, now))
            changed.append(self._put(f"{name}_applied", float(runner.applied[i]), good, now))
            changed.append(self._put(f"{name}_participates", not runner.kept[i], good, now))
        self.beats = (self.beats + 1) & 0xFFFFFFFF
        for name, value in (
            ("control_granted", runner.permit),
            ("controller_active", driving),
            ("plant_heartbeat", self.beats),
            ("plant_time_s", image.time_s),
            ("time_scale", self._time_scale),
            ("sequence", image.sequence & 0xFFFFFFFF),
        ):
            changed.append(self._put(name, value, good, now))
        for cell in changed:
            await self._tell(cell)

    async def beat(self) -> None:
        """Change the plant's heartbeat only: alive, but nothing new."""
        self.beats = (self.beats + 1) & 0xFFFFFFFF
        await self.put("plant_heartbeat", self.beats)

    async def put(self, name: str, value: Any) -> None:  # noqa: ANN401
        """Show `value` on one node, through its disguise."""
        await self._tell(self._put(name, value, _STATUS[Quality.GOOD], server_now()))

    def _column(self, i: int, name: str) -> int:
        """Column of the image that measurement `name` (column i) shows."""
        disguise = self.disguises.get(name)
        if disguise is None or disguise.shows is None:
            return i
        return self._runner.plant.observations.index(disguise.shows)

    def _put(
        self,
        name: str,
        value: Any,  # noqa: ANN401
        status: ua.StatusCode,
        stamp: datetime,
    ) -> Any:  # noqa: ANN401
        """Set the stored value of a node; returns its cell, None when nothing changes."""
        cell = self._cells.get(name)
        if cell is None:  # removed on purpose
            return None
        kind = self._kinds[name]
        server_stamp: datetime | None = server_now()
        source_stamp: datetime | None = stamp
        disguise = self.disguises.get(name)
        if disguise is not None:
            if disguise.frozen:
                return None
            value = disguise.value if disguise.replaces_value else value
            status = disguise.status or status
            kind = disguise.variant or kind
            source_stamp = stamped(disguise.source_stamp, stamp)
            server_stamp = stamped(disguise.server_stamp, server_now())
        elif status.is_bad():
            value = None
        cell.value = ua.DataValue(
            Value=make_variant(value, kind),
            StatusCode=status,
            SourceTimestamp=source_stamp,
            ServerTimestamp=server_stamp,
        )
        return cell

    async def _tell(self, cell: Any) -> None:  # noqa: ANN401
        """Notify the subscriptions of a node, if it has changed."""
        if cell is None or self.silent:
            return
        for handle, callback in list(cell.datachange_callbacks.items()):
            await callback(handle, cell.value)

    async def _build_plant(self, index: int) -> None:
        space = self._server.iserver.isession
        parent = ua.NodeId(self._name, index)
        await self._server.nodes.objects.add_object(parent, ua.QualifiedName(self._name, index))
        plant, applied = self._runner.plant, self._runner.applied
        for i, signal in enumerate(plant.observations):
            start = float(self._runner.true_values[i])
            await self._add_analog(space, parent, index, signal, start, writable=False)
        for i, signal in enumerate(plant.outputs):
            await self._add_analog(space, parent, index, signal, float(applied[i]), writable=True)
            readback = Signal(
                f"{signal.name}_applied", signal.unit, signal.low, signal.high, "real position"
            )
            await self._add_analog(space, parent, index, readback, float(applied[i]), False)
            name, boolean = f"{signal.name}_participates", ua.VariantType.Boolean
            item = _variable(parent, name, index, make_variant(True, boolean), name, False)
            await self._add(space, item, name, boolean)
        for name, (kind, writable) in HANDSHAKE.items():
            start_value = False if kind is ua.VariantType.Boolean else 0
            item = _variable(parent, name, index, make_variant(start_value, kind), name, writable)
            await self._add(space, item, name, kind)

    async def _add_analog(
        self,
        space: Any,  # noqa: ANN401
        parent: ua.NodeId,
        index: int,
        signal: Signal,
        start: float,
        writable: bool,
    ) -> None:
        kind = ua.VariantType.Double
        item = _variable(
            parent, signal.name, index, make_variant(start, kind), signal.meaning, writable
        )
        item.TypeDefinition = ua.NodeId(ua.ObjectIds.AnalogItemType)
        await self._add(space, item, signal.name, kind)
        node = self._server.get_node(self._ids[signal.name])
        for label, value in (
            ("EURange", ua.Range(signal.low, signal.high)),
            ("EngineeringUnits", unit_information(signal.unit)),
        ):
            await node.add_property(
                ua.NodeId(f"{signal.name}.{label}", index), ua.QualifiedName(label, 0), value
            )

    async def _add(
        self,
        space: Any,  # noqa: ANN401
        item: ua.AddNodesItem,
        name: str,
        kind: ua.VariantType,
    ) -> None:
        (result,) = await space.add_nodes([item])
        result.StatusCode.check()
        self._ids[name] = item.RequestedNewNodeId
        self._names[item.RequestedNewNodeId] = name
        self._kinds[name] = kind
        node = self._server.iserver.aspace[item.RequestedNewNodeId]
        self._cells[name] = node.attributes[ua.AttributeIds.Value]

    async def _build_decoys(self, index: int) -> None:
        """Nodes with the same identifiers: a stale namespace index reads them without an error."""
        space = self._server.iserver.isession
        parent = ua.NodeId("decoy", index)
        await self._server.nodes.objects.add_object(parent, ua.QualifiedName("decoy", index))
        plant = self._runner.plant
        for signal in (*plant.observations, *plant.outputs):
            value = make_variant(0.5 * (signal.low + signal.high), ua.VariantType.Double)
            item = _variable(parent, signal.name, index, value, "decoy", writable=True)
            (result,) = await space.add_nodes([item])
            result.StatusCode.check()

    async def set_access(self, name: str, *, readable: bool, writable: bool) -> None:
        """Change what users may do with a node."""
        mask = ua.AccessLevel.CurrentRead.mask * readable | ua.AccessLevel.CurrentWrite.mask * (
            writable
        )
        for attribute in (ua.AttributeIds.AccessLevel, ua.AttributeIds.UserAccessLevel):
            value = ua.DataValue(ua.Variant(mask, ua.VariantType.Byte))
            await self._server.iserver.write_attribute_value(self._ids[name], value, attribute)

    async def set_type(self, name: str, kind: ua.VariantType) -> None:
        """Change the declared data type of a node; its next value has that type too."""
        self.disguises.setdefault(name, Disguise()).variant = kind
        value = ua.DataValue(ua.Variant(ua.NodeId(kind.value), ua.VariantType.NodeId))
        await self._server.iserver.write_attribute_value(
            self._ids[name], value, ua.AttributeIds.DataType
        )

    async def set_unit(self, name: str, unit: str) -> None:
        """Change the EngineeringUnits property of a node."""
        value = ua.DataValue(ua.Variant(unit_information(unit), ua.VariantType.ExtensionObject))
        node_id = ua.NodeId(f"{name}.EngineeringUnits", self.index)
        await self._server.iserver.write_attribute_value(node_id, value)

    async def remove(self, name: str) -> None:
        """Delete a node; it is gone until the server is started again."""
        await self._server.delete_nodes([self._server.get_node(self._ids[name])], recursive=True)
        del self._cells[name]


def _variable(
    parent: ua.NodeId,
    name: str,
    index: int,
    value: ua.Variant,
    meaning: str,
    writable: bool,
) -> ua.AddNodesItem:
    item = ua.AddNodesItem()
    item.RequestedNewNodeId = ua.NodeId(name, index)
    item.BrowseName = ua.QualifiedName(name, index)
    item.NodeClass = ua.NodeClass.Variable
    item.ParentNodeId = parent
    item.ReferenceTypeId = ua.NodeId(ua.ObjectIds.HasComponent)
    item.TypeDefinition = ua.NodeId(ua.ObjectIds.BaseDataVariableType)
    mask = ua.AccessLevel.CurrentRead.mask | ua.AccessLevel.CurrentWrite.mask * writable
    item.NodeAttributes = ua.VariableAttributes(
        DisplayName=ua.LocalizedText(name),
        Description=ua.LocalizedText(meaning or name),
        Value=value,
        DataType=ua.NodeId(value.VariantType.value),
        ValueRank=ua.ValueRank.Scalar,
        AccessLevel=mask,
        UserAccessLevel=mask,
    )
    return item
