"""A method call becomes a command on the desk; a refusal becomes a StatusCode and a sentence.

Every call answers with two outputs, Code and Text, also beside a bad StatusCode.
"""

from collections.abc import Mapping
from math import isfinite
from typing import Any

from asyncua import ua

from steadyhand.controllers.errors import RequestError
from steadyhand.runtime.operator_protocol import TEXT_LIMIT
from steadyhand.runtime.scada.model import Argument
from steadyhand.runtime.scada.space import Bound

_CODES = ua.StatusCodes
STATUS = {
    # who
    "ROLE": _CODES.BadUserAccessDenied,
    "DENIED": _CODES.BadUserAccessDenied,
    # what
    "ARGUMENTS": _CODES.BadInvalidArgument,
    "REASON_MISSING": _CODES.BadInvalidArgument,
    "UNKNOWN_COMMAND": _CODES.BadMethodInvalid,
    "UNKNOWN_OUTPUT": _CODES.BadNotFound,
    "UNKNOWN_CODE": _CODES.BadNotFound,
    "UNKNOWN_MODE": _CODES.BadNotFound,
    "NO_ALARM": _CODES.BadNotFound,
    "OUT_OF_RANGE": _CODES.BadOutOfRange,
    "DURATION": _CODES.BadOutOfRange,
    # now
    "CONFLICT": _CODES.BadInvalidState,
    "ACK_DENIED": _CODES.BadInvalidState,
    "SWAP_UNDER_WAY": _CODES.BadInvalidState,
    "NO_OVERRIDE": _CODES.BadNothingToDo,
    "NOT_SHELVED": _CODES.BadConditionNotShelved,
    "CRITICAL": _CODES.BadRequestNotAllowed,
    "REFUSED": _CODES.BadRequestNotAllowed,
    "STARTING": _CODES.BadResourceUnavailable,
    "STOPPING": _CODES.BadShutdown,
    "QUEUE_FULL": _CODES.BadTooManyOperations,
    "RATE": _CODES.BadTooManyOperations,
    "TIMEOUT": _CODES.BadTimeout,
    "UNKNOWN": _CODES.BadWaitingForResponse,
    "INTERNAL": _CODES.BadInternalError,
}
"""StatusCode of each refusal. What is not named here is BadRequestNotAllowed."""
_KINDS = {"String": ua.VariantType.String, "Double": ua.VariantType.Double}
_NUMBERS = {
    ua.VariantType[name]
    for name in (
        "Double", "Float", "SByte", "Byte", "Int16", "UInt16", "Int32", "UInt32", "Int64", "UInt64",
    )
}  # fmt: skip


class Wrong(Exception):  # noqa: N818
    """A call that never gets to the desk; the status of each argument is for the client."""

    def __init__(
        self, status: int, text: str, code: str = "ARGUMENTS", each: tuple[int, ...] = ()
    ) -> None:
        super().__init__(text)
        self.status, self.text, self.code, self.each = status, text, code, each


def arguments_of(bound: Bound, given: list[Any] | None) -> dict[str, Any]:
    """The desk's arguments from a call's variants.

    Raises:
        Wrong: too few, too many, of another type, or too long.
    """
    wanted, given = bound.method.arguments, list(given or ())
    names = ", ".join(f"{one.name} ({one.kind})" for one in wanted) or "nothing"
    if len(given) < len(wanted):
        raise Wrong(_CODES.BadArgumentsMissing, f"{bound.method.name} takes {names}")
    if len(given) > len(wanted):
        raise Wrong(_CODES.BadTooManyArguments, f"{bound.method.name} takes {names}")
    made: dict[str, Any] = {bound.method.subject: bound.subject} if bound.method.subject else {}
    each, words = [], []
    for argument, variant in zip(wanted, given, strict=True):
        status, word = _check(argument, variant)
        each.append(status)
        if word:
            words.append(word)
            continue
        if argument.kind == "Double":
            made[argument.key] = float(variant.Value)
        elif variant.Value or bound.method.command != "ack":  # acknowledging nothing means all
            made[argument.key] = variant.Value or ""
    if words:
        raise Wrong(_CODES.BadInvalidArgument, "; ".join(words), each=tuple(each))
    return made


def _check(argument: Argument, variant: Any) -> tuple[int, str]:  # noqa: ANN401
    """Status of one argument, and what is wrong with it; empty: nothing."""
    value = getattr(variant, "Value", None)
    kind = getattr(variant, "VariantType", None)
    if isinstance(value, (list, tuple)) or getattr(variant, "is_array", False):
        return _CODES.BadTypeMismatch, f"{argument.name}: one {argument.kind}, no list"
    if argument.kind == "Double":
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if kind not in _NUMBERS or not number or value is None:
            return _CODES.BadTypeMismatch, f"{argument.name}: a number ({argument.kind})"
        if not isfinite(value):
            return _CODES.BadOutOfRange, f"{argument.name}: a finite number"
        return _CODES.Good, ""
    if kind is not _KINDS["String"] or not (value is None or isinstance(value, str)):
        return _CODES.BadTypeMismatch, f"{argument.name}: text ({argument.kind})"
    if argument.choices and value not in argument.choices:
        return _CODES.BadOutOfRange, f"{argument.name}: one of {', '.join(argument.choices)}"
    if value and (len(value) > TEXT_LIMIT or not value.isprintable()):
        return _CODES.BadOutOfRange, f"{argument.name}: printable text of at most {TEXT_LIMIT}"
    return _CODES.Good, ""


def done(answer: Mapping[str, Any]) -> tuple[Any, str]:
    """Result of a call that was carried out, and its text."""
    text = ", ".join(f"{key} {_word(value)}" for key, value in answer.items())
    return _result(_CODES.Good, "OK", text), text


def refused(error: RequestError) -> Any:  # noqa: ANN401
    """Result of a call that was refused."""
    return _result(STATUS.get(error.code, _CODES.BadRequestNotAllowed), error.code, error.message)


def unfit(wrong: Wrong) -> Any:  # noqa: ANN401
    """Result of a call that never got to the desk."""
    result = _result(wrong.status, wrong.code, wrong.text)
    result.InputArgumentResults = [ua.StatusCode(status) for status in wrong.each]
    return result


def no_method(text: str, status: int = _CODES.BadMethodInvalid) -> Any:  # noqa: ANN401
    """Result of a call to something that is not there."""
    return _result(status, "UNKNOWN_COMMAND", text)


def _result(status: int, code: str, text: str) -> Any:  # noqa: ANN401
    result = ua.CallMethodResult()
    result.StatusCode = ua.StatusCode(status)
    result.OutputArguments = [
        ua.Variant(code, ua.VariantType.String),
        ua.Variant(text, ua.VariantType.String),
    ]
    return result


def _word(value: Any) -> str:  # noqa: ANN401
    if isinstance(value, (list, tuple)):
        return ", ".join(str(item) for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
