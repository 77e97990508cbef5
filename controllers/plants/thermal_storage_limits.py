"""Commands that keep the thermal storage inside its operating limits for one period.

The tank's equation is linear, so the one-step bound is exact. The power cap is a bound on u too,
because electric power falls with u throughout: it is found by bisection on the plant's own
equation, and the answer is always the side that holds the cap.
"""

from steadyhand.controllers.plants.plant import Array
from steadyhand.controllers.plants.thermal_storage import ThermalStorage

_HALVINGS = 40  # of the full range of u: 850 kW / 2^40 < 1e-9 kW


def least_command_for_power(
    plant: ThermalStorage, load_kw: Array, outdoor_degc: Array, power_kw: Array
) -> Array:
    """Smallest u (…,) kW whose electric power is at most `power_kw`; + discharges.

    Never below full charge. Where even full discharge needs more power, full discharge.
    """
    p, xp = plant.parameters, plant.xp
    low = 0.0 * load_kw - p.charge_max_kw
    enough = plant.power(low, load_kw, outdoor_degc) <= power_kw
    held = 0.0 * load_kw + p.discharge_max_kw
    breaks = low
    for _ in range(_HALVINGS):
        middle = 0.5 * (held + breaks)
        holds = plant.power(middle, load_kw, outdoor_degc) <= power_kw
        held, breaks = xp.where(holds, middle, held), xp.where(holds, breaks, middle)
    return xp.where(enough, low, held)


def operating_bounds(
    plant: ThermalStorage, energy_kwh: Array, load_kw: Array, outdoor_degc: Array, dt_s: float
) -> tuple[Array, Array]:
    """Bounds (…,), (…,) kW of the commands that hold every operating limit over `dt_s`.

    Upper: melt limit at the start and, with less ice, at the end; load; the tank's lower band edge.
    Lower: chiller headroom, the tank's
    upper band edge, and the power cap. Where they cross (a load no command can serve under the
    cap) both are the upper bound: tank and building come before the cap.
    """
    p, xp = plant.parameters, plant.xp
    least, most = energy_bounds(plant, energy_kwh, dt_s)
    high = xp.minimum(plant.discharge_limit(energy_kwh, load_kw), most)
    high = xp.minimum(high, _melt_to_the_end(plant, energy_kwh, dt_s))
    low = xp.maximum(-plant.charge_limit(load_kw), least)
    holds = plant.power(low, load_kw, outdoor_degc) <= p.power_cap_kw
    if not (holds if isinstance(holds, bool) else bool(holds.all())):
        capped = least_command_for_power(plant, load_kw, outdoor_degc, p.power_cap_kw)
        low = xp.maximum(low, capped)
    return xp.minimum(low, high), high


def energy_bounds(plant: ThermalStorage, energy_kwh: Array, dt_s: float) -> tuple[Array, Array]:
    """Bounds (…,), (…,) kW that leave the tank inside its operating band after `dt_s`."""
    p = plant.parameters
    kept, gain_h = plant.hold(dt_s)
    return (
        (kept * energy_kwh - p.energy_high_kwh) / gain_h,
        (kept * energy_kwh - p.energy_low_kwh) / gain_h,
    )


def _melt_to_the_end(plant: ThermalStorage, energy_kwh: Array, dt_s: float) -> Array:
    """Largest discharge (…,) kW that the ice still melts at the end of the step.

    u <= d (b + s E(dt)) with E(dt) = kept E - gain u, solved for u.
    """
    p = plant.parameters
    kept, gain_h = plant.hold(dt_s)
    slope = p.discharge_max_kw * p.melt_slope / p.capacity_kwh
    return (p.discharge_max_kw * p.melt_base + slope * kept * energy_kwh) / (1.0 + slope * gain_h)
