"""Garbage goes between ticks, and all of it goes."""

import gc
import weakref

import pytest

from steadyhand.runtime.garbage import EVERY_S, FIRST_S, ROOM, Garbage


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
