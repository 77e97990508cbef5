"""What could our own account write beyond what it is configured to? Browsed, nothing is written.

The least that a plant can give us is the right to write our outputs and the signs of the handshake.
What else stands open is the server's own word (UserAccessLevel), node by node.
"""

import asyncio
import time
from dataclasses import dataclass

from asyncua import ua

from steadyhand.adapters.opcua.resolve import CAN_WRITE, read_namespaces, written_nodes
from steadyhand.adapters.opcua.security import load_credentials
from steadyhand.adapters.opcua.session import Session, open_session, within
from steadyhand.adapters.opcua.settings import OpcUaSettings
from steadyhand.adapters.opcua.tags import TagMap
from steadyhand.adapters.opcua.wire import BAD_STATUS

MOST_NODES = 20_000
LONGEST_S = 60.0
"""Of the browsing; what a server cannot show in that time is told as not looked at."""
_AT_ONCE = 100
"""Nodes in one request."""


@dataclass(frozen=True, slots=True)
class Reach:
    """What browsing found."""

    beyond: tuple[str, ...]
    """Variables that we may write and do not: browse name and node id, sorted."""
    nodes: int
    """How many nodes were looked at."""
    complete: bool
    """False: the server has more than was looked at."""


def own_reach(
    settings: OpcUaSettings,
    tags: TagMap,
    most_nodes: int = MOST_NODES,
    page: int = 1000,
) -> Reach:
    """Look through the whole address space with our own certificate and name.

    Args:
        settings: how we connect.
        tags: what we write.
        most_nodes: it ends there.
        page: references per node and answer; the rest is asked for.

    Raises:
        LinkError, OSError, asyncua's UaError: the server cannot be reached, or stops answering.
    """
    return asyncio.run(_look(settings, tags, most_nodes, page))


async def _look(settings: OpcUaSettings, tags: TagMap, most_nodes: int, page: int) -> Reach:
    credentials = load_credentials(settings.security)
    session = await within(
        settings.connect_timeout_s, open_session(settings, credentials), "connect"
    )
    try:
        ours = set((await written_nodes(session, tags)).values())
        seen: dict[ua.NodeId, str] = {}
        variables: list[ua.NodeId] = []
        complete = await _browse(session, seen, variables, most_nodes, page)
        namespaces = {index: uri for uri, index in (await read_namespaces(session)).items()}
        wanted = [(node, ua.AttributeIds.UserAccessLevel) for node in variables]
        rights = (await session.read(wanted, "read rights"))[0] if wanted else []
        beyond = [
            f"{seen[node]} ({_named(node, namespaces)})"
            for node, right in zip(variables, rights, strict=True)
            if node not in ours and _may(right)
        ]
        return Reach(tuple(sorted(beyond)), len(seen), complete)
    finally:
        await session.close(settings.request_timeout_s)


async def _browse(
    session: Session,
    seen: dict[ua.NodeId, str],
    variables: list[ua.NodeId],
    most_nodes: int,
    page: int,
) -> bool:
    """Fill `seen` and `variables`, breadth first; False where a bound ended it."""
    until_s = time.monotonic() + LONGEST_S
    row = [ua.NodeId(ua.ObjectIds.ObjectsFolder)]
    seen[row[0]] = "Objects"
    while row:
        below: list[ua.NodeId] = []
        for first in range(0, len(row), _AT_ONCE):
            if time.monotonic() > until_s:
                return False
            for reference in await session.browse(row[first : first + _AT_ONCE], page):
                target = reference.NodeId
                node = ua.NodeId(target.Identifier, target.NamespaceIndex)
                if getattr(target, "ServerIndex", 0) or node in seen:  # or of another server
                    continue
                if len(seen) >= most_nodes:
                    return False
                seen[node] = reference.BrowseName.Name or ""
                below.append(node)
                if reference.NodeClass == ua.NodeClass.Variable:
                    variables.append(node)
        row = below
    return True


def _may(right: ua.DataValue) -> bool:
    value = right.Value.Value if right.Value is not None else None
    good = right.StatusCode is None or right.StatusCode.value < BAD_STATUS
    return good and isinstance(value, int) and bool(value & CAN_WRITE)


def _named(node: ua.NodeId, namespaces: dict[int, str]) -> str:
    """As the configuration would name it: with the namespace's address, which does not move."""
    kind = {int: "i", str: "s", bytes: "b"}.get(type(node.Identifier), "g")
    uri = namespaces.get(node.NamespaceIndex, str(node.NamespaceIndex))
    return f"nsu={uri};{kind}={node.Identifier}"
