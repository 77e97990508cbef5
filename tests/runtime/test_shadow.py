"""A shadow run scored from its journal, against policies whose figures are known beforehand."""

import json
from datetime import UTC, datetime
from math import nan
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from steadyhand.adapters.sim.plants import RunSpec
from steadyhand.controllers.catalogue import plant_kind
from steadyhand.controllers.errors import JournalError
from steadyhand.controllers.frames import FilterMode, Proposal, ProposalStatus, Source
from steadyhand.runtime.bundle.load import verify_bundle
from steadyhand.runtime.bundle.signature import TrustStore
from steadyhand.runtime.cli import complete
from steadyhand.runtime.explain import explain
from steadyhand.runtime.go_live import record_name
from steadyhand.runtime.journal import Journal
from steadyhand.runtime.modes import Mode
from steadyhand.runtime.reader import JournalReader
from steadyhand.runtime.shadow import MEANINGS, Figures, figures, interval
from tests.support.loop_lockstep import Bench

KIND = plant_kind("thermal_storage")
SPAN = 850.0


class Imitator:
    """Proposes what the plant's own control will do, and `beside` it in every `every`th tick."""

    def __init__(self, beside=0.0, every=1, absent=0):
        self.local = KIND.heuristics["storage_priority"](KIND.parameters)
        self.beside, self.every, self.absent, self.asked = beside, every, absent, 0

    def propose(self, observation):
        self.asked += 1
        if self.asked <= self.absent:
            return Proposal(np.array([nan]), ProposalStatus.LATE)
        wish = self.local.act(observation)
        if self.asked % self.every == 0:
            wish = np.clip(wish + self.beside, -400.0, 450.0)
        return Proposal(wish)


class Always:
    def __init__(self, action):
        self.action = np.array([action])

    def propose(self, observation):
        return Proposal(self.action)


def shadow(path, policy, ticks=96, mode=Mode.SHADOW, bundle="care@1#abc", start=None):
    bench = Bench(policy, RunSpec(seed=3, days=2), mode=mode, keep=4096)
    bench.recorder.use_bundle(bundle)
    with Journal(path, bench.recorder):
        bench.recorder.event({"event": "Start", **(start or {})})
        seen = bench.ticks(ticks)
    return bench, seen


def scored(path, **which):
    with JournalReader(path) as journal:
        return figures(journal, **which)


def test_the_proposal_is_filtered_and_written_nowhere(tmp_path):
    bench, seen = shadow(tmp_path / "j", Always(450.0))
    assert bench.runner.log.counts.arrived == 0 and bench.runner.heartbeat == 0
    for tick in seen:
        assert tick.source is Source.HANDS_OFF and not tick.sent.written
        assert tick.wanted.tolist() == [450.0]
    assert any(tick.certified.report.mode is not FilterMode.PASS for tick in seen)
    with JournalReader(tmp_path / "j") as journal:
        assert "the policy's proposal, which is only looked at" in explain(journal, 5)


def test_in_mode_off_nothing_is_scored(tmp_path):
    _, seen = shadow(tmp_path / "j", Always(450.0), ticks=5, mode=Mode.OFF)
    assert all(np.array_equal(tick.wanted, tick.observation.applied) for tick in seen)
    assert scored(tmp_path / "j") == Figures()


def test_who_does_what_the_plant_does_is_supported_everywhere(tmp_path):
    shadow(tmp_path / "j", Imitator())
    found = scored(tmp_path / "j")
    assert (found.ticks, found.days, found.coverage) == (96, 1.0, 1.0)
    assert found.compared == 95
    assert found.support == 1.0 and found.distance_p95 < 1e-3
    assert found.availability == 1.0 and found.confidence_mean == 1.0
    assert found.violations == 0 and found.violation_low == 0.0 < found.violation_high < 0.05
    assert found.begin <= found.end and found.begin.endswith("Z")


def test_every_fourth_proposal_far_away(tmp_path):
    shadow(tmp_path / "j", Imitator(beside=-0.2 * SPAN, every=4, absent=6))
    found = scored(tmp_path / "j")
    assert found.coverage == pytest.approx(90 / 96)
    # asked 7 to 95 are compared, and 8, 12 … 92 of them are beside
    assert found.compared == 89
    assert found.support == pytest.approx(1.0 - 22 / 89)
    assert found.distance_mean == pytest.approx(0.2 * 22 / 89, abs=0.005)


def test_what_the_limits_forbid_is_told_apart_from_what_cannot_be_made_safe(tmp_path):
    shadow(tmp_path / "j", Always(-400.0))
    found = scored(tmp_path / "j")
    assert 0.2 < found.forbidden_share <= 1.0
    assert 0.0 < found.correction_mean < found.correction_p95 <= 1.0
    assert found.violations == 0, "the filter would have made every one of them safe"
    assert found.support < 0.8


def test_only_what_was_asked_for_counts(tmp_path):
    shadow(tmp_path / "j", Imitator(), ticks=10, start={"plant": "north", "control": "a" * 64})
    path = tmp_path / "j"
    assert scored(path, bundle="care@1#abc").ticks == 10
    assert scored(path, bundle="care@2#abc").ticks == 0
    assert scored(path, control="a" * 64, plant="north").ticks == 10
    assert scored(path, control="b" * 64).ticks == 0
    assert scored(path, plant="south").ticks == 0


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([], (nan, nan)),
        ([False] * 100, (0.0, 0.03699)),
        ([True] * 100, (0.96301, 1.0)),
        ([i % 20 == 0 for i in range(100)], (0.02154, 0.11175)),
        ([True], (0.20655, 1.0)),
    ],
)
def test_wilsons_interval_by_hand(found, expected):
    assert interval(found) == pytest.approx(expected, abs=1e-5, nan_ok=True)


def test_ticks_that_repeat_each_other_tell_less():
    apart = [i % 10 == 0 for i in range(1000)]
    together = [i % 1000 < 100 for i in range(1000)]
    narrow, wide = interval(apart), interval(together)
    assert wide[1] - wide[0] > 5.0 * (narrow[1] - narrow[0])


def test_the_command_prints_a_table_and_data(tmp_path):
    shadow(tmp_path / "j", Imitator(), ticks=20)
    shown = CliRunner().invoke(complete(), ["shadow", "report", str(tmp_path / "j")])
    assert shown.exit_code == 0
    assert all(name in shown.stdout for name in MEANINGS)
    data = CliRunner().invoke(complete(), ["shadow", "report", str(tmp_path / "j"), "--json"])
    assert '"support": 1.0' in data.stdout and "NaN" not in data.stdout


def test_evaluate_tells_what_one_bundle_proposed_in_a_journal(tmp_path):
    """Of the shipped bundle, and of no other controller in the same journal."""
    shipped = Path(__file__).parents[2] / "configs" / "thermal_storage"
    file, keys = shipped / "thermal_storage.shb", shipped / "keys"
    trust = TrustStore.read(keys)
    name = record_name(verify_bundle(file.read_bytes(), trust, datetime.now(UTC)))
    shadow(tmp_path / "mine", Imitator(), ticks=20, bundle=name)
    shadow(tmp_path / "other", Imitator(), ticks=20)

    def evaluate(journal):
        words = ["evaluate", str(file), "--trusted", str(keys), "--journal", str(journal)]
        return CliRunner().invoke(complete(), [*words, "--json"])

    assert json.loads(evaluate(tmp_path / "mine").stdout)["support"] == 1.0
    refused = evaluate(tmp_path / "other")
    assert isinstance(refused.exception, JournalError)
    assert "no tick in mode shadow" in str(refused.exception)
