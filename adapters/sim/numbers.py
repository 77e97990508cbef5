"""Numbers in strict JSON: NaN and the infinities, which JSON does not have, become strings."""

from math import isfinite
from typing import Any

from steadyhand.controllers.errors import ConfigError


def encode(value: float) -> float | str:
    """`value` itself when finite, else "nan", "inf" or "-inf"."""
    number = float(value)
    return number if isfinite(number) else str(number)


def decode(value: Any) -> float:  # noqa: ANN401  (whatever JSON brought)
    """Inverse of `encode`.

    Raises:
        ConfigError: not a number nor one of the strings of `encode`.
    """
    if isinstance(value, str) and value in ("nan", "inf", "-inf"):
        return float(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise ConfigError(f'{value!r} is not a number; numbers are 1.5, "nan", "inf" or "-inf"')
