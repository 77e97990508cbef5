"""All tags fresh at every tick: the link that ships, and what a user would write with the library.

The server writes the time of its writing into every tag, so the age of a value is measured from
end to end, whatever stamps and caches lie between.
"""

import asyncio
import time
from typing import Any

import numpy as np
from asyncua import Client, ua
from asyncua.crypto.security_policies import SecurityPolicyBasic256Sha256

from steadyhand.adapters.opcua.decoding import new_message
from steadyhand.adapters.opcua.link import OpcUaLink
from steadyhand.adapters.opcua.settings import INSECURE_WORD, OpcUaSettings, Security
from steadyhand.adapters.opcua.tags import Tag, TagMap, parse_address
from steadyhand.adapters.sim.certificates import Pki
from steadyhand.controllers.errors import ConfigError
from steadyhand.controllers.frames import Quality
from steadyhand.controllers.signals import Signal, SignalSet
from steadyhand.training.bench.opcua_server import NAMESPACE, NAMESPACE_URI

PERIOD_S = 0.1
STALE = "stale ticks"
UP_S = 20.0
"""Longest wait for the link."""


def link_ticks(
    endpoint: str, tags: int, ticks: int, subscribe: bool, pki: Pki | None = None
) -> dict[str, float]:
    """Tick at `PERIOD_S` with our link; see `_row` for what is measured.

    Args:
        endpoint: of the server.
        tags: how many of `v0` … are read.
        ticks: how many are measured.
        subscribe: by subscription; else by cyclic reads.
        pki: who we are and whom we trust; None: nothing is signed or encrypted.

    Raises:
        ConfigError: the link did not come up.
    """
    signals = SignalSet(tuple(Signal(f"v{i}", "s", 0.0, 1e12) for i in range(tags)))
    uri = NAMESPACE_URI if pki is None else pki.server_uri
    addresses = [parse_address(f"nsu={uri};s=v{i}", f"v{i}") for i in range(tags)]
    settings = OpcUaSettings(
        endpoint=endpoint,
        server_uri=uri,
        security=Security(insecure_no_encryption=INSECURE_WORD)
        if pki is None
        else Security(
            certificate=pki.client_cert,
            private_key=pki.client_key,
            trusted=(pki.server_cert,),
            allow_anonymous=True,
        ),
        period_s=PERIOD_S,
        subscribe=subscribe,
    )
    tag_map = TagMap(signals, SignalSet(()), tuple(Tag(address=one) for one in addresses), ())
    link = OpcUaLink(settings, tag_map)
    link.open()
    try:
        if not link.wait_fresh(0, UP_S):
            _, _, faults = link.condition()
            told = "; ".join(fault.text for fault in faults)
            raise ConfigError(f"bench: the link to {endpoint} did not come up: {told}")
        waited, ages = [], []
        for planned_s in _plan(ticks):
            time.sleep(max(0.0, planned_s - time.monotonic()))
            began_s = time.monotonic()
            observation = link.read(began_s)
            waited.append(time.monotonic() - began_s)
            good = bool((observation.quality == Quality.GOOD).all())
            ages.append(began_s - observation.values.min() if good else np.inf)
        return _row(waited, ages)
    finally:
        link.close()


def library_ticks(endpoint: str, tags: int, ticks: int, pki: Pki | None = None) -> dict[str, float]:
    """The same with asyncua: every tick reads all tags and waits for them."""
    return asyncio.run(_library_ticks(endpoint, tags, ticks, pki))


async def _library_ticks(endpoint: str, tags: int, ticks: int, pki: Pki | None) -> dict[str, float]:
    client: Any = Client(endpoint, timeout=4.0)
    if pki is not None:
        client.application_uri = pki.client_uri
        await client.set_security(
            SecurityPolicyBasic256Sha256,
            pki.client_cert,
            pki.client_key,
            server_certificate=pki.server_cert,
            mode=ua.MessageSecurityMode.SignAndEncrypt,
        )
    async with client:
        nodes = [client.get_node(f"ns={NAMESPACE};s=v{i}") for i in range(tags)]
        waited, ages = [], []
        for planned_s in _plan(ticks):
            await asyncio.sleep(max(0.0, planned_s - time.monotonic()))
            new_message()  # our bound on what one message may hold counts from here
            began_s = time.monotonic()
            values = await client.read_values(nodes)
            now_s = time.monotonic()
            waited.append(now_s - began_s)
            ages.append(now_s - min(values))
    return _row(waited, ages)


def _plan(ticks: int) -> list[float]:
    start_s = time.monotonic() + PERIOD_S
    return [start_s + tick * PERIOD_S for tick in range(ticks)]


def _row(waited_s: list[float], ages_s: list[float]) -> dict[str, float]:
    """How long a tick waits for its values, and how old the oldest of them is then."""
    return {
        "p50_us": float(np.percentile(waited_s, 50) * 1e6),
        "p99_us": float(np.percentile(waited_s, 99) * 1e6),
        "calls": len(waited_s),
        "oldest value, p50 ms": float(np.percentile(ages_s, 50) * 1e3),
        "oldest value, p99 ms": float(np.percentile(ages_s, 99) * 1e3),
        STALE: float(np.sum(np.array(ages_s) > PERIOD_S)),
    }
