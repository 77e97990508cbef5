"""Who is in control: the operator asks for a mode, the machine grants a source.

Pure state, no I/O, no clock: time comes in as plant seconds. Three rules carry everything:
the most restrictive demand wins; stepping down is immediate; stepping up needs `n_clean` ticks
and `t_clean_s` in which nothing demanded more than the new source.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf, isfinite, nan

from steadyhand.controllers.errors import ConfigError, RequestError
from steadyhand.controllers.frames import Fault, LinkState, Source, Verdict
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.signals import SignalSet, Vector
from steadyhand.runtime.events import EFFECTS, Effect, Event, Situation, Transition, describe
from steadyhand.runtime.overrides import Override, Overrides
from steadyhand.runtime.spans import span


class Mode(StrEnum):
    """What the operator asks for, from least to most authority of the policy."""

    OFF = "off"
    SHADOW = "shadow"
    """The policy proposes and is scored; nothing is written."""
    ADVISORY = "advisory"
    """The proposal is shown to the operator; nothing is written."""
    LIMITED = "limited"
    """The policy drives inside a narrower envelope."""
    FULL = "full"


DRIVING_MODES = frozenset({Mode.LIMITED, Mode.FULL})
"""Modes in which the policy is meant to drive."""


@dataclass(frozen=True, slots=True)
class ModeSettings:
    """Patience of the mode machine. Times are plant seconds."""

    n_clean: int = 3
    """Ticks without a higher demand before stepping up."""
    t_clean_s: float = 0.0
    """Plant time without a higher demand before stepping up."""
    hold_max_s: float = inf
    """Longest time the last value is held; then the safe set-point drives."""
    max_raises: int = 12
    """The policy gets control at most this often in `raise_window_s`; then a person is asked."""
    raise_window_s: float = 86400.0
    max_override_s: float = 86400.0

    def __post_init__(self) -> None:
        """Refuse numbers that void a rule.

        Raises:
            ConfigError: a count below 1, or a time that is negative or not a number.
        """
        for label in ("n_clean", "max_raises"):
            if getattr(self, label) < 1:
                raise ConfigError(f"modes: {label}={getattr(self, label)}: must be >= 1")
        for label in ("hold_max_s", "raise_window_s", "max_override_s"):
            if not getattr(self, label) > 0.0:
                raise ConfigError(f"modes: {label}={getattr(self, label)}: must be > 0")
        if not (isfinite(self.t_clean_s) and self.t_clean_s >= 0.0):
            raise ConfigError(f"modes: t_clean_s={self.t_clean_s}: must be finite and >= 0")


@dataclass(frozen=True, slots=True)
class Latch:
    """A fault that stays until a person acknowledges it."""

    fault: Fault
    effect: Effect
    since_s: float


class ModeMachine:
    """The mode machine. Comes up not controlling: mode off, hands off, whatever was asked before.

    `update` belongs to the tick; the requests are made by the loop thread between ticks.
    """

    def __init__(
        self, settings: ModeSettings, outputs: SignalSet, asked: Mode | None = None
    ) -> None:
        self.settings = settings
        self.mode = Mode.OFF
        """The mode in force."""
        self.asked = asked
        """What a person last asked for, perhaps before a restart; None: nobody ever did. Grants
        nothing."""
        self.source = Source.HANDS_OFF
        self.demand = Source.HANDS_OFF
        """Most restrictive demand of the last tick."""
        self.cause = Fault(ReasonCode.START)
        """First cause of that demand."""
        self.transition: Transition | None = None
        """The last tick's change of source."""
        self._moved = self.cause
        self.events: tuple[Event, ...] = ()
        """Everything worth a record since the tick before the last one."""
        self.latches: dict[ReasonCode, Latch] = {}
        self._acknowledged: set[ReasonCode] = set()
        """Latches that were cleared, and whose cause was not there since."""
        self._overrides = Overrides(outputs, settings.max_override_s)
        self._pending: list[Event] = []
        self._present: frozenset[ReasonCode] = frozenset()
        self._counts: dict[ReasonCode, int] = {}
        self._raises: deque[float] = deque()
        self._now_s = 0.0
        self._since_s = 0.0
        self._clean_ticks = 0
        self._clean_since_s = 0.0
        self._ceiling = Source.POLICY

    def is_there(self, code: ReasonCode) -> bool:
        """Is its cause there, or only its latch? A tick names the latch, too, as why nobody better
        drives, and does so after its acknowledgement until somebody better does.
        """
        known = code in self.latches or code in self._acknowledged
        return not known or code in self._present

    @property
    def situation(self) -> Situation:
        """Which column of the table of effects holds now."""
        if self.mode not in DRIVING_MODES:
            return Situation.WATCHING
        return Situation.LAST_RESORT if self.source is Source.SAFE else Situation.DRIVING

    @property
    def clean_ticks(self) -> int:
        """Ticks in a row that demanded less than what drives; after `n_clean` it steps up."""
        return self._clean_ticks

    @property
    def override(self) -> Vector | None:
        """(n_u,) values that win over whatever drives, NaN where none; None if there are none."""
        return self._overrides.vector

    @property
    def overrides(self) -> tuple[Override, ...]:
        """The overrides in force."""
        return tuple(self._overrides)

    @property
    def ending(self) -> tuple[Override, ...]:
        """The overrides that end soon."""
        return self._overrides.ending(self._now_s)

    def why(self, unchanged: bool) -> tuple[Fault, ...]:
        """Why this tick is not simply the policy driving; empty when it is.

        Args:
            unchanged: is what goes into the filter the policy's own wish, as it came?

        Returns:
            what demands the present source now, or what it was taken for while better ticks are
            still counted, or what the ramp of a take-over comes from; and the overrides.
        """
        policy = self.source is Source.POLICY
        if policy and unchanged:
            return ()
        cause = self.cause if self.demand is self.source and not policy else self._moved
        if policy and self.mode is Mode.LIMITED:
            cause = _ON_A_LEASH
        return (
            cause,
            *(
                Fault(ReasonCode.OVERRIDE, item.output, item.value, text=item.reason)
                for item in self._overrides
            ),
        )

    def update(
        self,
        verdict: Verdict,
        faults: Sequence[Fault],
        now_s: float,
        granted: bool,
        link: LinkState,
    ) -> Source:
        """Who drives this tick.

        Args:
            verdict: of the gate on this tick's proposal.
            faults: of the link, the loop, and the last tick's filter and write.
            now_s: plant time, never running backwards.
            granted: does the plant grant control?
            link: state of the connection.
        """
        self._now_s = now_s
        self.transition = None
        for ended in self._overrides.expire(now_s):
            text = f"override of {ended.output} ({ended.reason}) ended"
            self._note(ReasonCode.OVERRIDE_EXPIRED, text, ended.owner, ended.output, ended.value)
        self.demand, self.cause = self._worst(verdict, faults, granted, link)
        if self.demand >= self.source:
            self._restart_window()
            if self.demand > self.source:
                self._move(self.demand, self.cause)
        else:
            self._count_clean()
        self.events = tuple(self._pending)
        self._pending.clear()
        return self.source

    def request(self, mode: Mode, actor: str, reason: str = "", wish: bool = True) -> None:
        """Ask for `mode`. Less authority holds from the next tick; more has to be earned.

        Args:
            mode: what is asked for.
            actor: who asks.
            reason: why.
            wish: False: it was not a person who asked, and what people asked for stays known.
        """
        self.mode = mode
        if wish:
            self.asked = mode
        self._note(
            ReasonCode.MODE_REQUEST, f"mode {mode} asked for: {reason or 'no reason'}", actor
        )

    def acknowledge(self, actor: str, code: ReasonCode | None = None) -> tuple[ReasonCode, ...]:
        """Clear the latch of `code`, or all of them; returns what was cleared.

        Raises:
            RequestError: ACK_DENIED while a cause is still there, or when nothing is latched.
                Nothing has changed then.
        """
        wanted = tuple(self.latches) if code is None else (code,)
        if not wanted or any(item not in self.latches for item in wanted):
            names = ", ".join(self.latches) or "nothing"
            raise RequestError(ReasonCode.ACK_DENIED, f"not latched; latched now: {names}")
        still = [item for item in wanted if item in self._present - _GONE_WHEN_ACKNOWLEDGED]
        if still:
            text = f"still present: {', '.join(still)}; remove the cause first"
            self._note(ReasonCode.ACK_DENIED, text, actor)
            raise RequestError(ReasonCode.ACK_DENIED, text)
        for item in wanted:
            del self.latches[item]
            self._acknowledged.add(item)
            self._counts.pop(item, None)
        self._note(ReasonCode.ACK, f"acknowledged: {', '.join(wanted)}", actor)
        return wanted

    def set_override(
        self, output: str, value: float, owner: str, reason: str, for_s: float
    ) -> Override:
        """Put one output at `value` for `for_s` plant seconds.

        Raises:
            RequestError: see `Overrides.set`.
        """
        made = self._overrides.set(output, value, owner, reason, self._now_s, for_s)
        text = f"override of {output} for {span(for_s)}: {reason}"
        self._note(ReasonCode.OVERRIDE, text, owner, output, made.value)
        return made

    def restore_override(
        self, output: str, value: float, owner: str, reason: str, for_s: float
    ) -> None:
        """Put an output back where a person had put it before a restart, for the rest of its time.

        Raises:
            RequestError: see `Overrides.set`; the configuration may be another one now.
        """
        made = self._overrides.set(output, value, owner, reason, self._now_s, for_s)
        text = f"override of {output} holds on after the restart, for {span(for_s)}: {reason}"
        self._note(ReasonCode.OVERRIDE, text, owner, output, made.value)

    def restore_latch(
        self, code: ReasonCode, signal: str, value: float | None, limit: float | None, text: str
    ) -> None:
        """What waited for a person before a restart waits on, with the most that it may hold back.

        The situation it came in is not known any more: some codes wait only where the safe
        set-point itself may not have arrived.
        """
        number, bound = (nan if given is None else given for given in (value, limit))
        fault = Fault(code, signal, number, bound, text)
        effects = [EFFECTS[code, situation] for situation in Situation]
        latching = [effect for effect in effects if effect.latch_after > 0]
        self._latch(fault, max(latching or effects, key=lambda effect: effect.demand))

    def clear_override(self, output: str, actor: str) -> None:
        """Give one output back.

        Raises:
            RequestError: it is not overridden.
        """
        ended = self._overrides.clear(output)
        text = f"override of {output} by {ended.owner} cleared"
        self._note(ReasonCode.HANDBACK, text, actor, output, ended.value)

    def _worst(
        self, verdict: Verdict, faults: Sequence[Fault], granted: bool, link: LinkState
    ) -> tuple[Source, Fault]:
        """Most restrictive demand and its first cause."""
        situation = self.situation
        present = (*faults, *verdict.faults) if verdict.faults else faults
        self._remember(present, situation)
        worst, cause = Source.POLICY, _ALL_WELL
        for fault in present:
            demand = EFFECTS[fault.code, situation].demand
            if demand > worst:
                worst, cause = demand, fault
        for latch in self.latches.values():
            if latch.effect.demand > worst:
                worst, cause = latch.effect.demand, latch.fault
        if not verdict.trusted and worst < Source.FALLBACK:
            worst, cause = Source.FALLBACK, Fault(ReasonCode.GATE_PROBATION, text=verdict.state)
        worst, cause = self._bound_hold(worst, cause)
        if worst < Source.HANDS_OFF:
            if link is not LinkState.UP:
                return Source.HANDS_OFF, Fault(ReasonCode.LINK_DOWN, text=link)
            if not granted:
                return Source.HANDS_OFF, Fault(ReasonCode.NOT_GRANTED)
            if situation is Situation.WATCHING:
                return Source.HANDS_OFF, Fault(ReasonCode.MODE_REQUEST, text=self.mode)
        return worst, cause

    def _remember(self, present: Sequence[Fault], situation: Situation) -> None:
        """Count the ticks with each code, and latch those whose patience is over."""
        if not present:
            self._present = _NOTHING
            return
        self._present = frozenset(fault.code for fault in present)
        self._acknowledged -= self._present
        for code in self._present:
            self._counts[code] = self._counts.get(code, 0) + 1
        for fault in present:
            effect = EFFECTS[fault.code, situation]
            if 0 < effect.latch_after <= self._counts[fault.code]:
                self._latch(fault, effect)

    def _bound_hold(self, worst: Source, cause: Fault) -> tuple[Source, Fault]:
        """Holding ends after `hold_max_s`, and never begins from the safe set-point or hands off:
        it means the last good value, and there is none any more.
        """
        if self.source > Source.HOLD:
            return (Source.SAFE, cause) if worst is Source.HOLD else (worst, cause)
        held_s, limit_s = self._now_s - self._since_s, self.settings.hold_max_s
        if self.source is Source.HOLD and worst <= Source.HOLD and held_s >= limit_s:
            return Source.SAFE, Fault(ReasonCode.HOLD_EXPIRED, "", held_s, limit_s, cause.code)
        return worst, cause

    def _count_clean(self) -> None:
        """One more tick that demanded less than what drives; step up when there were enough."""
        if self._clean_ticks == 0:
            self._clean_since_s = self._now_s
        self._clean_ticks += 1
        self._ceiling = max(self._ceiling, self.demand)
        if (
            self._clean_ticks < self.settings.n_clean
            or self._now_s - self._clean_since_s < self.settings.t_clean_s
        ):
            return
        target = self._ceiling
        if target is Source.POLICY and self._raised_too_often():
            text = (
                f"policy got control {len(self._raises)} times in {self.settings.raise_window_s} s"
            )
            fault = Fault(ReasonCode.MODE_FLAP, text=text)
            self._latch(fault, EFFECTS[ReasonCode.MODE_FLAP, Situation.DRIVING])
            target = Source.FALLBACK
        if target < self.source:
            handed = self.source is Source.HANDS_OFF
            code = ReasonCode.HANDBACK if handed else ReasonCode.RECOVERED
            self._move(target, Fault(code, text=f"after {self._clean_ticks} clean ticks"))
        self._counts.clear()
        self._restart_window()

    def _raised_too_often(self) -> bool:
        while self._raises and self._now_s - self._raises[0] > self.settings.raise_window_s:
            self._raises.popleft()
        return len(self._raises) >= self.settings.max_raises

    def _move(self, target: Source, cause: Fault) -> None:
        effect = EFFECTS[cause.code, self.situation]
        text = f"{self.source.name} -> {target.name}: {describe(cause, effect.alarm)}"
        self.transition = Transition(
            self._now_s, self.source, target, self.mode, cause, effect.severity, text, effect.action
        )
        if target is Source.POLICY:
            self._raises.append(self._now_s)
        self.source, self._since_s, self._moved = target, self._now_s, cause
        self._pending.append(
            Event(
                self._now_s,
                cause.code,
                effect.severity,
                text,
                "",
                cause.signal,
                cause.value,
                cause.limit,
            )
        )

    def _latch(self, fault: Fault, effect: Effect) -> None:
        if fault.code in self.latches:
            return
        self.latches[fault.code] = Latch(fault, effect, self._now_s)
        text = f"latched until acknowledged: {describe(fault, effect.alarm)}"
        self._pending.append(
            Event(
                self._now_s,
                fault.code,
                effect.severity,
                text,
                "",
                fault.signal,
                fault.value,
                fault.limit,
            )
        )

    def _note(
        self, code: ReasonCode, text: str, actor: str, signal: str = "", value: float = float("nan")
    ) -> None:
        severity = EFFECTS[code, self.situation].severity
        self._pending.append(Event(self._now_s, code, severity, text, actor, signal, value))

    def _restart_window(self) -> None:
        self._clean_ticks = 0
        self._ceiling = Source.POLICY


_ALL_WELL = Fault(ReasonCode.OK)
_GONE_WHEN_ACKNOWLEDGED = frozenset({ReasonCode.CRASH_LOOP})
"""Codes whose cause ends with the acknowledgement itself: the policy's process is tried again."""
_ON_A_LEASH = Fault(ReasonCode.MODE_REQUEST, text="limited: within reach of the heuristic")
_NOTHING: frozenset[ReasonCode] = frozenset()
