"""The demonstration: a real plant server, a real runtime, three things that go wrong.

Two processes of their own, as in a plant: the virtual plant behind encrypted OPC UA, and
`steadyhand run`. This file only watches, through the doors that everybody has (the operator's
socket and the journal), and disturbs the plant through its side channel.
"""

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from math import inf
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from steadyhand.adapters.sim.faults import FaultKind, SignalFault
from steadyhand.adapters.sim.plants import RunSpec, thermal_storage_scenario
from steadyhand.adapters.sim.process import PlantProcess
from steadyhand.controllers.catalogue import PlantKind, plant_kind
from steadyhand.controllers.errors import LinkError, RequestError
from steadyhand.controllers.frames import Source
from steadyhand.runtime.cli_operator import status_table
from steadyhand.runtime.operator_client import OperatorClient
from steadyhand.runtime.reader import JournalReader
from steadyhand.runtime.spans import plant_time
from steadyhand.runtime.terminal import console as make_console
from steadyhand.runtime.terminal import named_file
from steadyhand.runtime.virtual import start_runtime, stop_runtime, virtual_config
from steadyhand.runtime.yardstick import Yardstick, yardsticks

DAY_S = 86_400.0
HOUR_S = 3_600.0
SEED = 7
SEASON = "hot_weeks,hot_weeks,heat_wave,hot_weeks"
DAYS = 4
TIME_SCALE = 6_000.0
"""Plant seconds per second: a tick of 15 min takes 0.15 s, four days take about a minute."""
PROGRESS_S = 5.0
"""Between two lines of a log."""
POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that goes wrong at a moment of plant time."""

    at_s: float
    text: str
    do: Callable[["Stage"], None]


@dataclass(slots=True)
class Stage:
    """What runs: the plant, the runtime, and where their files are."""

    folder: Path
    plant: PlantProcess
    runtime: "subprocess.Popen[bytes]"
    restarts: int = 0
    notes: list[str] = field(default_factory=list)
    lost_s: float = 0.0

    def truth(self) -> dict[str, Any]:
        """What the plant really is."""
        return self.plant.side.truth()


def run_demo(plant: str, out: Path, as_json: bool) -> int:
    """Run the demonstration; returns the exit status.

    Raises:
        RequestError: ARGUMENTS: the plant has no demonstration.
        ConfigError: the shipped configuration is not there.
    """
    if plant != "thermal_storage":
        raise RequestError("ARGUMENTS", f"no demonstration of {plant!r}; there is: thermal_storage")
    kind = plant_kind(plant)
    console = make_console(stderr=as_json)
    with named_file(out):
        out.mkdir(parents=True, exist_ok=True)
    spec = RunSpec(plant, SEED, DAYS, SEASON)
    with tempfile.TemporaryDirectory(prefix="steadyhand-demo-") as name:
        folder = Path(name)
        console.print(
            "starting the virtual plant: OPC UA, signed and encrypted, fresh certificates"
        )
        process = start_plant(folder, restart=0)
        process.side.call("pause", on=True)
        # heuristics and optimum on the same weather, worked out beside the show
        worker = ProcessPoolExecutor(
            1, mp_context=get_context("spawn"), initializer=_ignore_interrupt
        )
        yard_ahead = worker.submit(_yardsticks, spec)
        stage = None
        interrupted = False
        try:
            config = virtual_config(folder, process, TIME_SCALE)
            console.print("starting the runtime: bundle verified, known answers replayed")
            runtime = start_runtime(folder, config)
            stage = Stage(folder, process, runtime)
            wait_until_up(stage)
            stage.plant.side.call("pause", on=False)
            interrupted = watch(stage, kind, yard_ahead, console)
            truth = stage.truth()
            yard = yard_ahead.result()
        finally:
            if stage is not None:
                stop_runtime(stage.runtime)
                stage.plant.stop()
            else:
                process.stop()
            worker.shutdown(cancel_futures=True)
        result = summary(kind, stage, truth, yard, interrupted)
    picture = out / "demo.png"
    result["picture"] = str(picture)
    with named_file(out):
        draw(result, yard, picture)
        (out / "demo.json").write_text(
            json.dumps(_public(result), indent=2) + "\n", encoding="utf-8"
        )
    if as_json:
        sys.stdout.write(json.dumps(_public(result), indent=2, allow_nan=False) + "\n")
    else:
        console.print(*tables(result))
        console.print(meaning(result))
        console.print(f"picture: {picture}   data: {out / 'demo.json'}")
    return 0 if result["violations"]["controller"] == 0 else 1


def _ignore_interrupt() -> None:
    """Ctrl-C is for the demonstration itself, which then ends this process in order."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _yardsticks(spec: RunSpec) -> Yardstick:
    """In a process of its own."""
    return yardsticks(plant_kind(spec.plant), thermal_storage_scenario(spec))


def start_plant(folder: Path, restart: int) -> PlantProcess:
    """The virtual plant. A restart resumes its state, on the same port, namespaces re-ordered."""
    options = [
        *("--seed", str(SEED), "--days", str(DAYS), "--season", SEASON),
        *("--time-scale", str(TIME_SCALE), "--substeps", "10"),
        *("--state", str(folder / "plant-state.json"), "--log", str(folder / "writes.jsonl")),
        *("--end-after", str(DAYS * 96)),
        *("--dummy-namespaces", "1", "--namespace-order", str(restart % 2)),
    ]
    port = folder / "port"
    if port.exists():
        options += ["--port", port.read_text()]
    process = PlantProcess(folder / "pki", *options)
    port.write_text(process.ready["endpoint"].split(":")[2].split("/")[0])
    return process


def wait_until_up(stage: Stage, patience_s: float = 60.0) -> None:
    """Block until the runtime's link is up.

    Raises:
        LinkError: it ended, or does not come up; the message is its own.
    """
    until_s = time.monotonic() + patience_s
    while time.monotonic() < until_s:
        if stage.runtime.poll() is not None:
            log = (stage.folder / "runtime.log").read_text(errors="replace").strip()
            raise LinkError(f"the runtime ended with status {stage.runtime.returncode}:\n{log}")
        now = ask(stage)
        if now and now["link"] == "up":
            return
        time.sleep(POLL_S)
    raise LinkError(f"the runtime's link did not come up within {patience_s:g} s")


def ask(stage: Stage) -> dict[str, Any]:
    """The runtime's status; empty while it does not answer."""
    try:
        with OperatorClient(stage.folder / "var" / "operator.sock", 2.0) as client:
            return client.call("status")
    except (RequestError, OSError):
        return {}


def freeze_sensor(stage: Stage) -> None:
    """The tank's level sensor shows its last value for an hour."""
    now_s = float(stage.truth()["time_s"])
    stage.plant.side.inject(
        SignalFault("storage_energy_kwh", FaultKind.STUCK, start_s=now_s, duration_s=HOUR_S)
    )


def nothing(stage: Stage) -> None:
    """The weather does it by itself."""
    del stage


def restart_server(stage: Stage) -> None:
    """The plant's server dies without a word and comes back with re-ordered namespaces."""
    started = time.monotonic()
    stage.plant.kill()
    time.sleep(1.0)
    stage.restarts += 1
    stage.plant = start_plant(stage.folder, stage.restarts)
    stage.lost_s += time.monotonic() - started


TROUBLES = (
    Trouble(20.0 * HOUR_S, "the tank's level sensor freezes for an hour", freeze_sensor),
    Trouble(2 * DAY_S, "a heat wave, far outside the training range, for one day", nothing),
    Trouble(
        3 * DAY_S + HOUR_S, "the plant's server is killed and comes back re-ordered", restart_server
    ),
)


def watch(stage: Stage, kind: PlantKind, yard: "Future[Yardstick]", console: Console) -> bool:
    """Show the run until the scenario ends; returns whether a person interrupted it."""
    waiting = list(TROUBLES)
    said: list[str] = []
    end_s = DAYS * DAY_S
    shown_s = -inf
    with Live(
        console=console, refresh_per_second=8, transient=True, auto_refresh=console.is_terminal
    ) as live:
        try:
            while True:
                truth = stage.truth()
                if truth["time_s"] >= end_s - 1.0:
                    return False
                if waiting and truth["time_s"] >= waiting[0].at_s:
                    trouble = waiting.pop(0)
                    said.append(f"day {trouble.at_s / DAY_S + 1:.2f}: {trouble.text}")
                    trouble.do(stage)
                now = ask(stage)
                if console.is_terminal:
                    live.update(view(now, truth, yard, said, kind))
                elif time.monotonic() - shown_s >= PROGRESS_S:  # a log gets lines
                    shown_s = time.monotonic()
                    console.print(progress(now, truth))
                time.sleep(POLL_S)
        except KeyboardInterrupt:
            console.print("handing the plant back")
            return True


def progress(now: dict[str, Any], truth: dict[str, Any]) -> str:
    """One line of a log."""
    driver = now["source"] if now else "no answer"
    return f"{plant_time(truth['time_s'])} of {DAYS} days, cost {truth['cost']:.2f} $, {driver}"


def view(
    now: dict[str, Any],
    truth: dict[str, Any],
    yard_ahead: "Future[Yardstick]",
    said: list[str],
    kind: PlantKind,
) -> Group:
    """The live table."""
    hour = truth["time_s"] % DAY_S / HOUR_S
    day = int(truth["time_s"] // DAY_S) + 1
    money = Table(show_header=False, title=f"{kind.title}: day {day}, {hour:05.2f} h")
    money.add_row("cost so far", f"{truth['cost']:8.2f} $")
    if yard_ahead.done():
        yard = yard_ahead.result()
        tick = min(int(truth["time_s"] // 900.0), len(yard.optimum) - 1)
        money.add_row(f"best heuristic ({yard.best})", f"{yard.heuristics[yard.best][tick]:8.2f} $")
        money.add_row("optimum (perfect foresight)", f"{yard.optimum[tick]:8.2f} $")
    else:
        money.add_row("heuristic and optimum", "being worked out")
    for text in said[-3:]:
        money.add_row("trouble", text)
    parts: list[Any] = [money]
    if now:
        parts.append(status_table(now))
    return Group(*parts)


def summary(
    kind: PlantKind,
    stage: Stage,
    truth: dict[str, Any],
    yard: Yardstick,
    interrupted: bool,
) -> dict[str, Any]:
    """Everything worth telling, from the plant's truth and the journal."""
    with JournalReader(stage.folder / "var" / "journal") as journal:
        ticks = list(journal.ticks())
        takeovers = [
            {"tick": event.tick, "text": event.data["text"]}
            for event in journal.events()
            if event.event == "Event" and "->" in event.data.get("text", "")
        ]
    plant = kind.plant(kind.parameters)
    cycle_ms = 1e3 * np.array([sum(tick.timings[1:]) for tick in ticks])
    sources = [tick.source for tick in ticks]
    broken = truth["violations"]
    # an interrupted run is compared with what the others had cost by then
    last_tick = int(truth["time_s"] // 900.0)
    seen = {int(tick.observation.time_s // 900.0) for tick in ticks}
    last = min(max(int(truth["time_s"] // 900.0), 1), len(yard.optimum)) - 1
    return {
        "plant": kind.id,
        "seed": SEED,
        "season": SEASON,
        "interrupted": interrupted,
        "plant_time_s": truth["time_s"],
        "cost": truth["cost"],
        "best_heuristic": yard.best,
        "cost_heuristics": {name: float(c[last]) for name, c in yard.heuristics.items()},
        "cost_optimum": float(yard.optimum[last]),
        "violations": {
            driver: sum(int(rows[name]["substeps"]) for name in plant.operating_limits)
            for driver, rows in broken.items()
        },
        "share_of_ticks": {
            source.name.lower(): sources.count(source) / max(len(sources), 1) for source in Source
        },
        "ticks_missed": max(0, last_tick - len(seen)),
        "takeovers": takeovers,
        "server_restarts": stage.restarts,
        "tick_ms": {
            "p50": float(np.percentile(cycle_ms, 50)),
            "p99": float(np.percentile(cycle_ms, 99)),
            "ticks": len(ticks),
        },
        "trace": {
            "time_s": [tick.observation.time_s for tick in ticks],
            "source": [int(tick.source) for tick in ticks],
            "confidence": [tick.verdict.confidence if tick.verdict else 0.0 for tick in ticks],
            "energy_kwh": [float(tick.observation.values[0]) for tick in ticks],
            "applied": [float(tick.observation.applied[0]) for tick in ticks],
            "output": plant.outputs.names[0],
        },
    }


def meaning(result: dict[str, Any]) -> str:
    """What the tables say, in words; and where they say nothing of the controller, that."""
    best = result["best_heuristic"]
    saved = 1.0 - result["cost"] / result["cost_heuristics"][best]
    above = result["cost"] / result["cost_optimum"] - 1.0
    text = (
        f"The learned controller cost {100 * abs(saved):.1f} % {'less' if saved >= 0 else 'more'} "
        f"than the best rule ({best}) and {100 * abs(above):.1f} % "
        f"{'more' if above >= 0 else 'less'} than the optimum, which knows the future."
    )
    missed, share = result["ticks_missed"], result["share_of_ticks"]["policy"]
    if missed or share < 0.5:
        text += (
            f" This machine was too busy ({missed} ticks missed, the policy drove "
            f"{100 * share:.0f} % of the others): the costs of such a demonstration are not those "
            "of docs/evaluation."
        )
    return text


def tables(result: dict[str, Any]) -> list[Table]:
    """The closing tables."""
    money = Table(
        "controller",
        "cost",
        "against optimum",
        title="four days, troubles and all; heuristics and optimum without them",
    )
    rows = {"steadyhand": result["cost"]}
    rows |= {name: result["cost_heuristics"][name] for name in _shown(result)}
    rows["optimum (perfect foresight)"] = result["cost_optimum"]
    for name, cost in rows.items():
        money.add_row(name, f"{cost:.2f} $", f"{100 * (cost / result['cost_optimum'] - 1):+.1f} %")
    facts = Table(show_header=False)
    facts.add_row("constraint violations", str(result["violations"]["controller"]))
    for name, share in result["share_of_ticks"].items():
        if share:
            facts.add_row(f"driven by {name}", f"{100 * share:.1f} % of ticks")
    timing = result["tick_ms"]
    facts.add_row("tick p50 / p99", f"{timing['p50']:.2f} / {timing['p99']:.2f} ms")
    told = Table("tick", "take-over and reason")
    for item in result["takeovers"]:
        told.add_row(str(item["tick"]), item["text"])
    return [money, facts, told]


def _shown(result: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys((result["best_heuristic"], "storage_priority", "no_storage")))


def draw(result: dict[str, Any], yard: Yardstick, file: Path) -> None:
    """The picture: what the tank did, who drove, and the money."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    trace = result["trace"]
    hours = np.array(trace["time_s"]) / HOUR_S
    figure, axes = plt.subplots(3, 1, figsize=(10, 8), sharex=True, layout="constrained")
    axes[0].plot(hours, trace["energy_kwh"], label="tank, as measured")
    axes[0].set_ylabel("energy (kWh)")
    axes[1].plot(hours, trace["confidence"], label="confidence")
    axes[1].step(hours, np.array(trace["source"]) / 4.0, where="post", label="who drives")
    axes[1].set_yticks([0, 0.25, 0.5, 0.75, 1], ["policy", "fallback", "hold", "safe", "hands off"])
    grid_h = np.arange(1, len(yard.optimum) + 1) * 0.25
    for name in _shown(result):
        axes[2].plot(grid_h, yard.heuristics[name], lw=1, label=name.replace("_", " "))
    axes[2].plot(grid_h, yard.optimum, "k--", lw=1, label="optimum")
    axes[2].plot(
        [result["plant_time_s"] / HOUR_S], [result["cost"]], "r*", ms=12, label="steadyhand"
    )
    axes[2].set_ylabel("cost ($)")
    axes[2].set_xlabel("plant time (h)")
    for trouble in TROUBLES:
        for axis in axes:
            axis.axvline(trouble.at_s / HOUR_S, color="0.6", lw=0.8, ls=":")
    for axis in axes:
        axis.legend(loc="upper left", fontsize=8)
        axis.grid(alpha=0.3)
    figure.savefig(file, dpi=110)
    plt.close(figure)


def _public(result: dict[str, Any]) -> dict[str, Any]:
    """The result without the trace."""
    return {key: value for key, value in result.items() if key != "trace"}
