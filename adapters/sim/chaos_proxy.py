"""A bad network in user space: stands between a client and an OPC UA server and spoils the wire.

It knows frames (OPC 10000-6: 8 bytes of head, the size in the last four) and nothing of what is in
them, so it works on encrypted links too. Everything it can do:

    delay, hold (half-open link), throttle, refuse, reset, half-close,
    corrupt one byte, cut at a byte, drop, duplicate, swap two frames, change where it leads to
"""

import asyncio
import socket
import struct
import threading
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

HEAD = 8
MOST = 64 << 20
"""No frame is longer; what claims to be is passed on byte by byte."""
PORTION = 1
"""Bytes that a throttled wire lets through at a time."""
START_S = 10.0


class Way(StrEnum):
    """Where a frame goes."""

    TO_PLANT = "to_plant"
    TO_CLIENT = "to_client"


class Trick(StrEnum):
    """What is done to single frames."""

    CORRUPT = "corrupt"
    """Flip every bit of the byte at an offset (counted round the frame)."""
    CUT = "cut"
    """Pass the bytes before an offset on, then reset the connection."""
    DROP = "drop"
    DUPLICATE = "duplicate"
    SWAP = "swap"
    """Send it after the one that follows, or after a second where none does."""


@dataclass(slots=True)
class _Order:
    """So many frames of one way get one trick."""

    trick: Trick
    way: Way
    frames: int
    offset: int


@dataclass(slots=True, eq=False)
class _Pair:
    """One connection and its other half."""

    client: asyncio.StreamWriter
    plant: asyncio.StreamWriter | None = None
    tasks: list["asyncio.Task[None]"] = field(default_factory=list)


class ChaosProxy:
    """One listening port that leads to another one. A thread of its own; use as a context manager.

    Args:
        host: of the target.
        port: of the target.
    """

    def __init__(self, host: str, port: int) -> None:
        self.target = (host, port)
        """Where connections lead to; a change counts for new ones."""
        self.frames = 0
        """Frames that came by."""
        self.played: Counter[tuple[Trick, Way]] = Counter()
        """How often each trick was really played: a frame that never came cannot be spoilt. One
        that was to be overtaken counts when another one overtook it."""
        self.delayed = 0
        """Frames that were held back since the last `delay`."""
        self._delay_s = 0.0
        self._throttle_bytes_s = 0.0
        self._refuse = False
        self._orders: deque[_Order] = deque()
        self._pairs: set[_Pair] = set()
        self._loop = asyncio.new_event_loop()
        self._heard: asyncio.Event = asyncio.Event()
        self._heard.set()
        self._server: asyncio.Server | None = None
        self._socket = socket.create_server((host, 0))
        self.port: int = self._socket.getsockname()[1]
        """Where clients connect to."""
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chaos proxy", daemon=True)
        self._thread.start()
        self._started.wait(START_S)

    # -- what goes wrong; any thread ---------------------------------------------------------------

    def delay(self, seconds: float) -> None:
        """Every frame takes `seconds` longer, each way."""
        self.delayed = 0
        self._delay_s = seconds

    def throttle(self, bytes_per_s: float) -> None:
        """The wire carries so many bytes per second, each way."""
        self._throttle_bytes_s = bytes_per_s

    def hold(self, on: bool = True) -> None:
        """Nothing gets through any more, and nobody is told: a half-open link."""
        self._do(self._heard.clear if on else self._heard.set)

    def refuse(self, on: bool = True) -> None:
        """New connections are reset at once."""
        self._refuse = on

    def reset(self) -> None:
        """Reset every connection."""

        def cut() -> None:
            for pair in list(self._pairs):
                self._abort(pair)

        self._do(cut)

    def half_close(self) -> None:
        """The plant's half of every connection says that it has nothing more to send."""

        def close() -> None:
            for pair in self._pairs:
                with suppress(OSError, RuntimeError):
                    pair.client.write_eof()

        self._do(close)

    def spoil(
        self, trick: Trick, frames: int = 1, way: Way = Way.TO_CLIENT, offset: int = 40
    ) -> None:
        """Play `trick` on the next `frames` frames of one way; `offset` is for bytes."""
        self._orders.append(_Order(trick, way, frames, offset))

    def heal(self) -> None:
        """A good wire again, for what is still connected and for what comes."""
        self._delay_s = self._throttle_bytes_s = 0.0
        self._refuse = False
        self._orders.clear()
        self.hold(False)

    def close(self) -> None:
        """Cut everything and end the thread. Idempotent."""
        if self._thread.is_alive():
            self._do(self._loop.stop)
            self._thread.join()
        self._socket.close()

    def __enter__(self) -> "ChaosProxy":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- the thread --------------------------------------------------------------------------------

    def _do(self, act: Callable[[], Any]) -> None:
        """Let the thread `act`, and wait until it has."""
        done = threading.Event()

        def run() -> None:
            try:
                act()
            finally:
                done.set()

        with suppress(RuntimeError):  # the loop is closed: there is nothing left to spoil
            self._loop.call_soon_threadsafe(run)
            done.wait(START_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._server = self._loop.run_until_complete(
                asyncio.start_server(self._accept, sock=self._socket)
            )
            self._started.set()
            self._loop.run_forever()
        finally:
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            for pair in list(self._pairs):
                self._abort(pair)
            self._loop.run_until_complete(asyncio.sleep(0))
            self._loop.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pair = _Pair(writer)
        if self._refuse:
            self._abort(pair)
            return
        self._pairs.add(pair)
        try:
            await self._heard.wait()  # who is not heard is not connected on either
            there, pair.plant = await asyncio.open_connection(*self.target)
        except OSError:
            self._abort(pair)
            return
        for way, source, sink in (
            (Way.TO_PLANT, reader, pair.plant),
            (Way.TO_CLIENT, there, writer),
        ):
            pair.tasks.append(self._loop.create_task(self._carry(pair, way, source, sink)))

    async def _carry(
        self, pair: _Pair, way: Way, source: asyncio.StreamReader, sink: asyncio.StreamWriter
    ) -> None:
        """One way of one connection, until it ends."""
        line: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        sender = self._loop.create_task(self._send(pair, way, line, sink))
        pair.tasks.append(sender)
        try:
            while frame := await _frame(source):
                self.frames += 1
                self.delayed += self._delay_s > 0.0
                line.put_nowait((self._loop.time() + self._delay_s, frame))
            line.put_nowait((self._loop.time() + self._delay_s, b""))
            await sender
        except (OSError, asyncio.IncompleteReadError):
            self._abort(pair)

    async def _send(
        self,
        pair: _Pair,
        way: Way,
        line: "asyncio.Queue[tuple[float, bytes]]",
        sink: asyncio.StreamWriter,
    ) -> None:
        late = b""
        with suppress(OSError):
            while True:
                try:
                    due_s, frame = await asyncio.wait_for(line.get(), 1.0 if late else None)
                except TimeoutError:
                    due_s, frame = 0.0, b""  # nothing follows the one that was to be overtaken
                await asyncio.sleep(max(0.0, due_s - self._loop.time()))
                await self._heard.wait()
                if not frame and not late:
                    sink.write_eof()
                    return
                order = self._order(way) if frame else None
                if order is not None and order.trick is Trick.SWAP and not late:
                    late = frame
                    continue
                if order is not None and order.trick is not Trick.SWAP:
                    self.played[order.trick, way] += 1
                for part in _spoilt(frame, order):
                    await self._put(sink, part)
                if late and not (order is not None and order.trick is Trick.SWAP):
                    self.played[Trick.SWAP, way] += bool(frame)
                    await self._put(sink, late)
                    late = b""
                if order is not None and order.trick is Trick.CUT:
                    self._abort(pair)
                    return
        self._abort(pair)

    async def _put(self, sink: asyncio.StreamWriter, data: bytes) -> None:
        pace = self._throttle_bytes_s
        if pace <= 0.0:
            sink.write(data)
            await sink.drain()
            return
        for i in range(0, len(data), PORTION):
            if self._throttle_bytes_s <= 0.0:  # healed: the rest at once
                sink.write(data[i:])
                break
            sink.write(data[i : i + PORTION])
            await asyncio.sleep(PORTION / pace)
        await sink.drain()

    def _order(self, way: Way) -> _Order | None:
        """What is to be done to the next frame of `way`."""
        for order in self._orders:
            if order.way is way:
                order.frames -= 1
                if order.frames <= 0:
                    self._orders.remove(order)
                return order
        return None

    def _abort(self, pair: _Pair) -> None:
        """Reset both halves."""
        self._pairs.discard(pair)
        try:
            current = asyncio.current_task(self._loop)
        except RuntimeError:
            current = None
        for task in pair.tasks:
            if task is not current:
                task.cancel()
        for writer in (pair.client, pair.plant):
            if writer is None:
                continue
            sock = writer.get_extra_info("socket")
            if sock is not None:
                with suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()


def _spoilt(frame: bytes, order: _Order | None) -> list[bytes]:
    """What is sent instead of `frame`."""
    if order is None or not frame:
        return [frame] if frame else []
    if order.trick is Trick.DROP:
        return []
    if order.trick is Trick.DUPLICATE:
        return [frame, frame]
    at = order.offset % len(frame)
    if order.trick is Trick.CUT:
        return [frame[:at]]
    if order.trick is Trick.CORRUPT:
        return [frame[:at] + bytes([frame[at] ^ 0xFF]) + frame[at + 1 :]]
    return [frame]


async def _frame(source: asyncio.StreamReader) -> bytes:
    """The next frame; empty at the end of the stream.

    Raises:
        IncompleteReadError: the stream ends within a frame.
    """
    try:
        head = await source.readexactly(HEAD)
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return b""
    size = int.from_bytes(head[4:], "little")
    if not HEAD <= size <= MOST:
        return head
    return head + await source.readexactly(size - HEAD)
