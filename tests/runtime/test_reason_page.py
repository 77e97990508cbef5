"""docs/reasons.md: what the runtime works with, and nothing that is not there."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime.cli import complete
from steadyhand.runtime.events import EFFECTS, Severity, Situation
from steadyhand.runtime.reason_page import page, runbook

DOCS = Path(__file__).parents[2] / "docs"


def rows():
    """Cells of the page by code."""
    found = {}
    for line in page().splitlines():
        if match := re.match(r'\| <a id="(\w+)"></a>`(\w+)`', line):
            assert match[1] == match[2].lower(), "the anchor by which other pages link to it"
            found[match[2]] = [cell.strip() for cell in line.strip("|").split("|")]
    return found


def test_the_page_is_what_the_command_makes():
    stored = (DOCS / "reasons.md").read_text("utf-8")
    assert stored == page(), "run: steadyhand reasons --markdown > docs/reasons.md"


def test_every_code_has_one_row_in_its_order():
    assert list(rows()) == list(ReasonCode)


def test_a_row_says_what_the_table_of_reactions_does():
    found = rows()
    assert found["OBS_XCHECK"][1:6] == [
        "measurements contradict each other",
        "the safe set-point is held",
        "at once",
        "alarm",
        EFFECTS[ReasonCode.OBS_XCHECK, Situation.DRIVING].action,
    ]
    assert found["ACT_NONFINITE"][0].endswith("°")
    assert found["ACT_NONFINITE"][3] == "after 3 ticks"
    assert found["WRITE_FAILED"][2] == (
        "the last value is held; at the safe set-point already: hands off: the plant has its own "
        "control, latched"
    )
    assert found["NOT_GRANTED"][2:5] == ["hands off: the plant has its own control", "no",
                                         "record only"]  # fmt: skip
    assert found["FILTER_SHAPED"][5] == "nothing"


@pytest.mark.parametrize("code", list(ReasonCode))
def test_runbooks_that_are_named_are_there(code):
    name = runbook(code)
    if name:
        assert (DOCS / "runbooks" / f"Steadyhand{name}.md").exists()
    effect = EFFECTS[code, Situation.DRIVING]
    if effect.severity >= Severity.ALARM:
        assert name, "whoever is called finds a page"


def test_a_runbook_that_names_codes_leads_to_them():
    for file in (DOCS / "runbooks").glob("*.md"):
        assert "(../reasons.md)" in file.read_text("utf-8"), file.name


def test_the_command_says_one_or_all():
    run = CliRunner().invoke
    one = run(complete(), ["reasons", "obs_stuck", "--json"])
    assert one.exit_code == 0
    assert json.loads(one.stdout)["What it means"] == "a measurement does not move"
    every = json.loads(run(complete(), ["reasons", "--json"]).stdout)
    assert [row["Code"] for row in every] == list(ReasonCode)
    assert run(complete(), ["reasons", "--markdown"]).stdout == page()
    refused = run(complete(), ["reasons", "NO_SUCH"])
    assert refused.exit_code != 0
    assert "no reason code 'NO_SUCH'" in str(refused.exception)
