"""Wire types: what a number becomes on the wire, and what a DataValue is worth.

Only full DataValues are used. A bulk read that returns bare values hides a Bad status as None and
gives an Uncertain number as if it were good.
"""

from dataclasses import dataclass
from math import ceil, floor, inf, nan, nextafter
from typing import Any

import numpy as np
from asyncua import ua
from numpy.typing import NDArray

from steadyhand.controllers.signals import ROUNDING, Vector

GOOD, UNCERTAIN, BAD = 0, 1, 2
TICKS_PER_S = 10_000_000
"""OPC UA stamps count 100 ns since 1601-01-01 UTC."""
BAD_STATUS = 0x80000000
"""From here on a StatusCode says that nothing came of it (OPC 10000-4, 7.38)."""
EPOCH_1601_S = 11_644_473_600.0
"""Seconds from 1601-01-01 to 1970-01-01."""
FIRST_SOUND_TICK = int((EPOCH_1601_S + 366 * 86_400) * TICKS_PER_S)
"""Stamps before 1971 are clocks that were never set (1601, 1970), not old samples."""


@dataclass(frozen=True, slots=True)
class WireType:
    """One scalar built-in type."""

    name: str
    variant: Any
    code: str
    """NumPy type of the encoded value, little-endian."""
    low: float
    high: float
    integral: bool


def _integer(name: str, code: str) -> WireType:
    bounds = np.iinfo(np.dtype(code))
    return WireType(
        name, getattr(ua.VariantType, name), code, float(bounds.min), float(bounds.max), True
    )


WIRE_TYPES: dict[str, WireType] = {
    "Boolean": WireType("Boolean", ua.VariantType.Boolean, "?", 0.0, 1.0, True),
    "SByte": _integer("SByte", "<i1"),
    "Byte": _integer("Byte", "<u1"),
    "Int16": _integer("Int16", "<i2"),
    "UInt16": _integer("UInt16", "<u2"),
    "Int32": _integer("Int32", "<i4"),
    "UInt32": _integer("UInt32", "<u4"),
    "Int64": _integer("Int64", "<i8"),
    "UInt64": _integer("UInt64", "<u8"),
    "Float": WireType(
        "Float",
        ua.VariantType.Float,
        "<f4",
        float(np.finfo(np.float32).min),
        float(np.finfo(np.float32).max),
        False,
    ),
    "Double": WireType("Double", ua.VariantType.Double, "<f8", -inf, inf, False),
    "DateTime": WireType("DateTime", ua.VariantType.DateTime, "<i8", 0.0, inf, True),
}


def round_inside(value: float, kind: WireType, low: float, high: float) -> float:
    """Nearest value of the wire type to `value` that lies inside [low, high].

    Args:
        value: finite, wire units.
        kind: the node's declared type.
        low: lower limit, wire units.
        high: upper limit, wire units; some value of the type lies between (checked at start).

    Returns:
        A number the type holds exactly, never outside the limits *as stored*; never -0.0.
    """
    value = min(max(value, low), high)
    if kind.integral:
        return min(max(round(value), ceil(low)), floor(high)) + 0.0
    if kind.name != "Float":
        return value + 0.0
    single = float(np.float32(value))
    if single > high:
        single = float(np.nextafter(np.float32(single), np.float32(-inf)))
    elif single < low:
        single = float(np.nextafter(np.float32(single), np.float32(inf)))
    return single + 0.0


def in_wire_units(limit: float, scale: float) -> float:
    """A limit of an output in wire units; within `ROUNDING` of a whole number it is that number."""
    units = limit / scale
    near = float(round(units))
    return near if abs(near - units) <= ROUNDING * abs(units) else units


def holds_some_value(kind: WireType, low: float, high: float) -> bool:
    """Does the type hold any number inside [low, high], and both limits inside its range?

    Of whole numbers, the outermost ones inside the limits count: nothing beyond is ever written.
    """
    if kind.integral:
        return kind.low <= ceil(low) <= floor(high) <= kind.high
    if low < kind.low or high > kind.high:
        return False
    rounded = round_inside(nextafter(low, inf), kind, low, high)
    return low <= rounded <= high


def to_variant(value: float, kind: WireType) -> Any:  # noqa: ANN401
    """A typed Variant: a bare Python int or float is refused by servers as a type mismatch."""
    if kind.name == "Boolean":
        return ua.Variant(bool(value), kind.variant)
    return ua.Variant(int(value) if kind.integral else float(value), kind.variant)


def to_ticks(stamp: Any) -> int:  # noqa: ANN401
    """FILETIME ticks of a DateTime: 0 when missing, at least 1 when there is one."""
    return 0 if stamp is None else max(1, int(ua.datetime_to_win_epoch(stamp)))


def severity(status: NDArray[np.uint32]) -> NDArray[np.int8]:
    """(n,) GOOD, UNCERTAIN or BAD: the top two bits of a StatusCode."""
    top: NDArray[np.int8] = np.minimum(status >> np.uint32(30), 2).astype(np.int8)
    return top


_FORCED = np.array(
    [
        int(getattr(ua.StatusCodes, name)) >> 16
        for name in (
            "GoodLocalOverride",
            "GoodEdited",
            "GoodEdited_DependentValueChanged",
            "GoodEdited_DominantValueChanged",
            "GoodEdited_DominantValueChanged_DependentValueChanged",
            "GoodInitiateFaultState",
            "GoodFaultStateActive",
        )
    ]
)
"""Upper halves of the Good codes that say: a person or a fail-safe put this value here, not the
process (Good_LocalOverride: OPC 10000-8)."""


def is_forced(status: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """(n,) good, but not the process value; the code's lower half tells other things."""
    upper = status >> np.uint32(16)
    return np.isin(upper, _FORCED) if upper.any() else np.zeros(len(status), dtype=np.bool_)


def status_name(status: int) -> str:
    """The standard's name of a status code, or its number."""
    name, _ = ua.status_codes.get_name_and_doc(status)
    return name if name != "UnknownUaError" else f"0x{status:08X}"


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Decoded DataValues as columns."""

    values: Vector
    """(n,) wire units; NaN where there is no usable number."""
    status: NDArray[np.uint32]
    """(n,) StatusCode."""
    source: NDArray[np.int64]
    """(n,) source stamp, ticks; 0 where there is none."""
    server: NDArray[np.int64]
    """(n,) server stamp, ticks; 0 where there is none."""
    wrong: NDArray[np.bool_]
    """(n,) the sample is null, an array, or of another type than configured."""


def empty_samples(n: int) -> Samples:
    """Columns for `n` samples of which nothing is known."""
    return Samples(
        np.full(n, nan),
        np.full(n, BAD_STATUS, dtype=np.uint32),
        np.zeros(n, dtype=np.int64),
        np.zeros(n, dtype=np.int64),
        np.zeros(n, dtype=np.bool_),
    )


def decode(data_values: list[Any], kinds: tuple[WireType, ...]) -> Samples:
    """Columns from DataValues, one per kind. Never raises on what a server may send."""
    out = empty_samples(len(kinds))
    for i, (data_value, kind) in enumerate(zip(data_values, kinds, strict=True)):
        status = data_value.StatusCode
        code = 0 if status is None else int(status.value) & 0xFFFFFFFF
        out.status[i] = code
        out.source[i] = to_ticks(data_value.SourceTimestamp)
        out.server[i] = to_ticks(data_value.ServerTimestamp)
        if code >= BAD_STATUS:
            continue  # the value of a Bad sample means nothing
        variant = data_value.Value
        value = None if variant is None else variant.Value
        # a value within a value takes over its type, and hides that it is an array
        listed = variant is not None and (variant.is_array or isinstance(value, (list, tuple)))
        if value is None or listed or variant.VariantType != kind.variant:
            out.wrong[i] = True
        elif kind.name == "DateTime":
            out.values[i] = to_ticks(value)
        else:
            out.values[i] = value
    return out


def join_samples(parts: list[Samples]) -> Samples:
    """Columns of several replies, one after the other."""
    return Samples(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in Samples.__slots__)
    )
