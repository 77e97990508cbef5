"""Months in hours: a real virtual plant over OPC UA, a runtime, and trouble all the time.

    python tests/loop/soak.py --minutes 30
    python tests/loop/soak.py --minutes 4320        (72 hours)

A new bundle every 10 s, the link cut every 30 s, the secure channel renewed every 5 s, a new
segment of the journal every minute. Sampled: the runtime's memory, descriptors and threads, how
long ticks take, writes that are missing outside of the cuts. A line of progress every 10 s, a
result as JSON in the end; `--write` keeps it in tests/loop/results/soak.json.

Slopes, and how much longer the slowest ticks of the last tenth take than those of the first, are
told with their 95 % interval. An interval wholly above its limit is wrong, and so is anything else
that breaks a rule: the exit status is 1. One that holds the limit is named "undecided": the run was
too short to tell. Ctrl-C ends it early, with its result.
"""

import argparse
import json
import shlex
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

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from steadyhand.adapters.sim.chaos_proxy import ChaosProxy  # noqa: E402
from steadyhand.controllers.errors import JournalError, RequestError  # noqa: E402
from steadyhand.runtime import chain  # noqa: E402
from steadyhand.runtime.reader import JournalReader  # noqa: E402
from tests.support import results  # noqa: E402
from tests.support.loop_rig import PERIOD_S, Bundles, Rig, until  # noqa: E402
from tests.support.soak_figures import (  # noqa: E402
    ABOVE,
    FILLED,
    RING_TICKS,
    SETTLE_MOST_S,
    SLOWER,
    UNDECIDED,
    settling_s,
    slope_per_hour,
    tick_tenths,
    verdict,
)

ENDPOINT = "opc.tcp://127.0.0.1:4840/steadyhand/"
OFTEN = {"clean_ticks: 4": "clean_ticks: 4\n  max_raises: 100000"}
"""Control comes and goes more often than a person bears."""
CUT_S = 1.0
"""How long a cut link stays away."""
WINDOW_S = 10.0
"""Longest that a cut excuses; less when control is back before."""
RSS_LIMIT_MB_H = 1.0
FLAT_PER_H = 1.0
"""A slope of descriptors or threads that may be one an hour or more is not known to be none."""
TICK_SHARE = 0.5
"""Of the period, the most that the slowest ticks may take."""
RESULTS = results.RESULTS / "soak.json"


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
        self.at_s, self.took_s = array("d"), array("d")
        """When each tick was, and how long it took, waiting for its time left out."""

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
        self.at_s.append(at_s)
        self.took_s.append(sum(tick.timings[1:]))

    def p999_ms(self) -> float:
        """Of all ticks so far."""
        return round(1e3 * float(np.quantile(self.took_s, 0.999)), 2) if self.took_s else 0.0


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
            f"renewals {self._renewed()}  p99.9 {self.ticks.p999_ms()} ms  "
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
        long_enough = settle_s >= min(FILLED * RING_TICKS * self.options.tick, SETTLE_MOST_S)
        slopes = {
            name: slope_per_hour(seen.time_s, getattr(seen, name), settle_s)
            for name in ("rss_mb", "descriptors", "threads")
        }
        tenths = tick_tenths(self.ticks.at_s, self.ticks.took_s)
        limit_ms = 1e3 * TICK_SHARE * self.options.tick
        bad = {name: counted[name] for name in ("nonfinite", "outside", "rate", "ungranted")}
        told = {
            "memory grows": verdict(slopes["rss_mb"], RSS_LIMIT_MB_H),
            "descriptors grow": verdict(slopes["descriptors"], 0.0, FLAT_PER_H),
            "threads grow": verdict(slopes["threads"], 0.0, FLAT_PER_H),
            "ticks get slower": verdict(tenths, SLOWER),
        }
        if not long_enough:
            told["memory grows"] = UNDECIDED
        wrong = {
            "the runtime's exit status": status != 0,
            "the chain": not verified.ok,
            "writes missed outside of cuts": counts["missed outside"] > 0,
            "writes that no rule allows": any(bad.values()),
            **{name: found == ABOVE for name, found in told.items()},
            "ticks are slow": self.ticks.p999_ms() > limit_ms,
            "it ended by itself": self.done["runtime ended by itself"] > 0,
            "bundles were refused": any(name.startswith("swap refused") for name in self.done),
        }
        return {
            "command": shlex.join(["python", "tests/loop/soak.py", *sys.argv[1:]]),
            "commit": results.COMMIT,
            "minutes": round(length_s / 60, 2),
            "tick_wall_s": self.options.tick,
            "ticks": counts["ticks"],
            "happened": {**self.done, "renewals": self._renewed(),
                         "segments": verified.segments},
            "per_hour": {**slopes, "settling_s": settle_s, "memory_judged": long_enough},
            "tick_p999_ms": {"all": self.ticks.p999_ms(), "limit": limit_ms},
            "last_tenth_against_first": {**tenths, "limit": SLOWER},
            "missed_writes": {"in_cuts": counts["missed in cuts"],
                              "outside": counts["missed outside"]},
            "skipped_periods": {"in_cuts": counts["skipped in cuts"],
                                "outside": counts["skipped outside"]},
            "first_missed_outside": self.ticks.outside,
            "ticks_by_source": {k: n for k, n in sorted(counts.items()) if k.startswith("source")},
            "counted_by_the_plant": bad,
            "chain": chain.describe_problem(verified),
            "wrong": [name for name, found in wrong.items() if found],
            "undecided": [name for name, found in told.items() if found == UNDECIDED],
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
    add("--cut-every", type=float, default=30.0, help="seconds")
    add("--renew-every", type=float, default=5.0, help="seconds")
    add("--rotate-every", type=float, default=60.0, help="seconds")
    add("--keep-mb", type=float, default=4.0, help="of the journal; the rest is purged")
    add("--write", action="store_true", help=f"keep the result in {RESULTS.name}")
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
    found = json.loads(result)
    if options.write:
        results.keep(RESULTS, found)
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
