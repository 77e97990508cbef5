"""Whatever a document or a refusal tells an engineer to write, the configuration understands."""

import ast
import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from steadyhand.runtime.config import parse_config
from steadyhand.runtime.config_schema import Config, json_schema
from steadyhand.runtime.yaml_source import Problem, Source, read_yaml

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "configs" / "thermal_storage" / "steadyhand.yaml"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ROOMS = ("controllers", "adapters", "runtime")
CODE = [file for room in ROOMS for file in (ROOT / room).rglob("*.py")]
SCHEMA = json_schema()
SECTIONS = set(SCHEMA["properties"])
NO_SETTING = {"journal.end"}
"""Of the status, not of the configuration."""


def node_keys(node: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Keys of a schema's node, each with the nodes that may stand below it."""
    return {key: list(below(child)) for key, child in node.get("properties", {}).items()}


def below(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "$ref" in node:
        node = SCHEMA["$defs"][node["$ref"].rpartition("/")[2]]
    yield node
    for option in (*node.get("anyOf", ()), *node.get("oneOf", ())):
        yield from below(option)


def exists(dotted: str) -> bool:
    """Is `link.security.user` a key of the configuration?"""
    nodes = [SCHEMA]
    for key in dotted.split("."):
        nodes = [child for node in nodes for child in node_keys(node).get(key, ())]
    return bool(nodes)


KEYS = {key for node in (SCHEMA, *SCHEMA["$defs"].values()) for key in node.get("properties", {})}


def remedies(file: Path) -> Iterator[tuple[int, str]]:
    """Texts of a module that are no docstrings: what a person may come to read."""
    tree = ast.parse(file.read_text("utf-8"))
    silent = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in silent
        ):
            yield node.lineno, node.value


VALUE = r"(?:true|false|\d[\w.]*|[a-z_]+(?=$|[,;.)]))"
PAIR = re.compile(rf"(?<![\w./-])([a-z][a-z0-9]*_[a-z0-9_]+|[a-z]+(?=: (?:true|false)\b)): {VALUE}")
DOTTED = re.compile(
    rf"(?<![\w./-])((?:{'|'.join(sorted(SECTIONS))})(?:\.[a-z][a-z0-9_]+)+)(?![\w/(])"
)
FILE_ENDING = re.compile(r"\.(py|json|md|yaml|sock|service|shb|lock)$")


def named(text: str) -> Iterator[str]:
    """Keys that a text tells somebody to write."""
    yield from PAIR.findall(text)
    if " " in text:  # by itself it is the name of a module
        yield from (key for key in DOTTED.findall(text) if not FILE_ENDING.search(key))


def unknown(keys: Iterator[str]) -> list[str]:
    return [
        key
        for key in keys
        if key not in NO_SETTING and not (exists(key) if "." in key else key in KEYS)
    ]


def test_the_search_finds_what_is_meant():
    text = "renew it, or set check_hosts: false; see go_live.evidences and operator.sock"
    assert unknown(named(text)) == ["check_hosts", "go_live.evidences"]
    assert exists("link.security.user")
    assert not exists("link.user")


def test_every_key_in_a_refusal_is_one_of_the_configuration():
    wrong, seen = [], 0
    for file in CODE:
        for line, text in remedies(file):
            seen += len(list(named(text)))
            wrong += [f"{file.relative_to(ROOT)}:{line}: {key}" for key in unknown(named(text))]
    assert wrong == []
    assert seen > 20


def code_of(page: Path) -> list[str]:
    """What stands in code marks in the running text."""
    return re.findall(
        r"`([^`\n]+)`", re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    )


def test_every_key_in_a_document_is_one_of_the_configuration():
    wrong, seen = [], 0
    for page in PAGES:
        for text in code_of(page):
            keys = [key for key in DOTTED.findall(text) if key == text]
            keys += re.findall(r"^([a-z][a-z0-9_]+): ", text)
            seen += len(keys)
            wrong += [f"{page.relative_to(ROOT)}: {key}" for key in unknown(iter(keys))]
    assert wrong == []
    assert seen > 20


def test_every_key_in_a_table_of_keys_is_one_of_the_configuration():
    wrong, seen = [], 0
    for page in PAGES:
        inside = False
        for line in page.read_text("utf-8").splitlines():
            first = line.split("|")[1].strip() if line.startswith("|") else ""
            inside = first == "key" or (inside and bool(first))
            keys = re.findall(r"`([a-z][a-z0-9_.]*)`", first) if inside else []
            seen += len(keys)
            wrong += [f"{page.relative_to(ROOT)}: {key}" for key in unknown(iter(keys))]
    assert wrong == []
    assert seen > 3


def snippets() -> list[tuple[str, str]]:
    """Every piece of YAML in the documents."""
    return [
        (f"{page.relative_to(ROOT)}-{i}", text)
        for page in PAGES
        for i, text in enumerate(
            re.findall(r"```yaml\n(.*?)```", page.read_text("utf-8"), flags=re.DOTALL)
        )
    ]


def merged(base: Any, more: Any) -> Any:
    """`base` with what `more` says otherwise."""
    if not (isinstance(base, dict) and isinstance(more, dict)):
        return more
    return base | {key: merged(base.get(key), value) for key, value in more.items()}


def in_place(data: dict[str, Any]) -> dict[str, Any]:
    """A piece that begins inside a section, in that section."""
    if set(data) <= SECTIONS:
        return data
    link = {
        key for name in ("OpcUaLink", "Security") for key in SCHEMA["$defs"][name]["properties"]
    }
    assert set(data) <= link, f"of which section are {set(data)}?"
    inner = set(data) <= set(SCHEMA["$defs"]["Security"]["properties"])
    return {"link": {"security": data} if inner else data}


@pytest.mark.parametrize(("place", "text"), snippets(), ids=[place for place, _ in snippets()])
def test_every_piece_of_yaml_in_a_document_is_understood(place: str, text: str):
    """Laid over the shipped file, it is a configuration without a problem."""
    shipped, piece = read_yaml(SHIPPED.read_bytes()), read_yaml(text.encode())
    assert isinstance(shipped, Source)
    assert isinstance(piece, Source), piece
    content = merged(copy.deepcopy(shipped.data), in_place(piece.data))
    if content.get("go_live", {}).get("evidence"):
        content["go_live"].pop("without_evidence", None)  # one of the two
    found = parse_config(json.dumps(content).encode(), SHIPPED)
    assert not isinstance(found, list), [p.text(place) for p in found if isinstance(p, Problem)]
    assert isinstance(found.config, Config)
