"""Failures that users of other services have reported: a misspelt key, a number that is a code."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from steadyhand.controllers.frames import Observation
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime.assemble import make_image_judge, make_plant
from steadyhand.runtime.config import Loaded, parse_config
from steadyhand.runtime.config_fields import Section
from steadyhand.runtime.yaml_source import Source, read_yaml

FILE = Path(__file__).parents[2] / "configs" / "thermal_storage" / "steadyhand.yaml"
MORE = """
safety:
  process_safety_time: 60 min
  limits: {storage_discharge_kw: {low: -300 kW, high: 300 kW}}
go_live: {evidence: evidence.json}
panel: {listen: "127.0.0.1:9465", token_file: pki/tokens}
scada: {listen: "127.0.0.1:4841", certificate: a, private_key: b, trusted: c, users_file: d}
"""
"""Sections that the shipped file does without, and whose keys nobody may misspell either."""


def data() -> dict[str, Any]:
    both = {}
    for text in (FILE.read_bytes(), MORE.encode()):
        source = read_yaml(text)
        assert isinstance(source, Source)
        both |= source.data
    return both


def parsed(content: dict[str, Any]) -> Any:
    return parse_config(json.dumps(content).encode(), FILE)


def places(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*path, key)
            yield from places(inner, (*path, key))


def named_by_the_plant(path: tuple[str, ...]) -> bool:
    """Names of signals and outputs: which there are, only the plant knows (`check`)."""
    return path[:-1] in (("link", "signals"), ("link", "outputs"), ("safety", "limits"))


KEYS = [path for path in places(data()) if not named_by_the_plant(path)]


def misspelt(key: str) -> str:
    """Its last two letters turned round, or its last one doubled where they are the same."""
    turned = key[:-2] + key[-1] + key[-2]
    return turned if turned != key else key + key[-1]


def test_the_file_of_this_test_is_sound():
    assert isinstance(parsed(data()), Loaded), parsed(data())
    assert len(KEYS) > 100


@pytest.mark.parametrize("path", KEYS, ids=".".join)
def test_every_key_misspelt_once_is_refused_by_its_name(path):
    content = copy.deepcopy(data())
    section = content
    for key in path[:-1]:
        section = section[key]
    wrong = misspelt(path[-1])
    section[wrong] = section.pop(path[-1])
    problems = parsed(content)
    assert not isinstance(problems, Loaded), f"{wrong} is taken without a word"
    unknown = [p for p in problems if p.code == "CFG_UNKNOWN" or path[-1] in KNOWN_BY_VALUE]
    assert any(path[-1] in p.message for p in unknown), "the right one is named"
    named = any(p.field.rpartition(".")[2] == wrong or wrong in p.message for p in unknown)
    assert named or path == ("link", "kind")


KNOWN_BY_VALUE = {"kind", "low", "high"}
"""Keys that decide by themselves what they belong to: refused as values that do not fit."""


def sections(kind: type[Section] = Section) -> Iterator[type[Section]]:
    for one in kind.__subclasses__():
        yield one
        yield from sections(one)


def test_no_section_lets_an_unknown_key_pass():
    found = list(sections())
    assert len(found) > 20
    assert [one.__name__ for one in found if one.model_config.get("extra") != "forbid"] == []
    assert [one.__name__ for one in found if not one.model_config.get("strict")] == []


def fields(holds: str) -> Iterator[tuple[type[Section], str, bool]]:
    """Every field of every section whose schema holds a word, and whether it is a list."""
    for section in sections():
        for key, schema in section.model_json_schema()["properties"].items():
            if holds in json.dumps(schema):
                yield section, key, "items" in schema


def refusals(section: type[Section], key: str, value: object) -> list[tuple[str, str]]:
    """Type and text of each error at `key`, where it holds `value`."""
    with pytest.raises(ValidationError) as refused:
        section.model_validate({key: value})
    found = [one for one in refused.value.errors() if one["loc"][0] == key]
    return [(one["type"], one["msg"]) for one in found]


WHOLE = list(fields('"integer"'))
NUMBERS = [*fields('"number"'), *WHOLE]
FILES = list(fields('"pattern": "^[^\\\\x00]+$"'))


def test_numbers_and_files_are_found():
    assert (len(NUMBERS), len(WHOLE), len(FILES)) == (19, 7, 17)


@pytest.mark.parametrize(("section", "key", "many"), NUMBERS)
@pytest.mark.parametrize("value", [True, False, "1", "0.5"])
def test_a_number_is_no_truth_and_no_text(section, key, many, value):
    """To a comparison true is 1 and false is 0."""
    assert refusals(section, key, [value] if many else value)


@pytest.mark.parametrize(("section", "key", "many"), WHOLE)
def test_a_whole_number_is_written_without_a_point(section, key, many):
    assert not many
    assert refusals(section, key, 1.0)


@pytest.mark.parametrize("version", ["true", "1.0", "'1'", "2", "0", "null", "[1]"])
def test_the_version_is_one_and_nothing_that_equals_it(version):
    text = FILE.read_text().replace("schema_version: 1", f"schema_version: {version}")
    (problem,) = parse_config(text.encode(), FILE)
    assert (problem.field, problem.code) == ("schema_version", "CFG_VERSION")
    assert text.splitlines()[problem.line - 1].startswith("schema_version")


@pytest.mark.parametrize(("section", "key", "many"), FILES)
@pytest.mark.parametrize("name", ["~", "~/x", "~plant/x", "$HOME/x", "${HOME}/x", "a/$B/c"])
def test_what_a_shell_would_replace_is_in_no_files_name(section, key, many, name):
    """A folder called ~ would be made; and a service has another home than who checks its file."""
    ((kind, text),) = refusals(section, key, [name] if many else name)
    assert kind == "steadyhand.CFG_FILE"
    assert repr(name) in text
    assert "not replaced" in text


@pytest.mark.parametrize("name", ["./~x", "a~", "a/~/b", "cost$", "5$/x"])
def test_what_no_shell_replaces_is_a_name(name):
    content = data()
    content["bundle"]["file"] = name
    loaded = parsed(content)
    assert isinstance(loaded, Loaded), loaded
    assert loaded.path(loaded.config.bundle.file) == FILE.parent / name


@pytest.mark.parametrize("number", [0.0, 25.0, 35.5])
def test_a_sensors_code_for_no_value_is_none_although_it_could_be_one(number):
    """A thermometer that shows 25 degrees when its wire is broken."""
    content = data()
    content["link"]["signals"]["outdoor_temperature_degc"]["sentinels"] = [0, 25.0, 35.5]
    loaded = parsed(content)
    assert isinstance(loaded, Loaded), loaded
    parts = make_plant(loaded)
    signals = parts.plant.observations
    column = signals.index("outdoor_temperature_degc")

    def told(value: float) -> list[tuple[str, str, str]]:
        values = 0.5 * (signals.low + signals.high)
        values[column] = value
        n = len(signals)
        image = Observation(1, 0.0, values, np.zeros(n), np.zeros(n, np.int8), np.zeros(1))
        judge = make_image_judge(loaded.config, parts)
        return [(f.code, f.signal, f.text) for f in judge.check(image)]

    code = (ReasonCode.OBS_RANGE, "outdoor_temperature_degc", "the sensor's code for no value")
    assert code in told(number)
    assert not [one for one in told(number + 0.1) if one[1] == code[1]]


@pytest.mark.parametrize("wrong", [[True], ["85"], [float("nan")], [None], 85, [1.0] * 17])
def test_codes_that_are_no_numbers_are_refused(wrong):
    content = data()
    content["link"]["signals"]["outdoor_temperature_degc"]["sentinels"] = wrong
    problems = parsed(content)
    assert not isinstance(problems, Loaded)
    assert all("sentinels" in problem.field or problem.line for problem in problems)


@pytest.mark.parametrize(
    ("text", "number"),
    [("1e-3", 0.001), ("0010", 10.0), ("12:30", None), ("on", None), ("2026-01-01", None)],
)
def test_a_number_is_what_it_looks_like_or_refused(text, number):
    """No 1e-3 that is a text, no 0010 that is eight, no 12:30 that is 750, no `on` that is 1."""
    old = b"source: paced"
    file = FILE.read_bytes()
    assert old in file
    loaded = parse_config(file.replace(old, old + f"\n  time_scale: {text}".encode()), FILE)
    if number is None:
        assert not isinstance(loaded, Loaded)
        assert loaded[0].field == "clock.time_scale"
    else:
        assert isinstance(loaded, Loaded), loaded
        assert loaded.config.clock.time_scale == number
