"""kill -9 of the plant's server, of the policy, of the runtime: what the plant saw of it.

Real processes, OPC UA signed and encrypted, the plant's time a few thousand times faster.
"""

import json
from pathlib import Path

import pytest

from tests.support.loop_kills import KINDS, Killer

RESULTS = Path(__file__).parent / "results" / "kills.json"
AT_ANY_TIME = "runtime_at_any_time"
CAMPAIGNS = (*KINDS, AT_ANY_TIME)
COMMAND = "python -m pytest -m slow --timeout 14400 tests/loop/test_kills.py"
SLOW_KILLS = 200
SLOW_KILLS_OF_THE_RUNTIME = 2000
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
def test_kill_campaign_at_any_time(rig):
    """The invariants of `nothing_wrong`, whatever the runtime does when it is killed."""
    made = rig(time_scale=2250.0, changes=OFTEN)
    made.start_runtime()
    made.wait_in_control()
    killer = Killer(made, seed=17)
    planned = {"planned": SLOW_KILLS_OF_THE_RUNTIME}
    for _ in range(SLOW_KILLS_OF_THE_RUNTIME):
        killer.kill_at_any_time()
        write_down(AT_ANY_TIME, made, planned | {"finished": False, **killer.done.figures()})
    made.wait_in_control()
    result = killer.finish()
    write_down(AT_ANY_TIME, made, planned | {"finished": True, **result})
    nothing_wrong(result)


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
    nothing_wrong(result)
    write_down(kind, made, {"finished": True, **result})


def write_down(kind, rig, result):
    """Keep what there is so far, so that a campaign that is cut short is told as one."""
    known = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    result = {"planned": SLOW_KILLS, "tick_wall_s": rig.period_s, **result}
    campaigns = known.get("campaigns", {}) | {kind: result}
    known = {
        "command": COMMAND,
        "what": "kill -9 at a seeded random moment, then wait until the controller drives again",
        "campaigns": {name: campaigns[name] for name in CAMPAIGNS if name in campaigns},
    }
    RESULTS.parent.mkdir(exist_ok=True)
    draft = RESULTS.with_suffix(f".{kind}")
    draft.write_text(json.dumps(known, indent=2) + "\n", encoding="utf-8")
    draft.replace(RESULTS)
