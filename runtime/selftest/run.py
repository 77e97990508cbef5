"""`steadyhand selftest`: the fault table of a configuration, tried row by row."""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from steadyhand.controllers.errors import BundleError, ConfigError
from steadyhand.runtime import assemble
from steadyhand.runtime.admission import admit
from steadyhand.runtime.assemble import PlantParts
from steadyhand.runtime.config import Loaded
from steadyhand.runtime.config_schema import Config
from steadyhand.runtime.selftest import table_inside, table_pairs, table_sensors, table_wire
from steadyhand.runtime.selftest.inside import run_inside
from steadyhand.runtime.selftest.report import Heading
from steadyhand.runtime.selftest.rows import Place, Result, Row
from steadyhand.runtime.selftest.wire import Site, run_wire

WALL_PERIOD_S = 0.2
"""Real time of a period over the network: long enough for two slow cores, short enough for all
rows in minutes."""


def table(config: Config, parts: PlantParts) -> list[Row]:
    """Every row that applies to this plant and its configuration."""
    tables = (table_wire, table_sensors, table_inside, table_pairs)
    rows = [row for one in tables for row in one.rows(parts)]
    rows += [*table_wire.declared(config, parts), *table_sensors.declared(config, parts)]
    numbers = [row.id for row in rows]
    doubled = sorted({number for number in numbers if numbers.count(number) > 1})
    if doubled:
        raise ConfigError(f"fault table: {', '.join(doubled)} stand twice")
    return rows


def chosen(rows: Iterable[Row], patterns: Sequence[str]) -> list[Row]:
    """Rows whose number matches one of the patterns (A12, A12.*, *.nan); all where there is none.

    Raises:
        ConfigError: none does.
    """
    kept = list(rows)
    if patterns:
        kept = [
            row
            for row in kept
            if any(fnmatchcase(row.id, p) or row.catalogue == p for p in patterns)
        ]
    if not kept:
        raise ConfigError(f"no row of the fault table matches {', '.join(patterns)}")
    return kept


def run_rows(
    loaded: Loaded,
    rows: Sequence[Row],
    bundle: tuple[Path, Path] | None = None,
    told: Callable[[Result], None] = lambda result: None,
) -> list[Result]:
    """Try `rows`, those over the network on one site.

    Args:
        loaded: a configuration that passed its check.
        rows: what to try.
        bundle: another bundle and the folder of its keys, instead of the configured one.
        told: hears of each result at once.
    """
    parts = assemble.make_plant(loaded)
    results = []
    for result in _results(loaded, parts, rows, bundle):
        told(result)
        results.append(result)
    return results


def _results(
    loaded: Loaded,
    parts: PlantParts,
    rows: Sequence[Row],
    bundle: tuple[Path, Path] | None,
) -> Iterator[Result]:
    over_wire = [row for row in rows if row.place is Place.WIRE]
    if over_wire:
        # a short name: the kernel's limit for a socket is 107 bytes
        with (
            tempfile.TemporaryDirectory(prefix="sh-") as name,
            Site(loaded, parts, Path(name), WALL_PERIOD_S, bundle) as site,
        ):
            site.start_runtime()
            for row in over_wire:
                yield try_wire(site, row)
    for row in rows:
        if row.place is Place.INSIDE:
            yield try_inside(loaded, parts, row)


def try_wire(site: Site, row: Row) -> Result:
    """One row; whatever goes wrong in trying it fails it, and the next one begins anew."""
    try:
        return run_wire(site, row)
    except Exception as error:  # noqa: BLE001
        return Result(row, [f"could not be tried: {type(error).__name__}: {error}"])


def try_inside(loaded: Loaded, parts: PlantParts, row: Row) -> Result:
    """One row, likewise."""
    try:
        return run_inside(loaded.config, parts, row)
    except Exception as error:  # noqa: BLE001
        return Result(row, [f"could not be tried: {type(error).__name__}: {error}"])


def heading(loaded: Loaded) -> Heading:
    """What is tested."""
    config = loaded.config
    bundle = "none: the heuristic drives"
    if config.bundle is not None:
        try:
            found = admit(loaded, assemble.make_plant(loaded), loaded.path(config.bundle.file))
            manifest = found.manifest
            bundle = f"{manifest.name} v{manifest.version}, SHA-256 `{found.manifest_sha256}`"
        except BundleError as error:
            bundle = f"refused: {error}"
    return Heading.of(
        config.name, config.plant.id, loaded.file, loaded.digest, bundle, WALL_PERIOD_S
    )
