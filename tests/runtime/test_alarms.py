"""Alarms: one per code, first cause, since when; shelving moves them out of the way and no more."""

from math import inf, nan

import pytest

from steadyhand.controllers.errors import RequestError
from steadyhand.controllers.frames import Fault
from steadyhand.controllers.reasons import ReasonCode as Code
from steadyhand.runtime.alarms import MAX_SHELF_S, Alarms
from steadyhand.runtime.events import EFFECTS, Severity, Situation

DRIVING = Situation.DRIVING
STALE = Fault(Code.OBS_STALE, "level", 70.0, 60.0)


def codes(alarms):
    return [alarm.code for alarm in alarms]


def test_one_alarm_per_code_with_its_first_cause_and_every_signal():
    alarms = Alarms()
    other = Fault(Code.OBS_STALE, "flow", 80.0, 60.0)
    alarms.update([(STALE, other), (STALE,)], (), DRIVING, 10.0)
    (alarm,) = alarms
    assert (alarm.code, alarm.signals, alarm.since_s) == (Code.OBS_STALE, ("level", "flow"), 10.0)
    assert "(level) value 70 limit 60" in alarm.text
    assert alarm.action == EFFECTS[Code.OBS_STALE, DRIVING].action
    assert alarm.active and not alarm.latched
    alarms.update([(other,)], (), DRIVING, 20.0)
    (alarm,) = alarms
    assert (alarm.signals, alarm.since_s) == (("flow",), 10.0)
    alarms.update([()], (), DRIVING, 30.0)
    assert not list(alarms)
    alarms.update([(STALE,)], (), DRIVING, 40.0)
    assert next(iter(alarms)).since_s == 40.0


def test_what_is_only_logged_is_no_alarm():
    alarms = Alarms()
    alarms.update([(Fault(Code.NOT_GRANTED), Fault(Code.FILTER_SHAPED))], (), DRIVING, 0.0)
    assert not list(alarms)


def test_the_most_serious_first_then_the_oldest():
    alarms = Alarms()
    alarms.update([(STALE,)], (), DRIVING, 0.0)
    faults = (Fault(Code.SAMPLE_BAD), Fault(Code.LINK_DOWN), STALE, Fault(Code.SERVER_ID))
    alarms.update([faults], (), DRIVING, 5.0)
    assert codes(alarms) == [Code.SERVER_ID, Code.LINK_DOWN, Code.OBS_STALE, Code.SAMPLE_BAD]


def test_what_is_latched_stays_and_keeps_its_first_words():
    alarms = Alarms()
    fault = Fault(Code.WRITE_CONTENTION, "valve", text="somebody wrote 7")
    alarms.update([(fault,)], {Code.WRITE_CONTENTION}, DRIVING, 1.0)
    alarms.update([()], {Code.WRITE_CONTENTION}, DRIVING, 2.0)
    (alarm,) = alarms
    assert alarm.latched and not alarm.active and alarm.since_s == 1.0
    assert "somebody wrote 7" in alarm.text
    alarms.update([()], (), DRIVING, 3.0)
    assert not list(alarms)


def test_a_latch_that_was_never_seen_active_is_shown_all_the_same():
    alarms = Alarms()
    alarms.update([()], {Code.MODE_FLAP}, DRIVING, 2.0)
    (alarm,) = alarms
    assert alarm.text == EFFECTS[Code.MODE_FLAP, DRIVING].alarm and alarm.latched


def test_shelving_ends_by_itself_and_leaves_the_alarm_alone():
    alarms = Alarms()
    alarms.update([(STALE,)], (), DRIVING, 0.0)
    made = alarms.shelve("OBS_STALE", "ann", "sensor is being changed", 0.0, 60.0)
    assert (made.owner, made.expires_s) == ("ann", 60.0)
    assert alarms.update([(STALE,)], (), DRIVING, 59.9) == ()
    assert codes(alarms) == [Code.OBS_STALE] and alarms.shelf(next(iter(alarms))) is made
    assert alarms.update([(STALE,)], (), DRIVING, 60.0) == (made,)
    assert alarms.shelf(next(iter(alarms))) is None and codes(alarms) == [Code.OBS_STALE]


def test_shelving_can_be_made_longer_and_undone():
    alarms = Alarms()
    alarms.shelve("OBS_STALE", "ann", "work", 0.0, 60.0)
    alarms.shelve("OBS_STALE", "bob", "more work", 30.0, 60.0)
    assert [(s.owner, s.expires_s) for s in alarms.shelves] == [("bob", 90.0)]
    assert alarms.unshelve("OBS_STALE").owner == "bob"
    assert not alarms.shelves


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"code": "OBS_STALEST"}, "UNKNOWN_CODE"),
        ({"code": ""}, "UNKNOWN_CODE"),
        ({"code": "HANDBACK"}, "NO_ALARM"),
        ({"code": "SERVER_ID"}, "CRITICAL"),
        ({"reason": "  "}, "REASON_MISSING"),
        ({"owner": ""}, "REASON_MISSING"),
        ({"for_s": 0.0}, "DURATION"),
        ({"for_s": -1.0}, "DURATION"),
        ({"for_s": nan}, "DURATION"),
        ({"for_s": inf}, "DURATION"),
        ({"for_s": MAX_SHELF_S + 1}, "DURATION"),
    ],
)
def test_refusals(change, code):
    alarms = Alarms()
    asked = {"code": "OBS_STALE", "owner": "ann", "reason": "w", "now_s": 0.0, "for_s": 1.0}
    with pytest.raises(RequestError) as refusal:
        alarms.shelve(**(asked | change))
    assert refusal.value.code == code
    assert not alarms.shelves


def test_what_became_critical_cannot_be_shelved():
    """The safe set-point that is not written is critical only as the last resort."""
    alarms = Alarms()
    alarms.update([(Fault(Code.WRITE_FAILED),)], (), Situation.LAST_RESORT, 0.0)
    assert next(iter(alarms)).severity is Severity.CRITICAL
    with pytest.raises(RequestError, match="CRITICAL"):
        alarms.shelve("WRITE_FAILED", "ann", "w", 0.0, 1.0)


def test_only_what_is_shelved_can_be_put_back():
    with pytest.raises(RequestError, match="NOT_SHELVED") as refusal:
        Alarms().unshelve("OBS_STALE")
    assert "nothing" in refusal.value.message


def test_an_alarm_that_becomes_critical_leaves_its_shelf():
    alarms = Alarms()
    alarms.shelve("WRITE_FAILED", "ann", "work", 0.0, 60.0)
    for situation, shelved in ((DRIVING, True), (Situation.LAST_RESORT, False)):
        alarms.update([(Fault(Code.WRITE_FAILED),)], (), situation, 1.0)
        assert (alarms.shelf(next(iter(alarms))) is not None) is shelved
