"""The gate: decision table, times to the tick, and properties over random histories."""

from dataclasses import replace
from itertools import product
from math import inf, nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steadyhand.controllers.errors import ConfigError
from steadyhand.controllers.frames import (
    Fault,
    FilterMode,
    FilterOutcome,
    FilterReport,
    Observation,
    Proposal,
    ProposalStatus,
)
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.trust.care import Confidence, ConfidenceSettings, Isotonic
from steadyhand.controllers.trust.gate import Gate, GateSettings, GateState, MonitorSettings, Use

QUICK = GateSettings(dwell_s=3.0, minimum_stay_s=5.0, max_switches=1000, without_confidence=True)
STALE = Fault(ReasonCode.OBS_STALE, "level", 9.0, 5.0)


class Scripted:
    """A monitor that scores what the test says."""

    code = ReasonCode.GATE_OOD
    quiet_below = 0.5
    broken = ""

    def __init__(self, name="scripted", value=0.0):
        self.name, self.value = name, value

    def score(self, observation, proposal):
        return self.value

    def fault(self):
        return Fault(self.code, self.name, self.value, 1.0)


def seen(k, faults=(), time_s=None):
    time_s = float(k) if time_s is None else time_s
    return Observation(k, time_s, np.zeros(1), np.zeros(1), np.zeros(1, np.int8), np.zeros(1),
                       faults=faults)  # fmt: skip


def answer(status=ProposalStatus.OK, action=0.0, logit=0.0):
    return Proposal(np.array([action]), status, confidence_logit=logit)


def report(outcome=FilterOutcome.SOLVED, mode=FilterMode.PASS, margin=1.0, infeasible=False):
    z = np.zeros(0)
    return FilterReport(mode, outcome, 0.0, 0.0, margin, 0, (), z, z, z, z, z,
                        infeasible=infeasible)  # fmt: skip


def trusting(*monitors, settings=QUICK):
    """A gate that has just come to trust, and the number of the next tick."""
    gate = Gate(settings, monitors)
    k = 0
    while gate.judge(seen(k), answer()).state != GateState.TRUST:
        k += 1
        assert k < 100
    return gate, k + 1


def test_comes_up_on_probation_and_earns_trust():
    gate = Gate(QUICK, (Scripted(),))
    states = [gate.judge(seen(k), answer()) for k in range(5)]
    assert [v.state for v in states] == ["probation"] * 3 + ["trust"] * 2
    assert [v.trusted for v in states] == [False] * 3 + [True] * 2


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (ProposalStatus.ABSENT, ReasonCode.POLICY_ABSENT),
        (ProposalStatus.LATE, ReasonCode.INFER_LATE),
        (ProposalStatus.ERROR, ReasonCode.INFER_ERROR),
        (ProposalStatus.CRASHED, ReasonCode.INFER_CRASH),
        (ProposalStatus.NONFINITE, ReasonCode.ACT_NONFINITE),
    ],
)
def test_a_policy_that_does_not_answer_loses_trust_at_once(status, code):
    gate, k = trusting()
    verdict = gate.judge(seen(k), answer(status, nan))
    assert not verdict.trusted and verdict.state == "fallback"
    assert [fault.code for fault in verdict.faults] == [code]


@pytest.mark.parametrize("action", [nan, inf, -inf])
def test_the_numbers_count_not_the_status(action):
    gate, k = trusting()
    verdict = gate.judge(seen(k), answer(ProposalStatus.OK, action))
    assert not verdict.trusted
    assert verdict.faults[0].code is ReasonCode.ACT_NONFINITE


@pytest.mark.parametrize("code", list(ReasonCode))
def test_which_faults_of_the_image_void_trust(code):
    gate, k = trusting()
    verdict = gate.judge(seen(k, (Fault(code),)), answer())
    voids = code.startswith(("OBS_", "SAMPLE_")) or code in {
        ReasonCode.SUB_STALE,
        ReasonCode.TICK_GAP,
    }
    assert verdict.trusted == (not voids)
    assert verdict.faults == ()  # they stand in the observation already


@pytest.mark.parametrize("outcome", list(FilterOutcome))
@pytest.mark.parametrize("mode", list(FilterMode))
@pytest.mark.parametrize("infeasible", [False, True])
def test_filter_outcomes(outcome, mode, infeasible):
    gate, k = trusting()
    gate.filtered(report(outcome, mode, infeasible=infeasible))
    verdict = gate.judge(seen(k), answer())
    expected = {
        FilterOutcome.INFEASIBLE: ReasonCode.FILTER_INFEASIBLE,
        FilterOutcome.TIME_OUT: ReasonCode.FILTER_INFEASIBLE,
        FilterOutcome.NONFINITE: ReasonCode.FILTER_NONFINITE,
        FilterOutcome.OUTSIDE_SET: ReasonCode.FILTER_RECOVER,
    }.get(outcome)
    if expected is None and infeasible:
        expected = ReasonCode.FILTER_INFEASIBLE
    if expected is None and mode is FilterMode.BACKUP:
        expected = ReasonCode.FILTER_BACKUP
    assert [fault.code for fault in verdict.faults] == ([expected] if expected else [])
    assert verdict.trusted == (expected is None)
    gate.filtered(report())
    assert gate.judge(seen(k + 1), answer()).faults == ()


def test_one_score_of_one_is_enough_by_default():
    monitor = Scripted()
    gate, k = trusting(monitor)
    monitor.value = np.nextafter(1.0, 0.0)
    assert gate.judge(seen(k), answer()).trusted
    monitor.value = 1.0
    verdict = gate.judge(seen(k + 1), answer())
    assert not verdict.trusted
    assert verdict.faults == (Fault(ReasonCode.GATE_OOD, "scripted", 1.0, 1.0),)
    assert verdict.scores == (1.0,)


@pytest.mark.parametrize("pattern", list(product([0, 1], repeat=6)))
def test_n_of_m(pattern):
    monitor = Scripted()
    rows = {"scripted": MonitorSettings(n=2, m=3)}
    gate, k = trusting(monitor, settings=replace(QUICK, monitors=rows))
    history = []
    for alarm in pattern:
        monitor.value = float(alarm)
        history.append(alarm)
        verdict = gate.judge(seen(k), answer())
        k += 1
        # an alarm is told in the tick of an alarm, once 2 of the last 3 were
        assert bool(verdict.faults) == (alarm == 1 and sum(history[-3:]) >= 2)


def test_passive_is_counted_and_disabled_is_not_asked():
    loud, deaf = Scripted("loud", 5.0), Scripted("deaf", 5.0)
    rows = {"loud": MonitorSettings(Use.PASSIVE), "deaf": MonitorSettings(Use.DISABLED)}
    gate, k = trusting(loud, deaf, settings=replace(QUICK, monitors=rows))
    verdict = gate.judge(seen(k), answer())
    assert verdict.trusted and verdict.faults == ()
    np.testing.assert_equal(verdict.scores, (5.0, nan))
    assert gate.alarms == {"loud": k + 1, "deaf": 0}
    loud.value = nan
    assert gate.judge(seen(k + 1), answer()).trusted


def test_a_score_that_is_no_number_is_a_broken_monitor():
    monitor = Scripted(value=nan)
    monitor.broken = "no spread"
    gate = Gate(QUICK, (monitor,))
    verdict = gate.judge(seen(0), answer())
    assert (verdict.faults[0].code, verdict.faults[0].text) == (ReasonCode.GATE_FAULT, "no spread")
    monitor.broken = ""
    assert gate.judge(seen(1), answer()).faults[0].text == "its score is not a number"
    # a bad image or a missing answer explains it already
    assert gate.judge(seen(2, (STALE,)), answer()).faults == ()
    codes = [f.code for f in gate.judge(seen(3), answer(ProposalStatus.LATE, nan)).faults]
    assert codes == [ReasonCode.INFER_LATE]
    assert gate.state is GateState.FALLBACK


def test_way_back_to_the_tick():
    monitor = Scripted()
    gate, k = trusting(monitor)
    monitor.value = 1.0
    gate.judge(seen(k), answer())
    monitor.value = 0.0
    states = [gate.judge(seen(k + i), answer()).state for i in range(1, 10)]
    # minimum stay 5 s, then probation for 3 s
    assert states == ["fallback"] * 4 + ["probation"] * 3 + ["trust"] * 2


def test_noise_between_the_thresholds_restarts_the_dwell():
    monitor = Scripted()
    gate = Gate(QUICK, (monitor,))
    states = []
    for k, value in enumerate([0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0]):
        monitor.value = value
        states.append(gate.judge(seen(k), answer()).state)
    assert states == ["probation"] * 6 + ["trust"]


def test_alarm_on_probation_goes_back_for_the_whole_stay():
    monitor = Scripted()
    gate = Gate(QUICK, (monitor,))
    states = []
    for k in range(10):
        monitor.value = 1.0 if k == 2 else 0.0
        states.append(gate.judge(seen(k), answer()).state)
    assert states == ["probation"] * 2 + ["fallback"] * 5 + ["probation"] * 3


def test_not_quiet_keeps_it_in_fallback():
    monitor = Scripted(value=1.0)
    gate = Gate(QUICK, (monitor,))
    gate.judge(seen(0), answer())
    monitor.value = 0.5
    assert {gate.judge(seen(k), answer()).state for k in range(1, 30)} == {"fallback"}


@pytest.mark.parametrize(
    ("margin", "settled", "trusted"), [(0.1, True, True), (0.0, True, False), (0.1, False, False)]
)
def test_return_needs_margin_and_a_settled_heuristic(margin, settled, trusted):
    gate = Gate(QUICK, ())
    gate.filtered(report(margin=margin), settled)
    assert gate.judge(seen(0), answer()).state == "probation"
    assert gate.judge(seen(50), answer()).trusted == trusted


def test_switching_too_often_latches_until_acknowledged():
    monitor = Scripted()
    settings = replace(QUICK, dwell_s=0.0, minimum_stay_s=0.0, max_switches=4, switch_window_s=1e3)
    gate = Gate(settings, (monitor,))
    told = []
    for k in range(40):
        monitor.value = 1.0 if k % 4 == 3 else 0.0
        verdict = gate.judge(seen(k), answer())
        told += [f for f in verdict.faults if f.code is ReasonCode.MODE_FLAP]
    assert gate.state is GateState.LATCHED
    (flap,) = told
    assert (flap.value, flap.limit) == (4.0, 4.0)
    assert gate.acknowledge()
    assert not gate.acknowledge()
    assert gate.state is GateState.FALLBACK
    monitor.value = 0.0
    assert [gate.judge(seen(k), answer()).trusted for k in (41, 42)] == [False, True]


def test_old_switches_are_forgotten():
    monitor = Scripted()
    settings = replace(QUICK, dwell_s=0.0, minimum_stay_s=0.0, max_switches=2, switch_window_s=10.0)
    gate = Gate(settings, (monitor,))
    for k, trusted in ((0, True), (100, False)):
        monitor.value = 0.0 if trusted else 1.0
        assert gate.judge(seen(k), answer()).trusted == trusted
    # the way in is older than the window, so the way out is alone in it: no room for a pair
    assert gate.state is GateState.LATCHED


def test_time_without_a_number_and_time_that_starts_again():
    gate = Gate(QUICK, ())
    assert gate.acknowledge() is False
    for time_s in (nan, nan, 1e9):
        assert gate.judge(seen(0, time_s=time_s), answer()).state == "probation"
    assert gate.judge(seen(1, time_s=1e9 + 2.9), answer()).state == "probation"
    assert gate.judge(seen(2, time_s=5.0), answer()).state == "probation"
    assert gate.judge(seen(3, time_s=7.9), answer()).state == "probation"
    assert gate.judge(seen(4, time_s=8.0), answer()).state == "trust"
    assert gate.judge(seen(5, (STALE,), time_s=nan), answer()).state == "fallback"


def test_alarm_before_any_time_is_known():
    gate = Gate(QUICK, ())
    verdict = gate.judge(seen(0, time_s=nan), answer(ProposalStatus.ERROR, nan))
    assert not verdict.trusted and verdict.faults[0].code is ReasonCode.INFER_ERROR


def sure(theta=(0.6, 0.7)):
    return Confidence(Isotonic([0.0, 1.0], [0.0, 1.0]), ConfidenceSettings(*theta), 1.0)


def test_without_confidence_nothing_drives():
    blind = replace(QUICK, without_confidence=False)
    for monitors, rows in (
        ((Scripted(),), {}),
        ((sure(),), {"confidence": MonitorSettings(Use.PASSIVE)}),
        ((sure(),), {"confidence": MonitorSettings(Use.DISABLED)}),
    ):
        gate = Gate(replace(blind, monitors=rows), monitors)
        verdicts = [gate.judge(seen(k), answer(logit=1.0)) for k in range(30)]
        assert not any(v.trusted for v in verdicts)
        assert verdicts[-1].faults[0].text == "no confidence monitor is active"
        absent = gate.judge(seen(31), answer(ProposalStatus.ABSENT, nan))
        assert [f.code for f in absent.faults] == [ReasonCode.POLICY_ABSENT]
    gate = Gate(blind, (sure(),))
    verdicts = [gate.judge(seen(k), answer(logit=0.8)) for k in range(30)]
    assert verdicts[-1].trusted and verdicts[-1].confidence == 0.8


def test_confidence_has_hysteresis():
    gate = Gate(QUICK, (sure(),))
    levels = [0.9] * 4 + [0.65, 0.59] + [0.65] * 8 + [0.71] * 4
    trusted = []
    for k, level in enumerate(levels):
        trusted.append(gate.judge(seen(k), answer(logit=level)).trusted)
    assert trusted[3:6] == [True, True, False]  # 0.65 keeps trust, 0.59 loses it
    assert not any(trusted[6:17]) and trusted[17]  # and 0.65 does not bring it back


@pytest.mark.parametrize(
    "build",
    [
        lambda: MonitorSettings(n=0),
        lambda: MonitorSettings(n=3, m=2),
        lambda: GateSettings(-1.0, 0.0),
        lambda: GateSettings(0.0, nan),
        lambda: GateSettings(0.0, 0.0, switch_window_s=inf),
        lambda: GateSettings(0.0, 0.0, max_switches=1),
        lambda: Gate(QUICK, (Scripted(), Scripted())),
        lambda: Gate(replace(QUICK, monitors={"nobody": MonitorSettings()}), (Scripted(),)),
        lambda: GateSettings.from_dict({"dwell_s": 1.0}),
        lambda: GateSettings.from_dict({"dwell_s": 1.0, "minimum_stay_s": 1.0, "dwel": 1}),
        lambda: GateSettings.from_dict({"dwell_s": "1", "minimum_stay_s": 1.0}),
        lambda: GateSettings.from_dict({"dwell_s": 1, "minimum_stay_s": 1, "monitors": [1]}),
        lambda: GateSettings.from_dict(
            {"dwell_s": 1, "minimum_stay_s": 1, "monitors": {"a": {"use": "sometimes"}}}
        ),
        lambda: GateSettings.from_dict(
            {"dwell_s": 1, "minimum_stay_s": 1, "monitors": {"a": {"k": 3}}}
        ),
    ],
)
def test_impossible_settings(build):
    with pytest.raises(ConfigError):
        build()


def test_settings_from_plain_data():
    made = GateSettings.from_dict(
        {
            "dwell_s": 10.0,
            "minimum_stay_s": 20.0,
            "monitors": {"novelty": {"use": "passive", "n": 2, "m": 3}, "confidence": {}},
        }
    )
    assert made == GateSettings(
        10.0,
        20.0,
        monitors={"novelty": MonitorSettings(Use.PASSIVE, 2, 3), "confidence": MonitorSettings()},
    )


@given(
    events=st.lists(
        st.tuples(
            st.sampled_from([0.0, 0.0, 0.0, 0.4, 0.7, 1.0, 3.0, nan]),
            st.sampled_from([*[ProposalStatus.OK] * 8, ProposalStatus.LATE]),
            st.sampled_from([0, 0, 0, 0, 0, 1]),
            st.floats(0.0, 4.0),
        ),
        max_size=120,
    ),
    dwell=st.floats(0, 4),
    stay=st.floats(0, 4),
    most=st.integers(2, 6),
    window=st.floats(1, 60),
)
@settings(max_examples=200, deadline=None)
def test_properties_of_every_history(events, dwell, stay, most, window):
    monitor = Scripted()
    gate = Gate(GateSettings(dwell, stay, most, window, without_confidence=True), (monitor,))
    now, quiet_since, fell_at, switches, before = 0.0, None, None, [], "probation"
    for k, (score, status, stale, dt) in enumerate(events):
        now += dt
        monitor.value = score
        verdict = gate.judge(
            seen(k, (STALE,) if stale else (), now),
            answer(status, 0.0 if status is ProposalStatus.OK else nan),
        )
        alarm = bool(stale) or status is not ProposalStatus.OK or not score < 1.0
        quiet = not alarm and score < 0.5
        if not quiet:
            quiet_since = None
        elif quiet_since is None:
            quiet_since = now
        if alarm:
            assert not verdict.trusted  # at once
        if before != "trust" and verdict.trusted:
            assert quiet_since is not None and now - quiet_since >= dwell - 1e-9
            assert fell_at is None or now - fell_at >= stay + dwell - 1e-9
        if (before == "trust") != verdict.trusted:
            switches.append(now)
        if before == "trust" and not verdict.trusted:
            fell_at = now
        if before == "latched":
            assert verdict.state == "latched"
        assert sum(now - window <= t for t in switches) <= most
        assert verdict.trusted == (verdict.state == "trust")
        before = verdict.state
