"""From shadow to full: what a shadow run says, and the signed evidence that opens mode full."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from steadyhand.controllers.errors import ConfigError, JournalError, RequestError
from steadyhand.runtime import chain
from steadyhand.runtime.bundle.files import replace
from steadyhand.runtime.bundle.manifest import stamp
from steadyhand.runtime.bundle.signature import TrustStore, read_private
from steadyhand.runtime.cli import AsJson, ConfigFile
from steadyhand.runtime.cli_record import JournalDirectory
from steadyhand.runtime.config import load_config, require
from steadyhand.runtime.evidence import (
    AT_MOST,
    Evidence,
    Thresholds,
    control_digest,
    laxer,
    missed,
    read_evidence,
    seal,
    site_minima,
)
from steadyhand.runtime.exits import Exit
from steadyhand.runtime.go_live import record_name
from steadyhand.runtime.reader import JournalReader
from steadyhand.runtime.shadow import MEANINGS, figures
from steadyhand.runtime.terminal import must_write, named_file, show

shadow_app = typer.Typer(no_args_is_help=True, help="What a controller would have done.")
evidence_app = typer.Typer(no_args_is_help=True, help="Go-live evidence: it opens mode full.")
Share = Annotated[
    float | None,
    typer.Option(min=0.0, max=1.0, help="Ask for more than go_live does.", show_default=False),
]


def register(app: typer.Typer) -> None:
    """Add `steadyhand shadow …` and `steadyhand evidence …`."""
    app.add_typer(shadow_app, name="shadow")
    app.add_typer(evidence_app, name="evidence")


@shadow_app.command("report")
def shadow_report(
    directory: JournalDirectory,
    bundle: Annotated[
        str, typer.Option(help="Only this controller, as the journal names it; default: any.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Proposals of mode shadow beside what the plant did.

    Takes the journal of a plant; `steadyhand evaluate` simulates days instead, for controllers that
    have not been on a plant yet.
    """
    with JournalReader(directory) as journal:
        found = figures(journal, bundle)
    if not found.ticks:
        raise JournalError(f"{directory}: no tick in mode shadow; ask for it: steadyhand mode")
    show(found.as_dict(), as_json, _table(found.as_dict(), {}))


@evidence_app.command("make")
def make(
    config: ConfigFile,
    key: Annotated[Path, typer.Option("--key", help="Private key with the purpose go-live.")],
    by: Annotated[str, typer.Option("--by", help="Who signs off, by name.")],
    out: Annotated[Path, typer.Option("--out", help="File to write.")],
    journal: Annotated[
        Path | None, typer.Option("--journal", help="Journal; the configured one by default.")
    ] = None,
    bundle: Annotated[
        Path | None, typer.Option("--bundle", help="Bundle; the configured one by default.")
    ] = None,
    valid: Annotated[int, typer.Option(min=1, max=366, help="Days until it ends.")] = 90,
    days: Annotated[
        float | None,
        typer.Option(min=0.0, help="Ask for more days than go_live does.", show_default=False),
    ] = None,
    coverage: Share = None,
    support: Share = None,
    violation_high: Share = None,
    correction_mean: Share = None,
    availability: Share = None,
    as_json: AsJson = False,
) -> None:
    """Sign what a bundle has shown in shadow here; refused where it has not shown enough.

    Takes the journal of a run in mode shadow, which must be whole. What is enough stands in
    go_live.minimum_... and maximum_... of the configuration; the options can only ask for more.
    """
    from steadyhand.runtime.admission import admit
    from steadyhand.runtime.assemble import make_plant

    loaded = require(load_config(config), config)
    settings = loaded.config
    if settings.bundle is None:
        raise ConfigError("no bundle section in the configuration: there is nothing to go live")
    must_write(out)
    thresholds = _at_least(
        site_minima(settings.go_live),
        {
            "days": days,
            "coverage": coverage,
            "support": support,
            "violation_high": violation_high,
            "correction_mean": correction_mean,
            "availability": availability,
        },
    )
    made = admit(loaded, make_plant(loaded), bundle or loaded.path(settings.bundle.file))
    where = journal or loaded.path(settings.journal.directory)
    verified = chain.verify(where)
    if not verified.ok or verified.head is None:
        text = str(verified.problems[0]) if verified.problems else "it is empty"
        raise JournalError(f"{where}: no evidence from a journal that is not whole: {text}")
    digest = control_digest(settings)
    with JournalReader(where) as reader:
        found = figures(reader, record_name(made), digest, settings.name).as_dict()
    short = missed(found, thresholds)
    if short:
        show(
            {"made": False, "missed": short, "figures": found},
            as_json,
            _table(found, thresholds.model_dump(), "not signed: " + "; ".join(short)),
        )
        raise typer.Exit(Exit.FAILED)
    now = datetime.now(UTC).replace(microsecond=0)
    evidence = Evidence(
        plant_name=settings.name,
        plant_id=settings.plant.id,
        control_digest=digest,
        bundle=made.label,
        bundle_sha256=made.manifest_sha256,
        created=now,
        not_after=min(now + timedelta(days=valid), made.manifest.not_after),
        journal_head=verified.head.hash.hex(),
        figures=found,
        thresholds=thresholds,
        signed_off_by=by,
    )
    with named_file(out):
        replace(out, seal(evidence, read_private(key)), mode=0o644)
    data = evidence.model_dump(mode="json")
    text = f"signed: {out}, until {stamp(evidence.not_after)}; name it in go_live.evidence"
    show({"made": True, **data}, as_json, _table(found, thresholds.model_dump(), text))


@evidence_app.command("show")
def show_evidence(
    file: Annotated[Path, typer.Argument(help="The evidence.", show_default=False)],
    keys: Annotated[Path, typer.Option("--keys", help="Folder of trusted keys.")],
    as_json: AsJson = False,
) -> None:
    """Verify evidence as a start would, and show what stands in it."""
    found = read_evidence(file, TrustStore.read(keys), datetime.now(UTC))
    data = found.model_dump(mode="json")
    told = f"{found.bundle} on {found.plant_name}, by {found.signed_off_by}"
    show(data, as_json, _table(found.figures, found.thresholds.model_dump(), told))


def _at_least(minima: Thresholds, asked: dict[str, float | None]) -> Thresholds:
    """The site's minima with what was asked for beyond them.

    Raises:
        RequestError: ARGUMENTS less was asked for than the site does.
    """
    given = {name: value for name, value in asked.items() if value is not None}
    made = Thresholds(**(minima.model_dump() | given))
    if less := laxer(made, minima):
        raise RequestError(
            "ARGUMENTS",
            f"asks for less than this site does: {', '.join(less)}; a start would refuse it: "
            "change go_live in the configuration, or leave the option out",
        )
    return made


def _table(found: dict[str, Any], thresholds: dict[str, float], told: str = "") -> Group:
    table = Table("figure", "value", "asked", "what it is")
    for name, meaning in MEANINGS.items():
        value = found.get(name)
        shown = "unknown" if value is None else f"{value:.4g}"
        table.add_row(name, shown, _asked(name, thresholds), meaning)
    return Group(table, Text(told)) if told else Group(table)


def _asked(name: str, thresholds: dict[str, float]) -> str:
    if name not in thresholds:
        return ""
    sign = "<=" if name in AT_MOST else ">="
    return f"{sign} {thresholds[name]:g}"
