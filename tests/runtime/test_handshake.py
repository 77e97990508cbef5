"""The plant's side of control: grant, heartbeats, shed."""

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadyhand.controllers.errors import ConfigError
from steadyhand.runtime.handshake import Handshake, HandshakeSettings, Phase


def test_grant_without_a_heartbeat():
    shake = Handshake(HandshakeSettings(5.0))
    assert shake.phase is Phase.OFF and not shake.granted
    assert shake.update(True, False, None, 0.0) is Phase.ASKING
    assert shake.update(True, True, None, 1.0) is Phase.ON and shake.granted
    assert shake.update(False, True, None, 2.0) is Phase.OFF and not shake.granted


def test_a_heart_must_be_seen_beating_before_it_counts():
    shake = Handshake(HandshakeSettings(5.0, beats_to_return=3))
    phases = [shake.update(True, True, beat, float(beat)) for beat in range(5)]
    assert phases == [Phase.SHED] * 3 + [Phase.ON] * 2


def test_silence_sheds_and_one_edge_does_not_bring_it_back():
    shake = Handshake(HandshakeSettings(5.0, beats_to_return=2))
    for k in range(4):
        shake.update(True, True, k, float(k))
    assert shake.phase is Phase.ON
    assert shake.update(True, True, 3, 8.0) is Phase.ON  # 5 s of silence are allowed
    assert shake.update(True, True, 3, 8.1) is Phase.SHED
    assert shake.update(True, True, 4, 9.0) is Phase.SHED
    assert shake.update(True, True, 4, 9.5) is Phase.SHED
    assert shake.update(True, True, 5, 10.0) is Phase.ON


def test_counters_wrap():
    shake = Handshake(HandshakeSettings(5.0, beats_to_return=1))
    shake.update(True, True, 2**32 - 1, 0.0)
    assert shake.update(True, True, 0, 1.0) is Phase.ON
    shake.beat = 2**32 - 1
    shake.written()
    assert shake.beat == 0
    shake.written()
    assert shake.beat == 1


@pytest.mark.parametrize("given_settings", [(0.0, 3), (-1.0, 3), (inf, 3), (nan, 3), (1.0, 0)])
def test_impossible_settings(given_settings):
    with pytest.raises(ConfigError):
        HandshakeSettings(*given_settings)


@given(
    st.lists(
        st.tuples(
            st.booleans(), st.booleans(), st.integers(0, 3), st.sampled_from([0.5, 1.0, 4.0])
        ),
        max_size=60,
    )
)
def test_never_on_without_wish_grant_and_a_live_heart(history):
    shake, now, moved, beat_before = Handshake(HandshakeSettings(3.0, 2)), 0.0, None, None
    for wanted, granted, beat, dt in history:
        now += dt
        if beat != beat_before:
            moved, beat_before = now, beat
        shake.update(wanted, granted, beat, now)
        if shake.granted:
            assert wanted and granted and now - moved <= 3.0
