"""The asked mode across restarts, and of many who ask at once."""

import os
import subprocess
import sys
import threading

import pytest

from steadyhand.runtime import asked
from steadyhand.runtime.asked import AskedKeeper, load_asked, save_asked
from steadyhand.runtime.modes import Mode


@pytest.mark.parametrize("mode", list(Mode))
def test_what_was_asked_comes_back(tmp_path, mode):
    path = tmp_path / "asked.json"
    save_asked(path, Mode.FULL)
    save_asked(path, mode)
    assert load_asked(path) is mode
    assert path.stat().st_mode & 0o777 == 0o600
    assert [item.name for item in tmp_path.iterdir()] == ["asked.json"]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"asked": "all"}', b'{"mode": "full"}', b"\xff\xfe", b"3"]
)
def test_what_cannot_be_understood_is_off(tmp_path, content):
    path = tmp_path / "asked.json"
    path.write_bytes(content)
    assert load_asked(path) is Mode.OFF
    assert load_asked(tmp_path / "nothing") is Mode.OFF


def test_a_planted_link_is_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / ".asked.json.new").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic"):
        save_asked(tmp_path / "asked.json", Mode.FULL)
    assert victim.read_text() == "precious"


def test_a_failed_write_leaves_the_old_wish(tmp_path):
    path = tmp_path / "asked.json"
    save_asked(path, Mode.SHADOW)
    (tmp_path / ".asked.json.new").mkdir()
    with pytest.raises(OSError, match="directory"):
        save_asked(path, Mode.FULL)
    assert load_asked(path) is Mode.SHADOW


SAVES = """
import sys
from pathlib import Path
from steadyhand.runtime.asked import save_asked
from steadyhand.runtime.modes import Mode
for _ in range(50):
    save_asked(Path(sys.argv[1]), Mode(sys.argv[2]))
"""


def test_many_processes_at_once_leave_one_whole_wish(tmp_path):
    """Without one lock they would trip over each other's half-written file."""
    path = tmp_path / "asked.json"
    writers = [
        subprocess.Popen([sys.executable, "-c", SAVES, str(path), mode])
        for mode in Mode
        for _ in "ab"
    ]
    seen = set()
    while any(writer.poll() is None for writer in writers):
        if path.exists():
            seen.add(path.read_text())
    assert [writer.returncode for writer in writers] == [0] * len(writers)
    assert seen <= {f'{{"asked": "{mode}"}}' for mode in Mode}
    assert [item.name for item in tmp_path.iterdir()] == ["asked.json"]


@pytest.mark.parametrize("count", [1, 2, 5, 100])
def test_of_quick_commands_the_last_one_counts(tmp_path, count, monkeypatch):
    """However slow the disk, and whichever write is under way when the next wish comes."""
    path = tmp_path / "asked.json"
    slow = threading.Event()
    fsync = os.fsync

    def late(handle):
        slow.wait(0.005)
        fsync(handle)

    monkeypatch.setattr(asked.os, "fsync", late)
    keeper = AskedKeeper(path, pytest.fail)
    modes = list(Mode)
    for i in range(count):
        keeper.keep(modes[i % len(modes)])
    keeper.close(30.0)
    assert load_asked(path) is modes[(count - 1) % len(modes)]


def test_a_wish_that_cannot_be_kept_is_told_and_the_next_one_is_tried(tmp_path):
    told = []
    keeper = AskedKeeper(tmp_path / "later" / "asked.json", told.append)
    keeper.keep(Mode.FULL)
    keeper.close()
    assert len(told) == 1
    assert "full" in told[0] and "No such file" in told[0]
    (tmp_path / "later").mkdir()
    keeper.keep(Mode.SHADOW)
    keeper.close()
    assert load_asked(tmp_path / "later" / "asked.json") is Mode.SHADOW
    assert len(told) == 1
