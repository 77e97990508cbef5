"""Decodes a read reply whose shape does not change, without making an object per value.

A cyclic read has a constant request, and as long as every sample is Good its reply has a constant
layout: only the numbers and the stamps move. The layout is learnt from one reply; before it is used
on another, every byte that must not have changed is compared: type of the answer, service result,
number of samples, and of each sample which parts are there, its type and its status. One sample
that is not Good, one array, one other type, and the bytes differ: the reply is then decoded in the
general way. (OPC 10000-6, 5.2.2.17 DataValue, 5.2.2.16 Variant, 7.1.2 for the message.)
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steadyhand.adapters.opcua.wire import Samples, WireType

_TYPE_ID = 4
"""Bytes of the reply's type id (a four-byte node id)."""
_RESULT, _COUNT, _FIRST = _TYPE_ID + 12, _TYPE_ID + 24, _TYPE_ID + 28
"""Service result; number of samples; first sample: where the header has its usual empty parts."""
_VALUE, _STATUS, _SOURCE, _SERVER, _SOURCE_PICO, _SERVER_PICO = 1, 2, 4, 8, 16, 32
_TICKS = np.dtype("<i8")


@dataclass(frozen=True, slots=True)
class _Run:
    """Equally spaced fields of one type: places `first` to `last` of the result."""

    first: int
    last: int
    dtype: "np.dtype[np.generic]"
    offset: int
    stride: int

    def view(self, body: bytes) -> "NDArray[np.generic]":
        """The fields, not copied."""
        return np.ndarray((self.last - self.first,), self.dtype, body, self.offset, (self.stride,))


def _runs(fields: list[tuple[int, str, int]]) -> tuple[_Run, ...]:
    """Join (place, type code, offset) fields into as few runs as possible."""
    runs: list[_Run] = []
    for place, code, offset in fields:
        dtype = np.dtype(code)
        if runs and runs[-1].last == place and runs[-1].dtype == dtype:
            run = runs[-1]
            count = run.last - run.first
            step = offset - run.offset - (count - 1) * run.stride
            if count == 1 or step == run.stride:
                runs[-1] = _Run(run.first, place + 1, dtype, run.offset, step)
                continue
        runs.append(_Run(place, place + 1, dtype, offset, dtype.itemsize))
    return tuple(runs)


class Layout:
    """Where everything stands in the replies to one request."""

    def __init__(
        self,
        size: int,
        fixed: list[int],
        body: bytes,
        n: int,
        fields: tuple[list[tuple[int, str, int]], ...],
        booleans: list[int],
    ) -> None:
        self._size = size
        self._fixed = np.array(fixed, dtype=np.intp)
        self._expected = np.frombuffer(body, np.uint8)[self._fixed].tobytes()
        self._n = n
        self._booleans = booleans
        self._values, self._source, self._server = (_runs(part) for part in fields)
        self._good = np.zeros(n, dtype=np.uint32)
        self._right = np.zeros(n, dtype=np.bool_)
        self._good.flags.writeable = self._right.flags.writeable = False

    def decode(self, body: bytes) -> tuple[Samples, int] | None:
        """Samples and the server's clock; None when this reply has another layout."""
        if len(body) != self._size:
            return None
        raw = np.frombuffer(body, np.uint8)
        if raw[self._fixed].tobytes() != self._expected:
            return None
        values = np.empty(self._n)
        for run in self._values:
            values[run.first : run.last] = run.view(body)
        for place in self._booleans:  # any byte but zero is true
            values[place] = values[place] != 0.0
        source, server = self._stamps(self._source, body), self._stamps(self._server, body)
        samples = Samples(values, self._good, source, server, self._right)
        return samples, int.from_bytes(body[_TYPE_ID : _TYPE_ID + 8], "little")

    def _stamps(self, runs: tuple[_Run, ...], body: bytes) -> NDArray[np.int64]:
        stamps = np.zeros(self._n, dtype=np.int64)
        for run in runs:  # a stamp that is there counts at least 1, also when it says 1601
            np.maximum(run.view(body), 1, out=stamps[run.first : run.last])
        return stamps


def learn(body: bytes, kinds: tuple[WireType, ...]) -> Layout | None:
    """The layout of a good reply; None when it is not of the simple kind."""
    n = len(kinds)
    if len(body) < _FIRST or int.from_bytes(body[_COUNT:_FIRST], "little") != n:
        return None
    fixed = [*range(_TYPE_ID), *range(_RESULT, _FIRST)]
    values: list[tuple[int, str, int]] = []
    source: list[tuple[int, str, int]] = []
    server: list[tuple[int, str, int]] = []
    at = _FIRST
    for place, kind in enumerate(kinds):
        if at + 2 > len(body):
            return None
        mask = body[at]
        if not mask & _VALUE or mask >= 64 or body[at + 1] != kind.variant.value:
            return None
        fixed += (at, at + 1)
        at += 2
        code = "<u1" if kind.name == "Boolean" else kind.code
        values.append((place, code, at))
        at += np.dtype(code).itemsize
        if mask & _STATUS:
            if body[at : at + 4] != b"\0\0\0\0":
                return None
            fixed += range(at, at + 4)
            at += 4
        for bit, stamps, pico in ((_SOURCE, source, _SOURCE_PICO), (_SERVER, server, _SERVER_PICO)):
            if mask & bit:
                stamps.append((place, "<i8", at))
                at += 8
            at += 2 if mask & pico else 0
    fixed += range(at, len(body))
    # exactly an empty list of diagnostics must follow
    if body[at:] not in (b"\0\0\0\0", b"\xff\xff\xff\xff"):
        return None
    booleans = [place for place, kind in enumerate(kinds) if kind.name == "Boolean"]
    return Layout(len(body), fixed, body, n, (values, source, server), booleans)
