"""A small site authority and application certificates for OPC UA.

    FOLDER/ca_cert.der  ca_key.pem  ca.crl         the authority and what it has taken back
    FOLDER/NAME_cert.der  NAME_key.pem             one application, by NAME
    FOLDER/trusted_servers/  trusted_clients/      whom the two sides let in

Certificates follow OPC 10000-6, 6.2.2: the application URI among the alternative names, key usage
for signing and encrypting, RSA of at least 2048 bits, SHA-256. Keys are files of mode 0600 that are
never shown; nothing that is there is overwritten unless that is asked for.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from steadyhand.adapters.input_file import read_secret
from steadyhand.adapters.opcua.trust_files import read_list
from steadyhand.controllers.errors import ConfigError, FileError
from steadyhand.runtime.bundle.files import replace
from steadyhand.runtime.certificates import DAY_S, fingerprint, read_certificates

BITS = (2048, 3072, 4096)
"""Sizes of RSA keys that the accepted security policies allow."""
USES = {"client": ExtendedKeyUsageOID.CLIENT_AUTH, "server": ExtendedKeyUsageOID.SERVER_AUTH}
_BACKDATED = timedelta(hours=1)
"""Clocks on a plant differ: a certificate made now is valid everywhere now."""


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate and its key, as written."""

    certificate: Path
    private_key: Path
    sha256: str


def make_authority(
    folder: Path, name: str, days: float = 3650.0, bits: int = 3072, force: bool = False
) -> Issued:
    """The site's own authority, with an empty revocation list and the folders of trust.

    Raises:
        ConfigError: the folder is open to others, or the numbers are beyond sense.
        FileError: an authority is there already and `force` is not given.
        OSError: the files cannot be written.
    """
    _private_folder(folder)
    made = Issued(folder / "ca_cert.der", folder / "ca_key.pem", "")
    _must_be_free((made.certificate, made.private_key), force)
    key = _generate(bits)
    subject = _subject(name)
    builder = _begin(subject, subject, key, days)
    usage = _usage(digital_signature=True, key_cert_sign=True, crl_sign=True)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(usage, critical=True)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    certificate = builder.add_extension(identifier, critical=False).sign(key, hashes.SHA256())
    _write_pair(made, certificate, key)
    _write_list(folder, certificate, key, ())
    for trust in ("trusted_servers", "trusted_clients"):
        (folder / trust).mkdir(mode=0o700, exist_ok=True)
    return Issued(made.certificate, made.private_key, fingerprint(certificate))


def issue(
    folder: Path,
    name: str,
    uri: str,
    hosts: Sequence[str] = (),
    uses: Iterable[str] = ("client",),
    days: float = 825.0,
    bits: int = 2048,
    self_signed: bool = False,
    force: bool = False,
) -> Issued:
    """A certificate for one application, signed by the folder's authority or by itself.

    Args:
        folder: of the authority; made when the certificate signs itself.
        name: of the two files.
        uri: application URI; a client and a server are known to each other by it.
        hosts: names and addresses under which a server answers.
        uses: "client", "server" or both.
        days: how long it is valid.
        bits: of the RSA key.
        self_signed: no authority is needed.
        force: replace what is there.

    Raises:
        ConfigError: name, URI, host or number that cannot be used; no authority.
        FileError: the certificate is there already and `force` is not given.
        OSError: the files cannot be read or written.
    """
    if not name.replace("-", "").replace("_", "").isalnum() or not name.isascii() or name == "ca":
        raise ConfigError(f"name {name!r}: letters, digits, - and _ only, and not 'ca'")
    if ":" not in uri or not uri.isascii() or not uri.isprintable() or " " in uri:
        raise ConfigError(f"uri {uri!r}: write a URI such as urn:HOST:steadyhand:PLANT")
    wanted = tuple(uses)
    if not wanted or any(use not in USES for use in wanted):
        raise ConfigError(f"use {', '.join(wanted) or 'nothing'}: one or both of {', '.join(USES)}")
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri)]
    names += [_host(host) for host in dict.fromkeys(hosts)]
    _private_folder(folder)
    made = Issued(folder / f"{name}_cert.der", folder / f"{name}_key.pem", "")
    _must_be_free((made.certificate, made.private_key), force)
    key = _generate(bits)
    subject = _subject(name)
    authority, signer = (None, key) if self_signed else read_authority(folder)
    if authority is not None:
        left_s = authority.not_valid_after_utc.timestamp() - datetime.now(UTC).timestamp()
        if days * DAY_S > left_s:
            raise ConfigError(
                f"days={days:g}: the authority itself ends in {max(0.0, left_s) / DAY_S:.0f} days; "
                "ask for less, or make a new authority"
            )
    issuer = subject if authority is None else authority.subject
    # a certificate that signs itself says so: some servers take it for its own authority
    usage = _usage(
        digital_signature=True,
        content_commitment=True,
        key_encipherment=True,
        data_encipherment=True,
        key_cert_sign=authority is None,
    )
    builder = _begin(subject, issuer, key, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
    builder = builder.add_extension(usage, critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([USES[use] for use in wanted]), False)
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = builder.add_extension(identifier, critical=False)
    above = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    certificate = builder.add_extension(above, critical=False).sign(signer, hashes.SHA256())
    _write_pair(made, certificate, key)
    return Issued(made.certificate, made.private_key, fingerprint(certificate))


def revoke(folder: Path, certificates: Sequence[Path] = (), days: float = 365.0) -> Path:
    """Take certificates back, for ever; without any, the list is only signed anew.

    Returns:
        the revocation list, to be copied to whoever trusts the authority.

    Raises:
        ConfigError: no authority, or a certificate that it did not sign.
        FileError: a certificate cannot be read.
        OSError: the list cannot be written.
    """
    authority, key = read_authority(folder)
    kept = list(_read_list(folder))
    known = {entry.serial_number for entry in kept}
    for path in certificates:
        certificate = read_certificates(path)[0]
        try:
            certificate.verify_directly_issued_by(authority)
        except Exception:  # noqa: BLE001  (whatever the reason: it is not ours)
            raise ConfigError(f"{path}: was not signed by {folder / 'ca_cert.der'}") from None
        if certificate.serial_number in known:
            continue
        entry = x509.RevokedCertificateBuilder().serial_number(certificate.serial_number)
        kept.append(entry.revocation_date(datetime.now(UTC)).build())
    return _write_list(folder, authority, key, kept, days)


def read_authority(folder: Path) -> tuple[x509.Certificate, rsa.RSAPrivateKey]:
    """The authority's certificate and its key.

    Raises:
        ConfigError: there is none, its key is open to others, or they do not belong together.
    """
    key_file = folder / "ca_key.pem"
    try:
        key_file.stat()
        key = serialization.load_pem_private_key(read_secret(key_file), None)
        certificate = read_certificates(folder / "ca_cert.der")[0]
    except (FileNotFoundError, NotADirectoryError, FileError):
        raise ConfigError(
            f"{folder}: holds no authority; make one with `steadyhand pki init {folder}`, or use "
            "--self-signed"
        ) from None
    except (ValueError, TypeError):
        raise ConfigError(f"{key_file}: is no unencrypted private key in PEM form") from None
    if not isinstance(key, rsa.RSAPrivateKey) or key.public_key() != certificate.public_key():
        raise ConfigError(f"{key_file}: is not the key of {folder / 'ca_cert.der'}")
    return certificate, key


def _generate(bits: int) -> rsa.RSAPrivateKey:
    if bits not in BITS:
        raise ConfigError(f"bits={bits}: one of {', '.join(map(str, BITS))}")
    return rsa.generate_private_key(65537, bits)


def _subject(name: str) -> x509.Name:
    if not 0 < len(name) <= 64 or not name.isprintable():
        raise ConfigError(f"name {name[:80]!r}: printable, 1 to 64 characters")
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "steadyhand"),
            x509.NameAttribute(NameOID.COMMON_NAME, name),
        ]
    )


def _begin(
    subject: x509.Name, issuer: x509.Name, key: rsa.RSAPrivateKey, days: float
) -> x509.CertificateBuilder:
    if not 0.0 < days <= 36_500.0:
        raise ConfigError(f"days={days:g}: must be within (0, 36500]")
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + timedelta(days=days))
    )


def _usage(**allowed: bool) -> x509.KeyUsage:
    every: dict[str, bool] = dict.fromkeys(
        (
            "digital_signature",
            "content_commitment",
            "key_encipherment",
            "data_encipherment",
            "key_agreement",
            "key_cert_sign",
            "crl_sign",
            "encipher_only",
            "decipher_only",
        ),
        False,
    )
    return x509.KeyUsage(**(every | allowed))


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(text))
    except ValueError:
        pass  # a name, then
    if not text or len(text) > 253 or not text.replace("-", "").replace(".", "").isalnum():
        raise ConfigError(f"host {text!r}: a name or an address is needed")
    try:
        return x509.DNSName(text)
    except ValueError:
        raise ConfigError(f"host {text!r}: a name in ASCII is needed") from None


def _private_folder(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_mode & 0o022:
        raise ConfigError(f"{folder}: others may write there; chmod 700 it")


def _must_be_free(files: Sequence[Path], force: bool) -> None:
    for file in files:
        if os.path.lexists(file) and not force:
            raise FileError(f"{file}: is there already; --force replaces it for good")


def _write_pair(made: Issued, certificate: x509.Certificate, key: rsa.RSAPrivateKey) -> None:
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    replace(made.private_key, pem, mode=0o600)
    replace(made.certificate, certificate.public_bytes(serialization.Encoding.DER), mode=0o644)


def _read_list(folder: Path) -> x509.CertificateRevocationList | tuple[()]:
    file = folder / "ca.crl"
    try:
        return read_list(file) if file.exists() else ()
    except ConfigError:
        raise ConfigError(
            f"{file}: is no revocation list; put the last good copy back, or what was revoked "
            "would be trusted again"
        ) from None


def _write_list(
    folder: Path,
    authority: x509.Certificate,
    key: rsa.RSAPrivateKey,
    entries: Iterable[x509.RevokedCertificate],
    days: float = 365.0,
) -> Path:
    if not 0.0 < days <= 3650.0:
        raise ConfigError(f"days={days:g}: must be within (0, 3650]")
    now = datetime.now(UTC)
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(authority.subject)
        .last_update(now - _BACKDATED)
        .next_update(now + timedelta(days=days))
    )
    for entry in entries:
        builder = builder.add_revoked_certificate(entry)
    made = builder.sign(key, hashes.SHA256())
    file = folder / "ca.crl"
    replace(file, made.public_bytes(serialization.Encoding.DER), mode=0o644)
    return file
