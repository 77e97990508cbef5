"""From the section of an OPC UA link to what the adapter wants: server, certificates, nodes."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steadyhand.adapters.opcua.settings import OpcUaSettings, Security
from steadyhand.controllers.errors import ConfigError
from steadyhand.runtime.certificate_watch import Watched
from steadyhand.runtime.config import Loaded
from steadyhand.runtime.config_link import OpcUaLink
from steadyhand.runtime.quantity import magnitude

if TYPE_CHECKING:
    from steadyhand.runtime.assemble import PlantParts


def opcua_settings(loaded: Loaded, link: OpcUaLink) -> OpcUaSettings:
    """Where the server is and how patient we are; times are wall seconds."""
    config, given = loaded.config, link.security
    wall_period_s = config.period / config.clock.time_scale
    security = Security(
        policy=given.policy,
        certificate=_path(loaded, given.certificate),
        private_key=_path(loaded, given.private_key),
        trusted=tuple(loaded.path(name) for name in given.trusted),
        revoked=tuple(loaded.path(name) for name in given.revoked),
        refuse_overdue=given.overdue_list == "refuse",
        check_host=given.check_host,
        user=given.user or "",
        password_file=_path(loaded, given.password_file),
        allow_anonymous=given.allow_anonymous,
        insecure_no_encryption=given.insecure_no_encryption or "",
    )
    return OpcUaSettings(
        endpoint=link.endpoint,
        server_uri=given.server_uri,
        security=security,
        period_s=wall_period_s,
        time_scale=config.clock.time_scale,
        sampling_s=link.publishing or 0.0,
        request_timeout_s=link.request_timeout,
        command_life_s=link.command_life or wall_period_s,
    )


def watched_certificates(loaded: Loaded) -> Watched:
    """Everything that may run out: of the link, of our own OPC UA server and its clients, and the
    keys of bundles.
    """
    link, scada, bundle = loaded.config.link, loaded.config.scada, loaded.config.bundle
    others = Watched(
        scada=None if scada is None else _path(loaded, scada.certificate),
        clients=None if scada is None else _path(loaded, scada.trusted),
        keys=None if bundle is None else loaded.path(bundle.trusted_keys),
    )
    if not isinstance(link, OpcUaLink):
        return others
    given = opcua_settings(loaded, link).security
    return replace(others, own=given.certificate, trusted=given.trusted, revoked=given.revoked)


def opcua_tags(parts: "PlantParts", link: OpcUaLink, time_scale: float = 1.0) -> Any:  # noqa: ANN401
    """Which node is which signal.

    Args:
        parts: the plant.
        link: the section of the configuration.
        time_scale: plant seconds per wall second.

    Raises:
        ConfigError: an address that cannot be read, or a distance in another unit than the output.
    """
    from steadyhand.adapters.opcua.tags import read_tag_map

    units = {signal.name: signal.unit for signal in (*parts.plant.observations, *parts.outputs)}
    outputs = {}
    for name, tag in link.outputs.items():
        entry: dict[str, Any] = {
            "address": tag.node,
            "wire_type": tag.wire,
            "unit": tag.unit or "",
            "scale": tag.scale,
        }
        if tag.feedback is not None:
            scale = tag.feedback_scale or tag.scale
            usual = units.get(name, "") if scale == 1.0 else ""
            entry["feedback"] = {
                "address": tag.feedback,
                "wire_type": "auto",
                "scale": scale,
                "unit": (tag.unit or usual) if scale == tag.scale else "",
            }
        if tag.participation is not None:
            entry["participation"] = {"address": tag.participation}
        if tag.follow_tolerance is not None and tag.follow_time is not None and name in units:
            try:
                entry["follow_tolerance"] = magnitude(tag.follow_tolerance, units[name])
            except ValueError as error:
                raise ConfigError(f"outputs.{name}.follow_tolerance: {error}") from None
            entry["follow_time_s"] = tag.follow_time / time_scale
        outputs[name] = entry
    shake = {
        role: {"address": node}
        for role, node in link.handshake.model_dump().items()
        if node is not None
    }
    settings = {
        "observations": {
            name: {
                "address": tag.node,
                "unit": tag.unit or "",
                "wire_type": tag.wire,
                "scale": tag.scale,
                "freshness": tag.freshness,
                "use_forced": tag.forced == "use",
            }
            for name, tag in link.signals.items()
        },
        "outputs": outputs,
        "handshake": shake,
    }
    return read_tag_map(parts.plant.observations, parts.outputs, settings)


def _path(loaded: Loaded, name: str | None) -> Path | None:
    return None if name is None else loaded.path(name)
