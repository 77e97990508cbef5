"""What our own account could write beyond what it is configured to."""

import pytest
from asyncua import ua

from steadyhand.adapters.opcua import reach
from steadyhand.adapters.opcua.reach import own_reach
from steadyhand.training.bench.fieldbus import c_server
from tests.adapters.opcua.conftest import PLANT_URI


def add(server, parent, name, writable):
    async def made():
        folder = await parent.add_folder(server.index, f"{name} folder")
        node = await folder.add_variable(ua.NodeId(name, server.index), name, 1.0)
        if writable:
            await node.set_writable()
        return folder

    return server.call(made())


def look(opcua, server, **options):
    return own_reach(opcua.settings_for(server.endpoint), opcua.tag_map(), **options)


def beyond(opcua, server, **options):
    """Leaves out what the library's own server opens in its namespace 0."""
    return [one for one in look(opcua, server, **options).beyond if PLANT_URI in one]


def test_what_we_write_is_not_beyond_and_the_rest_is_named(opcua) -> None:
    server = opcua.server()
    objects = server.server.nodes.objects
    before = beyond(opcua, server)
    assert not any(";s=valve" in one or ";s=pump" in one for one in before)
    folder = add(server, objects, "drain", writable=True)
    deep = add(server, folder, "siren", writable=True)
    add(server, deep, "gauge", writable=False)
    new = sorted(set(beyond(opcua, server)) - set(before))
    assert new == [
        f"drain (nsu={PLANT_URI};s=drain)",
        f"siren (nsu={PLANT_URI};s=siren)",
    ]


def test_nothing_is_written_for_it(opcua) -> None:
    server = opcua.server()
    written: list[object] = []
    server.on_write(written.append)
    assert look(opcua, server).complete
    assert written == []


def test_a_server_that_is_too_large_is_told_as_such(opcua) -> None:
    server = opcua.server()
    whole = look(opcua, server)
    assert whole.complete
    part = look(opcua, server, most_nodes=40)
    assert (part.complete, part.nodes) == (False, 40)
    assert set(part.beyond) <= set(whole.beyond)


def test_a_server_that_is_too_slow_is_told_as_such(opcua, monkeypatch) -> None:
    monkeypatch.setattr(reach, "LONGEST_S", -1.0)
    assert not look(opcua, opcua.server()).complete


def test_two_ways_to_one_node_are_one(opcua) -> None:
    """Address spaces are no trees."""
    server = opcua.server()
    objects = server.server.nodes.objects
    add(server, objects, "drain", writable=True)
    other = add(server, objects, "siren", writable=True)
    drain = server.server.get_node(ua.NodeId("drain", server.index))
    server.call(other.add_reference(drain, ua.ObjectIds.Organizes))
    found = look(opcua, server)
    assert found.complete
    assert sum(";s=drain" in one for one in found.beyond) == 1


@pytest.mark.timeout(120)
def test_answers_in_pages_are_read_to_the_last_one(opcua) -> None:
    """Of another maker's server: asyncua's has everything on one page."""
    pytest.importorskip("o6")
    with c_server(60) as endpoint:
        settings = opcua.settings_for(endpoint, server_uri="urn:open62541.unconfigured.application")
        pages = own_reach(settings, opcua.tag_map(), page=7)
        whole = own_reach(settings, opcua.tag_map())
    assert pages == whole
    assert pages.complete
    assert pages.nodes > 60
