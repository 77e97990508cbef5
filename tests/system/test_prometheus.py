"""The shipped alarms in a real Prometheus over a real runtime: each comes with its fault and goes
with it; every query of the dashboards finds data; a person is told of the cause, not of what
follows from it.

Two sites. One is sound, and gets into every trouble of `support/troubles.py`, several at once where
they do not touch each other. The other is poor from its first moment on, and is put right.
"""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

from steadyhand.adapters.opcua.application_certificate import make_certificate
from steadyhand.adapters.opcua.settings import INSECURE_WORD
from steadyhand.runtime.bundle.load import verify_bundle
from steadyhand.runtime.bundle.signature import TrustStore, generate_key, read_private
from steadyhand.runtime.evidence import Evidence, Thresholds, seal
from tests.support import results
from tests.support.loop_rig import Bundles, until
from tests.support.prometheus import (
    RULES,
    annotations,
    filled_in,
    free_port,
    missing,
    panels,
    variables,
)
from tests.support.scada_rig import ScadaFiles
from tests.support.troubles import (
    BUNDLE,
    FROM_THE_START,
    FULL,
    LOST,
    SCADA,
    SCENES,
    STANDS_STILL,
    STARTED_ANEW,
    STOPPED,
    clear_override,
    comes_and_goes,
    kill_server,
    override,
    say_so,
    server_back,
)
from tests.support.watched_site import PATIENCE_S, Site, watched

pytestmark = [
    pytest.mark.skipif(bool(missing()), reason=missing() or "installed"),
    pytest.mark.timeout(400),
]
RECENT_S = 300.0
"""Far enough back for the newest change of mode, on a busy machine too."""


EVIDENCE = "Go-live evidence valid for"
"""The one panel that is empty on a site that needs no evidence."""


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """The shipped plant with the shipped bundle."""
    with watched() as made:
        made.wait_driven()
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
    def target() -> tuple[str, str]:
        (found,) = site.monitoring.get("targets")["activeTargets"]
        return found["health"], found["lastError"]

    until(lambda: target() == ("up", ""), PATIENCE_S, "a good scrape", target)
    until(lambda: all(rule["health"] == "ok" for rule in site.monitoring.rules()), what="rules")
    recorded = {rule["name"] for rule in site.monitoring.rules() if rule["type"] == "recording"}
    shadow = "instance:steadyhand_shadow_ticks:near_share_1d"  # a panel below asks for it
    for name in recorded - {shadow}:
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


def test_every_query_of_every_board_finds_data(site):
    """Panels, annotations, variables. While an alarm fires, and soon after the mode was shadow: a
    list of alarms or of changes that is empty proves nothing.
    """
    override(site)
    site.wait_for("SteadyhandOverrideForgotten")
    try:
        compared = "steadyhand_shadow_distance_ratio"
        site.rig.ask("mode", mode="shadow", reason="test")
        shares = "instance:steadyhand_shadow_ticks:near_share_1d"
        for name in (compared, shares):
            until(lambda n=name: site.monitoring.query(n), PATIENCE_S, name, site.rig.story)
        site.rig.ask("mode", mode="full", reason="test")
        site.wait_driven()
        empty = [
            (board, name, text)
            for board, name, text in annotations()
            if not site.monitoring.over_time(filled_in(text), RECENT_S)
        ]
        for board, name, selector, label in variables():
            found = site.monitoring.get("series", **{"match[]": filled_in(selector)})
            empty += [(board, name, label)] * (not any(label in one for one in found))
        for board, panel in panels():
            for target in panel["targets"]:
                expression = filled_in(target["expr"])
                if target["instant"]:
                    found = site.monitoring.query(expression)
                else:
                    found = site.monitoring.over_time(expression, RECENT_S)
                if not found:
                    empty.append((board, panel["title"], expression))
        assert [title for _, title, _ in empty] == [EVIDENCE], "the poor site has some"
        assert len(panels()) > 60
        assert (len(annotations()), len(variables())) == (4, 5)
    finally:
        clear_override(site)


def test_the_number_of_series_does_not_grow(site):
    count = 'count({job="steadyhand",__name__=~"(steadyhand|process)_.+"})'
    before = site.monitoring.value(count)
    assert before is not None
    assert before < 1300
    first = site.rig.status()["tick"]
    until(lambda: site.rig.status().get("tick", 0) > first + 5, what="ticks")
    # what is not known at a moment has no sample: only fewer are possible
    assert (site.monitoring.value(count) or 0.0) <= before + 8


# -- faults ----------------------------------------------------------------------------------------


def test_a_restart_is_told_with_all_that_follows_from_it(site):
    """A bundle that is refused, one that is taken again, a runtime that is stopped and comes up in
    mode off although a person had asked for more: three starts within the hour are one alarm more.
    """
    comes_and_goes(site, (BUNDLE,))
    site.wait_driven()
    STOPPED.cause(site)
    say_so(site, STOPPED)
    STOPPED.mend(site)
    say_so(site, STARTED_ANEW)
    assert site.rig.status()["mode"] == "off"
    STARTED_ANEW.mend(site)
    site.wait_without("SteadyhandNotResumed")
    site.wait_without("SteadyhandDown")
    # that the starts are forgotten in their time is looked at when all else is tried


@pytest.mark.parametrize("scene", SCENES)
def test_alarms_come_with_their_faults_and_go_with_them(site, scene):
    site.wait_driven()
    comes_and_goes(site, SCENES[scene])


def test_who_is_told_hears_of_the_cause_alone(site):
    """Without a link nothing else works either; one message is enough."""
    site.wait_driven()
    kill_server(site)
    try:
        until(lambda: "SteadyhandLinkDown" in site.monitoring.told(), PATIENCE_S, "told")
        time.sleep(2.0)
        told = site.monitoring.told()
    finally:
        server_back(site)
    follows = {"HandsOff", "OnFallback", "NotGranted", "MeasurementFault", "WritesFailing"}
    assert not told & {f"Steadyhand{name}" for name in follows}


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
    (alarm,) = STANDS_STILL.full()
    page = f"http://127.0.0.1:{site.port}/metrics"
    for _ in range(20):
        with stopped_thread(site.pid):
            try:
                urllib.request.urlopen(page, timeout=1.0).read()
            except OSError:
                continue  # it was stopped while it held the interpreter: nobody answers then
            words = site.wait_for(alarm)[alarm]
            break
    assert words["summary"].startswith("north-building: no tick for ")
    site.wait_without(alarm)


def nothing_fires(site: Site) -> None:
    """All that was mended is well; what begins anew after a start has had its time."""
    until(
        lambda: site.monitoring.alerts() == {},
        2.0 * PATIENCE_S,
        "no alarm",
        lambda: (sorted(site.monitoring.alerts()), site.rig.story()),
    )


def test_at_last_nothing_is_left(site):
    """The starts are forgotten, too."""
    site.wait_driven()
    nothing_fires(site)


@pytest.mark.slow
def test_what_the_disk_did_not_take_is_told_even_when_it_takes_all_again(site):
    """The one alarm that the ordinary run leaves out; its result is kept."""
    began_s = time.monotonic()
    site.wait_driven()
    comes_and_goes(site, (LOST,))
    lost = "steadyhand_journal_lost_events_total"
    results.keep(
        results.RESULTS / "alarms_on_demand.json",
        {
            "command": "python -m pytest -m slow tests/system/test_prometheus.py",
            "commit": results.COMMIT,
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            "came_and_went": list(LOST.full()),
            "events_lost": site.monitoring.value(lost),
            "lasted_s": round(time.monotonic() - began_s, 1),
        },
    )


def test_what_was_tried_on_demand_only_is_on_record():
    kept = results.read(results.RESULTS / "alarms_on_demand.json")
    assert kept["came_and_went"] == list(LOST.full())
    assert kept["events_lost"] > 0.0


# -- what is wrong from the start ------------------------------------------------------------------


def soon(days: float) -> datetime:
    """In so many days, in whole seconds."""
    return (datetime.now(UTC) + timedelta(days=days)).replace(microsecond=0)


SECURE = {
    "policy: Basic256Sha256": f"insecure_no_encryption: {INSECURE_WORD}",
    "    certificate: pki/client_cert.der\n": "",
    "    private_key: pki/client_key.pem\n": "",
    "    trusted: [pki/server_cert.der]\n": "",
    "    user: controller\n": "",
    "    password_file: pki/password\n": "",
}
"""What makes the link secure, and what stands there instead."""
WORD = "  without_evidence: i_accept_that_nothing_shows_what_this_controller_does_to_this_plant"
FIGURES = {
    "days": 8.0, "coverage": 1.0, "support": 0.9, "violation_high": 0.0, "correction_mean": 0.0,
    "availability": 1.0,
}  # fmt: skip


def evidence(folder: Path, keys: Path, bundle: Path) -> Path:
    """About this bundle, for ten more days."""
    generate_key(keys, "site", ["go-live"])
    verified = verify_bundle(bundle.read_bytes(), TrustStore.read(keys), datetime.now(UTC))
    made = Evidence(
        plant_name="north-building",
        plant_id="thermal_storage",
        control_digest="0" * 64,
        bundle="first",
        bundle_sha256=verified.manifest_sha256,
        created=soon(-1.0),
        not_after=soon(10.0),
        journal_head="0" * 64,
        figures=FIGURES,
        thresholds=Thresholds(),
        signed_off_by="anna",
    )
    file = folder / "go.evidence"
    file.write_bytes(seal(made, read_private(keys / "site.key.pem")))
    return file


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path | None]:
    """A file system of 64 MiB for the journal; None where none may be mounted."""
    mount = tmp_path_factory.mktemp("disk") / "small"
    mount.mkdir(mode=0o700)
    command = ["mount", "-t", "tmpfs", "-o", "size=64m,mode=0700", "tmpfs", str(mount)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        yield None
        return
    yield mount
    subprocess.run(["umount", "-l", str(mount)], check=True)


@dataclass
class Poor:
    """A site where nothing is as it should be, and what it takes to put that right."""

    site: Site
    bundles: Bundles
    scada_port: int

    def put_right(self) -> None:
        """Encryption everywhere, new papers, the plant's own limits; the runtime is not started."""
        rig, files = self.site.rig, ScadaFiles(self.site.rig.folder / "scada")
        (files.trusted / "expired.der").unlink()
        rig.stop_runtime()
        assert rig.plant is not None
        rig.plant.stop()
        rig.plant_options = ("--certificate-days", "365")
        rig.bundle = self.bundles.pack("second", 2, not_after=soon(365.0))
        wrong = {*SECURE, "parameters: {}  ", WORD}
        rig.changes = {old: new for old, new in rig.changes.items() if old not in wrong}
        rig.changes["metrics:\n"] = files.section(f"127.0.0.1:{self.scada_port}") + "metrics:\n"
        rig.start_plant()
        rig.write_config()


@pytest.fixture(scope="module")
def poor(small_disk, tmp_path_factory) -> Iterator[Poor]:
    """No encryption, papers that end in ten days, a power cap below what the building needs when
    the tank is empty.
    """
    folder, port = tmp_path_factory.mktemp("poor"), free_port()
    bundles = Bundles(folder / "bundles")
    first = bundles.pack("first", 1, not_after=soon(10.0))
    make_certificate(
        folder / "scada.der", folder / "scada_key.pem", "urn:test:scada", ["127.0.0.1"],
        ExtendedKeyUsageOID.SERVER_AUTH, 10.0,
    )  # fmt: skip
    scada = (
        f"scada:\n  listen: 127.0.0.1:{port}\n  insecure_no_encryption: {INSECURE_WORD}\n"
        f"  certificate: {folder}/scada.der\n  private_key: {folder}/scada_key.pem\n\n"
    )
    changes = {
        **SECURE,
        "parameters: {}  ": "parameters: {power_cap_kw: 20 kW}  ",
        "metrics:\n": scada + "metrics:\n",
        WORD: f"  evidence: {evidence(folder, bundles.keys, first)}",
    }
    if small_disk is not None:
        changes["directory: var/journal"] = f"directory: {small_disk}/journal"
    with watched(
        bundle=first,
        keys=bundles.keys,
        initial="limited",
        plant_options=("--insecure-no-encryption-and-anonymous-users",),
        changes=changes,
    ) as made:
        made.disk = small_disk
        yield Poor(made, bundles, port)


def test_what_is_wrong_from_the_start_is_told_and_stays(poor):
    say_so(poor.site, FROM_THE_START)
    ends = ("SteadyhandBundleExpires", "SteadyhandCertificateExpires", "SteadyhandEvidenceExpires")
    alerts = poor.site.monitoring.alerts()
    for name in ends:
        assert "9d 23h" in alerts[name]["annotations"]["summary"]
        assert alerts[name]["labels"]["severity"] == "notice"
    (panel,) = [panel for _, panel in panels() if panel["title"] == EVIDENCE]
    assert poor.site.monitoring.query(filled_in(panel["targets"][0]["expr"]))
    time.sleep(3.0)
    until(
        lambda: set(FROM_THE_START.full()) <= set(poor.site.monitoring.alerts()),
        PATIENCE_S,
        "all of them, still, at the same moment",
        lambda: sorted(poor.site.monitoring.alerts()),
    )


def test_a_disk_that_fills(poor):
    if poor.site.disk is None:
        pytest.skip("may not mount file systems")
    comes_and_goes(poor.site, (FULL,))


def test_put_right_nothing_of_it_is_left(poor):
    """With a new start that finds all papers in order, but not the key of its SCADA server: what
    that server cannot do is told while the plant is driven, and ends when the key is back.
    """
    site = poor.site
    poor.put_right()
    key, hidden = site.rig.folder / "scada" / "server_key.pem", site.rig.folder / "hidden"
    for _ in range(5):
        site.rig.start_runtime()
        until(lambda: listens(poor.scada_port), PATIENCE_S, "the port", site.rig.story)
        os.kill(site.pid, signal.SIGSTOP)  # it serves from its first tick on
        key.rename(hidden)
        os.kill(site.pid, signal.SIGCONT)
        site.rig.wait_in_control()
        with contextlib.suppress(AssertionError):
            until(lambda: "SCADA_DOWN" in codes(site), 20.0)
            break
        hidden.rename(key)  # the first tick was quicker
        site.rig.stop_runtime()
    say_so(site, SCADA)
    hidden.rename(key)
    for name in (*SCADA.full(), *FROM_THE_START.full()):
        site.wait_without(name)
    nothing_fires(site)


def codes(site: Site) -> set[str]:
    """Of the alarms on the operators' list."""
    return {alarm["code"] for alarm in site.rig.status().get("alarms", ())}


def listens(port: int) -> bool:
    """Does anybody take connections there?"""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
        return True
    time.sleep(0.001)
    return False
