"""What people did, across restarts, and when many change it at once."""

import errno
import json
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

from steadyhand.controllers.errors import ConfigError
from steadyhand.controllers.frames import Fault
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime import kept as module
from steadyhand.runtime.alarms import Shelf
from steadyhand.runtime.crash_loop import Moment
from steadyhand.runtime.kept import Before, Keeper, Kept, load_kept, save_kept
from steadyhand.runtime.modes import Mode
from steadyhand.runtime.overrides import Override

PLANT = "north"
THEN = Moment(wall_s=1.7e9, boot_s=5000.0, boot_id="b")
HELD = Override("valve", 3.5, "anna", "stuck sensor", 1900.0, 3600.0)
LATCHED = Fault(ReasonCode.CERT_CHANGED, "link", nan, 2.0, "another certificate")
SHELVED = Shelf(ReasonCode.OBS_STUCK, "ben", "known", 1100.0)
NOTE = Fault(ReasonCode.RESTART, text="killed")
WAITING = Fault(ReasonCode.LINK_DOWN, text="no route")
FULL = Kept(Mode.FULL, (HELD,), (LATCHED,), (SHELVED,), (NOTE,), (WAITING,))


def later(seconds):
    return lambda: Moment(
        wall_s=THEN.wall_s + seconds, boot_s=THEN.boot_s + seconds, boot_id=THEN.boot_id
    )


def rebooted(seconds, up_s=20.0):
    """So much later by the wall clock, and up for so long."""
    return lambda: Moment(wall_s=THEN.wall_s + seconds, boot_s=up_s, boot_id="another")


def test_everything_comes_back_with_what_is_left_of_its_time(tmp_path):
    path = tmp_path / "kept.json"
    save_kept(path, PLANT, Kept(), 0.0, THEN)
    save_kept(path, PLANT, FULL, 1000.0, THEN)
    before = load_kept(path, PLANT, 2.0, later(30.0))
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
    save_kept(path, PLANT, FULL, 1000.0, THEN)
    before = load_kept(path, PLANT, 1.0, rebooted(901.0))
    assert before.away_known
    assert [one.output for one in before.ended] == ["valve"]
    assert before.kept.overrides == before.kept.shelves == ()
    assert len(before.kept.latches) == 1, "a latch has no end"


@pytest.mark.parametrize("wall_jump_s", [-1e9, -30.0, 0.0, 1e9])
def test_a_clock_that_is_set_while_the_machine_runs_moves_nothing(tmp_path, wall_jump_s):
    path = tmp_path / "kept.json"
    save_kept(path, PLANT, FULL, 1000.0, THEN)
    now = later(30.0)()
    jumped = now.model_copy(update={"wall_s": now.wall_s + wall_jump_s})
    before = load_kept(path, PLANT, 1.0, lambda: jumped)
    assert before.kept.overrides == (replace(HELD, expires_s=870.0),)


@pytest.mark.parametrize(
    ("wall_s", "up_s"),
    [
        (-1e6, 20.0),
        (-1e-3, 0.0),
        (0.0, 20.0),  # as far as when it was saved: the box begins at the same second each time
        (19.9, 20.0),
        (800.0, 801.0),
        (float("nan"), 20.0),
    ],
)
def test_after_a_reboot_a_clock_that_began_in_the_past_ends_what_had_an_end(tmp_path, wall_s, up_s):
    """Nobody knows whether its time is over; in doubt a person sets the override again."""
    path = tmp_path / "kept.json"
    save_kept(path, PLANT, FULL, 1000.0, THEN)
    before = load_kept(path, PLANT, 1.0, rebooted(wall_s, up_s))
    assert not before.away_known
    assert [one.output for one in before.ended] == ["valve"]
    assert before.kept.overrides == before.kept.shelves == ()
    assert (before.kept.asked, before.kept.notes[0].text) == (Mode.FULL, "killed")
    assert len(before.kept.latches) == 1, "a latch has no end"


SECONDS = st.floats(0.0, 2000.0)
CLOCKS = st.floats(-1e8, 1e8)
HAPPENS = st.lists(
    st.one_of(
        st.tuples(st.just("runs"), SECONDS, st.just(0.0)),
        st.tuples(st.just("set"), st.just(0.0), CLOCKS),
        # no machine is down for less than a second
        st.tuples(st.just("off"), st.floats(1.0, 2000.0), st.one_of(st.just(0.0), CLOCKS)),
    ),
    max_size=6,
)


def machine(happens):
    """Where its clocks stand after all this, how long it took, how long it is up, was it off."""
    took_s, up_s, boot, wrong_s = 0.0, THEN.boot_s, 0, 0.0
    for what, seconds, clock_s in happens:
        took_s, up_s = took_s + seconds, up_s + seconds
        if what == "set":
            wrong_s = clock_s
        if what == "off":
            up_s, boot, wrong_s = 0.0, boot + 1, clock_s
    boot_id = f"boot {boot}" if boot else THEN.boot_id
    moment = Moment(wall_s=THEN.wall_s + took_s + wrong_s, boot_s=up_s, boot_id=boot_id)
    return moment, took_s, up_s, boot > 0, wrong_s


@given(HAPPENS)
def test_whatever_clocks_do_no_override_gets_time_on_top(tmp_path_factory, happens):
    """While the machine runs, and with a clock that is right, its time is right to the second."""
    moment, took_s, up_s, was_off, wrong_s = machine(happens)
    path = tmp_path_factory.mktemp("kept") / "kept.json"
    save_kept(path, PLANT, FULL, 1000.0, THEN)
    before = load_kept(path, PLANT, 1.0, lambda: moment)
    left_s = HELD.expires_s - 1000.0
    for one in before.kept.overrides:
        assert one.expires_s <= left_s - (up_s if was_off else took_s) + 1e-6
    if not was_off or wrong_s == 0.0:
        assert before.away_known
        assert bool(before.kept.overrides) is (took_s < left_s) or abs(took_s - left_s) < 1e-5
        for one in before.kept.overrides:
            assert one.expires_s == pytest.approx(left_s - took_s, abs=1e-5)
    assert len(before.kept.overrides) + len(before.ended) == 1


def test_while_something_has_an_end_what_is_left_of_it_is_written_again(tmp_path, monkeypatch):
    """A clock that stands still while the machine is off gives back no more than that."""
    path = tmp_path / "kept.json"
    keeper = Keeper(path, PLANT, pytest.fail, FULL)
    keeper.keep(FULL, 1300.0)
    keeper.close()
    assert not path.exists(), "not within REFRESH_S"
    monkeypatch.setattr(module, "REFRESH_S", 0.0)
    keeper.keep(FULL, 1300.0)
    keeper.close()
    before = load_kept(path, PLANT, 1.0)
    assert before.kept.overrides[0].expires_s == pytest.approx(600.0, abs=60.0)
    written = path.read_bytes()
    without = replace(FULL, overrides=(), shelves=())
    lasting = Keeper(path, PLANT, pytest.fail, without)
    lasting.keep(without, 1400.0)
    lasting.close()
    assert path.read_bytes() == written, "nothing in it has an end"


# -- whose it is ---------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [Kept(), FULL])
def test_the_state_of_another_plant_is_neither_read_nor_replaced(tmp_path, content):
    path = tmp_path / "kept.json"
    save_kept(path, "south", content, 0.0, THEN)
    left = path.read_bytes()
    for act in (
        lambda: load_kept(path, PLANT, 1.0),
        lambda: save_kept(path, PLANT, FULL, 0.0, THEN),
    ):
        with pytest.raises(ConfigError) as refused:
            act()
        for word in (str(path), "'south'", "'north'", "journal.directory", "move the file away"):
            assert word in str(refused.value)
    assert path.read_bytes() == left
    assert [item.name for item in tmp_path.iterdir()] == ["kept.json"]
    assert load_kept(path, "south", 1.0, later(0.0)).kept.asked is content.asked


def test_a_plant_that_comes_second_is_told_and_spoils_nothing(tmp_path):
    """Both passed the pre-flight at the same moment, before either had written its name."""
    path, told = tmp_path / "kept.json", []
    first = Keeper(path, "south", pytest.fail, None)
    second = Keeper(path, PLANT, told.append, None)
    first.keep(Kept(Mode.FULL), 0.0)
    first.close()
    second.keep(Kept(Mode.OFF), 0.0)
    second.close()
    assert len(told) == 1 and "'south'" in told[0] and second.fault == told[0]
    assert load_kept(path, "south", 1.0).kept.asked is Mode.FULL


def test_a_file_that_names_no_plant_is_read_and_named(tmp_path):
    """One of a version before plants were named."""
    path = tmp_path / "kept.json"
    save_kept(path, PLANT, FULL, 1000.0, THEN)
    old = json.loads(path.read_bytes())
    assert old.pop("plant") == PLANT
    path.write_text(json.dumps(old))
    before = load_kept(path, PLANT, 1.0, later(0.0))
    assert (before.fault, before.named, before.kept.asked) == ("", False, Mode.FULL)
    assert before.kept.overrides == (replace(HELD, expires_s=900.0),)
    save_kept(path, PLANT, before.kept, 0.0, THEN)
    assert load_kept(path, PLANT, 1.0).named


@pytest.mark.parametrize(
    "content", [b'{"plant": "south"}', b'{"plant": "south", "saved": 3, "latches": 5, "more": 1}']
)
def test_whose_it_is_can_be_told_of_a_damaged_file(tmp_path, content):
    path = tmp_path / "kept.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="'south'"):
        load_kept(path, PLANT, 1.0)
    before = load_kept(path, "south", 1.0)
    assert before.kept == Kept()
    assert str(path) in before.fault


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
    save_kept(path, PLANT, kept, 0.0, THEN)
    before = load_kept(path, PLANT, 1.0, later(0.0))
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
    before = load_kept(path, PLANT, 1.0)
    assert before.kept == Kept()
    assert f"{path}: {words}: " in before.fault


def test_nothing_kept_is_no_fault(tmp_path):
    assert load_kept(tmp_path / "kept.json", PLANT, 1.0) == Before()


def test_a_planted_link_is_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / ".kept.json.new").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic"):
        save_kept(tmp_path / "kept.json", PLANT, FULL, 0.0, THEN)
    assert victim.read_text() == "precious"


def test_a_failed_write_leaves_the_old_state(tmp_path):
    path = tmp_path / "kept.json"
    save_kept(path, PLANT, Kept(Mode.SHADOW), 0.0, THEN)
    (tmp_path / ".kept.json.new").mkdir()
    with pytest.raises(OSError, match="directory"):
        save_kept(path, PLANT, FULL, 0.0, THEN)
    assert load_kept(path, PLANT, 1.0).kept.asked is Mode.SHADOW


SAVES = """
import sys
from pathlib import Path
from steadyhand.runtime.crash_loop import Moment
from steadyhand.runtime.kept import Kept, save_kept
from steadyhand.runtime.modes import Mode
for _ in range(50):
    save_kept(Path(sys.argv[1]), "north", Kept(Mode(sys.argv[2])), 0.0, Moment.now())
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
            before = load_kept(path, PLANT, 1.0)
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
    keeper = Keeper(path, PLANT, pytest.fail, Kept())
    modes = list(Mode)
    for i in range(count):
        keeper.keep(Kept(modes[i % len(modes)]), float(i))
    keeper.close(30.0)
    assert load_kept(path, PLANT, 1.0).kept.asked is modes[(count - 1) % len(modes)]


def test_what_has_not_changed_is_not_written(tmp_path):
    path = tmp_path / "kept.json"
    keeper = Keeper(path, PLANT, pytest.fail, FULL)
    keeper.keep(Kept(Mode.FULL, (HELD,), (LATCHED,), (SHELVED,), (NOTE,), (WAITING,)), 1.0)
    keeper.close()
    assert not path.exists()


def test_a_disk_that_took_nothing_is_asked_until_it_does(tmp_path, monkeypatch):
    """A cleared override that stands in the file would come back after a restart."""
    path, told, tries = tmp_path / "kept.json", [], []
    save_kept(path, PLANT, FULL, 0.0, Moment.now())

    def full_disk(*words):
        tries.append(words)
        if len(tries) <= 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save_kept(*words)

    monkeypatch.setattr(module, "save_kept", full_disk)
    monkeypatch.setattr(module, "RETRY_S", 0.05)
    keeper = Keeper(path, PLANT, told.append, FULL)
    keeper.keep(Kept(Mode.OFF), 1.0)
    end_s = time.monotonic() + 20.0
    while not keeper.fault and time.monotonic() < end_s:
        time.sleep(0.001)
    assert "No space left" in keeper.fault, "an alarm stands meanwhile"
    while keeper.fault and time.monotonic() < end_s:
        keeper.keep(Kept(Mode.OFF), 2.0)  # as after each tick: nothing new
        time.sleep(0.001)
    assert (len(tries), len(told), keeper.fault) == (4, 1, "")
    kept = load_kept(path, PLANT, 1.0).kept
    assert (kept.asked, kept.overrides, kept.latches) == (Mode.OFF, (), ())
    keeper.close()


def test_a_state_that_cannot_be_kept_is_told_and_the_next_one_is_tried(tmp_path):
    told = []
    keeper = Keeper(tmp_path / "later" / "kept.json", PLANT, told.append, Kept())
    keeper.keep(Kept(Mode.FULL), 0.0)
    keeper.close()
    assert len(told) == 1
    assert "kept.json" in told[0] and "No such file" in told[0]
    (tmp_path / "later").mkdir()
    keeper.keep(Kept(Mode.SHADOW), 0.0)
    keeper.close()
    assert load_kept(tmp_path / "later" / "kept.json", PLANT, 1.0).kept.asked is Mode.SHADOW
    assert len(told) == 1
