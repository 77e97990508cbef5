"""What is fuzzed: everything that reads bytes from outside. Each takes bytes and returns.

A target lets exactly the errors pass that its documentation promises; any other is a finding. What
is read is also used a step further, so that "accepted" is not the end of the test.
"""

import asyncio
import importlib.util
import io
import json
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from asyncua import Client, ua
from asyncua.common.utils import Buffer
from asyncua.ua.ua_binary import struct_from_binary, struct_to_binary

from steadyhand.adapters.opcua.decoding import bound_decoding, new_message
from steadyhand.adapters.opcua.layout import learn
from steadyhand.adapters.opcua.resolve import _check_node, uses_of
from steadyhand.adapters.opcua.subscription import Subscription
from steadyhand.adapters.opcua.wire import WIRE_TYPES, decode
from steadyhand.controllers.errors import (
    BundleError,
    ConfigError,
    JournalError,
    ModelError,
    RequestError,
    SteadyhandError,
)
from steadyhand.controllers.frames import LinkState
from steadyhand.controllers.policies.graph import inspect_graph
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime.assemble import make_plant
from steadyhand.runtime.bundle.archive import MEMBERS, read_archive, write_archive
from steadyhand.runtime.bundle.load import parse_golden, verify_bundle
from steadyhand.runtime.bundle.manifest import parse_manifest
from steadyhand.runtime.bundle.signature import sign
from steadyhand.runtime.chain import describe_problem, verify
from steadyhand.runtime.check import _plant
from steadyhand.runtime.config import Loaded, parse_config
from steadyhand.runtime.http_server import Malformed, parse_head
from steadyhand.runtime.journal import Journal, Limits
from steadyhand.runtime.operator import OperatorServer
from steadyhand.runtime.operator_people import OperatorSettings
from steadyhand.runtime.operator_protocol import COMMANDS, encode, parse_object, parse_request
from steadyhand.runtime.panel.access import read_people as read_tokens
from steadyhand.runtime.quantity import magnitude, same_dimension
from steadyhand.runtime.reader import JournalReader
from steadyhand.runtime.scada.people import password_proof, read_people
from steadyhand.runtime.segment import resume
from tests.support.bundles import NOW, BundleKit
from tests.support.panels import ANN, Stand
from tests.support.records import fresh_recorder, record_ticks, segment_files

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "configs" / "thermal_storage" / "steadyhand.yaml"


@dataclass
class Target:
    """One reader of bytes."""

    name: str
    seeds: list[bytes]
    run: Callable[[bytes], None]
    words: tuple[bytes, ...] = ()
    after: Callable[[], None] = lambda: None
    """Looked at now and then: is what was fuzzed still well?"""
    every: int = 1000
    """How many inputs between two such looks."""
    stack: ExitStack = field(default_factory=ExitStack)

    def close(self) -> None:
        """End what it started."""
        self.stack.close()


# -- configuration ---------------------------------------------------------------------------------

_YAML = (
    b": ", b"- ", b"\n  ", b"\t", b"&a ", b"*a", b"<<: ", b"!!python/object:os.system", b"{", b"}",
    b"[", b"]", b"|", b">", b"#", b"---\n", b"...\n", b"%YAML 1.1\n", b".nan", b".inf", b"-.inf",
    b"1e309", b"0x7f", b"0123", b"12:30", b"yes", b"off", b"null", b"~", b"2020-01-01", b"900 s",
    b"1 kW", b"-3 kWh/kWh", b"\xef\xbb\xbf", b"\xff\xfe", b"\0", b"\xe2\x80\xa8", b"''", b'"',
    b"period: ", b"plant:\n", b"link:\n", b"kind: sim", b"security:\n", b"schema_version: 1\n",
    b"? ", b"1 s", b"${CREDENTIALS_DIRECTORY}/", b"..", b"/",
)  # fmt: skip


def _configuration() -> Target:
    whole = SHIPPED.read_bytes()
    parts = whole.split(b"\n\n")
    small = b"""schema_version: 1
name: n
plant: {id: thermal_storage, parameters: {tank_capacity_kwh: 1500 kWh}}
period: 900 s
link: {kind: sim, days: 1}
fallback: {heuristic: priority}
journal: {directory: j}
safety: {limits: {storage_discharge_kw: {low: -1 kW, high: 1 kW}}}
"""

    def run(data: bytes) -> None:
        found = parse_config(data, Path("/plant/steadyhand.yaml"))
        if isinstance(found, Loaded):
            with suppress(SteadyhandError):
                make_plant(found)
            found = list(_plant(found))
        else:
            assert found, "refused without a problem"
        for problem in found:
            assert problem.text("f") and problem.code.isascii()

    return Target("config", [*12 * [small], whole, *parts], run, _YAML)


def _quantity() -> Target:
    seeds = [b"900 s", b"-400 kW", b"1.5 kWh", b"20 degC", b"1 1/kWh", b"3 kW/min", b"15 min"]

    def run(data: bytes) -> None:
        text = data.decode("utf-8", "replace")
        for unit in ("s", "kW", "degC", "byte"):
            with suppress(ValueError, ConfigError):
                assert isinstance(magnitude(text, unit), float)
            same_dimension(text, unit)

    words = (
        b"**",
        b"^",
        b"(",
        b")",
        b"e9",
        b"/",
        b"*",
        b"kW",
        b"degC",
        b"nan",
        b"inf",
        b"__",
        b".",
    )
    return Target("quantity", seeds, run, words)


# -- bundles ---------------------------------------------------------------------------------------

_JSON = (
    b"{", b"}", b"[", b"]", b":", b",", b'"', b"NaN", b"Infinity", b"-Infinity", b"1e400", b"null",
    b"true", b"-0", b"9" * 400, b"\\u0000", b"\\ud800", b'{"a":1,"a":2}', b"[" * 60, b"\xff",
)  # fmt: skip


def _kit(stack: ExitStack) -> tuple[BundleKit, bytes]:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fuzz")))
    kit = BundleKit(folder)
    return kit, kit.pack().read_bytes()


def _archive() -> Target:
    stack = ExitStack()
    kit, good = _kit(stack)
    trust, moment = kit.trust, NOW

    def run(data: bytes) -> None:
        with suppress(BundleError):
            verify_bundle(data, trust, moment)
            assert data == good, "another bundle than the signed one was accepted"

    words = (
        b"PK\x03\x04",
        b"PK\x01\x02",
        b"PK\x05\x06",
        *(name.encode() for name in MEMBERS),
        b"../",
    )
    return Target("bundle", [good], run, words, stack=stack)


def _manifest() -> Target:
    """Behind the signature: a manifest that a trusted key signed and that is wrong."""
    stack = ExitStack()
    kit, good = _kit(stack)
    members, key, trust = read_archive(good), kit.key, kit.trust

    def run(data: bytes) -> None:
        with suppress(BundleError):
            parse_manifest(data)
        if len(data) < 65_536:
            changed = members | {"manifest.json": data, "manifest.sig": sign(key, data)}
            with suppress(BundleError):
                verify_bundle(write_archive(changed), trust, NOW)

    raw = members["manifest.json"]
    return Target("manifest", [raw, raw, b"{}"], run, _JSON, stack=stack)


def _golden() -> Target:
    stack = ExitStack()
    _, good = _kit(stack)
    raw = read_archive(good)["golden.json"]

    def run(data: bytes) -> None:
        with suppress(BundleError):
            parse_golden(data, 1e-4)

    seeds = [
        raw[:4000],
        b'{"observation":[[0]],"action":[[1]],"value":[0],"error":[0],"confidence_logit":[0]}',
    ]
    return Target("golden", seeds, run, _JSON, stack=stack)


def _graph() -> Target:
    stack = ExitStack()
    _, good = _kit(stack)
    raw = read_archive(good)["policy.onnx"]

    def run(data: bytes) -> None:
        with suppress(ModelError):
            inspect_graph(data)

    words = (
        b"Loop",
        b"If",
        b"Scan",
        b"Gemm",
        b"ai.onnx",
        b"external",
        b"location",
        b"../x",
        b"\x0a",
        b"\x12",
    )
    return Target("graph", [raw], run, words, stack=stack)


# -- OPC UA: what a server sends -------------------------------------------------------------------

_KINDS = tuple(
    WIRE_TYPES[name] for name in ("Double", "Float", "Int16", "UInt32", "Boolean", "DateTime")
)


def _good_reply() -> ua.ReadResponse:
    reply, now = ua.ReadResponse(), datetime(2026, 1, 1, tzinfo=UTC)
    reply.ResponseHeader.Timestamp = now
    values = (1.5, 2.5, 3, 4, True, now)
    reply.Results = [
        ua.DataValue(ua.Variant(value, kind.variant), SourceTimestamp=now, ServerTimestamp=now)
        for value, kind in zip(values, _KINDS, strict=True)
    ]
    return reply


def _replies() -> list[Any]:
    """One sound reply of each kind that a link asks for."""
    read = _good_reply()
    odd = ua.ReadResponse()
    odd.Results = [
        ua.DataValue(ua.Variant([1.0, 2.0], ua.VariantType.Double)),
        ua.DataValue(ua.Variant("text"), StatusCode=ua.StatusCode(0x40000000)),
        ua.DataValue(StatusCode=ua.StatusCode(0x80310000)),
        ua.DataValue(ua.Variant([["a", "b"], ["c", "d"]], ua.VariantType.String)),
        ua.DataValue(ua.Variant(ua.EUInformation("n", 1, ua.LocalizedText("kW")))),
        ua.DataValue(ua.Variant(ua.NodeId("x", 3))),
    ]
    node = ua.ReadResponse()
    node.Results = [
        ua.DataValue(ua.Variant(one))
        for one in (ua.NodeClass.Variable, ua.NodeId(11), -1, 3, 1.5, "name")
    ]
    publish = ua.PublishResponse()
    item = ua.MonitoredItemNotification(ClientHandle=1, Value=read.Results[0])
    message = publish.Parameters.NotificationMessage
    message.NotificationData = [
        ua.DataChangeNotification(MonitoredItems=[item]),
        ua.StatusChangeNotification(Status=ua.StatusCode(0x800D0000)),
    ]
    endpoints = ua.GetEndpointsResponse()
    endpoints.Endpoints = [ua.EndpointDescription(EndpointUrl="opc.tcp://h:1/p")]
    translate = ua.TranslateBrowsePathsToNodeIdsResponse()
    target = ua.BrowsePathTarget(TargetId=ua.ExpandedNodeId(3), RemainingPathIndex=0xFFFFFFFF)
    translate.Results = [ua.BrowsePathResult(Targets=[target])]
    write = ua.WriteResponse()
    write.Results = [ua.StatusCode(0)]
    create = ua.CreateSessionResponse()
    return [read, read, odd, node, publish, endpoints, translate, write, create]


def _reply() -> Target:
    """Bodies of replies, through the library's decoder with our bounds, into our own code."""
    bound_decoding()
    sound = _replies()
    kinds = [type(one) for one in sound]
    seeds = [bytes([i]) + struct_to_binary(one) for i, one in enumerate(sound)]
    layout = learn(struct_to_binary(sound[0]), _KINDS)
    assert layout is not None
    session: Any = None
    use = uses_of(_opcua_kit().tag_map())[0]
    settings: Any = type("S", (), {"keep_alive_s": 1.0, "pulse_s": 0.5})()

    def run(data: bytes) -> None:
        body = data[1:]
        fast = layout.decode(body)
        new_message()
        try:
            reply = struct_from_binary(kinds[data[0] % len(kinds) if data else 0], Buffer(body))
        except (MemoryError, RecursionError):
            raise
        except Exception:  # noqa: BLE001  (of the library: the link ends the session and says so)
            assert fast is None or data[0] % len(kinds) not in (0, 1)
            return
        if isinstance(reply, ua.ReadResponse):
            results = (reply.Results or [])[: len(_KINDS)]
            samples = decode(results, _KINDS[: len(results)])
            assert len(samples.values) == len(results)
            if len(results) > 4:  # as if these were the attributes of a node
                for fault in _check_node(use, {}, *results[:5]):
                    assert fault.text and fault.signal == use.name
            again = learn(body, _KINDS)
            if again is not None:
                assert again.decode(body) is not None
        elif isinstance(reply, ua.PublishResponse):
            told: list[Any] = []
            made = Subscription(session, settings, lambda *news: told.append(news), time.monotonic)
            made._publish(reply.Parameters)

    words = (
        b"\xc0\x80\xff\xff", b"\x80\x00\xff\xff\xff\x7f", b"\x97\x00\x01\x00\x00", b"\xff" * 8,
        struct.pack("<d", float("nan")), struct.pack("<d", float("inf")),
        *(bytes([kind]) for kind in range(26)),
    )  # fmt: skip
    return Target("opcua_reply", seeds, run, words)


def _opcua_kit() -> Any:
    spec = importlib.util.spec_from_file_location(
        "fuzz_opcua_kit", ROOT / "tests" / "adapters" / "opcua" / "conftest.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _link() -> Target:
    """The whole link against a real server, every reply broken on its way by a proxy.

    An input is a list of edits here: the wire applies it to the pieces as they come.
    """
    kit, stack = _opcua_kit(), ExitStack()

    class Breaking(kit.Proxy):  # type: ignore[misc,name-defined]
        program: Iterator[int] = iter(())
        broken = 0
        sane = True

        async def _pump(self, reader: Any, writer: Any, to_client: bool, begun: int) -> None:
            del begun
            try:
                while data := await reader.read(65536):
                    if to_client and not self.sane:
                        data = self._break(data)
                    writer.write(data)
                    await writer.drain()
            except OSError:
                return
            finally:
                writer.close()

        def _break(self, data: bytes) -> bytes:
            number = next(self.program, 1)
            if number % 3:
                return data
            self.broken += 1
            made, at = bytearray(data), (number // 7) % len(data)
            kind = number // 3 % 5
            if kind == 0:
                made[at] ^= 1 << (number % 8)
            elif kind == 1:
                made[at : at + 4] = (number & 0xFFFFFFFF).to_bytes(4, "little")
            elif kind == 2:
                del made[at:]
            elif kind == 3:
                made[at:at] = made[: 1 + number % 64]
            else:
                made[at] = number & 0xFF
            return bytes(made)

    base = kit.Base()
    stack.callback(base.close)
    helpers = kit.Kit(base)
    server = helpers.server()
    stack.callback(server.stop)
    proxy = Breaking(base, server.port)
    stack.callback(proxy.close)
    driver = kit.Driver(
        kit.settings_for(
            proxy.endpoint, subscribe=True, request_timeout_s=0.25, connect_timeout_s=1.0,
            backoff_first_s=0.005, backoff_cap_s=0.01, keep_alive_s=0.1, flap_count=1_000_000,
            sampling_s=0.01,
        ),
        kit.tag_map(),
    )  # fmt: skip
    driver.link.open()
    stack.callback(driver.link.close)
    driver.up()

    def run(data: bytes) -> None:
        """Each eight bytes break one piece, or let it pass."""
        proxy.program = iter(struct.unpack(f"<{len(data) // 8}Q", data[: len(data) // 8 * 8]))
        proxy.sane = False
        before, deadline = proxy.broken, time.monotonic() + 0.5
        while proxy.broken < before + 2 and time.monotonic() < deadline:
            driver.read()
            time.sleep(0.002)

    def after() -> None:
        """It lives, nothing of ours died, and a sound wire brings it back."""
        proxy.sane = True
        driver.up(30.0)
        assert driver.link.state is LinkState.UP
        assert not driver.link.stuck(), driver.link.stuck()
        dead = [one.text for one in driver.seen if one.code is ReasonCode.TASK_DIED]
        assert not dead, dead
        driver.seen.clear()

    seeds = [bytes(range(64)), struct.pack("<8Q", *(3 * 7**i for i in range(8)))]
    target = Target("opcua_link", seeds, run, after=after, every=20, stack=stack)
    target.broken = lambda: proxy.broken  # type: ignore[attr-defined]
    return target


# -- people: the three doors -----------------------------------------------------------------------

_COMMAND = {"session": "a" * 32, "sequence": 1, "command": "mode", "arguments": {"mode": "full"}}


def _lines() -> list[bytes]:
    override = {"output": "valve", "value": 1.0, "reason": "r", "for_s": 60.0}
    return [
        json.dumps(_COMMAND | {"command": name, "arguments": given}).encode()
        for name, given in (
            ("mode", {"mode": "full"}), ("override", override), ("status", {}),
            ("ack", {"code": "X"}), ("swap", {"file": "../x", "reason": "r"}),
        )
    ]  # fmt: skip


def _operator_words() -> Target:
    """The words on the control socket, without the socket."""

    def run(data: bytes) -> None:
        with suppress(RequestError):
            request = parse_request(data)
            assert request.command in COMMANDS
            encode({"sequence": request.sequence, "result": dict(request.arguments)})
        with suppress(RequestError):
            encode(parse_object(data))

    return Target("operator_words", _lines(), run, (*_JSON, b'"command"', b'"arguments"', b"mode"))


def _operator_socket() -> Target:
    """The control socket itself: lines, halves of lines, and leaving in between."""
    stack = ExitStack()
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fz", dir="/tmp")))
    stand = stack.enter_context(Stand())
    settings = OperatorSettings(folder / "s", line_s=0.5, max_per_user=8)
    server = OperatorServer(settings, stand.desk)
    server.open()
    stack.callback(server.close)

    def connect() -> tuple[socket.socket, str]:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(1.0)  # an answer that takes longer is a finding
        sock.connect(str(folder / "s"))
        return sock, str(json.loads(sock.makefile("rb").readline())["session"])

    def run(data: bytes) -> None:
        sock, session = connect()
        with sock:
            sent = data.replace(b"a" * 32, session.encode()) + b"\n"
            with suppress(BrokenPipeError, ConnectionResetError):
                sock.sendall(sent)
                if len(data) % 3:
                    sock.shutdown(socket.SHUT_WR)
                    answered = b""
                    while part := sock.recv(65536):
                        answered += part
                    for line in answered.splitlines():
                        assert b"Traceback" not in line
                        assert isinstance(json.loads(line)["ok"], bool)

    def after() -> None:
        sock, session = connect()
        with sock:
            request = _COMMAND | {"session": session, "command": "status", "arguments": {}}
            sock.sendall(json.dumps(request).encode() + b"\n")
            assert json.loads(sock.makefile("rb").readline())["ok"] is True

    return Target("operator_socket", _lines(), run, (*_JSON, b"\n"), after, 200, stack)


_HTTP = (
    b"\r\n", b"\r\n\r\n", b" HTTP/1.1", b"HTTP/0.9", b"GET ", b"POST ", b"Host: ", b"%2e%2e/",
    b"Content-Length: ", b"Transfer-Encoding: chunked\r\n", b"Expect: 100-continue\r\n", b"../",
    b"Authorization: Bearer ", b"Content-Length: -1\r\n", b"Content-Length: 99999999999\r\n",
    b":", b"?since=", b"Connection: Upgrade\r\n", b"/metrics", b"/api/state.json",
    b"/api/command", b"localhost", b"[::1]", b"\0", b"\x80",
)  # fmt: skip


def _requests(host: str = "127.0.0.1") -> list[bytes]:
    body = json.dumps(_COMMAND).encode()
    head = f"Host: {host}\r\n"
    return [
        f"GET / HTTP/1.1\r\n{head}\r\n".encode(),
        f"GET /metrics HTTP/1.1\r\n{head}Accept: application/openmetrics-text\r\n\r\n".encode(),
        f"GET /api/trends.bin?since=3 HTTP/1.1\r\n{head}\r\n".encode(),
        f"GET /api/decisions.json HTTP/1.1\r\n{head}\r\n".encode(),
        f"POST /api/command HTTP/1.1\r\n{head}Authorization: Bearer {ANN}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        + body,
    ]


def _http_words() -> Target:
    """Request line and headers, without the socket."""

    def run(data: bytes) -> None:
        with suppress(Malformed):
            made = parse_head(data.partition(b"\r\n\r\n")[0])
            assert made.path.isascii() and "\n" not in "".join(made.headers.values())

    return Target("http_words", _requests(), run, _HTTP)


def _http(name: str) -> Target:
    """Panel or metrics over real sockets."""
    stack = ExitStack()
    stand = stack.enter_context(Stand({"ann": ANN}))
    if name == "panel":
        for _ in range(3):
            stand.tick()
        port = stand.port
        # its limits on how much may be asked would answer nearly everything
        stand.panel._allowance._rate_per_s = stand.panel._allowance._burst = 1e9
        stand.panel._allowance._tokens = 1e9
    else:
        from steadyhand.runtime.metrics_server import MetricsServer

        server = stack.enter_context(MetricsServer(lambda: b"# EOF\n", "127.0.0.1:0"))
        while server.address is None:
            time.sleep(0.01)
        port = server.address[1]

    def ask(data: bytes) -> bytes:
        answered = b""
        with socket.create_connection(("127.0.0.1", port), timeout=1.0) as sock:
            with suppress(BrokenPipeError, ConnectionResetError):
                sock.sendall(data)
                sock.shutdown(socket.SHUT_WR)
                while part := sock.recv(65536):
                    answered += part
        return answered

    def run(data: bytes) -> None:
        if name == "panel":
            stand.panel._access._wrong._tokens = 10.0
        answered = ask(data.replace(b"127.0.0.1", f"127.0.0.1:{port}".encode()))
        assert not answered or answered.startswith(b"HTTP/1.1 "), answered[:80]
        assert b"Traceback" not in answered

    def after() -> None:
        path = "/" if name == "panel" else "/metrics"
        good = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
        deadline, answered = time.monotonic() + 10.0, b""
        while not answered.startswith(b"HTTP/1.1 200") and time.monotonic() < deadline:
            answered = ask(good)  # after a storm it refuses for a moment
        assert answered.startswith(b"HTTP/1.1 200"), answered[:80]
        counters = stand.panel if name == "panel" else None
        assert counters is None or counters.restarts == 0

    return Target(f"{name}_http", _requests(), run, _HTTP, after, 200, stack)


# -- files -----------------------------------------------------------------------------------------


def _people_files() -> Target:
    """Users and tokens, as an engineer's editor may leave them."""
    stack = ExitStack()
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fuzz", dir="/dev/shm")))
    file = folder / "people"
    file.touch(0o600)
    proof = password_proof("a long password")
    users = f"# people\nann:operator:{proof}\nhis:viewer:certificate:{'ab' * 32}\n".encode()
    tokens = f"ann {'t' * 40}\nbob {'u' * 40}\n".encode()

    def run(data: bytes) -> None:
        file.write_bytes(data)
        with suppress(ConfigError):
            read_people(file)
        try:
            read_tokens(file)
        except ConfigError as error:
            for line in data.decode("utf-8", "replace").splitlines():  # nothing of a secret is told
                token = line.partition(" ")[2].strip()
                assert len(token) < 32 or token not in str(error)

    words = (
        b":",
        b"scrypt:",
        b"certificate:",
        b"engineer",
        b"\n",
        b"16384",
        b"99999999999999",
        b"=",
    )
    return Target("people_files", [users, tokens], run, words, stack=stack)


def _journal() -> Target:
    """A segment of the journal with anything done to its bytes."""
    stack = ExitStack()
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fuzz", dir="/dev/shm")))
    recorder = fresh_recorder()
    with Journal(folder, recorder, Limits(commit_every_s=0.002)):
        record_ticks(recorder, 6)
    (file,) = segment_files(folder)
    good = file.read_bytes()

    def run(data: bytes) -> None:
        file.write_bytes(data)
        with suppress(JournalError):  # a start on top of it
            resume(folder)
        result = verify(folder)
        assert describe_problem(result) or result.ok
        try:
            with JournalReader(folder) as journal:
                journal.export_json_lines(io.StringIO())
                first, last = journal.span()
                list(journal.ticks(first, last))
                journal.tick(last)
        except JournalError:
            assert data != good

    return Target(
        "journal", [good], run, (b"SQLite format 3\0", b"record", b"{", b"\0" * 64), stack=stack
    )


# -- OPC UA: what a client sends to our own server -------------------------------------------------


PATIENCE_S = 0.3
"""A request that has no answer by then has none: with all else it must end within a second."""


class OwnServer:
    """Our own OPC UA server, and a stranger who talks to it."""

    def __init__(self, stack: ExitStack) -> None:
        from steadyhand.runtime.scada.server import ScadaServer, ScadaSettings
        from steadyhand.runtime.scada.snapshot import Site
        from tests.support.records import LAYOUT
        from tests.support.scada_rig import ScadaFiles

        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fuzz")))
        files = ScadaFiles(folder / "scada")
        stand = stack.enter_context(Stand())
        key = files.folder / "server_key.pem"
        settings = ScadaSettings("127.0.0.1", 0, files.server, key, files.trusted, files.users)
        site = Site("small", "tank", "1", 900.0, 9000.0, LAYOUT, None)
        made = ScadaServer(settings, site, stand.desk, stand.recorder, lambda: None, lambda: (1, 1))
        made.open()
        stack.callback(made.close)
        self.url = made.url
        host, port = self.url.removeprefix("opc.tcp://").split("/")[0].split(":")
        self.address = (host, int(port))
        deadline = time.monotonic() + 30.0
        while not self.serves():
            assert time.monotonic() < deadline, "the server does not come up"
            time.sleep(0.1)

    def serves(self) -> bool:
        """Does it answer a sound client within a second?"""
        with suppress(Exception):
            client = Client(self.url, timeout=1.0)
            return len(asyncio.run(client.connect_and_get_server_endpoints())) > 0
        return False

    def is_well(self) -> None:
        """Connections without a log-in are limited: the last ones may have to go first."""
        for _ in range(3):
            if self.serves():
                return
            time.sleep(0.3)
        raise AssertionError("the server does not answer a sound client any more")

    def record(self) -> list[bytes]:
        """What a sound client sends."""
        kept: list[bytes] = []

        async def ask() -> None:
            client = Client(self.url, timeout=1.0)
            make = client.uaclient._make_protocol

            def recording() -> Any:
                protocol = make()
                made = protocol.connection_made

                def connected(transport: Any) -> None:
                    made(transport)
                    protocol.transport = Recorder(transport, kept)

                protocol.connection_made = connected
                return protocol

            client.uaclient._make_protocol = recording
            await client.connect_and_get_server_endpoints()

        asyncio.run(ask())
        return kept

    async def send(self, body: bytes) -> None:
        """One request on a channel of its own; whether it is answered or cut off is all the same.

        Raises:
            TimeoutError: neither.
        """
        client = Client(self.url, timeout=1.0)
        await client.connect_socket()
        try:
            await client.send_hello()
            await client.open_secure_channel()
            protocol = client.uaclient.protocol
            number = protocol._request_id = protocol._request_id + 1
            answer = protocol._callbackmap[number] = asyncio.get_running_loop().create_future()
            kind = ua.MessageType.SecureMessage
            encode_ = protocol._connection.message_to_binary
            protocol.transport.write(encode_(body, message_type=kind, request_id=number))
            with suppress(ConnectionError, ua.UaError):
                await asyncio.wait_for(answer, PATIENCE_S)
        finally:
            client.disconnect_socket()


def _scada() -> Target:
    """Bytes of a stranger, before anybody has logged in."""
    stack = ExitStack()
    server = OwnServer(stack)
    recorded = server.record()
    assert len(recorded) >= 3

    def run(data: bytes) -> None:
        with socket.create_connection(server.address, timeout=1.0) as sock:
            with suppress(BrokenPipeError, ConnectionResetError, TimeoutError):
                sock.sendall(data)
                sock.settimeout(0.02)
                sock.recv(65536)

    whole = b"".join(recorded)
    words = (b"HEL", b"OPN", b"MSG", b"CLO", b"ERR", b"F", b"C", b"\xff\xff\xff\x7f", b"\x18" * 40)
    seeds = [whole, whole, *recorded]
    return Target("scada_bytes", seeds, run, words, server.is_well, 100, stack)


def _requests_of_a_stranger() -> list[bytes]:
    """Sound requests that nobody need log in for to send; one with a value in its header."""
    read = ua.ReadRequest()
    read.Parameters.NodesToRead = [ua.ReadValueId(NodeId=ua.NodeId(2258), AttributeId=13)]
    browse = ua.BrowseRequest()
    browse.Parameters.NodesToBrowse = [ua.BrowseDescription(NodeId=ua.NodeId(85))]
    call = ua.CallRequest()
    call.Parameters.MethodsToCall = [
        ua.CallMethodRequest(ua.NodeId(1), ua.NodeId(2), [ua.Variant(1.5), ua.Variant(["a", "b"])])
    ]
    write = ua.WriteRequest()
    write.Parameters.NodesToWrite = [
        ua.WriteValue(NodeId=ua.NodeId(1), AttributeId=13, Value=ua.DataValue(ua.Variant(1.5)))
    ]
    activate = ua.ActivateSessionRequest()
    activate.Parameters.UserIdentityToken = ua.UserNameIdentityToken(UserName="ann", Password=b"x")
    hidden = ua.GetEndpointsRequest()
    hidden.RequestHeader.AdditionalHeader = ua.LiteralOperand(Value=ua.Variant([1, 2, 3]))
    every = (
        hidden, hidden, ua.GetEndpointsRequest(), ua.FindServersRequest(), activate, read, browse,
        ua.CreateSessionRequest(), call, write, ua.CreateSubscriptionRequest(), ua.PublishRequest(),
    )  # fmt: skip
    sound = [struct_to_binary(one) for one in every]
    # forty bytes that once took the server's thread and all memory, from anybody: an array of
    # nothing in the header, before any log-in
    array = sound[0].index(bytes([0x80 | 8]) + struct.pack("<i", 3))
    bombs = [
        sound[0][:array]
        + bytes([0x80 | kind])
        + struct.pack("<i", 2**31 - 1)
        + sound[0][array + 5 :]
        for kind in (0, 12, 22, 23, 24)
    ]
    return [*sound, *bombs]


def _scada_requests() -> Target:
    """Requests of a stranger, in an open channel of the kind that serves discovery."""
    seeds, stack = _requests_of_a_stranger(), ExitStack()
    server = OwnServer(stack)

    def run(data: bytes) -> None:
        try:
            asyncio.run(server.send(data))
        except TimeoutError:  # a request that is never answered holds up nobody else
            server.is_well()
        except (ConnectionError, ua.UaError, OSError):
            return  # too many of ours are open: those are limited

    words = (
        b"\x80\xff\xff\xff\x7f", b"\x80\x00\xff\xff\xff\x7f", b"\x18" * 60, b"\xff\xff\xff\xff",
        *(bytes([0x80 | kind]) for kind in range(26)),
    )  # fmt: skip
    return Target("scada_requests", seeds, run, words, server.is_well, 50, stack)


class Recorder:
    """A transport that keeps what is written."""

    def __init__(self, transport: Any, kept: list[bytes]) -> None:
        self._transport, self._kept = transport, kept

    def write(self, data: bytes) -> None:
        """Keep and pass on."""
        self._kept.append(bytes(data))
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


TARGETS: dict[str, Callable[[], Target]] = {
    "config": _configuration,
    "quantity": _quantity,
    "bundle": _archive,
    "manifest": _manifest,
    "golden": _golden,
    "graph": _graph,
    "opcua_reply": _reply,
    "opcua_link": _link,
    "operator_words": _operator_words,
    "operator_socket": _operator_socket,
    "http_words": _http_words,
    "panel_http": lambda: _http("panel"),
    "metrics_http": lambda: _http("metrics"),
    "scada_bytes": _scada,
    "scada_requests": _scada_requests,
    "people_files": _people_files,
    "journal": _journal,
}
