"""Seeded weather, load, price and forecasts for the thermal storage.

The same ScenarioSpec gives the same arrays for ever. Seeds of the splits are disjoint and stand
here and nowhere else. Load model: 15 kW that never sleep, 120 kW with full occupancy and
18 kW/K above 16 degC outside, of which 35 % also when nobody is in.

Forecasts are the true window means times (1 + e): e is an AR(1) process along the lead time,
grown to 8 % at 6 h, and correlated from one tick to the next like a forecast that is revised.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from steadyhand.controllers.errors import ConfigError
from steadyhand.controllers.plants.thermal_storage import (
    DISTURBANCE_NAMES,
    N_LOAD_FORECAST,
    N_OUTDOOR_FORECAST,
    PERIOD_S,
)
from steadyhand.controllers.signals import Vector

TICKS_PER_DAY: Final = 96
EPISODE_DAYS: Final = 5

TRAINING_SEEDS: Final = range(10_000)
VALIDATION_SEEDS: Final = range(10_000, 10_100)
CALIBRATION_SEEDS: Final = range(10_100, 10_300)
THRESHOLD_SEEDS: Final = range(10_300, 10_500)
HELD_OUT_SEEDS: Final = range(10_900, 10_906)
"""Six episodes of EPISODE_DAYS: the 30 days every gap is quoted on."""

LOAD_FORECAST_ERROR_6H: Final = 0.08
OUTDOOR_FORECAST_ERROR_6H: Final = 1.0
"""Standard deviation, K."""
_LEAD_KEPT_PER_H: Final = 0.9
_REVISION_KEPT: Final = 0.92
"""Share of a forecast's error that survives one tick's revision."""


@dataclass(frozen=True, slots=True)
class Season:
    """Where an episode's weather is drawn from."""

    mean_low_degc: float
    """Range of the episode's mean daily maximum."""
    mean_high_degc: float
    spread_k: float
    """Standard deviation of a day's maximum around the episode's mean."""
    swing_k: float
    """Daily maximum minus daily minimum."""
    load_gain: float = 1.0
    price_gain: float = 1.0


SEASONS: Final[dict[str, Season]] = {
    "hot_weeks": Season(30.0, 36.0, 2.5, 11.0),
    "summer": Season(26.0, 34.0, 1.5, 11.0),
    "mild": Season(20.0, 26.0, 1.5, 11.0),
    # far outside what a controller of the hot weeks has seen: hot nights, more load, price spike
    "heat_wave": Season(42.0, 46.0, 1.0, 7.0, load_gain=1.12, price_gain=1.5),
}
REFERENCE_SEASON: Final = "hot_weeks"
OUT_OF_RANGE_SEASON: Final = "heat_wave"


@dataclass(frozen=True, slots=True)
class Tariff:
    """Time-of-use energy price in 1/kWh; the demand charge is a parameter of the plant."""

    night: float = 0.08
    day: float = 0.16
    on_peak: float = 0.28
    day_from_h: float = 8.0
    on_peak_from_h: float = 12.0
    on_peak_to_h: float = 18.0
    day_to_h: float = 22.0

    def price(self, hour: Vector) -> Vector:
        """Price at each hour of day."""
        day = (hour >= self.day_from_h) & (hour < self.day_to_h)
        on_peak = (hour >= self.on_peak_from_h) & (hour < self.on_peak_to_h)
        return np.where(on_peak, self.on_peak, np.where(day, self.day, self.night))


REFERENCE_TARIFF: Final = Tariff()


@dataclass(frozen=True, slots=True)
class ScenarioSpec:
    """Everything that decides an episode."""

    seed: int
    days: int = EPISODE_DAYS
    season: str = REFERENCE_SEASON
    initial_charge: float = 0.5
    """Share of the operating band that is stored at the first midnight."""
    tariff: Tariff = REFERENCE_TARIFF

    def __post_init__(self) -> None:
        """Refuse what cannot be drawn.

        Raises:
            ConfigError: unknown season, no day, negative seed, or a charge outside 0 to 1.
        """
        if self.season not in SEASONS:
            raise ConfigError(f"season {self.season!r} is unknown; there are: {', '.join(SEASONS)}")
        if self.days < 1 or self.seed < 0 or not 0.0 <= self.initial_charge <= 1.0:
            raise ConfigError(
                f"scenario days={self.days} (>= 1), seed={self.seed} (>= 0), "
                f"initial_charge={self.initial_charge} (0 to 1)"
            )


@dataclass(frozen=True, slots=True, eq=False)
class Scenario:
    """Disturbances of one episode, or of a batch of them."""

    w: Vector
    """(…, ticks, n_w) in the order of DISTURBANCE_NAMES, read-only."""
    initial_charge: float = 0.5

    @property
    def ticks(self) -> int:
        """Length of the episode."""
        return int(self.w.shape[-2])


def generate(spec: ScenarioSpec) -> Scenario:
    """Draw the episode of `spec`."""
    rng = np.random.default_rng([spec.seed, list(SEASONS).index(spec.season)])
    days = spec.days + 1  # forecasts of the last day look into the next
    ticks = days * TICKS_PER_DAY
    hour: Vector = np.arange(ticks, dtype=np.float64) * (PERIOD_S / 3600.0)
    outdoor = _outdoor(rng, SEASONS[spec.season], hour, days)
    load = _load(rng, SEASONS[spec.season], hour, outdoor)
    shown = spec.days * TICKS_PER_DAY
    w = np.empty((shown, len(DISTURBANCE_NAMES)))
    w[:, 0] = load[:shown]
    w[:, 1] = outdoor[:shown]
    w[:, 2] = spec.tariff.price(hour[:shown] % 24.0) * SEASONS[spec.season].price_gain
    ahead = slice(3, 3 + N_LOAD_FORECAST)
    relative = _forecast_error(rng, shown, N_LOAD_FORECAST, 2.0, LOAD_FORECAST_ERROR_6H)
    w[:, ahead] = np.maximum(_window_means(load, shown, N_LOAD_FORECAST) * (1.0 + relative), 0.0)
    absolute = _forecast_error(rng, shown, N_OUTDOOR_FORECAST, 6.0, OUTDOOR_FORECAST_ERROR_6H)
    w[:, ahead.stop :] = _window_means(outdoor, shown, N_OUTDOOR_FORECAST) + absolute
    w.flags.writeable = False
    return Scenario(w, spec.initial_charge)


def generate_batch(
    seeds: Sequence[int], days: int = EPISODE_DAYS, season: str = REFERENCE_SEASON
) -> Scenario:
    """Episodes of several seeds stacked to w (n, ticks, n_w)."""
    drawn = [generate(ScenarioSpec(seed, days, season)) for seed in seeds]
    return Scenario(np.stack([one.w for one in drawn]), drawn[0].initial_charge)


def held_out(season: str = REFERENCE_SEASON) -> Scenario:
    """The held-out episodes, w (6, 480, n_w)."""
    return generate_batch(HELD_OUT_SEEDS, EPISODE_DAYS, season)


def _outdoor(rng: np.random.Generator, season: Season, hour: Vector, days: int) -> Vector:
    mean = rng.uniform(season.mean_low_degc, season.mean_high_degc)
    maxima = mean + season.spread_k * _ar1(rng, days, 0.5)
    highest = np.interp(hour, 24.0 * np.arange(days) + 15.5, maxima)
    shape = 0.5 * (1.0 - np.cos(2.0 * np.pi * (hour - 15.5) / 24.0))
    return highest - season.swing_k * shape + 0.4 * _ar1(rng, hour.size, 0.97)


def _load(rng: np.random.Generator, season: Season, hour: Vector, outdoor: Vector) -> Vector:
    first_day = int(rng.integers(7))
    weekend = (first_day + (hour // 24.0)) % 7 >= 5
    of_day = hour % 24.0
    arriving = np.clip((of_day - 6.5) / 2.0, 0.0, 1.0)
    leaving = np.clip((of_day - 17.0) / 2.5, 0.0, 1.0)
    occupied = (arriving - leaving) * np.where(weekend, 0.2, 1.0)
    weather = 18.0 * np.maximum(outdoor - 16.0, 0.0) * (0.35 + 0.65 * occupied)
    steady = season.load_gain * (15.0 + 120.0 * occupied + weather)
    return steady * (1.0 + 0.02 * np.clip(_ar1(rng, hour.size, 0.9), -4.0, 4.0))


def _ar1(rng: np.random.Generator, n: int, kept: float) -> Vector:
    """(n,) stationary AR(1) process with unit variance."""
    fresh = rng.standard_normal(n)
    fresh[1:] *= np.sqrt(1.0 - kept * kept)
    for i in range(1, n):
        fresh[i] += kept * fresh[i - 1]
    return fresh


def _window_means(truth: Vector, ticks: int, windows: int) -> Vector:
    """(ticks, windows) means of the day ahead in equal windows, from a day more of truth."""
    width = TICKS_PER_DAY // windows
    total = np.concatenate([[0.0], np.cumsum(truth)])
    start = np.arange(ticks)[:, None] + width * np.arange(windows)[None, :]
    return (total[start + width] - total[start]) / width


def _forecast_error(
    rng: np.random.Generator, ticks: int, windows: int, window_h: float, at_6h: float
) -> Vector:
    """(ticks, windows) errors: AR(1) along lead and along ticks, sd `at_6h` at 6 h of lead."""
    full = at_6h / np.sqrt(1.0 - _LEAD_KEPT_PER_H**12)
    kept = _LEAD_KEPT_PER_H**window_h
    fresh = rng.standard_normal((ticks, windows))
    fresh[1:] *= np.sqrt(1.0 - _REVISION_KEPT**2)
    for t in range(1, ticks):
        fresh[t] += _REVISION_KEPT * fresh[t - 1]
    error = np.empty_like(fresh)
    error[:, 0] = full * np.sqrt(1.0 - kept) * fresh[:, 0]  # first window: lead of half a window
    for i in range(1, windows):
        error[:, i] = kept * error[:, i - 1] + full * np.sqrt(1.0 - kept * kept) * fresh[:, i]
    return error
