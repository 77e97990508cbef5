"""Which bundle serves: the one of the start, and whatever is swapped in while the loop runs.

    asked for ─► verified and tried beside the loop (`swap.py`) ─► may it? ─► into the slot
                                                      refused ◄─┘
                                 the old one goes on ◄─┘

A bundle that has answered in service is noted: from then on no older one is taken unasked.
"""

import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from steadyhand.controllers.errors import (
    BundleError,
    ConfigError,
    RequestError,
    SteadyhandError,
)
from steadyhand.controllers.frames import Fault
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime.admission import trusted_keys
from steadyhand.runtime.announcer import Announcer
from steadyhand.runtime.assemble import PlantParts
from steadyhand.runtime.bundle.load import Bundle
from steadyhand.runtime.config import Loaded
from steadyhand.runtime.crash_loop import CrashLoop
from steadyhand.runtime.go_live import Basis, GoLive, record_name
from steadyhand.runtime.guard import Guarded
from steadyhand.runtime.health import printable
from steadyhand.runtime.kept import RETRY_S
from steadyhand.runtime.modes import Mode
from steadyhand.runtime.notices import LENGTH
from steadyhand.runtime.priority import Priority
from steadyhand.runtime.recorder import Recorder
from steadyhand.runtime.slot import Closable, PolicySlot
from steadyhand.runtime.state_folder import installed_state
from steadyhand.runtime.swap import Swap
from steadyhand.runtime.trial import First, NoPolicy, counted
from steadyhand.runtime.worker import PolicyProcess


class ServingBundle:
    """Used by the loop's thread, between ticks."""

    def __init__(
        self,
        loaded: Loaded,
        plant: PlantParts,
        first: First,
        slot: PolicySlot,
        go_live: GoLive,
        crashes: CrashLoop,
        recorder: Recorder,
        announcer: Announcer,
    ) -> None:
        """Serve what was started with.

        Args:
            loaded: the configuration.
            plant: the plant.
            first: what it starts with.
            slot: where its policy sits; closed by whoever made it.
            go_live: what lets a bundle into mode full.
            crashes: knows which bundles took the runtime down, and which one serves.
            recorder: takes the events.
            announcer: tells the loud ones.
        """
        self.slot = slot
        self.bundle = first.bundle
        """Whose policy proposes now."""
        self.alarm = first.alarm
        """Why another policy than the configured one drives; empty when it does not."""
        self.last_swap: dict[str, str] | None = None
        """What became of the last swap: file, outcome, code, text; None before the first."""
        self.swaps = 0
        """How many went well."""
        self._loaded, self._plant, self._go_live = loaded, plant, go_live
        self._crashes, self._recorder, self._announcer = crashes, recorder, announcer
        self._keys = trusted_keys(loaded)
        """May sign bundles until the stop; what is put there later counts from the next start."""
        self._unproven = first.bundle
        self._not_installed = ""
        """Why it is not known on disk that this bundle serves; empty: it is, or will be."""
        self._swap: Swap | None = None

    # -- what serves -------------------------------------------------------------------------------

    @property
    def label(self) -> str:
        """Name and version of the policy that proposes now."""
        return self.slot.label

    @property
    def basis(self) -> Basis:
        """What mode full stands on with it."""
        return self._go_live.basis(self.bundle)

    @property
    def not_after_s(self) -> float:
        """End of its validity, wall seconds since 1970; 0 without a bundle."""
        return 0.0 if self.bundle is None else self.bundle.manifest.not_after.timestamp()

    @property
    def evidence_ends_s(self) -> float:
        """Wall seconds since 1970; 0 where the bundle needs no evidence, or has none."""
        end = self._go_live.not_after(self.bundle)
        return 0.0 if end is None else end.timestamp()

    def refused_full(self, actor: str) -> str:
        """Why it may not drive in mode full, told in the record; empty when it may."""
        why = self._go_live.refusal(self.bundle)
        if why:
            code = str(ReasonCode.NO_EVIDENCE)
            self._recorder.event(
                {"event": "ModeRefused", "code": code, "actor": actor, "text": why}
            )
        return why

    def warn(self) -> None:
        """Record what is odd about it."""
        for text in self.bundle.warnings if self.bundle is not None else ():
            self._recorder.event({"event": "BundleWarning", "text": text})

    def answered(self) -> None:
        """It has, in service: from now on no older one is taken unasked."""
        bundle, self._unproven = self._unproven, None
        if bundle is not None:
            # the disk may be slow, and the loop does not wait for it
            Guarded(partial(self._keep, bundle), "installed").start()

    def faults(self) -> Iterator[Fault]:
        """What is wrong now with what the next start has to know."""
        if self._not_installed:
            yield Fault(ReasonCode.AUDIT_DEGRADED, "bundle", text=self._not_installed)

    def _keep(self, bundle: Bundle) -> None:
        """Until it is on disk, or another bundle serves: a start would take an older one."""
        while bundle is self.bundle:
            try:
                installed_state(self._loaded).record(
                    bundle.manifest, bundle.manifest_sha256, datetime.now(UTC), bundle.content
                )
            except (BundleError, OSError) as error:
                if not self._not_installed:
                    self._recorder.event({"event": "BundleState", "text": str(error)})
                self._not_installed = str(error)
                time.sleep(RETRY_S)
            else:
                break
        self._not_installed = ""

    def tell_process(self) -> None:
        """Record what happened to the policy's process."""
        policy = self.slot.policy
        if isinstance(policy, PolicyProcess):
            with suppress(IndexError):
                while True:
                    fault = policy.events.popleft()
                    event = {"event": "PolicyProcess", "code": fault.code, "text": fault.text}
                    told = fault.code is ReasonCode.MEM_RECYCLE  # nothing else shows it
                    (self._announcer.event if told else self._recorder.event)(event)

    # -- what took the runtime, or its own process, down -------------------------------------------

    def acknowledge(self) -> list[str]:
        """A person has looked at the crashes; codes of what that ended."""
        cleared = self._acknowledge_ours()
        policy = self.slot.policy
        if isinstance(policy, PolicyProcess) and policy.acknowledge():
            cleared.append(str(ReasonCode.CRASH_LOOP))
        return cleared

    def _acknowledge_ours(self) -> list[str]:
        """Bundles that took the runtime down may be started again: at the next start, or now by a
        swap.
        """
        if not self._crashes.bars:
            return []
        # the disk may be slow, and the loop does not wait for it
        Guarded(self._crashes.acknowledge, "crashes").start()
        if isinstance(self.slot.policy, NoPolicy):
            why = self.alarm = "acknowledged; the next restart loads the policy"
            made = NoPolicy(len(self._plant.outputs), why, ReasonCode.POLICY_ABSENT)
            self.slot.swap(made, self.slot.label)
        return [str(ReasonCode.CRASH_LOOP)]

    # -- another one -------------------------------------------------------------------------------

    def begin_swap(self, file: Path, actor: str, reason: str) -> None:
        """Verify and start the new policy in another thread; the loop goes on with the old one.

        Raises:
            RequestError: another swap is under way.
        """
        if self._swap is not None:
            raise RequestError("SWAP_UNDER_WAY", "a swap is under way; look at the status")
        about = {"actor": actor, "reason": reason, "file": file.name}
        self._recorder.event({"event": "SwapAsked", "code": "SWAP", **about})
        self._swap = Swap(self._loaded, self._plant, file, self._keys)
        self._tell("verifying", "SWAP", f"asked for by {actor}", file.name)

    def swapped(self, mode: Mode) -> First | None:
        """What serves from now on, where a swap has just come to a good end.

        Args:
            mode: in force.
        """
        if self._swap is None or not self._swap.done:
            return None
        swap, self._swap = self._swap, None
        try:
            made = swap.take()
            bundle = made.bundle
            assert bundle is not None  # noqa: S101  (a swap is made from one)
            if why := self._why_not(made, bundle, mode):
                if isinstance(made.policy, Closable):
                    made.policy.close()
                raise ConfigError(why)
        except SteadyhandError as error:
            self._recorder.event(
                {"event": "SwapRefused", "code": "SWAP_REFUSED", "text": str(error)}
            )
            code = str(getattr(error, "code", "SWAP_REFUSED"))
            self._tell("refused", code, str(error).removeprefix(f"{code}: "))
            return None
        Guarded(partial(self._crashes.use, counted(bundle)), "crashes").start()
        old = self.slot.swap(made.policy, bundle.label)
        self._unproven = self.bundle = bundle
        self.alarm = ""
        self.swaps += 1
        self.warn()
        self._recorder.use_bundle(record_name(bundle))
        self._recorder.event({"event": "Swapped", "code": "SWAP", "old": old, "new": bundle.label})
        self._tell("done", "SWAP", f"{record_name(bundle)} instead of {old}")
        return made

    def close(self) -> None:
        """A policy that was prepared and never sat in the slot ends here. Idempotent."""
        if self._swap is not None:
            self._swap.close()

    def _why_not(self, made: First, bundle: Bundle, mode: Mode) -> str:
        """What is sound in itself and still may not serve in this run; empty when it may."""
        if why := self._crashes.barred(bundle.manifest_sha256):
            return f"{bundle.label}: {why}; acknowledge CRASH_LOOP first"
        if mode is Mode.FULL and (why := self._go_live.refusal(bundle)):
            return f"{ReasonCode.NO_EVIDENCE}: {why}; or ask for mode limited first"
        monitors = self._recorder.layout.monitors
        if made.gate.names != monitors:
            return (
                f"the bundle brings monitors {made.gate.names}, the record of this run is laid out "
                f"for {monitors}: restart with it instead of swapping"
            )
        return ""

    def _tell(self, outcome: str, code: str, text: str, file: str = "") -> None:
        """For the status; a new mapping each time, because the last one may be shown just now."""
        name = file or (self.last_swap or {}).get("file", "")
        text = printable(text, LENGTH)
        loud = Priority.WARNING if outcome == "refused" else Priority.NOTICE
        self._announcer.say(f"swap to {printable(name, LENGTH)}: {outcome}: {text}", loud)
        self.last_swap = {"file": name, "outcome": outcome, "code": code, "text": text}
