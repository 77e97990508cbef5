"""One row of the fault table: what is injected, what has to come of it, and what did."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from steadyhand.controllers.frames import Source


class Place(StrEnum):
    """On which bench a row is tried."""

    INSIDE = "in process"
    """The loop on the plant's equations, in lock-step: where a network would add nothing."""
    WIRE = "over OPC UA"
    """The whole runtime and the plant's server as processes, with a bad network between them."""


class Wire(StrEnum):
    """What may reach the plant while the fault is there."""

    GOES_ON = "certified commands, every tick"
    NOTHING = "nothing"
    ANY = "certified commands or nothing"


@dataclass(frozen=True, slots=True)
class Row:
    """One fault. The bench undoes whatever `do` did."""

    id: str
    """Number in the catalogue of faults, then what tells this row from others: B1.tank_level.nan"""
    injected: str
    do: Callable[[Any], None]
    """Injects it, given the bench."""
    codes: tuple[str, ...] = ()
    """One of these reasons must be recorded; none: nothing has to be told."""
    demand: Source = Source.POLICY
    """Nothing less restrictive may drive in a tick that tells it."""
    wire: Wire = Wire.GOES_ON
    latch: str = ""
    """Reason that stays until a person acknowledges it; with ? before it, it may, or one of several
    between |; empty: nothing may stay."""
    hold: int = 4
    """Ticks for which the fault stays after it was told."""
    each: bool = False
    """Must every tick of the fault tell it?"""
    place: Place = Place.INSIDE
    limits_hold: bool = True
    """False: the fault makes it impossible to keep the plant's own operating limits."""
    unrecorded: int = 0
    """So many writes may be without a record of the same value."""
    under_way: int = 0
    """So many commands the fault itself keeps on the wire, or waiting at the plant: they arrive as
    old as it lasted, and nobody can call them back."""
    losses: int = 0
    """How often the link is lost by it; a link that is lost too often in a minute counts as
    flapping, so the bench starts the runtime anew in time."""
    restarts: bool = False
    """Is the runtime started anew after it, so that counts of ends and losses begin anew?"""
    slow_back: bool = False
    """Does it take up to a minute until control comes back? Then the runtime is started anew
    instead of waiting."""
    may_heal: bool = False
    """May what broke be back within a period? Then an event alone tells it."""
    never: tuple[str, ...] = ()
    """None of these reasons may be recorded while the fault is there."""
    proof: Callable[[Any], str] | None = None
    """Asked, given the bench, before it is put right: why the fault did not really happen, or did
    not have its effect; empty: it did. For faults about which nothing may have to be told."""
    within_s: float = 8.0
    """Over a network: longest time until it is told."""

    @property
    def catalogue(self) -> str:
        """Number in the catalogue of faults."""
        return self.id.partition(".")[0]

    @property
    def may_latch(self) -> bool:
        """Is the latch only allowed, and not asked for?"""
        return self.latch.startswith("?")

    def unfounded(self, bench: Any, seen: Collection[str]) -> list[str]:  # noqa: ANN401
        """What was told that may not be, and why the fault did not happen, where it did not."""
        found = [f"{code} was told" for code in self.never if code in seen]
        why = self.proof(bench) if self.proof is not None else ""
        return [*found, why] if why else found

    @property
    def expected(self) -> str:
        """For people."""
        told = " or ".join(self.codes) if self.codes else "nothing to tell"
        drives = f"{self.demand.name.lower()} at most" if self.demand else "whoever drove"
        return f"{told}; drives: {drives}; to the plant: {self.wire}" + (
            f"; {self.latch} waits for a person"
            if self.latch and not self.may_latch
            else "; clears by itself"
        )


@dataclass(slots=True)
class Result:
    """What came of one row."""

    row: Row
    findings: list[str] = field(default_factory=list)
    """Everything that was not as it has to be; empty: passed."""
    seen: tuple[str, ...] = ()
    """Reasons recorded while the fault was there."""
    worst: Source = Source.POLICY
    """Most restrictive driver meanwhile."""
    reaction_ticks: int | None = None
    """Ticks from the injection to the first that tells it and lets nobody drive who may not."""
    reaction_s: float | None = None
    """The same in real time; None in lock-step."""
    back_s: float | None = None
    """Real time from the end of the fault to control regained."""
    writes: int = 0
    """Commands that arrived at the plant, from the injection to the end of the row."""

    @property
    def passed(self) -> bool:
        """Was everything as it has to be?"""
        return not self.findings
