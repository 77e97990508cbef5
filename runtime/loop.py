"""The tick and nothing else.

    plant ─link─► observation ─► proposal ─► verdict ─► source ─► wanted ─► certified ─link─► plant
                      │             │           │          │                    │        │
                      └─────────────┴───────────┴──────────┴───── record ◄──────┴────────┘

Timing stands in `clock.py`, who drives in `modes.py`, wiring in `assemble.py`.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from steadyhand.adapters.link import Link
from steadyhand.controllers.frames import (
    Certified,
    Fault,
    FilterMode,
    LinkState,
    Observation,
    Proposal,
    ProposalStatus,
    Quality,
    Sent,
    Source,
    Verdict,
)
from steadyhand.controllers.heuristics.transfer import Transfer
from steadyhand.controllers.protocols import Heuristic, ImageJudge, Policy, SafetyFilter
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.safety.chain import bypassed
from steadyhand.controllers.signals import Vector
from steadyhand.controllers.trust.gate import Gate
from steadyhand.controllers.trust.same_answer import SameAnswer
from steadyhand.runtime.clock import Beat, Clock
from steadyhand.runtime.events import Situation
from steadyhand.runtime.garbage import Garbage
from steadyhand.runtime.handshake import Control, Handshake
from steadyhand.runtime.health import Health
from steadyhand.runtime.metrics import Metrics
from steadyhand.runtime.modes import Mode, ModeMachine
from steadyhand.runtime.recorder import Recorder
from steadyhand.runtime.signal_flag import Stop

STAGES = ("lateness", "read", "propose", "judge", "decide", "certify", "write")
"""What the timings of a tick are, seconds each."""
_LARGEST = 1e30
"""Policies calculate with 32-bit floats, which end at 3e38."""
_SHAPED = Fault(ReasonCode.FILTER_SHAPED, text="see the filter's report")


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything one loop drives; its parts are made by `assemble.py`."""

    link: Link
    image_judge: ImageJudge
    policy: Policy
    gate: Gate
    modes: ModeMachine
    heuristic: Heuristic
    transfer: Transfer
    safety: SafetyFilter
    safe_action: Vector
    """(n_u,) the plant's safe set-point."""
    leash: Vector
    """(n_u,) in mode limited, how far the policy may be from the heuristic."""
    recorder: Recorder
    metrics: Metrics
    health: Health
    beside: Callable[[], tuple[Fault, ...]] = tuple
    """What is wrong outside the loop and bears on who drives; asked in each tick, never waits."""


@dataclass(frozen=True, slots=True, eq=False)
class Tick:
    """One finished tick, for whoever watches the loop."""

    number: int
    now_s: float
    observation: Observation
    proposal: Proposal
    verdict: Verdict
    source: Source
    wanted: Vector
    certified: Certified | None
    sent: Sent
    faults: tuple[Fault, ...]
    timings: tuple[float, ...]
    control: Control = Control.OFF
    """Where the handshake with the plant stands."""


class Loop:
    """Observe, propose, trust?, make safe, actuate, record: once per beat of the clock."""

    def __init__(
        self,
        parts: Parts,
        clock: Clock,
        between_ticks: Callable[[], None] = lambda: None,
        monotonic: Callable[[], float] = time.monotonic,
        handshake: Handshake | None = None,
    ) -> None:
        """Come up not controlling.

        Args:
            parts: what the loop drives.
            clock: when to tick.
            between_ticks: runs after each tick, outside its deadline: operator's commands, swaps.
            monotonic: the clock of the timings, injectable for tests.
            handshake: with the plant; by default one that waits for its grant alone.
        """
        self.parts = parts
        self.handshake = handshake or Handshake(parts.link.outputs)
        self.last: Tick | None = None
        self._deadline_s = 0.0
        """Monotonic time by which the last tick's command had to be gone: the next tick's."""
        self._clock = clock
        self._between_ticks = between_ticks
        self._monotonic = monotonic
        n_u = len(parts.link.outputs)
        self._sent = Sent(np.full(n_u, np.nan), 0, 0.0, written=False)
        self._same_answer = SameAnswer(parts.link.observations, parts.link.outputs)
        self._filter_faults: tuple[Fault, ...] = ()
        self._failed: tuple[Fault, ...] = ()
        """The heuristic's failure in this tick."""
        self._asking = False
        """Has the plant been told that we drive, or want to?"""
        self._to_release = False
        """The plant has to be told that we want nothing any more."""
        self._image = -1
        self._driving = False
        """Did the last command go out?"""

    def tick(self, beat: Beat) -> Tick:
        """One tick. Whatever fails inside becomes a fault, a verdict or an outcome."""
        parts, stamp = self.parts, self._monotonic
        started = stamp()
        observation = self._qualify(parts.link.read(beat.now_s), beat)  # observe
        read = stamp()
        proposal = self._propose(observation)  # propose
        proposed = stamp()
        verdict = parts.gate.judge(observation, proposal)  # trust?
        judged = stamp()
        # what the last tick's filter and write found bears on who drives now; where it decides
        # that, it is named as the cause. The record of this tick holds this tick's own reasons
        asked = parts.modes.situation is not Situation.WATCHING
        own = (*observation.faults, *proposal.faults)
        own += self.handshake.permit(observation, asked, beat.now_s)  # may we?
        source = parts.modes.update(
            verdict,
            (*own, *self._filter_faults, *self._sent.faults),
            beat.now_s,
            observation.granted,
            observation.link,
        )  # who drives
        self.handshake.settle(source, beat.now_s)
        self._failed = ()
        wanted = self._wanted(source, observation, proposal, beat.now_s)
        decided = stamp()
        certified = parts.safety.certify(observation, wanted, self._sent)  # make safe
        certified = self.handshake.keep(certified, observation.applied)
        made_safe = stamp()
        self._sent = self._actuate(source, observation, certified, beat)  # actuate
        steady = self._driving and self._sent.written and not self._sent.faults
        self._driving = self._sent.written
        if not steady:  # until the next image it is not, or not only, our command that moves it
            parts.image_judge.lose_sight()
        parts.heuristic.track(observation, self._sent)
        done = stamp()
        parts.gate.filtered(certified.report)
        self._filter_faults = certified.faults if source < Source.HANDS_OFF else ()
        self._filter_faults += self._failed
        self._image = observation.sequence
        faults = (*own, *self._failed, *self._why(certified, wanted, proposal))
        timings = (
            beat.lateness_s,
            read - started,
            proposed - read,
            judged - proposed,
            decided - judged,
            made_safe - decided,
            done - made_safe,
        )
        number = parts.recorder.tick(
            observation,
            proposal,
            verdict,
            source,
            parts.modes.mode,
            wanted,
            certified,
            self._sent,
            faults,
            timings,
            beat.now_s,
        )  # record
        return Tick(
            number,
            beat.now_s,
            observation,
            proposal,
            verdict,
            source,
            wanted,
            certified,
            self._sent,
            faults,
            timings,
            self.handshake.state,
        )

    def step(self) -> Tick:
        """Wait for one beat, tick, and do everything that is due between two ticks."""
        beat = self._clock.wait(self._image)
        self.last = self.tick(beat)
        self._tell(self.last, beat)
        self._withdraw()
        self._between_ticks()
        self._deadline_s = beat.deadline_s
        return self.last

    def run(self, stop: Stop, max_ticks: int | None = None) -> None:
        """Tick until `stop` is set, then hand the plant back."""
        count = 0
        try:
            with Garbage() as garbage:
                while not stop.is_set() and (max_ticks is None or count < max_ticks):
                    self.step()
                    garbage.collect(self._deadline_s)
                    count += 1
        finally:
            self.parts.link.release()

    def _qualify(self, observation: Observation, beat: Beat) -> Observation:
        """The image with everything that is wrong with it, so that nobody uses a bad sample."""
        found = self.parts.image_judge.check(observation) + self.parts.beside()
        if beat.skipped:
            code = ReasonCode.TICK_GAP if beat.skipped > 1 else ReasonCode.TICK_OVERRUN
            found = (*found, Fault(code, "", float(beat.skipped), 0.0, "periods skipped"))
        if not found:
            return observation
        quality = observation.quality.copy()
        for fault in found:
            if fault.signal:
                quality[self.parts.link.observations.index(fault.signal)] = Quality.BAD
        return replace(observation, quality=quality, faults=(*observation.faults, *found))

    def _propose(self, observation: Observation) -> Proposal:
        """Ask the policy, unless nobody wants to know or there is nothing to look at."""
        off = self.parts.modes.mode is Mode.OFF or observation.link is not LinkState.UP
        if off or not (np.abs(observation.values) < _LARGEST).all():
            # a sensor that fails is not the policy's fault, and must not latch as one
            text = "a measurement is not finite, or beyond what a policy can calculate with"
            if off:
                down = observation.link is not LinkState.UP
                text = f"the link is {observation.link}" if down else f"mode {Mode.OFF}"
            n_u = len(self.parts.link.outputs)
            nothing = np.full(n_u, np.nan)
            return Proposal(nothing, ProposalStatus.ABSENT, text=f"the policy is not asked: {text}")
        try:
            return self._watched(observation, self.parts.policy.propose(observation))
        except Exception as error:  # noqa: BLE001  (a policy that breaks its word costs one answer)
            text = f"the policy raised {type(error).__name__}: {error}"
            nothing = np.full(len(self.parts.link.outputs), np.nan)
            fault = Fault(ReasonCode.INFER_ERROR, text=text)
            return Proposal(nothing, ProposalStatus.ERROR, text=text, faults=(fault,))

    def _watched(self, observation: Observation, proposal: Proposal) -> Proposal:
        """`proposal`, with a remark where it is what always comes."""
        told = self._same_answer.look(observation, proposal)
        # a replay brings the recorded answer, which has the remark already
        if told is None or any(fault.code is told.code for fault in proposal.faults):
            return proposal
        return replace(proposal, faults=(*proposal.faults, told))

    def _wanted(
        self, source: Source, observation: Observation, proposal: Proposal, now_s: float
    ) -> Vector:
        """What the driver wants, without a bump after a change of driver; overrides win."""
        parts = self.parts
        if source is Source.POLICY:
            wanted = proposal.action
            if parts.modes.mode is Mode.LIMITED:
                usual = self._usual(observation)
                wanted = np.clip(wanted, usual - parts.leash, usual + parts.leash)
        elif source is Source.FALLBACK:
            wanted = self._usual(observation)
        elif source is Source.SAFE:
            wanted = parts.safe_action
        elif source is Source.HANDS_OFF and self._shows(proposal):
            wanted = proposal.action  # what the filter would make of it; written nowhere
        else:
            wanted = observation.applied
        wanted = parts.transfer.blend(source, wanted, observation.applied, now_s)
        override = parts.modes.override
        if override is not None:
            wanted = np.where(np.isnan(override), wanted, override)
        return self.handshake.follow(wanted, observation.applied)

    def _shows(self, proposal: Proposal) -> bool:
        """Is the proposal only looked at, by the record or by a person?"""
        shown = self.parts.modes.mode in (Mode.SHADOW, Mode.ADVISORY)
        return shown and proposal.status is ProposalStatus.OK

    def _usual(self, observation: Observation) -> Vector:
        """What the heuristic wants; where it fails, the safe set-point, which drives next."""
        try:
            return self.parts.heuristic.act(observation)
        except Exception as error:  # noqa: BLE001  (a command must go out all the same)
            text = f"{type(error).__name__}: {error}"
            self._failed = (Fault(ReasonCode.FALLBACK_FAIL, text=text),)
            return self.parts.safe_action

    def _actuate(
        self, source: Source, observation: Observation, certified: Certified, beat: Beat
    ) -> Sent:
        """Hand over the certified command, unless it is too late for this period.

        With hands off in a mode that may drive, the link sends request and heartbeat alone, so
        that the plant can grant control. In a mode that only watches, nothing at all is written:
        another controller may be driving, and our word in its handshake would take the plant
        from it. The one exception is the word that we do not drive any more.
        """
        before = self._sent.sequence
        if source is Source.HANDS_OFF and self.parts.modes.situation is Situation.WATCHING:
            if not self._asking:
                return Sent(certified.action, before, observation.time_s, written=False)
            self._asking, self._to_release = False, True
        else:
            self._asking = True
        late_s = self._monotonic() - beat.deadline_s
        if late_s > 0.0:
            fault = Fault(ReasonCode.TICK_LATE, "", late_s, 0.0, "s after the deadline")
            return Sent(
                certified.action, before, observation.time_s, written=False, faults=(fault,)
            )
        if not self.handshake.may_write:
            source = Source.HANDS_OFF
        sent = self.parts.link.write(certified.action, source)
        if sent.written or (source is Source.HANDS_OFF and not sent.faults):
            self.handshake.told(sent.action if sent.written else None, beat.now_s)
        bypass = bypassed(certified, sent, self.parts.link.outputs)
        return sent if bypass is None else replace(sent, faults=(*sent.faults, bypass))

    def _withdraw(self) -> None:
        """After a change to a mode that only watches: our request ends with our heartbeat."""
        if self._to_release:
            self._to_release = False
            self.parts.link.release()

    def _why(self, certified: Certified, wanted: Vector, proposal: Proposal) -> tuple[Fault, ...]:
        """Why the command is not the proposal as it came: no tick without a word on that."""
        as_it_came = wanted is proposal.action or np.array_equal(wanted, proposal.action)
        why = self.parts.modes.why(as_it_came)
        return (*why, _SHAPED) if certified.report.mode is FilterMode.SHAPED else why

    def _tell(self, tick: Tick, beat: Beat) -> None:
        """Everything that may be told after the command has left."""
        parts = self.parts
        for event in (*parts.modes.events, *self.handshake.events):
            parts.recorder.event(event)
        parts.metrics.tick(tick, beat.skipped, parts.modes)
        did = tick.sent.written or tick.source is Source.HANDS_OFF
        parts.health.tick_done(did and not parts.link.stuck())
