"""docs/security.md: every rule is there, and every test it names exists."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from steadyhand.runtime.operator_protocol import COMMANDS, Door, Role

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text("utf-8")
ROWS = {
    found[1]: re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", found[0])
    for found in re.finditer(r"^\| ([SBJ]\d+(?:-[SBJ]\d+)?) \|.*$", PAGE, re.MULTILINE)
}
FIRST = ["S1", "S4", "S7", "S8", "S9", "S10", "S13", "S20", "S21", "S22"]
SECOND = ["S2", "S3", "S5", "S6", "S11", "S15", "S23", "S24", "S25", "S26"]


@cache
def functions(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def test_every_rule_has_a_test():
    assert set(FIRST + SECOND) <= set(ROWS)
    bundle = {
        number
        for name in ROWS
        if name.startswith("B")
        for low, _, high in [name.replace("B", "").partition("-")]
        for number in range(int(low), int(high or low) + 1)
    }
    assert bundle == set(range(1, 17))
    assert {"J1", "J2", "J3", "J4"} <= set(ROWS)
    assert all(ROWS.values())


@pytest.mark.parametrize("rule", ROWS)
def test_the_tests_named_exist(rule):
    for file, name in ROWS[rule]:
        assert (ROOT / file).is_file(), file
        assert name.startswith("test_") and name in functions(file), f"{file}::{name}"


def test_every_negative_bundle_is_tried():
    """Cases carry the numbers of the list they come from."""
    text = (ROOT / "tests" / "runtime" / "bundle" / "test_refusals.py").read_text("utf-8")
    numbers = {int(number) for number in re.findall(r'^    "(\d+) [^"]+": ', text, re.MULTILINE)}
    assert numbers | {14} == set(range(1, 17))  # the race is a test of its own
    assert "test_file_replaced_while_it_is_loaded_is_wholly_old_or_new" in text


def test_the_table_of_roles_is_the_one_of_the_code():
    roles = PAGE.partition("### FR 2")[2].partition("### FR 3")[0]
    rows = re.findall(
        r"^\| ([a-z, -]+) \|([^|]*)\|([^|]*)\|([^|]*)\| ([^|]+) \|$", roles, re.MULTILINE
    )
    rows = rows[1:]  # its own head
    told = {}
    for names, *cells, doors in rows:
        words = {door for door in Door if re.search(rf"^[^(]*\b{door}\b", doors.lower())}
        for name in names.split(", "):
            told[name] = ([bool(cell.strip()) for cell in cells], words)
    assert set(told) == set(COMMANDS)
    for name, spec in COMMANDS.items():
        assert told[name] == ([role >= spec.role for role in Role], set(spec.doors)), name


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", PAGE):
        assert (ROOT / "docs" / target).exists(), target
