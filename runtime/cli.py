"""The command line: one verb per job, `--json` everywhere, stable exit codes.

0 done · 1 failed · 2 wrong usage · 69 nobody answers · 78 refused configuration or bundle
"""

import json
import sys
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from steadyhand.controllers.errors import (
    BundleError,
    ConfigError,
    JournalError,
    LinkError,
    RequestError,
    SteadyhandError,
)

EXIT_FAILED = 1
EXIT_UNAVAILABLE = 69
EXIT_CONFIG = 78

ConfigFile = Annotated[
    Path, typer.Argument(help="The plant's YAML file.", show_default=False, dir_okay=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print data instead of text.")]

app = typer.Typer(
    name="steadyhand",
    help="Run a plant with a learned controller that is never taken on trust.\n\n"
    "Start with `steadyhand demo thermal_storage`; for your own plant: `steadyhand check FILE`, "
    "then `steadyhand run FILE`, then `steadyhand mode full`.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
plant_app = typer.Typer(no_args_is_help=True, help="The plants that ship.")
app.add_typer(plant_app, name="plant")


def show(data: Any, as_json: bool, text: Any) -> None:  # noqa: ANN401  (any JSON, any renderable)
    """Print `data` as JSON, or `text` for people."""
    if as_json:
        sys.stdout.write(json.dumps(data, indent=2, allow_nan=False) + "\n")
    else:
        Console().print(text, markup=False) if isinstance(text, str) else Console().print(text)


@app.command()
def run(
    config: ConfigFile,
    max_ticks: Annotated[int | None, typer.Option(help="Stop after so many ticks.")] = None,
) -> None:
    """Run the loop until SIGTERM or Ctrl-C, then hand the plant back."""
    from steadyhand.runtime.service import serve

    try:
        serve(config, max_ticks)
    except JournalError as error:  # another one runs this plant, or nothing can be recorded
        fail(error, EXIT_CONFIG)


@app.command("check")
def check_command(config: ConfigFile, as_json: AsJson = False) -> None:
    """Pre-flight: name every problem of a configuration at once. Writes nothing."""
    from steadyhand.runtime.check import check

    loaded, problems = check(config)
    data = {
        "file": str(config),
        "ok": not problems,
        "problems": [
            {"line": p.line, "field": p.field, "code": p.code, "message": p.message}
            for p in problems
        ],
        "digest": loaded.digest if loaded else None,
    }
    if problems:
        text = "\n".join(problem.text(str(config)) for problem in problems)
        text += f"\n{len(problems)} problem{'s' if len(problems) > 1 else ''}; nothing was started"
    else:
        text = f"{config}: nothing wrong"
    show(data, as_json, text)
    raise typer.Exit(EXIT_CONFIG if problems else 0)


@app.command()
def schema() -> None:
    """Print the JSON Schema of the configuration, for editors."""
    from steadyhand.runtime.config import json_schema

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


@plant_app.command("show")
def plant_show(
    plant: Annotated[str, typer.Argument(help="Name of the plant.")], as_json: AsJson = False
) -> None:
    """Signals, outputs, limits and parameters of one plant."""
    from steadyhand.controllers.catalogue import plant_kind
    from steadyhand.controllers.plants.parameters import parameter_table

    kind = plant_kind(plant)
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
        Console().print(table, parameters)


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
    from steadyhand.runtime import cli_bundle, cli_demo, cli_operator, cli_record

    for part in (cli_bundle, cli_demo, cli_operator, cli_record):
        part.register(app)
    _training_commands()
    try:
        app()
    except (ConfigError, BundleError) as error:
        fail(error, EXIT_CONFIG)
    except LinkError as error:
        fail(error, EXIT_UNAVAILABLE)
    except RequestError as error:
        fail(error, EXIT_UNAVAILABLE if error.code == "NOT_RUNNING" else EXIT_FAILED)
    except SteadyhandError as error:
        fail(error, EXIT_FAILED)


def fail(error: SteadyhandError, status: int) -> None:
    """One line on stderr, then exit with `status`."""
    sys.stderr.write(f"steadyhand: {error}\n")
    raise SystemExit(status)
