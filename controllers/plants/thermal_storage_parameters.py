"""Numbers of the building thermal storage: tank, chiller, tariff. Sources in the comments."""

from dataclasses import dataclass

from steadyhand.controllers.errors import ConfigError
from steadyhand.controllers.plants.parameters import check_parameters, parameter


@dataclass(frozen=True, slots=True)
class ThermalStorageParameters:
    """Chiller plant with an ice tank (the defaults) or a chilled-water tank.

    The operating band [energy_low_kwh, energy_high_kwh] lies inside the physical tank
    [0, capacity_kwh], so that leaving the band is possible and can be measured.
    """

    # tank
    capacity_kwh: float = parameter(1500.0, "kWh", 1.0, 1e6, "physical capacity of the tank")
    energy_low_kwh: float = parameter(75.0, "kWh", 0.0, 1e6, "lowest energy allowed in operation")
    energy_high_kwh: float = parameter(1425.0, "kWh", 0.0, 1e6, "highest energy allowed")
    loss_per_h: float = parameter(0.002, "1/h", 1e-6, 0.1, "standby loss per energy stored")
    discharge_max_kw: float = parameter(450.0, "kW", 1.0, 1e5, "largest discharge, tank full")
    charge_max_kw: float = parameter(400.0, "kW", 1.0, 1e5, "largest charge")
    melt_base: float = parameter(0.35, "1", 0.0, 1.0, "share of discharge_max_kw left when empty")
    melt_slope: float = parameter(1.1, "1", 0.0, 10.0, "gain of that share per state of charge")
    # chiller: COP falls linearly with outdoor temperature above 15 degC, clipped
    chiller_capacity_kw: float = parameter(650.0, "kW", 1.0, 1e5, "cooling capacity of the chiller")
    cop_direct_15: float = parameter(6.2, "1", 1.0, 12.0, "COP to the building at 15 degC")
    cop_direct_slope: float = parameter(0.09, "1/K", 0.0, 1.0, "loss of that COP per K")
    cop_direct_low: float = parameter(3.0, "1", 0.5, 12.0, "least COP to the building")
    cop_direct_high: float = parameter(6.5, "1", 0.5, 12.0, "best COP to the building")
    cop_charge_15: float = parameter(4.2, "1", 1.0, 12.0, "COP to the tank at 15 degC")
    cop_charge_slope: float = parameter(0.07, "1/K", 0.0, 1.0, "loss of that COP per K")
    cop_charge_low: float = parameter(2.2, "1", 0.5, 12.0, "least COP to the tank")
    cop_charge_high: float = parameter(4.5, "1", 0.5, 12.0, "best COP to the tank")
    # part load: input ratio EIR(PLR) = a + b PLR + c PLR^2, the usual quadratic of building models
    eir_constant: float = parameter(0.17, "1", 0.0, 1.0, "constant part of the input ratio")
    eir_linear: float = parameter(0.55, "1", 0.0, 2.0, "linear part of the input ratio")
    eir_quadratic: float = parameter(0.28, "1", 0.0, 2.0, "quadratic part of the input ratio")
    part_load_min: float = parameter(0.2, "1", 0.01, 0.9, "below it the chiller cycles on and off")
    start_up_min: float = parameter(5.0, "min", 0.0, 60.0, "run without cooling after each start")
    min_on_off_min: float = parameter(30.0, "min", 1.0, 600.0, "shortest spell on, and off")
    parasitic_chiller: float = parameter(0.02, "kWe/kW", 0.0, 1.0, "pumps and tower per chiller kW")
    parasitic_discharge: float = parameter(0.015, "kWe/kW", 0.0, 0.07, "pump per discharge kW")
    power_cap_kw: float = parameter(165.0, "kW", 1.0, 1e5, "largest electric power allowed")
    # tariff
    demand_per_kw_day: float = parameter(1.0, "1/kW", 0.0, 100.0, "price of the day's 15-min peak")
    unmet_per_kwh: float = parameter(5.0, "1/kWh", 0.0, 1e3, "price of cooling not delivered")
    co2_price_per_kg: float = parameter(0.05, "1/kg", 0.0, 10.0, "price of CO2")
    co2_kg_per_kwh: float = parameter(0.35, "kg/kWh", 0.0, 5.0, "CO2 of grid electricity")

    def __post_init__(self) -> None:
        """Refuse impossible plants.

        Raises:
            ConfigError: a number is out of bounds, or the band is not inside the tank.
        """
        check_parameters(self)
        if not self.energy_low_kwh < self.energy_high_kwh <= self.capacity_kwh:
            raise ConfigError(
                f"operating band {self.energy_low_kwh} to {self.energy_high_kwh} kWh must be "
                f"increasing and inside the tank 0 to {self.capacity_kwh} kWh"
            )
        if abs(self.eir_constant + self.eir_linear + self.eir_quadratic - 1.0) > 1e-9:
            raise ConfigError(
                "eir_constant + eir_linear + eir_quadratic = "
                f"{self.eir_constant + self.eir_linear + self.eir_quadratic}: must be 1, "
                "so that the COP holds at full load"
            )

    @property
    def band_kwh(self) -> float:
        """Width of the operating band."""
        return self.energy_high_kwh - self.energy_low_kwh


ICE = ThermalStorageParameters()
"""The reference plant: a tank that holds about half of a hot day's on-peak load (1,350 of
2,700 kWh) and a daily as-used demand charge of 1 $/kW (30 $/kW-month, a summer rate of large
commercial tariffs). Tuned, together with the hot weeks' spread, so that the best rule costs 8 to
20 % more than the optimum; with a plain two-step tariff and a large tank the right rule is
within 2 % of it and there is nothing to learn. The numbers are asserted by a slow test."""

CHILLED_WATER = ThermalStorageParameters(
    loss_per_h=0.005, melt_base=1.0, melt_slope=0.0,
    cop_charge_15=5.9, cop_charge_slope=0.09, cop_charge_low=2.7, cop_charge_high=6.2,
)  # fmt: skip
"""A chilled-water tank: no melt limit, charging 0.3 below the direct COP, more standby loss."""
