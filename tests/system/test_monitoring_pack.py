"""Alarms, runbooks and dashboards fit each other and the metrics there really are."""

import colorsys
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from ruamel.yaml import YAML

from steadyhand.adapters.sim.certificates import make_pki
from steadyhand.controllers.catalogue import plant_kind
from steadyhand.controllers.frames import Fault, LinkState, Source
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime.certificate_watch import Watched
from steadyhand.runtime.certificates import WARN_DAYS
from steadyhand.runtime.chain import Head
from steadyhand.runtime.cli import complete
from steadyhand.runtime.journal import Status
from steadyhand.runtime.metrics import Identity, Metrics
from steadyhand.runtime.vitals import Vitals
from tests.support.prometheus import DEPLOY, RULES, annotations, panels, variables
from tests.support.records import LAYOUT, tick_arguments
from tests.support.troubles import TROUBLES

REPOSITORY = DEPLOY.parent
RUNBOOKS = REPOSITORY / "docs" / "runbooks"
ON_THE_BOX = "file:///opt/steadyhand/share/doc/runbooks"
"""Where install.sh puts them: no network is needed to read one."""
SECTIONS = ("What it means", "What the plant does now", "What to do", "When it is over")
SELECTOR = re.compile(r"\b((?:steadyhand|process|instance:steadyhand)[a-z0-9_:]*)(\{[^}]*\})?")
MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"([^"]*)"')


def yaml(name: str) -> Any:
    return YAML(typ="safe").load((RULES / name).read_text("utf-8"))


def rules(name: str) -> list[dict[str, Any]]:
    return [rule for group in yaml(name)["groups"] for rule in group["rules"]]


ALERTS = rules("steadyhand.alerts.yml")
"""One name may have several rules: of papers that end, one for each severity."""
NAMES = {rule["alert"] for rule in ALERTS}
PAPERS = {f"Steadyhand{kind}Expires" for kind in ("Bundle", "Certificate", "Evidence")}
RECORDED = {rule["record"]: rule for rule in rules("steadyhand.rules.yml")}


def dashboards() -> dict[str, Any]:
    files = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
    return {file.stem: json.loads(file.read_text("utf-8")) for file in files}


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        shutil.which(program) is None, reason=f"no {program} here (tests/system/install.sh)"
    )


@pytest.fixture(scope="module")
def series(tmp_path_factory) -> dict[str, dict[str, set[str]]]:
    """Every name on the page of a runtime with everything on, and the values of its labels."""
    pki = make_pki(tmp_path_factory.mktemp("pki") / "pki", "thermal_storage")
    ends = Watched(pki.client_cert, (pki.server_cert,)).ends()
    made = Metrics(
        Identity("loop", "tank"),
        900.0,
        LAYOUT.rows,
        journal=lambda: Status(Head(0, 0, bytes(32))),
        signals=LAYOUT.observations,
        outputs=LAYOUT.outputs,
        plant_values=True,
        monitors=LAYOUT.monitors,
        vitals=lambda: Vitals(LinkState.UP, certificates=ends),
    )
    modes = SimpleNamespace(
        mode="full",
        cause=Fault(ReasonCode.OK),
        demand=Source.POLICY,
        latches=(),
        overrides=(),
    )
    modes.mode = "shadow"  # with a proposal in the tick before: what is compared has a sample
    for _ in range(2):
        made.tick(SimpleNamespace(**tick_arguments()), 0, modes)
    found: dict[str, dict[str, set[str]]] = {}
    for line in made.render().decode().splitlines():
        if line.startswith("#"):
            continue
        name = line.split("{")[0].split(" ")[0]
        labels = found.setdefault(name, {})
        for label, _, text in MATCHER.findall(line):
            labels.setdefault(label, set()).add(text)
    return found


def expressions() -> list[tuple[str, str]]:
    """Every expression there is, with where it stands."""
    found = [(name, rule["expr"]) for name, rule in RECORDED.items()]
    for rule in ALERTS:
        found.append((rule["alert"], rule["expr"]))
        asked = re.findall(r'printf "(.+?)"', rule["annotations"]["description"])
        found += [(rule["alert"], query.replace("'", '"')) for query in asked]
    for board, panel in panels():
        found += [(f"{board}: {panel['title']}", target["expr"]) for target in panel["targets"]]
    found += [(f"{board}: {name}", text) for board, name, text in annotations()]
    found += [(f"{board}: ${name}", text) for board, name, text, _ in variables()]
    return found


def test_every_name_and_every_label_is_one_that_there_is(series):
    """A misspelt name or state is an alarm that never comes."""
    wrong = []
    used = set()
    for where, expression in expressions():
        for name, braces in SELECTOR.findall(expression):
            if name in RECORDED or name == "steadyhand":
                continue
            if name not in series:
                wrong.append((where, name))
                continue
            used.add(name)
            for label, sign, text in MATCHER.findall(braces):
                values = series[name].get(label, set())
                if label in ("instance", "job") or "$" in text:
                    continue
                hit = [v for v in values if (re.fullmatch(text, v) if "~" in sign else text == v)]
                if not hit:
                    wrong.append((where, f"{name}: no {label}{sign}{text}"))
                # each alternative that is spelt out has to exist
                words = re.findall(r"[A-Za-z]\w+", text) if "~" in sign else []
                wrong += [
                    (where, f"{name}: no {label} with {word}")
                    for word in words
                    if not any(word in value for value in values)
                ]
    assert wrong == []
    recorded = {name for _, text in expressions() for name in RECORDED if name in text}
    assert recorded == set(RECORDED), "recorded for nobody"
    assert len(used) > 50


def test_every_alarm_says_who_what_and_where_to_read_on():
    for rule in ALERTS:
        name = rule["alert"]
        assert rule["labels"].keys() == {"severity", "owner"}, name
        assert rule["labels"]["severity"] in ("critical", "warning", "notice"), name
        assert rule["labels"]["owner"] in ("operator", "engineer", "maintenance"), name
        words = rule["annotations"]
        assert words.keys() == {"summary", "description", "runbook_url"}, name
        assert words["runbook_url"] == f"{ON_THE_BOX}/{name}.md", name
        assert words["description"].endswith("."), name
        # one that needs no patience counts over a time of its own, or is a state for good
        assert "for" in rule or "[" in rule["expr"] or name.endswith("Insecure"), name


def test_alarms_are_few_and_most_of_them_can_wait():
    """33 causes; what is critical from the first moment on wants somebody at any hour."""
    severities = Counter(r["labels"]["severity"] for r in ALERTS if r["alert"] not in PAPERS)
    assert len(NAMES) <= 33
    assert severities["critical"] <= 5


def test_papers_that_end_are_told_more_urgently_the_nearer_the_end_is():
    """30, 7 and 1 days ahead, without a gap and never twice."""
    for name in PAPERS:
        told = {r["labels"]["severity"]: r["expr"] for r in ALERTS if r["alert"] == name}
        value = told["critical"].removesuffix(" < 86400")
        assert told == {
            "notice": f"{value} < 30 * 86400 >= 7 * 86400",
            "warning": f"{value} < 7 * 86400 >= 86400",
            "critical": f"{value} < 86400",
        }, name
    assert {name for name in NAMES if name.endswith("Expires")} == PAPERS
    assert WARN_DAYS == (30.0, 7.0, 1.0), "as the alarms and events of the runtime"


def test_every_alarm_has_a_runbook_and_every_runbook_an_alarm():
    assert {file.stem for file in RUNBOOKS.glob("*.md")} == NAMES
    for rule in ALERTS:
        name = rule["alert"]
        text = (RUNBOOKS / f"{name}.md").read_text("utf-8")
        assert text.startswith(f"# {name}\n")
        assert re.findall(r"^## (.+)$", text, re.M) == list(SECTIONS), name
        head = text.split("##")[0]
        first = "notice" if name in PAPERS else rule["labels"]["severity"]
        assert f"Severity {first}:" in head, name
        assert rule["labels"]["severity"] in head, name
        assert rule["labels"]["owner"] in head, name


def test_commands_of_the_runbooks_are_commands():
    """Each `steadyhand` in a runbook is one the command line knows."""
    group = typer.main.get_command(complete())
    known = set()
    for name, command in group.commands.items():
        known |= {f"{name} {inner}" for inner in getattr(command, "commands", {})} or {name}
    for file in (*RUNBOOKS.glob("*.md"), REPOSITORY / "docs" / "monitor.md"):
        text = file.read_text("utf-8")
        # at the start of a line of code, or behind && or a quote
        for line in re.findall(
            r"(?:^ *|&& |`)steadyhand ((?:journal |bundle |pki |scada |shadow |evidence )?[a-z-]+)",
            text,
            re.M,
        ):
            assert line in known, f"{file.name}: steadyhand {line}"


def test_the_list_of_alarms_in_the_documentation_is_complete():
    text = (REPOSITORY / "docs" / "monitor.md").read_text("utf-8")
    for rule in ALERTS:
        name = rule["alert"]
        (line,) = [line for line in text.splitlines() if f"[{name}](runbooks/{name}.md)" in line]
        assert rule["labels"]["severity"] in line, name
        assert rule["labels"]["owner"] in line, name


def test_each_alarm_is_tested_to_come_and_to_go():
    came: set[str] = set()
    gone: set[str] = set()
    for file in ("tests.yml", "tests-long.yml"):
        for test in yaml(file)["tests"]:
            now: set[str] = set()
            for step in test.get("promql_expr_test", ()):
                firing = {
                    text
                    for sample in step["exp_samples"]
                    for _, _, text in MATCHER.findall(sample["labels"])
                }
                came |= firing
                gone |= now - firing
                now = firing
    assert came & NAMES == NAMES
    assert gone & NAMES == NAMES
    assert (came | gone) - NAMES == {"notice", "warning", "critical"}, "severities, of papers"


def test_each_alarm_has_a_trouble_that_causes_it():
    """In a real Prometheus, over a real runtime: `test_prometheus.py`."""
    tried = [alarm for trouble in TROUBLES for alarm in trouble.full()]
    assert set(tried) == NAMES


@needs("promtool")
@pytest.mark.timeout(300)
def test_the_rules_own_tests_pass():
    for command in (
        ["check", "rules", "steadyhand.rules.yml", "steadyhand.alerts.yml"],
        ["test", "rules", "tests.yml", "tests-long.yml"],
    ):
        done = subprocess.run(
            ["promtool", *command], cwd=RULES, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboards_are_the_ones_the_script_makes():
    script = DEPLOY / "grafana" / "generate.py"
    done = subprocess.run(
        [sys.executable, str(script), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def without_number(panel: dict[str, Any]) -> bool:
    """Does it show words: states, names, a table?"""
    text = (panel.get("options") or {}).get("textMode")
    return panel["type"] in ("state-timeline", "table") or text == "name"


def test_every_panel_has_a_unit_and_says_what_it_shows():
    for board, panel in panels():
        where = f"{board}: {panel['title']}"
        assert (panel["fieldConfig"]["defaults"]["unit"] == "none") is without_number(panel), where
        assert len(panel["description"]) > 10, where
        assert panel["description"].endswith("."), where
        assert panel["targets"], where
        assert panel["datasource"]["uid"] == "${datasource}", where


def test_plant_values_have_the_units_of_their_signals():
    """The legend ends in the unit, and the axis takes it from there, for every unit of a plant."""
    kind = plant_kind("thermal_storage")
    plant = kind.plant(kind.parameters)
    units = {signal.unit for signal in (*plant.observations, *plant.outputs)}
    shown = {panel["title"]: panel for board, panel in panels() if board == "loop"}
    for title in ("Output", "Measurements"):
        panel = shown[title]
        assert all(t["legendFormat"].endswith(" [{{unit}}]") for t in panel["targets"]), title
        rules = [rule for rule in panel["fieldConfig"]["overrides"]
                 if rule["matcher"]["id"] == "byRegexp"]  # fmt: skip
        known = {}
        for unit in units:
            legend = f"some_signal sent [{unit}]"
            known[unit] = [
                prop["value"] for rule in rules for prop in rule["properties"]
                if re.search(rule["matcher"]["options"][1:-1], legend)
            ]  # fmt: skip
        assert known["kW"] == ["kwatt"], title
        assert known["degC"] == ["celsius"], title
        assert all(len(names) == 1 for names in known.values()), known


def test_panels_lead_to_runbooks_that_there_are():
    linked = set()
    for board, panel in panels():
        for link in panel.get("links") or ():
            name = link["url"].removeprefix("${runbooks}/").removesuffix(".md")
            assert name in NAMES, f"{board}: {panel['title']}"
            linked.add(name)
    text = json.dumps(dashboards()["overview"])
    assert "${runbooks}/${__value.raw}.md" in text, "the list of alarms leads to every runbook"
    assert len(linked) > 15
    for name, board in dashboards().items():
        (place,) = [v for v in board["templating"]["list"] if v["name"] == "runbooks"]
        assert place["query"] == ON_THE_BOX, name


def test_boards_have_fixed_names_and_their_panels_do_not_overlap():
    boards = dashboards()
    assert set(boards) == {"overview", "loop", "engineering", "model"}
    for name, board in boards.items():
        assert board["uid"] == f"steadyhand-{name}"
        assert board["id"] is None
        numbers = [panel["id"] for panel in board["panels"]]
        assert len(set(numbers)) == len(numbers)
        taken: set[tuple[int, int]] = set()
        for panel in board["panels"]:
            place = panel["gridPos"]
            cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert not taken & cells, f"{name}: {panel['title']}"
            assert max(x for x, _ in cells) < 24, f"{name}: {panel['title']}"
            taken |= cells
        variables = {variable["name"] for variable in board["templating"]["list"]}
        used = set(re.findall(r"\$\{?([a-z]+)\}?", json.dumps(board["panels"])))
        assert used <= variables | {"__value", "__rate", "__range", "__interval"}, name


STATES = {"#8f9aa3", "#c3c9ce", "#d9a441", "#d9762b", "#c4372f"}
"""Grey, pale, amber, orange, red: each means something."""


def vivid(colour: str) -> float:
    """Saturation of "#rrggbb", 0 to 1."""
    return colorsys.rgb_to_hsv(*(int(colour[i : i + 2], 16) / 255.0 for i in (1, 3, 5)))[1]


def colours_of(panel: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every colour mode of a panel: its own, and those of its overrides."""
    config = panel["fieldConfig"]
    yield config["defaults"].get("color", {})
    for rule in config["overrides"]:
        yield from (prop["value"] for prop in rule["properties"] if prop["id"] == "color")


def test_colours_are_calm():
    """Grey for what is normal; what is red or amber stands behind a threshold or a state. A line
    that means nothing but itself is muted, whatever its name or place.
    """
    for board, panel in panels():
        where, defaults = f"{board}: {panel['title']}", panel["fieldConfig"]["defaults"]
        steps = defaults["thresholds"]["steps"]
        for one, other in pairwise(steps):
            assert one["color"] != other["color"], where
        assert {step["color"] for step in steps} <= STATES, where
        words = [one for mapping in defaults.get("mappings", ())
                 for one in mapping["options"].values()]  # fmt: skip
        assert {one["color"] for one in words} <= STATES, where
        assert bool(words) is (panel["type"] == "state-timeline"), where
        for colour in colours_of(panel):
            mode = colour.get("mode", "thresholds")
            if panel["type"] == "timeseries":
                assert mode == "shades", f"{where}: {mode}"
                assert vivid(colour["fixedColor"]) < 0.4, where
                assert colour["fixedColor"] not in STATES, where
            else:
                assert mode == "thresholds", f"{where}: {mode}"


def test_provisioning_files_are_what_grafana_reads():
    for kind, section in (("dashboards", "providers"), ("datasources", "datasources")):
        file = DEPLOY / "grafana" / "provisioning" / kind / "steadyhand.yaml"
        data = YAML(typ="safe").load(file.read_text("utf-8"))
        assert data["apiVersion"] == 1
        assert data[section][0]["name"]
