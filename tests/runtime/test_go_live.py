"""Evidence that opens mode full, and everything that does not."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from steadyhand.controllers.errors import BundleError
from steadyhand.runtime.bundle.signature import TrustStore, generate_key, read_private
from steadyhand.runtime.config import Loaded, load_config
from steadyhand.runtime.config_schema import UNPROVEN_WORD
from steadyhand.runtime.evidence import (
    Evidence,
    Thresholds,
    control_digest,
    missed,
    read_evidence,
    seal,
)
from steadyhand.runtime.go_live import Basis, GoLive, record_name

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
NINE_DAYS = timedelta(days=9)
SHIPPED = Path(__file__).parents[2] / "configs" / "thermal_storage" / "steadyhand.yaml"
FIGURES = {
    "days": 14.0, "coverage": 1.0, "support": 0.6, "violation_high": 0.002,
    "correction_mean": 0.02, "availability": 0.97,
}  # fmt: skip
WORD = (
    "go_live:                     # a real plant needs evidence instead: docs/commission.md\n"
    f"  without_evidence: {UNPROVEN_WORD}\n"
)


@dataclass
class Manifest:
    name: str = "care"
    version: int = 3


@dataclass
class Named:
    """As much of a bundle as the gate looks at."""

    manifest_sha256: str = "b" * 64
    label: str = "care 3"
    manifest: Manifest = None


def configured(folder, go_live, changes=()):
    text = SHIPPED.read_text("utf-8")
    assert WORD in text
    text = text.replace(WORD, go_live)
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    file = folder / "steadyhand.yaml"
    file.write_text(text, "utf-8")
    return load_config(file)


@pytest.fixture
def site(tmp_path):
    """A site with a key for going live and one for releases."""
    keys = tmp_path / "keys"
    keys.mkdir()
    generate_key(keys, "site", ["go-live"])
    generate_key(keys, "release", ["controller"])
    (tmp_path / "elsewhere").mkdir()
    generate_key(tmp_path / "elsewhere", "nobody", ["go-live"])
    return tmp_path


def evidence(site, **changes):
    loaded = configured(site, "")
    given = {
        "plant_name": loaded.config.name,
        "plant_id": loaded.config.plant.id,
        "control_digest": control_digest(loaded.config),
        "bundle": "care 3",
        "bundle_sha256": "b" * 64,
        "created": NOW - timedelta(days=1),
        "not_after": NOW + timedelta(days=30),
        "journal_head": "c" * 64,
        "figures": FIGURES,
        "thresholds": Thresholds(),
        "signed_off_by": "anna",
    }
    return Evidence(**(given | changes))


def put(site, made, key="keys/site"):
    (site / "go.evidence").write_bytes(seal(made, read_private(site / f"{key}.key.pem")))


def gate(site, made=None, key="keys/site", changes=(), now=NOW):
    if made is not None:
        put(site, made, key)
    loaded = configured(site, "go_live: {evidence: go.evidence}\n", changes)
    assert isinstance(loaded, Loaded), loaded
    return GoLive.read(loaded, now)


def test_good_evidence_opens_the_gate_for_its_bundle_alone(site):
    made = gate(site, evidence(site))
    assert made.refusal(Named(), NOW) == ""
    assert "another bundle (bbbbbbbbbbbb, here dddddddddddd)" in made.refusal(Named("d" * 64), NOW)
    assert made.evidence.signed_off_by == "anna"


def test_it_closes_by_itself_on_its_last_day(site):
    made = gate(site, evidence(site))
    assert made.refusal(Named(), NOW + timedelta(days=30)) == ""
    assert "GO_LIVE_DATE" in made.refusal(Named(), NOW + timedelta(days=31))


@pytest.mark.parametrize(
    ("changes", "key", "words"),
    [
        ({"plant_name": "south"}, "keys/site", "another plant (south, here north-building)"),
        ({"plant_id": "arm"}, "keys/site", "another type of plant"),
        ({"control_digest": "a" * 64}, "keys/site", "another control settings"),
        ({"not_after": NOW - timedelta(hours=1)}, "keys/site", "GO_LIVE_DATE"),
        ({"created": NOW + timedelta(hours=1)}, "keys/site", "GO_LIVE_DATE"),
        ({}, "keys/release", "is for controller, not for go-live"),
        ({}, "elsewhere/nobody", "unknown key"),
    ],
)
def test_evidence_of_something_else_is_none(site, changes, key, words):
    refusal = gate(site, evidence(site, **changes), key).refusal(Named(), NOW)
    assert words in refusal
    assert "run it in mode shadow" in refusal, "the remedy"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (None, ""),
        (("parameters: {} ", "parameters: {power_cap_kw: 150 kW} "), "another control settings"),
        (("clean_ticks: 4", "clean_ticks: 5"), "another control settings"),
        (("s=storage_energy_kwh", "s=other"), "another control settings"),
        (("opc.tcp://127.0.0.1:4840", "opc.tcp://10.0.0.1:4841"), ""),
        (('initial: "off"', "initial: shadow"), ""),
        (("directory: var/journal", "directory: var/other"), ""),
    ],
)
def test_what_bears_on_control_counts_and_nothing_else(site, change, words):
    put(site, evidence(site))
    changes = () if change is None else (change,)
    refusal = gate(site, changes=changes).refusal(Named(), NOW)
    assert (words in refusal) if words else refusal == ""


def test_every_changed_byte_is_refused(site):
    put(site, evidence(site))
    good = (site / "go.evidence").read_bytes()
    trust = TrustStore.read(site / "keys")
    assert read_evidence(site / "go.evidence", trust, NOW).figures == FIGURES
    for i in range(0, len(good), 7):
        spoilt = bytearray(good)
        spoilt[i] ^= 1
        (site / "go.evidence").write_bytes(bytes(spoilt))
        if bytes(spoilt[:160]).lower() == good[:160] and spoilt[161:] == good[161:]:
            continue  # the same signature in other letters
        with pytest.raises(BundleError):
            read_evidence(site / "go.evidence", trust, NOW)


@pytest.mark.parametrize("content", [b"", b"\n", b"0" * 160, b"z" * 161, b"0" * 70_000])
def test_what_is_no_evidence_is_told_so(site, content):
    (site / "go.evidence").write_bytes(content)
    assert "go.evidence: is no go-live evidence" in gate(site).refusal(Named(), NOW)
    (site / "go.evidence").unlink()
    assert "cannot be read: No such file" in gate(site).refusal(Named(), NOW)


@pytest.mark.parametrize("name", list(FIGURES))
def test_figures_below_their_thresholds_are_not_signed(site, name):
    worse = {**FIGURES, name: 0.5 if name in ("violation_high", "correction_mean") else 0.1}
    assert [text.split()[0] for text in missed(worse, Thresholds())] == [name]
    with pytest.raises(BundleError, match=f"not signed: {name} is"):
        put(site, evidence(site, figures=worse))
    with pytest.raises(BundleError, match=f"{name} is not known"):
        put(site, evidence(site, figures={**FIGURES, name: None}))


LAX = Thresholds(
    days=0.0, coverage=0.0, support=0.0, violation_high=1.0, correction_mean=1.0, availability=0.0
)
POOR = {
    "days": 0.01, "coverage": 0.5, "support": 0.0, "violation_high": 0.9,
    "correction_mean": 0.9, "availability": 0.1,
}  # fmt: skip


def test_what_the_site_asks_for_counts_whatever_the_evidence_was_made_with(site):
    put(site, evidence(site, figures=POOR, thresholds=LAX))
    assert read_evidence(site / "go.evidence", TrustStore.read(site / "keys"), NOW).figures == POOR
    made = gate(site)
    refusal = made.refusal(Named(), NOW)
    assert "GO_LIVE_FIGURES" in refusal
    for words in (
        "days is 0.01; at least 7", "coverage is 0.5; at least 0.95",
        "support is 0; at least 0.2", "violation_high is 0.9; at most 0.01",
        "correction_mean is 0.9; at most 0.1", "availability is 0.1; at least 0.8",
    ):  # fmt: skip
        assert words in refusal
    assert made.basis(Named()) is Basis.CLOSED


EVERY_MINIMUM = {
    "minimum_time": ("14 d", "15 d"),
    "minimum_coverage": ("1.0", None),
    "minimum_support": ("0.6", "0.61"),
    "minimum_availability": ("0.97", "0.98"),
    "maximum_violation_rate": ("0.002", "0.001"),
    "maximum_correction": ("0.02", "0.01"),
}


@pytest.mark.parametrize("key", list(EVERY_MINIMUM))
def test_each_minimum_of_the_site_is_a_bound_that_is_reached_or_not(site, key):
    put(site, evidence(site))
    reached, beyond = EVERY_MINIMUM[key]

    def refusal(value):
        loaded = configured(site, f"go_live: {{evidence: go.evidence, {key}: {value}}}\n")
        assert isinstance(loaded, Loaded), loaded
        return GoLive.read(loaded, NOW).refusal(Named(), NOW)

    assert refusal(reached) == ""
    if beyond is not None:
        assert "GO_LIVE_FIGURES" in refusal(beyond)


def test_a_site_that_asks_for_less_than_is_usual_is_told_so(site):
    put(site, evidence(site, not_after=datetime.now(UTC).replace(microsecond=0) + NINE_DAYS))
    loaded = configured(site, "go_live: {evidence: go.evidence, minimum_time: 1 d}\n")
    assert "asks for less than is usual: days 1 instead of 7" in GoLive.read(loaded).words(Named())
    loaded = configured(site, "go_live: {evidence: go.evidence, minimum_time: 8 d}\n")
    made = GoLive.read(loaded)
    assert "less than is usual" not in made.words(Named())
    assert made.basis(Named()) is Basis.EVIDENCE
    assert made.basis(None) is Basis.NO_BUNDLE


def test_the_word_does_without_and_a_half_word_does_not(site):
    made = GoLive.read(configured(site, WORD), NOW)
    assert made.basis(Named()) is Basis.WITHOUT and made.basis(None) is Basis.NO_BUNDLE
    assert made.refusal(Named(), NOW) == "" and "without evidence, by the word" in made.words(
        Named()
    )
    (problem,) = configured(site, "go_live: {without_evidence: yes_please}\n")
    assert problem.code == "CFG_GO_LIVE" and UNPROVEN_WORD in problem.message
    (problem,) = configured(site, f"go_live: {{evidence: x, without_evidence: {UNPROVEN_WORD}}}\n")
    assert problem.code == "CFG_GO_LIVE" and "contradict" in problem.message


def test_nothing_configured_is_a_closed_gate_but_not_for_the_heuristic(site):
    made = GoLive.read(configured(site, ""), NOW)
    assert "the configuration names no evidence" in made.refusal(Named(), NOW)
    assert made.refusal(None, NOW) == "" and "heuristic" in made.words(None)


def test_the_words_for_check_and_status(site):
    made = gate(
        site,
        evidence(
            site,
            not_after=datetime.now(UTC).replace(microsecond=0) + timedelta(days=9),
            created=NOW - timedelta(days=900),
        ),
        now=NOW,
    )
    assert "14 days in shadow, signed off by anna, until" in made.words(Named())
    assert record_name(None) == "none"
    assert record_name(Named(manifest=Manifest())) == "care@3#bbbbbbbbbbbb"
