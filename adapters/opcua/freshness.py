"""How old is a sample? From all the evidence there is: source stamp, server stamp, arrival, and
whether the plant is known to be alive.

A steady signal that is reported by exception keeps an old source stamp and is yet fresh, as long
as the subscription lives and the server's clock runs. A stamp that is missing, in the future or
from before 1971 makes nothing fresh. All stamps are judged by the server's own clock, so that its
offset from ours does not matter.
"""

from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from steadyhand.adapters.opcua.tags import Freshness, Tag
from steadyhand.adapters.opcua.wire import EPOCH_1601_S, FIRST_SOUND_TICK, TICKS_PER_S, Samples
from steadyhand.controllers.signals import Vector

TICKS_PER_US = 10
"""Stamps are told apart to the microsecond, which is all the general decoder keeps."""


@dataclass(frozen=True, slots=True)
class ServerClock:
    """The server's clock, tied to our monotonic one by one reply."""

    ticks: int
    """What the server's clock said ..."""
    at_s: float
    """... half-way between our request and its reply."""

    def ticks_at(self, now_s: float) -> int:
        """What it says at our monotonic time `now_s`."""
        return self.ticks + round((now_s - self.at_s) * TICKS_PER_S)

    def offset_s(self, wall_s: float, now_s: float) -> float:
        """How far it is ahead of our wall clock, which says `wall_s` at monotonic `now_s`."""
        if self.ticks == 0:
            return 0.0
        return self.ticks_at(now_s) / TICKS_PER_S - EPOCH_1601_S - wall_s

    def monotonic(self, ticks: NDArray[np.int64]) -> Vector:
        """(n,) our monotonic time of stamps."""
        seconds: Vector = self.at_s + (ticks - self.ticks) / TICKS_PER_S
        return seconds


class FreshnessJudge:
    """Keeps, per tag, when it was last known to be right. One thread only."""

    def __init__(self, tags: tuple[Tag, ...], future_tolerance_s: float) -> None:
        n = len(tags)
        rules = [tag.freshness for tag in tags]
        self._auto = np.array([rule is Freshness.AUTO for rule in rules], dtype=np.bool_)
        self._source = np.array([rule is Freshness.SOURCE for rule in rules], dtype=np.bool_)
        self._arrival = np.array([rule is Freshness.ARRIVAL for rule in rules], dtype=np.bool_)
        self._tolerance = round(future_tolerance_s * TICKS_PER_S)
        self._seen = np.zeros(n, dtype=np.bool_)
        self._value = np.full(n, np.nan)
        self._stamp = np.zeros(n, dtype=np.int64)
        self.stamped_s = np.full(n, -inf)
        """(n,) newest sound stamp that counts under the tag's rule, monotonic seconds."""
        self.confirmed_by_life = np.zeros(n, dtype=np.bool_)
        """(n,) does a sign of life of the link confirm the sample as it stands?"""
        self.invalid = np.zeros(n, dtype=np.bool_)
        """(n,) a stamp is missing, in the future or from before 1971."""
        self.standing = np.zeros(n, dtype=np.bool_)
        """(n,) the value was seen to change while its source stamp stood still."""

    def absorb(
        self, columns: NDArray[np.intp], samples: Samples, clock: ServerClock, now_s: float
    ) -> None:
        """Take new samples of `columns` that arrived at `now_s` (monotonic)."""
        self._watch_standing(columns, samples)
        latest = clock.ticks_at(now_s) + self._tolerance
        source, server = samples.source, samples.server
        source_sound = (source >= FIRST_SOUND_TICK) & (source <= latest)
        server_sound = (server >= FIRST_SOUND_TICK) & (server <= latest)
        source_s = np.where(source_sound, clock.monotonic(source), -inf)
        server_s = np.where(server_sound, clock.monotonic(server), -inf)
        standing = self.standing[columns]
        auto, by_source = self._auto[columns], self._source[columns]
        arrival = self._arrival[columns]

        # auto: a stamp that is there must be sound, and one of the two must be there
        broken = ((source != 0) & ~source_sound) | ((server != 0) & ~server_sound)
        unsound_auto = broken | ~(source_sound | server_sound)
        unsound = np.where(auto, unsound_auto, np.where(by_source, ~source_sound, ~server_sound))
        unsound &= ~arrival

        newest = np.where(standing, source_s, np.maximum(source_s, server_s))
        stamped = np.where(auto, newest, np.where(by_source, source_s, server_s))
        stamped = np.where(arrival, now_s, np.where(unsound, -inf, np.minimum(stamped, now_s)))
        self.invalid[columns] = unsound
        self.stamped_s[columns] = stamped
        self.confirmed_by_life[columns] = ~unsound & ~by_source & ~(auto & standing)

    def _watch_standing(self, columns: NDArray[np.intp], samples: Samples) -> None:
        """Note where a value changes without its source stamp; forget it when the stamp moves."""
        before, stamp = self._value[columns], self._stamp[columns]
        known = self._seen[columns] & ~np.isnan(samples.values) & ~np.isnan(before)
        moved = np.abs(samples.source - stamp) >= TICKS_PER_US
        changed = known & (samples.values != before)
        stands = changed & ~moved & (samples.source != 0)
        self.standing[columns] = stands | (self.standing[columns] & ~moved)
        self._value[columns] = samples.values
        self._stamp[columns] = samples.source
        self._seen[columns] = True

    def confirmed_s(self, alive_s: float) -> Vector:
        """(n,) monotonic time at which each sample was last known to be right.

        Args:
            alive_s: when plant and link last showed life; confirms samples that stand unchanged.
        """
        return np.where(self.confirmed_by_life, np.maximum(self.stamped_s, alive_s), self.stamped_s)
