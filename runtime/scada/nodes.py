"""The nodes that follow from the model: types once, and one loop with the plant's own signals.

Plain data, no library: the NodeSet file and the running server are both made from it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from steadyhand.controllers.signals import Signal, SignalSet
from steadyhand.runtime.scada.model import (
    RESULTS,
    TYPES,
    Argument,
    Many,
    Member,
    Method,
    Part,
    Variable,
)

Ref = tuple[str, str | int]
"""A node's id: "ua" with a number, or "types" or "loop" with a path."""

OBJECTS: Ref = ("ua", 85)
BASE_OBJECT: Ref = ("ua", 58)
BASE_VARIABLE: Ref = ("ua", 63)
PROPERTY: Ref = ("ua", 68)
ANALOG_ITEM: Ref = ("ua", 2368)
MULTI_STATE: Ref = ("ua", 2376)
COMPONENT: Ref = ("ua", 47)
HAS_PROPERTY: Ref = ("ua", 46)
SUBTYPE: Ref = ("ua", 45)
ORGANIZES: Ref = ("ua", 35)
MANDATORY: Ref = ("ua", 78)
PLACEHOLDER: Ref = ("ua", 11508)
DATA_TYPES = {
    "Boolean": 1, "Byte": 3, "UInt32": 7, "UInt64": 9, "Double": 11, "String": 12, "DateTime": 13,
    "LocalizedText": 21, "Argument": 296, "Range": 884, "EUInformation": 887,
}  # fmt: skip
ROOT = "Loop"
"""Id of the loop's own object; its browse name is the loop's name."""


@dataclass(frozen=True, slots=True)
class Node:
    """One node to be made."""

    ref: Ref
    kind: str
    """ObjectType, Object, Variable or Method."""
    name: str
    home: str
    """Whose browse name it is: "ua", "types" or "loop"."""
    parent: Ref
    reference: Ref
    """From the parent to this node."""
    meaning: str
    type: Ref | None = None
    """Type definition."""
    rule: Ref | None = None
    """Modelling rule, inside types."""
    data: str = ""
    """Data type of a variable."""
    array: bool = False
    value: Any = None
    """Of a constant property."""
    method: Method | None = None
    subject: str = ""
    """Name of the output a method belongs to."""
    variable: Variable | None = None
    signals: tuple[Signal, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class _Where:
    """Where the members of a type are being made."""

    space: str
    rule: Ref | None
    outputs: tuple[Signal, ...] = ()
    observations: tuple[Signal, ...] = ()
    subject: Signal | None = None

    def ref(self, owner: str, name: str) -> Ref:
        """Id of a member."""
        return self.space, f"{owner}.{name}" if owner else name


def type_nodes() -> Iterator[Node]:
    """Every type with its members, as the NodeSet file holds them."""
    for kind in TYPES.values():
        ref: Ref = ("types", kind.name)
        yield Node(ref, "ObjectType", kind.name, "types", BASE_OBJECT, SUBTYPE, kind.meaning)
        where = _Where("types", MANDATORY)
        for member in kind.members:
            yield from _member(where, ref, kind.name, member)


def loop_nodes(name: str, outputs: SignalSet, observations: SignalSet) -> Iterator[Node]:
    """The nodes of one loop, with the plant's own signals in place of the placeholders."""
    ref: Ref = ("loop", ROOT)
    kind = TYPES["LoopType"]
    yield Node(
        ref, "Object", name, "loop", OBJECTS, ORGANIZES, kind.meaning, type=("types", kind.name)
    )
    where = _Where("loop", None, outputs.signals, observations.signals)
    for member in kind.members:
        yield from _member(where, ref, "", member)


def _member(where: _Where, parent: Ref, owner: str, member: Member) -> Iterator[Node]:
    if isinstance(member, Variable):
        yield from _variable(where, parent, owner, member)
    elif isinstance(member, Method):
        yield from _method(where, parent, owner, member)
    elif isinstance(member, Part):
        yield from _part(where, parent, owner, member)
    else:
        yield from _many(where, parent, owner, member)


def _part(
    where: _Where, parent: Ref, owner: str, part: Part, home: str = "types"
) -> Iterator[Node]:
    ref = where.ref(owner, part.name)
    yield Node(
        ref, "Object", part.name, home, parent, COMPONENT, part.meaning,
        type=("types", part.type), rule=where.rule,
    )  # fmt: skip
    inner = where
    if where.rule is not None:
        inner = _Where(where.space, MANDATORY)
    for member in TYPES[part.type].members:
        yield from _member(inner, ref, str(ref[1]), member)


def _many(where: _Where, parent: Ref, owner: str, many: Many) -> Iterator[Node]:
    if where.rule is not None:
        loose = _Where(where.space, PLACEHOLDER)
        if isinstance(many.member, Part):
            yield from _part(loose, parent, owner, many.member)
        else:
            yield from _variable(loose, parent, owner, many.member)
        return
    member = many.member
    if isinstance(member, Part):
        for signal in where.outputs:
            meaning = signal.meaning or member.meaning
            inner = _Where(where.space, None, subject=signal)
            yield from _part(inner, parent, owner, Part(signal.name, member.type, meaning), "loop")
        return
    for signal in where.observations:
        made = Variable(signal.name, member.kind, signal.meaning or member.meaning, analog=True)
        inner = _Where(where.space, None, subject=signal)
        yield from _variable(inner, parent, owner, made, "loop")


def _variable(
    where: _Where, parent: Ref, owner: str, variable: Variable, home: str = "types"
) -> Iterator[Node]:
    ref = where.ref(owner, variable.name)
    kind = BASE_VARIABLE
    if variable.analog:
        kind = ANALOG_ITEM
    elif variable.choices:
        kind = MULTI_STATE
    yield Node(
        ref, "Variable", variable.name, home, parent, COMPONENT, variable.meaning,
        type=kind, rule=where.rule, data=variable.kind, array=variable.array, variable=variable,
    )  # fmt: skip
    properties: list[tuple[str, str, Any, bool]] = []
    if variable.choices:
        properties.append(("EnumStrings", "LocalizedText", variable.choices, True))
    if variable.analog:
        signal, bounds, unit = where.subject, None, None
        if variable.unit:
            bounds, unit = (variable.low, variable.high), variable.unit
        elif signal is not None:
            bounds, unit = (signal.low, signal.high), signal.unit
        properties.append(("EURange", "Range", bounds, False))
        properties.append(("EngineeringUnits", "EUInformation", unit, False))
    inside = None if where.rule is None else MANDATORY
    for name, data, value, array in properties:
        yield Node(
            (where.space, f"{ref[1]}.{name}"), "Variable", name, "ua", ref, HAS_PROPERTY, "",
            type=PROPERTY, rule=inside, data=data, array=array, value=value,
        )  # fmt: skip


def _method(where: _Where, parent: Ref, owner: str, method: Method) -> Iterator[Node]:
    ref = where.ref(owner, method.name)
    yield Node(
        ref, "Method", method.name, "types", parent, COMPONENT, method.meaning, rule=where.rule,
        method=method, subject=where.subject.name if where.subject is not None else "",
    )  # fmt: skip
    inside = None if where.rule is None else MANDATORY
    lists: list[tuple[str, tuple[Argument, ...]]] = [("OutputArguments", RESULTS)]
    if method.arguments:
        lists.insert(0, ("InputArguments", method.arguments))
    for name, arguments in lists:
        yield Node(
            (where.space, f"{ref[1]}.{name}"), "Variable", name, "ua", ref, HAS_PROPERTY, "",
            type=PROPERTY, rule=inside, data="Argument", array=True, value=arguments,
        )  # fmt: skip
