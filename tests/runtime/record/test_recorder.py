"""The rings: bounded, the newest win, what is overwritten is counted exactly."""

import threading

from hypothesis import given, settings
from hypothesis import strategies as st

from steadyhand.controllers.frames import Source
from steadyhand.runtime.events import Severity, Transition
from steadyhand.runtime.recorder import Ring
from tests.support.records import LAYOUT, fresh_recorder, record_ticks, tick_arguments


@settings(deadline=None)
@given(st.integers(1, 8), st.lists(st.integers(0, 12), max_size=20))
def test_ring_against_a_list(capacity, bursts):
    """Model: a list of everything; after each burst the reader takes what is left."""
    ring: Ring[int] = Ring(capacity)
    everything: list[int] = []
    position = 0
    for burst in bursts:
        for _ in range(burst):
            ring.put(len(everything))
            everything.append(len(everything))
        items, after, lost = ring.peek(position, 1000)
        assert items == everything[max(position, len(everything) - capacity) :]
        assert lost == max(0, len(everything) - capacity - position)
        assert after == len(everything)
        position = after


def test_peek_is_bounded_and_repeatable():
    ring: Ring[int] = Ring(10)
    for i in range(6):
        ring.put(i)
    assert ring.peek(0, 4) == ([0, 1, 2, 3], 4, 0)
    assert ring.peek(0, 4) == ([0, 1, 2, 3], 4, 0)
    assert ring.peek(4, 4) == ([4, 5], 6, 0)


def test_a_reader_beside_a_writer_sees_each_item_once_or_counts_it():
    ring: Ring[int] = Ring(64)
    total = 50_000
    seen: list[int] = []
    lost = position = 0
    writer = threading.Thread(target=lambda: [ring.put(i) for i in range(total)])
    writer.start()
    while position < total:
        items, position, missed = ring.peek(position, 16)
        seen += items
        lost += missed
    writer.join()
    assert seen == sorted(set(seen))
    assert len(seen) + lost == total


def test_ticks_get_ascending_numbers_and_name_the_bundle_in_use():
    recorder = fresh_recorder()
    recorder.sequence = 41
    assert recorder.tick(**tick_arguments()) == 41
    recorder.use_bundle("plant_a@4#123456")
    assert recorder.tick(**tick_arguments()) == 42
    ticks = [LAYOUT.decode(body) for body in recorder.ticks.peek(0, 9)[0]]
    assert [tick.bundle for tick in ticks] == ["plant_a@3#abcdef", "plant_a@4#123456"]
    assert [tick.config for tick in ticks] == [("c0ffee" * 10)[:16]] * 2
    assert ticks[0].monotonic_ns <= ticks[1].monotonic_ns


def test_events_are_named_and_placed():
    recorder = fresh_recorder()
    record_ticks(recorder, 3)
    data = {"event": "Command", "method": "acknowledge"}
    recorder.event(data)
    data["method"] = "changed afterwards"
    cause = tick_arguments()["observation"].faults
    moved = Transition(1.0, Source.POLICY, Source.FALLBACK, "full", cause, Severity.ALARM, "t", "a")
    recorder.event(moved)
    recorder.event("a bare text")
    events, _, lost = recorder.events.peek(0, 9)
    assert [event.event for event in events] == ["Command", "Transition", "str"]
    assert [event.tick for event in events] == [3, 3, 3]
    assert events[0].data == {"method": "acknowledge"}
    assert events[1].data is moved
    assert lost == 0


def test_events_from_many_threads_are_all_kept():
    recorder = fresh_recorder(events=10_000)

    def tell(name: int) -> None:
        for i in range(500):
            recorder.event({"event": "E", "who": name, "i": i})

    threads = [threading.Thread(target=tell, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events, _, lost = recorder.events.peek(0, 10_000)
    assert lost == 0
    assert {(e.data["who"], e.data["i"]) for e in events} == {
        (name, i) for name in range(8) for i in range(500)
    }
