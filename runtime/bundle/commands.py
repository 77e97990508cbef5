"""What the commands `steadyhand bundle …` do: paths in, plain values for people and JSON out."""

from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

from steadyhand.runtime.bundle.archive import read_archive, read_file
from steadyhand.runtime.bundle.contract import PlantContract
from steadyhand.runtime.bundle.files import replace
from steadyhand.runtime.bundle.installed import make_rollback_token
from steadyhand.runtime.bundle.load import Bundle, load_bundle, parse_golden, verify_bundle
from steadyhand.runtime.bundle.manifest import (
    EVIDENCE,
    GOLDEN,
    MANIFEST,
    POLICY,
    TRUST,
    Scalar,
    parse_manifest,
    stamp,
)
from steadyhand.runtime.bundle.pack import inspect_bundle, pack_bundle, sign_bundle
from steadyhand.runtime.bundle.signature import (
    TrustStore,
    generate_key,
    key_id,
    read_private,
    read_public,
)
from steadyhand.runtime.bundle.strict_json import parse_json


def keygen(
    directory: Path, name: str, purposes: list[str], days: int | None = None
) -> dict[str, Any]:
    """Make a key pair in `directory`; the private half never leaves its file.

    Raises:
        BundleError: BUNDLE_KEY.
    """
    expires = None if days is None else _in_days(days)
    private, public = generate_key(directory, name, purposes, expires)
    return {
        "key_id": read_public(public).key_id,
        "private": str(private),
        "public": str(public),
        "purposes": sorted(purposes),
        "expires": None if expires is None else stamp(expires),
    }


def pack(
    parts: Path,
    target: Path,
    private_key: Path,
    plant: PlantContract,
    *,
    name: str,
    version: int,
    tolerance: float = 1e-4,
    days: int = 365,
    provenance: dict[str, Scalar] | None = None,
) -> dict[str, Any]:
    """Pack the files policy.onnx, golden.json, trust.json and evidence.json of `parts`.

    Raises:
        BundleError: a part is missing, or the bundle would be refused at the edge.
    """
    content = {part: read_file(parts / part) for part in (POLICY, GOLDEN, TRUST, EVIDENCE)}
    pack_bundle(
        target,
        read_private(private_key),
        plant,
        name=name,
        version=version,
        model=content[POLICY],
        golden=parse_golden(content[GOLDEN], tolerance),
        trust=parse_json(content[TRUST], TRUST),
        evidence=parse_json(content[EVIDENCE], EVIDENCE),
        provenance=provenance or {},
        not_after=_in_days(days),
    )
    return inspect(target)


def sign(source: Path, target: Path, private_key: Path) -> dict[str, Any]:
    """Sign the contents of `source` again; for the change from an old key to a new one.

    Raises:
        BundleError: not a bundle, or not a private key.
    """
    sign_bundle(source, target, read_private(private_key))
    return inspect(target)


def verify(path: Path, trusted: Path, plant: PlantContract | None = None) -> dict[str, Any]:
    """Verify signature and hashes; with `plant` also everything a start would check.

    Raises:
        BundleError: refused, with the reason a start would give.
    """
    trust, now = TrustStore.read(trusted), datetime.now(UTC)
    if plant is None:
        verified = verify_bundle(read_file(path), trust, now)
        manifest = verified.manifest
        return {
            "name": manifest.name,
            "version": manifest.version,
            "plant_id": manifest.plant_id,
            "signer": verified.signer.name,
            "manifest_sha256": verified.manifest_sha256,
            "not_after": stamp(manifest.not_after),
        }
    return describe_bundle(load_bundle(path, trust, plant))


def describe_bundle(bundle: Bundle) -> dict[str, Any]:
    """A loaded bundle in plain values."""
    manifest = bundle.manifest
    return {
        "name": manifest.name,
        "version": manifest.version,
        "plant_id": manifest.plant_id,
        "signer": bundle.signer,
        "manifest_sha256": bundle.manifest_sha256,
        "not_after": stamp(manifest.not_after),
        "examined": bundle.examined,
        "warnings": list(bundle.warnings),
    }


def inspect(path: Path) -> dict[str, Any]:
    """What the bundle says about itself, unverified.

    Raises:
        BundleError: not a bundle.
    """
    return inspect_bundle(path)


def permit_rollback(
    bundle: Path, private_key: Path, target: Path, *, days: int = 7
) -> dict[str, Any]:
    """Write a signed token that lets exactly this older bundle run again.

    Raises:
        BundleError: not a bundle, or not a private key.
        OSError: the token cannot be written.
    """
    raw = read_archive(read_file(bundle))[MANIFEST]
    manifest, key = parse_manifest(raw), read_private(private_key)
    digest, not_after = sha256(raw).hexdigest(), _in_days(days)
    token = make_rollback_token(key, manifest.plant_id, digest, not_after)
    replace(target, token, mode=0o644)
    return {
        "plant_id": manifest.plant_id,
        "version": manifest.version,
        "manifest_sha256": digest,
        "key_id": key_id(key.public_key()),
        "not_after": stamp(not_after),
        "token": str(target),
    }


def _in_days(days: int) -> datetime:
    return datetime.now(UTC).replace(microsecond=0) + timedelta(days=days)
