"""What a study is, and running one: a claim, a measurement, an interval, an answer.

A study is one file read from top to bottom. It defines `STUDY` and a function
`run(seeds, quick, progress) -> Finding`; this module does the rest.
"""

import importlib
import json
import pkgutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from steadyhand.controllers.errors import RequestError
from steadyhand.training import studies

RESULTS = Path(studies.__file__).parent / "results"
Progress = Callable[[str, float], None]
"""Told what is being done and the share that is done, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a study measured."""

    measured: float
    baseline: float
    """What `measured` is compared with."""
    interval: tuple[float, float]
    """95 % interval of `measured` over seeds."""
    holds: bool
    table: list[dict[str, Any]] = field(default_factory=list)
    """Every row behind the answer, for people."""
    remarks: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Study:
    """A claim that can be run."""

    name: str
    claim: str
    source: str
    metric: str
    baseline: str
    """What the baseline is, in words."""
    seeds: int
    """Seeds of the full run."""
    quick_seeds: int
    run: Callable[[Sequence[int], bool, Progress], Finding]
    """(seeds, quick, progress) → finding."""
    figure: Callable[[dict[str, Any], Path], None] | None = None
    """(result, file) → picture of a full run, kept beside its numbers."""


def all_studies() -> dict[str, Study]:
    """Every study by name: modules of this package that define STUDY."""
    found: dict[str, Study] = {}
    for module in pkgutil.iter_modules(studies.__path__):
        loaded = importlib.import_module(f"{studies.__name__}.{module.name}")
        study = getattr(loaded, "STUDY", None)
        if isinstance(study, Study):
            found[study.name] = study
    return dict(sorted(found.items()))


def find(name: str) -> Study:
    """The study called `name`.

    Raises:
        RequestError: ARGUMENTS: there is none; the message lists the choices.
    """
    known = all_studies()
    if name not in known:
        raise RequestError("ARGUMENTS", f"no study {name!r}; there are: {', '.join(known)}")
    return known[name]


def conduct(study: Study, quick: bool, seed: int, progress: Progress) -> dict[str, Any]:
    """Run `study` on seeds `seed`, `seed + 1`, …; returns the result as it is stored."""
    count = study.quick_seeds if quick else study.seeds
    seeds = list(range(seed, seed + count))
    started = time.monotonic()
    finding = study.run(seeds, quick, progress)
    command = f"steadyhand study run {study.name}{' --quick' if quick else ''} --seed {seed}"
    return {
        "study": study.name,
        "claim": study.claim,
        "source": study.source,
        "metric": study.metric,
        "measured": finding.measured,
        "baseline": finding.baseline,
        "baseline_is": study.baseline,
        "interval": list(finding.interval),
        "seeds": seeds,
        "holds": bool(finding.holds),
        "quick": quick,
        "seconds": round(time.monotonic() - started, 1),
        "command": command,
        "table": finding.table,
        "remarks": finding.remarks,
    }


def store(study: Study, result: dict[str, Any]) -> Path:
    """Write a full run's result beside the studies, with its figure; returns the JSON file."""
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{study.name}.json"
    file.write_text(json.dumps(result, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    if study.figure is not None:
        study.figure(result, file.with_suffix(".png"))
    return file


def stored(name: str) -> dict[str, Any] | None:
    """The committed full run of `name`, if there is one."""
    file = RESULTS / f"{name}.json"
    if not file.exists():
        return None
    result: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return result


def describe(study: Study) -> dict[str, Any]:
    """One study for a list, with the committed result."""
    known = asdict(study)
    del known["run"], known["figure"]
    last = stored(study.name)
    known["committed"] = None if last is None else {"holds": last["holds"], **_figures(last)}
    return known


def _figures(result: dict[str, Any]) -> dict[str, Any]:
    return {key: result[key] for key in ("measured", "baseline", "interval", "seconds")}


def mean_interval(values: ArrayLike) -> tuple[float, float]:
    """95 % interval of the mean over seeds, Student's t.

    Raises:
        ValueError: fewer than two values.
    """
    from scipy.stats import t

    sample = np.asarray(values, dtype=np.float64)
    if sample.size < 2:
        raise ValueError("an interval over seeds needs at least two seeds")
    half = float(t.ppf(0.975, len(sample) - 1)) * float(sample.std(ddof=1)) / sqrt(len(sample))
    return float(sample.mean()) - half, float(sample.mean()) + half
