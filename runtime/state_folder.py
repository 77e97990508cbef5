"""A plant's own state, beside its journal: which bundles ran here, and the copy of the last one."""

from pathlib import Path

from steadyhand.controllers.errors import BundleError
from steadyhand.runtime.bundle.installed import STATE_FILE, InstalledState
from steadyhand.runtime.config import Loaded


def state_folder(loaded: Loaded) -> Path:
    """Where this plant's own state lies: beside the journal."""
    return loaded.path(loaded.config.journal.directory).parent


def installed_state(loaded: Loaded) -> InstalledState:
    """Which bundle versions have run here; lies beside the journal."""
    return InstalledState(state_folder(loaded))


def kept_bundle(loaded: Loaded) -> Path | None:
    """Where the copy of the bundle that ran here last should lie; None when none ever ran here.

    Raises:
        BundleError: BUNDLE_STATE others may write to the folder of the state.
    """
    if not state_folder(loaded).exists():
        return None
    state, plant_id = installed_state(loaded), loaded.config.plant.id
    try:
        if state.get(plant_id) is None:
            return None
    except BundleError:
        pass  # something ran here; what is made of the copy finds out again
    return state.kept(plant_id)


def forgotten_state(loaded: Loaded) -> str:
    """A warning where the state is new and another lies beside the configuration; else empty.

    The state lies beside the journal: whoever names another journal leaves behind which bundles
    ran here, and with it the protection against an older one.
    """
    here, home = state_folder(loaded), loaded.file.resolve().parent
    if (here / STATE_FILE).exists():
        return ""
    others = [found.parent for found in sorted(home.glob(f"*/{STATE_FILE}"))]
    others += [home] if (home / STATE_FILE).exists() else []
    others = [folder for folder in others if folder.resolve() != here.resolve()]
    if not others:
        return ""
    return (
        f"{here} holds no memory of the bundles that ran here, but {others[0]} does: was "
        f"journal.directory changed? Move {STATE_FILE} and installed-*.shb over (mode 0700 for the "
        "folder), or an older bundle is not refused"
    )


def black_box_file(loaded: Loaded) -> Path:
    """Where the last ticks survive a kill: beside the operator's socket, as a rule in memory."""
    section = loaded.config.operator
    if section is None:
        return state_folder(loaded) / "black-box"
    return loaded.path(section.socket).with_suffix(".black-box")
