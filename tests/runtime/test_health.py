"""Signs of life on a real notify socket."""

import os
import socket
from itertools import pairwise
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadyhand.runtime.health import START_STEP_S, STATUS_LENGTH, Health, printable

GRACE = f"\nEXTEND_TIMEOUT_USEC={round(1e6 * START_STEP_S)}"


@pytest.fixture
def manager(tmp_path):
    """The service manager's end."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(str(tmp_path / "notify"))
        end.setblocking(False)
        yield end


def heard(manager):
    messages = []
    while True:
        try:
            messages.append(manager.recv(65536).decode())
        except BlockingIOError:
            return messages


class Hands:
    """A clock that the test turns."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_a_whole_life(manager, tmp_path):
    clock = Hands()
    health = Health(str(tmp_path / "notify"), monotonic=clock)
    health.starting("loading", 90.0)
    for text in ("running", "running", "fallback: level too old"):
        clock.now += 2.0
        health.status(text)
    clock.now += 2.0
    health.ready("running")
    health.status("running")
    health.stopping("asked to stop", 12.5)
    health.close()
    health.close()
    health.stopping("again")
    assert heard(manager) == [
        "EXTEND_TIMEOUT_USEC=90000000\nSTATUS=loading",
        "STATUS=running",
        "STATUS=fallback: level too old",
        "READY=1\nSTATUS=running",
        "STOPPING=1\nEXTEND_TIMEOUT_USEC=12500000\nSTATUS=asked to stop",
    ]
    assert health.lost == 0


def test_ready_without_words(manager, tmp_path):
    Health(str(tmp_path / "notify")).ready()
    assert heard(manager) == ["READY=1"]


def running(tmp_path, clock, watchdog_s=8.0, patience_s=inf):
    """A health that is ready."""
    health = Health(str(tmp_path / "notify"), watchdog_s=watchdog_s, monotonic=clock)
    health.patience_s = patience_s
    health.ready()
    return health


def test_only_completed_ticks_feed_the_watchdog(manager, tmp_path):
    clock = Hands()
    health = running(tmp_path, clock)
    for _ in range(50):
        clock.now += 1.0
        health.tick_done(False)
        health.waiting()
    assert heard(manager) == ["READY=1"]
    health.tick_done(True)
    assert heard(manager) == ["WATCHDOG=1"]


def test_a_fast_loop_feeds_four_times_per_interval(manager, tmp_path):
    clock = Hands()
    health = running(tmp_path, clock)
    for _ in range(33):  # 8.25 s of ticks
        health.tick_done(True)
        clock.now += 0.25
    assert len(heard(manager)) == 1 + 5  # ready, then at 0, 2, 4, 6, 8


def test_signs_of_life_do_not_flood_the_manager(manager, tmp_path):
    clock = Hands()
    health = running(tmp_path, clock, watchdog_s=1.6)
    messages = []
    for _ in range(1000):  # 10 s
        health.tick_done(True)
        health.status(f"at {clock.now}")
        clock.now += 0.01
        messages += heard(manager)
    assert messages.count("WATCHDOG=1") == 20  # every 0.5 s
    assert sum(m.startswith("STATUS=") for m in messages) == 10  # every second


def test_a_watchdog_of_half_a_second_is_fed_in_time(manager, tmp_path):
    clock = Hands()
    health = running(tmp_path, clock, watchdog_s=0.5)
    for _ in range(100):  # 1 s
        health.tick_done(True)
        clock.now += 0.01
    assert len(heard(manager)) - 1 >= 4


def test_a_slow_loop_is_alive_between_its_ticks_until_the_next_is_overdue(manager, tmp_path):
    clock = Hands()
    health = running(tmp_path, clock, watchdog_s=10.0, patience_s=2000.0)
    health.tick_done(True)
    fed = []
    for _ in range(30_000):  # 3000 s of waiting in pieces
        clock.now += 0.1
        health.waiting()
        fed += [clock.now] * heard(manager).count("WATCHDOG=1")
    gaps = [b - a for a, b in pairwise(fed)]
    assert max(gaps) == pytest.approx(2.5, abs=0.11)
    assert fed[-1] == pytest.approx(100.0 + 2000.0, abs=2.7)  # then overdue: not one more


def test_a_tick_that_failed_buys_no_time(manager, tmp_path):
    clock = Hands()
    health = running(tmp_path, clock, patience_s=30.0)
    health.tick_done(True)
    messages = []
    for _ in range(100):
        clock.now += 1.0
        health.tick_done(False)
        health.waiting()
        messages += heard(manager)
    assert messages.count("WATCHDOG=1") == 16  # at 0, 2, ... 30 s


def test_a_slow_start_asks_for_time_as_long_as_it_gets_on(manager, tmp_path):
    clock = Hands()
    health = Health(str(tmp_path / "notify"), watchdog_s=8.0, monotonic=clock)
    health.patience_s = 20.0
    health.starting("waiting for the plant")
    heard(manager)
    for _ in range(100):  # the loop ticks every 10 s and finds no plant
        clock.now += 10.0
        health.tick_done(True)
        assert heard(manager) == ["WATCHDOG=1" + GRACE]
    for _ in range(40):  # then no tick comes any more
        clock.now += 1.0
        health.waiting()
    assert len(heard(manager)) == 10  # every 2 s, for the 20 s until a tick is overdue


def test_without_a_watchdog_only_the_start_is_watched(manager, tmp_path):
    clock = Hands()
    health = Health(str(tmp_path / "notify"), monotonic=clock)
    health.tick_done(True)
    assert heard(manager) == [GRACE.strip()]
    health.ready()
    clock.now += 100.0
    health.tick_done(True)
    assert heard(manager) == ["READY=1"]


def test_a_status_that_came_too_soon_is_not_lost(manager, tmp_path):
    clock = Hands()
    health = Health(str(tmp_path / "notify"), monotonic=clock)
    for k in range(10):
        health.status(f"number {k}")
        clock.now += 0.05
    clock.now += 1.0
    health.waiting()
    health.waiting()
    assert heard(manager) == ["STATUS=number 0", "STATUS=number 9"]


def test_nothing_is_fed_once_it_stops(manager, tmp_path):
    clock = Hands()
    health = running(tmp_path, clock)
    health.stopping("asked to")
    clock.now += 10.0
    health.tick_done(True)
    assert heard(manager) == ["READY=1", "STOPPING=1\nSTATUS=asked to"]


def test_abstract_socket():
    name = f"steadyhand-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(b"\0" + name.encode())
        Health("@" + name).ready()
        assert end.recv(100) == b"READY=1"


@pytest.mark.parametrize(
    ("variables", "feeds"),
    [
        ({"WATCHDOG_USEC": "2000000"}, True),
        ({"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": str(os.getpid())}, True),
        ({"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": "1"}, False),
        ({"WATCHDOG_USEC": "0"}, False),
        ({"WATCHDOG_USEC": "soon"}, False),
        ({}, False),
    ],
)
def test_as_the_manager_started_us(manager, tmp_path, variables, feeds):
    health = Health.from_environment({"NOTIFY_SOCKET": str(tmp_path / "notify"), **variables})
    health.ready()
    health.tick_done(True)
    assert heard(manager) == ["READY=1"] + ["WATCHDOG=1"] * feeds


@pytest.mark.parametrize("address", [None, ""])
def test_nobody_listens_is_fine(address):
    health = Health(address, watchdog_s=1.0)
    health.ready("here")
    health.tick_done(True)
    health.close()
    assert health.lost == 0
    Health.from_environment({}).ready()


def test_a_dead_manager_is_counted_and_never_waited_for(tmp_path):
    health = Health(str(tmp_path / "nobody"), watchdog_s=1.0)
    health.ready()
    assert health.lost == 1
    path = tmp_path / "deaf"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as deaf:
        deaf.bind(str(path))
        clock = Hands()
        health = Health(str(path), monotonic=clock)
        for k in range(2000):  # far beyond what the socket queues
            clock.now += 2.0
            health.status(f"status {k}")
    assert health.lost > 0


def test_a_status_cannot_smuggle_in_an_assignment(manager, tmp_path):
    Health(str(tmp_path / "notify")).status("level\nWATCHDOG=1\r\x1b[31m\u2028MAINPID=1")
    (message,) = heard(manager)
    assert message == r"STATUS=level\nWATCHDOG=1\r\x1b[31m\u2028MAINPID=1"


@given(st.text(), st.integers(1, 50))
def test_printable_is_one_line_of_limited_length(text, limit):
    safe = printable(text, limit)
    assert len(safe) <= limit and safe.isprintable()
    if text.isprintable() and len(text) <= limit:
        assert safe == text


def test_a_long_status_is_cut(manager, tmp_path):
    Health(str(tmp_path / "notify")).status("x" * 10_000)
    (message,) = heard(manager)
    assert message == "STATUS=" + "x" * (STATUS_LENGTH - 1) + "…"
