"""The control socket, over real sockets: roles, other users, replays, floods, malformed lines."""

import errno
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from itertools import product
from math import inf, nan
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from steadyhand.controllers.errors import ConfigError, RequestError
from steadyhand.runtime import cli_operator, operator_client
from steadyhand.runtime.commands import Desk, DeskSettings
from steadyhand.runtime.exits import Exit, exit_of
from steadyhand.runtime.modes import Mode
from steadyhand.runtime.operator import OperatorServer
from steadyhand.runtime.operator_client import OperatorClient
from steadyhand.runtime.operator_people import OperatorSettings, Role, peer_of, role_of, user_name
from steadyhand.runtime.operator_protocol import (
    COMMANDS,
    LINE_LIMIT,
    Door,
    encode,
    parse_object,
    parse_request,
)
from steadyhand.runtime.operator_socket import Lines, hang_up
from steadyhand.runtime.refusals import CODES

ME = os.geteuid()
ARGUMENTS = {
    "status": {},
    "mode": {"mode": "full"},
    "override": {"output": "valve", "value": 1, "reason": "test", "for_s": 60},
    "clear-override": {"output": "valve"},
    "ack": {},
    "shelve": {"code": "OBS_STALE", "reason": "test", "for_s": 60},
    "unshelve": {"code": "OBS_STALE"},
    "stop": {"reason": "test"},
    "swap": {"file": "new.shb", "reason": "test"},
}


@pytest.fixture
def folder():
    """A short path: a Unix socket's may have 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="sh", dir="/tmp") as name:
        yield Path(name)


@contextmanager
def listening(folder, handlers=None, drain=True, **change):
    """A server, and a loop that drains it; yields the server and what was done."""
    pressing = {"rate_per_s": 1e6, "burst": 10_000, "answer_s": 5.0}
    names = {field.name for field in fields(DeskSettings)}
    pressing |= {name: change.pop(name) for name in list(change) if name in names}
    desk = Desk(DeskSettings(**pressing), record=change.pop("record", None))
    server = OperatorServer(OperatorSettings(**{"path": folder / "s", **change}), desk)
    done, stop = [], threading.Event()

    def handler(command):
        done.append((command.name, dict(command.arguments), command.actor))
        return {"did": command.name}

    table = {name: handler for name in COMMANDS if name != "status"} | (handlers or {})

    def loop():
        while not stop.wait(0.002):
            desk.drain(table)

    thread = threading.Thread(target=loop)
    server.open()
    if drain:
        thread.start()
    try:
        yield server, done
    finally:
        stop.set()
        if drain:
            thread.join()
        server.close()


@contextmanager
def raw(folder):
    """A bare connection that has read the greeting; yields socket, reader and session."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as end:
        end.settimeout(10.0)
        end.connect(str(folder / "s"))
        with end.makefile("rb") as reader:  # an open reader would keep the socket open
            hello = json.loads(reader.readline())
            yield end, reader, hello.get("session")


def line(session, sequence=1, command="status", arguments=None):
    return encode({"session": session, "sequence": sequence, "command": command,
                   "arguments": arguments or {}})  # fmt: skip


def code_of(refusal):
    return refusal.value.code


# -- the ordinary case


def test_every_command_reaches_its_handler_with_its_actor(folder):
    with listening(folder) as (server, done), OperatorClient(folder / "s") as client:
        server.desk.publish({"mode": "off", "margin": nan, "array": np.array([1.0, inf])})
        assert client.call("status") == {"mode": "off", "margin": None, "array": [1.0, None]}
        for name, arguments in ARGUMENTS.items():
            if name != "status":
                assert client.call(name, **arguments) == {"did": name}
        assert [(name, actor) for name, _, actor in done] == [
            (name, user_name(ME)) for name in ARGUMENTS if name != "status"
        ]
        assert done[1][1] == {"output": "valve", "value": 1.0, "reason": "test", "for_s": 60.0}


def test_status_answers_while_the_loop_sleeps(folder):
    with listening(folder, drain=False) as (server, _), OperatorClient(folder / "s") as client:
        server.desk.publish({"tick": 3})
        assert client.call("status") == {"tick": 3}


def test_the_socket_is_for_owner_and_group_only(folder):
    with listening(folder, group_id=os.getegid()):
        found = (folder / "s").stat()
        assert stat.S_ISSOCK(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o660
        assert found.st_gid == os.getegid()
    assert not (folder / "s").exists()


def test_closing_twice_and_without_opening(folder):
    server = OperatorServer(OperatorSettings(folder / "s"), Desk())
    server.close()
    server.close()


# -- who


@pytest.mark.parametrize(("role", "command"), list(product(Role, COMMANDS)))
def test_roles_by_commands(folder, role, command):
    with listening(folder, roles={ME: role}) as (server, done):
        with OperatorClient(folder / "s") as client:
            assert client.role == role.name.lower()
            if role >= COMMANDS[command].role:
                client.call(command, **ARGUMENTS[command])
                assert server.desk.refused == {}
            else:
                with pytest.raises(RequestError, match="needs the role") as refusal:
                    client.call(command, **ARGUMENTS[command])
                assert code_of(refusal) == "ROLE"
                assert done == [] and server.desk.refused == {"ROLE": 1}


def test_no_command_touches_the_filter_or_the_limits():
    known = "status mode override clear-override ack shelve unshelve stop swap"
    assert set(COMMANDS) == set(known.split())
    assert COMMANDS["status"].role is Role.VIEW
    assert [n for n, spec in COMMANDS.items() if spec.role is Role.ENGINEER] == ["swap"]


def test_role_of(folder):
    plain = OperatorSettings(folder / "s")
    assert role_of(0, 0, plain) is Role.ENGINEER
    assert role_of(ME, 0, plain) is Role.ENGINEER
    assert role_of(54321, 54321, plain) is None
    assert role_of(54321, 7, replace(plain, group_id=7)) is Role.VIEW  # a user without a name
    assert role_of(54321, 7, replace(plain, roles={54321: Role.OPERATE})) is Role.OPERATE
    assert role_of(0, 0, replace(plain, roles={0: Role.VIEW})) is Role.VIEW
    nobody = 65534
    assert role_of(nobody, nobody, replace(plain, group_id=nobody)) is Role.VIEW
    assert role_of(nobody, nobody, replace(plain, group_id=1)) is None
    assert user_name(54321) == "uid 54321"


AS_NOBODY = """
import os, socket, sys
os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(65534)
s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM); s.settimeout(10)
try:
    s.connect(sys.argv[1])
except OSError as error:
    print("errno", error.errno); sys.exit()
print(s.makefile("rb").readline().decode())
try:
    s.sendall(b'{"session":"","sequence":1,"command":"mode","arguments":{"mode":"full"}}\\n')
except OSError:
    pass  # hung up on
"""


def as_nobody(path, gid=65534):
    return subprocess.run(
        [sys.executable, "-c", AS_NOBODY, str(path), str(gid)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout.strip()


@pytest.mark.skipif(ME != 0, reason="needs to become another user")
class TestAnotherUser:
    def test_the_file_mode_keeps_them_out(self, folder):
        folder.chmod(0o755)
        with listening(folder) as (server, done):
            assert as_nobody(folder / "s") == f"errno {errno.EACCES}"
            assert done == [] and server.desk.refused == {}

    def test_and_if_it_did_not_the_kernel_tells_who_they_are(self, folder):
        folder.chmod(0o755)
        with listening(folder) as (server, done):
            (folder / "s").chmod(0o666)
            answer = json.loads(as_nobody(folder / "s"))
            assert answer["error"]["code"] == "DENIED" and "session" not in answer
            assert done == [] and server.desk.refused == {"DENIED": 1}

    def test_a_member_of_the_group_may_look_and_no_more(self, folder):
        folder.chmod(0o755)
        with listening(folder, group_id=65534) as (_, done):
            assert json.loads(as_nobody(folder / "s"))["role"] == "view"
            assert done == []

    def test_a_named_user_has_the_role_given(self, folder):
        folder.chmod(0o755)
        with listening(folder, group_id=65534, roles={65534: Role.OPERATE}):
            assert json.loads(as_nobody(folder / "s"))["role"] == "operate"


def test_peer_of_a_socket_pair():
    a, b = socket.socketpair()
    with a, b:
        assert peer_of(a) == (ME, os.getegid())


# -- what is refused is journalled


def refusal_of(desk, code="ROLE", actor="ann", command="mode"):
    desk.refusals.tell(RequestError(code, "because"), actor, command, Door.SOCKET)


def test_every_refusal_is_in_the_journal_at_once_with_who_what_and_why(folder):
    told = []
    with listening(folder, record=told.append, roles={ME: Role.VIEW}) as (server, done):
        with OperatorClient(folder / "s") as client:
            with pytest.raises(RequestError):
                client.call("mode", mode="full")
        assert done == []
        assert told == [
            {
                "event": "CommandRefused",
                "code": "ROLE",
                "actor": user_name(ME),
                "command": "mode",
                "door": "socket",
                "text": "mode needs the role operate",
            }
        ]
        with raw(folder) as (end, reader, session):
            end.sendall(b"rubbish\n")
            reader.readline()
            end.sendall(line(session, 1, "status"))
            reader.readline()
            end.sendall(line(session, 1, "status"))
            reader.readline()
        assert [(one["code"], one["command"]) for one in told[1:]] == [("MALFORMED", "")]
        assert server.desk.refused == {"ROLE": 1, "MALFORMED": 1, "REPLAY": 1}


def test_a_flood_of_refusals_is_bounded_and_counted():
    told = []
    desk = Desk(record=told.append)
    for _ in range(500):
        refusal_of(desk)
    assert len(told) == 10, "per person"
    refusal_of(desk, "DENIED", "bob")
    assert told[-1]["actor"] == "bob", "one person's flood hides nobody else"
    for number in range(500):
        refusal_of(desk, actor=f"user {number}")
    assert len(told) == 60, "in all"
    desk.publish({})
    assert told[-1]["event"] == "CommandsRefused"
    assert told[-1]["left_out"] == 1001 - 60
    assert told[-1]["text"] == "941 more refused commands are not listed: ROLE 941"
    refusal_of(desk)
    desk.publish({})
    assert len(told) == 61, "a summary every ten seconds at most"
    desk.close()
    assert told[-1]["left_out"] == 1, "nothing is left uncounted at the end"
    assert desk.refused == {"ROLE": 1001, "DENIED": 1}


def test_what_comes_from_outside_is_one_short_line_in_the_journal():
    told = []
    desk = Desk(record=told.append)
    desk.refusals.tell(RequestError("ARGUMENTS", "a\nb" + 999 * "x"), "a\x1bnn", "ack", Door.SCADA)
    assert told[0]["text"].startswith("a\\nbxxx") and len(told[0]["text"]) == 300
    assert told[0]["actor"] == "a\\x1bnn"


def test_the_label_of_the_metric_is_one_of_a_closed_set():
    desk = Desk()
    refusal_of(desk, "NEVER_HEARD_OF")
    assert desk.refused == {"OTHER": 1}


def test_every_code_of_the_source_is_in_the_closed_set():
    """The client's own words, which no server of ours counts, are named here."""
    root, found = Path(__file__).parents[2] / "runtime", set()
    for file in root.rglob("*.py"):
        text = file.read_text("utf-8")
        found |= set(re.findall(r'RequestError\(\s*(?:"|ReasonCode\.)([A-Z_]+)', text))
    assert found - CODES == {"HUNG", "NOT_RUNNING"}
    assert CODES - found == {"GONE"} - found


# -- replays


def test_a_sequence_number_is_good_once_and_only_upwards(folder):
    with listening(folder) as (_, done), raw(folder) as (end, reader, session):
        for sequence, fine in ((5, True), (5, False), (4, False), (6, True), (6, False)):
            end.sendall(line(session, sequence, "ack"))
            answer = json.loads(reader.readline())
            assert answer["ok"] == fine and answer["sequence"] == sequence
            if not fine:
                assert answer["error"]["code"] == "REPLAY"
        assert len(done) == 2


def test_recorded_bytes_are_worth_nothing_on_another_connection(folder):
    with listening(folder) as (_, done):
        with raw(folder) as (end, reader, session):
            recorded = line(session, 1, "mode", {"mode": "full"})
            end.sendall(recorded)
            assert json.loads(reader.readline())["ok"]
        with raw(folder) as (end, reader, session):
            end.sendall(recorded)
            assert json.loads(reader.readline())["error"]["code"] == "REPLAY"
        assert len(done) == 1


# -- floods


def test_rate_limit_and_recovery(folder):
    with listening(folder, rate_per_s=50.0, burst=5) as (server, done):
        with raw(folder) as (end, reader, session):
            end.sendall(b"".join(line(session, k, "ack") for k in range(1, 41)))
            answers = [json.loads(reader.readline()) for _ in range(40)]
            fine = sum(answer["ok"] for answer in answers)
            assert 5 <= fine < 40 and len(done) == fine
            assert server.desk.refused == {"RATE": 40 - fine}
            time.sleep(0.1)
            end.sendall(line(session, 100, "ack"))
            assert json.loads(reader.readline())["ok"]


def test_the_limit_holds_over_all_connections_of_a_user(folder):
    with listening(folder, rate_per_s=1e-3, burst=3), raw(folder) as one, raw(folder) as two:
        fine = 0
        for k in range(1, 5):
            for end, reader, session in (one, two):
                end.sendall(line(session, k, "ack"))
                fine += json.loads(reader.readline())["ok"]
        assert fine == 3


def test_connections_are_bounded_and_a_place_is_free_again(folder):
    with listening(folder, max_connections=3, max_per_user=2) as (server, _):
        with OperatorClient(folder / "s") as one, OperatorClient(folder / "s"):
            with pytest.raises(RequestError, match="too many connections") as refusal:
                OperatorClient(folder / "s")
            assert code_of(refusal) == "BUSY"
            assert one.call("ack") == {"did": "ack"}
        deadline = time.monotonic() + 10.0
        while True:  # the server notices within moments that they hung up
            try:
                with OperatorClient(folder / "s") as again:
                    assert again.call("ack") == {"did": "ack"}
                break
            except RequestError:
                assert time.monotonic() < deadline
        assert server.desk.refused["BUSY"] >= 1


def test_a_full_queue_refuses(folder):
    with listening(folder, drain=False, queue_length=1, answer_s=0.5):
        with raw(folder) as (end, reader, session), raw(folder) as (end2, reader2, session2):
            end.sendall(line(session, 1, "ack"))
            time.sleep(0.1)
            end2.sendall(line(session2, 1, "ack"))
            assert json.loads(reader2.readline())["error"]["code"] == "QUEUE_FULL"
            assert json.loads(reader.readline())["error"]["code"] == "TIMEOUT"


# -- atomic


def test_what_timed_out_is_not_done_later(folder):
    done = []
    with listening(folder, drain=False, answer_s=0.1) as (server, _):
        with OperatorClient(folder / "s") as client:
            with pytest.raises(RequestError, match="nothing was done") as refusal:
                client.call("stop", reason="test")
            assert code_of(refusal) == "TIMEOUT"
            assert server.desk.drain({"stop": lambda command: done.append(command) or {}}) == 0
            assert done == []


def test_what_was_begun_is_told_as_unknown(folder):
    def slow(_):
        time.sleep(0.4)
        return {}

    with listening(folder, {"ack": slow}, answer_s=0.1), OperatorClient(folder / "s") as client:
        with pytest.raises(RequestError, match="look at the status") as refusal:
            client.call("ack")
        assert code_of(refusal) == "UNKNOWN"


def test_a_client_that_leaves_does_not_undo_its_command(folder):
    with listening(folder) as (_, done):
        for cut in (1, 0):
            with raw(folder) as (end, _, session):
                message = line(session, 1, "mode", {"mode": "off"})
                end.sendall(message[: len(message) - cut])
        deadline = time.monotonic() + 10.0
        while not done and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.05)
        assert done == [("mode", {"mode": "off"}, user_name(ME))]  # the whole line, not the cut one


def test_a_connection_cut_at_every_byte_is_all_or_nothing(folder):
    with listening(folder) as (_, done):
        with raw(folder) as (_, _, session):
            length = len(line(session, 1, "ack"))
        for cut in range(0, length, 7):
            # one more than the server takes at a time is shown the door: cut as well
            with suppress(BrokenPipeError), raw(folder) as (end, _, session):
                end.sendall(line(session, 1, "ack")[:cut])
        with OperatorClient(folder / "s") as client:
            client.call("ack")
        assert len(done) == 1


def test_the_loop_is_woken(folder):
    woken = threading.Event()
    desk = Desk(DeskSettings(answer_s=0.05), woken.set)
    server = OperatorServer(OperatorSettings(folder / "s"), desk)
    server.open()
    try:
        with OperatorClient(folder / "s") as client, suppress(RequestError):
            client.call("ack")
        assert woken.is_set()
    finally:
        server.close()


def test_draining_is_bounded_and_never_waits(folder):
    with listening(folder, drain=False, answer_s=5.0) as (server, _):
        assert server.desk.drain({}) == 0
        connections = [raw(folder) for _ in range(3)]
        opened = [connection.__enter__() for connection in connections]
        for end, _, session in opened:
            end.sendall(line(session, 1, "ack"))
        deadline = time.monotonic() + 10.0
        while server.desk.waiting < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert [server.desk.drain({"ack": lambda _: {}}, limit=2) for _ in range(2)] == [2, 1]
        for _, reader, _ in opened:
            assert json.loads(reader.readline())["ok"]
        for connection in connections:
            connection.__exit__(None, None, None)


def test_stopping_tells_those_who_wait(folder):
    with listening(folder, drain=False, answer_s=20.0) as (server, _):
        with raw(folder) as (end, reader, session):
            end.sendall(line(session, 1, "ack"))
            while not server.desk.waiting:
                time.sleep(0.01)
            server.close()
            rest = reader.readline()
            assert rest == b"" or json.loads(rest)["error"]["code"] == "STOPPING"


# -- refusals


def refuse(error):
    def handler(_):
        raise error

    return handler


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (RequestError("ACK_DENIED", "still present: OBS_STALE"), "ACK_DENIED", "still present"),
        (ConfigError("the bundle is no file"), "REFUSED", "the bundle is no file"),
        (RequestError("UNKNOWN_MODE", "no mode 'fast'"), "UNKNOWN_MODE", "no mode 'fast'"),
        (ZeroDivisionError("secret/path.py line 3"), "INTERNAL", "see the runtime's log"),
    ],
)
def test_a_client_gets_a_code_and_a_sentence(folder, caplog, error, code, message):
    with listening(folder, {"ack": refuse(error)}) as (server, _):
        with OperatorClient(folder / "s") as client:
            with pytest.raises(RequestError, match=message) as refusal:
                client.call("ack")
            assert code_of(refusal) == code
            assert "secret" not in str(refusal.value) and "Traceback" not in str(refusal.value)
            assert client.call("mode", mode="off") == {"did": "mode"}  # the loop goes on
        assert server.desk.refused == {code: 1}
        assert ("secret" in caplog.text) == (code == "INTERNAL")


MALFORMED = [
    b"",
    b"{}",
    b"[]",
    b"null",
    b"3",
    b'"status"',
    b"{",
    b"\xff\xfe\x00",
    b"[" * 60_000,
    b'{"a":' * 10_000,
    b"1" * 5000,
    b'{"session":"S","sequence":1,"sequence":2,"command":"ack","arguments":{}}',
    b'{"session":"S","sequence":NaN,"command":"ack","arguments":{}}',
    b'{"session":"S","sequence":1,"command":"ack","arguments":{},"more":1}',
    b'{"session":"S","sequence":true,"command":"ack","arguments":{}}',
    b'{"session":"S","sequence":1.0,"command":"ack","arguments":{}}',
    b'{"session":"S","sequence":0,"command":"ack","arguments":{}}',
    b'{"session":"S","sequence":-1,"command":"ack","arguments":{}}',
    b'{"session":"S","sequence":9007199254740992,"command":"ack","arguments":{}}',
    b'{"session":1,"sequence":1,"command":"ack","arguments":{}}',
    b'{"session":"S","sequence":1,"command":"ack","arguments":[]}',
    b'{"session":"S","sequence":1,"command":["ack"],"arguments":{}}',
]


@pytest.mark.parametrize("number", range(len(MALFORMED)))
def test_malformed_lines_are_refused_and_the_connection_lives(folder, number):
    with listening(folder) as (_, done), raw(folder) as (end, reader, session):
        end.sendall(MALFORMED[number].replace(b"S", session.encode()) + b"\n")
        assert json.loads(reader.readline())["error"]["code"] == "MALFORMED"
        assert done == []
        end.sendall(line(session, 1, "ack"))
        assert json.loads(reader.readline())["ok"]


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("mode", {}),
        ("mode", {"mode": 1}),
        ("mode", {"mode": None}),
        ("mode", {"mode": "full", "filter": "off"}),
        ("mode", {"mode": "full\nWATCHDOG=1"}),
        ("mode", {"mode": "f" * 257}),
        ("mode", {"mode": "full", "reason": "\u2028"}),
        ("override", {"output": "valve", "value": "1", "reason": "r", "for_s": 1}),
        ("override", {"output": "valve", "value": True, "reason": "r", "for_s": 1}),
        ("override", {"output": "valve", "value": 10**400, "reason": "r", "for_s": 1}),
        ("override", {"output": "valve", "value": 1, "reason": "r"}),
        ("status", {"all": "yes"}),
        ("ack", {"code": ["OBS_STALE"]}),
    ],
)
def test_arguments_that_do_not_fit(folder, command, arguments):
    with listening(folder) as (_, done), OperatorClient(folder / "s") as client:
        with pytest.raises(RequestError, match=command) as refusal:
            client.call(command, **arguments)
        assert code_of(refusal) == "ARGUMENTS"
        assert done == []


def test_a_number_beyond_what_a_double_holds(folder):
    with listening(folder) as (_, done), raw(folder) as (end, reader, session):
        text = line(session, 1, "override", ARGUMENTS["override"]).replace(b":60", b":1e999")
        end.sendall(text)
        assert json.loads(reader.readline())["error"]["code"] == "ARGUMENTS"
        assert done == []


def test_unknown_command_lists_the_choices(folder):
    with listening(folder), OperatorClient(folder / "s") as client:
        with pytest.raises(RequestError, match="there are: status, mode") as refusal:
            client.call("disable-filter")
        assert code_of(refusal) == "UNKNOWN_COMMAND"


@pytest.mark.parametrize(("more", "end_of_line"), [(5000, b""), (5000, b"\n"), (1, b"\n")])
def test_a_line_may_have_64_kib_and_no_more(folder, more, end_of_line):
    with listening(folder) as (_, done), raw(folder) as (end, reader, session):
        padded = line(session, 1, "ack")[:-1]
        end.sendall(padded + b" " * (LINE_LIMIT - len(padded)) + b"\n")
        assert json.loads(reader.readline())["ok"]
        with suppress(OSError):
            end.sendall(b"x" * (LINE_LIMIT + more) + end_of_line)
        assert json.loads(reader.readline())["error"]["code"] == "TOO_LONG"
        with suppress(ConnectionResetError):
            assert reader.readline() == b""  # hung up
        assert len(done) == 1


def test_a_line_must_be_finished_in_time(folder):
    with listening(folder, line_s=0.2), raw(folder) as (end, reader, _):
        for _ in range(3):  # a byte now and then does not help
            end.sendall(b"x")
            time.sleep(0.08)
        assert json.loads(reader.readline())["error"]["code"] == "TOO_SLOW"
        assert reader.readline() == b""


def test_an_idle_connection_is_closed(folder):
    with listening(folder, idle_s=0.1), raw(folder) as (_, reader, _):
        assert reader.readline() == b""


def test_two_lines_in_one_packet_and_one_line_in_many(folder):
    with listening(folder) as (_, done), raw(folder) as (end, reader, session):
        end.sendall(line(session, 1, "ack") + line(session, 2, "ack"))
        assert [json.loads(reader.readline())["sequence"] for _ in range(2)] == [1, 2]
        for byte in line(session, 3, "ack"):
            end.sendall(bytes([byte]))
        assert json.loads(reader.readline())["sequence"] == 3
        assert len(done) == 3


def test_a_client_that_does_not_read_is_given_up(folder):
    with listening(folder, line_s=0.2) as (server, _):
        server.desk.publish({"long": "x" * 60_000})
        with raw(folder) as (end, _, session):
            end.settimeout(0.5)
            with suppress(OSError):
                for k in range(1, 200):
                    end.sendall(line(session, k))
            deadline = time.monotonic() + 10.0
            while not server.desk.refused["GONE"] and time.monotonic() < deadline:
                time.sleep(0.01)
            assert server.desk.refused["GONE"]
        with OperatorClient(folder / "s") as client:
            assert client.call("ack") == {"did": "ack"}


@given(st.binary(max_size=400))
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_give_a_refusal_or_a_request(data):
    for parse in (parse_object, parse_request):
        try:
            parse(data)
        except RequestError as error:
            assert error.code in {"MALFORMED", "UNKNOWN_COMMAND", "ARGUMENTS"}
            assert "Traceback" not in error.message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@given(
    st.fixed_dictionaries(
        {
            "session": st.text(max_size=5) | JSON,
            "sequence": st.integers() | JSON,
            "command": st.sampled_from(list(COMMANDS)) | JSON,
            "arguments": st.dictionaries(
                st.sampled_from(["mode", "reason", "output", "value", "for_s", "code"]), JSON
            )
            | JSON,
        }
    )
)
@settings(max_examples=200)
def test_what_gets_through_is_well_typed(message):
    try:
        request = parse_request(json.dumps(message).encode())
    except RequestError:
        return
    spec = COMMANDS[request.command]
    assert set(spec.required) <= set(request.arguments) <= {*spec.required, *spec.optional}
    for name, value in request.arguments.items():
        kind = {**spec.required, **spec.optional}[name]
        assert type(value) is kind
        assert kind is str or np.isfinite(value)
        assert kind is float or value.isprintable()


def test_garbage_by_the_thousand_leaves_the_server_well(folder):
    rng = np.random.default_rng(0)
    with listening(folder) as (server, done), raw(folder) as (end, reader, session):
        good = line(session, 1, "ack")
        for _ in range(1000):
            bad = bytearray(good)
            for _ in range(int(rng.integers(1, 4))):
                bad[int(rng.integers(len(bad) - 1))] = int(rng.integers(256))
            bad = bytes(bad).replace(b"\n", b" ")
            end.sendall(bad + b"\n")
            answer = json.loads(reader.readline())
            assert answer["ok"] or answer["error"]["code"] in {
                "MALFORMED",
                "UNKNOWN_COMMAND",
                "ARGUMENTS",
                "REPLAY",
            }
        end.sendall(line(session, 10**9 * 2, "ack"))
        json.loads(reader.readline())
        assert server._listener is not None and len(done) < 1000


def test_encode_is_one_line_of_plain_json():
    message = {
        "mode": Mode.FULL,
        "n": np.int64(3),
        "b": np.bool_(True),
        "p": Path("/x"),
        1: [(nan,)],
    }
    text = encode(message)
    assert text.count(b"\n") == 1
    assert json.loads(text) == {"mode": "full", "n": 3, "b": True, "p": "/x", "1": [[None]]}


# -- the socket's file


def test_what_a_killed_runtime_left_is_replaced(folder):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(folder / "s"))
    with listening(folder), OperatorClient(folder / "s") as client:
        assert client.call("ack") == {"did": "ack"}


def test_a_living_runtime_is_not_pushed_aside(folder):
    with listening(folder):
        with pytest.raises(ConfigError, match="another runtime listens"):
            OperatorServer(OperatorSettings(folder / "s"), Desk()).open()
        with OperatorClient(folder / "s") as client:
            assert client.call("ack") == {"did": "ack"}


def test_something_else_at_that_path_is_not_removed(folder):
    (folder / "s").write_text("precious")
    with pytest.raises(ConfigError, match="something else is there"):
        OperatorServer(OperatorSettings(folder / "s"), Desk()).open()
    assert (folder / "s").read_text() == "precious"


def test_a_socket_of_another_kind_is_not_removed(folder):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(folder / "s"))
        with pytest.raises(ConfigError, match="operator socket"):
            OperatorServer(OperatorSettings(folder / "s"), Desk()).open()
        assert (folder / "s").exists()


@pytest.mark.parametrize(
    ("path", "change", "why"),
    [
        ("x" * 120, {}, "longer than the 107 bytes"),
        ("missing/s", {}, "No such file"),
        ("missing/s", {"group_id": 0}, "for group root"),
        ("missing/s", {"group_id": 2**31 - 7}, "for group 2147483641"),
    ],
)
def test_paths_that_cannot_be_used(folder, path, change, why):
    with pytest.raises(ConfigError, match=why):
        OperatorServer(OperatorSettings(folder / path, **change), Desk()).open()


def test_hanging_up_twice_is_harmless():
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    hang_up(end)
    hang_up(end)


def test_lines_of_a_broken_connection_end(folder):
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    end.close()
    assert Lines(end, OperatorSettings(folder / "s")).next() is None


def test_a_client_that_drops_its_answer_is_forgotten(folder):
    with listening(folder) as (server, _):
        with raw(folder) as (end, _, session):
            end.sendall(line(session, 1))
            assert end.recv(1, socket.MSG_PEEK)  # the answer is there; it is not read
        deadline = time.monotonic() + 10.0
        while server._connections and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not server._connections


def test_a_failing_accept_is_tried_again(folder):
    server = OperatorServer(OperatorSettings(folder / "s"), Desk())

    class OutOfDescriptors:
        tries = 0

        def accept(self):
            self.tries += 1
            if self.tries == 3:
                server._closing.set()
            raise OSError(errno.EMFILE, "too many open files")

    listener = OutOfDescriptors()
    server._listener = listener
    server._accept()
    assert listener.tries == 3
    server._accept()  # closing: it does not even ask
    assert listener.tries == 3


# -- the client


def test_nobody_listens(folder):
    with pytest.raises(RequestError, match="is the loop running") as refusal:
        OperatorClient(folder / "s")
    assert code_of(refusal) == "NOT_RUNNING"


class Peer(threading.Thread):
    """A server that says what the test tells it to, once."""

    def __init__(self, folder, *parts):
        super().__init__()
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(str(folder / "s"))
        self.listener.listen()
        self.parts = parts
        self.start()

    def run(self):
        connection, _ = self.listener.accept()
        with self.listener, connection, suppress(OSError):
            for part in self.parts:
                if callable(part):
                    part(connection)
                else:
                    connection.sendall(part)


HELLO = b'{"hello":"steadyhand","session":"s","role":"view"}\n'


@pytest.mark.parametrize(
    ("parts", "code"),
    [
        ((HELLO, lambda c: c.recv(9999)), "GONE"),
        ((HELLO, lambda c: c.recv(9999), b"not json\n"), "MALFORMED"),
        ((HELLO, lambda c: c.recv(9999), lambda _: time.sleep(0.6)), "TIMEOUT"),
        ((HELLO, lambda c: c.recv(9999), b"x" * (LINE_LIMIT * 17 + 70_000)), "GONE"),
    ],
)
def test_a_server_that_misbehaves(folder, parts, code):
    peer = Peer(folder, *parts)
    with OperatorClient(folder / "s", timeout_s=0.3) as client:
        with pytest.raises(RequestError) as refusal:
            client.call("status")
        assert code_of(refusal) == code
    peer.join()


def test_a_server_that_went_away_between_two_calls(folder):
    peer = Peer(folder, HELLO)
    with OperatorClient(folder / "s") as client:
        peer.join()
        with pytest.raises(RequestError) as refusal:
            client.call("status")
        assert code_of(refusal) == "GONE"


STOPPED = """
import sys
from pathlib import Path
from steadyhand.runtime.commands import Desk
from steadyhand.runtime.operator import OperatorServer
from steadyhand.runtime.operator_people import OperatorSettings
server = OperatorServer(OperatorSettings(Path(sys.argv[1])), Desk())
server.open()
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def stopped(folder):
    """A runtime's socket whose process was stopped."""
    child = subprocess.Popen(
        [sys.executable, "-c", STOPPED, str(folder / "s")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert child.stdout.readline() == b"open\n"
        child.send_signal(signal.SIGSTOP)
        yield child
    finally:
        child.kill()
        child.communicate()


def test_a_stopped_runtime_is_told_from_none(folder, stopped):
    """It listens: nobody should start another one, and a script should try again."""
    told, began = [], time.monotonic()
    with pytest.raises(RequestError, match="listens but does not answer") as refusal:
        OperatorClient(folder / "s", waits=lambda text: told.append((text, time.monotonic())),
                       greeting_s=1.3)  # fmt: skip
    assert code_of(refusal) == "HUNG"
    assert exit_of(refusal.value) == Exit.AGAIN
    ((text, when),) = told
    assert "no answer yet" in text
    assert when - began >= 1.0  # not before there is something to tell
    assert when < time.monotonic()
    stopped.send_signal(signal.SIGCONT)
    with OperatorClient(folder / "s") as client:
        assert client.role == "engineer"


def test_the_first_word_comes_early_and_the_status_is_not_waited_for_long():
    assert operator_client.FIRST_WORD_S < 2.0
    assert cli_operator._STATUS_S <= 5.0
    assert operator_client.GREETING_S <= 5.0


@pytest.mark.parametrize("parts", [(), (b'{"hello":',)])
def test_a_listener_that_never_greets(folder, parts):
    peer = Peer(folder, *parts, lambda connection: connection.recv(1))
    with pytest.raises(RequestError) as refusal:
        OperatorClient(folder / "s", timeout_s=0.2)
    assert code_of(refusal) == "HUNG"
    peer.join()


def test_a_full_queue_of_connections(folder):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(folder / "s"))
        listener.listen(0)
        waiting = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(3)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(str(folder / "s"))
        with pytest.raises(RequestError) as refusal:
            OperatorClient(folder / "s", timeout_s=0.2)
        assert code_of(refusal) == "HUNG"
        for one in waiting:
            one.close()


@pytest.mark.skipif(ME != 0, reason="needs to become another user")
def test_the_client_says_that_the_user_may_not(folder):
    folder.chmod(0o755)
    program = (
        "import os, sys; from pathlib import Path\n"
        "from steadyhand.runtime.operator_client import OperatorClient\n"
        "from steadyhand.controllers.errors import RequestError\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try: OperatorClient(Path(sys.argv[1]))\n"
        "except RequestError as error: print(error)\n"
    )
    with listening(folder):
        told = subprocess.run(
            [sys.executable, "-c", program, str(folder / "s")],
            capture_output=True, text=True, timeout=60, check=True,
        ).stdout  # fmt: skip
    assert told.startswith("DENIED: ") and "operators' group" in told
