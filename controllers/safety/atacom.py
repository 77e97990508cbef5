"""ATACOM-DC: the safety filter. Resists approaching a limit, never leaving it.

The rule, for rows k_i <= 0 with k' = J_G u + psi and the usable distance m_i = -(k_i + nu_i):

    u* = argmin over u in U of  1/2 |u - u_nom|_R^2 + 1/2 sum_i ([p_i(u)]_+ / a_i)^2
    p_i = (J_G u)_i + psi_i + eps_i - gamma m_i          inside  (m_i > 0)
    p_i = (J_G u)_i + psi_i + eps_i + lambda (k_i+nu_i)  outside: recovery
    a_i = max(beta m_i, a_min),  psi = psi_trusted + max(psi_untrusted, 0)

Built on ATACOM (Liu, Bou-Ammar, Peters, Tateo, "Safe Reinforcement Learning on the Constraint
Manifold", IEEE T-RO 41, 2025), whose penalty is even in p_i and so resists leaving a limit as
much as approaching it. Plain ATACOM, ATACOM with drift clipping and the CBF-QP are parameters of
the same solver (`Variant`, `Gains`). What the gains must obey stands in `constraint.py`.

The filter knows nothing of the policy, keeps nothing of a tick but what it needs to predict the
next one, and draws a new answer from the image alone: equal inputs, equal outputs.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf, nan
from time import perf_counter_ns

import numpy as np

from steadyhand.controllers.errors import SafetyError
from steadyhand.controllers.frames import (
    Certified,
    Fault,
    FilterMode,
    FilterOutcome,
    FilterReport,
    Observation,
    Sent,
)
from steadyhand.controllers.protocols import SafetyModel
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.safety.active_set import Status
from steadyhand.controllers.safety.arrays import Mask, Matrix
from steadyhand.controllers.safety.constraint import ConstraintSet, Gains, diameter, metric
from steadyhand.controllers.safety.limits import Limits, all_finite, all_within, confine, cut, take
from steadyhand.controllers.safety.row_filter import DC, RowFilter, Solver, Variant
from steadyhand.controllers.safety.rows import (
    REPORTED,
    Field,
    distance,
    surprise,
)
from steadyhand.controllers.signals import Vector


@dataclass(frozen=True, slots=True)
class _Answer:
    """How the command came about."""

    mode: FilterMode
    share: float
    steps: int
    status: int
    infeasible: bool


_ABSURD = 1e100
"""Larger numbers of a model would overflow when squared."""
_FAR = 1e3
"""A wanted input counts as at most this many ranges outside its box."""


class _Before:
    """What the last image predicts for the next one."""

    def __init__(self, m: int, n: int) -> None:
        self.k, self.drift, self.J_G = np.zeros(m), np.zeros(m), np.zeros((m, n))
        self.time_s, self.sequence, self.known = 0.0, -1, False

    def keep(
        self, observation: Observation, k: Vector, J_G: Matrix, trusted: Vector, untrusted: Vector
    ) -> None:
        """Remember this image's rows."""
        self.k[:] = k
        self.J_G[:] = J_G
        np.add(trusted, untrusted, out=self.drift)
        self.time_s, self.sequence, self.known = observation.time_s, observation.sequence, True

    def surprise(self, k: Vector, u_applied: Vector, dt_s: float, bounds: Vector) -> float:
        """Largest |predicted - measured k'| over its bound; see `rows.surprise`."""
        worst: float = surprise(k, self.k, self.J_G, self.drift, u_applied, dt_s, bounds)
        return worst


class AtacomDC:
    """The safety filter of a plant: `certify` returns the nearest safe command and why.

    Order of work: validate, linearise and bound the inputs around what is applied now, solve the
    rule, check the answer against the hard rows, blend with the backup where it fails, and where
    no share of the backup passes either, break the rows least in the order of their priorities.
    """

    def __init__(
        self,
        model: SafetyModel,
        constraints: ConstraintSet,
        limits: Limits,
        gains: Gains | None = None,
        variant: Variant = DC,
        max_age_s: Vector | None = None,
        solver: Solver | None = None,
        clock_ns: Callable[[], int] = perf_counter_ns,
    ) -> None:
        """Bind the rows to the plant's model.

        Args:
            model: the plant as the filter knows it; its rows are those of `constraints`.
            constraints: what must hold.
            limits: hard limits of the outputs: the filter's input set lies inside them.
            gains: `Gains.for_period` of the limits' period by default.
            variant: which filter.
            max_age_s: (n_y,) oldest sample that may be acted on; no bound by default.
            solver: the exact active-set solver by default.
            clock_ns: measures the filter's own time for the report; decides nothing.

        Raises:
            SafetyError: names differ between model, constraints and limits, the gains are for
                another period or a smaller input set, or the variant and gains do not fit.
        """
        inputs = model.inputs
        if model.row_names != constraints.names:
            raise SafetyError(
                f"the model has rows {list(model.row_names)} but {list(constraints.names)} are "
                "declared: both must name the same rows in the same order"
            )
        if inputs.names != limits.outputs.names:
            raise SafetyError(
                f"the model has inputs {list(inputs.names)} but the limits are for "
                f"{list(limits.outputs.names)}: both must name the same outputs in the same order"
            )
        r = metric(inputs)
        size = diameter(inputs)
        if gains is None:
            gains = Gains.for_period(limits.period_s, size)
        if gains.period_s != limits.period_s:
            raise SafetyError(
                f"gains are for a period of {gains.period_s} s, the limits for {limits.period_s} s"
            )
        if gains.diameter < size * (1 - 1e-12):
            raise SafetyError(
                f"gains are for an input set of diameter {gains.diameter:g}, the inputs span "
                f"{size:g}: a row could be softer than its margin covers"
            )
        n, m = len(inputs), len(constraints)
        self.model, self.constraints, self.limits, self.gains = model, constraints, limits, gains
        self.variant = variant
        self.rows = RowFilter(constraints, gains, r, variant, limits.quantum, solver)
        self.max_age_s = None if max_age_s is None else np.array(max_age_s, dtype=np.float64)
        self._clock_ns = clock_ns
        self._residual_bounds = constraints.residual_bounds(gains)
        # Far enough out to keep every direction, near enough to keep every digit.
        span = _FAR * (limits.high - limits.low)
        self._far_low, self._far_high = limits.low - span, limits.high + span
        self._wide = np.zeros(n)
        self._k, self._psi_trusted, self._psi_untrusted = np.zeros(m), np.zeros(m), np.zeros(m)
        self._J_G = np.zeros((m, n))
        self._low, self._high, self._lo, self._hi = (np.zeros(n) for _ in range(4))
        self._wanted, self._nominal, self._backup = (np.zeros(n) for _ in range(3))
        self._star, self._u, self._applied = (np.zeros(n) for _ in range(3))
        self._before = _Before(m, n)
        cut(self._low, self._high, self.limits.grid, self._lo, self._hi)
        all_within(self._k, _ABSURD)
        self._before.surprise(self._k, self._u, 1.0, self._residual_bounds)

    def certify(self, observation: Observation, wanted: Vector, sent: Sent) -> Certified:
        """Nearest safe action to `wanted` (n_u,) given the last applied one; never raises.

        Args:
            observation: the process image.
            wanted: proposed command, engineering units; may be anything, NaN included.
            sent: what went to the wire last.

        Returns:
            A command inside the limits, with the report. The raw `wanted` is never passed
            unchecked: see `FilterOutcome` for the declared ways this can end.
        """
        started = self._clock_ns()
        faults: list[Fault] = []
        take(wanted, self._wanted)
        last = self.limits.last_of(observation, sent)
        self.limits.reach(last, observation.time_s - sent.time_s, self._lo, self._hi)
        failed = self._linearise(observation, last, faults)
        if failed is not None:
            return self._give_up(failed, faults, started)

        missed = cut(self._low, self._high, self.limits.grid, self._lo, self._hi)
        confine(self._backup, self._lo, self._hi, self._wide, self._backup)
        finite = all_finite(self._wanted)
        source = self._wanted if finite else self._backup
        confine(source, self._far_low, self._far_high, self._wide, self._nominal)

        answer = self._solve(missed >= 0)
        action = np.empty(len(self._u))
        confine(self._u, self._lo, self._hi, self.limits.grid, action)
        if not finite:
            faults.append(self._not_finite())
            answer = _Answer(
                *(FilterMode.BACKUP, answer.share, answer.steps, answer.status, answer.infeasible)
            )
        if missed >= 0:
            faults.append(self._out_of_reach(missed))
        return self._report(observation, action, last, answer, finite, faults, started)

    def holding_input(self, observation: Observation) -> Vector | None:
        """Input (n_u,) with p_i <= 0 in every hard row, nearest to the backup; None: there is none.

        For offline sweeps (it allocates): the promise of the margin rests on this input. Where
        there is none the region is not certified: shrink it. The input set is that of a tick, cut
        by one period's ramp around `observation.applied`; NaN there: the ramp does not count.
        """
        last = self._applied
        take(observation.applied, last)
        self.limits.reach(last, self.gains.period_s, self._lo, self._hi)
        if self._linearise(observation, last, []) is not None:
            return None
        if cut(self._low, self._high, self.limits.grid, self._lo, self._hi) >= 0:
            return None
        confine(self._backup, self._lo, self._hi, self._wide, self._backup)
        rows, out = self.rows, np.empty(len(self._u))
        rows.build(self._backup, self._k, self._J_G, self._psi_trusted, self._psi_untrusted)
        return out if rows.hold(self._J_G, self._lo, self._hi, self._backup, out) else None

    def _linearise(
        self, observation: Observation, last: Vector, faults: list[Fault]
    ) -> FilterOutcome | None:
        """Ask the model; how it failed if its answer, or what it was drawn from, is of no use."""
        self._backup.fill(nan)
        self._low[:] = self.limits.low
        self._high[:] = self.limits.high
        failed: FilterOutcome | None = None
        try:
            self.model.backup(observation, self._backup)
            self.model.linearise(
                *(observation, self._k, self._J_G, self._psi_trusted, self._psi_untrusted),
                *(self._low, self._high),
            )
        except Exception as error:  # noqa: BLE001  whatever the model does, a command must go out
            faults.append(
                Fault(
                    ReasonCode.FILTER_BACKUP, text=f"safety model: {type(error).__name__}: {error}"
                )
            )
            known = isinstance(error, SafetyError)
            failed = FilterOutcome.UNUSABLE if known else FilterOutcome.NONFINITE
        if not all_finite(self._backup):
            # A backup that is none: stay where the plant is.
            self._backup[:] = np.where(np.isfinite(last), last, np.clip(0.0, self._lo, self._hi))
            faults.append(Fault(ReasonCode.FALLBACK_FAIL, text="backup is not finite: held"))
        if failed is not None:
            return failed
        age = observation.age_s
        if self.max_age_s is not None and not np.all(age <= self.max_age_s):
            worst = int(np.argmax(np.where(age <= self.max_age_s, -inf, age)))
            faults.append(
                Fault(
                    ReasonCode.OBS_STALE,
                    f"observation[{worst}]",
                    float(age[worst]),
                    float(self.max_age_s[worst]),
                )
            )
            return FilterOutcome.NONFINITE
        for label, array in (
            *(("k", self._k), ("J_G", self._J_G.ravel())),
            *(("psi_trusted", self._psi_trusted), ("psi_untrusted", self._psi_untrusted)),
            *(("low", self._low), ("high", self._high)),
        ):
            if not all_within(array, _ABSURD):
                faults.append(
                    Fault(
                        ReasonCode.FILTER_NONFINITE,
                        label,
                        text=f"safety model: {label} is not finite or absurd",
                    )
                )
                return FilterOutcome.NONFINITE
        return None

    def _solve(self, infeasible: bool) -> _Answer:
        """Rule, check, blend, least violation: the command goes to `_u`."""
        rows, J_G = self.rows, self._J_G
        rows.build(self._nominal, self._k, J_G, self._psi_trusted, self._psi_untrusted)
        status, steps = rows.project(self._nominal, J_G, self._lo, self._hi, self._star)
        if status == Status.SOLVED and not all_finite(self._star):
            status = Status.STOPPED
        if status == Status.SOLVED:
            rows.table[Field.MULTIPLIER] = rows.solver.multiplier[: len(rows.nu)]
            share = rows.blend(J_G, self._star, self._backup, self._u)
            if share == 0.0:
                mode = FilterMode.PASS if steps == 0 else FilterMode.SHAPED
                return _Answer(mode, 0.0, steps, status, infeasible)
            if share > 0.0:
                mode = FilterMode.BLENDED if share < 1.0 else FilterMode.BACKUP
                return _Answer(mode, share, steps, status, infeasible)
        else:
            rows.table[Field.MULTIPLIER] = 0.0
            infeasible = infeasible or status == Status.INFEASIBLE
            if rows.blend(J_G, self._backup, self._backup, self._u) == 0.0:
                return _Answer(FilterMode.BACKUP, 1.0, steps, status, infeasible)
        if not rows.yield_least(J_G, self._lo, self._hi, self._nominal, self._u):
            self._u[:] = self._backup
        return _Answer(FilterMode.BACKUP, 1.0, steps, status, True)

    def _report(
        self,
        observation: Observation,
        action: Vector,
        last: Vector,
        answer: _Answer,
        finite: bool,
        faults: list[Fault],
        started: int,
    ) -> Certified:
        """Judge the command that goes out, not the one that was solved for."""
        rows = self.rows
        time_to_boundary, margin, margin_row, _, soft_gate, outside = rows.assess(self._J_G, action)
        outcome = _outcome(answer, finite, outside > 0, soft_gate > rows.tolerance)
        self._explain(answer, outcome, margin, margin_row, faults)
        residual = self._residual(observation, last)
        kept = rows.table[:REPORTED].copy()
        k, m, p_nominal, p_certified, multiplier = kept
        correction = float(distance(action, self._nominal, rows.r))
        report = FilterReport(
            mode=answer.mode,
            outcome=outcome,
            correction_norm=correction,
            correction_share=correction / self.gains.diameter,
            margin=margin,
            margin_row=margin_row,
            active=tuple(np.flatnonzero(multiplier).tolist()),
            k=k,
            m=m,
            p_nominal=p_nominal,
            p_certified=p_certified,
            multiplier=multiplier,
            time_to_boundary_s=time_to_boundary,
            blend=answer.share,
            passes=answer.steps,
            duration_us=(self._clock_ns() - started) / 1000.0,
            infeasible=answer.infeasible,
            residual_z=residual,
        )
        return Certified(action, report, tuple(faults))

    def _residual(self, observation: Observation, last: Vector) -> float:
        """`residual_z` of this image against the last one; keeps this one for the next."""
        before = self._before
        worst = 0.0
        if observation.sequence != before.sequence:
            dt_s = observation.time_s - before.time_s
            if before.known and 0 < dt_s <= 2 * self.gains.period_s and all_finite(last):
                worst = before.surprise(self._k, last, dt_s, self._residual_bounds)
            before.keep(observation, self._k, self._J_G, self._psi_trusted, self._psi_untrusted)
        return worst

    def _give_up(self, outcome: FilterOutcome, faults: list[Fault], started: int) -> Certified:
        """The rows cannot be told: the backup, inside the limits."""
        self._before.known = False
        action = np.empty(len(self._u))
        confine(self._backup, self._lo, self._hi, self.limits.grid, action)
        correction = float(distance(action, self._wanted, self.rows.r))
        unknown = np.full(len(self.constraints), nan)
        report = FilterReport(
            mode=FilterMode.BACKUP,
            outcome=outcome,
            correction_norm=correction,
            correction_share=correction / self.gains.diameter,
            margin=nan,
            margin_row=-1,
            active=(),
            k=unknown,
            m=unknown,
            p_nominal=unknown,
            p_certified=unknown,
            multiplier=unknown,
            blend=1.0,
            duration_us=(self._clock_ns() - started) / 1000.0,
        )
        return Certified(action, report, tuple(faults))

    def _explain(
        self,
        answer: _Answer,
        outcome: FilterOutcome,
        margin: float,
        margin_row: int,
        faults: list[Fault],
    ) -> None:
        """Append one fault for everything that a person should know of."""
        name = self.constraints.names[margin_row]
        if outcome is FilterOutcome.OUTSIDE_SET:
            faults.append(
                Fault(ReasonCode.FILTER_RECOVER, name, margin, 0.0, f"outside the safe set: {name}")
            )
        if outcome is FilterOutcome.SOLVED_WITH_SLACK:
            faults.append(Fault(ReasonCode.FILTER_SLACK, name, margin, 0.0, "a soft row gives way"))
        if answer.infeasible:
            faults.append(
                Fault(
                    ReasonCode.FILTER_INFEASIBLE,
                    name,
                    margin,
                    0.0,
                    "not all rows and bounds can hold",
                )
            )
        if answer.status == Status.STOPPED:
            faults.append(
                Fault(
                    ReasonCode.FILTER_STOPPED,
                    value=float(answer.steps),
                    text=f"the solver stopped after {answer.steps} steps without an answer",
                )
            )
        if answer.mode is FilterMode.BLENDED:
            faults.append(Fault(ReasonCode.FILTER_BLENDED, name, answer.share, 0.0))
        elif answer.mode is FilterMode.BACKUP:
            faults.append(Fault(ReasonCode.FILTER_BACKUP, name, answer.share, 0.0))

    def _not_finite(self) -> Fault:
        wanted = self._wanted
        index = int(np.argmin(np.isfinite(wanted)))
        name = self.limits.outputs.names[index]
        return Fault(ReasonCode.FILTER_NONFINITE, name, float(wanted[index]), text="backup instead")

    def _out_of_reach(self, index: int) -> Fault:
        name = self.limits.outputs.names[index]
        return Fault(
            ReasonCode.FILTER_INFEASIBLE,
            name,
            float(self._low[index]),
            float(self._high[index]),
            f"{name} cannot come within [{self._low[index]:g}, {self._high[index]:g}] this tick",
        )


def _outcome(answer: _Answer, finite: bool, outside: bool, slack: bool) -> FilterOutcome:
    """The worst that can be said of the answer."""
    if not finite:
        return FilterOutcome.NONFINITE
    if answer.status == Status.STOPPED:
        return FilterOutcome.TIME_OUT
    if outside:
        return FilterOutcome.OUTSIDE_SET
    if answer.infeasible:
        return FilterOutcome.INFEASIBLE
    return FilterOutcome.SOLVED_WITH_SLACK if slack else FilterOutcome.SOLVED


def sweep(safety: AtacomDC, observations: Iterable[Observation]) -> Mask:
    """Which of the states are certified: one flag per observation, see `holding_input`."""
    return np.array([safety.holding_input(one) is not None for one in observations], dtype=bool)
