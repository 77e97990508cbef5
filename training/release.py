"""From a trained decision to a signed bundle in a folder of configuration."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steadyhand.controllers.errors import BundleError
from steadyhand.controllers.policies.golden import Golden
from steadyhand.controllers.signals import SignalSet
from steadyhand.runtime.bundle.contract import PlantContract
from steadyhand.runtime.bundle.manifest import Manifest, Scalar
from steadyhand.runtime.bundle.pack import inspect_bundle, pack_bundle
from steadyhand.runtime.bundle.signature import generate_key, public_pem, read_private

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a bundle and its keys live."""

    bundle: Path
    trusted: Path
    """Folder of public keys; the public half of the signing key is put there."""
    private_key: Path
    """Generated when absent; must stay out of version control."""


def signing_key(place: Place) -> Path:
    """The private key of `place`, made now if there is none; its public half becomes trusted.

    Raises:
        BundleError: the key cannot be read or written.
    """
    name = place.private_key.name.removesuffix(".key.pem")
    if not place.private_key.exists():
        place.private_key.parent.mkdir(parents=True, exist_ok=True)
        generate_key(place.private_key.parent, name, ["controller"])
    place.trusted.mkdir(parents=True, exist_ok=True)
    public = public_pem(read_private(place.private_key).public_key(), ["controller"])
    (place.trusted / f"{name}.pub.pem").write_bytes(public)
    return place.private_key


def next_version(bundle: Path) -> int:
    """One more than the bundle that is there; 1 if there is none that can be read."""
    try:
        return int(inspect_bundle(bundle)["manifest"]["version"]) + 1
    except (BundleError, OSError):
        return 1


def envelope(observations: Array, signals: SignalSet) -> dict[str, tuple[float, float]]:
    """Range of every signal in (n, n_y) observations, inside what the plant declares."""
    low = np.maximum(observations.min(0), signals.low)
    high = np.minimum(observations.max(0), signals.high)
    return {
        name: (float(low[i]), float(high[i]))
        for i, name in enumerate(signals.names)
        if low[i] < high[i]
    }


def publish(
    place: Place,
    contract: PlantContract,
    *,
    name: str,
    model: bytes,
    golden: Golden,
    trust: Mapping[str, Any],
    evidence: Mapping[str, Any],
    summary: Mapping[str, Scalar],
    provenance: Mapping[str, Scalar],
    seen: Array,
) -> Manifest:
    """Sign and write the bundle, after trying it as the edge will.

    Args:
        place: where to.
        contract: what the policy was made for.
        name: of the controller.
        model: ONNX graph.
        golden: known answers.
        trust: monitor data.
        evidence: what was measured, in full.
        summary: the few numbers people look at first.
        provenance: how it was made; the graph's hash is added.
        seen: (n, n_y) observations of nominal running.

    Raises:
        BundleError: the edge would refuse it.
    """
    key = read_private(signing_key(place))
    made = {**provenance, "policy_sha256": hashlib.sha256(model).hexdigest()}
    return pack_bundle(
        place.bundle,
        key,
        contract,
        name=name,
        version=next_version(place.bundle),
        model=model,
        golden=golden,
        trust=trust,
        evidence=evidence,
        provenance=made,
        evidence_summary=summary,
        envelope=envelope(seen, contract.observations),
    )
