"""The black box: what a kill cuts off before the journal has written it comes back as it was."""

import subprocess
import sys
from pathlib import Path

import pytest

from steadyhand.runtime.black_box import HEAD_BYTES, SLOT_BYTES, SLOTS, BlackBox, left_behind
from steadyhand.runtime.chain import verify
from steadyhand.runtime.journal import Journal, Limits
from steadyhand.runtime.reader import JournalReader
from steadyhand.runtime.segment import TICK_HEAD
from tests.support.records import fresh_recorder, record_ticks

ABOUT = {"run": "7-7", "layout": {"a": 1}}
NEVER = Limits(commit_every_s=3600.0)
KILLED = """
import os, signal, sys
from pathlib import Path
from steadyhand.runtime.journal import Journal, Limits
from tests.support.records import fresh_recorder, record_ticks

recorder = fresh_recorder()
folder = Path(sys.argv[1])
limits = Limits(commit_every_s=3600.0)
Journal(folder / "j", recorder, limits, black_box=folder / "box").start()
record_ticks(recorder, int(sys.argv[2]))
os.kill(os.getpid(), signal.SIGKILL)
"""


def body(number: int, size: int = 40) -> bytes:
    return TICK_HEAD.pack(number, 10 * number) + bytes(size - TICK_HEAD.size)


def filled(file: Path, numbers: range, size: int = 40) -> BlackBox:
    box = BlackBox(file, ABOUT)
    for number in numbers:
        box.put(number, body(number, size))
    return box


def killed(folder: Path, ticks: int) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(folder), str(ticks)], check=False)
    assert done.returncode == -9


def test_what_was_put_in_comes_back(tmp_path: Path) -> None:
    filled(tmp_path / "box", range(5, 9))
    left = left_behind(tmp_path / "box", 6)
    assert left is not None
    assert left.about == ABOUT
    assert left.ticks == (body(6), body(7), body(8))


def test_the_newest_stay_when_it_is_full(tmp_path: Path) -> None:
    filled(tmp_path / "box", range(SLOTS + 10))
    assert left_behind(tmp_path / "box", 9) is None  # number 9 is overwritten: no gap is bridged
    left = left_behind(tmp_path / "box", 10)
    assert left is not None
    assert len(left.ticks) == SLOTS
    assert left.ticks[-1] == body(SLOTS + 9)


def test_nothing_new_is_nothing(tmp_path: Path) -> None:
    assert left_behind(tmp_path / "box", 0) is None
    filled(tmp_path / "box", range(3))
    assert left_behind(tmp_path / "box", 3) is None


@pytest.mark.parametrize("at", [0, 4, 8, 20, 47])
def test_a_slot_that_was_being_written_is_left_out(tmp_path: Path, at: int) -> None:
    file = tmp_path / "box"
    filled(file, range(3))
    data = bytearray(file.read_bytes())
    data[HEAD_BYTES + SLOT_BYTES + at] ^= 1
    file.write_bytes(data)
    left = left_behind(file, 0)
    assert left is not None
    assert left.ticks == (body(0),)


@pytest.mark.parametrize("size", [0, 3, 100, HEAD_BYTES, HEAD_BYTES + SLOT_BYTES + 10])
def test_a_file_that_is_cut_stops_nothing(tmp_path: Path, size: int) -> None:
    file = tmp_path / "box"
    filled(file, range(3))
    file.write_bytes(file.read_bytes()[:size])
    left = left_behind(file, 0)
    assert left is None or left.ticks == (body(0),)


def test_a_record_longer_than_a_slot_is_left_to_the_journal(tmp_path: Path) -> None:
    box = filled(tmp_path / "box", range(1), SLOT_BYTES - 8)
    box.put(1, body(1, SLOT_BYTES - 7))
    left = left_behind(tmp_path / "box", 0)
    assert left is not None
    assert left.ticks == (body(0, SLOT_BYTES - 8),)


def test_it_is_private_and_gone_when_all_is_written(tmp_path: Path) -> None:
    recorder = fresh_recorder()
    with Journal(tmp_path / "j", recorder, black_box=tmp_path / "box"):
        assert (tmp_path / "box").stat().st_mode & 0o777 == 0o600
        record_ticks(recorder, 3)
    assert not (tmp_path / "box").exists()
    assert [tick.sequence for tick in JournalReader(tmp_path / "j").ticks()] == [0, 1, 2]


def test_without_room_for_it_the_journal_goes_on(tmp_path: Path) -> None:
    recorder = fresh_recorder()
    with Journal(tmp_path / "j", recorder, black_box=tmp_path / "no" / "box"):
        record_ticks(recorder, 2)
    reader = JournalReader(tmp_path / "j")
    assert [tick.sequence for tick in reader.ticks()] == [0, 1]
    assert "NoBlackBox" in [event.event for event in reader.events()]


def test_ticks_of_a_killed_run_stand_in_the_journal_under_its_name(tmp_path: Path) -> None:
    killed(tmp_path, 7)
    killed(tmp_path, 4)
    recorder = fresh_recorder()
    with Journal(tmp_path / "j", recorder, NEVER, black_box=tmp_path / "box"):
        record_ticks(recorder, 2)
    reader = JournalReader(tmp_path / "j")
    assert [tick.sequence for tick in reader.ticks()] == list(range(13))
    assert verify(tmp_path / "j").ok
    first, second, third = reader.runs
    assert [tick.sequence for tick in reader.ticks(run=first)] == list(range(7))
    assert [tick.sequence for tick in reader.ticks(run=second)] == list(range(7, 11))
    assert [tick.sequence for tick in reader.ticks(run=third)] == [11, 12]
    told = [event for event in reader.events() if event.event == "JournalRescued"]
    assert [event.data["ticks"] for event in told] == [4]  # the second run did not live to tell
    reasons = [segment.header["reason"] for segment in reader.segments]
    assert reasons == ["start", "rescue", "start", "rescue", "start"]


def test_a_start_killed_after_the_rescue_rescues_nothing_twice(tmp_path: Path) -> None:
    killed(tmp_path, 3)
    kept = (tmp_path / "box").read_bytes()
    with Journal(tmp_path / "j", fresh_recorder(), black_box=tmp_path / "box"):
        pass
    (tmp_path / "box").write_bytes(kept)
    with Journal(tmp_path / "j", fresh_recorder(), black_box=tmp_path / "box"):
        pass
    reader = JournalReader(tmp_path / "j")
    assert [tick.sequence for tick in reader.ticks()] == [0, 1, 2]
    assert verify(tmp_path / "j").ok
