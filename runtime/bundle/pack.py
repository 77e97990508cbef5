"""Make, sign again and look into bundles."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from steadyhand.controllers.errors import BundleError, ModelError
from steadyhand.controllers.policies.golden import SCALAR_NAMES, Golden
from steadyhand.runtime.bundle.archive import read_archive, read_file, write_archive
from steadyhand.runtime.bundle.contract import PlantContract, check_plant, entries_for
from steadyhand.runtime.bundle.files import replace
from steadyhand.runtime.bundle.manifest import (
    EVIDENCE,
    GOLDEN,
    MANIFEST,
    PARTS,
    POLICY,
    SIGNATURE,
    TRUST,
    FileEntry,
    Manifest,
    OutputEntry,
    Range,
    Scalar,
    SignalEntry,
    parse_manifest,
)
from steadyhand.runtime.bundle.signature import key_id, sign
from steadyhand.runtime.bundle.strict_json import canonical_json
from steadyhand.runtime.child import ChildLimits, examine
from steadyhand.runtime.policy_spec import PolicySpec

VALIDITY = timedelta(days=365)


def pack_bundle(
    path: Path,
    key: Ed25519PrivateKey,
    plant: PlantContract,
    *,
    name: str,
    version: int,
    model: bytes,
    golden: Golden,
    trust: Mapping[str, Any],
    evidence: Mapping[str, Any],
    provenance: Mapping[str, Scalar],
    evidence_summary: Mapping[str, Scalar] | None = None,
    envelope: Mapping[str, tuple[float, float]] | None = None,
    observations: tuple[SignalEntry, ...] | None = None,
    outputs: tuple[OutputEntry, ...] | None = None,
    created: datetime | None = None,
    not_before: datetime | None = None,
    not_after: datetime | None = None,
    limits: ChildLimits | None = None,
) -> Manifest:
    """Examine the policy as the edge will, then write the signed bundle in one step.

    Args:
        path: where to; an older file there is replaced.
        key: private key whose public half is trusted for `controller`.
        plant: what the policy was made for.
        name: of the controller.
        version: must rise with every bundle for this plant.
        model: bytes of the ONNX graph.
        golden: answers of the *training framework*, with the tolerance that holds at the edge.
        trust: calibration, thresholds and novelty data; JSON numbers, text, lists, objects.
        evidence: what was measured about the controller, in full.
        provenance: code version, seeds, hashes of data: single values.
        evidence_summary: the few values of the evidence people look at first.
        envelope: signal → (low, high) the policy was trained and examined in.
        observations: entries with tighter ranges than the plant's; None repeats the plant's.
        outputs: likewise.
        created: now if not given, as is `not_before`.
        not_before: start of validity.
        not_after: end of validity; a year after `not_before` if not given.
        limits: of the process in which the policy is tried.

    Returns:
        The manifest as written.

    Raises:
        BundleError: it would be refused at the edge, with the code it would be refused with.
    """
    created = _whole_seconds(created or datetime.now(UTC))
    not_before = _whole_seconds(not_before or created)
    own_observations, own_outputs = entries_for(plant)
    parts = {
        POLICY: model,
        TRUST: _json(trust, TRUST),
        GOLDEN: _json(_golden_rows(golden), GOLDEN),
        EVIDENCE: _json(evidence, EVIDENCE),
    }
    try:
        manifest = Manifest(
            name=name,
            version=version,
            plant_id=plant.plant_id,
            created=created,
            not_before=not_before,
            not_after=_whole_seconds(not_after or not_before + VALIDITY),
            key_id=key_id(key.public_key()),
            period_s=plant.period_s,
            observations=observations or own_observations,
            outputs=outputs or own_outputs,
            files=tuple(_entry(part, parts[part]) for part in PARTS),
            tolerance=golden.tolerance,
            provenance=dict(provenance),
            envelope={k: Range(low=low, high=high) for k, (low, high) in (envelope or {}).items()},
            evidence=dict(evidence_summary or {}),
        )
    except ValueError as error:
        raise BundleError("BUNDLE_MANIFEST", str(error)) from None
    parse_manifest(manifest.dump())
    spec = PolicySpec(model, *check_plant(manifest, plant), golden, label=name)
    try:
        examine(spec, limits)
    except ModelError as error:
        raise BundleError(f"BUNDLE_{error.code}", f"{POLICY}: {error}") from None
    replace(path, _signed(manifest, key, parts), mode=0o644)
    return manifest


def sign_bundle(source: Path, target: Path, key: Ed25519PrivateKey) -> Manifest:
    """Sign the contents of `source` again with `key`, as when a key is replaced by a new one.

    The old signature is not examined: whoever signs vouches for the contents.

    Raises:
        BundleError: `source` is not a readable bundle.
    """
    members = read_archive(read_file(source))
    manifest = parse_manifest(members[MANIFEST]).model_copy(
        update={"key_id": key_id(key.public_key())}
    )
    parts = {part: members[part] for part in PARTS}
    stale = [
        entry.name for entry in manifest.files if _entry(entry.name, parts[entry.name]) != entry
    ]
    if stale:
        raise BundleError("BUNDLE_HASH", f"{stale[0]}: not the file the manifest names; pack again")
    replace(target, _signed(manifest, key, parts), mode=0o644)
    return manifest


def inspect_bundle(path: Path) -> dict[str, Any]:
    """What a bundle says about itself; nothing of it is verified but the frame.

    Raises:
        BundleError: not readable as a bundle.
    """
    members = read_archive(read_file(path))
    manifest = parse_manifest(members[MANIFEST])
    return {
        "manifest_sha256": sha256(members[MANIFEST]).hexdigest(),
        "signed_with": members[SIGNATURE][:16].hex(),
        "sizes": {name: len(content) for name, content in members.items()},
        "manifest": manifest.model_dump(mode="json"),
    }


def _signed(manifest: Manifest, key: Ed25519PrivateKey, parts: Mapping[str, bytes]) -> bytes:
    raw = manifest.dump()
    return write_archive({MANIFEST: raw, SIGNATURE: sign(key, raw), **parts})


def _golden_rows(golden: Golden) -> dict[str, Any]:
    names = ("observation", "action", *SCALAR_NAMES)
    return {name: getattr(golden, name).tolist() for name in names}


def _json(value: Any, name: str) -> bytes:  # noqa: ANN401
    try:
        return canonical_json(value)
    except (TypeError, ValueError) as error:
        raise BundleError("BUNDLE_MANIFEST", f"{name}: {error}: plain finite JSON only") from None


def _entry(name: str, content: bytes) -> FileEntry:
    return FileEntry.model_validate(
        {"name": name, "size": len(content), "sha256": sha256(content).hexdigest()}
    )


def _whole_seconds(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(microsecond=0)
