"""`steadyhand study list` and `steadyhand study run`."""

import json
import sys
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from steadyhand.runtime.terminal import console
from steadyhand.training.studies.study import all_studies, conduct, describe, find, store

app = typer.Typer(no_args_is_help=True, help="Claims of this project that you can run yourself.")
AsJson = Annotated[bool, typer.Option("--json", help="Print data instead of text.")]


@app.command("list")
def list_studies(as_json: AsJson = False) -> None:
    """Every study: what it claims, and what its committed full run found."""
    data = [describe(study) for study in all_studies().values()]
    if as_json:
        sys.stdout.write(json.dumps(data, indent=2) + "\n")
        return
    table = Table("study", "claim", "measured", "baseline", "holds")
    for item in data:
        last = item["committed"]
        figures = (
            (f"{last['measured']:.4g}", f"{last['baseline']:.4g}", "yes" if last["holds"] else "no")
            if last
            else ("not run yet", "", "")
        )
        table.add_row(item["name"], item["claim"], *figures)
    console().print(table)


@app.command("run")
def run_study(
    name: Annotated[str, typer.Argument(help="Name of the study.")],
    quick: Annotated[
        bool, typer.Option("--quick", help="Under a minute: checks the direction of the effect.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="First seed.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Run one study. A full run from seed 0 replaces its committed result."""
    study = find(name)
    err = console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, disable=not err.is_terminal) as bar:
        task = bar.add_task(study.name, total=1.0)
        result = conduct(
            study,
            quick,
            seed,
            lambda text, share: bar.update(task, description=text, completed=share),
        )
    if not quick and seed == 0:
        store(study, result)
    if as_json:
        sys.stdout.write(json.dumps(result, indent=2, allow_nan=False) + "\n")
        return
    out = console()
    if result["table"]:
        table = Table(*(str(key) for key in result["table"][0]), title=study.claim)
        for row in result["table"]:
            table.add_row(*(_cell(value) for value in row.values()))
        out.print(table)
    low, high = result["interval"]
    out.print(
        f"{study.metric}: {result['measured']:.4g} [{low:.4g}, {high:.4g}] "
        f"against {result['baseline']:.4g} ({study.baseline}); "
        f"{'holds' if result['holds'] else 'does not hold'}, "
        f"{len(result['seeds'])} seeds, {result['seconds']} s"
    )
    for remark in result["remarks"]:
        out.print(f"  {remark}")


def _cell(value: object) -> str:
    if isinstance(value, list):
        return " / ".join(f"{item:.3g}" for item in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)
