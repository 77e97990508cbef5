"""The loop's side of the record: hand a tick or an event over and go on.

Nothing here waits, opens a file or raises in the tick. What cannot be kept is counted.
"""

import struct
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from math import nan
from typing import Any, Generic, TypeVar

from steadyhand.controllers.frames import (
    Certified,
    Fault,
    Observation,
    Proposal,
    Sent,
    Source,
    Verdict,
)
from steadyhand.controllers.signals import Vector
from steadyhand.runtime.black_box import BlackBox
from steadyhand.runtime.record import Encoder, RecordLayout

Item = TypeVar("Item")


class Ring(Generic[Item]):
    """A bounded hand-over from one producer to one consumer; the newest items win.

    The slots are made once. An item is stored as (number, item) by one reference assignment, which
    cannot be torn; the consumer sees from the number whether an item was overwritten before it was
    taken. The consumer keeps its own position, so an item stays until it is safe on disk.
    """

    __slots__ = ("_capacity", "_slots", "head")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._slots: list[tuple[int, Item] | None] = [None] * capacity
        self.head = 0
        """Number of the next item."""

    def put(self, item: Item) -> None:
        """Store one item; overwrites the oldest when full. Called by the producer only."""
        number = self.head
        self._slots[number % self._capacity] = (number, item)
        self.head = number + 1

    def peek(self, start: int, limit: int) -> tuple[list[Item], int, int]:
        """Items from number `start` on, at most `limit`.

        Returns:
            the items, the number after the last of them, how many were overwritten before.
        """
        head = self.head
        first = max(start, head - self._capacity)
        lost = first - start
        items: list[Item] = []
        number = first
        while number < head and len(items) < limit:
            slot = self._slots[number % self._capacity]
            if slot is not None and slot[0] == number:
                items.append(slot[1])
            else:  # overwritten between the look at `head` and now
                lost += 1
            number += 1
        return items, number, lost


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened between or inside ticks: a transition, a command, a fault."""

    monotonic_ns: int
    wall_ns: int
    tick: int
    """Number of the tick that follows or contains the event."""
    event: str
    """Its name."""
    data: Any
    """A mapping or a dataclass; written as JSON by the journal."""


class Recorder:
    """Takes ticks from the loop thread and events from any thread, in bounded memory."""

    def __init__(
        self,
        layout: RecordLayout,
        config_hash: str = "",
        bundle_id: str = "",
        ticks: int = 4096,
        events: int = 1024,
    ) -> None:
        """Make the rings.

        Args:
            layout: what a record looks like.
            config_hash: hash of the effective configuration; 16 characters are kept per tick.
            bundle_id: the controller that proposes, "name@version#hash"; 48 bytes are kept.
            ticks: records kept in memory while the disk does not take them.
            events: events kept likewise.
        """
        self.layout = layout
        self.ticks: Ring[bytes] = Ring(ticks)
        self.events: Ring[Event] = Ring(events)
        self.sequence = 0
        """Number of the next tick; the journal sets it once at start to go on where it ended."""
        self.misfits = 0
        """Ticks that could not be encoded: a defect of the caller, told once as an event; the
        record counts as degraded from then on."""
        self.black_box: BlackBox | None = None
        """Keeps the last ticks beyond the end of this process; the journal sets it at start."""
        self.misfit = ""
        """Why the first of them could not."""
        self._encoder = Encoder(layout, config_hash, bundle_id)
        self._lock = threading.Lock()

    def use_bundle(self, bundle_id: str) -> None:
        """From the next tick on, records name this controller."""
        self._encoder.bundle = bundle_id.encode()[:48]

    def tick(
        self,
        observation: Observation,
        proposal: Proposal | None,
        verdict: Verdict | None,
        source: Source,
        mode: str,
        wanted: Vector,
        certified: Certified | None,
        sent: Sent | None,
        faults: Sequence[Fault],
        timings: Sequence[float],
        now_s: float = nan,
    ) -> int:
        """Record one tick; never blocks, never raises. Loop thread only.

        Args:
            observation: what was read.
            proposal: what the policy said; None when it was not asked.
            verdict: what the gate said; None when it was not asked.
            source: who drives.
            mode: the operator's mode.
            wanted: (n_u,) what went into the filter.
            certified: what came out; None when nothing was to be sent.
            sent: what was really sent; None when nothing was.
            faults: faults of the loop itself; those that a frame holds too are kept once.
            timings: seconds per stage, in the layout's order.
            now_s: the time the tick was given.

        Returns:
            the number of the tick.
        """
        sequence = self.sequence
        self.sequence = sequence + 1
        try:
            body = self._encoder.encode(
                sequence, time.monotonic_ns(), time.time_ns(), now_s, observation, proposal,
                verdict, source, mode, wanted, certified, sent, faults, timings,
            )  # fmt: skip
        except (ValueError, TypeError, BufferError, AttributeError, OverflowError, KeyError,
                struct.error) as error:  # fmt: skip
            self.misfits += 1
            if self.misfits == 1:
                self.misfit = f"tick {sequence}: {error}"
                code = "AUDIT_MISFIT"
                told = {"event": "RecordMisfit", "code": code, "tick": sequence, "text": str(error)}
                self.event(told)
        else:
            if self.black_box is not None:
                self.black_box.put(sequence, body)
            self.ticks.put(body)
        return sequence

    def event(self, event: object) -> None:
        """Record one event; never waits for a disk. Any thread.

        Args:
            event: a dataclass (its class is the event's name) or a mapping (its key "event" is).
                It is written later by another thread, so it must not change any more.
        """
        if isinstance(event, Mapping):
            data: Any = dict(event)
            name = str(data.pop("event", "Event"))
        else:
            data = event
            name = type(event).__name__
            if not is_dataclass(event):
                data = {"text": str(event)}
        stamped = Event(time.monotonic_ns(), time.time_ns(), self.sequence, name, data)
        with self._lock:  # held for two assignments
            self.events.put(stamped)
