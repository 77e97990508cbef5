"""Files and folders of trust: what is named may be one certificate or list, or a folder of them.

Whatever holds a certificate, a list or a key may be PEM or DER.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from steadyhand.adapters.input_file import read_input
from steadyhand.controllers.errors import ConfigError, LinkError

CERTIFICATES = frozenset({".der", ".crt", ".cer", ".pem"})
LISTS = frozenset({".crl"})
"""How the files end that count in a folder; a file named by itself may end as it likes."""


UNPARSABLE = (
    ValueError,
    TypeError,
    OverflowError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)
"""What comes of a stranger's certificate or list, at reading it or at any question to it."""


def asked(certificate: x509.Certificate) -> x509.Certificate:
    """The certificate, after every question whose answer is read only when it is asked for.

    Raises:
        one of UNPARSABLE: it has no answer to one of them.
    """
    certificate.subject, certificate.issuer, certificate.extensions  # noqa: B018
    return certificate


def read_certificates(path: Path) -> list[x509.Certificate]:
    """Certificates of a PEM or DER file, at least one.

    Raises:
        ConfigError: it cannot be read, or holds something else; the message begins with the path.
    """
    raw = read_input(path)
    try:
        if b"-----BEGIN" in raw:
            return [asked(found) for found in x509.load_pem_x509_certificates(raw)]
        return [asked(x509.load_der_x509_certificate(raw))]
    except UNPARSABLE:
        raise ConfigError(f"{path}: is no X.509 certificate in DER or PEM form") from None


def read_list(path: Path) -> x509.CertificateRevocationList:
    """A certificate revocation list, PEM or DER.

    Raises:
        ConfigError: it cannot be read, or holds something else; the message begins with the path.
    """
    raw = read_input(path)
    try:
        load = x509.load_pem_x509_crl if b"-----BEGIN" in raw else x509.load_der_x509_crl
        return load(raw)
    except UNPARSABLE:
        raise ConfigError(f"{path}: is no revocation list in DER or PEM form") from None


def load_private_key(content: bytes) -> Any:  # noqa: ANN401  (any kind of key)
    """A private key in either form, PEM or DER.

    Raises:
        ValueError, TypeError, UnsupportedAlgorithm: it is none that is not encrypted.
    """
    if b"-----BEGIN" in content:
        return serialization.load_pem_private_key(content, password=None)
    return serialization.load_der_private_key(content, password=None)


def files_of(paths: Iterable[Path], endings: frozenset[str] = CERTIFICATES) -> list[Path]:
    """Files, and in place of each folder those of its files that count.

    Raises:
        LinkError: a folder cannot be read.
    """
    found: list[Path] = []
    for path in paths:
        try:
            inside = sorted(path.iterdir()) if path.is_dir() else [path]
        except OSError as error:
            raise LinkError(f"{path}: cannot be read: {error.strerror}") from None
        found += [file for file in inside if file == path or file.suffix in endings]
    return found


def is_signed(crl: x509.CertificateRevocationList, authorities: Iterable[x509.Certificate]) -> bool:
    """Did one of the authorities sign this list? Whoever else did revokes nothing."""
    return any(ca.subject == crl.issuer and _signed_by(ca, crl) for ca in authorities)


def _signed_by(authority: x509.Certificate, crl: x509.CertificateRevocationList) -> bool:
    try:
        return bool(crl.is_signature_valid(authority.public_key()))  # type: ignore[arg-type]
    except UNPARSABLE:
        return False
