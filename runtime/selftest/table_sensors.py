"""Rows for measurements: every kind of lie, for every signal, generated from its declaration.

What no declaration forbids cannot be told; such a row still asks that every promise to the plant
is kept while the signal lies.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from math import inf, isfinite, nan

from steadyhand.adapters.sim.faults import FaultKind, SignalFault
from steadyhand.controllers.frames import Fault, Observation, Quality, Source
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.signals import Signal
from steadyhand.runtime.assemble import PlantParts
from steadyhand.runtime.config_link import OpcUaLink
from steadyhand.runtime.config_schema import Config
from steadyhand.runtime.selftest.inside import Inside, span, with_age, with_quality, with_values
from steadyhand.runtime.selftest.rows import Row

_FALLBACK, _SAFE = Source.FALLBACK, Source.SAFE
SENTINELS = (-127.0, 9999.0, 65535.0)
"""What sensors say that have nothing to say."""
TINY = 5e-324


def rows(parts: PlantParts) -> Iterator[Row]:
    """Every row about one measurement, and about all of them."""
    related = {name for one in parts.kind.relations(parts.parameters) for name in one.signals}
    for column, signal in enumerate(parts.plant.observations):
        yield from _one(signal, column, parts.plant.period_s, signal.name in related)
    yield from _whole(parts)


def declared(config: Config, parts: PlantParts) -> Iterator[Row]:
    """Rows for what the configuration itself says of measurements."""
    if not isinstance(config.link, OpcUaLink):
        return
    for name, tag in config.link.signals.items():
        column = parts.plant.observations.index(name)
        for number in getattr(tag, "sentinels", ()):
            yield Row(
                f"B3.{name}.declared_{number:g}",
                f"{name}: {number:g}, which the configuration declares to be no measurement",
                lambda bench, c=column, n=number: bench.alter(  # type: ignore[misc]
                    lambda image: with_values(image, c, n)
                ),
                ("OBS_RANGE",),
                _FALLBACK,
                each=True,
            )


def _one(signal: Signal, column: int, period_s: float, related: bool) -> Iterator[Row]:
    name, wide = signal.name, span(signal)

    def value(number: float) -> Callable[[Inside], None]:
        return lambda bench: bench.alter(lambda image: with_values(image, column, number))

    def age(number: float) -> Callable[[Inside], None]:
        return lambda bench: bench.alter(lambda image: with_age(image, column, number))

    def fault(kind: FaultKind, **parameters: float) -> Callable[[Inside], None]:
        made = SignalFault(name, kind, parameters=parameters)
        return lambda bench: bench.sensor(made)

    told = partial(Row, demand=_FALLBACK, each=True)
    lie = partial(_undeclared, related=related)
    yield told(f"A12.{name}.off", f"{name}: bad quality", fault(FaultKind.OFF), ("SAMPLE_BAD",))
    yield told(
        f"A13.{name}.uncertain",
        f"{name}: uncertain quality",
        lambda bench: bench.alter(lambda image: with_quality(image, column, Quality.UNCERTAIN)),
        ("SAMPLE_UNCERTAIN",),
    )
    yield told(
        f"L7.{name}.forced",
        f"{name}: the link tells that somebody forces it",
        lambda bench: bench.alter(lambda image: forced(image, column, name)),
        ("TAG_FORCED",),
    )
    yield Row(
        f"A12.{name}.intermittent",
        f"{name}: bad quality in every other image or so",
        fault(FaultKind.INTERMITTENT, probability=0.5),
        ("SAMPLE_BAD",),
        _FALLBACK,
        hold=6,
    )
    for label, number in (("nan", nan), ("inf", inf), ("minus_inf", -inf)):
        text = f"{name}: {number}"
        yield told(f"B1.{name}.{label}", text, value(number), ("OBS_NONFINITE",))
    for label, number in (
        ("high", signal.high + 0.1 * wide),
        ("low", signal.low - 0.1 * wide),
        ("huge", 1e300),
    ):
        text = f"{name}: {number:g} {signal.unit}"
        yield told(f"B2.{name}.{label}", text, value(number), ("OBS_RANGE",))
    for number in SENTINELS:
        if not signal.low <= number <= signal.high:
            text = f"{name}: the code {number:g}"
            yield told(f"B3.{name}.{number:g}", text, value(number), ("OBS_RANGE",))
    stuck = isfinite(signal.frozen_after_s)
    yield Row(
        f"B4.{name}.stuck",
        f"{name}: stands still to the last digit",
        fault(FaultKind.STUCK),
        ("OBS_STUCK",) if stuck else (),
        _FALLBACK if stuck else Source.POLICY,
        latch="" if stuck else _may(related),
        hold=4 if stuck else 8,
    )
    yield lie(
        f"B5.{name}.drift",
        f"{name}: drifts by 2 % of its range per period",
        fault(FaultKind.WRONG, drift_per_s=0.02 * wide / period_s),
    )
    yield lie(
        f"B6.{name}.noise",
        f"{name}: noise of 10 % of its range",
        fault(FaultKind.WRONG, noise=0.1 * wide),
    )
    if isfinite(signal.rate_per_s) and 0.4 * wide > 2.0 * signal.rate_per_s * period_s:
        yield Row(
            f"B7.{name}.jump",
            f"{name}: jumps to the far half of its range",
            lambda bench: bench.alter(_jump(column, signal)),
            ("OBS_RATE",),
            _FALLBACK,
            hold=0,
            latch=_may(related),
        )
        yield Row(
            f"B6.{name}.spike",
            f"{name}: one sample is far off",
            lambda bench: bench.alter(_once(_jump(column, signal))),
            ("OBS_RATE",),
            _FALLBACK,
            latch=_may(related),
        )
    yield lie(f"B9.{name}.sign", f"{name}: sign reversed", fault(FaultKind.WRONG, scale=-1.0))
    for scale in (10.0, 1000.0, 0.1):
        yield lie(
            f"B10.{name}.x{scale:g}",
            f"{name}: times {scale:g}",
            fault(FaultKind.WRONG, scale=scale),
        )
    yield lie(
        f"B10.{name}.kelvin",
        f"{name}: 273.15 too much",
        fault(FaultKind.WRONG, bias=273.15),
    )
    yield lie(
        f"B6.{name}.slow", f"{name}: follows an hour late", fault(FaultKind.SLOW, tau_s=3600.0)
    )
    if isfinite(signal.max_age_s):
        late_s = signal.max_age_s + period_s
        yield told(f"B11.{name}.old", f"{name}: {late_s:g} s old", age(late_s), ("OBS_STALE",))
        yield told(
            f"B13.{name}.behind",
            f"{name}: as it was {late_s:g} s ago, with its true stamp",
            fault(FaultKind.DELAYED, delay_s=late_s),
            ("OBS_STALE",),
            latch=_may(related),
        )
    yield told(f"B12.{name}.future", f"{name}: from the future", age(-3600.0), ("OBS_TS_INVALID",))
    yield told(f"B12.{name}.no_age", f"{name}: no age", age(nan), ("OBS_TS_INVALID",))
    yield told(f"B16.{name}.missing", f"{name}: never came", age(inf), ("OBS_MISSING",))


def _may(related: bool) -> str:
    """The only latch that a lie about one signal can lead to."""
    return "?OBS_XCHECK" if related else ""


def _undeclared(number: str, injected: str, do: Callable[[Inside], None], related: bool) -> Row:
    """A lie that only chance or the signal's peers can give away."""
    return Row(number, injected, do, hold=8, latch=_may(related), limits_hold=False)


def _jump(column: int, signal: Signal) -> Callable[[Observation], Observation]:
    middle = 0.5 * (signal.low + signal.high)

    def change(image: Observation) -> Observation:
        below = float(image.values[column]) < middle
        share = 0.95 if below else 0.05
        return with_values(image, column, signal.low + share * span(signal))

    return change


def _once(change: Callable[[Observation], Observation]) -> Callable[[Observation], Observation]:
    """`change` for one image only."""
    seen: list[int] = []

    def first(image: Observation) -> Observation:
        if not seen:
            seen.append(image.sequence)
        return change(image) if image.sequence == seen[0] else image

    return first


def _whole(parts: PlantParts) -> Iterator[Row]:
    """Rows about whole images."""
    signals = parts.plant.observations
    oldest_s = float(max(s.max_age_s for s in signals if isfinite(s.max_age_s)))

    def every(change: Callable[[Observation], Observation]) -> Callable[[Inside], None]:
        return lambda bench: bench.alter(change)

    def repeated(bench: Inside) -> None:
        kept: list[Observation] = []

        def same(image: Observation) -> Observation:
            kept.append(image)
            return replace(kept[0], time_s=kept[0].time_s)

        bench.alter(same)

    yield Row(
        "B14.all_late",
        f"every measurement is {oldest_s + 900.0:g} s old",
        every(lambda image: replace(image, age_s=image.age_s + oldest_s + 900.0)),
        ("OBS_STALE",),
        _FALLBACK,
        each=True,
    )
    yield Row(
        "B15.same_image",
        "the same image again and again",
        repeated,
        ("OBS_REPEAT",),
        Source.HOLD,
        each=True,
    )
    yield Row(
        "B15.same_image_for_long",
        "the same image for longer than a value may be held",
        repeated,
        ("HOLD_EXPIRED",),
        _SAFE,
        hold=0,
    )
    yield Row(
        "B12.plant_backwards",
        "the plant's time runs backwards",
        every(lambda image: replace(image, time_s=-image.time_s)),
        ("OBS_TS_INVALID",),
        _FALLBACK,
        each=True,
    )
    yield Row(
        "B12.plant_no_time",
        "the plant's time is not a number",
        every(lambda image: replace(image, time_s=nan)),
        ("OBS_TS_INVALID",),
        _FALLBACK,
        each=True,
    )
    for label, number in (("minus_zero", -0.0), ("denormal", TINY)):
        column = signals.index(_zero_signal(parts))
        yield Row(
            f"B1.{signals.names[column]}.{label}",
            f"{signals.names[column]}: {number!r}",
            every(lambda image, c=column, n=number: with_values(image, c, n)),  # type: ignore[misc]
        )
    yield Row(
        "B16.all_missing",
        "no measurement at all",
        every(lambda image: replace(image, age_s=image.age_s + inf)),
        ("OBS_MISSING",),
        _FALLBACK,
        each=True,
    )
    yield Row(
        "B1.all_nan",
        "every measurement is NaN",
        every(lambda image: replace(image, values=image.values * nan)),
        ("OBS_NONFINITE",),
        _FALLBACK,
        each=True,
    )


def _zero_signal(parts: PlantParts) -> str:
    """A signal that may well be zero, and that nothing else is bound to."""
    related = {name for one in parts.kind.relations(parts.parameters) for name in one.signals}
    for signal in parts.plant.observations:
        free = signal.name not in related and not isfinite(signal.rate_per_s)
        if free and signal.low <= 0.0 <= signal.high:
            return signal.name
    return parts.plant.observations.names[-1]


def forced(image: Observation, column: int, name: str) -> Observation:
    """`image` as the link hands it on when the plant says that somebody forces a measurement."""
    told = Fault(ReasonCode.TAG_FORCED, name, text=f"{name}: GoodLocalOverride")
    doubted = with_quality(image, column, Quality.UNCERTAIN)
    return replace(doubted, faults=(*doubted.faults, told))
