"""What a controller costs in the real loop: encrypted OPC UA, filter, gate, journal, in lock-step.

Each episode starts a virtual plant and a runtime as processes of their own, with the shipped
configuration and the given bundle; the plant advances one period per heartbeat, so nothing depends
on this machine's speed. Costs are the plant's own account.

    steadyhand evaluate --real-loop 3
    steadyhand evaluate out/seed1/thermal_storage.shb --trusted out/seed1/keys --real-loop 1
"""

import os
import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from steadyhand.adapters.sim.plants import RunSpec, thermal_storage_scenario
from steadyhand.adapters.sim.process import PlantProcess
from steadyhand.controllers.catalogue import plant_kind
from steadyhand.controllers.errors import LinkError
from steadyhand.controllers.plants.thermal_storage_optimum import END_VALUE_PER_KWH
from steadyhand.controllers.plants.thermal_storage_scenario import (
    EPISODE_DAYS,
    HELD_OUT_SEEDS,
    TICKS_PER_DAY,
)
from steadyhand.runtime.bundle.pack import inspect_bundle
from steadyhand.runtime.reader import JournalReader
from steadyhand.runtime.virtual import (
    start_runtime,
    stop_runtime,
    virtual_config,
)
from steadyhand.runtime.yardstick import yardsticks

NOMINAL_TIME_SCALE = 4500.0
"""Only sets time-outs: in lock-step the plant's time does not follow the wall's. A tick that is
given up waiting for would write again, and so move the plant by a period of its own.
"""
PUBLISHING_S = 0.02
SILENT_S = 30.0


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    """One episode; costs in money, end value of the tank included."""

    seed: int
    cost: float
    optimum: float
    heuristics: dict[str, float]
    violations: int
    """Sub-steps with an operating limit broken while the controller drove."""
    share_of_ticks: dict[str, float]
    """Who drove."""
    tick_ms_p50: float
    tick_ms_p99: float


def evaluate(
    seeds: Sequence[int],
    bundle: Path,
    trusted: Path,
    tell: Callable[[str], None] = lambda text: None,
) -> list[EpisodeResult]:
    """Run one episode per scenario seed, with a bundle signed by a key in folder `trusted`."""
    results = []
    for seed in seeds:
        results.append(episode(seed, bundle, trusted))
        done = results[-1]
        tell(
            f"seed {seed}: cost {done.cost:.2f}, optimum {done.optimum:.2f} "
            f"({100 * (done.cost / done.optimum - 1):+.2f} %), violations {done.violations}"
        )
    return results


def episode(seed: int, bundle: Path, trusted: Path) -> EpisodeResult:
    """One episode in the real loop.

    Raises:
        LinkError: the runtime ended early or the plant does not move.
    """
    kind = plant_kind("thermal_storage")
    plant = kind.plant(kind.parameters)
    scenario = thermal_storage_scenario(RunSpec(seed=seed, days=EPISODE_DAYS))
    yard = yardsticks(kind, scenario)
    ticks = EPISODE_DAYS * TICKS_PER_DAY
    with tempfile.TemporaryDirectory(prefix="steadyhand-evaluate-") as name:
        folder = Path(name)
        options = (
            *("--lockstep", "--seed", str(seed)),
            *("--days", str(EPISODE_DAYS), "--end-after", str(ticks)),
        )
        with PlantProcess(folder / "pki", *options) as process:
            start = process.side.truth()["state"][0]
            config = virtual_config(
                folder, process, NOMINAL_TIME_SCALE, PUBLISHING_S, bundle, trusted
            )
            runtime = start_runtime(folder, config)
            try:
                truth = _wait(process, ticks)
            finally:
                status = stop_runtime(runtime)
        if status != 0:
            raise LinkError((folder / "runtime.log").read_text(errors="replace"))
        shares, cycle_ms = _from_journal(folder / "var" / "journal")
    stored = END_VALUE_PER_KWH * (truth["state"][0] - start)
    broken = truth["violations"]["controller"]
    return EpisodeResult(
        seed=seed,
        cost=truth["cost"] - stored,
        optimum=yard.total_optimum,
        heuristics=yard.total_heuristics,
        violations=sum(int(broken[row]["substeps"]) for row in plant.operating_limits),
        share_of_ticks=shares,
        tick_ms_p50=float(np.percentile(cycle_ms, 50)),
        tick_ms_p99=float(np.percentile(cycle_ms, 99)),
    )


def _wait(process: PlantProcess, ticks: int) -> dict[str, Any]:
    """The plant's truth after `ticks` periods, where it stands still."""
    last, moved_s = -1, time.monotonic()
    while True:
        truth = process.side.truth()
        if truth["tick"] >= ticks:
            return truth
        if truth["tick"] != last:
            last, moved_s = truth["tick"], time.monotonic()
        elif time.monotonic() - moved_s > SILENT_S:
            raise LinkError(f"the plant stands at tick {last}; see the runtime's log")
        time.sleep(0.05)


def _from_journal(directory: Path) -> tuple[dict[str, float], np.ndarray[Any, Any]]:
    with JournalReader(directory) as journal:
        ticks = list(journal.ticks())
    sources = [tick.source.name.lower() for tick in ticks]
    shares = {name: sources.count(name) / len(sources) for name in sorted(set(sources))}
    return shares, 1e3 * np.array([sum(tick.timings[1:]) for tick in ticks])


def evaluate_sets(
    sets: int, bundle: Path, trusted: Path, tell: Callable[[str], None]
) -> dict[str, Any]:
    """So many sets of held-out episodes; JSON-ready."""
    per_set = len(HELD_OUT_SEEDS)
    first = HELD_OUT_SEEDS[0]
    done = []
    for k in range(sets):
        seeds = range(first + k * per_set, first + (k + 1) * per_set)
        done.append(report(evaluate(seeds, bundle, trusted, tell)))
    return {
        "command": f"steadyhand evaluate {bundle} --trusted {trusted} --real-loop {sets} --json",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "bundle": inspect_bundle(bundle)["manifest_sha256"],
        "sets": done,
    }


def report(results: Sequence[EpisodeResult]) -> dict[str, Any]:
    """One set of episodes together."""
    cost = sum(item.cost for item in results)
    optimum = sum(item.optimum for item in results)
    names = results[0].heuristics
    heuristics = {name: sum(item.heuristics[name] for item in results) for name in names}
    best = min(heuristics, key=lambda name: heuristics[name])
    by_policy = [item.share_of_ticks.get("policy", 0.0) for item in results]
    return {
        "seeds": [item.seed for item in results],
        "days": len(results) * EPISODE_DAYS,
        "cost": cost,
        "optimum": optimum,
        "above_optimum": cost / optimum - 1.0,
        "best_heuristic": best,
        "best_heuristic_above_optimum": heuristics[best] / optimum - 1.0,
        "heuristics": heuristics,
        "violations": sum(item.violations for item in results),
        "share_by_policy": float(np.mean(by_policy)),
        "episodes": [asdict(item) for item in results],
    }
