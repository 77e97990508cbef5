"""The response test against the virtual plant over OPC UA: right tags pass, wrong ones stop it."""

import json
import os

import pytest

from steadyhand.adapters.sim.faults import FaultKind, SignalFault
from steadyhand.controllers.errors import JournalError, LinkError, SignalError
from steadyhand.runtime.config import load_config
from steadyhand.runtime.journal import take_lock
from steadyhand.runtime.response_test import TestSettings, response_test
from steadyhand.runtime.responses import GOOD, Answer
from tests.support.morning import from_the_morning_on, morning_plant

OUTPUT = "storage_discharge_kw"


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    with morning_plant(tmp_path_factory.mktemp("commission"), 1_500.0) as made:
        yield made


@pytest.fixture
def side(rig):
    with from_the_morning_on(rig, latest_h=12.0) as channel:
        yield channel


def run(rig, **settings):
    said = []
    loaded = load_config(rig.config)
    report = response_test(loaded, TestSettings(**{"patience_s": 20.0, **settings}), said.append)
    assert said[-1] == "the plant has its own control back"
    return report, said


def wrong(report):
    return {item.signal: item.answer for item in report.responses if item.answer not in GOOD}


def scale(side, signal, factor):
    side.inject(SignalFault(signal, FaultKind.WRONG, parameters={"scale": factor}))


def test_right_tags_pass_and_the_plant_has_itself_back(rig, side):
    report, said = run(rig)
    assert report.passed, (report.problems, [r.text for r in report.responses], said)
    truth = rig.truth()
    assert not truth["controlled"]
    assert truth["writes"]["outside"] == truth["writes"]["ungranted"] == 0
    assert "asking the plant for control" in said and "granted" in said
    assert any("period 12 of 12" in line for line in said)


@pytest.mark.parametrize(
    ("signal", "factor", "answer"),
    [
        ("storage_flow_kw", -0.9, Answer.SIGN),
        ("electric_power_kw", 0.293, Answer.SIZE),
    ],
)
def test_a_negated_or_scaled_tag_stops_it(rig, side, signal, factor, answer):
    scale(side, signal, factor)
    report, said = run(rig)
    assert wrong(report).get(signal) is answer, (report.problems, report.responses, said)
    assert not report.passed and any(line.startswith(f"{signal}: {answer}") for line in said)


def test_swapped_tags_stop_it(rig, side):
    side.call("swap", signal="electric_power_kw", other="load_forecast_03_kw")
    report, _ = run(rig)
    found = wrong(report)
    assert {"electric_power_kw", "load_forecast_03_kw"} <= set(found), report


def test_a_measurement_out_of_its_range_is_told_before_anything_moves(rig, side):
    scale(side, "electric_power_kw", -1.0)
    before = rig.truth()["writes"]["arrived"]
    report, said = run(rig)
    assert report.responses == () and not report.passed
    assert "OBS_RANGE: a measurement is out of range (electric_power_kw)" in report.problems[0]
    assert rig.truth()["writes"]["arrived"] == before
    assert "asking the plant for control" not in said


def test_without_a_grant_nothing_moves(rig, side):
    side.grant(False)
    before = rig.truth()["writes"]["arrived"]
    with pytest.raises(LinkError, match="does not grant control"):
        run(rig, patience_s=1.0)
    assert rig.truth()["writes"]["arrived"] == before


def test_the_operator_takes_the_plant_back_in_the_middle(rig, side):
    loaded = load_config(rig.config)

    def say(text):
        if "period 3 of" in text:
            side.grant(False)

    report = response_test(loaded, TestSettings(), say)
    assert not report.passed and "control was lost" in report.problems[0]
    assert rig.truth()["writes"]["ungranted"] <= 1, "at most the write already under way"


def test_not_beside_a_runtime_and_not_for_an_output_that_is_not_there(rig, side):
    lock = take_lock(rig.journal)
    try:
        with pytest.raises(JournalError, match="one writer only"):
            run(rig)
    finally:
        os.close(lock)
    with pytest.raises(SignalError, match="valve"):
        run(rig, outputs=("valve",))


def test_a_plant_that_lets_strangers_write_does_not_pass(rig, side, monkeypatch):
    """That a real server is asked: tests/adapters/opcua/test_strangers.py."""
    from steadyhand.adapters.opcua import strangers

    assert not run(rig, outputs=(OUTPUT,), periods=8)[0].open_doors
    told = "whoever comes without encryption or a name may write it"
    monkeypatch.setattr(strangers, "open_doors", lambda settings, tags: [told])
    report, said = run(rig, outputs=(OUTPUT,), periods=8)
    assert report.open_doors == (told,)
    assert not report.passed
    assert said[0] == f"the plant's server is open: {told}"


def test_the_command(rig, side, tmp_path):
    scale(side, "storage_flow_kw", -0.9)
    out = tmp_path / "result.json"
    done = rig.cli(
        "commission", "response-test", "CONFIG", "--yes", "--periods", "8", "--out", str(out)
    )
    assert done.returncode == 1, done.stderr
    assert "do not go on" in done.stdout and "wrong sign" in done.stdout
    data = json.loads(out.read_text())
    assert data["passed"] is False and data["responses"][0]["output"] == OUTPUT
    refused = rig.cli("commission", "response-test", "CONFIG")
    assert refused.returncode == 1 and "Does the operator watch?" in refused.stdout
