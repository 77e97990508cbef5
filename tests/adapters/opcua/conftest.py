"""A small OPC UA server of our own, in a thread, with every knob a test needs."""

import asyncio
import copy
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asyncua import Server, ua
from asyncua.common.callback import CallbackType
from asyncua.crypto.permission_rules import User, UserRole
from asyncua.server.binary_server_asyncio import BinaryServer
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from steadyhand.adapters.opcua.link import OpcUaLink
from steadyhand.adapters.opcua.settings import INSECURE_WORD, OpcUaSettings, Security
from steadyhand.adapters.opcua.tags import Handshake, OutputTag, Tag, TagMap, parse_address
from steadyhand.controllers.frames import LinkState, Observation, Source
from steadyhand.controllers.signals import Signal, SignalSet

PLANT_URI = "urn:test:plant"
OTHER_URI = "urn:test:other"
SERVER_URI = "urn:test:server"
CLIENT_URI = "urn:test:client"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(condition: Callable[[], Any], timeout_s: float = 15.0, what: str = "condition") -> float:
    """Poll until true; returns how long it took."""
    started = time.monotonic()
    while not condition():
        if time.monotonic() - started > timeout_s:
            raise AssertionError(f"{what}: not within {timeout_s} s")
        time.sleep(0.005)
    return time.monotonic() - started


class Users:
    """Everybody may read and write, nobody is administrator."""

    password = "right"

    def get_user(
        self, iserver: Any, username: Any = None, password: Any = None, certificate: Any = None
    ) -> User | None:
        if username is not None and password != self.password:
            return None
        return User(UserRole.User, username or "anonymous")


class Base:
    """One library server for the whole run: making its standard nodes takes seconds.

    What "restarts" is its socket, its policies and the plant's nodes.
    """

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.server: Any = self.call(self._make())

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def call(self, coroutine: Any) -> Any:
        future: Future[Any] = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        return future.result(60.0)

    async def _make(self) -> Any:
        server = Server(user_manager=Users())
        await server.init()
        await server.iserver.start()
        space = server.iserver.aspace
        self._known = set(space._nodes)
        self._objects = list(space[server.nodes.objects.nodeid].references)
        self._kept = [ua.NodeId(i) for i in (2255, 2259, 11705, 11707, 11712, 11714)]
        self._values = [
            copy.deepcopy(await server.get_node(i).read_data_value()) for i in self._kept
        ]
        return server

    async def reset(self) -> None:
        """As if the server had just been made."""
        server = self.server
        space = server.iserver.aspace
        for node_id in [n for n in space._nodes if n not in self._known]:
            del space._nodes[node_id]
        space[server.nodes.objects.nodeid].references[:] = self._objects
        for node_id, value in zip(self._kept, self._values, strict=True):
            fresh = copy.deepcopy(value)  # the library appends to its namespace array in place
            space[node_id].attributes[ua.AttributeIds.Value].value = fresh
        server.iserver.callback_service._listeners = {}
        server.iserver.endpoints.clear()
        server._policies.clear()
        server.iserver.certificate = server.iserver.private_key = None

    async def listen(self) -> None:
        server = self.server
        await server._setup_server_nodes()
        server.bserver = BinaryServer(
            server.iserver, "127.0.0.1", server.endpoint.port, server.limits
        )
        server.bserver.set_policies(server._policies)
        await server.bserver.start()

    async def hang_up(self) -> None:
        await self.server.bserver.stop()

    async def _end(self) -> None:
        await self.server.iserver.stop()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    def close(self) -> None:
        self.call(self._end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(5.0)


class PlantServer:
    """Two doubles, one Int16, an output, a Float output, and the handshake nodes."""

    def __init__(
        self,
        base: Base,
        port: int,
        namespaces: tuple[str, ...] = (PLANT_URI,),
        secure: "Pki | None" = None,
    ) -> None:
        self.port = port
        self.endpoint = f"opc.tcp://127.0.0.1:{port}/plant"
        self.namespaces = namespaces
        self.secure = secure
        self.server_uri = SERVER_URI
        self.index = 0
        self.leave_out: tuple[str, ...] = ()
        self.types: dict[str, ua.VariantType] = {}
        self.policies = ["Basic256Sha256", "Aes256Sha256RsaPss", "Aes128Sha256RsaOaep"]
        self.server = base.server
        self.call = base.call
        self._base = base
        self._listens = False

    def start(self) -> "PlantServer":
        self.call(self._start())
        return self

    async def _start(self) -> None:
        await self._base.reset()
        server = self.server
        server.set_endpoint(self.endpoint)
        await server.set_application_uri(self.server_uri)
        if self.secure is None:
            server.set_security_policy([ua.SecurityPolicyType.NoSecurity])
        else:
            kinds = [f"{policy}_SignAndEncrypt" for policy in self.policies]
            server.set_security_policy([ua.SecurityPolicyType[kind] for kind in kinds])
            await server.load_certificate(str(self.secure.server_cert))
            await server.load_private_key(str(self.secure.server_key))
        for uri in self.namespaces:
            index = await server.register_namespace(uri)
            if uri == PLANT_URI:
                self.index = index
                await self._fill(index, 0.0)
            else:
                await self._fill(index, 1000.0)
        await self._base.listen()
        self._listens = True

    async def _fill(self, index: int, offset: float) -> None:
        plant = await self.server.nodes.objects.add_object(
            ua.NodeId("Plant", index), ua.QualifiedName("Plant", index)
        )
        kinds = {
            "level": (1.0 + offset, ua.VariantType.Double),
            "flow": (2.0 + offset, ua.VariantType.Double),
            "count": (3, ua.VariantType.Int16),
            "valve": (offset, ua.VariantType.Double),
            "pump": (0.0, ua.VariantType.Float),
            "valve_position": (0.0, ua.VariantType.Double),
            "granted": (True, ua.VariantType.Boolean),
            "pump_in": (True, ua.VariantType.Boolean),
            "request": (False, ua.VariantType.Boolean),
            "heartbeat": (0, ua.VariantType.UInt32),
            "source": (4, ua.VariantType.Int32),
            "plant_heartbeat": (1, ua.VariantType.UInt32),
            "plant_time": (0.0, ua.VariantType.Double),
            "sequence": (1, ua.VariantType.UInt32),
        }
        for name, (usual_value, usual_kind) in kinds.items():
            if name in self.leave_out:
                continue
            value, kind = usual_value, self.types.get(name, usual_kind)
            if "Int" in kind.name or kind.name.endswith("Byte"):
                value = int(value)
            node = await plant.add_variable(
                ua.NodeId(name, index), ua.QualifiedName(name, index), ua.Variant(value, kind)
            )
            if name in ("valve", "pump", "request", "heartbeat", "source"):
                await node.set_writable()
            if name == "level":
                unit = ua.EUInformation(DisplayName=ua.LocalizedText("m"))
                await node.add_property(
                    ua.NodeId("level.unit", index), ua.QualifiedName("EngineeringUnits", 0), unit
                )
            await self._set(name, value, kind=kind, index=index)

    def set(self, name: str, value: Any, **options: Any) -> None:
        """Show a value with status and stamps, as no client could."""
        self.call(self._set(name, value, **options))

    async def _set(
        self,
        name: str,
        value: Any,
        kind: ua.VariantType | None = None,
        status: int = 0,
        source: datetime | str | None = "now",
        server: datetime | str | None = "now",
        index: int | None = None,
    ) -> None:
        node = self.server.get_node(ua.NodeId(name, self.index if index is None else index))
        if kind is None:
            kind = (await node.read_data_type_as_variant_type()) if value is not None else None
        now = datetime.now(UTC)
        variant = ua.Variant(None) if value is None else ua.Variant(value, kind)
        stored = ua.DataValue(
            Value=variant,
            StatusCode=ua.StatusCode(status),
            SourceTimestamp=now if source == "now" else source,
            ServerTimestamp=now if server == "now" else server,
        )
        cell = self.server.iserver.aspace[node.nodeid].attributes[ua.AttributeIds.Value]
        cell.value = stored  # the library's own setter refuses what a bad server would show
        for handle, callback in list(cell.datachange_callbacks.items()):
            await callback(handle, stored)

    def get(self, name: str) -> Any:
        return self.call(self.server.get_node(ua.NodeId(name, self.index)).read_value())

    def image(self, number: int, **values: float) -> None:
        """A complete image in one step, its number last."""

        async def publish() -> None:
            for name, value in values.items():
                await self._set(name, value)
            await self._set("plant_time", 10.0 * number)
            await self._set("plant_heartbeat", number)
            await self._set("sequence", number)

        self.call(publish())

    def on_write(self, hook: Callable[[Any], Any]) -> None:
        """Run `hook(event)` after every external write."""

        async def call(event: Any, _service: Any) -> None:
            if event.is_external:
                result = hook(event)
                if asyncio.iscoroutine(result):
                    await result

        self.server.iserver.subscribe_server_callback(CallbackType.PostWrite, call)

    def before(self, kind: str, hook: Callable[[Any], Any]) -> None:
        """Run `await hook(event)` before every external read or write."""

        async def call(event: Any, _service: Any) -> None:
            if event.is_external:
                await hook(event)

        self.server.iserver.subscribe_server_callback(getattr(CallbackType, kind), call)

    def stop(self) -> None:
        """Close every connection and stop listening."""
        if self._listens:
            self._listens = False
            self.call(self._base.hang_up())


class Proxy:
    """A wire in front of a server that can be cut, held, or corrupted."""

    def __init__(self, base: Base, target: int) -> None:
        self.port = free_port()
        self.endpoint = f"opc.tcp://127.0.0.1:{self.port}/plant"
        self.holds = False
        """Swallow everything, without closing: a peer that vanished without FIN."""
        self.trickle_s = 0.0
        """Pass one byte per this many seconds towards the client."""
        self.hold_after = -1
        """Swallow everything after this many pieces from the server."""
        self.flip_at = -1
        """Corrupt this byte of what the server sends next."""
        self.swallow_renewals = 0
        """Drop so many requests to open or renew a secure channel."""
        self.alter: Callable[[bytes], bytes] = bytes
        """What is made of each piece from the server, as somebody in between would."""
        self.swallowed = 0
        self.passed = bytearray()
        """Everything that went through, both ways."""
        self.carried = {True: bytearray(), False: bytearray()}
        """What went to the client (True) and to the server since the last `count_anew`."""
        self.cuts_s: list[float] = []
        """When a connection was cut by `cut_at`."""
        self._cut_at: tuple[bool, int, bool] | None = None
        self._round = 0
        """Connections of an earlier one may still have something to say: it counts no more."""
        self._target = target
        self._base = base
        self._writers: list[Any] = []
        self._server: Any = None
        base.call(self._start())

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def _accept(self, reader: Any, writer: Any) -> None:
        if self.holds:
            self._writers.append(writer)
            return
        try:
            upstream, downstream = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.close()
            return
        self._writers += [writer, downstream]
        now = self._round
        await asyncio.gather(
            self._pump(reader, downstream, False, now), self._pump(upstream, writer, True, now)
        )

    async def _pump(self, reader: Any, writer: Any, to_client: bool, begun: int) -> None:
        try:
            while data := await reader.read(65536):
                self.passed += data
                if to_client and self.hold_after >= 0:
                    self.hold_after -= 1
                    self.holds = self.holds or self.hold_after < 0
                if self.holds:
                    continue
                if to_client:
                    data = self.alter(data)
                if not to_client and self.swallow_renewals > 0:
                    data = self._without_renewals(data)
                if to_client and self.flip_at >= 0 and len(data) > self.flip_at:
                    broken = bytearray(data)
                    broken[self.flip_at] ^= 0x5A
                    data, self.flip_at = bytes(broken), -1
                if to_client and self.trickle_s:
                    for byte in data:
                        writer.write(bytes((byte,)))
                        await asyncio.sleep(self.trickle_s)
                elif begun == self._round and await self._cuts_within(data, writer, to_client):
                    return
                else:
                    writer.write(data)
                    await writer.drain()
        except OSError:
            return
        finally:
            if not self.holds:
                writer.close()

    def _without_renewals(self, data: bytes) -> bytes:
        """Pieces of a client begin with a frame: it writes each at once."""
        kept, rest = b"", data
        while len(rest) >= 8:
            size = max(int.from_bytes(rest[4:8], "little"), 8)
            if rest.startswith(b"OPN") and self.swallow_renewals > 0:
                self.swallow_renewals -= 1
                self.swallowed += 1
            else:
                kept += rest[:size]
            rest = rest[size:]
        return kept + rest

    async def _cuts_within(self, data: bytes, writer: Any, to_client: bool) -> bool:
        """Count `data`; was it to be cut short? Then what comes before the cut was passed on."""
        before = len(self.carried[to_client])
        self.carried[to_client] += data
        if self._cut_at is None or self._cut_at[0] is not to_client:
            return False
        _, count, reset = self._cut_at
        if before + len(data) < count:
            return False
        self._cut_at = None
        writer.write(data[: count - before])
        await writer.drain()
        self.cuts_s.append(time.monotonic())
        for one in self._writers:
            if reset:
                linger = struct.pack("ii", 1, 0)
                one.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            one.close()
        self._writers.clear()
        return True

    def count_anew(self, cut_at: tuple[bool, int, bool] | None = None) -> None:
        """Reset every connection and count the bytes of those that come.

        Args:
            cut_at: once, after so many bytes to the client (True) or to the server, whichever
                connection they go through: end it, with a reset (True) or as if it were closed.
        """

        async def begin() -> None:
            await self._cut()
            self._round += 1
            self.carried = {True: bytearray(), False: bytearray()}
            self._cut_at = cut_at

        self._base.call(begin())

    async def _cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def cut(self) -> None:
        """Reset every connection."""
        self._base.call(self._cut())

    async def _stop(self) -> None:
        self._server.close()
        await self._cut()

    def close(self) -> None:
        self._base.call(self._stop())


class Pki:
    """Certificates made for one test run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.server_cert, self.server_key = self.make("server", SERVER_URI)
        self.client_cert, self.client_key = self.make("client", CLIENT_URI)

    def make(
        self,
        name: str,
        uri: str,
        start: timedelta = timedelta(days=-1),
        life: timedelta = timedelta(days=30),
        host: str = "127.0.0.1",
        issuer: "tuple[x509.Certificate, Any] | None" = None,
        ca: bool = False,
        key_encipherment: bool = True,
    ) -> tuple[Path, Path]:
        key = rsa.generate_private_key(65537, 2048)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        begin = datetime.now(UTC) + start
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer[0].subject if issuer else subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(begin + life)
            .add_extension(
                x509.SubjectAlternativeName(
                    [x509.UniformResourceIdentifier(uri), x509.IPAddress(ip_address(host))]
                ),
                critical=False,
            )
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(
                x509.KeyUsage(
                    digital_signature=True,
                    content_commitment=True,
                    key_encipherment=key_encipherment,
                    data_encipherment=key_encipherment,
                    key_agreement=False,
                    key_cert_sign=ca,
                    crl_sign=ca,
                    encipher_only=False,
                    decipher_only=False,
                ),
                critical=True,
            )
        )
        certificate = builder.sign(issuer[1] if issuer else key, hashes.SHA256())
        cert_path, key_path = self.directory / f"{name}.der", self.directory / f"{name}.pem"
        cert_path.write_bytes(certificate.public_bytes(serialization.Encoding.DER))
        key_path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        key_path.chmod(0o600)
        return cert_path, key_path

    def security(self, **changes: Any) -> Security:
        return Security(
            **{
                "certificate": self.client_cert,
                "private_key": self.client_key,
                "trusted": (self.server_cert,),
                "allow_anonymous": True,
                **changes,
            }
        )


def node(name: str, uri: str = PLANT_URI) -> Any:
    return parse_address(f"nsu={uri};s={name}", name)


def tag(name: str, **changes: Any) -> Tag:
    return Tag(**{"address": node(name), **changes})


OBSERVATIONS = SignalSet(
    (
        Signal("level", "m", -100.0, 100.0),
        Signal("flow", "m3/s", -100.0, 100.0),
        Signal("count", "1", -1000.0, 1000.0),
    )
)
OUTPUTS = SignalSet((Signal("valve", "%", 0.0, 100.0), Signal("pump", "%", -10.0, 10.0)))


def tag_map(handshake: Handshake | None = None, **changes: Any) -> TagMap:
    """The map of the test plant; `level=tag(...)` replaces a tag."""
    observations = {
        "level": tag("level"),
        "flow": tag("flow"),
        "count": tag("count", wire_type="Int16"),
    }
    outputs = {
        "valve": OutputTag(address=node("valve")),
        "pump": OutputTag(address=node("pump"), wire_type="Float"),
    }
    for name, change in changes.items():
        (outputs if name in outputs else observations)[name] = change
    return TagMap(
        OBSERVATIONS,
        OUTPUTS,
        tuple(observations.values()),
        tuple(outputs.values()),
        handshake or Handshake(),
    )


def full_handshake(*without: str) -> Handshake:
    roles = ("granted", "plant_heartbeat", "plant_time", "sequence", "heartbeat", "source")
    tags = {role: tag(role, wire_type="auto") for role in (*roles, "request")}
    return Handshake(**{role: t for role, t in tags.items() if role not in without})


def settings_for(endpoint: str, **changes: Any) -> OpcUaSettings:
    return OpcUaSettings(
        **{
            "endpoint": endpoint,
            "server_uri": SERVER_URI,
            "security": Security(insecure_no_encryption=INSECURE_WORD),
            "period_s": 0.2,
            "subscribe": False,
            "request_timeout_s": 1.0,
            "keep_alive_s": 0.3,
            **changes,
        }
    )


class Driver:
    """A link and what a test wants from it."""

    def __init__(self, settings: OpcUaSettings, tags: TagMap) -> None:
        self.link = OpcUaLink(settings, tags)
        self.seen: list[Any] = []

    def read(self) -> Observation:
        observation = self.link.read(0.0)
        self.seen += observation.faults
        return observation

    def codes(self) -> set[str]:
        return {fault.code for fault in self.read().faults}

    def saw(self, code: str) -> bool:
        self.read()
        return any(fault.code == code for fault in self.seen)

    def fault(self, code: str) -> Any:
        return next(fault for fault in reversed(self.seen) if fault.code == code)

    def forget(self) -> None:
        self.read()
        self.seen.clear()

    def up(self, timeout_s: float = 15.0) -> "Driver":
        try:
            until(lambda: self.read().link is LinkState.UP, timeout_s, "link up")
        except AssertionError as error:
            raise AssertionError(f"{error}: {[fault.text for fault in self.seen[-3:]]}") from None
        return self

    def down(self, timeout_s: float = 15.0) -> float:
        return until(lambda: self.read().link is not LinkState.UP, timeout_s, "link down")

    def sees(self, code: str, timeout_s: float = 10.0) -> Any:
        until(lambda: self.saw(code), timeout_s, f"fault {code}")
        return self.fault(code)

    def clears(self, code: str, timeout_s: float = 10.0) -> None:
        until(lambda: code not in self.codes(), timeout_s, f"{code} gone")

    def write(self, valve: float, pump: float = 0.0, source: Any = 0) -> Any:
        return self.link.write(np.array([valve, pump]), Source(source))


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki"))


class Kit:
    """Everything above, for tests (helpers of a conftest cannot be imported)."""

    PLANT_URI, OTHER_URI, SERVER_URI = PLANT_URI, OTHER_URI, SERVER_URI
    node = staticmethod(node)
    tag = staticmethod(tag)
    tag_map = staticmethod(tag_map)
    full_handshake = staticmethod(full_handshake)
    settings_for = staticmethod(settings_for)
    until = staticmethod(until)
    driver = Driver
    free_port = staticmethod(free_port)

    def __init__(self, base: Base) -> None:
        self._base = base
        self.servers: list[PlantServer] = []
        self.proxies: list[Proxy] = []

    def proxy(self, server: PlantServer) -> Proxy:
        """Start a proxy in front of `server`."""
        self.proxies.append(Proxy(self._base, server.port))
        return self.proxies[-1]

    def server(self, port: int | None = None, **changes: Any) -> PlantServer:
        """Start a server; `before_start` style attributes may be given by name."""
        secure = changes.pop("secure", None)
        namespaces = changes.pop("namespaces", (PLANT_URI,))
        server = PlantServer(self._base, port or free_port(), namespaces, secure)
        for name, value in changes.items():
            assert hasattr(server, name), name
            setattr(server, name, value)
        self.servers.append(server)
        return server.start()


@pytest.fixture(scope="session")
def base() -> Iterator[Base]:
    made = Base()
    yield made
    made.close()


@pytest.fixture(scope="session")
def kit_class() -> type[Kit]:
    """The helpers alone, without a server."""
    return Kit


@pytest.fixture
def opcua(base: Base) -> Iterator[Kit]:
    kit = Kit(base)
    yield kit
    for proxy in kit.proxies:
        proxy.close()
    for server in kit.servers:
        server.stop()


@pytest.fixture
def plant(opcua: Kit) -> PlantServer:
    """An unencrypted server with the test plant."""
    return opcua.server()


@pytest.fixture
def drive(opcua: Kit) -> Iterator[Callable[..., Driver]]:
    """Make and open a link; closed at the end."""
    drivers: list[Driver] = []

    def make(endpoint: str, tags: TagMap | None = None, **changes: Any) -> Driver:
        driver = Driver(settings_for(endpoint, **changes), tags or tag_map())
        drivers.append(driver)
        driver.link.open()
        return driver

    yield make
    for driver in drivers:
        driver.link.close()
