"""What people did, and what waits for them, after a kill and after an orderly stop."""

import os
import signal

import pytest

from steadyhand.runtime.kept import KEPT_FILE
from tests.support.loop_rig import OUTPUT, until

pytestmark = pytest.mark.timeout(300)


def codes(site, what="alarms"):
    return {one["code"] for one in site.status().get(what, ())}


def kept(site, words):
    """Wait until a word stands in the file; it is written by another thread."""
    file = site.folder / "var" / KEPT_FILE
    until(lambda: file.exists() and words in file.read_text(), what=f"{words} is kept")


def killed(site):
    site.runtime.kill()
    site.runtime.wait()
    site.start_runtime()
    until(site.status, what="a finished tick")


def test_an_override_and_its_owner_survive_a_kill(rig):
    """The person who holds an output holds it still, and is told that the run before crashed."""
    site = rig(time_scale=1125.0)
    site.start_runtime()
    until(lambda: site.status().get("source") == "policy", what="the policy drives")
    site.ask("override", output=OUTPUT, value=12.5, reason="pump on test", for_s=86_400.0)
    site.ask("shelve", code="OBS_STUCK", reason="known", for_s=80_000.0)
    kept(site, "pump on test")
    kept(site, "OBS_STUCK")
    first = site.status()
    killed(site)
    now = site.status()
    (held,) = now["overrides"]
    assert (held["output"], held["value"], held["reason"]) == (OUTPUT, 12.5, "pump on test")
    assert held["owner"] == first["overrides"][0]["owner"]
    # the time that nothing ran is taken off: its end is where it was, by the clock; a starved plant
    # whose time catches up brings it nearer
    assert held["until_wall_s"] <= first["overrides"][0]["until_wall_s"] + 5.0
    assert codes(site, "shelved") == {"OBS_STUCK"}
    site.wait_in_control()
    until(lambda: site.status()["sent"][OUTPUT] == pytest.approx(12.5), what="the held value")
    assert "RESTART" in codes(site)
    assert now["latched"] == []
    said = site.said.read_text()
    assert f"from the run before: override of {OUTPUT} at 12.5 by " in said
    assert site.ask("ack", code="RESTART")["acknowledged"] == ["RESTART"]
    until(lambda: "RESTART" not in codes(site), what="the alarm ends")
    assert [one["output"] for one in site.status()["overrides"]] == [OUTPUT]
    site.ask("clear-override", output=OUTPUT)
    assert site.stop_runtime() == 0
    site.start_runtime()
    until(site.status, what="a finished tick")
    assert site.status()["overrides"] == []
    assert "RESTART" not in codes(site)


def test_what_was_latched_waits_for_a_person_after_a_restart_too(rig):
    """A crash loop of the policy's process; then a restart of the service instead of a look."""
    site = rig(time_scale=2250.0)
    site.start_runtime()
    until(lambda: site.status().get("source") == "policy", what="the policy drives")
    for number in range(3):
        until(site.policy_pid, what="a policy process")
        os.kill(site.policy_pid(), signal.SIGKILL)
        if number < 2:
            before = number + 1
            until(lambda: site.status().get("proposed", {}).get(OUTPUT) is not None, what=before)
    until(lambda: "CRASH_LOOP" in site.status()["latched"], what="it is latched")
    kept(site, "CRASH_LOOP")
    assert site.stop_runtime() == 0
    site.start_runtime()
    until(lambda: site.status().get("link") == "up", what="the link")
    until(lambda: site.status()["proposed"][OUTPUT] is not None, what="a proposal")
    site.wait_in_control()
    now = site.status()
    assert now["latched"] == ["CRASH_LOOP"]
    assert now["source"] == "fallback"
    assert site.ask("ack", code="CRASH_LOOP")["acknowledged"] == ["CRASH_LOOP"]
    until(lambda: site.status().get("source") == "policy", what="the policy drives again")
    assert site.stop_runtime() == 0


def test_less_than_was_asked_for_is_told_until_somebody_asks_again(rig):
    site = rig(time_scale=2250.0, initial="off")
    site.start_runtime()
    until(lambda: site.status().get("link") == "up", what="the link")
    now = site.status()
    kept(site, f'"plant":"{now["name"]}"')  # though nobody has done anything
    assert (now["mode"], now["asked"]) == ("off", None)
    assert "NOT_RESUMED" not in codes(site)
    site.ask("mode", mode="full", reason="go")
    kept(site, '"full"')
    killed(site)
    now = site.status()
    assert (now["mode"], now["asked"]) == ("off", "full")
    until(lambda: "NOT_RESUMED" in codes(site), what="it is told")
    assert "before the restart: full" in site.cli("status", "CONFIG").stdout
    assert site.cli("status", "CONFIG").stdout.count("NOT_RESUMED") == 1
    site.ask("mode", mode="off", reason="leave it")
    until(lambda: "NOT_RESUMED" not in codes(site), what="it ends")
    site.ask("mode", mode="limited", reason="go")
    site.wait_in_control()
    assert "NOT_RESUMED" not in codes(site)


def test_a_state_that_cannot_be_read_waits_for_a_person(rig):
    """Nobody knows what was overridden or latched: the heuristic drives until a person looked."""
    site = rig(time_scale=2250.0)
    (site.folder / "var").mkdir(mode=0o700)
    (site.folder / "var" / KEPT_FILE).write_bytes(b'{"schema_version": 1, "latches": 5}')
    site.start_runtime()
    site.wait_in_control()
    now = site.status()
    assert now["latched"] == ["STATE_LOST"]
    assert now["source"] == "fallback"
    assert KEPT_FILE in site.said.read_text()
    kept(site, "STATE_LOST")
    killed(site)
    until(lambda: "RESTART" in codes(site), what="the crash is told")
    # who acknowledges one thing has not looked at the other
    assert site.ask("ack", code="RESTART")["acknowledged"] == ["RESTART"]
    assert site.status()["latched"] == ["STATE_LOST"]
    assert site.ask("ack")["acknowledged"] == ["STATE_LOST"]
    until(lambda: site.status().get("source") == "policy", what="the policy drives")


def test_an_alarm_that_is_over_waits_for_a_person_over_a_restart_too(rig):
    """The plant was gone and is back. Nobody was there; whoever comes reads that it was."""
    site = rig(time_scale=2250.0)
    site.start_runtime()
    site.wait_in_control()
    assert "LINK_DOWN" not in codes(site), "a start is no news"
    site.plant.kill()
    until(lambda: line(site).get("active") is True, what="the alarm", instead=site.story)
    site.start_plant()
    site.wait_in_control()
    until(lambda: line(site).get("active") is False, what="it is over", instead=site.story)
    assert line(site)["unacknowledged"] and not line(site)["latched"]
    assert "gone, waits to be acknowledged" in site.cli("status", "CONFIG").stdout
    kept(site, "LINK_DOWN")
    killed(site)
    site.wait_in_control()
    assert line(site)["unacknowledged"]
    assert "LINK_DOWN" in site.ask("ack", code="LINK_DOWN")["acknowledged"]
    until(lambda: "LINK_DOWN" not in codes(site), what="the end", instead=site.story)
    assert site.stop_runtime() == 0
    assert "LINK_DOWN" not in (site.folder / "var" / KEPT_FILE).read_text()


def line(site):
    """Of the list of alarms, about the link; empty when there is none."""
    return next((a for a in site.status().get("alarms", ()) if a["code"] == "LINK_DOWN"), {})
