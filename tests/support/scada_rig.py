"""Certificates, users and a client for the runtime's own OPC UA server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncua import Client, ua
from asyncua.crypto.security_policies import SecurityPolicyBasic256Sha256
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from steadyhand.adapters.opcua.application_certificate import make_certificate
from steadyhand.runtime.operator_protocol import Role
from steadyhand.runtime.scada.people import (
    Person,
    certificate_proof,
    password_proof,
    read_people,
    write_people,
)

LOOP_URI = "urn:steadyhand:loop:north-building"
ROLES = {"vic": Role.VIEW, "ann": Role.OPERATE, "eng": Role.ENGINEER}
CLIENT = ExtendedKeyUsageOID.CLIENT_AUTH


def password_of(name: str) -> str:
    """Everybody's password in these tests."""
    return f"password of {name}"


@dataclass
class ScadaFiles:
    """Everything a `scada` section points to, and clients of every kind."""

    folder: Path

    def __post_init__(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.trusted = self.folder / "trusted"
        self.trusted.mkdir(exist_ok=True)
        use = ExtendedKeyUsageOID.SERVER_AUTH
        self.server = self.folder / "server.der"
        uri = "urn:test:steadyhand:server"
        hosts = ["127.0.0.1", "localhost"]
        make_certificate(self.server, self.folder / "server_key.pem", uri, hosts, use)
        for name, days in (("client", 365.0), ("stranger", 365.0), ("expired", 1e-7)):
            cert = self.folder / f"{name}.der"
            der = make_certificate(
                cert, self.folder / f"{name}_key.pem", f"urn:test:{name}", hosts, CLIENT, days
            )
            if name != "stranger":
                (self.trusted / f"{name}.der").write_bytes(der)
        der = make_certificate(
            self.folder / "person.der", self.folder / "person_key.pem", "urn:test:cat", [], CLIENT
        )
        people = {name: Person(name, role, password_proof(password_of(name)))
                  for name, role in ROLES.items()}  # fmt: skip
        people["cat"] = Person("cat", Role.OPERATE, certificate_proof(der))
        self.users = self.folder / "users"
        write_people(self.users, people)

    def section(self, listen: str = "127.0.0.1:0") -> str:
        """The configuration's section, for a configuration beside our folder."""
        name = self.folder.name
        return (
            f"scada:\n  listen: {listen}\n  certificate: {name}/server.der\n"
            f"  private_key: {name}/server_key.pem\n  trusted: {name}/trusted\n"
            f"  users_file: {name}/users\n\n"
        )

    def pem(self, name: str) -> Path:
        """A certificate in PEM form, for clients that want it so."""
        path = self.folder / f"{name}.pem"
        found = x509.load_der_x509_certificate((self.folder / f"{name}.der").read_bytes())
        path.write_bytes(found.public_bytes(Encoding.PEM))
        return path

    def change_role(self, name: str, role: Role | None) -> None:
        """Rewrite the users' file; None: take them out."""
        people = read_people(self.users)
        if role is None:
            del people[name]
        else:
            people[name] = Person(name, role, people[name].proof)
        write_people(self.users, people)


class Scada:
    """An asyncua client at the runtime's server."""

    def __init__(self, client: Client, index: int) -> None:
        self.client, self.index = client, index

    def id(self, path: str) -> ua.NodeId:
        """Node id of a path below the loop."""
        return ua.NodeId(path, self.index)

    async def value(self, path: str) -> Any:
        """A value; raises where it is bad."""
        return await self.client.get_node(self.id(path)).read_value()

    async def data(self, path: str) -> ua.DataValue:
        """Value, status and stamps."""
        return await self.client.get_node(self.id(path)).read_data_value(raise_on_bad_status=False)

    async def until(self, path: str, wanted: Any, patience_s: float = 20.0) -> None:
        """Wait for a value."""
        async with asyncio.timeout(patience_s):
            while (await self.data(path)).Value.Value != wanted:
                await asyncio.sleep(0.05)

    async def call(self, path: str, *arguments: Any) -> tuple[str, str, str]:
        """Call a method; name of the StatusCode, and the two outputs."""
        (result,) = await self.call_raw((path, arguments))
        outputs = [one.Value for one in result.OutputArguments]
        return result.StatusCode.name, outputs[0], outputs[1]

    async def call_raw(self, *calls: tuple[str, Any]) -> list[ua.CallMethodResult]:
        """Call methods as they come."""
        requests = []
        for path, arguments in calls:
            request = ua.CallMethodRequest()
            request.ObjectId = self.id(path.rpartition(".")[0] or "Loop")
            request.MethodId = self.id(path)
            request.InputArguments = [
                one if isinstance(one, ua.Variant) else ua.Variant(one) for one in arguments
            ]
            requests.append(request)
        return await self.client.uaclient.call(requests)


async def make_client(
    url: str, files: ScadaFiles, user: str = "ann", cert: str = "client", password: str = ""
) -> Client:
    """A client that is not connected yet."""
    client = Client(url, timeout=10)
    client.application_uri = f"urn:test:{cert}"
    client.session_timeout = 60_000
    await client.set_security(
        SecurityPolicyBasic256Sha256,
        str(files.folder / f"{cert}.der"),
        str(files.folder / f"{cert}_key.pem"),
        mode=ua.MessageSecurityMode.SignAndEncrypt,
    )
    if user:
        client.set_user(user)
        client.set_password(password or password_of(user))
    return client


@asynccontextmanager
async def scada(
    url: str, files: ScadaFiles, user: str = "ann", **kinds: str
) -> AsyncIterator[Scada]:
    """A client that is logged in."""
    client = await make_client(url, files, user, **kinds)
    async with client:
        yield Scada(client, await client.get_namespace_index(LOOP_URI))
