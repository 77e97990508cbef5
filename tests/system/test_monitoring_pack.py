"""Alarms, runbooks and dashboards fit each other and the metrics there really are."""

import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from ruamel.yaml import YAML

from steadyhand.adapters.sim.certificates import make_pki
from steadyhand.controllers.frames import Fault, LinkState, Source
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime.certificate_watch import Watched
from steadyhand.runtime.chain import Head
from steadyhand.runtime.cli import complete
from steadyhand.runtime.journal import Status
from steadyhand.runtime.metrics import Identity, Metrics
from steadyhand.runtime.vitals import Vitals
from tests.support.prometheus import DEPLOY, RULES, panels
from tests.support.records import LAYOUT, tick_arguments

REPOSITORY = DEPLOY.parent
RUNBOOKS = REPOSITORY / "docs" / "runbooks"
SECTIONS = ("What it means", "What the plant does now", "What to do", "When it is over")
SELECTOR = re.compile(r"\b((?:steadyhand|process|instance:steadyhand)[a-z0-9_:]*)(\{[^}]*\})?")
MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"([^"]*)"')


def yaml(name: str) -> Any:
    return YAML(typ="safe").load((RULES / name).read_text("utf-8"))


def rules(name: str) -> list[dict[str, Any]]:
    return [rule for group in yaml(name)["groups"] for rule in group["rules"]]


ALERTS = {rule["alert"]: rule for rule in rules("steadyhand.alerts.yml")}
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
        signals=LAYOUT.observations.names,
        outputs=LAYOUT.outputs.names,
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
    found = [(name, rule["expr"]) for name, rule in (ALERTS | RECORDED).items()]
    for name, rule in ALERTS.items():
        asked = re.findall(r'printf "(.+?)"', rule["annotations"]["description"])
        found += [(name, query.replace("'", '"')) for query in asked]
    for board, panel in panels():
        found += [(f"{board}: {panel['title']}", target["expr"]) for target in panel["targets"]]
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
    for name, rule in ALERTS.items():
        assert rule["labels"].keys() == {"severity", "owner"}, name
        assert rule["labels"]["severity"] in ("critical", "warning", "notice"), name
        assert rule["labels"]["owner"] in ("operator", "engineer", "maintenance"), name
        words = rule["annotations"]
        assert words.keys() == {"summary", "description", "runbook_url"}, name
        assert words["runbook_url"].endswith(f"/{name}.md"), name
        assert words["description"].endswith("."), name
        # one that needs no patience counts over a time of its own, or is a state for good
        assert "for" in rule or "[" in rule["expr"] or name == "SteadyhandLinkInsecure", name


def test_alarms_are_few_and_most_of_them_can_wait():
    severities = Counter(rule["labels"]["severity"] for rule in ALERTS.values())
    assert len(ALERTS) < 30
    assert severities["critical"] <= 5


def test_every_alarm_has_a_runbook_and_every_runbook_an_alarm():
    assert {file.stem for file in RUNBOOKS.glob("*.md")} == set(ALERTS)
    for name, rule in ALERTS.items():
        text = (RUNBOOKS / f"{name}.md").read_text("utf-8")
        assert text.startswith(f"# {name}\n")
        assert re.findall(r"^## (.+)$", text, re.M) == list(SECTIONS), name
        assert f"Severity {rule['labels']['severity']}:" in text, name
        assert rule["labels"]["owner"] in text.split("##")[0], name


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
            r"(?:^ *|&& |`)steadyhand ((?:journal |bundle |pki |scada )?[a-z-]+)", text, re.M
        ):
            assert line in known, f"{file.name}: steadyhand {line}"


def test_the_list_of_alarms_in_the_documentation_is_complete():
    text = (REPOSITORY / "docs" / "monitor.md").read_text("utf-8")
    for name, rule in ALERTS.items():
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
    assert came == set(ALERTS)
    assert gone == set(ALERTS)


@needs("promtool")
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


def test_every_panel_has_a_unit_and_says_what_it_shows():
    for board, panel in panels():
        where = f"{board}: {panel['title']}"
        assert panel["fieldConfig"]["defaults"]["unit"], where
        assert len(panel["description"]) > 10, where
        assert panel["description"].endswith("."), where
        assert panel["targets"], where
        assert panel["datasource"]["uid"] == "${datasource}", where


def test_panels_lead_to_runbooks_that_there_are():
    linked = set()
    for board, panel in panels():
        for link in panel.get("links") or ():
            name = link["url"].removeprefix("${runbooks}/").removesuffix(".md")
            assert name in ALERTS, f"{board}: {panel['title']}"
            linked.add(name)
    text = json.dumps(dashboards()["overview"])
    assert "${runbooks}/${__value.raw}.md" in text, "the list of alarms leads to every runbook"
    assert len(linked) > 15


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


def test_colours_are_calm():
    """Grey for what is normal; what is red or amber stands behind a threshold or a state."""
    for board, panel in panels():
        steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
        assert len({step["color"] for step in steps}) == len(steps) or len(steps) == 3, board
        for step in steps:
            assert re.fullmatch(r"#[0-9a-f]{6}", step["color"]), f"{board}: {panel['title']}"


def test_provisioning_files_are_what_grafana_reads():
    for kind, section in (("dashboards", "providers"), ("datasources", "datasources")):
        file = DEPLOY / "grafana" / "provisioning" / kind / "steadyhand.yaml"
        data = YAML(typ="safe").load(file.read_text("utf-8"))
        assert data["apiVersion"] == 1
        assert data[section][0]["name"]
