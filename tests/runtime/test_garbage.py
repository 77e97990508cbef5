"""Garbage goes between ticks, and all of it goes."""

import gc
import platform
import subprocess
import sys
import weakref

import pytest

from steadyhand.runtime.garbage import ARENAS, EVERY_S, FIRST_S, ROOM, Garbage


class Ring:
    """Refers to itself: nothing but a collection frees it."""

    def __init__(self):
        self.me = self


class Time:
    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def garbage():
    clock = Time()
    with Garbage(clock) as made:
        made.clock = clock
        yield made
    assert gc.isenabled()
    gc.unfreeze()


def outlived(garbage):
    """A ring that was still in use when the young generation was collected, and no more now."""
    ring = Ring()
    garbage.collect(0.0)
    garbage.collect(0.0)
    return weakref.ref(ring)


def test_what_a_tick_leaves_goes_after_it(garbage):
    assert not gc.isenabled()
    left = weakref.ref(Ring())
    assert left() is not None
    garbage.collect(0.0)
    assert left() is None


def test_what_outlived_some_ticks_goes_within_a_minute(garbage):
    left = outlived(garbage)
    garbage.clock.now_s += EVERY_S - 1.0
    garbage.collect(garbage.clock.now_s + 1e9)
    assert left() is not None, "not yet"
    garbage.clock.now_s += 1.0
    garbage.collect(garbage.clock.now_s + 1e9)
    assert left() is None


def test_a_gap_that_is_too_short_is_left_alone(garbage):
    left = outlived(garbage)
    garbage.clock.now_s += EVERY_S
    garbage.collect(garbage.clock.now_s + 0.99 * ROOM * FIRST_S)
    assert left() is not None
    garbage.collect(garbage.clock.now_s + 1.01 * ROOM * FIRST_S)
    assert left() is None


def test_the_room_that_is_needed_is_what_the_last_one_took(garbage, monkeypatch):
    collect = gc.collect

    def slowly(generation=2):
        garbage.clock.now_s += 0.5 if generation == 2 else 0.0
        return collect(generation)

    monkeypatch.setattr(gc, "collect", slowly)
    garbage.clock.now_s += EVERY_S
    garbage.collect(garbage.clock.now_s + 1.0)
    left = outlived(garbage)
    garbage.clock.now_s += EVERY_S
    garbage.collect(garbage.clock.now_s + 0.99 * ROOM * 0.5)
    assert left() is not None
    garbage.collect(garbage.clock.now_s + 1.01 * ROOM * 0.5)
    assert left() is None


PLACES = """
import ctypes, sys, threading
from steadyhand.runtime.garbage import share_arenas

if sys.argv[1] == "shared":
    share_arenas()
barrier = threading.Barrier(12)

def work():
    kept = [bytes(2000) for _ in range(50)]  # too large for Python's own pools
    barrier.wait()
    assert len(kept) == 50

threads = [threading.Thread(target=work) for _ in range(12)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
libc = ctypes.CDLL(None)
libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
libc.fflush(None)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library than glibc")
def test_threads_share_their_memory():
    """Without it each thread has a place of its own, which proves that this one counts them."""
    counts = {}
    for how in ("shared", "alone"):
        done = subprocess.run([sys.executable, "-c", PLACES, how], capture_output=True, check=True)
        counts[how] = done.stdout.count(b"<heap ")
    assert counts["shared"] <= ARENAS < counts["alone"]
