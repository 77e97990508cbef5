"""Crashes counted by bundle, over real deaths of real processes."""

import json
import os
import signal
import subprocess
import sys

import pytest

from steadyhand.controllers.errors import ConfigError
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime.crash_loop import (
    END_FILE,
    STATE_FILE,
    WINDOW_S,
    Counted,
    CrashLoop,
    Moment,
)

ONE = Counted(digest="1" * 64, label="one v1")
TWO = Counted(digest="2" * 64, label="two v2")


class Hands:
    """A clock that the test turns, on a machine that the test restarts."""

    def __init__(self):
        self.s = 1000.0
        self.boot = 1
        self.wall_offset_s = 0.0

    def __call__(self):
        return Moment(
            wall_s=1.7e9 + self.s + self.wall_offset_s, boot_s=self.s, boot_id=str(self.boot)
        )

    def reboot(self, wall_s, up_s=5.0):
        """The machine is up for so long, and its wall clock stands there."""
        self.boot += 1
        self.s, self.wall_offset_s = up_s, wall_s - 1.7e9 - up_s


@pytest.fixture
def clock():
    return Hands()


@pytest.fixture
def start(tmp_path, clock):
    """One more start, after the death of whoever ran before."""
    made = []

    def begin(after_s=1.0):
        if made:
            made[-1]._release()  # what the kernel does for a dead process
        clock.s += after_s
        made.append(CrashLoop(tmp_path, now=clock))
        assert made[-1].fault == ""
        return made[-1]

    yield begin
    made[-1]._release()


def crash(start, policy=ONE, after_s=1.0):
    """A run with `policy` that did not end in order."""
    begun = start(after_s)
    begun.use(policy)
    return begun


def test_the_third_crash_with_one_bundle_bars_it(start):
    for _ in range(3):
        assert crash(start).barred(ONE.digest) == ""
    fourth = start()
    assert "3 times within 10 min" in fourth.barred(ONE.digest)
    assert fourth.latched == (ONE,)
    assert fourth.barred(TWO.digest) == ""


def test_two_crashes_do_not(start):
    for _ in range(2):
        crash(start)
    assert start().barred(ONE.digest) == ""


@pytest.mark.parametrize(("gap_s", "barred"), [(299.0, True), (300.5, False)])
def test_only_crashes_within_the_window_count(start, gap_s, barred):
    """The first of three lies two gaps before the last: 598 s or 601 s."""
    assert WINDOW_S == 600.0
    for _ in range(3):
        crash(start, after_s=gap_s)
    assert bool(start(gap_s).barred(ONE.digest)) is barred


def test_crashes_are_counted_by_bundle(start):
    for policy in (ONE, TWO, ONE, TWO):
        crash(start, policy)
    fifth = start()
    assert fifth.latched == ()
    fifth.use(TWO)
    sixth = start()
    assert sixth.latched == (TWO,)


def test_without_a_bundle_nothing_is_counted(start):
    for _ in range(5):
        crash(start, Counted())
    assert start().latched == ()


def test_an_orderly_end_does_not_count(start):
    for _ in range(6):
        begun = start()
        with begun.run():
            begun.use(ONE)
    sixth = start()
    assert sixth.latched == ()
    assert sixth.before is None


@pytest.mark.parametrize("error", [ConfigError("refused"), SystemExit(0), KeyboardInterrupt()])
def test_a_start_that_is_refused_or_stopped_does_not_count(start, error):
    begun = start()
    with pytest.raises(type(error)), begun.run():
        begun.use(ONE)
        raise error
    assert start().before is None


def test_a_defect_counts(start):
    begun = start()
    with pytest.raises(ZeroDivisionError), begun.run():
        begun.use(ONE)
        raise ZeroDivisionError
    assert start().before.policy == ONE


def test_the_bundle_that_was_swapped_in_is_the_one_that_counts(start):
    for _ in range(3):
        begun = start()
        begun.use(ONE)
        begun.use(TWO)
    assert start().latched == (TWO,)


def test_it_stays_until_it_is_acknowledged(start):
    for _ in range(3):
        crash(start)
    later = start()
    with later.run():
        later.use(Counted())
    last = start(10 * WINDOW_S)
    assert last.barred(ONE.digest)
    assert last.acknowledge() == ("one v1",)
    assert last.barred(ONE.digest) == ""
    assert last.acknowledge() == ()
    crash(start)
    crash(start)
    assert start().barred(ONE.digest) == ""  # counted from nothing again


def test_a_wall_clock_that_is_set_moves_nothing(start, clock):
    crash(start)
    clock.wall_offset_s = 1e7
    crash(start)
    clock.wall_offset_s = -1e7
    crash(start)
    assert start().barred(ONE.digest)


def test_over_a_reboot_the_wall_clock_is_all_there_is(start, clock):
    crash(start)
    crash(start)  # finds the first, before the reboot
    clock.reboot(1.7e9 + 3000.0)  # 2000 s later
    crash(start)
    assert start().latched == ()  # three altogether, two of them within the window


@pytest.mark.parametrize(("off_s", "barred"), [(60.0, True), (400.0, False)])
def test_a_machine_that_goes_down_with_it_counts_where_its_clock_goes_on(
    start, clock, off_s, barred
):
    for _ in range(3):
        crash(start)
        clock.reboot(clock().wall_s + off_s)
    assert bool(start().barred(ONE.digest)) is barred


@pytest.mark.parametrize("begins_s", [0.0, 1.6e9])
@pytest.mark.parametrize("later_s", [0.0, 0.5, -0.5])
def test_power_cuts_bar_nothing_on_a_box_whose_clock_begins_anew_each_time(
    start, clock, begins_s, later_s
):
    """By that clock all of them happened in the same few seconds."""
    for number in range(20):
        clock.reboot(begins_s + 20.0 + number * later_s, up_s=20.0)
        assert crash(start).barred(ONE.digest) == ""


@pytest.mark.parametrize("wall_s", [0.0, 1.6e9, 1.7e9 + 2000.0])
def test_whatever_the_clock_says_after_a_reboot_crashes_within_it_count(start, clock, wall_s):
    crash(start)
    crash(start)
    clock.reboot(wall_s)
    crash(start)  # finds the second one of before: the first that is seen in this boot
    assert crash(start).latched == ()
    assert start().latched == (ONE,)


def test_a_clock_that_is_put_right_after_the_boot_bars_nothing_by_itself(start, clock):
    for number in range(10):
        clock.reboot(20.0, up_s=20.0)
        crash(start)
        clock.wall_offset_s = 86_400.0 * number  # the time server answers
        assert start().barred(ONE.digest) == ""
        clock.s += WINDOW_S
        crash(start)


@pytest.mark.parametrize(
    ("end", "code", "words"),
    [
        ("watchdog killed ABRT", ReasonCode.WATCHDOG_PREV, "watchdog, signal ABRT"),
        ("watchdog dumped ABRT", ReasonCode.WATCHDOG_PREV, "watchdog, signal ABRT"),
        ("oom-kill killed KILL", ReasonCode.OOM_PREV, "oom-kill, signal KILL"),
        ("signal killed SEGV", ReasonCode.RESTART, "signal SEGV"),
        ("exit-code exited 70", ReasonCode.RESTART, "exit status 70"),
        ("", ReasonCode.RESTART, "machine went down"),
        ("success exited 0", ReasonCode.RESTART, "machine went down"),
        ("\x00\xff", ReasonCode.RESTART, "machine went down"),
    ],
)
def test_how_the_run_before_ended(start, tmp_path, end, code, words):
    crash(start)
    (tmp_path / END_FILE).write_bytes(end.encode("latin-1"))
    before = start().before
    assert (before.code, before.policy) == (code, ONE)
    assert words in before.text


def test_the_end_of_an_earlier_run_is_not_told_again(start, tmp_path):
    crash(start)
    (tmp_path / END_FILE).write_text("watchdog killed ABRT")
    crash(start)
    assert start().before.code is ReasonCode.RESTART


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"\xff\xfe", b'{"schema_version": 2}', b'{"running": {"digest": "x"}}',
     b'{"latched": [{"digest": 3}]}', b"[" * 10_000, b'{"surprise": 1}', b" " * 70_000],
)  # fmt: skip
def test_notes_that_cannot_be_read_bar_every_bundle_until_acknowledged(start, tmp_path, content):
    (tmp_path / STATE_FILE).write_bytes(content)
    begun = start()
    assert "cannot be read" in begun.barred(ONE.digest)
    assert str(tmp_path / STATE_FILE) in begun.barred(TWO.digest)
    assert start().barred(ONE.digest)  # also at the next start
    last = start()
    assert last.acknowledge() == ("all bundles",)
    assert start().barred(ONE.digest) == ""


def test_a_link_in_place_of_the_notes_is_not_followed(start, tmp_path):
    (tmp_path / "elsewhere").write_text("{}")
    (tmp_path / STATE_FILE).symlink_to(tmp_path / "elsewhere")
    assert start().barred(ONE.digest)
    assert (tmp_path / "elsewhere").read_text() == "{}"


def test_the_notes_are_bounded_and_private(start, tmp_path):
    for _ in range(100):
        crash(start)
    file = tmp_path / STATE_FILE
    assert len(json.loads(file.read_bytes())["crashes"]) == 30
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.stat().st_size < 2**16


def test_a_second_process_neither_counts_nor_spoils_anything(start, tmp_path, clock):
    first = crash(start)
    second = CrashLoop(tmp_path, now=clock)
    assert "another process" in second.fault
    assert second.before is None
    with second.run():
        second.use(TWO)
    with first.run():
        pass
    assert start().before is None


def test_a_disk_that_is_full_is_told_and_stops_nothing(start, monkeypatch):
    def refuse(path, data):
        raise OSError(28, "No space left on device")

    begun = start()
    monkeypatch.setattr("steadyhand.runtime.crash_loop.replace", refuse)
    begun.use(ONE)
    assert "No space left" in begun.fault
    monkeypatch.undo()
    begun.use(ONE)
    assert begun.fault == ""


CHILD = """
import sys, time
from pathlib import Path
from steadyhand.runtime.crash_loop import Counted, CrashLoop
notes = CrashLoop(Path(sys.argv[1]))
with notes.run():
    digest = sys.argv[2] * 64
    print(notes.barred(digest) or "free", flush=True)
    notes.use(Counted(digest=digest, label="child"))
    print("noted", flush=True)
    time.sleep(float(sys.argv[3]))
"""


def child(folder, digest, seconds):
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(folder), digest, str(seconds)],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    return process, process.stdout.readline().strip()


def test_real_processes_killed_as_soon_as_they_have_noted(tmp_path):
    said = []
    for _ in range(4):
        process, word = child(tmp_path, "a", 60)
        said.append(word)
        assert process.stdout.readline().strip() == "noted"
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    assert said[:3] == ["free"] * 3
    assert "crashed 3 times" in said[3]
    process, word = child(tmp_path, "b", 0)
    process.communicate()
    assert (word, process.returncode) == ("free", 0)


def test_real_processes_killed_at_any_moment_leave_notes_that_can_be_read(tmp_path):
    for k in range(12):
        process, word = child(tmp_path, f"{k % 10}", 60)
        assert word == "free"  # no bundle crashes often enough, and no note is ever half
        os.kill(process.pid, signal.SIGKILL)  # before, while or after it writes
        process.communicate()
