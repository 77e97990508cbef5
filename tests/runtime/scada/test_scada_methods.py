"""Arguments from the network, answers to it, and our health as a number."""

from math import inf, nan

import pytest
from asyncua import ua
from hypothesis import given
from hypothesis import strategies as st

from steadyhand.controllers.errors import RequestError
from steadyhand.runtime.operator_protocol import check_arguments
from steadyhand.runtime.scada.methods import STATUS, Wrong, arguments_of, done, refused, unfit
from steadyhand.runtime.scada.model import TYPES, Method
from steadyhand.runtime.scada.snapshot import aged, service_level
from steadyhand.runtime.scada.space import GOOD, NO_DATA, UNCERTAIN, Bound, Reading
from tests.runtime.test_exits import request_codes

METHODS = {
    one.name: one for kind in TYPES.values() for one in kind.members if isinstance(one, Method)
}


def bound(name: str) -> Bound:
    return Bound(METHODS[name], "valve" if METHODS[name].subject else "", name)


def text(value):
    return ua.Variant(value, ua.VariantType.String)


def number(value, kind="Double"):
    return ua.Variant(value, getattr(ua.VariantType, kind))


def test_arguments_become_the_desks():
    assert arguments_of(bound("SetOverride"), [number(2.5), number(60.0), text("why")]) == {
        "output": "valve", "value": 2.5, "for_s": 60.0, "reason": "why",
    }  # fmt: skip
    assert arguments_of(bound("ClearOverride"), None) == {"output": "valve"}
    assert arguments_of(bound("Acknowledge"), [text("")]) == {}
    assert arguments_of(bound("Acknowledge"), [text("SERVER_ID")]) == {"code": "SERVER_ID"}
    assert arguments_of(bound("Request"), [text("full"), text(None)]) == {
        "mode": "full", "reason": "",
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["Float", "Int32", "UInt16", "Int64", "Byte"])
def test_any_number_is_a_number(kind):
    made = arguments_of(bound("SetOverride"), [number(2, kind), number(60, kind), text("why")])
    assert made["value"] == 2.0 and type(made["value"]) is float


@pytest.mark.parametrize(
    ("sent", "status", "each"),
    [
        ([], "BadArgumentsMissing", ()),
        ([number(1.0)], "BadArgumentsMissing", ()),
        ([number(1.0)] * 4, "BadTooManyArguments", ()),
        ([text("1"), number(1.0), text("w")], "BadInvalidArgument", ("BadTypeMismatch",)),
        ([number(nan), number(1.0), text("w")], "BadInvalidArgument", ("BadOutOfRange",)),
        ([number(inf), number(1.0), text("w")], "BadInvalidArgument", ("BadOutOfRange",)),
        ([ua.Variant(True), number(1.0), text("w")], "BadInvalidArgument", ("BadTypeMismatch",)),
        (
            [ua.Variant([1.0], ua.VariantType.Double, is_array=True), number(1.0), text("w")],
            "BadInvalidArgument",
            ("BadTypeMismatch",),
        ),
        ([number(1.0), number(1.0), text("a\nb")], "BadInvalidArgument", ("Good", "Good")),
        ([number(1.0), number(1.0), text("x" * 257)], "BadInvalidArgument", ("Good", "Good")),
        ([number(1.0), number(1.0), number(1.0)], "BadInvalidArgument", ("Good", "Good")),
    ],
)
def test_arguments_that_do_not_fit(sent, status, each):
    with pytest.raises(Wrong) as wrong:
        arguments_of(bound("SetOverride"), sent)
    result = unfit(wrong.value)
    assert result.StatusCode.name == status
    assert tuple(one.name for one in result.InputArgumentResults)[: len(each)] == each
    assert result.OutputArguments[0].Value == "ARGUMENTS" and result.OutputArguments[1].Value


def test_a_mode_that_does_not_exist_is_told_with_those_that_do():
    with pytest.raises(Wrong, match="off, shadow, advisory, limited, full"):
        arguments_of(bound("Request"), [text("warp"), text("")])


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**63), st.floats(), st.text(max_size=300),
    st.binary(max_size=50), st.lists(st.floats(), max_size=3),
)  # fmt: skip


@st.composite
def variants(draw):
    """A value under any type's name, as far as the library lets it be made."""
    value, kind = draw(VALUES), draw(st.sampled_from(list(ua.VariantType)))
    try:
        return ua.Variant(value, kind, is_array=isinstance(value, list))
    except ua.UaError:
        return ua.Variant(None, ua.VariantType.Null)


@given(st.sampled_from(sorted(METHODS)), st.lists(variants(), max_size=5))
def test_whatever_is_sent_either_fits_the_desk_or_is_refused_in_words(name, sent):
    """What passes here passes the desk's own check too: it never is the first to notice."""
    try:
        made = arguments_of(bound(name), sent)
    except Wrong as wrong:
        assert wrong.text and ua.StatusCode(wrong.status).is_bad()
        return
    command = METHODS[name].command
    assert check_arguments(command, made) == made


def test_every_refusal_of_the_desk_has_its_status():
    """Those of the Unix socket's own wire cannot come from the desk."""
    wire = {"REPLAY", "MALFORMED", "TOO_LONG", "TOO_SLOW", "BUSY", "NOT_RUNNING", "HUNG", "GONE"}
    wire |= {"DENIED"}
    assert request_codes() - wire <= set(STATUS)
    for code, status in STATUS.items():
        assert ua.StatusCode(status).is_bad(), code
        result = refused(RequestError(code, "in words"))
        assert [one.Value for one in result.OutputArguments] == [code, "in words"]


def test_an_answer_is_told_in_words():
    result, words = done({"output": "valve", "value": 2.5, "acknowledged": ["A", "B"]})
    assert result.StatusCode.is_good()
    assert words == "output valve, value 2.5, acknowledged A, B"


# -- health


def status(**change):
    shown = {"link": "up", "source": "policy", "mode": "full", "journal": {"fault": ""}, **change}
    return {"asked": shown["mode"], **shown}


@pytest.mark.parametrize(
    ("change", "level"),
    [
        ({}, 255),
        ({"source": "fallback"}, 230),
        ({"source": "hold"}, 180),
        ({"source": "safe"}, 120),
        ({"source": "hands_off"}, 150),
        ({"source": "hands_off", "mode": "limited"}, 150),
        ({"source": "hands_off", "mode": "shadow"}, 200),
        ({"source": "hands_off", "mode": "off"}, 200),
        ({"source": "hands_off", "mode": "off", "asked": "full"}, 150),
        ({"source": "hands_off", "mode": "off", "asked": None}, 200),
        ({"link": "down"}, 50),
        ({"link": "connecting", "source": "hands_off"}, 50),
        ({"journal": {"fault": "disk full"}}, 199),
        ({"journal": {"fault": "disk full"}, "source": "safe"}, 120),
    ],
)
def test_service_level(change, level):
    assert service_level(status(**change)) == level


def test_old_values_are_uncertain_and_bad_ones_stay_bad():
    made = {"a": Reading(1.0), "b": Reading(2.0, UNCERTAIN), "c": Reading(None, NO_DATA)}
    old = aged(made)
    assert old["a"] == Reading(1.0, UNCERTAIN) and old["b"] == Reading(2.0, UNCERTAIN)
    assert "c" not in old and made["a"].status == GOOD
