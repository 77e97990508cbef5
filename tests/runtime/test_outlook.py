"""Words for who is in control and for the way back, over every situation."""

import pytest

from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime.events import EFFECTS, Situation
from steadyhand.runtime.outlook import Answer, in_control, way_back
from tests.support.panels import alarm, status

LAST = "Then 4 ticks in a row without any of this; 0 so far."


def told(**changes):
    return status(1, **({"source": "fallback", "why": None} | changes))


@pytest.mark.parametrize("mode", ["off", "shadow", "advisory", "limited", "full"])
@pytest.mark.parametrize("source", ["policy", "fallback", "hold", "safe", "hands_off"])
def test_the_answer(mode, source):
    answer = in_control(told(mode=mode, source=source))
    if source == "policy":
        assert answer is Answer.YES
    else:
        assert answer is (Answer.NO if mode in ("limited", "full") else Answer.WATCHING)


def test_who_drives_needs_no_way_back():
    assert list(way_back(told(source="policy"))) == []


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
