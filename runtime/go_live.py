"""The go-live gate: mode full only for a controller that has shown in shadow, here, what it does.

Mode full is refused unless the configuration names evidence that is signed, in date, about this
plant, these settings and this bundle, and that shows what this site asks for; or says in a long
word that it does without. Where no bundle drives there is nothing to show: the heuristic is the
plant's own.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from steadyhand.controllers.errors import BundleError
from steadyhand.runtime.bundle.signature import TrustStore
from steadyhand.runtime.config import Loaded
from steadyhand.runtime.evidence import (
    Evidence,
    Thresholds,
    check_date,
    control_digest,
    laxer,
    missed,
    read_evidence,
    site_minima,
)

if TYPE_CHECKING:
    from steadyhand.runtime.bundle.load import Bundle, VerifiedBundle

REMEDY = (
    "run it in mode shadow, then `steadyhand evidence make`, and name the file in "
    "go_live.evidence; mode limited needs none (docs/commission.md)"
)


class Basis(StrEnum):
    """What mode full stands on."""

    EVIDENCE = "evidence"
    """Open: evidence shows what it does here."""
    WITHOUT = "without"
    """Open by the long word: nothing shows what it does here."""
    CLOSED = "closed"
    """Refused: there is no evidence that counts."""
    NO_BUNDLE = "no_bundle"
    """No bundle drives, so there is nothing to show."""


@dataclass(frozen=True, slots=True)
class GoLive:
    """What the configuration brings to the gate; read once, at the start."""

    word: bool
    """Does the configuration say in full that it does without evidence?"""
    evidence: Evidence | None
    why_none: str
    """Why there is no evidence that counts."""
    plant_name: str
    plant_id: str
    digest: str
    eased: tuple[str, ...] = ()
    """Where this site asks for less than is usual, in words."""

    @classmethod
    def read(cls, loaded: Loaded, now: datetime | None = None) -> "GoLive":
        """Look at what the configuration names. Bad evidence is none, and says why."""
        config, section = loaded.config, loaded.config.go_live
        evidence, why = None, "the configuration names no evidence"
        minima = site_minima(section)
        if section.evidence is not None and config.bundle is not None:
            try:
                trust = TrustStore.read(loaded.path(config.bundle.trusted_keys))
                file = loaded.path(section.evidence)
                # what is over keeps its date: it is told until there is something newer
                found = read_evidence(file, trust, now or datetime.now(UTC), in_date=False)
                evidence, why = found, _short_of(found, minima)
            except BundleError as error:
                why = str(error)
        digest = control_digest(config)
        word = section.without_evidence is not None
        eased = tuple(laxer(minima, Thresholds()))
        return cls(word, evidence, why, config.name, config.plant.id, digest, eased)

    def basis(self, bundle: "Bundle | None") -> Basis:
        """What mode full would stand on with `bundle`."""
        if bundle is None:
            return Basis.NO_BUNDLE
        if self.word:
            return Basis.WITHOUT
        return Basis.CLOSED if self.refusal(bundle) else Basis.EVIDENCE

    def refusal(self, bundle: "Bundle | None", now: datetime | None = None) -> str:
        """Why `bundle` may not drive in mode full; empty when it may."""
        if bundle is None or self.word:
            return ""
        why = self.why_none or self._other(self.evidence, bundle, now or datetime.now(UTC))
        return f"mode full is refused for {bundle.label}: {why}; {REMEDY}" if why else ""

    def not_after(self, bundle: "Bundle | None") -> datetime | None:
        """End of the evidence that lets `bundle` into mode full, where it needs any and has it."""
        if bundle is None or self.word or self.evidence is None:
            return None
        about_this = self.evidence.bundle_sha256 == bundle.manifest_sha256
        return self.evidence.not_after if about_this else None

    def words(self, bundle: "Bundle | None") -> str:
        """What lets `bundle` into mode full, or keeps it out, for people."""
        if bundle is None:
            return "no bundle: the heuristic needs no evidence"
        if self.word:
            return "mode full without evidence, by the word in go_live.without_evidence"
        why = self.refusal(bundle)
        if why or self.evidence is None:
            return why
        shown = self.evidence
        return (
            f"mode full by evidence of {shown.figures.get('days'):.3g} days in shadow, signed off "
            f"by {shown.signed_off_by}, until {shown.not_after:%Y-%m-%d}{self._ease()}"
        )

    def _ease(self) -> str:
        return f"; this site asks for less than is usual: {', '.join(self.eased)}" * bool(
            self.eased
        )

    def _other(self, evidence: Evidence | None, bundle: "Bundle", now: datetime) -> str:
        """What the evidence is about that is not here."""
        if evidence is None:
            return "there is none"
        try:
            check_date(evidence, now)
        except BundleError as error:
            return str(error)
        here = {
            "plant": (evidence.plant_name, self.plant_name),
            "type of plant": (evidence.plant_id, self.plant_id),
            "control settings": (evidence.control_digest, self.digest),
            "bundle": (evidence.bundle_sha256, bundle.manifest_sha256),
        }
        wrong = [
            f"{what} ({_short(theirs)}, here {_short(ours)})"
            for what, (theirs, ours) in here.items()
            if theirs != ours
        ]
        return f"the evidence is of another {', '.join(wrong)}" if wrong else ""


def _short_of(evidence: Evidence, minima: Thresholds) -> str:
    """What this site asks for and the evidence does not show; empty when it shows all."""
    short = missed(evidence.figures, minima)
    asks = "the evidence shows less than go_live asks for here"
    return f"GO_LIVE_FIGURES: {asks}: {'; '.join(short)}" if short else ""


def record_name(bundle: "Bundle | VerifiedBundle | None") -> str:
    """What records call a bundle."""
    if bundle is None:
        return "none"
    manifest = bundle.manifest
    return f"{manifest.name}@{manifest.version}#{bundle.manifest_sha256[:12]}"


def _short(text: str) -> str:
    return text if len(text) < 64 else text[:12]
