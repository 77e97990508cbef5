"""On site: does this plant answer as its model says, and does it take itself back in time?"""

import json
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from math import isnan
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from steadyhand.controllers.errors import ConfigError
from steadyhand.runtime.bundle.manifest import stamp
from steadyhand.runtime.chain import plain
from steadyhand.runtime.check import check
from steadyhand.runtime.cli import AsJson, ConfigFile
from steadyhand.runtime.config import Loaded
from steadyhand.runtime.exits import Exit
from steadyhand.runtime.proof_test import ProofSettings, proof_test
from steadyhand.runtime.response_test import TestReport, TestSettings, response_test
from steadyhand.runtime.responses import GOOD
from steadyhand.runtime.terminal import must_write, named_file, show

commission_app = typer.Typer(no_args_is_help=True, help="Bring a plant into service.")
_USUAL = TestSettings()
_PROOF = ProofSettings()
SHOWN = 20
"""So many lines of what an account could write; --json has all."""
Patience = Annotated[
    float, typer.Option(min=1.0, max=3600.0, help="Seconds to wait for link and grant.")
]
Out = Annotated[Path | None, typer.Option("--out", help="File for the result, JSON.")]
Yes = Annotated[bool, typer.Option("--yes", help="The operator watches; do not ask.")]


def register(app: typer.Typer) -> None:
    """Add `steadyhand commission …`."""
    app.add_typer(commission_app, name="commission")


@commission_app.callback()
def _group() -> None:
    """Bring a plant into service: docs/commission.md."""


@commission_app.command("response-test")
def response_test_command(
    config: ConfigFile,
    output: Annotated[
        list[str] | None, typer.Option(help="Only this output; may be repeated.")
    ] = None,
    step: Annotated[
        float, typer.Option(min=0.005, max=0.25, help="Step each way, share of the range.")
    ] = _USUAL.step,
    periods: Annotated[
        int, typer.Option(min=8, max=200, help="Control periods per output.")
    ] = _USUAL.periods,
    patience: Patience = _USUAL.patience_s,
    out: Out = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Move each output a little and compare what every measurement does with the model.

    The runtime must be stopped, the plant grants control, the operator watches. Ends at the first
    output whose measurements answer wrongly.
    """
    loaded = _ready(config, out)
    _watched(
        yes,
        f"Outputs of {loaded.config.name} will be moved by {step:.1%} of their range, "
        f"{periods} periods each.",
    )
    settings = TestSettings(step, periods, patience, tuple(output or ()))
    report = response_test(loaded, settings, _say)
    data = {
        "passed": report.passed,
        "problems": list(report.problems),
        "open_doors": list(report.open_doors),
        "beyond": list(report.beyond),
        "responses": [asdict(item) for item in report.responses],
    }
    _end(data, out, as_json, _table(report))


@commission_app.command("proof-test")
def proof_test_command(
    config: ConfigFile,
    by: Annotated[str, typer.Option("--by", help="Who watches, by name; stands in the report.")],
    periods: Annotated[
        int, typer.Option(min=2, max=96, help="Control periods of each path.")
    ] = _PROOF.periods,
    patience: Patience = _PROOF.patience_s,
    out: Out = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Once a month: fallback, safe set-point, and does the plant take itself back in time?

    The runtime must be stopped, the plant grants control, the operator watches. No policy takes
    part. At the end our heartbeat stands still until the plant has its own control back.
    """
    loaded = _ready(config, out)
    _watched(
        yes,
        f"{loaded.config.name} will be driven by its heuristic, put at its safe set-point, and "
        "left without a heartbeat.",
    )
    began = datetime.now(UTC)
    report = proof_test(loaded, ProofSettings(periods, patience), _say)
    data = {
        "plant": loaded.config.name,
        "at": stamp(began),
        "by": by,
        "config": loaded.digest,
        "passed": report.passed,
        "steps": [asdict(step) for step in report.steps],
        "shed_s": report.shed_s,
        "shed_configured_s": report.configured_s,
        "shed_resolution_s": report.resolution_s,
    }
    table = Table("path", "result", "what was seen")
    for step in report.steps:
        table.add_row(step.name, "passed" if step.passed else "NOT passed", step.text)
    _end(data, out, as_json, table)


def _ready(config: Path, out: Path | None) -> Loaded:
    """The configuration, with nothing in the way of a visit to its plant.

    Raises:
        ConfigError: the pre-flight found problems; the message names all of them.
        FileError: `out` cannot be written.
    """
    loaded, problems = check(config, bundle=False)
    if problems or loaded is None:
        raise ConfigError("\n".join(problem.text(str(config)) for problem in problems))
    if out is not None:
        must_write(out)
    return loaded


def _watched(yes: bool, what: str) -> None:
    """Go on only if somebody says that the operator watches what will be done."""
    if not yes:
        typer.confirm(f"{what} Does the operator watch?", abort=True)


def _end(data: dict[str, Any], out: Path | None, as_json: bool, table: RenderableType) -> NoReturn:
    """Keep the result, show it, and end with what came of it."""
    data = plain(data)
    if out is not None:
        with named_file(out):
            out.write_text(json.dumps(data, indent=2, allow_nan=False) + "\n", "utf-8")
    show(data, as_json, table)
    raise typer.Exit(Exit.DONE if data["passed"] else Exit.FAILED)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _table(report: TestReport) -> Group:
    table = Table("output", "measurement", "answer", "times the model", "what it means")
    for item in report.responses:
        slope = "" if isnan(item.slope) else f"{item.slope:.2f} ± {item.error:.2f}"
        table.add_row(item.output, item.signal, item.answer, slope, item.text)
    wrong = [item for item in report.responses if item.answer not in GOOD]
    told = [
        *report.open_doors,
        *report.problems,
        *(f"{item.signal}: {item.answer}: {item.text}" for item in wrong),
    ]
    if report.beyond:
        shown = [*report.beyond[:SHOWN], *["..."] * (len(report.beyond) > SHOWN)]
        told += ["our account could write more than it needs, have that taken away:", *shown]
    end = "passed" if report.passed else "NOT passed: do not go on before this is right"
    return Group(table, Text("\n".join([*told, end])))
