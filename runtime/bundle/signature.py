"""Who may sign what: Ed25519 keys in PEM files, a trust store, detached signatures.

A signature is 80 bytes: the 16-byte id of the key, then the 64 bytes of Ed25519 (RFC 8032). It is
checked over exact bytes, before anybody parses those bytes.

A public key file is PEM with comment lines in front, which PEM readers skip:

    # purpose: controller
    # expires: 2028-01-31T00:00:00Z
    -----BEGIN PUBLIC KEY----- ...
"""

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from steadyhand.controllers.errors import BundleError
from steadyhand.runtime.bundle.files import write_new
from steadyhand.runtime.bundle.manifest import stamp

SIGNATURE_BYTES: Final = 80
CONTROLLER, ROLLBACK, CONFIG, GO_LIVE = "controller", "rollback", "config", "go-live"
JOURNAL = "journal"
PURPOSES: Final = (CONTROLLER, ROLLBACK, CONFIG, GO_LIVE, JOURNAL)
PRIVATE_SUFFIX, PUBLIC_SUFFIX, REVOKED = ".key.pem", ".pub.pem", "revoked.txt"
_MAX_KEY_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class TrustedKey:
    """A public key and what it is trusted for."""

    name: str
    key: Ed25519PublicKey
    purposes: frozenset[str]
    expires: datetime | None = None

    @property
    def key_id(self) -> str:
        """32 hex digits."""
        return key_id(self.key)


class TrustStore:
    """The public keys this machine believes, and those it no longer believes."""

    def __init__(
        self,
        keys: Iterable[TrustedKey],
        revoked: Iterable[str] = (),
        late: Iterable[str] = (),
    ) -> None:
        self.keys = {key.key_id: key for key in keys}
        self.revoked = frozenset(revoked)
        self.late = frozenset(late)
        """Keys that were put there after the start."""

    @classmethod
    def read(cls, directory: Path) -> "TrustStore":
        """Every `*.pub.pem` of `directory`; `revoked.txt` lists revoked key ids, one a line.

        Raises:
            BundleError: BUNDLE_KEY there is no such directory, a file is no key, a purpose is
                missing or unknown, a revoked id is malformed.
        """
        if not directory.is_dir():
            raise BundleError(
                "BUNDLE_KEY", f"{directory}: no such directory; put trusted *{PUBLIC_SUFFIX} there"
            )
        keys = [read_public(path) for path in sorted(directory.glob(f"*{PUBLIC_SUFFIX}"))]
        listed = directory / REVOKED
        revoked = _revoked(listed) if listed.exists() else []
        return cls(keys, revoked)

    def since(self, start: "TrustStore") -> "TrustStore":
        """Keys of `start` that are trusted still: what came later counts from the next start,
        what was taken away or revoked does not count any more.
        """
        both = [key for identity, key in self.keys.items() if identity in start.keys]
        late = self.keys.keys() - start.keys.keys()
        return TrustStore(both, self.revoked | start.revoked, late)

    def verify(self, signature: bytes, message: bytes, purpose: str, now: datetime) -> TrustedKey:
        """The key that signed the exact bytes `message` for `purpose`.

        Raises:
            BundleError: BUNDLE_SIG no signature, unknown, revoked or expired key, a key for
                another purpose, or a signature of other bytes.
        """
        if len(signature) != SIGNATURE_BYTES:
            raise BundleError(
                "BUNDLE_SIG",
                f"signature of {len(signature)} bytes: must be the {SIGNATURE_BYTES} bytes that "
                "`steadyhand bundle sign` writes",
            )
        identity = signature[:16].hex()
        key = self.keys.get(identity)
        if identity in self.revoked:
            raise BundleError(
                "BUNDLE_SIG", f"key {identity} is revoked: sign again with another key"
            )
        if identity in self.late:
            raise BundleError(
                "BUNDLE_SIG",
                f"key {identity} was put into the trust store after the start: keys hold from "
                "start to stop. Restart if it is yours",
            )
        if key is None:
            known = ", ".join(f"{k.name} ({k.key_id})" for k in self.keys.values()) or "none"
            raise BundleError(
                "BUNDLE_SIG",
                f"unknown key {identity}; trusted are: {known}. Put its *{PUBLIC_SUFFIX} into the "
                "trust store if it is yours",
            )
        if purpose not in key.purposes:
            raise BundleError(
                "BUNDLE_SIG",
                f"key {key.name} ({identity}) is for {', '.join(sorted(key.purposes))}, not for "
                f"{purpose}",
            )
        if key.expires is not None and now > key.expires:
            raise BundleError(
                "BUNDLE_SIG", f"key {key.name} ({identity}) expired at {stamp(key.expires)}"
            )
        try:
            key.key.verify(signature[16:], message)
        except InvalidSignature:
            raise BundleError(
                "BUNDLE_SIG",
                f"signature of key {key.name} is not of these bytes: they were changed",
            ) from None
        return key


def key_id(key: Ed25519PublicKey) -> str:
    """First 128 bits of the SHA-256 of the raw public key, in hex."""
    raw = key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return sha256(raw).hexdigest()[:32]


def sign(private: Ed25519PrivateKey, message: bytes) -> bytes:
    """Detached signature of `message` (80 bytes)."""
    return bytes.fromhex(key_id(private.public_key())) + private.sign(message)


def generate_key(
    directory: Path, name: str, purposes: Iterable[str], expires: datetime | None = None
) -> tuple[Path, Path]:
    """Make `NAME.key.pem` (mode 0600) and `NAME.pub.pem`; never overwrites.

    Returns:
        Paths of the private and the public key.

    Raises:
        BundleError: BUNDLE_KEY a purpose is unknown, the name is no plain word, or a file exists.
    """
    purposes = _known_purposes(purposes, name)
    if not name.replace("-", "").replace("_", "").isalnum() or not name.isascii():
        raise BundleError("BUNDLE_KEY", f"key name {name!r}: use a-z, 0-9, - and _")
    private = Ed25519PrivateKey.generate()
    private_path = directory / f"{name}{PRIVATE_SUFFIX}"
    public_path = directory / f"{name}{PUBLIC_SUFFIX}"
    for path in (private_path, public_path):
        if os.path.lexists(path):
            raise _taken(path)
    secret = private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    try:
        write_new(private_path, secret, mode=0o600)
        write_new(public_path, public_pem(private.public_key(), purposes, expires), mode=0o644)
    except FileExistsError as error:  # just now
        raise _taken(Path(os.fsdecode(error.filename))) from None
    except OSError as error:
        text = f"{private_path}: cannot be written: {error.strerror}"
        raise BundleError("BUNDLE_KEY", text) from None
    return private_path, public_path


def _taken(path: Path) -> BundleError:
    return BundleError(
        "BUNDLE_KEY",
        f"{path}: is there already, and no key is ever replaced; take another --name, or move it "
        "away",
    )


def public_pem(
    key: Ed25519PublicKey, purposes: Iterable[str], expires: datetime | None = None
) -> bytes:
    """Content of a public key file."""
    lines = [f"# steadyhand public key {key_id(key)}", f"# purpose: {', '.join(sorted(purposes))}"]
    if expires is not None:
        lines.append(f"# expires: {stamp(expires)}")
    pem = key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return ("\n".join(lines) + "\n").encode("ascii") + pem


def read_public(path: Path) -> TrustedKey:
    """Public key with its purpose from `path`.

    Raises:
        BundleError: BUNDLE_KEY not an Ed25519 key, no purpose, or an impossible date.
    """
    data = _read_small(path)
    comments: dict[str, str] = {}
    for line in data.split(b"-----BEGIN", 1)[0].decode("utf-8", "replace").splitlines():
        word, colon, value = line.lstrip("# ").partition(":")
        if colon:
            comments[word.strip()] = value.strip()
    try:
        key = serialization.load_pem_public_key(data[data.find(b"-----BEGIN") :])
    except (ValueError, UnsupportedAlgorithm) as error:
        raise BundleError("BUNDLE_KEY", f"{path}: not a PEM public key: {error}") from None
    if not isinstance(key, Ed25519PublicKey):
        raise BundleError("BUNDLE_KEY", f"{path}: not an Ed25519 key")
    words = comments.get("purpose", "").replace(",", " ").split()
    name = path.name.removesuffix(PUBLIC_SUFFIX)
    return TrustedKey(
        name, key, frozenset(_known_purposes(words, str(path))), _expiry(comments, path)
    )


def read_private(path: Path) -> Ed25519PrivateKey:
    """Private key from `path`, which nobody but its owner may read.

    Raises:
        BundleError: BUNDLE_KEY wrong mode or owner, or not an Ed25519 key.
    """
    return private_from(_read_small(path, private=True), path)


def private_from(data: bytes, path: Path) -> Ed25519PrivateKey:
    """Private key from the content of `path`.

    Raises:
        BundleError: BUNDLE_KEY not an Ed25519 key.
    """
    try:
        key = serialization.load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise BundleError("BUNDLE_KEY", f"{path}: not an unencrypted PEM private key") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise BundleError("BUNDLE_KEY", f"{path}: not an Ed25519 key")
    return key


def _read_small(path: Path, *, private: bool = False) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise BundleError("BUNDLE_KEY", f"{path}: {error}") from None
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise BundleError("BUNDLE_KEY", f"{path}: not a regular file")
        mode = stat.S_IMODE(status.st_mode)
        if private and (mode & 0o177 or status.st_uid != os.geteuid()):
            raise BundleError(
                "BUNDLE_KEY",
                f"{path}: mode {mode:04o} of uid {status.st_uid}: a private key must be 0600 and "
                f"yours; run `chmod 600 {path}`",
            )
        data = file.read(_MAX_KEY_BYTES + 1)
    if len(data) > _MAX_KEY_BYTES:
        raise BundleError("BUNDLE_KEY", f"{path}: more than {_MAX_KEY_BYTES} bytes: not a key")
    return data


def _known_purposes(purposes: Iterable[str], where: str) -> tuple[str, ...]:
    words = tuple(purposes)
    unknown = [word for word in words if word not in PURPOSES]
    if unknown or not words:
        raise BundleError(
            "BUNDLE_KEY", f"{where}: purpose {list(words)}: name some of {', '.join(PURPOSES)}"
        )
    return words


def _expiry(comments: dict[str, str], path: Path) -> datetime | None:
    text = comments.get("expires")
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise BundleError(
            "BUNDLE_KEY", f"{path}: expires {text!r}: write it as 2028-01-31T00:00:00Z"
        )
    return moment


def _revoked(path: Path) -> list[str]:
    found = []
    for line in _read_small(path).decode("utf-8", "replace").splitlines():
        identity = line.split("#", 1)[0].strip()
        if not identity:
            continue
        if len(identity) != 32 or set(identity) - set("0123456789abcdef"):
            raise BundleError("BUNDLE_KEY", f"{path}: {identity!r} is not a key id (32 hex digits)")
        found.append(identity)
    return found
