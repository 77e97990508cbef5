"""Take-over without a bump, whoever takes over and whenever."""

from math import cos, inf, nan, pi

import numpy as np
import pytest

from steadyhand.controllers.errors import ConfigError
from steadyhand.controllers.frames import Source
from steadyhand.controllers.heuristics.transfer import Transfer
from steadyhand.controllers.signals import Signal, SignalSet

OUTPUTS = SignalSet((Signal("flow", "kW", -400.0, 450.0),))


def blended(
    transfer: Transfer, source: Source, wanted: float, applied: float, at_s: float
) -> float:
    return float(transfer.blend(source, np.array([wanted]), np.array([applied]), at_s)[0])


def test_raised_cosine_by_hand() -> None:
    transfer = Transfer(OUTPUTS, 1800.0)
    path = [blended(transfer, Source.POLICY, 100.0, -20.0, t) for t in (0.0, 450.0, 900.0, 1800.0)]
    assert path == pytest.approx([-20.0, -20.0 + 120.0 * (0.5 - 0.5 * cos(pi / 4)), 40.0, 100.0])


def test_first_command_is_what_is_applied_for_every_take_over() -> None:
    for before in Source:
        for after in (Source.POLICY, Source.FALLBACK):
            if before is after:
                continue
            transfer = Transfer(OUTPUTS, 600.0)
            transfer.blend(before, np.array([0.0]), np.array([0.0]), 0.0)
            assert blended(transfer, after, 450.0, -333.0, 5000.0) == -333.0


def test_a_second_take_over_starts_from_where_the_first_one_had_come() -> None:
    transfer = Transfer(OUTPUTS, 1800.0)
    blended(transfer, Source.POLICY, 100.0, 0.0, 0.0)
    half = blended(transfer, Source.POLICY, 100.0, 0.0, 900.0)
    assert blended(transfer, Source.FALLBACK, -100.0, half, 1000.0) == half


def test_safe_does_not_wait() -> None:
    transfer = Transfer(OUTPUTS, 1800.0)
    blended(transfer, Source.POLICY, 100.0, 0.0, 0.0)
    assert blended(transfer, Source.SAFE, 0.0, 80.0, 900.0) == 0.0


def test_steps_are_small_and_in_one_direction() -> None:
    transfer = Transfer(OUTPUTS, 1000.0)
    path = [blended(transfer, Source.FALLBACK, 300.0, 0.0, 10.0 * i) for i in range(130)]
    steps = np.diff(path)
    assert np.all(steps >= 0.0)
    assert steps.max() <= 300.0 * pi / 2 * 10.0 / 1000.0  # steepest slope of the cosine
    assert path[-1] == 300.0


def test_an_unknown_position_or_no_duration_passes_the_command() -> None:
    assert blended(Transfer(OUTPUTS, 600.0), Source.POLICY, 70.0, nan, 0.0) == 70.0
    assert blended(Transfer(OUTPUTS, 0.0), Source.POLICY, 70.0, 1.0, 0.0) == 70.0


@pytest.mark.parametrize("duration", [-1.0, nan, inf])
def test_an_impossible_duration_is_refused(duration: float) -> None:
    with pytest.raises(ConfigError, match="duration_s="):
        Transfer(OUTPUTS, duration)
