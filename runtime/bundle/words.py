"""What a bundle says about itself, for people: sections that fit a terminal of 80 columns."""

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

WIDTH = 80
_VALUE = 30
"""Column in which values begin."""


def sections(found: Mapping[str, Any]) -> str:
    """The result of `inspect_bundle` as text; a controller of `train --quick` says so on top."""
    return "\n".join(_lines(found))


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    manifest = found["manifest"]
    made = manifest["provenance"]
    if made.get("quick"):
        yield "!! TRAINED WITH --quick: to see the tool work, no controller for a plant !!"
        yield ""
    yield f"{manifest['name']} v{manifest['version']} for plant {manifest['plant_id']}"
    yield "nothing of this is verified: steadyhand bundle verify"
    yield from _section("signed")
    yield _row("valid from", manifest["not_before"])
    yield _row("valid until", manifest["not_after"])
    yield _row("key", found["signed_with"])
    yield _row("purpose", manifest["purpose"])
    yield _row("manifest SHA-256", found["manifest_sha256"])
    yield from _section("what was measured")
    for name, value in manifest["evidence"].items():
        yield _row(name, value)
    yield from _section("how it was made")
    for name, value in made.items():
        yield _row(name, value)
    yield from _section(
        f"outputs ({manifest['action_semantics']}, every {manifest['period_s']:g} s)"
    )
    for signal in manifest["outputs"]:
        rate = "" if signal["rate_per_s"] is None else f", at most {signal['rate_per_s']:.4g}/s"
        yield _row(signal["name"], _range(signal) + rate)
    yield from _section("observations: what the plant may show → what it was trained on")
    for signal in manifest["observations"]:
        seen = manifest["envelope"].get(signal["name"])
        trained = "" if seen is None else f" → {seen['low']:.4g} to {seen['high']:.4g}"
        yield _row(signal["name"], _range(signal) + trained)
    yield from _section("files")
    for name, size in found["sizes"].items():
        yield _row(name, f"{size} bytes")


def _section(title: str) -> Iterator[str]:
    yield ""
    yield title


def _row(name: str, value: object) -> str:
    """A name and its value; what does not fit goes on below itself."""
    shown = f"{value:.4g}" if isinstance(value, float) else str(value)
    rest = WIDTH - _VALUE
    lines = textwrap.wrap(shown, rest) or [""]
    return f"\n{' ' * _VALUE}".join([f"  {name:<{_VALUE - 3}} {lines[0]}", *lines[1:]])


def _range(signal: Mapping[str, Any]) -> str:
    return f"{signal['low']:.4g} to {signal['high']:.4g} {signal['unit']}"
