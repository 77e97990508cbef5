"""From a path to a controller that may be trusted to run, or one error that says why not.

Order: read once → frame → signature → manifest → hashes → plant → dates → version → contents →
trial in a limited process. Each step works on the bytes the step before has vouched for. Nothing
is written anywhere until `InstalledState.record`, which the caller does when the bundle runs.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from steadyhand.controllers.errors import BundleError, ModelError
from steadyhand.controllers.policies.golden import Golden
from steadyhand.controllers.signals import SignalSet
from steadyhand.runtime.bundle.archive import read_archive, read_file
from steadyhand.runtime.bundle.contract import PlantContract, check_plant
from steadyhand.runtime.bundle.installed import (
    InstalledState,
    check_dates,
    check_rollback,
    check_rollback_token,
)
from steadyhand.runtime.bundle.manifest import (
    EVIDENCE,
    GOLDEN,
    MANIFEST,
    POLICY,
    SIGNATURE,
    TRUST,
    Manifest,
    describe,
    parse_manifest,
)
from steadyhand.runtime.bundle.signature import CONTROLLER, TrustedKey, TrustStore
from steadyhand.runtime.bundle.strict_json import parse_json
from steadyhand.runtime.child import ChildLimits, examine
from steadyhand.runtime.policy_spec import PolicySpec


@dataclass(frozen=True, slots=True, eq=False)
class VerifiedBundle:
    """Signature, manifest and hashes are right; nothing is known yet about this plant."""

    manifest: Manifest
    manifest_sha256: str
    """Identity of the content: the manifest names every other byte by hash."""
    signer: TrustedKey
    parts: dict[str, bytes]


@dataclass(frozen=True, slots=True, eq=False)
class Bundle:
    """A controller that passed every check for one plant."""

    manifest: Manifest
    manifest_sha256: str
    signer: str
    spec: PolicySpec
    """What the policy is made from, with the plant's signals tightened by the bundle."""
    trust: dict[str, Any]
    """Calibration, thresholds and novelty data for the gate."""
    evidence: dict[str, Any]
    content: bytes = field(repr=False)
    """The file as it was verified."""
    examined: dict[str, Any] = field(default_factory=dict)
    """Report of the trial: provider, notice, golden_error, nodes, elements, opset, operators.
    Empty before it."""
    warnings: tuple[str, ...] = field(default=())

    def tried(self, trial: Callable[[], dict[str, Any]]) -> "Bundle":
        """This bundle with the report of `trial`, which builds its policy in a limited process.

        Raises:
            BundleError: the trial refused it.
        """
        try:
            report = trial()
        except ModelError as error:
            raise BundleError(f"BUNDLE_{error.code}", f"{POLICY}: {error}") from None
        except OSError as error:
            text = f"{POLICY}: no process to try it in: {error}"
            raise BundleError("BUNDLE_LIMIT", text) from None
        notice = (report["notice"],) if report["notice"] else ()
        return replace(self, examined=report, warnings=self.warnings + notice)

    @property
    def label(self) -> str:
        """Name and version for people: `thermal_storage-care v3`."""
        return f"{self.manifest.name} v{self.manifest.version}"

    @property
    def observations(self) -> SignalSet:
        """The plant's observations within the ranges of the bundle."""
        return self.spec.observations

    @property
    def outputs(self) -> SignalSet:
        """The plant's outputs within the limits of the bundle."""
        return self.spec.outputs


def verify_bundle(data: bytes, trust: TrustStore, now: datetime) -> VerifiedBundle:
    """Check that `data` is exactly what a trusted key signed.

    Raises:
        BundleError: BUNDLE_HASH, BUNDLE_ARCHIVE, BUNDLE_SIG, BUNDLE_MANIFEST, BUNDLE_LIMIT.
    """
    members = read_archive(data)
    raw = members[MANIFEST]
    signer = trust.verify(members[SIGNATURE], raw, CONTROLLER, now)
    manifest = parse_manifest(raw)
    if manifest.key_id != signer.key_id:
        raise BundleError(
            "BUNDLE_SIG",
            f"key_id={manifest.key_id} in the manifest, but {signer.key_id} signed it",
        )
    for entry in manifest.files:
        content = members[entry.name]
        if len(content) != entry.size:
            raise BundleError(
                "BUNDLE_HASH",
                f"{entry.name}: {len(content)} bytes, the manifest says {entry.size}; get the "
                "bundle again",
            )
        digest = sha256(content).hexdigest()
        if digest != entry.sha256:
            raise BundleError(
                "BUNDLE_HASH",
                f"{entry.name}: sha256 {digest[:16]}…, the manifest says {entry.sha256[:16]}…; get "
                "the bundle again",
            )
    parts: dict[str, bytes] = {entry.name: members[entry.name] for entry in manifest.files}
    return VerifiedBundle(manifest, sha256(raw).hexdigest(), signer, parts)


def load_bundle(
    path: Path,
    trust: TrustStore,
    plant: PlantContract,
    *,
    limits: ChildLimits | None = None,
    **settings: Any,  # noqa: ANN401  (those of admit_bundle)
) -> Bundle:
    """Read, verify and try the bundle at `path`; `settings` as `admit_bundle` takes them.

    Args:
        path: the bundle file.
        trust: keys that may sign controllers.
        plant: what the bundle must have been made for.
        limits: of the process in which the graph is tried.
        settings: see `admit_bundle`.

    Raises:
        BundleError: refused; `code` and message say why and what to do. Nothing was changed.
    """
    bundle = admit_bundle(path, trust, plant, **settings)
    return bundle.tried(lambda: examine(bundle.spec, limits))


def admit_bundle(
    path: Path,
    trust: TrustStore,
    plant: PlantContract,
    *,
    installed: InstalledState | None = None,
    rollback_token: bytes | None = None,
    allow_rollback: bool = False,
    providers: tuple[str, ...] = ("cpu",),
    require_provider: bool = False,
    accept_quick: bool = False,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Bundle:
    """Read and verify the bundle at `path`: everything but the trial, without which none may run.

    Args:
        path: the bundle file.
        trust: keys that may sign controllers.
        plant: what the bundle must have been made for.
        installed: versions that ran here; None skips the protection against rollback.
        rollback_token: signed permission to go back to exactly this bundle; read only where that
            is needed.
        allow_rollback: the operator's explicit word for the same.
        providers: execution providers wished for, in order.
        require_provider: refuse when the first of them cannot be had.
        accept_quick: also take one that `train --quick` made: it is good for nothing but tests.
        now: wall clock, aware of its zone.

    Raises:
        BundleError: refused; `code` and message say why and what to do. Nothing was changed.
    """
    moment = now()
    content = read_file(path)
    verified = verify_bundle(content, trust, moment)
    manifest, digest = verified.manifest, verified.manifest_sha256
    if manifest.provenance.get("quick") and not accept_quick:
        raise BundleError(
            "BUNDLE_QUICK",
            f"{manifest.name} v{manifest.version} was trained with --quick, to see the tool work: "
            "it is no controller for a plant. Train it without --quick",
        )
    observations, outputs = check_plant(manifest, plant)
    record = installed.get(plant.plant_id) if installed else None
    warning = check_dates(manifest, digest, record, moment)
    try:
        check_rollback(manifest, digest, record, allowed=allow_rollback)
    except BundleError:
        if rollback_token is None:
            raise
        check_rollback_token(rollback_token, manifest, digest, trust, moment)
    spec = PolicySpec(
        verified.parts[POLICY],
        observations,
        outputs,
        parse_golden(verified.parts[GOLDEN], manifest.tolerance),
        providers,
        require_provider,
        f"{manifest.name} v{manifest.version}",
    )
    gate_data = _parse_mapping(verified.parts[TRUST], TRUST)
    evidence = _parse_mapping(verified.parts[EVIDENCE], EVIDENCE)
    warnings = (warning,) if warning else ()
    return Bundle(
        manifest,
        digest,
        verified.signer.name,
        spec,
        gate_data,
        evidence,
        content,
        warnings=warnings,
    )


class _GoldenFile(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)

    observation: list[list[float]]
    action: list[list[float]]
    value: list[float]
    error: list[float]
    confidence_logit: Annotated[list[float], Field(max_length=10_000)]


def parse_golden(data: bytes, tolerance: float) -> Golden:
    """Known answers from the bytes of `golden.json`.

    Raises:
        BundleError: BUNDLE_GOLDEN not the rows of numbers they should be.
    """
    parse_json(data, GOLDEN, "BUNDLE_GOLDEN")
    try:
        rows = _GoldenFile.model_validate_json(data)
        columns = {
            name: np.array(getattr(rows, name), np.float32) for name in type(rows).model_fields
        }
    except ValidationError as error:
        raise BundleError("BUNDLE_GOLDEN", f"{GOLDEN}: {describe(error)}") from None
    except ValueError as error:  # rows of different length
        raise BundleError("BUNDLE_GOLDEN", f"{GOLDEN}: {error}") from None
    return Golden(**columns, tolerance=tolerance)


def _parse_mapping(data: bytes, name: str) -> dict[str, Any]:
    content = parse_json(data, name)
    if not isinstance(content, dict):
        raise BundleError("BUNDLE_MANIFEST", f"{name}: must be one JSON object")
    return content
