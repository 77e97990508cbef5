"""What the configuration says of a measurement's node is what the link is told."""

import pytest

from steadyhand.adapters.opcua.tags import Freshness
from steadyhand.runtime.assemble import make_plant
from steadyhand.runtime.assemble_opcua import opcua_tags
from steadyhand.runtime.config import parse_config, require
from tests.support.loop_rig import SHIPPED

NODE = 's=cooling_load_kw", unit: "kW"'


def tag(more: str):
    text = SHIPPED.read_text("utf-8")
    assert NODE in text
    loaded = require(parse_config(text.replace(NODE, more, 1).encode(), SHIPPED), SHIPPED)
    parts = make_plant(loaded)
    tags = opcua_tags(parts, loaded.config.link)
    return tags.observations[parts.plant.observations.index("cooling_load_kw")]


def test_without_a_word_the_servers_own_type_is_taken() -> None:
    made = tag(NODE)
    assert (made.wire_type, made.scale, made.freshness) == ("auto", 1.0, Freshness.AUTO)
    assert not made.use_forced


@pytest.mark.parametrize(("word", "used"), [("use", True), ("fallback", False)])
def test_what_a_forced_value_counts_for(word: str, used: bool) -> None:
    assert tag(f"{NODE}, forced: {word}").use_forced is used


@pytest.mark.parametrize("rule", ["source", "server", "arrival"])
def test_type_scale_unit_and_rule_of_freshness(rule: str) -> None:
    made = tag(f's=load", unit: "W", wire: Int32, scale: 0.001, freshness: {rule}')
    assert made.address.text.endswith("s=load")
    assert (made.wire_type, made.scale, made.unit) == ("Int32", 0.001, "W")
    assert made.freshness is Freshness(rule)
