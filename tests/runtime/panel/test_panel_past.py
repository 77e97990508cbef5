"""Trends of before the start: from the journal, of the last hour, of records that mean the same."""

import threading
from dataclasses import replace

import numpy as np
import pytest

from steadyhand.controllers.signals import SignalSet
from steadyhand.runtime.journal import Journal
from steadyhand.runtime.panel.past import PORTION, Past
from steadyhand.runtime.recorder import Recorder
from tests.support.loop_rig import until
from tests.support.panels import Stand
from tests.support.records import LAYOUT, tick_arguments

NOW_S = 2_000_000.0


def run(folder, stamps, monkeypatch, layout=LAYOUT):
    """One run of a loop that ticked at these wall seconds; number of the tick after its last."""
    recorder = Recorder(layout, ticks=8192)
    journal = Journal(folder, recorder).start()
    for stamp in stamps:
        monkeypatch.setattr("time.time_ns", lambda s=stamp: int(s * 1e9))
        recorder.tick(**tick_arguments(recorder.sequence))
    monkeypatch.undo()
    journal.close()
    return recorder.sequence


def times(past, before):
    place = LAYOUT.dtype.fields["wall_ns"][1]
    portions = list(past.portions(before, lambda: NOW_S))
    assert all(len(portion) <= PORTION for portion in portions)
    bodies = [body for portion in portions for body in portion]
    return [int.from_bytes(body[place : place + 8], "little") / 1e9 for body in bodies]


def test_the_last_hour_of_all_runs_before_this_one(tmp_path, monkeypatch):
    run(tmp_path, [NOW_S - 7000.0, NOW_S - 3599.0], monkeypatch)
    middle = run(tmp_path, [NOW_S - 100.0 - n for n in range(90, 0, -1)], monkeypatch)
    run(tmp_path, [NOW_S - 5.0], monkeypatch)
    assert middle == 92
    past = Past(tmp_path, LAYOUT, 1.0)
    wanted = [NOW_S - 3599.0, *(NOW_S - 100.0 - n for n in range(90, 0, -1))]
    assert times(past, middle) == wanted, "and not this run's own"
    assert times(past, 93) == [*wanted, NOW_S - 5.0]


def test_a_slow_loop_gets_ninety_six_ticks(tmp_path, monkeypatch):
    stamps = [NOW_S - 900.0 * n for n in range(200, 0, -1)]
    after = run(tmp_path, stamps, monkeypatch)
    assert times(Past(tmp_path, LAYOUT, 900.0), after) == stamps[-96:]


def test_only_as_many_are_looked_for_as_an_hour_can_have(tmp_path, monkeypatch):
    after = run(tmp_path, [NOW_S - 1.0] * 5000, monkeypatch)
    assert len(times(Past(tmp_path, LAYOUT, 1.0), after)) == 3600


def test_records_that_mean_something_else_are_left_out(tmp_path, monkeypatch):
    signals = (
        replace(LAYOUT.observations.signals[0], unit="MWh"),
        *LAYOUT.observations.signals[1:],
    )
    other = replace(LAYOUT, observations=SignalSet(signals))
    run(tmp_path, [NOW_S - 20.0], monkeypatch, other)
    after = run(tmp_path, [NOW_S - 10.0], monkeypatch, replace(LAYOUT, reasons=LAYOUT.reasons[:-1]))
    assert times(Past(tmp_path, LAYOUT, 1.0), after) == [NOW_S - 10.0]


def test_the_page_has_them_and_goes_on_with_this_run(tmp_path, monkeypatch):
    import time

    now_s = time.time()
    before = run(tmp_path, [now_s - 60.0, now_s - 50.0], monkeypatch)
    stand = Stand()
    stand.recorder.sequence = before
    stand.panel._past, stand.panel._first = Past(tmp_path, LAYOUT, 1.0), before
    with stand:
        until(lambda: stand.trends.next == 2, what="the rows of before")
        stand.tick()
        until(lambda: stand.trends.next == 3, what="the next row")
        _, _, content = stand.ask("GET", "/api/trends.bin")
    rows = np.frombuffer(content, "<f8")[3:].reshape(3, -1)
    assert rows[:2, 0] == pytest.approx([now_s - 60.0, now_s - 50.0])
    assert rows[2, 0] >= now_s


@pytest.mark.parametrize("spoil", ["nothing there", "rubbish"])
def test_without_a_journal_the_trends_begin_now_and_it_is_told(tmp_path, spoil):
    if spoil == "rubbish":
        (tmp_path / "journal-00000001.sqlite").write_bytes(b"rubbish" * 100)
    stand = Stand()
    stand.panel._past = Past(tmp_path, LAYOUT, 1.0)
    with stand:
        stand.tick()
        until(lambda: stand.trends.next == 1, what="the first row")
        names = {thread.name for thread in threading.enumerate()}
        assert "panel-trends" in names

        def told():
            events, _, _ = stand.recorder.events.peek(0, 100)
            return [event.data["text"] for event in events if event.event == "PanelProblem"]

        until(told, what="the word about it")
        assert len(told()) == 1
        assert told()[0].startswith("trends begin with this run, the journal")
