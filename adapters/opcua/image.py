"""The process image: what the adapter thread knows, and the frozen copy the loop reads."""

from collections import deque
from dataclasses import dataclass
from math import inf, nan
from threading import Condition

import numpy as np
from numpy.typing import NDArray

from steadyhand.adapters.opcua.freshness import FreshnessJudge, ServerClock
from steadyhand.adapters.opcua.tags import TagMap
from steadyhand.adapters.opcua.wire import (
    BAD_STATUS,
    Samples,
    is_forced,
    severity,
    status_name,
)
from steadyhand.controllers.frames import Fault, LinkState, Observation, Quality
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.signals import Vector

MOST_EVENTS = 64
"""One-off events kept for the loop; older ones give way."""


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """Everything `read` needs; replaced as a whole, never changed."""

    sequence: int
    time_s: float
    values: Vector
    quality: NDArray[np.int8]
    confirmed_s: Vector
    """(n_y,) monotonic time at which each sample was last known to be right."""
    applied: Vector
    state: LinkState
    granted: bool
    faults: tuple[Fault, ...]
    session: int
    """Number of the session; 0 while there is none that may be written to."""
    out: NDArray[np.bool_] | None = None
    """(n_u,) outputs that the plant keeps to itself; None when there are none."""


class Board:
    """Where the adapter thread pins the newest snapshot; readers never wait for the network."""

    def __init__(self, n_y: int, n_u: int) -> None:
        self.snapshot = Snapshot(
            sequence=0,
            time_s=0.0,
            values=np.full(n_y, nan),
            quality=np.full(n_y, Quality.BAD, dtype=np.int8),
            confirmed_s=np.full(n_y, -inf),
            applied=np.full(n_u, nan),
            state=LinkState.DOWN,
            granted=False,
            faults=(),
            session=0,
        )
        self._events: deque[Fault] = deque(maxlen=MOST_EVENTS)
        self._changed = Condition()

    def pin(self, snapshot: Snapshot) -> None:
        """Replace the snapshot; wakes whoever waits for a newer image."""
        newer = snapshot.sequence != self.snapshot.sequence
        self.snapshot = snapshot
        if newer:
            with self._changed:
                self._changed.notify_all()

    def tell(self, fault: Fault) -> None:
        """Leave a one-off event for the loop's next read."""
        self._events.append(fault)

    def events(self) -> tuple[Fault, ...]:
        """Take the one-off events (loop thread only)."""
        taken = []
        while self._events:
            taken.append(self._events.popleft())
        return tuple(taken)

    def wait(self, after_sequence: int, timeout_s: float) -> bool:
        """Block until the image is newer than `after_sequence`; False on time-out."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self.snapshot.sequence > after_sequence, timeout_s
            )

    def observation(self, now_s: float, time_scale: float) -> Observation:
        """The snapshot as the loop wants it, aged to `now_s` (monotonic)."""
        shot = self.snapshot
        up = shot.state is LinkState.UP
        quality = shot.quality if up else np.full(len(shot.values), Quality.BAD, dtype=np.int8)
        return Observation(
            sequence=shot.sequence,
            time_s=shot.time_s,
            values=shot.values,
            age_s=np.maximum(now_s - shot.confirmed_s, 0.0) * time_scale,
            quality=quality,
            applied=shot.applied,
            link=shot.state,
            granted=shot.granted and up,
            faults=shot.faults + self.events(),
        )


class Measurements:
    """The newest sample of every observation. Adapter thread only."""

    def __init__(self, tags: TagMap, future_tolerance_s: float) -> None:
        n_y = len(tags.observations)
        self._names = tags.observation_signals.names
        self._scale = np.array([tag.scale for tag in tags.observations])
        self._judge = FreshnessJudge(tags.observations, future_tolerance_s)
        self._status = np.full(n_y, BAD_STATUS, dtype=np.uint32)
        self._wrong = np.zeros(n_y, dtype=np.bool_)
        self._use_forced = np.array([tag.use_forced for tag in tags.observations], dtype=np.bool_)
        self._forced = np.zeros(n_y, dtype=np.bool_)
        self.values = np.full(n_y, nan)
        self.quality = np.full(n_y, Quality.BAD, dtype=np.int8)

    def absorb(
        self, columns: NDArray[np.intp], samples: Samples, clock: ServerClock, now_s: float
    ) -> None:
        """Take new samples of `columns`."""
        self._judge.absorb(columns, samples, clock, now_s)
        self.values[columns] = samples.values * self._scale[columns]
        self._status[columns] = samples.status
        self._wrong[columns] = samples.wrong
        forced = is_forced(samples.status) & ~samples.wrong
        self._forced[columns] = forced
        doubted = np.where(forced & ~self._use_forced[columns], Quality.UNCERTAIN, Quality.GOOD)
        graded = np.maximum(severity(samples.status), doubted)
        self.quality[columns] = np.where(samples.wrong, Quality.BAD, graded)

    def confirmed_s(self, alive_s: float) -> Vector:
        """(n_y,) when each was last known to be right."""
        return self._judge.confirmed_s(alive_s)

    def faults(self) -> tuple[Fault, ...]:
        """What is wrong with the samples, by tag."""
        judge, names = self._judge, self._names
        off = self.quality.astype(np.bool_) | self._forced
        if not (off.any() or judge.invalid.any() or judge.standing.any()):
            return ()
        found = [self._sample_fault(int(i)) for i in np.flatnonzero(off)]
        for i in np.flatnonzero(judge.invalid):
            text = f"{names[i]}: time stamp missing, in the future or from before 1971"
            found.append(Fault(ReasonCode.OBS_TS_INVALID, names[i], text=text))
        for i in np.flatnonzero(judge.standing & ~judge.invalid):
            text = (
                f"{names[i]}: value changes while its source stamp stands still; "
                "set freshness: server for this tag if its source keeps no time"
            )
            found.append(Fault(ReasonCode.OBS_TS_INVALID, names[i], text=text))
        return tuple(found)

    def _sample_fault(self, i: int) -> Fault:
        name, status = self._names[i], int(self._status[i])
        if self._wrong[i]:
            return Fault(
                ReasonCode.SAMPLE_TYPE, name, text=f"{name}: null, an array or of another type"
            )
        if self._forced[i]:
            used = bool(self._use_forced[i])
            code = ReasonCode.TAG_FORCED_USED if used else ReasonCode.TAG_FORCED
            return Fault(code, name, text=f"{name}: {status_name(status & 0xFFFF0000)}")
        code = (
            ReasonCode.SAMPLE_UNCERTAIN
            if self.quality[i] == Quality.UNCERTAIN
            else ReasonCode.SAMPLE_BAD
        )
        return Fault(code, name, text=f"{name}: {status_name(status)}")
