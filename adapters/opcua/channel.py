"""Where the link reaches below asyncua's public interface to keep a hostile server at bay.

asyncua keeps the secure channel, the session and the token renewal. What is added: here, caps on
what a hostile server may send (the library's default is no limit); in `exchange.py`, sending a
request whose body is already encoded.
"""

import asyncio
import struct
from dataclasses import dataclass
from typing import Any

from asyncua.common.connection import TransportLimits

from steadyhand.adapters.opcua.decoding import bound_decoding, new_message

MAX_CHUNK_BYTES = 65_536
MIN_CHUNK_BYTES = 8_192
"""Smallest chunk the standard lets a peer insist on."""


@dataclass
class CappedLimits(TransportLimits):  # type: ignore[misc]
    """Our caps hold whatever the server acknowledges: it may tighten them, never widen them."""

    cap_bytes: int = 1 << 20

    def update_client_limits(self, msg: Any) -> None:  # noqa: ANN401
        """Take the server's buffer sizes, inside our bounds."""
        send = int(msg.ReceiveBufferSize) or MAX_CHUNK_BYTES
        self.max_send_buffer = min(max(send, MIN_CHUNK_BYTES), MAX_CHUNK_BYTES)
        self.max_recv_buffer = MAX_CHUNK_BYTES
        self.max_message_size = self.cap_bytes
        self.max_chunk_count = self.cap_bytes // MIN_CHUNK_BYTES + 1


def cap_messages(client: Any, cap_bytes: int) -> None:  # noqa: ANN401
    """Make `client` drop the connection when a server sends more than `cap_bytes`.

    Covers the announced size of a chunk (a header may claim 4 GiB, which would be buffered while
    it trickles in), the number of chunks and the size of the whole message.
    """
    bound_decoding()
    client.max_messagesize = cap_bytes
    client.max_chunkcount = cap_bytes // MIN_CHUNK_BYTES + 1
    make = client.uaclient._make_protocol

    def make_capped() -> Any:  # noqa: ANN401
        protocol = make()
        protocol._connection._limits = CappedLimits(
            MAX_CHUNK_BYTES,
            MAX_CHUNK_BYTES,
            cap_bytes // MIN_CHUNK_BYTES + 1,
            cap_bytes,
            cap_bytes=cap_bytes,
        )
        receive = protocol.data_received

        def receive_capped(data: bytes) -> None:
            new_message()
            receive(data)
            held = protocol.receive_buffer
            if held is not None and len(held) >= 8:
                (size,) = struct.unpack_from("<I", held, 4)
                if size > MAX_CHUNK_BYTES and protocol.transport is not None:
                    protocol.receive_buffer = None
                    protocol.transport.abort()

        fail = protocol._fail_all_pending

        def fail_heard(error: BaseException) -> None:
            for future in protocol._callbackmap.values():
                future.add_done_callback(heard)
            fail(error)

        protocol.data_received = receive_capped
        protocol._fail_all_pending = fail_heard
        made.append(protocol)
        return protocol

    made: list[Any] = []
    client.made_protocols = made
    client.uaclient._make_protocol = make_capped


def heard(future: "asyncio.Future[Any]") -> None:
    """Who waited may have gone when the connection breaks: nobody need hear of it twice."""
    if not future.cancelled():
        future.exception()


def abort(client: Any) -> None:  # noqa: ANN401
    """Cut every connection of `client` now: nothing unsent may reach the plant later.

    asyncua closes politely, which waits for the unsent bytes to drain into a dead peer.
    """
    for protocol in client.made_protocols:
        if protocol.transport is not None:
            protocol.transport.abort()
