"""What a policy of the thermal storage looks at, and what its action means: inside the graph.

From the raw observation alone, with what is known of the plant and its tariff: where in the day it
is, how much cooling the forecasts announce until and during the dear hours, how full the tank is
against that, and which command would draw exactly the peak already paid for today. No weights.

Hours to a time of day are taken forwards (0 to 24). A forecast window i covers hours 2i-2 to 2i
from now, so the energy of an interval [a, b] is the sum of load_i times its overlap with [a, b].
"""

from math import pi

import torch
from torch import Tensor, nn

from steadyhand.controllers.plants.thermal_storage import N_LOAD_FORECAST, ThermalStorage
from steadyhand.controllers.plants.thermal_storage_parameters import ICE, ThermalStorageParameters
from steadyhand.controllers.plants.thermal_storage_scenario import REFERENCE_TARIFF, Tariff

N_FEATURES = 54
_WINDOW_H = 2.0


class ThermalFeatures(nn.Module):
    """(…, 24) raw observation → (…, N_FEATURES)."""

    window_from: Tensor

    def __init__(
        self, parameters: ThermalStorageParameters = ICE, tariff: Tariff = REFERENCE_TARIFF
    ) -> None:
        super().__init__()
        self.numbers = parameters
        self.tariff = tariff
        self.model = ThermalStorage(parameters, xp=torch)
        self.register_buffer("window_from", _WINDOW_H * torch.arange(N_LOAD_FORECAST))

    def forward(self, observation: Tensor) -> Tensor:
        """Features of raw observations (…, n_y)."""
        p = self.numbers
        energy, load, outdoor, price, power, peak, hour, flow = observation[..., :8].unbind(-1)
        ahead = observation[..., 8 : 8 + N_LOAD_FORECAST]
        outdoor_ahead = observation[..., 8 + N_LOAD_FORECAST :]
        usable = energy - p.energy_low_kwh

        now = [
            usable / p.band_kwh,
            load / 400.0,
            (outdoor - 25.0) / 10.0,
            price / 0.2,
            power / p.power_cap_kw,
            peak / p.power_cap_kw,
            flow / p.discharge_max_kw,
        ]
        clock = [f(k * 2.0 * pi / 24.0 * hour) for k in (1, 2, 3) for f in (torch.sin, torch.cos)]
        columns = [
            *now,
            *clock,
            *self._tariff(hour, usable, ahead),
            *self._power(load, outdoor, peak),
            self.model.discharge_limit(energy, load) / p.discharge_max_kw,
            self.model.charge_limit(load) / p.charge_max_kw,
        ]
        mean = ahead.mean(-1, keepdim=True)
        return torch.cat(
            [
                torch.stack(columns, -1),
                ahead / 400.0,
                (outdoor_ahead - 25.0) / 10.0,
                mean / 400.0,
                ahead.amax(-1, keepdim=True) / 400.0,
            ],
            -1,
        )

    def _tariff(self, hour: Tensor, usable: Tensor, ahead: Tensor) -> list[Tensor]:
        """Hours to each change of price, cooling needed until then, tank against need."""
        t, band = self.tariff, self.numbers.band_kwh
        to_day, to_dear = _hours_to(hour, t.day_from_h), _hours_to(hour, t.on_peak_from_h)
        to_end, to_night = _hours_to(hour, t.on_peak_to_h), _hours_to(hour, t.day_to_h)
        length = t.on_peak_to_h - t.on_peak_from_h
        dear = (to_end < length).to(hour.dtype)
        night = (to_day <= 24.0 - (t.day_to_h - t.day_from_h)).to(hour.dtype)
        dear_from = to_dear * (1.0 - dear)
        dear_to = dear_from + (1.0 - dear) * length + dear * to_end
        dear_kwh = self._energy(ahead, dear_from, dear_to)
        before_kwh = self._energy(ahead, 0.0 * hour, dear_from)
        day_kwh = self._energy(ahead, 0.0 * hour, to_night)
        after_kwh = self._energy(ahead, dear_to, dear_to + t.day_to_h - t.on_peak_to_h)
        dear_h = torch.clamp(dear_to - dear_from, min=0.25)
        return [
            to_day / 24.0,
            to_dear / 24.0,
            to_end / 24.0,
            to_night / 24.0,
            dear,
            night,
            dear_kwh / band,
            before_kwh / band,
            day_kwh / (2.0 * band),
            after_kwh / band,
            (dear_kwh - usable) / band,
            (dear_kwh - usable) / dear_h / 400.0,
            (day_kwh - usable) / torch.clamp(to_night, min=0.25) / 400.0,
            usable / dear_h / 400.0,
            usable / torch.clamp(day_kwh, min=50.0),
            usable / torch.clamp(dear_kwh, min=50.0),
        ]

    def _energy(self, ahead: Tensor, from_h: Tensor, to_h: Tensor) -> Tensor:
        """Forecast cooling (…,) kWh between two times from now, inside the 24 h known."""
        begin = torch.maximum(from_h[..., None], self.window_from)
        end = torch.minimum(to_h[..., None], self.window_from + _WINDOW_H)
        return (ahead * torch.clamp(end - begin, min=0.0)).sum(-1)

    def _power(self, load: Tensor, outdoor: Tensor, peak: Tensor) -> list[Tensor]:
        """Power at idle and at full charge, and the command that draws the peak already paid."""
        p = self.numbers
        served = torch.clamp(0.5 * load, min=1.0)
        most = -self.model.charge_limit(load)
        asked = torch.stack([0.0 * load, 0.5 * most, most, served], -1)
        drawn = self.model.power(asked, load[..., None], outdoor[..., None])
        idle, half, charging, serving = drawn.unbind(-1)
        room = torch.clamp(peak - idle, min=0.0)
        slope = torch.clamp((half - idle) / torch.clamp(-0.5 * most, min=1.0), min=0.05)
        charge = torch.clamp(room / slope, max=p.charge_max_kw)
        relief = (idle - serving) / served
        needed = torch.clamp(idle - peak, min=0.0) / torch.clamp(relief, min=0.05)
        return [
            idle / p.power_cap_kw,
            charging / p.power_cap_kw,
            (peak - idle) / p.power_cap_kw,
            charge / p.charge_max_kw,
            torch.clamp(needed / p.discharge_max_kw, max=2.0),
        ]


class PowerLevel(nn.Module):
    """Action map: the bounded action is the electric power to draw, as a share of the cap.

    What the optimum holds still for hours is power, not storage flow: the daily peak is paid for,
    and staying just below it takes another command at every load. So the net chooses the level
    P = cap (1 + r)/2 and the graph works out the command that draws it, by inverting P(u) linearly
    between knots from full charge to full discharge (P falls with u throughout). A level out of
    reach gives the nearest end, which keeps melt limit, load and chiller headroom by itself.
    """

    share: Tensor

    def __init__(self, parameters: ThermalStorageParameters = ICE, knots: int = 9) -> None:
        super().__init__()
        self.cap_kw = parameters.power_cap_kw
        self.model = ThermalStorage(parameters, xp=torch)
        self.register_buffer("share", torch.linspace(-1.0, 1.0, knots))

    def forward(self, bounded: Tensor, observation: Tensor) -> Tensor:
        """Command (…, 1) kW for bounded actions (…, 1) in [-1, 1]."""
        energy, load, outdoor = (observation[..., i : i + 1] for i in range(3))
        most = self.model.discharge_limit(energy, load)
        least = self.model.charge_limit(load)
        u = torch.clamp(self.share, min=0.0) * most + torch.clamp(self.share, max=0.0) * least
        power = self.model.power(u, load, outdoor)
        level = 0.5 * self.cap_kw * (bounded + 1.0)
        rise, fall = u[..., 1:] - u[..., :-1], power[..., :-1] - power[..., 1:]
        passed = (power[..., :-1] - level) / torch.clamp(fall, min=1e-3)
        return u[..., :1] + (rise * torch.clamp(passed, 0.0, 1.0)).sum(-1, keepdim=True)


def _hours_to(hour: Tensor, of_day: float) -> Tensor:
    """Hours (…,) from `hour` forwards to `of_day`, in (0, 24]."""
    ahead = of_day - hour
    return ahead + 24.0 * (ahead <= 0.0).to(hour.dtype)
