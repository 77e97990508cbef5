"""Throw-away certificates for a simulated plant: server, one client, one user, and a password.

Everything lies in one private directory and is kept when it is there already, so that a restarted
plant is recognised again:

    server_cert.der server_key.pem     the plant; clients trust `server_cert.der`
    client_cert.der client_key.pem     the one client application the plant trusts
    user_cert.der   user_key.pem       a user who logs in by certificate
    password                           of the user `controller`, one line
    trusted_clients/*.der              client applications the plant lets in
    trusted_servers/*.der              servers a client may believe
"""

import fcntl
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

from cryptography.x509.oid import ExtendedKeyUsageOID

from steadyhand.adapters.opcua.application_certificate import (
    VALID_DAYS,
    make_certificate,
    write_private,
)
from steadyhand.controllers.errors import ConfigError

USER_NAME = "controller"


@dataclass(frozen=True, slots=True)
class Pki:
    """Where the credentials of one simulated plant lie."""

    directory: Path
    server_uri: str
    client_uri: str

    @property
    def server_cert(self) -> Path:
        """DER certificate of the plant's server."""
        return self.directory / "server_cert.der"

    @property
    def server_key(self) -> Path:
        """PEM key of the plant's server, mode 0600."""
        return self.directory / "server_key.pem"

    @property
    def client_cert(self) -> Path:
        """DER certificate of the trusted client."""
        return self.directory / "client_cert.der"

    @property
    def client_key(self) -> Path:
        """PEM key of the trusted client, mode 0600."""
        return self.directory / "client_key.pem"

    @property
    def user_cert(self) -> Path:
        """DER certificate of the user who logs in by certificate."""
        return self.directory / "user_cert.der"

    @property
    def user_key(self) -> Path:
        """PEM key of that user, mode 0600."""
        return self.directory / "user_key.pem"

    @property
    def password_file(self) -> Path:
        """Password of the user `controller`, mode 0600."""
        return self.directory / "password"

    @property
    def password(self) -> str:
        """The password itself."""
        return self.password_file.read_text(encoding="ascii").strip()

    @property
    def trusted_clients(self) -> Path:
        """Directory with the client certificates that the plant lets in."""
        return self.directory / "trusted_clients"

    @property
    def trusted_servers(self) -> Path:
        """Directory with the server certificates that a client may believe."""
        return self.directory / "trusted_servers"


def server_uri(plant: str) -> str:
    """Application URI of the simulated plant's server."""
    return f"urn:steadyhand:plant-server:{plant}"


def make_pki(directory: Path, plant: str, host: str = "127.0.0.1", days: float = VALID_DAYS) -> Pki:
    """Make what is missing in `directory` and trust each side's certificate on the other.

    Several processes may do so at once: one makes, the others find it made.

    Raises:
        ConfigError: the directory cannot be made or is open to others.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if directory.stat().st_mode & 0o077:
        raise ConfigError(f"{directory} holds private keys: chmod 700 it")
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _make_missing(directory, plant, host, days)


def _make_missing(directory: Path, plant: str, host: str, days: float) -> Pki:
    pki = Pki(directory, server_uri(plant), f"urn:steadyhand:client:{plant}")
    pki.trusted_clients.mkdir(exist_ok=True)
    pki.trusted_servers.mkdir(exist_ok=True)
    hosts = sorted({"localhost", "127.0.0.1", socket.gethostname(), host})
    server, client = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH
    made = make_certificate(pki.server_cert, pki.server_key, pki.server_uri, hosts, server, days)
    (pki.trusted_servers / f"{plant}.der").write_bytes(made)
    made = make_certificate(pki.client_cert, pki.client_key, pki.client_uri, hosts, client, days)
    (pki.trusted_clients / "client.der").write_bytes(made)
    user_uri = f"urn:steadyhand:user:{USER_NAME}"
    make_certificate(pki.user_cert, pki.user_key, user_uri, [], client, days)
    if not pki.password_file.exists():
        write_private(pki.password_file, secrets.token_urlsafe(24).encode())
    return pki
