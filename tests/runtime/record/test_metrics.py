"""The numbers on the page are the ones that happened, and the page is what Prometheus can read."""

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from steadyhand.controllers.frames import (
    Certified,
    Fault,
    FilterMode,
    FilterOutcome,
    LinkState,
    Source,
    Verdict,
)
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime.chain import Head
from steadyhand.runtime.journal import Status
from steadyhand.runtime.metrics import Identity, Metrics, age_buckets, escape, time_buckets
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


@dataclass
class Modes:
    mode: str = "full"
    cause: Fault = field(default_factory=lambda: Fault(ReasonCode.OK))


def tick(**changes: Any) -> Tick:
    arguments = tick_arguments(**changes)
    return Tick(**{name: arguments[name] for name in Tick.__dataclass_fields__})


def metrics(**changes: Any) -> Metrics:
    return Metrics(
        **{"identity": Identity("main", "tank"), "period_s": 900.0, "rows": LAYOUT.rows} | changes
    )


def samples(page: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(page.render().decode())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def value(page: Metrics, name: str, **labels: str) -> float:
    return samples(page)[f"steadyhand_{name}", tuple(sorted(labels.items()))]


def test_every_series_exists_at_zero_and_none_appears_later():
    page = metrics()
    before = set(samples(page))
    for source in Source:
        for code in ReasonCode:
            fault = Fault(code, "x")
            page.tick(tick(source=source, faults=(fault,)), 1, Modes("off", fault))
    assert set(samples(page)) == before
    assert value(metrics(), "ticks_total", source="policy") == 0.0
    assert value(metrics(), "interventions_total", constraint="energy_low") == 0.0


def test_names_follow_the_conventions():
    for family in text_string_to_metric_families(metrics().render().decode()):
        assert family.name.startswith("steadyhand_")
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
    page = metrics()
    seen = observation(link=LinkState.VERIFYING)
    page.tick(tick(observation=seen, source=Source.HOLD), 0, Modes("limited"))
    for name, label, on in [
        ("mode", "mode", "limited"),
        ("source", "source", "hold"),
        ("gate_state", "gate", "trust"),
        ("link_state", "link", "verifying"),
    ]:
        states = {
            dict(labels)[label]: number
            for (full, labels), number in samples(page).items()
            if full == f"steadyhand_{name}"
        }
        assert states[on] == 1.0
        assert sum(states.values()) == 1.0, name


def test_gauges_show_the_last_tick():
    page = metrics(wall=lambda: 1000.0, signals=LAYOUT.observations.names)
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


def test_plant_values_are_not_exposed_unless_asked_for():
    page = metrics()
    page.tick(tick(), 0, Modes())
    assert b"507" not in page.render()
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
    page = metrics(signals=LAYOUT.observations.names)
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
    quiet, wild = metrics(wall=lambda: 0.0), metrics(wall=lambda: 5.0)
    wild.refused = wild.restarts = 1
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
    wild.tick(tick(timings=(2000.0,) * 7, certified=Certified(np.array([1.0]), report(
        mode=FilterMode.SHAPED, active=(), blend=0.5)),
        observation=observation(age_s=np.array([1e6, 0.0, 0.0]))), 1, Modes("full"))  # fmt: skip
    before, after = samples(quiet), samples(wild)
    still = {
        name
        for name, labels in before
        if all(before[key] == after[key] for key in before if key[0] == name)
    }
    assert still == {"steadyhand_build_info", "steadyhand_loop_info", "steadyhand_bundle_info"}
