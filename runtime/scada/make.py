"""From a configuration to the SCADA server."""

from collections.abc import Callable

from steadyhand.runtime.bundle.load import Bundle
from steadyhand.runtime.commands import Desk
from steadyhand.runtime.config import Loaded
from steadyhand.runtime.config_doors import Scada
from steadyhand.runtime.recorder import Recorder
from steadyhand.runtime.scada.server import ScadaServer, ScadaSettings, certificate_expires
from steadyhand.runtime.scada.snapshot import Site
from steadyhand.runtime.tested_versions import software


def make_scada(
    loaded: Loaded,
    section: Scada,
    recorder: Recorder,
    desk: Desk,
    bundle: Callable[[], Bundle | None],
    heartbeats: Callable[[], tuple[int, int]],
) -> ScadaServer:
    """The server of one loop, not yet open.

    Raises:
        ConfigError: users or certificates that cannot be used.
    """
    config = loaded.config
    host, _, port = section.listen.rpartition(":")
    files = [
        None if name is None else loaded.path(name)
        for name in (section.certificate, section.private_key, section.trusted, section.users_file)
    ]
    certificate, private_key, trusted, users = files
    settings = ScadaSettings(
        host.strip("[]"),
        int(port),
        certificate,
        private_key,
        trusted,
        users,
        loaded.path(config.bundle.file).parent if config.bundle else None,
        section.sessions,
        insecure=section.insecure_no_encryption is not None,
    )
    site = Site(
        config.name,
        config.plant.id,
        software(),
        config.period,
        config.clock.time_scale,
        recorder.layout,
        certificate_expires(certificate),
    )
    return ScadaServer(settings, site, desk, recorder, bundle, heartbeats)
