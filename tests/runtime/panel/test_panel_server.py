"""The panel's server over real sockets: what it shows, and whoever wants more than they may."""

import contextlib
import json
import socket
import threading
import time
from math import nan

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from steadyhand.controllers.errors import ConfigError
from steadyhand.controllers.frames import Fault, Source
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime import http_server
from steadyhand.runtime.panel import server as panel_server
from steadyhand.runtime.panel.server import COMMANDS, HARDENED, Panel
from tests.support.panels import ANN, BOB, Stand, alarm, status
from tests.support.records import LAYOUT, observation, tick_arguments

PEOPLE = {"ann": ANN, "bob": BOB}


@pytest.fixture(scope="module")
def shared():
    """One panel for everything that leaves it as it was; without a limit on requests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(panel_server, "REQUESTS_PER_S", 1e6)
        patch.setattr(panel_server, "REQUESTS_AT_ONCE", 1_000_000)
        with Stand(PEOPLE, hosts=("panel.plant.example",)) as stand:
            stand.tick()
            yield stand


@pytest.fixture
def stand(monkeypatch):
    monkeypatch.setattr(panel_server, "REQUESTS_PER_S", 1e6)
    monkeypatch.setattr(panel_server, "REQUESTS_AT_ONCE", 1_000_000)
    with Stand(PEOPLE) as made:
        yield made


def code_of(reply: bytes) -> tuple[int, str]:
    head, _, body = reply.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), json.loads(body)["error"]["code"]


# -- what is shown ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "text/html"), ("/index.html", "text/html"), ("/panel.css", "text/css"),
        ("/panel.js", "text/javascript"), ("/chart.js", "text/javascript"),
        ("/api/plant.json", "application/json"), ("/api/state.json", "application/json"),
        ("/api/decisions.json", "application/json"),
        ("/api/trends.bin", "application/octet-stream"),
    ],
)  # fmt: skip
def test_every_answer_is_hardened(shared, path, kind):
    for method in ("GET", "HEAD"):
        status, headers, body = shared.ask(method, path)
        assert status == 200
        assert headers["Content-Type"].startswith(kind)
        assert headers.items() >= dict(HARDENED).items()
        assert bool(body) is (method == "GET")
    policy = headers["Content-Security-Policy"]
    assert policy.startswith(
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'"
    )
    assert "unsafe" not in policy
    assert not [name for name in headers if name.lower().startswith("access-control")]
    assert "Server" not in headers and "Set-Cookie" not in headers


def test_refusals_are_hardened_too(shared):
    for method, path in (("GET", "/nowhere"), ("DELETE", "/"), ("POST", "/api/command")):
        _, headers, _ = shared.ask(method, path)
        assert headers.items() >= dict(HARDENED).items()


def test_the_page_names_nothing_outside_itself(shared):
    for path in ("/", "/panel.css", "/panel.js", "/chart.js", "/parts.js", "/dom.js"):
        text = shared.ask("GET", path)[2].decode()
        assert "https://" not in text
        assert "://" not in text.replace("http://www.w3.org/2000/svg", "")
        for word in ("innerHTML", "insertAdjacentHTML", "document.write", "eval(", "localStorage"):
            assert word not in text, (path, word)


def test_the_state_of_a_sound_tick(stand):
    assert stand.get("/api/state.json")["tick"] is None
    number = stand.tick()
    time.sleep(0.25)
    state = stand.get("/api/state.json")
    assert (state["tick"], state["answer"], state["source"]) == (number, "yes", "policy")
    assert state["why"] is None and state["back"] == []
    assert state["values"] == [500.0 + number, 250.0, 100.0]
    assert state["sent"] == [100.0] and state["proposed"] == [120.0]
    # k = -0.02 and -0.9 of a range of 1000 kWh; the usable distance is all of it
    assert [row["left"] for row in state["limits"]] == pytest.approx([20.0, 900.0])
    assert [row["near"] for row in state["limits"]] == pytest.approx([0.98, 0.1])
    assert [row["active"] for row in state["limits"]] == [True, False]
    assert state["reached_s"] == 1800.0
    assert 0.2 < state["age_s"] < 5.0


def test_the_age_grows_although_nothing_new_is_rendered(stand):
    stand.tick()
    first = stand.get("/api/state.json")
    time.sleep(0.3)
    later = stand.get("/api/state.json")
    assert later["tick"] == first["tick"]
    assert later["age_s"] >= first["age_s"] + 0.29
    assert later["alive_s"] >= first["alive_s"] + 0.29
    stand.panel.alive()
    assert stand.get("/api/state.json")["alive_s"] < later["alive_s"]


def test_numbers_that_are_none_are_null_and_never_zero(stand):
    number = stand.recorder.sequence
    stand.recorder.tick(
        **tick_arguments(number, observation=observation(number, values=np.array([nan, 1.0, 2.0])))
    )
    stand.panel.publish(status(number))
    assert stand.get("/api/state.json")["values"] == [None, 1.0, 2.0]


def test_a_record_that_is_missing_shows_no_numbers_of_another_tick(stand):
    stand.tick()
    time.sleep(panel_server.RENDER_EVERY_S)
    stand.panel.publish(status(77))
    state = stand.get("/api/state.json")
    assert state["tick"] == 77
    assert "values" not in state and "limits" not in state


def test_why_not_and_the_way_back(stand):
    stand.tick()
    stand.tick(
        Source.FALLBACK,
        (Fault(ReasonCode.OBS_STALE, "load_kw", 95.0, 60.0),),
        trusted=False, gate="fallback", clean=[1, 4],
        alarms=[alarm("GATE_OOD"), alarm("OBS_STALE")],
    )  # fmt: skip
    time.sleep(panel_server.RENDER_EVERY_S)
    state = stand.get("/api/state.json")
    assert (state["answer"], state["words"]) == ("no", "the heuristic drives")
    assert state["why"]["code"] == "OBS_STALE"
    assert state["back"] == [
        "OBS_STALE ends. To do: action of OBS_STALE.",
        "Also present, perhaps because of it: GATE_OOD; these end, too.",
        "The gate trusts the policy; it is in state fallback now.",
        "Then 4 ticks in a row without any of this; 1 so far.",
    ]


def test_decisions_are_the_record_explained(stand):
    for source in (Source.HANDS_OFF, Source.FALLBACK, Source.FALLBACK, Source.POLICY):
        stand.tick(source)
    for _ in range(20):
        stand.tick()
    shown = stand.get("/api/decisions.json")["decisions"]
    numbers = [item["tick"] for item in shown]
    assert numbers == [*range(23, 15, -1), 3, 1]  # the eight newest, and two changes of driver
    assert shown[-1]["changed_from"] == "hands_off" and shown[-1]["source"] == "fallback"
    stages = dict(shown[0]["lines"])
    assert stages["policy"].startswith("discharge_kw = 120 kW")
    assert stages["sent"].startswith("discharge_kw = 100 kW")
    assert "then" not in stages and "then" in dict(shown[1]["lines"])
    assert not shown[0]["complete"] and shown[1]["complete"]


def test_trends_only_send_what_is_new(stand):
    width = len(stand.trends.columns)
    for source in (Source.HANDS_OFF, Source.FALLBACK, Source.POLICY):
        stand.tick(source)
    numbers = np.frombuffer(stand.ask("GET", "/api/trends.bin?since=0")[2], "<f8")
    assert numbers[:3].tolist() == [0.0, 3.0, width]
    rows = numbers[3:].reshape(-1, width)
    assert rows[:, 2].tolist() == [4.0, 1.0, 0.0]
    later = np.frombuffer(stand.ask("GET", "/api/trends.bin?since=3")[2], "<f8")
    assert later.tolist() == [3.0, 3.0, width]
    stand.tick(Source.HOLD)
    later = np.frombuffer(stand.ask("GET", "/api/trends.bin?since=3")[2], "<f8")
    assert len(later) == 3 + width and later[3 + 2] == 2.0
    assert stand.ask("GET", "/api/trends.bin?since=999999")[0] == 200


# -- hostile requests ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    ["/../config.py", "/%2e%2e/config.py", "/..%2f..%2fetc/passwd", "//etc/passwd", "/./panel.js",
     "/page/index.html", "/panel.js/", "/PANEL.JS", "/panel.js%00", "/__init__.py", "/server.py",
     "/api", "/api/", "/api/state.json/", "/.git/config", "http://127.0.0.1/", "/panel.tokens",
     "/metrics", "*", "/\\..\\x"],
)  # fmt: skip
def test_nothing_but_the_page_is_ever_served(shared, path):
    reply = shared.raw(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{shared.port}\r\n\r\n".encode())
    assert code_of(reply) == (404, "NOT_FOUND")


@pytest.mark.parametrize(
    "method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "get"]
)
def test_reading_is_all_that_the_page_allows(shared, method):
    for path in ("/", "/api/state.json"):
        reply = shared.raw(
            f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{shared.port}\r\n\r\n".encode()
        )
        assert code_of(reply) == (405, "METHOD")
        assert b"\r\nAllow: GET, HEAD\r\n" in reply
        assert b"Access-Control" not in reply


@pytest.mark.parametrize(
    ("host", "good"),
    [
        ("127.0.0.1:{port}", True), ("localhost:{port}", True), ("LOCALHOST:{port}", True),
        ("[::1]:{port}", True), ("127.0.0.2:{port}", True), ("panel.plant.example", True),
        ("evil.example:{port}", False), ("evil.example", False), ("", False), ("127.0.0.1", False),
        ("127.0.0.1:1", False), ("localhost", False), ("localhost.evil.example:{port}", False),
        ("127.0.0.1.evil.example:{port}", False), ("192.0.2.1:{port}", False), ("0:{port}", False),
        ("[::1:{port}", False), ("me@127.0.0.1:{port}", False), ("panel.plant.example:99", False),
        ("127.0.0.1:{port}, evil.example", False), ("\u00e9vil:{port}", False),
    ],
)  # fmt: skip
def test_only_our_own_names_reach_us(shared, host, good):
    """A name that somebody else's name server points here is not ours (DNS rebinding)."""
    host = host.format(port=shared.port)
    for path in ("/", "/api/state.json", "/api/command"):
        request = f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode("latin-1")
        reply = shared.raw(request)
        if good:
            assert reply.split(b" ")[1] in (b"200", b"405")
        else:
            assert code_of(reply) == (421, "HOST")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 400),
        (b"GET / FTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\n\r\n", 400),
        (b"GET  / HTTP/1.1\r\n\r\n", 400),
        (b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nX: a\rb\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nX: a\x00b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 20_000, 431),
        (b"GET / HTTP/1.1\r\n" + b"X-%d: y\r\n" * 3000, 431),
        (b"GET /" + b"a" * 3000 + b" HTTP/1.1\r\n\r\n", 400),
        (b"POST /api/command HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411),
        (b"POST /api/command HTTP/1.1\r\nContent-Length: 4097\r\n\r\n", 413),
        (b"POST /api/command HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n", 400),
        (b"POST /api/command HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /api/command HTTP/1.1\r\nContent-Length: 1_0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST /api/command HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}GET / HTTP/1.1\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),
    ],
)
def test_malformed_requests_are_told_so(shared, request_, status):
    assert code_of(shared.raw(request_))[0] == status
    assert shared.ask("GET", "/")[0] == 200


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.binary(max_size=300))
def test_any_bytes_leave_it_serving(shared, noise):
    with socket.create_connection(("127.0.0.1", shared.port), timeout=20) as sock:
        with contextlib.suppress(OSError):
            sock.sendall(b"POST /api/command HTTP/1.1\r\n" + noise + b"\r\n\r\n")
            sock.shutdown(socket.SHUT_WR)
            sock.recv(100)
    assert shared.done == []
    assert shared.ask("GET", "/api/state.json")[0] == 200


@pytest.mark.parametrize(
    "begun",
    [b"GET / HTTP/1.1\r\n", b"POST /api/command HTTP/1.1\r\nContent-Length: 100\r\n\r\n{"],
)
def test_slow_loris_is_dropped(monkeypatch, begun):
    monkeypatch.setattr(http_server, "DEADLINE_S", 0.2)
    with Stand() as stand:
        with socket.create_connection(("127.0.0.1", stand.port), timeout=20) as sock:
            sock.sendall(begun)
            assert sock.recv(10) == b""


def test_half_open_connections_keep_nobody_out(stand):
    half, before = [], threading.active_count()
    try:
        for _ in range(200):
            sock = socket.create_connection(("127.0.0.1", stand.port), timeout=20)
            sock.sendall(b"POST /api/command HTTP/1.1\r\nContent-Length: 50\r\n\r\n{")
            half.append(sock)
        for _ in range(5):
            assert stand.ask("GET", "/api/state.json")[0] == 200
        assert threading.active_count() <= before, "no thread per connection"
    finally:
        for sock in half:
            sock.close()


def test_a_storm_is_refused_above_the_limit(monkeypatch):
    monkeypatch.setattr(panel_server, "REQUESTS_PER_S", 0.1)
    monkeypatch.setattr(panel_server, "REQUESTS_AT_ONCE", 5)
    with Stand() as stand:
        replies = [stand.ask("GET", "/api/state.json") for _ in range(20)]
        refused = [
            json.loads(body)["error"]["code"] for status, _, body in replies if status != 200
        ]
        assert replies[0][0] == 200
        assert refused and set(refused) == {"RATE"}


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "192.0.2.1:9465"])
def test_it_never_listens_to_the_outside(listen):
    with pytest.raises(ConfigError, match="can be reached from outside"):
        Stand(listen=listen)


def test_a_port_that_is_taken_is_told_at_once_and_had_later(monkeypatch):
    monkeypatch.setattr(http_server, "RETRY_FIRST_S", 0.02)
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        stand = Stand(listen=f"127.0.0.1:{taken}")
        stand.panel.open()
        assert stand.panel.server.problem == f"listen=127.0.0.1:{taken}: Address already in use"
        assert stand.panel.url == ""
    end_s = time.monotonic() + 20.0
    while not stand.panel.url:
        assert time.monotonic() < end_s, stand.panel.server.problem
        time.sleep(0.01)
    assert stand.ask("GET", "/api/state.json")[0] == 200
    assert stand.panel.server.problem == ""
    stand.panel.close()


# -- commands --------------------------------------------------------------------------------------


def test_without_a_token_file_nobody_commands():
    with Stand() as stand:
        assert stand.get("/api/plant.json")["commands"] is False
        for path in ("/api/session", "/api/command"):
            status, _, body = stand.ask("POST", path, {}, ANN)
            assert (status, json.loads(body)["error"]["code"]) == (403, "READ_ONLY")


def test_a_command_goes_the_operators_way_in_the_persons_name(stand):
    session = stand.session()
    status, answer = stand.command(session, 1, "mode", mode="off", reason="lunch")
    assert (status, answer) == (200, {"sequence": 1, "ok": True, "result": {"did": "mode"}})
    status, _ = stand.command(session, 5, "ack")
    assert status == 200
    assert stand.done == [
        ("mode", {"mode": "off", "reason": "lunch"}, "panel:ann"),
        ("ack", {}, "panel:ann"),
    ]


ARGUMENTS = {
    "mode": {"mode": "full"},
    "override": {"output": "discharge_kw", "value": 1.5, "reason": "test", "for_s": 60.0},
    "clear-override": {"output": "discharge_kw"},
    "ack": {},
    "shelve": {"code": "OBS_STALE", "reason": "test", "for_s": 60.0},
    "unshelve": {"code": "OBS_STALE"},
}


def test_every_command_of_the_panel_and_no_other(stand):
    assert set(ARGUMENTS) == COMMANDS
    session = stand.session()
    for number, (name, arguments) in enumerate(ARGUMENTS.items(), 1):
        assert stand.command(session, number, name, **arguments)[0] == 200
    assert [name for name, _, _ in stand.done] == list(ARGUMENTS)
    for name, arguments in (
        ("stop", {"reason": "x"}), ("swap", {"file": "x", "reason": "x"}), ("status", {}),
        ("filter-off", {}),
    ):  # fmt: skip
        status, answer = stand.command(session, 99, name, **arguments)
        assert (status, answer["error"]["code"]) == (400, "UNKNOWN_COMMAND")
    assert len(stand.done) == len(ARGUMENTS)


@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer ", f"Bearer {ANN[:-1]}", f"Bearer {ANN}a", f"Basic {ANN}",
     f"Bearer {ANN.upper()}", "Bearer \u00e9", f"Bearer {ANN},{BOB}", f"Bearer  {ANN[1:]}"],
)  # fmt: skip
def test_wrong_tokens(stand, authorization):
    headers = {} if authorization is None else {"Authorization": authorization}
    for path in ("/api/session", "/api/command"):
        status, answer, body = stand.ask("POST", path, {}, **headers)
        assert (status, json.loads(body)["error"]["code"]) == (401, "DENIED")
        assert answer["WWW-Authenticate"] == "Bearer"
        assert ANN.encode() not in body
    events, _, _ = stand.recorder.events.peek(0, 100)
    assert [event.event for event in events] == ["CommandRefused"] * 2
    assert [event.data["command"] for event in events] == ["session", "command"]
    assert {event.data["code"] for event in events} == {"DENIED"}
    assert {event.data["actor"] for event in events} == {"panel"}
    assert stand.done == []


def test_guessing_is_slowed_down(stand):
    seen = [stand.ask("POST", "/api/session", {}, f"{n:040d}")[0] for n in range(30)]
    assert seen.count(401) <= 12 and seen[-1] == 429
    status, _, body = stand.ask("POST", "/api/session", {}, ANN)
    assert (status, json.loads(body)["error"]["code"]) == (429, "RATE")


def test_replayed_and_disordered_commands(stand):
    session = stand.session()
    body = json.dumps(
        {"session": session, "sequence": 3, "command": "ack", "arguments": {}}
    ).encode()
    recorded = (
        f"POST /api/command HTTP/1.1\r\nHost: 127.0.0.1:{stand.port}\r\n"
        f"Content-Type: application/json\r\nAuthorization: Bearer {ANN}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    assert stand.raw(recorded).startswith(b"HTTP/1.1 200")
    assert code_of(stand.raw(recorded)) == (409, "REPLAY")
    for sequence in (3, 2, 1):
        status, answer = stand.command(session, sequence, "ack")
        assert (status, answer["error"]["code"]) == (409, "REPLAY")
    for sequence in (0, -1, 2**53, 1.5, "4", None, True):
        status, answer = stand.command(session, sequence, "ack")  # type: ignore[arg-type]
        assert (status, answer["error"]["code"]) == (400, "MALFORMED")
    assert len(stand.done) == 1


def test_a_session_belongs_to_its_person(stand):
    session = stand.session(ANN)
    status, answer = stand.command(session, 1, "ack", token=BOB)
    assert (status, answer["error"]["code"]) == (401, "SESSION")
    status, answer = stand.command("f" * 32, 1, "ack")
    assert (status, answer["error"]["code"]) == (401, "SESSION")
    assert stand.command(session, 1, "ack")[0] == 200


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Origin": "http://evil.example"}, "ORIGIN"),
        ({"Origin": "null"}, "ORIGIN"),
        ({"Origin": "http://127.0.0.1:1"}, "ORIGIN"),
        ({"Sec_Fetch_Site": "cross-site"}, "ORIGIN"),
        ({"Sec_Fetch_Site": "same-site"}, "ORIGIN"),
        ({"Sec_Fetch_Site": "none"}, "ORIGIN"),
        ({"Content_Type": "text/plain"}, "MEDIA_TYPE"),
        ({"Content_Type": "application/x-www-form-urlencoded"}, "MEDIA_TYPE"),
    ],
)
def test_no_other_page_can_command(stand, headers, code):
    """What a form or a script of another site can make a browser send, even with a token."""
    status, _, body = stand.ask("POST", "/api/session", {}, ANN, **headers)
    assert json.loads(body)["error"]["code"] == code
    assert status in (403, 415)


def test_our_own_page_can(stand):
    status, _, _ = stand.ask(
        "POST", "/api/session", {}, ANN,
        Origin=f"http://127.0.0.1:{stand.port}", Sec_Fetch_Site="same-origin",
    )  # fmt: skip
    assert status == 200


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'{"session": 1}', b'{"a": NaN}', b"\xff\xfe", b"{" * 2000,
     b'{"session":"x","session":"y","sequence":1,"command":"ack","arguments":{}}'],
)  # fmt: skip
def test_bodies_that_are_none(stand, body):
    status, _, content = stand.ask("POST", "/api/command", body, ANN)
    assert (status, json.loads(content)["error"]["code"]) == (400, "MALFORMED")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("mode", {}), ("mode", {"mode": 1}), ("mode", {"mode": "full", "extra": 1}),
        ("override", {"output": "x", "value": "1", "reason": "r", "for_s": 1}),
        ("override", {"output": "x", "value": True, "reason": "r", "for_s": 1}),
        ("ack", {"code": "a\nb"}), ("shelve", {"code": "x" * 300, "reason": "r", "for_s": 1}),
    ],
)  # fmt: skip
def test_wrong_arguments_name_what_is_wrong(stand, name, arguments):
    status, answer = stand.command(stand.session(), 1, name, **arguments)
    assert (status, answer["error"]["code"]) == (400, "ARGUMENTS")
    assert name in answer["error"]["message"]
    assert stand.done == []


def test_a_loop_that_does_not_answer_holds_nobody_else_up():
    with Stand(PEOPLE, answer_s=1.0, drain=False) as stand:
        session = stand.session()
        answers: list[tuple[int, str]] = []

        def give(number: int) -> None:
            status, answer = stand.command(session, number, "ack")
            answers.append((status, answer["error"]["code"]))

        threads = []
        for number in (1, 2, 3):
            threads.append(threading.Thread(target=give, args=(number,)))
            threads[-1].start()
            time.sleep(0.1)
        started = time.monotonic()
        assert stand.ask("GET", "/api/state.json")[0] == 200
        assert time.monotonic() - started < 0.5, "others are served meanwhile"
        for thread in threads:
            thread.join(20.0)
        assert sorted(answers) == [(503, "BUSY"), (504, "TIMEOUT"), (504, "TIMEOUT")]
        assert stand.desk.waiting <= 2


def test_a_client_that_leaves_in_the_middle(stand):
    """Its command is done or not, and the server goes on."""
    session = stand.session()
    body = json.dumps({"session": session, "sequence": 1, "command": "ack", "arguments": {}})
    request = (
        f"POST /api/command HTTP/1.1\r\nHost: 127.0.0.1:{stand.port}\r\n"
        f"Content-Type: application/json\r\nAuthorization: Bearer {ANN}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}"
    ).encode()
    for cut in range(0, len(request), 7):
        with socket.create_connection(("127.0.0.1", stand.port), timeout=20) as sock:
            sock.sendall(request[:cut])
    assert stand.ask("GET", "/api/state.json")[0] == 200
    assert stand.done == [], "half a command is none"
    with socket.create_connection(("127.0.0.1", stand.port), timeout=20) as sock:
        sock.sendall(request)
    end = time.monotonic() + 10.0
    while not stand.done and time.monotonic() < end:
        time.sleep(0.01)
    assert stand.done == [("ack", {}, "panel:ann")]
    assert stand.ask("GET", "/api/state.json")[0] == 200


def test_the_panel_never_waits_in_the_loops_thread(stand):
    """What the loop calls is two assignments: no lock, no socket, no file."""
    names = set(Panel.publish.__code__.co_names) | set(Panel.alive.__code__.co_names)
    assert names <= {
        "time", "monotonic", "Told", "_recorder", "ticks", "head", "_told", "_alive_s"
    }, names  # fmt: skip
    assert stand.recorder.layout is LAYOUT
