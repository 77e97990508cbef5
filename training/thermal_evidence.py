"""What is known about a thermal-storage controller: cost, violations, confidence, novelty.

Costs are measured with the exported graph behind the real filter on the held-out episodes and
compared with the yardstick (perfect foresight) and with every rule, behind the same filter.
Confidence is fitted on CALIBRATION_SEEDS, gated on THRESHOLD_SEEDS and judged on TEST_SEEDS and on
seasons that the controller has not seen.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from steadyhand.controllers.catalogue import PlantKind
from steadyhand.controllers.errors import ModelError
from steadyhand.controllers.frames import Observation, Proposal
from steadyhand.controllers.plants.thermal_storage import ThermalStorage
from steadyhand.controllers.plants.thermal_storage_optimum import (
    END_VALUE_PER_KWH,
    optimal_trajectory,
    solve,
)
from steadyhand.controllers.plants.thermal_storage_scenario import (
    CALIBRATION_SEEDS,
    REFERENCE_SEASON,
    THRESHOLD_SEEDS,
    TICKS_PER_DAY,
    Scenario,
    generate_batch,
    held_out,
)
from steadyhand.controllers.trust.novelty import fit_novelty, novelty_from_dict
from steadyhand.training.evaluation.confidence import (
    Judged,
    choose_thresholds,
    fit_calibrator,
    probabilities,
    report,
)
from steadyhand.training.evaluation.in_the_loop import Act, Episode, run_episode, shaped_share
from steadyhand.training.methods.care import CareSettings
from steadyhand.training.nets import Decision
from steadyhand.training.progress import stage
from steadyhand.training.rollout import Rollout, collect
from steadyhand.training.thermal_recipe import Recipe, events
from steadyhand.training.worlds.thermal_storage import environment
from steadyhand.training.worlds.thermal_teacher import Teacher

Array = NDArray[np.float64]

TEST_SEEDS: Final = range(10_500, 10_540)
SHIFTED_SEASONS: Final = ("heat_wave", "mild")
_CHUNK = 48
"""Episodes solved at once: bounds the memory of the tables."""
NOVELTY_FEATURES: Final = (
    "cooling_load_kw",
    "outdoor_temperature_degc",
    "electricity_price_per_kwh",
    *(f"load_forecast_{i:02d}_kw" for i in range(1, 13)),
    *(f"outdoor_forecast_{i:02d}_degc" for i in range(1, 5)),
)


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    calibration: int = 96
    threshold: int = 192
    test: int = 40
    shifted: int = 16
    held_out: int = 6
    epsilons: tuple[float, ...] = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2)
    """Shares of failures that may be promised, best first."""
    availability: float = 0.9
    """Least share of nominal ticks that the promise must leave to the policy."""


SMALL = Size(
    calibration=4, threshold=4, test=2, shifted=2, held_out=1, epsilons=(0.99,), availability=0.0
)
"""For tests: too little data to promise anything."""


def yardstick(plant: ThermalStorage, scenario: Scenario) -> Array:
    """Least cost (B,) with perfect foresight, end value included."""
    totals = []
    for w in scenario.w:
        x0 = plant.initial(Scenario(w, scenario.initial_charge))
        totals.append(optimal_trajectory(solve(plant, w), x0).total)
    return np.array(totals)


def quick_gap(decision: Decision, plant: ThermalStorage, scenario: Scenario, best: Array) -> float:
    """Cost above the yardstick in percent, with the batched filter: for watching a training."""
    rollout = collect(decision, environment(plant, scenario, end_value=True))
    return float(100.0 * (rollout.cost.sum() / best.sum() - 1.0))


def measure_cost(
    kind: PlantKind,
    plant: ThermalStorage,
    act: Act,
    scenario: Scenario,
    best: Array,
    filtered: bool = True,
) -> dict[str, Any]:
    """Cost and violations of one controller behind the real filter, or without it."""
    runs = [
        run_episode(
            kind,
            plant,
            w,
            plant.initial(Scenario(w, scenario.initial_charge)),
            act,
            filtered=filtered,
        )
        for w in scenario.w
    ]
    totals = np.array([_total(run) for run in runs])
    broken = np.sum([run.violations.sum(0) for run in runs], axis=0)
    return {
        "cost": float(totals.sum()),
        "gap_percent": float(100.0 * (totals.sum() / best.sum() - 1.0)),
        "gap_percent_by_episode": (100.0 * (totals / best - 1.0)).tolist(),
        "violations": {name: int(n) for name, n in zip(plant.margin_names, broken, strict=True)},
        "filter_changed_share": float(np.mean([shaped_share(run) for run in runs])),
        "filter_correction_mean": float(np.mean([run.correction.mean() for run in runs])),
    }


def compare(kind: PlantKind, plant: ThermalStorage, act: Act, size: Size) -> dict[str, Any]:
    """The controller and every rule of the plant on the held-out episodes."""
    scenario = held_out()
    scenario = Scenario(scenario.w[: size.held_out], scenario.initial_charge)
    best = yardstick(plant, scenario)
    rules = {
        name: measure_cost(kind, plant, make(kind.parameters).act, scenario, best)
        for name, make in kind.heuristics.items()
    }
    return {
        "days": int(scenario.w.shape[0] * scenario.ticks // TICKS_PER_DAY),
        "optimum_cost": float(best.sum()),
        "policy": measure_cost(kind, plant, act, scenario, best),
        "policy_without_filter": measure_cost(kind, plant, act, scenario, best, filtered=False),
        "rules": rules,
        "best_rule_gap_percent": min(rule["gap_percent"] for rule in rules.values()),
    }


@dataclass(frozen=True, slots=True, eq=False)
class Trust:
    """Monitor data for the bundle, and what they were judged by."""

    data: dict[str, Any]
    evidence: dict[str, Any]
    observations: Array
    """(n, n_y) what the policy sees in nominal running, for golden vectors and the envelope."""


def fit_trust(decision: Decision, plant: ThermalStorage, recipe: Recipe, size: Size) -> Trust:
    """Calibrate, choose thresholds, fit novelty, and judge all of it on other days.

    Raises:
        ModelError: no threshold keeps the share of failures at any accepted bound.
    """
    care, period = recipe.care, plant.period_s
    horizon_s = care.horizon_ticks * period
    with stage("calibrate the confidence", 3 + len(SHIFTED_SEASONS)) as bar:
        nominal, calibration = _judged(decision, plant, care, CALIBRATION_SEEDS[: size.calibration])
        calibrator = fit_calibrator(calibration)
        bar.advance(str(calibrator["kind"]))
        other, validation = _judged(decision, plant, care, THRESHOLD_SEEDS[: size.threshold])
        smoothing = {"time_constant_s": horizon_s / 4.0, "window_s": horizon_s / 4.0}
        choice, epsilon = choose_thresholds(
            validation,
            probabilities(calibrator, validation.logit),
            period_s=period,
            ticks_per_day=TICKS_PER_DAY,
            epsilons=size.epsilons,
            availability=size.availability,
            **smoothing,
        )
        if choice is None:
            raise ModelError(
                f"no confidence threshold keeps failures below {size.epsilons[-1]:.0%} on the "
                "threshold days: the policy is not fit to drive; train longer"
            )
        bar.advance(f"theta {choice.theta_off:.2f}")
        columns = [plant.observations.index(name) for name in NOVELTY_FEATURES]
        seen, later = nominal[:, columns], other[:, columns]
        novelty = fit_novelty(seen, later, NOVELTY_FEATURES)
        evidence: dict[str, Any] = {
            "event": {
                "horizon_ticks": care.horizon_ticks,
                "largest_correction_share": care.correction_share,
                "tolerance": care.tolerance,
                "backup": "demand_limiting",
            },
            "calibrator": calibrator["kind"],
            "failure_bound": epsilon,
            "thresholds": {
                "theta_off": choice.theta_off,
                "theta_on": choice.theta_on,
                "failures_lower": choice.lower,
                "failures_upper": choice.upper,
                "switches_in_the_busiest_day": choice.switches_per_window,
            },
        }
        for name, season, seeds in (
            ("test", recipe.season, TEST_SEEDS[: size.test]),
            *((season, season, TEST_SEEDS[: size.shifted]) for season in SHIFTED_SEASONS),
        ):
            rows, judged = _judged(decision, plant, care, seeds, season)
            p = probabilities(calibrator, judged.logit)
            evidence[name] = {
                **report(p, judged.event, judged.logit),
                "share_accepted": float((p >= choice.theta_off).mean()),
                "failures_in_accepted": _failures(p >= choice.theta_off, judged.event),
                "novelty_alarm_share": _alarms(novelty, plant, rows),
            }
            bar.advance(f"{name}: ECE {evidence[name]['ece']:.3f}")
    data = {
        "confidence": {
            "calibrator": calibrator,
            "settings": {"theta_off": choice.theta_off, "theta_on": choice.theta_on, **smoothing},
        },
        "novelty": novelty,
        # The smoothing already looks back over a quarter of the horizon and rises slowly; the
        # number of changes a day is bounded besides.
        "gate": {
            "dwell_s": horizon_s / 3.0,
            "minimum_stay_s": horizon_s / 2.0,
            "max_switches": 12,
            "switch_window_s": 86_400.0,
        },
    }
    return Trust(data, evidence, nominal)


def _judged(
    decision: Decision,
    plant: ThermalStorage,
    care: CareSettings,
    seeds: range,
    season: str = REFERENCE_SEASON,
) -> tuple[Array, Judged]:
    """Observations (n, n_y), logits and events of some episodes, run without exploration."""
    rows, logits, happened = [], [], []
    for first in range(0, len(seeds), _CHUNK):
        scenario = generate_batch(seeds[first : first + _CHUNK], season=season)
        rollout = collect(decision, environment(plant, scenario))
        event = events(rollout, Teacher.solve(plant, scenario), care)
        with torch.no_grad():
            judged = decision.critic(rollout.features, torch.tanh(rollout.raw))
        logits.append(judged.confidence_logit.numpy().astype(np.float64)[: len(event)])
        happened.append(event)
        rows.append(_rows(rollout))
    judgement = Judged(np.concatenate(logits, axis=1), np.concatenate(happened, axis=1))
    return np.concatenate(rows), judgement


def _rows(rollout: Rollout) -> Array:
    """(T B, n_y) observations, episode after episode."""
    return np.swapaxes(rollout.observations, 0, 1).reshape(-1, rollout.observations.shape[-1])


def _failures(accepted: NDArray[np.bool_], event: NDArray[np.bool_]) -> float | None:
    return float((~event[accepted]).mean()) if accepted.any() else None


def _alarms(novelty: dict[str, Any], plant: ThermalStorage, rows: Array) -> float:
    """Share of ticks that the novelty monitor would call unlike the training data."""
    monitor = novelty_from_dict(novelty, plant.observations)
    n_y = len(plant.observations)
    nothing, good = np.zeros(n_y), np.zeros(n_y, dtype=np.int8)
    idle = Proposal(np.zeros(1))
    scores = [
        monitor.score(Observation(1, 0.0, row, nothing, good, np.zeros(1)), idle) for row in rows
    ]
    return float((np.array(scores) >= 1.0).mean())


def _total(run: Episode) -> float:
    """Money of an episode, what is stored more than at the start taken off."""
    stored = run.states[-1, 0] - run.states[0, 0]
    return float(run.cost.sum() - END_VALUE_PER_KWH * stored)
