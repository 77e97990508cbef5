"""What certificates and revocation lists say: whose, until when, in which state. Never a key."""

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa

from steadyhand.adapters.opcua import trust_files
from steadyhand.adapters.opcua.trust_files import CERTIFICATES, LISTS, UNPARSABLE
from steadyhand.controllers.errors import ConfigError, FileError

DAY_S = 86_400.0
_NEVER = datetime.max.replace(tzinfo=UTC)
WARN_DAYS = (30, 7, 1)
"""Days before the end at which one is warned."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What one certificate or revocation list says; never anything of a key."""

    file: Path
    kind: str
    """authority, application, or revocation list."""
    subject: str
    uris: tuple[str, ...]
    hosts: tuple[str, ...]
    sha256: str
    not_before: datetime
    not_after: datetime
    bits: int = 0
    """Of an RSA key; 0: another kind, or a list."""
    revoked: int = 0
    """Entries of a revocation list."""
    fault: str = ""
    """Why nothing else is known of it; empty: it could be read."""

    def state(self, now: datetime) -> str:
        """In words: good, or how long there is left, or what is wrong with its dates."""
        if self.fault:
            return f"unreadable: {self.fault}"
        return state_of(self.not_before.timestamp(), self.not_after.timestamp(), now.timestamp())


def state_of(not_before_s: float, not_after_s: float, now_s: float) -> str:
    """What the dates mean now. All times are wall seconds since 1970."""
    if now_s < not_before_s:
        return "not valid yet"
    left_s = not_after_s - now_s
    if left_s <= 0.0:
        return "EXPIRED"
    if left_s < DAY_S * WARN_DAYS[0]:
        days = left_s / DAY_S
        return f"expires in {days:.0f} days" if days >= 2.0 else f"expires in {24 * days:.0f} h"
    return "good"


def read_certificates(path: Path) -> list[x509.Certificate]:
    """Certificates of a DER or PEM file, at least one.

    Raises:
        FileNotFoundError: it is not there.
        FileError: it cannot be read or holds none.
    """
    path.stat()
    try:
        return trust_files.read_certificates(path)
    except ConfigError as error:
        raise FileError(str(error)) from None


def facts(path: Path) -> list[Facts]:
    """What a certificate file or a revocation list says; of a folder, what each file in it says.

    In a folder a file that cannot be read is one entry with a `fault`: it never hides the others.

    Raises:
        FileError: a file cannot be read or is neither.
    """
    if path.is_dir():
        counted = CERTIFICATES | LISTS
        files = sorted(p for p in path.rglob("*") if p.suffix in counted and "_key" not in p.stem)
        return [fact for file in files for fact in _facts_or_fault(file)]
    try:
        return [_certificate_facts(path, found) for found in read_certificates(path)]
    except FileNotFoundError:
        raise FileError(f"{path}: is not there; name a certificate, a list or a folder") from None
    except FileError as error:
        found = _list_facts(path)
        if found is None:
            raise error from None
        return [found]


def _facts_or_fault(file: Path) -> list[Facts]:
    try:
        return facts(file)
    except FileError as error:
        why = str(error).removeprefix(f"{file}: ")
        return [Facts(file, "", "", (), (), "", _NEVER, _NEVER, fault=why)]


def _certificate_facts(path: Path, found: x509.Certificate) -> Facts:
    try:
        return _said(path, found)
    except UNPARSABLE as error:
        raise FileError(f"{path}: is a malformed certificate ({error})") from None


def _said(path: Path, found: x509.Certificate) -> Facts:
    extensions = found.extensions
    names: Any = ()
    authority = False
    with suppress(x509.ExtensionNotFound):
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    with suppress(x509.ExtensionNotFound):
        authority = extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    kinds = (x509.DNSName, x509.IPAddress)
    key = found.public_key()
    return Facts(
        path,
        "authority" if authority else "application",
        found.subject.rfc4514_string(),
        tuple(n.value for n in names if isinstance(n, x509.UniformResourceIdentifier)),
        tuple(str(n.value) for n in names if isinstance(n, kinds)),
        fingerprint(found),
        found.not_valid_before_utc,
        found.not_valid_after_utc,
        key.key_size if isinstance(key, rsa.RSAPublicKey) else 0,
    )


def _list_facts(path: Path) -> Facts | None:
    try:
        return _list_said(path, trust_files.read_list(path))
    except (ConfigError, *UNPARSABLE):
        return None


def _list_said(path: Path, found: x509.CertificateRevocationList) -> Facts:
    return Facts(
        path,
        "revocation list",
        found.issuer.rfc4514_string(),
        (),
        (),
        found.fingerprint(hashes.SHA256()).hex(),
        found.last_update_utc,
        found.next_update_utc or _NEVER,
        revoked=len(list(found)),
    )


def fingerprint(certificate: x509.Certificate) -> str:
    """SHA-256, 64 small hex digits."""
    return certificate.fingerprint(hashes.SHA256()).hex()
