"""Is this the right server? Decided before a secure channel is asked for, each refusal with its
own reason. There is no trust on first use.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from asyncua import ua
from asyncua.crypto import security_policies
from cryptography import x509
from cryptography.exceptions import InvalidSignature

from steadyhand.adapters.input_file import read_secret, read_word
from steadyhand.adapters.opcua.settings import Security
from steadyhand.adapters.opcua.trust_files import (
    LISTS,
    UNPARSABLE,
    asked,
    files_of,
    is_signed,
    load_private_key,
    read_certificates,
    read_list,
)
from steadyhand.controllers.errors import ConfigError, LinkError
from steadyhand.controllers.reasons import ReasonCode

_log = logging.getLogger(__name__)

MAX_CHAIN = 5
"""Longest certificate chain that is followed."""


class ServerIdentityError(LinkError):
    """The server that answers is not the one configured, or cannot prove it.

    `code` is its reason code; `certificate` is what it showed, where that is a certificate.
    """

    def __init__(
        self,
        message: str,
        code: ReasonCode = ReasonCode.SERVER_ID,
        certificate: x509.Certificate | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.certificate = certificate


@dataclass(frozen=True, slots=True, eq=False)
class Credentials:
    """Everything read from files, once, when the link opens."""

    certificate: x509.Certificate
    private_key: Any
    application_uri: str
    trusted: tuple[x509.Certificate, ...]
    revoked: frozenset[tuple[x509.Name, int]]
    user: str
    password: str
    overdue: tuple[tuple[x509.Name, datetime], ...] = ()
    """Authorities whose newest list must be newer than now, and until when it counts."""


def load_credentials(security: Security) -> Credentials | None:
    """Read our certificate, key, trust list and password; None for an insecure link.

    Raises:
        LinkError: a file is missing, unreadable, open to other users, or not what it should be.
    """
    if security.insecure:
        return None
    assert security.certificate is not None  # noqa: S101  (Security refuses it at construction)
    assert security.private_key is not None  # noqa: S101
    certificate = _load_certificates(security.certificate)[0]
    password = ""
    try:
        key_bytes = read_secret(security.private_key)
        if security.password_file is not None:
            password = read_word(security.password_file)
    except ConfigError as error:
        raise LinkError(str(error)) from None
    try:
        private_key = load_private_key(key_bytes)
    except (ValueError, TypeError) as error:
        raise LinkError(
            f"private_key {security.private_key}: not an unencrypted PEM or DER key ({error})"
        ) from None
    uris = _alternative_names(certificate, x509.UniformResourceIdentifier)
    if not uris:
        raise LinkError(
            f"certificate {security.certificate}: holds no application URI: "
            "make one with a URI among its subject alternative names"
        )
    trusted = tuple(
        cert for path in files_of(security.trusted) for cert in _load_certificates(path)
    )
    if not trusted:
        folders = ", ".join(map(str, security.trusted))
        raise LinkError(f"trusted {folders}: no certificate in it, so no server is believed")
    lists = [_load_list(path, trusted) for path in files_of(security.revoked, LISTS)]
    revoked = frozenset((one.issuer, entry.serial_number) for one in lists for entry in one)
    return Credentials(
        certificate,
        private_key,
        uris[0],
        trusted,
        revoked,
        security.user,
        password,
        _ends(lists) if security.refuse_overdue else (),
    )


def renewed(security: Security, before: Credentials) -> Credentials:
    """The credentials as the files are now, so that certificates can be renewed, and taken back,
    without a restart; as they were where they cannot be used.
    """
    try:
        return load_credentials(security) or before
    except LinkError as error:
        _log.warning("the changed certificates are not used: %s", error)
        return before


def _load_certificates(path: Path) -> list[x509.Certificate]:
    try:
        return read_certificates(path)
    except ConfigError as error:
        raise LinkError(str(error)) from None


def _load_list(path: Path, trusted: tuple[x509.Certificate, ...]) -> x509.CertificateRevocationList:
    """A list that one of the trusted authorities signed."""
    try:
        crl = read_list(path)
        signed = is_signed(crl, trusted)
        for entry in crl:
            entry.serial_number  # noqa: B018  (read only when it is asked for)
    except ConfigError as error:
        raise LinkError(str(error)) from None
    except UNPARSABLE as error:
        raise LinkError(f"{path}: not a revocation list ({error})") from None
    if not signed:
        raise LinkError(
            f"{path}: the revocation list is not signed by any trusted authority: "
            "add the authority's certificate to trusted, or take the right list"
        )
    return crl


def _ends(
    lists: Iterable[x509.CertificateRevocationList],
) -> tuple[tuple[x509.Name, datetime], ...]:
    """Until when the newest list of each authority counts; one without a date counts for ever."""
    newest: dict[x509.Name, datetime] = {}
    for one in lists:
        end = one.next_update_utc or datetime.max.replace(tzinfo=UTC)
        newest[one.issuer] = max(end, newest.get(one.issuer, end))
    return tuple(newest.items())


def _alternative_names(certificate: x509.Certificate, kind: Any) -> list[Any]:  # noqa: ANN401
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (x509.ExtensionNotFound, *UNPARSABLE):
        return []
    return list(names.value.get_values_for_type(kind))


def choose_endpoint(
    endpoints: Iterable[Any], policy: str, server_uri: str, *, insecure: bool
) -> Any:  # noqa: ANN401
    """The one endpoint with our policy and our mode; never the next best.

    Raises:
        ServerIdentityError: another application URI, or no endpoint as secure as configured.
    """
    wanted = getattr(security_policies, "SecurityPolicy" + ("None" if insecure else policy)).URI
    mode = ua.MessageSecurityMode.None_ if insecure else ua.MessageSecurityMode.SignAndEncrypt
    offered = list(endpoints)
    uris = {endpoint.Server.ApplicationUri for endpoint in offered}
    if uris != {server_uri}:
        raise ServerIdentityError(
            f"the server calls itself {', '.join(sorted(map(repr, uris))) or 'nothing'}, "
            f"configured is {server_uri!r}: wrong server, or correct server_uri"
        )
    for endpoint in offered:
        if endpoint.SecurityPolicyUri == wanted and endpoint.SecurityMode == mode:
            return endpoint
    modes = sorted(
        {f"{e.SecurityPolicyUri.rpartition('#')[2]}/{e.SecurityMode.name}" for e in offered}
    )
    raise ServerIdentityError(
        f"the server does not offer {wanted.rpartition('#')[2]}/{mode.name}, "
        f"only {', '.join(modes)}: not connecting less securely than configured"
    )


def split_chain(der: bytes | None) -> list[x509.Certificate]:
    """Certificates of a concatenated DER blob, the server's own first.

    Raises:
        ServerIdentityError: the blob is empty or malformed.
    """
    chain: list[x509.Certificate] = []
    rest = der or b""
    while rest and len(chain) < MAX_CHAIN:
        head = 2 + (rest[1] & 0x7F if len(rest) > 1 and rest[1] & 0x80 else 0)
        body = int.from_bytes(rest[2:head], "big") if head > 2 else rest[1] if len(rest) > 1 else 0
        try:
            chain.append(asked(x509.load_der_x509_certificate(rest[: head + body])))
        except UNPARSABLE as error:
            raise ServerIdentityError(f"the server's certificate is malformed ({error})") from None
        rest = rest[head + body :]
    if not chain:
        raise ServerIdentityError("the server shows no certificate")
    return chain


def check_server(
    chain: list[x509.Certificate],
    credentials: Credentials,
    server_uri: str,
    host: str | None,
    now: datetime | None = None,
) -> x509.Certificate:
    """Check the certificate a server shows; returns it.

    Args:
        chain: the server's certificate and what it sent along.
        credentials: whom we trust.
        server_uri: the application URI that must stand in the certificate.
        host: the host name or address that must stand in it; None: not checked.
        now: time of the check (tests); the present by default.

    Raises:
        ServerIdentityError: validity, URI, host, key usage, trust or revocation; the message says
            which.
    """
    certificate = chain[0]
    _check_validity(certificate, now or datetime.now(UTC), "server certificate")
    uris = _alternative_names(certificate, x509.UniformResourceIdentifier)
    if server_uri not in uris:
        raise ServerIdentityError(f"server certificate is for {uris}, configured is {server_uri!r}")
    if host is not None and not _covers_host(certificate, host):
        raise ServerIdentityError(
            f"server certificate does not name host {host!r}: "
            "connect by a name it holds, renew it, or set check_host: false"
        )
    _check_usage(certificate)
    _check_trust(chain, credentials, now or datetime.now(UTC))
    return certificate


def _check_validity(certificate: x509.Certificate, now: datetime, what: str) -> None:
    if now < certificate.not_valid_before_utc:
        raise ServerIdentityError(
            f"{what} is not valid before {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC: "
            "check both clocks"
        )
    if now > certificate.not_valid_after_utc:
        raise ServerIdentityError(
            f"{what} expired on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC: renew it",
            ReasonCode.CERT_EXPIRED,
        )


def _covers_host(certificate: x509.Certificate, host: str) -> bool:
    try:
        return ip_address(host) in _alternative_names(certificate, x509.IPAddress)
    except ValueError:
        names = _alternative_names(certificate, x509.DNSName)
        return host.casefold() in {name.casefold() for name in names}


def _check_usage(certificate: x509.Certificate) -> None:
    try:
        usage = certificate.extensions.get_extension_for_class(x509.KeyUsage).value
    except x509.ExtensionNotFound:
        return
    except UNPARSABLE as error:
        raise ServerIdentityError(f"the server's certificate is malformed ({error})") from None
    if not (usage.digital_signature and (usage.key_encipherment or usage.data_encipherment)):
        raise ServerIdentityError(
            "server certificate may not sign and encrypt (key usage): not an OPC UA server's"
        )


def _check_trust(chain: list[x509.Certificate], credentials: Credentials, now: datetime) -> None:
    """Walk from the server's certificate to one in the trust list."""
    current = chain[0]
    pool = [*credentials.trusted, *chain[1:]]
    for _ in range(MAX_CHAIN):
        if (current.issuer, current.serial_number) in credentials.revoked:
            raise ServerIdentityError(f"certificate {current.serial_number:x} is revoked")
        _check_list(current.issuer, credentials, now)
        if current in credentials.trusted:
            return
        issuer = next((ca for ca in pool if _issued(ca, current)), None)
        if issuer is None or issuer == current:
            break
        _check_validity(issuer, now, "CA certificate")
        current = issuer
    raise ServerIdentityError(
        f"server certificate (SHA-256 {fingerprint(chain[0])}) is not in the trust list and no "
        "trusted authority signed it: compare the fingerprint on site, then add it to trusted",
        certificate=chain[0],
    )


def _check_list(issuer: x509.Name, credentials: Credentials, now: datetime) -> None:
    """A list that is overdue may have forgotten whom the authority took back since."""
    for name, end in credentials.overdue:
        if name == issuer and now > end:
            raise ServerIdentityError(
                f"the revocation list of {issuer.rfc4514_string()} is overdue since "
                f"{end:%Y-%m-%d %H:%M} UTC: bring the authority's new one, or set "
                "overdue_list: warn",
                ReasonCode.CERT_EXPIRED,
            )


def _issued(authority: x509.Certificate, certificate: x509.Certificate) -> bool:
    if authority.subject != certificate.issuer:
        return False
    try:
        constraints = authority.extensions.get_extension_for_class(x509.BasicConstraints).value
        certificate.verify_directly_issued_by(authority)
    except (x509.ExtensionNotFound, InvalidSignature, *UNPARSABLE):
        return False
    return constraints.ca


def fingerprint(certificate: x509.Certificate) -> str:
    """SHA-256 of the certificate, as people compare it."""
    from cryptography.hazmat.primitives.hashes import SHA256

    return certificate.fingerprint(SHA256()).hex(":")
