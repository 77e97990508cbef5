"""The manifest of a controller bundle: what the files are, and what the policy was made for."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    model_validator,
)

from steadyhand.controllers.errors import BundleError
from steadyhand.runtime.bundle.strict_json import canonical_json, parse_json

MANIFEST, SIGNATURE = "manifest.json", "manifest.sig"
POLICY, TRUST, GOLDEN, EVIDENCE = "policy.onnx", "trust.json", "golden.json", "evidence.json"
PARTS = (POLICY, TRUST, GOLDEN, EVIDENCE)
"""Files named in the manifest, in archive order behind the manifest and its signature."""
MAX_MANIFEST_BYTES = 2**20


def _utc(moment: datetime) -> datetime:
    if moment.utcoffset() != timedelta(0) or moment.microsecond:
        raise ValueError("must be UTC in whole seconds, such as 2027-01-31T12:00:00Z")
    return moment.astimezone(UTC)


def stamp(moment: datetime) -> str:
    """`moment` as it stands in files: 2027-01-31T12:00:00Z."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


Moment = Annotated[AwareDatetime, AfterValidator(_utc), PlainSerializer(stamp, return_type=str)]
Identifier = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
Text = Annotated[str, Field(max_length=200)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Scalar = bool | int | Number | Text | None


class _Strict(BaseModel):
    """Unknown keys, other types, NaN and later changes are all refused."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


class SignalEntry(_Strict):
    """One column the policy reads or writes, as the trainer knew it."""

    name: Identifier
    unit: Text
    low: Number
    high: Number
    positive: Text = ""

    @model_validator(mode="after")
    def _ordered(self) -> "SignalEntry":
        if not self.low < self.high:
            raise ValueError(f"low {self.low} is not below high {self.high}")
        return self


class OutputEntry(SignalEntry):
    """An output, with the largest change per second the policy asks for; None: the plant's."""

    rate_per_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


class FileEntry(_Strict):
    """One file of the archive, by content."""

    name: Literal["policy.onnx", "trust.json", "golden.json", "evidence.json"]
    size: Annotated[int, Field(ge=0, le=512 * 2**20)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Range(_Strict):
    """Closed interval of a signal."""

    low: Number
    high: Number


class Manifest(_Strict):
    """Everything about a bundle that is not a number inside the graph.

    The signature covers these exact bytes, and the bytes must be the canonical ones, so there is
    one manifest for one content.
    """

    schema_version: Literal[1] = 1
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]{0,63}$")]
    version: Annotated[int, Field(ge=1, le=2**53)]
    """Rises with every bundle for a plant; an older one is refused without a rollback token."""
    plant_id: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]{0,63}$")]
    created: Moment
    not_before: Moment
    not_after: Moment
    key_id: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    purpose: Literal["controller"] = "controller"
    period_s: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    observations: Annotated[tuple[SignalEntry, ...], Field(min_length=1, max_length=4096)]
    outputs: Annotated[tuple[OutputEntry, ...], Field(min_length=1, max_length=512)]
    action_semantics: Literal["absolute setpoint"] = "absolute setpoint"
    recurrent_state: Annotated[tuple[Identifier, ...], Field(max_length=0)] = ()
    files: Annotated[tuple[FileEntry, ...], Field(min_length=len(PARTS), max_length=len(PARTS))]
    tolerance: Annotated[float, Field(gt=0, le=0.01)]
    provenance: Annotated[dict[Identifier, Scalar], Field(max_length=100)]
    envelope: Annotated[dict[Identifier, Range], Field(max_length=4096)]
    """Where the policy was trained and examined; never wider than the declared ranges."""
    evidence: Annotated[dict[Identifier, Scalar], Field(max_length=100)]
    """Summary of evidence.json."""

    @model_validator(mode="after")
    def _consistent(self) -> "Manifest":
        if tuple(entry.name for entry in self.files) != PARTS:
            raise ValueError(f"files must be exactly {', '.join(PARTS)}, in this order")
        if not self.not_before < self.not_after:
            raise ValueError(f"not_before {self.not_before} is not before {self.not_after}")
        names = [entry.name for entry in (*self.observations, *self.outputs)]
        doubled = sorted({name for name in names if names.count(name) > 1})
        if doubled:
            raise ValueError(f"signal {doubled[0]!r} occurs twice")
        declared = {entry.name: entry for entry in (*self.observations, *self.outputs)}
        for name, inner in self.envelope.items():
            outer = declared.get(name)
            if outer is None:
                raise ValueError(f"envelope names {name!r}, which is no signal of the bundle")
            if not outer.low <= inner.low < inner.high <= outer.high:
                raise ValueError(
                    f"envelope of {name}: {inner.low}..{inner.high} must lie in "
                    f"{outer.low}..{outer.high}"
                )
        return self

    def dump(self) -> bytes:
        """The exact bytes that are signed."""
        return canonical_json(self.model_dump(mode="json"))


def parse_manifest(data: bytes) -> Manifest:
    """Manifest from the exact bytes of `manifest.json`.

    Raises:
        BundleError: BUNDLE_MANIFEST, naming the first field that is wrong and its value.
    """
    if len(data) > MAX_MANIFEST_BYTES:
        raise BundleError(
            "BUNDLE_LIMIT", f"{MANIFEST}: {len(data)} bytes, at most {MAX_MANIFEST_BYTES}"
        )
    parse_json(data, MANIFEST)
    try:
        manifest = Manifest.model_validate_json(data)
    except ValidationError as error:
        raise BundleError("BUNDLE_MANIFEST", f"{MANIFEST}: {describe(error)}") from None
    if manifest.dump() != data:
        raise BundleError(
            "BUNDLE_MANIFEST",
            f"{MANIFEST}: not in canonical form (sorted keys, one-space indent): write it with "
            "`steadyhand bundle pack`",
        )
    return manifest


def describe(error: ValidationError) -> str:
    """First three findings of pydantic as `field=value: what is wrong`."""
    found = []
    for entry in error.errors()[:3]:
        field = ".".join(str(part) for part in entry["loc"]) or "content"
        value = repr(entry["input"])
        shown = "" if isinstance(entry["input"], dict | list) else f"={value[:60]}"
        found.append(f"{field}{shown}: {entry['msg'].removeprefix('Value error, ')}")
    more = error.error_count() - len(found)
    return "; ".join(found) + (f"; and {more} more" if more else "")
