"""Read the journal: show, verify, export, explain, replay; what its reason codes mean."""

import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from rich.table import Column, Table

from steadyhand.controllers.errors import BundleError, RequestError
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime import chain
from steadyhand.runtime.bundle.signature import JOURNAL, read_public
from steadyhand.runtime.cli import AsJson, ConfigFile
from steadyhand.runtime.config import load_config, require
from steadyhand.runtime.exits import Exit
from steadyhand.runtime.explain import explain as explain_text
from steadyhand.runtime.journal import purge
from steadyhand.runtime.quantity import magnitude
from steadyhand.runtime.reader import JournalReader, tick_as_dict
from steadyhand.runtime.spans import plant_time, span
from steadyhand.runtime.terminal import named_file, show

JournalDirectory = Annotated[
    Path, typer.Argument(help="Directory of the journal, or one segment.", show_default=False)
]

journal_app = typer.Typer(no_args_is_help=True, help="Read the record of every decision.")


def register(app: typer.Typer) -> None:
    """Add the auditor's commands."""
    app.add_typer(journal_app, name="journal")
    app.command("explain")(explain)
    app.command("replay")(replay_command)
    app.command("reasons")(reasons)


@journal_app.command("show")
def journal_show(
    directory: JournalDirectory,
    last: Annotated[int, typer.Option(min=1, max=10_000, help="How many ticks.")] = 20,
    events: Annotated[bool, typer.Option("--events", help="Events instead of ticks.")] = False,
    as_json: AsJson = False,
) -> None:
    """The last ticks, or the events."""
    with JournalReader(directory) as journal:
        if events:
            found = list(journal.events())[-last:]
            table = Table("tick", "event", Column("what", overflow="fold"))
            for event in found:
                table.add_row(str(event.tick), event.event, _words(event.data))
            show([{"event": e.event, "tick": e.tick, **e.data} for e in found], as_json, table)
            return
        codes = Column("reasons", overflow="fold")
        end = journal.span()[1] + 1
        ticks = list(journal.ticks(max(0, end - last), end))
        table = Table("tick", "plant time", "mode", "drives", "confidence", "sent", codes)
        for tick in ticks:
            sent = tick.sent.action.tolist() if tick.sent and tick.sent.written else []
            table.add_row(
                str(tick.sequence),
                plant_time(tick.observation.time_s),
                tick.operator_mode,
                tick.source.name.lower(),
                f"{tick.verdict.confidence:.2f}" if tick.verdict else "",
                ", ".join(f"{value:.4g}" for value in sent) or "nothing",
                " ".join(sorted(tick.reasons)),
            )
        layout = journal.segments[-1].layout
        show([tick_as_dict(layout, tick) for tick in ticks], as_json, table)


@journal_app.command("verify")
def journal_verify(
    directory: JournalDirectory,
    head: Annotated[
        str,
        typer.Option(
            metavar="SEGMENT:RECORDS:HASH",
            help="An end of the journal that was noted elsewhere; it must still be in there. The "
            "hash may be cut to its first 12 digits, as the metrics tell it.",
        ),
    ] = "",
    key: Annotated[
        list[Path] | None,
        typer.Option(
            "--key",
            help="Public key with the purpose journal: the chain must be signed by it. Repeatable: "
            "a journal may be older than its key.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Recompute the hash chain and name the first bad record.

    A chain whose end was cut off, or an older copy of it, is a sound chain: only a head that was
    noted elsewhere (status, metrics, an earlier verify) gives it away. A chain computed anew by
    somebody who can write the files is one, too: signatures (journal.signing_key) tell it.
    """
    keys = [_journal_key(file) for file in key or ()]
    found = chain.verify(directory, keys, _head(head) if head else None)
    show(chain.as_json(found), as_json, chain.describe_problem(found, bool(head)))
    raise typer.Exit(Exit.DONE if found.ok else Exit.FAILED)


@journal_app.command("export")
def journal_export(
    directory: JournalDirectory,
    target: Annotated[Path, typer.Argument(help="File to write; - is standard output.")] = Path(
        "-"
    ),
) -> None:
    """Every tick and event, one JSON object per line."""
    with JournalReader(directory) as journal:
        if str(target) == "-":
            journal.export_json_lines(sys.stdout)
            return
        with named_file(target), target.open("w", encoding="utf-8") as out:
            count = journal.export_json_lines(out)
    show({"lines": count}, False, f"{count} lines in {target}")


def _journal_key(file: Path) -> Ed25519PublicKey:
    """A key that may sign journals.

    Raises:
        BundleError: BUNDLE_KEY it is no public key, or for something else.
    """
    found = read_public(file)
    if JOURNAL not in found.purposes:
        raise BundleError(
            "BUNDLE_KEY", f"{file}: is for {', '.join(sorted(found.purposes))}, not for {JOURNAL}"
        )
    return found.key


@journal_app.command("purge")
def journal_purge(
    config: ConfigFile,
    keep: Annotated[
        str,
        typer.Option(
            metavar="SIZE",
            help="How much may stay, as '5 GB'; journal.keep of the configuration by default.",
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Delete the oldest files of a journal that no runtime writes, and record that.

    The chain stays whole, and `verify` content. A runtime does the same by itself, at its start
    and with each new file, where the configuration has journal.keep.
    """
    loaded = require(load_config(config), config)
    section = loaded.config.journal
    try:
        keep_bytes = magnitude(keep, "byte") if keep else section.keep
    except ValueError as error:
        raise RequestError("ARGUMENTS", f"--keep {error}") from None
    if keep_bytes is None:
        raise RequestError("ARGUMENTS", "no journal.keep in the configuration: say --keep '5 GB'")
    if keep_bytes < 0.0:
        raise RequestError("ARGUMENTS", f"--keep {keep!r}: nothing can be less than nothing")
    done = purge(loaded.path(section.directory), keep_bytes)
    head = f"{done.head.segment}:{done.head.records}:{done.head.hash.hex()}"
    data = {"files": done.segments, "bytes": done.size, "head": head}
    text = f"{done.segments} files deleted, {done.size / 1e6:.1f} MB freed\nhead {head}"
    show(data, as_json, text)


def _head(text: str) -> chain.Head:
    """A head as a person wrote it down.

    Raises:
        RequestError: ARGUMENTS.
    """
    found = re.fullmatch(r"([0-9]{1,9}):([0-9]{1,12}):([0-9a-f]{12,64})", text.strip().lower())
    if found is None or len(found[3]) % 2:
        raise RequestError(
            "ARGUMENTS", f"--head {text!r}: SEGMENT:RECORDS:HASH, as in 3:1200:0123456789ab"
        )
    return chain.Head(int(found[1]), int(found[2]), bytes.fromhex(found[3]))


def explain(
    directory: JournalDirectory,
    tick: Annotated[
        int | None, typer.Argument(min=0, help="Number of the tick; the last by default.")
    ] = None,
) -> None:
    """Why that command: one tick in words."""
    with JournalReader(directory) as journal:
        show({}, False, explain_text(journal, journal.span()[1] if tick is None else tick))


def reasons(
    code: Annotated[
        str, typer.Argument(help="One code, such as OBS_STUCK; default: all.", show_default=False)
    ] = "",
    markdown: Annotated[
        bool, typer.Option("--markdown", help="As docs/reasons.md has it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """What each reason code means, what the loop does about it, and what you should do."""
    from steadyhand.runtime.reason_page import in_words, page

    wanted = code.strip().upper()
    if wanted and wanted not in list(ReasonCode):
        raise RequestError("ARGUMENTS", f"no reason code {code!r}; `steadyhand reasons` names all")
    if markdown:
        sys.stdout.write(page())
        return
    found = [dict(in_words(one)) for one in ReasonCode if wanted in ("", one)]
    if wanted:
        table = Table(show_header=False)
        for name, text in found[0].items():
            table.add_row(name, text or "none")
    else:
        table = Table("Code", "What it means", Column("What to do", overflow="fold"))
        for row in found:
            table.add_row(row["Code"], row["What it means"], row["What to do"])
    show(found[0] if wanted else found, as_json, table)


def replay_command(
    config: ConfigFile,
    directory: Annotated[
        Path | None, typer.Option("--journal", help="Journal; the configured one by default.")
    ] = None,
    run: Annotated[str | None, typer.Option(help="Which run; the last by default.")] = None,
    rerun_policy: Annotated[
        bool, typer.Option("--policy", help="Ask the policy again instead of believing the record.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run recorded inputs through present code and show every other decision."""
    from steadyhand.runtime.rerun import rerun

    loaded = require(load_config(config), config)
    where = directory or loaded.path(loaded.config.journal.directory)
    report = rerun(loaded, where, run, rerun_policy)
    data = {
        "run": report.run,
        "ticks": report.ticks,
        "differing": report.differing,
        "fields": report.fields,
        "digest": report.digest,
        "recorded_digest": report.recorded_digest,
        "identical": report.digest == report.recorded_digest,
        "notes": list(report.notes),
        "differences": [
            {"tick": d.tick, "field": d.field, "recorded": d.recorded, "replayed": d.replayed}
            for d in report.differences
        ],
    }
    lines = [
        f"{report.ticks} ticks, {report.differing} decided otherwise; digest {report.digest[:16]}"
    ]
    lines += [f"  note: {note}" for note in report.notes]
    lines += [
        f"  tick {d.tick} {d.field}: recorded {d.recorded}, now {d.replayed}"
        for d in report.differences[:20]
    ]
    if as_json:
        from steadyhand.runtime.chain import plain

        show(plain(data), True, "")
    else:
        show({}, False, "\n".join(lines))
    raise typer.Exit(Exit.FAILED if report.differing else Exit.DONE)


def _words(data: dict[str, Any]) -> str:
    return " ".join(
        f"{key}={_word(key, value)}" for key, value in data.items() if value not in ("", None)
    )


def _word(key: str, value: Any) -> Any:  # noqa: ANN401
    """A value of an event; times as people say them."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if key in ("time_s", "expires_s"):  # the loop's own time: it begins with the run
        return f"({span(value)} after the start)"
    return f"({span(value)})" if key.endswith("_s") and abs(value) >= 100.0 else value
