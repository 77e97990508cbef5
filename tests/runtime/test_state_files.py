"""Small files of state that a start reads: whatever lies there, a start neither waits nor falls."""

import os
import threading

import pytest

from steadyhand.runtime.black_box import _LENGTH, HEAD_BYTES, left_behind
from steadyhand.runtime.crash_loop import END_FILE, STATE_FILE, Counted, CrashLoop
from steadyhand.runtime.kept import Kept, load_kept


def fifo(path):
    os.mkfifo(path)


def device(path):
    path.symlink_to("/dev/zero")


def linked(path):
    other = path.with_name("other")
    other.write_text('{"saved": 1}')
    path.symlink_to(other)


def deep(path):
    path.write_bytes(b"[" * 1020)


def long(path):
    path.write_bytes(b'{"saved": 1}' + b" " * 2**20)


def sparse(path):
    with path.open("wb") as stream:
        stream.truncate(2**40)


def folder(path):
    path.mkdir()


def binary(path):
    path.write_bytes(bytes(range(256)))


ODD = [fifo, device, linked, deep, long, sparse, folder, binary]


def within(act, limit_s=20.0):
    """What `act` returns; a test that would wait for ever fails instead."""
    found = []
    thread = threading.Thread(target=lambda: found.append(act()), daemon=True)
    thread.start()
    thread.join(limit_s)
    assert found, "it waits, or it raised"
    return found[0]


@pytest.mark.parametrize("odd", ODD)
def test_what_people_did(tmp_path, odd):
    path = tmp_path / "kept.json"
    odd(path)
    before = within(lambda: load_kept(path, "north", 1.0))
    assert before.kept == Kept()
    assert str(path) in before.fault


@pytest.mark.parametrize("odd", ODD)
def test_black_box(tmp_path, odd):
    path = tmp_path / "box"
    odd(path)
    assert within(lambda: (left_behind(path, 0),)) == (None,)


def test_a_black_box_whose_head_is_deep(tmp_path):
    path = tmp_path / "box"
    path.write_bytes(_LENGTH.pack(60_000) + b"[" * 60_000 + bytes(HEAD_BYTES))
    assert left_behind(path, 0) is None


@pytest.mark.parametrize("odd", ODD)
def test_notes_on_crashes(tmp_path, odd):
    """What cannot be understood bars every policy until a person has looked."""
    odd(tmp_path / STATE_FILE)
    loop = within(lambda: CrashLoop(tmp_path))
    assert "cannot be read" in loop.barred("a" * 64)


@pytest.mark.parametrize("odd", ODD)
def test_how_the_service_manager_saw_the_end(tmp_path, odd):
    before = CrashLoop(tmp_path)
    before.use(Counted(digest="a" * 64, label="x"))
    before._release()  # the process is gone without an orderly end
    odd(tmp_path / END_FILE)
    loop = within(lambda: CrashLoop(tmp_path))
    assert loop.before is not None
    assert loop.before.text == "killed, or the machine went down"
