r"""Building thermal storage: a chiller that serves a building and a tank.

    E' = -f - l E          f = u, held inside what tank, chiller and building can take
    q  = load - max(f,0)   direct cooling, at most the chiller's capacity Q
    c  = max(-f,0)         charging
    P  = (q/COP_d + c/COP_i) phi(PLR) + a (q + c) + b max(f,0),   PLR = (q + c)/Q

u > 0 discharges the tank. phi(PLR) = EIR(PLR)/PLR is the part-load factor. Below the minimum part
load the chiller cycles at duty d = PLR/PLR_min; minimum on and off spells tau allow at most
min(d, 1-d)/tau starts per hour, each costing the start-up time s at minimum power, so that
phi = phi(PLR_min) (1 + s/tau min(1, (1-d)/d)). Averaging the cycle keeps P continuous in u, and the
water loop carries the building through the off spells.

Assumptions: (1) inputs and disturbances are constant over a step, so the tank's linear equation is
solved exactly; (2) the melt limit is that of the step's start; (3) the chiller serves the building
first; (4) the valve is fast against the step; (5) the meter bills 15-minute windows of the clock.
"""

from dataclasses import dataclass
from math import exp
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from steadyhand.controllers.plants.plant import Array
from steadyhand.controllers.plants.thermal_storage_parameters import ICE, ThermalStorageParameters
from steadyhand.controllers.signals import Signal, SignalSet

if TYPE_CHECKING:
    from steadyhand.controllers.plants.thermal_storage_scenario import Scenario

PERIOD_S = 900.0
DAY_S = 86400.0
WINDOW_S = 900.0
VIOLATION = 1e-6
"""A scaled margin above this is a violation; below it is rounding (wires carry 32-bit floats)."""
N_LOAD_FORECAST = 12
N_OUTDOOR_FORECAST = 4
STATE_NAMES = ("storage_energy_kwh", "peak_power_kw", "window_kwh", "time_of_day_s")
DISTURBANCE_NAMES = (
    "cooling_load_kw",
    "outdoor_temperature_degc",
    "electricity_price_per_kwh",
    *(f"load_forecast_{i:02d}_kw" for i in range(1, N_LOAD_FORECAST + 1)),
    *(f"outdoor_forecast_{i:02d}_degc" for i in range(1, N_OUTDOOR_FORECAST + 1)),
)
N_FORECAST_COLUMNS = N_LOAD_FORECAST + N_OUTDOOR_FORECAST


@dataclass(frozen=True, slots=True)
class Flows:
    """Where heat and electricity go, all (…,) and constant over a step."""

    storage_kw: Array
    """What the tank really does; + discharges."""
    direct_kw: Array
    charge_kw: Array
    unmet_kw: Array
    power_kw: Array


@dataclass(frozen=True, slots=True)
class Transition:
    """One step with everything a trainer needs."""

    x: Array
    """(…, 4) next state."""
    cost: Array
    """(…,) money."""
    flows: Flows


class ThermalStorage:
    """The equations with one set of parameters and one array module.

    Args:
        parameters: every number of the plant.
        xp: numpy or torch; only functions that both have are used.
    """

    period_s = PERIOD_S
    margin_names: tuple[str, ...] = (
        "tank_full",
        "tank_empty",
        "power_cap",
        "discharge_limit",
        "charge_limit",
    )
    operating_limits: tuple[str, ...] = ("tank_full", "tank_empty", "power_cap")
    """Margins whose breach harms the plant. The other two tell that a command asked for more than
    the tank or the building takes at that moment: the plant then does what it can.
    """

    def __init__(self, parameters: ThermalStorageParameters = ICE, xp: ModuleType = np) -> None:
        self.parameters = parameters
        self.xp = xp
        self.observations = observation_signals(parameters)
        self.outputs = output_signals(parameters)

    def initial(self, scenario: "Scenario", rng: np.random.Generator | None = None) -> Array:
        """State (…, 4) at midnight: the scenario's charge, or drawn over the band with `rng`."""
        p = self.parameters
        batch = scenario.w.shape[:-2]
        charge = scenario.initial_charge if rng is None else rng.uniform(0.0, 1.0, batch)
        x = np.zeros((*batch, len(STATE_NAMES)))
        x[..., 0] = p.energy_low_kwh + charge * p.band_kwh
        return self.xp.asarray(x)

    def discharge_limit(self, energy_kwh: Array, load_kw: Array) -> Array:
        """Largest discharge (…,) kW: what the ice can melt and the building can take."""
        p = self.parameters
        share = self.xp.clip(p.melt_base + p.melt_slope / p.capacity_kwh * energy_kwh, None, 1.0)
        return self.xp.minimum(p.discharge_max_kw * share, load_kw)

    def charge_limit(self, load_kw: Array) -> Array:
        """Largest charge (…,) kW: what the chiller has left after the building."""
        p = self.parameters
        return self.xp.clip(p.chiller_capacity_kw - load_kw, 0.0, p.charge_max_kw)

    def power(self, storage_kw: Array, load_kw: Array, outdoor_degc: Array) -> Array:
        """Electric power (…,) kW; falls with `storage_kw` (+ discharges) throughout."""
        direct, charge, _ = self._cooling(storage_kw, load_kw)
        return self._power(storage_kw, direct, charge, outdoor_degc)

    def flows(self, x: Array, u: Array, w: Array, dt_s: float) -> Flows:
        """What really flows over a step of `dt_s` when u (…, 1) is asked for."""
        xp, p = self.xp, self.parameters
        energy, load, outdoor = x[..., 0], w[..., 0], w[..., 1]
        kept, gain_h = self.hold(dt_s)
        high = xp.minimum(self.discharge_limit(energy, load), kept / gain_h * energy)
        room = (p.capacity_kwh - kept * energy) / gain_h
        low = -xp.minimum(self.charge_limit(load), room)
        storage = xp.minimum(xp.maximum(u[..., 0], low), high)
        direct, charge, unmet = self._cooling(storage, load)
        return Flows(storage, direct, charge, unmet, self._power(storage, direct, charge, outdoor))

    def transition(self, x: Array, u: Array, w: Array, dt_s: float) -> Transition:
        """One step: next state, cost and flows together.

        The demand charge is billed as the day's peak grows, so a day's costs sum to the price of
        its highest 15-minute window. `dt_s` must divide that window.
        """
        xp, p = self.xp, self.parameters
        flows = self.flows(x, u, w, dt_s)
        kept, gain_h = self.hold(dt_s)
        energy = kept * x[..., 0] - gain_h * flows.storage_kw

        used_kwh = flows.power_kw * (dt_s / 3600.0)
        time = x[..., 3] + dt_s
        window = x[..., 2] + used_kwh
        window_ends = time % WINDOW_S < 0.5 * dt_s
        metered = window * (3600.0 / WINDOW_S)
        peak = xp.where(window_ends, xp.maximum(x[..., 1], metered), x[..., 1] + 0.0 * metered)
        window = xp.where(window_ends, 0.0 * window, window)
        day_ends = time >= DAY_S - 0.5 * dt_s
        time = xp.where(day_ends, 0.0 * time, time)

        rate = w[..., 2] + p.co2_price_per_kg * p.co2_kg_per_kwh
        cost = (
            rate * used_kwh
            + p.demand_per_kw_day * (peak - x[..., 1])
            + p.unmet_per_kwh * flows.unmet_kw * (dt_s / 3600.0)
        )
        peak = xp.where(day_ends, 0.0 * peak, peak)
        time = time + 0.0 * energy
        return Transition(xp.stack([energy, peak, window, time], -1), cost, flows)

    def step(self, x: Array, u: Array, w: Array, dt_s: float) -> Array:
        """State (…, 4) after `dt_s`; columns are STATE_NAMES."""
        return self.transition(x, u, w, dt_s).x

    def cost(self, x: Array, u: Array, w: Array, dt_s: float) -> Array:
        """Money (…,): energy, CO2, growth of the day's peak, cooling not delivered."""
        return self.transition(x, u, w, dt_s).cost

    def measure(self, x: Array, u: Array, w: Array) -> Array:
        """Observation (…, 24) at the start of a period; u (…, 1) is what was applied last."""
        flows = self.flows(x, u, w, self.period_s)
        like = 0.0 * flows.power_kw
        now = [
            x[..., 0] + like,
            w[..., 0] + like,
            w[..., 1] + like,
            w[..., 2] + like,
            flows.power_kw,
            x[..., 1] + like,
            x[..., 3] / 3600.0 + like,
            flows.storage_kw,
        ]
        ahead = w[..., 3:] + like[..., None]
        return self.xp.concatenate([self.xp.stack(now, -1), ahead], -1)

    def margins(self, x: Array, u: Array, w: Array) -> Array:
        """Operating margins (…, 5), scaled by their ranges; <= 0 is ok, > VIOLATION is not.

        The last two rows judge the command u itself, not what the plant made of it.
        """
        p = self.parameters
        energy, load, command = x[..., 0], w[..., 0], u[..., 0]
        power = self.flows(x, u, w, self.period_s).power_kw
        like = 0.0 * power
        rows = [
            (energy - p.energy_high_kwh) / p.band_kwh + like,
            (p.energy_low_kwh - energy) / p.band_kwh + like,
            power / p.power_cap_kw - 1.0,
            (command - self.discharge_limit(energy, load)) / p.discharge_max_kw,
            (-command - self.charge_limit(load)) / p.charge_max_kw,
        ]
        return self.xp.stack(rows, -1)

    def balance_residual(self, x: Array, u: Array, w: Array, dt_s: float) -> Array:
        """Energy (…,) kWh that a step would create from nothing; rounding error if all is well.

        Tank: stored energy before and after against flow and standby loss, the loss integrated
        along the trajectory by Simpson's rule instead of by the closed form that made the step.
        Building: cooling made against cooling used, stored and not delivered.
        """
        p = self.parameters
        flows = self.flows(x, u, w, dt_s)
        kept_half, gain_half = self.hold(0.5 * dt_s)
        start = x[..., 0]
        middle = kept_half * start - gain_half * flows.storage_kw
        end = self.step(x, u, w, dt_s)[..., 0]
        hours = dt_s / 3600.0
        loss = p.loss_per_h * hours / 6.0 * (start + 4.0 * middle + end)
        tank = end - start + flows.storage_kw * hours + loss
        made = flows.direct_kw + flows.charge_kw
        used = w[..., 0] - flows.unmet_kw - flows.storage_kw
        return abs(tank) + abs(made - used) * hours

    def hold(self, dt_s: float) -> tuple[float, float]:
        """Exact zero-order hold of E' = -f - l E: E(dt) = kept E(0) - gain_h f."""
        loss = self.parameters.loss_per_h
        kept = exp(-loss * dt_s / 3600.0)
        return kept, (1.0 - kept) / loss

    def _cooling(self, storage_kw: Array, load_kw: Array) -> tuple[Array, Array, Array]:
        """Direct cooling, charging, cooling not delivered, all (…,) kW."""
        needed = load_kw - self.xp.clip(storage_kw, 0.0, None)
        direct = self.xp.clip(needed, None, self.parameters.chiller_capacity_kw)
        return direct, self.xp.clip(-storage_kw, 0.0, None), needed - direct

    def _power(self, storage: Array, direct: Array, charge: Array, outdoor: Array) -> Array:
        xp, p = self.xp, self.parameters
        warmer = outdoor - 15.0
        cop_direct = xp.clip(
            p.cop_direct_15 - p.cop_direct_slope * warmer, p.cop_direct_low, p.cop_direct_high
        )
        cop_charge = xp.clip(
            p.cop_charge_15 - p.cop_charge_slope * warmer, p.cop_charge_low, p.cop_charge_high
        )
        made = direct + charge
        part_load = made / p.chiller_capacity_kw
        running = xp.clip(part_load, p.part_load_min, None)
        factor = p.eir_constant / running + p.eir_linear + p.eir_quadratic * running
        duty = xp.clip(part_load / p.part_load_min, 1e-12, 1.0)
        starts = xp.clip((1.0 - duty) / duty, None, 1.0)
        factor = factor * (1.0 + p.start_up_min / p.min_on_off_min * starts)
        compressor = (direct / cop_direct + charge / cop_charge) * factor
        pumps = p.parasitic_chiller * made + p.parasitic_discharge * xp.clip(storage, 0.0, None)
        return compressor + pumps


def reconstruct(values: Array) -> tuple[Array, Array]:
    """State (…, 4) and disturbances (…, 19) told by a measurement (…, 24) at a window's start."""
    energy, load, outdoor, price = (values[..., i] for i in range(4))
    state = np.stack(
        [energy, values[..., 5], 0.0 * energy, values[..., 6] * 3600.0],
        -1,
    )
    now = np.stack([load, outdoor, price], -1)
    return state, np.concatenate([now, values[..., 8:]], -1)


def output_signals(p: ThermalStorageParameters) -> SignalSet:
    """The one manipulated variable; the valve crosses its range in about two minutes."""
    return SignalSet(
        (
            Signal(
                "storage_discharge_kw",
                "kW",
                -p.charge_max_kw,
                p.discharge_max_kw,
                meaning="thermal power asked from the tank",
                rate_per_s=p.charge_max_kw / 60.0,
                positive="discharges the tank into the building",
            ),
        )
    )


def observation_signals(p: ThermalStorageParameters) -> SignalSet:
    """Measurements and forecasts with what is physically plausible for them."""
    fresh, slow = 2.0 * PERIOD_S, 8.0 * PERIOD_S
    # Standby loss moves the tank in every period: a stuck sensor is found at its first repeated
    # value, so the change it hides is one that the last certified command was allowed to make.
    # Weather and load are new once per period, and a tick may see one of them twice.
    stuck, twice = PERIOD_S, 3.0 * PERIOD_S
    most_kw = p.chiller_capacity_kw + p.discharge_max_kw
    top_kwh = 1.05 * p.capacity_kwh
    power_kw = 0.75 * most_kw
    flow_per_s = 1.2 * (p.charge_max_kw + p.discharge_max_kw) / 60.0
    now = (
        Signal("storage_energy_kwh", "kWh", -0.05 * p.capacity_kwh, top_kwh, "cooling stored",
               1.5 * p.discharge_max_kw / 3600.0, max_age_s=fresh, frozen_after_s=stuck),
        Signal("cooling_load_kw", "kW", 0.0, most_kw, "cooling the building asks for",
               0.5, max_age_s=fresh, frozen_after_s=twice),
        Signal("outdoor_temperature_degc", "degC", -40.0, 60.0, "dry bulb",
               0.01, max_age_s=fresh, frozen_after_s=twice),
        Signal("electricity_price_per_kwh", "1/kWh", 0.0, 5.0, "energy price now",
               max_age_s=slow),
        Signal("electric_power_kw", "kW", 0.0, power_kw, "chiller plant now", max_age_s=fresh),
        Signal("peak_power_kw", "kW", 0.0, power_kw, "highest 15-min power so far today",
               max_age_s=fresh),
        Signal("time_of_day_h", "h", 0.0, 24.0, "since local midnight", max_age_s=fresh),
        Signal("storage_flow_kw", "kW", -1.1 * p.charge_max_kw, 1.1 * p.discharge_max_kw,
               "what the tank really does", flow_per_s, "discharges the tank", fresh),
    )  # fmt: skip
    load_ahead = tuple(
        Signal(f"load_forecast_{i:02d}_kw", "kW", 0.0, 1.5 * most_kw,
               f"mean load, {2 * i - 2} to {2 * i} h from now", max_age_s=slow)
        for i in range(1, N_LOAD_FORECAST + 1)
    )  # fmt: skip
    outdoor_ahead = tuple(
        Signal(f"outdoor_forecast_{i:02d}_degc", "degC", -40.0, 60.0,
               f"mean outdoor temperature, {6 * i - 6} to {6 * i} h from now", max_age_s=slow)
        for i in range(1, N_OUTDOOR_FORECAST + 1)
    )  # fmt: skip
    return SignalSet((*now, *load_ahead, *outdoor_ahead))
