"""One TCP connection to our server: bounded in what it sends, asks per second and leaves unread."""

import asyncio
import socket
import time
from typing import Any

from asyncua.server.binary_server_asyncio import BinaryServer, OPCUAProtocol
from asyncua.server.internal_session import SessionState

from steadyhand.adapters.opcua.decoding import bound_decoding, new_message

LOOK_EVERY_S = 1.0
_HEADER_BYTES = 8


class Connection(OPCUAProtocol):  # type: ignore[misc]  # untyped library
    """A connection of the library's server, with an end to everything."""

    _tokens = 0.0
    _filled_s = 0.0

    @property
    def named(self) -> bool:
        """Has somebody logged in?"""
        session = None if self.processor is None else self.processor.session
        return session is not None and session.is_activated()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Let it in, unless its host has too many that never said who they are."""
        shares = self.iserver.shares
        self._tokens, self._filled_s = float(shares.burst), time.monotonic()
        host = (transport.get_extra_info("peername") or ("",))[0]
        unnamed = [
            one for one in self.clients if not one.named and (one.peer_name or ("",))[0] == host
        ]
        if len(unnamed) >= shares.unnamed_per_host:
            transport.close()
            return
        super().connection_made(transport)

    def connection_lost(self, ex: BaseException | None) -> None:
        """Its session ends with it, subscriptions and all."""
        if self.transport is None:  # was never let in
            return
        super().connection_lost(ex)
        self.iserver.gone += 1
        session = None if self.processor is None else self.processor.session
        if session is not None:
            self.closing_tasks.append(asyncio.create_task(session.close_session(True)))

    def data_received(self, data: bytes) -> None:
        """Take what came; whoever announces or leaves unread too much is cut off."""
        if self.transport is None or self.transport.is_closing():
            return
        super().data_received(data)
        waiting = len(self._buffer)
        size = int.from_bytes(self._buffer[4:_HEADER_BYTES], "little")
        most = self.limits.max_recv_buffer
        if waiting > most or (waiting >= _HEADER_BYTES and size > most) or self.overfull:
            self.transport.abort()

    @property
    def overfull(self) -> bool:
        """Are there more answers than the client reads?"""
        if self.transport is None:
            return False
        return bool(self.transport.get_write_buffer_size() > self.iserver.shares.unread_bytes)

    @property
    def stale(self) -> bool:
        """Is it open for nothing: its session closed, its certificate or its user let go?"""
        session = None if self.processor is None else self.processor.session
        if session is None:
            return False
        if session.state is SessionState.Closed:
            return True
        if not self.named:
            return False
        trust = self.iserver.trust
        certificate = self.processor._connection.security_policy.peer_certificate
        if trust is not None and not trust.trusts(certificate):
            return True
        return not self.iserver.still(session.user)

    async def _process_one_msg(self, header: Any, buf: Any) -> bool:  # noqa: ANN401
        """One request; whoever asks too fast is read slower."""
        wait_s = self._wait_s()
        if wait_s > 0.0 and self.transport is not None:
            self.transport.pause_reading()
            await asyncio.sleep(wait_s)
            self.transport.resume_reading()
        new_message()
        try:
            done: bool = await super()._process_one_msg(header, buf)
        except Exception:  # noqa: BLE001  (no request at all: the channel is broken, or never was)
            done = False
            if self.transport is not None:
                self.transport.abort()
        if self.overfull and self.transport is not None:
            self.transport.abort()
        return done

    def _wait_s(self) -> float:
        """Take one token; how long until there was one."""
        shares, now_s = self.iserver.shares, time.monotonic()
        gained = (now_s - self._filled_s) * shares.requests_per_s
        self._tokens, self._filled_s = min(float(shares.burst), self._tokens + gained) - 1.0, now_s
        return 0.0 if self._tokens >= 0.0 else -self._tokens / shares.requests_per_s


class Listener(BinaryServer):  # type: ignore[misc]  # untyped library
    """Makes connections of our kind and looks after them."""

    _look_task: "asyncio.Task[None] | None" = None
    listening: socket.socket | None = None
    """A bound socket, instead of host and port."""

    def _make_protocol(self) -> Connection:
        bound_decoding()
        return Connection(
            iserver=self.iserver,
            policies=self._policies,
            clients=self.clients,
            closing_tasks=self.closing_tasks,
            limits=self.limits,
        )

    async def start(self) -> None:
        """Listen."""
        if self.listening is None:
            await super().start()
        else:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(self._make_protocol, sock=self.listening)
            self.cleanup_task = asyncio.create_task(self._close_task_loop())
        self._look_task = asyncio.create_task(self._look())

    async def stop(self) -> None:
        """Hang up on everybody."""
        if self._look_task is not None:
            self._look_task.cancel()
        for client in list(self.clients):
            if client.transport is not None:
                client.transport.abort()
        await super().stop()

    async def _look(self) -> None:
        """Cut what is overfull or stale, also while its client says nothing."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            for client in list(self.clients):
                if (client.overfull or client.stale) and client.transport is not None:
                    client.transport.abort()
