"""What a run finds of the one before, and leaves for the next: one service's side of `kept.py`.

start: load ─► overrides, latches, alarms, shelves put back ─► the rest told until it was read
run:   after each tick and command, what has changed is written by another thread
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from math import isfinite
from pathlib import Path
from typing import Any

from steadyhand.controllers.errors import RequestError
from steadyhand.controllers.frames import Fault
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime.alarms import Alarms
from steadyhand.runtime.kept import KEPT_FILE, Keeper, Kept, load_kept
from steadyhand.runtime.modes import Mode, ModeMachine
from steadyhand.runtime.spans import span

Event = Callable[[dict[str, Any]], None]
Give = Callable[..., Any]
"""Gives the mode machine one command, and records it."""


class Keepsakes:
    """Used by the loop's thread, between ticks."""

    def __init__(self, folder: Path, plant: str, time_scale: float, on_event: Event) -> None:
        """Look at what the run before left.

        Args:
            folder: of state; it is there.
            plant: whose it is, by the configuration's name.
            time_scale: plant seconds per second.
            on_event: takes the events. Any thread.

        Raises:
            ConfigError: the state is another plant's.
        """
        file = folder / KEPT_FILE
        before = self._before = load_kept(file, plant, time_scale)
        self._on_event = on_event
        # the first run leaves its name here, even if nobody ever does anything in it
        self._keeper = Keeper(
            file,
            plant,
            lambda text: on_event({"event": "Kept", "text": text}),
            before.kept if before.named else None,
        )
        self.asked: Mode | None = self._before.kept.asked
        """Mode that a person asked for last; None: nobody did."""
        self._notes = {(one.code, one.signal): one for one in self._before.kept.notes}

    @property
    def notes(self) -> tuple[Fault, ...]:
        """What a person has to read once; it holds nothing back, and goes by acknowledgement."""
        return tuple(self._notes.values())

    def faults(self) -> Iterator[Fault]:
        """What is wrong now with keeping it."""
        if self._keeper.fault:
            yield Fault(ReasonCode.AUDIT_DEGRADED, "kept", text=self._keeper.fault)

    def resume(self, give: Give, alarms: Alarms) -> Iterator[str]:
        """Put back what was in force, before the first tick; what there is to tell, in words.

        Args:
            give: takes the commands.
            alarms: takes what nobody has acknowledged, and the shelves.
        """
        before = self._before
        if before.fault:
            fault = Fault(ReasonCode.STATE_LOST, text=before.fault)
            _restore(give, fault)
            yield f"{fault.code}: {fault.text}"
        for latched in before.kept.latches:
            _restore(give, latched)
            yield f"{latched.code} waits for its acknowledgement (steadyhand ack)"
        for one in before.kept.overrides:
            what = f"override of {one.output} at {one.value:g} by {one.owner}"
            try:
                give(
                    "restore_override",
                    output=one.output,
                    value=one.value,
                    owner=one.owner,
                    reason=one.reason,
                    for_s=one.expires_s,
                )
            except RequestError as error:
                self._ended(one.output, one.value, str(error))
                yield f"{what} is not put back: {error}"
            else:
                yield f"{what} holds on, for {span(one.expires_s)}"
        how = "ended while the runtime was away"
        if not before.away_known:
            how = "ended: this machine's clock cannot tell how long the runtime was away"
        for one in before.ended:
            text = f"override by {one.owner} {how}: {one.reason}"
            self._ended(one.output, one.value, text)
            yield f"{one.output}: {text}"
        for waiting in before.kept.waiting:
            alarms.wait_on(waiting)
        for shelf in before.kept.shelves:
            with suppress(RequestError):  # critical by now: back from the shelf it is
                alarms.shelve(shelf.code, shelf.owner, shelf.reason, 0.0, shelf.expires_s)

    def note(self, fault: Fault) -> None:
        """Tell `fault` until somebody has acknowledged it."""
        self._notes[fault.code, fault.signal] = fault
        self._on_event({"event": "Note", "code": str(fault.code), "text": fault.text})

    def _ended(self, output: str, value: float, text: str) -> None:
        self.note(Fault(ReasonCode.OVERRIDE_EXPIRED, output, value, text=text))

    def acknowledge(self, code: ReasonCode | None) -> list[str]:
        """Somebody has read the note with `code`, or all of them; which these were."""
        read = [one for one in self._notes if code in (None, one[0])]
        for one in read:
            del self._notes[one]
        return [str(one) for one, _ in read]

    def keep(self, modes: ModeMachine, alarms: Alarms, now_s: float) -> None:
        """Leave the present state for the next run, if it has changed; never waits for a disk."""
        latches = tuple(latch.fault for latch in modes.latches.values())
        kept = Kept(
            modes.asked,
            modes.overrides,
            latches,
            tuple(alarms.shelves),
            self.notes,
            alarms.waiting,
        )
        self._keeper.keep(kept, now_s)

    def close(self) -> None:
        """Wait for the last state to be on disk."""
        self._keeper.close()


def _restore(give: Give, fault: Fault) -> None:
    value, limit = (number if isfinite(number) else None for number in (fault.value, fault.limit))
    give(
        "restore_latch",
        code=fault.code,
        signal=fault.signal,
        value=value,
        limit=limit,
        text=fault.text,
    )
