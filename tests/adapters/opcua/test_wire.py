"""What numbers become on the wire, and what replies are worth: right values, and mutants."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from math import ceil, floor, inf, isfinite, nan

import numpy as np
import pytest
from asyncua import ua
from asyncua.ua.ua_binary import struct_from_binary, struct_to_binary
from hypothesis import given, settings
from hypothesis import strategies as st

from steadyhand.adapters.opcua.commands import Encoder, Slot
from steadyhand.adapters.opcua.freshness import FreshnessJudge, ServerClock
from steadyhand.adapters.opcua.layout import learn
from steadyhand.adapters.opcua.resolve import uses_of
from steadyhand.adapters.opcua.tags import Freshness, OutputTag, TagMap, parse_address
from steadyhand.adapters.opcua.wire import (
    TICKS_PER_S,
    WIRE_TYPES,
    Samples,
    decode,
    holds_some_value,
    round_inside,
    severity,
    to_ticks,
    to_variant,
)
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.safety.limits import Limits, Whole
from steadyhand.controllers.signals import Signal, SignalSet

NUMBERS = [kind for kind in WIRE_TYPES.values() if kind.name not in ("DateTime", "Boolean")]
STAMP = datetime(2026, 3, 1, 12, 0, 0, 123457, tzinfo=UTC)


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(NUMBERS),
    st.floats(-1e12, 1e12),
    st.floats(-1e6, 1e6),
    st.floats(0.0, 1e6),
)
def test_a_rounded_value_is_inside_the_limits_as_stored(kind, value, low, width) -> None:
    """F11: also at the limit, at -0.0 and one ulp beyond."""
    high = low + width
    if not holds_some_value(kind, low, high):
        return
    for x in (value, low, high, np.nextafter(high, inf), np.nextafter(low, -inf), -0.0):
        wire = round_inside(float(x), kind, low, high)
        stored = float(np.array(wire).astype(kind.code))
        assert stored == wire
        assert low <= stored <= high
        assert not (stored == 0.0 and np.signbit(stored))
        assert to_variant(wire, kind).VariantType == kind.variant
    inside = round_inside(value, kind, low, high)
    grain = 0.5 if kind.integral else 0.0 if kind.name == "Double" else abs(value) * 2.0**-23
    if ceil(low) <= value <= floor(high):
        assert abs(inside - value) <= grain + 2.0**-149  # the smallest step of a float32


def test_hand_worked_roundings() -> None:
    float32 = WIRE_TYPES["Float"]
    assert round_inside(0.1, float32, 0.0, 1.0) == 0.10000000149011612
    # the nearest float32 to 0.1 lies above it: at an upper limit of 0.1 the one below is taken
    assert round_inside(0.1, float32, 0.0, 0.1) == 0.09999999403953552
    assert round_inside(5.6, WIRE_TYPES["Int16"], 0.0, 5.9) == 5.0
    assert round_inside(-7.0, WIRE_TYPES["Int16"], -2.5, 5.0) == -2.0


def test_a_range_that_fits_no_value_of_the_type_is_known() -> None:
    assert not holds_some_value(WIRE_TYPES["Int16"], 0.0, 40000.0)
    assert not holds_some_value(WIRE_TYPES["Int16"], 0.2, 0.8)
    assert not holds_some_value(WIRE_TYPES["Float"], 0.0, 1e39)
    assert holds_some_value(WIRE_TYPES["Double"], -1e300, 1e300)
    # limits between two whole numbers: the ones inside are in the type
    assert holds_some_value(WIRE_TYPES["UInt16"], -0.5, 9.0)
    assert holds_some_value(WIRE_TYPES["Byte"], -0.9, 255.9)
    assert not holds_some_value(WIRE_TYPES["Byte"], -1.0, 9.0)
    assert not holds_some_value(WIRE_TYPES["Byte"], 0.0, 256.0)


def test_severity_is_the_top_two_bits() -> None:
    codes = np.array([0, 0x00A20000, 0x40900000, 0x80050000, 0xC0000000], dtype=np.uint32)
    np.testing.assert_array_equal(severity(codes), [0, 0, 1, 2, 2])


def reply(values, kinds, status=None, source=STAMP, server=STAMP) -> bytes:
    response = ua.ReadResponse()
    response.ResponseHeader.Timestamp = STAMP
    response.Results = [
        ua.DataValue(
            Value=ua.Variant(value, kind.variant),
            StatusCode=ua.StatusCode(status) if status is not None else None,
            SourceTimestamp=source,
            ServerTimestamp=server,
        )
        for value, kind in zip(values, kinds, strict=True)
    ]
    return struct_to_binary(response)


KINDS = tuple(WIRE_TYPES[name] for name in ("Int32", "Double", "Boolean", "Float", "Double"))
VALUES = (7, 1.5, True, 2.5, -3.25)


def general(body: bytes, kinds) -> Samples:
    return decode(struct_from_binary(ua.ReadResponse, ua.utils.Buffer(body)).Results, kinds)


@pytest.mark.parametrize("status", [None, 0])
@pytest.mark.parametrize(("source", "server"), [(STAMP, STAMP), (None, STAMP), (STAMP, None)])
def test_the_learnt_layout_gives_what_the_general_decoder_gives(status, source, server) -> None:
    body = reply(VALUES, KINDS, status, source, server)
    layout = learn(body, KINDS)
    assert layout is not None
    later = STAMP + timedelta(seconds=1.25)
    other = reply((8, -0.5, False, 1e30, nan), KINDS, status, source and later, server and later)
    for received in (body, other):
        decoded = layout.decode(received)
        assert decoded is not None
        samples, clock = decoded
        wanted = general(received, KINDS)
        for name in Samples.__slots__:
            np.testing.assert_array_equal(getattr(samples, name), getattr(wanted, name), name)
        assert clock == to_ticks(STAMP)


def test_one_sample_that_is_not_good_is_not_decoded_as_if_it_were() -> None:
    layout = learn(reply(VALUES, KINDS), KINDS)
    assert layout is not None
    for change in (
        lambda r: setattr(r.Results[1], "StatusCode", ua.StatusCode(0x40900000)),
        lambda r: setattr(r.Results[1], "StatusCode", ua.StatusCode(0x80050000)),
        lambda r: setattr(r.Results[1], "Value", ua.Variant(1.5, ua.VariantType.Float)),
        lambda r: setattr(r.Results[1], "Value", ua.Variant([1.5], ua.VariantType.Double)),
        lambda r: setattr(r.Results[1], "Value", ua.Variant(None)),
        lambda r: r.Results.pop(),
        lambda r: setattr(r.ResponseHeader, "ServiceResult", ua.StatusCode(0x80050000)),
    ):
        response = struct_from_binary(ua.ReadResponse, ua.utils.Buffer(reply(VALUES, KINDS)))
        change(response)
        assert layout.decode(struct_to_binary(response)) is None


def test_a_status_of_the_same_size_is_compared() -> None:
    """Servers that always send the status keep the size of the reply when a tag goes bad."""
    layout = learn(reply(VALUES, KINDS, 0), KINDS)
    assert layout is not None
    response = struct_from_binary(ua.ReadResponse, ua.utils.Buffer(reply(VALUES, KINDS, 0)))
    response.Results[2].StatusCode = ua.StatusCode(0x40900000)
    body = struct_to_binary(response)
    assert len(body) == len(reply(VALUES, KINDS, 0))
    assert layout.decode(body) is None


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_mutant_is_refused_or_decoded_like_the_general_decoder(data) -> None:
    """Every single-byte change: never a crash, never another answer."""
    body = bytearray(reply(VALUES, KINDS))
    layout = learn(bytes(body), KINDS)
    assert layout is not None
    at = data.draw(st.integers(0, len(body) - 1))
    body[at] ^= data.draw(st.integers(1, 255))
    decoded = layout.decode(bytes(body))
    if decoded is None:
        return
    wanted = general(bytes(body), KINDS)
    np.testing.assert_array_equal(decoded[0].values, wanted.values)
    assert not wanted.status.any()
    assert not wanted.wrong.any()


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_learning_from_garbage_never_raises(body) -> None:
    learn(body, KINDS)
    learn(reply(VALUES, KINDS)[: len(body)] + body, KINDS)


def test_truncation_at_every_byte_is_refused() -> None:
    body = reply(VALUES, KINDS)
    layout = learn(body, KINDS)
    assert layout is not None
    for size in range(len(body)):
        assert layout.decode(body[:size]) is None
        assert learn(body[:size], KINDS) is None


# freshness, by hand


def samples(value, source, server, status=0) -> Samples:
    return Samples(
        np.array([value]),
        np.array([status], dtype=np.uint32),
        np.array([source], dtype=np.int64),
        np.array([server], dtype=np.int64),
        np.zeros(1, dtype=np.bool_),
    )


def test_ages_are_measured_on_the_servers_clock(opcua) -> None:
    """A server whose clock is an hour off: its stamps are still 2 s old when they are 2 s old."""
    judge = FreshnessJudge((opcua.tag("a", freshness=Freshness.SOURCE),), 1.0)
    ticks = to_ticks(STAMP)
    clock = ServerClock(ticks, 1000.0)
    judge.absorb(np.array([0]), samples(1.0, ticks - 2 * TICKS_PER_S, 0), clock, 1000.5)
    assert judge.confirmed_s(1000.5)[0] == pytest.approx(998.0)


def test_the_offset_of_the_servers_clock_is_measured() -> None:
    clock = ServerClock(to_ticks(STAMP), 1000.0)
    assert clock.offset_s(STAMP.timestamp() - 300.0, 1000.0) == pytest.approx(300.0, abs=1e-3)
    assert clock.offset_s(STAMP.timestamp() + 2.0, 1002.0) == pytest.approx(0.0, abs=1e-3)


def test_life_confirms_only_what_may_be_confirmed(opcua) -> None:
    ticks = to_ticks(STAMP)
    clock = ServerClock(ticks, 1000.0)
    old = ticks - 100 * TICKS_PER_S
    rules = {
        Freshness.AUTO: 1000.0,
        Freshness.SERVER: 1000.0,
        Freshness.SOURCE: 900.0,
        Freshness.ARRIVAL: 1000.0,
    }
    for rule, confirmed in rules.items():
        judge = FreshnessJudge((opcua.tag("a", freshness=rule),), 1.0)
        judge.absorb(np.array([0]), samples(1.0, old, old), clock, 1000.0)
        assert judge.confirmed_s(1000.0)[0] == pytest.approx(confirmed), rule
        # and nothing confirms a value that changed under a standing source stamp, by auto
        judge.absorb(np.array([0]), samples(2.0, old, ticks), clock, 1000.0)
        standing = 900.0 if rule in (Freshness.AUTO, Freshness.SOURCE) else 1000.0
        assert judge.confirmed_s(1000.0)[0] == pytest.approx(standing), rule


# commands

TAGS = TagMap(
    SignalSet(()),
    SignalSet((Signal("a", "%", 0.0, 100.0), Signal("b", "%", -10.0, 10.0))),
    (),
    tuple(OutputTag(address=parse_address(f"nsu=urn:p;s={name}", name)) for name in ("a", "b")),
)


def test_the_slot_keeps_the_newest() -> None:
    slot = Slot()
    assert slot.take() is None
    slot.put("old")  # type: ignore[arg-type]
    slot.put("new")  # type: ignore[arg-type]
    assert slot.take() == "new"
    assert slot.take() is None
    assert slot.replaced == 1


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=2, max_size=2))
def test_no_action_leaves_that_is_not_finite_or_outside(action) -> None:
    encoder = Encoder(TAGS)
    vector = np.array(action)
    fault = encoder.fault(vector)
    if fault is not None:
        assert fault.code in (ReasonCode.ACT_NONFINITE, ReasonCode.ACT_RANGE)
        return
    wire, sent = encoder.encode(vector, (WIRE_TYPES["Double"], WIRE_TYPES["Float"]))
    assert all(isfinite(value) for value in wire)
    assert (sent >= TAGS.output_signals.low).all()
    assert (sent <= TAGS.output_signals.high).all()


@pytest.mark.parametrize("step", ["0.1", "0.01", "0.3", "0.7", "1.1", "2.5"])
def test_a_limit_of_whole_steps_is_written_as_that_number(step: str) -> None:
    """In decimals, as a person writes it: 0.3 is three steps of 0.1, though 3 * 0.1 > 0.3."""
    kind = WIRE_TYPES["Int16"]
    for first, last in ((0, 3), (-3, 7), (-41, -6), (-32768, 32767)):
        low, high = (float(Decimal(step) * end) for end in (first, last))
        outputs = SignalSet((Signal("pump", "m3/h", low, high),))
        tag = OutputTag(address=parse_address("i=1", "i"), wire_type="Int16", scale=float(step))
        tags = TagMap(SignalSet(()), outputs, (), (tag,))
        (use,) = (use for use in uses_of(tags) if use.writes and use.reads)
        assert (use.low, use.high) == (first, last)
        assert holds_some_value(kind, use.low, use.high)
        limits = Limits(outputs, 1.0, (Whole(float(step), kind.low, kind.high),))
        for wanted, number in ((low, first), (high, last), (first * float(step), first)):
            certified, faults = limits.apply(np.array([wanted]), np.array([nan]), 1.0)
            assert faults == ()
            wire, sent = Encoder(tags).encode(certified, (kind,))
            assert wire == (number,)
            assert sent.tolist() == certified.tolist()
            assert low <= sent[0] <= high


@pytest.mark.parametrize("name", ["Boolean", "SByte", "Byte", "Int16", "UInt16", "Int32", "UInt32"])
@pytest.mark.parametrize("step", [1.0, 0.1, 0.01, 1 / 3, 0.3])
def test_the_link_writes_exactly_what_was_certified(name: str, step: float) -> None:
    """Else the tick would end in FILTER_BYPASS: also at limits between two whole steps."""
    kind = WIRE_TYPES[name]
    rng = np.random.default_rng(3)
    for _ in range(200):
        first = max(kind.low, -2000.0) * step
        last = min(kind.high, 2000.0) * step
        low = first if name == "Boolean" else float(rng.uniform(first, 0.5 * (first + last)))
        high = last if name == "Boolean" else float(rng.uniform(low + 2 * step, last))
        if rng.random() < 0.5:
            low, high = round(low / step) * step, round(high / step) * step
        outputs = SignalSet((Signal("pump", "m3/h", low, high),))
        limits = Limits(outputs, 1.0, (Whole(step, kind.low, kind.high),))
        tag = OutputTag(address=parse_address("i=1", "i"), wire_type=name, scale=step)
        encoder = Encoder(TagMap(SignalSet(()), limits.outputs, (), (tag,)))
        for wanted in (low, high, *rng.uniform(low, high, 20)):
            certified, _ = limits.apply(np.array([wanted]), np.array([nan]), 1.0)
            wire, sent = encoder.encode(certified, (kind,))
            assert sent.tolist() == certified.tolist()
            assert kind.low <= wire[0] <= kind.high
            assert wire[0] == round(wire[0])
