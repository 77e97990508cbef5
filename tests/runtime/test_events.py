"""The table of reactions: complete, ordered, and as the catalogue of faults asks."""

from math import nan

import pytest

from steadyhand.controllers.frames import Fault, Source
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime.events import EFFECTS, Severity, Situation, describe, detail, effect_of


@pytest.mark.parametrize("code", list(ReasonCode))
@pytest.mark.parametrize("situation", list(Situation))
def test_every_code_has_a_row_in_every_situation(code, situation):
    effect = effect_of(code, situation)
    assert effect.alarm and effect.action
    assert effect.latch_after >= 0
    assert isinstance(effect.demand, Source) and isinstance(effect.severity, Severity)


def test_nothing_else_is_in_the_table():
    assert len(EFFECTS) == len(ReasonCode) * len(Situation)
    with pytest.raises(TypeError):
        EFFECTS[ReasonCode.OK, Situation.DRIVING] = None


@pytest.mark.parametrize("code", list(ReasonCode))
def test_what_latches_also_restricts_and_what_restricts_is_told(code):
    effect = effect_of(code, Situation.DRIVING)
    if effect.latch_after:
        assert effect.demand > Source.POLICY
    if effect.demand in (Source.HOLD, Source.SAFE):
        assert effect.severity >= Severity.WARNING
    if effect.severity is Severity.CRITICAL:
        assert effect.demand > Source.POLICY


@pytest.mark.parametrize("code", list(ReasonCode))
def test_the_last_resort_is_never_laxer(code):
    driving = effect_of(code, Situation.DRIVING)
    last = effect_of(code, Situation.LAST_RESORT)
    assert last.demand >= driving.demand
    assert last.severity >= driving.severity
    assert bool(last.latch_after) >= bool(driving.latch_after)


@pytest.mark.parametrize("code", list(ReasonCode))
def test_while_watching_only_the_proposals_faults_lose_their_bite(code):
    driving = effect_of(code, Situation.DRIVING)
    watching = effect_of(code, Situation.WATCHING)
    of_the_proposal = code.startswith(("GATE_", "INFER_")) or code in {
        ReasonCode.POLICY_ABSENT,
        ReasonCode.ACT_NONFINITE,
        ReasonCode.MODE_FLAP,
    }
    if of_the_proposal:
        assert (watching.demand, watching.latch_after) == (Source.POLICY, 0)
        assert watching.severity <= Severity.WARNING
    else:
        assert watching == driving


# What the catalogue of faults asks of each group, written down a second time.
DEMANDS = {
    Source.HANDS_OFF: "LINK_DOWN LINK_TIMEOUT LINK_FLAP NO_SESSION_SLOT NS_REMAP TAG_MISSING "
    "TAG_TYPE SERVER_ID CERT_CHANGED SERVER_STATE FILTER_BYPASS WRITE_DENIED WRITE_CONTENTION "
    "NOT_GRANTED START STOP FEEDBACK_INVALID PARTIAL_UNSAFE",
    Source.SAFE: "HOLD_EXPIRED FILTER_INFEASIBLE FILTER_NONFINITE FILTER_STOPPED FALLBACK_FAIL "
    "WRITE_PARTIAL OBS_XCHECK",
    Source.HOLD: "OBS_REPEAT TICK_LATE TICK_GAP WRITE_FAILED WRITE_UNKNOWN WRITE_STALE_DROP "
    "TASK_DIED",
    Source.FALLBACK: "SUB_STALE SAMPLE_BAD SAMPLE_UNCERTAIN SAMPLE_TYPE TAG_FORCED "
    "OBS_NONFINITE OBS_RANGE "
    "OBS_STUCK OBS_STALE OBS_RATE OBS_TS_INVALID OBS_MISSING TICK_OVERRUN POLICY_ABSENT "
    "ACT_NONFINITE INFER_ERROR INFER_LATE INFER_CRASH INFER_HANG CRASH_LOOP GATE_CONFIDENCE "
    "GATE_OOD GATE_FAULT GATE_PROBATION FILTER_BACKUP FILTER_RECOVER ACT_NOFOLLOW MODE_FLAP "
    "STATE_LOST AUDIT_REQUIRED",
}
LATCHED = (
    "OBS_XCHECK TAG_TYPE SERVER_ID CERT_CHANGED CRASH_LOOP FILTER_BYPASS WRITE_DENIED "
    "WRITE_CONTENTION MODE_FLAP PARTIAL_UNSAFE STATE_LOST"
)


@pytest.mark.parametrize("code", list(ReasonCode))
def test_demands_as_in_the_catalogue(code):
    expected = next((s for s, names in DEMANDS.items() if code in names.split()), Source.POLICY)
    assert effect_of(code, Situation.DRIVING).demand is expected


@pytest.mark.parametrize("code", list(ReasonCode))
def test_latches_as_in_the_catalogue(code):
    expected = 1 if code in LATCHED.split() else 3 if code is ReasonCode.ACT_NONFINITE else 0
    assert effect_of(code, Situation.DRIVING).latch_after == expected


def test_a_safe_set_point_that_is_not_written_leaves_only_the_plant():
    for code in (ReasonCode.WRITE_FAILED, ReasonCode.WRITE_PARTIAL, ReasonCode.WRITE_UNKNOWN):
        effect = effect_of(code, Situation.LAST_RESORT)
        assert (effect.demand, effect.latch_after) == (Source.HANDS_OFF, 1)
        assert effect.severity is Severity.CRITICAL
        assert "safe set-point" in effect.alarm


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (Fault(ReasonCode.OBS_STALE, "level", 9.0, 5.0, "age in s"),
         "too old (level) value 9 limit 5: age in s"),
        (Fault(ReasonCode.OBS_STALE, "", nan, 5.0), "too old limit 5"),
        (Fault(ReasonCode.OBS_STALE, "level", 9.0), "too old (level) value 9"),
        (Fault(ReasonCode.OBS_STALE), "too old"),
    ],
)  # fmt: skip
def test_one_line_for_people(fault, text):
    assert describe(fault, "too old") == text


@pytest.mark.parametrize("code", list(ReasonCode))
def test_a_signal_is_named_once(code):
    """Links begin their text with the signal, and so do alarms."""
    text = describe(Fault(code, "valve", 1.0, 2.0, "valve: somebody wrote 5"), "an alarm")
    assert text == "an alarm (valve) value 1 limit 2: somebody wrote 5"
    assert describe(Fault(code, text="valve: x"), "an alarm") == "an alarm: valve: x"
    assert detail("valve", "valve: x") == "x"
    assert detail("valve", "valves: x") == "valves: x"
    assert detail("", ": x") == ": x"
