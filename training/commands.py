"""What `training` adds to the command line; found through the entry point `steadyhand.commands`."""

import typer

from steadyhand.training.studies.commands import app as studies


def register(app: typer.Typer) -> None:
    """Add the commands of this room to the one CLI."""
    app.add_typer(studies, name="study")
