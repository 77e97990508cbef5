"""The handshake: complete tables, every combination of inputs, and who may write when."""

from dataclasses import replace
from itertools import product
from math import inf, nan

import numpy as np
import pytest

from steadyhand.adapters.sim.plants import RunSpec
from steadyhand.controllers.errors import ConfigError
from steadyhand.controllers.frames import (
    Certified,
    Fault,
    FilterMode,
    FilterOutcome,
    FilterReport,
    LinkState,
    Observation,
    Source,
)
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.signals import Signal, SignalSet
from steadyhand.runtime.handshake import (
    EXITS,
    IN_CONTROL,
    PERMIT,
    SETTLE,
    Control,
    Driving,
    Handshake,
    HandshakeSettings,
    Obstacle,
)
from steadyhand.runtime.modes import Mode
from tests.support.loop_hostile import HOSTILE
from tests.support.loop_lockstep import Bench

OUTPUTS = SignalSet(
    (
        Signal("valve", "1", 0.0, 10.0, rate_per_s=1.0),
        Signal("pump", "1", -5.0, 5.0, rate_per_s=0.5),
    )
)
GOOD = (5.0, 0.0)
NOTHING = np.full(1, nan)
REPORT = FilterReport(
    FilterMode.PASS, FilterOutcome.SOLVED, 0.0, 0.0, 1.0, -1, (),
    NOTHING, NOTHING, NOTHING, NOTHING, NOTHING,
)  # fmt: skip


def image(applied=GOOD, out=(), granted=True, link=LinkState.UP):
    return Observation(
        1, 0.0, np.zeros(1), np.zeros(1), np.zeros(1, np.int8), np.array(applied), link, granted,
        tuple(Fault(ReasonCode.OUTPUT_OUT, name) for name in out),
    )  # fmt: skip


def driving(settings=None, outputs=OUTPUTS):
    """A handshake that is on since time 0."""
    made = Handshake(outputs, settings)
    assert made.permit(image(), True, 0.0) == ()
    made.settle(Source.POLICY, 0.0)
    made.told(np.array(GOOD), 0.0)
    assert made.state is Control.ON
    return made


def test_the_tables_are_complete_and_every_exit_is_declared():
    assert set(PERMIT) == set(product(Control, Obstacle))
    assert set(SETTLE) == set(product(Control, Driving))
    assert set(EXITS) == set(Obstacle) and all(EXITS.values())


@pytest.mark.parametrize("state", list(Control))
def test_more_restrictive_never_gives_more(state):
    rank = [Control.OFF, Control.REQUESTED, Control.FALLBACK, Control.PREPARING, Control.PARTIAL,
            Control.ON]  # fmt: skip
    after = [rank.index(PERMIT[state, obstacle]) for obstacle in Obstacle]
    assert after[0] >= max(after)
    assert all(PERMIT[state, obstacle] not in IN_CONTROL for obstacle in Obstacle if obstacle)
    assert after[-1] == 0


def test_it_comes_up_off_and_writes_nothing():
    made = Handshake(OUTPUTS)
    assert (made.state, made.in_control, made.may_write) == (Control.OFF, False, False)
    made.settle(Source.POLICY, 0.0)  # whoever drives without a permission
    assert made.state is Control.OFF and not made.may_write


def test_request_grant_preparation_control_and_back():
    made = Handshake(OUTPUTS)
    seen = []

    def tick(asked, granted, source, now_s):
        made.permit(image(granted=granted), asked, now_s)
        made.settle(source, now_s)
        made.told(None, now_s)
        seen.append(made.state)

    off = Source.HANDS_OFF
    tick(False, True, off, 0.0)
    tick(True, False, off, 1.0)
    tick(True, True, off, 2.0)
    tick(True, True, Source.FALLBACK, 3.0)
    tick(True, True, Source.POLICY, 4.0)
    tick(True, False, off, 5.0)
    tick(True, False, off, 6.0)
    tick(True, True, off, 7.0)
    tick(True, True, Source.POLICY, 8.0)
    assert "preparing -> on" in made.events[0].text
    tick(True, True, off, 9.0)  # for a reason of ours
    assert "for a reason of ours" in made.events[-1].text
    tick(False, True, off, 10.0)
    assert seen == [
        Control.OFF, Control.REQUESTED, Control.PREPARING, Control.ON, Control.ON,
        Control.FALLBACK, Control.FALLBACK, Control.PREPARING, Control.ON, Control.FALLBACK,
        Control.OFF,
    ]  # fmt: skip


SOME = [(), ("valve",), ("pump",), ("valve", "pump"), ("nobody",)]
READ_BACKS = {"good": GOOD, "outside": (11.0, 0.0), "jump": (0.0, 0.0), "unknown": (nan, 0.0)}


def expected(asked, link, granted, silent, out, read_back, before):
    """The most restrictive of what is in the way, worked out on its own."""
    if not asked:
        return Obstacle.NOT_ASKED
    if link is not LinkState.UP:
        return Obstacle.NO_LINK
    if silent:
        return Obstacle.SHED
    if not granted:
        return Obstacle.NOT_GRANTED
    if out in (("valve", "pump"), ("nobody",)):
        return Obstacle.NONE_IN
    wrong = {"good": False, "outside": True, "jump": before in IN_CONTROL,
             "unknown": before not in IN_CONTROL}[read_back]  # fmt: skip
    return Obstacle.INVALID if wrong and "valve" not in out else Obstacle.NONE


@pytest.mark.parametrize("source", list(Source))
@pytest.mark.parametrize("before", list(Control))
def test_every_combination_of_inputs(before, source):
    """6 x 5 x 2 x 4 x 2 x 2 x 5 x 4 cases: the most restrictive wins, and only then we write."""
    for asked, link, granted, silent, out, read_back in product(
        (True, False), LinkState, (True, False), (True, False), SOME, READ_BACKS
    ):
        made = driving(HandshakeSettings(shed_s=2.0))
        made.told(np.array(GOOD), -3.0 if silent else 0.0)
        made.state = before
        made._applied = np.array(GOOD) if before in IN_CONTROL else None
        seen = image(READ_BACKS[read_back], out, granted, link)
        faults = made.permit(seen, asked, 1.0)
        obstacle = expected(asked, link, granted, silent, out, read_back, before)
        assert made.obstacle is obstacle, (asked, link, granted, silent, out, read_back)
        permitted = made.state
        assert permitted is PERMIT[before, obstacle]
        demands = obstacle in (Obstacle.INVALID, Obstacle.NONE_IN, Obstacle.SHED)
        assert bool(faults) == demands
        made.settle(source, 1.0)
        may = obstacle is Obstacle.NONE and source is not Source.HANDS_OFF
        assert made.may_write == made.in_control == may
        if may:
            assert made.state is (Control.PARTIAL if out else Control.ON)
        if before in IN_CONTROL and not may:
            words = EXITS[obstacle]
            assert any(words in event.text for event in made.events), "every exit says what it is"


def test_other_faults_of_the_image_take_nothing_out():
    made = driving()
    made.permit(replace(image(), faults=(Fault(ReasonCode.OBS_STALE, "valve"),)), True, 1.0)
    assert made.out is None and made.state is Control.ON


def test_what_it_finds_demands_hands_off():
    made = driving(HandshakeSettings(shed_s=2.0))
    (fault,) = made.permit(image((11.0, 0.0)), True, 1.0)
    assert (fault.code, fault.signal, fault.value) == (ReasonCode.FEEDBACK_INVALID, "valve", 11.0)
    assert fault.limit == pytest.approx(10.1)
    made = driving(HandshakeSettings(shed_s=2.0))
    assert made.permit(image(), True, 2.0) == ()
    (fault,) = made.permit(image(), True, 2.5)
    assert (fault.code, fault.value, fault.limit) == (ReasonCode.NOT_GRANTED, 2.5, 2.0)
    (fault,) = driving().permit(image(out=("valve", "pump")), True, 1.0)
    assert fault.code is ReasonCode.NOT_GRANTED and "valve, pump" in fault.text


def test_the_gradient_counts_only_while_we_drive_and_as_long_as_it_took():
    made = driving(HandshakeSettings(rate_slack=2.0))
    made.permit(image(), True, 1.0)
    assert made.permit(image((7.05, 0.0)), True, 2.0) == ()  # 2 x 1/s x 1 s, and 1 % of 10
    (fault,) = made.permit(image((9.5, 0.0)), True, 3.0)
    assert fault.value == pytest.approx(2.45) and fault.limit == 2.0
    made = Handshake(OUTPUTS)
    made.permit(image(), True, 0.0)
    assert made.permit(image((9.0, 0.0)), True, 0.1) == ()
    assert driving().permit(image((9.0, 0.0)), True, 0.0) == (), "no time, no gradient"


def test_a_read_back_that_keeps_still_is_frozen_only_when_it_should_have_moved():
    made = driving(HandshakeSettings(freeze_s=2.0))
    for now_s in (1.0, 2.0, 3.0, 4.0, 5.0):
        assert made.permit(image(), True, now_s) == (), "it is where we sent it"
    made.told(np.array([6.0, 0.0]), 5.0)
    assert [made.permit(image(), True, now_s) for now_s in (6.0, 7.0)] == [(), ()]
    (fault,) = made.permit(image(), True, 8.0)
    assert (fault.code, fault.signal) == (ReasonCode.FEEDBACK_INVALID, "valve")
    assert (fault.value, fault.limit) == (3.0, 2.0)
    assert made.state is Control.FALLBACK
    made = driving(HandshakeSettings(freeze_s=2.0))
    made.permit(image(), True, 1.0)
    made.told(np.array([6.0, 3.0]), 1.0)
    for now_s in (2.0, 3.0, 4.0, 5.0):  # the plant keeps it; nobody sent it anywhere
        made.permit(image((5.0 + 0.01 * now_s, 0.0), out=("pump",)), True, now_s)
        made.settle(Source.POLICY, now_s)
        assert made.state is Control.PARTIAL


def test_an_output_that_is_out_is_followed_and_not_written():
    made = driving()
    wanted, applied = np.array([1.0, 2.0]), np.array(GOOD)
    assert made.follow(wanted, applied) is wanted
    certified = Certified(np.array([1.0, 0.0]), REPORT)
    assert made.keep(certified, applied) is certified
    made.permit(image(out=("pump",)), True, 1.0)
    made.settle(Source.FALLBACK, 1.0)
    assert made.taken_out == ("pump",)
    assert made.follow(wanted, applied).tolist() == [1.0, 0.0]
    kept = made.keep(Certified(np.array([1.0, 0.05]), REPORT), applied)
    assert kept.action.tolist() == [1.0, 0.0] and kept.faults == () and made.may_write
    assert "the plant keeps some outputs, we write the others: pump" in made.events[-1].text
    made.permit(image(), True, 2.0)
    made.settle(Source.FALLBACK, 2.0)
    assert made.state is Control.ON and made.taken_out == ()


@pytest.mark.parametrize("source", Source)
@pytest.mark.parametrize("out", [(), ("pump",), ("valve", "pump")])
@pytest.mark.parametrize("overridden", [(), ("valve",), ("pump",)])
def test_whom_each_output_follows(source, out, overridden):
    """The plant's own word first, then nobody of ours, then a person, then the driver."""
    made = driving()
    made.permit(image(out=out), True, 1.0)
    found = made.participation(source, overridden)
    assert list(found) == ["valve", "pump"]
    for name, whom in found.items():
        if name in out:
            assert whom == "plant"
        elif source is Source.HANDS_OFF:
            assert whom == "none"
        else:
            assert whom == ("override" if name in overridden else source.name.lower())


@pytest.mark.parametrize("applied", [GOOD, (5.0, nan)])
def test_what_the_limits_need_moved_and_the_plant_keeps_stops_everything(applied):
    made = driving()
    made.permit(image(applied, out=("pump",)), True, 1.0)
    made.settle(Source.POLICY, 1.0)
    kept = made.keep(Certified(np.array([1.0, 2.0]), REPORT, ()), np.array(applied))
    assert kept.faults[0].code is ReasonCode.PARTIAL_UNSAFE and kept.faults[0].signal == "pump"
    assert not made.may_write
    made.permit(image(), True, 2.0)
    assert made.may_write, "it counts for one tick; the mode machine keeps the latch"


def test_the_actuators_limits_count_for_what_is_read_and_not_the_sites():
    narrow = SignalSet(tuple(replace(signal, low=-1.0, high=1.0) for signal in OUTPUTS))
    made = Handshake(narrow, physical=OUTPUTS)
    assert made.permit(image((9.0, 4.0)), True, 0.0) == ()


@pytest.mark.parametrize("field", ["shed_s", "freeze_s", "tolerance", "rate_slack"])
@pytest.mark.parametrize("value", [0.0, -1.0, nan])
def test_settings_that_void_a_rule_are_refused(field, value):
    with pytest.raises(ConfigError, match=field):
        HandshakeSettings(**{field: value})
    assert HandshakeSettings().shed_s == inf


# -- in the loop, against the plant that plays the other side -----------------------------------


def bench(**more):
    made = Bench(HOSTILE["bang_bang"](), RunSpec(seed=3, days=2), **more)
    made.loop.handshake = Handshake(
        made.plant.outputs, HandshakeSettings(shed_s=2.0 * made.plant.period_s)
    )
    return made


def controls(made, ticks):
    """(state, did the plant see us drive, writes that arrived so far) of each tick."""
    return [
        (tick.control, made.runner.controlled, made.runner.log.counts.arrived)
        for tick in _step(made, ticks)
    ]


def _step(made, ticks):
    for _ in range(ticks):
        yield made.loop.step()


def test_a_refused_grant_is_waited_for_and_nothing_is_written():
    made = bench()
    made.runner.permit = False
    made.runner.refresh()
    assert all(seen[::2] == (Control.REQUESTED, 0) for seen in controls(made, 5))
    made.runner.permit = True
    made.runner.refresh()
    assert controls(made, 2)[-1][0] is Control.ON
    assert made.runner.controlled


def test_the_plant_takes_back_and_gives_again_without_a_bump():
    made = bench(transfer_s=3600.0)
    controls(made, 3)
    made.runner.permit = False
    made.runner.refresh()
    before = made.runner.log.counts.arrived
    assert [seen[0] for seen in controls(made, 4)] == [Control.FALLBACK] * 4
    assert made.runner.log.counts.arrived == before and made.runner.log.counts.ungranted == 0
    made.runner.permit = True
    made.runner.refresh()
    applied = float(made.runner.applied[0])
    tick = made.loop.step()
    assert tick.control is Control.ON
    assert tick.wanted[0] == applied, "the take-over begins where the plant is"


def test_one_output_kept_is_all_there_is_on_this_plant():
    made = bench()
    controls(made, 3)
    before = made.runner.log.counts.arrived
    made.runner.keep("storage_discharge_kw", True)
    made.runner.refresh()
    seen = list(_step(made, 3))
    assert {tick.control for tick in seen} == {Control.FALLBACK}
    assert {tick.source for tick in seen} == {Source.HANDS_OFF}
    assert ReasonCode.OUTPUT_OUT in {fault.code for fault in seen[-1].faults}
    assert made.runner.log.counts.arrived == before
    made.runner.keep("storage_discharge_kw", False)
    made.runner.refresh()
    assert controls(made, 2)[-1][0] is Control.ON


def test_our_heartbeat_stops_and_the_plant_takes_itself_back():
    made = bench()
    controls(made, 3)
    write = made.link.write
    made.link.write = lambda action, source: replace(
        write(action, Source.HANDS_OFF),
        written=False,
        faults=(Fault(ReasonCode.WRITE_STALE_DROP),),
    )
    # what the wire swallows: the plant's clock goes on, no beat arrives
    made.runner.beat = lambda heartbeat: False
    states = [seen[:2] for seen in controls(made, 6)]
    assert states[-1] == (Control.FALLBACK, False)
    del made.runner.beat
    made.link.write = write
    assert controls(made, 4)[-1][:2] == (Control.ON, True)


def test_a_restart_begins_in_off_whatever_was_before():
    made = bench()
    controls(made, 3)
    again = bench(mode=Mode.OFF)
    again.link.runner = made.runner
    assert [seen[0] for seen in controls(again, 3)] == [Control.OFF] * 3


@pytest.mark.parametrize("mode", list(Mode))
def test_only_a_mode_that_drives_asks(mode):
    made = bench(mode=mode)
    last = controls(made, 3)[-1][0]
    assert last is (Control.ON if mode in (Mode.LIMITED, Mode.FULL) else Control.OFF)
