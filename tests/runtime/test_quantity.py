"""Units that are known without the registry of units mean exactly what they mean to it."""

import subprocess
import sys

import numpy as np
import pytest

from steadyhand.runtime.quantity import _FACTORS, magnitude, same_dimension, units

KNOWN = [(name, unit) for unit, names in _FACTORS.items() for name in (unit, *names)]


@pytest.mark.parametrize(("name", "unit"), KNOWN)
def test_a_known_unit_is_that_of_the_registry_to_the_last_bit(name: str, unit: str) -> None:
    rng = np.random.default_rng(0)
    numbers = [0.0, 1.0, 15.0, *rng.uniform(-1e6, 1e6, 200), *(10.0 ** rng.uniform(-9, 9, 200))]
    for number in map(float, numbers):
        expected = units().Quantity(number, name).to(unit).magnitude
        assert magnitude(f"{number!r} {name}", unit) == expected


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [("15 min", "s", 900.0), ("2 d", "s", 172800.0), ("1 week", "s", 604800.0),
     ("256 MiB", "byte", 2.0**28), ("5 kW", "kW", 5.0), ("5000 W", "kW", 5.0),
     ("-50kW", "kW", -50.0), ("0.5 h", "min", 30.0)],
)  # fmt: skip
def test_a_quantity_is_read(text: str, unit: str, value: float) -> None:
    assert magnitude(text, unit) == value


@pytest.mark.parametrize(
    ("text", "unit"),
    [("15 kB", "s"), ("15 min", "byte"), ("15 M", "s"), ("1e308 d", "s"), ("15 mins2", "s")],
)
def test_what_is_no_such_quantity_is_refused(text: str, unit: str) -> None:
    with pytest.raises(ValueError):
        magnitude(text, unit)


def test_the_shipped_configuration_needs_no_registry_of_units() -> None:
    code = (
        "import sys; from pathlib import Path; from steadyhand.runtime.config import load_config;"
        "from tests.support.loop_rig import SHIPPED; print(type(load_config(SHIPPED)).__name__);"
        "print('pint' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["Loaded", "False"]


@pytest.mark.parametrize(
    "unit", ["3^3^3^3^3^3", "90909090^909090^909090", "kW**9**9**9", "(1)", "kW kW", ""]
)
def test_nothing_is_calculated_to_compare_units(unit: str) -> None:
    """The registry would raise powers to powers: a `unit:` of eleven letters kept it busy."""
    assert not same_dimension(unit, "kW")
    assert not same_dimension("kW", unit)


def test_dimensions_are_compared() -> None:
    assert same_dimension("MW", "kW")
    assert not same_dimension("kWh", "kW")
