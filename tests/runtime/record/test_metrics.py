"""The numbers on the page are the ones that happened, and the page is what Prometheus can read."""

import math
import os
import resource
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as open_metrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

from steadyhand.controllers.frames import (
    Certified,
    Fault,
    FilterMode,
    FilterOutcome,
    LinkState,
    ProposalStatus,
    Source,
    Verdict,
)
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime.chain import Head
from steadyhand.runtime.exposition import escape, wants_open_metrics
from steadyhand.runtime.go_live import Basis
from steadyhand.runtime.handshake import Control
from steadyhand.runtime.journal import Status
from steadyhand.runtime.metrics import Identity, Metrics, age_buckets, time_buckets
from steadyhand.runtime.refusals import CODES, OTHER
from steadyhand.runtime.vitals import Vitals, disk_bytes
from tests.support.records import LAYOUT, observation, report, tick_arguments


@dataclass
class Tick:
    """A finished tick, as the loop tells it."""

    observation: Any
    proposal: Any
    verdict: Any
    source: Source
    certified: Any
    sent: Any
    faults: tuple[Fault, ...]
    timings: tuple[float, ...]
    control: Control = field(default=Control.OFF, init=False)


@dataclass
class Modes:
    mode: str = "full"
    cause: Fault = field(default_factory=lambda: Fault(ReasonCode.OK))
    demand: Source = Source.POLICY
    latches: tuple[ReasonCode, ...] = ()
    overrides: tuple[object, ...] = ()


def tick(**changes: Any) -> Tick:
    arguments = tick_arguments(**changes)
    return Tick(
        **{name: arguments[name] for name in Tick.__dataclass_fields__ if name in arguments}
    )


def metrics(**changes: Any) -> Metrics:
    return Metrics(
        **{"identity": Identity("main", "tank"), "period_s": 900.0, "rows": LAYOUT.rows} | changes
    )


SHOWN = {
    "signals": LAYOUT.observations,
    "outputs": LAYOUT.outputs,
    "plant_values": True,
}
"""A site that shows its plant's values."""


def samples(page: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(page.render().decode())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


PROCESS = "process_"
"""Names every exporter shares, without our prefix."""


def value(page: Metrics, name: str, **labels: str) -> float:
    return samples(page)[f"steadyhand_{name}", tuple(sorted(labels.items()))]


def test_every_series_exists_at_zero_and_none_appears_later():
    page = metrics()
    from_the_start = set(samples(page))
    page.tick(tick(), 0, Modes())
    before = set(samples(page))
    # what is not known before the first tick has no sample: zero would be the edge of a limit
    later = {name for name, _ in before - from_the_start}
    assert later == {"steadyhand_constraint_margin_ratio"}
    assert from_the_start < before
    for source in Source:
        for code in ReasonCode:
            fault = Fault(code, "x")
            page.tick(tick(source=source, faults=(fault,)), 1, Modes("off", fault))
    assert set(samples(page)) == before
    assert value(metrics(), "ticks_total", source="policy") == 0.0
    assert value(metrics(), "interventions_total", constraint="energy_low") == 0.0


def test_names_follow_the_conventions():
    for family in text_string_to_metric_families(metrics().render().decode()):
        assert family.name.startswith(("steadyhand_", PROCESS))
        assert family.documentation.endswith((".", "?"))
        names = {sample.name for sample in family.samples}
        if family.type == "counter":
            assert names == {f"{family.name}_total"}
        elif family.type == "histogram":
            assert names == {f"{family.name}_{end}" for end in ("bucket", "sum", "count")}
            assert family.name.endswith("_seconds"), "base unit"
        else:
            assert names == {family.name}
            assert not family.name.endswith(("_total", "_count", "_sum", "_bucket"))
        assert not family.name.endswith(("_ms", "_percent", "_celsius_degrees"))
        if "timestamp" in family.name:
            assert family.name.endswith("_timestamp_seconds")


def test_page_ends_with_a_newline_and_declares_before_use():
    text = metrics().render().decode()
    assert text.endswith("\n")
    declared = set()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            assert line.split()[2] not in declared, "a family stands once"
            declared.add(line.split()[2])
        elif not line.startswith("#"):
            name = line.split("{")[0].split(" ")[0]
            base = {name, name.removesuffix("_bucket"), name.removesuffix("_sum"),
                    name.removesuffix("_count")}  # fmt: skip
            assert base & declared, line


def test_counts_of_a_hand_worked_history():
    page = metrics()
    trip = Fault(ReasonCode.GATE_OOD, "novelty")
    lost = Verdict(False, 0.2, "fallback", (trip,), (0.1, 1.5))
    refused = replace(
        tick_arguments()["sent"], written=False, faults=(Fault(ReasonCode.WRITE_DENIED, "u"),)
    )
    passed = Certified(np.array([1.0]), report(mode=FilterMode.PASS, active=()))
    backup = Certified(
        np.array([1.0]),
        report(mode=FilterMode.BACKUP, outcome=FilterOutcome.INFEASIBLE, active=()),
    )
    page.tick(tick(), 0, Modes())
    page.tick(tick(certified=passed), 2, Modes())
    page.tick(tick(verdict=lost, source=Source.FALLBACK), 0, Modes("full", trip))
    page.tick(tick(verdict=lost, source=Source.FALLBACK, sent=refused), 0, Modes("full", trip))
    page.tick(tick(certified=backup, source=Source.SAFE), 0, Modes("full", trip))
    page.tick(tick(certified=None, source=Source.HANDS_OFF), 0, Modes("off", trip))
    assert value(page, "ticks_total", source="policy") == 2
    assert value(page, "ticks_total", source="fallback") == 2
    assert value(page, "ticks_total", source="hands_off") == 1
    assert value(page, "skipped_periods_total") == 2
    assert value(page, "interventions_total", constraint="energy_low") == 3
    assert value(page, "interventions_total", constraint="energy_high") == 0
    assert value(page, "interventions_total", constraint="input_limits") == 1
    assert value(page, "filter_modes_total", mode="shaped") == 3
    assert value(page, "filter_modes_total", mode="pass") == 1
    assert value(page, "filter_outcomes_total", outcome="infeasible") == 1
    assert value(page, "gate_trips_total", gate="GATE_OOD") == 1
    assert value(page, "fallback_entries_total", reason="GATE_OOD") == 1
    assert value(page, "faulty_ticks_total", reason="GATE_OOD") == 2
    assert value(page, "rejected_writes_total", reason="WRITE_DENIED") == 1
    assert value(page, "cycle_seconds_count") == 6
    # read .0002 + propose .003 + judge .0004 + decide .00005 + certify .0006 + write .0007
    assert value(page, "cycle_seconds_sum") == pytest.approx(6 * 0.00495)
    assert value(page, "inference_seconds_sum") == pytest.approx(6 * 0.003)
    assert value(page, "input_age_seconds_sum") == 6 * 2.0
    assert value(page, "inference_seconds_bucket", le="0.00316") == 6
    assert value(page, "inference_seconds_bucket", le="0.001") == 0


def test_states_are_sets_with_exactly_one_on():
    look = Vitals(policy="restarting", run_before=ReasonCode.WATCHDOG_PREV)
    page = metrics(vitals=lambda: look)
    seen = observation(link=LinkState.VERIFYING)
    cause = Fault(ReasonCode.OBS_STALE)
    modes = Modes("limited", cause, Source.FALLBACK)
    page.tick(tick(observation=seen, source=Source.HOLD), 0, modes)
    for name, label, on in [
        ("mode", "mode", "limited"),
        ("source", "source", "hold"),
        ("demand", "source", "fallback"),
        ("cause", "reason", "OBS_STALE"),
        ("policy_state", "policy", "restarting"),
        ("gate_state", "gate", "trust"),
        ("link_state", "link", "verifying"),
        ("run_before", "reason", "WATCHDOG_PREV"),
    ]:
        states = {
            dict(labels)[label]: number
            for (full, labels), number in samples(page).items()
            if full == f"steadyhand_{name}"
        }
        assert states[on] == 1.0
        assert sum(states.values()) == 1.0, name


def test_gauges_show_the_last_tick():
    page = metrics(wall=lambda: 1000.0, **SHOWN)
    page.tick(tick(), 0, Modes())
    expected = {
        "granted": 1.0,
        "trusted": 1.0,
        "confidence_ratio": 0.93,
        "backup_blend_ratio": 0.0,
        "correction_ratio": 20.0 / 850.0,
        "safety_margin_ratio": 0.02,
        "last_tick_timestamp_seconds": 1000.0,
        "last_write_timestamp_seconds": 1000.0,
    }
    assert {name: value(page, name) for name in expected} == expected
    assert value(page, "observation", signal="energy_kwh") == 507.0


def test_link_and_policy_are_told_as_they_are_now_not_as_the_last_tick_saw_them():
    now = [Vitals(LinkState.UP, policy="ready")]
    page = metrics(vitals=lambda: now[0])
    page.tick(tick(), 0, Modes())
    assert value(page, "link_state", link="up") == 1.0
    now[0] = Vitals(LinkState.DOWN, policy="crash_loop", policy_restarts=3)
    assert value(page, "link_state", link="up") == 0.0
    assert value(page, "link_state", link="down") == 1.0
    assert value(page, "policy_state", policy="crash_loop") == 1.0
    assert value(page, "policy_restarts_total") == 3.0


def test_codes_show_what_is_wrong_what_came_first_and_what_is_latched():
    page = metrics()
    stale, clipped = Fault(ReasonCode.OBS_STALE, "x"), Fault(ReasonCode.LIMIT_CLIPPED)
    shaped = Certified(np.array([1.0]), report(), (clipped,))
    refused = replace(tick_arguments()["sent"], faults=(Fault(ReasonCode.WRITE_DENIED, "u"),))
    modes = Modes("full", stale, Source.HOLD, (ReasonCode.WRITE_DENIED,), ("one", "two"))
    page.tick(tick(faults=(stale,), certified=shaped, sent=refused), 0, modes)
    on = {
        name: {dict(labels)["reason"] for (full, labels), n in samples(page).items()
               if full == f"steadyhand_{name}" and n == 1.0}
        for name in ("fault", "cause", "latched")
    }  # fmt: skip
    assert on == {
        "fault": {"OBS_STALE", "LIMIT_CLIPPED", "WRITE_DENIED"},
        "cause": {"OBS_STALE"},
        "latched": {"WRITE_DENIED"},
    }
    assert value(page, "overrides") == 2.0
    counted = {c: value(page, "faulty_ticks_total", reason=c) for c in on["fault"]}
    assert counted == dict.fromkeys(on["fault"], 1.0), "each once, wherever it was found"
    page.tick(tick(), 0, Modes())
    assert value(page, "fault", reason="OBS_STALE") == 0.0
    assert value(page, "cause", reason="OK") == 1.0


def test_what_is_wrong_beside_the_tick_is_a_fault_like_every_other():
    page = metrics()
    page.tick(tick(), 0, Modes())
    page.standing, page.shelved = (
        (Fault(ReasonCode.SCADA_INSECURE), Fault(ReasonCode.SCADA_DOWN)),
        2,
    )
    found = {dict(labels)["reason"] for (name, labels), n in samples(page).items()
             if name == "steadyhand_fault" and n == 1.0}  # fmt: skip
    assert found == {"SCADA_INSECURE", "SCADA_DOWN"}
    assert value(page, "shelved_alarms") == 2.0
    page.standing, page.shelved = (), 0
    assert value(page, "fault", reason="SCADA_DOWN") == 0.0
    assert value(page, "shelved_alarms") == 0.0


def proposing(kw: float, applied_kw: float, **changes: Any) -> Tick:
    """A tick with this proposal, in which the plant is seen to apply that."""
    proposal = replace(tick_arguments()["proposal"], action=np.array([kw]), **changes)
    return tick(proposal=proposal, observation=observation(applied=np.array([applied_kw])))


def test_in_shadow_a_proposal_is_compared_with_what_the_plant_did_next():
    """The output goes from -400 to 450 kW: near is within 85 kW."""
    page = metrics(outputs=LAYOUT.outputs)
    shadow = Modes("shadow")
    away = ("steadyhand_shadow_distance_ratio", ())
    page.tick(proposing(100.0, 0.0), 0, shadow)  # nothing was proposed before
    assert away not in samples(page)
    page.tick(proposing(300.0, 15.0), 0, shadow)  # 85 kW from 100: near
    assert value(page, "shadow_distance_ratio") == pytest.approx(0.1)
    page.tick(proposing(0.0, 130.0), 0, shadow)  # 170 kW from 300
    assert value(page, "shadow_distance_ratio") == pytest.approx(0.2)
    page.tick(proposing(0.0, math.nan), 0, shadow)  # not known
    assert away not in samples(page)
    page.tick(proposing(0.0, 0.0, status=ProposalStatus.ABSENT), 0, shadow)  # 0 kW from 0: near
    page.tick(proposing(0.0, 0.0), 0, shadow)  # the tick before had no answer
    page.tick(proposing(0.0, 0.0), 0, Modes("full"))  # no shadow any more
    page.tick(proposing(0.0, 0.0), 0, shadow)
    assert value(page, "shadow_ticks_total") == 3.0
    assert value(page, "shadow_near_ticks_total") == 2.0


def test_without_outputs_nothing_is_compared():
    page = metrics()
    for _ in range(2):
        page.tick(proposing(1.0, 1.0), 0, Modes("shadow"))
    assert value(page, "shadow_ticks_total") == 0.0


def test_rows_and_monitors_one_by_one_and_nothing_for_what_is_not_known():
    page = metrics(monitors=("confidence", "novelty"))
    margins = Certified(np.array([1.0]), report(m=np.array([0.25, math.nan]), active=(1,)))
    verdict = Verdict(True, 0.9, "trust", (), (0.4, math.nan))
    page.tick(tick(certified=margins, verdict=verdict), 0, Modes())
    found = samples(page)
    assert value(page, "constraint_margin_ratio", constraint="energy_low") == 0.25
    assert value(page, "constraint_active", constraint="energy_low") == 0.0
    assert value(page, "constraint_active", constraint="energy_high") == 1.0
    assert value(page, "monitor_score_ratio", monitor="confidence") == 0.4
    unknown = [labels for name, labels in found if "energy_high" in str(labels)
               and name == "steadyhand_constraint_margin_ratio"]  # fmt: skip
    assert unknown == []
    assert ("steadyhand_monitor_score_ratio", (("monitor", "novelty"),)) not in found


def test_a_refusal_that_only_a_later_image_tells_is_counted():
    page = metrics()
    page.tick(tick(faults=(Fault(ReasonCode.WRITE_FAILED, "u"),)), 0, Modes())
    assert value(page, "rejected_writes_total", reason="WRITE_FAILED") == 1.0


def test_since_when_the_source_drives():
    now = [1000.0]
    page = metrics(wall=lambda: now[0])
    assert value(page, "source_since_timestamp_seconds") == 1000.0
    for at_s, source, since_s in [
        (1900.0, Source.POLICY, 1900.0),
        (2800.0, Source.POLICY, 1900.0),
        (3700.0, Source.FALLBACK, 3700.0),
    ]:
        now[0] = at_s
        page.tick(tick(source=source), 0, Modes())
        assert value(page, "source_since_timestamp_seconds") == since_s


def test_outputs_are_shown_where_they_are_known():
    page = metrics(**SHOWN)
    page.tick(tick(), 0, Modes())
    assert value(page, "output_sent", output="discharge_kw") == tick_arguments()["sent"].action[0]
    assert value(page, "output_info", output="discharge_kw", unit="kW") == 1.0
    assert value(page, "observation_info", signal="energy_kwh", unit="kWh") == 1.0
    unwritten = replace(tick_arguments()["sent"], written=False)
    silent = replace(tick_arguments()["proposal"], action=np.array([math.nan]))
    page.tick(tick(sent=unwritten, proposal=silent), 0, Modes())
    names = {name for name, _ in samples(page)}
    assert "steadyhand_output_applied" in names
    assert not names & {"steadyhand_output_sent", "steadyhand_output_proposed"}


def test_open_metrics_tells_the_same_numbers():
    page = metrics(**SHOWN, monitors=("confidence", "novelty"))
    page.tick(tick(), 3, Modes())

    def ours(families):
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in families
            for sample in family.samples
            if not sample.name.startswith(PROCESS)
        }

    text = page.render(open_metrics=True).decode()
    assert text.endswith("# EOF\n")
    assert ours(open_metrics_families(text)) == ours(
        text_string_to_metric_families(page.render().decode())
    )


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain;version=0.0.4", False),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text; version=2.0.0", False),
        ("application/openmetrics-text;version=1.0.0;q=0.3,text/plain;q=0.5", False),
        (
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;"
            "version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            True,
        ),
        ("application/openmetrics-text;q=none", False),
    ],
)
def test_what_a_scraper_asks_for(accept, wanted):
    assert wants_open_metrics(accept) is wanted


def test_vitals_one_by_one():
    look = Vitals(
        connects=4, clock_offset_s=-1.5, overtaken=2, policy_bytes=300, as_configured=False,
        bundle_not_after_s=2e9, swaps=1, evidence_not_after_s=2.1e9,
        certificates={"own": 1.9e9, "trusted": 1.8e9},
        disk_free_bytes=10.0, disk_size_bytes=40.0, journal_backlog=5, journal_lag_s=0.5,
        watchdog_s=30.0, fed_s=1.7e9, commands_refused={"ROLE": 6}, task_deaths=3,
    )  # fmt: skip
    page = metrics(vitals=lambda: look)
    expected = {
        "link_connects_total": 4, "link_clock_offset_seconds": -1.5,
        "overtaken_commands_total": 2, "policy_resident_memory_bytes": 300,
        "bundle_as_configured": 0, "bundle_not_after_timestamp_seconds": 2e9,
        "evidence_not_after_timestamp_seconds": 2.1e9,
        "bundle_swaps_total": 1, "journal_disk_free_bytes": 10, "journal_disk_size_bytes": 40,
        "journal_backlog_records": 5, "journal_lag_seconds": 0.5, "watchdog_timeout_seconds": 30,
        "watchdog_fed_timestamp_seconds": 1.7e9, "task_deaths_total": 3,
    }  # fmt: skip
    assert {name: value(page, name) for name in expected} == expected
    assert value(page, "operator_refused_total", code="ROLE") == 6
    assert value(page, "operator_refused_total", code="RATE") == 0, "there from the start"
    name = "certificate_not_after_timestamp_seconds"
    assert value(page, name, certificate="own") == 1.9e9
    assert value(page, name, certificate="trusted") == 1.8e9


def test_what_mode_full_stands_on_is_a_series_of_its_own():
    page = metrics(vitals=lambda: Vitals(basis=Basis.WITHOUT))
    found = {basis: value(page, "go_live", basis=str(basis)) for basis in Basis}
    assert found == {basis: float(basis is Basis.WITHOUT) for basis in Basis}


def test_the_process_tells_of_itself():
    found = samples(metrics())
    own = {name: n for (name, _), n in found.items() if name.startswith(PROCESS)}
    started = float(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    booted = time.time() - float(Path("/proc/uptime").read_text().split()[0])
    assert own["process_start_time_seconds"] == pytest.approx(
        booted + started / os.sysconf("SC_CLK_TCK"), abs=2.0
    )
    status = Path("/proc/self/status").read_text()
    resident = int(status.partition("VmRSS:")[2].split()[0]) * 1024
    assert own["process_resident_memory_bytes"] == pytest.approx(resident, rel=0.1)
    assert own["process_open_fds"] == pytest.approx(
        len(list(Path("/proc/self/fd").iterdir())), abs=1
    )
    assert own["process_max_fds"] == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert own["process_threads"] == int(status.partition("Threads:")[2].split()[0])
    assert 0.0 < own["process_cpu_seconds_total"] <= time.process_time() + 0.1


def test_the_space_on_a_disk(tmp_path):
    free, size = disk_bytes(tmp_path)
    assert 0.0 < free <= size
    assert disk_bytes(tmp_path / "absent") == (0.0, 0.0)


def test_plant_values_are_not_exposed_unless_asked_for():
    page = metrics()
    page.tick(tick(), 0, Modes())
    # among the values: the digits alone may stand in a time stamp
    assert 507.0 not in samples(page).values()
    assert b"energy_kwh" not in page.render()


def test_last_write_stays_when_nothing_is_written():
    now = [1000.0]
    page = metrics(wall=lambda: now[0])
    page.tick(tick(), 0, Modes())
    now[0] = 1900.0
    page.tick(tick(sent=replace(tick_arguments()["sent"], written=False)), 0, Modes())
    assert value(page, "last_tick_timestamp_seconds") == 1900.0
    assert value(page, "last_write_timestamp_seconds") == 1000.0


NUMBERS = st.floats(width=64)


@settings(deadline=None)
@given(st.lists(st.tuples(*[NUMBERS] * 7), max_size=8), NUMBERS, NUMBERS)
def test_nothing_that_is_not_finite_gets_in(timings, age, confidence):
    page = metrics(**SHOWN)
    for times in timings:
        page.tick(
            tick(
                timings=times,
                observation=observation(
                    age_s=np.array([age, 0.0, 0.0]), values=np.array([age, math.inf, math.nan])
                ),
                verdict=Verdict(True, confidence, "trust"),
                certified=Certified(np.array([1.0]), report(margin=math.nan, blend=math.inf)),
            ),
            0,
            Modes(),
        )
    for name, number in samples(page).items():
        assert math.isfinite(number), name


def test_one_nan_is_counted_and_spoils_nothing():
    page = metrics()
    page.tick(tick(timings=(math.nan,) + (0.001,) * 6), 0, Modes())
    page.tick(tick(), 0, Modes())
    assert value(page, "nonfinite_values_total") == 1
    assert value(page, "lateness_seconds_count") == 1
    assert value(page, "lateness_seconds_sum") == pytest.approx(0.001)


def test_a_hundred_thousand_words_make_no_new_series():
    page = metrics()
    page.tick(tick(), 0, Modes())
    before = len(samples(page))
    for i in range(2000):
        word = f"word_{i}"
        page.tick(
            tick(
                verdict=Verdict(False, 0.0, word, (Fault(ReasonCode.GATE_OOD, word),)),
                faults=(Fault(ReasonCode.OBS_STALE, word, text=word),),
            ),
            0,
            Modes(word),
        )
    assert len(samples(page)) == before


@pytest.mark.parametrize(
    "hostile",
    [
        'quo"te',
        "new\nline",
        "back\\slash",
        "\x1b[31m",
        "\u2028",
        "x" * 5000,
        '"} 1\nevil 1',
        "=cmd",
    ],
)
def test_hostile_names_cannot_break_a_line(hostile):
    page = metrics(identity=Identity(hostile, hostile, hostile))
    names = Counter(name for name, _ in samples(page))
    assert names == Counter(name for name, _ in samples(metrics()))
    assert "evil" not in names
    assert all(c.isprintable() for c in escape(hostile))


def test_bundle_and_identity():
    page = metrics()
    page.bundle = "tank@4#12"
    assert value(page, "bundle_info", bundle="tank@4#12") == 1.0
    assert value(page, "loop_info", loop="main", plant="tank") == 1.0


@settings(deadline=None)
@given(st.floats(1e-4, 1e5))
def test_buckets_lie_around_the_period(period_s):
    edges = time_buckets(period_s)
    assert list(edges) == sorted(set(edges))
    assert len(edges) < 30
    assert edges[0] <= max(1e-4, period_s / 100) * 1.01
    assert any(abs(edge / period_s - 1) < 0.01 for edge in edges)
    assert edges[-1] > period_s
    assert all(0.02 < edge / period_s < 50 for edge in age_buckets(period_s))


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e4), min_size=1, max_size=50))
def test_histogram_against_its_definition(values):
    page = metrics()
    for x in values:
        page.tick(tick(timings=(x,) + (0.0,) * 6), 0, Modes())
    found = samples(page)
    for edge in time_buckets(900.0):
        cumulative = found["steadyhand_lateness_seconds_bucket", (("le", repr(edge)),)]
        assert cumulative == sum(x <= edge for x in values), edge
    assert found["steadyhand_lateness_seconds_bucket", (("le", "+Inf"),)] == len(values)


def test_journal_figures():
    head = Head(3, 17, bytes.fromhex("00ff00ff00ff" + "11" * 26))
    status = Status(head, "AUDIT_FULL", "no space", 5, 2, 100, 90, 0.25)
    page = metrics(journal=lambda: status)
    expected = {
        "journal_records_total": 100,
        "journal_lost_ticks_total": 5,
        "journal_lost_events_total": 2,
        "journal_degraded": 1,
        "journal_commit_seconds": 0.25,
        "journal_head_segment": 3,
        "journal_head_records": 17,
        "journal_head_hash": 0x00FF00FF00FF,
    }
    assert {name: value(page, name) for name in expected} == expected


def test_every_indicator_can_move():
    """A gauge or counter that cannot change shows nothing: compare a quiet and a wild history."""
    quiet = metrics(wall=lambda: 0.0)
    moved = Vitals(
        LinkState.UP, 1, 1.0, 1, "ready", 1, 1, False, 1.0, 1, 1.0, ReasonCode.RESTART, {},
        1.0, 1.0, 1, 1.0, 1.0, 1.0, dict.fromkeys((*CODES, OTHER), 1), Basis.WITHOUT, 1,
    )  # fmt: skip
    wild = metrics(wall=lambda: 5.0, vitals=lambda: moved, outputs=LAYOUT.outputs)
    wild.refused = wild.restarts = wild.shelved = 1
    for _ in range(2):
        wild.tick(proposing(100.0, 100.0), 0, Modes("shadow"))
    for source in reversed(Source):
        for i, code in enumerate(ReasonCode):
            fault = Fault(code, "x")
            trusted = i % 2 == 0
            for mode, outcome in zip(list(FilterMode) * 2, FilterOutcome, strict=False):
                for row in (0, 1):
                    sure = Certified(
                        np.array([1.0]),
                        report(mode=mode, outcome=outcome, margin_row=row, active=(row,), blend=0.5,
                               margin=-1.0),
                    )  # fmt: skip
                    wild.tick(
                        tick(
                            source=source if trusted else Source.POLICY,
                            verdict=Verdict(trusted, 0.5, "latched", () if trusted else (fault,)),
                            certified=sure,
                            sent=replace(tick_arguments()["sent"], faults=(fault,)),
                            timings=(math.nan, *tick_arguments()["timings"][1:]),
                            observation=observation(link=LinkState.UP),
                        ),
                        1,
                        Modes("full", fault),
                    )
    last = Modes("full", fault, Source.POLICY, tuple(ReasonCode), (1,))
    every = tuple(Fault(code) for code in ReasonCode)
    final = tick(timings=(2000.0,) * 7, faults=every, certified=Certified(np.array([1.0]), report(
        mode=FilterMode.SHAPED, active=(0, 1), blend=0.5)),
        observation=observation(age_s=np.array([1e6, 0.0, 0.0])))  # fmt: skip
    final.control = Control.ON
    wild.tick(final, 1, last)
    before, after = samples(quiet), samples(wild)
    still = {
        name
        for name, labels in before
        if all(before[key] == after[key] for key in before if key[0] == name)
    }
    own = {name for name in still if not name.startswith(PROCESS)}
    assert own == {
        "steadyhand_build_info",
        "steadyhand_loop_info",
        "steadyhand_bundle_info",
        "steadyhand_period_seconds",
    }
