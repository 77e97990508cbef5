"""Words between operator and loop: one JSON object per line, checked before anything sees it.

    server: {"hello": "steadyhand", "session": S, "role": R}
    client: {"session": S, "sequence": 1, "command": "mode", "arguments": {"mode": "full", …}}
    server: {"sequence": 1, "ok": true, "result": {…}}
            {"sequence": 1, "ok": false, "error": {"code": "ROLE", "message": "…"}}

A session belongs to one connection and its sequence numbers only grow, so that recorded bytes are
worth nothing. No command switches the safety filter off or widens a limit: there is none.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from math import isfinite
from typing import Any

import numpy as np

from steadyhand.controllers.errors import RequestError

LINE_LIMIT = 64 * 1024
TEXT_LIMIT = 256
SEQUENCE_LIMIT = 2**53


class Role(IntEnum):
    """What a person may do; each role includes those before it."""

    VIEW = 0
    OPERATE = 1
    ENGINEER = 2


class Door(StrEnum):
    """By which way a person's command comes in."""

    SOCKET = "socket"
    SCADA = "scada"
    PANEL = "panel"


_EVERYWHERE = frozenset(Door)
_NOT_ON_THE_PAGE = frozenset({Door.SOCKET, Door.SCADA})
_SOCKET = frozenset({Door.SOCKET})


@dataclass(frozen=True, slots=True)
class Spec:
    """One command: who may give it, what it takes, and by which doors it comes in."""

    role: Role
    required: Mapping[str, type]
    optional: Mapping[str, type]
    doors: frozenset[Door] = _EVERYWHERE


# The one table of who may do what. SCADA and the panel show the status without a command.
COMMANDS: Mapping[str, Spec] = {
    "status": Spec(Role.VIEW, {}, {}, _SOCKET),
    "mode": Spec(Role.OPERATE, {"mode": str}, {"reason": str}),
    "override": Spec(
        Role.OPERATE, {"output": str, "value": float, "reason": str, "for_s": float}, {}
    ),
    "clear-override": Spec(Role.OPERATE, {"output": str}, {}),
    "ack": Spec(Role.OPERATE, {}, {"code": str}),
    "shelve": Spec(Role.OPERATE, {"code": str, "reason": str, "for_s": float}, {}),
    "unshelve": Spec(Role.OPERATE, {"code": str}, {}),
    "stop": Spec(Role.OPERATE, {"reason": str}, {}, _NOT_ON_THE_PAGE),
    "swap": Spec(Role.ENGINEER, {"file": str, "reason": str}, {}, _NOT_ON_THE_PAGE),
}


@dataclass(frozen=True, slots=True)
class Request:
    """One command as it came in, well-formed."""

    session: str
    sequence: int
    command: str
    arguments: Mapping[str, Any]


def _no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key stands twice")
    return made


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number here")


def parse_object(line: bytes) -> dict[str, Any]:
    """One JSON object; no NaN or Infinity, no doubled keys, no deep nesting.

    Raises:
        RequestError: MALFORMED.
    """
    try:
        data = json.loads(
            line.decode("utf-8"), object_pairs_hook=_no_doubles, parse_constant=_no_constant
        )
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        raise RequestError("MALFORMED", "not one JSON object in UTF-8") from None
    if not isinstance(data, dict):
        raise RequestError("MALFORMED", "not a JSON object")
    return data


def parse_request(line: bytes) -> Request:
    """A well-formed request: known command, exactly its arguments, of the right types.

    Raises:
        RequestError: MALFORMED, UNKNOWN_COMMAND or ARGUMENTS; the message names what is wrong.
    """
    data = parse_object(line)
    wanted = {"session": str, "sequence": int, "command": str, "arguments": dict}
    if set(data) != set(wanted) or any(type(data[k]) is not kind for k, kind in wanted.items()):
        raise RequestError("MALFORMED", f"needs exactly {', '.join(wanted)}")
    if not 0 < data["sequence"] < SEQUENCE_LIMIT:
        raise RequestError("MALFORMED", "sequence: must be a positive integer below 2^53")
    arguments = check_arguments(data["command"], data["arguments"])
    return Request(data["session"], data["sequence"], data["command"], arguments)


def check_arguments(command: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Exactly the arguments of a known command, of the right types.

    Raises:
        RequestError: UNKNOWN_COMMAND or ARGUMENTS; the message names what is wrong.
    """
    spec = COMMANDS.get(command)
    if spec is None:
        raise RequestError("UNKNOWN_COMMAND", f"there are: {', '.join(COMMANDS)}")
    kinds = {**spec.required, **spec.optional}
    missing = sorted(set(spec.required) - set(given))
    if missing or set(given) - set(kinds):
        raise RequestError(
            "ARGUMENTS",
            f"{command} takes {', '.join(spec.required) or 'nothing'}"
            f"{' and perhaps ' + ', '.join(spec.optional) if spec.optional else ''}",
        )
    return {name: _checked(command, name, value, kinds[name]) for name, value in given.items()}


def _checked(command: str, name: str, value: object, kind: type) -> str | float:
    if kind is float and type(value) in (int, float):
        try:
            number = float(value)  # type: ignore[arg-type]
        except OverflowError:
            number = float("inf")
        if isfinite(number):
            return number
    if kind is str and isinstance(value, str) and len(value) <= TEXT_LIMIT and value.isprintable():
        return value
    what = "a finite number" if kind is float else f"printable text of at most {TEXT_LIMIT}"
    raise RequestError("ARGUMENTS", f"{command}: {name} must be {what}")


def encode(message: Mapping[str, Any]) -> bytes:
    """One line. Numbers that are not finite become null: JSON has no word for them."""
    return json.dumps(_plain(message), allow_nan=False, separators=(",", ":")).encode() + b"\n"


def _plain(value: Any) -> Any:  # noqa: ANN401  (any JSON-like tree)
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not isfinite(value):
        return None
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)
