"""Kill a process of a running plant at a random moment and see what the plant saw of it."""

import os
import random
import signal
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from steadyhand.runtime import chain
from steadyhand.runtime.chain import Head
from steadyhand.runtime.crash_loop import STATE_FILE
from steadyhand.runtime.reader import JournalReader
from steadyhand.runtime.record import TickRecord
from tests.support.loop_rig import OUTPUT, Rig, judge, until
from tests.support.tails import Tails, acknowledged, lost, tails

KINDS = ("plant", "policy", "runtime")
CLEAN_TICKS = 4
"""Of the shipped configuration: ticks without a complaint before control comes back."""
LOSSES_BEFORE_FLAP = 2
"""A third loss of the link within a minute is flapping, and a minute without writes."""
HURRIED_SHARE = 0.75
"""Of the kills at any time: started again at once, and killed again whatever it does by then."""
LIFE_S = 4.0
"""Longest life of a hurried run: some are killed at their start, some while they drive."""
KILLS_TO_LATCH = 3
"""So many kills with one policy in ten minutes, and the next start waits for a person."""
RESTART_S = 2.0
"""Longest from the start of the process to its first finished tick."""
ENDS_TO_LATCH = 3
"""So many ends of the policy's process in ten minutes, and it waits for a person."""


def alive(pid: int) -> bool:
    """Does this process still run? A dead one that nobody collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def percentiles(times: list[float]) -> dict[str, float]:
    """Of seconds, for the record."""
    return {
        label: round(float(np.percentile(times, share)), 3)
        for label, share in (("p50", 50), ("p95", 95), ("worst", 100))
    }


@dataclass
class Campaign:
    """What came of the kills. Times are wall seconds, one entry per kill."""

    kills: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    plant_back_s: list[float] = field(default_factory=list)
    """From the server's word that it listens to a controller that drives and beats."""
    runtime_ticks_s: list[float] = field(default_factory=list)
    """From the start of the process to its first finished tick."""
    runtime_back_s: list[float] = field(default_factory=list)
    """From the start of the process to a controller that drives and beats."""
    policy_back_s: list[float] = field(default_factory=list)
    """From the kill to another policy process that drives, after its clean ticks."""
    policy_proposes_s: list[float] = field(default_factory=list)
    """From the kill to a proposal of another policy process; not after a latched crash loop."""
    plant_beats_s: list[float] = field(default_factory=list)
    """From the server's word that it listens to the first heartbeat that is written to it."""
    barred_starts: int = 0
    """Starts without the policy, because the runtime had been killed too often with it."""
    stale_children: int = 0
    """Policy processes that outlived their runtime."""
    bad_writes: dict[str, int] = field(default_factory=dict)
    """What the plant itself counted, while it lived."""
    killed_at_wall_s: list[float] = field(default_factory=list)
    tails: list[Tails] = field(default_factory=list)
    """What each kill of the runtime cut off."""
    acknowledged: list[Head] = field(default_factory=list)
    """The last record on disk before each of them, where there was one to be seen."""

    def figures(self) -> dict[str, Any]:
        """Counts and percentiles."""
        made: dict[str, Any] = {"kills": {k: n for k, n in self.kills.items() if n}}
        for name in (
            "plant_beats_s",
            "plant_back_s",
            "runtime_ticks_s",
            "runtime_back_s",
            "policy_proposes_s",
            "policy_back_s",
        ):
            times = getattr(self, name)
            if times:
                made[name] = percentiles(times)
        if self.barred_starts:
            made["starts_without_the_policy"] = self.barred_starts
        if self.tails:
            made["cut_off"] = {
                "transactions": sum(one.transactions for one in self.tails),
                "segments": sum(one.segments for one in self.tails),
                "slots": sum(one.slots for one in self.tails),
                "most_of_the_journal_by_one_kill": max(one.journal for one in self.tails),
                "most_slots_by_one_kill": max(one.slots for one in self.tails),
            }
        made["policy_processes_left_behind"] = self.stale_children
        made["counted_by_the_plant"] = self.bad_writes
        return made


class Killer:
    """Kills parts of one rig, one after another, and waits for control to come back."""

    def __init__(self, rig: Rig, seed: int, patience_s: float = 60.0) -> None:
        self.rig = rig
        self.done = Campaign()
        self._random = random.Random(seed)
        self._patience_s = patience_s
        self._starts = 1
        self._ends = 0
        """Of the policy's process, since the runtime or an acknowledgement began anew."""
        self._losses = 0
        """Of the link, since the runtime began anew."""
        self._noted = 0
        """Kills of the runtime since its notes of crashes were taken away."""
        self._orphans: list[tuple[int, float]] = []
        """Policy processes of killed runtimes, and when these were killed."""
        self._begun_wall_s = 0.0
        self._lives: dict[int, list[tuple[float, float]]] = {}
        """Begin and end of each run that was killed, wall seconds, by the number of its process."""

    def kill(self, kind: str) -> None:
        """One kill at a random phase of the tick, and the way back."""
        time.sleep(self._random.uniform(0.0, 3.0 * self.rig.period_s))
        getattr(self, f"_{kind}")()
        self.done.kills[kind] += 1

    def kill_at_any_time(self) -> None:
        """One kill of the runtime: while it starts, takes over, drives or waits.

        Its notes of crashes are taken away in time, so that every run has its policy.
        """
        rig = self.rig
        assert rig.runtime is not None
        hurried = self._random.random() < HURRIED_SHARE
        time.sleep(self._random.uniform(0.0, LIFE_S if hurried else 3.0 * rig.period_s))
        child = rig.policy_pid()
        self._kill_runtime()
        if child is not None:
            self._orphans.append((child, time.monotonic()))
        self.done.kills["runtime"] += 1
        self._noted += 1
        if self._noted == KILLS_TO_LATCH - 1:
            self._noted = 0
            (rig.folder / "var" / STATE_FILE).unlink(missing_ok=True)
        started = time.monotonic()
        self._start_runtime()
        if not hurried:
            until(rig.status, self._patience_s, "a finished tick")
            self.done.runtime_ticks_s.append(time.monotonic() - started)
            rig.wait_in_control(self._patience_s)
            self.done.runtime_back_s.append(time.monotonic() - started)
            assert "CRASH_LOOP" not in rig.status().get("latched", ())
        self._count_orphans()

    def finish(self) -> dict[str, Any]:
        """Stop both in order, then compare the plant's log with the journal."""
        self._count_orphans(wait=True)
        self._count_bad()
        assert self.rig.stop_runtime() == 0
        assert self.rig.plant is not None
        self.rig.plant.stop()
        verified = chain.verify(self.rig.journal)
        assert verified.ok, chain.describe_problem(verified)
        found = judge(self.rig, tuple(self.done.killed_at_wall_s), self._starts)
        made = self.done.figures() | {"compared_with_the_journal": asdict(found)}
        if self.done.tails:
            made |= self._journal_figures()
        return made

    def _journal_figures(self) -> dict[str, Any]:
        """What the journal says of all runs that were killed."""
        first_s: dict[tuple[int, float], float] = {}
        rescued = repairs = 0
        with JournalReader(self.rig.journal) as journal:
            repairs = sum(one.header["reason"] == "AUDIT_REPAIR" for one in journal.segments)
            for segment, item in journal.items():
                if isinstance(item, TickRecord):
                    rescued += segment.header["reason"] == "rescue"
                    life = self._life(segment.header["run"])
                    if life is not None:
                        first_s.setdefault(life, item.wall_ns / 1e9 - life[1])
        # a run that was killed before it could have ticked says nothing of how long a start takes
        long = [
            first_s.get((pid, begin), end - begin)
            for pid, lives in self._lives.items()
            for begin, end in lives
            if end - begin >= RESTART_S
        ]
        heads = self.done.acknowledged
        return {
            "runs_that_lived_2_s": len(long),
            "their_first_tick_s": percentiles(long) if long else {},
            "acknowledged_records": {
                "looked_for": len(heads),
                "lost": len(lost(self.rig.journal, heads)),
            },
            "ticks_from_the_black_box": rescued,
            "chains_repaired": repairs,
        }

    def _life(self, run: str) -> tuple[int, float] | None:
        """Process and begin of a run that was killed, by the name it has in the journal."""
        opened_ns, _, pid = run.partition("-")
        for begin, end in self._lives.get(int(pid), ()):
            if begin <= int(opened_ns) / 1e9 <= end:
                return int(pid), begin
        return None

    def _kill_runtime(self) -> None:
        """Kill it, and look at what lies there before anything puts it in order."""
        rig = self.rig
        assert rig.runtime is not None
        head = acknowledged(rig.journal)
        self.done.killed_at_wall_s.append(time.time())
        rig.runtime.kill()
        rig.runtime.wait()
        if self._begun_wall_s:
            life = (self._begun_wall_s, time.time())
            self._lives.setdefault(rig.runtime.pid, []).append(life)
        if head is not None:
            self.done.acknowledged.append(head)
        self.done.tails.append(tails(rig.journal, rig.folder / "var" / "operator.black-box"))

    def _plant(self) -> None:
        rig = self.rig
        assert rig.plant is not None
        if self._losses == LOSSES_BEFORE_FLAP:
            assert rig.stop_runtime() == 0
            self._start_runtime()
            rig.wait_in_control(self._patience_s)
        self._losses += 1
        self._count_bad()
        rig.plant.kill()
        time.sleep(self._random.uniform(0.0, 4.0 * rig.period_s))
        rig.start_plant()
        listens = time.monotonic()
        beat = rig.truth()["heartbeat"]
        until(lambda: rig.truth()["heartbeat"] != beat, self._patience_s, "a heartbeat")
        self.done.plant_beats_s.append(time.monotonic() - listens)
        rig.wait_in_control(self._patience_s)
        self.done.plant_back_s.append(time.monotonic() - listens)

    def _policy(self) -> None:
        rig = self.rig
        before = rig.policy_pid()
        assert before is not None
        beat = rig.truth()["heartbeat"]
        started = time.monotonic()
        os.kill(before, signal.SIGKILL)
        until(lambda: rig.truth()["heartbeat"] != beat, self._patience_s, "a heartbeat")
        assert rig.in_control(), "the heuristic drives at once"
        self._ends += 1
        latched = self._ends == ENDS_TO_LATCH
        if latched:
            self._ends = 0
            until(
                lambda: "CRASH_LOOP" in rig.status().get("latched", ()),
                self._patience_s,
                "a crash loop",
            )
            assert rig.ask("ack")["acknowledged"]

        def proposes() -> bool:
            if rig.policy_pid() in (before, None):
                return False
            return rig.status().get("proposed", {}).get(OUTPUT) is not None

        until(proposes, self._patience_s, "the policy proposes")
        if not latched:
            self.done.policy_proposes_s.append(time.monotonic() - started)

        def back() -> bool:
            return rig.policy_pid() not in (before, None) and rig.status().get("source") == "policy"

        until(back, self._patience_s, "the policy drives")
        self.done.policy_back_s.append(time.monotonic() - started)

    def _runtime(self) -> None:
        rig = self.rig
        assert rig.runtime is not None
        child = rig.policy_pid()
        self._kill_runtime()
        until(lambda: not rig.truth()["controlled"], self._patience_s, "the plant's own control")
        if child is not None and alive(child):
            time.sleep(0.5)
            self.done.stale_children += alive(child)
        started = time.monotonic()
        self._start_runtime()
        until(rig.status, self._patience_s, "a finished tick")
        ticked = time.monotonic()
        rig.wait_in_control(self._patience_s)
        if "CRASH_LOOP" not in rig.status().get("latched", ()):
            self.done.runtime_ticks_s.append(ticked - started)
            self.done.runtime_back_s.append(time.monotonic() - started)
            return
        # killed so often with this policy that it is not started again before a person has looked
        self.done.barred_starts += 1
        assert rig.policy_pid() is None
        assert rig.ask("ack")["acknowledged"]
        assert rig.stop_runtime() == 0
        self._start_runtime()
        rig.wait_in_control(self._patience_s)

    def _count_orphans(self, wait: bool = False) -> None:
        """Policy processes that are still there half a second after their runtime's end."""
        if wait and self._orphans:
            time.sleep(0.5)
        due = [one for one in self._orphans if time.monotonic() - one[1] >= 0.5]
        self.done.stale_children += sum(alive(pid) for pid, _ in due)
        self._orphans = [one for one in self._orphans if one not in due]

    def _start_runtime(self) -> None:
        self._begun_wall_s = time.time()
        self.rig.start_runtime()
        self._starts += 1
        self._ends = self._losses = 0

    def _count_bad(self) -> None:
        counts = self.rig.truth()["writes"]
        for name, count in counts.items():
            self.done.bad_writes[name] = self.done.bad_writes.get(name, 0) + count
