"""The real loop on a simulated plant in lock-step, with every part that decides in its place."""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from steadyhand.adapters.sim.faults import SignalFault
from steadyhand.adapters.sim.link import SimLink
from steadyhand.adapters.sim.plants import RunSpec, make_runner
from steadyhand.controllers.catalogue import PlantKind, plant_kind
from steadyhand.controllers.frames import (
    Certified,
    FilterMode,
    FilterOutcome,
    FilterReport,
    Observation,
    Proposal,
    Sent,
    Verdict,
)
from steadyhand.controllers.heuristics.transfer import Transfer
from steadyhand.controllers.protocols import Policy, SafetyFilter
from steadyhand.controllers.safety.atacom import AtacomDC
from steadyhand.controllers.safety.chain import SafetyChain
from steadyhand.controllers.safety.limits import Limits
from steadyhand.controllers.signals import Vector
from steadyhand.controllers.trust.freshness import Freshness, FreshnessSettings
from steadyhand.controllers.trust.gate import Gate, GateSettings
from steadyhand.runtime.clock import LockstepClock
from steadyhand.runtime.health import Health
from steadyhand.runtime.loop import STAGES, Loop, Parts, Tick
from steadyhand.runtime.metrics import Identity, Metrics
from steadyhand.runtime.modes import Mode, ModeMachine, ModeSettings
from steadyhand.runtime.record import RecordLayout, TickRecord
from steadyhand.runtime.recorder import Recorder

FOR_EVER = 1_000_000_000


class TrustsEverything(Gate):
    """Believes whatever it is told, so that nothing but the safety chain is left."""

    def __init__(self) -> None:
        super().__init__(GateSettings(0.0, 0.0))

    def judge(self, observation: Observation, proposal: Proposal) -> Verdict:
        """Trusted, always."""
        return Verdict(True, 1.0, "trust")


class LimitsAlone:
    """What is left without a filter: finite, box and rate of the output."""

    def __init__(self, limits: Limits, rows: int) -> None:
        self._limits = limits
        nothing = np.full(rows, np.nan)
        self._report = FilterReport(
            FilterMode.PASS, FilterOutcome.SOLVED, 0.0, 0.0, 1.0, -1, (),
            nothing, nothing, nothing, nothing, nothing,
        )  # fmt: skip

    def certify(self, observation: Observation, wanted: Vector, sent: Sent) -> Certified:
        """Within the output's own limits; whatever the plant makes of it."""
        last = self._limits.last_of(observation, sent).copy()
        action, faults = self._limits.apply(wanted, last, observation.time_s - sent.time_s)
        return Certified(action, self._report, faults)


class Unasked:
    """A policy that is not there."""

    def propose(self, observation: Observation) -> Proposal:
        """Never called with mode off."""
        raise AssertionError("the policy was asked")


@dataclass
class Bench:
    """One loop on one plant."""

    policy: Policy
    spec: RunSpec = field(default_factory=RunSpec)
    gate: Gate = field(default_factory=TrustsEverything)
    filtered: bool = True
    transfer_s: float = 0.0
    settings: ModeSettings = field(
        default_factory=lambda: ModeSettings(n_clean=1, max_raises=FOR_EVER)
    )
    mode: Mode = Mode.FULL
    keep: int = 64
    """Records the recorder keeps."""
    heuristic: str = "demand_limiting"

    def __post_init__(self) -> None:
        kind: PlantKind = plant_kind(self.spec.plant)
        plant = kind.plant(kind.parameters)
        self.kind, self.plant = kind, plant
        self.runner = make_runner(self.spec)
        self.link = SimLink(self.runner)
        model = kind.safety_model(kind.parameters)
        constraints = kind.constraints(kind.parameters)
        limits = Limits(plant.outputs, plant.period_s)
        inner: SafetyFilter = AtacomDC(model, constraints, limits)
        if not self.filtered:
            inner = LimitsAlone(limits, len(constraints))
        self.layout = RecordLayout(
            plant.observations, plant.outputs, constraints.names, self.gate.names, STAGES
        )
        self.recorder = Recorder(self.layout, ticks=self.keep)
        self.modes = ModeMachine(self.settings, plant.outputs)
        self.loop = Loop(
            Parts(
                link=self.link,
                image_judge=Freshness(plant.observations, FreshnessSettings(max_repeats=1)),
                policy=self.policy,
                gate=self.gate,
                modes=self.modes,
                heuristic=kind.heuristics[self.heuristic](kind.parameters),
                transfer=Transfer(plant.outputs, self.transfer_s),
                safety=SafetyChain(inner, limits, model.backup) if self.filtered else inner,
                safe_action=kind.safe_action(kind.parameters),
                leash=0.2 * (plant.outputs.high - plant.outputs.low),
                recorder=self.recorder,
                metrics=Metrics(Identity("bench", kind.id), plant.period_s),
                health=Health(None),
            ),
            LockstepClock(self.link, plant.period_s),
            self._after,
        )
        self._watch: Callable[[Tick], None] = lambda tick: None
        self.link.open()
        if self.mode is not Mode.OFF:
            self.modes.request(self.mode, "test")

    def _after(self) -> None:
        assert self.loop.last is not None
        self._watch(self.loop.last)

    def run(self, ticks: int, watch: Callable[[Tick], None] = lambda tick: None) -> None:
        """So many ticks of the real loop; `watch` sees each one after it was recorded.

        The plant keeps its controller between calls; only the end of a run releases it, and the
        next tick asks for it again.
        """
        self._watch = watch
        self.loop.run(threading.Event(), ticks)

    def ticks(self, count: int) -> list[Tick]:
        """So many ticks, kept."""
        kept: list[Tick] = []
        self.run(count, kept.append)
        return kept

    def newest_record(self) -> TickRecord:
        """The last tick as the journal would keep it."""
        ring = self.recorder.ticks
        bodies, _, _ = ring.peek(ring.head - 1, 1)
        return self.layout.decode(bodies[0])

    def broken(self, driver: str = "controller") -> dict[str, int]:
        """Sub-steps with a broken operating limit, by limit, told by the plant itself."""
        rows = self.runner.tally.totals().get(driver, {})
        return {
            name: int(rows[name]["substeps"]) if name in rows else 0
            for name in self.plant.operating_limits
        }

    def inject(self, faults: Iterable[SignalFault]) -> None:
        """Add faults to the plant's wire."""
        for fault in faults:
            self.runner.faults.add(fault)
        self.runner.refresh()


def changed(proposal: Proposal, sent: Sequence[float]) -> bool:
    """Is what went out another command than what was proposed?"""
    return proposal.action.tobytes() != np.asarray(sent).tobytes()
