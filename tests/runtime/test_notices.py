"""Lines on standard error: one for each change, never a reason to wait."""

import errno
import logging
import os
import re
import time
from contextlib import contextmanager, suppress

import pytest

from steadyhand.controllers.errors import ConfigError
from steadyhand.runtime.exits import guarded
from steadyhand.runtime.notices import LAST_S, LENGTH, MOST_LINES, Notices
from steadyhand.runtime.priority import Priority, to_journal


@contextmanager
def pipe():
    reading, writing = os.pipe()
    try:
        yield reading, writing
    finally:
        os.close(reading)
        os.close(writing)


def fill(writing):
    os.set_blocking(writing, False)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(writing, b"." * 4096)
    os.set_blocking(writing, True)


def texts(reading):
    """Lines that have come, without their time of day."""
    stamp = re.compile(r"^\d\d:\d\d:\d\dZ ")
    lines = os.read(reading, 1 << 16).decode().splitlines()
    assert all(stamp.match(line) for line in lines), lines
    return [stamp.sub("", line) for line in lines]


def test_a_line_for_each_change_and_none_for_a_repetition():
    with pipe() as (reading, writing), Notices(writing, every_s=0.0) as notices:
        notices.tell("a", lambda: "one")
        assert texts(reading) == ["one"]
        notices.tell("a", lambda: "one again")
        notices.tell("b", lambda: "two")
        assert texts(reading) == ["two"]
        notices.tell("a", lambda: "three")
        assert texts(reading) == ["three"]


def test_what_changes_faster_than_the_lines_come_is_counted():
    with pipe() as (reading, writing):
        with Notices(writing, every_s=3600.0) as notices:
            notices.tell(0, lambda: "first")
            assert texts(reading) == ["first"]
            for number in range(1, 101):
                notices.tell(number, lambda number=number: f"line {number}")
        assert texts(reading) == ["line 100 (and 99 changes before)"]


def test_who_wants_no_changes_still_hears_what_went_wrong():
    with pipe() as (reading, writing):
        with Notices(writing, quiet=True) as notices:
            notices.tell(0, lambda: "the heuristic drives")
            notices.say("steadyhand: something")
        assert os.read(reading, 1 << 16) == b"steadyhand: something\n"


def test_what_is_logged_comes_too_and_nothing_else_takes_it(capsys):
    log = logging.getLogger("steadyhand.test")
    with pipe() as (reading, writing):
        with Notices(writing) as notices:
            log.info("not worth a line")
            log.warning("certificates: %s", "a\x1b[2Jb")
            notices.emit(logging.makeLogRecord({"msg": "does not %d", "args": ("fit",)}))
            try:
                raise ValueError("a defect")
            except ValueError:
                log.exception("the link's thread failed")
        lines = os.read(reading, 1 << 16).decode().splitlines()
    assert r"steadyhand.test: certificates: a\x1b[2Jb" in lines[0]
    assert "'does not %d' cannot be formatted" in lines[1]
    assert lines[2].endswith("steadyhand.test: the link's thread failed")
    assert lines[-1] == "    ValueError: a defect"
    assert capsys.readouterr().err == ""


def test_lines_that_nobody_takes_are_left_out():
    with pipe() as (reading, writing), Notices(writing) as notices:
        fill(writing)
        for number in range(10_000):
            notices.say(str(number))
        assert len(notices._lines) <= MOST_LINES
        while "9999" not in os.read(reading, 1 << 20).decode().splitlines():
            pass


def test_no_text_from_outside_makes_a_second_line_or_a_long_one():
    with pipe() as (reading, writing):
        with Notices(writing) as notices:
            notices.tell(0, lambda: "a\n12:00:00Z all is well\x1b[2J" + "x" * 5000)
        (text,) = texts(reading)
    assert text.startswith(r"a\n12:00:00Z all is well\x1b[2J")
    assert len(text) == LENGTH


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EPIPE, errno.EIO, errno.EBADF])
def test_a_terminal_that_is_gone_is_borne(code, monkeypatch):
    tried = []

    def gone(descriptor, data):
        tried.append(data)
        raise OSError(code, os.strerror(code))

    with Notices(every_s=0.0) as notices:
        monkeypatch.setattr(os, "write", gone)
        for number in range(3):
            before = len(tried)
            notices.tell(number, lambda: "gone")
            end_s = time.monotonic() + 10.0
            while len(tried) == before and time.monotonic() < end_s:
                time.sleep(0.001)
        monkeypatch.undo()
    assert len(tried) == 3


def test_nobody_waits_for_a_reader_that_does_not_read():
    with pipe() as (reading, writing):
        fill(writing)
        began_s = time.monotonic()
        with Notices(writing, every_s=0.0) as notices:
            for number in range(1000):
                notices.tell(number, lambda: "nobody reads")
            told_s = time.monotonic() - began_s
        left_s = time.monotonic() - began_s - told_s
        assert told_s < LAST_S
        assert LAST_S <= left_s < LAST_S + 5.0
        os.set_blocking(reading, False)
        while notices._thread.is_alive():  # else its last line goes to whoever gets the descriptor
            with suppress(BlockingIOError):
                os.read(reading, 1 << 20)
            notices._thread.join(0.01)


def journal_stream(descriptor):
    """As systemd says it of the socket that it connected to its journal."""
    found = os.fstat(descriptor)
    return f"{found.st_dev}:{found.st_ino}"


def test_lines_for_the_journal_carry_how_loud_they_are(monkeypatch):
    with pipe() as (reading, writing):
        monkeypatch.setenv("JOURNAL_STREAM", journal_stream(writing))
        with Notices(writing, every_s=0.0) as notices:
            notices.say("head\n  plant north")
            notices.say("a bundle was refused", Priority.ERROR)
            logging.getLogger("steadyhand.test").warning("almost full")
            try:
                raise ValueError("a defect")
            except ValueError:
                logging.getLogger("steadyhand.test").exception("failed")
            notices.tell(0, lambda: "the link is down", Priority.CRITICAL)
        lines = os.read(reading, 1 << 16).decode().splitlines()
    assert lines[:3] == ["<6>head", "<6>  plant north", "<3>a bundle was refused"]
    rest = [re.sub(r"\d\d:\d\d:\d\dZ ", "", line) for line in lines[3:]]
    assert rest[0] == "<4>steadyhand.test: almost full"
    assert rest[1] == "<3>steadyhand.test: failed"
    trace = rest[2:-1]
    assert trace[-1] == "<3>    ValueError: a defect"
    assert all(line.startswith("<3>") for line in trace), "every line of it is an entry of its own"
    assert rest[-1] == "<2>the link is down"


def test_the_loudest_of_the_changes_passed_over_is_how_loud_the_line_is(monkeypatch):
    with pipe() as (reading, writing):
        monkeypatch.setenv("JOURNAL_STREAM", journal_stream(writing))
        with Notices(writing, every_s=3600.0) as notices:
            notices.tell(0, lambda: "first")
            assert os.read(reading, 1 << 16).startswith(b"<6>")
            notices.tell(1, lambda: "the link is down", Priority.ERROR)
            notices.tell(2, lambda: "the policy drives")
        (line,) = os.read(reading, 1 << 16).decode().splitlines()
    assert line.startswith("<3>")
    assert line.endswith("the policy drives (and 1 changes before)")


@pytest.mark.parametrize("told", ["", "1:2", "nonsense", "0:0"])
def test_what_is_redirected_stays_plain(told, monkeypatch):
    with pipe() as (reading, writing):
        monkeypatch.setenv("JOURNAL_STREAM", told)
        with Notices(writing) as notices:
            notices.say("plain", Priority.CRITICAL)
        assert os.read(reading, 1 << 16) == b"plain\n"
    assert to_journal(writing) is False, "closed by now"


def test_a_refused_start_is_an_error_in_the_journal(monkeypatch, capfd):
    def refuse():
        raise ConfigError("first problem\nsecond problem")

    assert guarded(refuse) == 78
    assert capfd.readouterr().err == "steadyhand: first problem\nsecond problem\n"
    monkeypatch.setenv("JOURNAL_STREAM", journal_stream(2))
    assert guarded(refuse) == 78
    assert capfd.readouterr().err == "<3>steadyhand: first problem\n<3>second problem\n"
