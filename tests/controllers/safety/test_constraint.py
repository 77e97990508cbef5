"""Declared rows, their margins, and gains that must not void the promise."""

from math import inf, nan, sqrt

import numpy as np
import pytest

from steadyhand.controllers.errors import SafetyError
from steadyhand.controllers.safety.constraint import (
    ConstraintRow,
    ConstraintSet,
    Gains,
    Priority,
    braking_speed,
    diameter,
    metric,
)
from steadyhand.controllers.signals import Signal, SignalSet


def tank_row(**changes: object) -> ConstraintRow:
    numbers = {
        "scale": 1000.0,
        "curvature": 0.02,
        "rate_disturbance": 3.0,
        "rate_disturbance_excess": 0.5,
        "measurement_error": 4.0,
        "largest_rate": 10.0,
        "delay_s": 2.0,
    }
    return ConstraintRow("energy", "kWh", **{**numbers, **changes})  # type: ignore[arg-type]


def test_margin_by_hand() -> None:
    # r = 0.02*10^2/2 + 0.5*10 = 6 kWh; lambda T = 0.5: 12; e + V tau = 4 + 20; 36 of 1000 kWh.
    gains = Gains(period_s=10, diameter=2, gamma=0.045, beta=0.0225, recovery=0.05)
    assert ConstraintSet((tank_row(),)).margins(gains) == pytest.approx([0.036], rel=1e-14)


def test_softness_floor_is_paid_for_by_distance() -> None:
    # a_min D T = 1e-5*2*10 = 2e-4, over lambda T = 0.5: 4e-4 of the range on top.
    gains = Gains(10, 2, 0.045, 0.0225, 0.05, softness_floor=1e-5)
    assert ConstraintSet((tank_row(),)).margins(gains) == pytest.approx([0.0364], rel=1e-12)


def test_slower_recovery_needs_more_distance() -> None:
    slow = Gains(10, 2, 0.045, 0.0225, recovery=0.025)
    assert ConstraintSet((tank_row(),)).margins(slow) == pytest.approx([0.048], rel=1e-12)


def test_an_equality_has_no_safe_side() -> None:
    gains = Gains.for_period(10, 2)
    both = ConstraintSet((tank_row(equality=True), ConstraintRow("other", "m", 1.0)))
    assert both.margins(gains).tolist() == [0.0, 0.0]


def test_residual_bounds_by_hand() -> None:
    # w + w' + M T/2 + 2 e/T = 3 + 0.5 + 0.1 + 0.8 = 4.4 kWh/s of 1000.
    gains = Gains.for_period(10, 2)
    silent = ConstraintRow("exact", "m", 1.0)
    bounds = ConstraintSet((tank_row(), silent)).residual_bounds(gains)
    assert bounds == pytest.approx([0.0044, 1e-10], rel=1e-12)


def test_columns_are_scaled_and_read_only() -> None:
    rows = ConstraintSet(
        (tank_row(), ConstraintRow("comfort", "K", 5.0, Priority.COMFORT, rate_disturbance=1.0))
    )
    assert rows.names == ("energy", "comfort")
    assert len(rows) == 2
    assert rows.rate_disturbance.tolist() == [0.003, 0.2]
    assert rows.hard.tolist() == [True, False]
    assert rows.equality.tolist() == [False, False]
    assert rows.priority.tolist() == [2, 3]
    with pytest.raises(ValueError, match="read-only"):
        rows.hard[0] = False


@pytest.mark.parametrize(
    ("priority", "hard"),
    [
        (Priority.PEOPLE, True),
        (Priority.STRUCTURE, True),
        (Priority.EQUIPMENT, True),
        (Priority.COMFORT, False),
        (Priority.COST, False),
    ],
)
def test_hard_rows(priority: Priority, hard: bool) -> None:
    assert ConstraintRow("x", "m", 1.0, priority).hard is hard


def test_fingerprint_follows_every_number() -> None:
    first = ConstraintSet((tank_row(),)).fingerprint()
    assert first == ConstraintSet((tank_row(),)).fingerprint()
    assert len(first) == 64
    assert first != ConstraintSet((tank_row(measurement_error=4.0000001),)).fingerprint()


@pytest.mark.parametrize("scale", [0.0, -1.0, nan, inf])
def test_refuses_a_scale_that_is_none(scale: float) -> None:
    with pytest.raises(SafetyError, match=r"constraint energy: scale=.* kWh: must be finite and >"):
        tank_row(scale=scale)


@pytest.mark.parametrize("degree", [0, 3])
def test_refuses_other_relative_degrees(degree: int) -> None:
    with pytest.raises(SafetyError, match=f"relative_degree={degree}: must be 1 or 2"):
        tank_row(relative_degree=degree)


def test_takes_relative_degree_two() -> None:
    assert tank_row(relative_degree=2).relative_degree == 2


@pytest.mark.parametrize("value", [-1e-9, nan, inf])
@pytest.mark.parametrize(
    "label",
    [
        "curvature",
        "rate_disturbance",
        "rate_disturbance_excess",
        "measurement_error",
        "largest_rate",
        "delay_s",
    ],
)
def test_refuses_impossible_bounds(label: str, value: float) -> None:
    with pytest.raises(SafetyError, match=f"constraint energy: {label}={value}: must be finite"):
        tank_row(**{label: value})


def test_refuses_a_delay_without_a_rate() -> None:
    with pytest.raises(SafetyError, match=r"delay_s=2.0 s without largest_rate.*kWh/s"):
        tank_row(largest_rate=0.0)
    assert tank_row(largest_rate=0.0, delay_s=0.0).delay_s == 0.0


def test_a_short_delay_needs_a_rate_too() -> None:
    with pytest.raises(SafetyError, match=r"delay_s=0.5 s without largest_rate"):
        tank_row(delay_s=0.5, largest_rate=0.0)


def test_what_is_not_declared_is_nothing() -> None:
    row = ConstraintRow("x", "m", 1.0)
    assert (row.priority, row.relative_degree, row.equality) == (Priority.EQUIPMENT, 1, False)
    assert (row.curvature, row.rate_disturbance, row.rate_disturbance_excess) == (0.0, 0.0, 0.0)
    assert (row.measurement_error, row.largest_rate, row.delay_s) == (0.0, 0.0, 0.0)
    assert [int(one) for one in Priority] == [0, 1, 2, 3, 4]


def test_refuses_a_soft_equality() -> None:
    with pytest.raises(SafetyError, match="an equality of priority COMFORT"):
        tank_row(equality=True, priority=Priority.COMFORT)


def test_refuses_an_empty_or_doubled_set() -> None:
    with pytest.raises(SafetyError, match="at least one row"):
        ConstraintSet(())
    with pytest.raises(SafetyError, match="constraints named twice: energy"):
        ConstraintSet((tank_row(), tank_row()))


def test_starting_gains_use_the_whole_allowance() -> None:
    gains = Gains.for_period(0.05, 2.0)
    assert gains.gamma == pytest.approx(9.0)
    assert gains.beta == pytest.approx(4.5)
    assert gains.recovery == pytest.approx(10.0)
    assert (gains.gamma + gains.beta * 2.0) * 0.05 == pytest.approx(0.9)


def test_cbf_limit_is_hard_and_as_steep_as_allowed() -> None:
    gains = Gains.cbf_limit(0.05, 2.0)
    assert (gains.gamma, gains.beta, gains.recovery) == pytest.approx((18.0, 0.0, 10.0))
    assert Gains.cbf_limit(0.05, 2.0, kappa=0.5).gamma == pytest.approx(10.0)


def test_refused_gains_show_the_arithmetic() -> None:
    with pytest.raises(SafetyError) as caught:
        Gains(period_s=0.05, diameter=2.0, gamma=13.0, beta=3.0, recovery=10.0)
    assert "(13 + 3*2)*0.05 s = 0.95 > kappa = 0.9" in str(caught.value)


def test_gains_exactly_at_the_bounds_are_taken() -> None:
    Gains(period_s=0.1, diameter=2.0, gamma=9.0, beta=0.0, recovery=10.0)
    Gains(period_s=1.0, diameter=1.0, gamma=0.0, beta=0.0, recovery=1.0, softness_floor=1e-3)
    with pytest.raises(SafetyError, match=r"= 0.9 > kappa|= 0.90"):
        Gains(period_s=0.1, diameter=2.0, gamma=9.0 + 1e-9, beta=0.0, recovery=10.0)
    with pytest.raises(SafetyError, match=r"recovery\*T = .* > 1: recovery would overshoot"):
        Gains(period_s=0.1, diameter=2.0, gamma=9.0, beta=0.0, recovery=10.0 + 1e-9)
    with pytest.raises(SafetyError, match=r"softness_floor\*D\*T = .* > 0.001 of the range"):
        Gains(1.0, 1.0, 0.0, 0.0, 1.0, softness_floor=1.0000001e-3)


def test_rounding_beyond_the_bounds_is_forgiven_to_the_last_bit() -> None:
    Gains(1.0, 1.0, 0.9 * (1 + 1e-12), 0.0, 1.0)
    Gains(1.0, 1.0, 0.0, 0.0, 1 + 1e-12)
    Gains(1.0, 1.0, 0.0, 0.0, 1.0, softness_floor=1e-3 * (1 + 1e-12))


def test_the_floor_counts_over_the_whole_input_set() -> None:
    Gains(1.0, 2.0, 0.0, 0.0, 1.0, softness_floor=4e-4)
    with pytest.raises(SafetyError, match=r"0.0006\*2\*1 s = 0.0012 > 0.001 of the range"):
        Gains(1.0, 2.0, 0.0, 0.0, 1.0, softness_floor=6e-4)


@pytest.mark.parametrize("kappa", [0.0, 1.0, -0.1, nan])
def test_refuses_kappa_outside_its_range(kappa: float) -> None:
    with pytest.raises(SafetyError, match=r"kappa=.*: must be in \(0, 1\)"):
        Gains(0.05, 2.0, 0.0, 0.0, 1.0, kappa=kappa)


@pytest.mark.parametrize("value", [0.0, -1.0, nan, inf])
@pytest.mark.parametrize("label", ["period_s", "diameter", "recovery"])
def test_refuses_gains_that_must_be_positive(label: str, value: float) -> None:
    numbers = {"period_s": 0.05, "diameter": 2.0, "gamma": 0.0, "beta": 0.0, "recovery": 1.0}
    with pytest.raises(SafetyError, match=f"gains: {label}={value}: must be finite and > 0"):
        Gains(**{**numbers, label: value})


@pytest.mark.parametrize("value", [-1e-9, nan, inf])
@pytest.mark.parametrize("label", ["gamma", "beta", "softness_floor"])
def test_refuses_negative_gains(label: str, value: float) -> None:
    numbers = {"period_s": 0.05, "diameter": 2.0, "gamma": 0.0, "beta": 0.0, "recovery": 1.0}
    with pytest.raises(SafetyError, match=f"gains: {label}={value}: must be finite and >= 0"):
        Gains(**{**numbers, label: value})


def test_metric_makes_every_range_one_long() -> None:
    inputs = SignalSet((Signal("q", "kW", -400, 450), Signal("valve", "1", 0, 0.5)))
    assert metric(inputs) == pytest.approx(np.array([1 / 850**2, 4.0]))
    assert diameter(inputs) == pytest.approx(sqrt(2))


def test_braking_speed_by_hand() -> None:
    # A = 2, T = 0.5, d = 1, v = 1: -0.5 + sqrt(0.25 + 4*(1 - 0.25 - 0.0625)) = 1.232051
    assert braking_speed(1.0, 1.0, 2.0, 0.5) == pytest.approx(-0.5 + sqrt(3.0), rel=1e-14)


def test_braking_that_is_just_in_time() -> None:
    # The root is 0: 0.25 + 4*(0.25 - 0.25 - 0.0625).
    assert braking_speed(0.25, 1.0, 2.0, 0.5) == -0.5


def test_braking_too_late_is_told() -> None:
    assert braking_speed(0.0, 10.0, 2.0, 0.5) == -inf


@pytest.mark.parametrize("period_s", [0.01, 0.05, 0.2])
def test_braking_never_crosses_the_wall(period_s: float) -> None:
    authority = 3.0
    rng = np.random.default_rng(7)
    position, speed, deepest = 0.0, 0.0, inf
    for _ in range(4000):
        wanted = rng.choice([4.0, rng.uniform(-4, 4)])
        allowed = braking_speed(2.0 - position, speed, authority, period_s)
        step = authority * period_s
        after = min(max(min(wanted, allowed), speed - step), speed + step)
        assert allowed >= speed - step - 1e-9, "braking as hard as possible is always enough"
        position += 0.5 * (speed + after) * period_s
        speed = after
        deepest = min(deepest, 2.0 - position)
    assert 0.0 <= deepest < 0.1
