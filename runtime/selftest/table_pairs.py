"""Rows with two faults at once, one of each class with one of every other: the worse one counts."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from math import inf, nan

import numpy as np

from steadyhand.adapters.sim.faults import FaultKind, SignalFault
from steadyhand.controllers.frames import (
    Fault,
    LinkState,
    Observation,
    Proposal,
    ProposalStatus,
    Source,
)
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime.assemble import PlantParts
from steadyhand.runtime.selftest.inside import Inside, with_age
from steadyhand.runtime.selftest.rows import Row, Wire
from steadyhand.runtime.selftest.table_inside import Alarms, Finds, Says


@dataclass(frozen=True, slots=True)
class _Class:
    """One fault that stands for its class; none of them waits for a person."""

    name: str
    words: str
    do: Callable[[Inside], None]
    codes: tuple[str, ...]
    demand: Source
    wire: Wire = Wire.GOES_ON


def rows(parts: PlantParts) -> Iterator[Row]:
    """Every pair."""
    for one, other in combinations(_classes(parts), 2):
        yield _pair(one, other)


def _pair(one: _Class, other: _Class) -> Row:
    worse = max(one, other, key=lambda item: item.demand)
    codes = one.codes + other.codes if one.demand is other.demand else worse.codes

    def both(bench: Inside) -> None:
        one.do(bench)
        other.do(bench)

    silent = Wire.NOTHING in (one.wire, other.wire)
    return Row(
        f"L6.{one.name}+{other.name}",
        f"{one.words}, and {other.words}",
        both,
        codes,
        worse.demand,
        Wire.NOTHING if silent else Wire.GOES_ON,
    )


def _classes(parts: PlantParts) -> tuple[_Class, ...]:
    name = parts.plant.observations.names[0]
    last = len(parts.plant.observations) - 1
    nothing = np.full(len(parts.outputs), nan)
    late = Proposal(
        nothing, ProposalStatus.LATE, faults=(Fault(ReasonCode.INFER_LATE, text="made up"),)
    )

    def cut(bench: Inside) -> None:
        bench.link.state = LinkState.DOWN

    def server(bench: Inside) -> None:
        told = (Fault(ReasonCode.SERVER_STATE, text="made up"),)
        bench.alter(lambda image: replace(image, faults=(*image.faults, *told)))

    def repeated(bench: Inside) -> None:
        kept: list[Observation] = []

        def same(image: Observation) -> Observation:
            kept.append(image)
            return replace(image, sequence=kept[0].sequence)

        bench.alter(same)

    def slow(bench: Inside) -> None:
        bench.clock.late = True

    return (
        _Class("wire", "the wire is cut", cut, ("LINK_DOWN",), Source.HANDS_OFF, Wire.NOTHING),
        _Class(
            "server",
            "the server is not running",
            server,
            ("SERVER_STATE",),
            Source.HANDS_OFF,
            Wire.NOTHING,
        ),
        _Class(
            "grant",
            "the plant takes control",
            lambda bench: bench.grant(False),
            ("NOT_GRANTED",),
            Source.HANDS_OFF,
            Wire.NOTHING,
        ),
        _Class(
            "sensor",
            f"{name} is off",
            lambda bench: bench.sensor(SignalFault(name, FaultKind.OFF)),
            ("SAMPLE_BAD",),
            Source.FALLBACK,
        ),
        _Class(
            "age",
            f"{parts.plant.observations.names[last]} never came",
            lambda bench: bench.alter(lambda image: with_age(image, last, inf)),
            ("OBS_MISSING",),
            Source.FALLBACK,
        ),
        _Class("image", "the image repeats itself", repeated, ("OBS_REPEAT",), Source.HOLD),
        _Class(
            "policy",
            "the policy is late",
            lambda bench: bench.use(policy=Says(lambda _: late)),
            ("INFER_LATE",),
            Source.FALLBACK,
        ),
        _Class(
            "gate",
            "the gate alarms",
            lambda bench: bench.use(gate=Alarms(bench.good("gate"), "GATE_OOD")),
            ("GATE_OOD",),
            Source.FALLBACK,
        ),
        _Class(
            "filter",
            "no command keeps all limits",
            lambda bench: bench.use(
                safety=Finds(bench.good("safety"), ReasonCode.FILTER_INFEASIBLE)
            ),
            ("FILTER_INFEASIBLE",),
            Source.SAFE,
        ),
        _Class("deadline", "every tick is late", slow, ("TICK_LATE",), Source.HOLD, Wire.NOTHING),
    )
