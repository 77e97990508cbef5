"""Who may do what, over all three ways in, against the one table in the code: every combination.

Real sockets, real log-ins, real tokens. What the loop would do is recorded by a thread that stands
in for it, so that also `stop` and `swap` can be tried by everybody.
"""

import asyncio
import json
import os
import tempfile
from itertools import product
from pathlib import Path

import pytest

from steadyhand.controllers.errors import RequestError
from steadyhand.runtime.operator import OperatorServer
from steadyhand.runtime.operator_client import OperatorClient
from steadyhand.runtime.operator_people import OperatorSettings
from steadyhand.runtime.operator_protocol import COMMANDS, Door, Role
from steadyhand.runtime.scada.server import ScadaServer, ScadaSettings
from steadyhand.runtime.scada.snapshot import Site
from tests.support.panels import ANN, Stand
from tests.support.records import LAYOUT
from tests.support.scada_rig import LOOP_URI, ROLES, ScadaFiles, scada

OUTPUT = "discharge_kw"
ARGUMENTS = {
    "status": {},
    "mode": {"mode": "full", "reason": "test"},
    "override": {"output": OUTPUT, "value": 1.0, "reason": "test", "for_s": 60.0},
    "clear-override": {"output": OUTPUT},
    "ack": {},
    "shelve": {"code": "OBS_STALE", "reason": "test", "for_s": 60.0},
    "unshelve": {"code": "OBS_STALE"},
    "stop": {"reason": "test"},
    "swap": {"file": "new.shb", "reason": "test"},
}
METHODS = {
    "mode": ("Mode.Request", ("full", "test")),
    "override": (f"Outputs.{OUTPUT}.SetOverride", (1.0, 60.0, "test")),
    "clear-override": (f"Outputs.{OUTPUT}.ClearOverride", ()),
    "ack": ("Alarms.Acknowledge", ("",)),
    "shelve": ("Alarms.Shelve", ("OBS_STALE", 60.0, "test")),
    "unshelve": ("Alarms.Unshelve", ("OBS_STALE",)),
    "swap": ("Bundle.Swap", ("new.shb", "test")),
    "stop": ("Stop", ("test",)),
}
# Written down a second time, as a person would say it: viewer, operator, engineer.
WHO = {
    "status": "VOE",
    "mode": "-OE",
    "override": "-OE",
    "clear-override": "-OE",
    "ack": "-OE",
    "shelve": "-OE",
    "unshelve": "-OE",
    "stop": "-OE",
    "swap": "--E",
}
WHERE = {
    "status": {Door.SOCKET},
    "stop": {Door.SOCKET, Door.SCADA},
    "swap": {Door.SOCKET, Door.SCADA},
}


def may(command: str, role: Role, door: Door) -> bool:
    return WHO[command][role] != "-" and door in WHERE.get(command, set(Door))


@pytest.fixture(scope="module")
def house():
    """One desk with all three doors."""
    with (
        tempfile.TemporaryDirectory(prefix="shr", dir="/tmp") as name,
        Stand({"ann": ANN}) as stand,
    ):
        folder = Path(name)
        files = ScadaFiles(folder / "scada")
        settings = ScadaSettings(
            "127.0.0.1", 0, files.server, files.folder / "server_key.pem", files.trusted,
            files.users, folder,
        )  # fmt: skip
        site = Site(LOOP_URI.rpartition(":")[2], "tank", "1", 900.0, 9000.0, LAYOUT, None)
        server = ScadaServer(
            settings, site, stand.desk, stand.recorder, lambda: None, lambda: (1, 1)
        )
        server.open()
        try:
            yield stand, files, server, folder
        finally:
            server.close()


def socket_code(folder: Path, desk, role: Role, command: str) -> str:
    """What the control socket answers to somebody of this role."""
    server = OperatorServer(OperatorSettings(folder / "s", roles={os.geteuid(): role}), desk)
    server.open()
    try:
        with OperatorClient(folder / "s") as client:
            assert client.role == role.name.lower()
            client.call(command, **ARGUMENTS[command])
            return "OK"
    except RequestError as error:
        return error.code
    finally:
        server._closing.set()
        # the desk is shared with the other doors: only the door is closed
        server.desk = type("Nobody", (), {"close": lambda self: None})()
        server.close()


@pytest.mark.parametrize("command", COMMANDS)
def test_the_table_says_what_people_say(command):
    spec = COMMANDS[command]
    for role, door in product(Role, Door):
        assert (role >= spec.role and door in spec.doors) == may(command, role, door)


def test_every_command_is_in_these_tables():
    assert set(WHO) == set(ARGUMENTS) == set(COMMANDS) == {"status", *METHODS}


@pytest.mark.parametrize(("role", "command"), list(product(Role, COMMANDS)))
def test_by_the_socket(house, role, command):
    stand, _, _, folder = house
    before = len(stand.done)
    code = socket_code(folder, stand.desk, role, command)
    allowed = may(command, role, Door.SOCKET)
    assert code == ("OK" if allowed else "ROLE")
    assert len(stand.done) - before == (allowed and command != "status")


@pytest.mark.parametrize("user", ROLES)
def test_by_scada(house, user):
    stand, files, server, _ = house

    async def everything():
        found = {}
        async with scada(server.url, files, user) as client:
            for command, (path, arguments) in METHODS.items():
                found[command] = await client.call(path, *arguments)
        return found

    before = len(stand.done)
    found = asyncio.run(everything())
    for command, (status, code, text) in found.items():
        if may(command, ROLES[user], Door.SCADA):
            assert (status, code) == ("Good", "OK"), (command, text)
        else:
            assert (status, code) == ("BadUserAccessDenied", "ROLE"), command
            assert "needs the role" in text
    done = [(name, actor) for name, _, actor in stand.done[before:]]
    expected = [c for c in METHODS if may(c, ROLES[user], Door.SCADA)]
    assert done == [(name, f"scada:{user}") for name in expected]


def test_by_the_panel(house):
    """Whoever has a token is an operator there; who has none only looks."""
    stand, _, _, _ = house
    session = stand.session()
    before = len(stand.done)
    expected = []
    for number, command in enumerate(COMMANDS, 1):
        status, answer = stand.command(session, number, command, **ARGUMENTS[command])
        if may(command, Role.OPERATE, Door.PANEL):
            assert status == 200, answer
            expected.append((command, "panel:ann"))
        else:
            assert status == 400
            assert answer["error"]["code"] == "UNKNOWN_COMMAND"
        status, _, content = stand.ask(
            "POST", "/api/command",
            {"session": session, "sequence": 99, "command": command,
             "arguments": ARGUMENTS[command]},
        )  # fmt: skip
        assert (status, json.loads(content)["error"]["code"]) == (401, "DENIED")
        if number % 4 == 0:  # wrong tokens are slowed down; nobody waits for that here
            stand.panel._access._wrong._tokens = 10.0
    assert [(name, actor) for name, _, actor in stand.done[before:]] == expected


@pytest.mark.parametrize(("role", "door", "command"), list(product(Role, Door, COMMANDS)))
def test_the_desk_itself_looks_whatever_a_door_lets_through(house, role, door, command):
    stand, _, _, _ = house
    before = len(stand.done)
    try:
        stand.desk.call(command, ARGUMENTS[command], f"{role}{door}{command}", role, door)
        code = "OK"
    except RequestError as error:
        code = error.code
    allowed = may(command, role, door)
    assert code == ("OK" if allowed else "ROLE")
    assert len(stand.done) - before == (allowed and command != "status")


def test_no_command_reaches_the_filter_the_limits_or_the_trust():
    """The words of the whole vocabulary, so that a new one is noticed here."""
    words = {word for spec in COMMANDS.values() for word in (*spec.required, *spec.optional)}
    assert words == {"mode", "reason", "output", "value", "for_s", "code", "file"}
    assert not {"filter", "limit", "limits", "gate", "threshold", "configuration"} & set(COMMANDS)
