"""`steadyhand selftest`: the fault table of a plant's own configuration, with a report."""

import json
from pathlib import Path
from typing import Annotated

import typer

from steadyhand.controllers.errors import ConfigError
from steadyhand.runtime.cli import AsJson, ConfigFile
from steadyhand.runtime.exits import Exit
from steadyhand.runtime.terminal import console, must_write, named_file, show

OWN = ("link.", "scada.", "operator.", "journal.", "metrics.", "panel.")
"""Sections of which the twin brings its own files, sockets and folders; the rest must be sound."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("selftest")(selftest)


def selftest(
    config: ConfigFile,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", help="Rows by number or pattern: A12, 'B1.*'. Repeatable."),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(help="File for the report (Markdown); data beside it as .json."),
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="Show the rows, try nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Inject every fault into a virtual twin of this configuration; report what came of it.

    The real plant is not touched. All rows take some ten minutes.
    """
    from steadyhand.runtime import assemble
    from steadyhand.runtime.check import check
    from steadyhand.runtime.config import load_config, require
    from steadyhand.runtime.selftest.report import as_data, as_markdown
    from steadyhand.runtime.selftest.rows import Result
    from steadyhand.runtime.selftest.run import chosen, heading, run_rows, table

    loaded = require(load_config(config), config)
    rows = chosen(table(loaded.config, assemble.make_plant(loaded)), only or [])
    if listed:
        shown = [
            {"id": r.id, "where": r.place, "injected": r.injected, "expected": r.expected}
            for r in rows
        ]
        text = "\n".join(f"{r.id}: {r.injected} -> {r.expected}" for r in rows)
        show(shown, as_json, f"{text}\n{len(rows)} rows")
        return
    beside = None if report is None else report.with_suffix(".json")
    for file in (report, beside):
        if file is not None:
            must_write(file)
    _, problems = check(config)
    wrong = [problem for problem in problems if not problem.field.startswith(OWN)]
    if wrong:
        raise ConfigError("\n".join(problem.text(str(config)) for problem in wrong))
    head = heading(loaded)
    screen = console(stderr=True)

    def told(result: Result) -> None:
        word = "pass" if result.passed else "FAIL"
        more = "" if result.passed else f": {'; '.join(result.findings)}"
        screen.print(f"{word} {result.row.id} {result.row.injected}{more}")

    results = run_rows(loaded, rows, told=told)
    data = as_data(head, results)
    text = as_markdown(head, results)
    if report is not None and beside is not None:
        with named_file(report):
            report.write_text(text, encoding="utf-8")
        with named_file(beside):
            beside.write_text(json.dumps(data, indent=2, allow_nan=False) + "\n", "utf-8")
    failed = [result for result in results if not result.passed]
    said = text if report is None else f"{len(results)} rows, {len(failed)} failed: {report}"
    show(data, as_json, said)
    raise typer.Exit(Exit.FAILED if failed else Exit.DONE)
