"""Whoever gives a command right after the start gets an answer at once, and can try again."""

import time

import pytest

from steadyhand.controllers.errors import RequestError
from steadyhand.runtime.operator_client import OperatorClient
from steadyhand.runtime.reader import JournalReader
from tests.support.loop_rig import ASK_EVERY_S, until


@pytest.mark.parametrize("command", ["status", "mode"])
def test_from_the_start_on_every_command_is_answered_at_once(rig, command):
    made = rig(time_scale=3000.0, initial="off")
    socket = made.folder / "var" / "operator.sock"
    made.start_runtime()
    arguments = {"mode": "full", "reason": "first"} if command == "mode" else {}
    codes = []

    def answered():
        assert made.runtime.poll() is None, made.said.read_text()
        time.sleep(ASK_EVERY_S)
        try:
            with OperatorClient(socket, 15.0) as client:
                client.call(command, **arguments)
        except RequestError as error:
            codes.append(error.code)
            return False
        return True

    until(answered, what=f"an answer to {command}", instead=lambda: codes[-5:])
    assert set(codes) <= {"NOT_RUNNING", "STARTING"}, "never a time-out"
    if command == "mode":
        until(lambda: made.status().get("mode") == "full", what="the mode that was asked for")


def test_the_port_of_the_metrics_is_taken(rig):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        changes = {"listen: 127.0.0.1:9464": f"listen: 127.0.0.1:{port}"}
        made = rig(time_scale=3000.0, bundle=None, changes=changes)
        made.start_runtime()
        assert made.runtime.wait(60.0) == 78
        said = made.said.read_text()
        assert f"listen=127.0.0.1:{port}" in said
        assert "another port" in said
        assert "Traceback" not in said
        assert made.policy_pid() is None
    assert made.writes() == []


def test_after_a_crash_a_taken_port_keeps_nobody_from_control(rig):
    """Nobody is there to give it another one: it is told, and tried again."""
    import json
    import signal
    import socket
    import urllib.request

    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    changes = {"listen: 127.0.0.1:9464": f"listen: 127.0.0.1:{port}"}
    made = rig(time_scale=3000.0, bundle=None, changes=changes)
    made.start_runtime()
    notes = made.folder / "var" / "crash_loop.json"
    until(lambda: notes.exists() and json.loads(notes.read_bytes())["running"], what="the note")
    made.runtime.send_signal(signal.SIGKILL)
    made.runtime.wait(10.0)
    with socket.create_server(("127.0.0.1", port)):
        made.start_runtime()
        made.wait_in_control()
        with JournalReader(made.journal) as journal:
            told = [e for e in journal.events() if e.data.get("code") == "METRICS_BIND"]
        assert f"127.0.0.1:{port}" in told[0].data["text"]
    page = b""

    def answered():
        nonlocal page
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=2.0) as reply:
                page = reply.read()
        except OSError:
            return False
        return True

    until(answered, what="metrics, once the port is free")
    assert b"steadyhand_ticks_total" in page
