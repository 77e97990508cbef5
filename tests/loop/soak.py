"""Months in hours: a real virtual plant over OPC UA, a runtime, and trouble all the time.

    python tests/loop/soak.py --minutes 30
    python tests/loop/soak.py --minutes 4320        (72 hours)

A new bundle every 10 s, the link cut about every 30 s, the secure channel renewed every 5 s, a new
segment of the journal every minute. Sampled: the runtime's memory, descriptors and threads, how
long ticks take, writes that are missing outside of the cuts. A line of progress every 10 s, a
result as JSON in the end; the exit status is 1 if anything of it breaks a rule. Ctrl-C ends it
early, with its result.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from array import array
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from steadyhand.adapters.sim.chaos_proxy import ChaosProxy  # noqa: E402
from steadyhand.controllers.errors import JournalError, RequestError  # noqa: E402
from steadyhand.runtime import chain  # noqa: E402
from steadyhand.runtime.reader import JournalReader  # noqa: E402
from tests.support.loop_rig import PERIOD_S, Bundles, Rig, until  # noqa: E402

ENDPOINT = "opc.tcp://127.0.0.1:4840/steadyhand/"
OFTEN = {"clean_ticks: 4": "clean_ticks: 4\n  max_raises: 100000"}
"""Control comes and goes more often than a person bears."""
CUT_S = 1.0
"""How long a cut link stays away."""
WINDOW_S = 10.0
"""Longest that a cut excuses; less when control is back before."""
RING_TICKS = 1.1 * 4096
"""The recorder's ring is memory that fills once."""
SETTLE_SHARE, SETTLE_LEAST_SHARE, SETTLE_MOST_S = 0.6, 0.25, 7200.0
"""Warming up does not count for slopes: until the ring is full, or 0.6 of a run too short for it,
of which memory is told but not judged."""
BLOCKS = 12
"""A slope is fitted through the means of so many stretches of time, so that what follows from the
sample before does not count as another one."""
SPAN_S = 3600.0
"""The first and the last hour are compared."""
RSS_LIMIT_MB_H = 1.0
TICK_SHARE = 0.5


@dataclass
class Samples:
    """What was measured, one entry a second."""

    time_s: array = field(default_factory=lambda: array("d"))
    rss_mb: array = field(default_factory=lambda: array("d"))
    descriptors: array = field(default_factory=lambda: array("d"))
    threads: array = field(default_factory=lambda: array("d"))

    def take(self, now_s: float, pid: int) -> None:
        """Look at a process; a dead one is left out."""
        with suppress(OSError, StopIteration):
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            rss, threads = (
                next(float(line.split()[1]) for line in lines if line.startswith(name))
                for name in ("VmRSS:", "Threads:")
            )
            descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
            self.time_s.append(now_s)
            self.rss_mb.append(rss / 1024)
            self.threads.append(threads)
            self.descriptors.append(descriptors)


def settling_s(length_s: float, tick_s: float) -> float:
    """What of a run does not count for slopes."""
    wanted_s = max(SETTLE_LEAST_SHARE * length_s, RING_TICKS * tick_s)
    return min(wanted_s, SETTLE_SHARE * length_s, SETTLE_MOST_S)


def slope_per_hour(time_s: array, values: array, settle_s: float) -> dict[str, float]:
    """Slope with its 95 % interval, by least squares through the means of equal stretches."""
    if len(time_s) < 2 * BLOCKS:
        return {"slope": 0.0, "low": float("-inf"), "high": float("inf")}
    at = np.array(time_s) / 3600.0
    kept = at >= settle_s / 3600.0
    x = np.array([part.mean() for part in np.array_split(at[kept], BLOCKS)])
    y = np.array([part.mean() for part in np.array_split(np.array(values)[kept], BLOCKS)])
    spread = float(((x - x.mean()) ** 2).sum())
    slope = float(((x - x.mean()) * (y - y.mean())).sum()) / spread
    rest = y - y.mean() - slope * (x - x.mean())
    error = float(np.sqrt((rest**2).sum() / (BLOCKS - 2) / spread))
    half = float(student.ppf(0.975, BLOCKS - 2)) * error
    return {
        "slope": round(slope, 4),
        "low": round(slope - half, 4),
        "high": round(slope + half, 4),
        "begin": round(float(y[0]), 3),
        "end": round(float(y[-1]), 3),
    }


class Ticks:
    """Reads the journal behind the loop and judges every tick once."""

    def __init__(self, journal: Path, period_s: float) -> None:
        self._journal, self._period_s = journal, period_s
        self._next = 0
        self._last_s = 0.0
        self._cut_s = float("-inf")
        self._back = True
        """Was there a write since the last cut was over?"""
        self.cuts: list[float] = []
        """Wall times of cuts that no tick has reached yet."""
        self.counts: Counter[str] = Counter()
        self.outside: list[dict[str, Any]] = []
        """The first ticks without a write that nothing excuses."""
        self.took: list[tuple[float, array]] = []
        """Seconds of ticks, by hour."""

    def start(self, sequence: int) -> None:
        """Judge from this tick on."""
        self._next = sequence

    def read(self) -> None:
        """Judge what is new. A segment may be purged while it is read: next time, then."""
        with suppress(JournalError, OSError), JournalReader(self._journal) as reader:
            for tick in reader.ticks(self._next):
                self._next = tick.sequence + 1
                self._judge(tick)

    def _judge(self, tick: Any) -> None:
        at_s = tick.wall_ns / 1e9
        while self.cuts and self.cuts[0] <= at_s + self._period_s:
            self._cut_s, self._back = self.cuts.pop(0), False
        excused = not self._back and at_s < self._cut_s + WINDOW_S
        written = tick.sent is not None and tick.sent.written
        self.counts["ticks"] += 1
        self.counts[f"source {int(tick.source)}"] += 1
        skipped = max(0, round((at_s - self._last_s) / self._period_s) - 1) if self._last_s else 0
        self._last_s = at_s
        where = "in cuts" if excused else "outside"
        self.counts[f"skipped {where}"] += skipped
        if not written:
            self.counts[f"missed {where}"] += 1
            if not excused and len(self.outside) < 20:
                reasons = sorted(tick.reasons)
                self.outside.append({"tick": tick.sequence, "wall_s": at_s, "reasons": reasons})
        elif at_s > self._cut_s + CUT_S:
            self._back = True
        if not self.took or at_s - self.took[-1][0] > SPAN_S:
            self.took.append((at_s, array("d")))
            del self.took[1:-2]  # the first, the one before the last, the last
        self.took[-1][1].append(sum(tick.timings))

    def p999_ms(self) -> dict[str, float]:
        """Of the first and of the last hour (of which the last whole one, where there is one)."""
        if not self.took:
            return {}
        whole = self.took[-2] if len(self.took) > 2 else self.took[-1]
        return {
            name: round(1e3 * float(np.quantile(np.array(span[1]), 0.999)), 2)
            for name, span in (("first_hour", self.took[0]), ("last_hour", whole))
        }


_maker: list[Bundles] = []


def _begin_packing(folder: str) -> None:
    _maker.append(Bundles(Path(folder)))


def _pack(version: int) -> str:
    return str(_maker[0].pack(f"soak-{version % 3}", version, seed=version % 100))


class Soak:
    """One plant, one runtime, and what happens to them."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options = options
        self.renewals = folder / "renewals"
        self.done: Counter[str] = Counter()
        self.samples = Samples()
        self._packer = ProcessPoolExecutor(
            1, get_context("spawn"), _begin_packing, (str(folder / "bundles"),)
        )
        self._version = 1
        first = Path(self._packer.submit(_pack, 1).result())
        self._packed: Future[str] = self._packer.submit(_pack, 2)
        self.rig = Rig(
            folder / "rig",
            time_scale=PERIOD_S / options.tick,
            bundle=first,
            keys=folder / "bundles" / "keys",
            changes=dict(OFTEN),
        )
        plant = self.rig.start_plant()
        host, port = plant.ready["endpoint"].split("/")[2].split(":")
        self.proxy = ChaosProxy(host, int(port))
        self.rig.changes[ENDPOINT] = plant.ready["endpoint"].replace(
            f":{port}", f":{self.proxy.port}"
        )
        self.rig.write_config()
        self.ticks = Ticks(self.rig.journal, options.tick)
        self.stopped = False
        self._fresh_from = 0.0

    def start(self) -> None:
        """Start the runtime and wait until it drives."""
        options = self.options
        with self.rig.said.open("ab") as stream:
            self.rig.runtime = subprocess.Popen(
                [sys.executable, "-m", "tests.support.soak_runtime", str(self.rig.config),
                 str(options.renew_every), str(options.rotate_every),
                 str(options.keep_mb * 2**20), str(self.renewals)],
                stdout=stream, stderr=stream, cwd=ROOT,
            )  # fmt: skip
        self.rig.wait_in_control(120.0)
        until(lambda: self.rig.status().get("source") == "policy", 120.0, "the policy drives",
              self.rig.story)  # fmt: skip
        self.ticks.start(int(self.rig.status()["tick"]) + 1)

    def run(self) -> None:
        """Until the time is over."""
        options, runtime = self.options, self.rig.runtime
        assert runtime is not None
        begun = time.monotonic()
        swap_s, cut_s, said_s = options.swap_every, options.cut_every, 10.0
        while not self.stopped and (now_s := time.monotonic() - begun) < 60.0 * options.minutes:
            if runtime.poll() is not None:
                self.done["runtime ended by itself"] += 1
                return
            self.samples.take(now_s, runtime.pid)
            if now_s >= swap_s:
                swap_s += options.swap_every
                self._swap()
            if now_s >= cut_s:
                cut_s = max(cut_s, now_s) + options.cut_every
                self._cut()
            self.ticks.read()
            if now_s >= said_s:
                said_s += 10.0
                print(self.progress(now_s), flush=True)
            time.sleep(max(0.0, begun + now_s + 1.0 - time.monotonic()))

    def _swap(self) -> None:
        shown = self.rig.status().get("bundle")
        if self._version > 1:
            self.done["swapped" if shown == f"soak-{self._version % 3} v{self._version}"
                      else "not swapped in time"] += 1  # fmt: skip
        try:
            file = self._packed.result()
            self._version += 1
            self._packed = self._packer.submit(_pack, self._version + 1)
            self.rig.ask("swap", file=file, reason="soak")
        except (RequestError, OSError) as error:
            self.done[f"swap refused: {error}"] += 1

    def _cut(self) -> None:
        self.done["cuts"] += 1
        self.ticks.cuts.append(time.time())
        self.proxy.refuse()
        self.proxy.reset()
        time.sleep(CUT_S)
        self.proxy.heal()

    def progress(self, now_s: float) -> str:
        """One line."""
        seen, counts = self.samples, self.ticks.counts
        return (
            f"{now_s / 60:7.1f} min  {counts['ticks']} ticks  rss {seen.rss_mb[-1]:.1f} MB  "
            f"fds {seen.descriptors[-1]:.0f}  threads {seen.threads[-1]:.0f}  "
            f"swaps {self.done['swapped']}  cuts {self.done['cuts']}  "
            f"renewals {self._renewed()}  p99.9 {self.ticks.p999_ms().get('last_hour', 0)} ms  "
            f"missed {counts['missed in cuts']} in cuts, {counts['missed outside']} outside"
        )

    def _renewed(self) -> int:
        return self.renewals.stat().st_size if self.renewals.exists() else 0

    def finish(self) -> dict[str, Any]:
        """Stop everything in order and put the result together."""
        counted = self.rig.truth()["writes"]
        status = self.rig.stop_runtime()
        self.ticks.read()
        verified = chain.verify(self.rig.journal)
        seen, counts = self.samples, self.ticks.counts
        length_s = seen.time_s[-1] if seen.time_s else 0.0
        settle_s = settling_s(length_s, self.options.tick)
        long_enough = settle_s >= min(RING_TICKS * self.options.tick, SETTLE_MOST_S)
        slopes = {
            name: slope_per_hour(seen.time_s, getattr(seen, name), settle_s)
            for name in ("rss_mb", "descriptors", "threads")
        }
        p999 = self.ticks.p999_ms()
        limit_ms = 1e3 * TICK_SHARE * self.options.tick
        bad = {name: counted[name] for name in ("nonfinite", "outside", "rate", "ungranted")}
        wrong = {
            "the runtime's exit status": status != 0,
            "the chain": not verified.ok,
            "writes missed outside of cuts": counts["missed outside"] > 0,
            "writes that no rule allows": any(bad.values()),
            "memory grows": long_enough and slopes["rss_mb"]["low"] > RSS_LIMIT_MB_H,
            "descriptors grow": slopes["descriptors"]["low"] > 0.0,
            "threads grow": slopes["threads"]["low"] > 0.0,
            "ticks are slow": any(value > limit_ms for value in p999.values()),
            "it ended by itself": self.done["runtime ended by itself"] > 0,
            "bundles were refused": any(name.startswith("swap refused") for name in self.done),
        }
        return {
            "command": f"python tests/loop/soak.py --minutes {self.options.minutes:g}",
            "minutes": round(length_s / 60, 2),
            "tick_wall_s": self.options.tick,
            "ticks": counts["ticks"],
            "happened": {**self.done, "renewals": self._renewed(),
                         "segments": verified.segments},
            "per_hour": {**slopes, "settling_s": settle_s, "memory_judged": long_enough},
            "tick_p999_ms": {**p999, "limit": limit_ms},
            "missed_writes": {"in_cuts": counts["missed in cuts"],
                              "outside": counts["missed outside"]},
            "skipped_periods": {"in_cuts": counts["skipped in cuts"],
                                "outside": counts["skipped outside"]},
            "first_missed_outside": self.ticks.outside,
            "ticks_by_source": {k: n for k, n in sorted(counts.items()) if k.startswith("source")},
            "counted_by_the_plant": bad,
            "chain": chain.describe_problem(verified),
            "wrong": [name for name, found in wrong.items() if found],
        }  # fmt: skip

    def close(self) -> None:
        """End every process."""
        self.rig.close()
        self.proxy.close()
        self._packer.shutdown(cancel_futures=True)


def numbers() -> argparse.Namespace:
    made = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    add = made.add_argument
    add("--minutes", type=float, default=30.0)
    add("--tick", type=float, default=0.2, help="wall seconds of a tick")
    add("--swap-every", type=float, default=10.0, help="seconds")
    # three losses within a minute are flapping, and a minute without writes
    add("--cut-every", type=float, default=31.0, help="seconds")
    add("--renew-every", type=float, default=5.0, help="seconds")
    add("--rotate-every", type=float, default=60.0, help="seconds")
    add("--keep-mb", type=float, default=4.0, help="of the journal; the rest is purged")
    add("--out", type=Path, default=None, help="file for the result too")
    return made.parse_args()


def soaking(options: argparse.Namespace) -> Iterator[str]:
    """Run it; yields the result."""
    with tempfile.TemporaryDirectory(prefix="soak") as name:
        soak = Soak(options, Path(name))
        signal.signal(signal.SIGINT, lambda *_: setattr(soak, "stopped", True))
        signal.signal(signal.SIGTERM, lambda *_: setattr(soak, "stopped", True))
        try:
            soak.start()
            soak.run()
            yield json.dumps(soak.finish(), indent=2)
        finally:
            soak.close()


def main() -> int:
    options = numbers()
    (result,) = soaking(options)
    print(result)
    if options.out is not None:
        options.out.write_text(result + "\n", encoding="utf-8")
    return 1 if json.loads(result)["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
