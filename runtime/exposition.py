"""The page a scraper reads: families of samples as text.

Two formats of the same numbers: Prometheus text 0.0.4, which everything reads, and OpenMetrics 1.0,
which a scraper that asks for it gets. No sample carries a time stamp: a series that is not on the
page any more is stale at once, and one that is has the time of the scrape.
"""

import os
import resource
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import Literal

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
Kind = Literal["counter", "gauge", "histogram"]
Sample = tuple[Mapping[str, str], float]
LONGEST = 120
"""Characters of a label's value that are kept."""


@dataclass(frozen=True, slots=True)
class Family:
    """All series of one name. Counters end in `_total`."""

    name: str
    kind: Kind
    meaning: str
    samples: Sequence[Sample]

    def lines(self, open_metrics: bool = False) -> list[str]:
        """The lines of the page, the declaration first; none where there is no sample."""
        if not self.samples:
            return []
        declared = self.name.removesuffix("_total") if open_metrics else self.name
        lines = [f"# HELP {declared} {self.meaning}", f"# TYPE {declared} {self.kind}"]
        for labels, value in self.samples:
            lines.append(f"{self.name}{labelled(labels)} {value:.17g}")
        return lines


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts per bucket, not cumulated; one more than there are edges."""

    name: str
    meaning: str
    edges: Sequence[float]
    counts: Sequence[int]
    total: float

    def lines(self, open_metrics: bool = False) -> list[str]:
        """The lines of the page; both formats write a histogram alike."""
        del open_metrics
        lines = [f"# HELP {self.name} {self.meaning}", f"# TYPE {self.name} histogram"]
        running = 0
        for edge, count in zip((*self.edges, inf), list(self.counts), strict=True):
            running += count
            bound = "+Inf" if edge == inf else repr(edge)
            lines.append(f'{self.name}_bucket{{le="{bound}"}} {running}')
        return [*lines, f"{self.name}_sum {self.total:.17g}", f"{self.name}_count {running}"]


def page(families: Iterable[Family | Histogram], open_metrics: bool = False) -> bytes:
    """The whole page.

    Gives the processor away between families, so that a loop waiting for the interpreter waits for
    one family at most.
    """
    parts: list[str] = []
    for family in families:
        parts.extend(family.lines(open_metrics))
        time.sleep(0)
    if open_metrics:
        parts.append("# EOF")
    return ("\n".join(parts) + "\n").encode()


def wants_open_metrics(accept: str) -> bool:
    """Does the header `Accept` ask for OpenMetrics 1.0, and not like plain text better?"""
    wanted = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for part in accept.split(","):
        kind, *parameters = (word.strip() for word in part.split(";"))
        given = dict(word.partition("=")[::2] for word in parameters)
        if kind in wanted and given.get("version", "1.0.0") in ("1.0.0", "0.0.4"):
            try:
                quality = float(given.get("q", "1"))
            except ValueError:
                quality = 0.0
            wanted[kind] = max(wanted[kind], quality)
    asked, plain = wanted.values()
    return asked > 0.0 and asked >= plain


def labelled(labels: Mapping[str, str]) -> str:
    """Labels as they stand behind a name."""
    if not labels:
        return ""
    return "{" + ",".join(f'{key}="{escape(str(value))}"' for key, value in labels.items()) + "}"


@lru_cache(maxsize=1024)
def escape(value: str) -> str:
    """Label value that cannot break a line: cut, escaped, control characters replaced."""
    value = value[:LONGEST].replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return "".join(c if c.isprintable() else "?" for c in value)


# -- the process itself ----------------------------------------------------------------------------

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_CLOCK_HZ = os.sysconf("SC_CLK_TCK")


def process_families() -> Iterable[Family]:
    """Memory, descriptors, processor time and start of this process, by their usual names."""
    try:
        # the name of the process stands in brackets and may hold anything
        fields = Path("/proc/self/stat").read_text("ascii", "replace").rpartition(")")[2].split()
        descriptors = len(os.listdir("/proc/self/fd"))  # noqa: PTH208  (no objects made)
    except OSError:  # out of descriptors: a scrape that tells the rest is worth more than none
        return
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    values: tuple[tuple[str, Kind, str, float], ...] = (
        ("process_cpu_seconds_total", "counter", "Processor time used, user and system.",
         (int(fields[11]) + int(fields[12])) / _CLOCK_HZ),
        ("process_resident_memory_bytes", "gauge", "Memory in use.",
         int(fields[21]) * _PAGE_BYTES),
        ("process_open_fds", "gauge", "Open file descriptors.", descriptors),
        ("process_max_fds", "gauge", "Most file descriptors it may open.", float(soft)),
        ("process_threads", "gauge", "Threads.", int(fields[17])),
        ("process_start_time_seconds", "gauge", "When the process started, since 1970.",
         started_s(int(fields[19]))),
    )  # fmt: skip
    for name, kind, meaning, value in values:
        yield Family(name, kind, meaning, [({}, value)])


@lru_cache(maxsize=1)
def started_s(ticks_since_boot: int) -> float:
    """Wall time of a start; worked out once, so that a step of the clock is no restart."""
    with suppress(OSError):
        for line in Path("/proc/stat").read_text("ascii").splitlines():
            if line.startswith("btime "):
                return int(line.split()[1]) + ticks_since_boot / _CLOCK_HZ
    return 0.0
