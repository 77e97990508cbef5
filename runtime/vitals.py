"""What the metrics tell beside the ticks: link, policy's process, bundle, certificates, disk,
watchdog. Looked at when somebody asks, in the thread of whoever asks; nothing here waits.
"""

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from steadyhand.controllers.frames import LinkState
from steadyhand.controllers.protocols import Policy
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime.exposition import Family, Kind
from steadyhand.runtime.go_live import Basis
from steadyhand.runtime.guard import deaths
from steadyhand.runtime.health import Health
from steadyhand.runtime.journal import Journal
from steadyhand.runtime.provider import served_by
from steadyhand.runtime.refusals import CODES, OTHER
from steadyhand.runtime.worker import PolicyProcess

if TYPE_CHECKING:
    from steadyhand.runtime.serving_bundle import ServingBundle

POLICY_STATES = ("none", "thread", "ready", "restarting", "crash_loop", "closed")
"""No bundle; in this process; and the states of a process of its own."""
ENDS = (ReasonCode.OK, ReasonCode.RESTART, ReasonCode.WATCHDOG_PREV, ReasonCode.OOM_PREV)
"""How a run ends: in order, by a crash, by the watchdog, for want of memory."""
_REFUSALS = (*sorted(CODES), OTHER)


@dataclass(frozen=True, slots=True)
class Vitals:
    """One look. Time stamps are wall seconds since 1970; 0 is "never" or "not known"."""

    link: LinkState | None = None
    """State of the link now; None: as the last tick saw it."""
    connects: int = 0
    clock_offset_s: float = 0.0
    """The plant server's clock minus ours."""
    overtaken: int = 0
    """Commands a newer one replaced before they were sent."""
    policy: str = "none"
    policy_restarts: int = 0
    policy_bytes: int = 0
    as_configured: bool = True
    """False: the bundle of the configuration was refused, and another or none serves."""
    bundle_not_after_s: float = 0.0
    swaps: int = 0
    evidence_not_after_s: float = 0.0
    """End of the go-live evidence; 0 where there is none."""
    run_before: ReasonCode = ReasonCode.OK
    """How the run before this one ended; OK: in order."""
    certificates: Mapping[str, float] = field(default_factory=dict)
    """End of validity by name: "own", "server", "scada", and the earliest of the "trusted" ones
    and of the "revocation_list"s."""
    disk_free_bytes: float = 0.0
    disk_size_bytes: float = 0.0
    """Of the journal's disk."""
    journal_backlog: int = 0
    """Records and events that are not on disk yet."""
    journal_lag_s: float = 0.0
    """How long the journal has been busy with one transaction."""
    watchdog_s: float = 0.0
    """Real time in which the service manager wants a sign of life; 0: it wants none."""
    fed_s: float = 0.0
    """When it last got one."""
    commands_refused: Mapping[str, int] = field(default_factory=dict)
    """By code."""
    basis: Basis = Basis.NO_BUNDLE
    """What mode full stands on, for the bundle that serves."""
    task_deaths: int = 0
    """Threads that a defect ended."""
    provider_as_asked: bool = True
    """False: the policy runs, and not where `inference.provider` asks."""


Look = Callable[[], Vitals]


@runtime_checkable
class Telling(Protocol):
    """A link that tells its state to any thread; one without a network of its own need not."""

    @property
    def state(self) -> LinkState: ...  # noqa: D102
    @property
    def connects(self) -> int: ...  # noqa: D102
    @property
    def clock_offset_s(self) -> float: ...  # noqa: D102
    @property
    def overtaken(self) -> int: ...  # noqa: D102


@dataclass(frozen=True)
class ServiceVitals:
    """Where a service's vitals are looked for."""

    serving: "ServingBundle"
    journal: Journal
    health: Health
    link: object
    certificates: Callable[[], Mapping[str, float]]
    """When which certificate ends."""
    refused: Callable[[], Mapping[str, int]]
    """Commands refused so far, by code."""
    run_before: ReasonCode = ReasonCode.OK
    wall: Callable[[], float] = time.time

    def __call__(self) -> Vitals:
        """One look; any thread."""
        serving, link, health = self.serving, self.link, self.health
        policy = serving.slot.policy
        free, size = disk_bytes(self.journal.directory)
        ago_s = health.fed_ago_s
        told = link if isinstance(link, Telling) else None
        return Vitals(
            link=None if told is None else told.state,
            connects=0 if told is None else told.connects,
            clock_offset_s=0.0 if told is None else told.clock_offset_s,
            overtaken=0 if told is None else told.overtaken,
            policy=_state_of(policy, serving.label),
            policy_restarts=policy.restarts if isinstance(policy, PolicyProcess) else 0,
            policy_bytes=policy.resident_bytes() if isinstance(policy, PolicyProcess) else 0,
            provider_as_asked=not served_by(policy)[1],
            as_configured=not serving.alarm,
            bundle_not_after_s=serving.not_after_s,
            basis=serving.basis,
            swaps=serving.swaps,
            evidence_not_after_s=serving.evidence_ends_s,
            run_before=self.run_before,
            certificates=self.certificates(),
            disk_free_bytes=free,
            disk_size_bytes=size,
            journal_backlog=self.journal.backlog,
            journal_lag_s=self.journal.lag_s,
            watchdog_s=health.watchdog_s,
            fed_s=self.wall() - ago_s if isfinite(ago_s) else 0.0,
            commands_refused=self.refused(),
            task_deaths=deaths.count,
        )


def _state_of(policy: Policy, label: str) -> str:
    if isinstance(policy, PolicyProcess):
        return policy.state.value
    return "none" if label == "none" else "thread"


def families(vitals: Vitals) -> Iterable[Family]:
    """As series. Those of certificates exist where there are any."""
    values: tuple[tuple[str, Kind, str, float], ...] = (
        ("link_connects_total", "counter", "Times the link came up.", vitals.connects),
        ("link_clock_offset_seconds", "gauge", "Clock of the plant's server minus ours.",
         vitals.clock_offset_s),
        ("overtaken_commands_total", "counter",
         "Commands that a newer one replaced before they were sent.", vitals.overtaken),
        ("policy_restarts_total", "counter", "Restarts of the policy's process.",
         vitals.policy_restarts),
        ("policy_resident_memory_bytes", "gauge", "Memory of the policy's process.",
         vitals.policy_bytes),
        ("policy_provider_as_asked", "gauge",
         "0: the policy does not run where inference.provider asks.",
         float(vitals.provider_as_asked)),
        ("bundle_as_configured", "gauge",
         "0: the configured bundle was refused; another or none serves.",
         float(vitals.as_configured)),
        ("bundle_not_after_timestamp_seconds", "gauge",
         "End of the bundle's validity; 0 without a bundle.", vitals.bundle_not_after_s),
        ("evidence_not_after_timestamp_seconds", "gauge",
         "End of the go-live evidence's validity; 0 without evidence.",
         vitals.evidence_not_after_s),
        ("bundle_swaps_total", "counter", "Bundles swapped in while running.", vitals.swaps),
        ("journal_disk_free_bytes", "gauge", "Space left for the journal.",
         vitals.disk_free_bytes),
        ("journal_disk_size_bytes", "gauge", "Size of the journal's disk.",
         vitals.disk_size_bytes),
        ("journal_backlog_records", "gauge", "Records that are not on disk yet.",
         vitals.journal_backlog),
        ("journal_lag_seconds", "gauge", "Age of the journal's transaction under way.",
         vitals.journal_lag_s),
        ("watchdog_timeout_seconds", "gauge",
         "Time in which the service manager wants a sign of life; 0: it wants none.",
         vitals.watchdog_s),
        ("watchdog_fed_timestamp_seconds", "gauge",
         "When the service manager last got a sign of life; 0: never.", vitals.fed_s),
        ("task_deaths_total", "counter", "Threads of the runtime that a defect ended.",
         vitals.task_deaths),
    )  # fmt: skip
    for name, kind, meaning, value in values:
        yield Family(f"steadyhand_{name}", kind, meaning, [({}, value)])
    yield Family(
        "steadyhand_operator_refused_total",
        "counter",
        "Operators' commands refused, by every way they come in.",
        [({"code": code}, vitals.commands_refused.get(code, 0)) for code in _REFUSALS],
    )
    if vitals.certificates:
        yield Family(
            "steadyhand_certificate_not_after_timestamp_seconds",
            "gauge",
            "End of validity: ours, the plant server's, and the first of the trusted ones to end.",
            [({"certificate": name}, end_s) for name, end_s in vitals.certificates.items()],
        )
    yield Family(
        "steadyhand_policy_state",
        "gauge",
        "Where the policy runs, and whether it does.",
        [({"policy": state}, float(state == vitals.policy)) for state in POLICY_STATES],
    )
    yield Family(
        "steadyhand_run_before",
        "gauge",
        "How the run before this one ended; OK: in order.",
        [({"reason": str(code)}, float(code is vitals.run_before)) for code in ENDS],
    )
    yield Family(
        "steadyhand_go_live",
        "gauge",
        "What mode full stands on: evidence, nothing but a word (without), or it is closed.",
        [({"basis": str(basis)}, float(basis is vitals.basis)) for basis in Basis],
    )


def disk_bytes(directory: Path) -> tuple[float, float]:
    """Free for us, and size, of the disk under `directory`; zeros where it cannot be told."""
    try:
        disk = os.statvfs(directory)
    except OSError:
        return 0.0, 0.0
    return float(disk.f_bavail * disk.f_frsize), float(disk.f_blocks * disk.f_frsize)
