"""Parameters as data: name, meaning, unit, default and bounds of every number of a plant.

A plant declares a frozen dataclass whose fields are made with `parameter`; `check_parameters`
in its `__post_init__` refuses a number outside its bounds, `parameter_table` prints them.
"""

from dataclasses import dataclass, field, fields
from math import isfinite
from typing import Any

from steadyhand.controllers.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Parameter:
    """One number of a plant."""

    name: str
    meaning: str
    unit: str
    default: float
    low: float
    high: float


def parameter(default: float, unit: str, low: float, high: float, meaning: str) -> Any:  # noqa: ANN401  (what dataclasses.field is to a type checker)
    """Field of a parameter dataclass with its unit, bounds (inclusive) and meaning."""
    return field(
        default=default,
        metadata={"unit": unit, "low": low, "high": high, "meaning": meaning},
    )


def parameter_table(kind: Any) -> tuple[Parameter, ...]:  # noqa: ANN401  (a dataclass or an instance)
    """Every parameter of a parameter dataclass, in order of declaration."""
    return tuple(
        Parameter(
            name=item.name,
            meaning=item.metadata["meaning"],
            unit=item.metadata["unit"],
            default=item.default if isinstance(item.default, float) else float("nan"),
            low=item.metadata["low"],
            high=item.metadata["high"],
        )
        for item in fields(kind)
        if "unit" in item.metadata
    )


def check_parameters(parameters: Any) -> None:  # noqa: ANN401  (a dataclass instance)
    """Refuse numbers outside their declared bounds.

    Raises:
        ConfigError: names every parameter that is not finite or out of bounds.
    """
    wrong = []
    for item in parameter_table(parameters):
        value = getattr(parameters, item.name)
        if not (isfinite(value) and item.low <= value <= item.high):
            wrong.append(
                f"{item.name}={value} {item.unit} "
                f"(allowed {item.low} to {item.high}: {item.meaning})"
            )
    if wrong:
        raise ConfigError(f"{type(parameters).__name__}: {'; '.join(wrong)}")
