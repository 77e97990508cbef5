"""The one YAML file of a plant engineer, read with every problem named in its writer's words.

Its schema stands in `config_schema.py`. Nothing here opens a connection or a bundle: `check.py`
looks at what the file points to.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from steadyhand.adapters.input_file import CREDENTIALS
from steadyhand.controllers.errors import ConfigError
from steadyhand.runtime.config_fields import CREDENTIAL
from steadyhand.runtime.config_schema import Config
from steadyhand.runtime.yaml_source import MAX_BYTES, Problem, Source, read_yaml
from steadyhand.runtime.yaml_source import Path as FieldPath

CREDENTIALS_FOLDER = "credentials"
"""Where credentials lie beside a configuration: systemd takes them from there."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration that is sound in itself, and where it came from."""

    config: Config
    source: Source
    file: Path
    digest: str
    """SHA-256 of the effective configuration (defaults filled in), hexadecimal."""

    def path(self, text: str) -> Path:
        """A file named in the configuration; relative names start at the configuration's folder.

        A name that begins with ${CREDENTIALS_DIRECTORY}/ is a credential that systemd gives the
        service; outside of it, of `steadyhand check` say, it lies beside the configuration.
        """
        if text.startswith(f"{CREDENTIAL}/"):
            folder = os.environ.get(CREDENTIALS) or self.file.parent.resolve() / CREDENTIALS_FOLDER
            return Path(folder, text.removeprefix(f"{CREDENTIAL}/"))
        return (self.file.parent / text).resolve()


def load_config(file: Path) -> Loaded | list[Problem]:
    """Read `file`; returns it, or every problem in it."""
    try:
        if file.exists() and not file.is_file():
            return [Problem(0, "", "is no regular file", "CFG_FILE")]
        with file.open("rb") as stream:
            text = stream.read(MAX_BYTES + 1)
    except OSError as error:
        return [Problem(0, "", f"cannot be read: {error.strerror}", "CFG_FILE")]
    return parse_config(text, file)


def parse_config(text: bytes, file: Path) -> Loaded | list[Problem]:
    """Configuration from bytes; `file` only gives its name and folder."""
    source = read_yaml(text)
    if not isinstance(source, Source):
        return source
    try:
        config = Config.model_validate(source.data)
    except ValidationError as error:
        problems = [_problem(item, source) for item in error.errors()]
        return sorted(problems, key=lambda problem: (problem.line, problem.field))
    effective = json.dumps(config.model_dump(mode="json"), sort_keys=True).encode()
    return Loaded(config, source, file, hashlib.sha256(effective).hexdigest())


def require(loaded: Loaded | list[Problem], file: Path) -> Loaded:
    """The configuration, or one error that names every problem.

    Raises:
        ConfigError: there are problems.
    """
    if isinstance(loaded, Loaded):
        return loaded
    raise ConfigError("\n".join(problem.text(str(file)) for problem in loaded))


def _problem(item: ErrorDetails, source: Source) -> Problem:
    """One pydantic error in the words of the person who wrote the file."""
    path = _in_file(item["loc"], source.data)
    kind, value = item["type"], item.get("input")
    code, message = "CFG_TYPE", f"{_short(value)}: {item['msg'].lower()}"
    if kind.startswith("steadyhand."):
        code, message = kind.removeprefix("steadyhand."), str(item["ctx"]["text"])
    elif kind == "extra_forbidden":
        choices = list(_keys_at(path[:-1]))
        close = get_close_matches(str(path[-1]), choices, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"known here: {', '.join(choices)}"
        code, message = "CFG_UNKNOWN", f"unknown key {path[-1]!r}; {hint}"
    elif kind == "missing":
        code, message = "CFG_MISSING", "is missing; add it"
    elif kind == "value_error":
        code, message = "CFG_UNIT", str(item["ctx"]["error"])
    elif kind == "literal_error":
        message = f"{_short(value)} is not one of {item['ctx']['expected']}"
        if path == ("schema_version",):
            code = "CFG_VERSION"
    elif kind in ("union_tag_invalid", "union_tag_not_found"):
        message = "kind must be 'opcua' or 'sim'"
    elif kind in ("greater_than", "less_than_equal", "greater_than_equal"):
        bound = next(iter(item["ctx"].values()))
        code = "CFG_BOUNDS"
        message = f"{_short(value)} is out of bounds: must be {_SIGNS[kind]} {bound:g}"
    elif kind == "string_pattern_mismatch":
        message = f"{_short(value)} is no valid name; pattern {item['ctx']['pattern']}"
    dotted = ".".join(str(part) for part in path)
    return Problem(source.line(path), dotted, message, code)


_SIGNS = {"greater_than": ">", "less_than_equal": "<=", "greater_than_equal": ">="}


def _in_file(loc: tuple[str | int, ...], data: Any) -> FieldPath:  # noqa: ANN401
    """Where a pydantic location stands in the file: drops the tags of unions and key markers."""
    path: list[str | int] = []
    node = data
    for i, part in enumerate(loc):
        if part == "[key]":
            continue
        last = i == len(loc) - 1
        known = isinstance(node, dict) and part in node
        listed = isinstance(node, list) and isinstance(part, int) and part < len(node)
        if known or listed:
            node = node[part]
        elif part in ("opcua", "sim") and (not last or node.get("kind") == part):
            continue
        path.append(part)
    return tuple(path)


@cache
def _schema() -> dict[str, Any]:
    return Config.model_json_schema()


def _keys_at(path: FieldPath) -> Iterator[str]:
    """Keys the schema knows at `path`."""
    schema = _schema()
    definitions = schema["$defs"]
    nodes = [schema]
    for part in path:
        nodes = [child for node in nodes for child in _children(node, part, definitions)]
    for node in nodes:
        yield from node.get("properties", {})


def _children(
    node: dict[str, Any], part: str | int, definitions: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    child = node.get("properties", {}).get(part) or node.get("additionalProperties")
    named = node.get("patternProperties", {}).values()  # whatever signal it is
    if not isinstance(child, dict):
        child = next(iter(named), None)
    if child is None:
        return
    options = [child, *child.get("anyOf", ()), *child.get("oneOf", ()), *child.get("allOf", ())]
    for option in options:
        reference = option.get("$ref")
        yield definitions[reference.rsplit("/", 1)[-1]] if reference else option


def _short(value: Any) -> str:  # noqa: ANN401
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
