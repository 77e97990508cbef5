"""Rows of the trends: once a second, each change of driver, in memory that does not grow."""

from math import isnan

import numpy as np
import pytest

from steadyhand.controllers.frames import Sent, Source
from steadyhand.controllers.signals import Signal, SignalSet
from steadyhand.runtime.panel.trends import Column, Trends, main_signals
from tests.support.records import LAYOUT, fresh_recorder, observation, tick_arguments

WIDTH = 4 + 3 + 3


def bodies(monkeypatch, stamps, **changes):
    """Records made at these wall seconds."""
    recorder = fresh_recorder()
    for stamp in stamps:
        monkeypatch.setattr("time.time_ns", lambda s=stamp: int(s * 1e9))
        recorder.tick(**tick_arguments(recorder.sequence, **changes))
    assert recorder.misfits == 0
    return recorder.ticks.peek(0, 10_000)[0]


def rows_of(trends, since=0):
    numbers = np.frombuffer(trends.read(since), "<f8")
    first, following, width = numbers[:3]
    rows = numbers[3:].reshape(-1, int(width))
    assert len(rows) == following - first
    return int(first), rows


def test_columns_and_one_row(monkeypatch):
    trends = Trends(LAYOUT)
    assert trends.columns == (
        Column("wall_s"), Column("plant_s"), Column("source"), Column("confidence"),
        Column("signal", "energy_kwh"), Column("signal", "load_kw"), Column("signal", "flow_kw"),
        Column("applied", "discharge_kw"), Column("sent", "discharge_kw"),
        Column("proposed", "discharge_kw"),
    )  # fmt: skip
    trends.take(bodies(monkeypatch, [1000.0]))
    first, rows = rows_of(trends)
    assert first == 0
    assert rows.tolist() == [[1000.0, 0.0, 0.0, 0.93, 500.0, 250.0, 100.0, 100.0, 100.0, 120.0]]


def test_a_fast_loop_is_kept_once_a_second(monkeypatch):
    trends = Trends(LAYOUT)
    trends.take(bodies(monkeypatch, [1000.0 + 0.1 * n for n in range(50)]))
    _, rows = rows_of(trends)
    assert rows[:, 0] == pytest.approx([1000.0, 1001.0, 1002.0, 1003.0, 1004.0])


def test_every_change_of_driver_is_kept_with_its_time(monkeypatch):
    trends = Trends(LAYOUT)
    trends.take(bodies(monkeypatch, [1000.0, 1000.1]))
    trends.take(bodies(monkeypatch, [1000.2], source=Source.FALLBACK))
    trends.take(bodies(monkeypatch, [1000.3], source=Source.FALLBACK))
    trends.take(bodies(monkeypatch, [1000.4], source=Source.POLICY))
    _, rows = rows_of(trends)
    assert rows[:, 0] == pytest.approx([1000.0, 1000.2, 1000.4])
    assert rows[:, 2].tolist() == [0.0, 1.0, 0.0]
    assert trends.source == Source.POLICY
    assert trends.since_wall_s == pytest.approx(1000.4)


def test_a_clock_that_was_set_back_does_not_stop_the_trend(monkeypatch):
    trends = Trends(LAYOUT)
    trends.take(bodies(monkeypatch, [1000.0, 400.0, 400.5, 401.1]))
    _, rows = rows_of(trends)
    assert rows[:, 0] == pytest.approx([1000.0, 400.0, 401.1])


def test_the_ring_never_grows_and_keeps_the_newest(monkeypatch):
    trends = Trends(LAYOUT, capacity=8)
    trends.take(bodies(monkeypatch, [1000.0 + n for n in range(20)]))
    first, rows = rows_of(trends)
    assert (first, trends.next, len(rows)) == (12, 20, 8)
    assert rows[:, 0].tolist() == [1012.0 + n for n in range(8)]
    assert rows_of(trends, 18)[1][:, 0].tolist() == [1018.0, 1019.0]
    assert len(rows_of(trends, 20)[1]) == 0
    assert len(rows_of(trends, 10**12)[1]) == 0


def test_what_is_bad_or_was_not_sent_is_no_number(monkeypatch):
    trends = Trends(LAYOUT)
    bad = observation(quality=np.array([0, 1, 2], np.int8))
    unsent = Sent(np.array([55.0]), 1, 0.0, written=False)
    trends.take(bodies(monkeypatch, [1000.0], observation=bad, sent=unsent))
    _, rows = rows_of(trends)
    energy, load, flow = rows[0, 4:7]
    assert (energy, load) == (507.0, 250.0)
    assert isnan(flow), "bad"
    assert isnan(rows[0, 8]), "nothing was sent"


def test_main_signals_are_chosen_or_those_that_are_no_forecast():
    names = [f"x{n}" for n in range(10)] + ["load_forecast_01_kw"]
    signals = SignalSet(tuple(Signal(name, "kW", 0.0, 1.0) for name in names))
    assert main_signals(signals) == tuple(names[:8])
    assert main_signals(signals, ["x9", "load_forecast_01_kw"]) == ("x9", "load_forecast_01_kw")
