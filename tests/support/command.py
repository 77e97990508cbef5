"""`steadyhand` in a process of its own, as people call it."""

import subprocess
import sys
from typing import Any

COMMAND = (sys.executable, "-m", "steadyhand.runtime")


def steadyhand(
    *words: object, timeout_s: float = 120.0, **more: Any
) -> "subprocess.CompletedProcess[str]":
    """One command and what it said, whatever its exit status; `more` as `subprocess.run` has it."""
    return subprocess.run(
        [*COMMAND, *map(str, words)],
        capture_output=True, text=True, timeout=timeout_s, check=False, **more,
    )  # fmt: skip
