"""Keys and controller bundles: make, sign, verify, look inside."""

from pathlib import Path
from typing import Annotated, Any

import typer

from steadyhand.runtime.bundle import commands
from steadyhand.runtime.bundle.contract import PlantContract
from steadyhand.runtime.bundle.signature import CONTROLLER
from steadyhand.runtime.bundle.words import sections
from steadyhand.runtime.cli import AsJson, plant_named
from steadyhand.runtime.terminal import named_file, show

BundleFile = Annotated[Path, typer.Argument(help="The bundle.", show_default=False)]
PrivateKey = Annotated[Path, typer.Option("--key", help="Private key (PEM, mode 0600).")]
PlantName = Annotated[str, typer.Option("--plant", help="Plant the bundle is for.")]

app = typer.Typer(no_args_is_help=True, help="Signed controller bundles.")


def register(root: typer.Typer) -> None:
    """Add `steadyhand bundle …`."""
    root.add_typer(app, name="bundle")


def contract(plant: str) -> PlantContract:
    """What a bundle for the plant type must have been made for.

    Raises:
        RequestError: ARGUMENTS: no such plant.
    """
    kind = plant_named(plant)
    made = kind.plant(kind.parameters)
    return PlantContract(kind.id, made.observations, made.outputs, made.period_s)


@app.command("keygen")
def keygen(
    directory: Annotated[Path, typer.Argument(help="Where the two halves are put.")],
    name: Annotated[str, typer.Option(help="Name of the key's owner.")],
    days: Annotated[
        int | None, typer.Option(min=1, max=36_500, help="Days until it expires.")
    ] = None,
    purpose: Annotated[
        list[str] | None,
        typer.Option(help="controller (default), rollback, go-live or journal; repeatable."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a signing key; its private half never leaves its file."""
    with named_file(directory):
        directory.mkdir(parents=True, exist_ok=True)
    made = commands.keygen(directory, name, purpose or [CONTROLLER], days)
    show(made, as_json, _lines(made))


@app.command("pack")
def pack(
    parts: Annotated[Path, typer.Argument(help="Folder with the parts.")],
    target: Annotated[Path, typer.Argument(help="The bundle to write.")],
    key: PrivateKey,
    plant: PlantName,
    name: Annotated[str, typer.Option(help="Name of the controller.")],
    version: Annotated[int, typer.Option(min=1, max=2**53, help="Grows with every release.")],
    as_json: AsJson = False,
) -> None:
    """Pack policy.onnx, golden.json, trust.json and evidence.json, and sign them."""
    with named_file(target):
        made = commands.pack(parts, target, key, contract(plant), name=name, version=version)
    show(made, as_json, _lines(made))


@app.command("sign")
def sign(
    source: BundleFile,
    target: Annotated[Path, typer.Argument(help="The bundle to write.")],
    key: PrivateKey,
    as_json: AsJson = False,
) -> None:
    """Sign an existing bundle with another key."""
    with named_file(target):
        made = commands.sign(source, target, key)
    show(made, as_json, _lines(made))


@app.command("verify")
def verify(
    bundle: BundleFile,
    keys: Annotated[Path, typer.Option("--keys", help="Folder of trusted keys.")],
    plant: Annotated[
        str | None, typer.Option(help="Also check everything a start on this plant would.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check signature and hashes, and with --plant everything a start would check."""
    found = commands.verify(bundle, keys, contract(plant) if plant else None)
    show(found, as_json, _lines(found))


@app.command("inspect")
def inspect(bundle: BundleFile, as_json: AsJson = False) -> None:
    """What the bundle says about itself; nothing is verified."""
    found = commands.inspect(bundle)
    show(found, as_json, sections(found))


@app.command("permit-rollback")
def permit_rollback(
    bundle: BundleFile,
    target: Annotated[
        Path, typer.Argument(help="The token to write; the runtime looks for BUNDLE.rollback.")
    ],
    key: PrivateKey,
    days: Annotated[int, typer.Option(min=1, max=36_500, help="How long it holds.")] = 7,
    as_json: AsJson = False,
) -> None:
    """Let exactly this older bundle run again."""
    with named_file(target):
        made = commands.permit_rollback(bundle, key, target, days=days)
    show(made, as_json, _lines(made))


def _lines(data: dict[str, Any]) -> str:
    return "\n".join(f"{key:18} {value}" for key, value in data.items())
