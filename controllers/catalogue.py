"""The plants that ship, by the name a configuration gives them: equations, safety case, heuristics.

Adding a plant is adding an entry here; nothing else asks which plant it is.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from steadyhand.controllers.errors import ConfigError
from steadyhand.controllers.heuristics.thermal_storage import STRATEGIES, ThermalStorageHeuristic
from steadyhand.controllers.plants.parameters import parameter_table
from steadyhand.controllers.plants.plant import Plant
from steadyhand.controllers.plants.thermal_storage import ThermalStorage, reconstruct
from steadyhand.controllers.plants.thermal_storage_parameters import ICE
from steadyhand.controllers.plants.thermal_storage_relations import relations
from steadyhand.controllers.plants.thermal_storage_safety import ThermalStorageSafety
from steadyhand.controllers.protocols import Heuristic, SafetyModel
from steadyhand.controllers.safety.constraint import ConstraintSet
from steadyhand.controllers.signals import Vector
from steadyhand.controllers.trust.cross_check import Relation


@dataclass(frozen=True, slots=True)
class PlantKind:
    """One type of plant and everything that belongs to its definition."""

    id: str
    title: str
    parameters: Any
    """The default parameters; `replace` makes another plant of the type."""
    plant: Callable[[Any], Plant]
    safety_model: Callable[[Any], SafetyModel]
    constraints: Callable[[Any], ConstraintSet]
    heuristics: Mapping[str, Callable[[Any], Heuristic]]
    relations: Callable[[Any], tuple[Relation, ...]]
    """What binds the plant's measurements together."""
    safe_action: Callable[[Any], Vector]
    """(n_u,) set-point in which the plant is left when nothing better is known."""
    reconstruct: Callable[[Vector], tuple[Vector, Vector]] | None = None
    """State and disturbances that a measurement tells; None: the plant cannot be told from it."""
    held: tuple[str, ...] = ()
    """Measurements that keep what was before, such as a day's peak: no answer to a step."""


def parameters_with(kind: PlantKind, changes: Mapping[str, float]) -> Any:  # noqa: ANN401
    """Parameters of `kind` with `changes`, already in the parameters' units.

    Raises:
        ConfigError: an unknown name, or a number out of its bounds.
    """
    known = [parameter.name for parameter in parameter_table(kind.parameters)]
    unknown = [name for name in changes if name not in known]
    if unknown:
        raise ConfigError(f"no parameter {', '.join(unknown)}; there are: {', '.join(known)}")
    return replace(kind.parameters, **changes)


def plant_kind(name: str) -> PlantKind:
    """The type of plant called `name`.

    Raises:
        ConfigError: there is none; the message lists the choices.
    """
    if name not in PLANTS:
        raise ConfigError(f"no plant {name!r}; there are: {', '.join(PLANTS)}")
    return PLANTS[name]


def _thermal_storage_heuristic(name: str) -> Callable[[Any], Heuristic]:
    def make(parameters: Any) -> Heuristic:  # noqa: ANN401
        observations = ThermalStorage(parameters).observations
        return ThermalStorageHeuristic(STRATEGIES[name](), observations, parameters)

    return make


PLANTS: Mapping[str, PlantKind] = {
    "thermal_storage": PlantKind(
        id="thermal_storage",
        title="a building's chiller plant with an ice tank",
        parameters=ICE,
        plant=ThermalStorage,
        safety_model=ThermalStorageSafety,
        constraints=lambda parameters: ThermalStorageSafety(parameters).constraints,
        heuristics={name: _thermal_storage_heuristic(name) for name in STRATEGIES},
        relations=relations,
        safe_action=lambda parameters: np.zeros(1),
        reconstruct=reconstruct,
        held=("peak_power_kw",),
    ),
}
"""Every plant by its id."""
