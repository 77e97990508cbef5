"""`certify`: the order of work, every declared way it can end, and what it tells about it."""

from collections.abc import Callable
from dataclasses import replace
from math import inf, isnan, nan

import numpy as np
import pytest

from steadyhand.controllers.errors import SafetyError
from steadyhand.controllers.frames import FilterMode, FilterOutcome
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.safety import active_set, limits, rows
from steadyhand.controllers.safety.active_set import Status
from steadyhand.controllers.safety.atacom import AtacomDC, sweep
from steadyhand.controllers.safety.chain import SafetyChain
from steadyhand.controllers.safety.constraint import ConstraintRow, ConstraintSet, Gains, Priority
from steadyhand.controllers.safety.limits import Limits, Whole
from steadyhand.controllers.safety.row_filter import ATACOM, DC
from steadyhand.controllers.signals import Signal, SignalSet

# T = 0.1, D = 1 (one input in its own metric): gamma 4.5/s, beta 4.5, recovery 5/s; R = 1/4.
PERIOD = 0.1


class Bench:
    """One plant of tables, its filter, and one call per tick."""

    def __init__(self, table_model, box, image, command, n=1, rows=None, rate=inf, wire=None,
                 **options) -> None:  # fmt: skip
        inputs = box(n, rate)
        self.constraints = rows or ConstraintSet((ConstraintRow("wall", "m", 1.0),))
        self.model = table_model(inputs, self.constraints.names)
        self.limits = Limits(inputs, PERIOD, wire)
        ticks = iter(range(0, 10**9, 12_000))
        self.filter = AtacomDC(
            self.model, self.constraints, self.limits, clock_ns=lambda: next(ticks), **options
        )
        self.image, self.command, self.n = image, command, n

    def certify(self, wanted, applied=None, time_s=1.0, sent_s=0.9, sequence=1, age=0.0,
                written=True):  # fmt: skip
        applied = np.zeros(self.n) if applied is None else np.array(applied, dtype=float)
        wanted = np.array(wanted, dtype=float) if isinstance(wanted, list) else wanted
        return self.filter.certify(
            self.image(applied, time_s, sequence, age), wanted,
            self.command(applied, sent_s, written),
        )  # fmt: skip


@pytest.fixture
def bench(table_model, box, image, command) -> Callable[..., Bench]:
    def make(**options) -> Bench:
        return Bench(table_model, box, image, command, **options)

    return make


def codes(certified) -> list[ReasonCode]:
    return [fault.code for fault in certified.faults]


def test_far_away_the_very_command_passes(bench) -> None:
    plant = bench()
    plant.model.J[:] = 1.0
    certified = plant.certify([0.1 + 0.2])
    assert certified.action.tolist() == [0.1 + 0.2]
    assert certified.faults == ()
    report = certified.report
    assert (report.mode, report.outcome) == (FilterMode.PASS, FilterOutcome.SOLVED)
    assert (report.correction_norm, report.correction_share) == (0.0, 0.0)
    assert (report.margin, report.margin_row) == (1.0, 0)
    assert report.active == ()
    assert report.p_nominal == pytest.approx([0.3 - 4.5])
    assert report.p_certified == pytest.approx([0.3 - 4.5])
    assert report.time_to_boundary_s == pytest.approx(1 / 0.3)
    assert (report.passes, report.blend, report.infeasible, report.residual_z) == (0, 0.0, False, 0)
    assert report.duration_us == 12.0


def test_the_second_tick_is_timed_like_the_first(bench) -> None:
    plant = bench()
    plant.certify([0.1])
    assert plant.certify([0.1]).report.duration_us == 12.0
    plant.model.k[:] = nan
    assert plant.certify([0.1]).report.duration_us == 12.0


def test_shares_are_of_the_whole_input_set(bench) -> None:
    plant = bench(n=2)
    plant.model.low[:] = plant.model.high[:] = 0.0
    # Half of both ranges: sqrt(2)/2 of sqrt(2).
    report = plant.certify([1.0, 1.0]).report
    assert report.correction_norm == pytest.approx(2**0.5 / 2)
    assert report.correction_share == pytest.approx(0.5)
    plant.model.k[:], plant.model.fallback[:] = nan, 0.0
    assert plant.certify([1.0, 1.0]).report.correction_share == pytest.approx(0.5)


def test_absurd_wishes_count_as_a_thousand_ranges(table_model, image, command) -> None:
    inputs = SignalSet((Signal("u", "kW", 100.0, 300.0),))
    model = table_model(inputs, ("wall",))
    made = AtacomDC(model, ConstraintSet((ConstraintRow("wall", "m", 1.0),)), Limits(inputs, 0.1))
    for wanted in (1e9, -1e9):
        report = made.certify(image([200.0]), np.array([wanted]), command([200.0])).report
        assert report.correction_norm == pytest.approx(1000.0)


@pytest.mark.parametrize(("low", "high"), [(-1000.0, 1.0), (-1.0, 1000.0)])
def test_the_steps_of_the_wire_are_those_of_its_widest_number(
    table_model, box, rows_of, low: float, high: float
) -> None:
    inputs = box(1, low=low, high=high)
    limits = Limits(inputs, PERIOD, ("float32",))
    made = AtacomDC(table_model(inputs, ("row0",)), rows_of(1), limits)
    assert made.rows.quantum.tolist() == [float(np.spacing(np.float32(1000.0)))]


def test_a_backup_beyond_reach_is_checked_where_it_can_go(bench) -> None:
    plant = bench(solver=NoSolver(Status.STOPPED), rate=2.0)
    plant.model.J[:], plant.model.k[:], plant.model.fallback[:] = 1.0, -0.05, 5.0
    # The check allows 0.5, the ramp 0.2.
    certified = plant.certify([0.0])
    assert certified.action == pytest.approx([0.2])
    assert not certified.report.infeasible
    assert certified.report.blend == 1.0


def test_bounds_of_a_moment_do_not_outlive_it(bench) -> None:
    plant = bench()
    plant.model.low[:], plant.model.high[:] = -0.25, 0.25
    assert plant.certify([1.0]).action.tolist() == [0.25]
    fill = plant.model.linearise
    plant.model.linearise = lambda o, k, J, t, w, low, high: fill(
        o, k, J, t, w, np.zeros(1), np.zeros(1)
    )
    assert plant.certify([1.0]).action.tolist() == [1.0]
    assert plant.certify([-1.0]).action.tolist() == [-1.0]


def test_multipliers_of_the_last_tick_are_forgotten(bench) -> None:
    plant = bench()
    plant.model.J[:], plant.model.k[:] = 1.0, -0.05
    assert plant.certify([1.0]).report.multiplier[0] > 0.0
    plant.model.J[:], plant.model.k[:], plant.model.trusted[:] = 0.0, 0.1, 1.0
    certified = plant.certify([1.0])
    assert certified.report.infeasible
    assert certified.report.multiplier.tolist() == [0.0]
    assert certified.report.active == ()


def test_exactly_at_the_limit_is_not_outside(bench) -> None:
    plant = bench()
    plant.model.J[:], plant.model.k[:] = 1.0, 0.0
    assert plant.certify([0.5]).report.outcome is FilterOutcome.SOLVED


def test_the_oldest_sample_is_named(bench) -> None:
    plant = bench(max_age_s=np.array([2.0, 2.0, 2.0, 20.0]))
    plant.model.fallback[:] = 0.25
    observation = replace(plant.image([0.0]), age_s=np.array([2.0, 5.0, 3.0, 20.0]))
    certified = plant.filter.certify(observation, np.array([0.1]), plant.command([0.0]))
    (fault,) = [one for one in certified.faults if one.code is ReasonCode.OBS_STALE]
    assert (fault.signal, fault.value, fault.limit) == ("observation[1]", 5.0, 2.0)
    assert type(fault.value) is float and type(fault.limit) is float
    observation = replace(observation, age_s=np.array([2.0, 2.0, 2.0, 20.0]))
    certified = plant.filter.certify(observation, np.array([0.1]), plant.command([0.0]))
    assert ReasonCode.OBS_STALE not in codes(certified)


def test_numbers_of_faults_are_plain_ones(bench) -> None:
    """The journal writes them; numpy's own would not go through."""
    plant = bench()
    plant.model.low[:], plant.model.high[:] = 0.5, 0.3
    certified = plant.certify([nan])
    not_finite, out_of_reach = certified.faults[:2]
    assert not_finite.code is ReasonCode.FILTER_NONFINITE
    assert [type(x) for x in (not_finite.value, out_of_reach.value, out_of_reach.limit)] == (
        [float] * 3
    )
    assert type(certified.report.correction_norm) is float
    plant.filter.rows.solver = NoSolver(*[Status.STOPPED] * 3)
    plant.model.k[:] = 0.5
    stopped = [f for f in plant.certify([0.0]).faults if f.code is ReasonCode.FILTER_STOPPED]
    assert [type(one.value) for one in stopped] == [float]
    plant.model.k[:] = nan
    assert type(plant.certify([0.0]).report.correction_norm) is float


@pytest.mark.parametrize(
    "code", [ReasonCode.FILTER_SLACK, ReasonCode.FILTER_INFEASIBLE, ReasonCode.FILTER_BACKUP]
)
def test_margins_are_told_against_zero(bench, code: ReasonCode) -> None:
    rows_ = ConstraintSet(
        (ConstraintRow("warm", "K", 1.0, Priority.COMFORT), ConstraintRow("wall", "m", 1.0))
    )
    plant = bench(rows=rows_)
    plant.model.J[:, 0], plant.model.k[:], plant.model.trusted[:] = 0.01, -0.1, [3.0, 0.0]
    if code is not ReasonCode.FILTER_SLACK:
        plant.model.trusted[:] = 3.0
    (fault,) = [one for one in plant.certify([0.0]).faults if one.code is code]
    assert fault.limit == 0.0


def test_shaped_by_hand(bench) -> None:
    plant = bench()
    plant.model.J[:], plant.model.k[:] = 2.0, -0.1
    # m = 0.1, p = 2u - 0.45, a = 0.45; (u - 1)/4 + 2(2u - 0.45)/0.2025 = 0.
    certified = plant.certify([1.0])
    expected = (1.0 + 8 * 0.45 / 0.2025) / (1 + 16 / 0.2025)
    assert certified.action == pytest.approx([expected], rel=1e-13)
    assert certified.faults == ()
    report = certified.report
    assert (report.mode, report.outcome) == (FilterMode.SHAPED, FilterOutcome.SOLVED)
    assert report.correction_norm == pytest.approx((1.0 - expected) / 2)
    assert report.correction_share == pytest.approx((1.0 - expected) / 2)
    assert report.active == (0,)
    assert report.k.tolist() == [-0.1]
    assert report.m == pytest.approx([0.1])
    assert report.p_nominal == pytest.approx([1.55])
    assert report.p_certified == pytest.approx([2 * expected - 0.45])
    assert report.multiplier == pytest.approx([(2 * expected - 0.45) / 0.2025])
    assert report.time_to_boundary_s == pytest.approx(0.1 / (2 * expected))
    assert report.passes == 1


def test_the_ramp_is_inside_the_input_set(bench) -> None:
    plant = bench(rate=2.0)
    certified = plant.certify([1.0], applied=[0.5])
    assert certified.action == pytest.approx([0.7])
    assert certified.report.mode is FilterMode.SHAPED
    assert plant.certify([-1.0], applied=[0.5]).action == pytest.approx([0.3])
    # The step is believed up to two periods, and no further.
    assert plant.certify([1.0], applied=[0.5], sent_s=-50.0).action == pytest.approx([0.9])
    assert plant.certify([1.0], applied=[0.5], sent_s=2.0).action == pytest.approx([0.6])


def test_bounds_of_this_moment(bench) -> None:
    plant = bench()
    plant.model.high[:] = 0.25
    certified = plant.certify([1.0])
    assert certified.action.tolist() == [0.25]
    assert certified.report.infeasible is False
    plant.model.high[:], plant.model.low[:] = 9.0, -9.0
    assert plant.certify([5.0]).action.tolist() == [1.0], "the model cannot widen the limits"
    assert plant.certify([-5.0]).action.tolist() == [-1.0]


def test_an_empty_box_is_infeasible_and_the_nearest_point_goes_out(bench) -> None:
    plant = bench()
    plant.model.low[:], plant.model.high[:] = 0.5, 0.3
    certified = plant.certify([1.0])
    assert certified.action == pytest.approx([0.4])
    assert certified.report.outcome is FilterOutcome.INFEASIBLE
    assert certified.report.infeasible
    assert codes(certified) == [ReasonCode.FILTER_INFEASIBLE] * 2
    reach = certified.faults[0]
    assert (reach.signal, reach.value, reach.limit) == ("u0", 0.5, 0.3)
    assert reach.text == "u0 cannot come within [0.5, 0.3] this tick"


def test_recovery_outside_the_set(bench) -> None:
    plant = bench()
    plant.model.J[:], plant.model.k[:] = 1.0, 0.1
    certified = plant.certify([1.0])
    # k' <= -5*0.1
    assert certified.action == pytest.approx([-0.5])
    assert certified.report.outcome is FilterOutcome.OUTSIDE_SET
    assert certified.report.mode is FilterMode.SHAPED
    assert certified.report.margin == pytest.approx(-0.1)
    assert codes(certified) == [ReasonCode.FILTER_RECOVER]
    fault = certified.faults[0]
    assert (fault.signal, fault.limit) == ("wall", 0.0)
    assert fault.text == "outside the safe set: wall"


@pytest.mark.parametrize("beyond", [0.01, 0.1, 1.0, 2.0])
def test_recovery_is_monotone_from_anywhere(bench, beyond: float) -> None:
    plant = bench()
    plant.model.J[:] = 0.5
    k = beyond
    for tick in range(200):
        plant.model.k[:] = k
        certified = plant.certify([1.0], sequence=tick)
        after = k + PERIOD * 0.5 * certified.action[0]
        assert after < k or k <= 1e-9
        if k > 0.2:
            assert certified.action.tolist() == [-1.0], "as hard as the actuator can"
            assert certified.report.infeasible
        k = after
    assert k <= 1e-3


def test_in_the_margin_is_not_outside(bench) -> None:
    rows_ = ConstraintSet((ConstraintRow("wall", "m", 1.0, measurement_error=0.3),))
    plant = bench(rows=rows_)
    plant.model.J[:], plant.model.k[:] = 1.0, -0.2
    certified = plant.certify([1.0])
    assert certified.report.outcome is FilterOutcome.SOLVED
    assert certified.report.margin == pytest.approx(-0.1)
    assert certified.action == pytest.approx([-0.5])
    assert certified.faults == ()


def test_blend_to_the_backup_where_the_check_fails(bench) -> None:
    # A soft comfort-like gain is not needed: two-sided ATACOM far from its check's limit.
    plant = bench(gains=Gains(PERIOD, 1.0, 0.0, 4.5, 5.0), variant=ATACOM)
    plant.model.J[:], plant.model.k[:], plant.model.trusted[:] = 1e-3, -0.1, 1.0004
    plant.model.fallback[:] = -1.0
    certified = plant.certify([1.0])
    # Check: 0.001 u + 1.0004 <= 1: u <= -0.4.
    assert certified.action == pytest.approx([-0.4], abs=1e-4)
    report = certified.report
    assert report.mode is FilterMode.BLENDED
    assert 0.6 < report.blend < 0.8
    assert codes(certified) == [ReasonCode.FILTER_BLENDED]
    assert certified.faults[0].value == report.blend
    assert certified.faults[0].limit == 0.0


def test_the_whole_backup_when_only_it_passes(bench) -> None:
    plant = bench(gains=Gains(PERIOD, 1.0, 0.0, 4.5, 5.0), variant=ATACOM)
    plant.model.J[:], plant.model.k[:], plant.model.trusted[:] = 1e-3, -0.1, 1.001
    plant.model.fallback[:] = -1.0
    certified = plant.certify([1.0])
    assert certified.action == pytest.approx([-1.0], abs=1e-5)
    assert certified.report.mode in (FilterMode.BACKUP, FilterMode.BLENDED)
    assert certified.report.blend == pytest.approx(1.0, abs=1e-5)


def test_contradicting_rows_yield_by_priority(bench) -> None:
    both = ConstraintSet(
        (
            ConstraintRow("machine", "m", 1.0, Priority.EQUIPMENT),
            ConstraintRow("people", "m", 1.0, Priority.PEOPLE),
        )
    )
    plant = bench(rows=both)
    plant.model.J[:, 0], plant.model.k[:] = [1.0, -1.0], [0.1, 0.1]
    certified = plant.certify([0.0])
    # Both must recover at 0.5/s, in opposite directions: people win.
    assert certified.action == pytest.approx([0.5], abs=1e-6)
    report = certified.report
    assert (report.mode, report.outcome) == (FilterMode.BACKUP, FilterOutcome.OUTSIDE_SET)
    assert report.infeasible
    assert report.blend == 1.0
    assert not report.multiplier.any()
    assert codes(certified) == [
        ReasonCode.FILTER_RECOVER,
        ReasonCode.FILTER_INFEASIBLE,
        ReasonCode.FILTER_BACKUP,
    ]
    assert certified.faults[1].text == "not all rows and bounds can hold"


def test_infeasible_inside_the_set_takes_the_backup_that_passes(bench) -> None:
    tight = ConstraintSet(tuple(ConstraintRow(f"r{i}", "m", 1.0) for i in range(2)))
    plant = bench(rows=tight, gains=Gains.cbf_limit(PERIOD, 1.0))
    plant.model.J[:, 0], plant.model.k[:] = [1.0, -1.0], [-0.01, -0.01]
    # CBF rows: u <= 0.09 - 0.095 and u >= 0.005; the check allows |u| <= 0.1 - 0.095.
    plant.model.trusted[:] = 0.095
    plant.model.fallback[:] = 0.004
    certified = plant.certify([1.0])
    assert certified.action.tolist() == [0.004]
    report = certified.report
    assert report.blend == 1.0
    assert (report.mode, report.outcome) == (FilterMode.BACKUP, FilterOutcome.INFEASIBLE)
    assert report.infeasible
    assert not report.multiplier.any()
    assert codes(certified) == [ReasonCode.FILTER_INFEASIBLE, ReasonCode.FILTER_BACKUP]


def test_infeasible_with_a_backup_that_fails_breaks_least(bench) -> None:
    tight = ConstraintSet(tuple(ConstraintRow(f"r{i}", "m", 1.0) for i in range(2)))
    plant = bench(rows=tight, gains=Gains.cbf_limit(PERIOD, 1.0))
    plant.model.J[:, 0], plant.model.k[:] = [1.0, -1.0], [-0.01, -0.01]
    plant.model.trusted[:], plant.model.fallback[:] = 0.2, 0.7
    certified = plant.certify([1.0])
    assert certified.action == pytest.approx([0.0], abs=1e-6)
    assert certified.report.outcome is FilterOutcome.INFEASIBLE


class NoSolver:
    """Ends as told; writes what it wanted."""

    name = "none"

    def __init__(self, *statuses: int) -> None:
        self.statuses, self.multiplier = list(statuses), np.full(3, 7.0)

    def solve(self, u_nom, r_inv, J, c, soft, two_sided, lo, hi, u) -> tuple[int, int]:
        u[:] = u_nom
        return self.statuses.pop(0), 9


def test_a_solver_that_stops_early_is_no_answer(bench) -> None:
    plant = bench(solver=NoSolver(Status.STOPPED))
    plant.model.J[:], plant.model.fallback[:] = 1.0, -0.25
    certified = plant.certify([1.0])
    assert certified.action.tolist() == [-0.25]
    report = certified.report
    assert (report.mode, report.outcome) == (FilterMode.BACKUP, FilterOutcome.TIME_OUT)
    assert not report.infeasible
    assert not report.multiplier.any()
    assert report.passes == 9
    assert codes(certified) == [ReasonCode.FILTER_STOPPED, ReasonCode.FILTER_BACKUP]
    assert certified.faults[0].text == "the solver stopped after 9 steps without an answer"
    assert certified.faults[0].value == 9.0


def test_a_solved_answer_that_is_none(bench) -> None:
    plant = bench(solver=NoSolver(Status.SOLVED))
    plant.filter.rows.solver.solve = lambda *a: (a[-1].fill(nan), (Status.SOLVED, 3))[1]
    plant.model.J[:], plant.model.fallback[:] = 1.0, -0.25
    certified = plant.certify([1.0])
    assert certified.action.tolist() == [-0.25]
    assert certified.report.outcome is FilterOutcome.TIME_OUT


def test_when_nothing_answers_the_backup_goes_out(bench) -> None:
    plant = bench(solver=NoSolver(*[Status.STOPPED] * 3))
    plant.model.J[:], plant.model.k[:], plant.model.fallback[:] = 1.0, 0.1, 0.75
    certified = plant.certify([1.0])
    assert certified.action.tolist() == [0.75]
    assert certified.report.outcome is FilterOutcome.TIME_OUT
    assert certified.report.infeasible


def test_an_answer_is_checked_whoever_solved(bench) -> None:
    """A solver that claims success for the raw command does not get it past the check."""
    plant = bench(solver=NoSolver(Status.SOLVED))
    plant.model.J[:], plant.model.k[:] = 1.0, -0.05
    certified = plant.certify([1.0])
    assert certified.action == pytest.approx([0.5])
    assert certified.report.mode is FilterMode.BLENDED
    assert certified.report.multiplier.tolist() == [7.0]


def test_a_blend_that_is_all_backup_is_called_so(bench) -> None:
    plant = bench(solver=NoSolver(Status.SOLVED))
    plant.model.J[:], plant.model.k[:] = 1.0, -0.05
    # The backup passes by a hair: 0.5 is allowed, and the tolerance of 1e-9/T on top.
    plant.model.fallback[:] = 0.5 + 1e-8 - 1e-14
    certified = plant.certify([1.0])
    assert certified.report.blend == 1.0
    assert certified.report.mode is FilterMode.BACKUP
    assert codes(certified) == [ReasonCode.FILTER_BACKUP]


def test_a_soft_row_that_gives_way_is_told(bench) -> None:
    rows_ = ConstraintSet((ConstraintRow("warm", "K", 1.0, Priority.COMFORT),))
    plant = bench(rows=rows_)
    plant.model.J[:], plant.model.k[:], plant.model.trusted[:] = 0.01, -0.1, 3.0
    certified = plant.certify([0.0])
    assert certified.report.outcome is FilterOutcome.SOLVED_WITH_SLACK
    assert codes(certified) == [ReasonCode.FILTER_SLACK]
    assert certified.faults[0].text == "a soft row gives way"
    assert certified.faults[0].signal == "warm"
    plant.model.trusted[:] = 0.0
    assert plant.certify([0.0]).report.outcome is FilterOutcome.SOLVED


@pytest.mark.parametrize("bad", [nan, inf, -inf])
def test_a_wanted_number_that_is_none_becomes_the_backup(bench, bad: float) -> None:
    plant = bench(n=2)
    plant.model.fallback[:] = [0.25, -0.5]
    certified = plant.certify([0.1, bad])
    assert certified.action.tolist() == [0.25, -0.5]
    assert certified.report.mode is FilterMode.BACKUP
    assert certified.report.outcome is FilterOutcome.NONFINITE
    assert codes(certified) == [ReasonCode.FILTER_NONFINITE, ReasonCode.FILTER_BACKUP]
    fault = certified.faults[0]
    assert (fault.signal, fault.text) == ("u1", "backup instead")


def test_even_the_backup_is_shaped(bench) -> None:
    plant = bench()
    plant.model.J[:], plant.model.k[:], plant.model.fallback[:] = 1.0, -0.01, 1.0
    certified = plant.certify([nan])
    assert certified.action[0] < 0.1
    assert certified.report.correction_norm > 0.4


@pytest.mark.parametrize("wanted", [None, "u", np.zeros(3), np.zeros((1, 1)), 0.5])
def test_a_wanted_thing_that_is_no_vector(bench, wanted: object) -> None:
    certified = bench().certify(wanted)
    assert certified.action.tolist() == [0.0]
    assert certified.report.outcome is FilterOutcome.NONFINITE


def test_huge_but_finite_commands_are_met(bench) -> None:
    plant = bench(n=2)
    plant.model.J[:] = [[1.0, 1.0]]
    plant.model.k[:] = -0.1
    for huge in (1e12, 1e200, 1.7e308):
        certified = plant.certify([huge, -huge])
        assert certified.action.tolist() == [1.0, -1.0]
        assert certified.report.outcome is FilterOutcome.SOLVED


@pytest.mark.parametrize("label", ["k", "J", "trusted", "untrusted", "low", "high"])
@pytest.mark.parametrize("bad", [nan, inf, -1.1e100])
def test_a_model_that_is_not_finite(bench, label: str, bad: float) -> None:
    plant = bench()
    getattr(plant.model, label)[:] = bad
    plant.model.fallback[:] = 0.25
    certified = plant.certify([1.0])
    assert certified.action.tolist() == [0.25]
    report = certified.report
    assert (report.mode, report.outcome) == (FilterMode.BACKUP, FilterOutcome.NONFINITE)
    assert isnan(report.margin) and report.margin_row == -1
    assert np.isnan(report.k).all() and np.isnan(report.multiplier).all()
    assert report.active == ()
    assert report.blend == 1.0
    assert report.duration_us == 12.0
    assert report.correction_norm == pytest.approx(0.375)
    assert report.correction_share == pytest.approx(0.375)
    assert codes(certified) == [ReasonCode.FILTER_NONFINITE]
    name = {"J": "J_G", "trusted": "psi_trusted", "untrusted": "psi_untrusted"}.get(label, label)
    assert certified.faults[0].signal == name
    assert certified.faults[0].text == f"safety model: {name} is not finite or absurd"


def test_a_model_that_raises(bench) -> None:
    plant = bench()
    plant.model.fallback[:] = 0.25
    plant.model.error = RuntimeError("no such table")
    certified = plant.certify([1.0])
    assert certified.action.tolist() == [0.25]
    assert codes(certified) == [ReasonCode.FILTER_BACKUP]
    assert certified.faults[0].text == "safety model: RuntimeError: no such table"


def test_a_model_that_knows_it_cannot_tell(bench) -> None:
    plant = bench()
    plant.model.fallback[:] = 0.25
    plant.model.error = SafetyError("level is bad")
    certified = plant.certify([1.0])
    assert certified.action.tolist() == [0.25]
    assert certified.report.outcome is FilterOutcome.UNUSABLE
    plant.model.error = ValueError("surprise")
    assert plant.certify([1.0]).report.outcome is FilterOutcome.NONFINITE


def test_a_backup_that_raises_or_is_none_holds_the_applied_command(bench) -> None:
    plant = bench(rate=2.0)
    plant.model.backup_error = ValueError("no backup")
    certified = plant.certify([1.0], applied=[0.5])
    assert certified.action.tolist() == [0.5]
    assert codes(certified) == [ReasonCode.FILTER_BACKUP, ReasonCode.FALLBACK_FAIL]
    assert certified.faults[1].text == "backup is not finite: held"
    plant.model.backup_error = None
    plant.model.fallback[:] = nan
    certified = plant.certify([nan], applied=[0.5])
    assert certified.action.tolist() == [0.5]
    assert ReasonCode.FALLBACK_FAIL in codes(certified)
    certified = plant.certify([nan], applied=[nan], written=False)
    assert certified.action.tolist() == [0.0], "nothing known at all"


def test_stale_measurements_are_not_acted_on(bench) -> None:
    plant = bench(max_age_s=np.array([5.0]))
    plant.model.fallback[:] = 0.25
    assert plant.certify([1.0], age=5.0).action.tolist() == [1.0]
    certified = plant.certify([1.0], age=5.001)
    assert certified.action.tolist() == [0.25]
    assert certified.report.outcome is FilterOutcome.NONFINITE
    (fault,) = certified.faults
    assert (fault.code, fault.signal, fault.value, fault.limit) == (
        ReasonCode.OBS_STALE,
        "observation[0]",
        5.001,
        5.0,
    )
    assert plant.certify([1.0], age=nan).action.tolist() == [0.25]


def test_narrow_wire_is_rounded_inside(bench) -> None:
    plant = bench(wire=("float32",))
    plant.model.high[:] = 0.1
    certified = plant.certify([1.0])
    assert certified.action[0] == np.float32(certified.action[0]) <= 0.1
    assert certified.action[0] == pytest.approx(0.1, rel=1e-7)
    plant.model.J[:], plant.model.k[:] = 1.0, -0.05
    # Half a step of the wire is part of the robust term: 2^-24 at most 1.
    report = plant.certify([0.01]).report
    assert report.p_nominal == pytest.approx([0.01 - 0.05 * 4.5 + 2.0**-24], abs=1e-12)
    assert bench().certify([0.01]).report.p_nominal == pytest.approx([-4.5], abs=1e-15)


def test_a_whole_step_of_the_wire_is_part_of_the_robust_term(bench) -> None:
    plant = bench(wire=(Whole(0.1, -128, 127),))
    plant.model.J[:], plant.model.k[:] = 1.0, -0.05
    report = plant.certify([0.01]).report
    assert report.p_nominal == pytest.approx([0.01 - 0.05 * 4.5 + 0.05], abs=1e-12)
    # so that a row stays kept whichever way the command is rounded
    plant.model.k[:] = -0.02
    certified = plant.certify([1.0])
    steps = certified.action[0] / 0.1
    assert steps == pytest.approx(round(steps))
    assert 4.5 * plant.model.k[0] + certified.action[0] <= 1e-9


def test_prediction_is_compared_with_the_next_image(bench) -> None:
    rows_ = ConstraintSet((ConstraintRow("wall", "m", 1.0, rate_disturbance=0.1),))
    plant = bench(rows=rows_)
    plant.model.J[:], plant.model.k[:], plant.model.untrusted[:] = 1.0, -0.9, -0.25
    assert plant.certify([0.5], sequence=1, time_s=1.0).report.residual_z == 0.0
    # Predicted -0.25 + 0.5 over 0.1 s; measured 0.03: off by 0.05 of 0.1.
    plant.model.k[:] = -0.87
    told = plant.certify([0.5], applied=[0.5], sequence=2, time_s=1.1, sent_s=1.0).report
    assert told.residual_z == pytest.approx(0.5)
    # The same image again tells nothing new.
    assert plant.certify([0.5], applied=[0.5], sequence=2, time_s=1.1).report.residual_z == 0.0


@pytest.mark.parametrize(
    ("time_s", "applied", "written"),
    [(1.0, [0.5], True), (0.9, [0.5], True), (1.21, [0.5], True), (1.1, [nan], False)],
)
def test_no_prediction_across_gaps(bench, time_s: float, applied, written: bool) -> None:
    plant = bench()
    plant.certify([0.0], sequence=1, time_s=1.0)
    plant.model.k[:] = -0.5
    told = plant.certify([0.0], applied=applied, sequence=2, time_s=time_s, written=written)
    assert told.report.residual_z == 0.0


def test_the_first_image_was_predicted_by_nothing(bench) -> None:
    plant = bench()
    assert plant.certify([0.0], sequence=0, time_s=0.1).report.residual_z == 0.0


def test_prediction_up_to_two_periods(bench) -> None:
    plant = bench()
    plant.certify([0.0], sequence=1, time_s=1.0)
    plant.model.k[:] = -0.5
    assert plant.certify([0.0], sequence=2, time_s=1.2).report.residual_z > 1e6


def test_two_periods_are_the_longest_prediction(bench) -> None:
    for later, told in ((0.2, True), (np.nextafter(0.2, 1), False)):
        plant = bench()
        plant.certify([0.0], sequence=1, time_s=0.0, sent_s=-0.1)
        plant.model.k[:] = -0.5
        report = plant.certify([0.0], sequence=2, time_s=later, sent_s=0.0).report
        assert bool(report.residual_z > 0) is told


def test_no_prediction_after_giving_up(bench) -> None:
    plant = bench()
    plant.certify([0.0], sequence=1, time_s=1.0)
    plant.model.k[:] = nan
    plant.certify([0.0], sequence=2, time_s=1.1)
    plant.model.k[:] = -0.2
    assert plant.certify([0.0], sequence=3, time_s=1.15).report.residual_z == 0.0


def test_reports_are_not_overwritten_by_later_ticks(bench) -> None:
    plant = bench()
    plant.model.J[:] = 1.0
    first = plant.certify([0.25])
    kept = (first.action.copy(), first.report.k.copy(), first.report.p_nominal.copy())
    plant.model.k[:] = -0.01
    plant.certify([1.0])
    assert first.action.tolist() == kept[0].tolist()
    assert first.report.k.tolist() == kept[1].tolist()
    assert first.report.p_nominal.tolist() == kept[2].tolist()


def test_equal_images_give_equal_answers(bench) -> None:
    plant = bench(n=2)
    plant.model.J[:], plant.model.k[:] = [[1.0, -2.0]], -0.05
    first = plant.certify([1.0, -1.0])
    plant.model.k[:] = -0.7
    plant.certify([-1.0, 0.3])
    plant.model.k[:] = -0.05
    assert plant.certify([1.0, -1.0]).action.tobytes() == first.action.tobytes()


def test_nothing_is_compiled_inside_a_tick(bench, kernels: str) -> None:
    plant = bench(n=2)
    made = SafetyChain(plant.filter, plant.limits, plant.model.backup)
    found = [
        kernel
        for module in (active_set, rows, limits)
        for kernel in vars(module).values()
        if hasattr(kernel, "signatures")
    ]
    before = [len(kernel.signatures) for kernel in found]
    frozen = np.array([0.5, 0.5])
    frozen.flags.writeable = False
    for wanted in (frozen, frozen.astype(np.float32), np.zeros(4)[::2], np.array([1, 2]), [nan, 1]):
        plant.certify(wanted, applied=frozen)
        plant.certify(wanted, time_s=2, sent_s=1, sequence=3)
    plant.certify(frozen, time_s=2.1, sent_s=2, sequence=4, written=np.bool_(True))
    made.certify(plant.image(frozen), frozen, plant.command(frozen))
    plant.model.k[:], plant.model.J[:] = 0.5, 1.0
    plant.certify(frozen)
    plant.filter.holding_input(plant.image(frozen))
    assert [len(kernel.signatures) for kernel in found] == before
    assert kernels == "source" or len(found) > 10 or not hasattr(active_set.solve_dual, "py_func")


class TestHolding:
    def test_nearest_to_the_backup(self, bench) -> None:
        plant = bench()
        plant.model.J[:], plant.model.k[:], plant.model.fallback[:] = 1.0, -0.1, 0.9
        assert plant.filter.holding_input(plant.image([nan])) == pytest.approx([0.45])
        plant.model.fallback[:] = 0.25
        assert plant.filter.holding_input(plant.image([nan])).tolist() == [0.25]

    def test_nearest_to_what_the_backup_can_be(self, bench) -> None:
        plant = bench(n=2)
        plant.model.J[:], plant.model.k[:], plant.model.fallback[:] = 1.0, 0.0, [5.0, 0.0]
        # u1 + u2 <= 0 from (1, 0), not from (5, 0).
        assert plant.filter.holding_input(plant.image([nan, nan])) == pytest.approx([0.5, -0.5])

    def test_out_of_reach_within_one_ramp(self, bench) -> None:
        plant = bench(rate=1.0)
        plant.model.J[:], plant.model.k[:] = 1.0, -0.1
        assert plant.filter.holding_input(plant.image([0.5])) is not None
        assert plant.filter.holding_input(plant.image([0.6])) is None
        assert plant.filter.holding_input(plant.image([nan])) is not None

    def test_sweep(self, bench) -> None:
        plant = bench(rate=1.0)
        plant.model.J[:], plant.model.k[:] = 1.0, -0.1
        images = [plant.image([x]) for x in (0.0, 0.9, 0.5)]
        assert sweep(plant.filter, images).tolist() == [True, False, True]

    def test_none_without_a_box_or_a_model(self, bench) -> None:
        plant = bench()
        plant.model.low[:], plant.model.high[:] = 0.5, 0.4
        assert plant.filter.holding_input(plant.image([0.0])) is None
        plant.model.low[:] = nan
        assert plant.filter.holding_input(plant.image([0.0])) is None


class TestRefusals:
    def make(self, table_model, box, rows_of, **options):
        inputs = options.pop("inputs", box(1))
        names = options.pop("names", ("row0",))
        limits_ = options.pop("limits", None) or Limits(box(1), PERIOD)
        return AtacomDC(table_model(inputs, names), rows_of(1), limits_, **options)

    def test_other_rows(self, table_model, box, rows_of) -> None:
        with pytest.raises(
            SafetyError, match=r"the model has rows \['x'\] but \['row0'\] are decl"
        ):
            self.make(table_model, box, rows_of, names=("x",))

    def test_other_inputs(self, table_model, box, rows_of) -> None:
        with pytest.raises(SafetyError, match=r"inputs \['u0', 'u1'\] but the limits .* \['u0'\]"):
            self.make(table_model, box, rows_of, inputs=box(2))

    def test_another_period(self, table_model, box, rows_of) -> None:
        with pytest.raises(SafetyError, match=r"a period of 0.2 s, the limits for 0.1 s"):
            self.make(table_model, box, rows_of, gains=Gains.for_period(0.2, 1.0))

    def test_a_smaller_input_set(self, table_model, box, rows_of) -> None:
        with pytest.raises(SafetyError, match=r"diameter 0.9, the inputs span 1:"):
            self.make(table_model, box, rows_of, gains=Gains.for_period(PERIOD, 0.9))
        self.make(table_model, box, rows_of, gains=Gains.for_period(PERIOD, 1.1))
        self.make(table_model, box, rows_of, gains=Gains.for_period(PERIOD, 1.0 - 1e-12))

    def test_defaults(self, table_model, box, rows_of) -> None:
        made = self.make(table_model, box, rows_of)
        assert made.gains == Gains.for_period(PERIOD, 1.0)
        assert made.variant is DC
        assert made.max_age_s is None
