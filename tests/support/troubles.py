"""Every alarm's cause on a real site, and how the cause is removed."""

import contextlib
import os
import re
import resource
import signal
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from steadyhand.adapters.sim.faults import FaultKind
from steadyhand.controllers.errors import RequestError
from tests.support.loop_rig import OUTPUT, until
from tests.support.memory import Growth
from tests.support.prometheus import WINDOW_S
from tests.support.watched_site import PATIENCE_S, Site

TOLD_GROWTH_BYTES = 8 * 2**20
"""In one window of SteadyhandMemoryGrows."""


@dataclass(frozen=True)
class Trouble:
    """What raises some alarms, and what ends them."""

    alarms: tuple[str, ...]
    """Names without their "Steadyhand"; see `full`."""
    cause: Callable[[Site], object]
    mend: Callable[[Site], object]
    says: str = ""
    """What the description of the first one must name, besides."""

    def full(self) -> tuple[str, ...]:
        """The alarms as they are called."""
        return tuple(f"Steadyhand{name}" for name in self.alarms)


def nothing(site: Site) -> None:
    """It goes by itself."""


def clear_faults(site: Site) -> None:
    """The plant is sound again."""
    site.side("clear_faults")


def kill_policy(site: Site) -> None:
    """Twice within the alarm's window, each time once it serves: an end while it starts is no
    restart yet.
    """
    for _ in range(2):
        pid, before = site.rig.policy_pid(), policy_restarts(site)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        until(lambda n=before: policy_restarts(site) > n, PATIENCE_S, "a restart")


def policy_restarts(site: Site) -> int:
    """As the runtime itself counts them: what Prometheus knows of it is a scrape late."""
    time.sleep(0.1)  # who asks as often as he can is refused
    url = f"http://127.0.0.1:{site.port}/metrics"
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as reply:
        found = re.search(
            r"^steadyhand_policy_restarts_total\{?.*? (\d+)", reply.read().decode(), re.M
        )
    assert found is not None
    return int(found[1])


def kill_server(site: Site) -> None:
    """The plant's server is gone."""
    assert site.rig.plant is not None
    site.rig.plant.kill()


def server_back(site: Site) -> None:
    """And is there again."""
    site.rig.start_plant()
    site.rig.wait_in_control()


def full_disk(site: Site) -> None:
    """No file may grow any more: as a full disk, for this process alone."""
    site.limit(resource.RLIMIT_FSIZE, 1)


def space_again(site: Site) -> None:
    """Files may grow."""
    site.limit(resource.RLIMIT_FSIZE, resource.prlimit(site.pid, resource.RLIMIT_FSIZE)[1])


def override(site: Site, value: float = 10.0) -> None:
    """A person holds the output."""
    site.rig.ask("override", output=OUTPUT, value=value, reason="test of the valve", for_s=80000.0)


def clear_override(site: Site) -> None:
    """The person lets go."""
    with contextlib.suppress(RequestError):  # it may have come to its end
        site.rig.ask("clear-override", output=OUTPUT)


def knock(site: Site) -> None:
    """More scrapes than are answered."""

    def once(_: int) -> None:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{site.port}/metrics", timeout=5.0).read()

    with ThreadPoolExecutor(6) as several:
        list(several.map(once, range(120)))


def few_descriptors(site: Site) -> None:
    """Hardly more than are open."""
    open_now = len(list(Path(f"/proc/{site.pid}/fd").iterdir()))
    site.limit(resource.RLIMIT_NOFILE, open_now + 4)


def more_descriptors(site: Site) -> None:
    """As many as there may be."""
    site.limit(resource.RLIMIT_NOFILE, resource.prlimit(site.pid, resource.RLIMIT_NOFILE)[1])


def leak(site: Site) -> None:
    """A quarter more than is told."""
    site.growth = Growth(site.pid, 1.25 * TOLD_GROWTH_BYTES / WINDOW_S)


def leak_no_more(site: Site) -> None:
    """What was taken is kept; no more is taken."""
    assert site.growth is not None
    site.growth.close()


def charge_for_ever(site: Site) -> None:
    """The valve stays where it charges: sooner or later the tank is full."""
    override(site, -300.0)
    until(lambda: site.rig.truth()["applied"][OUTPUT] < -50.0, PATIENCE_S, "it charges")
    site.fault(OUTPUT, FaultKind.IGNORED)


def let_go(site: Site) -> None:
    """Everything as it was."""
    clear_faults(site)
    clear_override(site)
    site.acknowledge()


def hot_world(site: Site) -> None:
    """Every thermometer and every forecast agree that it is hotter than ever."""
    site.fault("outdoor_temperature_degc", FaultKind.WRONG, bias=12.0)
    for i in range(1, 5):
        site.fault(f"outdoor_forecast_{i:02d}_degc", FaultKind.WRONG, bias=12.0)


def idle(site: Site) -> None:
    """The server takes every request."""
    site.side("busy", probability=0.0)
    site.acknowledge()


def break_bundle(site: Site) -> None:
    """As a copy that was cut short; what ran before is kept beside the journal."""
    rig = site.rig
    broken = rig.folder / "broken.shb"
    assert rig.bundle is not None
    broken.write_bytes(rig.bundle.read_bytes()[:-1000])
    rig.stop_runtime()
    rig.config.write_text(rig.config.read_text().replace(str(rig.bundle), str(broken)))
    site.start()


def mend_bundle(site: Site) -> None:
    """A sound one; the configuration says, as shipped, that a start comes up in mode off."""
    site.rig.initial = "off"
    site.rig.stop_runtime()
    site.rig.write_config()
    site.rig.start_runtime()
    until(lambda: site.rig.status().get("link") == "up", PATIENCE_S, "a start", site.rig.story)
    drive(site)


def drive(site: Site) -> None:
    """A person asks for mode full."""
    site.rig.ask("mode", mode="full", reason="test")
    site.rig.wait_in_control()


def start_again(site: Site) -> None:
    """Only started: what a person asked for before is not taken up."""
    site.rig.start_runtime()
    until(lambda: site.rig.status().get("link") == "up", PATIENCE_S, "a start", site.rig.story)


def lose_records(site: Site) -> None:
    """More events than memory keeps, while the disk takes none."""
    full_disk(site)
    degraded = 'steadyhand_journal_degraded{job="steadyhand"}'
    until(lambda: site.monitoring.value(degraded) == 1.0, PATIENCE_S, "no disk")
    lost = "steadyhand_journal_lost_events_total"
    ended_s = time.monotonic() + 240.0
    while not site.monitoring.value(lost):
        assert time.monotonic() < ended_s, "nothing is lost"
        for _ in range(40):
            override(site)
            clear_override(site)


SCENES: dict[str, tuple[Trouble, ...]] = {
    "memory": (Trouble(("MemoryGrows",), leak, leak_no_more),),
    "machine": (
        Trouble(("JournalDegraded",), full_disk, space_again),
        Trouble(("FilesExhausted",), few_descriptors, more_descriptors),
        Trouble(("Refusals",), knock, nothing),
        Trouble(("Overruns",), lambda site: site.freeze(4.0), nothing),
    ),
    "measurement": (
        Trouble(
            ("MeasurementFault", "OnFallback", "PolicyShareLow"),
            lambda site: site.fault("load_forecast_03_kw", FaultKind.OFF),
            clear_faults,
            "SAMPLE_BAD",
        ),
    ),
    "hands": (
        Trouble(("OverrideForgotten",), override, clear_override),
        Trouble(
            ("NotGranted",),
            lambda site: site.side("grant", on=False),
            lambda site: site.side("grant", on=True),
        ),
    ),
    "plant's server": (
        Trouble(
            ("HandsOff",),
            lambda site: site.side("server_state", state="Suspended"),
            lambda site: site.side("server_state", state="Running"),
            "SERVER_STATE",
        ),
    ),
    "link": (Trouble(("LinkDown",), kill_server, server_back),),
    "policy": (Trouble(("PolicyRestarts",), kill_policy, nothing),),
    "cross-check": (
        Trouble(
            ("LastResort", "Latched"),
            lambda site: site.fault("cooling_load_kw", FaultKind.WRONG, scale=0.7),
            let_go,
            "OBS_XCHECK",
        ),
    ),
    "writing": (
        Trouble(
            ("WritesFailing",),
            lambda site: site.side("busy", probability=0.35),
            idle,
            "WRITE_FAILED",
        ),
    ),
    "filter": (Trouble(("FilterBusy",), lambda site: override(site, 450.0), clear_override),),
    "new ground": (Trouble(("Unfamiliar",), hot_world, let_go),),
    "limits": (Trouble(("OutsideLimits",), charge_for_ever, let_go, "tank_full"),),
}
"""What comes together and goes together. No cause of a scene raises another one's alarms."""

BUNDLE = Trouble(("BundleRefused",), break_bundle, mend_bundle)
STOPPED = Trouble(("Down",), lambda site: site.rig.stop_runtime(), start_again)
STARTED_ANEW = Trouble(("NotResumed", "Restarts"), nothing, drive)
STANDS_STILL = Trouble(("LoopStalled",), nothing, nothing)
LOST = Trouble(("JournalLost",), lose_records, space_again)
"""Some hundred commands, ten a second: only on demand."""
FROM_THE_START = Trouble(
    (
        "LinkInsecure",
        "ScadaInsecure",
        "BundleExpires",
        "CertificateExpires",
        "EvidenceExpires",
        "FilterNoAnswer",
    ),
    nothing,
    nothing,
)
"""What a configuration, a plant and papers bring with them."""


def fill(site: Site) -> None:
    """The journal's own small disk, nearly to the brim."""
    assert site.disk is not None
    disk = os.statvfs(site.disk)
    (site.disk / "ballast").write_bytes(bytes(int(0.97 * disk.f_bavail * disk.f_frsize)))


def empty(site: Site) -> None:
    """As it was."""
    assert site.disk is not None
    (site.disk / "ballast").unlink()


FULL = Trouble(("JournalDiskFilling",), fill, empty)
SCADA = Trouble(("ScadaDown",), nothing, nothing)
TROUBLES = (
    *(trouble for scene in SCENES.values() for trouble in scene),
    BUNDLE, STOPPED, STARTED_ANEW, STANDS_STILL, LOST, FROM_THE_START, FULL, SCADA,
)  # fmt: skip


def comes_and_goes(site: Site, scene: tuple[Trouble, ...]) -> None:
    """Causes, alarms, words; all mended, no alarm."""
    names = [name for trouble in scene for name in trouble.full()]
    for name in names:
        until(lambda n=name: not site.firing(n), PATIENCE_S, f"no {name} to begin with")
    begun: list[Trouble] = []
    try:
        for trouble in scene:
            begun.append(trouble)
            trouble.cause(site)
        say_so(site, *scene)
    finally:
        for trouble in reversed(begun):
            trouble.mend(site)
    for name in names:
        site.wait_without(name)


def say_so(site: Site, *troubles: Trouble) -> None:
    """Every alarm of the troubles fires, in words that a person can read. At most the first trouble
    has something that has to be said.
    """
    names = [name for trouble in troubles for name in trouble.full()]
    for words in site.wait_for(*names, says=troubles[0].says).values():
        assert words["summary"].startswith("north-building: "), words
        for text in words.values():
            assert "<" not in text, f"a template that failed: {text}"
            assert "no value" not in text
