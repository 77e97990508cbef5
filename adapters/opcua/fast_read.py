"""The read that is done every cycle: encoded once, decoded as columns.

Nearly all the client's time in an ordinary read goes into building and parsing one object per
value. Here the request is encoded once and two fields are patched, and the reply is read off as
columns (`layout.py`). Signing, encryption and token renewal stay with asyncua (`exchange.py`), so
that the fast path is as sound on an encrypted channel as on an open one. Whatever is not as it was
falls back by itself: a reply with another layout is decoded in the general way, from the same
bytes.
"""

import time
from typing import Any

from asyncua import ua
from asyncua.ua.ua_binary import nodeid_to_binary, struct_from_binary, struct_to_binary

from steadyhand.adapters.opcua.decoding import new_message
from steadyhand.adapters.opcua.exchange import Exchange
from steadyhand.adapters.opcua.layout import Layout, learn
from steadyhand.adapters.opcua.session import Session, chunks
from steadyhand.adapters.opcua.wire import (
    EPOCH_1601_S,
    TICKS_PER_S,
    Samples,
    WireType,
    decode,
    join_samples,
    to_ticks,
)
from steadyhand.controllers.errors import LinkError

LEARN_AGAIN = 50
"""Replies decoded in the general way before the layout is learnt anew."""


class CyclicRead:
    """Reads the same nodes again and again; full DataValues with status and both stamps.

    Args:
        session: an open session; the reader is worthless in the next one.
        nodes: node ids, in the order of the result.
        kinds: their wire types.
    """

    def __init__(self, session: Session, nodes: list[Any], kinds: tuple[WireType, ...]) -> None:
        limit = session.limits.get("read", 0)
        self._parts = [
            _Part(session, [node for node, _ in part], tuple(kind for _, kind in part))
            for part in chunks(list(zip(nodes, kinds, strict=True)), limit)
        ]

    @property
    def fast(self) -> int:
        """How many replies were decoded as columns."""
        return sum(part.fast for part in self._parts)

    @property
    def slow(self) -> int:
        """How many replies were decoded in the general way."""
        return sum(part.slow for part in self._parts)

    async def read(self) -> tuple[Samples, int]:
        """Samples in the order of the nodes, and the server's clock (ticks; 0: it has none).

        Raises:
            LinkTimeoutError: no answer in time.
            LinkError, ConnectionError, asyncua's UaError: the connection or the call failed.
        """
        if len(self._parts) == 1:
            return await self._parts[0].read()
        replies = [await part.read() for part in self._parts]
        return join_samples([samples for samples, _ in replies]), replies[-1][1]


class _Part:
    """One request, as many nodes as the server takes at once."""

    def __init__(self, session: Session, nodes: list[Any], kinds: tuple[WireType, ...]) -> None:
        self.fast = self.slow = 0
        self._session = session
        self._kinds = kinds
        self._layout: Layout | None = None
        self._learn_in = 0
        protocol = self._protocol = session.protocol
        self._channel = Exchange(protocol)
        request = ua.ReadRequest()
        request.Parameters.TimestampsToReturn = ua.TimestampsToReturn.Both
        request.Parameters.NodesToRead = [
            ua.ReadValueId(NodeId=node, AttributeId=ua.AttributeIds.Value) for node in nodes
        ]
        protocol._setup_request_header(request.RequestHeader, session.timeout_s)
        self._body = bytearray(struct_to_binary(request))
        self._stamp_at = 4 + len(nodeid_to_binary(request.RequestHeader.AuthenticationToken))
        self._handle = int(request.RequestHeader.RequestHandle)

    async def read(self) -> tuple[Samples, int]:
        body = await self._exchange()
        if self._layout is not None:
            decoded = self._layout.decode(body)
            if decoded is not None:
                self.fast += 1
                return decoded
        self.slow += 1
        return self._decode(body)

    async def _exchange(self) -> bytes:
        self._handle = (self._handle + 1) & 0x7FFFFFFF
        stamp = int((time.time() + EPOCH_1601_S) * TICKS_PER_S)
        at = self._stamp_at
        self._body[at : at + 8] = stamp.to_bytes(8, "little")
        self._body[at + 8 : at + 12] = self._handle.to_bytes(4, "little")
        return await self._channel.request(bytes(self._body), self._session.timeout_s)

    def _decode(self, body: bytes) -> tuple[Samples, int]:
        """The general way; learns the layout for next time."""
        new_message()
        buffer = ua.utils.Buffer(body)
        self._protocol.check_answer(buffer, " in response to a cyclic read")
        response = struct_from_binary(ua.ReadResponse, buffer)
        response.ResponseHeader.ServiceResult.check()
        results = response.Results or []
        if len(results) != len(self._kinds):
            raise LinkError(f"read: {len(results)} results for {len(self._kinds)} nodes")
        samples = decode(results, self._kinds)
        if self._learn_in <= 0:
            self._learn_in = LEARN_AGAIN
            self._layout = learn(body, self._kinds) or self._layout
        self._learn_in -= 1
        return samples, to_ticks(response.ResponseHeader.Timestamp)
