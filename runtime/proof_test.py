"""The proof test: the ways out that must work on the day they are needed, tried once a month.

    1. the fallback path: the heuristic drives some periods, and the plant follows
    2. the safe set-point path: the safe set-point is sent and held, and the plant follows
    3. the heartbeat stops, a step beside where the plant's own control was: the plant has to take
       itself back, within the shed time configured

No policy takes part. The runtime is stopped, the operator watches, every command goes through the
safety filter. The last step is measured from our last heartbeat to the first image in which the
plant withdraws its grant or its read-back leaves what we sent; it may be one control period longer
than configured. It cannot be seen where the plant's own control wants the same: then it is not
passed.
"""

import time
from dataclasses import dataclass
from math import nan

import numpy as np

from steadyhand.controllers.errors import LinkError
from steadyhand.controllers.frames import LinkState, Observation, Source
from steadyhand.controllers.heuristics.transfer import Transfer
from steadyhand.controllers.signals import Vector
from steadyhand.runtime import assemble
from steadyhand.runtime.config import Loaded
from steadyhand.runtime.visit import Say, Visit, visiting

FOLLOWS = 0.02
"""Share of an output's range within which a read-back is what was sent."""
BESIDE = 0.1
"""Share of an output's range by which it is beside the plant's own control when we fall silent."""
LOOK_S = 0.05
"""Wall seconds between two looks while the heartbeat stands still."""


@dataclass(frozen=True, slots=True)
class ProofSettings:
    """How the test is done."""

    periods: int = 4
    """Control periods of each of the first two steps."""
    patience_s: float = 60.0
    """Wall seconds to wait for the link and for the plant's grant."""


@dataclass(frozen=True, slots=True)
class Step:
    """One path and what came of it."""

    name: str
    passed: bool
    text: str


@dataclass(frozen=True, slots=True)
class ProofReport:
    """What came of it."""

    steps: tuple[Step, ...]
    shed_s: float
    """Plant seconds from our last heartbeat until the plant had itself back; NaN: not seen."""
    configured_s: float
    """`handover.shed`, plant seconds."""
    resolution_s: float
    """Plant seconds between the image in which it had and the one before; NaN: not seen."""

    @property
    def passed(self) -> bool:
        """Did every path work?"""
        return len(self.steps) == 3 and all(step.passed for step in self.steps)


def proof_test(
    loaded: Loaded, settings: ProofSettings, say: Say = lambda text: None
) -> ProofReport:
    """Try every path; ends at the first that does not work.

    Args:
        loaded: the configuration, passed by the pre-flight.
        settings: how.
        say: told what happens, line by line, for the operator who watches.

    Raises:
        ConfigError: the plant is not behind OPC UA.
        JournalError: a runtime drives this plant; it must be stopped first.
        LinkError: the plant does not answer, or does not grant control, in time.
    """
    parts = assemble.make_plant(loaded)
    with visiting("proof test", loaded, parts, settings.patience_s, say) as visit:
        return _Proof(loaded, settings, visit).run()


class _Proof:
    """One test under way."""

    def __init__(self, loaded: Loaded, settings: ProofSettings, visit: Visit) -> None:
        config, parts = loaded.config, visit.parts
        self._visit, self._settings, self._parts = visit, settings, parts
        self._heuristic = assemble.make_heuristic(config, parts)
        self._transfer = Transfer(parts.outputs, config.fallback.transfer)
        self._near: Vector = FOLLOWS * (parts.outputs.high - parts.outputs.low)
        self._scale = config.clock.time_scale
        self._shed_s = config.handover.shed or 2.0 * config.period
        self._steps: list[Step] = []

    def run(self) -> ProofReport:
        """All steps in order, as long as they work."""
        visit = self._visit
        visit.link.open()
        if problems := visit.look():
            self._done("first image", False, "; ".join(problems))
            return self._report()
        own = visit.next().applied
        visit.ask()
        seen = visit.next()
        try:
            for name, source in (("fallback", Source.FALLBACK), ("safe set-point", Source.SAFE)):
                passed, seen = self._drive(name, source, seen)
                if not passed:
                    return self._report()
            return self._report(*self._fall_silent(seen, own))
        except LinkError as error:
            self._done("control", False, str(error))
            return self._report()

    def _done(self, name: str, passed: bool, text: str) -> bool:
        self._steps.append(Step(name, passed, text))
        self._visit.say(f"{name}: {'passed' if passed else 'NOT passed'}: {text}")
        return passed

    def _report(self, shed_s: float = nan, resolution_s: float = nan) -> ProofReport:
        return ProofReport(tuple(self._steps), shed_s, self._shed_s, resolution_s)

    def _drive(self, name: str, source: Source, seen: Observation) -> tuple[bool, Observation]:
        """Let `source` drive; does the plant apply what is sent? With the newest image.

        Raises:
            LinkError: control was lost, or a command was not written.
        """
        visit = self._visit
        before = command = np.full(len(self._parts.outputs), nan)
        for _ in range(self._settings.periods):
            before = command
            command = visit.command(seen, self._wanted(source, seen), source)
            self._heuristic.track(seen, visit.sent)
            seen = visit.next()
        # an image may show what was applied before the last command came
        follows = (np.abs(seen.applied - command) <= self._near) | (
            np.abs(seen.applied - before) <= self._near
        )
        shown = ", ".join(
            f"{output} sent {sent:.4g}, applied {applied:.4g}"
            for output, sent, applied in zip(
                self._parts.outputs.names, command, seen.applied, strict=True
            )
        )
        text = f"{self._settings.periods} periods; {shown}"
        return self._done(name, bool(follows.all()), text), seen

    def _wanted(self, source: Source, seen: Observation) -> Vector:
        wanted = self._parts.kind.safe_action(self._parts.parameters)
        if source is Source.FALLBACK:
            wanted = self._heuristic.act(seen)
        return self._transfer.blend(source, wanted, seen.applied, seen.time_s)

    def _beside(self, seen: Observation, own: Vector) -> Vector:
        """A step beside `own`, on the side on which the limits leave more room."""
        step = BESIDE * (self._parts.outputs.high - self._parts.outputs.low)
        ways = [self._visit.certified(seen, own + sign * step) for sign in (1.0, -1.0)]
        return max(ways, key=lambda way: float(np.min(np.abs(way - own) / step)))

    def _fall_silent(self, seen: Observation, own: Vector) -> tuple[float, float]:
        """Write once more, then nothing: when has the plant itself back, and how exactly is that?

        `own` is what the plant applied by itself before.

        Plant seconds since the last heartbeat, and between the two images around that moment.

        Raises:
            LinkError: control was lost before.
        """
        visit, name = self._visit, "heartbeat stops"
        target = self._beside(seen, own)
        for _ in range(self._settings.periods):
            visit.command(seen, target, Source.FALLBACK)
            seen = visit.next()
        sent = visit.command(seen, target, Source.FALLBACK)
        if (np.abs(sent - own) <= 2.0 * self._near).all():
            self._done(name, False, "the limits leave no room for a step here; try at another hour")
            return nan, nan
        began_s = before_s = time.monotonic()
        wait_s = (2.0 * self._shed_s + 2.0 * self._parts.plant.period_s) / self._scale
        visit.say(f"our heartbeat stands still; {self._shed_s:g} s of plant time are configured")
        while (now_s := time.monotonic()) - began_s < wait_s:
            time.sleep(LOOK_S)
            if not visit.link.wait_fresh(visit.image, LOOK_S):
                continue
            seen = visit.link.read(0.0)
            visit.image = seen.sequence
            if seen.link is not LinkState.UP:
                self._done(name, False, f"the link is {seen.link}: nobody sees the plant")
                return nan, nan
            now_s = time.monotonic()
            if self._left(seen, sent):
                shed_s, exact_s = (now_s - began_s) * self._scale, (now_s - before_s) * self._scale
                self._judge(name, shed_s, exact_s)
                return shed_s, exact_s
            before_s = now_s
        self._done(
            name,
            False,
            f"not seen within {wait_s * self._scale:g} s: the plant applies "
            f"{seen.applied.tolist()}, we sent {sent.tolist()} last: it goes on with that, or "
            "wants the same by itself; look at the plant, try at another hour",
        )
        return nan, nan

    def _left(self, seen: Observation, sent: Vector) -> bool:
        """Has the plant taken itself back, as far as its nodes tell?"""
        return not seen.granted or bool((np.abs(seen.applied - sent) > self._near).any())

    def _judge(self, name: str, shed_s: float, exact_s: float) -> None:
        found = f"it had itself back after {shed_s:.4g} s, seen to {exact_s:.3g} s"
        # its program has a cycle, too, and the read-back shows what was applied in the one before
        if shed_s - exact_s > self._shed_s + self._parts.plant.period_s:
            text = f"{found}; handover.shed says {self._shed_s:g} s: correct the plant, or that"
            self._done(name, False, text)
        else:
            self._done(name, True, f"{found}; {self._shed_s:g} s are configured")
