"""JSON as strict as a signed file can ask: UTF-8, no BOM, no CR, no doubled key, finite numbers.

Python's own reader keeps the last of two equal keys and accepts NaN; both would let two readers
see two different files behind one signature.
"""

import json
from math import isfinite
from typing import Any

from steadyhand.controllers.errors import BundleError

MAX_BYTES = 16 * 2**20


def parse_json(
    data: bytes,
    name: str,
    code: str = "BUNDLE_MANIFEST",
    remedy: str = "write it with `steadyhand bundle pack`",
) -> Any:  # noqa: ANN401
    """Value of the JSON text `data`.

    Args:
        data: the exact bytes.
        name: what to call the file in messages.
        code: code of the error raised.
        remedy: what to do about it.

    Raises:
        BundleError: not strict JSON; the message says where.
    """

    def refuse(text: str) -> BundleError:
        return BundleError(code, f"{name}: {text}; {remedy}")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = dict(pairs)
        if len(names) != len(pairs):
            doubled = sorted({key for key, _ in pairs if [k for k, _ in pairs].count(key) > 1})
            raise refuse(f"key {doubled[0]!r} occurs twice")
        return names

    def number(text: str) -> float:
        value = float(text)
        if not isfinite(value):
            raise refuse(f"number {text[:40]} is too large")
        return value

    def constant(text: str) -> float:
        raise refuse(f"{text} is not a number")

    if len(data) > MAX_BYTES:
        raise refuse(f"{len(data)} bytes, at most {MAX_BYTES} are allowed")
    if data.startswith(b"\xef\xbb\xbf"):
        raise refuse("starts with a byte order mark")
    if b"\r" in data:
        raise refuse("holds a carriage return: line ends must be LF")
    try:
        return json.loads(
            data.decode("utf-8"),
            object_pairs_hook=once,
            parse_float=number,
            parse_constant=constant,
        )
    except (ValueError, RecursionError) as error:  # too deep is a recursion error
        raise refuse(f"is not JSON: {error}") from None


def canonical_json(value: Any) -> bytes:  # noqa: ANN401
    """The one way this project writes `value`: sorted keys, one-space indent, ASCII, LF.

    Raises:
        ValueError: a number is NaN or infinite.
    """
    text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=True, allow_nan=False)
    return text.encode("ascii") + b"\n"
