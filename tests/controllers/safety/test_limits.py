"""The last line: finite, box, rate, as the wire stores it; checked against a naive second one."""

import struct
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from math import copysign, inf, isfinite, nan

import numpy as np
import pytest

from steadyhand.controllers.errors import SafetyError
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.safety import limits as module
from steadyhand.controllers.safety.limits import Limits, Whole, clamp_dt, take
from steadyhand.controllers.signals import ROUNDING, Signal, SignalSet

NOWHERE = [nan]


def pump(low: float = -1.0, high: float = 2.0, rate: float = inf) -> SignalSet:
    return SignalSet((Signal("pump", "m3/h", low, high, rate_per_s=rate),))


def test_passes_what_is_within() -> None:
    out, faults = Limits(pump(), 1.0).apply(np.array([0.1 + 0.2]), np.array([0.0]), 1.0)
    assert out.tolist() == [0.1 + 0.2]
    assert faults == ()


@pytest.mark.parametrize(("wanted", "sent"), [(3.0, 2.0), (-9.0, -1.0), (2.0, 2.0), (-1.0, -1.0)])
def test_box(wanted: float, sent: float) -> None:
    out, faults = Limits(pump(), 1.0).apply(np.array([wanted]), np.array([0.0]), 1.0)
    assert out.tolist() == [sent]
    if wanted == sent:
        assert faults == ()
    else:
        (fault,) = faults
        assert fault.code is ReasonCode.LIMIT_CLIPPED
        assert (fault.signal, fault.value, fault.limit) == ("pump", wanted, sent)
        assert fault.text == f"pump={wanted:g} cut to {sent:g}"


def test_one_ulp_beyond_is_cut() -> None:
    out, faults = Limits(pump(), 1.0).apply(np.array([np.nextafter(2.0, 9)]), np.array([2.0]), 1.0)
    assert out.tolist() == [2.0]
    assert len(faults) == 1


@pytest.mark.parametrize(("wanted", "sent"), [(2.0, 0.6), (-1.0, 0.4), (0.55, 0.55), (0.45, 0.45)])
def test_rate_from_the_last_command(wanted: float, sent: float) -> None:
    out, _ = Limits(pump(rate=0.1), 1.0).apply(np.array([wanted]), np.array([0.5]), 1.0)
    assert out.tolist() == pytest.approx([sent], rel=1e-15)


@pytest.mark.parametrize(
    ("dt", "believed"),
    [
        *((0.0, 5), (-3.0, 5), (nan, 5), (5.0, 5), (7, 7), (20, 20)),
        *((21, 20), (1e9, 20), (inf, 20), (-inf, 5)),
    ],
)
def test_time_step_is_clamped(dt: float, believed: float) -> None:
    assert clamp_dt(dt, 10.0) == believed
    out, _ = Limits(pump(rate=0.01), 10.0).apply(np.array([2.0]), np.array([0.0]), dt)
    assert out.tolist() == pytest.approx([0.01 * believed])


def test_box_holds_when_the_last_command_was_outside() -> None:
    limits = Limits(pump(rate=0.1), 1.0)
    assert limits.apply(np.array([9.0]), np.array([50.0]), 1.0)[0].tolist() == [2.0]
    assert limits.apply(np.array([-9.0]), np.array([50.0]), 1.0)[0].tolist() == [1.9]
    assert limits.apply(np.array([9.0]), np.array([-50.0]), 1.0)[0].tolist() == [-0.9]


def test_an_unknown_last_command_leaves_the_box() -> None:
    out, _ = Limits(pump(rate=0.1), 1.0).apply(np.array([1.5]), np.array(NOWHERE), 1.0)
    assert out.tolist() == [1.5]


def test_the_farthest_clipped_output_is_named() -> None:
    pair = SignalSet((Signal("a", "m", -1, 1), Signal("b", "m", -1, 1), Signal("c", "m", -1, 1)))
    _, faults = Limits(pair, 1.0).apply(np.array([1.5, -4.0, 1.2]), np.zeros(3), 1.0)
    assert [(fault.signal, fault.value, fault.limit) for fault in faults] == [("b", -4.0, -1.0)]


@pytest.mark.parametrize("bad", [nan, inf, -inf])
def test_a_number_that_is_none_holds_the_last_command(bad: float) -> None:
    pair = SignalSet((Signal("a", "m", -1, 1), Signal("b", "m", 1, 2)))
    limits = Limits(pair, 1.0)
    out, faults = limits.apply(np.array([0.3, bad]), np.array([-0.5, 1.25]), 1.0)
    assert out.tolist() == [-0.5, 1.25], "a half-believed command is no command"
    assert [fault.code for fault in faults] == [ReasonCode.FILTER_NONFINITE]
    assert faults[0].signal == "b"
    assert faults[0].text == f"b={bad}: last command held"
    out, _ = limits.apply(np.array([bad, 1.5]), np.array([nan, 1.25]), 1.0)
    assert out.tolist() == [0.0, 1.25], "nothing known: zero, or the bound next to it"
    out, _ = limits.apply(np.array([bad, 1.5]), np.array([nan, nan]), 1.0)
    assert out.tolist() == [0.0, 1.0]


def test_minus_zero_goes_out_as_zero() -> None:
    for wire in (("float64",), ("float32",)):
        out, faults = Limits(pump(), 1.0, wire).apply(np.array([-0.0]), np.array([0.0]), 1.0)
        assert copysign(1.0, out[0]) == 1.0
        assert faults == ()
    out, _ = Limits(pump(), 1.0, ("float32",)).apply(np.array([-1e-300]), np.array([0.0]), 1.0)
    assert copysign(1.0, out[0]) == 1.0


def test_the_callers_arrays_stay_his_own() -> None:
    wanted, last = np.array([9.0]), np.array([0.0])
    limits = Limits(pump(), 1.0)
    first, _ = limits.apply(wanted, last, 1.0)
    second, _ = limits.apply(np.array([0.5]), last, 1.0)
    assert (wanted.tolist(), last.tolist()) == ([9.0], [0.0])
    assert (first.tolist(), second.tolist()) == ([2.0], [0.5])


@pytest.mark.parametrize("rate", [1e-9, 0.004, 0.0625, 0.3])
def test_the_ramp_of_a_narrow_output_in_plain_words(rate: float) -> None:
    """Largest and smallest 32-bit floats within the ramp; where there is none, the nearest."""
    step = rate * 1.0
    limits, lo, hi = Limits(pump(0.0, 1e6, rate), 1.0, ("float32",)), np.zeros(1), np.zeros(1)
    for last in (123456.703125, 123456.7, 65536.0, 0.0, 1e6, 3.0000001):
        limits.reach(np.array([last]), 1.0, lo, hi)
        near = np.float32(last)
        grid = [near]
        for _ in range(200):
            grid = [np.nextafter(grid[0], np.float32(-1)), *grid]
            grid = [*grid, np.nextafter(grid[-1], np.float32(2e6))]
        within = [float(one) for one in grid if last - step <= float(one) <= last + step]
        within = [one for one in within if 0.0 <= one <= 1e6] or [float(near)]
        if len(within) < 200:
            assert (lo[0], hi[0]) == (within[0], within[-1])


@pytest.mark.parametrize("value", [0.1, 1 / 3, -0.7, 16777217.0, 1e-45, -1e-50, 3.4e38, 0.0, 1.5])
def test_narrowing_brackets_the_value(value: float) -> None:
    above, below = module.narrow_up(value), module.narrow_down(value)
    assert below <= value <= above
    for stored in (above, below):
        assert struct.unpack("f", struct.pack("f", stored))[0] == stored
    if np.float64(np.float32(value)) == value:
        assert above == below == value
    else:
        assert np.float32(below) == np.nextafter(np.float32(above), np.float32(-np.inf))


def stored(value: float, kind: str) -> float:
    return struct.unpack("<f", struct.pack("<f", value))[0] if kind == "float32" else value


def naive(low, high, rate, kind, wanted, last, dt, period):
    """The limits once more, one output, in plain words: what the specification says."""
    dt = period / 2 if dt != dt or dt < period / 2 else 2 * period if dt > 2 * period else dt
    if not isfinite(wanted):
        wanted = last if isfinite(last) else 0.0
    top, bottom = high, low
    if isfinite(last):
        start = sorted((low, last, high))[1]
        top, bottom = min(high, start + rate * dt), max(low, start - rate * dt)
    value = sorted((bottom, wanted, top))[1]
    return value, stored(value, kind)


def test_differs_nowhere_from_a_naive_second_one(many: Callable[[int], int]) -> None:
    rng = np.random.default_rng(42)
    special = [0.0, -0.0, nan, inf, -inf, 1e300, 1e-300, 0.1, 0.7]
    for _ in range(many(400)):
        kind = str(rng.choice(["float64", "float32"]))
        low = float(rng.choice([-0.1, -1 / 3, -700.0, 0.1]))
        high = low + float(rng.choice([0.2, 1.0, 1400.7]))
        rate = float(rng.choice([inf, 0.01, 0.3, 70.0]))
        period = float(rng.choice([0.01, 1.0, 900.0]))
        limits = Limits(pump(low, high, rate), period, (kind,))
        last = float(rng.choice([nan, low, high, rng.uniform(low - 1, high + 1)]))
        for _ in range(20):
            dt = float(rng.choice([nan, 0.0, -1.0, inf, period, rng.uniform(0, 3) * period]))
            wanted = float(rng.choice([*special, low, high, rng.uniform(low - 1, high + 1)]))
            out, _ = limits.apply(np.array([wanted]), np.array([last]), dt)
            value, on_wire = naive(low, high, rate, kind, wanted, last, dt, period)
            assert low <= stored(out[0], kind) <= high, "inside as stored, not as computed"
            assert stored(out[0], kind) == out[0], "rounding again changes nothing"
            width = np.spacing(np.float32(max(abs(low), abs(high)))) if kind == "float32" else 0
            assert abs(out[0] - value) <= width
            if kind == "float64":
                assert out[0] == on_wire
            if isfinite(last) and low <= last == stored(last, kind) <= high:
                step = rate * clamp_dt(dt, period)
                assert abs(out[0] - last) <= step + 1e-16 * max(abs(low), abs(high))
            last = float(out[0])


def test_a_ramp_finer_than_the_wire_stays() -> None:
    limits = Limits(pump(0.0, 1e6, rate=1e-6), 1.0, ("float32",))
    out, _ = limits.apply(np.array([1e6]), np.array([123456.703125]), 1.0)
    assert out.tolist() == [123456.703125]
    # A read-back that no 32-bit float can hold: the nearest one.
    out, _ = limits.apply(np.array([1e6]), np.array([123456.7]), 1.0)
    assert out.tolist() == [float(np.float32(123456.7))]


class TestLastApplied:
    def test_what_was_sent_counts_while_the_read_back_lags(self) -> None:
        limits = Limits(pump(rate=0.1), 1.0)
        # Largest step is 0.1*2*1 s = 0.2.
        assert limits.last_applied(np.array([0.5]), np.array([0.6]), True).tolist() == [0.6]
        assert limits.last_applied(np.array([0.5]), np.array([0.69]), True).tolist() == [0.69]
        assert limits.last_applied(np.array([0.9]), np.array([0.71]), True).tolist() == [0.71]
        assert limits.last_applied(np.array([0.0]), np.array([0.2]), True).tolist() == [0.2]

    def test_the_read_back_counts_when_the_plant_does_something_else(self) -> None:
        limits = Limits(pump(rate=0.1), 1.0)
        assert limits.last_applied(np.array([0.5]), np.array([0.71]), True).tolist() == [0.5]
        assert limits.last_applied(np.array([0.5]), np.array([0.29]), True).tolist() == [0.5]

    def test_the_read_back_counts_when_nothing_was_written(self) -> None:
        limits = Limits(pump(), 1.0)
        assert limits.last_applied(np.array([0.5]), np.array([0.6]), False).tolist() == [0.5]

    def test_one_of_them_is_enough(self) -> None:
        limits = Limits(pump(rate=0.1), 1.0)
        assert limits.last_applied(np.array([nan]), np.array([0.6]), True).tolist() == [0.6]
        assert limits.last_applied(np.array([0.5]), np.array([nan]), True).tolist() == [0.5]
        assert np.isnan(limits.last_applied(np.array([nan]), np.array([0.6]), False)[0])
        assert np.isnan(limits.last_applied(np.array([nan]), np.array([nan]), True)[0])

    def test_frames(self, image: Callable, command: Callable) -> None:
        limits = Limits(pump(rate=0.1), 1.0)
        assert limits.last_of(image([0.5]), command([0.6])).tolist() == [0.6]
        assert limits.last_of(image([0.5]), command([0.6], written=False)).tolist() == [0.5]


class TestCut:
    def cut(self, low, high, lo, hi, grid=0.0):
        lo, hi = np.array([float(lo)]), np.array([float(hi)])
        missed = module.cut(
            np.array([float(low)]), np.array([float(high)]), np.array([grid]), lo, hi
        )
        return missed, lo[0], hi[0]

    def test_meets(self) -> None:
        assert self.cut(-2, 0.5, -1, 1) == (-1, -1, 0.5)
        assert self.cut(-0.5, 2, -1, 1) == (-1, -0.5, 1)
        assert self.cut(1, 1, -1, 1) == (-1, 1, 1)

    def test_out_of_reach_goes_as_far_as_it_can(self) -> None:
        assert self.cut(2, 3, -1, 1) == (0, 1, 1)
        assert self.cut(-3, -2, -1, 1) == (0, -1, -1)

    def test_contradiction_meets_in_the_middle(self) -> None:
        assert self.cut(0.5, 0.3, -1, 1) == (0, 0.4, 0.4)
        assert self.cut(5, 3, -1, 1) == (0, 1, 1)
        assert self.cut(-3, -5, -1, 1) == (0, -1, -1)

    def test_on_the_wire_grid(self) -> None:
        missed, lo, hi = self.cut(0.1, 0.7, -1, 1, grid=module.FLOAT32)
        assert missed == -1
        assert 0.1 <= lo == np.float32(lo)
        assert 0.7 >= hi == np.float32(hi)

    def test_names_the_first(self) -> None:
        lo, hi = np.zeros(3), np.ones(3)
        low, high = np.array([0.0, 2.0, 3.0]), np.array([1.0, 3.0, 4.0])
        assert module.cut(low, high, np.zeros(3), lo, hi) == 1
        assert lo.tolist() == [0, 1, 1]
        lo, hi = np.zeros(2), np.ones(2)
        assert module.cut(np.array([2.0, 3.0]), np.array([3.0, 4.0]), np.zeros(2), lo, hi) == 0


def test_agree() -> None:
    close = np.array([0.1, 0.1])
    assert module.agree(np.array([1.0, 2.0]), np.array([1.05, 1.95]), close)
    assert module.agree(np.array([1.0, 2.0]), np.array([1.0, 2.0]), np.zeros(2))
    assert not module.agree(np.array([1.0, 2.0]), np.array([1.05, 1.85]), close)
    assert not module.agree(np.array([1.2, 2.0]), np.array([1.05, 2.0]), close)
    assert not module.agree(np.array([nan, 2.0]), np.array([1.0, 2.0]), close)


@pytest.mark.parametrize(
    "values",
    [None, "text", 3.0, [0.1, 0.2], np.zeros(3), np.zeros((1, 2)), np.array(["a", "b"]),
     np.array([None, 1.0], dtype=object)],
)  # fmt: skip
def test_what_is_no_vector_becomes_nan(values: object) -> None:
    out = np.zeros(2)
    take(values, out)
    assert np.isnan(out).any()


def test_other_number_types_are_taken() -> None:
    out = np.zeros(2)
    take(np.array([1, 2], dtype=np.int32), out)
    assert out.tolist() == [1.0, 2.0]
    take(np.array([0.5, 9.0, 0.25], dtype=np.float32)[::2], out)
    assert out.tolist() == [0.5, 0.25]
    frozen = np.array([0.1, 0.2])
    frozen.flags.writeable = False
    take(frozen, out)
    assert out.tolist() == [0.1, 0.2]


def broken(name: str, index: int, value: float) -> SignalSet:
    """A signal set spoilt after its own checks, as a defect elsewhere might."""
    signals = pump()
    column = getattr(signals, name).copy()
    column[index] = value
    object.__setattr__(signals, name, column)
    object.__setattr__(signals.signals[0], name, value)
    return signals


@pytest.mark.parametrize(
    ("name", "value"),
    [("low", nan), ("high", nan), ("low", 2.0), ("low", 3.0), ("high", inf), ("low", -inf)],
)
def test_refuses_bounds_that_bound_nothing(name: str, value: float) -> None:
    with pytest.raises(SafetyError, match=r"limits of pump: low=.*: need finite low < high"):
        Limits(broken(name, 0, value), 1.0)


@pytest.mark.parametrize("value", [nan, 0.0, -1.0])
def test_refuses_rates_that_are_none(value: float) -> None:
    with pytest.raises(SafetyError, match=r"limits of pump: rate_per_s=.*: must be > 0"):
        Limits(broken("rate_per_s", 0, value), 1.0)


@pytest.mark.parametrize("period", [0.0, -1.0, nan, inf])
def test_refuses_a_period_that_is_none(period: float) -> None:
    with pytest.raises(SafetyError, match=r"limits: period_s=.*: must be finite and > 0"):
        Limits(pump(), period)


def test_refuses_wire_types_it_does_not_know() -> None:
    with pytest.raises(SafetyError, match="wire type 'int16': float64 or float32"):
        Limits(pump(), 1.0, ("int16",))
    with pytest.raises(SafetyError, match="2 wire types for 1 outputs"):
        Limits(pump(), 1.0, ("float32", "float32"))


@pytest.mark.parametrize(
    ("low", "high"),
    [(0.1, 0.1000000001), (-1e39, 0.0), (0.0, 1e39), (-3.4028235e38, 0.0), (0.0, 3.4028235e38)],
)
def test_refuses_what_no_narrow_float_can_meet(low: float, high: float) -> None:
    with pytest.raises(SafetyError, match="no 32-bit float lies within"):
        Limits(pump(low, high), 1.0, ("float32",))
    Limits(pump(low, high), 1.0, ("float64",))


def test_takes_the_widest_narrow_float() -> None:
    widest = float(np.finfo(np.float32).max)
    out, _ = Limits(pump(-widest, widest), 1.0, ("float32",)).apply(
        np.array([1e300]), np.array([0.0]), 1.0
    )
    assert out.tolist() == [widest]


def test_nothing_clipped_is_told_as_such() -> None:
    out, wide = np.empty(1), np.zeros(1)
    assert module.confine(np.array([0.5]), np.zeros(1), np.ones(1), wide, out) == -1
    assert module.confine(np.array([1.5]), np.zeros(1), np.ones(1), wide, out) == 0


def test_a_held_command_that_had_to_be_cut_is_told_twice() -> None:
    out, faults = Limits(pump(), 1.0).apply(np.array(NOWHERE), np.array([50.0]), 1.0)
    assert out.tolist() == [2.0]
    assert [fault.code for fault in faults] == [
        ReasonCode.FILTER_NONFINITE,
        ReasonCode.LIMIT_CLIPPED,
    ]


def test_numbers_in_faults_are_plain_ones() -> None:
    """The journal writes them; numpy's own would not go through."""
    limits = Limits(pump(), 1.0)
    for wanted in (9.0, inf):
        _, (fault, *_) = limits.apply(np.array([wanted]), np.zeros(1), 1.0)
        assert type(fault.value) is float
        assert type(fault.limit) is float
    assert type(clamp_dt(np.float32(7.0), 10.0)) is float


def test_one_narrow_float_is_enough() -> None:
    only = float(np.float32(0.1))
    limits = Limits(pump(only - 1e-12, only + 1e-12), 1.0, ("float32",))
    assert limits.apply(np.array([5.0]), np.array([0.0]), 1.0)[0].tolist() == [only]


def test_all_within() -> None:
    assert module.all_within(np.array([1.0, -2.0]), 2.0)
    assert not module.all_within(np.array([1.0, -2.0]), 1.999)
    assert not module.all_within(np.array([nan, 0.0]), inf)
    assert not module.all_finite(np.array([0.0, inf]))
    assert not module.all_finite(np.array([-inf, 0.0]))
    assert module.all_finite(np.array([1e308, 0.0]))


class TestWholeNumbers:
    """An output that the plant stores as an integer, with a step."""

    @pytest.mark.parametrize("step", [1.0, 0.1, 0.01, 1 / 3, 0.3, 7.0])
    def test_settling_brackets_the_value_with_neighbours(self, step: float) -> None:
        for value in (0.0, 0.3, -0.7, 1.1, 41.6, -123.45, 6.999999999999999, 3 * step, -5 * step):
            above, below = module.settle_up(value, step), module.settle_down(value, step)
            rounding = ROUNDING * abs(value)
            assert below - rounding <= value <= above + rounding
            for stored in (above, below):
                assert stored == round(stored / step) * step
            assert round(above / step) - round(below / step) == (0 if above == below else 1)
            if abs(value - round(value / step) * step) <= 0.5 * rounding:
                assert above == below == round(value / step) * step
            near = module.settle(value, step)
            assert near in (above, below)
            assert abs(near - value) <= 0.5000001 * step

    @pytest.mark.parametrize("steps", [-7.0, -3.0, -1.0, 1.0, 3.0, 7.0])
    @pytest.mark.parametrize("settled", [module.settle_up, module.settle_down])
    def test_a_whole_number_but_for_rounding_is_that_number(self, steps, settled) -> None:
        for value in (np.nextafter(steps, -inf), steps, np.nextafter(steps, inf)):
            assert settled(float(value), 1.0) == steps
        assert module.settle_up(steps * (1.0 + 1e-12), 1.0) == steps + (steps > 0.0)
        assert module.settle_down(steps * (1.0 + 1e-12), 1.0) == steps - (steps < 0.0)

    def test_nothing_is_nothing_and_no_end_has_none(self) -> None:
        for settled in (module.settle, module.settle_up, module.settle_down):
            assert [settled(value, 0.1) for value in (0.0, inf, -inf)] == [0.0, inf, -inf]

    def test_by_hand(self) -> None:
        limits = Limits(pump(-1.05, 2.0, 0.75), 1.0, (Whole(0.1, -128, 127),))
        for wanted, last, expected in (
            (0.34, 0.0, 3 * 0.1),
            (0.36, 0.0, 4 * 0.1),
            (9.0, 0.0, 7 * 0.1),  # the ramp
            (9.0, 1.9, 20 * 0.1),  # the box
            (-9.0, -1.0, -10 * 0.1),  # the last whole step inside the box
        ):
            out, _ = limits.apply(np.array([wanted]), np.array([last]), 1.0)
            assert out.tolist() == [expected]

    def test_always_a_whole_number_inside_box_and_ramp(self) -> None:
        rng = np.random.default_rng(5)
        for _ in range(4000):
            step = float(rng.choice([1.0, 0.1, 0.05, 1 / 3, 2.5]))
            low = float(rng.uniform(-50, 40))
            high = low + float(rng.uniform(2 * step, 50))
            rate = float(rng.uniform(step, 20))
            limits = Limits(pump(low, high, rate), 1.0, (Whole(step, -1e4, 1e4),))
            first, top = module.settle_up(low, step), module.settle_down(high, step)
            last = float(module.settle(rng.uniform(first, top), step))
            wanted = rng.uniform(low - 20, high + 20)
            out, _ = limits.apply(np.array([wanted]), np.array([last]), 1.0)
            value = float(out[0])
            assert value == round(value / step) * step
            assert low <= value <= high
            assert abs(value - last) <= rate * (1.0 + 1e-12)
            near = min(max(wanted, low, last - rate), high, last + rate)
            assert abs(value - near) <= step * 1.0000001

    @pytest.mark.parametrize("step", [1.0, 0.1, 0.01, 0.05, 0.3, 0.7, 1e-3, 1.1, 2.5])
    @pytest.mark.parametrize("first", [-100, -7, -1, 0, 3, 41])
    @pytest.mark.parametrize("steps_per_tick", [1, 3])
    def test_limits_and_ramps_of_whole_steps_are_reached_whole(
        self, step: float, first: int, steps_per_tick: int
    ) -> None:
        """Written as a person writes them, in decimals: n * 0.1 is not what 0.1 n times is."""

        def decimal(steps: int) -> float:
            return float(Decimal(str(step)) * steps)

        last = first + 30
        low, high, rate = decimal(first), decimal(last), decimal(steps_per_tick)
        limits = Limits(pump(low, high, rate), 1.0, (Whole(step, first, last),))
        for start, end, way in ((first, last, steps_per_tick), (last, first, -steps_per_tick)):
            for applied in (lambda at: at * step, decimal, lambda at: (at * step / rate) * rate):
                at = start
                while at != end:
                    out, faults = limits.apply(
                        np.array([decimal(end)]), np.array([applied(at)]), 1.0
                    )
                    at += way
                    assert out[0] == pytest.approx(at * step, rel=1e-14, abs=0.0)
                    assert low <= out[0] <= high
                    assert bool(faults) is (at != end)
                rest, faults = limits.apply(np.array([decimal(end)]), np.array([applied(end)]), 1.0)
                assert rest[0] == pytest.approx(decimal(end), rel=1e-14, abs=0.0)
                assert faults == ()

    def test_a_ramp_that_crosses_zero_takes_its_last_step(self) -> None:
        """There, the difference of two numbers is all rounding."""
        ramp = np.nextafter(0.1, 0.0)
        limits = Limits(pump(-1.0, 1.0, ramp), 1.0, (Whole(0.1, -10, 10),))
        for last, wanted in ((0.1, -1.0), (-0.1, 1.0), (3 * 0.1, 0.2), (-3 * 0.1, -0.2)):
            out, _ = limits.apply(np.array([wanted]), np.array([last]), 1.0)
            assert abs(out[0] - last) == pytest.approx(0.1)

    def test_less_than_a_step_is_none_however_little_is_missing(self) -> None:
        """Rounding is forgiven, a real difference is not."""
        less = 0.1 * (1.0 - 1e-12)
        limits = Limits(pump(0.0, 3.0 - 1e-12, 0.2 - 1e-13), 1.0, (Whole(0.1, 0, 99),))
        out, faults = limits.apply(np.array([9.0]), np.array([2.8]), 1.0)
        assert (out[0], len(faults)) == (29 * 0.1, 1)
        out, _ = limits.apply(np.array([0.5]), np.array([0.0]), 1.0)
        assert out[0] == 0.1
        with pytest.raises(SafetyError, match="could never move"):
            Limits(pump(0.0, 3.0, less), 1.0, (Whole(0.1, 0, 99),))

    def test_bounds_of_this_moment_that_contradict_leave_a_whole_step(self) -> None:
        lo, hi = np.array([0.0]), np.array([9.0])
        grid = np.array([1.0])
        assert module.cut(np.array([7.0]), np.array([0.6]), grid, lo, hi) == 0
        assert lo.tolist() == hi.tolist() == [4.0]

    @pytest.mark.parametrize("rate", [inf, 5.0])
    def test_without_a_ramp_the_box_alone_counts(self, rate: float) -> None:
        limits = Limits(pump(-0.3, 0.3, rate), 1.0, (Whole(0.1, -9, 9),))
        for wanted, expected in ((9.0, 0.3), (-9.0, -0.3), (3 * 0.1, 0.3), (-3 * 0.1, -0.3)):
            out, faults = limits.apply(np.array([wanted]), np.array([0.0]), 1.0)
            assert out.tolist() == [expected]
            assert bool(faults) is (abs(wanted) > 1.0)

    def test_the_step_is_the_quantum_of_the_rows(self) -> None:
        pair = SignalSet((*pump(), replace(next(iter(pump())), name="other")))
        assert Limits(pair, 1.0, (Whole(0.5, -9, 9), "float64")).quantum.tolist() == [0.5, 0.0]

    @pytest.mark.parametrize(
        ("bounds", "kind", "words"),
        [
            ((0.0, 300.0), Whole(1.0, 0, 255), "do not fit the type"),
            ((-1.0, 1.0), Whole(1.0, 0, 255), "do not fit the type"),
            ((0.2, 0.8), Whole(1.0, 0, 255), "do not fit the type"),
            ((0.2, 1.5), Whole(1.0, 0, 255), "do not fit the type"),  # one number is no choice
            ((0.0, 1.0), Whole(0.0, 0, 255), "step=0.0"),
            ((0.0, 1.0), Whole(nan, 0, 255), "step=nan"),
            ((0.0, 9.0, 0.4), Whole(1.0, 0, 255), "could never move"),
        ],
    )
    def test_what_cannot_be_said_is_refused(self, bounds, kind, words) -> None:
        with pytest.raises(SafetyError, match=words):
            Limits(pump(*bounds), 1.0, (kind,))

    @pytest.mark.parametrize("bounds", [(-0.5, 9.0), (0.0, 255.5), (0.0, 9.0, 1.0 - ROUNDING)])
    def test_what_can_just_be_said_is_not(self, bounds) -> None:
        Limits(pump(*bounds), 1.0, (Whole(1.0, 0, 255),))

    def test_a_ramp_counts_over_a_period(self) -> None:
        Limits(pump(0.0, 9.0, 0.5), 2.0, (Whole(1.0, 0, 255),))
        with pytest.raises(SafetyError, match="could never move"):
            Limits(pump(0.0, 9.0, 1.0), 0.5, (Whole(1.0, 0, 255),))
