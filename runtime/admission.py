"""Which bundle may run here: signed by whom this site trusts, for this plant, none too old."""

from pathlib import Path

from steadyhand.controllers.errors import BundleError, ConfigError
from steadyhand.runtime.assemble import PlantParts
from steadyhand.runtime.bundle.archive import read_file
from steadyhand.runtime.bundle.installed import PERMIT
from steadyhand.runtime.bundle.load import Bundle, admit_bundle
from steadyhand.runtime.bundle.signature import TrustStore
from steadyhand.runtime.child import ChildLimits, examine
from steadyhand.runtime.config import Loaded
from steadyhand.runtime.config_schema import Config
from steadyhand.runtime.state_folder import installed_state, state_folder

TRIAL_BYTES = 512 * 2**20
"""A bundle that needs more memory than this to be loaded and examined is refused."""


def admit(loaded: Loaded, parts: PlantParts, file: Path, known: TrustStore | None = None) -> Bundle:
    """The bundle `file`, verified for this plant and not tried yet.

    Args:
        loaded: the configuration.
        parts: the plant.
        file: the bundle.
        known: keys that were trusted when the service began; one that came later is not yet.

    Raises:
        BundleError: refused.
        ConfigError: the folder of keys is missing.
    """
    section = loaded.config.bundle
    if section is None:
        raise ConfigError("no bundle section in the configuration")
    keys = loaded.path(section.trusted_keys)
    if not keys.is_dir():
        raise ConfigError(f"bundle.trusted_keys={section.trusted_keys}: no folder of public keys")
    provider = loaded.config.inference.provider
    trust = TrustStore.read(keys)
    permit = file.with_name(file.name + PERMIT)
    return admit_bundle(
        file,
        trust if known is None else trust.since(known),
        parts.contract,
        # nothing ever ran here before the folder was made; looking must not make it
        installed=installed_state(loaded) if state_folder(loaded).exists() else None,
        providers=(provider,) if provider == "cpu" else (provider, "cpu"),
        require_provider=loaded.config.inference.require_provider,
        rollback_token=read_file(permit) if permit.exists() else None,
        accept_quick=section.accept_quick is not None,
    )


def trusted_keys(loaded: Loaded) -> TrustStore:
    """The keys that may sign bundles, as they are now; none where they cannot be read."""
    section = loaded.config.bundle
    try:
        return TrustStore.read(loaded.path(section.trusted_keys)) if section else TrustStore(())
    except BundleError:
        return TrustStore(())


def open_bundle(loaded: Loaded, parts: PlantParts) -> Bundle | None:
    """The configured bundle, verified and tried; None when none is configured.

    Raises:
        BundleError: refused.
        ConfigError: the folder of keys is missing.
    """
    section = loaded.config.bundle
    if section is None:
        return None
    bundle = admit(loaded, parts, loaded.path(section.file))
    return bundle.tried(lambda: examine(bundle.spec, child_limits(loaded.config)))


def child_limits(config: Config) -> ChildLimits:
    """What the policy's process may use, in its trial and afterwards."""
    serving = int(config.inference.memory)
    return ChildLimits(memory_bytes=min(serving, TRIAL_BYTES), serving_bytes=serving)


def recycle_bytes(config: Config) -> int:
    """Memory from which the policy's process is replaced, before its limit ends it."""
    given = config.inference.recycle
    return int(0.75 * config.inference.memory if given is None else given)
