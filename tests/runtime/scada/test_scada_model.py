"""The model: one table, and everything made from it agrees."""

import asyncio
import re
from pathlib import Path

import pytest
from asyncua import Server, ua

from steadyhand.adapters.opcua.guarded_server import GuardedInternals, GuardedServer, ServerLimits
from steadyhand.controllers.catalogue import plant_kind
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime.events import EFFECTS, Severity, Situation
from steadyhand.runtime.operator_protocol import COMMANDS
from steadyhand.runtime.scada.model import FLAGS, TYPES, TYPES_URI, Method, Variable
from steadyhand.runtime.scada.nodes import DATA_TYPES, loop_nodes, type_nodes
from steadyhand.runtime.scada.nodeset import nodeset_xml
from steadyhand.runtime.scada.space import Space

ROOT = Path(__file__).parents[3]
PLANT = plant_kind("thermal_storage").plant(plant_kind("thermal_storage").parameters)


def methods() -> list[Method]:
    return [one for kind in TYPES.values() for one in kind.members if isinstance(one, Method)]


def test_the_file_is_what_the_model_says():
    stored = (ROOT / "deploy" / "opcua" / "steadyhand.NodeSet2.xml").read_bytes()
    assert stored == nodeset_xml(), "run: python deploy/opcua/generate.py"


def test_a_client_can_do_everything_the_command_line_can():
    """Each command of the desk has one method with its role and arguments; no method more."""
    by_command = {method.command: method for method in methods()}
    assert set(by_command) == set(COMMANDS) - {"status"}
    assert len(by_command) == len(methods())
    kinds = {"String": str, "Double": float}
    for name, method in by_command.items():
        spec = COMMANDS[name]
        assert method.role is spec.role, name
        given = {one.key: kinds[one.kind] for one in method.arguments}
        given |= {method.subject: str} if method.subject else {}
        assert given == {**spec.required, **spec.optional}, name


def test_every_name_is_one_and_every_kind_is_known():
    for kind in TYPES.values():
        names = [member.name for member in kind.members]
        assert len(names) == len(set(names)), kind.name
        for member in kind.members:
            if isinstance(member, Variable):
                assert member.kind in DATA_TYPES and member.meaning
    refs = [node.ref for node in type_nodes()]
    assert len(refs) == len(set(refs))


def test_every_analog_has_unit_and_range():
    nodes = list(loop_nodes("north", PLANT.outputs, PLANT.observations))
    values = {node.ref[1]: node.value for node in nodes}
    analogs = [node for node in nodes if node.variable is not None and node.variable.analog]
    assert len(analogs) > 30
    for node in analogs:
        low, high = values[f"{node.ref[1]}.EURange"]
        assert low < high and values[f"{node.ref[1]}.EngineeringUnits"]


def test_the_documentation_names_every_node_and_method():
    page = (ROOT / "docs" / "scada.md").read_text("utf-8")
    told = set(re.findall(r"`([A-Za-z]+)`", page))
    for kind in TYPES.values():
        if kind.name == "AlarmFlagsType":
            continue  # one per reason code: those have a table of their own
        for member in kind.members:
            name = member.name.strip("<>")
            assert name in told or f"<{name}>" in page, f"{kind.name}.{name}"


def test_every_alarm_has_its_flag_and_what_never_is_one_has_none():
    flags = {one.name: one for one in TYPES["AlarmFlagsType"].members}
    assert set(flags) == set(FLAGS)
    for code in ReasonCode:
        loud = {EFFECTS[code, situation].severity for situation in Situation} - {Severity.LOG}
        assert (str(code) in flags) == bool(loud), code
    assert {"LINK_DOWN", "CRASH_LOOP", "OBS_STALE"} <= set(flags)
    assert not {"OK", "MODE_REQUEST", "OUTPUT_OUT"} & set(flags)
    assert flags["LINK_DOWN"].kind == "Boolean"
    assert flags["LINK_DOWN"].meaning == "link to the plant is down"


# -- in a server


async def described(server: Server) -> dict[str, tuple]:
    """Every node of our types as plain data, whatever number the namespace has."""
    number = await server.get_namespace_index(TYPES_URI)

    def plain(found: ua.NodeId) -> str:
        own = found.NamespaceIndex == number
        return f"{'types' if own else found.NamespaceIndex}:{found.Identifier}"

    made = {}
    for node_id, data in list(server.iserver.aspace._nodes.items()):
        if node_id.NamespaceIndex != number or not isinstance(node_id.Identifier, str):
            continue  # the importer adds nodes about the namespace, with numbers
        attributes = {
            name: data.attributes[attribute].value.Value.Value
            for name in ("NodeClass", "BrowseName", "DataType", "ValueRank", "Value")
            if (attribute := getattr(ua.AttributeIds, name)) in data.attributes
        }
        browse = attributes["BrowseName"]
        data_type = attributes.get("DataType")
        references = {
            (plain(one.ReferenceTypeId), plain(one.NodeId))
            for one in data.references
            if one.IsForward
        }
        made[node_id.Identifier] = (
            int(attributes["NodeClass"]),
            browse.Name,
            browse.NamespaceIndex == number,
            None if data_type is None else plain(data_type),
            attributes.get("ValueRank"),
            _plain(attributes.get("Value")),
            frozenset(references),
        )
    return made


def _plain(value):
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, ua.LocalizedText):
        return value.Text
    if isinstance(value, ua.Argument):
        return (value.Name, str(value.DataType.Identifier), value.Description.Text)
    if isinstance(value, ua.Range):
        return (value.Low, value.High)
    if isinstance(value, ua.EUInformation):
        return (value.UnitId, value.DisplayName.Text)
    return value


def test_what_is_imported_from_the_file_is_what_the_runtime_serves():
    async def go():
        imported = Server()
        await imported.init()
        await imported.import_xml(xmlstring=nodeset_xml().decode())
        ours = GuardedServer(GuardedInternals(None, None, ServerLimits()), None, None)
        await ours.init()
        await Space(ours).build("north", PLANT.outputs, PLANT.observations)
        return await described(imported), await described(ours)

    imported, ours = asyncio.run(go())
    assert set(imported) == set(ours) and len(ours) > 250
    for name, node in ours.items():
        assert imported[name] == node, name


def test_methods_are_found_by_instance_and_by_type():
    async def go():
        ours = GuardedServer(GuardedInternals(None, None, ServerLimits()), None, None)
        await ours.init()
        space = Space(ours)
        await space.build("north", PLANT.outputs, PLANT.observations)
        return {(o.Identifier, m.Identifier): b.method.command for (o, m), b in
                space.methods.items()}  # fmt: skip

    found = asyncio.run(go())
    output = f"Outputs.{PLANT.outputs.names[0]}"
    assert found["Mode", "Mode.Request"] == found["Mode", "ModeType.Request"] == "mode"
    assert found[output, f"{output}.SetOverride"] == "override"
    assert found[output, "OutputType.SetOverride"] == "override"
    assert found["Loop", "Stop"] == found["Loop", "LoopType.Stop"] == "stop"
    assert ("Alarms", "Mode.Request") not in found


@pytest.mark.parametrize("name", ["Mode", "Source", "Gate", "Participation", "Highest"])
def test_choices_only_ever_grow(name):
    """The numbers of states are on other people's screens."""
    known = {
        "Mode": ["off", "shadow", "advisory", "limited", "full"],
        "Source": ["policy", "fallback", "hold", "safe", "hands_off"],
        "Gate": ["trust", "fallback", "probation"],
        "Highest": ["none", "warning", "alarm", "critical"],
        "Participation": ["none", "policy", "fallback", "hold", "safe", "override", "plant"],
    }
    member = {"Mode": "InForce"}.get(name, name)
    (variable,) = [
        one for kind in TYPES.values() for one in kind.members
        if isinstance(one, Variable) and one.name == member
    ]  # fmt: skip
    assert list(variable.choices[: len(known[name])]) == known[name]
