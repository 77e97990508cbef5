"""The read that is done every cycle."""

from typing import Any

from asyncua import ua

from steadyhand.adapters.opcua.session import Session
from steadyhand.adapters.opcua.wire import Samples, WireType, decode


class CyclicRead:
    """Reads the same nodes again and again."""

    def __init__(self, session: Session, nodes: list[Any], kinds: tuple[WireType, ...]) -> None:
        self._session = session
        self._wanted = [(node, ua.AttributeIds.Value) for node in nodes]
        self._kinds = kinds

    async def read(self) -> tuple[Samples, int]:
        """Samples in the order of the nodes, and the server's clock (ticks)."""
        values, ticks = await self._session.read(self._wanted, "read")
        return decode(values, self._kinds), ticks
