"""The site's small authority: what it makes, what it refuses, and that others can use it."""

import json
import os
import shutil
import ssl
import stat
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID

from steadyhand.adapters.opcua.security import (
    ServerIdentityError,
    check_server,
    load_credentials,
    renewed,
)
from steadyhand.adapters.opcua.settings import Security
from steadyhand.controllers.errors import ConfigError, FileError, LinkError
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime import pki
from steadyhand.runtime.certificates import facts, read_certificates, state_of
from steadyhand.runtime.cli import complete
from steadyhand.runtime.exits import guarded

SERVER_URI = "urn:plc-7:plant:north"
CLIENT_URI = "urn:edge-1:steadyhand:north"


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """An authority, a plant's server and our client."""
    folder = tmp_path_factory.mktemp("site") / "pki"
    pki.make_authority(folder, "north works", bits=2048)
    pki.issue(folder, "plc", SERVER_URI, ["127.0.0.1", "plc-7.local"], ["server"])
    pki.issue(folder, "client", CLIENT_URI)
    return folder


def certificate(folder: Path, name: str) -> x509.Certificate:
    return read_certificates(folder / f"{name}_cert.der")[0]


def security(folder: Path, **changes) -> Security:
    return Security(
        **{
            "certificate": folder / "client_cert.der",
            "private_key": folder / "client_key.pem",
            "trusted": (folder / "ca_cert.der",),
            "allow_anonymous": True,
            **changes,
        }
    )


def test_an_application_certificate_is_what_the_standard_asks_for(site):
    """OPC 10000-6, 6.2.2."""
    made = certificate(site, "client")
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [CLIENT_URI]
    usage = made.extensions.get_extension_for_class(x509.KeyUsage)
    assert usage.critical
    assert usage.value.digital_signature
    assert usage.value.content_commitment
    assert usage.value.key_encipherment
    assert usage.value.data_encipherment
    assert not usage.value.key_cert_sign
    extended = made.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(extended) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert made.public_key().key_size == 2048
    assert made.signature_hash_algorithm.name == "sha256"
    life = made.not_valid_after_utc - datetime.now(UTC)
    assert timedelta(days=824) < life < timedelta(days=826)
    made.verify_directly_issued_by(certificate(site, "ca"))


def test_keys_are_for_their_owner_alone(site):
    for key in site.glob("*_key.pem"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert not any("PRIVATE" in path.read_text("latin-1") for path in site.glob("*.der"))


def test_openssl_agrees(site, tmp_path):
    """Another implementation verifies chain, purpose and revocation list."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl on this machine")
    pem = {}
    for name in ("ca", "plc", "client"):
        pem[name] = tmp_path / f"{name}.pem"
        found = certificate(site, name)
        pem[name].write_bytes(found.public_bytes(serialization.Encoding.PEM))
    crl = tmp_path / "crl.pem"
    crl.write_text(ssl.DER_cert_to_PEM_cert((site / "ca.crl").read_bytes()).replace(
        "CERTIFICATE", "X509 CRL"))  # fmt: skip
    for name, purpose in (("plc", "sslserver"), ("client", "sslclient")):
        done = subprocess.run(
            ["openssl", "verify", "-x509_strict", "-purpose", purpose, "-crl_check",
             "-CAfile", pem["ca"], "-CRLfile", crl, pem[name]],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr


def test_the_link_believes_it_and_revokes_it(site, tmp_path):
    """Issued, trusted by the authority, taken back: the same check as on the wire."""
    folder = tmp_path / "copy"
    shutil.copytree(site, folder)
    both = security(folder, revoked=(folder / "ca.crl",))
    before = load_credentials(both)
    server = certificate(folder, "plc")
    assert check_server([server], before, SERVER_URI, "plc-7.local") == server
    with pytest.raises(ServerIdentityError, match="certificate is for"):
        check_server([server], before, "urn:other", "127.0.0.1")
    pki.revoke(folder, [folder / "plc_cert.der"])
    after = renewed(both, before)
    with pytest.raises(ServerIdentityError, match="is revoked"):
        check_server([server], after, SERVER_URI, "127.0.0.1")
    # and revoking nothing keeps what was taken back
    pki.revoke(folder)
    (found,) = facts(folder / "ca.crl")
    assert found.revoked == 1
    assert found.kind == "revocation list"
    # files that cannot be used any more leave the link with what it had
    (folder / "ca.crl").write_bytes(b"torn")
    assert renewed(both, after) is after


def test_a_folder_of_trust_is_as_good_as_its_files(site, tmp_path):
    folder = tmp_path / "trusted"
    folder.mkdir()
    with pytest.raises(LinkError, match="no certificate in it"):
        load_credentials(security(site, trusted=(folder,)))
    shutil.copy(site / "ca_cert.der", folder)
    (folder / "README").write_text("not a certificate")
    shutil.copy(site / "ca.crl", folder)
    credentials = load_credentials(security(site, trusted=(folder,), revoked=(site / "ca.crl",)))
    assert check_server([certificate(site, "plc")], credentials, SERVER_URI, None)


def test_a_list_of_another_authority_revokes_nothing_and_is_refused(site, tmp_path):
    """A wrong file must not look like "nothing revoked"; a forged one must not revoke."""
    stranger = tmp_path / "stranger"
    pki.make_authority(stranger, "north works", bits=2048)  # the same name
    with pytest.raises(LinkError, match="not signed by any trusted authority"):
        load_credentials(security(site, revoked=(stranger / "ca.crl",)))


def test_self_signed_needs_no_authority(tmp_path):
    folder = tmp_path / "single"
    made = pki.issue(folder, "client", CLIENT_URI, self_signed=True, uses=("client", "server"))
    found = read_certificates(made.certificate)[0]
    assert found.issuer == found.subject
    found.verify_directly_issued_by(found)
    usage = found.extensions.get_extension_for_class(x509.KeyUsage).value
    assert usage.key_cert_sign
    credentials = load_credentials(security(folder, trusted=(made.certificate,)))
    assert credentials.application_uri == CLIENT_URI
    assert check_server([found], credentials, CLIENT_URI, None) == found


def test_nothing_is_overwritten_unless_asked(site, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(site, folder)
    before = {path.name: path.read_bytes() for path in folder.glob("*.*")}
    with pytest.raises(FileError, match="--force"):
        pki.make_authority(folder, "again")
    with pytest.raises(FileError, match="--force"):
        pki.issue(folder, "client", CLIENT_URI)
    assert before == {path.name: path.read_bytes() for path in folder.glob("*.*")}
    pki.issue(folder, "client", CLIENT_URI, force=True)
    after = {path.name: path.read_bytes() for path in folder.glob("*.*")}
    assert {name for name in after if after[name] != before.get(name)} == {
        "client_cert.der",
        "client_key.pem",
    }
    # a key without its certificate counts as there, also as a dangling link
    (folder / "late_key.pem").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileError, match="late_key"):
        pki.issue(folder, "late", "urn:late")
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "../evil"}, "letters, digits"),
        ({"name": "ca"}, "letters, digits"),
        ({"name": ""}, "letters, digits"),
        ({"uri": "no scheme"}, "write a URI such as"),
        ({"uri": "urn:a\nb"}, "write a URI such as"),
        ({"uses": ("root",)}, "one or both"),
        ({"uses": ()}, "one or both"),
        ({"hosts": ("bad host",)}, "a name or an address"),
        ({"hosts": ("",)}, "a name or an address"),
        ({"days": 0.0}, "days"),
        ({"days": float("nan")}, "days"),
        ({"days": 36_000.0}, "authority itself ends"),
        ({"bits": 1024}, "one of 2048"),
    ],
)
def test_what_is_not_issued(site, change, words):
    given = {"name": "new", "uri": "urn:new", **change}
    with pytest.raises(ConfigError, match=words):
        pki.issue(site, **given)
    assert not list(site.parent.rglob("*new_*"))


def test_an_authority_that_cannot_be_used(site, tmp_path):
    with pytest.raises(ConfigError, match="pki init"):
        pki.issue(tmp_path / "empty", "client", CLIENT_URI)
    folder = tmp_path / "copy"
    shutil.copytree(site, folder)
    (folder / "ca_key.pem").chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        pki.issue(folder, "late", "urn:late")
    shutil.copy(folder / "plc_key.pem", folder / "ca_key.pem")
    (folder / "ca_key.pem").chmod(0o600)
    with pytest.raises(ConfigError, match="not the key of"):
        pki.issue(folder, "late", "urn:late")
    (folder / "ca_key.pem").write_bytes(b"torn")
    with pytest.raises(ConfigError, match="no unencrypted private key"):
        pki.revoke(folder)
    shutil.rmtree(folder)
    shutil.copytree(site, folder)
    folder.chmod(0o777)
    with pytest.raises(ConfigError, match="others may write"):
        pki.issue(folder, "late", "urn:late")
    folder.chmod(0o700)
    with pytest.raises(ConfigError, match="was not signed by"):
        stranger = pki.issue(tmp_path / "single", "x", "urn:x", self_signed=True)
        pki.revoke(folder, [stranger.certificate])
    (folder / "ca.crl").write_bytes(b"torn")
    with pytest.raises(ConfigError, match="would be trusted again"):
        pki.revoke(folder)


@pytest.mark.parametrize(
    ("left_s", "words"),
    [
        (31 * 86_400, "good"),
        (29.9 * 86_400, "expires in 30 days"),
        (6 * 3600, "expires in 6 h"),
        (0, "EXPIRED"),
        (-1, "EXPIRED"),
    ],
)
def test_states_in_words(left_s, words):
    assert state_of(0.0, 1e9 + left_s, 1e9) == words
    assert state_of(2e9, 3e9, 1e9) == "not valid yet"


def test_an_expired_server_is_refused_with_its_own_code(site, tmp_path):
    """A24: the reason of a refused connection."""
    credentials = load_credentials(security(site))
    server = certificate(site, "plc")
    late = server.not_valid_after_utc + timedelta(seconds=1)
    with pytest.raises(ServerIdentityError, match="expired on") as caught:
        check_server([server], credentials, SERVER_URI, None, late)
    assert caught.value.code is ReasonCode.CERT_EXPIRED


# -- the commands


def steadyhand(capsys, *words) -> tuple[int, str]:
    code = guarded(lambda: complete()([str(word) for word in words], standalone_mode=True))
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def test_commands_from_nothing_to_revoked(capsys, tmp_path):
    folder = tmp_path / "pki"
    code, said = steadyhand(capsys, "pki", "init", folder, "--name", "works", "--bits", "2048")
    assert code == 0
    assert "next: steadyhand pki issue" in said
    code, said = steadyhand(
        capsys, "pki", "issue", folder, "client", "--uri", CLIENT_URI, "--days", "20", "--json"
    )
    assert code == 0
    digest = json.loads(said)["sha256"]
    code, said = steadyhand(capsys, "pki", "issue", folder, "client", "--uri", CLIENT_URI)
    assert code == 74
    assert "--force" in said
    code, said = steadyhand(capsys, "pki", "show", folder, "--json")
    assert code == 0
    rows = {row["file"].rpartition("/")[2]: row for row in json.loads(said)}
    assert set(rows) == {"ca_cert.der", "ca.crl", "client_cert.der"}
    client = rows["client_cert.der"]
    assert client["sha256"] == digest
    assert client["uris"] == [CLIENT_URI]
    assert client["state"] == "expires in 20 days"
    assert client["days_left"] == pytest.approx(20.0, abs=0.01)
    assert rows["ca_cert.der"]["kind"] == "authority"
    code, said = steadyhand(capsys, "pki", "show", folder / "client_cert.der")
    assert code == 0
    assert digest in said
    code, said = steadyhand(capsys, "pki", "revoke", folder, folder / "client_cert.der")
    assert code == 0
    assert "1 taken back" in said
    assert "PRIVATE" not in said


def test_show_of_what_is_no_certificate(capsys, tmp_path):
    file = tmp_path / "x.der"
    code, said = steadyhand(capsys, "pki", "show", file)
    assert code == 74
    assert "is not there" in said
    file.write_bytes(os.urandom(64))
    code, said = steadyhand(capsys, "pki", "show", file)
    assert code == 74
    assert "no X.509 certificate" in said


def test_show_fails_where_something_has_expired(capsys, tmp_path):
    pki.issue(tmp_path, "old", "urn:old", self_signed=True, days=1e-6)
    code, said = steadyhand(capsys, "pki", "show", tmp_path)
    assert code == 1
    assert "EXPIRED" in said


def test_names_in_a_certificate_are_somebody_elses_text(capsys, tmp_path):
    pki.issue(tmp_path, "odd", "urn:[red]bold[/red]", self_signed=True)
    code, said = steadyhand(capsys, "pki", "show", tmp_path)
    assert code == 0
    assert "urn:[red]bold[/red]" in said
