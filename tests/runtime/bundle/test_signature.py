"""Keys and the trust store."""

import subprocess
from datetime import UTC, datetime

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from steadyhand.controllers.errors import BundleError
from steadyhand.runtime.bundle import commands
from steadyhand.runtime.bundle.signature import (
    TrustStore,
    generate_key,
    key_id,
    read_private,
    read_public,
    sign,
)
from tests.support.bundles import NOW, PLANT

EXPIRES = datetime(2028, 1, 31, tzinfo=UTC)


def test_generated_pair_signs_and_verifies(tmp_path):
    private, public = generate_key(tmp_path, "release", ["controller", "config"], EXPIRES)
    assert private.stat().st_mode & 0o777 == 0o600
    trusted = read_public(public)
    assert trusted.purposes == {"controller", "config"}
    assert trusted.expires == EXPIRES
    signature = sign(read_private(private), b"message")
    assert len(signature) == 80
    assert TrustStore.read(tmp_path).verify(signature, b"message", "config", NOW) == trusted
    with pytest.raises(BundleError, match="not of these bytes"):
        TrustStore([trusted]).verify(signature, b"massage", "config", NOW)
    with pytest.raises(BundleError, match="not for rollback"):
        TrustStore([trusted]).verify(signature, b"message", "rollback", NOW)


def test_signature_is_plain_ed25519():
    """RFC 8032, 7.1, test 2: behind our 16-byte key id stand exactly its 64 bytes."""
    key = Ed25519PrivateKey.from_private_bytes(
        bytes.fromhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb")
    )
    assert sign(key, b"\x72")[16:].hex() == (
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
    )


def test_keys_are_never_overwritten(tmp_path):
    private, _ = generate_key(tmp_path, "release", ["controller"])
    before = private.read_bytes()
    with pytest.raises(BundleError, match="is there already"):
        generate_key(tmp_path, "release", ["controller"])
    assert private.read_bytes() == before


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o660, 0o604, 0o700])
def test_private_key_that_others_may_read_is_refused(tmp_path, mode):
    private, _ = generate_key(tmp_path, "release", ["controller"])
    private.chmod(mode)
    with pytest.raises(BundleError, match="chmod 600") as caught:
        read_private(private)
    assert caught.value.code == "BUNDLE_KEY"
    assert f"{mode:04o}" in str(caught.value)


def test_private_key_behind_a_link_is_refused(tmp_path):
    private, _ = generate_key(tmp_path, "release", ["controller"])
    (tmp_path / "link.pem").symlink_to(private)
    with pytest.raises(BundleError, match="BUNDLE_KEY"):
        read_private(tmp_path / "link.pem")


def test_error_never_shows_the_secret(tmp_path):
    path = tmp_path / "broken.key.pem"
    path.write_text(
        "-----BEGIN PRIVATE KEY-----\nc2VjcmV0LWNhbmFyeQ==\n-----END PRIVATE KEY-----\n"
    )
    path.chmod(0o600)
    with pytest.raises(BundleError) as caught:
        read_private(path)
    assert "c2VjcmV0" not in str(caught.value)


def test_other_kinds_of_keys_are_refused(tmp_path):
    other = generate_private_key(SECP256R1())
    private, public = tmp_path / "p256.key.pem", tmp_path / "p256.pub.pem"
    private.write_bytes(other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    private.chmod(0o600)
    public.write_bytes(
        b"# purpose: controller\n"
        + other.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    for read, path in ((read_private, private), (read_public, public)):
        with pytest.raises(BundleError, match="not an Ed25519 key"):
            read(path)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("# purpose: controller", "", "purpose []"),
        ("# purpose: controller", "# purpose: controler", "controler"),
        ("# purpose: controller", "# purpose: controller, all", "all"),
        ("2028-01-31T00:00:00Z", "2028-31-01", "write it as"),
        ("2028-01-31T00:00:00Z", "2028-01-31T00:00:00", "write it as"),
        ("BEGIN PUBLIC KEY", "BEGIN PUBLIC", "not a PEM public key"),
    ],
)
def test_public_key_file_must_say_what_it_is_for(tmp_path, old, new, words):
    _, public = generate_key(tmp_path, "release", ["controller"], EXPIRES)
    public.write_text(public.read_text().replace(old, new))
    with pytest.raises(BundleError) as caught:
        TrustStore.read(tmp_path)
    assert caught.value.code == "BUNDLE_KEY"
    assert words in str(caught.value)


def test_other_tools_read_our_public_key(tmp_path):
    _, public = generate_key(tmp_path, "release", ["controller"], EXPIRES)
    try:
        done = subprocess.run(
            ["openssl", "pkey", "-pubin", "-in", str(public), "-noout", "-text"],
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    assert "ED25519" in done.stdout.upper()


def test_revoked_list_is_strict(tmp_path):
    private, _ = generate_key(tmp_path, "release", ["controller"])
    identity = key_id(read_private(private).public_key())
    (tmp_path / "revoked.txt").write_text(f"\n# stolen in spring\n{identity}  # release\n")
    with pytest.raises(BundleError, match="revoked"):
        TrustStore.read(tmp_path).verify(sign(read_private(private), b"m"), b"m", "controller", NOW)
    (tmp_path / "revoked.txt").write_text(identity[:-1])
    with pytest.raises(BundleError, match="not a key id"):
        TrustStore.read(tmp_path)


def test_missing_trust_store_is_told(tmp_path):
    with pytest.raises(BundleError, match="no such directory"):
        TrustStore.read(tmp_path / "none")


# -- the commands ----------------------------------------------------------------------------------


def test_commands_from_key_to_rollback(kit, good, tmp_path):
    made = commands.keygen(tmp_path, "fresh", ["controller", "rollback"], days=30)
    assert made["purposes"] == ["controller", "rollback"]
    parts = tmp_path / "parts"
    parts.mkdir()
    from steadyhand.runtime.bundle.archive import read_archive

    for name, content in read_archive(good.read_bytes()).items():
        (parts / name).write_bytes(content)
    target = tmp_path / "packed.shb"
    packed = commands.pack(parts, target, tmp_path / "fresh.key.pem", PLANT, name="care", version=4)
    assert packed["signed_with"] == made["key_id"]
    assert packed["manifest"]["version"] == 4
    assert commands.verify(target, tmp_path)["signer"] == "fresh"
    examined = commands.verify(target, tmp_path, PLANT)
    assert examined["examined"]["provider"] == "cpu"
    signed = commands.sign(target, tmp_path / "again.shb", kit.private)
    assert signed["signed_with"] == key_id(kit.key.public_key())
    with pytest.raises(BundleError, match="unknown key"):
        commands.verify(tmp_path / "again.shb", tmp_path)
    token = commands.permit_rollback(target, tmp_path / "fresh.key.pem", tmp_path / "token", days=1)
    assert token["manifest_sha256"] == examined["manifest_sha256"]
    assert commands.inspect(target)["manifest_sha256"] == examined["manifest_sha256"]


@pytest.mark.parametrize("ending", [".key.pem", ".pub.pem"])
def test_a_key_that_is_there_is_named_with_the_remedy(tmp_path, ending):
    there = tmp_path / f"me{ending}"
    there.write_bytes(b"mine")
    with pytest.raises(BundleError, match=r"is there already.*take another --name") as refused:
        generate_key(tmp_path, "me", ["controller"])
    assert str(there) in str(refused.value)
    assert "Errno" not in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == [there.name]
    assert there.read_bytes() == b"mine"
