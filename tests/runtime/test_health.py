"""Signs of life on a real notify socket."""

import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadyhand.runtime.health import STATUS_LENGTH, Health, printable


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
    health = Health(str(tmp_path / "notify"))
    health.status("loading")
    health.status("loading")
    health.ready("running")
    health.status("running")
    health.status("fallback: level too old")
    health.stopping("asked to stop")
    health.close()
    health.close()
    health.stopping("again")
    assert heard(manager) == [
        "STATUS=loading",
        "READY=1\nSTATUS=running",
        "STATUS=fallback: level too old",
        "STOPPING=1\nSTATUS=asked to stop",
    ]
    assert health.lost == 0


def test_ready_without_words(manager, tmp_path):
    Health(str(tmp_path / "notify")).ready()
    assert heard(manager) == ["READY=1"]


def test_only_completed_ticks_feed_the_watchdog(manager, tmp_path):
    clock = Hands()
    health = Health(str(tmp_path / "notify"), watchdog_s=8.0, monotonic=clock)
    for _ in range(50):
        clock.now += 1.0
        health.tick_done(False)
    assert heard(manager) == []
    health.tick_done(True)
    assert heard(manager) == ["WATCHDOG=1"]


def test_a_fast_loop_feeds_four_times_per_interval(manager, tmp_path):
    clock = Hands()
    health = Health(str(tmp_path / "notify"), watchdog_s=8.0, monotonic=clock)
    for _ in range(33):  # 8.25 s of ticks
        health.tick_done(True)
        clock.now += 0.25
    assert len(heard(manager)) == 5  # at 0, 2, 4, 6, 8


def test_a_slow_loop_feeds_with_every_tick(manager, tmp_path):
    clock = Hands()
    health = Health(str(tmp_path / "notify"), watchdog_s=8.0, monotonic=clock)
    for _ in range(4):
        health.tick_done(True)
        clock.now += 5.0
    assert heard(manager) == ["WATCHDOG=1"] * 4


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
    health.tick_done(True)
    assert heard(manager) == ["WATCHDOG=1"] * feeds


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
        health = Health(str(path))
        for k in range(2000):  # far beyond what the socket queues
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
