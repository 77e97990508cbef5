"""`steadyhand bench`: imports nothing heavy until a goal runs in its own process."""

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from steadyhand.controllers.errors import ConfigError
from steadyhand.runtime.terminal import console, must_write, named_file
from steadyhand.training.bench.goals import GOALS, find
from steadyhand.training.bench.machine import realtime_permitted
from steadyhand.training.bench.report import run_goals, tables
from steadyhand.training.bench.turns import Setting

HELP = "\n\n".join(
    [
        "Our figures beside named rivals: the rows of a goal take turns in one run, and the answer "
        "is a ratio. Needs `pip install 'steadyhand[bench]'`.",
        *(f"**{g.number} {g.name}**: {g.explanation} Asked: {g.asks}." for g in GOALS),
    ]
)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("bench", help=HELP)(bench)


def bench(
    goals: Annotated[
        list[str] | None, typer.Argument(help="Numbers or names of goals; all by default.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=2, help="Turns that every row takes.")] = 10,
    realtime: Annotated[
        bool,
        typer.Option("--realtime", help="In the real-time class on one core: for busy machines."),
    ] = False,
    encrypted: Annotated[
        bool,
        typer.Option("--encrypted", help="Goal 7: sign and encrypt every message of the 250 tags."),
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Write the data to this file too.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print data instead of text.")] = False,
) -> None:
    """Measure goals and say which are met. Timings decide nothing: the exit code is 0."""
    wanted = [find(word) for word in goals] if goals else list(GOALS)
    if realtime and not realtime_permitted():
        raise ConfigError("bench: --realtime: this user may not enter the real-time class")
    if out is not None:
        must_write(out)
    command = shlex.join(["steadyhand", *sys.argv[1:]])
    out_console = console(stderr=as_json)
    report = run_goals(
        wanted,
        Setting(rounds, realtime, encrypted=encrypted),
        command,
        lambda result: out_console.print(*tables(result), *result.get("notes", []), sep="\n"),
    )
    text = json.dumps(report, indent=2) + "\n"
    if out is not None:
        with named_file(out):
            out.write_text(text)
    if as_json:
        sys.stdout.write(text)
    elif all(result["met"] for result in report["goals"]):
        out_console.print("every goal is met")
    else:
        missed = ", ".join(str(r["number"]) for r in report["goals"] if not r["met"])
        out_console.print(f"not met on this machine in this run: {missed}")
