"""Which bundle runs here, and which was the newest that ever did: protection against rollback.

One small JSON file in a private directory, replaced in one step under a lock.
"""

import base64
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Final, Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from steadyhand.controllers.errors import BundleError
from steadyhand.runtime.bundle.archive import read_file
from steadyhand.runtime.bundle.files import replace
from steadyhand.runtime.bundle.manifest import Manifest, Moment, describe, stamp
from steadyhand.runtime.bundle.signature import ROLLBACK, TrustStore, sign
from steadyhand.runtime.bundle.strict_json import canonical_json, parse_json

STATE_FILE, LOCK_FILE = "installed.json", "installed.lock"
PERMIT: Final = ".rollback"
"""Added to the name of a bundle: where its signed permission to be put back lies."""
GRACE: Final = timedelta(days=30)
"""A bundle that already ran here may be started again for this long after it expired."""
SKEW: Final = timedelta(minutes=5)
"""Clocks of two machines may differ by this much."""
_MAX_STATE_BYTES = 2**20
_REMEDY = (
    "this file says which bundle versions ran here: restore it from a backup, or, if you are sure "
    "that the configured bundle is the one you want, move it away"
)

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Installed(BaseModel):
    """The bundle of one plant, as last installed on this machine."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    name: str
    version: Annotated[int, Field(ge=1)]
    manifest_sha256: Digest
    highest_version: Annotated[int, Field(ge=1)]
    """Newest version that ever ran; stays when an older one is put back with a token."""
    last_seen: Moment
    """Latest wall-clock time this machine knew: a clock set back does not undo an expiry."""


class _State(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    plants: dict[str, Installed] = {}


class _Token(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    allow: Literal["rollback"]
    plant_id: str
    manifest_sha256: Digest
    not_after: Moment


class InstalledState:
    """The installed-version file in the private directory `directory`."""

    def __init__(self, directory: Path) -> None:
        """Make `directory` (mode 0700) if it is not there.

        Raises:
            BundleError: BUNDLE_STATE it cannot be made, or others may write to it.
        """
        self._directory = directory
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = directory.stat()
        except OSError as error:
            raise BundleError("BUNDLE_STATE", f"{directory}: {error}") from None
        if status.st_mode & 0o022 or status.st_uid != os.geteuid():
            raise BundleError(
                "BUNDLE_STATE",
                f"{directory}: others may write to it; run `chmod 700 {directory}` as its owner",
            )

    def get(self, plant_id: str) -> Installed | None:
        """What is installed for `plant_id`; None when nothing ever was.

        Raises:
            BundleError: BUNDLE_STATE the file is there but cannot be believed.
        """
        return self._read().plants.get(plant_id)

    def kept(self, plant_id: str) -> Path:
        """Where a copy of the bundle that last ran for `plant_id` lies, if any is kept."""
        return self._directory / f"installed-{sha256(plant_id.encode()).hexdigest()[:16]}.shb"

    def record(
        self,
        manifest: Manifest,
        manifest_sha256: str,
        now: datetime,
        content: bytes | None = None,
    ) -> None:
        """Remember that this bundle runs here now; in one step, or not at all.

        Args:
            manifest: of the bundle.
            manifest_sha256: what identifies its exact content.
            now: wall clock.
            content: its file, kept so that it can be started again whatever happens to the file.

        Raises:
            BundleError: BUNDLE_STATE it cannot be written; the old record is still there.
        """
        with self._locked():
            state = self._read()
            before = state.plants.get(manifest.plant_id)
            entry = Installed(
                name=manifest.name,
                version=manifest.version,
                manifest_sha256=manifest_sha256,
                highest_version=max(manifest.version, before.highest_version if before else 1),
                last_seen=effective_now(before, now).replace(microsecond=0),
            )
            if content is not None:  # first: a copy that nothing refers to does no harm
                self._keep(self.kept(manifest.plant_id), content)
            new = _State(plants=state.plants | {manifest.plant_id: entry})
            try:
                replace(self._directory / STATE_FILE, canonical_json(new.model_dump(mode="json")))
            except OSError as error:
                raise BundleError(
                    "BUNDLE_STATE",
                    f"{self._directory / STATE_FILE}: {error}; the old bundle stays installed",
                ) from None

    def _keep(self, path: Path, content: bytes) -> None:
        try:
            if not (path.is_file() and read_file(path) == content):
                replace(path, content)
        except OSError as error:
            raise BundleError(
                "BUNDLE_STATE", f"{path}: {error}; the old bundle stays installed"
            ) from None

    def _read(self) -> _State:
        path = self._directory / STATE_FILE
        if not path.exists() and not path.is_symlink():
            return _State()
        try:
            data = read_file(path, max_bytes=_MAX_STATE_BYTES)
        except BundleError as error:
            raise BundleError("BUNDLE_STATE", f"{error}; {_REMEDY}") from None
        parse_json(data, str(path), "BUNDLE_STATE", _REMEDY)
        try:
            return _State.model_validate_json(data)
        except ValidationError as error:
            raise BundleError("BUNDLE_STATE", f"{path}: {describe(error)}; {_REMEDY}") from None

    @contextmanager
    def _locked(self) -> Iterator[None]:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            fd = os.open(self._directory / LOCK_FILE, flags, 0o600)
        except OSError as error:
            raise BundleError("BUNDLE_STATE", f"{self._directory / LOCK_FILE}: {error}") from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


def effective_now(installed: Installed | None, now: datetime) -> datetime:
    """`now`, or the latest time this machine ever knew when its clock was set back."""
    return now if installed is None else max(now, installed.last_seen)


def check_dates(
    manifest: Manifest, manifest_sha256: str, installed: Installed | None, now: datetime
) -> str:
    """Is the bundle valid now? Returns a warning, or nothing.

    A bundle is valid from `not_before` to `not_after`. One that already ran here may be started
    again for `GRACE` after that, with a warning, so that a reboot on a holiday does not take the
    controller away. A running loop never stops because a date passed.

    Raises:
        BundleError: BUNDLE_EXPIRED with the dates and this machine's time.
    """
    now = effective_now(installed, now)
    if now < manifest.not_before - SKEW:
        raise BundleError(
            "BUNDLE_EXPIRED",
            f"not_before={stamp(manifest.not_before)}: not valid yet; this machine has "
            f"{stamp(now)}: is its clock right?",
        )
    if now <= manifest.not_after:
        return ""
    known = installed is not None and installed.manifest_sha256 == manifest_sha256
    if not known or now > manifest.not_after + GRACE:
        raise BundleError(
            "BUNDLE_EXPIRED",
            f"not_after={stamp(manifest.not_after)}: expired; this machine has {stamp(now)}. Sign "
            "a new version of the bundle",
        )
    return (
        f"bundle expired at {stamp(manifest.not_after)}; allowed until "
        f"{stamp(manifest.not_after + GRACE)} because it already ran here"
    )


def check_rollback(
    manifest: Manifest,
    manifest_sha256: str,
    installed: Installed | None,
    *,
    allowed: bool = False,
) -> None:
    """Refuse an older version, or other content under the same version.

    Args:
        manifest: of the new bundle.
        manifest_sha256: what identifies its exact content.
        installed: what runs here.
        allowed: a signed token, or the operator's explicit word, permits it.

    Raises:
        BundleError: BUNDLE_ROLLBACK with both versions.
    """
    if installed is None or allowed or installed.manifest_sha256 == manifest_sha256:
        return
    if manifest.version > installed.highest_version:
        return
    if manifest.version == installed.version:
        text = f"version={manifest.version}: installed with other content; give it a new version"
    else:
        text = (
            f"version={manifest.version}: version {installed.highest_version} already ran here; "
            "pack a newer one, or permit exactly this one: `steadyhand bundle "
            f"permit-rollback BUNDLE BUNDLE{PERMIT} --key KEY`"
        )
    raise BundleError("BUNDLE_ROLLBACK", text)


def make_rollback_token(
    private: Ed25519PrivateKey, plant_id: str, manifest_sha256: str, not_after: datetime
) -> bytes:
    """Permission to put the one bundle `manifest_sha256` back on `plant_id` until `not_after`."""
    token = _Token(
        allow="rollback",
        plant_id=plant_id,
        manifest_sha256=manifest_sha256,
        not_after=not_after.astimezone(UTC).replace(microsecond=0),
    )
    text = canonical_json(token.model_dump(mode="json"))
    return text + base64.b64encode(sign(private, text)) + b"\n"


def check_rollback_token(
    token: bytes, manifest: Manifest, manifest_sha256: str, trust: TrustStore, now: datetime
) -> None:
    """Does `token` permit to put exactly this bundle back?

    Raises:
        BundleError: BUNDLE_SIG its signature; BUNDLE_ROLLBACK it is for something else or too old.
    """
    text, _, tail = token.rpartition(b"}\n")
    text += b"}\n"
    try:
        signature = base64.b64decode(tail.strip(), validate=True)
    except ValueError:
        signature = b""
    trust.verify(signature, text, ROLLBACK, now)
    remedy = "make it with `steadyhand bundle permit-rollback`"
    parse_json(text, "rollback token", "BUNDLE_ROLLBACK", remedy)
    try:
        permit = _Token.model_validate_json(text)
    except ValidationError as error:
        raise BundleError("BUNDLE_ROLLBACK", f"rollback token: {describe(error)}") from None
    if permit.plant_id != manifest.plant_id or permit.manifest_sha256 != manifest_sha256:
        raise BundleError(
            "BUNDLE_ROLLBACK",
            f"rollback token for {permit.plant_id} {permit.manifest_sha256[:16]}: this is "
            f"{manifest.plant_id} {manifest_sha256[:16]}",
        )
    if now > permit.not_after:
        raise BundleError("BUNDLE_ROLLBACK", f"rollback token expired at {stamp(permit.not_after)}")
