"""A subscription, and whether it still lives."""

from collections.abc import Callable
from typing import Any

from asyncua import ua

from steadyhand.adapters.opcua.session import Session
from steadyhand.adapters.opcua.settings import OpcUaSettings
from steadyhand.adapters.opcua.wire import to_ticks
from steadyhand.controllers.errors import LinkError

LIFETIMES = 10
"""Keep-alives a server waits before it drops the subscription of a silent client."""
STALE_FACTOR = 1.5


class SubscriptionRefusedError(LinkError):
    """The server grants something slower than the loop needs: read cyclically instead."""


class Subscription:
    """Data by exception: newest value only, both stamps, full DataValues.

    Args:
        session: an open session.
        settings: intervals.
        on_data: called with ([(column, DataValue), …], complete) per publish response; `complete`
            is False when notifications were lost and everything must be read anew.
        monotonic: our clock.
    """

    def __init__(
        self,
        session: Session,
        settings: OpcUaSettings,
        on_data: Callable[[list[tuple[int, Any]], bool], None],
        monotonic: Callable[[], float],
    ) -> None:
        self._session = session
        self._settings = settings
        self._on_data = on_data
        self._monotonic = monotonic
        self._id = 0
        self._next_number = 0
        self._server_ticks = 0
        self._silence_s = settings.keep_alive_s
        self.proven = False
        """Has the server published anything?"""
        self.ended = ""
        """Why the server ended it; empty while it lives."""
        self.alive_s = monotonic()
        """When it last showed life, with the server's clock advancing."""

    async def start(self, nodes: list[Any]) -> None:
        """Subscribe to `nodes`; their column is their place in the list.

        Raises:
            SubscriptionRefusedError: revised intervals are too slow, or an item is refused.
            LinkTimeoutError, asyncua's UaError: the server does not answer, or refuses.
        """
        settings = self._settings
        asked_ms = settings.sample_period_s * 1000.0
        keep_alives = max(1, round(settings.keep_alive_s / settings.sample_period_s))
        granted = await self._session.create_subscription(
            ua.CreateSubscriptionParameters(
                RequestedPublishingInterval=asked_ms,
                RequestedLifetimeCount=keep_alives * LIFETIMES,
                RequestedMaxKeepAliveCount=keep_alives,
                MaxNotificationsPerPublish=0,
                PublishingEnabled=True,
                Priority=0,
            ),
            self._publish,
        )
        self._id = granted.SubscriptionId
        publish_s = granted.RevisedPublishingInterval / 1000.0
        self._silence_s = max(publish_s * granted.RevisedMaxKeepAliveCount, publish_s)
        slowest_s = 0.5 * settings.period_s
        self._check("publishing interval", publish_s, slowest_s)
        results = await self._session.create_monitored_items(
            ua.CreateMonitoredItemsParameters(
                SubscriptionId=self._id,
                TimestampsToReturn=ua.TimestampsToReturn.Both,
                ItemsToCreate=[self._item(node, i, asked_ms) for i, node in enumerate(nodes)],
            )
        )
        for result in results:
            if not result.StatusCode.is_good():
                raise SubscriptionRefusedError(f"monitored item: {result.StatusCode.name}")
            self._check("sampling interval", result.RevisedSamplingInterval / 1000.0, slowest_s)

    @staticmethod
    def _item(node: Any, column: int, sampling_ms: float) -> Any:  # noqa: ANN401
        return ua.MonitoredItemCreateRequest(
            ItemToMonitor=ua.ReadValueId(NodeId=node, AttributeId=ua.AttributeIds.Value),
            MonitoringMode=ua.MonitoringMode.Reporting,
            RequestedParameters=ua.MonitoringParameters(
                ClientHandle=column, SamplingInterval=sampling_ms, QueueSize=1, DiscardOldest=True
            ),
        )

    @staticmethod
    def _check(what: str, granted_s: float, slowest_s: float) -> None:
        if granted_s > slowest_s * 1.001:
            raise SubscriptionRefusedError(
                f"{what} revised to {granted_s:g} s, needed is {slowest_s:g} s"
            )

    @property
    def stale_after_s(self) -> float:
        """Longest silence of a healthy subscription, with some slack."""
        return STALE_FACTOR * self._silence_s + self._settings.pulse_s

    def stale(self) -> str:
        """Why it counts as dead; empty while it does not."""
        if self.ended:
            return self.ended
        silent_s = self._monotonic() - self.alive_s
        if silent_s > self.stale_after_s:
            return f"silent for {silent_s:.1f} s, limit {self.stale_after_s:.1f} s"
        return ""

    async def stop(self) -> None:
        """Delete it on the server."""
        if self._id:
            await self._session.delete_subscription(self._id)

    def _publish(self, result: Any) -> None:  # noqa: ANN401
        """One publish response; runs in the adapter's event loop.

        Nothing may escape: the library would log it and go on as if nothing had happened.
        """
        try:
            self._take(result)
        except Exception as error:  # noqa: BLE001  whatever a server can put into a notification
            self.ended = f"sent what cannot be used: {type(error).__name__}: {error}"

    def _take(self, result: Any) -> None:  # noqa: ANN401
        self.proven = True
        message = result.NotificationMessage
        ticks = to_ticks(message.PublishTime)
        if ticks > self._server_ticks:
            self._server_ticks = ticks
            self.alive_s = self._monotonic()
        number = int(message.SequenceNumber)
        data = message.NotificationData or []
        complete = self._next_number in (0, number)
        if data:
            self._next_number = number + 1 if number < 0xFFFFFFFF else 1
        changes: list[tuple[int, Any]] = []
        for part in data:
            if isinstance(part, ua.DataChangeNotification):
                changes += [(int(item.ClientHandle), item.Value) for item in part.MonitoredItems]
            elif isinstance(part, ua.StatusChangeNotification):
                self.ended = f"ended by the server: {part.Status.name}"
        if changes or not complete:
            self._on_data(changes, complete)
