"""Bounds on what a message may unfold to: few bytes must not become much memory or time.

A size limit on messages is not enough. An array of Null takes no bytes at all for its elements, so
forty bytes may announce two thousand million of them; a matrix may announce sizes that its values
do not fill; a value may hold values that hold values. asyncua believes all of it, so its decoders
are replaced here by ones that do not. (OPC 10000-6, 5.2.2.16: elements and dimensions must agree.)
"""

import functools
import threading
from collections.abc import Callable
from math import inf, prod
from typing import Any

from asyncua import ua
from asyncua.ua import ua_binary
from asyncua.ua.uaerrors import UaError

MAX_ELEMENTS = 10_000
"""Of one list of structures, texts or values; numbers may be as many as the message is long."""
MAX_TOTAL = 30_000
"""Of all such lists of one message: a megabyte of one-byte elements would take seconds."""
MAX_DEPTH = 16
"""Values within values."""
_UNPACK_INT32 = ua_binary.Primitives.Int32.unpack


class _State(threading.local):
    """Of the message that this thread decodes; decoding never awaits."""

    depth = 0
    left = inf
    """Elements it may still hold. Threads that never call `new_message` are not counted."""


_STATE = _State()


def new_message() -> None:
    """What is decoded from here on, in this thread, is another message."""
    _STATE.left = MAX_TOTAL


def bound_decoding() -> None:
    """Replace asyncua's decoders of arrays and matrices, in this process. Idempotent."""
    if ua_binary._reshape is _reshaped:
        return
    ua_binary._create_uatype_array_deserializer = _array_decoder
    ua_binary._create_list_deserializer = _list_decoder
    ua_binary._reshape = _reshaped
    ua_binary.variant_from_binary = _depth_limited(ua_binary.variant_from_binary)
    ua_binary.extensionobject_from_binary = _depth_limited(ua_binary.extensionobject_from_binary)
    for cached in (
        ua_binary._create_uatype_deserializer,
        ua_binary._create_type_deserializer,
        ua_binary._create_dataclass_deserializer,
    ):
        cached.cache_clear()


def _count(data: Any) -> int:  # noqa: ANN401  (asyncua's buffer)
    """Announced number of elements, each of which takes one byte at the least.

    Raises:
        UaError: more than there is room for.
    """
    count: int = _UNPACK_INT32(data)
    if count > min(MAX_ELEMENTS, len(data)):
        raise UaError(f"a list of {count} elements is announced, {len(data)} bytes follow")
    _STATE.left -= max(count, 0)
    if _STATE.left < 0:
        raise UaError(f"lists of more than {MAX_TOTAL} elements in one message")
    return max(count, -1)


@functools.cache
def _array_decoder(kind: ua.VariantType) -> Callable[[Any], list[Any] | None]:
    """Decoder of an array of one built-in type."""
    fast = getattr(ua_binary.Primitives1, kind.name, None)
    if fast is not None:

        def numbers(data: Any) -> list[Any] | None:  # noqa: ANN401
            count = _UNPACK_INT32(data)
            return None if count < 0 else list(fast.unpack_array(data, count) or ())

        return numbers
    element: Callable[[Any], Any] | None = None

    def others(data: Any) -> list[Any] | None:  # noqa: ANN401
        nonlocal element
        if element is None:
            element = ua_binary._create_uatype_deserializer(kind)
        count = _count(data)
        if kind == ua.VariantType.Null and count > 0:
            raise UaError("an array of nothing")
        return None if count < 0 else [element(data) for _ in range(count)]

    return others


@functools.cache
def _list_decoder(kind: Any) -> Callable[[Any], list[Any]]:  # noqa: ANN401
    """Decoder of a list of structures."""
    element: Callable[[Any], Any] | None = None

    def decode(data: Any) -> list[Any]:  # noqa: ANN401
        nonlocal element
        if element is None:  # as late as in the library: structures may contain themselves
            element = ua_binary._create_type_deserializer(kind, type(None))
        return [element(data) for _ in range(_count(data))]

    return decode


def _reshaped(flat: list[Any], sizes: list[int] | None) -> list[Any]:
    """Nested lists of the announced sizes.

    Raises:
        UaError: sizes and values do not agree.
    """
    if not sizes:
        return flat
    if min(sizes) < 0 or len(sizes) > MAX_DEPTH or prod(sizes) != len(flat):
        raise UaError(f"dimensions {sizes[:MAX_DEPTH]} of an array of {len(flat)} values")
    for size in reversed(sizes[1:]):
        flat = [flat[i : i + size] for i in range(0, len(flat), size)] if size else []
    return flat


def _depth_limited(decode: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`decode`, but not within itself more than `MAX_DEPTH` times."""

    def limited(data: Any) -> Any:  # noqa: ANN401
        if _STATE.depth >= MAX_DEPTH:
            raise UaError(f"values nested deeper than {MAX_DEPTH}")
        _STATE.depth += 1
        try:
            return decode(data)
        finally:
            _STATE.depth -= 1

    return limited
