"""The goals: what is asked for, how an answer is told, and one goal's run from start to end."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from typing import Any

import numpy as np

from steadyhand.controllers.errors import ConfigError, RequestError
from steadyhand.training.bench.machine import Neighbours, load
from steadyhand.training.bench.turns import Row, Setting


@dataclass(frozen=True, slots=True)
class Check:
    """One measured number against its bound."""

    what: str
    measured: float
    bound: float
    """The largest value that meets the goal."""
    spread: tuple[float, float] | None = None
    """Lowest and highest value over the rounds of the run."""

    @property
    def met(self) -> bool:
        """NaN meets nothing."""
        return self.measured <= self.bound


def faster(what: str, ours: Row, rival: Row, bound: float) -> Check:
    """Ratio of the medians of one run, ours to the rival's, with its spread over the rounds."""
    ratios = ours.medians_us / rival.medians_us
    return Check(
        f"{what}: {ours.name} / {rival.name}",
        ours.p50_us / rival.p50_us,
        bound,
        (float(ratios.min()), float(ratios.max())),
    )


@dataclass(frozen=True, slots=True)
class Measured:
    """What one goal's run gave."""

    tables: Mapping[str, Sequence[dict[str, Any]]]
    """Title → rows as `Row.data` gives them."""
    checks: Sequence[Check]
    notes: Sequence[str] = field(default=())


@dataclass(frozen=True, slots=True)
class Goal:
    """One thing we promise to be fast at."""

    number: int
    name: str
    """Word for the command line, and the module that measures it."""
    title: str
    asks: str
    explanation: str

    def measure(self, setting: Setting) -> dict[str, Any]:
        """Run the goal; a rival that is not installed is told, not raised."""
        neighbours, started = Neighbours(), time.monotonic()
        result: dict[str, Any] = {"number": self.number, "name": self.name, "title": self.title}
        result |= {"asks": self.asks, "load_before": load()}
        try:
            module = import_module(f"{__package__}.{self.name}")
            measured: Measured = module.measure(setting)
        except ConfigError as error:
            return result | {"error": str(error), "met": False}
        except ImportError as error:
            told = f"bench: {error.name} is missing: pip install 'steadyhand[bench]'"
            return result | {"error": told, "met": False}
        return result | {
            "tables": {title: list(rows) for title, rows in measured.tables.items()},
            "checks": [asdict(check) | {"met": check.met} for check in measured.checks],
            "notes": list(measured.notes),
            "met": all(check.met for check in measured.checks),
            "realtime": setting.realtime,
            "rounds": setting.rounds,
            "others_share": neighbours.share(),
            "seconds": round(time.monotonic() - started, 1),
        }


GOALS = (
    Goal(
        1,
        "inference",
        "policy and critic call",
        "<= 0.6x of session.run(dict) at 2x64, <= 0.75x at 2x256; "
        ">= 20x faster than stable-baselines3 predict at 2x64, >= 8x at 2x256; "
        "<= 1.3x of the bare bound call",
        "One observation through one graph (normaliser, policy, critic; batch 1, one thread). "
        "Rivals: onnxruntime called with a dict, stable-baselines3 `predict` of the same weights.",
    ),
    Goal(
        2,
        "decision",
        "whole decision",
        "at 2x64 >= 2.5x faster than session.run + numpy solve, >= 10x than session.run + SVD "
        "filter, >= 8x than torch; error <= 1e-9 against a float64 SVD",
        "Normalise, policy, critic, novelty score, null-space filter: from a process image to a "
        "safe command. Rivals: the same with session.run and numpy (solve, or SVD as published), "
        "and all of it in torch.",
    ),
    Goal(
        3,
        "nullspace",
        "null-space filter",
        "<= 1/10 of the SVD form in numpy alone, <= 1/40 compiled; error <= 1e-9 against a "
        "float64 SVD",
        "The command projected on the tangent space of 19 (30) rows for 7 (14) inputs: one n x n "
        "system against an SVD basis with a pseudo-inverse.",
    ),
    Goal(
        4,
        "cbfqp",
        "exact CBF-QP filter",
        "<= 1.1x of daqp called directly, <= 1/6 of qpsolvers + proxqp, <= 1/80 of cvxpy; "
        "row violation <= 1e-8",
        "Nearest input that keeps every row and bound, exactly: 7 inputs with 5 rows, 14 with 30.",
    ),
    Goal(
        5,
        "pacing",
        "loop timing under load",
        "1 kHz beside two busy processes: missed ticks <= 1 % and p99 lateness <= 1/20 of an "
        "asyncio.sleep loop's where the real-time class is permitted; elsewhere <= 1/3 of its "
        "missed share",
        "The paced clock and an asyncio loop, both calling a real policy each tick, in turns, "
        "while two processes keep the cores busy.",
    ),
    Goal(
        6,
        "bookkeeping",
        "metrics and record per tick",
        "<= 1/5 of prometheus_client + pydantic + orjson for the same content",
        "What the loop thread pays per tick for metrics and one complete record. The rival keeps "
        "neither a hash chain nor another thread.",
    ),
    Goal(
        7,
        "fieldbus",
        "OPC UA in cycles",
        "<= 1/4 (20 tags) and <= 1/6 (100 tags) of asyncua read_values, same values, server in C; "
        "250 tags at a tick of 100 ms: none older than a tick, ever; <= 1/10 of the wait",
        "The cyclic read of all tags, ours with status and both time stamps, asyncua's with bare "
        "values, against an open62541 server on loopback. Then 250 tags that change every 20 ms: "
        "how long a tick waits for its values, and how old the oldest is.",
    ),
)


def find(word: str) -> Goal:
    """Goal by number or name.

    Raises:
        RequestError: ARGUMENTS: there is none; the message lists them.
    """
    for goal in GOALS:
        if word in (str(goal.number), goal.name):
            return goal
    choices = ", ".join(f"{goal.number} {goal.name}" for goal in GOALS)
    raise RequestError("ARGUMENTS", f"bench: no goal {word!r}; there are: {choices}")


def largest(values: Sequence[float]) -> float:
    """Largest of `values`; NaN if any is NaN, so that no check can pass by it."""
    return float(np.max(np.array(values)))
