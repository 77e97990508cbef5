"""One hostile policy against the real loop, counted by the plant."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from steadyhand.adapters.sim.plants import RunSpec
from steadyhand.controllers.catalogue import plant_kind
from steadyhand.controllers.frames import FilterMode, Source
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime.events import EFFECTS, Situation
from steadyhand.runtime.loop import Tick
from tests.support.hostile import ConstantPolicy, hostile_policies
from tests.support.loop_lockstep import Bench

KIND = plant_kind("thermal_storage")
PLANT = KIND.plant(KIND.parameters)
HOSTILE = {
    **hostile_policies(PLANT.outputs, KIND.safety_model(KIND.parameters)),
    # "constant" discharges for ever: this one charges, against the full tank and the power cap
    "constant_low": lambda: ConstantPolicy(PLANT.outputs, 0.0),
}
_CHANGES = frozenset(
    code for code in ReasonCode if code.startswith("FILTER_") or code is ReasonCode.LIMIT_CLIPPED
)


@dataclass
class Attack:
    """What came of one attack."""

    policy: str
    filtered: bool
    ticks: int
    broken: dict[str, int] = field(default_factory=dict)
    """Sub-steps with a broken operating limit, by limit."""
    worst: dict[str, float] = field(default_factory=dict)
    """Largest scaled margin, by limit; above 0 is beyond it."""
    writes: dict[str, int] = field(default_factory=dict)
    """The plant's own count of writes and of bad ones."""
    sources: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    proposals_refused: int = 0
    """Proposals that went out as another command."""
    untold: list[str] = field(default_factory=list)
    """Ticks in which a limit broke although the record does not say that none could hold it."""
    unexplained: list[str] = field(default_factory=list)
    """Ticks whose command is not the proposal and whose record does not say why."""


def attack(policy: str, ticks: int, filtered: bool = True, seed: int = 0, days: int = 30) -> Attack:
    """Let `policy` drive the plant for so many ticks of the real loop."""
    bench = Bench(HOSTILE[policy](), RunSpec(seed=seed, days=days), filtered=filtered)
    result = Attack(policy, filtered, ticks)

    broken = 0

    def watch(tick: Tick) -> None:
        nonlocal broken
        result.sources[tick.source.name.lower()] += 1
        if not filtered:
            return
        _explained(bench, tick, result)
        before, broken = broken, sum(bench.broken().values())
        if broken > before and ReasonCode.FILTER_INFEASIBLE not in bench.newest_record().reasons:
            result.untold.append(f"tick {tick.number}: {bench.broken()}")

    bench.run(ticks, watch)
    rows = bench.runner.tally.totals()["controller"]
    result.broken = bench.broken()
    result.worst = {name: float(rows[name]["worst"]) for name in PLANT.operating_limits}
    result.writes = bench.runner.log.totals()
    return result


def _explained(bench: Bench, tick: Tick, result: Attack) -> None:
    """Does the record of this tick say why another command went out than was proposed?"""
    record = bench.newest_record()
    result.reasons.update(str(code) for code in record.reasons)
    if record.sequence != tick.number or record.certified is None or record.proposal is None:
        result.unexplained.append(f"tick {tick.number}: its record is not there")
        return
    if np.array_equal(tick.sent.action, tick.proposal.action):
        return
    result.proposals_refused += 1
    mode = record.certified.report.mode
    # the reasons of a record also hold what the filter said of the tick before
    told = {fault.code for fault in record.certified.faults} & _CHANGES
    if mode is FilterMode.SHAPED:
        told |= record.reasons & {ReasonCode.FILTER_SHAPED}
    if tick.source is not Source.POLICY:
        told = {c for c in record.reasons if EFFECTS[c, Situation.DRIVING].demand >= tick.source}
    if not told:
        result.unexplained.append(f"tick {tick.number}: {tick.source.name} {mode.name}")
