"""Training's part of the command line: `train`, `export`, `evaluate`, `study`."""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from steadyhand.runtime.terminal import console, must_write, named_file

Seed = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Same seed, same weights.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print data instead of text.")]
PlantName = Annotated[str, typer.Argument(help="Name of the plant: thermal_storage.")]
Weights = Annotated[Path, typer.Option(help="Where the trained weights are kept.", dir_okay=False)]
Key = Annotated[
    Path,
    typer.Option(help="Private key that signs; made when absent.", dir_okay=False),
]
Folder = Annotated[
    Path, typer.Option(help="Folder of the bundle and its trusted keys/.", file_okay=False)
]
WishedWeights = Annotated[
    Path | None,
    typer.Option(
        help="Where the trained weights are kept.",
        show_default="out/thermal_storage.pt; out/quick with --quick",
        dir_okay=False,
    ),
]
WishedKey = Annotated[
    Path | None,
    typer.Option(
        help="Private key that signs; made when absent.",
        show_default="var/keys/local.key.pem; out/quick/private/ with --quick",
        dir_okay=False,
    ),
]
WishedFolder = Annotated[
    Path | None,
    typer.Option(
        help="Folder of the bundle and its trusted keys/.",
        show_default="configs/thermal_storage; out/quick with --quick",
        file_okay=False,
    ),
]

_WEIGHTS = Path("out/thermal_storage.pt")
_KEY = Path("var/keys/local.key.pem")
_FOLDER = Path("configs/thermal_storage")
_QUICK = Path("out/quick")
"""Where everything of `train --quick` goes: nothing that anybody uses is touched."""


def register(app: typer.Typer) -> None:
    """Add the commands to the one command line."""
    from steadyhand.training.studies.commands import app as study_app

    app.command()(train)
    app.command("export")(export_command)
    app.command()(evaluate)
    app.add_typer(study_app, name="study")


def train(
    plant: PlantName = "thermal_storage",
    seed: Seed = 0,
    weights: WishedWeights = None,
    folder: WishedFolder = None,
    key: WishedKey = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Seconds, to see it work; no plant takes what comes of it."),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also replace a bundle that another key signed.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make a controller from nothing: train, judge, export, sign."""
    _only_thermal(plant)
    weights = weights or (_QUICK / _WEIGHTS.name if quick else _WEIGHTS)
    folder = folder or (_QUICK if quick else _FOLDER)
    key = key or (_QUICK / "private" / _KEY.name if quick else _KEY)
    _not_another_ones(folder / "thermal_storage.shb", key, force)
    from steadyhand.training.thermal_release import release, train_and_save

    for folder_of_result in (weights.parent, folder, key.parent):  # before the minutes, not after
        with named_file(folder_of_result):
            folder_of_result.mkdir(parents=True, exist_ok=True)
    must_write(weights)
    must_write(folder / "thermal_storage.shb")
    stages = train_and_save(weights, seed, quick)
    data = release(weights, folder, key, stages, quick)
    _show(data, as_json)


def export_command(
    plant: PlantName = "thermal_storage",
    weights: Weights = _WEIGHTS,
    folder: Folder = _FOLDER,
    key: Key = _KEY,
    force: Annotated[
        bool, typer.Option("--force", help="Also replace a bundle that another key signed.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Judge, export and sign weights that were trained before."""
    _only_thermal(plant)
    _not_another_ones(folder / "thermal_storage.shb", key, force)
    from steadyhand.training.thermal_release import release

    _show(release(weights, folder, key, {}, quick=False), as_json)


def _not_another_ones(bundle: Path, key: Path, force: bool) -> None:
    """A bundle that another key signed is somebody's: it is not replaced by the way.

    Raises:
        FileError: it would be.
        BundleError: the key cannot be read.
    """
    from steadyhand.controllers.errors import BundleError, FileError
    from steadyhand.runtime.bundle.pack import inspect_bundle
    from steadyhand.runtime.bundle.signature import key_id, read_private

    if force or not bundle.exists():
        return
    try:
        signed_with = inspect_bundle(bundle)["signed_with"]
    except BundleError:
        signed_with = "nobody we can tell"
    ours = key_id(read_private(key).public_key()) if key.exists() else "a key that is made now"
    if signed_with != ours:
        raise FileError(
            f"{bundle}: is there already, signed with key {signed_with}, not with {ours} ({key}); "
            "name another --folder, or the --key that signed it; --force replaces it for good and "
            "puts your public key among the trusted ones beside it"
        )


def evaluate(
    bundle: Annotated[Path, typer.Argument(help="Controller bundle.", dir_okay=False)] = (
        _FOLDER / "thermal_storage.shb"
    ),
    trusted: Annotated[Path, typer.Option(help="Folder of public keys.", file_okay=False)] = (
        _FOLDER / "keys"
    ),
    real_loop: Annotated[
        int,
        typer.Option(
            "--real-loop",
            min=0,
            max=9,
            help="So many sets of 30 held-out days in the real loop: encrypted OPC UA, gate, "
            "journal; minutes each.",
        ),
    ] = 0,
    journal: Annotated[
        Path | None,
        typer.Option(
            help="Journal of a real plant instead: what the bundle proposed there in mode shadow, "
            "as `steadyhand shadow report` tells it."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a bundle behind the safety filter on the held-out days, beside the rules.

    The days are simulated. What a bundle does on a real plant stands in that plant's journal:
    --journal here, `steadyhand shadow report` for any controller in it; `steadyhand evidence make`
    signs it.
    """
    if journal is not None:
        _evaluate_journal(journal, bundle, trusted, as_json)
        return
    if real_loop:
        _evaluate_real_loop(real_loop, bundle, trusted, as_json)
        return
    from steadyhand.training.thermal_release import evaluate_bundle

    data = evaluate_bundle(bundle, trusted)
    if as_json:
        sys.stdout.write(json.dumps(data, indent=2, allow_nan=False) + "\n")
        return
    table = Table("controller", "above the optimum", "violations", "filter changed")
    rows = {
        "this bundle": data["policy"],
        "the same without filter": data["policy_without_filter"],
        **data["rules"],
    }
    for name, row in rows.items():
        broken = sum(row["violations"].values())
        share = f"{100.0 * row['filter_changed_share']:.1f} %"
        table.add_row(name, f"{row['gap_percent']:+.2f} %", str(broken), share)
    console().print(table)


def _evaluate_journal(journal: Path, bundle: Path, trusted: Path, as_json: bool) -> None:
    """What this bundle, and no other, proposed in mode shadow."""
    from steadyhand.runtime.bundle.archive import read_file
    from steadyhand.runtime.bundle.load import verify_bundle
    from steadyhand.runtime.bundle.signature import TrustStore
    from steadyhand.runtime.cli_evidence import shadow_report
    from steadyhand.runtime.go_live import record_name

    made = verify_bundle(read_file(bundle), TrustStore.read(trusted), datetime.now(UTC))
    shadow_report(journal, record_name(made), as_json)


def _evaluate_real_loop(sets: int, bundle: Path, trusted: Path, as_json: bool) -> None:
    from steadyhand.training.evaluation.real_loop import evaluate_sets

    err = console(stderr=True)
    data = evaluate_sets(sets, bundle, trusted, err.print)
    if as_json:
        sys.stdout.write(json.dumps(data, indent=2, allow_nan=False) + "\n")
        return
    table = Table("held-out days", "above the optimum", "best heuristic", "violations", "by policy")
    for item in data["sets"]:
        table.add_row(
            f"seeds {item['seeds'][0]} to {item['seeds'][-1]}",
            f"{100 * item['above_optimum']:+.2f} %",
            f"{100 * item['best_heuristic_above_optimum']:+.2f} % ({item['best_heuristic']})",
            str(item["violations"]),
            f"{100 * item['share_by_policy']:.1f} % of ticks",
        )
    console().print(table)


def _only_thermal(plant: str) -> None:
    from steadyhand.controllers.errors import RequestError

    if plant != "thermal_storage":
        raise RequestError("ARGUMENTS", f"no recipe for plant {plant!r}; there is: thermal_storage")


def _show(data: dict[str, object], as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(data, indent=2, allow_nan=False) + "\n")
        return
    table = Table("", "")
    for name, value in data.items():
        table.add_row(name, f"{value:.4g}" if isinstance(value, float) else str(value))
    console().print(table)
