"""Quantities in a configuration: a number with its unit, turned into the unit the code uses."""

import re
from functools import cache
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

if TYPE_CHECKING:
    from pint import UnitRegistry

_UNIT = re.compile(r"[A-Za-z0-9/%°µ]{1,24}")
"""Units are a word or a quotient; nothing that a unit parser would have to calculate."""
MINUS = "\N{MINUS SIGN}"
_NOT_FINITE = re.compile(r"[+-]?(?:nan|inf(?:inity)?)\b", re.IGNORECASE)
_NUMBER = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)(.*)", re.DOTALL)


_FACTORS: dict[str, dict[str, float]] = {
    "s": {"ms": 1e-3, "min": 60.0, "h": 3600.0, "d": 86400.0},
    "byte": {"kB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30},
}
"""What configurations are full of. The registry of units takes longer to make than many a start
may last; a test holds both against each other."""


@cache
def units() -> "UnitRegistry[float]":
    """The one registry of units; made on first use, because making it takes a moment."""
    from pint import UnitRegistry

    return UnitRegistry(autoconvert_offset_to_baseunit=True)


def magnitude(text: Any, unit: str) -> float:  # noqa: ANN401  (whatever stood in the file)
    """Number of `text`, for example "15 min" or "-50kW", in `unit`.

    Raises:
        ValueError: no unit, an unknown unit, another dimension, or not finite.
    """
    if isinstance(text, bool) or not isinstance(text, str):
        raise ValueError(f"{text!r} has no unit; write a quantity such as '{_example(unit)}'")  # noqa: TRY004
    plain = text.strip().replace(MINUS, "-", 1)
    found = _NUMBER.fullmatch(plain)
    if found is None:
        if _NOT_FINITE.match(plain):
            raise ValueError(f"{text!r} is not finite")
        raise ValueError(f"{text!r} is not a number and a unit, as in '{_example(unit)}'")
    number, name = found.groups()
    value = float(number)
    name = name.strip()
    if not name:
        raise ValueError(f"{text!r} has no unit; write '{number} {unit}'")
    if not _UNIT.fullmatch(name):
        raise ValueError(f"{text!r}: {name[:24]!r} is no unit; try '{_example(unit)}'")
    if not isfinite(value):
        raise ValueError(f"{text!r} is not finite")
    factor = 1.0 if name == unit else _FACTORS.get(unit, {}).get(name)
    converted = _converted(text, value, name, unit) if factor is None else value * factor
    if not isfinite(converted):
        raise ValueError(f"{text!r} is not finite in {unit}")
    return converted


def _converted(text: str, value: float, name: str, unit: str) -> float:
    """`value` in `name` as a number of `unit`, by the registry of units."""
    from pint.errors import DimensionalityError

    try:
        return float(units().Quantity(value, name).to(unit).magnitude)
    except DimensionalityError:
        raise ValueError(f"{text!r} cannot be turned into {unit}: another dimension") from None
    except Exception as error:
        raise ValueError(f"{text!r}: unknown unit {name!r}; try '{_example(unit)}'") from error


def same_dimension(first: str, second: str) -> bool:
    """Can a number in `first` be turned into `second`? False for unknown units."""
    if not (_UNIT.fullmatch(first) and _UNIT.fullmatch(second)):
        return False  # a tower of powers would keep the registry busy for ever
    try:
        return bool(units().Unit(first).is_compatible_with(second))
    except Exception:  # noqa: BLE001  (the registry stumbles over odd names in many ways)
        return False


def _example(unit: str) -> str:
    return {"s": "15 min", "1": "0.9", "byte": "256 MiB"}.get(unit, f"5 {unit}")


def quantity(unit: str, low: float, high: float) -> Any:  # noqa: ANN401
    """Type of a field that is written with a unit and read as a number of `unit`.

    Args:
        unit: of the number.
        low: smallest value that makes sense, inclusive.
        high: largest value that makes sense, inclusive.
    """

    def read(text: Any) -> float:  # noqa: ANN401  (whatever stood in the file)
        value = magnitude(text, unit)
        if not low <= value <= high:
            raise PydanticCustomError(
                "steadyhand.CFG_BOUNDS",
                "{text}",
                {"text": f"{text!r} is out of bounds: must be from {low:g} to {high:g} {unit}"},
            )
        return value

    return Annotated[
        float,
        BeforeValidator(read),
        Field(allow_inf_nan=False),
        WithJsonSchema(
            {
                "type": "string",
                "description": f"a quantity from {low:g} to {high:g} {unit}",
                "examples": [_example(unit)],
            }
        ),
    ]
