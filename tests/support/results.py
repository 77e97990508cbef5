"""The figures of campaigns that are committed, and the code that they were measured with."""

import fcntl
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "tests" / "loop" / "results"


def _commit() -> str:
    """Short hash of the commit; with a + behind it where tracked files differ from it."""
    try:
        name = _git("rev-parse", "--short", "HEAD")
        # what a campaign writes while it runs is no change of the code
        changed = _git("status", "--porcelain", "--untracked-files=no", ":!tests/*/results/*")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{name}+" if changed else name


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


COMMIT = _commit()
"""Of the code this process began with: a campaign takes hours, and the tree may go on meanwhile."""


@contextmanager
def turn(file: Path) -> Iterator[None]:
    """Processes of one campaign read and write `file` one after another."""
    file.parent.mkdir(exist_ok=True)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def read(file: Path) -> dict[str, Any]:
    """What is kept so far; empty when there is nothing."""
    return json.loads(file.read_text("utf-8")) if file.exists() else {}


def keep(file: Path, figures: dict[str, Any], indent: int = 2) -> None:
    """Replace the file as a whole, so that a campaign that is cut short leaves a readable one."""
    file.parent.mkdir(exist_ok=True)
    draft = file.with_suffix(".new")
    draft.write_text(json.dumps(figures, indent=indent, allow_nan=False) + "\n", encoding="utf-8")
    draft.replace(file)
