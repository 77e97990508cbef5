"""`steadyhand demo` and `steadyhand plant serve`."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from steadyhand.runtime.cli import AsJson, plant_app


def register(app: typer.Typer) -> None:
    """Add the demonstration."""
    app.command("demo")(demo)


def demo(
    plant: Annotated[str, typer.Argument(help="Which plant.")] = "thermal_storage",
    out: Annotated[Path, typer.Option(help="Folder for the table and the picture.")] = Path("out"),
    as_json: AsJson = False,
) -> None:
    """Watch a learned controller run a plant over encrypted OPC UA, lose trust and get it back."""
    from steadyhand.runtime.demo import run_demo

    raise typer.Exit(run_demo(plant, out, as_json))


@plant_app.command(
    "serve",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,
)
def plant_serve(context: typer.Context) -> None:
    """Run a virtual plant behind a real OPC UA server; `plant serve --help` lists its options."""
    arguments = list(context.args)
    if arguments and not arguments[0].startswith("-"):
        arguments = ["--plant", *arguments]
    sys.stdout.flush()
    server = [sys.executable, "-m", "steadyhand.adapters.sim.server", *arguments]
    os.execv(sys.executable, server)  # noqa: S606  (our own module, the caller's own arguments)
