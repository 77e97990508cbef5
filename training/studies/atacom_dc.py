"""Does the directional rule keep every limit, and what does it cost beside its rivals?

One small world (`worlds/point.py`), two policies that ignore the limits, and every filter on the
same starts, goals and noise. All but published ATACOM are parameters of the one solver that runs
at the edge. Judged: no limit broken by ATACOM-DC under either policy, at least `REQUIRED` times
the goals of plain ATACOM, and no fewer goals than a CBF-QP with the same margin.

Which ATACOM is meant decides the answer, so it is fixed here: the published controller with the
basis that a Procrustes rotation keeps smooth, no drift clipping, exponential slack of rate
`ATACOM_BETA`, no margin. Other forms of it stand in the table and in the remarks.

Sources: Liu, Bou-Ammar, Peters, Tateo, "Safe Reinforcement Learning on the Constraint Manifold",
IEEE T-RO 41, 2025, arXiv 2404.09080 (ATACOM); Ames et al., "Control Barrier Functions: Theory and
Applications", ECC 2019 (CBF-QP).

    steadyhand study run atacom-dc --quick
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import hypot, sqrt
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from steadyhand.controllers.safety.active_set import Status
from steadyhand.controllers.safety.arrays import Matrix
from steadyhand.controllers.safety.constraint import ConstraintRow, ConstraintSet, Gains
from steadyhand.controllers.safety.row_filter import CBF_QP, DC, Clip, RowFilter, Variant
from steadyhand.controllers.safety.tangent import published
from steadyhand.controllers.signals import Vector
from steadyhand.training.studies.study import Finding, Progress, Study, mean_interval
from steadyhand.training.worlds import point

TICKS = 400
"""Length of an episode, periods of 50 ms."""
EPISODES, QUICK_EPISODES = 10, 2
"""Episodes per seed and policy."""
MARGIN_M = 0.004
"""nu, distance kept from every limit. The world asks for 1.6 mm: r = M T^2/2 with M = 0.66 m/s^2,
the fastest change of the drift along any path, and nu = 2 r."""
WIDE_MARGIN_M = 0.020
"""The margin tried against a drift that the filter does not know."""
RECOVERY = 0.5 / point.PERIOD_S
"""lambda, 1/s, of every filter."""
KAPPA = 0.9
"""Bound of (gamma + beta D) T. D = 2 sqrt(2): the metric is the plain one, m/s."""
ATACOM_BETA = 3.0
"""Rate of ATACOM's exponential slack, 1/s: the top of the published settings, 1 to 3."""
SLACK_FLOOR = 1e-6
"""Smallest slack of published ATACOM, m."""
DRIFT_BOUND = 0.25 * sqrt(2)
"""w, m/s: the largest drift that there is."""
REQUIRED = 1.4
"""Goals of ATACOM-DC over those of plain ATACOM."""
STANDING_M = 0.05
"""Less than this in a second is standing. A goal seeker stands in a trap behind a disc, or short
of its goal where drift / gain exceeds the goal radius; no filter is to blame for either."""
OTHER_SEEKERS = ((3.0, 0.2, 0.08), (4.0, 0.17, 0.10), (6.0, 0.2, 0.10), (3.0, 0.5, 0.10))
"""(gain, noise, goal radius): do other free choices of the world change the answer? The second
and third never stand short of a goal."""
RESAMPLES = 2000
"""Draws for the spread of a ten-episode experiment."""

EXPONENTIAL = Variant("atacom", two_sided=True, exponential=True)
EXPONENTIAL_CLIPPED = Variant("atacom-clipped", two_sided=True, clip=Clip.ALL, exponential=True)
LOW, HIGH = np.full(2, -point.TOP_SPEED), np.full(2, point.TOP_SPEED)
DIAMETER = float(np.hypot(*(HIGH - LOW)))


class Filter(Protocol):
    """Turns a wanted input into one that should be safe."""

    unsolved: int
    """Ticks without an answer of the rule itself."""

    def apply(self, wanted: Vector, k: Vector, J: Matrix, psi: Vector, out: Vector) -> None:
        """Write the input (2,) for rows k (7,), J (7, 2) and drift psi (7,)."""
        ...


class NoFilter:
    """The command as it is."""

    unsolved = 0

    def apply(self, wanted: Vector, k: Vector, J: Matrix, psi: Vector, out: Vector) -> None:
        """Copy."""
        out[:] = wanted


class Rule:
    """The filter of the edge with its parameters: directional, two-sided or hard rows."""

    def __init__(
        self, variant: Variant, gamma: float, beta: float, margin: float, disturbance: float = 0.0
    ) -> None:
        # Declared as a measurement error, the margin is taken as it stands.
        rows = tuple(
            ConstraintRow(name, "m", 1.0, measurement_error=margin, rate_disturbance=disturbance)
            for name in point.NAMES
        )
        gains = Gains(point.PERIOD_S, DIAMETER, gamma, beta, RECOVERY, KAPPA)
        self._rows = RowFilter(ConstraintSet(rows), gains, np.ones(2), variant)
        self._zero = np.zeros(point.ROWS)
        self.unsolved = 0

    def apply(self, wanted: Vector, k: Vector, J: Matrix, psi: Vector, out: Vector) -> None:
        """Solve; without an answer break the rows least, else stop: what the edge does."""
        status, _ = self._rows.solve(wanted, k, J, psi, self._zero, LOW, HIGH, out)
        if status != Status.SOLVED:
            self.unsolved += 1
            if not self._rows.yield_least(J, LOW, HIGH, wanted, out):
                out.fill(0.0)


class PublishedAtacom:
    """ATACOM as its authors compute it; the wanted input is its action."""

    unsolved = 0

    def __init__(
        self, beta: float, exponential: bool, clipped: bool = False, margin: float = 0.0
    ) -> None:
        self._beta, self._exponential = beta, exponential
        self._clipped, self._margin = clipped, margin

    def apply(self, wanted: Vector, k: Vector, J: Matrix, psi: Vector, out: Vector) -> None:
        """Tangential step, drift compensation and contraction, cut to the box."""
        kept = k + self._margin
        slack = np.maximum(-kept, SLACK_FLOOR)
        alpha = np.expm1(self._beta * slack) if self._exponential else self._beta * slack
        drift = np.maximum(psi, 0.0) if self._clipped else psi
        command = published(wanted, J, drift, kept + slack, alpha, RECOVERY)
        np.clip(command, LOW, HIGH, out=out)


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the table."""

    name: str
    make: Callable[[], Filter]
    margin: float = 0.0
    knows_drift: bool = True


MAIN = "DC gamma=13 beta=1.5"
PLAIN = "ATACOM Procrustes"
PLAIN_WITH_MARGIN = "ATACOM Procrustes, margin"
LINEAR = "ATACOM Procrustes, linear slack"
PROJECTION = "ATACOM projection"
SAFE_DC = ("DC gamma=0 beta=6", MAIN, "DC gamma=9 beta=3")
HARD = ("CBF-QP gamma=15", "CBF-QP gamma=18")


def _dc(name: str, gamma: float, beta: float) -> Case:
    return Case(name, lambda: Rule(DC, gamma, beta, MARGIN_M), MARGIN_M)


def _cbf(name: str, gamma: float) -> Case:
    return Case(name, lambda: Rule(CBF_QP, gamma, 0.0, MARGIN_M), MARGIN_M)


def _blind(name: str, variant: Variant, gamma: float, beta: float, margin: float) -> Case:
    return Case(name, lambda: Rule(variant, gamma, beta, margin), margin, knows_drift=False)


CASES = (
    Case("none", NoFilter),
    Case(PLAIN, lambda: PublishedAtacom(ATACOM_BETA, exponential=True)),
    Case(
        "ATACOM Procrustes, clipped",
        lambda: PublishedAtacom(ATACOM_BETA, exponential=True, clipped=True),
    ),
    Case(LINEAR, lambda: PublishedAtacom(ATACOM_BETA, exponential=False)),
    Case(
        PLAIN_WITH_MARGIN,
        lambda: PublishedAtacom(ATACOM_BETA, exponential=True, margin=MARGIN_M),
        MARGIN_M,
    ),
    Case(PROJECTION, lambda: Rule(EXPONENTIAL, 0.0, ATACOM_BETA, 0.0)),
    Case(
        "ATACOM projection, clipped",
        lambda: Rule(EXPONENTIAL_CLIPPED, 0.0, ATACOM_BETA, 0.0),
    ),
    _dc(SAFE_DC[0], 0.0, 6.0),
    _dc(SAFE_DC[1], 13.0, 1.5),
    _dc(SAFE_DC[2], 9.0, 3.0),
    _cbf(HARD[0], 15.0),
    _cbf(HARD[1], 18.0),
    Case("CBF-QP gamma=15, no margin", lambda: Rule(CBF_QP, 15.0, 0.0, 0.0)),
    _blind("DC, drift unknown", DC, 13.0, 1.5, MARGIN_M),
    _blind("CBF-QP, drift unknown", CBF_QP, 15.0, 0.0, MARGIN_M),
    _blind("DC, drift unknown, wide", DC, 13.0, 1.5, WIDE_MARGIN_M),
    _blind("CBF-QP, drift unknown, wide", CBF_QP, 15.0, 0.0, WIDE_MARGIN_M),
    Case(
        "DC, drift unknown but bounded",
        lambda: Rule(DC, 13.0, 1.5, MARGIN_M, DRIFT_BOUND),
        MARGIN_M,
        knows_drift=False,
    ),
)

# What `drive` counts in one episode.
VIOLATING, REACHED, CORRECTION, CHANGE, DEEPEST, STANDING = range(6)
Policy = Callable[[point.Episode], point.Nominal]


def drive(nominal: point.Nominal, safety: Filter, episode: point.Episode, case: Case) -> Vector:
    """Run one episode.

    Returns:
        (6,) violating ticks in %, goals reached, mean |u - u_nom| m/s, mean change of the command
        from tick to tick m/s, deepest k m, ticks in % that end a second of standing.
    """
    q = episode.start.copy()
    path = np.empty((episode.ticks, 2))
    k, J, psi = np.zeros(point.ROWS), np.zeros((point.ROWS, 2)), np.zeros(point.ROWS)
    u, before = np.zeros(2), np.zeros(2)
    violating, correction, change, deepest = 0, 0.0, 0.0, -np.inf
    for tick in range(episode.ticks):
        now = tick * point.PERIOD_S
        wanted = nominal.act(tick, q)
        point.constraints(q, k, J)
        if case.knows_drift:
            np.dot(J, point.drift(q[0], q[1], now), out=psi)
        safety.apply(wanted, k, J, psi, u)
        depth = point.advance(q, now, u)
        violating += depth > point.TOLERANCE
        deepest = max(deepest, depth)
        correction += hypot(u[0] - wanted[0], u[1] - wanted[1])
        change += hypot(u[0] - before[0], u[1] - before[1]) if tick else 0.0
        before[:], path[tick] = u, q
    ticks, second = episode.ticks, round(1 / point.PERIOD_S)
    moved = np.linalg.norm(path[second:] - path[:-second], axis=1)
    standing = 100 * float(np.mean(moved < STANDING_M))
    return np.array(
        [
            *(100 * violating / ticks, nominal.reached, correction / ticks, change / ticks),
            *(deepest, standing),
        ]
    )


def measure(
    case: Case, policy: Policy, episodes: Sequence[Sequence[point.Episode]]
) -> tuple[Matrix, int]:
    """Run a case on all episodes: (seeds, episodes, 6) of `drive`, and ticks without an answer."""
    safety = case.make()
    counted = np.array(
        [[drive(policy(one), safety, one, case) for one in seed] for seed in episodes]
    )
    return counted, safety.unsolved


def run(seeds: Sequence[int], quick: bool, progress: Progress) -> Finding:
    """Every case under both policies, then the three questions."""
    count = QUICK_EPISODES if quick else EPISODES
    episodes = [
        [point.episode(np.random.default_rng([seed, number]), TICKS) for number in range(count)]
        for seed in seeds
    ]
    seeker: dict[str, Matrix] = {}
    wanderer: dict[str, Matrix] = {}
    table = []
    for index, case in enumerate(CASES):
        progress(case.name, index / len(CASES))
        seeker[case.name], unsolved = measure(case, point.Seeker, episodes)
        wanderer[case.name], more = measure(case, point.Wanderer, episodes)
        table.append(_row(case, seeker[case.name], wanderer[case.name], unsolved + more))

    goals = {name: counted[..., REACHED].mean(axis=1) for name, counted in seeker.items()}
    clean = all(
        np.all(counted[name][..., VIOLATING] == 0)
        for counted in (seeker, wanderer)
        for name in SAFE_DC
    )
    ratio = float(np.mean(goals[MAIN] / goals[PLAIN]))
    no_worse = all(mean_interval(goals[MAIN] - goals[name])[1] >= 0 for name in HARD)
    remarks = [
        f"limits kept by every DC row with known drift, under both policies: {_yes(clean)}",
        f"{REQUIRED} times the goals of {PLAIN}: {_yes(ratio >= REQUIRED)}",
        f"no fewer goals than the CBF-QP with the same margin: {_yes(no_worse)}",
        *(_ratio(goals, name) for name in (PLAIN, PLAIN_WITH_MARGIN, LINEAR, PROJECTION, *HARD)),
    ]
    if not quick:
        remarks += [_spread(seeker), *_other_seekers(episodes, progress)]
    return Finding(
        measured=float(goals[MAIN].mean()),
        baseline=float(goals[PLAIN].mean()),
        interval=mean_interval(goals[MAIN]),
        holds=clean and ratio >= REQUIRED and no_worse,
        table=table,
        remarks=remarks,
    )


def _row(case: Case, seeker: Matrix, wanderer: Matrix, unsolved: int) -> dict[str, Any]:
    """One line of the table; a pair is goal seeker / wanderer."""
    both = (seeker, wanderer)

    def pair(column: int, scale: float = 1.0) -> list[float]:
        reduce = np.max if column == DEEPEST else np.mean
        return [round(scale * float(reduce(one[..., column])), 3) for one in both]

    return {
        "filter": case.name,
        "margin_mm": round(1e3 * case.margin, 3),
        "violating_%": pair(VIOLATING),
        "goals": round(float(seeker[..., REACHED].mean()), 3),
        "correction": pair(CORRECTION),
        "change": pair(CHANGE),
        "deepest_mm": pair(DEEPEST, 1e3),
        "standing_%": pair(STANDING),
        "unsolved": unsolved,
    }


def _yes(answer: bool) -> str:
    return "yes" if answer else "no"


def _ratio(goals: dict[str, Vector], name: str) -> str:
    """Paired by seed: the same starts, goals and noise."""
    ratios = goals[MAIN] / goals[name]
    low, high = mean_interval(ratios)
    return f"goals of {MAIN} over {name}: {ratios.mean():.3f} [{low:.3f}, {high:.3f}]"


def _spread(seeker: dict[str, Matrix]) -> str:
    """What an experiment of ten episodes could have measured."""
    dc, plain = (seeker[name][..., REACHED].ravel() for name in (MAIN, PLAIN))
    drawn = np.random.default_rng(0).integers(len(dc), size=(RESAMPLES, 10))
    low, high = np.quantile(dc[drawn].mean(axis=1) / plain[drawn].mean(axis=1), (0.025, 0.975))
    return f"ten episodes alone would measure a ratio to {PLAIN} within [{low:.2f}, {high:.2f}]"


def _other_seekers(episodes: Sequence[Sequence[point.Episode]], progress: Progress) -> list[str]:
    """The ratio to plain ATACOM under other goal seekers."""
    cases = {case.name: case for case in CASES}
    told = []
    for gain, noise, radius in OTHER_SEEKERS:
        progress(f"seeker {gain:g}/s", 1.0)

        def seek(
            one: point.Episode, gain: float = gain, noise: float = noise, radius: float = radius
        ) -> point.Nominal:
            return point.Seeker(one, gain, noise, radius)

        goals = {
            name: measure(cases[name], seek, episodes)[0][..., REACHED].mean(axis=1)
            for name in (MAIN, PLAIN)
        }
        told.append(
            f"seeker {gain:g}/s, noise {noise:g}, radius {radius:g} m: {_ratio(goals, PLAIN)}"
        )
    return told


def figure(result: dict[str, Any], file: Path) -> None:
    """Goals against violating ticks, one point per filter."""
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(8, 4.5), layout="constrained")
    axes = canvas.subplots()
    for index, row in enumerate(result["table"]):
        worst = max(row["violating_%"])
        colour, marker = f"C{index % 10}", "o^"[index // 10]
        axes.plot(worst, row["goals"], marker, color=colour, ls="", label=row["filter"])
    axes.set_xscale("symlog", linthresh=0.1)
    axes.set_xlim(left=-0.01)
    axes.set_xlabel("violating ticks, worse of the two policies, %")
    axes.set_ylabel(result["metric"])
    axes.set_title(result["claim"], fontsize=8)
    canvas.legend(loc="outside right center", fontsize=7)
    canvas.savefig(file, dpi=110)


STUDY = Study(
    name="atacom-dc",
    claim="ATACOM-DC breaks no limit, reaches 1.4 times the goals of plain ATACOM and no fewer "
    "than a CBF-QP",
    source="Liu et al., Safe RL on the Constraint Manifold, IEEE T-RO 41, 2025; Ames et al., "
    "Control Barrier Functions, ECC 2019",
    metric="goals per 400 ticks",
    baseline="ATACOM with Procrustes basis, exponential slack 3/s, no drift clipping, no margin",
    seeds=10,
    quick_seeds=3,
    run=run,
    figure=figure,
)
