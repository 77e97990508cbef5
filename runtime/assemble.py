"""From configuration to objects: which part is made from which section.

What takes long to import (the protocol's library, native code) is imported where it is needed: a
start has things to set going before that.
"""

import grp
import pwd
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any, cast

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from steadyhand.adapters.input_file import read_secret
from steadyhand.adapters.link import Link
from steadyhand.controllers.catalogue import PlantKind, parameters_with, plant_kind
from steadyhand.controllers.errors import BundleError, ConfigError
from steadyhand.controllers.plants.parameters import parameter_table
from steadyhand.controllers.plants.plant import Plant
from steadyhand.controllers.protocols import Heuristic, ImageJudge
from steadyhand.controllers.signals import SignalSet, Vector
from steadyhand.controllers.trust.cross_check import CrossChecked
from steadyhand.controllers.trust.freshness import Freshness, FreshnessSettings
from steadyhand.controllers.trust.gate import Gate, GateSettings
from steadyhand.runtime.assemble_opcua import opcua_settings, opcua_tags
from steadyhand.runtime.bundle.contract import PlantContract
from steadyhand.runtime.bundle.load import Bundle
from steadyhand.runtime.bundle.signature import private_from
from steadyhand.runtime.clock import Clock, Idle, LockstepClock, PacedClock, PlantClock
from steadyhand.runtime.config import Loaded
from steadyhand.runtime.config_doors import Operator as OperatorSection
from steadyhand.runtime.config_link import OpcUaLink as OpcUaSection
from steadyhand.runtime.config_link import SimLink as SimSection
from steadyhand.runtime.config_schema import Config
from steadyhand.runtime.handshake import Handshake, HandshakeSettings
from steadyhand.runtime.journal import Journal
from steadyhand.runtime.journal import Limits as JournalLimits
from steadyhand.runtime.modes import Mode, ModeMachine, ModeSettings
from steadyhand.runtime.operator_protocol import Role
from steadyhand.runtime.quantity import magnitude
from steadyhand.runtime.record import RecordLayout
from steadyhand.runtime.recorder import Recorder
from steadyhand.runtime.state_folder import black_box_file

if TYPE_CHECKING:
    from steadyhand.adapters.sim.link import SimLink
    from steadyhand.controllers.safety.chain import SafetyChain
    from steadyhand.controllers.safety.limits import Limits


@dataclass(frozen=True, slots=True)
class PlantParts:
    """The plant's definition with this site's numbers."""

    kind: PlantKind
    parameters: Any
    plant: Plant
    outputs: SignalSet
    """The plant's outputs with the site's tighter limits."""

    @property
    def contract(self) -> PlantContract:
        """What a bundle has to be made for."""
        plant = self.plant
        return PlantContract(self.kind.id, plant.observations, self.outputs, plant.period_s)


def site_parameters(kind: PlantKind, given: Mapping[str, str]) -> Any:  # noqa: ANN401
    """Parameters of `kind` with the quantities of a configuration.

    Raises:
        ConfigError: an unknown name, a wrong unit, or a number out of its bounds.
    """
    units = {parameter.name: parameter.unit for parameter in parameter_table(kind.parameters)}
    changes = {}
    for name, text in given.items():
        if name in units:
            try:
                changes[name] = magnitude(text, units[name])
            except ValueError as error:
                raise ConfigError(f"{name}: {error}") from None
        else:
            changes[name] = float("nan")
    return parameters_with(kind, changes)


def tightened(outputs: SignalSet, limits: Mapping[str, Mapping[Any, str]]) -> SignalSet:
    """`outputs` with tighter limits from a configuration.

    Raises:
        ConfigError: an unknown output, or a limit that would widen or cross.
    """
    unknown = [name for name in limits if name not in outputs.names]
    if unknown:
        choices = ", ".join(outputs.names)
        raise ConfigError(f"no output {', '.join(unknown)}; there are: {choices}")
    signals = []
    for signal in outputs:
        bounds = limits.get(signal.name, {})
        try:
            low = magnitude(bounds["low"], signal.unit) if "low" in bounds else signal.low
            high = magnitude(bounds["high"], signal.unit) if "high" in bounds else signal.high
        except ValueError as error:
            raise ConfigError(f"{signal.name}: {error}") from None
        if not signal.low <= low < high <= signal.high:
            raise ConfigError(
                f"{signal.name}: low {low:g} and high {high:g} {signal.unit} must lie in order "
                f"within [{signal.low:g}, {signal.high:g}]: a configuration can only tighten"
            )
        signals.append(replace(signal, low=low, high=high))
    return SignalSet(tuple(signals))


def make_plant(loaded: Loaded) -> PlantParts:
    """The plant's definition.

    Raises:
        ConfigError: unknown plant, a wrong parameter or limit, or another period.
    """
    config = loaded.config
    kind = plant_kind(config.plant.id)
    parameters = site_parameters(kind, config.plant.parameters)
    plant = kind.plant(parameters)
    return PlantParts(kind, parameters, plant, tightened(plant.outputs, config.safety.limits))


def make_link(loaded: Loaded, parts: PlantParts) -> Link:
    """The connection, not yet open.

    Raises:
        ConfigError: an address that cannot be read, or half-configured security.
    """
    link = loaded.config.link
    if isinstance(link, SimSection):
        from steadyhand.adapters.sim.link import SimLink
        from steadyhand.adapters.sim.plants import RunSpec, make_runner

        return SimLink(make_runner(RunSpec(parts.kind.id, link.seed, link.days)))
    from steadyhand.adapters.opcua.link import OpcUaLink

    tags = opcua_tags(parts, link, loaded.config.clock.time_scale)
    return OpcUaLink(opcua_settings(loaded, link), tags)


def make_clock(config: Config, link: Link, idle: Idle | None = None) -> Clock:
    """When to tick."""
    scale = config.clock.time_scale
    if isinstance(config.link, SimSection):
        return LockstepClock(cast("SimLink", link), config.period)
    if config.clock.source == "plant":
        timeout_s = 2.0 * config.period / scale
        return PlantClock(link, config.period, scale, timeout_s, idle)
    return PacedClock(config.period, scale, idle)


def make_safety(config: Config, parts: PlantParts) -> "SafetyChain":
    """Filter and last line, from the plant's definition and the wire's number types alone."""
    from steadyhand.controllers.safety.atacom import AtacomDC
    from steadyhand.controllers.safety.chain import SafetyChain

    model, limits = parts.kind.safety_model(parts.parameters), make_limits(config, parts)
    inner = AtacomDC(model, parts.kind.constraints(parts.parameters), limits)
    return SafetyChain(inner, limits, model.backup)


def make_limits(config: Config, parts: PlantParts) -> "Limits":
    """The last line before the wire.

    Raises:
        SafetyError: an output cannot be said in the numbers that its wire type stores.
    """
    from steadyhand.adapters.opcua.wire import WIRE_TYPES
    from steadyhand.controllers.safety.limits import Limits, Whole, Wire

    tags = config.link.outputs if isinstance(config.link, OpcUaSection) else {}

    def stored(name: str) -> Wire:
        tag = tags.get(name)
        if tag is None or not tag.whole:
            return "float32" if tag is not None and tag.wire == "Float" else "float64"
        kind = WIRE_TYPES[tag.wire]
        return Whole(tag.scale, kind.low, kind.high)

    wire = tuple(stored(name) for name in parts.outputs.names)
    return Limits(parts.outputs, parts.plant.period_s, wire)


def make_image_judge(config: Config, parts: PlantParts) -> ImageJudge:
    """Each measurement by itself, then all of them against each other."""
    signals = parts.plant.observations
    tags = config.link.signals if isinstance(config.link, OpcUaSection) else {}
    sentinels = {name: tuple(tag.sentinels) for name, tag in tags.items() if tag.sentinels}
    fresh = Freshness(signals, FreshnessSettings(sentinels=sentinels, max_repeats=1))
    return CrossChecked(fresh, signals, parts.kind.relations(parts.parameters))


def make_heuristic(config: Config, parts: PlantParts) -> Heuristic:
    """What takes over when trust is lost.

    Raises:
        ConfigError: the plant has no heuristic of that name.
    """
    name = config.fallback.heuristic
    if name not in parts.kind.heuristics:
        choices = ", ".join(parts.kind.heuristics)
        raise ConfigError(f"fallback.heuristic={name!r}: there are: {choices}")
    return parts.kind.heuristics[name](parts.parameters)


def leash(config: Config, parts: PlantParts) -> Vector:
    """(n_u,) how far the policy may be from the heuristic in mode limited."""
    span: Vector = parts.outputs.high - parts.outputs.low
    return config.modes.limited_share * span


def make_modes(config: Config, parts: PlantParts, asked: Mode | None = None) -> ModeMachine:
    """The mode machine; comes up not controlling, whatever was asked for before."""
    given = config.modes
    settings = ModeSettings(
        n_clean=given.clean_ticks,
        t_clean_s=given.clean_time or 0.0,
        hold_max_s=given.hold_max or 2.0 * config.period,
        max_raises=given.max_raises,
    )
    return ModeMachine(settings, parts.outputs, asked)


def make_handshake(config: Config, parts: PlantParts) -> Handshake:
    """The handshake with the plant; begins by not asking."""
    given = config.handover
    settings = HandshakeSettings(
        shed_s=given.shed or 2.0 * config.period, freeze_s=given.freeze or inf
    )
    return Handshake(parts.outputs, settings, parts.plant.outputs)


def make_gate(config: Config, parts: PlantParts, bundle: Bundle | None) -> Gate:
    """The gate with the monitors that the bundle brings; without a bundle it trusts nothing.

    Raises:
        ModelError: trust data that is missing or makes no sense.
        ConfigError: impossible settings of the gate.
    """
    if bundle is None:
        return Gate(GateSettings(dwell_s=config.period, minimum_stay_s=config.period))
    from steadyhand.controllers.trust.load import gate_from_dict

    return gate_from_dict(
        bundle.trust, parts.plant.observations, config.period, config.trust.minimum_confidence
    )


def make_journal(
    loaded: Loaded, recorder: Recorder, bundle: str, on_head: Callable[[str], None]
) -> Journal:
    """The journal of one run, not yet begun.

    Args:
        loaded: the configuration.
        recorder: what it writes.
        bundle: whose policy proposes at the beginning, as records call it.
        on_head: told the head when a segment is begun or closed.

    Raises:
        ConfigError: the signing key cannot be used.
    """
    return Journal(
        loaded.path(loaded.config.journal.directory),
        recorder,
        journal_limits(loaded.config),
        loaded.digest,
        bundle,
        journal_signer(loaded),
        black_box=black_box_file(loaded),
        on_head=on_head,
    )


def journal_limits(config: Config) -> JournalLimits:
    """How the journal spends disk and time."""
    section = config.journal
    return JournalLimits(
        segment_bytes=int(section.segment),
        keep_bytes=inf if section.keep is None else float(section.keep),
        checkpoint_every_s=section.sign_every,
    )


def journal_signer(loaded: Loaded) -> Ed25519PrivateKey | None:
    """Signs the journal's chain every so often; None where the configuration names no key.

    Raises:
        ConfigError: the key cannot be read, is none, or others could read it.
    """
    name = loaded.config.journal.signing_key
    if name is None:
        return None
    file = loaded.path(name)
    try:
        return private_from(read_secret(file), file)
    except BundleError as error:
        raise ConfigError(str(error).removeprefix("BUNDLE_KEY: ")) from None


def make_layout(
    parts: PlantParts, monitors: tuple[str, ...], stages: tuple[str, ...]
) -> RecordLayout:
    """What a record of this plant looks like."""
    rows = parts.kind.constraints(parts.parameters).names
    return RecordLayout(parts.plant.observations, parts.outputs, rows, monitors, stages)


def people(section: OperatorSection) -> dict[int, Role]:
    """Role by user id.

    Raises:
        ConfigError: a user who does not exist.
    """
    roles = {}
    for role, names in ((Role.OPERATE, section.operators), (Role.ENGINEER, section.engineers)):
        for name in names:
            try:
                roles[pwd.getpwnam(name).pw_uid] = role
            except KeyError:
                raise ConfigError(f"operator: no user {name!r} on this machine") from None
    return roles


def group_id(name: str | None) -> int | None:
    """Number of a group.

    Raises:
        ConfigError: no such group.
    """
    if name is None:
        return None
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise ConfigError(f"operator.group={name!r}: no such group; groupadd it") from None
