"""Certificates as no tool makes them, but as anybody may show them: each breaks one question."""

from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

_NAMES = bytes.fromhex("551d11")
_ISSUERS_NAMES = bytes.fromhex("551d12")
_CURVE = bytes.fromhex("06082a8648ce3d030107")
_CHANGES = {
    "duplicate extension": (_ISSUERS_NAMES, _NAMES),
    "unknown version": (bytes.fromhex("a003020102"), bytes.fromhex("a003020105")),
    "unknown kind of name": (b"\x82\x05plant", b"\xa3\x05plant"),
    "unknown curve": (_CURVE, _CURVE[:-1] + b"\x6f"),
    "year of letters": (b"\x17\x0d", b"\x17\x0cX"),
    "no text in a name": (b"\x0c\x08stranger", b"\x0c\x08\xff\xfe\xfd\xfcnger"),
}
ODD = tuple(_CHANGES)
SOUND = "sound"


def odd_certificate(kind: str) -> bytes:
    """DER of a certificate that is odd in one way; its signature fits no more."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "stranger")])
    now = datetime.now(UTC)
    names = [x509.DNSName("plant"), x509.UniformResourceIdentifier("urn:stranger")]
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.IssuerAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
        .public_bytes(Encoding.DER)
    )
    if kind == SOUND:
        return made
    before, after = _CHANGES[kind]
    changed = made.replace(before, after)
    assert changed != made, kind
    return changed
