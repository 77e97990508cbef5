"""The report of a self-test: for the file of an acceptance test (factory or site), and as data."""

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from steadyhand.runtime.selftest.rows import Place, Result


@dataclass(frozen=True, slots=True)
class Heading:
    """What was tested, when and where."""

    name: str
    plant: str
    config: str
    config_digest: str
    bundle: str
    """Name, version and hash of the controller's bundle, or none."""
    steadyhand: str
    started: str
    machine: str
    python: str
    wall_period_s: float
    """Real time of one period over the network."""

    @classmethod
    def of(
        cls, name: str, plant: str, config: Path, digest: str, bundle: str, wall_period_s: float
    ) -> "Heading":
        """For this machine, now."""
        system = platform.uname()
        return cls(
            name,
            plant,
            config.name,
            digest,
            bundle,
            version("steadyhand"),
            datetime.now(UTC).isoformat(timespec="seconds"),
            f"{system.node}: {system.system} {system.release} {system.machine}, "
            f"{os.cpu_count()} cores",
            platform.python_version(),
            wall_period_s,
        )


def as_data(heading: Heading, results: Sequence[Result]) -> dict[str, Any]:
    """Everything, JSON-ready."""
    return {
        "report": "steadyhand selftest",
        **{name: getattr(heading, name) for name in Heading.__slots__},
        "rows": len(results),
        "passed": sum(one.passed for one in results),
        "failed": [one.row.id for one in results if not one.passed],
        "promises": PROMISES,
        "results": [_row(one) for one in results],
    }


def _row(one: Result) -> dict[str, Any]:
    row = one.row
    return {
        "id": row.id,
        "where": str(row.place),
        "injected": row.injected,
        "expected": row.expected,
        "seen": list(one.seen),
        "drove": one.worst.name.lower(),
        "reaction_ticks": one.reaction_ticks,
        "reaction_s": one.reaction_s,
        "back_s": one.back_s,
        "writes": one.writes,
        "passed": one.passed,
        "findings": one.findings,
    }


PROMISES = {
    "I1": "no number arrived that is not finite",
    "I2": "no command arrived outside the absolute limits",
    "I3": "no step arrived above the rate limit",
    "I4": "nothing arrived without the plant's grant, but for what was on the wire",
    "I5": "no command was computed from data older than its limit",
    "I6": "exactly one writer",
    "I7": "every command has a record of the same value, and a reason where one is due",
    "I8": "no command was written after its deadline",
}


def as_markdown(heading: Heading, results: Sequence[Result]) -> str:
    """For people, and for their signatures."""
    failed = [one for one in results if not one.passed]
    verdict = "PASSED" if not failed else f"FAILED: {len(failed)} of {len(results)} rows"
    lines = [
        f"# Fault table of {heading.name}",
        "",
        f"**{verdict}.** Every row injects one fault into a virtual twin of this configuration. "
        "An observer at the plant's end of the wire checks after each row:",
        "",
        *(f"- {number}: {text}" for number, text in PROMISES.items()),
        "",
        "| | |",
        "|---|---|",
        f"| plant | {heading.plant} |",
        f"| configuration | {heading.config}, effective SHA-256 `{heading.config_digest}` |",
        f"| bundle | {heading.bundle} |",
        f"| steadyhand | {heading.steadyhand}, Python {heading.python} |",
        f"| date | {heading.started} |",
        f"| machine | {heading.machine} |",
        f"| rows | {len(results)}, passed {len(results) - len(failed)} |",
        f"| pace | {Place.WIRE}: one period in {heading.wall_period_s:g} s; "
        f"{Place.INSIDE}: lock-step |",
        "",
        "The twin has this plant's equations, numbers and limits behind an OPC UA server of its "
        "own; the addresses, certificates and network of the real plant are not part of it.",
    ]
    if failed:
        lines += ["", "## Failed", ""]
        lines += [f"- **{one.row.id}** {_cell('; '.join(one.findings))}" for one in failed]
    lines += ["", "## Rows"]
    for place in (Place.WIRE, Place.INSIDE):
        here = [one for one in results if one.row.place is place]
        if not here:
            continue
        lines += [
            "",
            f"### {place[0].upper()}{place[1:]}",
            "",
            "| fault | injected | expected | seen | reaction | back | |",
            "|---|---|---|---|---|---|---|",
        ]
        lines += [_line(one) for one in here]
    lines += ["", "Tested by: ______________________  Witnessed by: ______________________", ""]
    return "\n".join(lines)


def _line(one: Result) -> str:
    row = one.row
    if one.reaction_s is not None:
        reaction = f"{one.reaction_s:.2f} s"
    elif one.reaction_ticks is not None:
        reaction = f"tick {one.reaction_ticks}"
    else:
        reaction = ""
    back = "" if one.back_s is None else f"{one.back_s:.1f} s"
    seen = f"{' '.join(one.seen) or 'nothing'}; drove: {one.worst.name.lower()}"
    cells = (row.id, row.injected, row.expected, seen, reaction, back)
    verdict = "pass" if one.passed else "**FAIL**"
    return f"| {' | '.join(_cell(cell) for cell in cells)} | {verdict} |"


def _cell(text: str) -> str:
    """Text that cannot break a table."""
    return " ".join(text.replace("|", "/").split())
