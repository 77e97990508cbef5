"""Users' file and folder of trusted clients: what is refused, and what a change does."""

import hashlib
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from steadyhand.controllers.errors import ConfigError
from steadyhand.runtime.operator_protocol import Role
from steadyhand.runtime.scada import people as module
from steadyhand.runtime.scada.people import (
    MAX_KEPT,
    People,
    Person,
    TrustFolder,
    certificate_proof,
    password_proof,
    read_people,
    write_people,
)

PROOF = password_proof("correct horse")


def certificate(folder: Path, name: str, days: float = 1.0) -> bytes:
    """A self-signed certificate, also in the file `name`.der; elliptic, for it is made at once."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=2))
        .not_valid_after(now + timedelta(days=days))
        .sign(key, hashes.SHA256())
    )
    der = made.public_bytes(Encoding.DER)
    (folder / f"{name}.der").write_bytes(der)
    return der


def users(folder: Path, text: str, mode: int = 0o600) -> Path:
    file = folder / "users"
    file.write_text(text, "utf-8")
    file.chmod(mode)
    return file


def test_what_was_written_is_read(tmp_path):
    der = certificate(tmp_path, "cat")
    made = {
        "ann": Person("ann", Role.OPERATE, PROOF),
        "cat": Person("cat", Role.VIEW, certificate_proof(der)),
        "e.x@site-1": Person("e.x@site-1", Role.ENGINEER, password_proof("another one")),
    }
    write_people(tmp_path / "users", made)
    assert read_people(tmp_path / "users") == made
    assert (tmp_path / "users").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.glob(".users*")] == []


def test_passwords(tmp_path):
    people = People(users(tmp_path, f"ann:operator:{PROOF}\n# somebody else\n\n"))
    assert people.by_password("ann", "correct horse").role is Role.OPERATE
    for name, word in (
        ("ann", "correct hors"), ("ann", "correct horse "), ("ann", ""), ("bob", "correct horse"),
        ("", ""), ("ann", "x" * 100_000),
    ):  # fmt: skip
        assert people.by_password(name, word) is None


def test_the_same_password_is_never_kept_the_same_way():
    assert password_proof("correct horse") != PROOF


def test_a_person_with_a_certificate_has_no_password(tmp_path):
    der = certificate(tmp_path, "cat")
    people = People(users(tmp_path, f"cat:operator:{certificate_proof(der)}\n"))
    assert people.by_password("cat", certificate_proof(der)) is None
    assert people.by_certificate(der).name == "cat"
    assert people.by_certificate(certificate(tmp_path, "dog")) is None
    assert people.by_certificate(b"") is None


def test_a_certificate_out_of_its_dates_is_nobody(tmp_path):
    der = certificate(tmp_path, "old", days=-1.0)
    people = People(users(tmp_path, f"cat:operator:{certificate_proof(der)}\n"))
    assert people.by_certificate(der) is None


def test_guessing_is_slowed_down(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_LOGINS_AT_ONCE", 3)
    monkeypatch.setattr(module, "_LOGINS_PER_S", 1e-9)
    people = People(users(tmp_path, f"ann:operator:{PROOF}\n"))
    for _ in range(3):
        assert people.by_password("ann", "correct horse")  # costs nothing
    for _ in range(3):
        assert people.by_password("ann", "guess") is None
    with pytest.raises(PermissionError):
        people.by_password("ann", "correct horse")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("ann", "is no name:role:proof"),
        ("a-password-of-something-else", "one of viewer, operator, engineer"),
        ("ann:king:" + PROOF, "is no name:role:proof"),
        ("ann:operator:", "neither scrypt nor certificate"),
        ("ann:operator:plain:secret", "neither scrypt nor certificate"),
        ("ann:operator:certificate:ABC", "64 small hex digits"),
        ("ann:operator:scrypt:1:2:3", "broken password entry"),
        ("ann:operator:scrypt:16385:8:1:YQ==:YQ==", "broken password entry"),
        ("ann:operator:scrypt:1073741824:8:1:YQ==:" + "YQ==", "broken password entry"),
        ("ann:operator:" + PROOF.replace(":8:1:", ":8:1000:"), "broken password entry"),
        ("a b:operator:" + PROOF, "letters, digits"),
        ("../ann:operator:" + PROOF, "letters, digits"),
        (f"ann:operator:{PROOF}\nann:viewer:{PROOF}", "stands there twice"),
    ],
    ids=range(13),  # a proof has another salt in each process of a run
)
def test_lines_that_make_no_sense(tmp_path, line, words):
    file = users(tmp_path, f"# a comment\n{line}\n")
    with pytest.raises(ConfigError) as refused:
        read_people(file)
    assert words in str(refused.value) and str(file) in str(refused.value)
    for secret in (PROOF, "secret", "a-password", "king"):
        assert secret not in str(refused.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644])
def test_a_file_others_could_read_is_refused(tmp_path, mode):
    with pytest.raises(ConfigError, match="chmod 600"):
        read_people(users(tmp_path, f"ann:operator:{PROOF}\n", mode))


def test_files_that_cannot_be_used(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_people(tmp_path / "none")
    with pytest.raises(ConfigError, match="is longer than"):
        read_people(users(tmp_path, "#" * (1 << 20) + "\n"))


@pytest.mark.parametrize("word", ["", "short", "x" * 257])
def test_passwords_that_are_none(word):
    with pytest.raises(ConfigError, match="8 to 256"):
        password_proof(word)


def test_a_changed_file_holds_at_once_and_a_broken_one_does_not(tmp_path):
    told: list[str] = []
    file = users(tmp_path, f"ann:operator:{PROOF}\n")
    people = People(file, told.append)
    write_people(file, {"bob": Person("bob", Role.VIEW, PROOF)})
    assert people["ann"] is None and people["bob"].role is Role.VIEW
    users(tmp_path, "nonsense\n")
    assert people["bob"].role is Role.VIEW and len(told) == 1 and "users:1" in told[0]
    assert people["bob"] and len(told) == 1  # told once
    file.unlink()
    assert people["bob"] and len(told) == 2


# -- clients


def test_only_what_lies_in_the_folder_is_trusted(tmp_path):
    folder, told = tmp_path / "trusted", []
    folder.mkdir()
    ours, other = certificate(tmp_path, "ours"), certificate(tmp_path, "other")
    (folder / "ours.der").write_bytes(ours)
    trust = TrustFolder(folder, told.append)
    assert trust.trusts(ours) and len(trust) == 1
    assert not trust.trusts(other) and not trust.trusts(None) and not trust.trusts(b"junk")
    kept = list((tmp_path / "rejected").iterdir())
    assert [path.read_bytes() for path in kept] == [other]
    assert any("kept in rejected/" in text for text in told)
    kept[0].rename(folder / "other.der")
    assert trust.trusts(other)
    (folder / "ours.der").unlink()
    assert not trust.trusts(ours)


def test_out_of_its_dates_is_not_trusted_and_told_so(tmp_path):
    folder, told = tmp_path / "trusted", []
    folder.mkdir()
    old = certificate(tmp_path, "old", days=-1.0)
    (folder / "old.der").write_bytes(old)
    assert not TrustFolder(folder, told.append).trusts(old)
    assert "out of its dates" in told[0] and not (tmp_path / "rejected").exists()


def test_refused_certificates_do_not_fill_the_disk(tmp_path):
    folder = tmp_path / "trusted"
    folder.mkdir()
    trust = TrustFolder(folder)
    for i in range(MAX_KEPT + 4):
        der = certificate(tmp_path, str(i))
        assert not trust.trusts(der)
        kept = tmp_path / "rejected" / f"{hashlib.sha256(der).hexdigest()}.der"
        os.utime(kept, (i, i))
    assert len(list((tmp_path / "rejected").iterdir())) == MAX_KEPT
    assert kept.read_bytes() == der  # the newest is there


def test_a_file_that_is_no_certificate(tmp_path):
    folder, told = tmp_path / "trusted", []
    folder.mkdir()
    (folder / "readme.txt").write_text("not looked at")
    trust = TrustFolder(folder, told.append)
    (folder / "junk.der").write_bytes(b"junk")
    assert not trust.trusts(b"x") and any("junk.der" in text for text in told)
    with pytest.raises(ConfigError, match=r"junk\.der"):
        TrustFolder(folder)
