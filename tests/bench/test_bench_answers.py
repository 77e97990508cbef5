"""Turns, checks, reports and the command: shapes and arithmetic, no times."""

import gc
import json
import os
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
import typer
from asyncua.ua import UaError
from typer.testing import CliRunner

from steadyhand.adapters.sim.certificates import make_pki
from steadyhand.controllers.errors import RequestError, SteadyhandError
from steadyhand.training.bench import (
    commands,
    fieldbus,
    freshness,
    goals,
    machine,
    opcua_server,
    pacing,
)
from steadyhand.training.bench.goals import GOALS, Check, Goal, faster, find
from steadyhand.training.bench.report import markdown, run_goals, tables, times
from steadyhand.training.bench.turns import Row, Setting, take_turns

ROOT = Path(__file__).parents[2]


def row(name, *rounds):
    return Row(name, tuple(np.array(taken, dtype=float) for taken in rounds))


# -- turns -----------------------------------------------------------------------------------------


def test_rows_take_turns(shortest):
    order = []
    take_turns({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, shortest)
    changes = [name for name, _ in groupby(order)]
    assert changes == ["a", "b"] * 3  # once to warm up, then twice in turns


def test_every_call_is_counted_per_job(shortest):
    rows = take_turns({"a": lambda: None}, shortest, batch=4)
    assert len(rows["a"].samples_us) == 2
    assert rows["a"].data()["calls"] == sum(len(taken) for taken in rows["a"].samples_us)
    assert all((taken > 0).all() for taken in rows["a"].samples_us)


def test_garbage_is_collected_again_after_a_row_that_fails(shortest):
    calls = iter(range(100))

    def fails():
        if next(calls) > 60:
            raise ValueError

    with pytest.raises(ValueError):
        take_turns({"a": fails}, Setting(rounds=9, turn_s=1e-4))
    assert gc.isenabled()


def test_figures_by_hand():
    data = row("a", [1.0, 2.0, 3.0], [10.0, 20.0, 30.0]).data()
    assert data == {"name": "a", "p50_us": 6.5, "p99_us": 29.5, "best_us": 2.0, "calls": 6}


# -- checks ----------------------------------------------------------------------------------------


def test_ratio_and_spread_by_hand():
    check = faster("size", row("ours", [1.0, 1.0], [3.0, 3.0]), row("rival", [4.0], [6.0]), 0.4)
    assert check.what == "size: ours / rival"
    assert check.measured == pytest.approx(2.0 / 5.0)
    assert check.spread == (0.25, 0.5)
    assert check.met


@pytest.mark.parametrize(
    ("measured", "met"), [(0.5, True), (0.5000001, False), (float("nan"), False)]
)
def test_bound_is_met_exactly_or_not(measured, met):
    assert Check("x", measured, 0.5).met is met


def test_one_nan_among_the_errors_spoils_the_check():
    assert not Check("x", goals.largest([1e-12, float("nan")]), 1e-9).met


def test_goals_are_found_by_number_and_name():
    assert find("3") is find("nullspace")
    assert [goal.number for goal in GOALS] == list(range(1, 8))
    with pytest.raises(RequestError, match="no goal 'speed'; there are: 1 inference"):
        find("speed")


def test_a_goal_measured(shortest):
    result = find("nullspace").measure(shortest)
    assert result["number"] == 3
    assert result["met"] is all(check["met"] for check in result["checks"])
    for rows in result["tables"].values():
        for entry in rows:
            assert entry["p99_us"] >= entry["p50_us"] > 0
            assert entry["error against SVD"] < 1e-9
    assert {"what", "measured", "bound", "spread", "met"} == set(result["checks"][0])
    assert 0.0 <= result["others_share"] <= 1.0
    json.dumps(result, allow_nan=False)


def test_bookkeeping_goal_has_its_rows(shortest):
    pytest.importorskip("orjson")
    result = find("6").measure(shortest)
    assert [len(rows) for rows in result["tables"].values()] == [5]
    assert len(result["checks"]) == 1


def test_a_missing_rival_is_told(monkeypatch, shortest):
    def missing(name):
        raise ModuleNotFoundError("no", name="cvxpy")

    monkeypatch.setattr(goals, "import_module", missing)
    result = find("4").measure(shortest)
    assert result["met"] is False
    assert result["error"] == "bench: cvxpy is missing: pip install 'steadyhand[bench]'"
    assert "not measured" in markdown({"goals": [result]})
    assert len(tables(result)) == 1


# -- pacing ----------------------------------------------------------------------------------------


def test_missed_ticks_by_hand():
    """At 1 kHz more than 500 us late is missed, and so is what was skipped."""
    assert pacing.Beats(np.array([0.0, 499.0, 501.0]), skipped=2, planned=5).missed == 3


@pytest.mark.parametrize("loop", [pacing.paced, pacing.slept])
def test_loops_tick_once_per_period_or_say_that_they_did_not(loop):
    calls = []
    beats = loop(lambda: calls.append(1), 0.05)
    assert len(calls) == len(beats.lateness_us)
    assert len(calls) + beats.skipped == beats.planned >= 50
    assert (beats.lateness_us >= 0).all()


def pacing_rows(**missed):
    return {
        (name, title): {"p99_us": p99, "missed": missed.get(name, 0.0)}
        for name, p99 in (("paced clock", 10.0), ("asyncio.sleep", 1000.0))
        for title in (pacing.ORDINARY, pacing.RT)
    }


def test_pacing_with_and_without_the_real_time_class(monkeypatch, shortest):
    checks = pacing._checks(pacing_rows(**{"asyncio.sleep": 0.6}), permitted=True)
    assert [check.measured for check in checks] == [0.0, 0.01, 0.01]
    weaker = pacing._checks(
        pacing_rows(**{"asyncio.sleep": 0.6, "paced clock": 0.3}), permitted=False
    )
    assert [(check.measured, check.met) for check in weaker] == [(0.5, False)]
    nothing = pacing._checks(pacing_rows(), permitted=False)
    assert not nothing[0].met, "where the rival misses nothing, nothing is shown"


def test_pacing_measures_all_loops(monkeypatch, shortest):
    monkeypatch.setattr(pacing, "ROUND_S", 0.02)
    monkeypatch.setattr(pacing, "realtime_permitted", lambda: False)
    measured = pacing.measure(shortest)
    assert [entry["name"] for rows in measured.tables.values() for entry in rows] == [
        "asyncio.sleep, ordinary class",
        "paced clock, ordinary class",
    ]
    assert "refused" in measured.notes[-1]
    assert gc.isenabled()


def test_real_time_class_is_left_again():
    if not machine.realtime_permitted():
        pytest.skip("not permitted here")
    before = os.sched_getscheduler(0), os.sched_getaffinity(0)
    with machine.realtime(True):
        assert os.sched_getscheduler(0) == os.SCHED_RR
        assert len(os.sched_getaffinity(0)) == 1
    assert (os.sched_getscheduler(0), os.sched_getaffinity(0)) == before


# -- fieldbus --------------------------------------------------------------------------------------


def test_cyclic_read_gives_what_the_c_server_holds():
    pytest.importorskip("o6")
    with fieldbus.c_server() as endpoint:
        race = fieldbus.read_race(endpoint, ["v0", "v3"], opcua_server.NAMESPACE, calls=20)
    assert race.equal
    assert race.columns_share > 0.9
    assert opcua_server.value_of(3) == -2.75


def test_many_tags_are_read_signed_and_encrypted(tmp_path):
    """By both ways of the link and by the rival: with these settings neither does it openly."""
    pytest.importorskip("o6")
    pki = make_pki(tmp_path / "pki", opcua_server.PKI_NAME)
    with fieldbus.c_server(40, 40, pki) as endpoint:
        for subscribe in (True, False):
            row = freshness.link_ticks(endpoint, 40, 5, subscribe, pki)
            assert row["calls"] == 5
            assert row["oldest value, p99 ms"] < 1e3 * freshness.UP_S  # inf where one is not good
        assert freshness.library_ticks(endpoint, 40, 5, pki)["calls"] == 5
    with fieldbus.c_server(40, 40) as endpoint, pytest.raises(UaError):
        freshness.library_ticks(endpoint, 40, 5, pki)  # a server that does not encrypt


def test_without_a_c_server_the_remedy_is_named(monkeypatch, shortest):
    monkeypatch.setattr(fieldbus, "find_spec", lambda _: None)
    result = find("fieldbus").measure(shortest)
    assert "pip install 'steadyhand[bench]'" in result["error"]


# -- report and command ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"), [(0.42, "0.42"), (0.05, "1/20"), (0.2, "1/5"), (0.0, "0.00"), (1.06, "1.06")]
)
def test_ratios_as_people_say_them(value, text):
    assert times(value) == text


def test_a_goal_whose_process_dies_is_an_error():
    broken = Goal(9, "nowhere", "t", "a", "e")
    with pytest.raises(SteadyhandError, match=r"goal 9 ended with 1: .*no goal 'nowhere'"):
        run_goals([broken], Setting(2), "steadyhand bench")


@pytest.fixture
def app():
    made = typer.Typer()
    commands.register(made)
    made.command("other")(lambda: None)  # with one command typer would take no name
    return made


def test_help_explains_every_goal(app):
    text = " ".join(CliRunner().invoke(app, ["bench", "--help"]).output.replace("│", " ").split())
    for goal in GOALS:
        assert f"{goal.number} {goal.name}" in text.replace("**", "")


def test_command_gives_data(app, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/usr/bin/steadyhand", "bench", "3"])
    out = tmp_path / "results.json"
    given = CliRunner().invoke(app, ["bench", "3", "--rounds", "2", "--json", "--out", str(out)])
    assert given.exit_code == 0, given.output
    report = json.loads(out.read_text())
    assert json.loads(given.stdout) == report
    assert set(report) == {"command", "machine", "goals"}
    assert report["command"] == "steadyhand bench 3"
    assert {"cpu", "cores", "system", "python", "versions"} == set(report["machine"])
    (result,) = report["goals"]
    assert {"load_before", "realtime", "rounds", "seconds", "notes", "met"} <= set(result)
    assert result["rounds"] == 2


def test_documented_figures_are_the_committed_ones():
    report = json.loads((ROOT / "docs/bench/results.json").read_text())
    page = (ROOT / "docs/performance.md").read_text()
    assert markdown(report) in page
    assert f"`{report['command']}`" in page
    assert [result["number"] for result in report["goals"]] == [goal.number for goal in GOALS]
    assert not [result["error"] for result in report["goals"] if "error" in result]
