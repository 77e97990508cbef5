"""A runtime that is still starting says so, and one that has started takes commands."""

import tempfile
from pathlib import Path

import pytest

from steadyhand.controllers.errors import RequestError
from steadyhand.runtime.commands import Desk, DeskSettings
from steadyhand.runtime.exits import exit_of
from steadyhand.runtime.operator import OperatorServer
from steadyhand.runtime.operator_client import OperatorClient
from steadyhand.runtime.operator_people import OperatorSettings
from steadyhand.runtime.operator_protocol import COMMANDS

EXAMPLES = {str: "full", float: 1.0}


def arguments(command):
    return {name: EXAMPLES[kind] for name, kind in COMMANDS[command].required.items()}


@pytest.fixture
def desk_and_path():
    with tempfile.TemporaryDirectory(prefix="sh", dir="/tmp") as name:
        desk = Desk(DeskSettings(answer_s=0.3))
        desk.starting("getting ready for opc.tcp://plant:4840")
        door = OperatorServer(OperatorSettings(Path(name) / "s"), desk)
        door.open()
        yield desk, Path(name) / "s"
        door.close()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_answered_at_once_while_the_runtime_starts(desk_and_path, command):
    desk, path = desk_and_path
    with OperatorClient(path) as client, pytest.raises(RequestError) as refusal:
        client.call(command, **arguments(command))
    assert refusal.value.code == "STARTING"
    assert exit_of(refusal.value) == 75
    assert refusal.value.message == (
        "still starting (getting ready for opc.tcp://plant:4840, 0 s): nothing was done; try again"
    )
    assert desk.drain(dict.fromkeys(COMMANDS, pytest.fail)) == 0, "it is not carried out later"


def test_before_the_first_tick_the_loop_takes_commands_but_there_is_no_status(desk_and_path):
    desk, path = desk_and_path
    desk.starting("connecting to opc.tcp://plant:4840", accepting=True)
    with OperatorClient(path) as client:
        with pytest.raises(RequestError, match="connecting to opc"):
            client.call("status")
        with pytest.raises(RequestError, match="TIMEOUT"):  # taken, and nobody drains here
            client.call("mode", mode="full")


def test_with_the_first_status_the_start_is_over(desk_and_path):
    desk, path = desk_and_path
    desk.publish({"tick": 1})
    with OperatorClient(path) as client:
        assert client.call("status") == {"tick": 1}
