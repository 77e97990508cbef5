"""What a configuration is made of: names, files, quantities; and how a value is refused."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from steadyhand.adapters.input_file import CREDENTIALS
from steadyhand.adapters.opcua.settings import INSECURE_WORD
from steadyhand.runtime.quantity import quantity

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,62}$")]
SignalName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")]
NodeText = Annotated[str, Field(min_length=1, max_length=512)]
HostName = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]{0,252}[a-z0-9])?(:[0-9]{1,5})?$")]
CREDENTIAL = "${" + CREDENTIALS + "}"
"""How the name of a file begins that is a credential of the service."""
_VARIABLE = re.compile(r"\$[A-Za-z_{]")


def _as_it_stands(text: str) -> str:
    """Refuse what a shell would replace and would be taken for a folder's name here, and a
    credential with folders.
    """
    if text.startswith("~"):
        # a service has another home than the person who checks its file, or none at all: what
        # `check` found would not be what `run` opens
        raise refuse("CFG_FILE", f"{text!r}: ~ is not replaced; write the whole path")
    name = text.removeprefix(f"{CREDENTIAL}/")
    if _VARIABLE.search(name) or (name != text and ("/" in name or name in (".", ".."))):
        raise refuse(
            "CFG_FILE",
            f"{text!r}: only {CREDENTIAL}/NAME is understood; other variables are not replaced",
        )
    return text


FileText = Annotated[
    str,
    Field(min_length=1, max_length=4096, pattern=r"^[^\x00]+$"),
    AfterValidator(_as_it_stands),
]


def _integer(value: object) -> object:
    """Refuse what only equals a whole number: true is 1 to a comparison, and so is 1.0."""
    if type(value) is not int:
        raise refuse("CFG_VERSION", f"{value!r} is no whole number; write 1")
    return value


SchemaVersion = Annotated[Literal[1], BeforeValidator(_integer)]
Count = Annotated[int, Field(ge=1, le=100_000)]
DAY_S = 86_400.0
MIB = 2.0**20
SHORTEST_PERIOD_S = 1e-3
Period: Any = quantity("s", SHORTEST_PERIOD_S, DAY_S)
Request: Any = quantity("s", 1e-3, 600.0)
"""Of a request over a network: none is answered in less than the smallest value."""
Answer: Any = quantity("s", 1e-4, 600.0)
"""The policy's answer: its fastest takes some ten microseconds, and a process switch."""
PlantTime: Any = quantity("s", 1e-3, 30.0 * DAY_S)
ShadowTime: Any = quantity("s", 60.0, 366.0 * DAY_S)
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Memory: Any = quantity("byte", 256.0 * MIB, 2.0**40)
"""Of the policy's process: the inference engine alone takes most of the smallest value."""
SignEvery: Any = quantity("s", 1.0, DAY_S)
SegmentSize: Any = quantity("byte", MIB, 2.0**40)
KeepSize: Any = quantity("byte", MIB, 2.0**50)


class Section(BaseModel):
    """Strict: no unknown keys, no conversion of types, no NaN."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, hide_input_in_errors=False
    )


def refuse(code: str, message: str) -> PydanticCustomError:
    """A problem found by a rule of ours; braces in `message` are kept as they are."""
    return PydanticCustomError(f"steadyhand.{code}", "{text}", {"text": message})


def only_the_word(
    word: str, given: str | None, code: str, key: str = "", better: str = "remove the line"
) -> None:
    """Something that nobody should want takes a long word, and no other.

    Args:
        word: the one that is understood.
        given: what stands there; None: nothing.
        code: of the problem.
        key: it stands under, where the problem's place does not say so.
        better: what to do instead.

    Raises:
        PydanticCustomError: another word stands there.
    """
    if given not in (None, word):
        raise refuse(code, f"{key}{given!r}: only the word {word} is understood; better: {better}")


def insecure(word: str | None, passwords: str | None) -> bool:
    """Is encryption given up?

    Args:
        word: what stands under insecure_no_encryption.
        passwords: key of a file of passwords, where it is set.

    Raises:
        PydanticCustomError: by another word, or with passwords.
    """
    if word is None:
        return False
    only_the_word(INSECURE_WORD, word, "CFG_SECURITY", "insecure_no_encryption=")
    if passwords:
        raise refuse(
            "CFG_SECURITY",
            "a password that is not encrypted could be read by anyone; "
            f"remove {passwords} or insecure_no_encryption",
        )
    return True
