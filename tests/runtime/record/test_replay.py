"""A recorded run decides the same again, bit for bit; a changed part shows where it differs."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from steadyhand.controllers.errors import JournalError
from steadyhand.controllers.frames import (
    Certified,
    Fault,
    FilterMode,
    LinkState,
    Observation,
    Proposal,
    ProposalStatus,
    Sent,
    Source,
)
from steadyhand.controllers.heuristics.hold import Hold
from steadyhand.controllers.heuristics.transfer import Transfer
from steadyhand.controllers.protocols import Policy, SafetyFilter
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.signals import Vector
from steadyhand.controllers.trust.gate import Gate, GateSettings
from steadyhand.runtime.clock import Beat, PacedClock
from steadyhand.runtime.health import Health
from steadyhand.runtime.journal import Journal, Limits
from steadyhand.runtime.loop import Loop, Parts
from steadyhand.runtime.metrics import Identity, Metrics
from steadyhand.runtime.modes import Mode, ModeMachine, ModeSettings
from steadyhand.runtime.reader import JournalReader
from steadyhand.runtime.recorder import Recorder
from steadyhand.runtime.replay import (
    COMMAND,
    RecordedFreshness,
    RecordedPolicy,
    ReplayLink,
    ReplayReport,
    replay,
)
from tests.support.records import LAYOUT, fresh_recorder, observation, report

LAYOUT_HERE = replace(LAYOUT, monitors=())


class Tank:
    """A plant of three lines: energy falls by what is discharged; sometimes the link drops."""

    observations = LAYOUT.observations
    outputs = LAYOUT.outputs

    def __init__(self) -> None:
        self.energy, self.applied, self.number = 500.0, 0.0, 0

    def read(self, now_s: float) -> Observation:
        self.number += 1
        down = self.number in (20, 21)
        faults = (Fault(ReasonCode.LINK_TIMEOUT, text="no answer"),) if down else ()
        return observation(
            self.number,
            faults,
            time_s=now_s,
            values=np.array([self.energy, 200.0 + self.number, self.applied]),
            applied=np.array([self.applied]),
            link=LinkState.DOWN if down else LinkState.UP,
        )

    def write(self, action: Vector, source: Source) -> Sent:
        written = source is not Source.HANDS_OFF and self.number % 17 != 0
        faults = () if written else (Fault(ReasonCode.WRITE_CLAMPED, "discharge_kw"),)
        if written:
            self.applied = float(action[0])
            self.energy -= 0.1 * self.applied
        return Sent(action, self.number, 900.0 * self.number, written, faults)


class Proposer:
    """Asks for more than there is, fails now and then."""

    def __init__(self, gain: float = 0.3) -> None:
        self.gain, self.asked = gain, 0

    def propose(self, seen: Observation) -> Proposal:
        self.asked += 1
        if self.asked % 11 == 0:
            return Proposal(np.array([np.nan]), ProposalStatus.LATE, latency_s=0.1, text="slow")
        action = np.array([self.gain * seen.values[1] + 0.1 * self.asked])
        return Proposal(action, ProposalStatus.OK, -1.0, 0.1, 2.0, 0.001 * self.asked)


class RateFilter:
    """Certifies at most `step` kW away from what it certified last: it has memory."""

    def __init__(self, step: float) -> None:
        self.step, self.last = step, 0.0

    def certify(self, seen: Observation, wanted: Vector, sent: Sent) -> Certified:
        del seen, sent
        nominal = float(wanted[0]) if np.isfinite(wanted[0]) else self.last
        self.last += float(np.clip(nominal - self.last, -self.step, self.step))
        shaped = self.last != nominal
        mode = FilterMode.SHAPED if shaped else FilterMode.PASS
        found = (Fault(ReasonCode.FILTER_SHAPED, "discharge_kw"),) if shaped else ()
        return Certified(np.array([self.last]), report(mode=mode, duration_us=3.0), found)


@dataclass
class Made:
    loop: Loop
    modes: ModeMachine


def make(link: object, policy: Policy, safety: SafetyFilter, recorder: Recorder | None = None,
         freshness: object = None) -> Made:  # fmt: skip
    modes = ModeMachine(ModeSettings(), LAYOUT.outputs)
    parts = Parts(
        link=link,  # type: ignore[arg-type]
        image_judge=freshness or RecordedFreshness(),  # type: ignore[arg-type]
        policy=policy,
        gate=Gate(GateSettings(0.0, 0.0, 1000, without_confidence=True)),
        modes=modes,
        heuristic=Hold(LAYOUT.outputs),
        transfer=Transfer(LAYOUT.outputs, 1800.0),
        safety=safety,
        safe_action=np.array([0.0]),
        leash=np.array([100.0]),
        recorder=recorder or Recorder(LAYOUT_HERE, ticks=16),
        metrics=Metrics(Identity("x", "y"), 900.0, LAYOUT.rows),
        health=Health(None),
    )
    return Made(Loop(parts, PacedClock(900.0)), modes)


def record_run(directory: Path, ticks: int = 120, commands: bool = True) -> None:
    """Run the loop on the tank, with an operator who asks for things."""
    recorder = Recorder(LAYOUT_HERE, "cfg", "policy@1")
    made = make(Tank(), Proposer(), RateFilter(7.0), recorder)

    def command(method: str, **arguments: object) -> None:
        if commands:
            recorder.event({"event": COMMAND, "method": method, "arguments": arguments})
        getattr(made.modes, method)(**arguments)

    with Journal(directory, recorder, Limits(commit_every_s=0.002)):
        for number in range(ticks):
            if number == 2:
                command("request", mode=Mode.FULL, actor="anna", reason="start")
            if number == 40 and commands:
                command("set_override", output="discharge_kw", value=33.0, owner="bob",
                        reason="test", for_s=9000.0)  # fmt: skip
            if number == 80:
                command("request", mode=Mode.SHADOW, actor="anna", reason="")
            if number == 90:
                command("request", mode=Mode.FULL, actor="anna", reason="")
            tick = made.loop.tick(Beat(900.0 * number, 0.001, 0, float("inf")))
            for event in made.modes.events:
                recorder.event(event)
            made.loop.last = tick


def again(
    directory: Path,
    safety: Callable[[], SafetyFilter] = lambda: RateFilter(7.0),
    policy: Policy | None = None,
) -> ReplayReport:
    def make_loop(link: ReplayLink, chosen: Policy) -> tuple[Loop, ModeMachine]:
        made = make(link, chosen, safety())
        return made.loop, made.modes

    return replay(JournalReader(directory), make_loop, policy)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("run")
    record_run(directory)
    return directory


def test_the_run_is_worth_replaying(run):
    """Otherwise the comparison would prove little: every driver but one, faults, refusals."""
    ticks = list(JournalReader(run).ticks())
    sources = {tick.source for tick in ticks}
    assert {Source.POLICY, Source.FALLBACK, Source.HANDS_OFF} <= sources
    reasons = set().union(*(tick.reasons for tick in ticks))
    assert {ReasonCode.LINK_TIMEOUT, ReasonCode.FILTER_SHAPED, ReasonCode.INFER_LATE,
            ReasonCode.WRITE_CLAMPED} <= reasons  # fmt: skip
    assert any(tick.wanted[0] == 33.0 for tick in ticks), "the override acted"


def test_same_code_same_decisions_bit_for_bit(run):
    first, second = again(run), again(run)
    assert first.differences == ()
    assert (first.ticks, first.differing, first.notes) == (120, 0, ())
    assert first.digest == second.digest == first.recorded_digest


def test_policy_run_again_gives_the_same_too(run):
    result = again(run, policy=Proposer())
    # It was not asked while the mode was off, so its own count of questions is the same.
    assert result.digest == result.recorded_digest, result.differences[:3]


def test_a_changed_filter_is_shown_where_it_acts(run):
    result = again(run, safety=lambda: RateFilter(7.5))
    assert result.differing > 0
    assert result.digest != result.recorded_digest
    first = result.differences[0]
    assert first.field == "certified"
    assert abs(first.replayed[0] - first.recorded[0]) == pytest.approx(0.5)
    before = JournalReader(run).tick(first.tick)[1]
    assert before.certified is not None
    assert before.certified.action[0] == first.recorded[0]


def test_a_changed_policy_shows_in_the_proposal_first(run):
    result = again(run, policy=Proposer(gain=0.31))
    assert result.differences[0].field == "proposed"
    assert result.fields["sent"] <= result.fields["certified"], (
        "only a changed command is sent anew"
    )


def test_one_bit_is_enough(run):
    class OneBit(RateFilter):
        def certify(self, seen: Observation, wanted: Vector, sent: Sent) -> Certified:
            made = super().certify(seen, wanted, sent)
            if seen.sequence == 60:
                return replace(made, action=np.nextafter(made.action, np.inf))
            return made

    result = again(run, safety=lambda: OneBit(7.0))
    assert result.differing == 1
    assert [(d.tick, d.field) for d in result.differences] == [(59, "certified"), (59, "sent")]


def test_faults_are_compared_too(run):
    class Silent(RateFilter):
        def certify(self, seen: Observation, wanted: Vector, sent: Sent) -> Certified:
            return replace(super().certify(seen, wanted, sent), faults=())

    assert "faults" in again(run, safety=lambda: Silent(7.0)).fields


def test_modes_are_inferred_when_commands_were_not_recorded(tmp_path):
    record_run(tmp_path, 60, commands=False)
    result = again(tmp_path)
    assert result.differing == 0, result.differences[:3]
    assert any("without a recorded command" in note for note in result.notes)


def test_the_last_run_is_taken_unless_named(tmp_path):
    for ticks in (10, 20):
        record_run(tmp_path, ticks)
    reader = JournalReader(tmp_path)
    assert again(tmp_path).ticks == 20

    def make_loop(link: ReplayLink, chosen: Policy) -> tuple[Loop, ModeMachine]:
        made = make(link, chosen, RateFilter(7.0))
        return made.loop, made.modes

    assert replay(reader, make_loop, run=reader.runs[0]).ticks == 10
    with pytest.raises(JournalError, match="no run 'x'; there are"):
        replay(reader, make_loop, run="x")


def test_nothing_to_replay(tmp_path):
    with Journal(tmp_path, fresh_recorder(), Limits(commit_every_s=0.002)):
        pass
    with pytest.raises(JournalError, match="no run of this journal has a tick"):
        again(tmp_path)


def test_link_before_any_record():
    link = ReplayLink(LAYOUT.observations, LAYOUT.outputs)
    with pytest.raises(JournalError, match="no record is shown"):
        link.read(0.0)
    assert not link.write(np.zeros(1), Source.POLICY).written
    assert RecordedPolicy(1).propose(observation()).status is ProposalStatus.ABSENT
