"""The mode machine: every mode with every event, all sets of faults, every rule of time."""

from itertools import combinations, product
from math import inf, nan

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from steadyhand.controllers.errors import ConfigError, RequestError
from steadyhand.controllers.frames import Fault, LinkState, Source, Verdict
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.signals import Signal, SignalSet
from steadyhand.runtime.events import EFFECTS, Situation
from steadyhand.runtime.modes import Mode, ModeMachine, ModeSettings

OUTPUTS = SignalSet((Signal("valve", "%", 0.0, 100.0), Signal("pump", "kW", -5.0, 5.0)))
TRUSTED = Verdict(True, 0.9, "trust")
PROBATION = Verdict(False, 0.5, "probation")
UP = LinkState.UP
AT_ONCE = ModeSettings(n_clean=1)


class Bench:
    """A machine, its clock, and one word per tick."""

    def __init__(self, setup=AT_ONCE, mode=Mode.FULL, dt=1.0):
        self.machine = ModeMachine(setup, OUTPUTS)
        self.now, self.dt = 0.0, dt
        self.machine.request(mode, "anna")

    def tick(self, *faults, verdict=TRUSTED, granted=True, link=UP, dt=None):
        self.now += self.dt if dt is None else dt
        given = [Fault(f) if isinstance(f, ReasonCode) else f for f in faults]
        return self.machine.update(verdict, given, self.now, granted, link)

    def ticks(self, n, *faults, **given):
        return [self.tick(*faults, **given) for _ in range(n)]


def driving(source=Source.POLICY, setup=AT_ONCE):
    """A bench on which `source` drives."""
    bench = Bench(setup)
    for _ in range(100):
        if bench.tick() is Source.POLICY:
            break
    way = {
        Source.POLICY: (),
        Source.FALLBACK: (ReasonCode.OBS_STALE,),
        Source.HOLD: (ReasonCode.TICK_LATE,),
        Source.SAFE: (ReasonCode.FALLBACK_FAIL,),
        Source.HANDS_OFF: (ReasonCode.LINK_DOWN,),
    }[source]
    assert bench.tick(*way) is source
    return bench


# -- starting -----------------------------------------------------------------------------------


def test_comes_up_not_controlling_whatever_was_asked_before():
    assert ModeMachine(AT_ONCE, OUTPUTS).asked is None
    machine = ModeMachine(AT_ONCE, OUTPUTS, asked=Mode.FULL)
    assert (machine.mode, machine.asked, machine.source) == (Mode.OFF, Mode.FULL, Source.HANDS_OFF)
    for k in range(50):
        assert machine.update(TRUSTED, (), float(k), True, UP) is Source.HANDS_OFF
    machine.request(Mode.FULL, "anna", "after the restart")
    assert machine.update(TRUSTED, (), 50.0, True, UP) is Source.POLICY


@pytest.mark.parametrize(
    ("mode", "granted", "link", "trusted"),
    list(product(Mode, [True, False], LinkState, [True, False])),
)
def test_who_may_drive_at_all(mode, granted, link, trusted):
    bench = Bench(mode=mode)
    verdict = TRUSTED if trusted else PROBATION
    sources = bench.ticks(3, granted=granted, link=link, verdict=verdict)
    may = mode in (Mode.LIMITED, Mode.FULL) and granted and link is UP
    expected = (Source.POLICY if trusted else Source.FALLBACK) if may else Source.HANDS_OFF
    assert sources == [expected] * 3
    code = {
        False: ReasonCode.LINK_DOWN
        if link is not UP
        else ReasonCode.NOT_GRANTED
        if not granted
        else ReasonCode.MODE_REQUEST,
        True: ReasonCode.OK if trusted else ReasonCode.GATE_PROBATION,
    }[may]
    assert bench.machine.cause.code is code


# -- every mode with every event -----------------------------------------------------------------


@pytest.mark.parametrize("code", list(ReasonCode))
@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("start", list(Source))
def test_every_mode_with_every_event_from_every_source(mode, code, start):
    bench = driving(start)
    bench.machine.request(mode, "anna")
    situation = (
        Situation.WATCHING
        if mode not in (Mode.LIMITED, Mode.FULL)
        else Situation.LAST_RESORT
        if start is Source.SAFE
        else Situation.DRIVING
    )
    assert bench.machine.situation is situation
    demand = EFFECTS[code, situation].demand
    if demand is Source.HOLD and start > Source.HOLD:
        demand = Source.SAFE
    if situation is Situation.WATCHING:
        demand = Source.HANDS_OFF
    # one clean tick is enough on this bench, so the machine follows the demand both ways
    assert bench.tick(code) is demand
    assert bench.machine.demand is demand
    assert (code in bench.machine.latches) == (EFFECTS[code, situation].latch_after == 1)
    if demand is start:
        assert bench.machine.transition is None
    else:
        move = bench.machine.transition
        assert (move.before, move.after, move.mode) == (start, demand, mode)
        assert move.text.startswith(f"{start.name} -> {demand.name}: ") and move.action
        if demand > start and not (situation is Situation.WATCHING and demand is Source.HANDS_OFF):
            assert move.cause.code is code


@pytest.mark.parametrize("code", list(ReasonCode))
def test_the_gates_faults_count_as_much_as_the_links(code):
    for verdict, faults in (
        (Verdict(True, 0.9, "trust", (Fault(code),)), ()),
        (TRUSTED, (code,)),
    ):
        bench = driving()
        assert bench.tick(*faults, verdict=verdict) is EFFECTS[code, Situation.DRIVING].demand


# -- most severe wins ----------------------------------------------------------------------------


def test_most_severe_of_any_two_codes_wins():
    for pair in combinations(ReasonCode, 2):
        demands = [EFFECTS[code, Situation.DRIVING].demand for code in pair]
        for order in (pair, pair[::-1]):
            bench = driving()
            assert bench.tick(*order) is max(demands)
            if max(demands) > Source.POLICY:
                first = next(
                    c for c in order if EFFECTS[c, Situation.DRIVING].demand is max(demands)
                )
                assert bench.machine.cause.code is first  # first-out among the most severe


KINDS = {}
for _code in ReasonCode:
    _effect = EFFECTS[_code, Situation.DRIVING]
    KINDS.setdefault((_effect.demand, _effect.latch_after), _code)


@pytest.mark.parametrize("start", list(Source))
def test_most_severe_wins_for_every_combination_of_kinds(start):
    """One code for each kind of effect; all subsets, and the flags beside them."""
    assert len(KINDS) >= 8
    codes = list(KINDS.values())
    for bits in range(2 ** len(codes)):
        chosen = [code for i, code in enumerate(codes) if bits >> i & 1]
        bench = driving(start)
        situation = bench.machine.situation
        demands = [EFFECTS[code, situation].demand for code in chosen]
        worst = max(demands, default=Source.POLICY)
        if worst is Source.HOLD and start > Source.HOLD:
            worst = Source.SAFE
        assert bench.tick(*chosen) is worst
        for trusted, granted in ((False, True), (True, False)):
            bench = driving(start)
            flag = Source.FALLBACK if granted else Source.HANDS_OFF
            verdict = TRUSTED if trusted else PROBATION
            expected = max(worst, flag)
            assert bench.tick(*chosen, verdict=verdict, granted=granted) is expected


# -- time ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_clean", [1, 2, 5])
@pytest.mark.parametrize("t_clean", [0.0, 2.0, 3.5, 10.0])
@pytest.mark.parametrize("start", [Source.FALLBACK, Source.HOLD, Source.SAFE, Source.HANDS_OFF])
def test_stepping_up_needs_ticks_and_time(n_clean, t_clean, start):
    bench = driving(start, ModeSettings(n_clean, t_clean))
    # first clean tick at time 1; needs n_clean ticks, and the first at least t_clean ago
    wait = max(n_clean, int(np.ceil(t_clean)) + 1)
    assert bench.ticks(wait + 2) == [start] * (wait - 1) + [Source.POLICY] * 3


def test_stepping_up_goes_no_further_than_the_worst_of_the_window():
    bench = driving(Source.SAFE, ModeSettings(n_clean=3))
    sources = [bench.tick(), bench.tick(ReasonCode.OBS_STALE), bench.tick(), *bench.ticks(3)]
    assert sources == [Source.SAFE] * 2 + [Source.FALLBACK] * 3 + [Source.POLICY]


def test_one_dirty_tick_starts_the_window_anew():
    bench = driving(Source.FALLBACK, ModeSettings(n_clean=3))
    pattern = [(), (), (ReasonCode.OBS_STALE,), (), (), ()]
    assert [bench.tick(*faults) for faults in pattern] == [Source.FALLBACK] * 5 + [Source.POLICY]


def test_hold_ends_in_the_safe_set_point_and_does_not_come_back():
    bench = driving(Source.HOLD, ModeSettings(n_clean=2, hold_max_s=3.0))
    late = ReasonCode.TICK_LATE
    assert bench.ticks(4, late) == [Source.HOLD] * 2 + [Source.SAFE] * 2
    assert bench.machine.cause.code is late
    assert bench.ticks(50, late) == [Source.SAFE] * 50  # it never cycles back to holding
    assert bench.ticks(2) == [Source.SAFE, Source.POLICY]


def test_hold_ends_also_while_the_window_of_clean_ticks_runs():
    bench = driving(Source.HOLD, ModeSettings(n_clean=10, hold_max_s=2.5))
    assert bench.ticks(4) == [Source.HOLD] * 2 + [Source.SAFE] * 2
    assert bench.machine.demand is Source.POLICY


def test_the_transition_to_safe_names_the_time_held():
    bench = driving(Source.HOLD, ModeSettings(n_clean=5, hold_max_s=2.0))
    bench.ticks(2, ReasonCode.TICK_LATE)
    cause = bench.machine.transition.cause
    assert (cause.code, cause.value, cause.limit) == (ReasonCode.HOLD_EXPIRED, 2.0, 2.0)
    assert cause.text == "TICK_LATE"


def test_holding_gives_way_to_something_worse():
    bench = driving(Source.HOLD, ModeSettings(n_clean=5, hold_max_s=1.0))
    assert bench.tick(ReasonCode.LINK_DOWN) is Source.HANDS_OFF


def test_safe_that_is_not_written_goes_hands_off_and_latches():
    bench = driving(Source.SAFE)
    assert bench.tick(ReasonCode.WRITE_FAILED) is Source.HANDS_OFF
    assert set(bench.machine.latches) == {ReasonCode.WRITE_FAILED}
    assert bench.ticks(5) == [Source.HANDS_OFF] * 5


def test_the_policy_gets_control_only_so_often():
    bench = Bench(ModeSettings(n_clean=1, max_raises=3, raise_window_s=100.0))
    sources = [bench.tick(*((ReasonCode.OBS_STALE,) if k % 2 else ())) for k in range(40)]
    assert sources.count(Source.POLICY) == 3
    assert sources[6:] == [Source.FALLBACK] * 34
    assert ReasonCode.MODE_FLAP in bench.machine.latches
    bench.machine.acknowledge("anna")
    assert bench.ticks(5) == [Source.FALLBACK] * 5  # still too often: latches again
    bench.ticks(100)
    bench.machine.acknowledge("anna")
    assert bench.tick() is Source.POLICY


def test_flapping_from_hands_off_ends_in_the_fallback():
    bench = Bench(ModeSettings(n_clean=1, max_raises=1))
    assert bench.tick() is Source.POLICY
    assert bench.tick(granted=False) is Source.HANDS_OFF
    assert bench.tick() is Source.FALLBACK
    assert bench.machine.transition.cause.code is ReasonCode.HANDBACK


# -- latches -------------------------------------------------------------------------------------


def test_a_latch_stays_until_acknowledged():
    bench = driving()
    assert bench.tick(ReasonCode.CRASH_LOOP) is Source.FALLBACK
    assert [e.code for e in bench.machine.events] == [ReasonCode.CRASH_LOOP] * 2
    assert bench.ticks(50) == [Source.FALLBACK] * 50
    assert bench.machine.cause.code is ReasonCode.CRASH_LOOP
    assert bench.machine.acknowledge("anna") == (ReasonCode.CRASH_LOOP,)
    assert bench.tick() is Source.POLICY
    (ack, *_) = bench.machine.events
    assert (ack.code, ack.actor) == (ReasonCode.ACK, "anna")


def test_a_latch_alone_is_no_cause_that_is_there():
    """It is still why nobody better drives; an alarm list must not call it present for that."""
    bench = driving()
    bench.tick(ReasonCode.CRASH_LOOP)
    assert bench.machine.is_there(ReasonCode.CRASH_LOOP)
    bench.tick()
    assert [fault.code for fault in bench.machine.why(False)] == [ReasonCode.CRASH_LOOP]
    assert not bench.machine.is_there(ReasonCode.CRASH_LOOP)
    assert bench.machine.is_there(ReasonCode.OBS_STALE), "what is not latched is what is told"
    bench.tick(ReasonCode.CRASH_LOOP)
    assert bench.machine.is_there(ReasonCode.CRASH_LOOP)


def test_a_latch_that_was_acknowledged_is_not_there_for_being_named_as_why():
    """Until better ticks are enough a tick says why nobody better drives: the alarm is over."""
    bench = driving(setup=ModeSettings(n_clean=3))
    bench.tick(ReasonCode.WRITE_DENIED)
    bench.tick()
    bench.machine.acknowledge("anna")
    bench.tick()
    assert [fault.code for fault in bench.machine.why(False)] == [ReasonCode.WRITE_DENIED]
    assert not bench.machine.is_there(ReasonCode.WRITE_DENIED)
    bench.tick(ReasonCode.WRITE_DENIED)
    assert bench.machine.is_there(ReasonCode.WRITE_DENIED), "there it is again"


def test_a_fault_that_stays_latches_once_and_keeps_its_first_words():
    bench = driving()
    bench.tick(Fault(ReasonCode.SERVER_ID, text="first"))
    since = bench.now
    for _ in range(5):
        bench.tick(Fault(ReasonCode.SERVER_ID, text="later"))
        assert bench.machine.events == ()
    latch = bench.machine.latches[ReasonCode.SERVER_ID]
    assert (latch.fault.text, latch.since_s) == ("first", since)


def test_acknowledging_is_refused_while_the_cause_is_there():
    bench = driving()
    bench.tick(ReasonCode.SERVER_ID)
    with pytest.raises(RequestError, match="still present: SERVER_ID"):
        bench.machine.acknowledge("anna")
    assert ReasonCode.SERVER_ID in bench.machine.latches
    bench.tick()
    assert bench.machine.events[0].code is ReasonCode.ACK_DENIED
    bench.machine.acknowledge("anna")
    assert not bench.machine.latches


def test_acknowledging_all_is_all_or_nothing_and_one_is_one():
    bench = driving()
    bench.tick(ReasonCode.CRASH_LOOP)
    bench.tick(ReasonCode.SERVER_ID)
    with pytest.raises(RequestError):
        bench.machine.acknowledge("anna")
    assert set(bench.machine.latches) == {ReasonCode.CRASH_LOOP, ReasonCode.SERVER_ID}
    assert bench.machine.acknowledge("anna", ReasonCode.CRASH_LOOP) == (ReasonCode.CRASH_LOOP,)
    assert set(bench.machine.latches) == {ReasonCode.SERVER_ID}


@pytest.mark.parametrize("code", [None, ReasonCode.OBS_STALE])
def test_there_must_be_something_to_acknowledge(code):
    bench = driving(Source.FALLBACK)
    with pytest.raises(RequestError, match="not latched; latched now: nothing") as refusal:
        bench.machine.acknowledge("anna", code)
    assert refusal.value.code == "ACK_DENIED"


def test_three_answers_that_are_not_finite_latch():
    bench = driving()
    bench.ticks(2, ReasonCode.ACT_NONFINITE)
    assert not bench.machine.latches
    bench.tick(ReasonCode.ACT_NONFINITE)
    assert set(bench.machine.latches) == {ReasonCode.ACT_NONFINITE}
    bench.tick()
    bench.machine.acknowledge("anna")
    bench.ticks(2, ReasonCode.ACT_NONFINITE)
    assert not bench.machine.latches  # the count starts again


def test_good_running_forgives_single_answers():
    bench = driving()
    for _ in range(10):
        bench.tick(ReasonCode.ACT_NONFINITE)
        assert bench.tick() is Source.POLICY
    assert not bench.machine.latches


def test_two_faults_of_one_code_in_one_tick_count_once():
    bench = driving()
    bench.tick(*[ReasonCode.ACT_NONFINITE] * 5)
    assert not bench.machine.latches


def test_a_latch_survives_off_and_full():
    bench = driving()
    bench.tick(ReasonCode.WRITE_CONTENTION)
    for mode in (Mode.OFF, Mode.FULL):
        bench.machine.request(mode, "anna")
        assert bench.ticks(5) == [Source.HANDS_OFF] * 5


# -- requests ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [Mode.OFF, Mode.SHADOW, Mode.ADVISORY])
def test_less_authority_holds_from_the_next_tick(mode):
    bench = driving()
    bench.machine.request(mode, "anna", "smell of smoke")
    assert bench.tick() is Source.HANDS_OFF
    request, moved = bench.machine.events
    assert (request.code, request.actor) == (ReasonCode.MODE_REQUEST, "anna")
    assert "smell of smoke" in request.text
    assert moved.text.startswith("POLICY -> HANDS_OFF")
    assert bench.tick() is Source.HANDS_OFF and bench.machine.events == ()


def test_pressing_full_and_off_fast_never_gives_control():
    bench = Bench(ModeSettings(n_clean=3))
    for k in range(300):
        bench.machine.request(Mode.FULL if k % 3 else Mode.OFF, "anna")
        assert bench.tick() is Source.HANDS_OFF


def test_limited_and_full_both_let_the_policy_drive():
    bench = driving()
    bench.machine.request(Mode.LIMITED, "anna")
    assert bench.tick() is Source.POLICY and bench.machine.transition is None
    assert bench.machine.mode is Mode.LIMITED


# -- overrides -----------------------------------------------------------------------------------


@pytest.mark.parametrize("source", list(Source))
def test_an_override_wins_over_whatever_drives(source):
    bench = driving(source)
    assert bench.machine.override is None
    bench.machine.set_override("pump", 2.5, "bert", "test of the pump", 10.0)
    np.testing.assert_array_equal(bench.machine.override, [nan, 2.5])
    bench.tick()
    np.testing.assert_array_equal(bench.machine.override, [nan, 2.5])
    (event, *_) = bench.machine.events
    assert (event.code, event.actor, event.signal, event.value) == (
        ReasonCode.OVERRIDE,
        "bert",
        "pump",
        2.5,
    )
    with pytest.raises(ValueError, match="read-only"):
        bench.machine.override[0] = 1.0


def test_an_override_ends_by_itself_and_is_told():
    bench = driving()
    start = bench.now
    bench.machine.set_override("valve", 40.0, "bert", "stuck", 3.0)
    assert bench.machine.overrides[0].expires_s == start + 3.0
    bench.ticks(2)
    assert bench.machine.override is not None
    bench.tick()  # exactly at its end
    assert bench.machine.override is None and bench.machine.overrides == ()
    (event,) = bench.machine.events
    assert (event.code, event.actor, event.signal) == (
        ReasonCode.OVERRIDE_EXPIRED,
        "bert",
        "valve",
    )


def test_two_outputs_two_people_and_one_ends_first():
    bench = driving()
    bench.machine.set_override("valve", 40.0, "bert", "stuck", 2.0)
    bench.machine.set_override("pump", -1.0, "anna", "test", 9.0)
    np.testing.assert_array_equal(bench.machine.override, [40.0, -1.0])
    bench.ticks(2)
    np.testing.assert_array_equal(bench.machine.override, [nan, -1.0])
    bench.machine.clear_override("pump", "carl")
    assert bench.machine.override is None
    bench.tick()
    assert [(e.code, e.actor) for e in bench.machine.events] == [(ReasonCode.HANDBACK, "carl")]


def test_the_owner_may_change_it_another_person_may_not():
    bench = driving()
    bench.machine.set_override("valve", 40.0, "bert", "stuck", 5.0)
    bench.machine.set_override("valve", 41.0, "bert", "still stuck", 5.0)
    with pytest.raises(RequestError, match="overridden by bert") as refusal:
        bench.machine.set_override("valve", 0.0, "anna", "no", 5.0)
    assert refusal.value.code == "CONFLICT"
    np.testing.assert_array_equal(bench.machine.override, [41.0, nan])


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (("lever", 1.0, "bert", "why", 5.0), "UNKNOWN_OUTPUT"),
        (("valve", 100.1, "bert", "why", 5.0), "OUT_OF_RANGE"),
        (("valve", -0.1, "bert", "why", 5.0), "OUT_OF_RANGE"),
        (("valve", nan, "bert", "why", 5.0), "OUT_OF_RANGE"),
        (("valve", inf, "bert", "why", 5.0), "OUT_OF_RANGE"),
        (("valve", 1.0, " ", "why", 5.0), "REASON_MISSING"),
        (("valve", 1.0, "bert", "", 5.0), "REASON_MISSING"),
        (("valve", 1.0, "bert", "why", 0.0), "DURATION"),
        (("valve", 1.0, "bert", "why", nan), "DURATION"),
        (("valve", 1.0, "bert", "why", 86401.0), "DURATION"),
    ],
)
def test_overrides_that_are_refused_change_nothing(given, code):
    bench = driving()
    with pytest.raises(RequestError) as refusal:
        bench.machine.set_override(*given)
    assert refusal.value.code == code
    assert bench.machine.override is None
    bench.tick()
    assert bench.machine.events == ()


@pytest.mark.parametrize("value", [0.0, 100.0])
def test_the_limits_themselves_may_be_asked_for(value):
    bench = driving()
    bench.machine.set_override("valve", value, "bert", "why", 86400.0)
    assert bench.machine.override[0] == value


def test_clearing_what_is_not_there():
    bench = driving()
    with pytest.raises(RequestError, match="overridden: none"):
        bench.machine.clear_override("valve", "anna")


# -- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        {"n_clean": 0},
        {"max_raises": 0},
        {"t_clean_s": -1.0},
        {"t_clean_s": inf},
        {"t_clean_s": nan},
        {"hold_max_s": 0.0},
        {"hold_max_s": nan},
        {"raise_window_s": 0.0},
        {"max_override_s": -1.0},
    ],
)
def test_impossible_settings(given):
    with pytest.raises(ConfigError, match=next(iter(given))):
        ModeSettings(**given)


# -- every history -------------------------------------------------------------------------------

CODES = st.lists(st.sampled_from(list(ReasonCode)), max_size=2)
RARELY = st.sampled_from([()] * 6 + [(ReasonCode.OBS_STALE,), (ReasonCode.TICK_LATE,)])


class Histories(RuleBasedStateMachine):
    """Random plants and people; the rules of the machine are checked after each tick."""

    @initialize(
        n_clean=st.integers(1, 4),
        t_clean=st.sampled_from([0.0, 2.5, 6.0]),
        hold_max=st.sampled_from([0.5, 3.0, inf]),
        max_raises=st.integers(1, 4),
    )
    def begin(self, n_clean, t_clean, hold_max, max_raises):
        self.setup = ModeSettings(n_clean, t_clean, hold_max, max_raises, raise_window_s=40.0)
        self.machine = ModeMachine(self.setup, OUTPUTS)
        self.now = 0.0
        self.demands = []  # (time, demand) per tick
        self.raises = []
        self.held_since = None
        self.latched = set()
        self.overrides = {}
        self.present = set()

    @rule(codes=RARELY | CODES, trusted=st.booleans() | st.just(True),
          granted=st.sampled_from([True] * 6 + [False]),
          link=st.sampled_from([UP] * 6 + [LinkState.DOWN]),
          dt=st.sampled_from([1.0, 1.0, 0.5, 3.0]))  # fmt: skip
    def tick(self, codes, trusted, granted, link, dt):
        machine, before = self.machine, self.machine.source
        self.now += dt
        situation = machine.situation
        verdict = Verdict(trusted, 0.5, "x", tuple(Fault(c) for c in codes[1:]))
        after = machine.update(verdict, [Fault(c) for c in codes[:1]], self.now, granted, link)
        self.present = set(codes)
        self.latched |= {c for c in codes if EFFECTS[c, situation].latch_after == 1}
        self.overrides = {k: v for k, v in self.overrides.items() if v[1] > self.now}
        least = max(
            [Source.POLICY]
            + [EFFECTS[c, situation].demand for c in codes]
            + [Source.HANDS_OFF] * (not granted or link is not UP)
            + [Source.HANDS_OFF] * (situation is Situation.WATCHING)
            + [Source.FALLBACK] * (not trusted)
        )
        assert machine.demand >= least
        self.demands.append((self.now, machine.demand))
        assert after >= machine.demand  # step down at once
        if after < before:
            window = self.demands[-self.setup.n_clean :]
            assert len(window) == self.setup.n_clean
            assert all(demand <= after for _, demand in window)
            first = self.now
            for time_s, demand in reversed(self.demands):
                if demand >= before:
                    break
                first = time_s
            assert self.now - first >= self.setup.t_clean_s
            assert after is not Source.HOLD or before is Source.HOLD
        if after is Source.POLICY and before is not Source.POLICY:
            self.raises.append(self.now)
        assert sum(self.now - t <= 40.0 for t in self.raises) <= self.setup.max_raises
        if after is not Source.HOLD:
            self.held_since = None
        elif self.held_since is None:
            self.held_since = self.now
        else:
            assert self.now - self.held_since < self.setup.hold_max_s
        assert (machine.transition is None) == (before is after)
        if machine.transition is not None:
            assert any(e.text == machine.transition.text for e in machine.events)

    @rule(mode=st.sampled_from([Mode.FULL] * 4 + list(Mode)))
    def ask(self, mode):
        self.machine.request(mode, "anna")
        assert self.machine.asked is mode

    @rule()
    def acknowledge(self):
        # a loop of crashes ends with the acknowledgement: the process is tried again
        still = set(self.machine.latches) & self.present - {ReasonCode.CRASH_LOOP}
        if still or not self.machine.latches:
            with pytest.raises(RequestError):
                self.machine.acknowledge("anna")
        else:
            self.machine.acknowledge("anna")
            self.latched.clear()

    @rule(output=st.sampled_from(OUTPUTS.names), value=st.floats(0, 5), for_s=st.floats(1, 9))
    def override(self, output, value, for_s):
        self.machine.set_override(output, value, "bert", "test", for_s)
        self.overrides[output] = (value, self.now + for_s)

    @precondition(lambda self: self.overrides)
    @rule()
    def clear(self):
        output = next(iter(self.overrides))
        self.machine.clear_override(output, "anna")
        del self.overrides[output]

    @invariant()
    def overrides_always_win(self):
        if not hasattr(self, "machine"):
            return
        vector = self.machine.override
        assert (vector is None) == (not self.overrides)
        for output, (value, _) in self.overrides.items():
            assert vector[OUTPUTS.index(output)] == value

    @invariant()
    def latches_stay_until_acknowledged(self):
        if hasattr(self, "machine"):
            assert self.latched <= set(self.machine.latches)


Histories.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestHistories = Histories.TestCase


# -- why this tick is not simply the policy driving ---------------------------------------------


def codes(bench, unchanged=True):
    return [fault.code for fault in bench.machine.why(unchanged)]


def test_a_policy_whose_wish_goes_through_needs_no_reason():
    assert codes(driving()) == []


def test_a_wish_on_the_way_back_tells_what_the_ramp_comes_from():
    bench = driving()
    assert codes(bench, unchanged=False) == [ReasonCode.HANDBACK]
    bench.ticks(1, ReasonCode.OBS_STALE)
    bench.ticks(2)
    assert bench.machine.source is Source.POLICY
    assert codes(bench, unchanged=False) == [ReasonCode.RECOVERED]


def test_on_a_leash_the_mode_is_the_reason():
    bench = Bench(mode=Mode.LIMITED)
    bench.ticks(3)
    assert bench.machine.source is Source.POLICY
    (fault,) = bench.machine.why(unchanged=False)
    assert (fault.code, fault.text != "") == (ReasonCode.MODE_REQUEST, True)


def test_who_drives_instead_tells_what_demands_it():
    assert codes(driving(Source.FALLBACK)) == [ReasonCode.OBS_STALE]
    assert codes(driving(Source.HANDS_OFF), unchanged=False) == [ReasonCode.LINK_DOWN]


def test_while_clean_ticks_are_counted_the_first_cause_stays():
    bench = driving(setup=ModeSettings(n_clean=4))
    bench.tick(ReasonCode.OBS_STALE)
    assert bench.machine.clean_ticks == 0
    bench.tick()
    assert bench.machine.clean_ticks == 1
    assert bench.machine.source is Source.FALLBACK
    assert codes(bench) == [ReasonCode.OBS_STALE]


def test_every_override_is_named_with_its_value_and_reason():
    bench = driving()
    bench.machine.set_override("pump", -2.0, "anna", "bearing is hot", 60.0)
    bench.tick()
    _, fault = bench.machine.why(unchanged=False)
    assert (fault.code, fault.signal, fault.value) == (ReasonCode.OVERRIDE, "pump", -2.0)
    assert fault.text == "bearing is hot"


@pytest.mark.parametrize("situation", Situation)
@pytest.mark.parametrize("code", ReasonCode)
def test_a_latch_holds_back_no_less_after_a_restart(code, situation):
    before = EFFECTS[code, situation]
    machine = ModeMachine(AT_ONCE, OUTPUTS)
    machine.restore_latch(code, "", None, None, "from the run before")
    assert machine.latches[code].effect.demand >= (before.demand if before.latch_after else 0)


def test_hands_off_until_acknowledged_is_that_after_a_restart_too():
    """The safe set-point itself may not have arrived: it is not written again unasked."""
    bench = Bench()
    bench.machine.restore_latch(ReasonCode.WRITE_FAILED, "valve", None, None, "before")
    assert set(bench.ticks(20)) == {Source.HANDS_OFF}
    bench.machine.acknowledge("anna")
    assert bench.ticks(3)[-1] is not Source.HANDS_OFF
