"""Real runtimes killed again and again with one bundle: then the heuristic drives alone."""

import json
import signal

import pytest

from steadyhand.controllers.errors import RequestError
from steadyhand.controllers.frames import ProposalStatus, Source
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime.reader import JournalReader
from tests.support.loop_rig import until


def notes(rig):
    try:
        return json.loads((rig.folder / "var" / "crash_loop.json").read_bytes())
    except FileNotFoundError:
        return {"running": None, "crashes": [], "latched": []}


def crash(rig, number):
    """Start, and kill as soon as the bundle is noted: before the plant is even reached."""
    process = rig.start_runtime()
    until(lambda: notes(rig)["running"] is not None and len(notes(rig)["crashes"]) == number - 1,
          what="the note", instead=rig.said.read_text)  # fmt: skip
    process.send_signal(signal.SIGKILL)
    assert process.wait(10.0) == -signal.SIGKILL


def events(rig, name):
    with JournalReader(rig.journal) as journal:
        return [event for event in journal.events() if event.event == name]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_while_it_still_starts_is_an_orderly_end(rig, number):
    made = rig()
    process = made.start_runtime()
    until(lambda: notes(made)["running"] is not None, what="the note", instead=made.said.read_text)
    process.send_signal(number)
    assert process.wait(30.0) == 0, made.said.read_text()
    assert notes(made)["running"] is None
    assert "Traceback" not in made.said.read_text()


@pytest.mark.slow  # the same with a real systemd: tests/system/test_systemd.py
@pytest.mark.timeout(240)
def test_crashes_of_one_bundle_take_it_out_until_somebody_has_looked(rig, bundles, first_bundle):
    made = rig()
    for number in (1, 2, 3):
        crash(made, number)

    made.start_runtime()
    made.wait_in_control()
    until(
        lambda: made.status().get("source") == "fallback", what="the heuristic", instead=made.story
    )
    shown = made.status()
    assert shown["latched"] == ["CRASH_LOOP"]
    assert shown["cause"]["code"] == "CRASH_LOOP"
    assert shown["bundle"] == "none"
    assert "first v1 is not started: the runtime crashed 3 times within 10 min" in shown["alarm"]
    assert made.policy_pid() is None  # nothing of the bundle runs, nowhere
    first = made.status()["tick"]
    until(lambda: made.status().get("tick", 0) > first + 3, what="ticks")

    # the same bundle by another way is refused as well
    made.ask("swap", file=str(first_bundle), reason="try")
    until(lambda: events(made, "SwapRefused"), what="a refusal")
    assert "acknowledge CRASH_LOOP first" in events(made, "SwapRefused")[0].data["text"]

    # a stop is no crash, and changes nothing
    assert made.stop_runtime() == 0
    made.start_runtime()
    until(lambda: made.status().get("latched") == ["CRASH_LOOP"], what="still", instead=made.story)

    done = made.cli("ack", "CONFIG", "CRASH_LOOP")
    assert done.returncode == 0, done.stderr
    until(lambda: made.status().get("latched") == [], what="acknowledged", instead=made.story)
    assert "the next restart loads the policy" in made.status()["alarm"]
    until(lambda: notes(made)["latched"] == [], what="on disk")
    with pytest.raises(RequestError, match="ACK_DENIED"):
        made.ask("ack")
    assert made.stop_runtime() == 0

    made.start_runtime()
    made.wait_in_control()
    until(lambda: made.status().get("source") == "policy", what="the policy", instead=made.story)
    assert made.stop_runtime() == 0
    assert (notes(made)["running"], notes(made)["crashes"]) == (None, [])

    # what the record says: who drove meanwhile, why, and how each run before had ended
    told = [event.data["code"] for event in events(made, "Restart")]
    assert told == [ReasonCode.RESTART]  # of the killed runs none lived to tell of the one before
    ticks = [tick for run in made.runs().values() for tick in run]
    barred = [tick for tick in ticks if ReasonCode.CRASH_LOOP in tick.reasons]
    assert barred
    assert all(tick.source >= Source.FALLBACK for tick in barred)
    assert all(tick.proposal.status is ProposalStatus.ABSENT for tick in barred)
