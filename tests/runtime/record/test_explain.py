"""The words say what the numbers say."""

from dataclasses import replace

import numpy as np
import pytest

from steadyhand.controllers.errors import JournalError
from steadyhand.controllers.frames import (
    Certified,
    Fault,
    FilterMode,
    FilterOutcome,
    LinkState,
    Proposal,
    ProposalStatus,
    Source,
    Verdict,
)
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.signals import Signal, SignalSet
from steadyhand.runtime.events import Event, Severity
from steadyhand.runtime.explain import _wanted, explain, explain_tick
from steadyhand.runtime.journal import Journal, Limits
from steadyhand.runtime.reader import JournalReader
from tests.support.records import LAYOUT, fresh_recorder, observation, report, tick_arguments


def words(**changes: object) -> str:
    recorder = fresh_recorder()
    recorder.tick(**tick_arguments(**changes))
    assert recorder.misfits == 0
    tick = LAYOUT.decode(recorder.ticks.peek(0, 1)[0][0])
    return "\n".join(explain_tick(LAYOUT, tick))


def test_a_sound_tick_in_full():
    lines = words().splitlines()
    assert lines[0].startswith("tick 0, ")
    assert "plant time day 1, 01:45, mode full, controller plant_a@3#abcdef" in lines[0]
    assert lines[1:] == [
        "plant:   link up, control granted, all measurements good",
        "policy:  discharge_kw = 120 kW (predicted return -3.5 ± 0.25, after 3 ms)",
        "trust:   trusted, confidence 0.93, gate in state trust; "
        "scores (1 alarms): confidence 0.2, novelty 0.4",
        "driver:  the policy drives",
        "wanted:  discharge_kw = 120 kW, from the policy's proposal",
        "filter:  changed the command as little as the constraints allow (solved): "
        "discharge_kw = 100 kW; moved discharge_kw by -20 kW (2.35 % of the input set)",
        "bound:   energy_low (k = -0.02, 0 is the limit; multiplier 0.3)",
        "nearest: energy_low, margin 0.02, its limit 30 min away",
        "sent:    discharge_kw = 100 kW, as command 7",
        "applied: discharge_kw = 100 kW, when the tick began",
    ]


def test_bad_measurement_lost_trust_fallback():
    stale = Fault(ReasonCode.OBS_STALE, "load_kw", 95.0, 60.0)
    trip = Fault(ReasonCode.GATE_OOD, "novelty", 1.5, 1.0)
    text = words(
        observation=observation(
            faults=(stale,), quality=np.array([0, 2, 1], np.int8), age_s=np.array([1.0, 95.0, 2.0])
        ),
        verdict=Verdict(False, 0.1, "fallback", (trip,), (0.3, 1.5)),
        source=Source.FALLBACK,
    )
    assert "not good: load_kw (bad, 95 s old), flow_kw (uncertain, 2 s old)" in text
    assert "plant:   OBS_STALE: a measurement is too old (load_kw) value 95 limit 60" in text
    assert "trust:   not trusted, confidence 0.1" in text
    assert "GATE_OOD" in text
    assert "driver:  the heuristic drives" in text
    assert "wanted:  discharge_kw = 120 kW, from the heuristic" in text
    assert "codes:   GATE_OOD, OBS_STALE" in text


def test_nothing_driven():
    text = words(
        observation=observation(link=LinkState.DOWN, granted=False),
        proposal=None,
        verdict=None,
        source=Source.HANDS_OFF,
        certified=None,
        sent=None,
    )
    for part in (
        "link down, control not granted",
        "policy:  was not asked or is absent",
        "trust:   was not judged",
        "nothing is driven: the plant's own control has it",
        "filter:  was not asked",
        "sent:    nothing",
    ):
        assert part in text, part


@pytest.mark.parametrize("status", [s for s in ProposalStatus if s > ProposalStatus.ABSENT])
def test_failed_policy(status):
    text = words(proposal=Proposal(np.array([np.nan]), status, text="killed after 2 s"))
    assert f"no usable answer ({status.name.lower()}: killed after 2 s)" in text


@pytest.mark.parametrize("mode", FilterMode)
@pytest.mark.parametrize("outcome", FilterOutcome)
def test_every_ending_of_the_filter_has_words(mode, outcome):
    text = words(certified=Certified(np.array([100.0]), report(mode=mode, outcome=outcome)))
    line = next(line for line in text.splitlines() if line.startswith("filter:"))
    assert len(line) > 40


@pytest.mark.parametrize("code", ReasonCode)
def test_every_code_has_words(code):
    text = words(faults=(Fault(code, "x", 1.0, 2.0, "detail"),))
    assert f"noted:   {code}: " in text


def test_limits_are_named():
    text = words(certified=Certified(np.array([450.0]), report()))
    assert "limit:   discharge_kw is at its highest value, 450" in text
    text = words(certified=Certified(np.array([-400.0]), report()))
    assert "limit:   discharge_kw is at its lowest value, -400" in text


def test_a_ramp_is_not_called_the_policys():
    text = words(wanted=np.array([50.0]))
    assert "discharge_kw = 50 kW, from the policy's proposal, after the ramp of a take-over" in text


HELD = Fault(ReasonCode.OVERRIDE, "discharge_kw", 50.0, text="pump test")


@pytest.mark.parametrize("source", Source)
@pytest.mark.parametrize("mode", ["off", "shadow", "advisory", "limited", "full"])
def test_an_override_is_named_whoever_drives(source, mode):
    text = words(wanted=np.array([50.0]), source=source, mode=mode, faults=(HELD,))
    line = next(line for line in text.splitlines() if line.startswith("wanted:"))
    assert line == (
        "wanted:  discharge_kw = 50 kW, from the override of a person (reason pump test)"
    )


def test_an_override_that_did_not_come_through_is_not_named():
    text = words(wanted=np.array([49.0]), faults=(HELD,))
    assert "from the policy's proposal, after the ramp" in text


def test_only_the_overridden_outputs_are_the_persons():
    outputs = SignalSet((Signal("a", "kW", -100.0, 100.0), Signal("b", "kW", -100.0, 100.0)))
    recorder = fresh_recorder()
    recorder.tick(**tick_arguments(proposal=Proposal(np.array([120.0]))))
    tick = LAYOUT.decode(recorder.ticks.peek(0, 1)[0][0])
    held = Fault(ReasonCode.OVERRIDE, "b", -50.0, text="why")
    tick = replace(
        tick, wanted=np.array([7.0, -50.0]), faults=(held,), proposal=Proposal(np.array([7.0, 9.0]))
    )
    assert _wanted(outputs, tick, {"b": "root"}) == (
        "b = -50 kW, from the override of root (reason why); a = 7 kW, from the policy's proposal"
    )


def test_the_owner_comes_from_the_journal(tmp_path):
    recorder = fresh_recorder()

    def said(number: int, code: ReasonCode, actor: str) -> None:
        now_s = 900.0 * number + 0.5
        recorder.event(
            Event(now_s, code, Severity.LOG, "x", actor=actor, signal="discharge_kw", value=50.0)
        )

    with Journal(tmp_path, recorder, Limits(commit_every_s=0.002)):
        for number in range(4):
            faults = (HELD,) if number in (1, 3) else ()
            if number == 1:
                said(1, ReasonCode.OVERRIDE, "ann")
            if number == 2:
                said(2, ReasonCode.HANDBACK, "ann")
            if number == 3:
                said(3, ReasonCode.OVERRIDE, "root")
            recorder.tick(**tick_arguments(number, wanted=np.array([50.0]), faults=faults))
    reader = JournalReader(tmp_path)
    assert "from the override of ann (reason pump test)" in explain(reader, 1)
    assert "override of" not in explain(reader, 2)
    assert "from the override of root (reason pump test)" in explain(reader, 3)


def test_from_a_journal_with_cause_and_read_back(tmp_path):
    recorder = fresh_recorder()

    def moved(now_s: float, text: str) -> Event:
        return Event(now_s, ReasonCode.GATE_OOD, Severity.WARNING, text)

    with Journal(tmp_path, recorder, Limits(commit_every_s=0.002)):
        for number in range(6):
            recorder.tick(**tick_arguments(number))
            now_s = 900.0 * number + 0.5
            if number == 1:
                recorder.event(moved(now_s, "HANDS_OFF -> POLICY: control was handed back"))
            if number == 3:
                recorder.event(moved(now_s, "POLICY -> FALLBACK: outside the training data"))
                recorder.event(moved(now_s, "mode full asked for: something else"))
    reader = JournalReader(tmp_path)
    assert "last change" not in explain(reader, 0)
    assert "last change: HANDS_OFF -> POLICY: control was handed back" in explain(reader, 1)
    assert "last change: HANDS_OFF -> POLICY" in explain(reader, 2)
    assert "last change: POLICY -> FALLBACK: outside" in explain(reader, 3)
    assert "last change: POLICY -> FALLBACK: outside" in explain(reader, 5)
    assert "then:    discharge_kw = 100 kW, read back by the next tick" in explain(reader, 4)
    assert "then:" not in explain(reader, 5)
    with pytest.raises(JournalError, match="no tick 6 in the journal: it holds 0 to 5"):
        explain(reader, 6)
