"""Go-live evidence: a signed file that says what a controller has shown in shadow on this plant.

First line: the 80 bytes of the signature in hexadecimal. Then canonical JSON, whose exact bytes are
signed. Nothing is parsed before the signature holds. Keys lie in the trust store of the bundles and
must be trusted for the purpose `go-live`: who may release a controller need not be who may let it
drive this plant.
"""

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from steadyhand.controllers.errors import BundleError
from steadyhand.runtime.bundle.manifest import Moment, stamp
from steadyhand.runtime.bundle.signature import GO_LIVE, SIGNATURE_BYTES, TrustStore, sign
from steadyhand.runtime.bundle.strict_json import canonical_json, parse_json
from steadyhand.runtime.config_fields import DAY_S, Share
from steadyhand.runtime.config_schema import Config
from steadyhand.runtime.config_schema import GoLive as Section

MAX_BYTES = 64 * 1024
_LINE = 2 * SIGNATURE_BYTES
_REMEDY = "make it with `steadyhand evidence make`"
_ELSEWHERE = ("name", "clock", "inference", "journal", "metrics", "panel", "operator", "scada",
              "bundle", "go_live")  # fmt: skip
_LINK_ELSEWHERE = ("endpoint", "request_timeout", "publishing", "command_life", "security")
_USUAL = Section()


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


class Thresholds(_Strict):
    """What the figures of a shadow run have to reach."""

    days: Annotated[float, Field(ge=0.0)] = _USUAL.minimum_time / DAY_S
    coverage: Share = _USUAL.minimum_coverage
    support: Share = _USUAL.minimum_support
    violation_high: Share = _USUAL.maximum_violation_rate
    """The upper end of the interval may be at most this."""
    correction_mean: Share = _USUAL.maximum_correction
    """At most this."""
    availability: Share = _USUAL.minimum_availability


AT_MOST = frozenset({"violation_high", "correction_mean"})


def site_minima(section: Section) -> Thresholds:
    """What this site asks of evidence, whatever thresholds it was made with."""
    return Thresholds(
        days=section.minimum_time / DAY_S,
        coverage=section.minimum_coverage,
        support=section.minimum_support,
        violation_high=section.maximum_violation_rate,
        correction_mean=section.maximum_correction,
        availability=section.minimum_availability,
    )


def laxer(one: Thresholds, other: Thresholds) -> list[str]:
    """Every threshold of `one` that asks for less than `other`, in words."""
    bounds, found = other.model_dump(), []
    for name, value in one.model_dump().items():
        if value > bounds[name] if name in AT_MOST else value < bounds[name]:
            found.append(f"{name} {value:.4g} instead of {bounds[name]:.4g}")
    return found


class Evidence(_Strict):
    """What is signed."""

    kind: Literal["steadyhand go-live evidence"] = "steadyhand go-live evidence"
    schema_version: Literal[1] = 1
    plant_name: str
    plant_id: str
    control_digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    bundle: str
    bundle_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    created: Moment
    not_after: Moment
    journal_head: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """Hash of the last record that was looked at: which journal it was."""
    figures: dict[str, float | int | str | None]
    thresholds: Thresholds
    signed_off_by: Annotated[str, Field(min_length=1, max_length=200)]


def control_digest(config: Config) -> str:
    """SHA-256 over everything in a configuration that bears on what is decided and written.

    Names, addresses, certificates, people, and where records go are no part of it.
    """
    data = config.model_dump(mode="json", exclude=set(_ELSEWHERE))
    data["modes"].pop("initial", None)
    for key in _LINK_ELSEWHERE:
        data["link"].pop(key, None)
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def missed(figures: Mapping[str, Any], thresholds: Thresholds) -> list[str]:
    """Every threshold that the figures do not reach, in words."""
    found = []
    for name, bound in thresholds.model_dump().items():
        value = figures.get(name)
        at_most = name in AT_MOST
        if value is None:
            found.append(f"{name} is not known; {'at most' if at_most else 'at least'} {bound:g}")
        elif not (value <= bound if at_most else value >= bound):
            found.append(f"{name} is {value:.4g}; {'at most' if at_most else 'at least'} {bound:g}")
    return found


def seal(evidence: Evidence, private: Ed25519PrivateKey) -> bytes:
    """The file's content.

    Raises:
        BundleError: GO_LIVE_FIGURES the figures do not reach their thresholds: it is not signed.
    """
    short = missed(evidence.figures, evidence.thresholds)
    if short:
        raise BundleError("GO_LIVE_FIGURES", f"not signed: {'; '.join(short)}")
    message = canonical_json(evidence.model_dump(mode="json"))
    return sign(private, message).hex().encode() + b"\n" + message


def read_evidence(
    file: Path, trust: TrustStore, now: datetime, *, in_date: bool = True
) -> Evidence:
    """Evidence from `file`, signed by a key that is trusted for it, and in date.

    Args:
        file: made by `steadyhand evidence make`.
        trust: who may sign it.
        now: the present.
        in_date: False: its own dates are the caller's business.

    Raises:
        BundleError: GO_LIVE_FILE cannot be read or is none; BUNDLE_SIG not signed by such a key;
            GO_LIVE_DATE it is over; GO_LIVE_FIGURES the figures do not reach their thresholds.
    """
    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise BundleError(
            "GO_LIVE_FILE", f"{file}: cannot be read: {error.strerror}; {_REMEDY}"
        ) from None
    line, message = content[:_LINE], content[_LINE + 1 :]
    try:
        signature = bytes.fromhex(line.decode("ascii"))
    except ValueError:
        signature = b""
    if (
        len(content) > MAX_BYTES
        or len(signature) != SIGNATURE_BYTES
        or content[_LINE:][:1] != b"\n"
    ):
        raise BundleError("GO_LIVE_FILE", f"{file}: is no go-live evidence; {_REMEDY}")
    trust.verify(signature, message, GO_LIVE, now)
    data = parse_json(message, file.name, "GO_LIVE_FILE", _REMEDY)
    try:
        evidence = Evidence.model_validate_json(message)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BundleError("GO_LIVE_FILE", f"{file}: {where}: {first['msg']}; {_REMEDY}") from None
    if canonical_json(data) != message:
        raise BundleError("GO_LIVE_FILE", f"{file}: is not canonical JSON; {_REMEDY}")
    if in_date:
        check_date(evidence, now)
    short = missed(evidence.figures, evidence.thresholds)
    if short:
        raise BundleError("GO_LIVE_FIGURES", "; ".join(short))
    return evidence


def check_date(evidence: Evidence, now: datetime) -> None:
    """Refuse evidence from the future or the past.

    Raises:
        BundleError: GO_LIVE_DATE.
    """
    if not evidence.created <= now <= evidence.not_after:
        raise BundleError(
            "GO_LIVE_DATE",
            f"holds from {stamp(evidence.created)} to {stamp(evidence.not_after)}; it is "
            f"{stamp(now.astimezone(UTC))}: shadow again and {_REMEDY}",
        )
