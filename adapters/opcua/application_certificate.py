"""Self-signed application certificates (OPC 10000-6, 6.2.2) and private files."""

import os
from ipaddress import ip_address
from pathlib import Path

from asyncua.crypto.cert_gen import (
    dump_private_key_as_pem,
    generate_private_key,
    generate_self_signed_app_certificate,
)
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

VALID_DAYS = 90.0


def make_certificate(
    cert: Path,
    key: Path,
    uri: str,
    hosts: list[str],
    use: x509.ObjectIdentifier,
    days: float = VALID_DAYS,
) -> bytes:
    """Self-signed application certificate and its key, kept when both are there; returns DER.

    Args:
        cert: DER file.
        key: PEM file, made with mode 0600.
        uri: application URI, first of the subject's alternative names.
        hosts: names and addresses the application answers under.
        use: extended key usage: client or server.
        days: how long it is valid from now.
    """
    if cert.exists() and key.exists():
        return cert.read_bytes()
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri)]
    for host in hosts:
        try:
            names.append(x509.IPAddress(ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    private = generate_private_key()
    subject = {"organizationName": "steadyhand"}
    made = generate_self_signed_app_certificate(private, uri[:64], subject, names, [use], days=days)
    der: bytes = made.public_bytes(Encoding.DER)
    write_private(key, dump_private_key_as_pem(private))
    cert.write_bytes(der)
    return der


def write_private(path: Path, content: bytes) -> None:
    """Write a file that nobody else ever could read."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
