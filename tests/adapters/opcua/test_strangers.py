"""Who else could write our outputs: found by trying, and nothing is written for it."""

import pytest
from asyncua import ua

from steadyhand.adapters.opcua.settings import OpcUaSettings
from steadyhand.adapters.opcua.strangers import open_doors

OURS = ["valve", "pump", "heartbeat", "source", "request"]


def settings(opcua, endpoint: str, security) -> OpcUaSettings:
    return opcua.settings_for(endpoint, security=security, connect_timeout_s=3.0)


@pytest.fixture
def written(opcua):
    """Every node that anybody writes."""
    names: list[str] = []

    def watch(server) -> list[str]:
        server.on_write(
            lambda event: names.extend(
                str(item.NodeId.Identifier) for item in event.request_params.NodesToWrite
            )
        )
        return names

    return watch


def test_a_server_open_to_everyone_is_told(opcua, pki, written) -> None:
    server = opcua.server()
    names = written(server)
    tags = opcua.tag_map(opcua.full_handshake())
    for security in (pki.security(), opcua.settings_for(server.endpoint).security):
        found = open_doors(settings(opcua, server.endpoint, security), tags)
        assert found == [f"whoever comes without encryption or a name may write {', '.join(OURS)}"]
    assert names == []


def test_unknown_certificates_and_missing_names_are_told(opcua, pki, tmp_path) -> None:
    """This server encrypts, and then believes everybody."""
    server = opcua.server(secure=pki)
    password = tmp_path / "password"
    password.write_text("right\n")
    password.chmod(0o600)
    named = pki.security(allow_anonymous=False, user="controller", password_file=password)
    found = open_doors(settings(opcua, server.endpoint, named), opcua.tag_map())
    assert found == [
        "whoever comes with a certificate that nobody knows and without a name may write "
        "valve, pump",
        "whoever comes with a trusted certificate, but without a name may write valve, pump",
    ]


def test_what_may_not_be_written_is_no_open_door(opcua, pki) -> None:
    server = opcua.server()
    for name in ("valve", "pump"):
        node = server.server.get_node(ua.NodeId(name, server.index))
        server.call(node.set_read_only())
    assert open_doors(settings(opcua, server.endpoint, pki.security()), opcua.tag_map()) == []


def test_a_server_that_is_not_there_has_no_door(opcua, pki) -> None:
    endpoint = f"opc.tcp://127.0.0.1:{opcua.free_port()}/plant"
    assert open_doors(settings(opcua, endpoint, pki.security()), opcua.tag_map()) == []
