"""Frames of a small plant, and a journal's worth of them."""

import sqlite3
from pathlib import Path
from typing import Any

import numpy as np

from steadyhand.controllers.frames import (
    Certified,
    Fault,
    FilterMode,
    FilterOutcome,
    FilterReport,
    LinkState,
    Observation,
    Proposal,
    Sent,
    Source,
    Verdict,
)
from steadyhand.controllers.signals import Signal, SignalSet
from steadyhand.runtime.record import RecordLayout
from steadyhand.runtime.recorder import Recorder

LAYOUT = RecordLayout(
    observations=SignalSet(
        (
            Signal("energy_kwh", "kWh", 0.0, 1000.0),
            Signal("load_kw", "kW", 0.0, 600.0),
            Signal("flow_kw", "kW", -400.0, 450.0),
        )
    ),
    outputs=SignalSet((Signal("discharge_kw", "kW", -400.0, 450.0),)),
    rows=("energy_low", "energy_high"),
    monitors=("confidence", "novelty"),
)
TIMINGS = (0.001, 0.0002, 0.003, 0.0004, 0.00005, 0.0006, 0.0007)


def observation(number: int = 7, faults: tuple[Fault, ...] = (), **changes: Any) -> Observation:
    return Observation(
        **{
            "sequence": number,
            "time_s": 900.0 * number,
            "values": np.array([500.0 + number, 250.0, 100.0]),
            "age_s": np.array([1.0, 2.0, 0.5]),
            "quality": np.zeros(3, np.int8),
            "applied": np.array([100.0]),
            "link": LinkState.UP,
            "granted": True,
            "faults": faults,
        }
        | changes
    )


def report(**changes: Any) -> FilterReport:
    return FilterReport(
        **{
            "mode": FilterMode.SHAPED,
            "outcome": FilterOutcome.SOLVED,
            "correction_norm": 20.0,
            "correction_share": 20.0 / 850.0,
            "margin": 0.02,
            "margin_row": 0,
            "active": (0,),
            "k": np.array([-0.02, -0.9]),
            "m": np.array([0.02, 0.9]),
            "p_nominal": np.array([0.1, -0.1]),
            "p_certified": np.array([0.0, -0.08]),
            "multiplier": np.array([0.3, 0.0]),
            "time_to_boundary_s": 1800.0,
        }
        | changes
    )


def tick_arguments(number: int = 7, **changes: Any) -> dict[str, Any]:
    """Arguments of `Recorder.tick` for one sound tick in which the filter took 20 kW away."""
    return {
        "observation": observation(number),
        "proposal": Proposal(
            np.array([120.0]), value=-3.5, error=0.25, confidence_logit=2.0, latency_s=0.003
        ),
        "verdict": Verdict(True, 0.93, "trust", (), (0.2, 0.4)),
        "source": Source.POLICY,
        "mode": "full",
        "wanted": np.array([120.0]),
        "certified": Certified(np.array([100.0]), report()),
        "sent": Sent(np.array([100.0]), number, 900.0 * number, written=True),
        "faults": (),
        "timings": TIMINGS,
        "now_s": 900.0 * number + 0.5,
    } | changes


def fresh_recorder(ticks: int = 4096, events: int = 1024) -> Recorder:
    return Recorder(LAYOUT, "c0ffee" * 10, "plant_a@3#abcdef", ticks=ticks, events=events)


def record_ticks(recorder: Recorder, count: int) -> None:
    for _ in range(count):
        recorder.tick(**tick_arguments(recorder.sequence))


def segment_files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.sqlite"))


def edit(file: Path, *statements: tuple[str, tuple[Any, ...]]) -> None:
    """Change a segment as someone with the file and an SQLite shell would."""
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("DROP TRIGGER no_update")
    connection.execute("DROP TRIGGER no_delete")
    for statement, values in statements:
        connection.execute(statement, values)
    connection.close()
