"""Every kind of bad measurement on every signal, in lock-step, while a hostile policy drives.

The table is generated from the plant's own declaration: a signal that says how fast it may move,
how old it may be or how long it may stand still is judged by that; what no declaration forbids
cannot be told, and the table says so.
"""

from math import isfinite

import pytest

from steadyhand.adapters.sim.faults import MEASUREMENT_KINDS, FaultKind, SignalFault
from steadyhand.adapters.sim.plants import RunSpec
from steadyhand.controllers.frames import ProposalStatus, Quality, Source
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.trust.gate import Gate, GateSettings
from steadyhand.runtime.events import EFFECTS, Situation
from tests.support.loop_hostile import HOSTILE, PLANT
from tests.support.loop_lockstep import FOR_EVER, Bench

PERIOD_S = PLANT.period_s
SOUND, FAULTY, AFTER = 20, 8, 6
"""Ticks before, with and after the fault."""
START_S = SOUND * PERIOD_S
SIGNALS = {signal.name: signal for signal in PLANT.observations}
NEEDED_BY_FILTER = ("storage_energy_kwh", "cooling_load_kw", "outdoor_temperature_degc")


def fault_of(kind, signal):
    parameters = {}
    if kind is FaultKind.WRONG:
        parameters = {"bias": 0.6 * (signal.high - signal.low)}
    if kind is FaultKind.DELAYED:
        parameters = {"delay_s": signal.max_age_s + PERIOD_S}
    return SignalFault(signal.name, kind, START_S, FAULTY * PERIOD_S, parameters)


def run(*faults, seed=4):
    gate = Gate(GateSettings(0.0, 0.0, max_switches=FOR_EVER, without_confidence=True))
    bench = Bench(HOSTILE["bang_bang"](), RunSpec(seed=seed, days=5), gate=gate)
    bench.inject(faults)
    before, during, after = (bench.ticks(count) for count in (SOUND, FAULTY, AFTER))
    assert all(tick.source is Source.POLICY for tick in before[1:])
    return bench, during, after


def told(tick, name):
    """Codes of this signal, as the loop has them."""
    return {fault.code for fault in tick.observation.faults if fault.signal == name}


def expected(kind, signal, during, truth):
    """(tick of the fault, code) that must be told; nothing where no declaration forbids it."""
    if kind is FaultKind.OFF:
        return [(i, ReasonCode.SAMPLE_BAD) for i in range(FAULTY)]
    if kind is FaultKind.GARBAGE:
        return [(i, ReasonCode.OBS_NONFINITE) for i in range(FAULTY)]
    if kind is FaultKind.INTERMITTENT:
        column = PLANT.observations.index(signal.name)
        bad = [i for i, t in enumerate(during) if t.observation.quality[column] == Quality.BAD]
        assert 0 < len(bad) < FAULTY
        return [(i, ReasonCode.SAMPLE_BAD) for i in bad]
    if kind is FaultKind.STUCK and isfinite(signal.frozen_after_s):
        first = round(signal.frozen_after_s / PERIOD_S)
        return [(i, ReasonCode.OBS_STUCK) for i in range(first, FAULTY)]
    if kind is FaultKind.DELAYED:
        return [(i, ReasonCode.OBS_STALE) for i in range(FAULTY)]
    if kind is FaultKind.WRONG:
        bias = 0.6 * (signal.high - signal.low)
        beyond = [i for i, value in enumerate(truth) if value + bias > signal.high]
        jump = bias > 1.5 * signal.rate_per_s * PERIOD_S
        rate = [(0, ReasonCode.OBS_RATE)] if jump and 0 not in beyond else []
        return rate + [(i, ReasonCode.OBS_RANGE) for i in beyond]
    return []


@pytest.mark.parametrize("kind", MEASUREMENT_KINDS)
@pytest.mark.parametrize("name", SIGNALS)
def test_a_bad_measurement(name, kind):
    signal, column = SIGNALS[name], PLANT.observations.index(name)
    fault = fault_of(kind, signal)
    bench, during, after = run(fault)
    bias = fault.parameters.get("bias", 0.0)
    truth = [float(tick.observation.values[column]) - bias for tick in during]
    wanted = expected(kind, signal, during, truth)

    for i, code in wanted:
        assert code in told(during[i], name), f"tick {i} of the fault"
        assert during[i].source >= EFFECTS[code, Situation.DRIVING].demand
        assert during[i].observation.quality[column] == Quality.BAD
    for tick in during:  # who drives follows what is told, in the same tick
        if told(tick, name):
            assert tick.source is Source.FALLBACK
        elif tick.source is not Source.POLICY:
            assert tick.faults, "every tick says why the policy does not drive"

    # what reached the plant: always a command, always within every limit, output's and plant's
    writes = bench.runner.log.totals()
    assert writes["arrived"] == SOUND + FAULTY + AFTER
    assert {key: writes[key] for key in ("nonfinite", "outside", "rate", "ungranted")} == {
        "nonfinite": 0, "outside": 0, "rate": 0, "ungranted": 0,
    }  # fmt: skip
    assert sum(bench.broken().values()) == 0

    # where the filter cannot tell its rows it takes the plant's backup: the idle tank
    if name in NEEDED_BY_FILTER and kind in (FaultKind.OFF, FaultKind.GARBAGE):
        assert [tick.sent.action.tolist() for tick in during] == [[0.0]] * FAULTY

    # and back: the fault's last word, the filter's last word, one clean tick
    assert [tick.source for tick in after[3:]] == [Source.POLICY] * (AFTER - 3)
    assert bench.modes.latches == {}


def test_an_output_held_in_a_narrow_band_breaks_nothing():
    """The next command starts from where the actuator really is."""
    held = {"low": -30.0, "high": 40.0}
    (name,) = PLANT.outputs.names
    fault = SignalFault(name, FaultKind.CLAMPED, START_S, FAULTY * PERIOD_S, held)
    bench, during, after = run(fault)
    writes = bench.runner.log.totals()
    assert (writes["nonfinite"], writes["outside"], writes["rate"]) == (0, 0, 0)
    assert sum(bench.broken().values()) == 0
    assert all(-30.0 <= tick.observation.applied[0] <= 40.0 for tick in during[1:])
    assert all(tick.source is Source.POLICY for tick in after)


def test_an_output_that_ignores_us_is_told_by_what_it_does():
    """It goes on charging: no command can keep the tank from overfilling, but none adds to it."""
    (name,) = PLANT.outputs.names
    fault = SignalFault(name, FaultKind.IGNORED, START_S, FAULTY * PERIOD_S)
    bench, during, after = run(fault)
    stuck_at = during[1].observation.applied[0]
    assert stuck_at < -100.0
    assert all(tick.observation.applied[0] == stuck_at for tick in during[1:])
    writes = bench.runner.log.totals()
    assert (writes["nonfinite"], writes["outside"], writes["rate"]) == (0, 0, 0)
    broken = bench.broken()
    assert broken.pop("tank_full") > 0
    assert sum(broken.values()) == 0
    codes = [{fault.code for fault in tick.certified.faults} for tick in (*during, *after)]
    beyond = [i for i, found in enumerate(codes) if ReasonCode.FILTER_RECOVER in found]
    assert beyond
    for i in beyond:
        tick = (*during, *after)[i]
        assert tick.sent.action[0] >= 0.0
        assert i == beyond[0] or tick.source >= Source.FALLBACK


def test_two_faults_at_once_and_the_worse_one_counts():
    """A sensor off and the wire cut: hands off, not the heuristic."""
    gate = Gate(GateSettings(0.0, 0.0, max_switches=FOR_EVER, without_confidence=True))
    bench = Bench(HOSTILE["bang_bang"](), RunSpec(seed=4), gate=gate)
    bench.inject([SignalFault("cooling_load_kw", FaultKind.OFF, 4 * PERIOD_S, 9 * PERIOD_S)])
    ticks = bench.ticks(6)
    assert ticks[-1].source is Source.FALLBACK
    bench.runner.permit = False
    bench.runner.refresh()
    (tick,) = bench.ticks(1)
    assert tick.source is Source.HANDS_OFF
    assert not tick.sent.written
    assert ReasonCode.NOT_GRANTED in bench.newest_record().reasons


def test_the_policy_is_not_asked_about_a_number_that_is_none():
    """Else its refusal to answer counts against it, and latches it out for a sensor's fault."""
    asked = []

    class Watched:
        def __init__(self, inner):
            self._inner = inner

        def propose(self, observation):
            asked.append(observation.values.copy())
            return self._inner.propose(observation)

    bench = Bench(Watched(HOSTILE["bang_bang"]()), RunSpec(seed=4))
    bench.inject(
        [SignalFault("load_forecast_03_kw", FaultKind.GARBAGE, 2 * PERIOD_S, 6 * PERIOD_S)]
    )
    ticks = bench.ticks(12)
    assert len(asked) == 6
    assert all(isfinite(value) for values in asked for value in values)
    silent = [tick for tick in ticks if tick.proposal.status is ProposalStatus.ABSENT]
    assert [tick.number for tick in silent] == [2, 3, 4, 5, 6, 7]
    assert "not finite" in silent[0].proposal.text
