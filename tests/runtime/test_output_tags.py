"""Set-points of every type a server may declare: from the file to the filter and to the link."""

import numpy as np
import pytest

from steadyhand.adapters.opcua.commands import Encoder
from steadyhand.adapters.opcua.wire import WIRE_TYPES
from steadyhand.controllers.errors import SafetyError
from steadyhand.runtime.assemble import make_limits, make_plant
from steadyhand.runtime.assemble_opcua import opcua_tags
from steadyhand.runtime.check import check
from steadyhand.runtime.config import load_config, require
from steadyhand.runtime.config_link import WireName
from tests.support.loop_rig import OUTPUT, SHIPPED

PLACE = "      unit: kW\n      feedback:"
NAMES = WireName.__args__


@pytest.fixture
def written(tmp_path):
    def write(*lines, unit="kW"):
        text = SHIPPED.read_text("utf-8")
        assert PLACE in text
        more = "".join(f"      {line}\n" for line in lines)
        unit_line = f"      unit: {unit}\n" if unit else ""
        file = tmp_path / "steadyhand.yaml"
        file.write_text(text.replace(PLACE, unit_line + more + "      feedback:"), "utf-8")
        return file

    return write


@pytest.mark.parametrize("name", NAMES)
def test_every_type_that_the_link_writes_can_be_configured(written, name):
    scale = 8.0 if name in ("SByte", "Byte") else 1000.0 if name == "Boolean" else 0.1
    whole = name not in ("Float", "Double")
    file = written(f"wire: {name}", *([f"scale: {scale}"] if whole else []), unit="")
    loaded = require(load_config(file), file)
    parts, kind = make_plant(loaded), WIRE_TYPES[name]
    tags = opcua_tags(parts, loaded.config.link)
    (tag,) = tags.outputs
    assert (tag.wire_type, tag.scale) == (name, scale if whole else 1.0)
    assert (tag.feedback.wire_type, tag.feedback.scale) == ("auto", tag.scale)
    if whole and kind.low == 0.0:  # this output goes from -400 to 450 kW
        with pytest.raises(SafetyError, match=f"{OUTPUT}.* do not fit the type"):
            make_limits(loaded.config, parts)
        return
    limits = make_limits(loaded.config, parts)
    encoder = Encoder(tags)
    for wanted in np.linspace(-400.0, 450.0, 173):
        certified, _ = limits.apply(np.array([wanted]), np.array([np.nan]), 1.0)
        wire, sent = encoder.encode(certified, (kind,))
        assert sent.tolist() == certified.tolist(), "else FILTER_BYPASS"
        assert abs(sent[0] - wanted) <= (0.5 * tag.scale if whole else 1e-4) + 1e-9
        assert whole is False or wire[0] == round(wire[0])


def test_a_scale_goes_with_whole_numbers_and_with_the_unit(written):
    for name in ("Float", "Double"):
        _, problems = check(written(f"wire: {name}", "scale: 0.1"), bundle=False)
        assert any("only whole numbers are scaled" in one.message for one in problems)
    _, problems = check(written("wire: Int32", "scale: 0.1", unit="W"), bundle=False)
    assert any("scale has to be 0.001" in one.message for one in problems)
    _, problems = check(written("wire: Int32", "scale: 0.001", unit="W"), bundle=False)
    assert [one for one in problems if one.code == "CFG_UNIT"] == []


@pytest.fixture
def with_files(written):
    """Beside the certificates that the file names, so that nothing else is wrong."""
    from steadyhand.adapters.sim.certificates import make_pki

    def write(*lines, **more):
        file = written(*lines, **more)
        if not (file.parent / "pki").exists():
            make_pki(file.parent / "pki", "thermal_storage")
            (file.parent / "keys").mkdir()
        return file

    return write


def test_check_names_an_output_that_its_type_cannot_say(with_files):
    assert check(with_files("wire: Int16", "scale: 0.1", unit=""), bundle=False)[1] == []
    _, (problem,) = check(with_files("wire: UInt16", "scale: 0.1", unit=""), bundle=False)
    assert (problem.field, problem.code) == ("link.outputs", "CFG_BOUNDS")
    assert f"{OUTPUT}: [-400, 450] kW in whole steps of 0.1 do not fit" in problem.message


def test_a_feedback_may_come_in_other_numbers(written):
    file = written("wire: Int16", "scale: 0.1", "feedback_scale: 0.5", unit="")
    loaded = require(load_config(file), file)
    (tag,) = opcua_tags(make_plant(loaded), loaded.config.link).outputs
    assert (tag.scale, tag.feedback.scale, tag.feedback.unit) == (0.1, 0.5, "")
