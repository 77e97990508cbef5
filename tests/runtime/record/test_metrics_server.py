"""The server: one page, on loopback, that nobody can tie up; trouble is told, never raised."""

import contextlib
import http.client
import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from steadyhand.controllers.errors import ConfigError
from steadyhand.runtime import http_server, metrics_server
from steadyhand.runtime.exposition import OPEN_METRICS, TEXT
from steadyhand.runtime.http_server import MAX_CONNECTIONS
from steadyhand.runtime.metrics_server import MetricsServer

PAGE = b"# HELP steadyhand_x X.\n# TYPE steadyhand_x gauge\nsteadyhand_x 1\n"


class Counters:
    refused = 0
    restarts = 0


def eventually(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30.0
    while not condition():
        assert time.monotonic() < end, "never happened"
        time.sleep(0.005)


def ready(server: MetricsServer) -> int:
    eventually(lambda: server.address is not None)
    assert server.address is not None
    return server.address[1]


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(metrics_server, "SCRAPES_PER_S", 1e6)
    with MetricsServer(lambda: PAGE, "127.0.0.1:0") as server:
        yield ready(server)


def ask(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
        sock.sendall(request)
        reply = b""
        while chunk := sock.recv(65536):
            reply += chunk
        return reply


def get(
    port: int, path: str = "/metrics", method: str = "GET", **headers: str
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", path, headers=headers)
    reply = connection.getresponse()
    body = reply.read()
    connection.close()
    return reply.status, body


def test_the_page(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", "/metrics")
    reply = connection.getresponse()
    assert (reply.status, reply.read()) == (200, PAGE)
    assert reply.headers["Content-Type"] == TEXT
    assert reply.headers["Content-Length"] == str(len(PAGE))
    connection.request("HEAD", "/metrics")
    reply = connection.getresponse()
    assert (reply.status, reply.read()) == (200, b"")
    assert reply.headers["Content-Length"] == str(len(PAGE))


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/metrics?name[]=x", 200),
        ("GET", "/", 404),
        ("GET", "/metrics/", 404),
        ("GET", "/Metrics", 404),
        ("GET", "//metrics", 404),
        ("GET", "/metrics/../metrics", 404),
        ("GET", "/..%2fetc/passwd", 404),
        ("GET", "/favicon.ico", 404),
        ("GET", "/-/healthy", 404),
        ("GET", "http://127.0.0.1/metrics", 404),
        ("POST", "/metrics", 405),
        ("PUT", "/metrics", 405),
        ("DELETE", "/metrics", 405),
        ("OPTIONS", "/metrics", 405),
        ("TRACE", "/metrics", 405),
        ("CONNECT", "/metrics", 405),
        ("get", "/metrics", 405),
        ("POST", "/", 404),
        ("HEAD", "/", 404),
    ],
)
def test_methods_and_paths(port, method, path, status):
    reply = ask(port, f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert reply.split(b" ")[1] == str(status).encode()


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"\r\n\r\n", b"400"),
        (b"GET /metrics\r\n\r\n", b"400"),
        (b"GET /metrics FTP/1.1\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"a" * 20_000, b"431"),
    ],
)
def test_malformed_requests(port, request_, status):
    assert ask(port, request_).split(b" ")[1] == status
    assert get(port)[0] == 200


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.binary(max_size=300))
def test_any_bytes_leave_it_serving(port, noise):
    with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
        with contextlib.suppress(OSError):
            sock.sendall(noise + b"\r\n\r\n")
            sock.recv(100)
    assert get(port)[0] == 200


def test_a_request_byte_by_byte(port):
    with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
        for byte in b"GET /metrics HTTP/1.1\r\n\r\n":
            sock.sendall(bytes([byte]))
        assert sock.recv(20).startswith(b"HTTP/1.1 200")


def test_a_large_page_to_a_slow_reader(monkeypatch):
    page = b"x" * 8_000_000
    with MetricsServer(lambda: page, "127.0.0.1:0") as server:
        with socket.create_connection(("127.0.0.1", ready(server)), timeout=20) as sock:
            sock.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            time.sleep(0.2)
            assert get(server.address[1], "/other")[0] == 404, "others are served meanwhile"
            received = 0
            while chunk := sock.recv(1 << 20):
                received += len(chunk)
        assert received > len(page)


def test_five_hundred_half_open_connections_keep_nobody_out(port):
    half = []
    try:
        for _ in range(500):
            sock = socket.create_connection(("127.0.0.1", port), timeout=20)
            sock.sendall(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
            half.append(sock)
        for _ in range(5):
            assert get(port)[0] == 200
        threads = [t for t in threading.enumerate() if t.name == "metrics"]
        assert len(threads) == 1
    finally:
        for sock in half:
            sock.close()


def test_at_most_eight_connections_are_held(port):
    half = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(30)]
    for sock in half:
        sock.sendall(b"GET ")
    eventually(lambda: open_sockets(port) <= MAX_CONNECTIONS)
    assert open_sockets(port) == MAX_CONNECTIONS
    for sock in half:
        sock.close()


def open_sockets(port: int) -> int:
    """Established connections on the server's side that this process holds."""
    lines = Path("/proc/self/net/tcp").read_text().splitlines()[1:]
    local = f"0100007F:{port:04X}"
    return sum(line.split()[1] == local and line.split()[3] == "01" for line in lines)


def test_slow_loris_is_dropped(monkeypatch):
    monkeypatch.setattr(http_server, "DEADLINE_S", 0.2)
    counters = Counters()
    with MetricsServer(lambda: PAGE, "127.0.0.1:0", counters=counters) as server:
        with socket.create_connection(("127.0.0.1", ready(server)), timeout=20) as sock:
            sock.sendall(b"GET /metrics HTTP/1.1\r\n")
            assert sock.recv(10) == b""
        eventually(lambda: counters.refused == 1)


def test_a_storm_is_refused_above_the_limit():
    counters, rendered = Counters(), []

    def render() -> bytes:
        rendered.append(1)
        return PAGE

    with MetricsServer(render, "127.0.0.1:0", counters=counters) as server:
        port = ready(server)
        replies = [get(port)[0] for _ in range(200)]
        assert replies[0] == 200
        assert 503 in replies
        assert counters.refused == replies.count(503)
        assert len(rendered) < replies.count(200), "a page is used again for a tenth of a second"


def test_open_metrics_for_who_asks_and_only_where_it_can_be_made():
    accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
    for made, kind, body in [(None, TEXT, PAGE), (lambda: b"# EOF\n", OPEN_METRICS, b"# EOF\n")]:
        with MetricsServer(lambda: PAGE, "127.0.0.1:0", open_metrics=made) as server:
            connection = http.client.HTTPConnection("127.0.0.1", ready(server), timeout=10)
            for wanted, expected in [({"Accept": accept}, (kind, body)), ({}, (TEXT, PAGE))]:
                connection.request("GET", "/metrics", headers=wanted)
                reply = connection.getresponse()
                assert (reply.headers["Content-Type"], reply.read()) == expected
                connection.close()


def test_token(monkeypatch):
    with MetricsServer(lambda: PAGE, "127.0.0.1:0", token="s3cret") as server:
        port = ready(server)
        assert get(port)[0] == 401
        assert get(port, Authorization="Bearer wrong")[0] == 401
        assert get(port, Authorization="Basic s3cret")[0] == 401
        assert get(port, Authorization="Bearer s3cret") == (200, PAGE)
        assert get(port, "/other")[0] == 404


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "192.0.2.1:9464"])
@pytest.mark.parametrize(("allow", "token"), [(False, ""), (True, ""), (False, "secret")])
def test_remote_needs_permission_and_token(listen, allow, token):
    with pytest.raises(ConfigError, match="can be reached from outside"):
        MetricsServer(lambda: PAGE, listen, allow, token)


def test_remote_with_both_is_possible():
    with MetricsServer(lambda: PAGE, "0.0.0.0:0", allow_remote=True, token="secret") as server:
        assert get(ready(server))[0] == 401


@pytest.mark.parametrize("listen", ["localhost:9464", "9464", "127.0.0.1:x", "", "example.org:80"])
def test_only_addresses(listen):
    with pytest.raises(ConfigError, match="an address such as"):
        MetricsServer(lambda: PAGE, listen)


def test_taken_port_is_told_and_tried_again(monkeypatch):
    monkeypatch.setattr(http_server, "RETRY_FIRST_S", 0.01)
    monkeypatch.setattr(http_server, "RETRY_CAP_S", 0.05)
    events: list[dict[str, str]] = []
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        server = MetricsServer(lambda: PAGE, f"127.0.0.1:{taken}", on_event=events.append).start()
        assert [event["code"] for event in events] == ["METRICS_BIND"], "told at once"
        time.sleep(0.2)
        assert [event["code"] for event in events] == ["METRICS_BIND"], "told once"
        assert str(taken) in server.problem
        assert server.address is None
    eventually(lambda: server.address is not None)
    assert get(taken)[0] == 200
    assert server.problem == ""
    assert [event["code"] for event in events] == ["METRICS_BIND", "RECOVERED"]
    server.close()
    with socket.create_server(("127.0.0.1", taken)):
        pass  # the port is free again


def test_the_pauses_between_two_tries_grow_to_a_bound(monkeypatch):
    monkeypatch.setattr(http_server, "RETRY_FIRST_S", 0.02)
    monkeypatch.setattr(http_server, "RETRY_CAP_S", 0.16)
    tries: list[float] = []
    genuine = http_server.listening_socket

    def watched(address, backlog):
        tries.append(time.monotonic())
        return genuine(address, backlog)

    monkeypatch.setattr(http_server, "listening_socket", watched)
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        MetricsServer(lambda: PAGE, f"127.0.0.1:{other.getsockname()[1]}"),
    ):
        eventually(lambda: len(tries) >= 9)
    pauses = [after - before for before, after in itertools.pairwise(tries[1:9])]
    assert all(
        pause >= least
        for pause, least in zip(pauses, [0.02, 0.04, 0.08, 0.16, 0.16, 0.16, 0.16], strict=True)
    )
    assert min(pauses[-3:]) < 0.3, "they do not grow for ever"


def test_a_defect_in_rendering_is_told_and_the_server_comes_back(monkeypatch):
    events: list[dict[str, str]] = []
    broken = [True]

    def render() -> bytes:
        if broken[0]:
            raise ZeroDivisionError("a defect")
        return PAGE

    counters = Counters()
    with MetricsServer(render, "127.0.0.1:0", on_event=events.append, counters=counters) as server:
        with contextlib.suppress(OSError, http.client.HTTPException):
            get(ready(server))
        eventually(lambda: counters.restarts == 1)
        broken[0] = False
        eventually(lambda: server.address is not None)
        assert get(server.address[1])[0] == 200
    assert [event["code"] for event in events] == ["TASK_DIED", "RECOVERED"]
    assert "a defect" in events[0]["text"]


def test_closing_twice_and_without_start():
    server = MetricsServer(lambda: PAGE, "127.0.0.1:0")
    server.close()
    server = MetricsServer(lambda: PAGE, "127.0.0.1:0").start()
    server.close()
    server.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_a_taken_port_is_named_as_the_configuration_has_it(host):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host.strip("[]"), 0), family=family) as other:
        listen = f"{host}:{other.getsockname()[1]}"
        with MetricsServer(lambda: PAGE, listen) as server:
            assert server.problem == f"listen={listen}: Address already in use"


def test_it_listens_as_soon_as_it_is_started_and_frees_the_port():
    with MetricsServer(lambda: PAGE, "127.0.0.1:0") as server:
        assert server.address is not None
        port = server.address[1]
        assert get(port)[0] == 200
    with socket.create_server(("127.0.0.1", port)):
        pass
