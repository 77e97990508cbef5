"""Does the bundle fit this plant? It may tighten a limit of the plant, never widen one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, isclose

from steadyhand.controllers.errors import BundleError
from steadyhand.controllers.signals import Signal, SignalSet
from steadyhand.runtime.bundle.manifest import Manifest, OutputEntry, SignalEntry


@dataclass(frozen=True, slots=True)
class PlantContract:
    """What a bundle must have been made for."""

    plant_id: str
    observations: SignalSet
    outputs: SignalSet
    period_s: float


def entries_for(
    plant: PlantContract,
) -> tuple[tuple[SignalEntry, ...], tuple[OutputEntry, ...]]:
    """Manifest entries that repeat the plant's own limits."""
    observations = tuple(
        SignalEntry(name=s.name, unit=s.unit, low=s.low, high=s.high, positive=s.positive)
        for s in plant.observations
    )
    outputs = tuple(
        OutputEntry(
            name=s.name,
            unit=s.unit,
            low=s.low,
            high=s.high,
            positive=s.positive,
            rate_per_s=None if s.rate_per_s == inf else s.rate_per_s,
        )
        for s in plant.outputs
    )
    return observations, outputs


def check_plant(manifest: Manifest, plant: PlantContract) -> tuple[SignalSet, SignalSet]:
    """The plant's observations and outputs, tightened to what the bundle declares.

    Raises:
        BundleError: BUNDLE_PLANT made for another plant; BUNDLE_MANIFEST a signal, its place,
            unit, sign or range, or the period is not the plant's.
    """
    if manifest.plant_id != plant.plant_id:
        raise BundleError(
            "BUNDLE_PLANT",
            f"plant_id={manifest.plant_id!r}: this plant is {plant.plant_id!r}; use a bundle made "
            "for it",
        )
    if not isclose(manifest.period_s, plant.period_s, rel_tol=1e-9):
        raise _refuse(
            f"period_s={manifest.period_s:g}: this plant is controlled every {plant.period_s:g} s"
        )
    observations = _tighten("observations", manifest.observations, plant.observations)
    outputs = _tighten("outputs", manifest.outputs, plant.outputs)
    return observations, outputs


def _tighten(side: str, entries: Sequence[SignalEntry], own: SignalSet) -> SignalSet:
    names = tuple(entry.name for entry in entries)
    if names != own.names:
        raise _refuse(f"{side}: {_first_difference(names, own.names)}")
    signals = []
    for entry, signal in zip(entries, own, strict=True):
        where = f"{side}.{entry.name}"
        if entry.unit != signal.unit:
            raise _refuse(f"{where}.unit={entry.unit!r}: the plant has {signal.unit!r}")
        if entry.positive != signal.positive:
            raise _refuse(
                f"{where}.positive={entry.positive!r}: the plant has {signal.positive!r}; the sign "
                "may be turned round"
            )
        if entry.low < signal.low or entry.high > signal.high:
            raise _refuse(
                f"{where}: range {entry.low:g}..{entry.high:g} is wider than the plant's "
                f"{signal.low:g}..{signal.high:g} {signal.unit}; a bundle may only tighten it"
            )
        signals.append(
            replace(signal, low=entry.low, high=entry.high, rate_per_s=_rate(where, entry, signal))
        )
    return SignalSet(tuple(signals))


def _rate(where: str, entry: SignalEntry, signal: Signal) -> float:
    if not isinstance(entry, OutputEntry) or entry.rate_per_s is None:
        return signal.rate_per_s
    if entry.rate_per_s > signal.rate_per_s:
        raise _refuse(
            f"{where}.rate_per_s={entry.rate_per_s:g}: the plant allows {signal.rate_per_s:g} "
            f"{signal.unit}/s; a bundle may only tighten it"
        )
    return entry.rate_per_s


def _first_difference(found: tuple[str, ...], wanted: tuple[str, ...]) -> str:
    missing = [name for name in wanted if name not in found]
    extra = [name for name in found if name not in wanted]
    if missing or extra:
        return f"missing {missing or 'none'}, unknown {extra or 'none'}"
    place = next(i for i, (f, w) in enumerate(zip(found, wanted, strict=True)) if f != w)
    return f"{found[place]!r} in place {place}, where the plant has {wanted[place]!r}: other order"


def _refuse(text: str) -> BundleError:
    return BundleError("BUNDLE_MANIFEST", f"{text}; train and pack for this plant")
