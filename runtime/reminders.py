"""What a person should think of in time: standing faults that hold nothing back."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from steadyhand.controllers.frames import Fault
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime.certificates import DAY_S, WARN_DAYS
from steadyhand.runtime.modes import DRIVING_MODES, Mode, ModeMachine

if TYPE_CHECKING:
    from steadyhand.runtime.bundle.load import Bundle
    from steadyhand.runtime.go_live import GoLive

_AUTHORITY = tuple(Mode)


def reminders(
    modes: ModeMachine, go_live: "GoLive", bundle: "Bundle | None", now_s: float | None = None
) -> Iterator[Fault]:
    """Each as a fault.

    Args:
        modes: who drives, and who asked for what.
        go_live: what lets the bundle into mode full.
        bundle: whose policy proposes.
        now_s: wall seconds since 1970; None: now.
    """
    asked, mode = modes.asked, modes.mode
    if asked in DRIVING_MODES and _AUTHORITY.index(mode) < _AUTHORITY.index(asked):
        yield Fault(
            ReasonCode.NOT_RESUMED,
            text=f"mode {asked} was asked for before the restart, {mode} is in force",
        )
    for item in modes.ending:
        text = f"set by {item.owner}: {item.reason}"
        yield Fault(ReasonCode.OVERRIDE_ENDS, item.output, item.value, text=text)
    end = go_live.not_after(bundle)
    if end is not None:
        left_s = end.timestamp() - (time.time() if now_s is None else now_s)
        if left_s < WARN_DAYS[0] * DAY_S:
            verb = "ended" if left_s <= 0.0 else "ends"
            text = f"{verb} on {end:%Y-%m-%d %H:%M} UTC"
            yield Fault(ReasonCode.EVIDENCE_ENDS, text=text)
