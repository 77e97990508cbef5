"""How far and how long an actuator may be from its command before that is told."""

import math
import re

import pytest

from steadyhand.runtime.assemble import make_plant
from steadyhand.runtime.assemble_opcua import opcua_tags
from steadyhand.runtime.cautions import cautions
from steadyhand.runtime.check import check
from steadyhand.runtime.config import load_config, require
from tests.support.loop_rig import OUTPUT, SHIPPED

PLACE = re.compile(r"      follow_tolerance: .*\n      follow_time: .*\n")


@pytest.fixture
def written(tmp_path):
    """Writes the shipped configuration with other lines for how its output follows."""

    def write(*lines):
        text = SHIPPED.read_text("utf-8")
        assert PLACE.search(text)
        more = "".join(f"      {line}\n" for line in lines)
        file = tmp_path / "steadyhand.yaml"
        file.write_text(PLACE.sub(more, text), "utf-8")
        return file

    return write


def tag(file, time_scale=1.0):
    loaded = require(load_config(file), file)
    tags = opcua_tags(make_plant(loaded), loaded.config.link, time_scale)
    return tags.outputs[tags.output_signals.index(OUTPUT)]


def test_by_default_it_may_do_what_it_does(written):
    found = tag(written())
    assert (found.follow_tolerance, found.follow_time_s) == (math.inf, math.inf)


def test_distance_in_the_outputs_unit_and_time_in_wall_seconds(written):
    found = tag(written("follow_tolerance: 2e4 W", "follow_time: 30 min"), time_scale=900.0)
    assert found.follow_tolerance == pytest.approx(20.0)
    assert found.follow_time_s == 2.0


def test_the_shipped_file_tells_an_actuator_that_does_nothing():
    found = tag(SHIPPED)
    assert (found.follow_tolerance, found.follow_time_s) == (20.0, 1800.0)
    loaded = require(load_config(SHIPPED), SHIPPED)
    (output,) = make_plant(loaded).outputs
    assert found.follow_tolerance < 0.03 * (output.high - output.low)
    assert found.follow_time_s > (output.high - output.low) / output.rate_per_s, "the valve's way"
    assert not [text for text in cautions(loaded) if "follow" in text]


def test_a_feedback_that_nobody_compares_is_told(written):
    file = written()
    (text,) = [one for one in cautions(require(load_config(file), file)) if "follow" in one]
    assert text.startswith(f"link.outputs.{OUTPUT}: has a feedback but no follow_tolerance")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["follow_tolerance: 20 kW"], "go together"),
        (["follow_time: 30 min"], "go together"),
        (["follow_tolerance: 20 K", "follow_time: 30 min"], "follow_tolerance"),
        (["follow_tolerance: 20", "follow_time: 30 min"], "follow_tolerance"),
        (["follow_tolerance: 20 kW", "follow_time: 0 s"], "follow_time"),
    ],
)
def test_what_makes_no_sense_is_refused(written, lines, words):
    _, problems = check(written(*lines), bundle=False)
    assert any(words in f"{one.field}: {one.message}" for one in problems), problems
