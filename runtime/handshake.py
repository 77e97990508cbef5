"""The handshake: we ask, the plant grants, we prepare, we control; the plant takes back at will.

    off ─ asked ─► requested ─ granted ─► preparing ─ somebody drives ─► on / partial
     ▲                 ▲                      │                               │
     └── not asked ────┴───── fallback ◄──────┴────────── any obstacle ◄──────┘

The shape is that of NAMUR NE 194. The plant grants control as a whole and output by output: an
output that it has taken out is followed and not written. What it says it applies is checked by
limit, gradient and freeze time. Every way out ends in the plant's own control, and every start,
also after a restart, begins in `off`. Preparing is the time in which the mode machine counts clean
ticks, heuristics track and the transfer starts from what the plant applies: no bump.

Tables decide; several obstacles at once count as the most restrictive. Time comes in as plant
seconds. `permit` belongs before the mode machine, `settle` after it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from math import inf, isfinite, isnan
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from steadyhand.controllers.errors import ConfigError
from steadyhand.controllers.frames import Certified, Fault, LinkState, Observation, Source
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.signals import SignalSet, Vector
from steadyhand.runtime.events import EFFECTS, Event, Situation

Mask = NDArray[np.bool_]


class Control(StrEnum):
    """Where the handshake stands."""

    OFF = "off"
    """We do not ask."""
    REQUESTED = "requested"
    """We ask; something is still in the way."""
    PREPARING = "preparing"
    """Nothing is in the way; outputs are followed, and nobody of ours drives yet."""
    ON = "on"
    """We write every output."""
    PARTIAL = "partial"
    """We write some outputs; the plant keeps the others."""
    FALLBACK = "fallback"
    """We had control and lost it: the plant's own control drives until all is well again."""


IN_CONTROL = frozenset({Control.ON, Control.PARTIAL})


class Participation(StrEnum):
    """Whom one output follows now. New words go to the end: SCADA shows their numbers."""

    NONE = "none"
    """Nobody of ours: hands off, or a mode that only watches."""
    POLICY = "policy"
    FALLBACK = "fallback"
    HOLD = "hold"
    SAFE = "safe"
    OVERRIDE = "override"
    """A person holds it."""
    PLANT = "plant"
    """The plant keeps this one output to itself, whoever drives the others."""


class Obstacle(IntEnum):
    """What is in the way of control, from least to most restrictive."""

    NONE = 0
    INVALID = 1
    """What the plant says it applies cannot be right."""
    NONE_IN = 2
    """The plant has taken every output out."""
    NOT_GRANTED = 3
    SHED = 4
    """Our heartbeat was away for longer than the shed time: the plant has taken itself back."""
    NO_LINK = 5
    NOT_ASKED = 6


class Driving(IntEnum):
    """What the mode machine does with the permission."""

    NOTHING = 0
    SOME = 1
    ALL = 2


EXITS: Mapping[Obstacle, str] = MappingProxyType(
    {
        Obstacle.NONE: "hands off for a reason of ours: the heartbeat goes on, the plant drives",
        Obstacle.INVALID: "the plant's read-back is not valid: hands off, the plant drives",
        Obstacle.NONE_IN: "the plant took every output out: hands off, the plant drives",
        Obstacle.NOT_GRANTED: "the plant took control back: hands off, the plant drives",
        Obstacle.SHED: "the plant shed us, our heartbeat was away too long: hands off",
        Obstacle.NO_LINK: "the link is gone: the plant drives after its shed time",
        Obstacle.NOT_ASKED: "request withdrawn, the heartbeat stops: the plant drives",
    }
)
"""What every way out of control ends in."""


def _permit(state: Control, obstacle: Obstacle) -> Control:
    """Next state before anybody drives; only used to fill the table."""
    if obstacle is Obstacle.NOT_ASKED:
        return Control.OFF
    if obstacle is Obstacle.NONE:
        return state if state in IN_CONTROL else Control.PREPARING
    return Control.FALLBACK if state in IN_CONTROL | {Control.FALLBACK} else Control.REQUESTED


PERMIT: Mapping[tuple[Control, Obstacle], Control] = MappingProxyType(
    {(state, obstacle): _permit(state, obstacle) for state in Control for obstacle in Obstacle}
)
SETTLE: Mapping[tuple[Control, Driving], Control] = MappingProxyType(
    {(state, driving): state for state in Control for driving in Driving}
    | {
        (state, driving): Control.PARTIAL if driving is Driving.SOME else Control.ON
        for state in (Control.PREPARING, *IN_CONTROL)
        for driving in (Driving.SOME, Driving.ALL)
    }
    | {(state, Driving.NOTHING): Control.FALLBACK for state in IN_CONTROL}
)
"""Whoever drives without a permission changes nothing: the state stays one that does not write."""


@dataclass(frozen=True, slots=True)
class HandshakeSettings:
    """How patient the handshake is, and what it takes for valid. Times are plant seconds."""

    shed_s: float = inf
    """The plant takes itself back when our heartbeat is away for longer than this."""
    freeze_s: float = inf
    """A read-back that keeps still for so long while it differs from what we sent is frozen."""
    tolerance: float = 0.01
    """Share of an output's range that counts as the same, and that may be missed."""
    rate_slack: float = 2.0
    """A read-back may move so many times faster than the output's rate limit."""

    def __post_init__(self) -> None:
        """Refuse numbers that void a rule.

        Raises:
            ConfigError: a time or share that is not positive.
        """
        for label in ("shed_s", "freeze_s", "tolerance", "rate_slack"):
            value = getattr(self, label)
            if isnan(value) or value <= 0.0:
                raise ConfigError(f"handshake: {label}={value}: must be > 0")


class Handshake:
    """One plant's handshake. Comes up in `off`, whatever was before."""

    def __init__(
        self,
        outputs: SignalSet,
        settings: HandshakeSettings | None = None,
        physical: SignalSet | None = None,
    ) -> None:
        """Start not controlling.

        Args:
            outputs: with the limits that hold for what we write.
            settings: patience and tolerances.
            physical: the same outputs with the limits of the actuators, for what is read back.
        """
        self.settings = settings or HandshakeSettings()
        self.state = Control.OFF
        self.obstacle = Obstacle.NOT_ASKED
        """The most restrictive one of the last tick."""
        self.out: Mask | None = None
        """(n_u,) outputs that the plant keeps; None when there are none."""
        self.unsafe = False
        """Would the filter have moved an output in this tick that the plant keeps?"""
        self.events: tuple[Event, ...] = ()
        """Changes of state in this tick."""
        span = outputs.high - outputs.low
        real = physical or outputs
        self._names = outputs.names
        self._columns = {name: i for i, name in enumerate(outputs.names)}
        self._tolerance = self.settings.tolerance * span
        self._low, self._high = real.low - self._tolerance, real.high + self._tolerance
        self._rate = self.settings.rate_slack * outputs.rate_per_s
        self._told_s = inf
        """When our heartbeat last went out; for ever ahead until the first one has."""
        self._applied: Vector | None = None
        """What the plant applied in the last tick, if we controlled it then."""
        self._applied_s = 0.0
        self._sent: Vector | None = None
        self._moved_s: Vector | None = None
        """(n_u,) when each read-back last moved or agreed with what we sent."""

    @property
    def in_control(self) -> bool:
        """Does anything of ours reach the outputs?"""
        return self.state in IN_CONTROL

    @property
    def may_write(self) -> bool:
        """May outputs be written now?"""
        return self.state in IN_CONTROL and not self.unsafe

    @property
    def taken_out(self) -> tuple[str, ...]:
        """Names of the outputs that the plant keeps."""
        return () if self.out is None else tuple(self._names[i] for i in np.flatnonzero(self.out))

    def participation(
        self, source: Source, overridden: Collection[str]
    ) -> dict[str, Participation]:
        """Whom each output follows.

        Args:
            source: who drives.
            overridden: names of the outputs that a person holds.
        """
        kept = self.taken_out
        driver = Participation.NONE
        if source is not Source.HANDS_OFF:
            driver = Participation(source.name.lower())

        def of(name: str) -> Participation:
            if name in kept:  # an override asks for something, and the plant does not do it
                return Participation.PLANT
            held = name in overridden and driver is not Participation.NONE
            return Participation.OVERRIDE if held else driver

        return {name: of(name) for name in self._names}

    def permit(self, observation: Observation, asked: bool, now_s: float) -> tuple[Fault, ...]:
        """May anybody of ours drive? The first step of a tick.

        Args:
            observation: the image; its OUTPUT_OUT faults name the outputs that the plant keeps.
            asked: is the mode one in which we want control?
            now_s: plant time.

        Returns:
            what is in the way, for the mode machine: each demands hands off.
        """
        self.events, self.unsafe = (), False
        self.out = self._taken_out(observation.faults)
        self.obstacle, faults = self._look(observation, asked, now_s)
        self._go(PERMIT[self.state, self.obstacle], now_s)
        return faults

    def settle(self, source: Source, now_s: float) -> None:
        """Take note of who drives; the second step of a tick."""
        driving = Driving.ALL if self.out is None else Driving.SOME
        if source is Source.HANDS_OFF:
            driving = Driving.NOTHING
        self._go(SETTLE[self.state, driving], now_s)

    def follow(self, wanted: Vector, applied: Vector) -> Vector:
        """`wanted` (n_u,) with every output that the plant keeps where the plant has it."""
        return wanted if self.out is None else np.where(self.out, applied, wanted)

    def keep(self, certified: Certified, applied: Vector) -> Certified:
        """The certified command, good for the outputs that are left to us alone.

        The filter certifies all outputs together. Where it would move one that the plant keeps,
        nothing is certified for the others: a fault says so, and nothing may be written.
        """
        if self.out is None:
            return certified
        moved = self.out & ~(np.abs(certified.action - applied) <= self._tolerance)
        action = np.where(self.out & np.isfinite(applied), applied, certified.action)
        if not moved.any():
            return replace(certified, action=action)
        self.unsafe = True
        i = int(np.argmax(moved))
        text = f"{self._names[i]}: the plant keeps it at {applied[i]:g}, the limits need it moved"
        wrong = Fault(
            ReasonCode.PARTIAL_UNSAFE,
            self._names[i],
            float(certified.action[i]),
            float(applied[i]),
            text,
        )
        return replace(certified, action=action, faults=(wrong, *certified.faults))

    def told(self, sent: Vector | None, now_s: float) -> None:
        """Our heartbeat went out; `sent` (n_u,) with it, None when it went alone."""
        self._told_s = now_s
        self._sent = sent

    def _taken_out(self, faults: Sequence[Fault]) -> Mask | None:
        if not faults:
            return None
        columns = [self._columns.get(f.signal, -1) for f in faults if f.code is _OUT]
        if not columns:
            return None
        out: Mask = np.zeros(len(self._names), dtype=np.bool_)
        for column in columns:
            # an output nobody knows: something is out, and nothing tells what
            out[column if column >= 0 else slice(None)] = True
        return out

    def _look(
        self, observation: Observation, asked: bool, now_s: float
    ) -> tuple[Obstacle, tuple[Fault, ...]]:
        """The most restrictive obstacle, and its faults."""
        invalid = self._invalid(observation.applied, now_s) if asked else ()
        if not asked:
            return Obstacle.NOT_ASKED, ()
        if observation.link is not LinkState.UP:
            self._told_s = inf  # the next session begins anew
            return Obstacle.NO_LINK, ()
        silent_s = now_s - self._told_s
        if silent_s > self.settings.shed_s:
            text = "our heartbeat was away longer than the plant's shed time: it took itself back"
            return Obstacle.SHED, (
                Fault(ReasonCode.NOT_GRANTED, "", silent_s, self.settings.shed_s, text),
            )
        if not observation.granted:
            return Obstacle.NOT_GRANTED, ()
        if self.out is not None and self.out.all():
            text = f"the plant keeps every output: {', '.join(self.taken_out)}"
            return Obstacle.NONE_IN, (Fault(ReasonCode.NOT_GRANTED, text=text),)
        return (Obstacle.INVALID, invalid) if invalid else (Obstacle.NONE, ())

    def _invalid(self, applied: Vector, now_s: float) -> tuple[Fault, ...]:
        """Limit, gradient and freeze of the read-backs of the outputs that are ours."""
        before, before_s = self._applied, self._applied_s
        self._applied, self._applied_s = (applied if self.in_control else None), now_s
        faults = []
        for i, value in enumerate(applied.tolist()):
            if self.out is not None and self.out[i]:
                continue
            if not isfinite(value):
                if not self.in_control:  # nothing to start from
                    faults.append(self._fault(i, value, 0.0, "cannot be read: nothing to start at"))
            elif not self._low[i] <= value <= self._high[i]:
                limit = self._low[i] if value < self._low[i] else self._high[i]
                faults.append(self._fault(i, value, limit, "is outside the actuator's limits"))
            elif before is not None and now_s > before_s:
                step = abs(value - float(before[i]))
                most = float(self._rate[i]) * (now_s - before_s)
                if step > most + float(self._tolerance[i]):
                    faults.append(self._fault(i, step, most, "jumped faster than it can move"))
        frozen = self._frozen(applied, before, now_s)
        return (*faults, *(self._freeze_fault(i, applied, now_s) for i in frozen))

    def _frozen(self, applied: Vector, before: Vector | None, now_s: float) -> list[int]:
        """Outputs whose read-back keeps still although we sent something else."""
        if self.settings.freeze_s == inf:
            return []
        if self._moved_s is None or before is None or self._sent is None or not self.in_control:
            self._moved_s = np.full(len(self._names), now_s)
            return []
        still = (applied == before) & (np.abs(applied - self._sent) > self._tolerance)
        if self.out is not None:
            still &= ~self.out
        self._moved_s = np.where(still, self._moved_s, now_s)
        return [int(i) for i in np.flatnonzero(now_s - self._moved_s > self.settings.freeze_s)]

    def _freeze_fault(self, i: int, applied: Vector, now_s: float) -> Fault:
        assert self._moved_s is not None  # noqa: S101  (made by `_frozen`)
        still_s = now_s - float(self._moved_s[i])
        what = f"keeps still at {applied[i]:g} for {still_s:g} s although it was sent elsewhere"
        return self._fault(i, still_s, self.settings.freeze_s, what)

    def _fault(self, i: int, value: float, limit: float, what: str) -> Fault:
        name = self._names[i]
        text = f"{name}: the plant's read-back {what}"
        return Fault(ReasonCode.FEEDBACK_INVALID, name, value, float(limit), text)

    def _go(self, state: Control, now_s: float) -> None:
        if state is self.state:
            return
        before, self.state = self.state, state
        left = before in IN_CONTROL and state not in IN_CONTROL
        if state is Control.OFF:
            self._told_s = inf
        if left:
            self._applied = self._sent = self._moved_s = None
        words = EXITS[self.obstacle] if left else _WORDS[state]
        if state is Control.PARTIAL:
            words = f"{words}: {', '.join(self.taken_out)}"
        code = ReasonCode.HANDBACK if left else _CODES.get(state, ReasonCode.NOT_GRANTED)
        severity = EFFECTS[code, Situation.DRIVING].severity
        text = f"handshake {before} -> {state}: {words}"
        self.events = (*self.events, Event(now_s, code, severity, text))


_OUT = ReasonCode.OUTPUT_OUT
_CODES = {
    Control.OFF: ReasonCode.MODE_REQUEST,
    Control.PREPARING: ReasonCode.RECOVERED,
    Control.ON: ReasonCode.RECOVERED,
    Control.PARTIAL: ReasonCode.OUTPUT_OUT,
}
_WORDS = {
    Control.OFF: "we do not ask any more",
    Control.REQUESTED: "we ask, the plant has not granted yet",
    Control.PREPARING: "granted: following what the plant applies",
    Control.ON: "we write every output",
    Control.PARTIAL: "the plant keeps some outputs, we write the others",
    Control.FALLBACK: "the plant's own control drives",
}
