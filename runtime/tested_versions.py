"""Are the libraries those that the tests ran with? Others may do as well; nobody has tried."""

from functools import cache
from importlib.metadata import PackageNotFoundError, version

from steadyhand.controllers.frames import Fault
from steadyhand.controllers.reasons import ReasonCode

TESTED = {
    "asyncua": "2.1.0",
    "cryptography": "50.0.2",
    "numba": "0.68.1",
    "numpy": "2.4.6",
    "onnxruntime": "1.32.0",
    "pydantic": "2.14.4",
}
"""What constraints.txt pins of what drives a plant, talks to it or judges a bundle."""
ALSO_CALLED = {"onnxruntime": ("onnxruntime-gpu",)}
"""Distributions that bring the same library under another name."""


def installed(name: str) -> str:
    """Version of a library; empty where it is not installed."""
    for distribution in (name, *ALSO_CALLED.get(name, ())):
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return ""


@cache
def software() -> str:
    """Our own version; "unknown" where we run without being installed."""
    return installed("steadyhand") or "unknown"


def untested() -> tuple[Fault, ...]:
    """A fault for each library that is there in another version, by major and minor number.

    What is not there at all is told by whatever needs it; a patch level is what one should take.
    """
    found = []
    for name, tested in TESTED.items():
        here = installed(name)
        if here and here.split(".")[:2] != tested.split(".")[:2]:
            text = f"{name} {here}; tested with {tested}"
            found.append(Fault(ReasonCode.ENV_VERSION, text=text))
    return tuple(found)
