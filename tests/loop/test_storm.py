"""A thousand scrapes a second beside a real loop: refused, counted, and not felt by its ticks.

Blocks with and without a storm take turns in one run, which of a pair comes first as well, so that
whatever else the machine does meets both. What the ordinary test asserts is coarse; the figures are
the campaign's (`-m slow`), in results/storm.json.
"""

import json
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from steadyhand.runtime.metrics_server import SCRAPES_PER_S
from tests.support import results, storm
from tests.support.loop_rig import PERIOD_S, Rig, until
from tests.support.prometheus import free_port

pytestmark = pytest.mark.timeout(300)
RATE_HZ = 1000.0
ASKED_SHARE = 0.5
"""Of the rate, the least that is a storm: the asking has the lowest priority of all."""
TIME_SCALE = 18_000.0
"""Of the plant: twenty ticks a second."""
SHORT_PAIRS, SHORT_S = 3, 1.0
LONG_PAIRS, LONG_S = 15, 5.0
REST_S = 0.3
"""Between two blocks, for what the one before has left."""
GENEROUS = 5.0
"""So many times as long may a slow tick take in a storm, in the ordinary test; a loop that waited
for a turn of the server's thread would take more."""
MISSED_SHARE = 0.1
"""Of the periods, so many more may be missed in a storm, in the ordinary test."""
DRAWS, SEED = 2000, 1
FIGURES = results.RESULTS / "storm.json"


@dataclass
class Block:
    """A stretch of the run, and what was measured in it."""

    begin_s: float
    end_s: float
    answers: dict[str, float] = field(default_factory=dict)
    """By status, and how often it was asked; empty without a storm."""
    took_s: np.ndarray = field(default_factory=lambda: np.zeros(0))
    """Of each tick, all stages but the wait for its time."""
    jitter_s: np.ndarray = field(default_factory=lambda: np.zeros(0))
    """Of each tick, how far from one period after the tick before; who paces it is the plant."""
    missed: int = 0


def stormy(port: int, for_s: float) -> Block:
    """A storm, in a process of its own."""
    done = subprocess.run(
        [sys.executable, storm.__file__, str(port), str(RATE_HZ), str(for_s)],
        capture_output=True, text=True, check=True, timeout=60.0 + for_s,
    )  # fmt: skip
    told = json.loads(done.stdout)
    return Block(told.pop("begin_s"), told.pop("end_s"), told)


def calm(_: int, for_s: float) -> Block:
    """Nobody asks anything."""
    begin_s = time.time()
    time.sleep(for_s)
    return Block(begin_s, time.time())


def refused(port: int) -> float:
    """What the page itself says of it; asked again while it is refused, too."""
    found: list[float] = []

    def look() -> bool:
        with suppress(OSError):
            url = f"http://127.0.0.1:{port}/metrics"
            text = urllib.request.urlopen(url, timeout=10.0).read().decode()
            found[:] = [
                float(n) for n in re.findall(r"^\S+_metrics_refused_total (\S+)$", text, re.M)
            ]
        return bool(found)

    until(look, what="the page")
    return found[0]


def measure(rig: Rig, blocks: list[Block]) -> None:
    """Give each block its ticks, from the record; `rig` is stopped."""
    ticks = [tick for run in rig.runs().values() for tick in run]
    wall_s = np.array([tick.wall_ns / 1e9 for tick in ticks])
    took_s = np.array([sum(tick.timings[1:]) for tick in ticks])
    apart_s = np.diff([tick.monotonic_ns / 1e9 for tick in ticks], prepend=np.nan)
    jitter_s = np.abs(apart_s - rig.period_s)
    missed = np.rint(np.diff([tick.now_s for tick in ticks], prepend=np.nan) / PERIOD_S) - 1.0
    for block in blocks:
        inside = (wall_s >= block.begin_s) & (wall_s < block.end_s)
        block.took_s, block.jitter_s = took_s[inside], jitter_s[inside]
        block.missed = int(np.nansum(missed[inside]))


@dataclass
class Run:
    """Pairs of blocks: without a storm, and with one."""

    pairs: list[tuple[Block, Block]]
    counted: float
    """Scrapes refused, as the page tells."""

    def missed_share(self, which: int) -> float:
        """Of the periods of all blocks, without (0) or with (1) a storm."""
        missed = sum(pair[which].missed for pair in self.pairs)
        return missed / (missed + sum(len(pair[which].took_s) for pair in self.pairs))

    def p99(self, which: int, name: str, drawn: np.ndarray | None = None) -> float:
        """Over all ticks of the blocks, or of those drawn, seconds."""
        chosen = range(len(self.pairs)) if drawn is None else drawn
        return float(
            np.quantile(np.concatenate([getattr(self.pairs[i][which], name) for i in chosen]), 0.99)
        )

    def ratio(self, name: str) -> dict[str, float]:
        """p99 with over without a storm, with its 95 % interval: whole pairs are drawn anew."""
        rng = np.random.default_rng(SEED)
        draws = rng.integers(len(self.pairs), size=(DRAWS, len(self.pairs)))
        ratios = [self.p99(1, name, drawn) / self.p99(0, name, drawn) for drawn in draws]
        low, high = np.quantile(ratios, (0.025, 0.975))
        return {
            "calm_p99_ms": round(1e3 * self.p99(0, name), 4),
            "storm_p99_ms": round(1e3 * self.p99(1, name), 4),
            "ratio": round(self.p99(1, name) / self.p99(0, name), 4),
            "low": round(float(low), 4),
            "high": round(float(high), 4),
        }

    def answers(self) -> dict[str, float]:
        """Of all storms together."""
        names = sorted({name for _, block in self.pairs for name in block.answers})
        return {name: sum(block.answers.get(name, 0) for _, block in self.pairs) for name in names}


def weather(folder: Path, bundle: Path, keys: Path, n_pairs: int, for_s: float) -> Run:
    """One run of a real plant and a real runtime."""
    port = free_port()
    changes = {"listen: 127.0.0.1:9464": f"listen: 127.0.0.1:{port}"}
    with Rig(folder, time_scale=TIME_SCALE, bundle=bundle, keys=keys, changes=changes) as rig:
        rig.start_plant()
        rig.write_config()
        rig.start_runtime()
        rig.wait_in_control()
        before = refused(port)
        pairs = []
        for i in range(n_pairs):
            blocks = {}
            for kind in (calm, stormy) if i % 2 == 0 else (stormy, calm):
                blocks[kind] = kind(port, for_s)
                time.sleep(REST_S)
            pairs.append((blocks[calm], blocks[stormy]))
        counted = refused(port) - before
        assert rig.stop_runtime() == 0, rig.story()
        measure(rig, [block for pair in pairs for block in pair])
    return Run(pairs, counted)


def judge(run: Run) -> None:
    """What a storm must not do, and what must be done with it."""
    answers = run.answers()
    lasted_s = sum(block.end_s - block.begin_s for _, block in run.pairs)
    assert answers["asked"] > ASKED_SHARE * RATE_HZ * lasted_s, answers
    # a bucket of scrapes is full at the begin of each storm, and fills at its rate
    assert 0 < answers["200"] <= SCRAPES_PER_S * (lasted_s + len(run.pairs)), answers
    assert answers["503"] > answers["200"], answers
    assert run.counted >= answers["503"], "each is counted on the page"
    assert set(answers) <= {"asked", "200", "503", "none"}
    assert run.missed_share(1) <= run.missed_share(0) + MISSED_SHARE


def test_a_storm_of_scrapes_is_refused_and_the_loop_does_not_feel_it(bundles, first_bundle):
    with tempfile.TemporaryDirectory(prefix="storm") as name:
        run = weather(Path(name) / "rig", first_bundle, bundles.keys, SHORT_PAIRS, SHORT_S)
    judge(run)
    # in the middle pair: one that something else has hit says nothing
    slow = [[np.quantile(block.took_s, 0.99) for block in pair] for pair in run.pairs]
    assert np.median([with_it / without for without, with_it in slow]) < GENEROUS, slow


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_how_much_a_storm_costs(bundles, first_bundle):
    with tempfile.TemporaryDirectory(prefix="storm") as name:
        run = weather(Path(name) / "rig", first_bundle, bundles.keys, LONG_PAIRS, LONG_S)
    judge(run)
    results.keep(
        FIGURES,
        {
            "command": "python -m pytest -m slow tests/loop/test_storm.py",
            "commit": results.COMMIT,
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            "seed": SEED,
            "requests_hz": RATE_HZ,
            "period_ms": round(1e3 * PERIOD_S / TIME_SCALE, 3),
            "pairs": LONG_PAIRS,
            "block_s": LONG_S,
            "ticks": [sum(len(pair[i].took_s) for pair in run.pairs) for i in (0, 1)],
            "missed_share": [round(run.missed_share(i), 5) for i in (0, 1)],
            "answers": run.answers(),
            "counted_as_refused": run.counted,
            "tick": run.ratio("took_s"),
            "jitter": run.ratio("jitter_s"),
        },
    )


def test_what_a_storm_costs_is_on_record():
    kept = results.read(FIGURES)
    assert (kept["pairs"], kept["requests_hz"]) == (LONG_PAIRS, RATE_HZ)
    assert kept["tick"]["low"] <= kept["tick"]["ratio"] <= kept["tick"]["high"]
    assert kept["counted_as_refused"] >= kept["answers"]["503"] > 0
