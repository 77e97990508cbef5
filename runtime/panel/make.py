"""From a configuration to a panel."""

import secrets
from collections.abc import Callable

from steadyhand.runtime.assemble import PlantParts
from steadyhand.runtime.bundle.load import Bundle
from steadyhand.runtime.commands import Desk
from steadyhand.runtime.config import Loaded
from steadyhand.runtime.config_doors import Panel as PanelSection
from steadyhand.runtime.config_link import OpcUaLink
from steadyhand.runtime.journal import Status
from steadyhand.runtime.panel.access import read_people
from steadyhand.runtime.panel.past import Past
from steadyhand.runtime.panel.server import Panel
from steadyhand.runtime.panel.trends import Trends
from steadyhand.runtime.panel.view import About, BundleFacts, View
from steadyhand.runtime.recorder import Recorder
from steadyhand.runtime.tested_versions import software


def make_panel(
    loaded: Loaded,
    section: PanelSection,
    parts: PlantParts,
    recorder: Recorder,
    desk: Desk,
    journal: Callable[[], Status],
    bundle: Callable[[], Bundle | None],
) -> Panel:
    """The panel of one plant, not yet open.

    Raises:
        ConfigError: the file of tokens or the address cannot be used.
        OSError: the file of tokens cannot be read.
    """
    config, layout = loaded.config, recorder.layout
    people = read_people(loaded.path(section.token_file)) if section.token_file else {}
    trends = Trends(layout, section.signals)
    about = About(
        run=secrets.token_hex(8),
        name=config.name,
        plant=parts.kind.id,
        title=parts.kind.title,
        version=software(),
        period_s=config.period,
        time_scale=config.clock.time_scale,
        address=config.link.endpoint if isinstance(config.link, OpcUaLink) else "its own equations",
        layout=layout,
        rows=parts.kind.constraints(parts.parameters).rows,
        commands=bool(people),
    )
    view = View(about, recorder, trends, journal, lambda: _facts(bundle()))
    past = Past(
        loaded.path(config.journal.directory), layout, config.period / config.clock.time_scale
    )
    return Panel(
        about, view, trends, recorder, desk, people, section.listen, tuple(section.hosts), past
    )


def _facts(bundle: Bundle | None) -> BundleFacts | None:
    if bundle is None:
        return None
    manifest = bundle.manifest
    return BundleFacts(
        manifest.name,
        manifest.version,
        bundle.manifest_sha256,
        bundle.signer,
        manifest.not_after,
        bundle.warnings,
    )
