"""The start of a service: what takes long is set going first, and nothing waits for what it does
not need.

    spawn ─► child imports the model's runtime ······ graph loaded, examined ─► serves
      └► configuration, files, bundle verified ─► told ┘ native code imported ┘ ─► Service

No step is left out for it: the service exists only once every check has passed.
"""

import gc
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import FrameType

import numpy as np

from steadyhand.controllers.errors import BundleError, ConfigError
from steadyhand.runtime import assemble
from steadyhand.runtime.assemble import PlantParts
from steadyhand.runtime.cautions import cautions
from steadyhand.runtime.check import bundle_problem, check
from steadyhand.runtime.config import Loaded
from steadyhand.runtime.crash_loop import CrashLoop
from steadyhand.runtime.exits import words_of
from steadyhand.runtime.flood import FloodFilter
from steadyhand.runtime.folders import make_folder
from steadyhand.runtime.health import Health
from steadyhand.runtime.notices import Notices
from steadyhand.runtime.priority import Priority
from steadyhand.runtime.signal_flag import SignalFlag
from steadyhand.runtime.slot import Closable
from steadyhand.runtime.spawn import Spawned
from steadyhand.runtime.state_folder import state_folder
from steadyhand.runtime.trial import First, first_policy

START_S = 180.0
"""Longest from the start of the process to the loop: the native code may have to be compiled."""


def serve(
    file: Path,
    max_ticks: int | None = None,
    quiet: bool = False,
    spawned: Spawned | None = None,
) -> None:
    """Run the plant of configuration `file` until SIGTERM, SIGINT or a `stop` command.

    Args:
        file: the configuration.
        max_ticks: stop after so many.
        quiet: say nothing on standard error, neither at the start nor when something changes.
        spawned: a process that waits for a policy; it is used or ended here.

    Raises:
        ConfigError: the pre-flight found problems; the message names all of them.
        JournalError: another process already runs this plant.
    """
    stop = SignalFlag()
    for number in (signal.SIGTERM, signal.SIGINT):
        _on(number, stop.set)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a closed terminal is no reason to stop a plant
    health = Health.from_environment()
    health.starting("verifying configuration and bundle", START_S)
    loaded, parts, given = _checked(file, spawned)
    with Notices(quiet=quiet) as notices, _crashes(loaded).run() as crashes:
        notices.addFilter(FloodFilter())
        for warning in cautions(loaded):
            notices.say(f"steadyhand: {warning}", Priority.WARNING)
        first = _first(file, loaded, parts, given, crashes)
        if stop.is_set():  # before there is anything to hand back
            if isinstance(first.policy, Closable):
                first.policy.close()
            return
        if first.alarm:
            notices.say(f"steadyhand: {first.alarm}", Priority.ERROR)
        from steadyhand.runtime.service import Service
        from steadyhand.runtime.status import introduction

        with Service(loaded, first, health, crashes, notices) as service:
            _on(signal.SIGHUP, service.reload.ask)
            if not quiet:
                notices.say(introduction(service))
            service.run(stop, max_ticks)


def _on(number: signal.Signals, act: Callable[[], object]) -> None:
    def handle(number: int, frame: FrameType | None) -> None:
        del number, frame
        act()

    signal.signal(number, handle)


def _crashes(loaded: Loaded) -> CrashLoop:
    """Notes on how runs of this plant ended.

    Raises:
        ConfigError: the folder of the state cannot be made.
    """
    folder = state_folder(loaded)
    try:
        make_folder(folder)
    except OSError as error:
        raise ConfigError(f"cannot start: {words_of(error)}") from None
    return CrashLoop(folder)


def _checked(file: Path, spawned: Spawned | None) -> tuple[Loaded, PlantParts, Spawned | None]:
    """Pre-flight of everything but the bundle.

    Raises:
        ConfigError: see `serve`.
    """
    try:
        loaded, problems = check(file, bundle=False)
        if problems or loaded is None:
            _, problems = check(file)  # now everything at once
            raise ConfigError("\n".join(problem.text(str(file)) for problem in problems))
        parts, given, spawned = assemble.make_plant(loaded), spawned, None
    finally:
        if spawned is not None:
            spawned.discard()
    return loaded, parts, given


def _first(
    file: Path, loaded: Loaded, parts: PlantParts, spawned: Spawned | None, crashes: CrashLoop
) -> First:
    """The policy to start with.

    Raises:
        ConfigError: see `serve`.
    """
    try:
        return first_policy(loaded, parts, crashes, spawned, _load_code)
    except BundleError as error:
        problem = bundle_problem(loaded, error)
        raise ConfigError(problem.text(str(file))) from None


def _load_code() -> None:
    """What the service will need and what takes long to import."""
    with _without_scipy():
        for name in ("trust.load", "safety.atacom", "safety.chain"):
            import_module(f"steadyhand.controllers.{name}")
        from steadyhand.controllers.safety.limits import all_finite

        all_finite(np.zeros(1))  # the first call of native code loads what all of it needs
    import_module("steadyhand.runtime.service")
    gc.freeze()  # all this stays; to go through it once more costs as much as a library


@contextmanager
def _without_scipy() -> Iterator[None]:
    """Numba imports scipy's linear algebra where it finds it. No code of ours calls it, and a
    machine at the edge does not have it; elsewhere it would be a tenth of the whole start.
    """
    absent = "scipy" not in sys.modules
    if absent:
        sys.modules["scipy"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if absent:
            del sys.modules["scipy"]
