"""The reasons of a tick are its own: what the tick before found counts only where it decides."""

from dataclasses import replace

import numpy as np
import pytest

from steadyhand.adapters.sim.plants import RunSpec
from steadyhand.controllers.frames import Certified, Fault, ProposalStatus, Source
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.trust.gate import Gate, GateSettings
from steadyhand.runtime.events import EFFECTS, Situation
from steadyhand.runtime.modes import Mode
from tests.support.loop_hostile import HOSTILE
from tests.support.loop_lockstep import Bench

FILTER_CODES = [code for code in ReasonCode if code.startswith(("FILTER_", "LIMIT_"))]
AT = 5


class Finding:
    """A filter that finds something in one tick and is otherwise itself."""

    def __init__(self, inner, code):
        self._inner, self._code, self._ticks = inner, code, 0

    def certify(self, observation, wanted, sent) -> Certified:
        certified = self._inner.certify(observation, wanted, sent)
        self._ticks += 1
        found = (Fault(self._code, text="made up"),) if self._ticks == AT else ()
        return replace(certified, faults=found)


def records(code):
    """(tick, record) around the one in which the filter finds `code`."""
    bench = Bench(HOSTILE["bang_bang"](), RunSpec(seed=3, days=2))
    bench.loop.parts = replace(bench.loop.parts, safety=Finding(bench.loop.parts.safety, code))
    seen = []
    bench.run(AT + 3, lambda tick: seen.append((tick, bench.newest_record())))
    return seen


@pytest.mark.parametrize("code", FILTER_CODES)
def test_what_the_filter_found_stands_in_its_own_tick(code):
    seen = records(code)
    tick, record = seen[AT - 1]
    assert code in record.reasons
    assert code in {fault.code for fault in tick.certified.faults}
    before, _ = seen[AT - 2]
    following, after = seen[AT]
    demand = EFFECTS[code, Situation.DRIVING].demand
    if demand > before.source:
        # it decides who drives in the next tick, and there it is named as the cause of that
        assert following.source >= demand
        assert code in after.reasons
    elif code is not ReasonCode.FILTER_SHAPED:  # that may well be found again
        assert code not in after.reasons
        assert code not in {fault.code for fault in following.faults}


@pytest.mark.parametrize("code", FILTER_CODES)
def test_no_code_is_recorded_that_is_neither_found_now_nor_the_cause_of_who_drives(code):
    for tick, record in records(code):
        frames = (
            *tick.observation.faults, *tick.proposal.faults, *tick.verdict.faults,
            *tick.certified.faults, *tick.sent.faults,
        )  # fmt: skip
        now = {fault.code for fault in frames} | {ReasonCode.FILTER_SHAPED}
        beyond = record.reasons - now
        if tick.source is Source.POLICY and np.array_equal(tick.wanted, tick.proposal.action):
            assert beyond == set()
        else:
            assert len(beyond) <= 1, "one cause"


@pytest.mark.parametrize("mode", [Mode.OFF, Mode.SHADOW, Mode.ADVISORY])
def test_a_mode_that_only_watches_writes_nothing_and_lets_go_once(mode):
    bench = Bench(HOSTILE["bang_bang"](), RunSpec(seed=3, days=2), mode=mode)
    ticks = bench.ticks(4)
    assert all(tick.source is Source.HANDS_OFF and not tick.sent.written for tick in ticks)
    assert bench.runner.heartbeat == 0, "not even a heartbeat"
    assert not bench.runner.requested
    bench.modes.request(Mode.FULL, "test")
    driving = bench.ticks(3)
    assert driving[-1].sent.written
    beats = bench.runner.heartbeat
    assert beats > 0
    bench.modes.request(mode, "test")
    watching = bench.ticks(4)
    assert not any(tick.sent.written for tick in watching)
    assert bench.runner.heartbeat <= beats + 1, "one word that we do not drive any more, at most"
    assert not bench.runner.requested
    assert not bench.runner.controlled


def test_with_mode_off_the_proposal_says_that_the_policy_is_not_asked():
    gate = Gate(GateSettings(0.0, 0.0))
    bench = Bench(HOSTILE["bang_bang"](), RunSpec(seed=3, days=2), gate=gate, mode=Mode.OFF)
    (tick,) = bench.ticks(1)
    assert tick.proposal.status is ProposalStatus.ABSENT
    assert tick.proposal.text == "the policy is not asked: mode off"
    told = [fault for fault in tick.verdict.faults if fault.code is ReasonCode.POLICY_ABSENT]
    assert [fault.text for fault in told] == ["the policy is not asked: mode off"]
    assert "loaded" not in EFFECTS[ReasonCode.POLICY_ABSENT, Situation.WATCHING].alarm
