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
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from types import FrameType

import numpy as np

from steadyhand.controllers.errors import BundleError, ConfigError, ModelError
from steadyhand.controllers.frames import Fault, Observation, Proposal, ProposalStatus
from steadyhand.controllers.protocols import Policy
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.trust.gate import Gate
from steadyhand.runtime import assemble
from steadyhand.runtime.assemble import PlantParts
from steadyhand.runtime.bundle.load import Bundle
from steadyhand.runtime.cautions import cautions
from steadyhand.runtime.check import bundle_problem, check
from steadyhand.runtime.child import examine
from steadyhand.runtime.config import Loaded
from steadyhand.runtime.crash_loop import Counted, CrashLoop
from steadyhand.runtime.exits import words_of
from steadyhand.runtime.flood import FloodFilter
from steadyhand.runtime.folders import make_folder
from steadyhand.runtime.health import Health
from steadyhand.runtime.notices import Notices
from steadyhand.runtime.priority import Priority
from steadyhand.runtime.signal_flag import SignalFlag
from steadyhand.runtime.slot import Closable
from steadyhand.runtime.spawn import Spawned
from steadyhand.runtime.worker import PolicyProcess

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
    folder = assemble.state_folder(loaded)
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
) -> "First":
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


class NoPolicy:
    """Proposes nothing, and says why."""

    def __init__(
        self, n_u: int, why: str = "no bundle is configured", code: ReasonCode | None = None
    ) -> None:
        """Make the one proposal.

        Args:
            n_u: number of outputs.
            why: for people.
            code: nobody wanted it so: each proposal carries this fault.
        """
        faults = () if code is None else (Fault(code, text=why),)
        self._proposal = Proposal(
            np.full(n_u, np.nan), ProposalStatus.ABSENT, text=why, faults=faults
        )

    def propose(self, observation: Observation) -> Proposal:
        """Nothing."""
        del observation
        return self._proposal


@dataclass(frozen=True, slots=True)
class First:
    """What a service starts with, or changes to."""

    bundle: Bundle | None
    gate: Gate
    policy: Policy
    alarm: str = ""
    """Not empty when this is not what the configuration asks for."""


class Trial:
    """One bundle on its way to a policy: verified, its process under way, not believed yet."""

    def __init__(
        self,
        loaded: Loaded,
        parts: PlantParts,
        bundle: Bundle,
        spawned: Spawned | None = None,
    ) -> None:
        """Set the trial going.

        Args:
            loaded: the configuration.
            parts: the plant.
            bundle: verified.
            spawned: a process that waits for a policy; it is used or ended here.
        """
        self._loaded, self._parts, self._bundle = loaded, parts, bundle
        self._limits = assemble.child_limits(loaded.config)
        self._process: PolicyProcess | None = None
        if loaded.config.inference.isolation == "process":
            self._process = PolicyProcess(
                bundle.spec,
                deadline_s=loaded.config.inference.deadline,
                limits=self._limits,
                recycle_bytes=assemble.recycle_bytes(loaded.config),
                spawned=spawned,
                wait=False,
            )
        elif spawned is not None:
            spawned.discard()

    def result(self) -> First:
        """Wait for the end of the trial. The process that was tried is the one that serves.

        Raises:
            BundleError: refused; nothing of it is left.
        """
        process, spec = self._process, self._bundle.spec
        if process is not None:
            bundle = self._bundle.tried(process.wait_examined)
        else:
            bundle = self._bundle.tried(lambda: examine(spec, self._limits))
        try:
            gate = assemble.make_gate(self._loaded.config, self._parts, bundle)
            return First(bundle, gate, process or spec.build())
        except (ModelError, ConfigError) as error:
            self.close()
            raise BundleError("BUNDLE_TRUST", str(error)) from None

    def close(self) -> None:
        """Give it up; a `result` that is waited for raises. Idempotent."""
        if self._process is not None:
            self._process.close()


def first_policy(
    loaded: Loaded,
    parts: PlantParts,
    crashes: CrashLoop,
    spawned: Spawned | None = None,
    meanwhile: Callable[[], object] = lambda: None,
) -> First:
    """The policy to start with.

    The configured bundle, if it is good. Where it is refused and a bundle has run here before,
    the plant is not left alone for it in the middle of the night: the copy kept of the bundle
    that ran last is started, verified like any other; where that is refused too, the heuristic
    drives. Both are told loudly. The version never goes down unasked.

    With a bundle that took the runtime down again and again, the heuristic drives until somebody
    has acknowledged that.

    Args:
        loaded: the configuration.
        parts: the plant.
        crashes: knows which bundle that is, and is told which one is used now.
        spawned: a process that waits for a policy; it is used or ended here.
        meanwhile: runs while the trial is under way.

    Raises:
        BundleError: the configured bundle is refused and none ever ran here.
        ConfigError: the folder of keys is missing.
    """
    section = loaded.config.bundle
    crashes.use(Counted())
    try:
        if section is None:
            return _without(loaded, parts, "no bundle is configured")
        try:
            bundle = assemble.admit(loaded, parts, loaded.path(section.file))
            if why := crashes.barred(bundle.manifest_sha256):
                return _looped(loaded, parts, bundle, why)
            crashes.use(counted(bundle))
            trial, spawned = Trial(loaded, parts, bundle, spawned), None
            try:
                meanwhile()
            except BaseException:
                trial.close()
                raise
            return trial.result()
        except BundleError as error:
            refused = error
    finally:
        if spawned is not None:
            spawned.discard()
    crashes.use(Counted())
    kept = assemble.kept_bundle(loaded)
    if kept is None:
        raise refused
    told = f"{section.file}: {refused}"
    try:
        bundle = assemble.admit(loaded, parts, kept)
        if why := crashes.barred(bundle.manifest_sha256):
            return _looped(loaded, parts, bundle, f"{told}; {why}")
        crashes.use(counted(bundle))
        found = Trial(loaded, parts, bundle).result()
    except BundleError as error:
        crashes.use(Counted())
        why = f"the configured bundle is refused, and so is the one that ran here: {told}; {error}"
        return _without(loaded, parts, why, ReasonCode.POLICY_ABSENT)
    label = found.bundle.label if found.bundle else ""
    return replace(found, alarm=f"{told}; {label}, which ran here last, is used instead")


def counted(bundle: Bundle) -> Counted:
    """What a crash with `bundle` is counted for."""
    return Counted(digest=bundle.manifest_sha256, label=bundle.label)


def _looped(loaded: Loaded, parts: PlantParts, bundle: Bundle, why: str) -> First:
    """Nothing of the bundle is used, not even its monitors: any part of it may be the cause."""
    return _without(loaded, parts, f"{bundle.label} is not started: {why}", ReasonCode.CRASH_LOOP)


def _without(loaded: Loaded, parts: PlantParts, why: str, code: ReasonCode | None = None) -> First:
    alarm = "" if code is None else f"{why}; the heuristic drives"
    policy = NoPolicy(len(parts.outputs), why, code)
    return First(None, assemble.make_gate(loaded.config, parts, None), policy, alarm)
