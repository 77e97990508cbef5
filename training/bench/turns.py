"""Timing in turns: within one run every row meets the same machine, so that ratios mean something.

The speed of a shared machine changes by a factor of two within seconds. It cancels only between
rows that alternate, which is why there is no absolute time in any goal.
"""

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from steadyhand.controllers.signals import Vector
from steadyhand.training.bench.machine import realtime

TURN_S = 0.03
"""How long one row is timed before the next one has its turn."""
LEAST_CALLS, MOST_CALLS = 20, 4000
"""Calls per turn, whatever they take."""
WARM_UP = 30
REFILL = 5
"""Calls at the start of a turn that are not counted: the row before emptied the caches."""
BREATH_S = 0.004
"""Pause before a turn: other work of the machine goes on, also beside the real-time class."""


@dataclass(frozen=True, slots=True)
class Setting:
    """How a goal is measured."""

    rounds: int = 10
    realtime: bool = False
    """In the real-time class on one core, where the machine permits it."""
    turn_s: float = TURN_S
    encrypted: bool = False
    """Goal 7: the link to many tags signs and encrypts, and so does the rival's."""


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One way of doing the job, timed."""

    name: str
    samples_us: tuple[Vector, ...] = field(repr=False)
    """One array per round: microseconds of each call."""

    @property
    def medians_us(self) -> Vector:
        """(rounds,) median of each round."""
        return np.array([np.median(taken) for taken in self.samples_us])

    @property
    def p50_us(self) -> float:
        """Median of all calls."""
        return float(np.median(np.concatenate(self.samples_us)))

    def data(self) -> dict[str, Any]:
        """For tables and JSON."""
        everything = np.concatenate(self.samples_us)
        return {
            "name": self.name,
            "p50_us": self.p50_us,
            "p99_us": float(np.percentile(everything, 99)),
            "best_us": float(self.medians_us.min()),
            "calls": len(everything),
        }


def take_turns(
    ways: Mapping[str, Callable[[], Any]], setting: Setting, batch: int = 1
) -> dict[str, Row]:
    """Time every way, taking turns.

    Args:
        ways: name → call.
        setting: rounds and class of scheduling.
        batch: jobs done by one call; times are per job.
    """
    clock = time.perf_counter_ns
    counts = {name: _calls_per_turn(call, setting.turn_s) for name, call in ways.items()}
    taken: dict[str, list[Vector]] = {name: [] for name in ways}
    with realtime(setting.realtime):
        for _ in range(setting.rounds):
            gc.collect()
            gc.disable()
            try:
                for name, call in ways.items():
                    time.sleep(BREATH_S)
                    for _ in range(REFILL):
                        call()
                    turn = np.empty(counts[name])
                    for i in range(len(turn)):
                        start = clock()
                        call()
                        turn[i] = clock() - start
                    taken[name].append(turn / (1e3 * batch))
            finally:
                gc.enable()
    return {name: Row(name, tuple(rounds)) for name, rounds in taken.items()}


def _calls_per_turn(call: Callable[[], Any], turn_s: float) -> int:
    """Warm up, and see how many calls fill a turn."""
    taken = []
    for _ in range(WARM_UP):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return int(np.clip(turn_s / float(np.median(taken)), LEAST_CALLS, MOST_CALLS))
