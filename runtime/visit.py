"""A visit to a running plant without the runtime: look, ask for control, command, hand back.

What the tests on site have in common. Every command goes through the safety filter, as in service;
the plant has to grant control and can take it back at any moment.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import numpy as np

from steadyhand.controllers.errors import ConfigError, LinkError
from steadyhand.controllers.frames import LinkState, Observation, Sent, Source
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.signals import Vector
from steadyhand.controllers.trust.freshness import Freshness, FreshnessSettings
from steadyhand.runtime import assemble
from steadyhand.runtime.config import Loaded
from steadyhand.runtime.config_link import OpcUaLink
from steadyhand.runtime.events import EFFECTS, Situation, describe
from steadyhand.runtime.journal import take_lock

PLAIN_FAULTS = frozenset({ReasonCode.OBS_REPEAT, ReasonCode.OBS_STUCK, ReasonCode.OBS_RATE})
"""What may be in a first image without a tag being wrong."""

Say = Callable[[str], None]
"""Told what happens, line by line, for the operator who watches."""


@contextmanager
def visiting(
    what: str, loaded: Loaded, parts: assemble.PlantParts, patience_s: float, say: Say
) -> Iterator["Visit"]:
    """A visit to a plant that no runtime drives; whatever its end is, the plant has itself back.

    Args:
        what: the visit is for, in words.
        loaded: the configuration, passed by the pre-flight.
        parts: the plant.
        patience_s: wall seconds to wait for the link and for the plant's grant.
        say: see `Say`.

    Raises:
        ConfigError: the plant is not behind OPC UA.
        JournalError: a runtime drives this plant; it must be stopped first.
    """
    section = loaded.config.link
    if not isinstance(section, OpcUaLink):
        raise ConfigError(f"link.kind is sim: a {what} is for a plant behind OPC UA")
    with ExitStack() as opened:
        lock = take_lock(loaded.path(loaded.config.journal.directory))
        opened.callback(say, "the plant has its own control back")
        opened.callback(os.close, lock)
        visit = Visit(loaded, section, parts, patience_s, say)
        opened.callback(visit.close)
        yield visit


class Visit:
    """One plant, its link and the parts that a command goes through."""

    def __init__(
        self,
        loaded: Loaded,
        section: OpcUaLink,
        parts: assemble.PlantParts,
        patience_s: float,
        say: Say,
    ) -> None:
        """Make the parts; nothing is connected yet. See `visiting`."""
        config = loaded.config
        self.section = section
        """Of the configuration: where the plant is."""
        self.parts, self.say = parts, say
        self._patience_s = patience_s
        self.link = assemble.make_link(loaded, parts)
        self.safety = assemble.make_safety(config, parts)
        self.sent = Sent(np.full(len(parts.outputs), np.nan), 0, 0.0, written=False)
        self.image = -1
        """Number of the newest image that was looked at."""
        self._clock = assemble.make_clock(config, self.link)
        self._handshake = assemble.make_handshake(config, parts)
        self._judge = Freshness(parts.plant.observations, FreshnessSettings(max_repeats=1))

    def close(self) -> None:
        """Hand the plant back. Idempotent."""
        self.link.close()

    def look(self) -> list[str]:
        """What is wrong with a first image: a measurement not there, or out of its range.

        Nothing is moved for it.

        Raises:
            LinkError: the link does not come up in time.
        """
        until_s = time.monotonic() + self._patience_s
        while (seen := self.next()).link is not LinkState.UP:
            if time.monotonic() > until_s:
                why = "; ".join(fault.text for fault in seen.faults) or str(seen.link)
                raise LinkError(f"the link did not come up: {why}")
        found = (*seen.faults, *self._judge.check(seen))
        return [
            f"{fault.code}: {describe(fault, EFFECTS[fault.code, Situation.WATCHING].alarm)}: "
            "nothing was moved; correct the tag, its unit or its sign first"
            for fault in found
            if fault.signal in self.parts.plant.observations.names
            and fault.code not in PLAIN_FAULTS
        ]

    def ask(self) -> None:
        """Ask for control with the heartbeat alone, until the plant grants it.

        Raises:
            LinkError: it does not in time.
        """
        self.say("asking the plant for control")
        until_s = time.monotonic() + self._patience_s
        while True:
            seen = self.next()
            faults = self._handshake.permit(seen, True, seen.time_s)
            if not self._handshake.obstacle:
                self.say("granted")
                return
            if time.monotonic() > until_s:
                why = "; ".join(fault.text for fault in faults) or "it does not grant control"
                raise LinkError(f"the plant was asked for control: {why}")
            self.link.write(seen.applied, Source.HANDS_OFF)
            self._handshake.told(None, seen.time_s)

    def command(
        self, seen: Observation, wanted: Vector, source: Source = Source.FALLBACK
    ) -> Vector:
        """Certify and write one command; what was sent.

        Raises:
            LinkError: the plant has taken itself back, or nothing was written.
        """
        faults = self._handshake.permit(seen, True, seen.time_s)
        self._handshake.settle(source, seen.time_s)
        certified = self.safety.certify(
            seen, self._handshake.follow(wanted, seen.applied), self.sent
        )
        certified = self._handshake.keep(certified, seen.applied)
        if not self._handshake.may_write:
            told = [*(f.text for f in faults), *(f.text for f in certified.faults)]
            raise LinkError(f"stopped: control was lost: {'; '.join(told) or 'taken back'}")
        self.sent = self.link.write(certified.action, source)
        if not self.sent.written:
            why = "; ".join(fault.text for fault in self.sent.faults)
            raise LinkError(f"stopped: a command was not written: {why}")
        self._handshake.told(self.sent.action, seen.time_s)
        return self.sent.action

    def certified(self, seen: Observation, wanted: Vector) -> Vector:
        """(n_u,) what the safety filter would make of `wanted` now; nothing is written."""
        return self.safety.certify(seen, wanted, self.sent).action

    def next(self) -> Observation:
        """The image of the next period."""
        beat = self._clock.wait(self.image)
        seen = self.link.read(beat.now_s)
        self.image = seen.sequence
        return seen
