"""The smallest plant that can be run: its own equations in the runtime's process, no bundle."""

from pathlib import Path

CONFIG = """\
schema_version: 1
name: {name}
plant: {{id: thermal_storage, parameters: {{}}}}
period: 15 min
clock: {{source: {clock}}}
link: {{kind: sim, days: 1}}
modes: {{initial: "off"}}
fallback: {{heuristic: storage_priority}}
journal: {{directory: var/journal{journal}}}
"""


def write_dry_run(folder: Path, name: str, clock: str = "plant", signing_key: str = "") -> Path:
    """Its configuration, in `folder`.

    Args:
        folder: where.
        name: of the plant.
        clock: "plant": as fast as it goes; "paced": a tick in 15 min.
        signing_key: of the journal, as the configuration names it; empty: none.
    """
    journal = f', signing_key: "{signing_key}"' if signing_key else ""
    file = folder / "plant.yaml"
    file.write_text(CONFIG.format(name=name, clock=clock, journal=journal), "utf-8")
    return file
