"""A policy or a rule behind the real safety filter, on whole episodes, one tick at a time."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steadyhand.controllers.catalogue import PlantKind
from steadyhand.controllers.frames import FilterMode, Observation, Sent
from steadyhand.controllers.plants.plant import Plant
from steadyhand.controllers.safety.atacom import AtacomDC
from steadyhand.controllers.safety.chain import SafetyChain
from steadyhand.controllers.safety.limits import Limits

Array = NDArray[np.float64]
Act = Callable[[Observation], Array]


@dataclass(frozen=True, slots=True, eq=False)
class Episode:
    """What happened in one episode."""

    cost: Array
    """(ticks,) money."""
    states: Array
    """(ticks + 1, n_x)."""
    observations: Array
    """(ticks, n_y)."""
    wanted: Array
    """(ticks, n_u)."""
    applied: Array
    """(ticks, n_u) behind the filter."""
    correction: Array
    """(ticks,) largest |applied - wanted| as a share of an output's range."""
    violations: NDArray[np.bool_]
    """(ticks, n_g) operating limits broken, by row."""
    modes: NDArray[np.int8]
    """(ticks,) FilterMode."""


def safety_chain(kind: PlantKind, plant: Plant) -> SafetyChain:
    """The chain as the runtime builds it, with the plant's own parameters."""
    model = kind.safety_model(kind.parameters)
    limits = Limits(plant.outputs, plant.period_s)
    inner = AtacomDC(model, kind.constraints(kind.parameters), limits)
    return SafetyChain(inner, limits, model.backup)


def run_episode(
    kind: PlantKind,
    plant: Plant,
    w: Array,
    x0: Array,
    act: Act,
    tolerance: float = 1e-6,
    filtered: bool = True,
) -> Episode:
    """One episode in lock-step: observe, propose, make safe, apply.

    Args:
        kind: the plant's safety case.
        plant: numpy plant that is run.
        w: (ticks, n_w) disturbances.
        x0: (n_x,) first state.
        act: command (n_u,) for an observation; NaN is answered by the filter's backup.
        tolerance: scaled margins up to this are no violation (wire rounding to float32).
        filtered: False applies what was wanted as it is, to count what the filter prevents.
    """
    chain = safety_chain(kind, plant)
    ticks, n_u = len(w), len(plant.outputs)
    span = plant.outputs.high - plant.outputs.low
    n_y = len(plant.observations)
    states, observations = np.empty((ticks + 1, len(x0))), np.empty((ticks, n_y))
    wanted, applied = np.empty((ticks, n_u)), np.empty((ticks, n_u))
    cost, modes = np.empty(ticks), np.empty(ticks, dtype=np.int8)
    violations = np.empty((ticks, len(plant.margin_names)), dtype=np.bool_)
    states[0] = x0
    ages, quality = np.zeros(n_y), np.zeros(n_y, dtype=np.int8)
    sent = Sent(np.zeros(n_u), 0, -plant.period_s, written=True)
    for t in range(ticks):
        observations[t] = plant.measure(states[t], sent.action, w[t])
        seen = Observation(
            t + 1, t * plant.period_s, observations[t], ages, quality, sent.action.copy()
        )
        wanted[t] = act(seen)
        certified = chain.certify(seen, wanted[t], sent)
        applied[t] = certified.action if filtered else wanted[t]
        modes[t] = int(certified.report.mode)
        cost[t] = plant.cost(states[t], applied[t], w[t], plant.period_s)
        states[t + 1] = plant.step(states[t], applied[t], w[t], plant.period_s)
        margins = plant.margins(states[t], applied[t], w[t])
        violations[t] = margins > tolerance
        sent = Sent(applied[t].copy(), t + 1, t * plant.period_s, written=True)
    correction = (np.abs(applied - wanted) / span).max(-1)
    return Episode(cost, states, observations, wanted, applied, correction, violations, modes)


def shaped_share(episode: Episode) -> float:
    """Share of ticks in which the filter changed the command."""
    return float((episode.modes != FilterMode.PASS).mean())
