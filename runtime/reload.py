"""SIGHUP: the configuration is looked at again, and taken over by a restart only.

What drives a plant does not change under it: limits, addresses and keys hold for one run. So a
reload tells whether the file as it is now would be taken, and never touches the loop. It runs in a
process of its own, because the loop's thread shares its interpreter with every other thread.
"""

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime.guard import Guarded
from steadyhand.runtime.signal_flag import SignalFlag

CHECK_S = 120.0
"""Longest a look at the configuration may take."""


class Reload:
    """Answers SIGHUP: `ask` belongs to the signal handler, `begin` to the loop between ticks."""

    def __init__(
        self, file: Path, digest: str, tell: Callable[[dict[str, object]], object]
    ) -> None:
        """Name the configuration in force.

        Args:
            file: where it came from.
            digest: of what is in force.
            tell: gets one event per reload; called in a thread of ours.
        """
        self._file, self._digest, self._tell = file, digest, tell
        self._asked = SignalFlag()
        self._thread: threading.Thread | None = None

    def ask(self) -> None:
        """A reload is wanted."""
        self._asked.set()

    def begin(self) -> None:
        """Look at the file, if that was asked for and is not under way; returns at once."""
        if not self._asked.is_set() or (self._thread is not None and self._thread.is_alive()):
            return
        self._asked.clear()
        self._thread = Guarded(self._look, "reload")
        self._thread.start()

    def _look(self) -> None:
        text = _verdict(self._file, self._digest)
        self._tell({"event": "Reload", "code": str(ReasonCode.CFG_RELOAD), "text": text})


def _verdict(file: Path, digest: str) -> str:
    """What a restart would make of `file`, in words."""
    command = [sys.executable, "-m", "steadyhand.runtime", "check", str(file), "--json"]
    try:
        done = subprocess.run(  # noqa: S603  (our own module)
            command, capture_output=True, timeout=CHECK_S, check=False
        )
        report = json.loads(done.stdout)
        problems = [": ".join(filter(None, (p["field"], p["message"]))) for p in report["problems"]]
        changed = report["digest"] != digest
    except (OSError, ValueError, KeyError, TypeError, subprocess.TimeoutExpired) as error:
        return f"refused: {file} could not be checked ({type(error).__name__}: {error})"
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        return f"refused, what runs goes on: {file}: {problems[0]}{more}"
    if changed:
        return f"{file} is sound and differs from what runs; a restart takes it over"
    return f"{file} is sound and is what runs"
