"""Hold keeps what the plant applies; without a read-back, what was written."""

import numpy as np
import pytest

from steadyhand.controllers.frames import Observation, Sent
from steadyhand.controllers.heuristics.hold import Hold
from steadyhand.controllers.signals import Signal, SignalSet

OUTPUTS = SignalSet((Signal("flow", "kW", -10.0, 20.0), Signal("valve", "1", 0.25, 1.0)))


def seen(applied: list[float]) -> Observation:
    return Observation(0, 0.0, np.zeros(1), np.zeros(1), np.zeros(1, np.int8), np.array(applied))


def wrote(action: list[float], written: bool = True) -> Sent:
    return Sent(np.array(action), 0, 0.0, written)


def test_read_back_counts() -> None:
    hold = Hold(OUTPUTS)
    hold.track(seen([1.0, 0.5]), wrote([9.0, 0.9]))
    assert hold.act(seen([1.0, 0.5])).tolist() == [1.0, 0.5]


def test_without_read_back_the_last_written_counts() -> None:
    hold = Hold(OUTPUTS)
    hold.track(seen([1.0, 0.5]), wrote([9.0, 0.9]))
    hold.track(seen([1.0, 0.5]), wrote([3.0, 0.3], written=False))
    assert hold.act(seen([np.nan, 0.5])).tolist() == [9.0, 0.5]


def test_a_written_number_that_is_none_is_not_remembered() -> None:
    hold = Hold(OUTPUTS)
    hold.track(seen([1.0, 0.5]), wrote([9.0, 0.9]))
    hold.track(seen([1.0, 0.5]), wrote([np.nan, 0.4]))
    assert hold.act(seen([np.nan, np.nan])).tolist() == [9.0, 0.4]


def test_never_outside_the_bounds() -> None:
    assert Hold(OUTPUTS).act(seen([np.nan, np.nan])).tolist() == [0.0, 0.25]
    assert Hold(OUTPUTS, np.array([50.0, -1.0])).act(seen([np.nan] * 2)).tolist() == [20.0, 0.25]
    assert Hold(OUTPUTS).act(seen([-99.0, 2.0])).tolist() == [-10.0, 1.0]


def test_holding_does_not_drift() -> None:
    hold = Hold(OUTPUTS)
    command = np.array([7.3, 0.7])
    for _ in range(100):
        command = hold.act(seen(command.tolist()))
    assert command == pytest.approx([7.3, 0.7], abs=0.0)
