"""The command line: one verb per job, `--json` everywhere, stable exit codes (`exits.py`)."""

import json
import sys
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from steadyhand.controllers.errors import ConfigError, RequestError
from steadyhand.runtime.exits import EPILOG, Exit, guarded
from steadyhand.runtime.terminal import console, show

if TYPE_CHECKING:
    from steadyhand.controllers.catalogue import PlantKind

ConfigFile = Annotated[Path, typer.Argument(help="The plant's YAML file.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print data instead of text.")]
PARTS = (
    "bundle", "commission", "demo", "evidence", "operator", "pki", "record", "scada", "selftest",
)  # fmt: skip
"""Modules `cli_...` with the rest of the commands, loaded when the full command line is wanted."""

app = typer.Typer(
    name="steadyhand",
    help="Run a plant with a learned controller that is never taken on trust.\n\n"
    "Start with `steadyhand demo thermal_storage`; for your own plant: `steadyhand check FILE`, "
    "then `steadyhand run FILE`, then `steadyhand mode full`.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # without a terminal: plain lines that a log keeps whole, no boxes of 80 columns
    rich_markup_mode="markdown" if sys.stderr.isatty() and sys.stdout.isatty() else None,
    epilog=EPILOG,
)
plant_app = typer.Typer(no_args_is_help=True, help="The plants that ship.")
app.add_typer(plant_app, name="plant")


@app.command()
def run(
    config: ConfigFile,
    max_ticks: Annotated[int | None, typer.Option(min=1, help="Stop after so many ticks.")] = None,
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", help="Say nothing at the start and at changes."),
    ] = False,
) -> None:
    """Run the loop until SIGTERM or Ctrl-C, then hand the plant back."""
    from steadyhand.runtime.run import run as run_plant

    run_plant(config, max_ticks, quiet)


@app.command("check")
def check_command(config: ConfigFile, as_json: AsJson = False) -> None:
    """Pre-flight: name every problem of a configuration at once. Writes nothing."""
    from steadyhand.runtime.cautions import cautions
    from steadyhand.runtime.check import check, disk_warning, go_live_words, started_instead
    from steadyhand.runtime.taken_ports import taken_ports

    loaded, problems = check(config)
    go_live = None if loaded is None else go_live_words(loaded)
    warnings: list[str] = []
    if loaded is not None:
        warnings += [*cautions(loaded), *filter(None, (disk_warning(loaded),))]
        warnings += taken_ports(loaded)
    instead = "" if loaded is None else started_instead(loaded, problems)
    data = {
        "file": str(config),
        "ok": not problems or bool(instead),
        "runs_instead": instead or None,
        "problems": [
            {"line": p.line, "field": p.field, "code": p.code, "message": p.message}
            for p in problems
        ],
        "digest": loaded.digest if loaded else None,
        "go_live": go_live,
        "warnings": warnings,
    }
    if problems:
        text = "\n".join(problem.text(str(config)) for problem in problems)
        if instead:
            text = f"warning: {text}\n`run` starts with {instead}"
        else:
            s = "s" if len(problems) > 1 else ""
            text += f"\n{len(problems)} problem{s}; nothing was started"
    else:
        text = f"{config}: nothing wrong\n{go_live}"
    text += "".join(f"\nwarning: {warning}" for warning in warnings)
    show(data, as_json, text)
    raise typer.Exit(Exit.REFUSED if problems and not instead else Exit.DONE)


@app.command()
def schema() -> None:
    """Print the JSON Schema of the configuration, for editors."""
    from steadyhand.runtime.config_schema import json_schema

    sys.stdout.write(json.dumps(json_schema(), indent=2) + "\n")


@plant_app.command("list")
def plant_list(as_json: AsJson = False) -> None:
    """Which plants there are."""
    from steadyhand.controllers.catalogue import PLANTS

    table = Table("plant", "what it is", "heuristics")
    for kind in PLANTS.values():
        table.add_row(kind.id, kind.title, ", ".join(kind.heuristics))
    data = [
        {"id": kind.id, "title": kind.title, "heuristics": list(kind.heuristics)}
        for kind in PLANTS.values()
    ]
    show(data, as_json, table)


def plant_named(plant: str) -> "PlantKind":
    """The type of plant that somebody named on the command line.

    Raises:
        RequestError: ARGUMENTS: there is none of that name.
    """
    from steadyhand.controllers.catalogue import plant_kind

    try:
        return plant_kind(plant)
    except ConfigError as error:
        raise RequestError("ARGUMENTS", str(error)) from None


@plant_app.command("show")
def plant_show(
    plant: Annotated[str, typer.Argument(help="Name of the plant.")], as_json: AsJson = False
) -> None:
    """Signals, outputs, limits and parameters of one plant."""
    from steadyhand.controllers.plants.parameters import parameter_table

    kind = plant_named(plant)
    made = kind.plant(kind.parameters)
    table = Table("signal", "unit", "low", "high", "meaning", title=kind.title)
    for role, signals in (("", made.observations), ("→ ", made.outputs)):
        for signal in signals:
            meaning = signal.meaning + (f"; + {signal.positive}" if signal.positive else "")
            table.add_row(
                role + signal.name, signal.unit, f"{signal.low:g}", f"{signal.high:g}", meaning
            )
    parameters = Table("parameter", "default", "unit", "meaning")
    for item in parameter_table(kind.parameters):
        value = getattr(kind.parameters, item.name)
        parameters.add_row(item.name, f"{value:g}", item.unit, item.meaning)
    data = {
        "id": kind.id,
        "observations": [[s.name, s.unit, s.low, s.high] for s in made.observations],
        "outputs": [[s.name, s.unit, s.low, s.high] for s in made.outputs],
        "parameters": {
            item.name: [getattr(kind.parameters, item.name), item.unit]
            for item in parameter_table(kind.parameters)
        },
    }
    if as_json:
        show(data, True, "")
    else:
        console().print(table, parameters)


def _training_commands() -> None:
    """Commands of other installed parts: training adds its own, and the edge never sees torch."""
    for entry in entry_points(group="steadyhand.commands"):
        try:
            register = entry.load()
        except ImportError:
            continue  # installed without its extra; `steadyhand --help` lists what there is
        register(app)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"steadyhand {version('steadyhand')}")
        raise typer.Exit


@app.callback()
def _root(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del show_version


def main() -> None:
    """Entry point: errors of ours become one line and a stable exit code, never a stack trace."""
    raise SystemExit(int(guarded(_main)))


def _main() -> None:
    complete()()


@cache
def complete() -> typer.Typer:
    """The command line with every part of it."""
    for name in PARTS:
        part = import_module(f"steadyhand.runtime.cli_{name}")
        part.register(app)
    _training_commands()
    return app
