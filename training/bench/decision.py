"""Goal 2: a whole decision, from a process image to a safe command.

Normalise, policy, critic, novelty score, null-space filter. The rivals compute the same numbers
from the same weights; their filter is what the row says.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from steadyhand.controllers.frames import Observation
from steadyhand.controllers.policies.onnx import INPUT, OnnxPolicy
from steadyhand.controllers.safety.constraint import ConstraintRow, ConstraintSet, Gains
from steadyhand.controllers.safety.row_filter import RowFilter
from steadyhand.controllers.safety.tangent import project, published_projection
from steadyhand.controllers.signals import Vector
from steadyhand.controllers.trust.novelty import Novelty, fit_novelty
from steadyhand.training.bench.goals import Check, Measured, faster, largest
from steadyhand.training.bench.graphs import Weights, tanh_policy, torch_nets, weights_of
from steadyhand.training.bench.problems import Batch, Problems, arm_problems, over_states
from steadyhand.training.bench.turns import Row, Setting, take_turns

N_Y = 16
OURS, SHIPPED = "ours", "ours, directional filter and bounds"
NUMPY, SVD, TORCH = "session.run, numpy solve", "session.run, SVD filter", "torch"
BOUNDS = {NUMPY: 1 / 2.5, SVD: 1 / 10, TORCH: 1 / 8}
ERROR_BOUND = 1e-9
SIZES = {
    "7 outputs, 19 rows, 2x64": (7, 5, True, 64),
    "14 outputs, 30 rows, 2x64": (14, 30, False, 64),
}
WIDE = {"7 outputs, 19 rows, 2x256": (7, 5, True, 256)}
"""Told without a bound: the graph's own arithmetic is most of the time, for every row."""
STATES, EXAMINED = 2000, 200

Decision = Callable[[int], tuple[Vector, float]]
"""Number of the state → (input (n,), novelty score)."""


@dataclass(frozen=True, slots=True, eq=False)
class Statistics:
    """The novelty score as a user would write it, from the same data as the monitor's."""

    whiten: Batch
    mean: Vector
    middle: Vector
    half: Vector
    reach: Vector
    threshold: float

    @classmethod
    def of(cls, data: dict[str, Any]) -> "Statistics":
        """From the output of `fit_novelty`."""
        low, high = np.array(data["low"]), np.array(data["high"])
        half = 0.5 * (high - low)
        return cls(
            whiten=np.linalg.inv(np.array(data["cholesky"])),
            mean=np.array(data["mean"]),
            middle=0.5 * (high + low),
            half=half,
            reach=2.0 * data["range_margin"] * half,
            threshold=data["threshold"],
        )

    def score(self, values: Vector) -> float:
        """Larger of Mahalanobis distance over its threshold and the range excess."""
        z = self.whiten @ (values - self.mean)
        excess = ((np.abs(values - self.middle) - self.half) / self.reach).max()
        return float(max(np.sqrt(z @ z) / self.threshold, excess, 0.0))


def decisions(n: int, rows: int, positions: bool, hidden: int) -> dict[str, Decision]:
    """Every way to decide.

    Raises:
        ImportError: a rival is not installed.
    """
    problems = arm_problems(n, rows, positions, STATES)
    spec = tanh_policy(N_Y, n, hidden)
    rng = np.random.default_rng(3)
    values = rng.standard_normal((len(problems.u_nom), N_Y))
    names = spec.observations.names
    data = fit_novelty(rng.standard_normal((2000, N_Y)), rng.standard_normal((1000, N_Y)), names)
    policy, statistics = spec.build(), Statistics.of(data)
    novelty = Novelty(spec.observations, **data)
    ours = (problems, policy, novelty, values)
    theirs = (problems, policy, statistics, values.astype(np.float32), values)
    return {
        OURS: _ours(*ours),
        SHIPPED: _shipped(*ours),
        NUMPY: _session_run(*theirs, _solve(problems)),
        SVD: _session_run(*theirs, _svd(problems)),
        TORCH: _torch(problems, weights_of(spec), statistics, values),
    }


def _frames(values: Batch, n: int) -> list[Observation]:
    """Process images as the link hands them over."""
    age, quality, applied = np.zeros(N_Y), np.zeros(N_Y, np.int8), np.zeros(n)
    return [Observation(i, float(i), v, age, quality, applied) for i, v in enumerate(values)]


def _ours(problems: Problems, policy: OnnxPolicy, novelty: Novelty, values: Batch) -> Decision:
    n, frames = problems.n, _frames(values, problems.n)
    J, drift, weight = problems.J, problems.drift, 1.0 / problems.slack_speed**2
    r, M, step, u = np.ones(n), np.empty((n, n)), np.empty(n), np.empty(n)

    def decide(i: int) -> tuple[Vector, float]:
        frame = frames[i]
        proposal = policy.propose(frame)
        score = novelty.score(frame, proposal)
        project(proposal.action, r, J[i], drift[i], weight[i], M, step, u)
        return u, score

    return decide


def _shipped(problems: Problems, policy: OnnxPolicy, novelty: Novelty, values: Batch) -> Decision:
    """With the rule that ships: one-sided rows, bounds, gains from the period. Other answers."""
    n, m, frames = problems.n, problems.m, _frames(values, problems.n)
    gains = Gains.for_period(0.01, float(np.sqrt(n)))
    constraints = ConstraintSet(tuple(ConstraintRow(f"row{i}", "m", 1.0) for i in range(m)))
    rule = RowFilter(constraints, gains, np.ones(n))
    k, J, drift = -0.5 * problems.slack_speed, problems.J, problems.drift
    low, high, none, u = problems.low, problems.high, np.zeros(m), np.empty(n)

    def decide(i: int) -> tuple[Vector, float]:
        frame = frames[i]
        proposal = policy.propose(frame)
        score = novelty.score(frame, proposal)
        rule.solve(proposal.action, k[i], J[i], none, drift[i], low[i], high[i], u)
        return u, score

    return decide


def _session_run(
    problems: Problems,
    policy: OnnxPolicy,
    statistics: Statistics,
    values32: Any,  # noqa: ANN401  (N, n_y) float32
    values: Batch,
    project_action: Callable[[int, Vector], Vector],
) -> Decision:
    session = policy.session

    def decide(i: int) -> tuple[Vector, float]:
        action = session.run(None, {INPUT: values32[i][np.newaxis]})[0][0]
        return project_action(i, action.astype(np.float64)), statistics.score(values[i])

    return decide


def _solve(problems: Problems) -> Callable[[int, Vector], Vector]:
    eye, J, drift = np.eye(problems.n), problems.J, problems.drift
    weight = 1.0 / problems.slack_speed**2

    def filtered(i: int, action: Vector) -> Vector:
        heavy = J[i].T * weight[i]
        u: Vector = np.linalg.solve(eye + heavy @ J[i], action - heavy @ drift[i])
        return u

    return filtered


def _svd(problems: Problems) -> Callable[[int, Vector], Vector]:
    J, drift, speed = problems.J, problems.drift, problems.slack_speed
    return lambda i, action: published_projection(action, J[i], drift[i], speed[i])


def _torch(problems: Problems, weights: Weights, statistics: Statistics, values: Batch) -> Decision:
    import torch

    policy, trunk, heads = torch_nets(weights)
    mean, inverse = torch.from_numpy(weights["mean"]), torch.from_numpy(weights["inverse"])
    J, drift = torch.from_numpy(problems.J), torch.from_numpy(problems.drift)
    weight = torch.from_numpy(1.0 / problems.slack_speed**2)
    x64, x32 = torch.from_numpy(values), torch.from_numpy(values.astype(np.float32))
    eye = torch.eye(problems.n, dtype=torch.float64)
    whiten, centre = torch.from_numpy(statistics.whiten), torch.from_numpy(statistics.mean)
    middle, half = torch.from_numpy(statistics.middle), torch.from_numpy(statistics.half)
    reach = torch.from_numpy(statistics.reach)

    def decide(i: int) -> tuple[Vector, float]:
        with torch.inference_mode():
            x = (x32[i] - mean) * inverse
            action, hidden = policy(x).double(), trunk(x)
            for head in heads.values():
                head(hidden)
            z = whiten @ (x64[i] - centre)
            excess = (((x64[i] - middle).abs() - half) / reach).max()
            score = max(float(torch.sqrt(z @ z)) / statistics.threshold, float(excess), 0.0)
            heavy = J[i].T * weight[i]
            u = torch.linalg.solve(eye + heavy @ J[i], action - heavy @ drift[i])
            return u.numpy(), score

    return decide


def measure(setting: Setting) -> Measured:
    """All sizes, all ways."""
    tables: dict[str, Any] = {}
    checks: list[Check] = []
    notes = [
        f"'{SHIPPED}' gives other commands (it does not resist leaving a limit, and keeps bounds), "
        "so it has no bound of its own"
    ]
    for title, size in (SIZES | WIDE).items():
        every = decisions(*size)
        rows = take_turns(over_states(every, STATES), setting)
        tables[title] = [row.data() for row in rows.values()]
        notes.append(_without_bound(title, SHIPPED, rows))
        apart = [float(np.abs(every[OURS](i)[0] - every[SVD](i)[0]).max()) for i in range(EXAMINED)]
        error = Check(f"{title}: error against SVD", largest(apart), ERROR_BOUND)
        if title in WIDE:
            notes.append(_without_bound(title, OURS, rows))
            checks.append(error)
        else:
            checks += [
                *(faster(title, rows[OURS], rows[rival], bound) for rival, bound in BOUNDS.items()),
                error,
            ]
    return Measured(tables, checks, notes)


def _without_bound(title: str, name: str, rows: dict[str, Row]) -> str:
    ours = rows[name].p50_us
    ratios = ", ".join(f"{ours / rows[rival].p50_us:.2g} of {rival}" for rival in BOUNDS)
    return f"{title}, {name}: {ratios}"
