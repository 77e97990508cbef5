"""Run goals and tell what came out: as data, as text, as the table of the documentation."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from rich.table import Table

from steadyhand.controllers.errors import SteadyhandError
from steadyhand.training.bench.goals import Goal
from steadyhand.training.bench.machine import describe
from steadyhand.training.bench.turns import Setting

ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
)
"""Small problems gain nothing by threads, and rivals lose by them: one for everybody."""


def run_goals(
    goals: Sequence[Goal],
    setting: Setting,
    command: str,
    tell: Callable[[dict[str, Any]], None] = lambda _: None,
) -> dict[str, Any]:
    """Measure each goal in a process of its own, one after the other.

    Args:
        goals: which.
        setting: how.
        command: what the user typed, for the record.
        tell: called with each goal's result.

    Raises:
        SteadyhandError: a goal's process died.
    """
    results = []
    for goal in goals:
        results.append(_run_alone(goal, setting))
        tell(results[-1])
    return {"command": command, "machine": describe(), "goals": results}


def _run_alone(goal: Goal, setting: Setting) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        target = Path(directory) / "result.json"
        done = subprocess.run(  # noqa: S603  (our own module)
            [
                *(sys.executable, "-m", __package__, goal.name, str(setting.rounds)),
                *("yes" if flag else "no" for flag in (setting.realtime, setting.encrypted)),
                str(target),
            ],
            env=os.environ | ONE_THREAD,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode != 0 or not target.exists():
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise SteadyhandError(f"bench: goal {goal.number} ended with {done.returncode}: {last}")
        result: dict[str, Any] = json.loads(target.read_text())
        return result


def times(value: float) -> str:
    """A ratio as people say it: 0.42, 1/35."""
    if not isfinite(value) or value <= 0.0 or value > 0.2:
        return f"{value:.2f}"
    return f"1/{1 / value:.3g}"


def number(check: dict[str, Any], name: str) -> str:
    """A check's number: a ratio, or an error."""
    value = float(check[name])
    is_ratio = " / " in check["what"]
    return times(value) if is_ratio else f"{value:.2g}"


def spread(check: dict[str, Any]) -> str:
    """Lowest and highest over the rounds, or nothing."""
    return "–".join(times(value) for value in check["spread"]) if check["spread"] else ""


def tables(result: dict[str, Any]) -> list[Table]:
    """One goal's result for a terminal."""
    title = f"{result['number']} {result['title']}"
    if "error" in result:
        told = Table(title=title)
        told.add_column("not measured")
        told.add_row(result["error"])
        return [told]
    made = []
    for name, rows in result["tables"].items():
        extra = [key for key in rows[0] if key not in ("name", "p50_us", "p99_us", "best_us")]
        table = Table(title=f"{title}: {name}", title_justify="left")
        for column in ("row", "p50 µs", "p99 µs", *extra):
            table.add_column(column, justify="left" if column == "row" else "right")
        for row in rows:
            figures = (f"{row['p50_us']:.2f}", f"{row['p99_us']:.2f}")
            table.add_row(row["name"], *figures, *(f"{row[key]:.3g}" for key in extra))
        made.append(table)
    answers = Table(title=f"{title}: {result['asks']}", title_justify="left")
    for column in ("check", "measured", "over the rounds", "at most", "met"):
        answers.add_column(column)
    for check in result["checks"]:
        answers.add_row(
            *(check["what"], number(check, "measured"), spread(check), number(check, "bound")),
            "yes" if check["met"] else "NO",
        )
    return [*made, answers]


def markdown(report: dict[str, Any]) -> str:
    """The table of the documentation."""
    lines = [
        "| goal | check | measured | over the rounds | at most | met |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for result in report["goals"]:
        title = f"{result['number']} {result['title']}"
        if "error" in result:
            lines.append(f"| {title} | not measured: {result['error']} | | | | no |")
            continue
        for check in result["checks"]:
            cells = (
                *(title, check["what"], number(check, "measured"), spread(check)),
                *(number(check, "bound"), "yes" if check["met"] else "**no**"),
            )
            lines.append(f"| {' | '.join(cells)} |")
            title = ""
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(markdown(json.loads(Path(sys.argv[1]).read_text())))
