"""The shipped alarms in a real Prometheus over a real runtime: each comes with its fault and goes
with it; every query of the dashboards finds data; a person is told of the cause, not of what
follows from it.

One plant, one runtime, one Prometheus and one Alertmanager for the whole module. `make test` tries
the faults that the control room meets; the others need more than a few seconds each and are slow.
"""

import contextlib
import ctypes
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from steadyhand.adapters.opcua.settings import INSECURE_WORD
from steadyhand.adapters.sim.faults import FaultKind, SignalFault
from steadyhand.controllers.errors import RequestError
from tests.support.loop_rig import OUTPUT, SHIPPED, Bundles, Rig, until
from tests.support.prometheus import (
    RULES,
    Monitoring,
    filled_in,
    free_port,
    missing,
    panels,
)

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "installed")
TIME_SCALE = 3000.0
PATIENCE_S = 60.0
STARTED = "process_start_time_seconds"


@dataclass
class Site:
    """What is watched, and who watches."""

    rig: Rig
    monitoring: Monitoring
    port: int

    @property
    def pid(self) -> int:
        """Of the runtime."""
        assert self.rig.runtime is not None
        return self.rig.runtime.pid

    def firing(self, alarm: str) -> bool:
        """Does it fire now?"""
        return alarm in self.monitoring.alerts()

    def wait_for(self, alarm: str) -> dict[str, str]:
        """Until it fires; its words."""
        until(
            lambda: self.firing(alarm),
            PATIENCE_S,
            f"{alarm} fires",
            lambda: (sorted(self.monitoring.alerts()), self.rig.story()),
        )
        return dict(self.monitoring.alerts().get(alarm, {}).get("annotations", {}))

    def wait_without(self, alarm: str) -> None:
        """Until it does not fire any more."""
        until(lambda: not self.firing(alarm), PATIENCE_S, f"{alarm} ends", self.rig.story)

    def drives(self) -> bool:
        """Does the policy drive, as it should?"""
        return self.rig.status().get("source") == "policy"

    def acknowledge(self) -> None:
        """Until nothing is latched."""

        def clear() -> bool:
            with contextlib.suppress(RequestError):
                self.rig.ask("ack")
            return self.rig.status().get("latched") == []

        until(clear, PATIENCE_S, "nothing latched", self.rig.story)

    def fault(self, signal_name: str, kind: FaultKind, **parameters: float) -> None:
        """Something is wrong with a signal from now on."""
        now_s = self.rig.truth()["time_s"]
        made = SignalFault(signal_name, kind, now_s, parameters=parameters)
        assert self.rig.plant is not None
        self.rig.plant.side.inject(made)

    def side(self, operation: str, **fields: object) -> None:
        """One word to the plant."""
        assert self.rig.plant is not None
        self.rig.plant.side.call(operation, **fields)

    def limit(self, which: int, soft: int) -> None:
        """Another soft limit for the runtime."""
        _, hard = resource.prlimit(self.pid, which)
        resource.prlimit(self.pid, which, (soft, hard))


@contextlib.contextmanager
def watched(**settings: Any) -> Iterator[Site]:
    """A runtime that drives, and Prometheus over it."""
    with tempfile.TemporaryDirectory(prefix="prom") as name, contextlib.ExitStack() as opened:
        folder, port = Path(name), free_port()
        changes = {
            "listen: 127.0.0.1:9464": f"listen: 127.0.0.1:{port}\n  plant_values: true",
            # control changes hands more often here than any plant would let it
            "clean_ticks: 4": "clean_ticks: 4\n  max_raises: 1000",
        }
        rig = Rig(
            folder / "rig",
            **{
                "time_scale": TIME_SCALE,
                "bundle": SHIPPED.parent / "thermal_storage.shb",
                "keys": SHIPPED.parent / "keys",
                "plant_options": ("--certificate-days", "365"),
            }
            | settings
            | {"changes": changes | settings.get("changes", {})},
        )
        opened.callback(rig.close)
        monitoring = Monitoring(folder / "monitoring", port)
        opened.callback(monitoring.close)
        made = Site(rig, monitoring, port)
        rig.start_plant()
        rig.write_config()
        rig.start_runtime()
        rig.wait_in_control()
        until(
            lambda: monitoring.value('up{job="steadyhand"}') == 1.0,
            PATIENCE_S,
            "a scrape",
            lambda: (monitoring.get("targets")["activeTargets"], rig.story()),
        )
        yield made


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """The shipped plant with the shipped bundle."""
    with watched() as made:
        until(made.drives, PATIENCE_S, "the policy drives", made.rig.story)
        yield made


# -- what is there when all is well ----------------------------------------------------------------


def test_the_shipped_configuration_is_sound(site):
    assert site.monitoring.checked.returncode == 0, site.monitoring.checked.stdout
    for command in (
        ["promtool", "check", "config", str(RULES / "prometheus.yml")],
        ["amtool", "check-config", str(RULES / "alertmanager.yml")],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_reads_the_page_and_every_rule_works(site):
    (target,) = site.monitoring.get("targets")["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")
    until(lambda: all(rule["health"] == "ok" for rule in site.monitoring.rules()), what="rules")
    recorded = {rule["name"] for rule in site.monitoring.rules() if rule["type"] == "recording"}
    for name in recorded:
        until(lambda n=name: site.monitoring.query(n), PATIENCE_S, f"samples of {name}")


def test_prometheus_asks_for_open_metrics_and_gets_it(site):
    request = urllib.request.Request(
        f"http://127.0.0.1:{site.port}/metrics",
        headers={"Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"},
    )
    with urllib.request.urlopen(request, timeout=10.0) as reply:
        assert reply.headers["Content-Type"].startswith("application/openmetrics-text")
        text = reply.read().decode()
    assert text.endswith("# EOF\n")
    # promtool knows the conventions, too: names, units, help
    plain = urllib.request.urlopen(f"http://127.0.0.1:{site.port}/metrics", timeout=10.0).read()
    lint = subprocess.run(
        ["promtool", "check", "metrics"], input=plain, capture_output=True, check=False
    )
    assert (lint.returncode, lint.stderr.decode(), lint.stdout.decode()) == (0, "", "")


def test_every_query_of_every_panel_finds_data(site):
    """While an alarm fires: a list of alarms that is empty proves nothing."""
    _override(site)
    site.wait_for("SteadyhandOverrideForgotten")
    try:
        until(site.drives, PATIENCE_S, "the policy drives", site.rig.story)
        empty = []
        for board, panel in panels():
            for target in panel["targets"]:
                expression = filled_in(target["expr"])
                ask = site.monitoring.query if target["instant"] else site.monitoring.over_time
                if not ask(expression):
                    empty.append((board, panel["title"], expression))
        assert empty == []
        assert len(panels()) > 50
    finally:
        _clear_override(site)


def test_the_number_of_series_does_not_grow(site):
    count = 'count({job="steadyhand",__name__=~"(steadyhand|process)_.+"})'
    before = site.monitoring.value(count)
    assert before is not None
    assert before < 1200
    first = site.rig.status()["tick"]
    until(lambda: site.rig.status().get("tick", 0) > first + 5, what="ticks")
    # what is not known at a moment has no sample: only fewer are possible
    assert (site.monitoring.value(count) or 0.0) <= before + 8


# -- faults ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trouble:
    """How an alarm is caused, and how its cause is removed."""

    alarm: str
    cause: Callable[[Site], object]
    mend: Callable[[Site], object]
    says: str = ""
    """What its description must name, besides."""


def _nothing(site: Site) -> None:
    """It goes by itself."""


def _kill_policy(site: Site) -> None:
    """Twice, each time once it serves: an end while it starts is no restart yet."""
    restarts = "steadyhand_policy_restarts_total"
    for _ in range(2):
        pid, before = site.rig.policy_pid(), site.monitoring.value(restarts)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        until(lambda n=before: site.monitoring.value(restarts) != n, PATIENCE_S, "a restart")


def _start_again(site: Site) -> None:
    site.rig.start_runtime()
    site.rig.wait_in_control()


def _server_back(site: Site) -> None:
    site.rig.start_plant()
    site.rig.wait_in_control()


def _kill_server(site: Site) -> None:
    assert site.rig.plant is not None
    site.rig.plant.kill()


def _clear_faults(site: Site) -> None:
    site.side("clear_faults")


def _full_disk(site: Site) -> None:
    """No file may grow any more: as a full disk, for this process alone."""
    site.limit(resource.RLIMIT_FSIZE, 1)


def _space_again(site: Site) -> None:
    site.limit(resource.RLIMIT_FSIZE, resource.prlimit(site.pid, resource.RLIMIT_FSIZE)[1])


def _override(site: Site) -> None:
    site.rig.ask("override", output=OUTPUT, value=10.0, reason="test of the valve", for_s=80000.0)


def _clear_override(site: Site) -> None:
    with contextlib.suppress(RequestError):  # it may have come to its end
        site.rig.ask("clear-override", output=OUTPUT)


def _knock(site: Site) -> None:
    for _ in range(60):
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{site.port}/metrics", timeout=5.0).read()


FREQUENT = (
    Trouble(
        "SteadyhandMeasurementFault",
        lambda site: site.fault("cooling_load_kw", FaultKind.OFF),
        _clear_faults,
        "SAMPLE_BAD",
    ),
    Trouble(
        "SteadyhandOnFallback",
        lambda site: site.fault("load_forecast_03_kw", FaultKind.OFF),
        _clear_faults,
        "SAMPLE_BAD",
    ),
    Trouble("SteadyhandOverrideForgotten", _override, _clear_override),
    Trouble(
        "SteadyhandNotGranted",
        lambda site: site.side("grant", on=False),
        lambda site: site.side("grant", on=True),
    ),
    Trouble("SteadyhandLinkDown", _kill_server, _server_back),
    Trouble("SteadyhandPolicyRestarts", _kill_policy, _nothing),
    Trouble("SteadyhandJournalDegraded", _full_disk, _space_again),
    Trouble("SteadyhandRefusals", _knock, _nothing),
    Trouble("SteadyhandDown", lambda site: site.rig.stop_runtime(), _start_again),
)


def comes_and_goes(site: Site, trouble: Trouble) -> None:
    """Cause, alarm, words; mend, no alarm."""
    until(lambda: not site.firing(trouble.alarm), PATIENCE_S, f"no {trouble.alarm} to begin with")
    trouble.cause(site)
    try:
        words = site.wait_for(trouble.alarm)
        if trouble.says:
            until(
                lambda: trouble.says in site.wait_for(trouble.alarm).get("description", ""),
                PATIENCE_S,
                f"{trouble.alarm} names {trouble.says}",
                lambda: site.monitoring.alerts().get(trouble.alarm),
            )
    finally:
        trouble.mend(site)
    assert words["summary"].startswith("north-building: "), words
    for text in words.values():
        assert "<" not in text, f"a template that failed: {text}"
        assert "no value" not in text
    site.wait_without(trouble.alarm)


@pytest.mark.parametrize("trouble", FREQUENT, ids=lambda trouble: trouble.alarm)
def test_an_alarm_comes_with_its_fault_and_goes_with_it(site, trouble):
    comes_and_goes(site, trouble)


def test_who_is_told_hears_of_the_cause_alone(site):
    """Without a link nothing else works either; one message is enough."""
    until(site.drives, PATIENCE_S, "the policy drives", site.rig.story)
    _kill_server(site)
    try:
        until(lambda: "SteadyhandLinkDown" in site.monitoring.told(), PATIENCE_S, "told")
        time.sleep(2.0)
        told = site.monitoring.told()
    finally:
        _server_back(site)
    follows = {"HandsOff", "OnFallback", "NotGranted", "MeasurementFault", "WritesFailing"}
    assert not told & {f"Steadyhand{name}" for name in follows}


# -- the faults that take longer -------------------------------------------------------------------


@contextlib.contextmanager
def stopped_thread(pid: int) -> Iterator[None]:
    """The main thread of a process stands still, all others go on: seized as a debugger would."""
    libc = ctypes.CDLL(None, use_errno=True)
    ptrace = libc.ptrace
    ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    seize, interrupt, detach = 0x4206, 0x4207, 17
    assert ptrace(seize, pid, None, None) == 0, os.strerror(ctypes.get_errno())
    try:
        assert ptrace(interrupt, pid, None, None) == 0
        os.waitpid(pid, 0x40000000)  # __WALL
        yield
    finally:
        ptrace(detach, pid, None, None)


def test_a_loop_that_stands_still_is_seen(site):
    alarm = "SteadyhandLoopStalled"
    page = f"http://127.0.0.1:{site.port}/metrics"
    for _ in range(20):
        with stopped_thread(site.pid):
            try:
                urllib.request.urlopen(page, timeout=1.0).read()
            except OSError:
                continue  # it was stopped while it held the interpreter: nobody answers then
            words = site.wait_for(alarm)
            break
    assert words["summary"].startswith("north-building: no tick for ")
    site.wait_without(alarm)


def _start_thrice(site: Site) -> None:
    """Each start is scraped at least once."""
    for _ in range(3):
        before = site.monitoring.value(STARTED)
        site.rig.stop_runtime()  # in order: after three crashes it would start without the policy
        site.rig.start_runtime()
        until(lambda n=before: site.monitoring.value(STARTED) not in (None, n), 60.0, "a scrape")


def _stop_and_go_on(site: Site) -> None:
    os.kill(site.pid, signal.SIGSTOP)
    time.sleep(4.0 * site.rig.period_s)
    os.kill(site.pid, signal.SIGCONT)


def _few_descriptors(site: Site) -> None:
    open_now = len(list(Path(f"/proc/{site.pid}/fd").iterdir()))
    site.limit(resource.RLIMIT_NOFILE, open_now + 4)


def _charge_for_ever(site: Site) -> None:
    """The valve stays where it charges: sooner or later the tank is full."""
    site.rig.ask("override", output=OUTPUT, value=-300.0, reason="test", for_s=80000.0)
    until(lambda: site.rig.truth()["applied"][OUTPUT] < -50.0, PATIENCE_S, "it charges")
    site.fault(OUTPUT, FaultKind.IGNORED)


def _let_go(site: Site) -> None:
    _clear_faults(site)
    _clear_override(site)
    site.acknowledge()


def _too_much(site: Site) -> None:
    site.rig.ask("override", output=OUTPUT, value=450.0, reason="test", for_s=80000.0)


def _hot_world(site: Site) -> None:
    """Every thermometer and every forecast agree that it is hotter than ever."""
    site.fault("outdoor_temperature_degc", FaultKind.WRONG, bias=12.0)
    for i in range(1, 5):
        site.fault(f"outdoor_forecast_{i:02d}_degc", FaultKind.WRONG, bias=12.0)


def _deny(site: Site) -> None:
    site.side("access", signal=OUTPUT, writable=False)


def _allow(site: Site) -> None:
    site.side("access", signal=OUTPUT, writable=True)
    site.acknowledge()


def _busy(site: Site) -> None:
    """The server takes two requests in three."""
    site.side("busy", probability=0.35)


def _idle(site: Site) -> None:
    site.side("busy", probability=0.0)
    site.acknowledge()


def _break_bundle(site: Site) -> None:
    """As a copy that was cut short; what ran before is kept beside the journal."""
    rig = site.rig
    broken = rig.folder / "broken.shb"
    assert rig.bundle is not None
    broken.write_bytes(rig.bundle.read_bytes()[:-1000])
    rig.stop_runtime()
    rig.config.write_text(rig.config.read_text().replace(str(rig.bundle), str(broken)))
    _start_again(site)


def _mend_bundle(site: Site) -> None:
    site.rig.stop_runtime()
    site.rig.write_config()
    _start_again(site)


RARE = (
    Trouble("SteadyhandRestarts", _start_thrice, _nothing),
    Trouble(
        "SteadyhandLastResort",
        lambda site: site.fault("cooling_load_kw", FaultKind.WRONG, scale=0.7),
        _let_go,
        "OBS_XCHECK",
    ),
    Trouble(
        "SteadyhandHandsOff",
        lambda site: site.side("server_state", state="Suspended"),
        lambda site: site.side("server_state", state="Running"),
        "SERVER_STATE",
    ),
    Trouble("SteadyhandLatched", _deny, _allow),
    Trouble("SteadyhandWritesFailing", _busy, _idle, "WRITE_FAILED"),
    Trouble("SteadyhandOutsideLimits", _charge_for_ever, _let_go, "tank_full"),
    Trouble("SteadyhandFilterBusy", _too_much, _clear_override),
    Trouble("SteadyhandUnfamiliar", _hot_world, _let_go),
    Trouble(
        "SteadyhandPolicyShareLow",
        lambda site: site.fault("load_forecast_03_kw", FaultKind.OFF),
        _clear_faults,
    ),
    Trouble("SteadyhandOverruns", _stop_and_go_on, _nothing),
    Trouble("SteadyhandBundleRefused", _break_bundle, _mend_bundle),
    Trouble("SteadyhandFilesExhausted", _few_descriptors, lambda site: site.limit(
        resource.RLIMIT_NOFILE, resource.prlimit(site.pid, resource.RLIMIT_NOFILE)[1])),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("trouble", RARE, ids=lambda trouble: trouble.alarm)
def test_a_rare_alarm_comes_with_its_fault_and_goes_with_it(site, trouble):
    until(site.drives, PATIENCE_S, "the policy drives", site.rig.story)
    comes_and_goes(site, trouble)


# -- what has to be so from the start --------------------------------------------------------------


def soon(days: float) -> datetime:
    """In so many days, in whole seconds."""
    return (datetime.now(UTC) + timedelta(days=days)).replace(microsecond=0)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MiB for the journal."""
    mount = tmp_path / "small"
    mount.mkdir(mode=0o700)
    command = ["mount", "-t", "tmpfs", "-o", "size=64m,mode=0700", "tmpfs", str(mount)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("may not mount file systems")
    yield mount
    subprocess.run(["umount", "-l", str(mount)], check=True)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_papers_that_end_and_a_disk_that_fills(small_disk, tmp_path):
    """Bundle and certificates end in ten days; a new bundle and new certificates, and all is well.
    The journal's disk fills, and is emptied.
    """
    bundles = Bundles(tmp_path / "bundles")
    with watched(
        bundle=bundles.pack("first", 1, not_after=soon(10.0)),
        keys=bundles.keys,
        plant_options=("--certificate-days", "10"),
        changes={"directory: var/journal": f"directory: {small_disk}/journal"},
    ) as site:
        bundle, certificate = "SteadyhandBundleExpires", "SteadyhandCertificateExpires"
        assert "9d 23h" in site.wait_for(bundle)["summary"]
        assert "9d 23h" in site.wait_for(certificate)["summary"]
        renewed = bundles.pack("second", 2, not_after=soon(365.0))
        site.rig.ask("swap", file=str(renewed), reason="renewed")
        site.wait_without(bundle)

        def fill(site: Site) -> None:
            disk = os.statvfs(small_disk)
            ballast = small_disk / "ballast"
            ballast.write_bytes(bytes(int(0.97 * disk.f_bavail * disk.f_frsize)))

        def empty(site: Site) -> None:
            (small_disk / "ballast").unlink()

        comes_and_goes(site, Trouble("SteadyhandJournalDiskFilling", fill, empty))
        site.rig.stop_runtime()
        assert site.rig.plant is not None
        site.rig.plant.stop()
        shutil.rmtree(site.rig.folder / "pki")
        site.rig.plant_options = ("--certificate-days", "365")
        site.rig.bundle = renewed
        site.rig.start_plant()
        site.rig.write_config()
        _start_again(site)
        site.wait_without(certificate)
        assert not site.firing(bundle)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_link_without_encryption_never_stops_saying_so(tmp_path):
    bundles = Bundles(tmp_path / "bundles")
    word = f"insecure_no_encryption: {INSECURE_WORD}"
    with watched(
        bundle=bundles.pack("first", 1),
        keys=bundles.keys,
        plant_options=("--insecure-no-encryption-and-anonymous-users",),
        changes={
            "policy: Basic256Sha256": word,
            "    certificate: pki/client_cert.der\n": "",
            "    private_key: pki/client_key.pem\n": "",
            "    trusted: [pki/server_cert.der]\n": "",
            "    user: controller\n": "",
            "    password_file: pki/password\n": "",
        },
    ) as site:
        alarm = "SteadyhandLinkInsecure"
        assert "neither encrypted nor signed" in site.wait_for(alarm)["summary"]
        time.sleep(3.0)
        assert site.firing(alarm)
        site.rig.stop_runtime()
        assert site.rig.plant is not None
        site.rig.plant.stop()
        site.rig.plant_options, site.rig.changes = (), {
            old: new for old, new in site.rig.changes.items() if "pki" not in old
            and "Basic256" not in old and "controller" not in old
        }  # fmt: skip
        site.rig.start_plant()
        site.rig.write_config()
        _start_again(site)
        site.wait_without(alarm)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_limits_that_cannot_all_hold(tmp_path):
    """A power cap below what the building needs when the tank is empty."""
    bundles = Bundles(tmp_path / "bundles")
    with watched(
        bundle=bundles.pack("first", 1),
        keys=bundles.keys,
        changes={"parameters: {}  ": "parameters: {power_cap_kw: 20 kW}  "},
    ) as site:
        alarm = "SteadyhandFilterNoAnswer"
        assert "three times or more" in site.wait_for(alarm)["summary"]
        site.rig.stop_runtime()
        del site.rig.changes["parameters: {}  "]
        site.rig.write_config()
        _start_again(site)
        site.wait_without(alarm)
