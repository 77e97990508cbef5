"""Settings: addresses, tags and maps, read and refused."""

import pytest

from steadyhand.adapters.opcua.columns import Columns
from steadyhand.adapters.opcua.resolve import uses_of
from steadyhand.adapters.opcua.tags import (
    READ_ROLES,
    RESERVED_NAMES,
    STANDARD_NAMESPACE,
    WRITTEN_ROLES,
    Freshness,
    Handshake,
    Tag,
    parse_address,
    read_tag_map,
)
from steadyhand.controllers.errors import ConfigError
from steadyhand.controllers.signals import Signal, SignalSet

Y = SignalSet((Signal("level", "m", 0.0, 10.0), Signal("flow", "m3/s", -1.0, 1.0)))
U = SignalSet((Signal("valve", "%", 0.0, 100.0),))
PLANT = "urn:plant"


@pytest.mark.parametrize(
    ("text", "namespace", "identifier"),
    [
        ("nsu=urn:plant;s=Tank.Level", PLANT, "Tank.Level"),
        ("nsu=urn:plant;s=a=b;c/d e", PLANT, "a=b;c/d e"),
        ("nsu=http://a.b/c:4840/;i=4294967295", "http://a.b/c:4840/", 4294967295),
        ("i=2258", STANDARD_NAMESPACE, 2258),
    ],
)
def test_node_ids(text, namespace, identifier) -> None:
    address = parse_address(text, "x")
    assert (address.namespace, address.identifier, address.path) == (namespace, identifier, ())
    assert address.namespaces == {namespace}


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/nsu=urn:plant;Tank/Level", ((PLANT, "Tank"), (PLANT, "Level"))),
        ("/Objects/nsu=urn:plant;Tank", ((PLANT, "Tank"),)),
        ("/nsu=urn:plant:Tank/nsu=urn:plant:Level", ((PLANT, "Tank"), (PLANT, "Level"))),
        ("/nsu=http://a/b;Tank/Level", (("http://a/b", "Tank"), ("http://a/b", "Level"))),
        ("/nsu=http://a:4840/b;Tank", (("http://a:4840/b", "Tank"),)),
        ("/Server/nsu=urn:plant;X", ((STANDARD_NAMESPACE, "Server"), (PLANT, "X"))),
    ],
)
def test_browse_paths_start_at_objects(text, path) -> None:
    assert parse_address(text, "x").path == path


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ns=2;s=Level", "by index"),
        ("Level", "cannot read"),
        ("nsu=urn:plant;x=1", "cannot read"),
        ("i=abc", "needs a number"),
        ("i=4294967296", "needs a number"),
        ("nsu=;s=a", "cannot read"),
        ("/", "breaks at"),
        ("/Objects", "names no node"),
        ("/nsu=urn:plant;/x", "breaks at"),
        ("//x", "breaks at"),
    ],
)
def test_what_is_no_address_is_refused_with_the_forms_that_are(text, says) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        parse_address(text, "signals.level")
    assert str(caught.value).startswith("signals.level")


def node(name: str) -> str:
    return f"nsu=urn:plant;s={name}"


def plain(**changes):
    return {
        "observations": {"level": node("level"), "flow": {"address": node("flow"), "scale": 0.1}},
        "outputs": {"valve": {"address": node("valve"), "wire_type": "Float"}},
        "handshake": {"granted": node("granted"), "heartbeat": node("beat")},
        **changes,
    }


def test_a_map_is_read_in_signal_order() -> None:
    tags = read_tag_map(Y, U, plain())
    assert [tag.address.identifier for tag in tags.observations] == ["level", "flow"]
    assert tags.observations[1].scale == 0.1
    assert tags.observations[0].freshness is Freshness.AUTO
    assert tags.outputs[0].wire_type == "Float"
    assert tags.handshake.granted is not None
    assert tags.handshake.granted.wire_type == "auto"
    assert tags.handshake.sequence is None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"observations": {"level": node("a")}}, "no tag for: flow"),
        (
            {"observations": {"level": node("a"), "flow": node("b"), "folw": node("c")}},
            "no such signal: folw",
        ),
        ({"extra": {}}, "unknown key extra"),
        ({"outputs": {"valve": {"adress": node("a")}}}, "needs an address"),
        ({"outputs": {"valve": {"address": node("a"), "scael": 1}}}, "unknown key scael"),
        ({"outputs": {"valve": {"address": node("a"), "scale": 0.0}}}, "scale=0.0"),
        ({"outputs": {"valve": {"address": node("a"), "wire_type": "Real"}}}, "'Real' is unknown"),
        ({"outputs": {"valve": {"address": node("a"), "freshness": "new"}}}, "freshness 'new'"),
        ({"handshake": {"grant": node("a")}}, "unknown key grant"),
        ({"handshake": {"heartbeat": node("valve")}}, "written as two things"),
    ],
)
def test_a_broken_map_names_what_is_wrong(changes, says) -> None:
    with pytest.raises(ConfigError, match=says):
        read_tag_map(Y, U, plain(**changes))


@pytest.mark.parametrize("label", ["observation", "output"])
@pytest.mark.parametrize("name", RESERVED_NAMES)
def test_a_signal_called_like_a_node_of_the_handshake_is_refused(name, label) -> None:
    """Whether the plant has that node or not: it may be given one, and then be read instead."""
    called = SignalSet((Signal(name, "m", 0.0, 10.0),))
    observations, outputs = (called, U) if label == "observation" else (Y, called)
    settings = plain(**{f"{label}s": {name: node("x")}})
    with pytest.raises(ConfigError) as caught:
        read_tag_map(observations, outputs, settings)
    for word in (f"{label} {name!r}", "rename the signal", *RESERVED_NAMES):
        assert word in str(caught.value)


def test_one_name_for_an_observation_and_an_output_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"level, flow: observation and output .* rename"):
        read_tag_map(Y, Y, plain(outputs={"level": node("a"), "flow": node("b")}))


def test_every_node_of_a_reading_has_a_name_of_its_own() -> None:
    """All roles, feedback and participation; a role that is added must be reserved as well."""
    assert {*READ_ROLES, *WRITTEN_ROLES} == set(Handshake.__dataclass_fields__)
    outputs = {"valve": {"address": node("valve"), "feedback": node("f"), "participation": "i=9"}}
    roles = {role: node(role) for role in Handshake.__dataclass_fields__}
    tags = read_tag_map(Y, U, plain(outputs=outputs, handshake=roles))
    names = [use.name for use in uses_of(tags)]
    assert len(set(names)) == len(names) == 3 + 2 + len(roles)
    assert {*Columns(tags).control} - {*names} <= {*RESERVED_NAMES}


def test_a_scale_must_be_finite() -> None:
    with pytest.raises(ConfigError, match="scale=nan"):
        Tag(address=parse_address(node("a"), "a"), scale=float("nan"))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"endpoint": "http://a:1"}, "write opc.tcp"),
        ({"endpoint": "opc.tcp://a"}, "write opc.tcp"),
        ({"endpoint": "opc.tcp://me:secret@a:1"}, "write opc.tcp"),
        ({"server_uri": ""}, "server_uri is missing"),
        ({"period_s": 0.0}, "period_s=0.0"),
        ({"request_timeout_s": float("inf")}, "request_timeout_s=inf"),
        ({"sampling_s": 0.2}, "at most half the period"),
    ],
)
def test_impossible_settings_are_refused(opcua, changes, says) -> None:
    changes = {"endpoint": "opc.tcp://a:1", **changes}
    with pytest.raises(ConfigError, match=says):
        opcua.settings_for(**changes)


def test_sampling_is_at_most_half_the_period_and_a_second(opcua) -> None:
    assert opcua.settings_for("opc.tcp://a:1", period_s=0.1).sample_period_s == 0.05
    assert opcua.settings_for("opc.tcp://a:1", period_s=900.0).sample_period_s == 1.0
