"""docs/known-failures.md: every report is there, and every test it names exists."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "known-failures.md").read_text("utf-8")
ROWS = {
    int(found[1]): [cell.strip() for cell in found[2].split(" | ")]
    for found in re.finditer(r"^\| (\d+) \| (.*) \|$", PAGE, re.MULTILINE)
}
LEFT_OUT = range(43, 67)
"""Robots, ROS 2, solvers."""


@cache
def functions(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def test_the_slow_ones_are_named_as_such():
    """By their own mark; a part of a test that is slow is told by hand."""
    told = PAGE.partition("## What an ordinary run leaves out")[2]
    for file, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE):
        tree = ast.parse((ROOT / file).read_text("utf-8"))
        (function,) = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef) and node.name == name
        ]
        marks = " ".join(ast.unparse(mark) for mark in function.decorator_list)
        assert ("mark.slow" in marks) == (f"{file}::{name}" in told), name


def test_every_report_is_there_once():
    assert list(ROWS) == [number for number in range(1, 94) if number not in LEFT_OUT]
    assert len(re.findall(r"^\| \d+ \|", PAGE, re.MULTILINE)) == len(ROWS)


@pytest.mark.parametrize("number", ROWS)
def test_a_report_has_its_source_its_answer_and_a_test_that_exists(number):
    what, source, answer, tried = ROWS[number]
    assert what and answer
    assert re.fullmatch(r"([\w.-]+/[\w.-]+ #\d+(, )?|#\d+(, )?)+", source), source
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", tried)
    assert named
    for file, name in named:
        assert (ROOT / file).is_file(), file
        assert name.startswith("test_") and name in functions(file), f"{file}::{name}"
