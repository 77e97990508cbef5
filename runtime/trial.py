"""A bundle on its way to a policy: tried before it is believed, and what serves where none may.

configured bundle ─► admitted ─► trial ─┬─► serves
refused ◄─┘
└► the copy of what ran here last ─► … ─► the heuristic alone
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from steadyhand.controllers.errors import BundleError, ConfigError, ModelError
from steadyhand.controllers.frames import Fault, Observation, Proposal, ProposalStatus
from steadyhand.controllers.protocols import Policy
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.trust.gate import Gate
from steadyhand.runtime import assemble
from steadyhand.runtime.admission import admit, child_limits, recycle_bytes
from steadyhand.runtime.assemble import PlantParts
from steadyhand.runtime.bundle.load import Bundle
from steadyhand.runtime.child import examine
from steadyhand.runtime.config import Loaded
from steadyhand.runtime.crash_loop import Counted, CrashLoop
from steadyhand.runtime.spawn import Spawned
from steadyhand.runtime.state_folder import kept_bundle
from steadyhand.runtime.worker import PolicyProcess


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
        self._limits = child_limits(loaded.config)
        self._process: PolicyProcess | None = None
        if loaded.config.inference.isolation == "process":
            self._process = PolicyProcess(
                bundle.spec,
                deadline_s=loaded.config.inference.deadline,
                limits=self._limits,
                recycle_bytes=recycle_bytes(loaded.config),
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
            bundle = admit(loaded, parts, loaded.path(section.file))
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
    kept = kept_bundle(loaded)
    if kept is None:
        raise refused
    told = f"{section.file}: {refused}"
    try:
        bundle = admit(loaded, parts, kept)
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
