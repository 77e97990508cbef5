"""YAML 1.2 as plain data, with the line of every value, and nothing that surprises.

Only what a configuration needs is let through: mappings with text keys, lists, text, numbers,
true and false. Doubled keys, aliases, anchors, tags, dates and documents too large or too deep are
refused before any object is made.
"""

import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    DocumentStartEvent,
    NodeEvent,
    ScalarEvent,
)

MAX_BYTES = 1 << 20
MAX_DEPTH = 50
MAX_EVENTS = 200_000
_LONG = re.compile(r"[+-]?(0[xob])?[0-9a-fA-F_]{64,}")
"""Integers of more digits than any number has that means something; printing one can fail."""

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault of a configuration: where, what, and how to mend it."""

    line: int
    """1-based line in the file; 0 when no line can be named."""
    field: str
    """Dotted path, for example link.security.certificate."""
    message: str
    """The value, what is wrong with it, and the remedy."""
    code: str = "CFG"

    def text(self, file: str) -> str:
        """One line for people: file:line: field: message [code]."""
        place = f"{file}:{self.line}" if self.line else file
        return f"{place}: {self.field + ': ' if self.field else ''}{self.message} [{self.code}]"


@dataclass(frozen=True, slots=True)
class Source:
    """Plain data and the line of each path in it."""

    data: dict[str, Any]
    lines: Mapping[Path, int]

    def line(self, path: Path) -> int:
        """Line of `path`, or of its nearest ancestor that stands in the file."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def read_yaml(text: bytes) -> Source | list[Problem]:
    """Parse one document.

    Args:
        text: the file's bytes.

    Returns:
        the data, or what is wrong with the file as a document.
    """
    if len(text) > MAX_BYTES:
        return [Problem(0, "", f"more than the {MAX_BYTES} bytes that are read", "CFG_LIMIT")]
    try:
        decoded = text.decode("utf-8")
    except UnicodeDecodeError as error:
        line = text[: error.start].count(b"\n") + 1
        return [Problem(line, "", f"byte {error.start} is not UTF-8; save the file as UTF-8")]
    try:
        problems = list(_forbidden(decoded))
        if problems:
            return problems
        document = YAML(typ="rt", pure=True).load(decoded)
    except DuplicateKeyError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        first = str(error.problem).split("with")[0].strip()
        return [Problem(line, "", f"{first}: each key may stand once; remove one", "CFG_DUP")]
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = mark.line + 1 if mark else 0
        return [Problem(where, "", f"not YAML: {error.problem or error.context}", "CFG_YAML")]
    except (YAMLError, ValueError, RecursionError) as error:
        return [Problem(0, "", f"not YAML: {str(error).splitlines()[0]}", "CFG_YAML")]
    except Exception as error:  # noqa: BLE001  (the library stumbles over odd keys and comments)
        why = f"cannot be read ({type(error).__name__}: {str(error)[:60]}); "
        remedy = "look for a key that is no plain word, or a line without a colon"
        return [Problem(0, "", why + remedy, "CFG_YAML")]
    if not isinstance(document, CommentedMap):
        kind = "empty" if document is None else "a list or a single value"
        return [Problem(1, "", f"the file is {kind}; a mapping of sections is needed", "CFG_TYPE")]
    lines: dict[Path, int] = {}
    plain = _plain(document, (), lines)
    return Source(plain, lines)


def _forbidden(text: str) -> Iterator[Problem]:
    """What the file may not hold, found in the event stream before anything is built."""
    depth = documents = 0
    for count, event in enumerate(YAML(typ="rt", pure=True).parse(io.StringIO(text))):
        line = event.start_mark.line + 1
        if count > MAX_EVENTS:
            yield Problem(line, "", f"more than {MAX_EVENTS} nodes", "CFG_LIMIT")
            return
        if isinstance(event, AliasEvent):
            yield Problem(line, "", f"alias *{event.anchor}: write the value out", "CFG_LIMIT")
            return
        if isinstance(event, NodeEvent) and event.anchor:
            yield Problem(line, "", f"anchor &{event.anchor}: write the value out", "CFG_LIMIT")
            return
        if isinstance(event, ScalarEvent) and not event.style and _LONG.fullmatch(event.value):
            yield Problem(line, "", f"a number of {len(event.value)} characters", "CFG_LIMIT")
            return
        if getattr(event, "tag", None):
            yield Problem(line, "", f"tag {event.tag}: only plain YAML is read", "CFG_TYPE")
            return
        if isinstance(event, DocumentStartEvent):
            documents += 1
            if documents > 1:
                yield Problem(line, "", "a second document; one file is one document", "CFG_YAML")
                return
        depth += isinstance(event, CollectionStartEvent)
        depth -= isinstance(event, CollectionEndEvent)
        if depth > MAX_DEPTH:
            yield Problem(line, "", f"nested deeper than {MAX_DEPTH}", "CFG_LIMIT")
            return


def _plain(node: Any, path: Path, lines: dict[Path, int]) -> Any:  # noqa: ANN401
    """Plain containers and scalars of a round-trip tree, noting the line of every path."""
    if isinstance(node, CommentedMap):
        lines.setdefault(path, node.lc.line + 1)
        result = {}
        for key, value in node.items():
            at = (*path, key)
            lines[at] = node.lc.key(key)[0] + 1
            result[key] = _plain(value, at, lines)
        return result
    if isinstance(node, CommentedSeq):
        items = []
        for i, value in enumerate(node):
            at = (*path, i)
            lines[at] = node.lc.item(i)[0] + 1
            items.append(_plain(value, at, lines))
        return items
    # ruamel keeps the notation of scalars in subclasses; only the value matters here
    for kind in (bool, int, float, str):
        if isinstance(node, kind):
            return kind(node)
    return node
