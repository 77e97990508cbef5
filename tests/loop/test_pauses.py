"""Real pauses of the interpreter: what is late is not written, and nothing is made up for after."""

import gc
import os
import subprocess
import sys
import time
from itertools import pairwise

import pytest

from steadyhand.controllers.frames import Observation, Proposal, Source
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime.clock import PacedClock
from tests.support.hostile import ConstantPolicy
from tests.support.loop_hostile import PLANT
from tests.support.loop_lockstep import Bench

WALL_PERIOD_S = 0.15
PAUSED = {ReasonCode.TICK_LATE, ReasonCode.TICK_GAP, ReasonCode.TICK_OVERRUN}
OBJECTS = 300_000
"""In cycles, so that only the collector can find out that nobody needs them."""


class Hoarder:
    """A sound policy, in whose call the collector once has to go through very many objects."""

    def __init__(self, inner: ConstantPolicy, at: int) -> None:
        self._inner, self._at, self._asked = inner, at, 0
        self.paused_s = 0.0

    def propose(self, observation: Observation) -> Proposal:
        self._asked += 1
        if self._asked == self._at:
            began_s = time.monotonic()
            while time.monotonic() - began_s < 2.5 * WALL_PERIOD_S:  # as long as it takes
                self._collect()
            self.paused_s = time.monotonic() - began_s
        return self._inner.propose(observation)

    @staticmethod
    def _collect() -> None:
        heap = []
        for _ in range(OBJECTS):
            ring: list[object] = []
            ring.append(ring)
            heap.append(ring)
        del heap, ring
        assert gc.collect() >= OBJECTS


def test_a_collection_longer_than_the_period_costs_one_command_and_no_more():
    hoarder = Hoarder(ConstantPolicy(PLANT.outputs, 0.55), at=8)
    bench = Bench(hoarder, keep=256)
    bench.loop._clock = PacedClock(900.0, 900.0 / WALL_PERIOD_S)
    ticks = bench.ticks(30)
    assert hoarder.paused_s > 2.0 * WALL_PERIOD_S
    codes = [{fault.code for fault in (*tick.faults, *tick.sent.faults)} for tick in ticks]
    late = max(range(len(ticks)), key=lambda i: ticks[i].timings[2])  # the policy's time
    assert ReasonCode.TICK_LATE in codes[late]
    assert not ticks[late].sent.written, "a command of then went out now"
    assert {ReasonCode.TICK_GAP, ReasonCode.TICK_OVERRUN} & codes[late + 1]
    assert ticks[late + 1].source >= Source.FALLBACK
    assert any(tick.source is Source.POLICY and tick.sent.written for tick in ticks[late + 2 :])


@pytest.mark.slow
def test_a_starved_machine_writes_nothing_late():
    """Eight busy processes on this machine: ticks are late or missed, told, and never caught up;
    what the watchdog is fed by goes on, because control does.
    """
    busy = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(4 * (os.cpu_count() or 1))
    ]
    try:
        bench = Bench(ConstantPolicy(PLANT.outputs, 0.55), keep=512)
        bench.loop._clock = PacedClock(900.0, 900.0 / 0.02)
        ticks = bench.ticks(300)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    codes = [{fault.code for fault in (*tick.faults, *tick.sent.faults)} for tick in ticks]
    troubled = [i for i, found in enumerate(codes) if found & PAUSED]
    assert troubled, "not starved enough to show anything"
    for i in troubled:
        late = any(fault.code is ReasonCode.TICK_LATE for fault in ticks[i].sent.faults)
        assert not (late and ticks[i].sent.written)
        assert ticks[i].source >= Source.HOLD or ReasonCode.TICK_GAP not in codes[i]
    numbers = [tick.now_s for tick in ticks]
    assert all(later - earlier > 0.0 for earlier, later in pairwise(numbers))
    assert sum(tick.sent.written for tick in ticks) > 0
    assert bench.runner.log.totals()["rate"] == 0


def test_the_loop_collects_between_ticks_and_never_in_one():
    """Garbage of the ticks is young; what is old was frozen at the start."""
    seen: list[tuple[str, int]] = []
    inside: list[bool] = []

    class Watched:
        def __init__(self) -> None:
            self._inner = ConstantPolicy(PLANT.outputs, 0.55)

        def propose(self, observation: Observation) -> Proposal:
            before = len(seen)
            rubbish = [[i] for i in range(20_000)]  # enough to set an automatic collection off
            for one in rubbish:
                one.append(one)
            inside.append(len(seen) > before)
            return self._inner.propose(observation)

    def note(phase: str, info: dict[str, int]) -> None:
        seen.append((phase, info["generation"]))

    bench = Bench(Watched())
    gc.callbacks.append(note)
    try:
        bench.ticks(20)
    finally:
        gc.callbacks.remove(note)
    assert inside == [False] * 20
    assert sum(phase == "start" and age == 0 for phase, age in seen) >= 20
    assert gc.isenabled()
