"""The fault table: one test per row, the same rows as `steadyhand selftest`.

Without `-m slow` every row in process is tried once, and over the network the first of each number
of the catalogue and some of the others, drawn anew with each commit; with it every row is tried
thirty times, and results/faults.json is written.
"""

import ast
import json
import math
import random
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from steadyhand.controllers.frames import Quality, Source
from steadyhand.runtime import assemble
from steadyhand.runtime.config import load_config, parse_config, require
from steadyhand.runtime.selftest.audit import Arrival, Bounds, audit
from steadyhand.runtime.selftest.inside import Inside, run_inside
from steadyhand.runtime.selftest.rows import Place, Row, Wire
from steadyhand.runtime.selftest.run import WALL_PERIOD_S, table, try_inside, try_wire
from steadyhand.runtime.selftest.wire import Site
from tests.support import results
from tests.support.command import steadyhand
from tests.support.fault_catalogue import CATALOGUE, ELSEWHERE, NO_PLACE
from tests.support.loop_rig import SHIPPED

ROOT = Path(__file__).parents[2]
RESULTS = results.RESULTS / "faults.json"
COMMAND = "python -m pytest -m slow --timeout 86400 tests/loop/test_fault_table.py"
REPEATS = 30
OTHERS_OVER_OPC_UA = 20
PAGE = ROOT / "docs" / "selftest.md"
SENSOR = 's=storage_energy_kwh", unit: "kWh"'


def configured():
    """The shipped configuration, with all that a configuration may say of its tags."""
    text = SHIPPED.read_text("utf-8")
    assert SENSOR in text
    text = text.replace(SENSOR, SENSOR + ", sentinels: [85.0, 0.0]", 1)
    return require(parse_config(text.encode(), SHIPPED), SHIPPED)


LOADED = configured()
PARTS = assemble.make_plant(LOADED)
ROWS = table(LOADED.config, PARTS)


def some(rows):
    """Over the network a row takes seconds: the first of each number of the catalogue, and of the
    others a few, drawn by the commit, so that all processes of a run draw the same ones.
    """
    rows = list(rows)
    first = {row.id.split(".")[0]: row for row in reversed(rows)}.values()
    others = [row for row in rows if row not in first]
    drawn = random.Random(results.COMMIT.rstrip("+")).sample(others, OTHERS_OVER_OPC_UA)
    return [row for row in rows if row in first or row in drawn]


def named(rows):
    return [pytest.param(row, id=row.id) for row in rows]


@pytest.fixture(scope="module")
def site(bundles, first_bundle):
    """One twin for every row over the network; its policy is sure of itself."""
    with tempfile.TemporaryDirectory(prefix="sh-") as name:
        folder = Path(name)
        with Site(LOADED, PARTS, folder, WALL_PERIOD_S, (first_bundle, bundles.keys)) as made:
            made.start_runtime()
            yield made


@pytest.mark.parametrize("row", named(r for r in ROWS if r.place is Place.INSIDE))
def test_in_process(row):
    result = try_inside(LOADED, PARTS, row)
    assert result.findings == [], f"{row.injected}; seen: {result.seen}"


@pytest.mark.timeout(240)
@pytest.mark.parametrize("row", named(some(r for r in ROWS if r.place is Place.WIRE)))
def test_over_opc_ua(site, row):
    result = try_wire(site, row)
    assert result.findings == [], f"{row.injected}; seen: {result.seen}"


@pytest.mark.slow
@pytest.mark.parametrize("row", named(r for r in ROWS if r.place is Place.INSIDE))
def test_thirty_times_in_process(row):
    tried = [try_inside(LOADED, PARTS, row) for _ in range(REPEATS)]
    write_down(row, tried)
    assert [one.findings for one in tried if one.findings] == []


@pytest.mark.slow
@pytest.mark.parametrize("row", named(r for r in ROWS if r.place is Place.WIRE))
def test_thirty_times_over_opc_ua(site, row):
    tried = []
    for _ in range(REPEATS):
        tried.append(try_wire(site, row))
        write_down(row, tried)
    assert [one.findings for one in tried if one.findings] == []


def write_down(row, tried):
    """What there is so far, so that a campaign that is cut short is told as one; processes of one
    campaign take turns.
    """
    with results.turn(RESULTS):
        write_down_alone(row, tried)


def write_down_alone(row, tried):
    known = results.read(RESULTS)
    reactions = sorted(one.reaction_s for one in tried if one.reaction_s is not None)
    ticks = [one.reaction_ticks for one in tried if one.reaction_ticks is not None]
    found = {
        "commit": results.COMMIT,
        "tried": len(tried),
        "passed": sum(one.passed for one in tried),
        "findings": sorted({text for one in tried for text in one.findings})[:5],
        "slowest_reaction_ticks": max(ticks, default=None),
        "slowest_reaction_s": max(reactions, default=None),
        "writes_checked": sum(one.writes for one in tried),
    }
    rows = known.get("rows", {}) | {row.id: found}
    rows = {one.id: rows[one.id] for one in sorted(ROWS, key=lambda one: one.id) if one.id in rows}
    figures = {
        "command": COMMAND,
        "repeats": REPEATS,
        "rows_in_the_table": len(ROWS),
        **counts(rows),
        "rows": rows,
    }
    results.keep(RESULTS, figures, indent=1)


def counts(rows):
    return {
        "rows_tried": len(rows),
        "injections": sum(one["tried"] for one in rows.values()),
        "passed": sum(one["passed"] for one in rows.values()),
    }


# -- the table itself ------------------------------------------------------------------------------


def test_every_fault_of_the_catalogue_has_its_place():
    wanted = {f"{group}{i}" for group, count in CATALOGUE.items() for i in range(1, count + 1)}
    rows = {row.catalogue for row in ROWS}
    assert rows <= wanted
    assert wanted - rows - set(ELSEWHERE) - set(NO_PLACE) == set()
    assert set(NO_PLACE) & (rows | set(ELSEWHERE)) == set()


@pytest.mark.parametrize("number", ELSEWHERE)
def test_the_tests_named_instead_are_there(number):
    named = ELSEWHERE[number]
    for place in (named,) if isinstance(named, str) else named:
        file, _, name = place.partition("::")
        tree = ast.parse((ROOT / file).read_text("utf-8"))
        there = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert name in there, place


def test_seven_kinds_of_lies_for_every_measurement():
    kinds = ("off", "stuck", "nan", "x10", "slow", "intermittent", "old")
    numbers = {row.id.split(".", 1)[1] for row in ROWS if "." in row.id}
    for name in PARTS.plant.observations.names:
        for kind in kinds:
            assert f"{name}.{kind}" in numbers


# -- what came of the campaign ---------------------------------------------------------------------

KEPT = results.read(RESULTS)
OURS = {row.id: KEPT["rows"][row.id] for row in ROWS if row.id in KEPT["rows"]}
"""Results of rows that the table still has."""


def test_what_was_tried_was_as_expected_every_time():
    short = {
        name: f"{one['passed']} of {one['tried']}, {one['findings']}"
        for name, one in OURS.items()
        if (one["tried"], one["passed"], one["findings"]) != (REPEATS, REPEATS, [])
    }
    assert short == {}
    told = counts(KEPT["rows"])
    assert {name: KEPT[name] for name in told} == told


def test_every_row_has_its_result():
    lacking = [row.id for row in ROWS if row.id not in OURS]
    if lacking:  # the page says how many
        pytest.skip(f"{len(lacking)} of {len(ROWS)} rows were not tried: {', '.join(lacking)}")
    assert len(OURS) == len(ROWS)


def test_the_page_says_what_came_of_it():
    found = counts(OURS)
    told = (
        f"{found['rows_tried']} of the {len(ROWS)} rows of the shipped configuration, {REPEATS} "
        f"times each: {found['passed']} of {found['injections']} injections were as expected"
    )
    assert told in " ".join(PAGE.read_text("utf-8").split()), f"the page should say: {told}"


# -- what checks must be able to fail --------------------------------------------------------------


def a_row(**changes):
    nothing = Row("B1.made_up", "nothing at all", lambda bench: None, ("OBS_RANGE",))
    return replace(nothing, **changes)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"demand": Source.FALLBACK}, "none of OBS_RANGE"),
        ({"codes": (), "wire": Wire.NOTHING}, "writes arrived where none should"),
        ({"codes": (), "latch": "TAG_TYPE"}, "TAG_TYPE is not latched"),
        (
            {"do": lambda bench: setattr(bench.link, "state", "down"), "codes": ("LINK_DOWN",)},
            "0 writes arrived, not",
        ),
    ],
)
def test_a_row_that_is_not_as_told_fails(changes, word):
    found = run_inside(LOADED.config, PARTS, a_row(**changes)).findings
    assert any(word in text for text in found), found


def test_a_row_that_cannot_be_tried_fails_and_says_why():
    result = try_inside(LOADED, PARTS, a_row(do=lambda bench: 1 / 0))
    assert not result.passed
    assert "ZeroDivisionError" in result.findings[0]


@pytest.fixture(scope="module")
def kept():
    """Arrivals and records of some good ticks."""
    bench = Inside(LOADED.config, PARTS)
    for _ in range(12):
        bench.tick()
    arrivals = [Arrival.of(line) for line in bench.log.lines]
    assert len(arrivals) > 5
    return arrivals, bench.records


BOUNDS = Bounds(PARTS.outputs, PARTS.plant.observations, PARTS.plant.period_s, None)


def test_the_observer_finds_nothing_where_nothing_is(kept):
    assert audit(*kept, BOUNDS) == []


@pytest.mark.parametrize(
    ("promise", "changes"),
    [
        ("I1", {"value": math.nan}),
        ("I1", {"value": -math.inf}),
        ("I2", {"value": 451.0}),
        ("I2", {"value": -400.1}),
        ("I3", {"applied": -1e6}),
        ("I4", {"granted": False}),
        ("I6", {"user": "somebody else"}),
        ("I7", {"value": 17.0}),
    ],
)
def test_the_observer_finds_each_broken_promise(kept, promise, changes):
    arrivals, records = kept
    base = [replace(one, user="controller") for one in arrivals]
    spoilt = [*base[:4], replace(base[4], **changes), *base[5:]]
    found = audit(spoilt, records, BOUNDS)
    assert any(text.startswith(promise) for text in found), found


def test_the_observer_finds_old_data_and_late_writes(kept):
    arrivals, records = kept
    driven = next(i for i, tick in enumerate(records) if tick.source is Source.POLICY)
    tick = records[driven]
    old = replace(tick.observation, age_s=tick.observation.age_s + 1e6)
    found = audit(arrivals, [*records[:driven], replace(tick, observation=old)], BOUNDS, 99)
    assert any(text.startswith("I5") for text in found), found
    usual = replace(tick, source=Source.FALLBACK, observation=old)
    found = audit(arrivals, [*records[:driven], usual], BOUNDS, 99)
    assert any(text.startswith("I5") and "fallback" in text for text in found), found
    marked = replace(old, quality=np.full_like(old.quality, Quality.BAD))
    for harmless in (
        replace(usual, observation=marked),
        *(replace(usual, source=source) for source in (Source.HOLD, Source.SAFE)),
    ):
        found = audit(arrivals, [*records[:driven], harmless], BOUNDS, 99)
        assert not any(text.startswith("I5") for text in found), found
    silent = replace(tick, source=Source.FALLBACK, reasons=frozenset())
    found = audit(arrivals, [*records[:driven], silent], BOUNDS, 99)
    assert any("no reason why" in text for text in found), found


@pytest.mark.parametrize(("periods", "words"), [(2.9, []), (3.1, ["I5"])])
def test_the_observer_finds_a_command_from_an_old_image(kept, periods, words):
    """Two periods are what a sample may be old, one more is the life of a command."""
    arrivals, records = kept
    taken = next(tick for tick in records if tick.sent is not None and tick.sent.written)
    one = next(item for item in arrivals if item.beat == taken.sent.sequence)
    plant_s = taken.observation.time_s + periods * BOUNDS.period_s
    late = replace(one, plant_s=plant_s, wall_s=taken.wall_ns / 1e9)
    found = audit([late], [taken], replace(BOUNDS, wall_period_s=0.2))
    assert [text.split()[0] for text in found if text.startswith("I5")] == words


def test_no_more_commands_are_late_than_the_fault_keeps(kept):
    arrivals, records = kept
    pairs = [
        (tick, replace(one, plant_s=tick.observation.time_s + 9.0 * BOUNDS.period_s, wall_s=wall_s))
        for one in arrivals
        for tick in records
        if tick.sent is not None and tick.sent.written and one.beat == tick.sent.sequence
        for wall_s in [tick.wall_ns / 1e9]
    ][:2]
    ticks, late = [tick for tick, _ in pairs], [one for _, one in pairs]
    for allowed, found in ((0, 2), (1, 2), (2, 0)):
        bounds = replace(BOUNDS, wall_period_s=0.2, under_way=allowed)
        told = [text for text in audit(late, ticks, bounds) if "I5" in text]
        assert len(told) == found, (allowed, told)


def test_two_writers_are_seen_by_their_heartbeats(kept):
    arrivals, records = kept
    mixed = [replace(one, beat=(i * 7) % 5) for i, one in enumerate(arrivals)]
    assert any("two writers" in text for text in audit(mixed, records, BOUNDS, 99))


# -- the command -----------------------------------------------------------------------------------


def selftest(*words):
    return steadyhand("selftest", *words, timeout_s=200.0, cwd="/")


@pytest.mark.timeout(240)
def test_the_report_for_an_acceptance_test(tmp_path):
    report = tmp_path / "fat.md"
    rows = ("B1.cooling_load_kw.nan", "A12.BadSensorFailure", "A1.cut")
    only = [word for row in rows for word in ("--only", row)]
    done = selftest(str(SHIPPED), *only, "--report", str(report))
    assert done.returncode == 0, done.stdout + done.stderr
    text = report.read_text("utf-8")
    assert "**PASSED.**" in text
    assert require(load_config(SHIPPED), SHIPPED).digest in text
    for word in (*rows, "OBS_NONFINITE", "SAMPLE_BAD", "I1", "I8", "SHA-256"):
        assert word in text
    data = json.loads(report.with_suffix(".json").read_text("utf-8"))
    assert (data["rows"], data["passed"], data["failed"]) == (3, 3, [])
    assert {one["id"] for one in data["results"]} == set(rows)
    (wire,) = [one for one in data["results"] if one["where"] == "over OPC UA"]
    assert 0.0 <= wire["reaction_s"] < 8.0
    assert data["machine"] and data["steadyhand"] and data["started"]


def test_a_configuration_that_is_refused_is_not_tried(tmp_path):
    broken = tmp_path / "steadyhand.yaml"
    text = SHIPPED.read_text("utf-8")
    broken.write_text(text.replace("heuristic: demand_limiting", "heuristic: nobody"), "utf-8")
    done = selftest(str(broken), "--only", "A1.cut")
    assert done.returncode == 78
    assert "nobody" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_rows_can_be_listed_and_chosen():
    done = selftest(str(SHIPPED), "--list", "--json")
    assert done.returncode == 0, done.stderr
    listed = [one["id"] for one in json.loads(done.stdout)]
    assert listed == [row.id for row in ROWS if ".declared_" not in row.id]
    none = selftest(str(SHIPPED), "--list", "--only", "Z9")
    assert none.returncode == 78
    assert "Z9" in none.stderr
