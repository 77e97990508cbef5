"""What a person should think of in time."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.signals import Signal, SignalSet
from steadyhand.runtime.go_live import GoLive
from steadyhand.runtime.modes import DRIVING_MODES, Mode, ModeMachine, ModeSettings
from steadyhand.runtime.overrides import Overrides
from steadyhand.runtime.reminders import reminders

OUTPUTS = SignalSet((Signal("valve", "kW", 0.0, 10.0),))
END = datetime(2027, 3, 1, tzinfo=UTC)
BUNDLE = SimpleNamespace(manifest_sha256="a" * 64)
NO_GATE = GoLive(True, None, "", "north", "thermal_storage", "")
GATE = replace(NO_GATE, word=False, evidence=SimpleNamespace(not_after=END, bundle_sha256="a" * 64))


def told(modes, go_live=NO_GATE, bundle=BUNDLE, now=END):
    return {one.code: one for one in reminders(modes, go_live, bundle, now.timestamp())}


def machine(asked=None):
    return ModeMachine(ModeSettings(), OUTPUTS, asked)


@pytest.mark.parametrize("asked", [None, *Mode])
@pytest.mark.parametrize("mode", list(Mode))
def test_less_than_was_asked_for(asked, mode):
    modes = machine(asked)
    modes.request(mode, "configuration", wish=False)
    less = asked in DRIVING_MODES and list(Mode).index(mode) < list(Mode).index(asked)
    assert (ReasonCode.NOT_RESUMED in told(modes)) is less
    modes.request(mode, "anna")
    assert told(modes) == {}, "she knows what she asked for"


RUNS = st.lists(
    st.tuples(st.sampled_from(Mode), st.lists(st.sampled_from(Mode), max_size=2)), max_size=6
)


@given(RUNS)
def test_what_the_configuration_says_is_nobodys_wish(runs):
    """Runs one after the other, each with its `modes.initial` and what people ask for in it."""
    wish = None
    for initial, asks in runs:
        modes = machine(wish)
        modes.request(initial, "configuration", wish=False)
        assert modes.asked is wish
        less = wish in DRIVING_MODES and list(Mode).index(initial) < list(Mode).index(wish)
        assert (ReasonCode.NOT_RESUMED in told(modes)) is less
        for mode in asks:
            modes.request(mode, "anna")
            assert told(modes) == {}
        wish = asks[-1] if asks else wish
        assert modes.asked is wish


@pytest.mark.parametrize(("left_s", "soon"), [(361.0, False), (360.0, True), (1.0, True)])
def test_an_override_that_ends_soon(left_s, soon):
    """A tenth of its time before."""
    held = Overrides(OUTPUTS, 86_400.0)
    held.set("valve", 5.0, "anna", "test", 100.0, 3600.0)
    assert bool(held.ending(3700.0 - left_s)) is soon


def test_the_words_for_an_override_that_ends_soon():
    modes = machine()
    modes.set_override("valve", 5.0, "anna", "stuck sensor", 3600.0)
    assert told(modes) == {}
    modes._now_s = 3500.0
    fault = told(modes)[ReasonCode.OVERRIDE_ENDS]
    assert (fault.signal, fault.value) == ("valve", 5.0)
    assert fault.text == "set by anna: stuck sensor"


@pytest.mark.parametrize(
    ("left", "words"),
    [
        (timedelta(days=31), None),
        (timedelta(days=29), "ends on 2027-03-01 00:00 UTC"),
        (timedelta(seconds=1), "ends on 2027-03-01 00:00 UTC"),
        (timedelta(seconds=-1), "ended on 2027-03-01 00:00 UTC"),
    ],
)
def test_evidence_that_ends(left, words):
    fault = told(machine(), GATE, now=END - left).get(ReasonCode.EVIDENCE_ENDS)
    assert (None if fault is None else fault.text) == words


def test_evidence_that_counts_for_nothing_has_no_end():
    assert told(machine(), GATE, bundle=None) == {}
    assert told(machine(), GATE, bundle=SimpleNamespace(manifest_sha256="b" * 64)) == {}
    assert told(machine(), replace(GATE, word=True)) == {}
    assert told(machine(), replace(GATE, evidence=None)) == {}
