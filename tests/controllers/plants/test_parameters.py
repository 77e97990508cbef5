"""Parameters carry their units and refuse numbers outside their bounds."""

from dataclasses import replace

import pytest

from steadyhand.controllers.errors import ConfigError
from steadyhand.controllers.plants.parameters import parameter_table
from steadyhand.controllers.plants.thermal_storage_parameters import (
    CHILLED_WATER,
    ICE,
    ThermalStorageParameters,
)


def test_table_has_a_row_per_number_with_the_default_inside_its_bounds() -> None:
    table = parameter_table(ThermalStorageParameters)
    assert [row.name for row in table][:3] == [
        "capacity_kwh",
        "energy_low_kwh",
        "energy_high_kwh",
    ]
    for row in table:
        assert row.low <= row.default <= row.high
        assert row.default == getattr(ICE, row.name)
        assert row.unit
        assert row.meaning


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), 0.2])
def test_a_number_out_of_bounds_is_named_with_its_bounds(value: float) -> None:
    with pytest.raises(ConfigError, match=r"loss_per_h=.* 1/h \(allowed 1e-06 to 0.1"):
        replace(ICE, loss_per_h=value)


def test_a_band_outside_the_tank_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"operating band 75\.0 to 1600\.0 kWh"):
        replace(ICE, energy_high_kwh=1600.0)


def test_a_part_load_curve_that_is_not_1_at_full_load_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be 1"):
        replace(ICE, eir_linear=0.6)


def test_chilled_water_has_no_melt_limit() -> None:
    assert CHILLED_WATER.melt_base == 1.0
    assert CHILLED_WATER.melt_slope == 0.0
