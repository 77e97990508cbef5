"""The plant's side of control: it grants, both hearts beat, and silence gives control back.

A pure state machine in the shape of NAMUR NE 194 and FOUNDATION remote cascade: we ask, the plant
grants; each side counts a heartbeat; a heartbeat that stands still for the shed time means that the
other side is gone, and then the plant's own mode holds.
"""

from dataclasses import dataclass
from enum import StrEnum
from math import isfinite

from steadyhand.controllers.errors import ConfigError

_WRAP = 2**32


class Phase(StrEnum):
    """Where the handshake stands."""

    OFF = "off"
    """Control is not wanted."""
    ASKING = "asking"
    """Control is wanted; the plant has not granted it."""
    ON = "on"
    """The plant grants control and is alive."""
    SHED = "shed"
    """The plant's heartbeat stood still: its own mode holds."""


@dataclass(frozen=True, slots=True)
class HandshakeSettings:
    """Times are plant seconds."""

    shed_s: float
    """A heartbeat that stands still longer means that the other side is gone."""
    beats_to_return: int = 3
    """Heartbeats seen moving before a shed ends: one edge alone proves nothing."""

    def __post_init__(self) -> None:
        """Refuse a handshake that never sheds or never returns.

        Raises:
            ConfigError: a number that is not finite or not positive.
        """
        if not (isfinite(self.shed_s) and self.shed_s > 0.0):
            raise ConfigError(f"handshake: shed_s={self.shed_s}: must be finite and > 0")
        if self.beats_to_return < 1:
            raise ConfigError(f"handshake: beats_to_return={self.beats_to_return}: must be >= 1")


class Handshake:
    """May we drive, as far as the plant is concerned?"""

    def __init__(self, settings: HandshakeSettings) -> None:
        self.phase = Phase.OFF
        self.beat = 0
        """Our heartbeat: the number to write with the next command."""
        self._settings = settings
        self._plant_beat: int | None = None
        self._moved_s: float | None = None
        self._moves = 0

    @property
    def granted(self) -> bool:
        """True only while the plant grants control and is alive."""
        return self.phase is Phase.ON

    def update(self, wanted: bool, granted: bool, plant_beat: int | None, now_s: float) -> Phase:
        """One tick.

        Args:
            wanted: do we want control?
            granted: the plant's word.
            plant_beat: the plant's heartbeat counter; None where the plant has none.
            now_s: plant time.
        """
        alive = plant_beat is None or self._alive(plant_beat, now_s)
        if not wanted:
            self.phase = Phase.OFF
        elif not alive:
            self.phase = Phase.SHED
        else:
            self.phase = Phase.ON if granted else Phase.ASKING
        return self.phase

    def written(self) -> None:
        """A command went out: the next one carries the next beat."""
        self.beat = (self.beat + 1) % _WRAP

    def _alive(self, beat: int, now_s: float) -> bool:
        if beat != self._plant_beat:
            first = self._plant_beat is None
            self._plant_beat = beat
            self._moved_s = now_s
            self._moves += not first
        elif self._moved_s is not None and now_s - self._moved_s > self._settings.shed_s:
            self._moves = 0
        return self._moves >= self._settings.beats_to_return
