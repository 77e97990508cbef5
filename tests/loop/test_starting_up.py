"""Whoever gives a command right after the start gets an answer at once, and can try again."""

import json
import signal
import socket
import time
import urllib.request

import pytest

from steadyhand.adapters.opcua.settings import INSECURE_WORD
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


SCADA = f"scada:\n  insecure_no_encryption: {INSECURE_WORD}\n"
DOORS = ("metrics", "panel", "scada")


@pytest.mark.parametrize("before", ["a clean start", "a crash"])
def test_with_every_port_taken_it_drives_and_tells(rig, before):
    """Nobody may be there to free a port: control never waits for one, nor for who stands by."""
    taken = {name: socket.create_server(("127.0.0.1", 0)) for name in DOORS}
    where = {name: f"127.0.0.1:{one.getsockname()[1]}" for name, one in taken.items()}
    shown = f"metrics:\n  listen: {where['metrics']}\n"
    panel = f"panel:\n  listen: {where['panel']}\n"
    scada = f"{SCADA}  listen: {where['scada']}\n"
    changes = {"metrics:\n  listen: 127.0.0.1:0\n": shown + panel + scada}
    made = rig(time_scale=3000.0, bundle=None, changes=changes)
    warned = json.loads(made.cli("check", "CONFIG", "--json").stdout)["warnings"]
    for name in DOORS:
        assert any(f"{name}.listen={where[name]}: Address already in use" in w for w in warned)
    made.start_runtime()
    if before == "a crash":
        made.wait_in_control()
        made.runtime.send_signal(signal.SIGKILL)
        made.runtime.wait(10.0)
        made.start_runtime()
    made.wait_in_control()
    codes = {"METRICS_DOWN", "PANEL_DOWN", "SCADA_DOWN"}

    def alarmed():
        return {alarm["code"] for alarm in made.status().get("alarms", ())} & codes

    until(lambda: alarmed() == codes, what="three alarms", instead=made.status)
    own = json.loads(made.cli("check", "CONFIG", "--json").stdout)["warnings"]
    assert not any("listen=" in warning for warning in own), "its runtime is there: they are its"
    for name in DOORS:
        assert f"{name}: listen={where[name]}: Address already in use" in made.said.read_text()
        taken[name].close()
    until(lambda: not alarmed(), what="the end of the alarms", instead=alarmed)
    page = urllib.request.urlopen(f"http://{where['metrics']}/metrics", timeout=5.0).read()
    assert b"steadyhand_ticks_total" in page
    assert urllib.request.urlopen(f"http://{where['panel']}/", timeout=5.0).status == 200
    assert made.stop_runtime() == 0
    with JournalReader(made.journal) as journal:
        told = [f"{e.data.get('code', '')} {e.data.get('text', '')}" for e in journal.events()]
    for name in DOORS:
        assert any(f"{name.upper()}_BIND" in text and where[name] in text for text in told), told
