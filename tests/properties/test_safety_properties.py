"""What must hold of the safety chain whatever arrives: hostile frames, models and commands."""

from math import inf, isfinite, nan

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numba import njit

from steadyhand.controllers.frames import FilterMode, FilterOutcome, Observation, Sent
from steadyhand.controllers.safety.atacom import AtacomDC
from steadyhand.controllers.safety.chain import SafetyChain
from steadyhand.controllers.safety.constraint import ConstraintRow, ConstraintSet, Priority
from steadyhand.controllers.safety.limits import Limits, clamp_dt, confine, reachable
from steadyhand.controllers.signals import Signal, SignalSet

COMPILED = hasattr(reachable, "py_func")
N, M, PERIOD_S, RATE = 2, 3, 0.5, 0.8
INPUTS = SignalSet(
    (Signal("valve", "1", -1 / 3, 0.7, rate_per_s=RATE), Signal("pump", "kW", -40.0, 45.0))
)
ROWS = ConstraintSet(
    (
        ConstraintRow("people", "m", 1.0, Priority.PEOPLE, rate_disturbance=0.01),
        ConstraintRow("machine", "K", 5.0, Priority.EQUIPMENT, measurement_error=0.05),
        ConstraintRow("comfort", "K", 2.0, Priority.COMFORT),
    )
)


class Told:
    """A model that says what a test tells it."""

    inputs, row_names = INPUTS, ROWS.names

    def __init__(self) -> None:
        self.k, self.J = -np.ones(M), np.zeros((M, N))
        self.trusted, self.untrusted = np.zeros(M), np.zeros(M)
        self.low, self.high, self.fallback = INPUTS.low.copy(), INPUTS.high.copy(), np.zeros(N)

    def linearise(self, observation, k, J_G, psi_trusted, psi_untrusted, low, high) -> None:
        k[:], J_G[:], psi_trusted[:], psi_untrusted[:] = (
            self.k,
            self.J,
            self.trusted,
            self.untrusted,
        )
        low[:], high[:] = self.low, self.high

    def backup(self, observation, out) -> None:
        out[:] = self.fallback


def chains() -> list[tuple[Told, SafetyChain, str]]:
    made = []
    for wire in ("float64", "float32"):
        model, limits = Told(), Limits(INPUTS, PERIOD_S, (wire,) * N)
        made.append((model, SafetyChain(AtacomDC(model, ROWS, limits), limits, model.backup), wire))
    return made


CHAINS = chains()

anything = st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from(
    [nan, inf, -inf, 0.0, -0.0, 0.7, -1 / 3, 1e-320, 1e308]
)
sane = st.floats(-2.0, 2.0, allow_subnormal=False)


def vectors(shape, elements):
    return arrays(np.float64, shape, elements=elements)


def frames(applied, sent, time_s, dt, written):
    observation = Observation(
        1, time_s, np.zeros(1), np.zeros(1), np.zeros(1, dtype=np.int8), applied
    )
    return observation, Sent(sent, 0, time_s - dt, written)


@settings(max_examples=400 if COMPILED else 40, deadline=None,
          suppress_health_check=list(HealthCheck))  # fmt: skip
@given(
    wanted=vectors(N, anything), applied=vectors(N, anything), sent=vectors(N, anything),
    time_s=anything, dt=anything, written=st.booleans(), k=vectors(M, anything),
    J=vectors((M, N), anything), trusted=vectors(M, anything), untrusted=vectors(M, anything),
    low=vectors(N, anything), high=vectors(N, anything), fallback=vectors(N, anything),
)  # fmt: skip
def test_always_a_finite_command_within_the_limits(
    wanted, applied, sent, time_s, dt, written, k, J, trusted, untrusted, low, high, fallback
) -> None:
    for model, chain, wire in CHAINS:
        model.k, model.J, model.trusted, model.untrusted = k, J, trusted, untrusted
        model.low, model.high, model.fallback = low, high, fallback
        observation, before = frames(applied, sent, time_s, dt, written)
        certified = chain.certify(observation, wanted, before)
        action = certified.action
        assert np.isfinite(action).all()
        assert (action >= INPUTS.low).all() and (action <= INPUTS.high).all()
        assert not np.signbit(action[action == 0]).any()
        if wire == "float32":
            assert (action.astype(np.float32) == action).all()
        last = chain.limits.last_of(observation, before)[0]
        if isfinite(last) and INPUTS.low[0] <= last <= INPUTS.high[0]:
            step = RATE * clamp_dt(time_s - (time_s - dt), PERIOD_S)
            assert abs(action[0] - last) <= step + 1e-7
        assert certified.report.outcome in FilterOutcome
        if not np.isfinite(wanted).all():
            assert certified.report.mode is FilterMode.BACKUP


@settings(max_examples=400 if COMPILED else 40, deadline=None)
@given(
    wanted=vectors(N, sane), k=vectors(M, st.floats(-1, 1)), J=vectors((M, N), sane),
    trusted=vectors(M, st.floats(-0.2, 0.2)), untrusted=vectors(M, st.floats(-0.2, 0.2)),
    fallback=vectors(N, st.floats(-0.3, 0.3)),
)  # fmt: skip
@example(
    # A wall with next to no softness left against one that must recover, and a bound.
    wanted=np.zeros(N), k=np.array([-0.00390625, 1.0, -0.00390625]),
    J=np.array([[1.0, -1.0], [1.0, 1.0], [1.0, 1.0]]), trusted=np.zeros(M), untrusted=np.zeros(M),
    fallback=np.zeros(N),
)  # fmt: skip
@example(
    # Rows that no input can move, and next to no softness.
    wanted=np.zeros(N), k=np.array([0.0625, 0.0, -4.53295219e-37]),
    J=np.array([[-4.53295219e-37] * N, [1.5, 1.0], [-4.53295219e-37] * N]),
    trusted=np.array([-0.125, 0.0, 0.0]), untrusted=np.array([0.0, 0.125, 0.125]),
    fallback=np.zeros(N),
)  # fmt: skip
def test_what_is_called_solved_is_safe(wanted, k, J, trusted, untrusted, fallback) -> None:
    model, chain, _ = CHAINS[0]
    model.k, model.J, model.trusted, model.untrusted = k, J, trusted, untrusted
    model.low, model.high, model.fallback = INPUTS.low.copy(), INPUTS.high.copy(), fallback
    observation, before = frames(np.zeros(N), np.zeros(N), 1.0, PERIOD_S, True)
    certified = chain.certify(observation, wanted, before)
    report = certified.report
    drift = trusted + np.maximum(untrusted, 0) + ROWS.rate_disturbance
    rate = J @ certified.action + drift
    nu = chain.inner.rows.nu
    for i in range(M):
        margin = -(k[i] + nu[i])
        assert report.m[i] == pytest.approx(margin, abs=1e-12)
        if ROWS.hard[i] and not report.infeasible:
            allowed = margin / PERIOD_S if margin > 0 else 0.5 / PERIOD_S * margin
            assert rate[i] <= allowed + 1e-8
    assert (report.outcome is FilterOutcome.OUTSIDE_SET) == (max(k[0], k[1]) > 0)


@settings(max_examples=300 if COMPILED else 40, deadline=None)
@given(wanted=vectors(N, st.floats(-0.3, 0.3)), J=vectors((M, N), sane))
def test_identity_when_nothing_is_approached(wanted, J) -> None:
    model, chain, _ = CHAINS[0]
    model.k, model.J = -np.full(M, 0.9), J
    model.trusted, model.untrusted, model.fallback = np.zeros(M), np.zeros(M), np.zeros(N)
    model.low, model.high = INPUTS.low.copy(), INPUTS.high.copy()
    observation, before = frames(np.zeros(N), np.zeros(N), 1.0, PERIOD_S, True)
    certified = chain.certify(observation, wanted, before)
    assume((certified.report.p_nominal <= 0).all())
    assert (certified.action == wanted).all()
    assert certified.report.mode is FilterMode.PASS
    assert certified.report.active == ()


@settings(max_examples=300 if COMPILED else 40, deadline=None)
@given(wanted=vectors(N, anything), last=vectors(N, anything), dt=anything)
def test_limiting_twice_is_limiting_once(wanted, last, dt) -> None:
    limits = CHAINS[0][1].limits
    once, _ = limits.apply(wanted, last, dt)
    twice, faults = limits.apply(once, last, dt)
    assert twice.tobytes() == once.tobytes()
    assert faults == ()


@njit
def _naive(low, high, rate, wanted, last, dt, period):
    """The limits of one output again, in the plainest words."""
    if dt != dt or dt < 0.5 * period:
        dt = 0.5 * period
    if dt > 2.0 * period:
        dt = 2.0 * period
    if last < low:
        last = low
    if last > high:
        last = high
    most = last + rate * dt
    least = last - rate * dt
    if wanted > most:
        wanted = most
    if wanted < least:
        wanted = least
    if wanted > high:
        wanted = high
    if wanted < low:
        wanted = low
    return wanted + 0.0


@njit
def _differing(numbers, clamp):
    low, high, rate, wanted = np.zeros(1), np.zeros(1), np.zeros(1), np.zeros(1)
    last, lo, hi, out = np.zeros(1), np.zeros(1), np.zeros(1), np.zeros(1)
    wide = np.zeros(1, np.bool_)
    differing = 0
    for i in range(numbers.shape[0]):
        a, b, c, d, e, f = numbers[i]
        low[0], high[0] = -abs(a), -abs(a) + abs(b) + 1e-3
        rate[0], wanted[0] = abs(c) * 0.3, 2.0 * d
        dt, period = 2.0 * f, 0.5
        reachable(low, high, rate, last, clamp(dt, period), wide, lo, hi)
        confine(wanted, lo, hi, wide, out)
        if out[0] != _naive(low[0], high[0], rate[0], wanted[0], last[0], dt, period):
            differing += 1
        # Mostly a sequence of commands, at times a jump by someone else.
        last[0] = out[0] if e < 1.0 else 2.0 * e
    return differing


def test_a_million_commands_differ_nowhere_from_a_naive_limiter() -> None:
    numbers = np.random.default_rng(23).standard_normal((1_000_000 if COMPILED else 3_000, 6))
    assert _differing(numbers, njit(clamp_dt) if COMPILED else clamp_dt) == 0


HOSTILE = ["random", "corners", "nan", "constant", "worst gradient"]


def hostile_run(kind: str, ticks: int) -> None:
    """A tank (one input, two rows) under a policy that means harm, through the whole chain."""
    inputs = SignalSet((Signal("flow", "kW", -400.0, 450.0, rate_per_s=2.0),))
    rows = ConstraintSet(
        tuple(
            ConstraintRow(name, "kWh", 900.0, measurement_error=1.0, rate_disturbance_excess=1e-6)
            for name in ("full", "empty")
        )
    )

    class Tank:
        row_names = rows.names

        def __init__(self) -> None:
            self.inputs = inputs

        def linearise(self, observation, k, J_G, psi_trusted, psi_untrusted, low, high) -> None:
            energy = observation.values[0]
            k[0], k[1] = (energy - 950.0) / 900.0, (50.0 - energy) / 900.0
            J_G[0, 0], J_G[1, 0] = -1 / 3600 / 900, 1 / 3600 / 900
            psi_trusted[:] = psi_untrusted[:] = 0.0

        def backup(self, observation, out) -> None:
            out[:] = 0.0

    period = 900.0
    limits, model = Limits(inputs, period), Tank()
    chain = SafetyChain(AtacomDC(model, rows, limits), limits, model.backup)
    rng = np.random.default_rng(31)
    energy, sent, wanted = 500.0, Sent(np.zeros(1), 0, -period, True), np.zeros(1)
    low_seen, high_seen = energy, energy
    for tick in range(ticks):
        measured = energy + rng.uniform(-1, 1)
        observation = Observation(
            tick, tick * period, np.array([measured]), np.zeros(1), np.zeros(1, dtype=np.int8),
            sent.action,
        )  # fmt: skip
        if kind == "random":
            wanted = rng.uniform(-1e4, 1e4, 1)
        elif kind == "corners":
            wanted = np.array([450.0 if (tick // 40) % 2 else -400.0])
        elif kind == "nan":
            wanted = np.array([nan if tick % 3 else -1e9])
        elif kind == "constant":
            wanted = np.array([450.0 if tick < ticks // 2 else -400.0])
        else:
            wanted = np.array([450.0 if energy < 500 else -400.0])
        certified = chain.certify(observation, wanted, sent)
        assert np.isfinite(certified.action).all()
        energy -= certified.action[0] * period / 3600
        low_seen, high_seen = min(low_seen, energy), max(high_seen, energy)
        sent = Sent(certified.action, tick, tick * period, True)
    assert low_seen >= 50.0 and high_seen <= 950.0
    assert low_seen < 60.0 or high_seen > 940.0


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_policies_break_no_limit(kind: str) -> None:
    hostile_run(kind, 3_000 if COMPILED else 400)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_policies_break_no_limit_in_a_million_ticks(kind: str) -> None:
    hostile_run(kind, 200_000)
