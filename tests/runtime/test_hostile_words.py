"""What a person, a server or a file said is shown as it stands: it is never markup."""

import ast
import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Group
from rich.table import Table

from steadyhand.controllers.frames import Fault
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime import cli_operator, cli_record, terminal
from steadyhand.runtime.cli_operator import status_table
from steadyhand.runtime.journal import Journal, Limits
from tests.support.panels import alarm, status
from tests.support.records import fresh_recorder, observation, tick_arguments

ROOT = Path(__file__).parents[2]
HOSTILE = (
    "[/b]", "urn:[/b]", "[bold red]x[/bold red]", "[/]", "[link=file:///x]y[/link]", "[[", "\\[b]",
    ":warning:", "[@click=app.bell]z", "[red",
)  # fmt: skip


def consoles_made(text: str) -> list[int]:
    """Lines that make a console or show text by a default one of rich's."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module in ("rich", "rich.markup"):
            found.append(node.lineno)
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        given = {word.arg for word in node.keywords}
        if name in ("Console", "PlainConsole", "from_markup", "render_markup"):
            found.append(node.lineno)
        if name in ("Progress", "Live") and "console" not in given:
            found.append(node.lineno)
        if name == "TextColumn" and "markup" not in given:
            found.append(node.lineno)
    return found


def test_no_console_is_made_elsewhere():
    sources = [
        path
        for room in ("controllers", "adapters", "runtime", "training")
        for path in (ROOT / room).rglob("*.py")
    ]
    assert len(sources) > 100
    made = {
        str(path.relative_to(ROOT)): lines
        for path in sources
        if (lines := consoles_made(path.read_text("utf-8")))
    }
    assert list(made) == ["runtime/terminal.py"], made


@pytest.mark.parametrize(
    "line",
    ["Console()", "rich.console.Console(stderr=True)", "from rich import print", "Progress(a)",
     "Live(refresh_per_second=8)", "Text.from_markup('x')", "TextColumn('x')"],
)  # fmt: skip
def test_the_search_finds_them(line):
    assert consoles_made(line) == [1]


@pytest.fixture
def shown(capsys):
    """What a console of ours makes of a renderable, the way every command shows it."""

    def make(what: object) -> str:
        terminal.show({}, False, what)
        return capsys.readouterr().out

    return make


@pytest.mark.parametrize("text", HOSTILE)
def test_every_way_to_the_screen(text, shown):
    table = Table("head " + 40 * "h", title=f"title {text}", caption=f"end {text}")
    table.add_row(text)
    inner = Table(text, show_header=True)
    inner.add_row("cell")
    for what in (text, table, inner, Group(text, inner)):
        assert text in shown(what)
    for stderr in (False, True):
        screen = terminal.console(stderr)
        screen.file = io.StringIO()
        screen.print(text, table, sep="\n")
        assert screen.file.getvalue().count(text) == 4


def test_no_control_character_reaches_the_screen(shown):
    table = Table("what")
    table.add_row("a\x1b[2Jb\x07c\x9bd\u202ee")
    for what in ("a\x1b[2Jb\x07c\x9bd\u202ee\x1b]0;t\x07", table):
        text = shown(what)
        assert "a?[2Jb?c?d?e" in text
        assert not set(text) & set("\x1b\x07\x9b\u202e")


def full_status(text: str) -> dict[str, object]:
    """A status in which everything that can carry somebody else's words does."""
    return status(
        1,
        source="hands_off",
        name=text,
        cause={"code": "OBS_STALE", "signal": text, "text": text},
        link=text,
        confidence=None,
        filter=None,
        sent={"valve": 1.0},
        applied={"valve": 1.0},
        participation={"valve": "override"},
        proposed={"valve": 1.0},
        observations={text: 1.0},
        overrides=[
            {"output": "valve", "value": 1.0, "owner": text, "reason": text, "expires_s": 1000.0}
        ],
        alarms=[alarm("OBS_STALE", text=text, action=text)],
        shelved=[{"code": "X", "owner": text, "reason": text, "expires_s": 1000.0}],
        certificates=[{"name": text, "state": "expired"}],
        journal={"fault": text, "records": 0, "head": "", "end": ""},
        alarm=text,
        bundle=text,
    )


@pytest.mark.parametrize("text", HOSTILE)
def test_status(text, shown):
    assert shown(status_table(full_status(text))).count(text) >= 10


@pytest.mark.parametrize("text", HOSTILE)
def test_answers_to_commands(text, capsys, monkeypatch):
    monkeypatch.setattr(cli_operator, "call", lambda *_, **__: {"alarm": text, "mode": text})
    cli_operator.shelve(Path("x"), "OBS_STALE", text, lasting="1 h")
    cli_operator.unshelve(Path("x"), text)
    cli_operator.clear_override(Path("x"), text)
    assert capsys.readouterr().out.count(text) == 3


@pytest.mark.parametrize("text", HOSTILE)
def test_journal(text, tmp_path, capsys):
    recorder = fresh_recorder()
    with Journal(tmp_path, recorder, Limits(commit_every_s=0.002)):
        said = Fault(ReasonCode.OBS_STALE, text, 1.0, 2.0, text)
        seen = observation(faults=(said,), quality=np.array([0, 2, 1], np.int8))
        recorder.tick(**tick_arguments(0, observation=seen))
        recorder.event({"event": "Override", "actor": "root", "reason": text})
    cli_record.journal_show(tmp_path, last=20, events=True)
    assert f"reason={text}" in capsys.readouterr().out
    cli_record.journal_show(tmp_path, last=20)
    cli_record.explain(tmp_path)
    assert text in capsys.readouterr().out
