"""A disk that takes nothing when the runtime starts: it drives, tells, and records in memory."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from steadyhand.runtime.chain import verify
from steadyhand.runtime.exits import Exit
from steadyhand.runtime.reader import JournalReader
from tests.support.loop_rig import Rig, until
from tests.support.small_disks import fill, remount, small_disk

DIRECTORY = "directory: var/journal"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MiB of our own, for everything that a plant's runtime writes."""
    with small_disk(tmp_path / "disk", "size=3m,mode=700") as mount:
        yield mount


def ran_before(rig: Callable[..., Rig], disk: Path, more: str = "") -> Rig:
    """A plant whose runtime has driven from `disk`, and was stopped in order."""
    changes = {
        DIRECTORY: f"directory: {disk}/journal{more}",
        "socket: var/operator.sock": f"socket: {disk}/operator.sock",
    }
    made = rig(time_scale=3000.0, changes=changes)
    (made.folder / "var").symlink_to(disk)
    made.start_runtime()
    made.wait_in_control()
    assert made.stop_runtime() == 0
    return made


def alarms(made: Rig) -> set[str]:
    return {alarm["code"] for alarm in made.status().get("alarms", ()) if alarm["active"]}


def source(made: Rig) -> str:
    return str(made.status().get("source", ""))


def test_on_a_full_disk_it_drives_and_tells(rig, disk):
    made = ran_before(rig, disk)
    ballast = fill(disk)
    checked = made.cli("check", "CONFIG")
    assert checked.returncode == Exit.DONE, checked.stdout
    assert "No space left on device; `run` keeps the record in memory" in checked.stdout
    made.start_runtime()
    made.wait_in_control()
    until(lambda: "AUDIT_DEGRADED" in alarms(made), what="the alarm", instead=made.status)
    until(lambda: source(made) == "policy", what="the policy", instead=made.story)
    assert "nothing is recorded on disk now: AUDIT_FULL" in made.said.read_text()
    second = made.cli("run", "CONFIG", "--max-ticks", "1")
    assert second.returncode == Exit.REFUSED, "one runtime for a plant, disk or not"
    assert "one writer only" in second.stderr
    ballast.unlink()
    until(lambda: "AUDIT_DEGRADED" not in alarms(made), what="its end", instead=made.status)
    assert made.stop_runtime() == 0
    result = verify(disk / "journal")
    assert result.ok, result.problems
    with JournalReader(disk / "journal") as journal:
        numbers = [tick.sequence for tick in journal.ticks()]
        told = {event.event for event in journal.events(run=journal.runs[-1])}
    assert numbers == list(range(len(numbers))), "every tick, those in memory among them"
    assert {"JournalDegraded", "JournalRecovered"} <= told
    noted = re.findall(r"^steadyhand: journal head (\S+)$", made.said.read_text(), re.M)
    assert noted, "the service manager's log keeps the end of each run"
    for head in noted:
        checked = made.cli("journal", "verify", str(disk / "journal"), "--head", head)
        assert checked.returncode == Exit.DONE, checked.stdout


def test_on_a_read_only_disk_it_drives_and_people_come_in_later(rig, disk):
    made = ran_before(rig, disk)
    remount(disk, "ro")
    made.start_runtime()
    made.wait_in_control()
    assert "AUDIT_RO" in made.said.read_text()
    assert made.status() == {}, "no socket can be made there"
    remount(disk, "rw")
    until(lambda: made.status() != {}, what="the operator's socket", instead=made.story)
    until(lambda: not alarms(made) & {"AUDIT_DEGRADED", "OPERATOR_DOWN"}, what="no alarm of it")
    assert made.stop_runtime() == 0
    assert verify(disk / "journal").ok


def test_where_the_record_is_required_the_heuristic_drives_meanwhile(rig, disk):
    made = ran_before(rig, disk, "\n  required: true")
    ballast = fill(disk)
    made.start_runtime()
    made.wait_in_control()
    until(lambda: "AUDIT_REQUIRED" in alarms(made), what="the alarm", instead=made.status)
    assert source(made) == "fallback"
    ballast.unlink()
    until(lambda: source(made) == "policy", what="the policy, once it is recorded again")
    # what has to outlive a restart is tried again every RETRY_S
    until(lambda: not alarms(made) & {"AUDIT_DEGRADED", "AUDIT_REQUIRED"}, what="no alarm of it")
    assert made.stop_runtime() == 0
    with JournalReader(disk / "journal") as journal:
        run = journal.runs[-1]
        drove = [
            tick.source.name
            for tick in journal.ticks(run=run)
            if any(fault.code == "AUDIT_REQUIRED" for fault in tick.observation.faults)
        ]
    assert drove
    assert "POLICY" not in drove
