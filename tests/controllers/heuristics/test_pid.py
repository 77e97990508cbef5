"""PID against hand-worked steps, a closed-form loop, and the ways loops usually go wrong."""

from math import exp, nan

import numpy as np
import pytest

from steadyhand.controllers.errors import ConfigError
from steadyhand.controllers.frames import Observation, Quality, Sent
from steadyhand.controllers.heuristics.pid import Pid, PidSettings
from steadyhand.controllers.signals import Signal, SignalSet

OBSERVATIONS = SignalSet((Signal("other", "1", -9.0, 9.0), Signal("level", "m", -99.0, 99.0)))
OUTPUTS = SignalSet((Signal("inflow", "m3/h", -100.0, 100.0),))


def pid(settings: PidSettings, setpoint: float = 0.0) -> Pid:
    return Pid(settings, OBSERVATIONS, OUTPUTS, "level", "inflow", setpoint)


def seen(level: float, applied: float) -> Observation:
    return Observation(
        0, 0.0, np.array([5.0, level]), np.zeros(2), np.zeros(2, np.int8), np.array([applied])
    )


def wrote(action: float) -> Sent:
    return Sent(np.array([action]), 0, 0.0, True)


def test_two_steps_by_hand() -> None:
    """K 2, Ti 10, h 1, Td 0: du = 2 [-(y - y') + 0.1 (r - y)]."""
    loop = pid(PidSettings(2.0, 10.0, 1.0), setpoint=4.0)
    first = loop.act(seen(1.0, 10.0))
    assert first[0] == pytest.approx(10.0 + 2.0 * 0.1 * 3.0)
    second = loop.act(seen(1.5, 10.6))
    assert second[0] == pytest.approx(10.6 + 2.0 * (-0.5 + 0.1 * 2.5))


def test_derivative_by_hand() -> None:
    """Td 4, N 8, h 1: d = (4 d' + 32 (y - y'))/12; a ramp of 1 gives 8/3, then 8/3 + 8/9."""
    loop = pid(PidSettings(1.0, 1e12, 1.0, derivative_s=4.0, derivative_filter=8.0))
    loop.act(seen(0.0, 0.0))
    assert loop.act(seen(1.0, 0.0))[0] == pytest.approx(-1.0 - 8 / 3)
    assert loop.act(seen(2.0, 0.0))[0] == pytest.approx(-1.0 - 8 / 9)


@pytest.mark.parametrize(("weight", "kick"), [(1.0, 6.0), (0.0, 0.0), (0.5, 3.0)])
def test_setpoint_weight_is_the_share_that_acts_at_once(weight: float, kick: float) -> None:
    loop = pid(PidSettings(2.0, 1e12, 1.0, setpoint_weight=weight), setpoint=1.0)
    loop.act(seen(1.0, 0.0))
    loop.setpoint = 4.0
    assert loop.act(seen(1.0, 0.0))[0] == pytest.approx(kick, abs=1e-9)
    assert loop.act(seen(1.0, 0.0))[0] == pytest.approx(0.0, abs=1e-9)  # once


def run(loop: Pid, steps: int, level: float = 0.0, most: float = 1e9) -> tuple[float, list[float]]:
    """First-order plant y' = (u - y)/20 s with exact hold over 1 s; the actuator saturates."""
    kept, applied, levels = exp(-1.0 / 20.0), 0.0, []
    for _ in range(steps):
        applied = float(np.clip(loop.act(seen(level, applied))[0], -most, most))
        level = kept * level + (1 - kept) * applied
        levels.append(level)
    return applied, levels


def test_reaches_the_setpoint_without_offset() -> None:
    applied, levels = run(pid(PidSettings(3.0, 20.0, 1.0), setpoint=5.0), 400)
    assert levels[-1] == pytest.approx(5.0, abs=1e-6)
    assert applied == pytest.approx(5.0, abs=1e-6)
    assert max(levels) < 5.5


def test_does_not_wind_up_behind_an_actuator_that_saturates() -> None:
    loop = pid(PidSettings(3.0, 20.0, 1.0), setpoint=50.0)
    applied, levels = run(loop, 2000, most=10.0)  # unreachable for half an hour
    assert applied == 10.0
    loop.setpoint = 0.0
    applied = float(loop.act(seen(levels[-1], 10.0))[0])
    assert applied < 10.0  # leaves the limit at once


def test_takes_over_without_a_bump_at_the_setpoint() -> None:
    loop = pid(PidSettings(3.0, 20.0, 1.0, derivative_s=2.0), setpoint=5.0)
    for _ in range(50):
        loop.track(seen(5.0, 42.0), wrote(42.0))
    assert loop.act(seen(5.0, 42.0))[0] == pytest.approx(42.0)


def test_without_read_back_it_builds_on_what_was_written() -> None:
    loop = pid(PidSettings(2.0, 10.0, 1.0), setpoint=1.0)
    loop.track(seen(1.0, 3.0), wrote(3.0))
    assert loop.act(seen(1.0, nan))[0] == pytest.approx(3.0)


def test_holds_through_a_gap_and_sees_no_step_behind_it() -> None:
    loop = pid(PidSettings(2.0, 1e12, 1.0, derivative_s=5.0), setpoint=0.0)
    loop.act(seen(1.0, 7.0))
    assert loop.act(seen(nan, 7.0))[0] == 7.0
    assert loop.act(seen(9.0, 7.0))[0] == pytest.approx(7.0, abs=1e-9)


def test_a_measurement_that_was_found_to_be_bad_is_a_gap_whatever_it_is() -> None:
    loop = pid(PidSettings(2.0, 1e12, 1.0, derivative_s=5.0), setpoint=0.0)
    loop.act(seen(1.0, 7.0))
    image = seen(50.0, 7.0)
    image.quality[1] = Quality.BAD
    assert loop.act(image)[0] == 7.0
    loop.track(image, wrote(7.0))
    assert loop.act(seen(9.0, 7.0))[0] == pytest.approx(7.0, abs=1e-9)


@pytest.mark.parametrize(
    "wrong",
    [
        {"gain": 0.0},
        {"integral_s": 0.0},
        {"period_s": -1.0},
        {"derivative_s": -1.0},
        {"derivative_filter": 0.0},
        {"setpoint_weight": 1.5},
        {"gain": nan},
    ],
)
def test_a_tuning_that_is_none_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=f"pid: {next(iter(wrong))}="):
        PidSettings(**{"gain": 1.0, "integral_s": 10.0, "period_s": 1.0, **wrong})
