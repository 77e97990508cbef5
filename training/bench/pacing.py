"""Goal 5: a loop that keeps time beside two busy processes.

Both loops keep an absolute schedule and ask a real policy each tick. A tick counts as missed when
it starts more than half a period late, or never: ours skips what it overran, the asyncio loop works
it off.
"""

import asyncio
import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from steadyhand.controllers.signals import Vector
from steadyhand.runtime.clock import PacedClock
from steadyhand.training.bench.goals import Check, Measured
from steadyhand.training.bench.graphs import tanh_policy
from steadyhand.training.bench.machine import realtime, realtime_permitted
from steadyhand.training.bench.turns import Setting

PERIOD_S = 1e-3
ROUND_S = 1.0
HOGS = 2
N_Y, N_U, HIDDEN = 16, 7, 64
MISSED_BOUND, LATENESS_BOUND = 0.01, 1 / 20
MISSED_BOUND_ORDINARY = 1 / 3
"""Share of asyncio's missed ticks, where the real-time class is refused."""
OURS, RIVAL = "paced clock", "asyncio.sleep"
ORDINARY, RT = "ordinary class", "real-time class"

Tick = Callable[[], Any]


@dataclass(frozen=True, slots=True, eq=False)
class Beats:
    """What one loop did in one round."""

    lateness_us: Vector
    """Of each tick that was run."""
    skipped: int
    planned: int

    @property
    def missed(self) -> int:
        """Ticks more than half a period late, or skipped."""
        return int((self.lateness_us > PERIOD_S * 5e5).sum()) + self.skipped


def paced(tick: Tick, seconds: float) -> Beats:
    """Our clock for a while."""
    clock = PacedClock(PERIOD_S)
    planned = round(seconds / PERIOD_S)
    lateness = np.empty(planned)
    ran = skipped = 0
    while ran + skipped < planned:
        beat = clock.wait(0)
        lateness[ran] = beat.lateness_s * 1e6
        tick()
        skipped += beat.skipped
        ran += 1
    return Beats(lateness[:ran], skipped, ran + skipped)


def slept(tick: Tick, seconds: float) -> Beats:
    """The same with `asyncio.sleep` until the next planned time."""
    planned = round(seconds / PERIOD_S)
    lateness = np.empty(planned)

    async def loop() -> None:
        due_s = time.monotonic()
        for i in range(planned):
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            lateness[i] = (time.monotonic() - due_s) * 1e6
            tick()
            due_s += PERIOD_S

    asyncio.run(loop())
    return Beats(lateness, 0, planned)


def measure(setting: Setting) -> Measured:
    """Both loops in both classes, in rounds of a second."""
    policy = tanh_policy(N_Y, N_U, HIDDEN).build()
    values = np.random.default_rng(1).standard_normal(N_Y)
    permitted = realtime_permitted()
    classes = {ORDINARY: False} | ({RT: True} if permitted else {})
    rounds: dict[tuple[str, str], list[Beats]] = {}
    with _busy_processes(), _no_collection():
        for _ in range(setting.rounds):
            for title, wanted in classes.items():
                for name, loop in ((RIVAL, slept), (OURS, paced)):
                    with realtime(wanted, os.SCHED_FIFO):
                        beats = loop(lambda: policy.run(values), ROUND_S)
                    rounds.setdefault((name, title), []).append(beats)
    rows = {key: _row(key, all_beats) for key, all_beats in rounds.items()}
    checks = _checks(rows, permitted)
    ordinary = [f"{name} missed {rows[name, ORDINARY]['missed']:.1%}" for name in (OURS, RIVAL)]
    notes = [
        f"{HOGS} busy processes of our own on {os.cpu_count()} cores",
        f"{ORDINARY}: {', '.join(ordinary)}",
        "a tick that was skipped has no lateness: it counts as missed",
    ]
    if not permitted:
        notes.append("the real-time class is refused here: the weaker goal counts")
    return Measured({"1 kHz, lateness of a tick": list(rows.values())}, checks, notes)


def _row(key: tuple[str, str], rounds: list[Beats]) -> dict[str, Any]:
    lateness = np.concatenate([beats.lateness_us for beats in rounds])
    return {
        "name": ", ".join(key),
        "p50_us": float(np.median(lateness)),
        "p99_us": float(np.percentile(lateness, 99)),
        "best_us": min(float(np.median(beats.lateness_us)) for beats in rounds),
        "calls": len(lateness),
        "missed": sum(beats.missed for beats in rounds) / sum(beats.planned for beats in rounds),
    }


def _checks(rows: dict[tuple[str, str], dict[str, Any]], permitted: bool) -> list[Check]:
    rival = rows[RIVAL, ORDINARY]
    if not permitted:
        share = _ratio(rows[OURS, ORDINARY]["missed"], rival["missed"])
        what = f"missed ticks: {OURS} / {RIVAL}, both in the {ORDINARY}"
        return [Check(what, share, MISSED_BOUND_ORDINARY)]
    ours = rows[OURS, RT]
    checks = [Check(f"missed ticks: {OURS}, {RT}", ours["missed"], MISSED_BOUND)]
    for title in (ORDINARY, RT):
        ratio = ours["p99_us"] / rows[RIVAL, title]["p99_us"]
        what = f"p99 lateness: {OURS}, {RT} / {RIVAL}, {title}"
        checks.append(Check(what, ratio, LATENESS_BOUND))
    return checks


def _ratio(ours: float, rival: float) -> float:
    """Where the rival missed nothing there is nothing to be better than."""
    return ours / rival if rival > 0 else float("nan")


@contextmanager
def _busy_processes() -> Iterator[None]:
    """As many as there are cores on a small machine; ended with the block."""
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(HOGS)]
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


@contextmanager
def _no_collection() -> Iterator[None]:
    """As the control loop runs: what is alive stays, garbage is collected between rounds only."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
