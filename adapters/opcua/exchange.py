"""One encoded request out, one encoded reply in, with as little between as is sound.

Three things cost more than the reply itself on a quick network: building the chunk, taking it
apart, and the turn through asyncio's selector. The first two are saved on an open channel, where
a chunk is 24 bytes of header before the body; sequence numbers, request ids, channel and token are
kept and checked as asyncua does, in its own variables. On an encrypted channel asyncua makes and
opens the chunks. The third is saved on both: for a moment the reply is waited for on the socket
itself. Whatever arrives meanwhile that is not the plain reply goes to asyncua in order, so that
nothing is lost or overtaken.
"""

import asyncio
import os
import select
import struct
import time
from typing import Any

from asyncua import ua

from steadyhand.adapters.opcua.channel import MAX_CHUNK_BYTES, heard
from steadyhand.adapters.opcua.session import within

SPIN_S = 0.002
"""About how long the adapter's event loop may stand still for one reply."""
_POLL_MS = 3
"""Not 1: arming the kernel's nearest timer was measured to cost a third of a whole read."""
_HEADER = struct.Struct("<4sIIIII")
"""Kind, size, channel; security token; sequence number, request id."""
_HEAD = _HEADER.size
_MOST_NUMBER = 0xFFFFFFFF - 1024
"""Near the end of the sequence numbers asyncua does the wrapping."""


class Exchange:
    """Exchanges bodies over one connection; worthless after it."""

    def __init__(self, protocol: Any) -> None:  # noqa: ANN401
        self._protocol = protocol
        policy = protocol._connection.security_policy
        self._loop = asyncio.get_running_loop()
        self._open = policy.Mode == ua.MessageSecurityMode.None_
        self._poll: Any = None
        self._descriptor = -1
        self._quick = True

    async def request(self, body: bytes, timeout_s: float) -> bytes:
        """Send a request body, return the reply body.

        Raises:
            LinkTimeoutError: no answer in time.
            ConnectionError: the connection is closed.
        """
        protocol = self._protocol
        if protocol.transport is None:
            raise ConnectionError("connection is closed")
        started_s = time.monotonic()
        protocol.revolve_security_token()
        number = protocol._request_id = protocol._request_id + 1
        message = self._message(body, number)
        future: asyncio.Future[Any] = self._loop.create_future()
        protocol._callbackmap[number] = future
        protocol.transport.write(message)
        if self._quick:
            reply = self._spin(future, number, started_s + SPIN_S)
            if reply is not None:
                return reply
        if not future.done():
            future.add_done_callback(heard)
            await within(timeout_s, asyncio.shield(future), "read")
        # a slow server is not spun for again until it was quick
        self._quick = time.monotonic() - started_s < SPIN_S
        return bytes(future.result())

    def _message(self, body: bytes, number: int) -> bytes:
        connection = self._protocol._connection
        size = _HEAD + len(body)
        fits = size <= connection._limits.max_send_buffer
        if not (self._open and fits and connection._sequence_number < _MOST_NUMBER):
            message: bytes = connection.message_to_binary(
                body, message_type=ua.MessageType.SecureMessage, request_id=number
            )
            return message
        connection._sequence_number += 1
        token = connection.security_token
        head = _HEADER.pack(
            b"MSGF",
            size,
            token.ChannelId,
            token.TokenId,
            connection._sequence_number,
            number,
        )
        return head + body

    def _spin(self, future: "asyncio.Future[Any]", number: int, deadline_s: float) -> bytes | None:
        """Receive until the reply is there; None: not in time, leave it to the event loop."""
        protocol = self._protocol
        transport = protocol.transport
        if transport is None or transport.get_write_buffer_size():
            return None
        if self._poll is None:
            self._descriptor = transport.get_extra_info("socket").fileno()
            self._poll = select.poll()
            self._poll.register(self._descriptor, select.POLLIN)
        while not future.done():
            if time.monotonic() >= deadline_s or not self._poll.poll(_POLL_MS):
                return None
            try:
                data = os.read(self._descriptor, MAX_CHUNK_BYTES)
            except (BlockingIOError, InterruptedError):
                continue
            if not data:
                return None  # end of stream stays readable: the event loop sees it too
            reply = self._plain_reply(data, number) if self._open else None
            if reply is not None:
                return reply
            protocol.data_received(data)
            if protocol.transport is None or protocol.transport.is_closing():
                return None
        return None

    def _plain_reply(self, data: bytes, number: int) -> bytes | None:
        """Body, if `data` is exactly the one chunk we wait for and in sequence."""
        protocol = self._protocol
        connection = protocol._connection
        if len(data) < _HEAD or protocol.receive_buffer or connection._incoming_parts:
            return None
        kind, size, channel, token, sequence, request = _HEADER.unpack_from(data)
        if (
            kind != b"MSGF"
            or size != len(data)
            or request != number
            or channel != connection.security_token.ChannelId
            or token != connection.security_token.TokenId
            or sequence != (connection._peer_sequence_number or 0) + 1
            or size > MAX_CHUNK_BYTES
        ):
            return None
        connection._peer_sequence_number = sequence
        del protocol._callbackmap[number]
        return data[_HEAD:]
