"""Ten lines a minute of each kind on standard error; the newest is told, the rest is counted."""

import logging
import os
import re

import pytest

from steadyhand.runtime.flood import KINDS, Flood, FloodFilter
from steadyhand.runtime.notices import Notices


class Time:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock():
    return Time()


def test_ten_a_minute_and_the_rest_is_counted(clock):
    flood = Flood(monotonic=clock)
    written = []
    for second in range(600):
        clock.now_s = 1000.0 + second
        left_out = flood.admit("LINK_FLAP")
        if left_out is not None:
            written.append((second, left_out))
    for second in range(600):
        assert sum(second <= at < second + 60 for at, _ in written) <= 10
    assert len(written) == 100
    assert [left for _, left in written[:11]] == [0] * 10 + [50]
    assert len(written) + sum(left for _, left in written) == 550  # 50 more wait to be counted


def test_one_kind_takes_nothing_from_another(clock):
    flood = Flood(monotonic=clock)
    for _ in range(100):
        flood.admit("LINK_FLAP")
    assert flood.admit("OBS_STUCK") == 0


def test_what_waits_is_one_line_and_comes_as_soon_as_it_may(clock):
    flood = Flood(monotonic=clock)
    for number in range(10):
        assert flood.admit("A", number) == 0
    for number in (10, 10, 10, 11, 11, 12, 12, 12):
        assert flood.admit("A", number) is None
    clock.now_s += 59.9
    assert flood.admit("A", 12) is None
    clock.now_s += 0.1
    assert flood.admit("A", 12) == 2  # 10 and 11 were never told


def test_kinds_that_never_end_fill_no_memory(clock):
    flood = Flood(monotonic=clock)
    for number in range(10_000):
        flood.admit(f"kind {number}", number)
    assert len(flood._kinds) == KINDS


def test_what_libraries_log_is_held_back_too(clock):
    reading, writing = os.pipe()
    log = logging.getLogger("steadyhand.flood")
    try:
        with Notices(writing) as notices:
            notices.addFilter(FloodFilter(Flood(monotonic=clock)))
            for number in range(100):
                log.warning("no answer from %s", number)
            log.error("something else")
            clock.now_s += 60.0
            log.warning("no answer from %s", "the plant")
        lines = os.read(reading, 1 << 16).decode().splitlines()
    finally:
        os.close(reading)
        os.close(writing)
    texts = [re.sub(r"^(<\d>)?\d\d:\d\d:\d\dZ steadyhand.flood: ", "", line) for line in lines]
    assert texts[:10] == [f"no answer from {number}" for number in range(10)]
    assert texts[10:] == ["something else", "no answer from the plant (and 90 like it before)"]


def test_a_line_whose_words_do_not_fit_is_left_to_whoever_writes_it(clock):
    kept = FloodFilter(Flood(1, 60.0, clock))
    record = logging.makeLogRecord({"msg": "does not %d", "args": ("fit",)})
    assert kept.filter(record)
    assert not kept.filter(record)
    clock.now_s += 60.0
    assert kept.filter(record)
    assert record.args == ("fit",)
