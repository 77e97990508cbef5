"""Who may come in: users with roles from one private file, client applications by certificate.

    # name : role : proof
    ann:operator:scrypt:16384:8:1:<salt>:<hash>       a password
    historian:viewer:certificate:<SHA-256>            a user certificate

Both the file and the folder of trusted certificates are read again when they change, so that a
person or a client can be let in or put out while the plant runs.
"""

import base64
import binascii
import hashlib
import hmac
import os
import re
import secrets
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509

from steadyhand.adapters.input_file import read_secret
from steadyhand.adapters.opcua.trust_files import UNPARSABLE, read_certificates
from steadyhand.controllers.errors import ConfigError
from steadyhand.runtime.operator_people import Bucket
from steadyhand.runtime.operator_protocol import Role

ROLES: Mapping[str, Role] = {
    "viewer": Role.VIEW,
    "operator": Role.OPERATE,
    "engineer": Role.ENGINEER,
}
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
SHORTEST_PASSWORD = 8
LONGEST_PASSWORD = 256
MAX_FILE_BYTES = 1 << 20
MAX_KEPT = 16
"""Refused certificates kept for approval."""
MAX_CERTIFICATE_BYTES = 1 << 14
_N, _R, _P = 1 << 14, 8, 1  # 16 MiB and some 50 ms per try
_LOGINS_PER_S, _LOGINS_AT_ONCE = 1.0, 20


@dataclass(frozen=True, slots=True)
class Person:
    """One entry of the users' file."""

    name: str
    role: Role
    proof: str
    """As in the file."""


def password_proof(password: str) -> str:
    """What the file keeps of a password.

    Raises:
        ConfigError: too short or too long.
    """
    if not SHORTEST_PASSWORD <= len(password) <= LONGEST_PASSWORD:
        raise ConfigError(f"a password has {SHORTEST_PASSWORD} to {LONGEST_PASSWORD} characters")
    salt = secrets.token_bytes(16)
    made = base64.b64encode(_scrypt(password, salt, _N, _R, _P)).decode()
    return f"scrypt:{_N}:{_R}:{_P}:{base64.b64encode(salt).decode()}:{made}"


def certificate_proof(der: bytes) -> str:
    """What the file keeps of a user certificate."""
    return f"certificate:{hashlib.sha256(der).hexdigest()}"


def _scrypt(password: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    return hashlib.scrypt(
        password.encode(), salt=salt, n=n, r=r, p=p, maxmem=2 * 128 * n * r, dklen=32
    )


def read_people(path: Path) -> dict[str, Person]:
    """The users' file.

    Raises:
        ConfigError: it cannot be read, others could read it, or a line makes no sense.
    """
    content = read_secret(path, MAX_FILE_BYTES)
    people: dict[str, Person] = {}
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            person = _person(line.strip())
        except ValueError as error:
            raise ConfigError(f"{path}:{number}: {error}") from None
        if person.name in people:
            raise ConfigError(f"{path}:{number}: {person.name} stands there twice")
        people[person.name] = person
    return people


def _person(line: str) -> Person:
    """One line. What is wrong is told without what stands there: it may be another secret's file.

    Raises:
        ValueError: it makes no sense.
    """
    name, _, rest = line.partition(":")
    role, _, proof = rest.partition(":")
    if role not in ROLES or not NAME.fullmatch(name):
        raise ValueError(
            f"is no name:role:proof; a name has letters, digits and . _ @ -, the role is one of "
            f"{', '.join(ROLES)}"
        )
    kind, *fields = proof.split(":")
    if kind == "certificate":
        if len(fields) != 1 or not re.fullmatch(r"[0-9a-f]{64}", fields[0]):
            raise ValueError(f"{name}: a certificate is named by its SHA-256, 64 small hex digits")
    elif kind == "scrypt":
        _unpacked(name, fields)
    else:
        raise ValueError(f"{name}: the proof is neither scrypt nor certificate")
    return Person(name, ROLES[role], proof)


def _unpacked(name: str, fields: list[str]) -> tuple[int, int, int, bytes, bytes]:
    """Numbers, salt and hash of a password's proof, within what we are ready to compute."""
    try:
        n, r, p = (int(field) for field in fields[:3])
        salt, made = (base64.b64decode(field, validate=True) for field in fields[3:])
    except (ValueError, binascii.Error):
        raise ValueError(f"{name}: broken password entry; set the password again") from None
    power = n > 1 and n & (n - 1) == 0
    if not (power and 1 << 12 <= n <= 1 << 17 and 1 <= r <= 16 and 1 <= p <= 4 and len(made) == 32):
        raise ValueError(f"{name}: broken password entry; set the password again")
    return n, r, p, salt, made


def write_people(path: Path, people: Mapping[str, Person]) -> None:
    """Replace the users' file, whole and private.

    Raises:
        OSError: it cannot be written.
    """
    names = {role: name for name, role in ROLES.items()}
    lines = [f"{one.name}:{names[one.role]}:{one.proof}\n" for one in people.values()]
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.writelines(["# name:role:proof; made by `steadyhand scada user`\n", *lines])
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


class People:
    """The users' file, as it is now."""

    def __init__(self, path: Path, failed: Callable[[str], None] = lambda text: None) -> None:
        """Read it.

        Args:
            path: the file.
            failed: hears when a changed file cannot be used; the one before stays in force.

        Raises:
            ConfigError: see `read_people`.
        """
        self._path, self._failed = path, failed
        self._lock = threading.Lock()
        self._stamp = _stamp(path)
        self._people = read_people(path)
        self._logins = Bucket(_LOGINS_PER_S, _LOGINS_AT_ONCE)
        self._decoy = password_proof(secrets.token_hex(16))

    def __getitem__(self, name: str) -> Person | None:
        """A person by name; None: not known (any more)."""
        self._look()
        return self._people.get(name)

    def by_password(self, name: str, password: str) -> Person | None:
        """Who that is; None: nobody. An unknown name takes as long as a wrong password.

        Raises:
            PermissionError: too many tries in a short time.
        """
        self._look()
        if not self._logins.take():
            raise PermissionError
        person = self._people.get(name)
        known = person is not None and person.proof.startswith("scrypt:")
        proof = person.proof if person is not None and known else self._decoy
        n, r, p, salt, made = _unpacked(name, proof.split(":")[1:])
        right = hmac.compare_digest(_scrypt(password[:LONGEST_PASSWORD], salt, n, r, p), made)
        if not (right and known):
            return None
        self._logins.give()  # only guessing uses the tries up
        return person

    def by_certificate(self, der: bytes) -> Person | None:
        """Who that is; None: nobody, or the certificate is out of its dates."""
        self._look()
        proof = certificate_proof(der)
        for person in self._people.values():
            if hmac.compare_digest(person.proof, proof):
                return person if valid_now(der) else None
        return None

    def _look(self) -> None:
        """Read the file again if it has changed."""
        with self._lock:
            stamp = _stamp(self._path)
            if stamp == self._stamp:
                return
            self._stamp = stamp
            try:
                self._people = read_people(self._path)
            except ConfigError as error:
                self._failed(f"the changed file of users is not used: {error}")


def valid_now(der: bytes) -> bool:
    """Is this a certificate within its dates?"""
    try:
        found = x509.load_der_x509_certificate(der)
        return bool(found.not_valid_before_utc <= datetime.now(UTC) <= found.not_valid_after_utc)
    except UNPARSABLE:
        return False


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino


def load_certificate(path: Path) -> x509.Certificate:
    """A certificate in DER or PEM form.

    Raises:
        ConfigError: it cannot be read or is none.
    """
    return read_certificates(path)[0]


class TrustFolder:
    """Client applications that are let in: the certificates in a folder, by their exact bytes.

    What is refused is kept in the folder `rejected` beside it, a few at most, so that an engineer
    compares the fingerprint on site and moves the file over.
    """

    def __init__(self, folder: Path, refused: Callable[[str], None] = lambda text: None) -> None:
        """Read the folder.

        Args:
            folder: *.der, *.crt, *.cer, *.pem.
            refused: hears of each client that is not let in.

        Raises:
            ConfigError: a file in it is no certificate.
        """
        self._folder, self._refused = folder, refused
        self._lock = threading.Lock()
        self._stamp = self._stamps()
        self._known = self._read(strict=True)

    def __len__(self) -> int:
        return len(self._known)

    def trusts(self, der: bytes | None) -> bool:
        """Is this certificate in the folder, and valid now?"""
        known = self._look().get(der or b"")
        now = datetime.now(UTC)
        if known is not None and known.not_valid_before_utc <= now <= known.not_valid_after_utc:
            return True
        if der:
            self._keep(der, known)
        return False

    def _look(self) -> dict[bytes, x509.Certificate]:
        with self._lock:
            stamp = self._stamps()
            if stamp != self._stamp:
                self._stamp, self._known = stamp, self._read(strict=False)
            return self._known

    def _files(self) -> list[Path]:
        endings = {".der", ".crt", ".cer", ".pem"}
        try:
            return sorted(path for path in self._folder.iterdir() if path.suffix in endings)
        except OSError:
            return []

    def _stamps(self) -> tuple[Any, ...]:
        return tuple((path.name, _stamp(path)) for path in self._files())

    def _read(self, strict: bool) -> dict[bytes, x509.Certificate]:
        from cryptography.hazmat.primitives.serialization import Encoding

        found = {}
        for path in self._files():
            try:
                certificate = load_certificate(path)
            except ConfigError as error:
                if strict:
                    raise
                self._refused(f"in the folder of trusted certificates, {error}")
                continue
            found[certificate.public_bytes(Encoding.DER)] = certificate
        return found

    def _keep(self, der: bytes, known: x509.Certificate | None) -> None:
        """Tell who was refused and why, and keep the certificate for approval."""
        digest = hashlib.sha256(der).hexdigest()
        if known is not None:
            self._refused(f"client certificate {digest} is out of its dates: renew it")
            return
        kept = self._folder.parent / "rejected"
        text = f"client certificate {digest} is not trusted"
        with suppress(*UNPARSABLE, OSError):  # no certificate, or no room: then it is only told
            x509.load_der_x509_certificate(der)
            kept.mkdir(mode=0o700, exist_ok=True)
            file = kept / f"{digest}.der"
            others = sorted(kept.glob("*.der"), key=lambda path: path.stat().st_mtime_ns)
            if not file.exists() and len(der) <= MAX_CERTIFICATE_BYTES:
                for old in others[: max(0, len(others) - MAX_KEPT + 1)]:
                    old.unlink(missing_ok=True)
                file.write_bytes(der)
            text += f"; kept in {kept.name}/ for approval"
        self._refused(text)
