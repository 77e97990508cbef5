"""SimLink: a plant in process, in lock-step. Each write advances the plant by one period.

Time is the plant's own, so a million ticks take as long as their arithmetic. The behaviour is that
of a real link: images with quality and age, what was sent, heartbeats, release.
"""

from dataclasses import replace

import numpy as np

from steadyhand.adapters.sim.plant_runner import PlantRunner
from steadyhand.controllers.frames import Fault, LinkState, Observation, Sent, Source
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.signals import Vector

_DOWN = (Fault(ReasonCode.LINK_DOWN, text="the simulated link is down"),)


class SimLink:
    """`adapters.link.Link` over a `PlantRunner`.

    The plant's clock moves only with `write` (one period) and `skip` (one period without a
    command), so a loop that decides to write nothing calls `skip`. A write with
    `Source.HANDS_OFF` carries a heartbeat but leaves the driving to the plant.
    """

    def __init__(self, runner: PlantRunner) -> None:
        self.runner = runner
        self.observations = runner.plant.observations
        self.outputs = runner.plant.outputs
        self.state = LinkState.DOWN
        """What the link reports. Set it to DOWN while open to cut the wire."""
        self._written = 0
        self._seen = runner.image

    def open(self) -> None:
        """The plant is at hand: the link is up at once."""
        self.state = LinkState.UP

    def close(self) -> None:
        """Hand the plant back and close the observer's log. Idempotent."""
        self.release()
        self.state = LinkState.DOWN
        self.runner.log.close()

    def read(self, now_s: float) -> Observation:
        """The newest image; while the link is down, the last one from before, told as such."""
        if self.state is LinkState.UP:
            self._seen = self.runner.image
            return self._seen
        age_s = self._seen.age_s + (self.runner.time_s - self._seen.time_s)
        return replace(self._seen, age_s=age_s, link=self.state, faults=_DOWN)

    def write(self, action: Vector, source: Source) -> Sent:
        """Hand `action` (n_u,) to the plant with a new heartbeat, then advance one period.

        With `Source.HANDS_OFF` only the heartbeat arrives. While the link is down nothing does,
        but the plant's time goes on.
        """
        runner = self.runner
        time_s = runner.time_s
        sent = np.array(action, dtype=np.float64)
        if self.state is not LinkState.UP:
            runner.advance()
            return Sent(sent, self._written, time_s, written=False, faults=_DOWN)
        self._written = (self._written + 1) & 0xFFFFFFFF
        driving = source is not Source.HANDS_OFF
        runner.requested = True
        runner.source = source
        if driving:
            for column, value in enumerate(sent.tolist()):
                if not runner.kept[column]:
                    runner.write(column, value, source=int(source), sequence=self._written)
        runner.beat(self._written)
        runner.advance()
        return Sent(sent, self._written, time_s, written=driving)

    def skip(self) -> None:
        """One period passes without a command or a heartbeat."""
        self.runner.advance()

    def release(self) -> None:
        """Stop asking for control: the plant's own control drives from now on."""
        if self.state is LinkState.UP:
            self.runner.release()

    def newest(self) -> tuple[int, float]:
        """Number and plant time (s) of the newest image."""
        return self.runner.image.sequence, self.runner.image.time_s

    def condition(self) -> tuple[LinkState, bool, tuple[Fault, ...]]:
        """Up, or down because somebody cut the wire."""
        faults = () if self.state is LinkState.UP else _DOWN
        return self.state, self.runner.image.granted, faults

    def stuck(self) -> str:
        """Never: there is no thread."""
        return ""

    def wait_fresh(self, after_sequence: int, timeout_s: float) -> bool:
        """Is there an image newer than `after_sequence`? Nothing changes while one waits."""
        return self.state is LinkState.UP and self.runner.image.sequence > after_sequence
