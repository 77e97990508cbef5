"""kill -9 of the plant's server, of the policy, of the runtime: what the plant saw of it.

Real processes, OPC UA signed and encrypted, the plant's time a few thousand times faster.
"""

import pytest

from tests.support import results
from tests.support.loop_kills import KINDS, RESTART_S, Killer

RESULTS = results.RESULTS / "kills.json"
SEEDS_AT_ANY_TIME = (17, 18, 19, 20)
"""A campaign each, so that two can be under way at once and one can be repeated."""
CAMPAIGNS = (*KINDS, *(f"runtime_at_any_time_{seed}" for seed in SEEDS_AT_ANY_TIME))
COMMAND = "python -m pytest -m slow --timeout 14400 tests/loop/test_kills.py"
SLOW_KILLS = 200
SLOW_KILLS_OF_THE_RUNTIME = 500
"""Of each seed."""
OFTEN = {"clean_ticks: 4": "clean_ticks: 4\n  max_raises: 100000"}
"""A day of the plant lasts 38 s here: control may come and go more often than a person bears."""


def nothing_wrong(result):
    """Every invariant that an observer of the plant can see."""
    plant, journal = result["counted_by_the_plant"], result["compared_with_the_journal"]
    assert plant["arrived"] > 0
    for name in ("nonfinite", "outside", "rate", "ungranted"):
        assert plant[name] == 0, result
    for name in ("not_finite", "outside", "second_writer", "without_reason"):
        assert journal[name] == 0, result
    # the journal is written 30 ms behind the loop; what a kill cuts off, the black box keeps
    assert journal["unrecorded"] == 0, result
    assert result["policy_processes_left_behind"] == 0
    if "runtime" in result["kills"]:
        nothing_lost(result)


def nothing_lost(result):
    """What was on disk stays there; what was being written is thrown away, and no more than that.

    The journal and the black box have one writer each, and a kill catches it at one record.
    """
    assert result["acknowledged_records"]["looked_for"] > 0
    assert result["acknowledged_records"]["lost"] == 0, result
    assert result["chains_repaired"] == 0, result
    assert result["cut_off"]["most_of_the_journal_by_one_kill"] <= 1, result
    assert result["cut_off"]["most_slots_by_one_kill"] <= 1, result


def starts_in_time(result):
    """Every run that was not killed before counts, so the kills choose nothing."""
    assert result["runs_that_lived_2_s"] > 0
    assert result["their_first_tick_s"]["p95"] < RESTART_S, result


@pytest.mark.timeout(300)
def test_any_part_may_be_killed_at_any_moment(rig):
    """Three ends of the policy's process in a row wait for a person, so the order matters."""
    made = rig(time_scale=2250.0, changes=OFTEN)
    made.start_runtime()
    made.wait_in_control()
    killer = Killer(made, seed=7)
    for kind in ("policy", "policy", "policy", "plant", "runtime", "policy", "plant", "runtime"):
        killer.kill(kind)
    result = killer.finish()
    nothing_wrong(result)
    assert result["kills"] == {"plant": 2, "policy": 4, "runtime": 2}


@pytest.mark.timeout(300)
def test_the_runtime_may_be_killed_while_it_starts(rig):
    made = rig(time_scale=2250.0, changes=OFTEN)
    made.start_runtime()
    made.wait_in_control()
    killer = Killer(made, seed=11)
    for _ in range(6):
        killer.kill_at_any_time()
    made.wait_in_control()
    nothing_wrong(killer.finish())


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS_AT_ANY_TIME)
def test_kill_campaign_at_any_time(rig, seed):
    """The invariants of `nothing_wrong`, whatever the runtime does when it is killed."""
    made = rig(time_scale=2250.0, changes=OFTEN)
    made.start_runtime()
    made.wait_in_control()
    killer, name = Killer(made, seed), f"runtime_at_any_time_{seed}"
    planned = {"planned": SLOW_KILLS_OF_THE_RUNTIME}
    for _ in range(SLOW_KILLS_OF_THE_RUNTIME):
        killer.kill_at_any_time()
        write_down(name, made, planned | {"finished": False, **killer.done.figures()})
    made.wait_in_control()
    result = killer.finish()
    write_down(name, made, planned | {"finished": True, **result})
    nothing_wrong(result)
    starts_in_time(result)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_kill_campaign(rig, kind):
    made = rig(time_scale=2250.0, changes=OFTEN)
    made.start_runtime()
    made.wait_in_control()
    killer = Killer(made, seed=KINDS.index(kind))
    for _ in range(SLOW_KILLS):
        killer.kill(kind)
        write_down(kind, made, {"finished": False, **killer.done.figures()})
    result = killer.finish()
    write_down(kind, made, {"finished": True, **result})
    nothing_wrong(result)
    if kind == "runtime":
        starts_in_time(result)


def write_down(kind, rig, result):
    """Keep what there is so far, so that a campaign that is cut short is told as one."""
    with results.turn(RESULTS):
        write_down_alone(kind, rig, result)


def write_down_alone(kind, rig, result):
    known = results.read(RESULTS)
    about = {"commit": results.COMMIT, "planned": SLOW_KILLS, "tick_wall_s": rig.period_s}
    campaigns = known.get("campaigns", {}) | {kind: about | result}
    figures = {
        "command": COMMAND,
        "what": "kill -9 at a seeded random moment, then wait until the controller drives again",
        **({"note": known["note"]} if "note" in known else {}),
        "campaigns": {name: campaigns[name] for name in CAMPAIGNS if name in campaigns},
    }
    results.keep(RESULTS, figures)
