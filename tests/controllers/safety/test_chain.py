"""The chain always answers, always within the limits, and looks at its own answer."""

from collections.abc import Callable
from dataclasses import replace
from math import inf, isnan, nan

import numpy as np
import pytest

from steadyhand.controllers.frames import Certified, FilterMode, FilterOutcome, FilterReport
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.safety.atacom import AtacomDC
from steadyhand.controllers.safety.chain import SafetyChain, bypassed
from steadyhand.controllers.safety.limits import Limits, Whole

EMPTY = np.zeros(0)
REPORT = FilterReport(
    FilterMode.SHAPED, FilterOutcome.SOLVED, 0.0, 0.0, 1.0, 0, (), EMPTY, EMPTY, EMPTY, EMPTY, EMPTY
)


class Told:
    """A filter that answers what it is told, or raises."""

    def __init__(self, action, report: FilterReport = REPORT, error: Exception | None = None):
        self.answer = Certified(action, report)
        self.error = error

    def certify(self, observation, wanted, sent) -> Certified:
        if self.error is not None:
            raise self.error
        return self.answer


@pytest.fixture
def chain(box) -> Callable[..., SafetyChain]:
    def make(inner, backup=0.25, n=1, rate=inf) -> SafetyChain:
        def fallback(observation, out) -> None:
            if isinstance(backup, Exception):
                raise backup
            out[:] = backup

        return SafetyChain(inner, Limits(box(n, rate), 0.1), fallback)

    return make


def codes(certified: Certified) -> list[ReasonCode]:
    return [fault.code for fault in certified.faults]


def test_filter_then_limits(chain, image, command) -> None:
    inner = Told(np.array([5.0]))
    certified = chain(inner).certify(image([0.0]), np.array([9.0]), command([0.0]))
    assert certified.action.tolist() == [1.0]
    assert certified.report is REPORT
    assert codes(certified) == [ReasonCode.LIMIT_CLIPPED]


def test_faults_of_the_filter_come_first(chain, image, command) -> None:
    inner = Told(np.array([5.0]))
    inner.answer = replace(inner.answer, faults=("first",))
    certified = chain(inner).certify(image([0.0]), np.array([9.0]), command([0.0]))
    assert certified.faults[0] == "first"
    assert len(certified.faults) == 2


def test_the_limits_know_the_last_command_and_the_time(chain, image, command) -> None:
    inner = Told(np.array([1.0]))
    made = chain(inner, rate=1.0)
    wanted = np.array([1.0])
    assert made.certify(image([0.0], 1.0), wanted, command([0.0], 0.9)).action == pytest.approx(
        [0.1]
    )
    assert made.certify(image([0.5], 1.0), wanted, command([0.0], 0.9)).action == pytest.approx(
        [0.6]
    )
    assert made.certify(image([0.0], 1.0), wanted, command([0.0], 1.0)).action == pytest.approx(
        [0.05]
    )
    assert made.certify(image([0.0], 9.0), wanted, command([0.0], 1.0)).action == pytest.approx(
        [0.2]
    )


@pytest.mark.parametrize(
    "error", [ValueError("no"), ZeroDivisionError("by zero"), MemoryError("m")]
)
def test_a_filter_that_raises_gives_the_backup(chain, image, command, error) -> None:
    made = chain(Told(np.array([0.9]), error=error))
    certified = made.certify(image([0.0]), np.array([0.9]), command([0.0]))
    assert certified.action.tolist() == [0.25]
    assert codes(certified) == [ReasonCode.FILTER_BACKUP]
    assert certified.faults[0].text == f"safety filter: {type(error).__name__}: {error}"
    report = certified.report
    assert (report.mode, report.outcome) == (FilterMode.BACKUP, FilterOutcome.NONFINITE)
    assert isnan(report.margin) and isnan(report.correction_norm) and isnan(report.correction_share)
    assert (report.margin_row, report.active, report.blend) == (-1, (), 1.0)
    assert len(report.k) == 0


def test_a_rescue_report_keeps_the_shape_of_the_filters_own(chain, image, command, rows_of) -> None:
    inner = Told(np.array([0.9]), error=ValueError("no"))
    inner.constraints = rows_of(3)
    report = chain(inner).certify(image([0.0]), np.array([0.9]), command([0.0])).report
    for column in (report.k, report.m, report.p_nominal, report.p_certified, report.multiplier):
        assert column.shape == (3,)
        assert np.isnan(column).all()


def test_the_backup_goes_through_the_limits_too(chain, image, command) -> None:
    made = chain(Told(np.array([0.9]), error=ValueError("no")), backup=7.0, rate=1.0)
    certified = made.certify(image([0.5]), np.array([0.9]), command([0.5], 0.9))
    assert certified.action == pytest.approx([0.6])
    assert codes(certified) == [ReasonCode.FILTER_BACKUP, ReasonCode.LIMIT_CLIPPED]
    certified = made.certify(image([0.5], 9.0), np.array([0.9]), command([0.5], 1.0))
    assert certified.action == pytest.approx([0.7])


@pytest.mark.parametrize("backup", [RuntimeError("gone"), nan])
def test_no_filter_and_no_backup_holds_what_is_applied(chain, image, command, backup) -> None:
    made = chain(Told(np.array([0.9]), error=ValueError("no")), backup=backup)
    certified = made.certify(image([0.5]), np.array([0.9]), command([0.5]))
    assert certified.action.tolist() == [0.5]
    expected = [ReasonCode.FILTER_BACKUP, ReasonCode.FILTER_NONFINITE]
    if isinstance(backup, Exception):
        expected.insert(1, ReasonCode.FALLBACK_FAIL)
        assert certified.faults[1].text == "backup: RuntimeError: gone"
    assert codes(certified) == expected


def test_a_backup_that_fails_half_way_is_not_used(image, command, box) -> None:
    def half(observation, out) -> None:
        out[0] = 0.75
        out[5] = 1.0

    made = SafetyChain(Told(None, error=ValueError("no")), Limits(box(2), 0.1), half)
    certified = made.certify(image([0.5, 0.5]), np.array([0.9, 0.9]), command([0.5, 0.5]))
    assert certified.action.tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    "action",
    [np.array([nan]), np.array([inf]), np.zeros(2), np.zeros((1, 1)), None, "text", [0.5]],
)
def test_a_filter_whose_answer_is_none(chain, image, command, action) -> None:
    certified = chain(Told(action)).certify(image([0.0]), np.array([0.9]), command([0.0]))
    assert certified.action.tolist() == [0.25]
    assert codes(certified) == [ReasonCode.FILTER_NONFINITE]
    assert certified.faults[0].text == "the filter's answer is not a vector of finite numbers"


def test_a_filter_that_claims_to_have_passed_the_command(chain, image, command) -> None:
    passed = replace(REPORT, mode=FilterMode.PASS)
    made = chain(Told(np.array([0.5]), passed))
    assert codes(made.certify(image([0.0]), np.array([0.5]), command([0.0]))) == []
    certified = made.certify(image([0.0]), np.array([0.50001]), command([0.0]))
    assert codes(certified) == [ReasonCode.FILTER_BYPASS]
    assert certified.action.tolist() == [0.25]
    assert certified.faults[0].text == "the filter says it passed the command, and did not"
    assert codes(made.certify(image([0.0]), np.array([nan]), command([0.0]))) == [
        ReasonCode.FILTER_BYPASS
    ]


def test_passing_is_judged_by_the_range_of_the_output(image, command, box) -> None:
    passed = replace(REPORT, mode=FilterMode.PASS)
    limits = Limits(box(1, low=0.0, high=1000.0), 0.1)
    made = SafetyChain(Told(np.array([500.0]), passed), limits, lambda observation, out: None)
    assert codes(made.certify(image([0.0]), np.array([500.0009]), command([0.0]))) == []
    assert codes(made.certify(image([0.0]), np.array([500.0011]), command([0.0])))[0] is (
        ReasonCode.FILTER_BYPASS
    )
    limits = Limits(box(1, low=-500.0, high=500.0), 0.1)
    made = SafetyChain(Told(np.array([0.0]), passed), limits, lambda observation, out: None)
    assert codes(made.certify(image([0.0]), np.array([0.0009]), command([0.0]))) == []


def test_a_filter_that_passes_what_its_rows_forbid(chain, image, command) -> None:
    for p, bypass in ((np.array([-1.0, 1e-5]), True), (np.array([-1.0, 1e-7]), False)):
        passed = replace(REPORT, mode=FilterMode.PASS, p_nominal=p)
        made = chain(Told(np.array([0.5]), passed))
        certified = made.certify(image([0.0]), np.array([0.5]), command([0.0]))
        assert codes(certified) == ([ReasonCode.FILTER_BYPASS] if bypass else [])
        assert certified.action.tolist() == ([0.25] if bypass else [0.5])
    shaped = replace(REPORT, p_nominal=np.array([5.0]))
    certified = chain(Told(np.array([0.5]), shaped)).certify(
        image([0.0]), np.array([0.5]), command([0.0])
    )
    assert codes(certified) == []


@pytest.mark.parametrize(("p", "bypass"), [(1e-6, False), (1.1e-6, True)])
def test_one_row_is_enough_to_forbid(chain, image, command, p: float, bypass: bool) -> None:
    passed = replace(REPORT, mode=FilterMode.PASS, p_nominal=np.array([p]))
    certified = chain(Told(np.array([0.5]), passed)).certify(
        image([0.0]), np.array([0.5]), command([0.0])
    )
    assert codes(certified) == ([ReasonCode.FILTER_BYPASS] if bypass else [])


def test_a_backup_that_answers_and_then_fails_is_not_used(image, command, box) -> None:
    def late(observation, out) -> None:
        out[:] = 0.75
        raise RuntimeError("after all")

    made = SafetyChain(Told(None, error=ValueError("no")), Limits(box(1), 0.1), late)
    certified = made.certify(image([0.5]), np.array([0.9]), command([0.5]))
    assert certified.action.tolist() == [0.5]


def test_frames_that_are_broken_are_survived(chain, image, command) -> None:
    made = chain(Told(np.array([0.5])))
    certified = made.certify(image([nan, 3.0]), None, command([nan, 1.0, 2.0]))
    assert certified.action.tolist() == [0.5]


def test_bypass_is_seen_after_the_write(chain, image, command) -> None:
    made = chain(Told(np.zeros(2)), n=2)
    certified = Certified(np.array([0.1, 0.2]), REPORT)
    assert bypassed(certified, command([0.1, 0.2]), made.limits.outputs) is None
    assert bypassed(certified, command([0.1, 0.9], written=False), made.limits.outputs) is None
    fault = bypassed(certified, command([0.1, 0.21]), made.limits.outputs)
    assert fault is not None
    assert (fault.code, fault.signal, fault.value, fault.limit) == (
        ReasonCode.FILTER_BYPASS,
        "u1",
        0.21,
        0.2,
    )
    assert fault.text == "u1: what was written is not what was certified"
    assert type(fault.value) is float and type(fault.limit) is float


def test_limits_never_reshape_what_the_filter_certified(
    table_model, box, rows_of, image, command, many
) -> None:
    rng = np.random.default_rng(12)
    for wire in ("float64", "float32"):
        inputs, constraints = box(3, rate=2.0), rows_of(4)
        model = table_model(inputs, constraints.names)
        limits = Limits(inputs, 0.1, (wire,) * 3)
        made = SafetyChain(AtacomDC(model, constraints, limits), limits, model.backup)
        sent = command(np.zeros(3))
        for tick in range(many(400)):
            model.J[:], model.k[:] = rng.standard_normal((4, 3)), -(rng.random(4) ** 3)
            wanted = rng.uniform(-1.5, 1.5, 3)
            time_s = sent.time_s + rng.choice([0.1, 0.0, 0.3, nan])
            observation = image(sent.action, time_s, tick)
            inner = made.inner.certify(observation, wanted, sent)
            certified = made.certify(observation, wanted, sent)
            assert ReasonCode.LIMIT_CLIPPED not in codes(certified)
            assert certified.action.tobytes() == inner.action.tobytes()
            assert bypassed(certified, command(certified.action), made.limits.outputs) is None
            sent = command(certified.action, 0.1 * tick, sequence=tick)


class TestLimiterBugsKnownFromElsewhere:
    """Five traps that other limiters fell into, each against the whole chain."""

    @pytest.fixture
    def plant(self, table_model, box, rows_of, image, command):
        inputs, constraints = box(1, rate=1.0), rows_of(1)
        model = table_model(inputs, constraints.names)
        limits = Limits(inputs, 0.1)
        made = SafetyChain(AtacomDC(model, constraints, limits), limits, model.backup)

        def tick(wanted, applied, sent, dt=0.1, written=True):
            return made.certify(
                image([applied], 5.0), np.array([wanted]), command([sent], 5.0 - dt, written)
            )

        tick.model = model
        return tick

    def test_nan_is_not_turned_into_a_valid_command(self, plant) -> None:
        plant.model.fallback[:] = 0.05
        certified = plant(nan, 0.0, 0.0)
        assert certified.action == pytest.approx([0.05])
        assert ReasonCode.FILTER_NONFINITE in codes(certified)

    @pytest.mark.parametrize("dt", [nan, 0.0, -5.0, 1e-12])
    def test_a_time_step_that_is_none_does_not_void_the_rate(self, plant, dt) -> None:
        assert plant(1.0, 0.0, 0.0, dt).action == pytest.approx([0.05])

    @pytest.mark.parametrize("dt", [inf, 1e9, 0.21])
    def test_a_huge_time_step_does_not_void_the_rate(self, plant, dt) -> None:
        assert plant(1.0, 0.0, 0.0, dt).action == pytest.approx([0.2])

    def test_the_rate_is_taken_from_the_command_not_from_the_lagging_measurement(
        self, plant
    ) -> None:
        sent, applied, reached = 0.0, 0.0, []
        for _ in range(5):
            certified = plant(1.0, applied, sent)
            applied, sent = sent, float(certified.action[0])
            reached.append(sent)
        assert reached == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5]), "no tick is lost to the lag"

    def test_no_jump_on_reactivation(self, plant) -> None:
        # While nothing was written the plant went to 0.8 by itself; 0.0 was sent long ago.
        certified = plant(0.0, 0.8, 0.0, dt=500.0, written=False)
        assert certified.action == pytest.approx([0.6])

    def test_a_missing_previous_command_is_read_back(self, plant) -> None:
        assert plant(1.0, 0.5, nan).action == pytest.approx([0.6])
        assert plant(1.0, nan, 0.5).action == pytest.approx([0.6])
        assert plant(1.0, 0.5, nan, written=False).action == pytest.approx([0.6])


def test_a_command_that_is_rounded_to_whole_steps_is_no_bypass(
    table_model, box, rows_of, image, command
) -> None:
    """Passed as it is, and then stored as tenths: half a step is no contradiction."""
    inputs = box(1, low=-1.0, high=1.0)
    model = table_model(inputs, ("row0",))
    limits = Limits(inputs, 0.1, (Whole(0.1, -128, 127),))
    made = SafetyChain(AtacomDC(model, rows_of(1), limits), limits, model.backup)
    for wanted, expected in ((0.149, 1), (0.151, 2), (-0.96, -10), (5.0, 10), (-0.04, 0)):
        certified = made.certify(image([0.0]), np.array([wanted]), command([0.0]))
        assert certified.action.tolist() == [expected * 0.1]
        codes = {fault.code for fault in certified.faults}
        assert not codes & {ReasonCode.FILTER_BYPASS, ReasonCode.FILTER_NONFINITE}
    # a command that really is another one is told as before
    passed = made.inner.certify(image([0.0]), np.array([0.1]), command([0.0]))
    other = replace(passed, action=passed.action + 0.06)
    assert made._contradictions(other, np.array([0.1]))[0].code is ReasonCode.FILTER_BYPASS


@pytest.mark.parametrize("wire", ["float64", "float32"])
def test_setpoint_at_the_limit_as_stored(table_model, box, rows_of, image, command, wire) -> None:
    inputs = box(1, low=-1 / 3, high=0.1)
    model = table_model(inputs, ("row0",))
    limits = Limits(inputs, 0.1, (wire,))
    made = SafetyChain(AtacomDC(model, rows_of(1), limits), limits, model.backup)
    for wanted in (0.1, np.nextafter(0.1, 1), -1 / 3, np.nextafter(-1 / 3, -1), -0.0, 5.0, -5.0):
        action = made.certify(image([0.0]), np.array([wanted]), command([0.0])).action
        kind = np.float32 if wire == "float32" else np.float64
        assert -1 / 3 <= float(kind(action[0])) <= 0.1
        assert float(kind(action[0])) == action[0]
        assert not (action[0] == 0 and np.signbit(action[0]))
