"""The shipped alarms in a real Prometheus over a real runtime: each comes with its fault and goes
with it; every query of the dashboards finds data; a person is told of the cause, not of what
follows from it.

One plant, one runtime, one Prometheus and one Alertmanager for the whole module. `make test` tries
the faults that the control room meets; the others need more than a few seconds each and are slow.
"""

import contextlib
import os
import resource
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from steadyhand.adapters.sim.faults import FaultKind, SignalFault
from steadyhand.controllers.errors import RequestError
from tests.support.loop_rig import OUTPUT, SHIPPED, Rig, until
from tests.support.prometheus import RULES, Monitoring, filled_in, free_port, missing, panels

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "installed")
TIME_SCALE = 3000.0
PATIENCE_S = 60.0


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


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """A runtime that drives the shipped plant with the shipped bundle."""
    with tempfile.TemporaryDirectory(prefix="prom") as name, contextlib.ExitStack() as opened:
        folder, port = Path(name), free_port()
        rig = Rig(
            folder / "rig",
            TIME_SCALE,
            SHIPPED.parent / "thermal_storage.shb",
            SHIPPED.parent / "keys",
            plant_options=("--certificate-days", "365"),
            # control changes hands more often here than any plant would let it
            changes={
                "listen: 127.0.0.1:9464": f"listen: 127.0.0.1:{port}\n  plant_values: true",
                "clean_ticks: 4": "clean_ticks: 4\n  max_raises: 1000",
            },
        )
        opened.callback(rig.close)
        monitoring = Monitoring(folder / "monitoring", port)
        opened.callback(monitoring.close)
        made = Site(rig, monitoring, port)
        rig.start_plant()
        rig.write_config()
        rig.start_runtime()
        rig.wait_in_control()
        until(made.drives, PATIENCE_S, "the policy drives", rig.story)
        until(lambda: monitoring.value('up{job="steadyhand"}') == 1.0, PATIENCE_S, "a scrape")
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
