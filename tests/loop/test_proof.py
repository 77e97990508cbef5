"""The proof test against the virtual plant over OPC UA: its real shed time, and paths that fail."""

import json
import os
from math import isnan

import pytest

from steadyhand.controllers.errors import JournalError, LinkError
from steadyhand.runtime.config import load_config
from steadyhand.runtime.journal import take_lock
from steadyhand.runtime.proof_test import ProofSettings, proof_test
from tests.support.loop_rig import PERIOD_S
from tests.support.morning import from_the_morning_on, morning_plant

TIME_SCALE = 600.0
LATEST_H = 9.5


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    """It takes itself back after two periods."""
    with morning_plant(tmp_path_factory.mktemp("proof"), TIME_SCALE) as made:
        yield made


@pytest.fixture
def side(rig):
    with from_the_morning_on(rig, LATEST_H) as channel:
        yield channel


def run(rig, **settings):
    said = []
    loaded = load_config(rig.config)
    report = proof_test(
        loaded, ProofSettings(**{"periods": 3, "patience_s": 20.0, **settings}), said.append
    )
    assert said[-1] == "the plant has its own control back"
    return report, said


def test_every_path_works_and_the_shed_time_is_what_the_plant_does(rig, side):
    report, said = run(rig)
    assert report.passed, said
    assert [step.name for step in report.steps] == ["fallback", "safe set-point", "heartbeat stops"]
    assert report.configured_s == 2.0 * PERIOD_S
    assert report.shed_s - report.resolution_s <= 3.0 * PERIOD_S
    assert report.shed_s > PERIOD_S
    truth = rig.truth()
    assert not truth["controlled"]
    assert truth["writes"]["outside"] == truth["writes"]["ungranted"] == 0


def test_a_plant_that_takes_longer_than_is_configured_does_not_pass(tmp_path):
    """Its shed time is five periods, the configuration says two."""
    shed = ("--shed-s", str(5.0 * PERIOD_S))
    with morning_plant(tmp_path, TIME_SCALE, *shed) as slow, from_the_morning_on(slow, LATEST_H):
        report, said = run(slow)
    assert not report.passed, said
    last = report.steps[-1]
    assert (last.name, last.passed) == ("heartbeat stops", False), said
    assert "handover.shed says 1800 s: correct the plant, or that" in last.text
    assert 4.0 * PERIOD_S < report.shed_s < 6.0 * PERIOD_S


def test_a_plant_that_does_not_follow_the_safe_set_point_does_not_pass(rig, side):
    def say_and_keep(text):
        said.append(text)
        if text.startswith("fallback: passed"):
            side.grant(False)

    said = []
    report = proof_test(load_config(rig.config), ProofSettings(3, 20.0), say_and_keep)
    assert not report.passed
    assert [step.passed for step in report.steps] == [True, False], said
    assert "control was lost" in report.steps[-1].text
    assert isnan(report.shed_s), "what was not tried is not known"


def test_not_without_a_grant_and_not_beside_a_runtime(rig, side):
    side.grant(False)
    before = rig.truth()["writes"]["arrived"]
    with pytest.raises(LinkError, match="does not grant control"):
        run(rig, patience_s=1.0)
    assert rig.truth()["writes"]["arrived"] == before
    lock = take_lock(rig.journal)
    try:
        with pytest.raises(JournalError, match="one writer only"):
            run(rig)
    finally:
        os.close(lock)


def test_the_command_writes_its_report(rig, side, tmp_path):
    out = tmp_path / "proof.json"
    done = rig.cli("commission", "proof-test", "CONFIG", "--yes", "--by", "anna", "--periods", "3",
                   "--out", str(out))  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    data = json.loads(out.read_text())
    assert (data["passed"], data["by"], data["plant"]) == (True, "anna", "north-building")
    assert data["shed_configured_s"] == 2.0 * PERIOD_S
    assert 0.0 < data["shed_resolution_s"] < data["shed_s"]
    refused = rig.cli("commission", "proof-test", "CONFIG", "--by", "anna")
    assert refused.returncode == 1 and "Does the operator watch?" in refused.stdout
