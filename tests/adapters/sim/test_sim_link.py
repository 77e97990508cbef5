"""SimLink keeps the promises of a link."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from steadyhand.adapters.link import Link
from steadyhand.adapters.sim.link import SimLink
from steadyhand.adapters.sim.plants import RunSpec, make_runner
from steadyhand.controllers.frames import LinkState, Source
from steadyhand.controllers.reasons import ReasonCode


def opened(runner) -> SimLink:
    link = SimLink(runner)
    link.open()
    return link


def test_is_a_link_and_down_until_opened(tank_runner):
    link: Link = SimLink(tank_runner())
    assert link.read(0.0).link is LinkState.DOWN
    link.open()
    assert link.read(0.0).link is LinkState.UP
    link.close()
    link.close()
    assert link.read(0.0).link is LinkState.DOWN


def test_a_write_drives_and_advances_one_period(tank_runner):
    link = opened(tank_runner())
    before = link.read(0.0)
    action = np.array([0.02])
    sent = link.write(action, Source.POLICY)
    action[0] = 99.0  # the caller's array is not the link's
    after = link.read(0.0)
    assert (sent.written, sent.sequence, sent.time_s, sent.action.tolist()) == (
        True,
        1,
        0.0,
        [0.02],
    )
    assert after.sequence == before.sequence + 1
    assert after.time_s == before.time_s + 100.0
    assert after.values[0] == 2.0
    assert link.read(1e9) is after  # the same image until the plant moves


def test_hands_off_sends_the_heartbeat_alone(tank_runner):
    link = opened(tank_runner(local=-0.01))
    sent = link.write(np.array([0.3]), Source.HANDS_OFF)
    assert not sent.written and sent.sequence == 1
    assert link.runner.heartbeat == 1
    assert link.read(0.0).applied.tolist() == [-0.01]
    assert link.runner.log.totals()["arrived"] == 0
    assert link.read(0.0).time_s == 100.0


def test_skipping_lets_the_plant_shed(tank_runner):
    link = opened(tank_runner(local=-0.01, shed_s=200.0))
    link.write(np.array([0.02]), Source.POLICY)
    link.skip()
    assert link.read(0.0).applied.tolist() == [0.02]  # within the shed time the last command holds
    link.skip()
    assert link.read(0.0).applied.tolist() == [-0.01]


def test_release_gives_the_plant_back_at_once(tank_runner):
    link = opened(tank_runner(local=-0.01))
    link.write(np.array([0.02]), Source.POLICY)
    link.release()
    link.skip()
    assert link.read(0.0).applied.tolist() == [-0.01]


def test_a_cut_wire_tells_old_news_with_its_age(tank_runner):
    link = opened(tank_runner(local=-0.01, shed_s=150.0))
    link.write(np.array([0.02]), Source.POLICY)
    last = link.read(0.0)
    link.state = LinkState.DOWN
    sent = link.write(np.array([0.4]), Source.POLICY)
    assert not sent.written
    assert [fault.code for fault in sent.faults] == [ReasonCode.LINK_DOWN]
    link.skip()
    seen = link.read(0.0)
    assert seen.sequence == last.sequence
    assert seen.age_s.tolist() == [200.0, 200.0]
    assert [fault.code for fault in seen.faults] == [ReasonCode.LINK_DOWN]
    assert link.runner.applied.tolist() == [-0.01]  # meanwhile the plant looked after itself
    link.state = LinkState.UP
    assert link.read(0.0).age_s.tolist() == [0.0, 0.0]
    assert link.runner.log.totals()["arrived"] == 1


def test_wait_fresh_answers_at_once(tank_runner):
    link = opened(tank_runner())
    assert not link.wait_fresh(0, 10.0)
    link.skip()
    assert link.wait_fresh(0, 10.0)
    link.state = LinkState.DOWN
    assert not link.wait_fresh(0, 10.0)


actions = st.floats(allow_nan=True, allow_infinity=True, width=64)
moves = st.lists(
    st.one_of(
        st.tuples(st.just("write"), actions, st.sampled_from(list(Source))),
        st.tuples(st.just("skip")),
        st.tuples(st.just("release")),
        st.tuples(st.just("cut"), st.booleans()),
        st.tuples(st.just("grant"), st.booleans()),
    ),
    max_size=40,
)


@settings(max_examples=40, deadline=None)
@given(moves=moves)
def test_whatever_is_sent_the_plant_stays_physical_and_never_obeys_without_a_grant(moves):
    link = opened(make_runner(RunSpec(seed=1, days=1, substeps=1)))
    runner, p = link.runner, link.runner.plant.parameters
    for move in moves:
        before = link.read(0.0)
        time_s, applied = runner.time_s, runner.applied
        if move[0] == "write":
            sent = link.write(np.array([move[1]]), move[2])
            assert sent.written == (link.state is LinkState.UP and move[2] is not Source.HANDS_OFF)
        elif move[0] == "skip":
            link.skip()
        elif move[0] == "release":
            link.release()
        elif move[0] == "cut":
            link.state = LinkState.DOWN if move[1] else LinkState.UP
        else:
            runner.permit = move[1]
        moved = move[0] in ("write", "skip")
        assert runner.time_s == time_s + 900.0 * moved
        assert link.read(0.0).sequence >= before.sequence
        assert np.isfinite(runner.x).all() and np.isfinite(runner.cost)
        assert -1e-6 <= runner.x[0] <= p.capacity_kwh + 1e-6
        assert -p.charge_max_kw <= runner.applied[0] <= p.discharge_max_kw
        if not moved:
            assert runner.applied is applied
        assert runner.controlled <= (runner.permit and runner.requested)
