"""Our cyclic read against the library's own, side by side on one server."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from asyncua import Client, ua

from steadyhand.adapters.opcua.channel import abort, cap_messages
from steadyhand.adapters.opcua.fast_read import CyclicRead
from steadyhand.adapters.opcua.session import Session
from steadyhand.adapters.opcua.wire import WIRE_TYPES, decode

ROUNDS = 10
WARM_UP = 20


@dataclass(frozen=True, slots=True)
class Race:
    """Microseconds per read of all tags; ratios only mean something within one run."""

    tags: int
    ours_us: float
    """Median: status, both stamps and value of every tag, as columns."""
    library_us: float
    """Median of asyncua's `read_values`: bare values."""
    ratio: float
    """ours / library."""
    ours_p99_us: float
    library_p99_us: float
    columns_share: float
    """Share of our reads that were decoded as columns."""
    equal: bool
    """Did both give the same values?"""


def read_race(endpoint: str, identifiers: Sequence[str], namespace: int, calls: int = 500) -> Race:
    """Time both ways of reading Double nodes, taking turns in rounds.

    Args:
        endpoint: an unencrypted server, which is what the library is fastest on.
        identifiers: string identifiers of the nodes.
        namespace: their namespace index on this server, for this run only.
        calls: reads of each kind.
    """
    return asyncio.run(_race(endpoint, identifiers, namespace, calls))


async def _race(endpoint: str, identifiers: Sequence[str], namespace: int, calls: int) -> Race:
    client: Any = Client(endpoint, timeout=4.0)
    cap_messages(client, 1 << 22)
    await asyncio.wait_for(client.connect(), 10.0)
    try:
        session = Session(client, 4.0)
        ids = [ua.NodeId(identifier, namespace) for identifier in identifiers]
        nodes = [client.get_node(node_id) for node_id in ids]
        reader = CyclicRead(session, ids, (WIRE_TYPES["Double"],) * len(ids))
        ours: list[int] = []
        library: list[int] = []
        await _time(reader.read, WARM_UP)
        await _time(lambda: client.read_values(nodes), WARM_UP)
        for _ in range(ROUNDS):
            ours += await _time(reader.read, calls // ROUNDS)
            library += await _time(lambda: client.read_values(nodes), calls // ROUNDS)
        general, _ = await session.read([(i, ua.AttributeIds.Value) for i in ids], "read")
        samples, _ = await reader.read()
        wanted = decode(general, (WIRE_TYPES["Double"],) * len(ids))
        ours_us, library_us = np.array(ours) / 1e3, np.array(library) / 1e3
        return Race(
            tags=len(ids),
            ours_us=float(np.median(ours_us)),
            library_us=float(np.median(library_us)),
            ratio=float(np.median(ours_us) / np.median(library_us)),
            ours_p99_us=float(np.percentile(ours_us, 99)),
            library_p99_us=float(np.percentile(library_us, 99)),
            columns_share=reader.fast / (reader.fast + reader.slow),
            equal=bool(np.array_equal(samples.values, wanted.values)),
        )
    finally:
        abort(client)


async def _time(call: Callable[[], Awaitable[Any]], count: int) -> list[int]:
    taken = []
    for _ in range(count):
        started = time.perf_counter_ns()
        await call()
        taken.append(time.perf_counter_ns() - started)
    return taken
