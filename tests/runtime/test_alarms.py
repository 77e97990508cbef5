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
    assert alarm.active and not alarm.latched and not alarm.unacknowledged
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


# -- wanting an answer (ISA-18.2) ------------------------------------------------------------------

DOWN = Fault(Code.LINK_DOWN, text="no route")
CLASH = Fault(Code.WRITE_CONTENTION, "valve", text="somebody wrote 7")
STATES = {
    "normal": None, "there, unacknowledged": (True, True), "there, acknowledged": (True, False),
    "gone, unacknowledged": (False, True),
}  # fmt: skip
"""(is it there, does it want an answer), as the states A, B, C, D of ISA-18.2."""


class Story:
    """One alarm, tick by tick."""

    def __init__(self, fault=DOWN):
        self.alarms, self.fault, self.now_s = Alarms(), fault, 0.0
        self.latches = set()

    def tick(self, there, situation=DRIVING, starting=False):
        self.now_s += 1.0
        faults = (self.fault,) if there else ()
        self.alarms.update([faults], self.latches, situation, self.now_s, starting)
        return self.state

    @property
    def alarm(self):
        return next((a for a in self.alarms if a.code is self.fault.code), None)

    @property
    def state(self):
        alarm = self.alarm
        seen = None if alarm is None else (alarm.active, alarm.unacknowledged)
        return next(name for name, pair in STATES.items() if pair == seen)

    def shelve(self):
        self.alarms.shelve(self.fault.code, "ann", "known", self.now_s, 5.0)

    def reach(self, state):
        """From normal to `state`, by what a plant and a person do."""
        there = {"normal": (), "gone, unacknowledged": (True, False)}.get(state, (True,))
        for step in there:
            self.tick(step)
        if state == "there, acknowledged":
            self.alarms.acknowledge()
        assert self.state == state


@pytest.mark.parametrize(
    ("state", "comes", "goes", "seen"),
    [
        ("normal", "there, unacknowledged", "normal", "normal"),
        ("there, unacknowledged", "there, unacknowledged", "gone, unacknowledged",
         "there, acknowledged"),
        ("there, acknowledged", "there, acknowledged", "normal", "there, acknowledged"),
        ("gone, unacknowledged", "there, unacknowledged", "gone, unacknowledged", "normal"),
    ],
)  # fmt: skip
def test_every_transition_of_an_alarm(state, comes, goes, seen):
    for step, expected in ((True, comes), (False, goes)):
        story = Story()
        story.reach(state)
        assert story.tick(step) == expected
    story = Story()
    story.reach(state)
    waits = (Code.LINK_DOWN,) if "unacknowledged" in state else ()
    assert story.alarms.waiting == ((DOWN,) if waits else ())
    assert story.alarms.acknowledge() == waits
    assert story.alarms.acknowledge() == (), "once"
    assert story.tick(STATES[state] is not None and STATES[state][0]) == seen
    assert story.alarms.waiting == ()


@pytest.mark.parametrize("code", Code)
@pytest.mark.parametrize("situation", Situation)
def test_what_is_worth_an_alarm_stays_until_it_is_seen_and_a_warning_does_not(code, situation):
    """Every code: few lines, and each of them wants something."""
    story = Story(Fault(code))
    story.tick(True, situation)
    story.tick(False, situation)
    stays = EFFECTS[code, situation].severity >= Severity.ALARM
    assert story.state == ("gone, unacknowledged" if stays else "normal")


def test_what_comes_and_goes_a_thousand_times_is_one_line():
    story = Story()
    for i in range(1000):
        story.tick(i % 2 == 0)
        assert len(list(story.alarms)) == 1
    assert story.alarm.since_s == 999.0, "when it came last"
    assert "no route" in story.alarm.text
    assert story.alarms.acknowledge() == (Code.LINK_DOWN,)
    assert story.tick(False) == "normal"


def test_there_are_never_more_lines_than_codes():
    alarms = Alarms()
    for n in range(3):
        everything = [Fault(code, f"signal {i}") for code in Code for i in range(3 * n)]
        alarms.update([everything], (), DRIVING, float(n))
        assert len(list(alarms)) <= len(Code)


def test_one_of_several_is_acknowledged_by_its_code():
    alarms = Alarms()
    alarms.update([(DOWN, Fault(Code.OBS_RANGE, "level"))], (), DRIVING, 0.0)
    assert alarms.acknowledge(Code.OBS_RANGE) == (Code.OBS_RANGE,)
    alarms.update([()], (), DRIVING, 1.0)
    assert codes(alarms) == [Code.LINK_DOWN]
    assert alarms.acknowledge(Code.OBS_STALE) == ()


def test_what_becomes_more_serious_wants_another_answer():
    """A write that failed, seen; then it is the safe set-point that does not arrive."""
    story = Story(Fault(Code.WRITE_FAILED))
    story.reach("there, acknowledged")
    assert story.tick(True, Situation.LAST_RESORT) == "there, unacknowledged"
    story.alarms.acknowledge()
    assert story.tick(True, DRIVING) == "there, acknowledged", "less serious: nothing new"
    # a warning that becomes an alarm
    story = Story(Fault(Code.INFER_CRASH))
    assert story.tick(True, Situation.WATCHING) == "there, acknowledged"
    assert story.tick(True, DRIVING) == "there, unacknowledged"
    assert story.tick(True, Situation.WATCHING) == "there, unacknowledged", "nobody has seen it"
    assert story.tick(False, Situation.WATCHING) == "gone, unacknowledged"


def test_a_latch_wants_an_answer_and_goes_with_it():
    story = Story(CLASH)
    story.latches = {Code.WRITE_CONTENTION}
    assert story.tick(True) == "there, unacknowledged"
    assert story.tick(False) == "gone, unacknowledged"
    assert story.alarms.waiting == (), "the latch itself is kept elsewhere"
    story.latches = set()  # the mode machine has cleared it, for a person
    assert story.alarms.acknowledge() == (Code.WRITE_CONTENTION,)
    assert story.tick(False) == "normal"


def test_a_fault_that_latches_later_wants_another_answer():
    story = Story(Fault(Code.ACT_NONFINITE))
    story.reach("there, acknowledged")
    story.latches = {Code.ACT_NONFINITE}
    assert story.tick(True) == "there, unacknowledged"


@pytest.mark.parametrize("state", STATES)
def test_while_it_is_shelved_nothing_waits_and_afterwards_what_is_there_does(state):
    for there in (False, True):
        story = Story()
        story.reach(state)
        story.shelve()
        story.tick(there)
        story.tick(there)
        assert story.state in (("normal",) if not there else tuple(STATES)[1:3])
        story.now_s += 5.0  # its time is over
        assert story.tick(there) == ("there, unacknowledged" if there else "normal")
        assert not story.alarms.shelves


def test_what_a_person_takes_off_the_shelf_wants_an_answer_at_once():
    story = Story()
    story.reach("there, acknowledged")
    story.shelve()
    story.alarms.unshelve("LINK_DOWN")
    assert story.state == "there, unacknowledged"
    warning = Story(STALE)
    warning.tick(True)
    warning.shelve()
    warning.alarms.unshelve("OBS_STALE")
    assert warning.state == "there, acknowledged"


def test_what_is_not_there_yet_at_the_start_is_no_news_unless_it_lasts():
    story = Story()
    assert story.tick(True, starting=True) == "there, acknowledged"
    assert story.tick(False, starting=True) == "normal"
    story.tick(True, starting=True)
    assert story.tick(True) == "there, unacknowledged"


def test_what_nobody_had_seen_before_a_restart_still_waits():
    story = Story()
    story.reach("gone, unacknowledged")
    after = Story()
    for cause in story.alarms.waiting:
        after.alarms.wait_on(cause)
    assert after.state == "gone, unacknowledged" and "no route" in after.alarm.text
    # it comes again while the runtime starts: still the same one that nobody has seen
    assert after.tick(True, starting=True) == "there, unacknowledged"
    assert after.tick(False, starting=True) == "gone, unacknowledged"
    assert after.alarms.waiting[0].text == "no route"
    after.alarms.acknowledge()
    assert after.tick(False) == "normal"
