"""Failures that users of other services have reported, looked for in the syntax of our own."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("controllers", "adapters", "runtime")
SOURCES = sorted(
    path
    for room in ROOMS
    for path in (ROOT / room).rglob("*.py")
    if "__pycache__" not in path.parts
)
STARTS = {"create_task", "ensure_future", "run_in_executor"}
"""Nobody else keeps what these return: dropped, it may vanish before it ends, with its error."""
LOCAL_TIME = {"localtime", "mktime", "ctime", "asctime", "utcnow", "utcfromtimestamp", "today"}
NEEDS_ZONE = {"now": 1, "fromtimestamp": 2, "strptime": 99}
"""Calls of `datetime` that are local without so many arguments or a `tz`."""
DECIDES = (
    *sorted((ROOT / "controllers").rglob("*.py")),
    *(
        ROOT / "runtime" / f"{name}.py"
        for name in ("clock", "health", "loop", "modes", "handshake")
    ),
)
"""What decides, when it ticks, and whether it is alive."""


def called(node: ast.AST) -> str:
    """Last part of the name that is called; empty for anything else."""
    if not isinstance(node, ast.Call):
        return ""
    function = node.func
    return getattr(function, "attr", getattr(function, "id", ""))


def dropped(text: str) -> list[int]:
    """Lines that start a task and keep nothing of it."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and called(node.value) in STARTS
    ]


def local_time(text: str) -> list[int]:
    """Lines that ask for a time in the machine's own zone."""
    found = []
    for node in ast.walk(ast.parse(text)):
        name = called(node)
        if not isinstance(node, ast.Call) or not name:
            continue
        of_datetime = ast.unparse(node.func).startswith(("datetime.", "dt."))
        needed = NEEDS_ZONE.get(name, 0) if of_datetime else 0
        zoned = len(node.args) >= needed or any(word.arg == "tz" for word in node.keywords)
        if (needed and not zoned) or (name in LOCAL_TIME and isinstance(node.func, ast.Attribute)):
            found.append(node.lineno)
    return found


def wall_clock(text: str) -> Iterator[str]:
    """What asks the clock on the wall."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            if name in ("time.time", "time.time_ns", "datetime.now", "time.CLOCK_REALTIME"):
                yield name
        if isinstance(node, ast.ImportFrom) and node.module in ("time", "datetime"):
            yield from (
                f"{node.module}.{alias.name}"
                for alias in node.names
                if alias.name in ("time", "time_ns", "datetime", "date")
            )


def test_no_task_is_started_and_forgotten():
    """It may be collected before it ends, and what it died of is never seen."""
    found = {str(path.relative_to(ROOT)): dropped(path.read_text("utf-8")) for path in SOURCES}
    assert {name: lines for name, lines in found.items() if lines} == {}
    assert len(SOURCES) > 150


def test_no_time_is_local():
    """A day of 25 hours, or the hour that is not there, is nothing that can happen to UTC."""
    found = {str(path.relative_to(ROOT)): local_time(path.read_text("utf-8")) for path in SOURCES}
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize("path", DECIDES, ids=lambda path: path.stem)
def test_what_decides_never_asks_the_clock_on_the_wall(path):
    assert list(wall_clock(path.read_text("utf-8"))) == []


@pytest.mark.parametrize(
    ("text", "search"),
    [
        ("asyncio.create_task(f())", dropped),
        ("async def a():\n    asyncio.ensure_future(f())", dropped),
        ("loop.run_in_executor(None, f)", dropped),
        ("datetime.now()", local_time),
        ("datetime.fromtimestamp(1.0)", local_time),
        ("datetime.strptime('1', '%d')", local_time),
        ("time.localtime()", local_time),
        ("date.today()", local_time),
        ("import time\ntime.time()", wall_clock),
        ("from time import time", wall_clock),
        ("f(clock=time.time)", wall_clock),
    ],
)
def test_the_searches_find_what_they_are_for(text, search):
    assert list(search(text))


@pytest.mark.parametrize(
    ("text", "search"),
    [
        ("kept = asyncio.create_task(f())", dropped),
        ("tasks.append(loop.create_task(f()))", dropped),
        ("datetime.now(UTC)", local_time),
        ("datetime.fromtimestamp(1.0, tz=UTC)", local_time),
        ("time.monotonic()", wall_clock),
    ],
)
def test_and_nothing_else(text, search):
    assert list(search(text)) == []


def test_the_service_manager_never_gives_up():
    """Five quick failures, because the plant's network was late, must not be the last ones."""
    unit = (ROOT / "deploy" / "systemd" / "steadyhand@.service").read_text("utf-8")
    lines = [line.strip() for line in unit.splitlines()]
    assert "StartLimitIntervalSec=0" in lines
    assert "Restart=on-failure" in lines
    assert not [line for line in lines if line.startswith("RestartPreventExitStatus")]
