"""What people did, across restarts, and when many change it at once."""

import errno
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from math import isnan, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadyhand.controllers.frames import Fault
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime import kept as module
from steadyhand.runtime.alarms import Shelf
from steadyhand.runtime.crash_loop import Moment
from steadyhand.runtime.kept import Before, Keeper, Kept, load_kept, save_kept
from steadyhand.runtime.modes import Mode
from steadyhand.runtime.overrides import Override

THEN = Moment(wall_s=1.7e9, boot_s=5000.0, boot_id="b")
HELD = Override("valve", 3.5, "anna", "stuck sensor", 1900.0, 3600.0)
LATCHED = Fault(ReasonCode.CERT_CHANGED, "link", nan, 2.0, "another certificate")
SHELVED = Shelf(ReasonCode.OBS_STUCK, "ben", "known", 1100.0)
NOTE = Fault(ReasonCode.RESTART, text="killed")
WAITING = Fault(ReasonCode.LINK_DOWN, text="no route")
FULL = Kept(Mode.FULL, (HELD,), (LATCHED,), (SHELVED,), (NOTE,), (WAITING,))


def later(seconds, boot_id="b"):
    return lambda: Moment(
        wall_s=THEN.wall_s + seconds, boot_s=THEN.boot_s + seconds, boot_id=boot_id
    )


def test_everything_comes_back_with_what_is_left_of_its_time(tmp_path):
    path = tmp_path / "kept.json"
    save_kept(path, Kept(), 0.0, THEN)
    save_kept(path, FULL, 1000.0, THEN)
    before = load_kept(path, 2.0, later(30.0))
    assert (before.fault, before.ended) == ("", ())
    kept = before.kept
    assert kept.asked is Mode.FULL
    assert kept.overrides == (replace(HELD, expires_s=900.0 - 60.0),)
    assert kept.shelves == (replace(SHELVED, expires_s=100.0 - 60.0),)
    assert kept.notes[0].text == "killed"
    assert [(one.code, one.text) for one in kept.waiting] == [("LINK_DOWN", "no route")]
    (latch,) = kept.latches
    assert (latch.code, latch.signal, latch.limit, latch.text) == (
        ReasonCode.CERT_CHANGED, "link", 2.0, "another certificate",
    )  # fmt: skip
    assert isnan(latch.value)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [item.name for item in tmp_path.iterdir()] == ["kept.json"]


def test_what_ended_meanwhile_is_told_apart(tmp_path):
    path = tmp_path / "kept.json"
    save_kept(path, FULL, 1000.0, THEN)
    before = load_kept(path, 1.0, later(901.0, boot_id="after a reboot"))
    assert [one.output for one in before.ended] == ["valve"]
    assert before.kept.overrides == before.kept.shelves == ()
    assert len(before.kept.latches) == 1, "a latch has no end"


def test_a_clock_that_went_back_gives_no_time_on_top(tmp_path):
    path = tmp_path / "kept.json"
    save_kept(path, FULL, 1000.0, THEN)
    before = load_kept(path, 1.0, later(-1e6, boot_id="after a reboot"))
    assert before.kept.overrides[0].expires_s == 900.0


WORDS = st.text(max_size=20)
ENDS = st.floats(-1e9, 1e9)
ANY = st.builds(
    Kept,
    st.sampled_from([None, *Mode]),
    st.lists(
        st.builds(Override, WORDS, st.floats(), WORDS, WORDS, ENDS, st.floats(1e-6, 1e9)),
        max_size=3,
    ).map(tuple),
    st.lists(
        st.builds(Fault, st.sampled_from(ReasonCode), WORDS, st.floats(), st.floats(), WORDS),
        max_size=3,
    ).map(tuple),
    st.lists(
        st.builds(Shelf, st.sampled_from(ReasonCode), WORDS, WORDS, ENDS), max_size=3
    ).map(tuple),
    waiting=st.lists(
        st.builds(Fault, st.sampled_from(ReasonCode), WORDS, st.floats(), st.floats(), WORDS),
        max_size=3,
    ).map(tuple),
)  # fmt: skip


@given(ANY)
def test_whatever_is_kept_can_be_read(tmp_path_factory, kept):
    """Whatever people wrote as a reason, and whatever number a fault had."""
    path = tmp_path_factory.mktemp("kept") / "kept.json"
    save_kept(path, kept, 0.0, THEN)
    before = load_kept(path, 1.0, later(0.0))
    assert before.fault == ""
    assert before.kept.asked is kept.asked
    assert [repr(one) for one in before.kept.latches] == [repr(one) for one in kept.latches]
    assert [repr(one) for one in before.kept.waiting] == [repr(one) for one in kept.waiting]
    both = (*before.kept.overrides, *before.ended)
    assert sorted(map(repr, both)) == sorted(map(repr, kept.overrides))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the file"),
        (b"{", "the file"),
        (b"[]", "the file"),
        (b"\xff\xfe", "the file"),
        (b"3", "the file"),
        (b'{"asked": "full"}', "saved"),
        (b'{"saved": {"wall_s": 1.0, "boot_s": 1.0, "boot_id": ""}, "asked": "all"}', "asked"),
        (b'{"saved": {"wall_s": 1.0, "boot_s": 1.0, "boot_id": ""}, "more": 1}', "more"),
    ],
)
def test_what_cannot_be_understood_is_a_fault(tmp_path, content, words):
    path = tmp_path / "kept.json"
    path.write_bytes(content)
    before = load_kept(path, 1.0)
    assert before.kept == Kept()
    assert f"{path}: {words}: " in before.fault


def test_nothing_kept_is_no_fault(tmp_path):
    assert load_kept(tmp_path / "kept.json", 1.0) == Before()


def test_a_planted_link_is_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / ".kept.json.new").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic"):
        save_kept(tmp_path / "kept.json", FULL, 0.0, THEN)
    assert victim.read_text() == "precious"


def test_a_failed_write_leaves_the_old_state(tmp_path):
    path = tmp_path / "kept.json"
    save_kept(path, Kept(Mode.SHADOW), 0.0, THEN)
    (tmp_path / ".kept.json.new").mkdir()
    with pytest.raises(OSError, match="directory"):
        save_kept(path, FULL, 0.0, THEN)
    assert load_kept(path, 1.0).kept.asked is Mode.SHADOW


SAVES = """
import sys
from pathlib import Path
from steadyhand.runtime.crash_loop import Moment
from steadyhand.runtime.kept import Kept, save_kept
from steadyhand.runtime.modes import Mode
for _ in range(50):
    save_kept(Path(sys.argv[1]), Kept(Mode(sys.argv[2])), 0.0, Moment.now())
"""


def test_many_processes_at_once_leave_one_whole_state(tmp_path):
    """Without one lock they would trip over each other's half-written file."""
    path = tmp_path / "kept.json"
    writers = [
        subprocess.Popen([sys.executable, "-c", SAVES, str(path), mode])
        for mode in Mode
        for _ in "ab"
    ]
    seen = set()
    while any(writer.poll() is None for writer in writers):
        if path.exists():
            before = load_kept(path, 1.0)
            assert before.fault == ""
            seen.add(before.kept.asked)
    assert [writer.returncode for writer in writers] == [0] * len(writers)
    assert seen <= set(Mode)
    assert [item.name for item in tmp_path.iterdir()] == ["kept.json"]


@pytest.mark.parametrize("count", [1, 2, 5, 100])
def test_of_quick_changes_the_last_one_counts(tmp_path, count, monkeypatch):
    """However slow the disk, and whichever write is under way when the next change comes."""
    path = tmp_path / "kept.json"
    slow = threading.Event()
    fsync = os.fsync

    def late(handle):
        slow.wait(0.005)
        fsync(handle)

    monkeypatch.setattr(module.os, "fsync", late)
    keeper = Keeper(path, pytest.fail, Kept())
    modes = list(Mode)
    for i in range(count):
        keeper.keep(Kept(modes[i % len(modes)]), float(i))
    keeper.close(30.0)
    assert load_kept(path, 1.0).kept.asked is modes[(count - 1) % len(modes)]


def test_what_has_not_changed_is_not_written(tmp_path):
    path = tmp_path / "kept.json"
    keeper = Keeper(path, pytest.fail, FULL)
    keeper.keep(Kept(Mode.FULL, (HELD,), (LATCHED,), (SHELVED,), (NOTE,), (WAITING,)), 1.0)
    keeper.close()
    assert not path.exists()


def test_a_disk_that_took_nothing_is_asked_until_it_does(tmp_path, monkeypatch):
    """A cleared override that stands in the file would come back after a restart."""
    path, told, tries = tmp_path / "kept.json", [], []
    save_kept(path, FULL, 0.0, Moment.now())

    def full_disk(*words):
        tries.append(words)
        if len(tries) <= 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save_kept(*words)

    monkeypatch.setattr(module, "save_kept", full_disk)
    monkeypatch.setattr(module, "RETRY_S", 0.05)
    keeper = Keeper(path, told.append, FULL)
    keeper.keep(Kept(Mode.OFF), 1.0)
    end_s = time.monotonic() + 20.0
    while not keeper.fault and time.monotonic() < end_s:
        time.sleep(0.001)
    assert "No space left" in keeper.fault, "an alarm stands meanwhile"
    while keeper.fault and time.monotonic() < end_s:
        keeper.keep(Kept(Mode.OFF), 2.0)  # as after each tick: nothing new
        time.sleep(0.001)
    assert (len(tries), len(told), keeper.fault) == (4, 1, "")
    kept = load_kept(path, 1.0).kept
    assert (kept.asked, kept.overrides, kept.latches) == (Mode.OFF, (), ())
    keeper.close()


def test_a_state_that_cannot_be_kept_is_told_and_the_next_one_is_tried(tmp_path):
    told = []
    keeper = Keeper(tmp_path / "later" / "kept.json", told.append, Kept())
    keeper.keep(Kept(Mode.FULL), 0.0)
    keeper.close()
    assert len(told) == 1
    assert "kept.json" in told[0] and "No such file" in told[0]
    (tmp_path / "later").mkdir()
    keeper.keep(Kept(Mode.SHADOW), 0.0)
    keeper.close()
    assert load_kept(tmp_path / "later" / "kept.json", 1.0).kept.asked is Mode.SHADOW
    assert len(told) == 1
