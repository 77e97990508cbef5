"""Messages that claim more than they hold: refused in little memory, by client and server."""

import struct
import tracemalloc

import pytest
from asyncua import ua
from asyncua.common.utils import Buffer, NotEnoughData
from asyncua.ua.ua_binary import struct_from_binary, struct_to_binary
from hypothesis import given
from hypothesis import strategies as st

from steadyhand.adapters.opcua.decoding import (
    MAX_DEPTH,
    MAX_ELEMENTS,
    bound_decoding,
    new_message,
)
from steadyhand.adapters.opcua.wire import WIRE_TYPES, decode

HUGE = 2**31 - 1
NUMBERS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
OTHERS = (0, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25)


@pytest.fixture(autouse=True, scope="module")
def bounded():
    bound_decoding()
    bound_decoding()  # a second time changes nothing


def i32(value: int) -> bytes:
    return struct.pack("<i", value)


def reply(samples: bytes, count: int = 1) -> bytes:
    """A read reply with these bytes for its DataValues."""
    empty = ua.ReadResponse()
    empty.Results = []
    return struct_to_binary(empty)[:-8] + i32(count) + samples + i32(0)


def read(body: bytes):
    new_message()
    return struct_from_binary(ua.ReadResponse, Buffer(body))


def value(variant: bytes) -> bytes:
    return b"\x01" + variant


def refused(body: bytes, kinds=(ua.UaError,)) -> None:
    """In a few megabytes, and so in little time."""
    tracemalloc.start()
    try:
        with pytest.raises(kinds):
            read(body)
        assert tracemalloc.get_traced_memory()[1] < 64 * 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", [*NUMBERS, *OTHERS])
def test_an_array_of_two_thousand_million(kind):
    refused(reply(value(bytes([0x80 | kind]) + i32(HUGE))), (ua.UaError, NotEnoughData))


def test_an_array_of_nothing_takes_no_bytes_and_is_refused():
    refused(reply(value(bytes([0x80]) + i32(4))))
    assert read(reply(value(bytes([0x80]) + i32(0)))).Results[0].Value.Value == []


def test_a_list_of_samples_that_are_not_there():
    refused(reply(b"", HUGE))


@pytest.mark.parametrize("sizes", [(HUGE,), (2, 3), (0, HUGE), (-1, -5), (5, 1, 1), (HUGE, HUGE)])
def test_dimensions_that_its_values_do_not_fill(sizes):
    matrix = bytes([0xC0 | 3]) + i32(5) + b"abcde" + i32(len(sizes))
    matrix += b"".join(map(i32, sizes))
    if sizes == (5, 1, 1):
        made = read(reply(value(matrix))).Results[0].Value.Value
        assert made == [[[c]] for c in b"abcde"]
    else:
        refused(reply(value(matrix)))


def test_values_within_values():
    refused(reply(value(bytes([24]) * 100_000)))
    refused(reply(value((bytes([23]) + b"\x01") * 100_000)))
    few = bytes([24]) * (MAX_DEPTH - 1) + bytes([3, 7])
    assert read(reply(value(few))).Results[0].Value is not None


def test_an_array_within_a_value_is_no_number():
    """It takes over the type of what it holds and says that it is no array."""
    array = bytes([24, 0x80 | 11]) + i32(2) + struct.pack("<2d", 1.0, 2.0)
    number = bytes([24, 11]) + struct.pack("<d", 3.0)
    found = read(reply(value(array) + value(number), 2)).Results
    samples = decode(found, (WIRE_TYPES["Double"],) * 2)
    assert samples.wrong.tolist() == [True, False]
    assert samples.values[1] == 3.0


def test_a_megabyte_of_the_smallest_elements():
    """Each list within its bound, all of them together not."""
    part = value(bytes([0x80 | 23]) + i32(9_000) + b"\0" * 9_000)
    refused(reply(part * 110, 110))
    part = value(bytes([0x80 | 24]) + i32(9_000) + b"\0" * 9_000)
    refused(reply(part * 110, 110))
    refused(reply(b"\0" * (MAX_ELEMENTS + 1), MAX_ELEMENTS + 1))
    for _ in range(5):  # and what is allowed is allowed again in the next message
        assert len(read(reply(b"\0" * MAX_ELEMENTS, MAX_ELEMENTS)).Results) == MAX_ELEMENTS


def test_numbers_may_be_as_many_as_the_message_is_long():
    many = bytes([0x80 | 11]) + i32(100_000) + struct.pack("<100000d", *range(100_000))
    assert read(reply(value(many))).Results[0].Value.Value[-1] == 99_999.0


KINDS = ua.VariantType
variants = st.one_of(
    st.builds(ua.Variant, st.lists(st.floats(allow_nan=False), max_size=20), st.just(KINDS.Double)),
    st.builds(ua.Variant, st.lists(st.text(max_size=9), max_size=20), st.just(KINDS.String)),
    st.builds(ua.Variant, st.integers(0, 2**32 - 1), st.just(KINDS.UInt32)),
    st.builds(
        lambda rows: ua.Variant([rows, rows], ua.VariantType.Int16),
        st.lists(st.integers(-9, 9), min_size=3, max_size=3),
    ),
    st.builds(
        lambda values: ua.Variant([ua.Variant(v, ua.VariantType.Int64) for v in values],
                                  ua.VariantType.Variant),
        st.lists(st.integers(-9, 9), min_size=1, max_size=5),
    ),
)  # fmt: skip


@given(st.lists(variants, max_size=8))
def test_what_is_sound_is_decoded_as_before(values):
    body = ua.ReadResponse()
    body.Results = [ua.DataValue(one) for one in values]
    assert read(struct_to_binary(body)).Results == body.Results
