"""A plant that runs: equations, disturbances, a clock, and the plant's own local control.

The runner is what a control room would see: it takes commands and heartbeats, decides who drives,
and goes on by itself when the controller is silent. It knows the truth (state, cost, violations)
whatever the faulty measurements say.
"""

from collections.abc import Iterable, Mapping
from math import inf, isfinite
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steadyhand.adapters.sim.counter_random import normal
from steadyhand.adapters.sim.fault_injector import FaultInjector
from steadyhand.adapters.sim.faults import SignalFault
from steadyhand.adapters.sim.numbers import encode
from steadyhand.adapters.sim.observer import WriteLog
from steadyhand.adapters.sim.tally import Tally
from steadyhand.controllers.errors import ConfigError
from steadyhand.controllers.frames import Fault, Observation, Quality, Source
from steadyhand.controllers.plants.plant import Plant
from steadyhand.controllers.protocols import Heuristic
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.signals import Vector

STATE_VERSION = 1
NO_NOISE: Mapping[str, float] = MappingProxyType({})
_GAUGE = 1000
"""First stream of the sensors' own noise; the faults' streams lie below."""


class PlantRunner:
    """One plant with its scenario, clock, local control, faults and observer.

    Args:
        plant: the equations.
        x0: (n_x,) initial state.
        disturbances: (ticks, n_w) one row per control period; after the last the first follows.
        local_control: drives whenever the controller does not; sees true measurements.
        faults: what is wrong from the start; more can be added while it runs.
        seed: of the random faults.
        shed_s: plant seconds without a new heartbeat after which the plant takes over.
        substeps: parts of a period that are integrated and judged one by one.
        log: observer of the writes; a counting one without a file when None.
        gauge_noise: standard deviation of what a sensor adds to the truth, by signal.

    Raises:
        ConfigError: substeps < 1, shed_s not positive, or no disturbances.
    """

    def __init__(
        self,
        plant: Plant,
        x0: Vector,
        disturbances: Vector,
        local_control: Heuristic,
        *,
        faults: Iterable[SignalFault] = (),
        seed: int = 0,
        shed_s: float | None = None,
        substeps: int = 3,
        log: WriteLog | None = None,
        gauge_noise: Mapping[str, float] = NO_NOISE,
    ) -> None:
        self.plant = plant
        self._noise = [(plant.observations.index(n), sd) for n, sd in gauge_noise.items()]
        self._seed = seed
        self.shed_s = 2.0 * plant.period_s if shed_s is None else shed_s
        if substeps < 1 or not self.shed_s > 0.0 or len(disturbances) < 1:
            raise ConfigError(
                f"plant runner: substeps={substeps} (>= 1), shed_s={self.shed_s} (> 0), "
                f"{len(disturbances)} rows of disturbances (>= 1)"
            )
        self.substeps = substeps
        self.substep_s = plant.period_s / substeps
        self.disturbances = np.asarray(disturbances, dtype=np.float64)
        self.local_control = local_control
        self.faults = FaultInjector(plant.observations, plant.outputs, faults, seed)
        self.log = log or WriteLog(plant.outputs, plant.period_s)
        self.tally = Tally(plant.margin_names)
        self.x: Vector = np.array(x0, dtype=np.float64)
        self.steps_done = 0
        self.cost = 0.0
        self.permit = True
        """Does the plant's operator grant control?"""
        self.kept: NDArray[np.bool_] = np.zeros(len(plant.outputs), dtype=np.bool_)
        """(n_u,) outputs that the plant's operator keeps from the controller."""
        self.requested = False
        """Does the controller ask for control?"""
        self.source = Source.HANDS_OFF
        self.heartbeat = 0
        self.sequence = 0
        self._beat_s = self._shed_until_s = -inf
        self._drove = False
        self.applied: Vector = np.clip(np.zeros(len(plant.outputs)), *_bounds(plant))
        self.command: Vector = self.applied.copy()
        self._local: Vector = self.applied.copy()
        # A plant that gives state and cost of a step together saves one evaluation of it.
        self._transition: Any = getattr(plant, "transition", None)
        self.true_values: Vector = self._measure()
        self.image: Observation = self._make_image()

    @property
    def time_s(self) -> float:
        """Plant seconds since the start of the run."""
        return self.steps_done * self.substep_s

    @property
    def tick(self) -> int:
        """Number of control periods begun."""
        return self.steps_done // self.substeps

    @property
    def controlled(self) -> bool:
        """Does the controller drive: granted, asked for, and its heartbeat alive?"""
        return (
            self.permit
            and self.requested
            and self.source is not Source.HANDS_OFF
            and self.time_s - self._beat_s < self.shed_s
        )

    def keep(self, output: str, on: bool) -> None:
        """The plant's operator keeps one output from the controller, or gives it back.

        Raises:
            SignalError: there is no such output.
        """
        self.kept[self.plant.outputs.index(output)] = on
        if on:
            self._local = self._ask_local_control()

    def write(self, column: int, value: float, **context: Any) -> None:  # noqa: ANN401
        """One output was written. It acts from the next sub-step on, if the controller drives.

        Args:
            column: of the output.
            value: as it arrived, finite or not; a value that is not finite is ignored.
            context: for the observer's log.
        """
        name = self.plant.outputs.names[column]
        granted = self.permit and not self.kept[column]
        self.log.judge(self.time_s, name, value, float(self.applied[column]), granted)
        if self.log.logging:
            seen = {"applied": encode(float(self.applied[column])), "granted": bool(granted)}
            self.log.line(self.time_s, name, value, **seen, **context)
        if isfinite(value):
            self.command[column] = self.faults.clamp(self.time_s, column, value)

    def beat(self, heartbeat: int) -> bool:
        """The controller's heartbeat arrived; True when it is a new one."""
        if heartbeat == self.heartbeat:
            return False
        self.heartbeat = heartbeat
        if self.time_s >= self._shed_until_s:
            self._beat_s = self.time_s
        return True

    def release(self) -> None:
        """The controller hands the plant back: local control drives from the next sub-step."""
        self.requested = False

    def shed(self) -> None:
        """The heartbeat counts as dead until a new one comes, a period from now or later."""
        self._beat_s = -inf
        self._shed_until_s = self.time_s + self.plant.period_s

    def advance(self, substeps: int | None = None) -> Observation:
        """Run `substeps` parts of a period (default: one whole period); returns the new image."""
        count = self.substeps if substeps is None else substeps
        n = len(self.disturbances)
        states, inputs, rows, drivers, starts = [], [], [], [], []
        for _ in range(count):
            boundary = self.steps_done % self.substeps == 0
            w = self.disturbances[self.tick % n]
            driving = self.controlled
            u = self._input(driving, boundary)
            states.append(self.x)
            inputs.append(u)
            rows.append(w)
            drivers.append(driving)
            starts.append(boundary)
            self._integrate(u, w)
            self.applied = u
            self._drove = driving
            # set-point tracking: no bump when the controller returns
            if not driving:
                self.command = u.copy()
            elif self.kept.any():
                self.command[self.kept] = u[self.kept]
            self.steps_done += 1
        margins = self.plant.margins(np.array(states), np.array(inputs), np.array(rows))
        self.tally.add(margins, drivers, starts)
        self.true_values = self._measure()
        self.sequence += 1
        self.image = self._make_image()
        return self.image

    def refresh(self) -> Observation:
        """Make the image of the present state anew: faults or the grant have changed."""
        self.sequence += 1
        self.image = self._make_image()
        return self.image

    def truth(self) -> dict[str, Any]:
        """What really is, for tests and people; JSON-ready."""
        plant = self.plant
        return {
            "time_s": self.time_s,
            "tick": self.tick,
            "sequence": self.sequence,
            "state": self.x.tolist(),
            "measurements": plant.observations.mapping(self.true_values),
            "applied": plant.outputs.mapping(self.applied),
            "command": plant.outputs.mapping(self.command),
            "cost": self.cost,
            "violations": self.tally.totals(),
            "granted": self.permit,
            "kept": [name for name, on in zip(plant.outputs.names, self.kept, strict=True) if on],
            "controlled": self.controlled,
            "source": int(self.source),
            "heartbeat": self.heartbeat,
            "writes": self.log.totals(),
        }

    def save(self) -> dict[str, Any]:
        """Everything needed to go on exactly here; JSON-ready."""
        return {
            "version": STATE_VERSION,
            "steps_done": self.steps_done,
            "substeps": self.substeps,
            "x": self.x.tolist(),
            "cost": self.cost,
            "permit": self.permit,
            "kept": self.kept.tolist(),
            "heartbeat": self.heartbeat,
            "sequence": self.sequence,
            "applied": self.applied.tolist(),
            "command": self.command.tolist(),
            "local": self._local.tolist(),
            "faults": [fault.to_dict() for fault in self.faults.faults],
            "memory": self.faults.memory(),
            "tally": self.tally.save(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a saved state. The controller has to ask for control again.

        Raises:
            ConfigError: the state is of another version or of another kind of run.
        """
        if state.get("version") != STATE_VERSION or state.get("substeps") != self.substeps:
            raise ConfigError(
                f"saved state: version={state.get('version')} substeps={state.get('substeps')}: "
                f"need version={STATE_VERSION} substeps={self.substeps}; remove the file"
            )
        if len(state["x"]) != len(self.x) or len(state["applied"]) != len(self.applied):
            raise ConfigError("saved state: it belongs to another plant; remove the file")
        self.steps_done = int(state["steps_done"])
        self.x = np.array(state["x"], dtype=np.float64)
        self.cost = float(state["cost"])
        self.permit = bool(state["permit"])
        self.kept[:] = state.get("kept", False)
        self.heartbeat = int(state["heartbeat"])
        self.sequence = int(state["sequence"])
        self.applied = np.array(state["applied"], dtype=np.float64)
        self.command = np.array(state["command"], dtype=np.float64)
        self._local = np.array(state["local"], dtype=np.float64)
        self.faults.clear()
        for fault in state["faults"]:
            self.faults.add(SignalFault.from_dict(fault))
        self.faults.restore(state["memory"])
        self.tally.restore(state["tally"])
        self.requested, self._beat_s, self._drove = False, -inf, False
        self.true_values = self._measure()
        self.image = self._make_image()

    def _input(self, driving: bool, boundary: bool) -> Vector:
        """What really acts: the driver's wish inside the actuator's range, after its faults."""
        partial = driving and bool(self.kept.any())
        if (not driving and (boundary or self._drove)) or (partial and boundary):
            self._local = self._ask_local_control()
        wish = self.command if driving else self._local
        if partial:
            wish = np.where(self.kept, self._local, wish)
        u: Vector = np.minimum(np.maximum(wish, self.plant.outputs.low), self.plant.outputs.high)
        if self.faults.faults:
            self.faults.actuate(self.time_s, u, self.applied)
        return u

    def _ask_local_control(self) -> Vector:
        y = self.true_values
        seen = Observation(
            sequence=self.sequence,
            time_s=self.time_s,
            values=y,
            age_s=np.zeros(len(y)),
            quality=np.zeros(len(y), dtype=np.int8),
            applied=self.applied,
        )
        wish = np.array(self.local_control.act(seen), dtype=np.float64)
        return np.where(np.isfinite(wish), wish, self.applied)

    def _integrate(self, u: Vector, w: Vector) -> None:
        dt = self.substep_s
        if self._transition is not None:
            done = self._transition(self.x, u, w, dt)
            self.x = done.x
            self.cost += float(done.cost)
        else:
            self.cost += float(self.plant.cost(self.x, u, w, dt))
            self.x = self.plant.step(self.x, u, w, dt)

    def _measure(self) -> Vector:
        w = self.disturbances[self.tick % len(self.disturbances)]
        return np.asarray(self.plant.measure(self.x, self.applied, w), dtype=np.float64)

    def _make_image(self) -> Observation:
        values = self.true_values.copy()
        for column, deviation in self._noise:
            values[column] += deviation * normal(self._seed, _GAUGE + column, self.time_s)
        age_s = np.zeros(len(values))
        quality: NDArray[np.int8] = np.zeros(len(values), dtype=np.int8)
        found: tuple[Fault, ...] = ()
        if self.kept.any():
            kept = np.flatnonzero(self.kept)
            names = self.plant.outputs.names
            found = tuple(Fault(ReasonCode.OUTPUT_OUT, names[i]) for i in kept)
        if self.faults.faults:
            self.faults.corrupt(self.time_s, values, quality, age_s)
            bad = np.flatnonzero(quality == Quality.BAD)
            names = self.plant.observations.names
            found += tuple(Fault(ReasonCode.SAMPLE_BAD, names[i]) for i in bad)
        return Observation(
            sequence=self.sequence,
            time_s=self.time_s,
            values=values,
            age_s=age_s,
            quality=quality,
            applied=self.applied,
            granted=self.permit,
            faults=found,
        )


def _bounds(plant: Plant) -> tuple[Vector, Vector]:
    return plant.outputs.low, plant.outputs.high
