"""Who may drive which plant: refused before anything is sent, each with its own reason."""

import struct
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from steadyhand.adapters.opcua.link import OpcUaLink
from steadyhand.adapters.opcua.security import (
    ServerIdentityError,
    check_server,
    load_credentials,
    split_chain,
)
from steadyhand.adapters.opcua.settings import INSECURE_WORD, POLICIES, Security
from steadyhand.controllers.errors import ConfigError, LinkError
from steadyhand.controllers.frames import LinkState
from steadyhand.controllers.reasons import ReasonCode

HOST = "127.0.0.1"


@pytest.mark.parametrize("policy", POLICIES)
def test_each_accepted_policy_signs_encrypts_and_works(pki, opcua, drive, policy) -> None:
    server = opcua.server(secure=pki, policies=[policy])
    driver = drive(server.endpoint, security=pki.security(policy=policy)).up()
    driver.write(20.0)
    opcua.until(lambda: server.get("valve") == 20.0)
    assert ReasonCode.LINK_INSECURE not in driver.codes()
    session = driver.link._worker._plant._session
    assert session.protocol._connection.security_policy.URI.endswith(
        policy.replace("Aes256Sha256", "Aes256_Sha256_").replace("Aes128Sha256", "Aes128_Sha256_")
    )
    assert driver.link._worker._plant._read_whole.fast > 0


def test_the_channel_is_renewed_without_losing_a_tick(pki, opcua, drive) -> None:
    """A session outlives its tokens: the cyclic path goes through renewals too."""
    server = opcua.server(secure=pki, policies=["Basic256Sha256"])
    driver = drive(server.endpoint, security=pki.security(), channel_life_s=0.6).up()
    connection = driver.link._worker._plant._session.protocol._connection
    first = connection.security_token.TokenId
    opcua.until(lambda: connection.security_token.TokenId >= first + 4)
    server.set("level", 17.0)
    opcua.until(lambda: driver.read().values[0] == 17.0)
    assert driver.link.connects == 1


def test_a_renewal_that_is_lost_costs_a_moment_and_not_the_link(pki, opcua, drive) -> None:
    """A11: the library gives up after one; the session would then end with its token, unseen."""
    server = opcua.server(secure=pki, policies=["Basic256Sha256"])
    proxy = opcua.proxy(server)
    driver = drive(proxy.endpoint, security=pki.security(), channel_life_s=4.0).up()
    first = driver.link._worker._plant._session.protocol
    proxy.swallow_renewals = 1
    fault = driver.sees(ReasonCode.CHANNEL_RENEW_FAIL, 20.0)
    assert "not renewed" in fault.text
    assert proxy.swallowed == 1
    driver.up()
    assert driver.link.connects == 2, "one new session, and no more"
    second = driver.link._worker._plant._session.protocol
    assert second is not first
    # the new channel is renewed like the first one, and the plant is read and driven
    token = second._connection.security_token.TokenId
    opcua.until(lambda: second._connection.security_token.TokenId > token, 20.0)
    server.set("level", 17.0)
    opcua.until(lambda: driver.read().values[0] == 17.0)
    assert driver.write(21.0).written
    opcua.until(lambda: server.get("valve") == 21.0)
    assert driver.link.connects == 2


def test_an_unencrypted_channel_is_renewed_too(opcua, drive) -> None:
    server = opcua.server()
    driver = drive(server.endpoint, channel_life_s=0.6).up()
    connection = driver.link._worker._plant._session.protocol._connection
    first = connection.security_token.TokenId
    opcua.until(lambda: connection.security_token.TokenId >= first + 4)
    server.set("level", 17.0)
    opcua.until(lambda: driver.read().values[0] == 17.0)
    assert driver.link.connects == 1


def test_the_long_word_opens_the_channel_and_never_stops_alarming(plant, drive) -> None:
    driver = drive(plant.endpoint).up()
    assert ReasonCode.LINK_INSECURE in driver.codes()
    assert ReasonCode.LINK_INSECURE in driver.codes()


def test_a_server_that_offers_only_less_is_refused(pki, opcua, drive) -> None:
    """S7: no downgrade where there is nothing better."""
    server = opcua.server()
    driver = drive(server.endpoint, security=pki.security())
    fault = driver.sees(ReasonCode.SERVER_ID)
    assert "not connecting less securely" in fault.text
    assert driver.read().link is not LinkState.UP


URI = b"http://opcfoundation.org/UA/SecurityPolicy#Basic256Sha256"
LISTED = struct.pack("<II", 3, len(URI)) + URI
"""How the list of endpoints, which goes over the wire in the clear, says sign-and-encrypt."""


@pytest.mark.parametrize(
    ("forged", "words"),
    [
        (struct.pack("<II", 1, len(URI)) + URI, "Basic256Sha256/None_"),
        (struct.pack("<II", 2, len(URI)) + URI, "Basic256Sha256/Sign"),
        (struct.pack("<II", 3, len(URI)) + URI.replace(b"Sha256", b"Sha999"), "Basic256Sha999"),
    ],
    ids=["no security", "no encryption", "another policy"],
)
def test_a_list_of_endpoints_that_was_altered_on_the_way_downgrades_nothing(
    pki, opcua, drive, forged, words
) -> None:
    """S7: the server is sound, and somebody in between makes it look less secure."""
    server = opcua.server(secure=pki, policies=["Basic256Sha256"])
    proxy = opcua.proxy(server)
    altered = []

    def alter(data: bytes) -> bytes:
        altered.append(LISTED in data)
        return data.replace(LISTED, forged)

    proxy.alter = alter
    driver = drive(proxy.endpoint, security=pki.security())
    fault = driver.sees(ReasonCode.SERVER_ID)
    assert any(altered)
    assert "not connecting less securely" in fault.text
    assert words in fault.text
    assert driver.read().link is not LinkState.UP
    assert not driver.write(1.0).written
    assert b"OPN" in bytes(proxy.passed)
    assert URI not in bytes(proxy.passed).split(LISTED)[0], "nothing was asked for under it"
    driver.link.close()
    proxy.alter = bytes  # left alone, it is the same server, and it is connected to
    drive(proxy.endpoint, security=pki.security()).up()


def test_an_unknown_certificate_is_refused_with_its_fingerprint(
    pki, opcua, drive, tmp_path
) -> None:
    other = type(pki)(tmp_path)
    server = opcua.server(secure=pki)
    driver = drive(server.endpoint, security=pki.security(trusted=(other.server_cert,)))
    fault = driver.sees(ReasonCode.SERVER_ID)
    certificate = x509.load_der_x509_certificate(pki.server_cert.read_bytes())
    assert certificate.fingerprint(hashes.SHA256()).hex(":") in fault.text


def test_a_password_is_checked_and_goes_over_an_encrypted_channel(
    pki, opcua, drive, tmp_path
) -> None:
    server = opcua.server(secure=pki, policies=["Basic256Sha256"])
    password = tmp_path / "password"
    password.write_text("right\n")
    password.chmod(0o600)
    with_user = {"user": "operator", "password_file": password, "allow_anonymous": False}
    drive(server.endpoint, security=pki.security(**with_user)).up().link.close()
    password.write_text("wrong\n")
    driver = drive(server.endpoint, security=pki.security(**with_user))
    fault = driver.sees(ReasonCode.LINK_DOWN)
    assert "wrong" not in fault.text.lower().replace("wrong server", "")


# settings


def test_who_listens_on_the_wire_learns_no_secret(pki, opcua, drive, tmp_path) -> None:
    """S9: a whole session through a listening post, log-in, values and commands among it."""
    server = opcua.server(secure=pki, policies=["Basic256Sha256"])
    post = opcua.proxy(server)
    password = tmp_path / "password"
    password.write_text("right\n")
    password.chmod(0o600)
    with_user = {"user": "operator-by-name", "password_file": password, "allow_anonymous": False}
    driver = drive(post.endpoint, security=pki.security(**with_user)).up()
    driver.write(20.0)
    opcua.until(lambda: server.get("valve") == 20.0)
    driver.link.close()
    heard = bytes(post.passed)
    assert len(heard) > 10_000
    assert b"urn:test:server" in heard, "what discovery tells is open to all"
    for secret in (b"right", b"operator-by-name", b"valve", b"level"):
        assert secret not in heard


def test_half_configured_security_is_refused(pki, tmp_path) -> None:
    with pytest.raises(ConfigError, match="needs certificate"):
        Security()
    with pytest.raises(ConfigError, match="does not switch"):
        Security(insecure_no_encryption="yes")
    with pytest.raises(ConfigError, match="never sent over"):
        Security(insecure_no_encryption=INSECURE_WORD, user="me", password_file=tmp_path / "p")
    with pytest.raises(ConfigError, match="belong together"):
        pki.security(user="me")
    with pytest.raises(ConfigError, match="allow_anonymous"):
        pki.security(allow_anonymous=False)
    for deprecated in ("None", "Basic128Rsa15", "Basic256"):
        with pytest.raises(ConfigError, match="not accepted"):
            pki.security(policy=deprecated)


def test_files_that_cannot_be_used_are_named_at_open(pki, opcua, tmp_path) -> None:
    def refuses(match: str, **changes) -> None:
        settings = opcua.settings_for("opc.tcp://127.0.0.1:1/x", security=pki.security(**changes))
        link = OpcUaLink(settings, opcua.tag_map())
        with pytest.raises(LinkError, match=match):
            link.open()

    readable = tmp_path / "key.pem"
    readable.write_bytes(pki.client_key.read_bytes())
    readable.chmod(0o644)
    refuses("mode 0644: others could read it", private_key=readable)
    refuses("cannot be read", private_key=tmp_path / "absent")
    refuses("cannot be read", trusted=(tmp_path / "absent",))
    garbage = tmp_path / "garbage"
    garbage.write_bytes(b"not a certificate")
    garbage.chmod(0o600)
    refuses("is no X.509 certificate in DER or PEM form", trusted=(garbage,))
    refuses("not an unencrypted PEM or DER key", private_key=garbage)
    refuses("is no revocation list", revoked=(garbage,))
    password = tmp_path / "password"
    password.write_text("x")
    password.chmod(0o640)
    refuses("mode 0640", user="me", password_file=password)


# the server's certificate: seven refusals, seven reasons


class Authority:
    """A certificate authority and what it can do to a server."""

    def __init__(self, pki, directory: Path) -> None:
        self.pki = type(pki)(directory)
        self.path, self.key_path = self.pki.make("authority", "urn:test:ca", ca=True)
        self.certificate = x509.load_der_x509_certificate(self.path.read_bytes())
        self.key = serialization.load_pem_private_key(self.key_path.read_bytes(), None)

    def issue(self, name: str, uri: str = "urn:test:server", **options) -> x509.Certificate:
        path, _ = self.pki.make(name, uri, issuer=(self.certificate, self.key), **options)
        return x509.load_der_x509_certificate(path.read_bytes())

    def revoke(
        self, certificate: x509.Certificate, path: Path, life: timedelta = timedelta(days=1)
    ) -> Path:
        now = datetime.now(UTC)
        entry = (
            x509.RevokedCertificateBuilder()
            .serial_number(certificate.serial_number)
            .revocation_date(now)
            .build()
        )
        crl = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.certificate.subject)
            .last_update(now)
            .next_update(now + life)
            .add_revoked_certificate(entry)
            .sign(self.key, hashes.SHA256())
        )
        path.write_bytes(crl.public_bytes(serialization.Encoding.PEM))
        return path


@pytest.fixture(scope="module")
def authority(pki, tmp_path_factory) -> Authority:
    return Authority(pki, tmp_path_factory.mktemp("authority"))


def test_a_certificate_signed_by_a_trusted_authority_is_accepted(pki, authority) -> None:
    credentials = load_credentials(pki.security(trusted=(authority.path,)))
    assert credentials is not None
    certificate = authority.issue("leaf")
    assert check_server([certificate], credentials, "urn:test:server", HOST) == certificate


def test_a_chain_of_two_is_followed(pki, authority, tmp_path) -> None:
    middle_path, middle_key = authority.pki.make(
        "middle", "urn:test:middle", ca=True, issuer=(authority.certificate, authority.key)
    )
    middle = x509.load_der_x509_certificate(middle_path.read_bytes())
    key = serialization.load_pem_private_key(middle_key.read_bytes(), None)
    path, _ = authority.pki.make("deep", "urn:test:server", issuer=(middle, key))
    blob = path.read_bytes() + middle_path.read_bytes()
    credentials = load_credentials(pki.security(trusted=(authority.path,)))
    assert credentials is not None
    chain = split_chain(blob)
    assert len(chain) == 2
    assert check_server(chain, credentials, "urn:test:server", HOST) == chain[0]
    with pytest.raises(ServerIdentityError, match="not in the trust list"):
        check_server(chain[:1], credentials, "urn:test:server", HOST)


def test_seven_refusals_have_seven_reasons(pki, authority, tmp_path) -> None:
    """S8: expired, not yet valid, host, URI, unknown, revoked, not meant for it."""
    good = authority.issue("good")
    revoked = authority.revoke(good, tmp_path / "crl.pem")
    trusting = load_credentials(pki.security(trusted=(authority.path,)))
    strict = load_credentials(pki.security(trusted=(authority.path,), revoked=(revoked,)))
    stranger = load_credentials(pki.security(trusted=(pki.client_cert,)))
    old = authority.issue("old", start=timedelta(days=-9), life=timedelta(days=1))
    young = authority.issue("young", start=timedelta(days=1))
    away = authority.issue("away", host="10.0.0.1")
    other = authority.issue("other", uri="urn:test:other")
    useless = authority.issue("useless", key_encipherment=False)
    assert trusting and strict and stranger
    cases = [
        (old, trusting, "expired on"),
        (young, trusting, "not valid before"),
        (away, trusting, "does not name host"),
        (other, trusting, "certificate is for"),
        (good, stranger, "not in the trust list"),
        (good, strict, "is revoked"),
        (useless, trusting, "may not sign and encrypt"),
    ]
    for certificate, credentials, reason in cases:
        with pytest.raises(ServerIdentityError, match=reason):
            check_server([certificate], credentials, "urn:test:server", HOST)
    assert check_server([away], trusting, "urn:test:server", None) == away


def test_a_list_that_is_overdue_counts_as_the_configuration_says(pki, authority, tmp_path) -> None:
    good = authority.issue("listed")
    crl = authority.revoke(authority.issue("taken_back"), tmp_path / "crl.pem")
    both = {"trusted": (authority.path,), "revoked": (crl,)}
    later = datetime.now(UTC) + timedelta(days=2)
    warned = load_credentials(pki.security(**both))
    strict = load_credentials(pki.security(**both, refuse_overdue=True))
    assert warned and strict
    for credentials, now in ((warned, None), (warned, later), (strict, None)):
        assert check_server([good], credentials, "urn:test:server", HOST, now) == good
    with pytest.raises(ServerIdentityError, match=r"is overdue since .* overdue_list") as refused:
        check_server([good], strict, "urn:test:server", HOST, later)
    assert refused.value.code is ReasonCode.CERT_EXPIRED
    # a newer one beside it is what counts
    folder = tmp_path / "lists"
    folder.mkdir()
    (folder / "old.crl").write_bytes(crl.read_bytes())
    authority.revoke(good, folder / "new.crl", life=timedelta(days=9))
    newer = load_credentials(pki.security(**{**both, "revoked": (folder,)}, refuse_overdue=True))
    other = authority.issue("after")
    assert newer
    assert check_server([other], newer, "urn:test:server", HOST, later) == other


def test_a_certificate_of_another_host_is_let_in_where_the_host_is_not_looked_at(
    pki, opcua, drive, tmp_path
) -> None:
    """A PLC that was set up under another address than it has now."""
    moved = type(pki)(tmp_path)
    moved.server_cert, moved.server_key = moved.make("moved", opcua.SERVER_URI, host="10.0.0.1")
    server = opcua.server(secure=moved)
    refused = drive(server.endpoint, security=moved.security())
    assert "check_host: false" in refused.sees(ReasonCode.SERVER_ID).text
    refused.link.close()
    drive(server.endpoint, security=moved.security(check_host=False)).up()


def test_a_certificate_that_only_claims_its_issuer_is_not_believed(pki, authority) -> None:
    """Same issuer name, another key."""
    forger = Authority(pki, authority.pki.directory)
    credentials = load_credentials(pki.security(trusted=(pki.client_cert,)))
    assert credentials is not None
    forged = forger.issue("forged")
    object.__setattr__(credentials, "trusted", (authority.certificate,))
    with pytest.raises(ServerIdentityError, match="not in the trust list"):
        check_server([forged], credentials, "urn:test:server", HOST)


@pytest.mark.parametrize("blob", [None, b"", b"\x30", b"\x30\x82\xff", b"\x30\x03abc", b"\0" * 50])
def test_a_malformed_certificate_is_an_identity_error(blob) -> None:
    with pytest.raises(ServerIdentityError):
        split_chain(blob)


# A24: certificates that end or change while a session runs


def test_a_session_outlives_the_servers_certificate_and_the_next_one_does_not_begin(
    pki, opcua, drive, tmp_path
) -> None:
    short = type(pki)(tmp_path)
    left = timedelta(seconds=4)
    short.server_cert, short.server_key = short.make(
        "server", opcua.SERVER_URI, life=timedelta(days=1) + left
    )
    server = opcua.server(secure=short)
    driver = drive(server.endpoint, security=short.security()).up()
    assert ReasonCode.CERT_EXPIRED not in driver.codes()
    ends_s = driver.link.server_ends_s
    assert ends_s == pytest.approx(datetime.now(UTC).timestamp() + 4.0, abs=4.0)
    fault = driver.sees(ReasonCode.CERT_EXPIRED)
    assert "this session goes on" in fault.text
    # it drives on
    assert driver.read().link is LinkState.UP
    driver.write(21.0)
    opcua.until(lambda: server.get("valve") == 21.0)
    connects = driver.link.connects
    server.stop()
    driver.down()
    driver.forget()
    server.start()
    opcua.until(lambda: driver.saw(ReasonCode.CERT_EXPIRED), 15.0)
    assert "expired on" in driver.fault(ReasonCode.CERT_EXPIRED).text
    assert "expired on" in driver.fault(ReasonCode.LINK_DOWN).text
    assert driver.read().link is not LinkState.UP
    assert driver.link.connects == connects
    assert not driver.write(22.0).written
    # nothing is latched by a date: a renewed certificate that is trusted brings it back
    assert not driver.saw(ReasonCode.SERVER_ID)
    server.stop()
    new_cert, short.server_key = short.make("renewed", opcua.SERVER_URI)
    short.server_cert.write_bytes(new_cert.read_bytes())  # the file that is trusted
    server.start()
    driver.up(20.0)
    driver.clears(ReasonCode.CERT_EXPIRED)


def test_another_certificate_of_the_same_application_is_not_taken_for_the_old_one(
    pki, opcua, drive, tmp_path
) -> None:
    mine = type(pki)(tmp_path)
    trusted = tmp_path / "trusted"
    trusted.mkdir()
    (trusted / "plant.der").write_bytes(mine.server_cert.read_bytes())
    server = opcua.server(secure=mine)
    driver = drive(server.endpoint, security=mine.security(trusted=(trusted,))).up()
    server.stop()
    mine.server_cert, mine.server_key = mine.make("forged", opcua.SERVER_URI)
    server.start()
    fault = driver.sees(ReasonCode.CERT_CHANGED)
    found = x509.load_der_x509_certificate(mine.server_cert.read_bytes())
    assert found.fingerprint(hashes.SHA256()).hex(":") in fault.text
    assert not driver.write(1.0).written
    assert driver.read().link is not LinkState.UP
    # once somebody has compared it and put it into the folder, it is let in without a restart
    (trusted / "new.der").write_bytes(mine.server_cert.read_bytes())
    driver.up(20.0)
