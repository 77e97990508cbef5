"""From our numbers to OPC UA values: variants of a wanted type, time stamps."""

from datetime import datetime, timedelta
from math import isfinite
from typing import Any, TypeAlias

from asyncua import ua

Stamp: TypeAlias = float | datetime | str | None
"""A rule for a time stamp: seconds of offset, a fixed time, "none", or None for the normal one."""

_INTEGERS = {
    ua.VariantType[name]
    for name in ("SByte", "Byte", "Int16", "UInt16", "Int32", "UInt32", "Int64", "UInt64")
}


def make_variant(value: Any, kind: ua.VariantType) -> ua.Variant:  # noqa: ANN401
    """Variant of `kind`; a list becomes an array, None a null."""
    if value is None:
        return ua.Variant(None, ua.VariantType.Null)
    if isinstance(value, list):
        return ua.Variant(value, kind, is_array=True)
    if kind in _INTEGERS:
        return ua.Variant(int(value) if isfinite(value) else 0, kind)
    if kind is ua.VariantType.String:
        return ua.Variant(str(value), kind)
    return ua.Variant(value, kind)


def stamped(rule: Stamp, normal: datetime) -> datetime | None:
    """The stamp that `rule` makes of the normal one."""
    if rule is None:
        return normal
    if rule == "none":
        return None
    if isinstance(rule, datetime):
        return rule
    return normal + timedelta(seconds=float(rule))
