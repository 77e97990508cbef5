"""A stop or a swap at any moment of a tick: the tick is whole, nothing is missed, nothing jumps."""

import random
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from steadyhand.adapters.sim.plants import RunSpec
from steadyhand.controllers.frames import Observation, Proposal, Source
from steadyhand.runtime.slot import PolicySlot
from tests.support.loop_hostile import PLANT
from tests.support.loop_lockstep import Bench

SWAPS, STOPS = 1000, 1000
STAGES = ("read", "check", "propose", "judge", "certify", "write", "between")
"""Where in the tick something happens: before that part is asked."""
LOW, HIGH = PLANT.outputs.low, PLANT.outputs.high


class Wants:
    """A policy that wants one thing, so that whose answer it was can be told."""

    def __init__(self, share: float) -> None:
        self.action = LOW + share * (HIGH - LOW)

    def propose(self, observation: Observation) -> Proposal:
        del observation
        return Proposal(self.action.copy(), value=0.0, error=0.0, confidence_logit=20.0)


class Before:
    """A part of the loop, in front of whose work something may happen once."""

    def __init__(self, inner: Any, method: str) -> None:
        self._inner, self._method = inner, method
        self.act: Callable[[], None] | None = None

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name != self._method:
            return found

        def call(*given: Any) -> Any:
            act, self.act = self.act, None
            if act is not None:
                act()
            return found(*given)

        return call


@pytest.fixture
def staged():
    """A loop on a plant, with the real filter, and a slot for its policy; what each stage does."""
    slot = PolicySlot(Wants(0.5), "0")
    bench = Bench(slot, RunSpec(seed=4, days=40))
    parts = bench.loop.parts
    link = Before(Before(parts.link, "read"), "write")
    fronts = {
        "write": link, "read": link._inner,
        "check": Before(parts.image_judge, "check"), "propose": Before(slot, "propose"),
        "judge": Before(parts.gate, "judge"), "certify": Before(parts.safety, "certify"),
    }  # fmt: skip
    bench.loop.parts = replace(
        parts, link=link, image_judge=fronts["check"], policy=fronts["propose"],
        gate=fronts["judge"], safety=fronts["certify"],
    )  # fmt: skip

    def at(stage: str, act: Callable[[], None]) -> None:
        if stage == "between":
            act()
        else:
            fronts[stage].act = act

    return bench, slot, at


def test_a_thousand_swaps_at_any_phase_miss_no_tick_and_make_no_step(staged):
    bench, slot, at = staged
    chance = random.Random(1)
    wants = {"0": slot.policy.action}
    bench.ticks(4)
    before = bench.runner.log.totals()
    mixed: list[str] = []
    phases = dict.fromkeys(STAGES, 0)

    def look(tick: Any, stage: str) -> None:
        assert tick.source is Source.POLICY, (stage, tick.faults)
        assert tick.sent.written, stage
        if not np.array_equal(tick.proposal.action, wants[slot.proposed_by]):
            mixed.append(stage)

    for number in range(1, SWAPS + 1):
        label, stage = str(number), STAGES[chance.randrange(len(STAGES))]
        fresh = Wants(chance.random())
        wants[label] = fresh.action
        phases[stage] += 1
        at(stage, lambda fresh=fresh, label=label: slot.swap(fresh, label))
        bench.run(1 + chance.randrange(2), lambda tick, stage=stage: look(tick, stage))
        assert slot.label == label
    assert mixed == []
    assert min(phases.values()) > SWAPS / len(STAGES) / 2
    after = bench.runner.log.totals()
    for promise in ("nonfinite", "outside", "rate", "ungranted"):
        assert after[promise] == before[promise] == 0
    assert after["arrived"] - before["arrived"] >= SWAPS
    assert bench.broken() == dict.fromkeys(PLANT.operating_limits, 0)


def test_a_thousand_stops_at_any_phase_end_with_a_whole_tick_and_a_hand_back(staged):
    bench, _, at = staged
    chance = random.Random(2)
    released: list[int] = []
    genuine = bench.link.release

    def release() -> None:
        released.append(bench.runner.log.totals()["arrived"])
        genuine()

    bench.link.release = release  # type: ignore[method-assign]
    bench.ticks(4)
    for number in range(STOPS):
        stop, stage = threading.Event(), STAGES[chance.randrange(len(STAGES) - 1)]
        lasts, seen = chance.randrange(3), []

        def watch(tick: Any, stop=stop, stage=stage, lasts=lasts, seen=seen) -> None:
            seen.append(tick)
            if len(seen) == lasts:
                at(stage, stop.set)

        if lasts == 0:
            at(stage, stop.set)
        released.clear()
        bench._watch = watch
        bench.loop.run(stop, 10)
        assert len(seen) == lasts + 1, (number, stage)  # the tick it fell into is finished
        record = bench.newest_record()
        assert record.sequence == seen[-1].number
        assert record.sent is not None and record.certified is not None
        assert len(released) == 1, stage
        arrived = bench.runner.log.totals()["arrived"]
        assert arrived == released[0], "something was written after the hand-back"
