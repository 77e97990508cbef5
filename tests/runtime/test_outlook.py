"""Words for who is in control and for the way back, over every situation."""

import time
from datetime import UTC, datetime

import pytest

from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime.cli_operator import status_table
from steadyhand.runtime.events import EFFECTS, Situation
from steadyhand.runtime.outlook import Answer, held, in_control, way_back
from tests.support.panels import alarm, status

LAST = "Then 4 ticks in a row without any of this; 0 so far."


def told(**changes):
    return status(1, **({"source": "fallback", "why": None} | changes))


@pytest.mark.parametrize("mode", ["off", "shadow", "advisory", "limited", "full"])
@pytest.mark.parametrize("source", ["policy", "fallback", "hold", "safe", "hands_off"])
def test_the_answer(mode, source):
    answer = in_control(told(mode=mode, asked=mode, source=source))
    if source == "policy":
        assert answer is Answer.YES
    else:
        assert answer is (Answer.NO if mode in ("limited", "full") else Answer.WATCHING)


@pytest.mark.parametrize("asked", ["limited", "full"])
def test_what_was_asked_for_before_a_restart_is_not_watching(asked):
    assert in_control(told(mode="off", asked=asked, source="hands_off")) is Answer.NO


@pytest.mark.parametrize("mode", ["off", "shadow", "advisory", "limited", "full"])
def test_a_person_who_never_asked_wants_nothing_but_the_mode_in_force(mode):
    driving = mode in ("limited", "full")
    answer = in_control(told(mode=mode, asked=None, source="hands_off"))
    assert answer is (Answer.NO if driving else Answer.WATCHING)


def test_who_drives_needs_no_way_back():
    assert list(way_back(told(source="policy"))) == []


def held_output(until_s, **changes):
    return {
        "output": "storage_discharge_kw", "value": -50.0, "unit": "kW", "owner": "root",
        "reason": "pump test", "expires_s": 9000.0, "until_wall_s": until_s,
    } | changes  # fmt: skip


def test_an_override_is_told_with_its_weight(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    today = datetime.now(UTC).replace(hour=21, minute=14, second=3)
    told_now = list(held(told(source="policy", overrides=[held_output(today.timestamp())])))
    said = "override by root holds storage_discharge_kw at -50 kW until "
    assert told_now == [said + "21:14 UTC, reason: pump test"]
    later = datetime(2031, 1, 2, 3, 4, tzinfo=UTC).timestamp()
    assert list(held(told(overrides=[held_output(later)]))) == [
        said + "2031-01-02 03:04 UTC, reason: pump test"
    ]
    assert list(held(told())) == []


def test_an_override_of_an_output_that_the_plant_keeps_holds_nothing():
    (text,) = held(told(overrides=[held_output(0.0)], taken_out=["storage_discharge_kw"]))
    assert text.startswith("override by root would hold storage_discharge_kw at -50 kW until ")
    assert text.endswith("; but the plant keeps this output to itself")


@pytest.mark.parametrize(
    ("follows", "written", "words"),
    [
        ("policy", True, "sent 20, applied 19.5; follows: policy"),
        ("override", True, "sent 20, applied 19.5; follows: override"),
        ("none", False, "sent nothing, applied 19.5"),
        ("plant", True, "the plant keeps it: nothing is sent, applied 19.5"),
    ],
)
def test_the_table_says_whom_an_output_follows(follows, written, words):
    now = told(
        source="policy", cause={"code": "OK", "signal": "", "text": ""}, confidence=None,
        sent={"valve": 20.0}, applied={"valve": 19.5}, participation={"valve": follows},
        written=written, observations={}, certificates=[], journal={"fault": ""}, filter=None,
        controller="small@3#ab",
    )  # fmt: skip
    rows = list(zip(*(list(column.cells) for column in status_table(now).columns), strict=True))
    assert ("→ valve", words) in rows


@pytest.mark.parametrize("source", ["policy", "fallback", "hold", "safe", "hands_off"])
def test_an_override_stands_on_top_of_every_status(source):
    now = told(
        source=source, cause={"code": "OK", "signal": "", "text": ""}, confidence=None, sent={},
        observations={}, certificates=[], journal={"fault": ""}, filter=None,
        overrides=[held_output(0.0), held_output(0.0, output="valve", unit="")],
        controller="small@3#ab",
        swap={"file": "new.shb", "outcome": "refused", "code": "BUNDLE_SIG", "text": "unsigned"},
    )  # fmt: skip
    rows = list(zip(*(list(column.cells) for column in status_table(now).columns), strict=True))
    assert [name for name, _ in rows[:3]] == ["OVERRIDE", "OVERRIDE", "mode"]
    assert rows[0][1].startswith("override by root holds storage_discharge_kw at -50 kW until ")
    assert ("controller", "small@3#ab") in rows
    assert ("last swap", "new.shb: refused, BUNDLE_SIG: unsigned") in rows


def test_a_mode_that_only_watches():
    steps = list(way_back(told(source="hands_off", mode="shadow", trusted=False)))
    assert steps == ["A person asks for mode limited or full; it is shadow now.", LAST]


def test_link_before_grant():
    steps = list(way_back(told(source="hands_off", link="connecting", granted=False)))
    assert steps == [
        "The link to the plant comes up; it is connecting now and is tried by itself.", LAST
    ]  # fmt: skip
    steps = list(way_back(told(source="hands_off", granted=False)))
    assert steps == ["The plant grants control; that is done at the plant.", LAST]


def test_first_cause_first_and_only_what_keeps_the_policy_out():
    why = {"code": "OBS_STALE"}
    alarms = [alarm("GATE_OOD"), alarm("OBS_STALE"), alarm("ACT_RANGE"), alarm("TICK_GAP", False)]
    assert EFFECTS[ReasonCode.ACT_RANGE, Situation.DRIVING].demand == 0
    steps = list(way_back(told(alarms=alarms, why=why, trusted=False, gate="probation")))
    assert steps == [
        "OBS_STALE ends. To do: action of OBS_STALE.",
        "Also present, perhaps because of it: GATE_OOD; these end, too.",
        "The gate trusts the policy; it is in state probation now.",
        LAST,
    ]


def test_what_is_latched_waits_for_a_person():
    steps = list(way_back(told(latched=["MODE_FLAP"], clean=[9, 4])))
    assert steps == [
        "MODE_FLAP is acknowledged by a person, once its cause is gone.",
        "Then 4 ticks in a row without any of this; 4 so far.",
    ]


@pytest.mark.parametrize("code", list(ReasonCode))
@pytest.mark.parametrize("source", ["fallback", "safe", "hands_off"])
def test_every_code_has_words(code, source):
    for mode in ("off", "full"):
        steps = list(way_back(told(source=source, mode=mode, alarms=[alarm(str(code))])))
        assert steps[-1] == LAST
        assert all(step.endswith(".") for step in steps)
